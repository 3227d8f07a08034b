"""A convolution's pieces, of all items of a batch, as threads of a team share them."""

import threading
from array import array
from collections.abc import Callable

import numpy as np

from app.devices.cpu.convolution_loops import MOST_OF_A_PIECE, Addresses, ConvolutionLoop, ItemWork
from app.devices.cpu.llvm import turns
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.jobs import Cut, Job
from app.devices.cpu.llvm.team import Team
from app.devices.device import Cancelled
from app.memory.addresses import LINE, whole_lines
from app.memory.arrays import Array

MOST_KEPT = 4 << 20
"""Bytes to pack in that a thread keeps for its next convolutions."""

WORK = 4
"""What a product takes, in bytes and instructions as jobs count them."""

_FIRST, _FUNCTION, _ELEMENTS, _SCRATCH = map(turns.WORDS.index, ("first", "function", "elements", "scratch"))
_OF_FRAME = _SCRATCH + 1 - _ELEMENTS
_TURNS = turns.source()


class _Scratch(threading.local):
    """Memory that each thread uses again and again."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8)

    def memory(self, size: int) -> Array:
        """So many bytes with anything in them, until this thread asks again, and room to begin them at a cache line."""
        if self._held.size >= size + LINE:
            return self._held
        made = np.empty(size + LINE, np.uint8)
        if made.nbytes <= MOST_KEPT:
            self._held = made
        return made


_scratch = _Scratch()


class ConvolutionJob:
    """All pieces of `loop` for so many items. Safe to use from several threads."""

    def __init__(self, loop: ConvolutionLoop, work: ItemWork, items: int, team: Team) -> None:
        """`work` is that of one item."""
        count = items * loop.pieces
        cut = Cut([count], max(1, WORK * work.products * loop.factor // loop.pieces), team.most)
        of_block = max(1, work.products * cut.step // loop.pieces)
        cut.at_once = max(MOST_OF_A_PIECE // of_block, 1) * (cut.helpers + 1)
        self._frames = array("q", [number for frame in loop.frames for number in frame])
        self._own = whole_lines(4 * loop.scratch)
        frames, _ = self._frames.buffer_info()
        item, result = 4 * work.groups * work.depth * work.space.elements, 4 * work.groups * work.results
        numbers = [0, 0, 0, loop.pieces, len(loop.frames[0]), item, result, frames, *[0] * 5]
        self._is_one = count == 1
        self._job = Job(team, cut, array("q", numbers), [_FIRST], [[1]], [(_SCRATCH, self._own)])
        self._loop, self._turns = loop, Code(team.compiler, _TURNS)
        self.own_bytes = self._job.threads * self._own + LINE
        """What threads pack at the same time."""
        self.kept_bytes = loop.kept_bytes + 8 * len(self._frames)

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile, and nobody to start."""
        if not self._loop.code.is_compiled:
            return False
        return self._is_one or (self._turns.is_compiled and self._job.is_ready)

    def run(self, memory: Addresses, cancelled: Callable[[], bool]) -> None:
        """Compute all of it, from and to these addresses. Raises Cancelled."""
        scratch = _scratch.memory(self.own_bytes - LINE)  # held while threads are in it
        start = whole_lines(scratch.ctypes.data)
        if self._is_one:
            if cancelled():
                raise Cancelled
            frame = self._frames[:]
            frame[:_OF_FRAME] = array("q", [*memory, start])
            self._loop.code(frame)
            return
        numbers, function = self._job.copy(), self._loop.code.function()
        (place,) = self._job.scratch
        first = place - _SCRATCH
        numbers[first + _FUNCTION] = function.address
        numbers[first + _ELEMENTS : place + 1] = array("q", [*memory, start])
        self._job.run(numbers, self._turns.function(), cancelled)
