"""How long each kernel of a graph takes on a GPU, by events between them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from app.devices.cuda.arenas import Arena
from app.devices.cuda.schedules import CudaScheduleKernel
from app.devices.device import Cancelled

ROUNDS = 3
"""How often all kernels are run. In the first one they are compiled; of the others the quickest counts."""


def step_seconds(kernel: CudaScheduleKernel, cancelled: Callable[[], bool]) -> list[float]:
    """Seconds of each of the graph's steps over inputs of zeros, without what it takes to bring tensors there.

    Raises Cancelled and DeviceFailed.
    """
    device = kernel.device
    with device.at_work(kernel.tensor_bytes):
        kernel.upload()
        arena = kernel.new_arena()
        with device.slots.take() as slot:
            try:
                arena.clear(slot.stream)
                rounds = [_events(arena, slot.stream, cancelled) for _ in range(ROUNDS)]
            finally:
                slot.stream.synchronize()  # the memory is the GPU's until then
        times = [[device.seconds_between(*pair) for pair in pairwise(events)] for events in rounds[1:]]
    return [min(each) for each in zip(*times, strict=True)]


def _events(arena: Arena, stream: Any, cancelled: Callable[[], bool]) -> list[Any]:
    """Queue all, with an event before the first step and behind each."""
    if cancelled():
        raise Cancelled
    events = [stream.record()]
    arena.work.queue(stream, lambda: events.append(stream.record()))
    return events
