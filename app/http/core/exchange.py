"""A request and its answer: what everything between a socket and an endpoint is made of.

A handler is a coroutine function from a `Request` to a `Reply`, and middleware is a handler around another one. Who
calls a handler runs it as far as it goes by itself, in steps (app/steps.py): most requests never wait, and are answered
in the turn of the event loop in which they came. One that has to wait goes on in a task.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from app.codecs.codec import Body, Encoded, Piece
from app.http.core.headers import Headers
from app.memory.buffers import Buffer
from app.stages import Stages

if TYPE_CHECKING:
    from starlette.exceptions import HTTPException
    from starlette.responses import Response  # the command writes answers without a server

    from app.engine.prepared import Outcome, Prepared

T = TypeVar("T")

Address: TypeAlias = tuple[str, int]
RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

JOINED = 1 << 16
"""So many bytes are rather copied once more than handed over in a call of their own."""


class Disconnected(Exception):
    """The client hung up in the middle of its body."""


class Incoming(Protocol):
    """A request's body on its way. For the event loop that it arrives in."""

    announced: int
    """Bytes it will have, or -1 for a body in chunks."""

    @property
    def received(self) -> int:
        """Bytes that were handed over."""

    def whole(self) -> Body | None:
        """All of it, if it came together with the header; it is handed over with that. Memory that can be written to is
        the request's own."""

    async def read(self) -> bytes:
        """Some more of it; empty at its end. Raises Disconnected, and HTTPException if it breaks HTTP."""

    async def fill(self, buffer: Buffer) -> None:
        """Put the next bytes, of which there must be as many, into `buffer`. Raises Disconnected."""

    async def hung_up(self) -> None:
        """Returns when the client has gone. For a request whose body was read."""


@dataclass(eq=False, repr=False, slots=True)
class Request:
    """A request whose header has come."""

    method: str
    path: str
    """Decoded, and `raw_path` as it came."""
    raw_path: bytes
    query: bytes
    raw_headers: RawHeaders
    """As they came, but for their names, which are in lower case."""
    body: Incoming
    headers: Headers
    """The same as `raw_headers` by name."""
    version: str = "1.1"
    scheme: str = "http"
    client: Address | None = None
    server: Address | None = None
    flaw: "HTTPException | None" = None
    """Why it is to be refused as it came, whatever it asks for: of one that is not HTTP little more is known."""

    # What is found out about it, for metrics and the log.
    id: str = ""
    is_rehearsal: bool = False
    """Whether it is the service's own, of which nothing is counted."""
    key: str = ""
    """The name of its API key, if it has one."""
    refusal: str = ""
    """Why it is refused, in a word of our own."""
    route: str = "none"
    """The template of the path, not the path that was asked for."""
    stages: Stages | None = None
    """What is recorded of it, if it is traced."""
    prepared: "Prepared | None" = None
    outcome: "Outcome | None" = None


def nothing() -> None:
    """There is nothing to do when an answer is sent."""


class Reply:
    """An answer. `sent` is called once, when nearly all of it is sent or the client is gone."""

    __slots__ = ("headers", "length", "pieces", "sent", "status")

    def __init__(self, status: int, headers: RawHeaders, content: Encoded, sent: Callable[[], None] = nothing) -> None:
        """Raises what it takes to make `content`, if that is JOINED or less: it is made before it is an answer."""
        self.status = status
        self.headers = headers
        self.length = content.length
        self.pieces: Iterable[Piece] = (b"".join(content.pieces),) if self.length <= JOINED else content.pieces
        """Its content, of `length` bytes. One piece, if that is JOINED or less."""
        self.sent = sent

    @classmethod
    def of(cls, response: "Response") -> "Reply":
        """What Starlette would send, of a response whose body is there already."""
        body = bytes(response.body)
        return cls(response.status_code, [*response.raw_headers], Encoded(len(body), (body,)))


Handler: TypeAlias = Callable[[Request], Coroutine[Any, Any, Reply]]
"""Answers a request. What it raises is a fault of the service, unless it is among `problems.EXPECTED`."""


_TASK = object()
"""What a handler waits for that is to go on in a task."""


@types.coroutine
def in_task() -> Generator[object, None, None]:
    """Go on in a task. For what comes before a wait that wants one, as `asyncio.timeout` does."""
    if asyncio.current_task() is None:
        yield _TASK


@types.coroutine
def resumed(work: Coroutine[Any, Any, T], waits_for: object) -> Generator[object, Any, T]:
    """What comes of `work`, which was begun without a task and `waits_for` something: for a task."""
    waits_for = None if waits_for is _TASK else waits_for
    while True:
        sent, thrown = None, None
        try:
            sent = yield waits_for
        except BaseException as error:  # that nobody goes on with this, too
            thrown = error
        waits_for = None  # it holds what was thrown
        try:
            waits_for = work.send(sent) if thrown is None else work.throw(thrown)
        except StopIteration as done:
            made: T = done.value
            return made
        finally:
            # This frame is in its traceback, and so are those that hold the request's memory: none of them would be
            # gone before the garbage collector comes.
            thrown = None
