"""Graphs on the host: one kernel after the other, over inputs, outputs, kept tensors and scratch."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from app.devices.device import ExecutionRecord, Kernel, kept_bytes, own_bytes
from app.graphs.graph import Source
from app.graphs.schedule import InitializedGraph, Place, Room, Schedule, Step
from app.memory.buffers import Buffer
from app.operators.looks import look
from app.programs.dispatchable import Dispatchable

INLINE_STEPS, INLINE_ELEMENTS = 32, 1 << 16
"""A graph of at most so many kernels, and elements that these write, is computed where its request arrived."""

STEP_BYTES = 1 << 14
"""Of memory, that a step takes with its kernel, but for what that tells."""


Prepare: TypeAlias = Callable[[Dispatchable, Mapping[str, Buffer]], Kernel]
"""Makes a kernel, of which those inputs are the same for all dispatches."""


Rooms: TypeAlias = Mapping[Room, Sequence[Buffer]]
"""The buffers of a dispatch."""


class Segment(Protocol):
    """Some steps of a graph, with their kernels."""

    @property
    def runs_inline(self) -> bool:
        """As a kernel's."""

    @property
    def own_bytes(self) -> int:
        """Memory that a dispatch takes beside the rooms."""

    @property
    def kept_bytes(self) -> int:
        """As `kept_bytes` of a kernel."""

    def run(self, rooms: Rooms, cancelled: Callable[[], bool]) -> ExecutionRecord:
        """Do the steps. Raises Cancelled soon after `cancelled()` turns true."""


Join: TypeAlias = Callable[[Sequence[tuple[Kernel, Step]], Sequence[Buffer]], Segment]
"""Makes one part of all steps, given the kept tensors."""


def schedule_kernel(graph: InitializedGraph, prepare: Prepare, join: Join) -> Kernel:
    """The kernel of a graph: that of its only step where it is one over just the graph's inputs and outputs."""
    return prepare(graph.only, {}) if graph.only else ScheduleKernel(graph, prepare, join)


class ScheduleKernel:
    """Implements `Kernel`, for the steps of a graph, whose kernels `prepare` makes and `join` puts together.

    Its outputs are the graph's, and after them scratch of the schedule's `scratch_bytes` if that is not 0.
    """

    def __init__(self, graph: InitializedGraph, prepare: Prepare, join: Join) -> None:
        self._kept = graph.kept
        self._outputs = len(graph.schedule.outputs)
        steps = graph.schedule.steps
        self._all = join([(_prepared(graph, step, prepare), step) for step in steps], graph.kept)
        elements = sum(step.dispatchable.elements for step in steps)
        self._is_small = len(steps) <= INLINE_STEPS and elements <= INLINE_ELEMENTS
        self._steps = len(steps)

    @property
    def runs_inline(self) -> bool:
        return self._is_small and self._all.runs_inline

    @property
    def own_bytes(self) -> int:
        return self._all.own_bytes

    @property
    def kept_bytes(self) -> int:
        return STEP_BYTES * self._steps + self._all.kept_bytes

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        rooms = {
            Room.INPUT: inputs,
            Room.OUTPUT: outputs,
            Room.KEPT: self._kept,
            Room.SCRATCH: outputs[self._outputs :],
        }
        return self._all.run(rooms, cancelled)


