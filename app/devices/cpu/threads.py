"""Blocks of work handed to several threads, which is what the CPU's kernels share."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, wait
from typing import Protocol

from app.devices.device import Cancelled, ExecutionRecord
from app.memory.arrays import Array
from app.stages import inherited

BLOCK_ELEMENTS = 1 << 16
"""Elements of 4 bytes computed at a time: few enough that a block's scratch stays in the cache, enough that a second
thread pays (each NumPy call takes the interpreter's lock again)."""

RAN = ExecutionRecord("numpy", "cpu")
"""What NumPy's kernels answer."""


class Converting(Protocol):
    """Loops for types that NumPy is slow to convert."""

    @property
    def are_compiled(self) -> bool:
        """Whether they are, so that nobody waits for it."""

    def get_compiled(self) -> None:
        """Compile them, if nobody has."""

    def copied(self, x: Array, target: Array) -> bool:
        """Write `x` to `target`, an array of the same shape in memory of its own; whether that is so."""


class Threads:
    """The calling thread and, where there is enough to do, idle ones of `helpers`: `most` in all."""

    def __init__(self, helpers: Executor, most: int, conversions: Converting | None = None) -> None:
        """With `conversions` arrays are copied by these where that is quicker."""
        self._helpers = helpers
        self.most = most
        self.conversions = conversions

    def copied(self, x: Array, target: Array) -> bool:
        """As `Converting` has it."""
        return self.conversions is not None and self.conversions.copied(x, target)

    def share(self, count: int, work: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        """Call `work` with each number below `count`, on several threads. Raises Cancelled, and what `work` raises."""
        if count == 1:
            if cancelled():
                raise Cancelled
            work(0)
            return
        turns = itertools.count()  # hands each block to one thread

        def run() -> None:
            while (turn := next(turns)) < count:
                if cancelled():
                    raise Cancelled
                work(turn)

        work_on = inherited(run)
        asked = [self._helpers.submit(work_on) for _ in range(min(self.most, count) - 1)]
        try:
            work_on()
        finally:
            # A helper that has not started would find nothing left to do. One that has is in its last block.
            started = [helper for helper in asked if not helper.cancel()]
            wait(started)
        for helper in started:
            helper.result()


def parts(whole: range, count: int) -> Iterator[range]:
    """`whole` in at most so many parts, about equally long."""
    count = min(count, len(whole))
    for number in range(count):
        yield whole[len(whole) * number // count : len(whole) * (number + 1) // count]
