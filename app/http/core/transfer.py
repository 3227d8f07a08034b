"""Bodies, without the detours of ASGI.

A small one is there before the application is called: the extension WHOLE_BODY of its scope hands it over. A large
one uvicorn hands over in pieces, each of which was copied twice on the way. An application that has a buffer for it
asks for the extension RECEIVE_INTO, which is there for bodies worth it, and has the kernel put the bytes where they
belong.
"""

import asyncio
import ctypes
import mmap
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from app.memory.buffers import STAGGER, Buffer

WHOLE_BODY = "dmlserve.whole_body"
"""Name of the ASGI extension that is there if a body came together with its header: the body, as bytes. `receive`
returns it all the same."""

RECEIVE_INTO = "dmlserve.receive_into"
"""Name of the ASGI extension: a `ReceiveInto`."""

ReceiveInto: TypeAlias = Callable[[Buffer], Awaitable[None]]
"""Fills a buffer with the next bytes of the body, of which there must be as many. It is for use when `receive` has
returned what it had. Raises Disconnected."""

JOINED = 1 << 16
"""So many bytes are rather copied once more than handed over in a call of their own."""

HEADER = 1 << 14
"""Bytes to read at first where the next request is probably a large one: its body then goes to where it belongs."""

LARGE = 3 << 17
"""Bodies of more bytes have the extension. The others fit into one read, with a header."""

READ = LARGE + (1 << 17)
"""Bytes to read at once."""


class Disconnected(Exception):
    """The client hung up in the middle of its body."""


class Flow(Protocol):
    """Whether the connection is read."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Connection(Protocol):
    """What a receiver needs of the HTTP protocol that it reads for."""

    loop: asyncio.AbstractEventLoop

    @property
    def flow(self) -> Flow: ...
    @property
    def read_bytes(self) -> int: ...
    def data_received(self, data: Buffer) -> None: ...
    def end_body(self) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Receiver(asyncio.BufferedProtocol):
    """What a connection's transport calls: reads for its HTTP protocol, and large bodies to where they belong.

    Between two calls of `fill` nothing is read, unless the request is over: what is left is then dropped.
    """

    def __init__(self, http: Connection) -> None:
        self._http = http
        self.left = 0  # of a large body
        self._target: Buffer | None = None
        self._filled = 0
        self._full: asyncio.Future[None] | None = None

    def begin_body(self, left: int) -> None:
        """From now on all that comes is for `fill`, until there were `left` bytes."""
        self.left = left
        self._http.flow.pause_reading()

    async def fill(self, target: Buffer) -> None:
        """Receive as many bytes as `target` has, at most those left. Raises Disconnected."""
        self._target, self._filled = target, 0
        self._full = self._http.loop.create_future()
        self._http.flow.resume_reading()
        try:
            await self._full
        finally:
            self._target = self._full = None
            if self.left:
                self._http.flow.pause_reading()

    # What transports call

    def get_buffer(self, sizehint: int) -> Buffer:
        if self._target is not None:
            return self._target[self._filled :]
        unread = scratch.take()
        if self.left:
            return unread[: self.left]
        return unread[: self._http.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self.left:
            self._receive_body(nbytes)
        else:
            self._http.data_received(scratch.view[:nbytes])

    def _receive_body(self, nbytes: int) -> None:
        self.left -= nbytes
        self._filled += nbytes
        if self._target is not None and self._filled == len(self._target):
            self._target = None
            self._http.flow.pause_reading()
            if self._full is not None and not self._full.done():
                self._full.set_result(None)
        if self.left == 0:
            self._http.end_body()

    def eof_received(self) -> bool:
        return self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_exception(Disconnected())
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


class Scratch(threading.local):
    """Where one read of any connection of an event loop goes, which is dealt with before the next one.

    Whoever wants to keep what was read copies it. Should somebody keep a view all the same, that memory is theirs:
    `take` never hands it out again, so that no connection can write into what belongs to another one.
    """

    def __init__(self) -> None:
        self.view: Buffer = memoryview(b"")
        """What `take` gave last."""
        self._renew()

    def take(self) -> Buffer:
        """Memory for a read, to which nobody else refers."""
        try:
            self.view.release()
            self._resize()
        except BufferError:
            self._renew()
        self.view = memoryview(self._memory)[self._start :]
        return self.view

    def _renew(self) -> None:
        self._memory = bytearray(mmap.PAGESIZE + READ)
        self._resize()  # from now on it lies where it is
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._start = (STAGGER - address) % mmap.PAGESIZE

    def _resize(self) -> None:
        """To the size it has. A bytearray refuses that with BufferError as long as anybody has a view of it."""
        self._memory.append(0)
        self._memory.pop()


scratch = Scratch()
