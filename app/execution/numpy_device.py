"""The CPU: formulas as NumPy calls on cache-sized blocks, several threads on a big tensor."""

import itertools
import os
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from typing import Any, Literal

import numpy as np

from app.buffers import Buffer
from app.contract.constants import DataType
from app.execution.device import Cancelled, DeviceInfo, Ran
from app.execution.layout import blocks, collapse
from app.execution.numpy_lowering import Array, Program, Step, lower, numpy_type
from app.operators.compiled import CompiledOperator

BLOCK_ELEMENTS = 1 << 16
"""Elements computed at a time: few enough that a block's scratch stays in the cache, enough that a second thread
pays (each NumPy call takes the interpreter's lock again)."""

_RAN = Ran("numpy", "cpu")

TABULATED = 1 << 18
"""A float16 function of one input is looked up in a table from so many elements on."""


class NumpyDevice:
    """Implements `Device`. `helpers` is where idle threads take blocks of a big tensor."""

    name = "numpy"
    kind: Literal["cpu", "cuda"] = "cpu"

    def __init__(self, helpers: Executor, threads: int) -> None:
        self._helpers = helpers
        self._threads = threads

    def info(self) -> DeviceInfo:
        total, available = _memory()
        return DeviceInfo(
            name=self.name,
            kind=self.kind,
            description=f"NumPy {np.__version__} on {platform.machine()}, {self._threads} threads",
            memory_total_bytes=total,
            memory_available_bytes=available,
            data_types=[data_type for data_type in DataType if data_type.bits >= 8],
        )

    def prepare(self, compiled: CompiledOperator) -> "NumpyKernel":
        return NumpyKernel(compiled, self._helpers, self._threads)


class NumpyKernel:
    """Implements `Kernel`."""

    def __init__(self, compiled: CompiledOperator, helpers: Executor, threads: int) -> None:
        descs = [*compiled.inputs.values(), compiled.output]
        self._sizes, strides = collapse(compiled.output.Sizes, [desc.strides for desc in descs])
        types = [numpy_type(desc.DataType) for desc in descs]
        self._views = [
            (dtype, [step * dtype.itemsize for step in steps]) for dtype, steps in zip(types, strides, strict=True)
        ]
        program = lower(compiled.expression, list(compiled.inputs), compiled.output.DataType)
        self._program = program
        self._tabulated = (
            len(types) == 2 and types[0] == types[1] == np.float16 and compiled.output.elements >= TABULATED
        )
        self._blocks = list(blocks(self._sizes, BLOCK_ELEMENTS))
        self._helpers = helpers
        self._helper_count = min(threads, len(self._blocks)) - 1

    def dispatch(self, inputs: Sequence[Buffer], output: Buffer, cancelled: Callable[[], bool]) -> Ran:
        # NumPy checks that the strides stay inside the buffers.
        arrays: list[Array] = [
            np.ndarray(self._sizes, dtype, buffer, 0, strides)
            for buffer, (dtype, strides) in zip([*inputs, output], self._views, strict=True)
        ]
        turns = itertools.count()  # hands each block to one thread
        program = self._table() if self._tabulated else self._program

        def work() -> None:
            with np.errstate(all="ignore"):
                while (turn := next(turns)) < len(self._blocks):
                    if cancelled():
                        raise Cancelled
                    *parts, part = [array[self._blocks[turn]] for array in arrays]
                    _run(program, parts, part)

        helpers = [self._helpers.submit(work) for _ in range(self._helper_count)]
        try:
            work()
        finally:
            # A helper that has not started would find nothing left to do. One that has is in its last block.
            started = [helper for helper in helpers if not helper.cancel()]
            wait(started)
            arrays.clear()  # a helper in the executor's queue, cancelled or not, is not to keep the tensors
        for helper in started:
            helper.result()
        return _RAN

    def _table(self) -> Program:
        """The same function of one float16, looked up: all there are of them are computed once, and each only once."""
        every = np.arange(1 << 16, dtype=np.uint16)
        results = np.empty_like(every)
        with np.errstate(all="ignore"):
            _run(self._program, [every.view(np.float16)], results.view(np.float16))

        def look_up(x: Array, out: Array) -> None:
            np.take(results, x.view(np.uint16), out=out.view(np.uint16), mode="clip")

        return Program(self._program.inputs, (), (), (Step(look_up, (0,), 1),))


def _run(program: Program, inputs: list[Array], output: Array) -> None:
    """One block."""
    registers = [_register(number, dtype, output) for number, dtype in enumerate(program.registers)]
    program.run(inputs, output, registers)


def _register(number: int, dtype: np.dtype[Any], like: Array) -> Array:
    """Scratch of this thread in the shape of `like`, the same memory each time."""
    flat = _scratch.registers.get((number, dtype))
    if flat is None or flat.size < like.size:
        flat = _scratch.registers[number, dtype] = np.empty(BLOCK_ELEMENTS, dtype)
    return flat[: like.size].reshape(like.shape)


class _Scratch(threading.local):
    """The registers of one thread, by number and type."""

    def __init__(self) -> None:
        self.registers: dict[tuple[int, np.dtype[Any]], Array] = {}


_scratch = _Scratch()


def _memory() -> tuple[int | None, int | None]:
    """Bytes of memory of the machine, and of those free to use; not what a container limits it to."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return None, None
