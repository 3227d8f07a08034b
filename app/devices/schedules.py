"""Graphs on the host: one kernel after the other, over inputs, outputs, kept tensors and scratch."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from app.devices.device import ExecutionRecord, Kernel
from app.graphs.graph import Source
from app.graphs.schedule import InitializedGraph, Place, Room, Schedule, Step
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

INLINE_STEPS, INLINE_ELEMENTS = 32, 1 << 16
"""A graph of at most so many kernels, and elements that these write, is computed where its request arrived."""


class ScheduleKernel:
    """Implements `Kernel`, for the steps of a graph, whose kernels `prepare` makes.

    Its outputs are the graph's, and after them scratch of the schedule's `scratch_bytes` if that is not 0.
    """

    def __init__(self, graph: InitializedGraph, prepare: Callable[[Dispatchable], Kernel]) -> None:
        self._kept = graph.kept
        self._outputs = len(graph.schedule.outputs)
        steps = graph.schedule.steps
        self._kernels = [(prepare(step.dispatchable), step) for step in steps]
        elements = sum(step.dispatchable.elements for step in steps)
        self._is_small = len(steps) <= INLINE_STEPS and elements <= INLINE_ELEMENTS

    @property
    def runs_inline(self) -> bool:
        return self._is_small and all(kernel.runs_inline for kernel, _ in self._kernels)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        rooms = {
            Room.INPUT: inputs,
            Room.OUTPUT: outputs,
            Room.KEPT: self._kept,
            Room.SCRATCH: outputs[self._outputs :],
        }
        for kernel, step in self._kernels:
            ran = _run(kernel, step, rooms, cancelled)
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
        _run(prepare(step.dispatchable), step, {Room.KEPT: kept}, cancelled)
    read = {place.number for step in schedule.steps for place in step.reads if place.room is Room.KEPT}
    nothing = memoryview(b"")
    return InitializedGraph(schedule, tuple(each if n in read else nothing for n, each in enumerate(kept)))


def _run(
    kernel: Kernel, step: Step, rooms: Mapping[Room, Sequence[Buffer]], cancelled: Callable[[], bool]
) -> ExecutionRecord:
    def at(place: Place) -> Buffer:
        buffer = rooms[place.room][place.number]
        if place.offset or buffer.nbytes > place.size:
            return buffer[place.offset : place.offset + place.size]
        return buffer

    for place in step.clears:
        np.frombuffer(at(place), np.uint8)[:] = 0
    return kernel.dispatch([at(each) for each in step.reads], [at(each) for each in step.writes], cancelled)
