"""Large requests like one before, which are received into one buffer: everything must be as with the first one."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from app.buffers import ALIGNMENT, STAGGER, Buffer
from app.codecs.codec import Encoded
from app.http import transfer
from app.http.at_once import Reply, Request
from app.http.landing import BEGUN
from app.http.protocol import StrictHttpProtocol, protocol_class
from app.http.transfer import LARGE, SAME_AGAIN
from app.limits import MemoryAccount
from tests.http.test_protocol import LIMITS, Application, Client, Running, responses, running

SIZE = LARGE + 1_000_003
DATA_START = 77
IDLE = 64 << 20


class Repeating(Application):
    """Wants every request again, and answers with the body's bytes that are not 0, at once if it `may`."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryAccount(8 << 20, IDLE)
        self.may = True
        self.delay = 0.0
        """Of the wish after the answer, in seconds; without it the wish comes before."""
        self.least = LARGE
        self.answered: list[Request] = []
        self.addresses: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.events.put("ordinary")
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.events.put("disconnect")
                return
            body += message["body"]
            more = message["more_body"]
        same_again = scope.get("extensions", {}).get(SAME_AGAIN, lambda memory, data_start: None)
        delay = self.delay
        if not delay:
            same_again(self.memory, DATA_START)
        answer = sum_of(body)
        await send({"type": "http.response.start", "status": 200, "headers": [length_of(answer)]})
        await send({"type": "http.response.body", "body": answer, "more_body": False})
        if delay:
            await asyncio.sleep(delay)
            same_again(self.memory, DATA_START)

    def at_once(self, request: Request) -> Reply | None:
        if not self.may or len(request.body) <= self.least:
            return None
        self.events.put("at once")
        self.answered.append(request._replace(body=b""))
        self.addresses.append(np.frombuffer(request.body, np.uint8).ctypes.data)
        answer = sum_of(request.body)
        return Reply([length_of(answer)], Encoded(len(answer), [answer]), lambda: None)

    def assert_nothing_held(self) -> None:
        assert self.memory.used == 0
        assert 0 < self.memory.pool.idle_bytes <= 2 * SIZE


def sum_of(body: bytes | Buffer) -> bytes:
    return b"%d" % np.frombuffer(body, np.uint8).sum(dtype=np.int64)


