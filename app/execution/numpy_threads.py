"""What NumPy's kernels share: blocks of work handed to several threads, and each thread's scratch."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from app.execution.device import Cancelled, Ran
from app.execution.helpers import run_with
from app.execution.numpy_lowering import Array, Program

BLOCK_ELEMENTS = 1 << 16
"""Elements of 4 bytes computed at a time: few enough that a block's scratch stays in the cache, enough that a second
thread pays (each NumPy call takes the interpreter's lock again)."""


RAN = Ran("numpy", "cpu")
"""What NumPy's kernels answer."""


class Threads:
    """The calling thread and, where there is enough to do, idle ones of `helpers`: `most` in all."""

    def __init__(self, helpers: Executor, most: int) -> None:
        self._helpers = helpers
        self._most = most

    def share(self, count: int, work: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        """Call `work` with each number below `count`, on several threads. Raises Cancelled, and what `work` raises."""
        if count == 1:
            if cancelled():
                raise Cancelled
            with np.errstate(all="ignore"):
                work(0)
            return
        turns = itertools.count()  # hands each block to one thread

        def run() -> None:
            with np.errstate(all="ignore"):
                while (turn := next(turns)) < count:
                    if cancelled():
                        raise Cancelled
                    work(turn)

        run_with(self._helpers, min(self._most, count) - 1, run)


def run_program(program: Program, inputs: Sequence[Array], output: Array) -> None:
    """One block, with this thread's scratch. Inputs may be of a shape that is broadcast to the output's."""
    registers = [_register(number, dtype, output) for number, dtype in enumerate(program.registers)]
    program.run(inputs, output, registers)


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
