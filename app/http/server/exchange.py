"""One request of a connection, from its header until its answer is sent."""

import asyncio
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from starlette.exceptions import HTTPException

from app.codecs.codec import Body
from app.http.core.exchange import JOINED, Disconnected, Request
from app.http.server.scratch import LARGE
from app.memory.buffers import Buffer

HELD = 1 << 16
"""Bytes of a body that wait to be taken while more of it is read."""

OBJECTS, FIELD = 1 << 10, 176
"""Bytes that a request takes beside what was sent, and that each field of its header does."""

_SCATTERED = 8
"""Pieces of a body that wait as they came. Each has a header of its own, and small chunks come by the thousand."""


class Connection(Protocol):
    """What an exchange needs of its connection."""

    loop: asyncio.AbstractEventLoop

    def want(self) -> None:
        """Somebody waits for what is to be read."""

    def hold(self) -> None:
        """Nobody does."""

    def receive(self) -> None:
        """Take what has come already of a body that goes straight into buffers."""

    def expect(self) -> None:
        """Tell the client to send the body that it asked about."""


@dataclass(eq=False, repr=False, slots=True)
class Exchange:
    """Implements `Incoming`. A body comes by `add`, a large one straight into buffers, by `target` and `filled`."""

    _connection: Connection
    method: str
    path: str
    version: str
    announced: int
    """Bytes that its body has, or -1 if it comes in chunks."""
    keep_alive: bool
    is_last: bool = field(init=False)
    """Whether its header says that nothing comes behind it, or nothing may."""
    left: int = field(init=False)
    """Bytes that have not come yet, of a body whose length is known."""
    received: int = 0
    expects: bool = False
    """Whether the client waits to be told to send the body."""
    is_whole: bool = False
    is_gone: bool = False
    """The rest of it will not come, or nobody is there for an answer."""
    is_started: bool = False
    is_answered: bool = False
    """An answer has begun."""
    is_direct: bool = False
    """What is left comes straight into buffers."""
    flaw: HTTPException | None = None
    """How what came of it breaks HTTP. There will be no more."""
    is_lent: bool = False
    """A thread receives it. Whoever waited may have gone meanwhile."""
    request: Request | None = None
    """Until somebody has it in hands: it refers to this, and what refers to itself is not gone by itself."""
    _header_bytes: int = 0
    """That its header takes, if it waits for its turn."""
    charged: int = 0
    """Bytes that it was charged for while it waited."""
    _pieces: list[bytes] = field(default_factory=list)
    _piece_bytes: int = 0
    _waiter: asyncio.Future[None] | None = None
    _gone: asyncio.Future[None] | None = None
    _target: Buffer | None = None
    _target_bytes: int = 0
    _full: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.is_last = not self.keep_alive
        self.left = max(0, self.announced)

    # For the handler

    def whole(self) -> Body | None:
        if not self.is_whole or self.received:
            return None
        data = self._take()
        # In memory that can be written to an output finds its place; to copy a large body would take longer.
        return data if len(data) > JOINED else memoryview(bytearray(data))

    async def read(self) -> bytes:
        while not self._pieces:
            if self.is_whole:
                return b""
            await self._wait()
        return self._take()

    async def fill(self, buffer: Buffer) -> None:
        filled = 0
        while self._pieces and filled < len(buffer):
            filled += self._put(buffer[filled:])
        if filled < len(buffer) and self.announced > LARGE and not self.is_whole:
            await self._fill_directly(buffer[filled:])
            return
        while filled < len(buffer):
            if not self._pieces:
                if self.is_whole:
                    raise Disconnected
                await self._wait()
            filled += self._put(buffer[filled:])

    async def hung_up(self) -> None:
        if not self.is_gone:
            self._connection.want()  # or nobody would notice
            if self._gone is None:
                self._gone = self._connection.loop.create_future()
            await asyncio.shield(self._gone)

    # For the connection

    def is_full(self) -> bool:
        """Whether as much of the body has come as is to wait here: of a large one that nobody has taken anything of,
        what came with the header, since the rest goes straight into a buffer."""
        return self._piece_bytes > (HELD if self.received or self.announced <= LARGE else 0)

    def waiting_bytes(self) -> int:
        """Bytes of memory that it takes while its turn has not come."""
        request = self.request
        if request is not None and not self._header_bytes:
            fields = request.raw_headers
            sent = sum(map(len, chain((request.raw_path, request.query), *fields)))
            self._header_bytes = OBJECTS + FIELD * len(fields) + sent
        if len(self._pieces) > _SCATTERED:
            self._pieces = [b"".join(self._pieces)]
        return self._header_bytes + self._piece_bytes

    def add(self, data: bytes) -> None:
        """Some more of the body."""
        self.left -= len(data)
        if self.is_answered or self.is_gone:
            return  # nobody wants it any more
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self.is_full():
            self._connection.hold()
        if self._waiter is not None:
            self._wake()

    def end(self) -> None:
        """All of the body has come."""
        self.is_whole = True
        if self._waiter is not None:
            self._wake()

    def answer(self) -> None:
        """An answer begins: nobody wants the rest of the body."""
        self.is_answered = True
        self._pieces = []
        self._piece_bytes = 0

    def part(self) -> None:
        """The client has gone."""
        self.is_gone = True
        self.request = None
        self._wake()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._full is not None and not self._full.done():
            self._full.set_exception(Disconnected())

    def spoil(self, flaw: HTTPException) -> None:
        """What came last makes no sense, so the answer is `flaw`, unless one has begun."""
        self.flaw = flaw
        self.keep_alive = False
        if self.request is not None:
            self.request.flaw = flaw
        self._wake()

    def target(self) -> Buffer | None:
        """Where the next bytes belong; None if nobody waits for them."""
        return None if self._target is None else self._target[self._target_bytes :]

    def filled(self, count: int) -> None:
        """So many bytes are there."""
        self.left -= count
        if self._target is None:
            return
        self._target_bytes += count
        self.received += count
        if self._target_bytes == len(self._target):
            self._target = None
            self._connection.hold()
            if self._full is not None and not self._full.done():
                self._full.set_result(None)

    def _take(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._piece_bytes = 0
        self.received += len(data)
        return data

    def _put(self, buffer: Buffer) -> int:
        data = self._pieces[0]
        taken = min(len(data), len(buffer))
        buffer[:taken] = memoryview(data)[:taken]
        if taken < len(data):
            self._pieces[0] = data[taken:]
        else:
            del self._pieces[0]
        self._piece_bytes -= taken
        self.received += taken
        return taken

    async def _fill_directly(self, buffer: Buffer) -> None:
        if self.is_gone or self.is_lent:  # what is received for an earlier call, which was cancelled, is lost
            raise Disconnected
        self._invite()
        self.is_direct = True
        self._target, self._target_bytes = buffer, 0
        self._connection.want()
        self._connection.receive()
        if self._target is None:
            return
        self._full = self._connection.loop.create_future()
        try:
            await self._full
        finally:
            self._target = self._full = None
            if self.left:
                self._connection.hold()

    async def _wait(self) -> None:
        """Until there is more of the body. Raises Disconnected, HTTPException."""
        self._check()
        self._invite()
        self._waiter = self._connection.loop.create_future()
        self._connection.want()
        await self._waiter
        if not self._pieces:
            self._check()

    def _check(self) -> None:
        """Whether there will be more. Raises Disconnected, HTTPException."""
        if self.is_gone:
            raise Disconnected
        if self.flaw is not None:
            raise HTTPException(self.flaw.status_code, self.flaw.detail)  # it would hold frames that hold it

    def _invite(self) -> None:
        if self.expects:
            self.expects = False
            self._connection.expect()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
