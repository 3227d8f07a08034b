"""Memory for large bodies and tensors, used again and again.

Fresh memory costs several times as much as used memory, since the kernel clears each page at its first touch.
"""

import contextlib
import ctypes
import errno
import mmap
import threading
import weakref
from collections import deque
from typing import Protocol, TypeAlias

from app.memory import huge_pages

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

_TOUCHED = 1 << 22
"""Bytes that are touched in one call."""

_MADV_POPULATE_WRITE = 23


def beginning(offset: int) -> int:
    """Where in a page to begin what is received, so that what it has at `offset` is aligned."""
    return STAGGER - offset % ALIGNMENT


class Pinning(Protocol):
    """Makes memory known to devices that then read and write it by themselves."""

    def pin(self, memory: mmap.mmap) -> None:
        """Called with each new buffer. Fails silently."""

    def unpin(self, memory: mmap.mmap) -> None:
        """Called before a buffer's memory is given back to the system, by any thread at any moment."""


class Memory(mmap.mmap):
    """Pages of this process alone, made by `fresh`."""

    pinning: Pinning | None = None

    def __del__(self) -> None:
        # Here and nowhere else, so that it happens however the memory comes to its end. A device that still knew the
        # address would read and write the old pages when the system uses it again.
        if self.pinning:
            self.pinning.unpin(self)


def fresh(size: int) -> Memory:
    """Memory of `size` bytes. What `mmap` maps unless it is told otherwise, forked workers would share.

    Raises MemoryError, as all else does where the system has none left.
    """
    try:
        return Memory(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"{size} bytes") from None


class _Lease(weakref.ref["ctypes.Array[ctypes.c_char]"]):
    """Memory that somebody has for as long as its referent lives. Much quicker than `weakref.finalize`."""

    __slots__ = ("memory",)
    memory: Memory
    __eq__, __hash__ = object.__eq__, object.__hash__  # not those of the referent, which has none


class BufferPool:
    """Keeps at most `most_idle_bytes` that nobody uses. Safe to use from several threads.

    A buffer comes back by itself when the last view of it is gone, whoever had it: a parser, a worker that has not
    heard yet that its client hung up, a connection that is still sending. There is no path on which it could be
    forgotten, or given to a second request while a first one may still touch it.
    """

    def __init__(self, most_idle_bytes: int, pinning: Pinning | None = None) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._pinning = pinning
        self._idle: list[Memory] = []  # the one used last is the last
        self._idle_bytes = 0
        self._leases: set[_Lease] = set()
        self.room = most_idle_bytes
        """Bytes that may be kept now, if they are fewer. Whoever sets it calls `settle`."""
        # The garbage collector returns memory at any moment, also while a thread is in here. So it only queues it.
        self._returned: deque[_Lease] = deque()
        self._lock = threading.Lock()

    @property
    def idle_bytes(self) -> int:
        """Bytes kept for later."""
        self.settle()
        return self._idle_bytes

    def settle(self) -> None:
        """Take back what nobody uses any more, and keep as much of it as there is room for: that used longest ago is
        dropped."""
        if self._returned or self._idle_bytes > self.room:
            with self._lock:
                self._settle(self.room)

    def take(self, size: int) -> Buffer:
        """A buffer of `size` bytes, whose contents are arbitrary: what is not written must not be read. Raises
        MemoryError."""
        found = self.take_used(size)
        return self._take_fresh(size) if found is None else found

    def take_used(self, size: int) -> Buffer | None:
        """The same of memory that was used before, or too little to take notice of; None if there is none."""
        if size < SMALLEST:
            return memoryview(bytearray(size))
        with self._lock:
            self._settle(self.room)
            memory = self._find(_rounded(size))
        return None if memory is None else self._lend(memory, size)

    def take_touched(self, size: int) -> Buffer:
        """The same of memory whose pages are all there. Takes up to 5 ms for each MiB of fresh memory; other threads
        run meanwhile."""
        found = self.take_used(size)
        if found is None:
            found = self._take_fresh(size)
            _touch(found)
        return found

    def _take_fresh(self, size: int) -> Buffer:
        return self._lend(self._fresh(_rounded(size)), size)

    def _lend(self, memory: Memory, size: int) -> Buffer:
        owner = (ctypes.c_char * len(memory)).from_buffer(memory)
        lease = _Lease(owner, self._returned.append)
        lease.memory = memory
        self._leases.add(lease)
        return memoryview(owner).cast("B")[:size]

    def _find(self, size: int) -> Memory | None:
        """Kept memory of `size` bytes, or, rather than fresh one, of up to a quarter more."""
        found: int | None = None
        for place in reversed(range(len(self._idle))):
            length = len(self._idle[place])
            if length == size:
                found = place
                break
            if size < length <= size + size // 4 and (found is None or length < len(self._idle[found])):
                found = place
        if found is None:
            return None
        memory = self._idle.pop(found)
        self._idle_bytes -= len(memory)
        return memory

    def _fresh(self, size: int) -> Memory:
        try:
            memory = fresh(size)
        except MemoryError:
            with self._lock:
                self._settle(0)
            memory = fresh(size)
        if size >= huge_pages.SIZE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        if self._pinning:
            memory.pinning = self._pinning
            self._pinning.pin(memory)
        return memory

    def _settle(self, room: int) -> None:
        """As `settle`, with so much room."""
        while self._returned:
            lease = self._returned.popleft()
            self._leases.remove(lease)
            self._idle.append(lease.memory)
            self._idle_bytes += len(lease.memory)
        while self._idle_bytes > min(self._most_idle_bytes, room):
            self._idle_bytes -= len(self._idle.pop(0))


def _touch(buffer: Buffer) -> None:
    """Have the system provide all pages of fresh memory, which begins with one.

    Some at a time: for as long as a call takes, nobody else in this process gets or gives back any memory by `mmap`,
    which waits for that with the interpreter's lock in its hands.
    """
    libc = ctypes.CDLL(None)  # whose calls let other threads run
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    for begin in range(0, len(buffer), _TOUCHED):
        start, length = ctypes.c_void_p(address + begin), ctypes.c_size_t(min(_TOUCHED, len(buffer) - begin))
        if libc.madvise(start, length, _MADV_POPULATE_WRITE) != 0:  # before Linux 5.14
            libc.memset(start, 0, length)


def _rounded(size: int) -> int:
    """Eight sizes for each power of two, so that a buffer fits other requests than those of exactly one size."""
    step = max(1 << (size - 1).bit_length() - 4, mmap.PAGESIZE)
    return -(-size // step) * step
