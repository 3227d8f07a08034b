"""Graphs on a GPU, and operators over whole tensors: all kernels over memory that stays there, sent out as one CUDA
graph unless a call waits for results."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from app.devices.cuda.arenas import Arena, Recording
from app.devices.cuda.context import Context
from app.devices.cuda.pinned import Slot
from app.devices.cuda.resident import Queued, Resident
from app.devices.cuda.small import Passage
from app.devices.cuda.transfers import HostTensor, move
from app.devices.device import Cancelled, ExecutionRecord
from app.graphs.schedule import InitializedGraph, Place, Room, Step
from app.memory.buffers import Buffer
from app.stages import staged

BRIEF_SECONDS = 0.0002
"""What a thread that has other things to do waits for a dispatch: to hand it to another one takes half of that."""


class KeptTensor:
    """A kept tensor on a GPU: one for all graphs that have it in the same memory on the host, as those have a model's
    weights that are made of it for inputs of different sizes."""

    def __init__(self, tensor: Buffer) -> None:
        self.tensor = tensor  # so that nothing else comes to lie there meanwhile
        self.memory: Any = None
        """Where it is on the device, once it is there."""


class KeptTensors:
    """A graph's kept tensors on a GPU, uploaded when they are first wanted. Safe to use from several threads."""

    def __init__(self, tensors: Sequence[KeptTensor], device: Context, lock: threading.Lock) -> None:
        """The `lock` is that of all who may have one of these tensors."""
        self._tensors = tensors
        self._device = device
        self._lock = lock
        self._are_there = False

    def upload(self) -> None:
        """Bring them there. Not for who holds a slot."""
        if self._are_there:
            return
        with self._lock:
            missing = [each for each in dict.fromkeys(self._tensors) if each.memory is None]
            memory = [self._device.pool.malloc(each.tensor.nbytes) for each in missing]
            hosts = [HostTensor(each.tensor, each.tensor.nbytes, self._device.pinned) for each in missing]
            pairs = [(host, each.ptr) for host, each in zip(hosts, memory, strict=True) if host.size]
            move(self._device, pairs, lambda: False, inward=True)
            for tensor, each in zip(missing, memory, strict=True):
                tensor.memory = each
            self._are_there = True

    def addresses(self) -> list[int]:
        """Where they are on the device, once they are."""
        assert self._are_there, "they are uploaded first"
        return [each.memory.ptr for each in self._tensors]


class CudaScheduleKernel:
    """Implements `Kernel`, for a graph, or an operator that is computed over whole tensors."""

    def __init__(self, graph: InitializedGraph, kept: KeptTensors, device: Context) -> None:
        schedule = graph.schedule
        self.device = device
        self._kept = kept
        self._steps = [(step, Resident(step.dispatchable, device)) for step in schedule.steps]
        self._is_captured = all(resident.is_captured for _, resident in self._steps)
        self._inputs = list(schedule.read_bytes.values())
        self._outputs = [desc.data_bytes for desc in schedule.outputs.values()]
        self.tensor_bytes = sum(self._inputs) + sum(self._outputs)
        """Of those that are bound."""
        self._gapless = [desc.gapless for desc in schedule.outputs.values()]
        self._passage = Passage(self._inputs, self._outputs, self._gapless)
        self.scratch_bytes = schedule.scratch_bytes
        self._bytes = self._passage.bytes + self.scratch_bytes
        self._is_small = self._passage.is_small(device)
        self._number = device.ready.number(self)
        self._is_compiled = False
        self._took = inf
        """Seconds, the last time, of what is small."""

    @property
    def runs_inline(self) -> bool:
        """While nothing runs on the GPU that a small dispatch would wait for."""
        return not self.device.long_dispatches and self._is_brief

    @property
    def _is_brief(self) -> bool:
        """Whether a dispatch takes hardly longer than to hand it to another thread."""
        if self._took > BRIEF_SECONDS:
            return False
        ready = self.device.ready.newest(self._number)
        return ready is not None and ready.work.is_known

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        dispatch = self._dispatch_small if self._is_small else self._dispatch_large
        made = outputs[: len(self._outputs)]  # without the scratch that the CPU is given
        with self.device.at_work(self.tensor_bytes, is_brief=self._is_brief):
            self.upload()
            dispatch(inputs, made, cancelled)
        return self.device.ran

    def _dispatch_small(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> None:
        with self.device.slots.take() as slot, self._arena(slot.address) as arena:
            if cancelled():
                raise Cancelled
            started = perf_counter()
            self._passage.enter(slot, inputs, outputs)
            staged("kernel", self._run, slot, arena, self._passage.through(slot, arena.address, self.device))
            self._passage.leave(slot, outputs)
            self._took = perf_counter() - started

    def _dispatch_large(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> None:
        device = self.device
        given = [HostTensor(*each, device.pinned) for each in zip(inputs, self._inputs, strict=True)]
        made = [HostTensor(*each, device.pinned) for each in zip(outputs, self._outputs, strict=True)]
        with self._arena() as arena:
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
    def _run(slot: Slot, arena: Arena, copies: AbstractContextManager[None]) -> None:
        """All its work, with `copies` queued around it, until it is done."""
        try:
            with copies:
                arena.work(slot)
        finally:
            slot.stream.synchronize()  # the memory is the GPU's until then

    @contextmanager
    def _arena(self, place: int = 0) -> Iterator[Arena]:
        """One that nobody else uses meanwhile, of those for a slot's address, or for any. One in which something failed
        is not used again."""
        ready = self.device.ready
        arena = ready.take(self._number, place) or self.new_arena()
        yield arena
        if self._bytes <= self.device.most_kept:
            ready.put(self._number, arena, place)

    def upload(self) -> None:
        """Bring what is kept to the device, unless it is there, and have all kernels compiled. To be done before all
        else: whoever holds a slot keeps others waiting."""
        self._kept.upload()
        if not self._is_compiled:
            self.device.compile_ahead(source for _, resident in self._steps for source in resident.sources())
            self._is_compiled = True

    def new_arena(self) -> Arena:
        """One with all its work."""
        return Arena(self.device, self._passage, self.scratch_bytes, self.record)

    def record(self, reads: Sequence[int], writes: Sequence[int], scratch: int) -> Recording:
        """All its work over inputs, outputs and scratch on the device at these addresses."""
        rooms = {Room.INPUT: reads, Room.OUTPUT: writes, Room.KEPT: self._kept.addresses(), Room.SCRATCH: [scratch]}
        # What waits for the next dispatch must not keep this kernel, with which it goes.
        return Recording(partial(_bind, self._steps, rooms), self.device, is_captured=self._is_captured)


def _bind(steps: Sequence[tuple[Step, Resident]], rooms: Mapping[Room, Sequence[int]], pool: Any) -> list[list[Queued]]:
    """What is to be queued for each step."""

    def at(place: Place) -> int:
        return rooms[place.room][place.number] + place.offset

    return [
        [
            *(_Clear(resident.device, at(place), place.size) for place in step.clears),
            *resident.bind([*map(at, step.reads)], [*map(at, step.writes)], pool),
        ]
        for step, resident in steps
    ]


class _Clear:
    """Bytes on the device, to be set to 0."""

    def __init__(self, device: Context, address: int, size: int) -> None:
        self._device = device
        self._address = address
        self._size = size

    def __call__(self, stream: Any) -> None:
        """Queue it on `stream`, CuPy's."""
        self._device.clear(self._address, self._size, stream)
