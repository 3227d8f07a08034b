"""Handlers as ASGI applications: so stock uvicorn, Ray Serve or a test client runs the service's handler."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.core.answers import grouped
from app.http.core.exchange import JOINED, Disconnected, Handler, Request
from app.http.core.headers import fields
from app.memory.buffers import Buffer

_PART = 1 << 20
"""Bytes of an answer that are copied at one time. ASGI wants `bytes`, not memory that is the next request's once the
answer is sent: servers keep them for as long as a client takes, and Ray Serve pickles them."""


class AsgiBody:
    """Implements `Incoming` for a body that comes in ASGI's messages."""

    def __init__(self, announced: int, receive: Receive) -> None:
        self.announced = announced
        self.received = 0
        self._receive = receive
        self._left: Buffer = memoryview(b"")
        self._more = True

    def whole(self) -> None:
        """It comes piece by piece."""

    async def read(self) -> bytes:
        if self._left:
            piece, self._left = bytes(self._left), memoryview(b"")
            return piece
        while self._more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            self._more = message.get("more_body", False)
            if piece := message.get("body", b""):
                self.received += len(piece)
                return bytes(piece)
        return b""

    async def fill(self, buffer: Buffer) -> None:
        filled = 0
        while filled < len(buffer):
            piece = memoryview(await self.read())
            if not piece:
                raise Disconnected
            taken = piece[: len(buffer) - filled]
            buffer[filled : filled + len(taken)] = taken
            filled += len(taken)
            self._left = piece[len(taken) :]

    async def hung_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def request_of(scope: Scope, receive: Receive) -> Request:
    """The request of an ASGI application."""
    raw_headers = [*scope["headers"]]
    headers = fields(raw_headers)
    return Request(
        scope["method"],
        scope["path"],
        scope.get("raw_path") or scope["path"].encode(),
        scope["query_string"],
        raw_headers,
        AsgiBody(int(headers.get(b"content-length", b"-1")), receive),
        headers,
        scope["http_version"],
        scope["scheme"],
        scope.get("client"),
        scope.get("server"),
    )


class Application:
    """An ASGI application that answers as `handler` does. Its lifespan is that of the application `inner`."""

    def __init__(self, handler: Handler, inner: ASGIApp) -> None:
        self._handler = handler
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        reply = await self._handler(request_of(scope, receive))
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
            last = b""
            if reply.length <= JOINED:
                last = b"".join(reply.pieces)
            else:
                for group in grouped(reply.pieces):
                    for piece in group:
                        for begin in range(0, len(piece), _PART):
                            part = bytes(piece[begin : begin + _PART])
                            await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            reply.sent()
