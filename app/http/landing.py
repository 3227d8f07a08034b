"""Large requests like one before, each received into one buffer, header and all.

Clients send the same header again and again. So when a request has come whose like could be answered at once, the
next read of its connection goes to memory that has room for another one. If that is what comes, nothing is parsed or
copied on its way. If not, the ordinary way goes on from what has arrived, as if nothing had been.
"""

from typing import NamedTuple

from app.buffers import Buffer, beginning
from app.http.at_once import Request
from app.limits import LimitExceeded, MemoryAccount, MemoryExhausted

BEGUN = 1 << 15
"""So many bytes of a request have to come in one read for it to be given the memory that it announces."""

LANDING_SECONDS = 1.0
"""In which the request must be there. A slower one goes the ordinary way, and leaves the memory to others."""


class KnownHeader(NamedTuple):
    """The header of a request that was answered, and what the parser made of it.

    One that is the same to the byte says the same.
    """

    header: bytes
    length: int
    """Of the header and the body, in bytes."""
    request: Request
    """Without its body."""

    def begins(self, data: bytes | Buffer) -> bool:
        """Whether it is what `data` begin with."""
        return bytes(data[: len(self.header)]) == self.header  # a view by itself is compared one byte at a time


def header_of(data: bytes | Buffer, body_bytes: int) -> bytes:
    """The header of the request that `data` begin with, and of whose body they have `body_bytes`; empty if unsure."""
    header = bytes(data[: len(data) - body_bytes])
    # If there were other requests before it, or empty lines, this is not its header.
    return header if header.find(b"\r\n\r\n") == len(header) - 4 else b""


class Expected(NamedTuple):
    """A large request that may come again."""

    known: KnownHeader
    memory: MemoryAccount
    data_start: int
    """Offset in its body of what is to be aligned."""


class Landing:
    """A request on its way into one buffer."""

    def __init__(self, expected: Expected) -> None:
        known, memory, data_start = expected
        shift = beginning(len(known.header) + data_start)
        self._buffer = memory.pool.take(shift + known.length)[shift:]
        self._known = known
        self._share = memory.open()
        self._filled = 0

    def rest(self) -> Buffer:
        """Where the next bytes belong."""
        return self._buffer[self._filled :]

    def add(self, count: int) -> None:
        """After `count` more bytes were received."""
        self._filled += count

    def begin(self) -> bool:
        """Whether what has come is the beginning of such a request, and its memory is granted."""
        if self._filled < BEGUN or not self._known.begins(self._buffer):
            return False
        try:
            self._share.take(len(self._buffer))
        except (LimitExceeded, MemoryExhausted):
            return False
        return True

    @property
    def is_whole(self) -> bool:
        return self._filled == len(self._buffer)

    def end(self) -> Buffer:
        """What has come. Whoever goes on with it holds memory of its own account."""
        self._share.close()
        return self._buffer[: self._filled]
