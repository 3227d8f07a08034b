"""How a body arrives: whole, in chunks, late, cut short, or not as announced."""

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from app.codecs.codec import Body, Encoded, Piece
from app.http.core.answers import grouped
from app.http.core.asgi import AsgiBody
from app.http.core.bodies import body_at_hand, read_body
from app.http.core.exchange import JOINED, Reply, Request
from app.http.server.scratch import READ, Scratch
from app.memory.accounts import LimitExceeded, MemoryAccount
from app.memory.buffers import ALIGNMENT, STAGGER
from app.settings import KIB, Settings
from tests.conftest import RunningServer, ours_only, running_server
from tests.http.refusals import refusal_of
from tests.http.wire import CHUNKED, JSON, chunks, connection, header, length
from tests.messages import CELU, as_json, output_of, request

MESSAGE = request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)})
BODY = json.dumps(as_json(MESSAGE)).encode()
MSGPACK_BODY: bytes = msgpack.packb(MESSAGE)
MSGPACK = b"Content-Type: application/msgpack"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("kind", "body"), [(JSON, BODY), (MSGPACK, MSGPACK_BODY)], ids=["json", "msgpack"])
def test_chunks(server: RunningServer, kind: bytes, body: bytes, size: int) -> None:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    with connection(server) as client:
        assert output_of(client.ask(header(kind, CHUNKED), chunks(*pieces))).tolist() == [1, 2, 3]


def test_pieces_that_come_one_after_another(server: RunningServer) -> None:
    with connection(server) as client:
        client.send(header(JSON, length(len(BODY))))
        for start in range(0, len(BODY), 10):
            client.send(BODY[start : start + 10])
        assert output_of(client.receive()).tolist() == [1, 2, 3]


def test_expectation_of_100_continue(server: RunningServer) -> None:
    with connection(server) as client:
        client.send(header(JSON, length(len(BODY)), b"Expect: 100-continue"))
        assert client.receive().status_code == 100
        assert output_of(client.ask(BODY)).tolist() == [1, 2, 3]


