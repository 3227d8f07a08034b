"""Calls of loops over whole buffers, by one thread or by several."""

import math
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

from app.devices.cpu.llvm.frames import start_of_frame
from app.devices.cpu.llvm.jobs import Cut, Job, is_cut
from app.devices.cpu.llvm.kernels import LookUp, Loop, RowLoops
from app.devices.cpu.llvm.team import Team
from app.devices.device import Cancelled
from app.devices.layout import reaches
from app.memory.addresses import aligned, whole_lines
from app.memory.buffers import Buffer


class LoopCall:
    """A loop over whole buffers of certain sizes: no arrays are made, which would take longer than to compute a
    thousand elements. Safe to use from several threads."""

    def __init__(
        self,
        loop: Loop | LookUp,
        arguments: "array[int]",
        sizes: Sequence[int],
        strides: Sequence[Sequence[int]],
        item_sizes: Sequence[int],
        team: Team,
    ) -> None:
        """`strides` are those of all tensors in bytes, the output's last, and so are `item_sizes`."""
        self._job: Job | None = None
        self._reads = loop.reads
        ends = reaches(sizes, strides, item_sizes)
        if not is_cut(sizes, loop.work):  # nor is there so much of it that it would go past the cache
            way = loop.way(strides, item_sizes)
            self.codes = way.brief
            self._frame = array("q", sizes) + way.steps + arguments
            self._bounds = array("q", [*way.places, *ends])
            return
        cut = Cut(sizes, loop.work, team.most)
        axis = cut.axis
        inner = [steps[axis:] for steps in strides]
        self.codes = loop.codes_for(sizes, inner, item_sizes)
        self._frame, places = start_of_frame(sizes[axis:], loop.used(inner))
        self._frame += arguments
        if cut.blocks == 1 and not self.codes.streaming:
            self._bounds = array("q", [*loop.places(places), *ends])
            return
        self._job = Job(team, cut, self._frame, places, loop.used(strides))
        self._bounds = array("q", [*loop.places(self._job.places), *ends])

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile, and nobody to start."""
        job = self._job
        return self.codes.plain.is_compiled if job is None else self.codes.are_compiled and job.is_ready

    def __call__(self, inputs: Sequence[Buffer], output: Buffer, cancelled: Callable[[], bool]) -> None:
        """Compute `output` from `inputs`, each from its buffer's beginning. Raises Cancelled, and ValueError of a
        buffer that ends too early."""
        job = self._job
        if job is None:
            if cancelled():
                raise Cancelled
            self.codes.plain.over(self._bounds, self._frame, inputs, output)
            return
        code = self.codes.choose(inputs, self._reads, output)
        job.run(job.copy(), code.function(), cancelled, self._bounds, [*inputs, output])


class RowCall:
    """Loops over all groups in whole buffers of certain sizes. Safe to use from several threads."""

    def __init__(
        self,
        loops: RowLoops,
        arguments: "array[int]",
        sizes: Sequence[int],
        strides: Sequence[Sequence[int]],
        item_sizes: Sequence[int],
        team: Team,
    ) -> None:
        """As for `LoopCall`."""
        outer, width = sizes[: len(sizes) - loops.along], math.prod(sizes[len(sizes) - loops.along :])
        cut = Cut(outer, loops.work * width, team.most, loops.at_once)
        inner = [steps[cut.axis :] for steps in strides]
        self.codes = loops.codes_for(sizes, inner, item_sizes)
        frame, places = start_of_frame(sizes[cut.axis :], loops.used(inner))
        own = [whole_lines(each * width) for each in loops.kept]
        scratch = [(len(frame) + number, each) for number, each in enumerate(own)]
        frame += array("q", [0] * len(own)) + arguments
        self._job = Job(team, cut, frame, places, loops.used(strides), scratch)
        self._reads = loops.reads
        self._bounds = array("q", [*loops.places(self._job.places), *reaches(sizes, strides, item_sizes)])
        *starts, self.scratch_bytes = accumulate((self._job.threads * each for each in own), initial=0)
        """Of memory, that all threads take."""
        self._scratch = list(zip(self._job.scratch, starts, strict=True))

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile, and nobody to start."""
        return self.codes.are_compiled and self._job.is_ready

    def __call__(self, inputs: Sequence[Buffer], output: Buffer, cancelled: Callable[[], bool]) -> None:
        """Compute `output` from `inputs`, each from its buffer's beginning. Raises Cancelled, and ValueError of a
        buffer that ends too early."""
        numbers = self._job.copy()
        if self._scratch:
            _held, start = aligned(self.scratch_bytes)
            for place, offset in self._scratch:
                numbers[place] = start + offset
        code = self.codes.choose(inputs, self._reads, output)
        self._job.run(numbers, code.function(), cancelled, self._bounds, [*inputs, output])
