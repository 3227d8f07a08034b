"""What computes a block of elements on the CPU: a loop compiled with LLVM, or NumPy's calls one after the other."""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.cpu.numpy import lowering
from app.devices.cpu.threads import BLOCK_ELEMENTS
from app.formula.expansions import Ask
from app.formula.uniform import Numbers
from app.formula.values import Value
from app.memory.arrays import Array

SMALL = 1 << 12
"""Elements whose scratch is quicker allocated than found again."""


class Routine(Protocol):
    """A formula, ready for the numbers of any request and for any block. Safe to use from several threads."""

    @property
    def registers(self) -> Sequence[np.dtype[Any]]:
        """The types of the scratch that it needs, each as large as the block."""

    def arguments(self, numbers: Numbers) -> Any:
        """What `run` wants to know of a request's numbers."""

    def is_small(self, elements: int) -> bool:
        """Whether so many are computed in less time than it takes to hand them to another thread."""

    def run(self, arguments: Any, inputs: Sequence[Array], output: Array, registers: Sequence[Array]) -> None:
        """Compute one block. `output` may be one of `inputs`, element by element."""


def routine_of(ask: Ask, expression: Value, inputs: Sequence[str], stored: DataType, loops: LoopCode | None) -> Routine:
    """The routine for an output whose elements are `expression`, stored as `stored`, over the named inputs.

    It is a loop where there are `loops` and they are good at all of its operations.
    """
    if loops:
        try:
            return Loop(ask, expression, inputs, stored, loops)
        except LookupError:
            pass  # there is an operation in it that NumPy is as quick at
    return lowering.lower(ask, expression, inputs, stored)


def run_routine(routine: Routine, arguments: Any, inputs: Sequence[Array], output: Array) -> None:
    """One block, with this thread's scratch. Inputs may be of a shape that is broadcast to the output's."""
    if output.size <= SMALL:
        registers = [np.empty(output.shape, dtype) for dtype in routine.registers]
    else:
        registers = [_register(number, dtype, output) for number, dtype in enumerate(routine.registers)]
    routine.run(arguments, inputs, output, registers)


def _register(number: int, dtype: np.dtype[Any], like: Array) -> Array:
    """Scratch of this thread in the shape of `like`, the same memory each time."""
    flat = _scratch.registers.get((number, dtype))
    if flat is None or flat.size < like.size:
        flat = _scratch.registers[number, dtype] = np.empty(max(BLOCK_ELEMENTS, like.size), dtype)
    return flat[: like.size].reshape(like.shape)


class _Scratch(threading.local):
    """The registers of one thread, by number and type."""

    def __init__(self) -> None:
        self.registers: dict[tuple[int, np.dtype[Any]], Array] = {}


_scratch = _Scratch()
