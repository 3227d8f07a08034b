"""The CPU: formulas as loops compiled with LLVM, or as NumPy calls on cache-sized blocks; several threads on a big
tensor.
"""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from operator import le
from typing import Literal

import numpy as np

from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Loop, OnBuffers
from app.devices.cpu.numpy import lowering
from app.devices.cpu.numpy.lowering import Step
from app.devices.cpu.programs import Program, program_of, run_program
from app.devices.cpu.rows import NumpyRowKernel
from app.devices.cpu.threads import RAN, Threads
from app.devices.device import WHOLE_BYTES, Cancelled, DeviceInfo, InTurn, Kernel, Ran
from app.devices.layout import blocks, collapse
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator

TABULATED = 1 << 18
"""Without LLVM, a float16 function of one input is looked up in a table from so many elements on."""

COMPILED = 1 << 10
"""Outputs of so many elements are worth the 10 to 30 ms that a loop for their formula takes to compile, once."""


class NumpyDevice:
    """Implements `Device`. `helpers` is where idle threads take blocks of a big tensor.

    With a `compiler`, outputs of at least `least` elements are computed by loops.
    """

    name = "numpy"
    kind: Literal["cpu", "cuda"] = "cpu"

    def __init__(
        self, helpers: Executor, threads: int, compiler: Compiler | None = None, least: int = COMPILED
    ) -> None:
        self._helpers = helpers
        self._threads = threads
        self._compiler = compiler
        self._least = least

    def info(self) -> DeviceInfo:
        total, available = _memory()
        parts = [f"NumPy {np.__version__}"] + ([f"LLVM {self._compiler.version}"] if self._compiler else [])
        return DeviceInfo(
            name=self.name,
            kind=self.kind,
            description=f"{' and '.join(parts)} on {platform.machine()}, {self._threads} threads",
            memory_total_bytes=total,
            memory_available_bytes=available,
            data_types=WHOLE_BYTES,
            kernels_cached=self._compiler.kernels if self._compiler else None,
        )

    def prepare(self, compiled: CompiledOperator) -> Kernel:
        threads = Threads(self._helpers, self._threads)
        compiler = self._compiler if compiled.elements >= self._least else None
        kernels: list[Kernel] = [
            (NumpyRowKernel if made.axes else NumpyKernel)(compiled, output, threads, compiler)
            for output, made in compiled.program.maps.items()
        ]
        return kernels[0] if len(kernels) == 1 else InTurn(kernels)


class NumpyKernel:
    """Implements `Kernel`, for an `output` of which each element is computed by itself."""

    def __init__(self, compiled: CompiledOperator, output: str, threads: Threads, compiler: Compiler | None) -> None:
        elements = compiled.outputs[output].elements
        self._sizes, strides = collapse(compiled.outputs[output].Sizes, compiled.layouts(output))
        types = [numpy_type(data_type) for data_type in compiled.element_types(output)]
        self._views = [
            (dtype, [step * dtype.itemsize for step in steps]) for dtype, steps in zip(types, strides, strict=True)
        ]
        program = program_of(
            compiled.program.maps[output].expression, list(compiled.inputs), compiled.stored_types[output], compiler
        )
        self._program = program
        self._tabulated = (
            not isinstance(program, Loop) and len(types) == 2 and types[0] == np.float16 and elements >= TABULATED
        )
        most = program.block(elements, threads.most)
        self._blocks = list(blocks(self._sizes, most))
        self._elements = elements
        self._threads = threads
        # How many bytes of each buffer are read or written
        self._reaches = [
            sum((size - 1) * step for size, step in zip(self._sizes, steps, strict=True)) + dtype.itemsize
            for dtype, steps in self._views
        ]
        self._on_buffers: OnBuffers | None = None  # the loop, when it is compiled

    @property
    def runs_inline(self) -> bool:
        return self._program.is_brief(self._elements)

    def dispatch(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]) -> Ran:
        buffers = [*inputs, *outputs]
        if not all(map(le, self._reaches, [each.nbytes for each in buffers])):
            raise ValueError("a buffer ends before its tensor")
        whole = len(self._blocks) == 1
        if whole and cancelled():  # as `share` does it, without a function that would cost a small dispatch a tenth
            raise Cancelled
        if self._on_buffers:
            self._on_buffers(inputs, outputs[0])
            return RAN
        arrays: list[Array] = [
            np.ndarray(self._sizes, dtype, buffer, 0, strides)
            for buffer, (dtype, strides) in zip(buffers, self._views, strict=True)
        ]
        program = self._table() if self._tabulated else self._program
        if whole:
            run_program(program, arrays[:-1], arrays[-1])
            if isinstance(program, Loop):
                self._on_buffers = program.on_buffers(arrays[:-1], arrays[-1])
            return RAN

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
        run_program(self._program, [every.view(np.float16)], results)

        def look_up(x: Array, out: Array) -> None:
            np.take(results, x.view(np.uint16), out=out, mode="clip")

        return lowering.Program(("X",), (), (), (Step(look_up, (0,), 1),))


def _memory() -> tuple[int | None, int | None]:
    """Bytes of memory of the machine, and of those free to use; not what a container limits it to."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return None, None
