"""The CPU: formulas as NumPy calls on cache-sized blocks, several threads on a big tensor."""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Literal

import numpy as np

from app.buffers import Buffer
from app.execution.device import WHOLE_BYTES, DeviceInfo, Kernel, Ran
from app.execution.layout import blocks, collapse
from app.execution.numpy_lowering import Array, Program, Step, lower, numpy_type
from app.execution.numpy_rows import NumpyRowKernel
from app.execution.numpy_threads import BLOCK_ELEMENTS, RAN, Threads, run_program
from app.operators.compiled import CompiledOperator

UNSCRATCHED = 8
"""How many times more elements a block has where a program needs no scratch."""

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
            data_types=WHOLE_BYTES,
        )

    def prepare(self, compiled: CompiledOperator) -> Kernel:
        threads = Threads(self._helpers, self._threads)
        return NumpyRowKernel(compiled, threads) if compiled.axes else NumpyKernel(compiled, threads)


class NumpyKernel:
    """Implements `Kernel`, for operators that compute each element by itself."""

    def __init__(self, compiled: CompiledOperator, threads: Threads) -> None:
        self._sizes, strides = collapse(compiled.output.Sizes, compiled.layouts())
        types = [numpy_type(data_type) for data_type in compiled.element_types()]
        self._views = [
            (dtype, [step * dtype.itemsize for step in steps]) for dtype, steps in zip(types, strides, strict=True)
        ]
        program = lower(compiled.expression, list(compiled.inputs), compiled.stored_types[compiled.output_name])
        self._program = program
        self._tabulated = len(types) == 2 and types[0] == np.float16 and compiled.output.elements >= TABULATED
        # Every block costs some microseconds; without scratch there is nothing to keep in the cache.
        widest = max(dtype.itemsize for dtype in (*types, *program.registers))
        factor = max(4 // widest, 1) if program.registers else UNSCRATCHED
        self._blocks = list(blocks(self._sizes, factor * BLOCK_ELEMENTS))
        self._threads = threads

    def dispatch(self, inputs: Sequence[Buffer], output: Buffer, cancelled: Callable[[], bool]) -> Ran:
        # NumPy checks that the strides stay inside the buffers.
        arrays: list[Array] = [
            np.ndarray(self._sizes, dtype, buffer, 0, strides)
            for buffer, (dtype, strides) in zip([*inputs, output], self._views, strict=True)
        ]
        program = self._table() if self._tabulated else self._program

        def work(turn: int) -> None:
            *parts, part = [array[self._blocks[turn]] for array in arrays]
            run_program(program, parts, part)

        try:
            self._threads.share(len(self._blocks), work, cancelled)
        finally:
            arrays.clear()  # a helper in the executor's queue, cancelled or not, is not to keep the tensors
        return RAN

    def _table(self) -> Program:
        """The same function of one float16, looked up: all there are of them are computed once, and each only once."""
        every = np.arange(1 << 16, dtype=np.uint16)
        results: Array = np.empty(every.shape, self._views[-1][0])
        with np.errstate(all="ignore"):
            run_program(self._program, [every.view(np.float16)], results)

        def look_up(x: Array, out: Array) -> None:
            np.take(results, x.view(np.uint16), out=out, mode="clip")

        return Program(self._program.inputs, (), (), (Step(look_up, (0,), 1),))


def _memory() -> tuple[int | None, int | None]:
    """Bytes of memory of the machine, and of those free to use; not what a container limits it to."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return None, None
