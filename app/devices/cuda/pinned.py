"""What lies between host memory and a GPU: pinned memory, a stream and memory on the device, in slots."""

import contextlib
import logging
import mmap
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from app.memory.addresses import address_of
from app.memory.buffers import Buffer

log = logging.getLogger("app.execution")

ALIGNMENT = 256
"""Of each tensor in a slot: more than any access needs."""

SMALLEST_PINNED = 1 << 17
"""Smaller buffers are copied in less time than it takes to find out that they need not be."""

_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs


class PinnedMemory:
    """Host memory that GPUs read and write by themselves, for requests and answers to lie in from the beginning.

    A dispatch on buffers in it copies nothing on the host. At most `limit` bytes at a time. Implements `Pinning`, so
    that a `BufferPool` has its buffers here. Safe to use from several threads.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.gpus: list[int] = []
        """Ordinals of those that it is for, which put themselves here."""
        self._ranges: dict[int, int] = {}  # sizes, by addresses
        self._starts: list[int] = []
        """Their addresses in order, and of some that are not held any more."""
        self._lock = threading.RLock()  # the garbage collector may return a buffer while this thread is in here

    def pin(self, memory: mmap.mmap) -> None:
        size = len(memory)
        if size >= SMALLEST_PINNED and self._grant(size):
            address = address_of(memoryview(memory))
            try:
                self._runtime().hostRegister(address, size, _PORTABLE)
            except Exception as error:
                log.info("%d bytes are not pinned: %s", size, error)
                self._return(size)
            else:
                with self._lock:
                    self._ranges[address] = size
                    self._starts = sorted(self._ranges)

    def unpin(self, memory: mmap.mmap) -> None:
        address = address_of(memoryview(memory))
        if address in self._ranges:
            self._return(self._ranges.pop(address))
            with contextlib.suppress(Exception):  # of a lost GPU, which has let go of it already
                self._runtime().hostUnregister(address)

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes are pinned."""
        starts = self._starts
        place = bisect_right(starts, address) - 1
        if place < 0:
            return False
        start = starts[place]
        return address + size <= start + self._ranges.get(start, 0)

    def _runtime(self) -> Any:
        """CUDA's, for a thread whose GPU is one of these. That of a thread which has not said any is CUDA's first one,
        where some hundred MiB would be taken that may be meant for others."""
        runtime = _runtime()
        if self.gpus and runtime.getDevice() not in self.gpus:
            runtime.setDevice(self.gpus[0])
        return runtime

    def _grant(self, size: int) -> bool:
        with self._lock:
            granted = self.used + size <= self.limit
            self.used += size if granted else 0
        return granted

    def _return(self, size: int) -> None:
        with self._lock:
            self.used -= size


def room(size: int, tensors: int) -> int:
    """Bytes that each of so many tensors may have in a slot of `size` bytes."""
    return size // tensors // ALIGNMENT * ALIGNMENT


class Slot:
    """A stream with as much memory on either side as a chunk of a dispatch takes. One thread uses it at a time."""

    def __init__(self, size: int, allocate: Callable[[int], Any]) -> None:
        """`allocate` gives memory on the device, as CuPy's pools do."""
        import cupy  # noqa: PLC0415 - only with a GPU extra

        self.size = size
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self._pinned = _pinned(size)
        self._device = cupy.cuda.memory.Memory(size)
        self.host = _bytes_of(self._pinned, size)
        self.host_address: int = self._pinned.ptr
        self.address: int = self._device.ptr
        self.scratch: Any = cupy.cuda.MemoryPool(allocate)
        """What is recorded on this stream computes in, one recording after the other."""
        self.generation = 0
        """Of that memory. What was recorded over an earlier one is of no use any more."""

    def empty(self) -> None:
        """Give back the memory of `scratch`, on the current device."""
        self.generation += 1
        self.scratch.free_all_blocks()


class Slots:
    """At most `count` slots of `size` bytes, each made when it is first wanted and kept from then on. That which was
    used last is taken first: the processor's caches have it, and what was recorded on its stream."""

    def __init__(self, count: int, size: int, allocate: Callable[[int], Any]) -> None:
        self.count = count
        self.size = size
        self._allocate = allocate
        self._turns = threading.Semaphore(count)
        """Whoever has one of these has a slot, too: one that is free, or else there are fewer than `count`. So who
        fails to make one leaves the chance to those who wait."""
        self._free: list[Slot] = []
        self._lock = threading.Lock()
        self.made = 0

    @property
    def pinned_bytes(self) -> int:
        return self.made * self.size

    @property
    def taken(self) -> int:
        """How many somebody has."""
        return self.made - len(self._free)

    def take(self) -> "_Taken":
        """A slot; waits until one is free. Who holds one does not take another this way: two could wait for ever."""
        return _Taken(self, self._wait_for_one())

    @contextmanager
    def take_some(self, most: int) -> Iterator[list[Slot]]:
        """A slot as by `take`, and as many more as are free, up to `most` in all."""
        slots = [self._wait_for_one()]
        try:
            while len(slots) < most and (slot := self._idle()):
                slots.append(slot)
            yield slots
        finally:
            for each in reversed(slots):  # the first one is the next to be taken
                self.give_back(each)

    def give_back(self, slot: Slot) -> None:
        self._free.append(slot)
        self._turns.release()

    def empty_idle(self) -> None:
        """Give back what nobody computes in, on the current device."""
        idle: list[Slot] = []
        try:
            while self._turns.acquire(blocking=False):
                if not self._free:
                    self._turns.release()
                    break
                idle.append(self._free.pop())
                idle[-1].empty()
        finally:  # also where the GPU is lost: others may wait for one
            for slot in reversed(idle):
                self.give_back(slot)

    def _wait_for_one(self) -> Slot:
        self._turns.acquire()
        return self._slot()

    def _idle(self) -> Slot | None:
        return self._slot() if self._turns.acquire(blocking=False) else None

    def _slot(self) -> Slot:
        """The slot of who has a turn."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        try:
            made = Slot(self.size, self._allocate)
        except BaseException:
            self._turns.release()
            raise
        with self._lock:
            self.made += 1
        return made


class _Taken:
    """A slot, until it is given back. A context of its own, since one of `contextlib` takes a microsecond."""

    __slots__ = ("_slot", "_slots")

    def __init__(self, slots: Slots, slot: Slot) -> None:
        self._slots = slots
        self._slot = slot

    def __enter__(self) -> Slot:
        return self._slot

    def __exit__(self, *_: object) -> None:
        self._slots.give_back(self._slot)


def _runtime() -> Any:
    import cupy  # noqa: PLC0415 - only with a GPU extra

    return cupy.cuda.runtime


def _pinned(size: int) -> Any:
    import cupy  # noqa: PLC0415 - only with a GPU extra

    return cupy.cuda.pinned_memory.PinnedMemory(max(size, 1))  # not from CuPy's pool, which takes powers of two


def _bytes_of(memory: Any, size: int) -> Buffer:
    import cupy  # noqa: PLC0415 - only with a GPU extra

    return np.frombuffer(cupy.cuda.pinned_memory.PinnedMemoryPointer(memory, 0), np.uint8, size).data
