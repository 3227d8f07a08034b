"""How long each kernel of a graph takes on the CPU, by the clock."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from app.devices.device import Kernel, own_bytes
from app.devices.schedules import Prepare
from app.graphs.schedule import InitializedGraph, Place, Room
from app.memory.buffers import Buffer

ROUNDS = 3
"""How often all kernels are run. In the first one they are compiled; of the others the quickest counts."""


def step_seconds(
    graph: InitializedGraph, prepare: Prepare, take: Callable[[int], Buffer], cancelled: Callable[[], bool]
) -> list[float]:
    """Seconds of each of the graph's steps over inputs of zeros, in memory that `take` gives; it is asked for what
    kernels take beside it, too.

    Raises Cancelled soon after `cancelled()` turns true, and what `take` raises.
    """
    schedule = graph.schedule

    def zeros(size: int) -> Buffer:
        buffer = take(size)
        np.frombuffer(buffer, np.uint8)[:] = 0
        return buffer

    rooms = {
        Room.INPUT: [zeros(size) for size in schedule.read_bytes.values()],
        Room.OUTPUT: [zeros(desc.data_bytes) for desc in schedule.outputs.values()],
        Room.KEPT: graph.kept,
        Room.SCRATCH: [zeros(schedule.scratch_bytes)] if schedule.scratch_bytes else [],
    }

    def at(place: Place) -> Buffer:
        return rooms[place.room][place.number][place.offset : place.offset + place.size]

    runs = []
    for step in schedule.steps:
        reads = dict(zip(step.dispatchable.inputs, step.reads, strict=True))
        known = {name: at(place) for name, place in reads.items() if place.room is Room.KEPT}
        clears, read, written = ([*map(at, places)] for places in (step.clears, step.reads, step.writes))
        runs.append((prepare(step.dispatchable, known), clears, read, written))
    own = max((own_bytes(kernel) for kernel, *_ in runs), default=0)
    if own:
        take(own)
    times = [[_seconds(cancelled, *run) for run in runs] for _ in range(ROUNDS)]
    return [min(each) for each in zip(*times[1:], strict=True)]


def _seconds(
    cancelled: Callable[[], bool], kernel: Kernel, clears: list[Buffer], reads: list[Buffer], writes: list[Buffer]
) -> float:
    started = perf_counter()
    for each in clears:
        np.frombuffer(each, np.uint8)[:] = 0
    kernel.dispatch(reads, writes, cancelled)
    return perf_counter() - started