def initialize(
    schedule: Schedule,
    sources: Mapping[Source, Buffer],
    take: Callable[[int], Buffer],
    prepare: Callable[[Dispatchable], Kernel],
    cancelled: Callable[[], bool],
    *,
    is_model: bool = False,
) -> InitializedGraph:
    """Do the schedule's `first` steps. `sources` has the constants, the inputs that are OWNED_BY_DML, and what was
    computed of such before; `take` gives memory for what is computed, and is asked for as much as a kernel takes beside
    that, if it is the most so far.

    What no later step reads is not kept. Raises Cancelled soon after `cancelled()` turns true.
    """
    read = _kept_by(schedule.steps)
    first, needed = _wanted(schedule, read, sources)
    written = {place.number for step in first for place in step.writes}
    nothing = memoryview(b"")
    kept = [
        nothing
        if number not in needed
        else sources[source]
        if source in sources and number not in written
        else take(size)
        for number, (source, size) in enumerate(zip(schedule.kept, schedule.kept_bytes, strict=True))
    ]
    held = 0
    for step in first:
        part = KernelPart(prepare(step.dispatchable), step)
        if part.own_bytes > held:
            take(part.own_bytes - held)
            held = part.own_bytes
        part.run({Room.KEPT: kept}, cancelled)
    return InitializedGraph(schedule, tuple(each if n in read else nothing for n, each in enumerate(kept)), is_model)


def _kept_by(steps: Iterable[Step]) -> set[int]:
    """The numbers of what these read of kept tensors."""
    return {place.number for step in steps for place in step.reads if place.room is Room.KEPT}


def _wanted(
    schedule: Schedule, read: Collection[int], sources: Collection[Source]
) -> tuple[list[Step], Collection[int]]:
    """The `first` steps that make what is `read` and not among `sources`, and the numbers of all that they and others
    need."""
    steps, needed = [], set(read)
    for step in reversed(schedule.first):
        if any(place.number in needed and schedule.kept[place.number] not in sources for place in step.writes):
            steps.append(step)
            needed |= {place.number for place in step.writes} | _kept_by([step])
    return steps[::-1], needed


class OneByOne:
    """Implements `Segment`: a kernel after the other."""

    def __init__(self, steps: Sequence[tuple[Kernel, Step]], kept: Sequence[Buffer]) -> None:
        self._parts = [KernelPart(*each) for each in steps]

    @property
    def runs_inline(self) -> bool:
        return all(part.runs_inline for part in self._parts)

    @property
    def own_bytes(self) -> int:
        return max(part.own_bytes for part in self._parts)

    @property
    def kept_bytes(self) -> int:
        return sum(part.kept_bytes for part in self._parts)

    def run(self, rooms: Rooms, cancelled: Callable[[], bool]) -> ExecutionRecord:
        for part in self._parts:
            ran = part.run(rooms, cancelled)
        return ran


class KernelPart:
    """Implements `Segment`: a step with its kernel. What is known of its tensors is not looked up in a dispatch."""

    def __init__(self, kernel: Kernel, step: Step) -> None:
        self._kernel = kernel
        self._reads, self._writes, self._clears = (
            [*map(_found, each)] for each in (step.reads, step.writes, step.clears)
        )

    @property
    def runs_inline(self) -> bool:
        return self._kernel.runs_inline

    @property
    def own_bytes(self) -> int:
        return own_bytes(self._kernel)

    @property
    def kept_bytes(self) -> int:
        return kept_bytes(self._kernel)

    def run(self, rooms: Rooms, cancelled: Callable[[], bool]) -> ExecutionRecord:
        for room, number, part in self._clears:
            np.frombuffer(rooms[room][number][part], np.uint8)[:] = 0
        reads = [rooms[room][number][part] for room, number, part in self._reads]
        writes = [rooms[room][number][part] for room, number, part in self._writes]
        return self._kernel.dispatch(reads, writes, cancelled)


def _prepared(graph: InitializedGraph, step: Step, prepare: Prepare) -> Kernel:
    look()
    return prepare(step.dispatchable, known_inputs(graph, step))


def known_inputs(graph: InitializedGraph, step: Step) -> dict[str, Buffer]:
    """Those inputs of a step that are kept."""
    found = {}
    for name, place in zip(step.dispatchable.inputs, step.reads, strict=True):
        if place.room is Room.KEPT:
            _, number, part = _found(place)
            found[name] = graph.kept[number][part]
    return found


def _found(place: Place) -> tuple[Room, int, slice]:
    return place.room, place.number, slice(place.offset, place.offset + place.size)
