"""How long each kernel of a graph takes on a GPU, by events between them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from app.devices.cuda.context import Context
from app.devices.cuda.schedules import KeptTensors
from app.devices.cuda.whole import Queued, Resident
from app.devices.device import Cancelled
from app.graphs.schedule import ALIGNMENT, InitializedGraph, Place, Room

ROUNDS = 3
"""How often all kernels are run. In the first one they are compiled; of the others the quickest counts."""


def step_seconds(
    graph: InitializedGraph, kept: KeptTensors, device: Context, cancelled: Callable[[], bool]
) -> list[float]:
    """Seconds of each of the graph's steps over inputs of zeros, without what it takes to bring tensors there.

    Raises Cancelled and DeviceFailed.
    """
    schedule = graph.schedule
    inputs, outputs = list(schedule.read_bytes.values()), [desc.data_bytes for desc in schedule.outputs.values()]
    offsets = [0]
    for size in (*inputs, *outputs, schedule.scratch_bytes):
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    with device.at_work(sum(inputs) + sum(outputs)):
        memory = device.pool.malloc(offsets[-1])
        starts: list[int] = [memory.ptr + offset for offset in offsets[:-1]]
        rooms = {
            Room.INPUT: starts[: len(inputs)],
            Room.OUTPUT: starts[len(inputs) : -1],
            Room.KEPT: kept.addresses(),
            Room.SCRATCH: starts[-1:],
        }

        def at(place: Place) -> int:
            return rooms[place.room][place.number] + place.offset

        pool, steps = device.new_pool(), [(step, Resident(step.dispatchable, device)) for step in schedule.steps]
        device.compile_ahead(source for _, resident in steps for source in resident.sources())
        works = [
            (
                [(at(place), place.size) for place in step.clears],
                resident.bind([*map(at, step.reads)], [*map(at, step.writes)], pool),
            )
            for step, resident in steps
        ]
        with device.slots.take() as slot:
            try:
                device.clear(memory.ptr, offsets[-1], slot.stream)
                rounds = [_events(works, device, slot.stream, cancelled) for _ in range(ROUNDS)]
            finally:
                slot.stream.synchronize()  # the memory is the GPU's until then
        times = [[device.seconds_between(*pair) for pair in pairwise(events)] for events in rounds[1:]]
    return [min(each) for each in zip(*times, strict=True)]


def _events(
    works: list[tuple[list[tuple[int, int]], list[Queued]]],
    device: Context,
    stream: Any,
    cancelled: Callable[[], bool],
) -> list[Any]:
    """Queue all, with an event before the first and behind each."""
    if cancelled():
        raise Cancelled
    events = [stream.record()]
    for clears, work in works:
        for address, size in clears:
            device.clear(address, size, stream)
        for queue in work:
            queue(stream)
        events.append(stream.record())
    return events
