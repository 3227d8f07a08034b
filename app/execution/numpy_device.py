"""The CPU: formulas as NumPy calls on cache-sized blocks, several threads on a big tensor."""

import itertools
import os
import platform
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, wait
from typing import Any, Literal

import numpy as np

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.execution.device import Buffer, Cancelled, DeviceInfo
from app.execution.layout import Index, blocks, collapse
from app.execution.numpy_lowering import Array, Program, lower, numpy_type
from app.operators.compiled import CompiledOperator

BLOCK_ELEMENTS = 1 << 16
"""Elements computed at a time: few enough that a block's scratch stays in the cache, enough that a second thread
pays (each NumPy call takes the interpreter's lock again)."""


class NumpyDevice:
    """Implements `Device`. `helpers` is where idle threads take blocks of a big tensor."""

    name = "numpy"
    kind: Literal["cpu", "cuda"] = "cpu"

    def __init__(self, helpers: Executor, threads: int) -> None:
        self._helpers = helpers
        self._threads = threads
        self._scratch = _Scratch()

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

    def dispatch(
        self,
        compiled: CompiledOperator,
        inputs: Mapping[str, Buffer],
        output: Buffer,
        cancelled: Callable[[], bool],
    ) -> None:
        descs = [*compiled.inputs.values(), compiled.output]
        sizes, strides = collapse(compiled.output.Sizes, [desc.strides for desc in descs])
        buffers = [*(inputs[name] for name in compiled.inputs), output]
        arrays = [_view(*each, sizes) for each in zip(buffers, descs, strides, strict=True)]
        program = lower(compiled.expression, list(compiled.inputs), compiled.output.DataType)
        self._run(program, arrays, list(blocks(sizes, BLOCK_ELEMENTS)), cancelled)

    def _run(self, program: Program, arrays: list[Array], indices: list[Index], cancelled: Callable[[], bool]) -> None:
        turns = itertools.count()  # hands each block to one thread

        def work() -> None:
            with np.errstate(all="ignore"):
                while (turn := next(turns)) < len(indices):
                    if cancelled():
                        raise Cancelled
                    *inputs, output = [array[indices[turn]] for array in arrays]
                    registers = [self._register(*each, output.shape) for each in enumerate(program.registers)]
                    program.run(inputs, output, registers)

        helpers = [self._helpers.submit(work) for _ in range(min(self._threads, len(indices)) - 1)]
        try:
            work()
        finally:
            # A helper that has not started would find nothing left to do. One that has is in its last block.
            started = [helper for helper in helpers if not helper.cancel()]
            wait(started)
            arrays.clear()  # a helper in the executor's queue, cancelled or not, is not to keep the tensors
        for helper in started:
            helper.result()

    def _register(self, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Scratch of this thread, the same memory each time."""
        registers = self._scratch.registers
        flat = registers.get((number, dtype))
        if flat is None:
            flat = registers[number, dtype] = np.empty(BLOCK_ELEMENTS, dtype)
        return flat[: np.prod(shape, dtype=int)].reshape(shape)


class _Scratch(threading.local):
    """The registers of one thread, by number and type."""

    def __init__(self) -> None:
        self.registers: dict[tuple[int, np.dtype[Any]], Array] = {}


def _view(buffer: Buffer, desc: TensorDesc, strides: list[int], sizes: list[int]) -> Array:
    """The tensor's elements in place. NumPy checks that the strides stay inside the buffer."""
    dtype = numpy_type(desc.DataType)
    return np.ndarray(sizes, dtype, buffer, strides=[stride * dtype.itemsize for stride in strides])


def _memory() -> tuple[int | None, int | None]:
    """Bytes of memory of the machine, and of those free to use; not what a container limits it to."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return None, None
