"""Work of compiled loops cut into blocks, as several threads share it: a task of a team.

A job is a list of 64-bit numbers, after those of every task: the address of the loop, how many threads have come, the
next block and the one to stop before, the length of the frame, the dimensions that blocks are cut along, the arrays,
how far a block reaches along the last of these dimensions and how long that is, the scratch, and then its tables. They
are the frame that each block gets a copy of, whose first number is the block's length; how many blocks there are along
each dimension; for each array the place of its address in the frame and by how many bytes it moves from block to block
along each dimension; and for each scratch the place of its address and by how many bytes a thread's is apart from the
one before.
"""

import math
from array import array
from collections.abc import Callable, Sequence

from app.devices.cpu.llvm.blocks import FUNCTION, LAST, NEXT, TABLES, THREAD, source
from app.devices.cpu.llvm.calling import NO_BOUNDS
from app.devices.cpu.llvm.compiler import Function
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.team_source import TASK_WORDS
from app.devices.device import Cancelled
from app.memory.buffers import Buffer

ALIGNED = 1 << 10
"""Elements that a block of one dimension has a multiple of: whole cache lines, and whole pieces."""

WORTH_A_THREAD = 1 << 19
"""The least work for each of several threads, in bytes and instructions: 3 us, of which handing it over takes one."""

WORTH_WAKING = 1 << 24
"""Work that a sleeping thread is woken for: 60 us, and waking takes about half as long."""

BLOCKS = 4
"""For each thread, lest all wait for one that has been held up."""

UNTIL_LOOKED = 1 << 26
"""Work of each thread before somebody looks whether the dispatch is cancelled: a millisecond, or two."""


_BLOCKS = source()


def largest_block(elements: int, work: int, threads: int) -> int:
    """How many of `elements` a block has at most, of which all are so much `work` for so many threads."""
    least = max(work // UNTIL_LOOKED, 1 if threads == 1 else BLOCKS * threads)
    return max(elements // least, 1)


def is_cut(sizes: Sequence[int], work: int) -> bool:
    """Whether there may be enough to do for several blocks, or else one of all, where an element is so much `work`."""
    return math.prod(sizes) * work >= WORTH_A_THREAD


class Cut:
    """How an array of `sizes` is cut into blocks: along `axis`, `step` at a time, and one by one along those before."""

    def __init__(self, sizes: Sequence[int], work: int, threads: int, at_once: int = 1) -> None:
        """`work` is that of one element, in bytes and instructions. Sizes of dimensions that are never cut are left
        out, and `work` is then that of all elements along these. Along the last dimension so many elements are
        computed `at_once`: a block has a multiple of these."""
        elements = math.prod(sizes)
        total = elements * work
        helped = max(min(threads, total // WORTH_A_THREAD), 1)
        most = largest_block(elements, total, helped)
        axis = len(sizes) - 1
        while axis > 0 and math.prod(sizes[axis:]) <= most:
            axis -= 1
        self.axis = axis
        step = max(most // math.prod(sizes[axis + 1 :]), 1)
        if len(sizes) == 1 and ALIGNED < step < sizes[0]:
            step -= step % ALIGNED
        if axis == len(sizes) - 1:
            step = -(-step // at_once) * at_once
        self.step = min(step, sizes[axis])
        self.counts = [*sizes[:axis], -(-sizes[axis] // self.step)]
        self.size = sizes[axis]
        self.blocks = math.prod(self.counts)
        self.helpers = min(helped, self.blocks) - 1
        self.wakes = total >= WORTH_WAKING
        self.at_once = max(helped * UNTIL_LOOKED // max(total // self.blocks, 1), helped)
        """Blocks between two looks."""


class Job:
    """A nest over whole buffers, cut into blocks. Safe to use from several threads."""

    def __init__(
        self,
        team: Team,
        cut: Cut,
        frame: "array[int]",
        places: Sequence[int],
        strides: Sequence[Sequence[int]],
        scratch: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`frame` is that of a nest over the dimensions from the one that is cut on, and `places` where its arrays'
        addresses go; `strides` are those of all dimensions, in bytes. Each `scratch` is such a place, and how many
        bytes of it a thread has."""
        self._team = team
        self._cut = cut
        arrays = [
            number
            for place, steps in zip(places, strides, strict=True)
            for number in (place, *steps[: cut.axis], steps[cut.axis] * cut.step)
        ]
        own = [number for each in scratch for number in each]
        numbers = [0, 0, 0, 0, len(frame), len(cut.counts), len(places), cut.step, cut.size, len(scratch)]
        self._numbers = array("q", [*[0] * TASK_WORDS, *numbers]) + frame + array("q", [*cut.counts, *arrays, *own])
        self.places = [TABLES + place for place in places]
        self.scratch = [TABLES + place for place, _ in scratch]

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile and nobody to start."""
        is_compiled = self._team.compiler.has(_BLOCKS)
        return is_compiled and (self._cut.helpers == 0 or self._team.is_started)

    @property
    def threads(self) -> int:
        """How many share it, at most."""
        return self._cut.helpers + 1

    def copy(self) -> "array[int]":
        """What `run` takes, once addresses are where `places` and `scratch` say."""
        return self._numbers[:]

    def run(
        self,
        numbers: "array[int]",
        function: Function,
        cancelled: Callable[[], bool],
        bounds: "array[int]" = NO_BOUNDS,
        buffers: Sequence[Buffer] = (),
    ) -> None:
        """Compute all blocks, on several threads. `bounds` are for addresses of `buffers` that are not there yet, as
        `CallOver` takes them. Raises Cancelled, and ValueError of a buffer that ends too early."""
        cut, compiler = self._cut, self._team.compiler
        blocks = compiler.function(_BLOCKS)
        numbers[0], numbers[FUNCTION] = blocks.address, function.address
        begins = self._team.sharing(blocks, numbers, cut.helpers, wakes=cut.wakes)
        for first in range(0, cut.blocks, cut.at_once):
            if cancelled():
                raise Cancelled
            numbers[THREAD], numbers[NEXT], numbers[LAST] = 0, first, min(first + cut.at_once, cut.blocks)
            compiler.call_over(begins.address, bounds, numbers, *buffers)
