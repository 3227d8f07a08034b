"""Where connections read to."""

import ctypes
import mmap

from app.memory.buffers import STAGGER, Buffer

HEADER = 1 << 14
"""Bytes to read at first where the next request is probably a large one: its body then goes to where it belongs."""

LARGE = 3 << 16
"""Bodies of more bytes go to where they belong as the system hands them over. The others fit into one read, with a
header; to find a place for them first takes longer than to copy them."""

READ = LARGE + (1 << 17)
"""Bytes to read at once."""


class Scratch:
    """Where one read of any of the connections of an event loop goes, which is dealt with before the next one.

    Whoever wants to keep what was read copies it. Should somebody keep a view all the same, that memory is theirs:
    `take` never hands it out again, so that no connection can write into what belongs to another one.
    """

    def __init__(self) -> None:
        self.view: Buffer = memoryview(b"")
        """What `take` gave last."""
        self._renew()

    def take(self, size: int) -> Buffer:
        """Memory for a read of at most so many bytes, READ or fewer, to which nobody else refers."""
        try:
            self.view.release()
            # To the size it has. A bytearray refuses that with BufferError as long as anybody has a view of it.
            self._memory.append(0)
            self._memory.pop()
        except BufferError:
            self._renew()
        self.view = memoryview(self._memory)[self._start : self._start + size]
        return self.view

    def _renew(self) -> None:
        self._memory = bytearray(mmap.PAGESIZE + READ)
        self._memory.append(0)  # from now on it lies where it is
        self._memory.pop()
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._start = (STAGGER - address) % mmap.PAGESIZE
