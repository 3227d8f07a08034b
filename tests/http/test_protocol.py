"""Connections, from the other end of a socket."""

import asyncio
import functools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from app.codecs.codec import Encoded
from app.http.core.exchange import Disconnected, Handler, Reply, Request
from app.http.server.connection import connections
from app.http.server.framing import MAX_FIELDS
from app.http.server.limit import ConnectionLimit
from app.memory.accounts import MemoryAccount
from app.settings import Settings
from tests.http.wire import heeding

LIMITS = Settings(max_header_bytes=2048)
HEADER_SECONDS = 0.3
"""What a hasty server grants for a header; any other has a deadline that no test reaches."""
SLOW_SECONDS = 0.2
"""What `/slow` takes, which is longer than any test needs to send what comes behind it."""
LARGE_BYTES = 20_000_000
"""Of an answer: more than the system takes off the server's hands while the client does not read."""
PIECE = 1 << 17
CLIENT_SECONDS = 30.0
"""After which a test fails instead of hanging, in seconds."""


class Application:
    """Answers with what it was asked; `events` tells what it has seen."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it is a handler")

    async def handle(self, request: Request) -> Reply:
        path = request.path
        events = self.events  # a request that outlives its test is no business of the next one
        events.put(path)
        body = b""
        if path == "/fail":
            raise ValueError("no")
        if path == "/slow":
            await asyncio.sleep(SLOW_SECONDS)
        if not path.startswith("/early"):
            try:
                body = await whole(request)
            except (Disconnected, HTTPException):
                events.put("disconnect")
                raise
        if path.endswith("/large"):
            body = b"x" * LARGE_BYTES
        answer = json.dumps(
            {
                "path": path,
                "version": request.version,
                "headers": [(name.decode(), value.decode()) for name, value in request.raw_headers],
                "body": body.decode(),
            }
        ).encode()
        pieces = [answer[start : start + PIECE] for start in range(0, len(answer), PIECE)]
        return Reply(200, [(b"content-length", b"%d" % len(answer))], Encoded(len(answer), pieces))

    def assert_saw(self, *events: str) -> None:
        """Takes what has happened since the last call, waiting for it if need be."""
        assert [self.events.get(timeout=CLIENT_SECONDS) for _ in events] == list(events)
        assert self.events.empty()


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


def responses(received: bytes) -> list[Response]:
    """Everything that came over a connection until it was closed."""
    result = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        assert status.startswith("HTTP/1.1 ")
        length = int(headers.get("content-length", 0))
        assert len(received) >= length
        result.append(Response(int(status.split()[1]), headers, received[:length]))
        received = received[length:]
    return result


class Client:
    """One connection to a server. `be_read` returns when the server has read what it has been sent."""

    def __init__(self, port: int, be_read: Callable[[], None]) -> None:
        self._be_read = be_read
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=CLIENT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0.03) -> None:
        """Sends the pieces so that the server reads them one by one: at least so far apart, in seconds."""
        for index, piece in enumerate(pieces):
            if index:
                time.sleep(pause)
                self._be_read()
            self.socket.sendall(piece)

    def receive_response(self) -> Response:
        """Receives one response with a Content-Length and leaves the connection open."""
        received = self._receive()
        while b"\r\n\r\n" not in received:
            received += self._receive()
        length = int(received.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(received.partition(b"\r\n\r\n")[2]) < length:
            received += self._receive()
        [response] = responses(received)
        return response

    def _receive(self) -> bytes:
        piece = self.socket.recv(65536)
        assert piece, "the server closed the connection"
        return piece

    def receive_rest(self) -> bytes:
        """Receives until the server closes the connection."""
        received = b""
        while piece := self.socket.recv(65536):
            received += piece
        return received

    def receive_responses(self) -> list[Response]:
        return responses(self.receive_rest())


@dataclass
class Running:
    """A server in a thread of its own."""

    port: int
    application: Application
    stop: Callable[[], None]
    """Begins to shut it down."""
    loop: asyncio.AbstractEventLoop

    def connect(self) -> Client:
        return Client(self.port, self.read)

    def read(self) -> None:
        """Waits until the server has read what was sent, if it reads: for some turns of its event loop, of which a new
        connection takes three."""
        for _ in range(6):
            ended = threading.Event()
            self.loop.call_soon_threadsafe(ended.set)
            assert ended.wait(CLIENT_SECONDS)

    def ask(self, *pieces: bytes, pause: float = 0.03) -> list[Response]:
        """What the server answers on a connection before it closes it."""
        with self.connect() as client:
            client.send(*pieces, pause=pause)
            return client.receive_responses()


class Server(uvicorn.Server):
    """Tells its event loop."""

    loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)


@contextmanager
def running(
    settings: Settings,
    loop: str,
    application: Application | None = None,
    connect: Callable[[Handler, Settings, ConnectionLimit, MemoryAccount], Any] = connections,
) -> Iterator[Running]:
    application = application or Application()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application,
            http=connect(heeding(application.handle), settings, ConnectionLimit(), MemoryAccount(1 << 30)),
            loop=loop,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            stop = functools.partial(setattr, server, "should_exit", True)
            yield Running(listener.getsockname()[1], application, stop, server.loop)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def shared_server(loop: str) -> Iterator[Running]:
    with running(LIMITS, loop) as server:
        yield server


@pytest.fixture(scope="module")
def shared_hasty_server(loop: str) -> Iterator[Running]:
    with running(LIMITS.model_copy(update={"header_seconds": HEADER_SECONDS}), loop) as server:
        yield server


@pytest.fixture
def server(shared_server: Running) -> Running:
    shared_server.application.events = queue.SimpleQueue()
    return shared_server


@pytest.fixture
def hasty_server(shared_hasty_server: Running) -> Running:
    shared_hasty_server.application.events = queue.SimpleQueue()
    return shared_hasty_server


def get(path: str = "/", *fields: bytes) -> bytes:
    return b"\r\n".join([b"GET %b HTTP/1.1" % path.encode(), b"Host: a", *fields, b"", b""])


def post(*fields: bytes, path: str = "/", body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST %b HTTP/1.1" % path.encode(), b"Host: a", *fields, b"", body])


CLOSE = b"Connection: close"
CHUNKED = b"Transfer-Encoding: chunked"


def assert_problem(response: Response, status: int, detail: str = "") -> None:
    problem = response.json()
    assert (response.status, problem["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["connection"] == "close"
    assert "date" in response.headers
    assert list(problem) == ["type", "title", "status", "detail", "errors"]
    assert (problem["type"], problem["errors"]) == (problem["type"], [])
    assert problem["type"].startswith("/errors#")
    assert problem["title"]
    assert problem["detail"].endswith(".")
    assert detail in problem["detail"]


class TestHeaderDeadline:
    """On a clock that a busy machine cannot hurry: what must come too late does. What must come in time is asked of a
    connection on a clock of the test's own."""

    def test_answers_408_if_the_first_header_is_not_completed(self, hasty_server: Running) -> None:
        start = time.monotonic()
        [response] = hasty_server.ask(b"GET / HTTP/1.1\r\nHost:")
        assert_problem(response, 408, "0.3 seconds")
        assert time.monotonic() - start > HEADER_SECONDS * 0.9
        hasty_server.application.assert_saw()

    def test_closes_a_connection_on_which_nothing_is_asked_without_an_answer(self, hasty_server: Running) -> None:
        assert hasty_server.ask(b"") == []
        assert hasty_server.ask(b"\r\n\r\n") == []

    def test_does_not_outlive_the_connection(self, hasty_server: Running, caplog: pytest.LogCaptureFixture) -> None:
        with hasty_server.connect() as client:
            client.send(b"GET / HT")
        time.sleep(1.2 * HEADER_SECONDS)
        hasty_server.read()
        assert caplog.records == []


