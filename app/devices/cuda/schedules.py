"""Graphs on a GPU: all kernels over memory that stays there, sent out as one CUDA graph unless there are calls."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from app.devices.cuda.context import Context
from app.devices.cuda.pinned import ALIGNMENT
from app.devices.cuda.transfers import HostTensor, move
from app.devices.cuda.whole import Queued, Resident
from app.devices.device import Cancelled, ExecutionRecord
from app.graphs.schedule import InitializedGraph, Place, Room
from app.memory.buffers import Buffer

READY, READY_BYTES = 4, 64 << 20
"""How many arenas a graph keeps for its next dispatches, and how large these may be: of a larger one the time goes into
copies and kernels, not into setting it up."""


class KeptTensors:
    """A graph's kept tensors on a GPU, uploaded when they are first wanted. Safe to use from several threads."""

    def __init__(self, tensors: Sequence[Buffer], device: Context) -> None:
        self._tensors = tensors
        self._device = device
        self._lock = threading.Lock()
        self._memory: list[Any] | None = None

    def addresses(self) -> list[int]:
        """Where they are on the device."""
        with self._lock:
            if self._memory is None:
                memory = [self._device.pool.malloc(tensor.nbytes) for tensor in self._tensors]
                hosts = [HostTensor(tensor, tensor.nbytes, self._device.pinned) for tensor in self._tensors]
                pairs = [(host, each.ptr) for host, each in zip(hosts, memory, strict=True) if host.size]
                move(self._device, pairs, lambda: False, inward=True)
                self._memory = memory
            return [each.ptr for each in self._memory]


class CudaScheduleKernel:
    """Implements `Kernel`, for a graph."""

    runs_inline = False

    def __init__(self, graph: InitializedGraph, kept: KeptTensors, device: Context) -> None:
        schedule = graph.schedule
        self._device = device
        self._kept = kept
        self._steps = [(step, Resident(step.dispatchable, device)) for step in schedule.steps]
        self._is_captured = all(resident.is_captured for _, resident in self._steps)
        self._inputs = list(schedule.read_bytes.values())
        self._outputs = [desc.data_bytes for desc in schedule.outputs.values()]
        self._gapless = [desc.gapless for desc in schedule.outputs.values()]
        self._offsets: list[int] = []
        self._bytes = 0
        for size in (*self._inputs, *self._outputs, schedule.scratch_bytes):
            self._offsets.append(self._bytes)
            self._bytes += -(-size // ALIGNMENT) * ALIGNMENT
        self._ready: list[_Arena] = []
        self._lock = threading.Lock()

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        device = self._device
        given = [HostTensor(*each, device.pinned) for each in zip(inputs, self._inputs, strict=True)]
        made = [HostTensor(*each, device.pinned) for each in zip(outputs, self._outputs, strict=False)]
        with device.at_work(sum(self._inputs) + sum(self._outputs)), self._arena() as arena:
            results = list(zip(made, arena.outputs, strict=True))
            strided = [pair for pair, gapless in zip(results, self._gapless, strict=True) if not gapless]
            # What is between an output's elements stays as it is.
            move(device, [*zip(given, arena.inputs, strict=True), *strided], cancelled, inward=True)
            if cancelled():
                raise Cancelled
            with device.slots.take() as slot:
                try:
                    arena.queue(slot.stream)
                finally:
                    slot.stream.synchronize()
            move(device, results, cancelled, inward=False)
        return ExecutionRecord(device.name, "cuda")

    @contextmanager
    def _arena(self) -> "Iterator[_Arena]":
        """One that nobody else uses meanwhile. One in which something failed is not used again."""
        with self._lock:
            arena = self._ready.pop() if self._ready else None
        if arena is None:
            arena = self._new_arena()
        yield arena
        with self._lock:
            if self._bytes <= READY_BYTES and len(self._ready) < READY:
                self._ready.append(arena)

    def _new_arena(self) -> "_Arena":
        memory = self._device.pool.malloc(self._bytes)
        places = [memory.ptr + offset for offset in self._offsets]
        inputs, outputs = places[: len(self._inputs)], places[len(self._inputs) : -1]
        rooms = {Room.INPUT: inputs, Room.OUTPUT: outputs, Room.KEPT: self._kept.addresses(), Room.SCRATCH: places[-1:]}
        return _Arena(memory, inputs, outputs, self.queue_of(rooms), self._device, is_captured=self._is_captured)

    def queue_of(self, rooms: dict[Room, list[int]]) -> list[Queued]:
        """All that is to be queued, in this order, over tensors on the device at these addresses."""

        def at(place: Place) -> int:
            return rooms[place.room][place.number] + place.offset

        made: list[Queued] = []
        for step, resident in self._steps:
            made += [_Clear(self._device, at(place), place.size) for place in step.clears]
            made += resident.bind([at(place) for place in step.reads], [at(place) for place in step.writes])
        return made


class _Clear:
    """Bytes on the device, to be set to 0."""

    def __init__(self, device: Context, address: int, size: int) -> None:
        self._device = device
        self._address = address
        self._size = size

    def __call__(self, stream: Any) -> None:
        """Queue it on `stream`, CuPy's."""
        self._device.clear(self._address, self._size, stream)


class _Arena:
    """Memory for one dispatch at a time, and the work over it. From the second dispatch on that is one CUDA graph,
    which takes the processor little more than one kernel, unless there are calls in it."""

    def __init__(
        self,
        memory: Any,
        inputs: Sequence[int],
        outputs: Sequence[int],
        work: Sequence[Queued],
        device: Context,
        *,
        is_captured: bool,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._memory = memory
        self._work = work
        self._is_captured = is_captured and len(work) > 1
        self._device = device
        self._used = False
        self._graph: Any = None

    def queue(self, stream: Any) -> None:
        """Queue all work."""
        if self._graph is None and self._used and self._is_captured:
            self._graph = self._device.captured(self._queue_each, stream)
        self._used = True
        if self._graph is None:
            self._queue_each(stream)
        else:
            self._graph.launch(stream)

    def _queue_each(self, stream: Any) -> None:
        for queue in self._work:
            queue(stream)
