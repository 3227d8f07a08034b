"""What a GPU does again and again over the same memory, recorded as CUDA graphs."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from app.devices.cuda.context import Context
from app.devices.cuda.kernels import Launch
from app.devices.cuda.pinned import Slot
from app.devices.cuda.resident import Queued
from app.devices.cuda.small import Passage

GRAPH_BYTES = 1 << 18
"""What a CUDA graph is taken to need."""

UNRECORDED = 2
"""How often work is queued by itself: to record it takes as long as two or three more times."""


class Recording:
    """Work over tensors at fixed addresses. After the first few times it is one CUDA graph for each slot that it is
    queued by, which takes the processor little more than one kernel. One thread uses it at a time."""

    def __init__(self, bind: Callable[[Any], list[list[Queued]]], device: Context, *, is_captured: bool) -> None:
        """`bind` gives the work, step by step, with memory from the pool that it is given. Unless `is_captured`, there
        are calls in it that wait for results."""
        self._device = device
        self._bind = bind
        self._steps = bind(device.pool)
        self._graphs: dict[int, tuple[int, Any, list[Any]]] = {}
        """By the slots' addresses, with the generation of the scratch that a graph computes in, and its kernels."""
        self._uses = 0
        work = [*itertools.chain(*self._steps)]
        is_one_kernel = len(work) == 1 and isinstance(work[0], Launch)
        self._is_captured = is_captured and not is_one_kernel

    @property
    def bytes(self) -> int:
        """Of the memory that it takes besides, about."""
        return len(self._graphs) * GRAPH_BYTES

    @property
    def is_known(self) -> bool:
        """Whether to queue it takes no longer than one kernel does."""
        return bool(self._graphs) or (self._uses > 0 and not self._is_captured)

    def __call__(self, slot: Slot) -> None:
        """Queue all work on the slot's stream."""
        graph = self._graph_of(slot) if self._is_captured and self._uses >= UNRECORDED else None
        self._uses += 1
        if graph is None:
            self.queue(slot.stream)
        else:
            graph.launch(slot.stream)

    def _graph_of(self, slot: Slot) -> Any:
        generation, graph, _ = self._graphs.get(slot.address, (-1, None, []))
        return graph if generation == slot.generation else self._record(slot)

    def _record(self, slot: Slot) -> Any:
        # A graph goes on using the memory that is taken while it is captured, for one call after the other; so do
        # others that the slot's stream runs before and after.
        with self._device.holding() as functions:
            steps = self._bind(slot.scratch)
            graph = self._device.captured(partial(_queue, steps), slot.stream)
        del steps
        if slot.scratch.total_bytes() > self._device.most_kept:
            slot.empty()
            graph = None
        if graph is None:
            self._is_captured = False
        else:
            self._graphs[slot.address] = slot.generation, graph, functions
        return graph

    def queue(self, stream: Any, behind: Callable[[], None] | None = None) -> None:
        """Queue all work by itself on a stream of CuPy's. `behind` is called behind each step."""
        _queue(self._steps, stream, behind)


def _queue(steps: Sequence[Sequence[Queued]], stream: Any, behind: Callable[[], None] | None = None) -> None:
    for step in steps:
        for queue in step:
            queue(stream)
        if behind:
            behind()


class Arena:
    """Memory on the device for one dispatch at a time, and the work over it."""

    def __init__(
        self,
        device: Context,
        passage: Passage,
        scratch_bytes: int,
        record: Callable[[Sequence[int], Sequence[int], int], Recording],
    ) -> None:
        """For tensors that lie as in `passage`, with scratch behind them; `record` makes the work over inputs, outputs
        and scratch at these addresses."""
        self._device = device
        self._size = passage.bytes + scratch_bytes
        self._memory = device.pool.malloc(self._size)
        self.address: int = self._memory.ptr
        self.inputs = [self.address + offset for offset in passage.inputs]
        self.outputs = [self.address + offset for offset in passage.outputs]
        self.work = record(self.inputs, self.outputs, self.address + passage.bytes)

    @property
    def bytes(self) -> int:
        return self._size + self.work.bytes

    def clear(self, stream: Any) -> None:
        """Queue setting all of it to 0."""
        self._device.clear(self.address, self._size, stream)
