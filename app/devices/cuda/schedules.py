"""Graphs on a GPU: all kernels over memory that stays there, sent out as one CUDA graph unless there are calls."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from app.devices.cuda.context import Context
from app.devices.cuda.kernels import Launch
from app.devices.cuda.pinned import Slot
from app.devices.cuda.small import BRIEF_VALUES, SMALL_BYTES, Passage
from app.devices.cuda.transfers import HostTensor, move
from app.devices.cuda.whole import Queued, Resident
from app.devices.device import Cancelled, ExecutionRecord
from app.graphs.schedule import InitializedGraph, Place, Room
from app.memory.buffers import Buffer
from app.stages import staged

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

    def __init__(self, graph: InitializedGraph, kept: KeptTensors, device: Context) -> None:
        schedule = graph.schedule
        self.device = device
        self._kept = kept
        self._steps = [(step, Resident(step.dispatchable, device)) for step in schedule.steps]
        self._is_captured = all(resident.is_captured for _, resident in self._steps)
        self._inputs = list(schedule.read_bytes.values())
        self._outputs = [desc.data_bytes for desc in schedule.outputs.values()]
        self._gapless = [desc.gapless for desc in schedule.outputs.values()]
        self._passage = Passage(self._inputs, self._outputs, self._gapless)
        self.scratch_bytes = schedule.scratch_bytes
        self._bytes = self._passage.bytes + self.scratch_bytes
        self._is_small = self._passage.bytes <= min(SMALL_BYTES, device.slots.size)
        self._is_brief = sum(resident.values for _, resident in self._steps) <= BRIEF_VALUES
        self._ready: list[_Arena] = []
        self._lock = threading.Lock()

    @property
    def runs_inline(self) -> bool:
        """While nothing runs on the GPU that a small dispatch would wait for."""
        return not self.device.long_dispatches and self._is_ready()

    def _is_ready(self) -> bool:
        """Whether a dispatch takes hardly longer than to hand it to another thread."""
        ready = self._ready[-1:]
        return self._is_small and self._is_brief and bool(ready) and ready[0].is_known

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        dispatch = self._dispatch_small if self._is_small else self._dispatch_large
        made = outputs[: len(self._outputs)]  # without the scratch that the CPU is given
        size = sum(self._inputs) + sum(self._outputs)
        with self.device.at_work(size, is_brief=self._is_ready()), self._arena() as arena:
            dispatch(arena, inputs, made, cancelled)
        return self.device.ran

    def _dispatch_small(
        self, arena: "_Arena", inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> None:
        with self.device.slots.take() as slot:
            if cancelled():
                raise Cancelled
            self._passage.enter(slot, inputs, outputs)
            staged("kernel", self._run, slot, arena, self._passage.through(slot, arena.address, self.device))
            self._passage.leave(slot, outputs)

    def _dispatch_large(
        self, arena: "_Arena", inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> None:
        device = self.device
        given = [HostTensor(*each, device.pinned) for each in zip(inputs, self._inputs, strict=True)]
        made = [HostTensor(*each, device.pinned) for each in zip(outputs, self._outputs, strict=True)]
        results = list(zip(made, arena.outputs, strict=True))
        strided = [pair for pair, gapless in zip(results, self._gapless, strict=True) if not gapless]
        # What is between an output's elements stays as it is.
        move(device, [*zip(given, arena.inputs, strict=True), *strided], cancelled, inward=True)
        if cancelled():
            raise Cancelled
        with device.slots.take() as slot:
            staged("kernel", self._run, slot, arena, nullcontext())
        move(device, results, cancelled, inward=False)

    @staticmethod
    def _run(slot: Slot, arena: "_Arena", copies: AbstractContextManager[None]) -> None:
        """All its work, with `copies` queued around it, until it is done."""
        try:
            with copies:
                arena.queue(slot.stream)
        finally:
            slot.stream.synchronize()

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
        memory = self.device.pool.malloc(self._bytes)
        inputs, outputs = (
            [memory.ptr + offset for offset in part] for part in (self._passage.inputs, self._passage.outputs)
        )
        scratch = [memory.ptr + self._passage.bytes]
        rooms = {Room.INPUT: inputs, Room.OUTPUT: outputs, Room.KEPT: self.kept_addresses(), Room.SCRATCH: scratch}
        return _Arena(memory, inputs, outputs, self.queue_of(rooms), self.device, is_captured=self._is_captured)

    def kept_addresses(self) -> list[int]:
        """Where the graph's kept tensors are on the device."""
        return self._kept.addresses()

    def queue_of(self, rooms: dict[Room, list[int]]) -> list[Queued]:
        """All that is to be queued, in this order, over tensors on the device at these addresses."""

        def at(place: Place) -> int:
            return rooms[place.room][place.number] + place.offset

        self.device.compile_ahead(source for _, resident in self._steps for source in resident.sources())
        made: list[Queued] = []
        # A CUDA graph goes on using the memory that was taken while it was captured, for one call after the other.
        pool = self.device.new_pool()
        for step, resident in self._steps:
            made += [_Clear(self.device, at(place), place.size) for place in step.clears]
            made += resident.bind([at(place) for place in step.reads], [at(place) for place in step.writes], pool)
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
        self.address: int = memory.ptr
        self._memory = memory
        self._work = work
        is_one_kernel = len(work) == 1 and isinstance(work[0], Launch)
        self._is_captured = is_captured and not is_one_kernel
        self._device = device
        self._used = False
        self._graph: Any = None

    @property
    def is_known(self) -> bool:
        """Whether to queue it takes no longer than one kernel does."""
        return self._graph is not None or (self._used and not self._is_captured)

    def queue(self, stream: Any) -> None:
        """Queue all work."""
        if self._graph is None and self._used and self._is_captured:
            self._graph = self._device.captured(self._queue_each, stream)
            self._is_captured = self._graph is not None
        self._used = True
        if self._graph is None:
            self._queue_each(stream)
        else:
            self._graph.launch(stream)

    def _queue_each(self, stream: Any) -> None:
        for queue in self._work:
            queue(stream)
