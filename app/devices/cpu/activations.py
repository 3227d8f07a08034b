"""Fused activations as functions that LLVM's code calls."""

from array import array
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache

from app.contract.constants import DataType
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.frames import Arguments
from app.devices.cpu.llvm.lowering import Element, lower, lower_part
from app.devices.cpu.llvm.text import Text
from app.formula.structures import Questions
from app.formula.values import FLOAT32, Input
from app.memory.arrays import Array
from app.operators.fusion import Fused
from app.operators.looks import shared
from app.operators.parameters import numbers_in, parameters_for


@dataclass(frozen=True, eq=False, slots=True)
class LoweredActivation:
    """One of float32, which reduces nothing."""

    element: Element
    attributes: tuple[int, ...]
    """What a frame has of it, 8 bytes each."""


PIECE = 1 << 16
"""Elements at a time, so that threads share what takes long."""


class ActivationLoop:
    """Applies an activation to what a library made. Safe to use from several threads."""

    def __init__(self, lowered: LoweredActivation, compiler: Compiler) -> None:
        self._code = Code(compiler, _source(lowered, compiler.vector_floats))
        self._attributes = lowered.attributes

    @property
    def is_compiled(self) -> bool:
        return self._code.is_compiled

    def apply(self, x: Array) -> None:
        """To `x`, which is packed float32, in place, on the threads at hand."""
        address, size = x.ctypes.data, x.size

        def activate(turn: int) -> None:
            count = min(PIECE, size - turn * PIECE)
            self._code(array("q", [address + 4 * turn * PIECE, count, *self._attributes]))

        shared(-(-size // PIECE), activate)


@lru_cache(256)
def _source(lowered: LoweredActivation, width: int) -> str:
    text = Text(width)
    frame = text.frame(("elements", "count"), 1)
    attributes = text.attributes(lowered.element, 2)
    text.activate(lowered.element, attributes, frame["elements"], frame["count"])
    return text.module(lowered.element)


@lru_cache(1024)
def source_with(lowered: LoweredActivation | None, write: Callable[..., str], *form: Hashable) -> str:
    """What `write` makes of a `form` and of the activation, if there is one."""
    return write(*form, lowered.element if lowered else None)


def lowered_activation(fused: Fused, name: str = "activation") -> LoweredActivation | None:
    """The function, called `name`; None where NumPy is to compute it."""
    return _lowered(type(fused), fused.model_dump_json(), name)


@lru_cache(1024)
def _lowered(kind: type[Fused], text: str, name: str) -> LoweredActivation | None:
    fused = kind.model_validate_json(text)
    numbers = numbers_in(fused)
    ask = Questions(numbers).ask
    formula = fused.formula(parameters_for(numbers, ask), Input(FLOAT32, "x", DataType.FLOAT32))
    try:
        element = lower_part(ask, formula, DataType.FLOAT32, name)
        whole = lower(ask, formula, DataType.FLOAT32)
    except LookupError:
        return None
    if not whole.kept:  # the same as that of the activation by itself
        element = Element(name, whole.declarations, whole.body, whole.inputs, whole.output, whole.parameters)
    return LoweredActivation(element, tuple(Arguments(element.parameters).of(numbers)))
