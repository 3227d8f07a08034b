"""Memory for large bodies and tensors, used again and again.

Fresh memory costs several times as much as used memory, since the kernel clears each page at its first touch.
"""

import contextlib
import ctypes
import mmap
import threading
import weakref
from typing import Protocol, TypeAlias

Buffer: TypeAlias = memoryview
"""Contiguous bytes. A tensor's elements lie in it as its descriptor says, little-endian."""

SMALLEST = 1 << 16
"""Buffers of fewer bytes are not worth keeping."""

_HUGE_PAGE = 1 << 21


class Pinning(Protocol):
    """Makes memory known to devices that then read and write it by themselves."""

    def pin(self, memory: mmap.mmap) -> None:
        """Called with each new buffer. Fails silently."""

    def unpin(self, memory: mmap.mmap) -> None:
        """Called before a buffer's memory is given back."""


class BufferPool:
    """Keeps at most `most_idle_bytes` that nobody uses.

    A buffer comes back by itself when the last view of it is gone, whoever had it: a parser, a worker that has not
    heard yet that its client hung up, a connection that is still sending. There is no path on which it could be
    forgotten, or given to a second request while a first one may still touch it.
    """

    def __init__(self, most_idle_bytes: int, pinning: Pinning | None = None) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._pinning = pinning
        self._idle: list[mmap.mmap] = []  # the one used last is the last
        self._lock = threading.RLock()  # the garbage collector may return a buffer here while this thread takes one

    @property
    def idle_bytes(self) -> int:
        """Bytes kept for later."""
        with self._lock:
            return sum(map(len, self._idle))

    def take(self, size: int) -> Buffer:
        """A buffer of `size` bytes, whose contents are arbitrary: what is not written must not be read."""
        if size < SMALLEST:
            return memoryview(bytearray(size))
        memory = self._find(_rounded(size))
        owner = (ctypes.c_char * len(memory)).from_buffer(memory)
        weakref.finalize(owner, self._give, memory).atexit = False
        return memoryview(owner).cast("B")[:size]

    def _find(self, size: int) -> mmap.mmap:
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if len(self._idle[place]) == size:
                    return self._idle.pop(place)
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        if self._pinning:
            self._pinning.pin(memory)
        return memory

    def _give(self, memory: mmap.mmap) -> None:
        with self._lock:
            self._idle.append(memory)
            while self.idle_bytes > self._most_idle_bytes:
                dropped = self._idle.pop(0)
                if self._pinning:
                    self._pinning.unpin(dropped)


def _rounded(size: int) -> int:
    """Eight sizes for each power of two, so that a buffer fits other requests than those of exactly one size."""
    step = max(1 << (size - 1).bit_length() - 4, mmap.PAGESIZE)
    return -(-size // step) * step
