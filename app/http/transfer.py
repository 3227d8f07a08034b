"""Bodies, without the detours of ASGI.

A small one is there before the application is called: the extension WHOLE_BODY of its scope hands it over. A large
one uvicorn hands over in pieces, each of which was copied twice on the way. An application that has a buffer for it
asks for the extension RECEIVE_INTO, which is there for bodies worth it, and has the kernel put the bytes where they
belong.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from uvicorn.protocols.http.flow_control import FlowControl

from app.buffers import STAGGER, Buffer, fresh
from app.http.landing import LANDING_SECONDS, Expected, Landing
from app.limits import MemoryAccount

WHOLE_BODY = "dmlserve.whole_body"
"""Name of the ASGI extension that is there if a body came together with its header: the body, as bytes. `receive`
returns it all the same."""

RECEIVE_INTO = "dmlserve.receive_into"
"""Name of the ASGI extension: a `ReceiveInto`."""

ReceiveInto: TypeAlias = Callable[[Buffer], Awaitable[None]]
"""Fills a buffer with the next bytes of the body, of which there must be as many. It is for use when `receive` has
returned what it had. Raises Disconnected."""

SAME_AGAIN = "dmlserve.same_again"
"""Name of the ASGI extension that is there beside RECEIVE_INTO: a `SameAgain`."""

SameAgain: TypeAlias = Callable[[MemoryAccount, int], None]
"""Tells that a request with the same header could be answered at once (see at_once.py). If another one comes, all of
it is received into memory of this account, where what is at this offset of its body is aligned."""

JOINED = 1 << 16
"""So many bytes are rather copied once more than handed over in a call of their own."""

LARGE = 3 << 17
"""Bodies of more bytes have the extension. The others fit into one read, with a header."""


class Disconnected(Exception):
    """The client hung up in the middle of its body."""


class Connection(Protocol):
    """What a receiver needs of the HTTP protocol that it reads for."""

    loop: asyncio.AbstractEventLoop
    flow: FlowControl

    def between_requests(self) -> bool: ...
    def begin_request(self) -> None: ...
    def data_received(self, data: Buffer) -> None: ...
    def end_body(self) -> None: ...
    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Receiver(asyncio.BufferedProtocol):
    """What a connection's transport calls: reads for its HTTP protocol, and large bodies to where they belong.

    Between two calls of `fill` nothing is read, unless the request is over: what is left is then dropped.
    """

    def __init__(self, http: Connection) -> None:
        self._http = http
        self._read = _read.buffer
        self.left = 0  # of a large body
        self._target: Buffer | None = None
        self._filled = 0
        self._full: asyncio.Future[None] | None = None
        self.expected: Expected | None = None
        self._is_offered = False  # memory for it is, to the read that is under way
        self._landing: Landing | None = None  # when it has begun
        self._landing_timer: asyncio.TimerHandle | None = None

    def land(self) -> None:
        """Hands over what has come of a request that was expected."""
        if self._landing is None:
            return
        landing, self._landing = self._landing, None
        if self._landing_timer is not None:
            self._landing_timer.cancel()
            self._landing_timer = None
        self._http.data_received(landing.end())

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
        if self._landing is not None:
            return self._landing.rest()
        if self.left:
            return self._read[: self.left] if self._target is None else self._target[self._filled :]
        if self.expected is None or not self._http.between_requests():
            self._is_offered = False
            return self._read
        self._is_offered = True
        return self._offer(self.expected)

    def buffer_updated(self, nbytes: int) -> None:
        if self._landing is not None:
            self._landing.add(nbytes)
            if self._landing.is_whole:
                self.land()
        elif self.left:
            self._receive_body(nbytes)
        elif self._is_offered:
            self._take_offer(nbytes)
        else:
            self._http.data_received(self._read[:nbytes])

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

    def _offer(self, expected: Expected) -> Buffer:
        """Where to read what is perhaps the expected request, and at most as much as else."""
        _read.offer = None  # its memory will do again
        _read.offer = offer = Landing(expected)
        return offer.rest()[: len(self._read)]

    def _take_offer(self, nbytes: int) -> None:
        landing, _read.offer = _read.offer, None
        assert landing is not None
        self._is_offered = False
        landing.add(nbytes)
        self._landing = landing
        if not landing.begin() or landing.is_whole:
            self.land()
            return
        self._http.begin_request()
        self._landing_timer = self._http.loop.call_later(LANDING_SECONDS, self.land)

    def eof_received(self) -> None:
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.land()
        if self._full is not None and not self._full.done():
            self._full.set_exception(Disconnected())
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


class _Read(threading.local):
    """Where one read of any connection of an event loop goes; before the next one it is dealt with.

    A read that brings nothing leaves its offer here, so that idle connections hold no memory of their own.
    """

    def __init__(self) -> None:
        self.buffer: Buffer = memoryview(fresh(STAGGER + LARGE + (1 << 17)))[STAGGER:]
        self.offer: Landing | None = None


_read = _Read()