@ours_only
def test_who_speaks_http_1_0_is_not_told_to_continue(server: RunningServer) -> None:
    """It would be taken for the answer (RFC 9110, 10.1.1)."""
    asked = header(JSON, length(len(BODY)), b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
    with connection(server) as client:
        client.send(asked)
        time.sleep(0.1)
        assert output_of(client.ask(BODY)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("fields", [(), (length(0),), (CHUNKED,)], ids=["no length", "length 0", "no chunk"])
@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_empty(server: RunningServer, kind: bytes, fields: tuple[bytes, ...]) -> None:
    with connection(server) as client:
        problem = refusal_of(client.ask(header(kind, *fields), chunks() if CHUNKED in fields else b""), 400)
    assert "empty" in problem["detail"]


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_empty_after_a_while(server: RunningServer, kind: bytes) -> None:
    with connection(server) as client:
        client.send(header(kind, CHUNKED))
        time.sleep(0.1)
        assert "empty" in refusal_of(client.ask(chunks()), 400)["detail"]


@ours_only
def test_a_length_that_is_too_small_cuts_the_document(server: RunningServer) -> None:
    """What is left over is no request; it is answered too, and the connection ends."""
    with connection(server) as client:
        refusal_of(client.ask(header(JSON, length(len(BODY) - 5)), BODY), 400)
        leftover = client.receive()
        assert leftover.status_code == 400
        assert leftover.headers["content-type"] == "application/problem+json"
        assert client.is_closed()


@pytest.mark.parametrize(
    "fields",
    [
        (b"Content-Length: x",),
        (b"Content-Length: -1",),
        (b"Content-Length: +5",),
        (b"Content-Length: 1_0",),
        (b"Content-Length: 0x10",),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: 99999999999999999999999999",),
        (length(5), length(6)),
        (length(5), CHUNKED),
    ],
    ids=lambda fields: " & ".join(field.decode() for field in fields),
)
@ours_only
def test_lengths_that_say_nothing_certain(server: RunningServer, fields: tuple[bytes, ...]) -> None:
    with connection(server) as client:
        response = client.ask(header(JSON, *fields), b"12345")
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/problem+json"
        assert client.is_closed()


@pytest.mark.parametrize("chunk", [b"x\r\n", b"-1\r\n", b"5\r\n1234567\r\n", b"fffffffffffffffff\r\n", b"\r\n"])
@ours_only
def test_chunks_that_lie(server: RunningServer, chunk: bytes) -> None:
    with connection(server) as client:
        response = client.ask(header(JSON, CHUNKED), b"2\r\n{}\r\n", chunk)
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/problem+json"
        assert client.is_closed()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that does not wait long for a body."""
    with running_server(tmp_path_factory.mktemp("impatient") / "log", "--body-seconds", "0.2") as running:
        yield running


class TestLate:
    """A body that is never complete."""

    @pytest.mark.parametrize(
        "sent",
        [
            [header(JSON, length(len(BODY)))],
            [header(JSON, length(len(BODY))), BODY[:-1]],
            [header(JSON, CHUNKED)],
            [header(JSON, CHUNKED), b"5\r\n{"],
            [header(JSON, CHUNKED), b"2\r\n{}\r\n"],
            [header(JSON, length(len(BODY)), path=b"/v1/feature-support"), BODY[:-1]],
        ],
        ids=["nothing", "cut short", "no chunk", "half a chunk", "no last chunk", "feature support"],
    )
    def test_is_refused_in_time(self, impatient: RunningServer, sent: list[bytes]) -> None:
        with connection(impatient) as client:
            answer = client.ask(*sent)
            assert client.is_closed()
        assert "body_seconds, 0.2" in refusal_of(answer, 408)["detail"]
        assert answer.headers["connection"] == "close"

    def test_is_refused_although_it_trickles(self, impatient: RunningServer) -> None:
        """The whole body has a deadline, not each piece."""
        with connection(impatient) as client:
            client.send(header(JSON, CHUNKED))
            client.socket.settimeout(0.02)
            for _ in range(1000):
                client.send(b"1\r\n \r\n")
                try:
                    answer = client.socket.recv(100)
                except TimeoutError:
                    continue
                assert answer.startswith(b"HTTP/1.1 408 ")
                return
        raise AssertionError("the server waits for ever")


def test_errors_leave_the_connection_usable(server: RunningServer) -> None:
    """Also where the body was not looked at."""
    wrong = [
        (header(JSON, length(2), path=b"/nowhere"), 404),
        (header(JSON, length(2), method=b"PUT"), 405),
        (header(JSON, length(2), b"Accept: text/html"), 406),
        (header(b"Content-Type: text/html", length(2)), 415),
        (header(JSON, length(2), path=b"/v1/operators/NONE", method=b"GET"), 404),
        (header(JSON, length(2), path=b"/v1/feature-support"), 422),
        (header(JSON, length(2)), 422),
    ]
    with connection(server) as client:
        for head, status in wrong:
            refusal_of(client.ask(head, b"{}"), status)
        refusal_of(client.ask(header(JSON, length(1)), b"["), 400)
        assert output_of(client.ask(header(JSON, length(len(BODY))), BODY)).tolist() == [1, 2, 3]
        assert output_of(client.ask(header(MSGPACK, length(len(MSGPACK_BODY))), MSGPACK_BODY)).tolist() == [1, 2, 3]


def test_many_small_pieces_are_joined_a_few_at_a_time() -> None:
    """To join all of a large answer would hold up the event loop, and take as much memory once more."""
    pieces: list[Piece] = [b"%d" % (number % 10) * 1000 for number in range(1000)]
    groups = list(grouped(pieces))
    sent = [piece for group in groups for piece in group]
    assert b"".join(sent) == b"".join(pieces)
    assert max(map(len, sent)) <= JOINED
    assert len(sent) == len(groups) < 20


def test_small_pieces_of_a_large_answer_are_sent_as_one() -> None:
    large = memoryview(bytes(JOINED + 1))
    pieces: list[Piece] = [b"a", b"b", large, large, b"c", b"d"]
    assert list(grouped(iter(pieces))) == [[b"ab", large], [large, b"cd"]]


def test_what_fails_in_a_small_answer_fails_before_it_is_one() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise LookupError

    Reply(200, [], Encoded(JOINED + 1, pieces()))  # which is made as it is sent
    with pytest.raises(LookupError):
        Reply(200, [], Encoded(JOINED, pieces()))


@given(sizes=st.lists(st.sampled_from([1, 100, JOINED - 1, JOINED, JOINED + 1, 3 * JOINED]), max_size=12))
def test_groups_are_all_of_an_answer_in_its_order(sizes: list[int]) -> None:
    pieces: list[Piece] = [b"%d" % (number % 10) * size for number, size in enumerate(sizes)]
    groups = list(grouped(pieces))
    assert b"".join(piece for group in groups for piece in group) == b"".join(pieces)
    for group in groups:
        assert 1 <= len(group) <= 3
        assert sum(len(piece) > JOINED for piece in group) <= 1


class TestPlacesInPages:
    """What begins a page of the kernel is not to lie a few bytes further on in a page here."""

    def test_of_reads(self) -> None:
        assert address(Scratch().take(READ)) % 4096 == STAGGER

    @pytest.mark.parametrize("data_start", [0, 1, 50, 100])
    def test_of_bodies(self, data_start: int) -> None:
        pieces = [bytes(100_000), bytes(200_000)]

        async def receive() -> Message:
            return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

        async def read() -> Body:
            memory = MemoryAccount(1 << 30).open()
            request = Request("POST", "/", b"/", b"", [], AsgiBody(-1, receive), {})
            return await read_body(request, Settings(), memory, lambda beginning, length: data_start)

        begins = address(asyncio.run(read()))
        assert STAGGER - ALIGNMENT < begins % 4096 <= STAGGER
        assert (begins + data_start) % ALIGNMENT == 0


class TestMemory:
    """What a body holds while it comes, in pieces of 64 KiB."""

    PIECE = 1 << 16
    ROOM = 1 << 12
    """To begin where its tensor data are aligned."""

    def read(
        self, size: int, announced: int = -1, most: int = 1 << 30, limit: int = 1 << 30, idle: int = 0
    ) -> tuple[int, list[int]]:
        """How many bytes came of one of `size`, and what was held before each piece and at last, where `idle` bytes
        were used before."""
        held: list[int] = []

        async def receive() -> Message:
            held.append(memory.held)
            left = size - (len(held) - 1) * self.PIECE
            return {"type": "http.request", "body": b"x" * min(left, self.PIECE), "more_body": left > self.PIECE}

        account = MemoryAccount(limit, 2 * idle)
        account.pool.take(idle)
        with account.open() as memory:
            request = Request("POST", "/", b"/", b"", [], AsgiBody(announced, receive), {})
            try:
                body = asyncio.run(read_body(request, Settings(max_body_bytes=most), memory))
            except LimitExceeded as refusal:
                return len(held) * self.PIECE, [*held, refusal.allowed]
            assert bytes(body) == b"x" * len(body)
            return len(body), [*held, memory.held]

    @pytest.mark.parametrize("limit", ["most", "limit"])
    def test_what_is_announced_to_be_too_large_is_not_read(self, limit: str) -> None:
        assert self.read(1 << 20, (1 << 20) + 1, **{limit: 1 << 20}) == (0, [1 << 20])

    def test_as_much_as_may_come(self) -> None:
        for announced in (-1, 1 << 20):
            assert self.read(1 << 20, announced, most=1 << 20)[0] == 1 << 20

    def test_what_comes_in_chunks_is_refused_as_soon_as_it_is_too_much(self) -> None:
        came, held = self.read(1 << 24, most=1 << 20)
        assert came == (1 << 20) + self.PIECE
        assert held.pop() == 1 << 20
        assert max(held) <= (1 << 20) + self.ROOM

    @pytest.mark.parametrize("announced", [-1, 3 << 23])
    def test_grows_with_what_came(self, announced: int) -> None:
        """In few steps, and what was outgrown is given back."""
        came, held = self.read(3 << 23, announced)
        assert came == 3 << 23
        assert max(held[1:16]) <= (1 << 20) + self.ROOM
        assert max(held[17:128]) <= 8 * ((1 << 20) + self.PIECE) + self.ROOM
        assert len(set(held)) == 4
        assert held[-1] <= (came if announced > 0 else 64 * ((1 << 20) + 2 * self.PIECE)) + self.ROOM

    @pytest.mark.parametrize(
        ("announced", "parts", "at_once"), [(True, 64, True), (True, 60, False), (False, 64, False)]
    )
    def test_what_was_used_before_is_taken_for_all_of_it_where_much_more_is_free(
        self, announced: bool, parts: int, at_once: bool
    ) -> None:
        """So that many who announce what they do not send leave some to others."""
        size = 1 << 23
        idle = size + self.ROOM
        came, held = self.read(size, size if announced else -1, limit=parts * idle, idle=idle)
        assert came == size
        assert (held[1] >= size) == at_once

    def test_leaves_half_of_what_is_free(self) -> None:
        _, held = self.read(3 << 18, limit=1 << 21)
        assert held[1] == held[-1] <= (1 << 20) + self.ROOM
        _, held = self.read(3 << 20, limit=1 << 23)
        assert max(held) <= 5 << 20

    def test_grows_by_half_where_little_is_free(self) -> None:
        size, limit = 3 << 19, 3 << 20
        assert self.read(size, limit=limit)[0] == size

    def test_others_have_their_turn_while_it_is_moved(self) -> None:
        with mock.patch("asyncio.sleep") as slept:
            self.read(3 << 23)
        assert [each.args for each in slept.await_args_list] == [(0,)] * 2

    def test_what_could_never_be_held_is_refused_before_it_is_read(self) -> None:
        incoming: Any = SimpleNamespace(whole=lambda: None, announced=101)
        request = Request("POST", "/", b"/", b"", [], incoming, {})
        with MemoryAccount(100).open() as memory, pytest.raises(LimitExceeded, match="101, where max_memory_bytes"):
            asyncio.run(read_body(request, Settings(max_body_bytes=KIB), memory))

    def test_is_held_where_it_has_come_with_the_header(self) -> None:
        incoming: Any = SimpleNamespace(whole=lambda: b"x" * 100)
        request = Request("POST", "/", b"/", b"", [], incoming, {})
        with MemoryAccount(100).open() as memory:
            assert body_at_hand(request, Settings(max_body_bytes=KIB), memory) == b"x" * 100
            assert memory.held == 100
        with MemoryAccount(99).open() as memory, pytest.raises(LimitExceeded, match="max_memory_bytes"):
            body_at_hand(request, Settings(max_body_bytes=KIB), memory)
        incoming.whole = lambda: bytes(KIB + 1)
        with MemoryAccount(KIB + 1).open() as memory, pytest.raises(LimitExceeded, match="1025, where max_body_bytes"):
            body_at_hand(request, Settings(max_body_bytes=KIB), memory)


def address(buffer: Body) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)