class TestHeaderLimits:
    @pytest.mark.parametrize(
        "header",
        [
            pytest.param(b"X-Long: " + b"x" * 4096, id="value"),
            pytest.param(b"X" * 4096, id="name"),
            pytest.param(b"\r\n".join([b"X: " + b"x" * 400] * 10), id="sum"),
        ],
    )
    @pytest.mark.parametrize("ended", [True, False], ids=["ended", "endless"])
    def test_answers_431_if_it_is_too_large(self, server: Running, header: bytes, ended: bool) -> None:
        [response] = server.ask(b"GET / HTTP/1.1\r\nHost: a\r\n" + header + (b": x\r\n\r\n" if ended else b""))
        assert_problem(response, 431, "2048 bytes")
        server.application.assert_saw()

    @pytest.mark.parametrize("target", ["/" + "x" * 4096, "/?" + "x" * 1500], ids=["path", "query"])
    def test_answers_414_if_the_target_is_too_long(self, server: Running, target: str) -> None:
        """RFC 9112, 3: it must."""
        for more in (b"", b"X: " + b"x" * 600):
            [response] = server.ask(get(target, CLOSE, more) if more else get(target, CLOSE))
            if more or len(target) > 2048:
                assert_problem(response, 414, "its target")
            else:
                assert response.status == 200

    def test_answers_431_if_other_things_are_too_large_behind_a_long_target(self, server: Running) -> None:
        good, bad = server.ask(get("/" + "x" * 1500), b"\r\n" * 2000)
        assert good.status == 200
        assert_problem(bad, 431)

    def test_counts_over_several_reads(self, server: Running) -> None:
        pieces = [b"x" * 300] * 6
        [response] = server.ask(get("/", CLOSE)[:-2] + b"X: ", *pieces, b"\r\n\r\n", pause=0.02)
        assert response.status == 200
        for last in (b"x" * 300, b"x" * 300 + b"\r\n\r\n"):
            [response] = server.ask(get("/", CLOSE)[:-2] + b"X: ", *pieces, last, pause=0.02)
            assert_problem(response, 431)

    def test_do_not_count_earlier_requests(self, server: Running) -> None:
        with server.connect() as client:
            for _ in range(20):
                client.send(get("/", b"X: " + b"x" * 200))
                assert client.receive_response().status == 200

    def test_do_not_count_the_body(self, server: Running) -> None:
        body = b"x" * 50_000
        request = post(b"Content-Length: 50000", CLOSE, body=body)
        [response] = server.ask(request)
        assert response.json()["body"] == body.decode()
        [response] = server.ask(request[:30], request[30:20_000], request[20_000:40_000], request[40_000:])
        assert response.status == 200

    def test_do_not_count_what_came_before_in_the_same_read(self, server: Running) -> None:
        first = post(b"Content-Length: 5000", body=b"x" * 5000)
        answers = server.ask(first + get("/", CLOSE)[:20], get("/", CLOSE)[20:])
        assert [response.status for response in answers] == [200, 200]

    def test_hold_for_a_request_that_follows_in_the_same_read(self, server: Running) -> None:
        first, second = server.ask(get() + get("/2", b"X: " + b"x" * 4096))
        assert first.status == 200
        assert_problem(second, 431)

    def test_answers_431_if_there_are_too_many_fields(self, server: Running) -> None:
        fields = [b"X-%d: x" % index for index in range(MAX_FIELDS - 2)]
        [response] = server.ask(get("/", CLOSE, *fields))
        assert response.status == 200
        [response] = server.ask(get("/", CLOSE, b"X: x", *fields))
        assert_problem(response, 431, f"{MAX_FIELDS + 1} header fields")

    @pytest.mark.parametrize("pieces", [[b"x" * 1500] * 3, [b"x" * 70_000]], ids=["trickled", "at once"])
    def test_hold_for_trailer_fields(self, server: Running, pieces: list[bytes]) -> None:
        request = post(CHUNKED, body=b"4\r\nbody\r\n")
        [response] = server.ask(request, b"0\r\nX: ", *pieces)
        assert_problem(response, 431)
        server.application.assert_saw("/", "disconnect")

    def test_hold_for_empty_lines_and_chunk_extensions(self, server: Running) -> None:
        assert_problem(server.ask(b"\r\n" * 2000)[0], 431)
        good, bad = server.ask(get("/slow"), b"\r\n" * 2000)
        assert good.status == 200
        assert_problem(bad, 431)
        assert_problem(server.ask(post(CHUNKED), b"4;x=" + b"x" * 4096)[0], 431)