def length_of(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


def post(seed: int, *fields: bytes, size: int = SIZE) -> tuple[bytes, bytes]:
    """A request, and the answer."""
    body = np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
    head = b"\r\n".join([b"POST /p HTTP/1.1", b"Host: test", b"Content-Length: %d" % size, *fields, b"", b""])
    return head + body, sum_of(body)


@pytest.fixture(autouse=True)
def _nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not caplog.records


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(protocol_class(LIMITS), request.param, application=Repeating()) as started:
        yield started


@pytest.fixture
def application(server: Running) -> Repeating:
    assert isinstance(server.application, Repeating)
    return server.application


@pytest.fixture
def client(server: Running, application: Repeating) -> Iterator[Client]:
    """One whose first request was answered the ordinary way."""
    with server.connect() as connected:
        assert answers(connected, post(0))
        application.assert_saw("ordinary")
        yield connected


def answers(client: Client, request: tuple[bytes, bytes], *pieces: bytes) -> bool:
    """Whether `request`, sent in `pieces` if any are given, is answered right."""
    client.send(*pieces or [request[0]])
    return client.receive_response().body == request[1]


def test_the_next_ones_are_answered_at_once(client: Client, application: Repeating) -> None:
    for seed in (1, 2, 3):
        assert answers(client, post(seed))
        application.assert_saw("at once")
    assert all((address + DATA_START) % ALIGNMENT == 0 for address in application.addresses)
    assert application.memory.used == 0


def test_they_lie_where_copies_are_fast(client: Client, application: Repeating) -> None:
    """A request that begins a page of the kernel is not a few bytes further on in its page here."""
    request = post(1)
    assert answers(client, request)
    begins = application.addresses[0] - (len(request[0]) - SIZE)
    assert STAGGER - ALIGNMENT < begins % 4096 <= STAGGER


@pytest.mark.parametrize("first", [BEGUN, LARGE, SIZE])
def test_in_pieces(client: Client, application: Repeating, first: int) -> None:
    request = post(1)
    whole = request[0]
    assert answers(client, request, whole[:first], whole[first:-5], whole[-5:-1], whole[-1:])
    application.assert_saw("at once")


@pytest.mark.parametrize("first", [1, 30, "header", BEGUN - 1])
def test_one_that_begins_slowly_goes_the_ordinary_way(client: Client, application: Repeating, first: int | str) -> None:
    request = post(1)
    cut = len(request[0]) - SIZE if isinstance(first, str) else first
    assert answers(client, request, request[0][:cut], request[0][cut:])
    application.assert_saw("ordinary")
    assert application.memory.used == 0


@pytest.mark.parametrize(
    "other",
    [post(1, b"X-Other: 1"), post(1, size=SIZE + 1), post(1, size=SIZE - 1), post(1, size=5), post(1, size=LARGE)],
    ids=["field", "longer", "shorter", "tiny", "small"],
)
def test_another_header(
    client: Client, application: Repeating, other: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LANDING_SECONDS", 1000)
    assert answers(client, other)
    application.assert_saw("ordinary")
    assert answers(client, post(2))
    assert application.memory.used == 0


def test_what_looks_like_it_in_a_body(client: Client, application: Repeating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LANDING_SECONDS", 1000)
    body = post(1)[0][:100_000]
    head = post(2, size=len(body))[0].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert answers(client, (b"", sum_of(body)), head, body)
    application.assert_saw("ordinary")


def test_a_header_that_others_came_before(client: Client, application: Repeating) -> None:
    """Both are answered each time."""
    other = post(1, b"X-Other: 1")
    small = post(2, size=3)
    for _ in range(3):
        client.send(small[0] + other[0])
        received = b""
        while received.count(b"HTTP/1.1") < 2 or not received.endswith(other[1]):
            received += client.socket.recv(65536)
        assert [response.body for response in responses(received)] == [small[1], other[1]]


def test_a_header_that_came_in_two_reads(client: Client, application: Repeating) -> None:
    """It is not known; that of the request before is not taken for it."""
    other = post(1, b"X-Other: 1")
    assert answers(client, other, other[0][:10], other[0][10:])
    assert answers(client, post(2))
    assert not any(b"x-other" in request.headers for request in application.answered)


def test_a_wish_that_comes_late(client: Client, application: Repeating) -> None:
    """It is not taken for the next request's, which has come meanwhile."""
    application.delay = 0.1
    assert answers(client, post(1, b"X-Other: 1"))
    third = post(2, b"X-Third: 1")
    client.send(third[0][:-1])
    time.sleep(0.2)
    application.delay = 0.5
    assert answers(client, third, third[0][-1:])
    assert answers(client, third)
    application.assert_saw("ordinary", "ordinary", "ordinary")


def test_between_small_ones(client: Client, application: Repeating) -> None:
    """Both kinds are known."""
    application.least = 0
    for seed in range(3):
        assert answers(client, post(seed, size=100))
        assert answers(client, post(seed))
    application.assert_saw(*["at once"] * 6)


def test_in_a_pipeline(client: Client, application: Repeating) -> None:
    requests = [post(1), post(2), post(3, size=10), post(4, b"Connection: close")]
    client.send(b"".join(request for request, _ in requests))
    assert [response.body for response in client.receive_responses()] == [answer for _, answer in requests]
    application.assert_saw("at once", "at once", "ordinary", "ordinary")


def test_one_that_stalls_gives_its_memory_back(
    client: Client, application: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LANDING_SECONDS", 0.2)
    request = post(1)
    client.send(request[0][:-1])
    wait_for(lambda: application.memory.used >= SIZE)
    application.assert_saw("ordinary")
    application.assert_nothing_held()
    assert answers(client, request, request[0][-1:])


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "end"])
def test_a_client_that_goes(client: Client, application: Repeating, reset: bool) -> None:
    client.send(post(1)[0][:-1])
    wait_for(lambda: application.memory.used >= SIZE)
    if reset:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    application.assert_saw("ordinary", "disconnect")
    application.assert_nothing_held()


def test_memory_that_others_hold(client: Client, application: Repeating) -> None:
    application.memory.move(application.memory.limit)
    assert answers(client, post(1))
    application.assert_saw("ordinary")
    application.memory.move(-application.memory.limit)
    assert answers(client, post(2))
    application.assert_saw("at once")


def test_one_that_is_not_answered_at_once(client: Client, application: Repeating) -> None:
    """It was copied in vain; this connection does not try again."""
    application.may = False
    assert answers(client, post(1))
    application.may = True
    assert answers(client, post(2))
    application.assert_saw("ordinary", "ordinary")


def test_idle_connections_hold_no_memory(server: Running, application: Repeating) -> None:
    clients = [server.connect() for _ in range(5)]
    for client in clients:
        for seed in (1, 2):
            assert answers(client, post(seed))
    # All had a buffer, and only the last one's, if it looked whether there was more to read, is not back.
    held = len(application.memory.pool._loans)
    for client in clients:
        client.socket.close()
    assert held <= 1


def test_a_server_that_stops_answers_what_has_begun() -> None:
    application = Repeating()
    with running(protocol_class(LIMITS), "uvloop", application=application) as server:
        client = server.connect()
        assert answers(client, post(0))
        request = post(1)
        client.send(request[0][:-1])
        wait_for(lambda: application.memory.used >= SIZE)
        server.stop()
        application.assert_saw("ordinary", "ordinary")
        assert answers(client, request, request[0][-1:])
        client.socket.close()


def test_the_connection_is_not_idle_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(StrictHttpProtocol):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.timeout_keep_alive = 1

    monkeypatch.setattr(transfer, "LANDING_SECONDS", 30)
    with running(Impatient, "uvloop", application=Repeating()) as server, server.connect() as client:
        for seed in (1, 2):
            request = post(seed)
            assert answers(client, request, request[0][:-1], request[0][-1:])
        client.send(request[0][:-1])
        time.sleep(1.5)
        assert answers(client, request, request[0][-1:])


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 3
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
