"""Graphs on the host: one kernel after the other, over inputs, outputs, kept tensors and scratch."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from app.devices.device import ExecutionRecord, Kernel
from app.graphs.graph import Source
from app.graphs.schedule import InitializedGraph, Place, Room, Schedule, Step
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

INLINE_STEPS, INLINE_ELEMENTS = 32, 1 << 16
"""A graph of at most so many kernels, and elements that these write, is computed where its request arrived."""


Prepare: TypeAlias = Callable[[Dispatchable, Mapping[str, Buffer]], Kernel]
"""Makes a kernel, of which those inputs are the same for all dispatches."""


def schedule_kernel(graph: InitializedGraph, prepare: Prepare) -> Kernel:
    """The kernel of a graph: that of its only step where it is one over just the graph's inputs and outputs."""
    return prepare(graph.only, {}) if graph.only else ScheduleKernel(graph, prepare)


class ScheduleKernel:
    """Implements `Kernel`, for the steps of a graph, whose kernels `prepare` makes.

    Its outputs are the graph's, and after them scratch of the schedule's `scratch_bytes` if that is not 0.
    """

    def __init__(self, graph: InitializedGraph, prepare: Prepare) -> None:
        self._kept = graph.kept
        self._outputs = len(graph.schedule.outputs)
        steps = graph.schedule.steps
        self._steps = [_Bound(prepare(step.dispatchable, _known(graph, step)), step) for step in steps]
        elements = sum(step.dispatchable.elements for step in steps)
        self._is_small = len(steps) <= INLINE_STEPS and elements <= INLINE_ELEMENTS

    @property
    def runs_inline(self) -> bool:
        return self._is_small and all(step.kernel.runs_inline for step in self._steps)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        rooms = {
            Room.INPUT: inputs,
            Room.OUTPUT: outputs,
            Room.KEPT: self._kept,
            Room.SCRATCH: outputs[self._outputs :],
        }
        for step in self._steps:
            ran = step.run(rooms, cancelled)
        return ran


def initialize(
    schedule: Schedule,
    sources: Mapping[Source, Buffer],
    take: Callable[[int], Buffer],
    prepare: Callable[[Dispatchable], Kernel],
    cancelled: Callable[[], bool],
) -> InitializedGraph:
    """Do the schedule's `first` steps. `sources` has the constants and the inputs that are OWNED_BY_DML; `take` gives
    memory for what is computed.

    What no later step reads is not kept. Raises Cancelled soon after `cancelled()` turns true.
    """
    kept = [
        sources[source] if source in sources else take(size)
        for source, size in zip(schedule.kept, schedule.kept_bytes, strict=True)
    ]
    for step in schedule.first:
        _Bound(prepare(step.dispatchable), step).run({Room.KEPT: kept}, cancelled)
    read = {place.number for step in schedule.steps for place in step.reads if place.room is Room.KEPT}
    nothing = memoryview(b"")
    return InitializedGraph(schedule, tuple(each if n in read else nothing for n, each in enumerate(kept)))


class _Bound:
    """A step with its kernel. What is known of its tensors before a dispatch is not looked up in one."""

    def __init__(self, kernel: Kernel, step: Step) -> None:
        self.kernel = kernel
        self._reads, self._writes, self._clears = (
            [*map(_found, each)] for each in (step.reads, step.writes, step.clears)
        )

    def run(self, rooms: Mapping[Room, Sequence[Buffer]], cancelled: Callable[[], bool]) -> ExecutionRecord:
        for room, number, part in self._clears:
            np.frombuffer(rooms[room][number][part], np.uint8)[:] = 0
        reads = [rooms[room][number][part] for room, number, part in self._reads]
        writes = [rooms[room][number][part] for room, number, part in self._writes]
        return self.kernel.dispatch(reads, writes, cancelled)


def _known(graph: InitializedGraph, step: Step) -> dict[str, Buffer]:
    """Those inputs of a step that are kept."""
    found = {}
    for name, place in zip(step.dispatchable.inputs, step.reads, strict=True):
        if place.room is Room.KEPT:
            _, number, part = _found(place)
            found[name] = graph.kept[number][part]
    return found


def _found(place: Place) -> tuple[Room, int, slice]:
    return place.room, place.number, slice(place.offset, place.offset + place.size)
