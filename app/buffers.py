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

ALIGNMENT = 64
"""Of tensor data in memory, in bytes: a cache line, and more than any vector register."""

STAGGER = 1 << 11
"""Where in a page of memory begins what is received, in bytes.

In the kernel it often begins a page. On AMD's Zen the copy from there takes six times as long if its target lies 1 to
31 bytes further on in a page than its source (tests/benchmarks/receiving.py), as it does right behind malloc's header.
"""

_HUGE_PAGE = 1 << 21


def beginning(offset: int) -> int:
    """Where in a page to begin what is received, so that what it has at `offset` is aligned."""
    return STAGGER - offset % ALIGNMENT


def fresh(size: int) -> mmap.mmap:
    """Memory of this process alone. What `mmap` maps unless it is told otherwise, forked workers would share."""
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Pinning(Protocol):
    """Makes memory known to devices that then read and write it by themselves."""

    def pin(self, memory: mmap.mmap) -> None:
        """Called with each new buffer. Fails silently."""

    def unpin(self, memory: mmap.mmap) -> None:
        """Called before a buffer's memory is given back."""


class _Loan(weakref.ref["ctypes.Array[ctypes.c_char]"]):
    """Memory that somebody has for as long as its referent lives. Much quicker than `weakref.finalize`."""

    __slots__ = ("memory",)
    memory: mmap.mmap
    __eq__, __hash__ = object.__eq__, object.__hash__  # not those of the referent, which has none


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
        self._loans: set[_Loan] = set()
        self.idle_bytes = 0
        """Bytes kept for later."""
        self._lock = threading.RLock()  # the garbage collector may return a buffer here while this thread takes one

    def take(self, size: int) -> Buffer:
        """A buffer of `size` bytes, whose contents are arbitrary: what is not written must not be read."""
        if size < SMALLEST:
            return memoryview(bytearray(size))
        memory = self._find(_rounded(size))
        owner = (ctypes.c_char * len(memory)).from_buffer(memory)
        loan = _Loan(owner, self._give)
        loan.memory = memory
        self._loans.add(loan)
        return memoryview(owner).cast("B")[:size]

    def _find(self, size: int) -> mmap.mmap:
        """Memory of `size` bytes, or, rather than fresh one, of up to a quarter more."""
        with self._lock:
            found: int | None = None
            for place in reversed(range(len(self._idle))):
                length = len(self._idle[place])
                if length == size:
                    found = place
                    break
                if size < length <= size + size // 4 and (found is None or length < len(self._idle[found])):
                    found = place
            if found is not None:
                memory = self._idle.pop(found)
                self.idle_bytes -= len(memory)
                return memory
        memory = fresh(size)
        if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        if self._pinning:
            self._pinning.pin(memory)
        return memory

    def _give(self, loan: _Loan) -> None:
        with self._lock:
            self._loans.remove(loan)
            self._idle.append(loan.memory)
            self.idle_bytes += len(loan.memory)
            while self.idle_bytes > self._most_idle_bytes:
                dropped = self._idle.pop(0)
                self.idle_bytes -= len(dropped)
                if self._pinning:
                    self._pinning.unpin(dropped)


def _rounded(size: int) -> int:
    """Eight sizes for each power of two, so that a buffer fits other requests than those of exactly one size."""
    step = max(1 << (size - 1).bit_length() - 4, mmap.PAGESIZE)
    return -(-size // step) * step
