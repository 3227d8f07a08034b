"""What a GPU does again and again over the same memory, recorded as CUDA graphs."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from app.devices.cuda.context import Context
from app.devices.cuda.kernels import Launch
from app.devices.cuda.resident import Queued

GRAPH_BYTES = 1 << 18
"""What a CUDA graph is taken to need."""


class Recording:
    """Work over tensors at fixed addresses. From the second time on it is one CUDA graph, which takes the processor
    little more than one kernel, with memory of its own for all that it takes besides. One thread uses it at a time."""

    def __init__(self, bind: Callable[[Any], list[list[Queued]]], device: Context, *, is_captured: bool) -> None:
        """`bind` gives the work, step by step, with memory from the pool that it is given. Unless `is_captured`, there
        are calls in it that wait for results."""
        self._pool: Any = None
        self._graph: Any = None
        self._device = device
        self._bind = bind
        self._steps = bind(device.pool)
        self._used = False
        work = [*itertools.chain(*self._steps)]
        is_one_kernel = len(work) == 1 and isinstance(work[0], Launch)
        self._is_captured = is_captured and not is_one_kernel

    def __del__(self) -> None:
        if self._pool is not None:
            self._graph, self._steps = None, []  # first what uses the memory
            self._device.empty(self._pool)

    @property
    def bytes(self) -> int:
        """Of the memory that it takes besides."""
        return 0 if self._pool is None else int(self._pool.total_bytes()) + GRAPH_BYTES

    @property
    def is_known(self) -> bool:
        """Whether to queue it takes no longer than one kernel does."""
        return self._graph is not None or (self._used and not self._is_captured)

    def __call__(self, stream: Any) -> None:
        """Queue all work on `stream`, CuPy's."""
        if self._graph is None and self._used and self._is_captured:
            self._record(stream)
        self._used = True
        if self._graph is None:
            self.queue(stream)
        else:
            self._graph.launch(stream)

    def _record(self, stream: Any) -> None:
        # The graph goes on using the memory that is taken while it is captured, for one call after the other.
        self._pool = self._device.new_pool()
        self._steps = self._bind(self._pool)
        self._graph = self._device.captured(self.queue, stream)
        self._is_captured = self._graph is not None

    def queue(self, stream: Any, behind: Callable[[], None] | None = None) -> None:
        """Queue all work by itself. `behind` is called behind each step."""
        for step in self._steps:
            for queue in step:
                queue(stream)
            if behind:
                behind()


class Arena:
    """Memory on the device for one dispatch at a time, and the work over it."""

    def __init__(
        self,
        device: Context,
        size: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        record: Callable[[int], Recording],
    ) -> None:
        """`inputs` and `outputs` are where tensors lie in its `size` bytes; `record` makes the work over those from an
        address on."""
        self._device = device
        self._memory = device.pool.malloc(size)
        self._size = size
        self.address: int = self._memory.ptr
        self.inputs = [self.address + offset for offset in inputs]
        self.outputs = [self.address + offset for offset in outputs]
        self.work = record(self.address)

    @property
    def bytes(self) -> int:
        return self._size + self.work.bytes

    def clear(self, stream: Any) -> None:
        """Queue setting all of it to 0."""
        self._device.clear(self.address, self._size, stream)
