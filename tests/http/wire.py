"""HTTP by hand, for what no HTTP client would send."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import parse_headers

import httpx

from app.http.core.exchange import Handler, Reply, Request
from app.http.core.problems import refusing
from tests.conftest import RunningServer

JSON = b"Content-Type: application/json"
CHUNKED = b"Transfer-Encoding: chunked"
SECONDS = 30.0
"""After which a test fails instead of hanging."""


def header(*fields: bytes, method: bytes = b"POST", path: bytes = b"/v1/dispatch") -> bytes:
    return b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), b"Host: test", *fields, b"", b""])


def length(count: int) -> bytes:
    return b"Content-Length: %d" % count


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


class Connection:
    """One connection to a server."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.received = connected.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        self.socket.sendall(b"".join(pieces))

    def receive(self) -> httpx.Response:
        """The next answer."""
        status_line = self.received.readline()
        assert status_line.startswith(b"HTTP/1.1 "), status_line
        headers = parse_headers(self.received)
        body = self.received.read(int(headers.get("content-length", 0)))
        return httpx.Response(int(status_line.split()[1]), headers=headers.items(), content=body)

    def ask(self, *pieces: bytes) -> httpx.Response:
        """The answer to a request made of `pieces`."""
        self.send(*pieces)
        return self.receive()

    def is_closed(self) -> bool:
        """Whether the server closes the connection without another byte."""
        return self.received.read(1) == b""

    def hang_up(self) -> None:
        self.received.close()
        self.socket.close()


@contextmanager
def connection(server: RunningServer) -> Iterator[Connection]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = Connection(connected)
        try:
            yield opened
        finally:
            opened.hang_up()


def heeding(handler: Handler) -> Handler:
    """Middleware that refuses requests with a flaw, as the service's own does that counts them."""

    async def handle(request: Request) -> Reply:
        if request.flaw:
            raise request.flaw
        return await handler(request)

    return refusing(handle)