MALFORMED = {
    "no HTTP": (b"\x00\x01\x02\r\n\r\n", 400, "method"),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01", 400, "plain"),
    "an unknown method": (b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method"),
    "no version": (b"GET /\r\n\r\n", 505, "0.9"),
    "HTTP/2.0 in HTTP/1": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "2.0"),
    "an HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, ""),
    "an unknown version": (b"GET / HTTP/1.7\r\nHost: a\r\n\r\n", 400, "version"),
    "CONNECT to a path": (b"CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", 501, "proxy"),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 501, "proxy"),
    "a target that is no URL": (b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""),
    "a target that is not ASCII": (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "percent-encode"),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400, "0 Host"),
    "two Hosts": (get("/", b"Host: b"), 400, "2 Host"),
    "a Host that is none": (b"GET / HTTP/1.1\r\nHost: a/b@c\r\n\r\n", 400, "Host is a/b@c"),
    "a Host with a blank": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "Host is a b"),
    "a Host with a port that is none": (b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400, "Host is a:b"),
    "two Hosts in one": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400, "Host is a, b"),
    "a space before the colon": (get("/", b"X : x"), 400, "header"),
    "a folded line": (get("/", b"X: x", b" y"), 400, "whitespace"),
    "a NUL in a value": (get("/", b"X: \0"), 400, "value"),
    "a bare line feed": (get("/", b"X: x\nY: y"), 400, "CR"),
    "a negative Content-Length": (post(b"Content-Length: -4", body=b"body"), 400, "Content-Length"),
    "a Content-Length with a sign": (post(b"Content-Length: +4", body=b"body"), 400, "Content-Length"),
    "a hexadecimal Content-Length": (post(b"Content-Length: 0x4", body=b"body"), 400, "Content-Length"),
    "an empty Content-Length": (post(b"Content-Length:", body=b"body"), 400, "Content-Length"),
    "a list as Content-Length": (post(b"Content-Length: 4, 4", body=b"body"), 400, "Content-Length"),
    "a Content-Length beyond 64 bits": (post(b"Content-Length: 18446744073709551616"), 400, "overflow"),
    "the same Content-Length twice": (post(*[b"Content-Length: 4"] * 2, body=b"body"), 400, "Content-Length"),
    "two Content-Lengths": (post(b"Content-Length: 4", b"Content-Length: 5", body=b"body"), 400, "Content-Length"),
    "Content-Length, then chunked": (post(b"Content-Length: 4", CHUNKED, body=b"0\r\n\r\n"), 400, "Transfer-Encoding"),
    "chunked, then Content-Length": (post(CHUNKED, b"Content-Length: 4", body=b"0\r\n\r\n"), 400, "Transfer-Encoding"),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.0"),
    "chunked twice": (post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"), 400, "Transfer-Encoding"),
    "chunked, but not last": (post(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"), 400, "Transfer-Encoding"),
    "another transfer coding": (post(b"Transfer-Encoding: gzip"), 501, "chunked"),
    "two transfer codings": (post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501, "chunked"),
    "two transfer codings apart": (post(b"Transfer-Encoding: gzip", CHUNKED, body=b"0\r\n\r\n"), 501, "chunked"),
    "identity": (post(b"Transfer-Encoding: identity", body=b"body"), 501, "chunked"),
    "almost chunked": (post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), 501, "chunked"),
}


class TestMalformed:
    @pytest.mark.parametrize(("request_", "status", "detail"), MALFORMED.values(), ids=list(MALFORMED))
    def test_is_answered_with_a_problem_and_never_reaches_the_application(
        self, server: Running, request_: bytes, status: int, detail: str
    ) -> None:
        [response] = server.ask(request_ + get("/smuggled"))
        assert_problem(response, status, detail)
        server.application.assert_saw()

    @pytest.mark.parametrize(
        "body",
        [
            b"x\r\nbody\r\n0\r\n\r\n",
            b"-4\r\nbody\r\n0\r\n\r\n",
            b"0x4\r\nbody\r\n0\r\n\r\n",
            b"4 \r\nbody\r\n0\r\n\r\n",
            b"\r\nbody\r\n0\r\n\r\n",
            b"4\nbody\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\nbody\r\n0\r\n\r\n",
            b"4\r\nbodyXX0\r\n\r\n",
            b"4\r\nbody\r\n0\r\nContent-Length: 4\r\n\r\n",
            b"4\r\nbody\r\n0\r\n: x\r\n\r\n",
        ],
    )
    @pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
    def test_chunks_are_answered_with_a_problem_and_end_the_request(
        self, server: Running, body: bytes, at_once: bool
    ) -> None:
        pieces = [post(CHUNKED), body + get("/smuggled")]
        [response] = server.ask(*([b"".join(pieces)] if at_once else pieces))
        assert_problem(response, 400)
        server.application.assert_saw(*([] if at_once else ["/", "disconnect"]))

    def test_chunks_end_the_request_at_once(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("app.http.server.connection.LINGER_SECONDS", 2 * CLIENT_SECONDS)
        with server.connect() as client:
            client.send(post(CHUNKED), b"x\r\n")
            server.application.assert_saw("/", "disconnect")

    def test_chunks_cut_an_answer_short_that_has_begun(self, server: Running) -> None:
        with server.connect() as client:
            client.send(post(CHUNKED, path="/early/large"), b"x\r\n")
            received = client.receive_rest()
        assert received.count(b"HTTP/1.1") == 1
        assert len(received) < LARGE_BYTES
        server.application.assert_saw("/early/large")

    def test_chunks_after_the_answer_close_the_connection(self, server: Running) -> None:
        with server.connect() as client:
            client.send(post(CHUNKED, path="/early"))
            assert client.receive_response().status == 200
            client.send(b"x\r\n")
            assert client.receive_rest() == b""

    def test_request_in_a_pipeline_is_answered_in_its_turn(self, server: Running) -> None:
        with server.connect() as client:
            client.send(get("/slow") + get("/2") + b"?", get("/smuggled"))
            *good, bad = client.receive_responses()
        assert [response.json()["path"] for response in good] == ["/slow", "/2"]
        assert_problem(bad, 400)
        server.application.assert_saw("/slow", "/2")

    def test_body_in_a_pipeline_is_answered_in_its_turn(self, server: Running) -> None:
        good, bad = server.ask(get("/slow") + post(CHUNKED, body=b"x\r\n", path="/2"))
        assert good.json()["path"] == "/slow"
        assert_problem(bad, 400)
        server.application.assert_saw("/slow")

    @pytest.mark.parametrize(
        "last", [get("/large", CLOSE), b"GET /large HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"], ids=["1.1", "1.0"]
    )
    def test_request_after_the_last_is_not_answered(self, server: Running, last: bytes) -> None:
        [response] = server.ask(last + b"?")
        assert response.status == 200


class TestLingering:
    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            pytest.param(b"GET / HTTP/1.1\r\nX: ", 431, id="header"),
            # uvicorn has stopped reading when the fault comes, since /slow does not receive the body.
            pytest.param(post(CHUNKED, path="/slow", body=b"11170\r\n" + b"x" * 0x11170 + b"\r\n?"), 400, id="body"),
        ],
    )
    def test_lets_a_client_that_goes_on_sending_read_the_answer(
        self, server: Running, request_: bytes, status: int
    ) -> None:
        with server.connect() as client:
            client.send(request_)
            for _ in range(200):
                client.send(b"x" * 65536)
            [response] = client.receive_responses()
        assert_problem(response, status)

    def test_lets_a_client_read_the_last_answer_that_came_before_its_body_had(self, server: Running) -> None:
        with server.connect() as client:
            client.send(post(b"Content-Length: %d" % (200 * 65536), CLOSE, path="/early"))
            for _ in range(200):
                client.send(b"x" * 65536)
            assert client.receive_response().status == 200
            assert client.receive_rest() == b""

    def test_has_an_end(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("app.http.server.connection.LINGER_SECONDS", 0.2)
        with server.connect() as client, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            client.send(*[b"x" * 4096] * 2000, pause=0.01)


class TestAsInUvicorn:
    def test_keep_alive(self, server: Running) -> None:
        with server.connect() as client:
            for path in ("/1", "/2", "/3"):
                client.send(post(b"Content-Length: 4", path=path), b"body")
                assert client.receive_response().json()["path"] == path

    def test_pipelining(self, server: Running) -> None:
        requests = [get("/slow"), post(b"Content-Length: 4", path="/2", body=b"body"), get("/3", CLOSE)]
        answers = [response.json() for response in server.ask(b"".join(requests))]
        assert [(answer["path"], answer["body"]) for answer in answers] == [("/slow", ""), ("/2", "body"), ("/3", "")]

    def test_http_1_0(self, server: Running) -> None:
        [response] = server.ask(b"POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody")
        assert response.headers["connection"] == "close"
        assert (response.json()["version"], response.json()["body"]) == ("1.0", "body")

    def test_expect_100_continue(self, server: Running) -> None:
        with server.connect() as client:
            client.send(post(b"Content-Length: 4", b"Expect: 100-continue", CLOSE))
            assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"body")
            [response] = client.receive_responses()
        assert response.json()["body"] == "body"

    @pytest.mark.parametrize("body", [b"", b"bo", b"2\r\nbo\r\n"])
    def test_hang_up(self, server: Running, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
        with server.connect() as client:
            client.send(post(CHUNKED if b"\r\n" in body else b"Content-Length: 4"), body)
            server.application.assert_saw("/")
        server.application.assert_saw("disconnect")
        server.ask(get("/", CLOSE))
        assert caplog.records == []

    def test_hang_up_within_a_header(self, server: Running) -> None:
        with server.connect() as client:
            client.send(b"GET / HT")
            client.socket.shutdown(socket.SHUT_WR)
            assert client.receive_rest() == b""

    @pytest.mark.parametrize(
        ("target", "path"),
        [
            (b"*", "*"),
            (b"http://b/c?d", "/c"),
            (b"http://b", "/"),
            (b"http://b?d", "/"),
            (b"/%C3%A4?b", "/ä"),
            (b"//", "//"),
        ],
    )
    def test_targets(self, server: Running, target: bytes, path: str) -> None:
        [response] = server.ask(b"OPTIONS %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % target)
        assert response.json()["path"] == path

    def test_chunks(self, server: Running) -> None:
        body = b"2;x=y\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"
        [response] = server.ask(post(b"Transfer-Encoding:\tChunked ", CLOSE, body=body))
        assert response.json()["body"] == "body"


class TestUpgrade:
    OFFER = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAA")

    @pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
    @pytest.mark.parametrize(
        ("framing", "body"),
        [(b"Content-Length: 4", b"body"), (CHUNKED, b"4\r\nbody\r\n0\r\n\r\n"), (b"Content-Length: 0", b"")],
    )
    def test_is_ignored(self, server: Running, framing: bytes, body: bytes, at_once: bool) -> None:
        pieces = [post(*self.OFFER, framing), body + get("/2", CLOSE)]
        first, second = server.ask(*([b"".join(pieces)] if at_once else pieces))
        assert first.json()["body"] == ("body" if body else "")
        assert "upgrade" not in dict(first.json()["headers"])
        assert dict(first.json()["headers"])["http2-settings"] == "AAEAAEAA"
        assert second.json()["path"] == "/2"

    def test_does_not_make_a_request_of_a_body(self, server: Running) -> None:
        body = get("/smuggled")
        [response] = server.ask(post(*self.OFFER, CLOSE, b"Content-Length: %d" % len(body)), body)
        assert response.json()["body"] == body.decode()
        server.application.assert_saw("/")

    def test_with_which_the_connection_ends(self, server: Running, caplog: pytest.LogCaptureFixture) -> None:
        [response] = server.ask(post(*self.OFFER, CLOSE, b"Content-Length: 4"), b"body?")
        assert response.json()["body"] == "body"
        assert caplog.records == []  # what comes after the last request is ignored, not refused

    def test_to_websocket_is_ignored(self, server: Running) -> None:
        [response] = server.ask(get("/", b"Connection: upgrade, close", b"Upgrade: websocket"))
        assert response.status == 200

    def test_many_in_one_read(self, server: Running) -> None:
        answers = server.ask(get("/", *self.OFFER) * 500 + get("/", CLOSE))
        assert [response.status for response in answers] == [200] * 501

    def test_does_not_get_around_the_checks(self, server: Running) -> None:
        for field, status in [(b"Transfer-Encoding: gzip", 501), (b"Content-Length: x", 400), (b"Host: b", 400)]:
            [response] = server.ask(post(*self.OFFER, field))
            assert_problem(response, status)
        server.application.assert_saw()


def test_trailer_fields_do_not_reach_the_application(server: Running) -> None:
    # /slow looks at its header fields when the trailer fields have arrived.
    [response] = server.ask(post(CHUNKED, CLOSE, path="/slow", body=b"0\r\nAuthorization: x\r\nX: x\r\n\r\n"))
    assert [name for name, _ in response.json()["headers"]] == ["host", "transfer-encoding", "connection"]


def test_answers_500_if_the_handler_fails(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    [response] = server.ask(get("/fail"))
    assert_problem(response, 500)
    assert caplog.records


class Prompt(Application):
    """Answers `/prompt` without waiting for anything."""

    async def handle(self, request: Request) -> Reply:
        if not request.path.startswith("/prompt"):
            return await super().handle(request)
        self.events.put("prompt" if asyncio.current_task() is None else "task")
        if request.path == "/prompt/fails":
            raise ZeroDivisionError
        body = request.body.whole()
        answer = (
            b"x" * LARGE_BYTES if request.path == "/prompt/large" else await whole(request) if body is None else body
        )
        content = Encoded(len(answer), [answer])
        return Reply(200, [(b"content-length", b"%d" % content.length)], content, lambda: self.events.put("sent"))


async def whole(request: Request) -> bytes:
    body = b""
    while piece := await request.body.read():
        body += piece
    return body


class TestAtOnce:
    @pytest.fixture
    def prompt(self, loop: str) -> Iterator[Running]:
        with running(LIMITS, loop, application=Prompt()) as server:
            yield server

    def test_a_request_that_came_whole(self, prompt: Running) -> None:
        [response] = prompt.ask(post(b"Content-Length: 4", CLOSE, path="/prompt", body=b"body"))
        assert (response.status, response.body) == (200, b"body")
        assert list(response.headers) == ["date", "server", "content-length", "connection"]
        prompt.application.assert_saw("prompt", "sent")

    def test_one_that_is_not_answered_so(self, prompt: Running) -> None:
        [response] = prompt.ask(post(b"Content-Length: 4", CLOSE, body=b"body"))
        assert response.json()["body"] == "body"
        prompt.application.assert_saw("/")

    def test_one_that_came_in_pieces(self, prompt: Running) -> None:
        [response] = prompt.ask(post(b"Content-Length: 4", CLOSE, path="/prompt"), b"bo", b"dy")
        assert response.body == b"body"
        prompt.application.assert_saw("prompt", "sent")

    def test_one_that_is_spoilt(self, prompt: Running) -> None:
        [response] = prompt.ask(post(CHUNKED, path="/prompt", body=b"x\r\n"))
        assert_problem(response, 400)
        prompt.application.assert_saw()

    def test_a_fault(self, prompt: Running, caplog: pytest.LogCaptureFixture) -> None:
        [response] = prompt.ask(get("/prompt/fails"))
        assert_problem(response, 500)
        prompt.application.assert_saw("prompt")
        assert "ZeroDivisionError" in caplog.text

    @pytest.mark.parametrize("around", [(b"\r\n", b""), (b"", b"\r\n")], ids=["before", "after"])
    def test_a_header_with_an_empty_line(self, prompt: Running, around: tuple[bytes, bytes]) -> None:
        with prompt.connect() as client:
            for body in (b"\r\n1.", b"\r\n2.", b"\r\n3."):
                before, after = around
                client.send(before + post(b"Content-Length: 4", path="/prompt", body=body) + after)
                assert client.receive_response().body == body

    def test_a_client_that_takes_its_time(self, prompt: Running) -> None:
        """An answer counts as sent when the client has read it, and meanwhile there is no other one."""
        with prompt.connect() as client:
            client.send(get("/prompt/large"), get("/prompt", CLOSE))
            prompt.application.assert_saw("prompt")
            large, other = responses(client.receive_rest())
            prompt.application.assert_saw("sent", "prompt", "sent")
        assert (len(large.body), other.body) == (LARGE_BYTES, b"")

    def test_a_client_that_goes(self, prompt: Running) -> None:
        with prompt.connect() as client:
            client.send(get("/prompt/large"))
            prompt.application.assert_saw("prompt")
        prompt.application.assert_saw("sent")

    def test_chunks_are_no_part_of_a_header(self, prompt: Running) -> None:
        with prompt.connect() as client:
            for body in (b"one.", b"two.", b"more"):
                client.send(post(CHUNKED, path="/prompt", body=b"4\r\n%b\r\n0\r\n\r\n" % body))
                assert client.receive_response().body == body

    def test_in_a_pipeline(self, prompt: Running) -> None:
        whole = post(b"Content-Length: 4", path="/prompt", body=b"body")
        answers = prompt.ask(whole + whole + get("/slow") + whole + get("/last", CLOSE))
        assert [response.status for response in answers] == [200] * 5
        assert [answer.body for answer in answers[:2] + answers[3:4]] == [b"body"] * 3
        assert [answer.json()["path"] for answer in answers[2::2]] == ["/slow", "/last"]
