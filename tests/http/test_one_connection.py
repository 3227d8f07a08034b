"""One connection without a network: what it writes and when, on a clock of the test's own."""

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn.server import ServerState

from app.codecs.codec import Encoded
from app.http.core.exchange import JOINED, Reply, Request
from app.http.server import connection
from app.http.server.connection import (
    CHUNK,
    CRUMBS,
    FEW,
    IDLE_SECONDS,
    LINGER_SECONDS,
    LOCAL_SEND_BUFFER,
    PIPELINED,
    SHORT,
    Connection,
)
from app.http.server.exchange import FIELD, HELD, OBJECTS
from app.http.server.limit import RESERVE, RESERVE_SECONDS, ConnectionLimit
from app.http.server.scratch import HEADER, LARGE, READ, Scratch
from app.http.server.sender import AT_ONCE
from app.http.server.transfers import LENT, NO_THREADS
from app.http.server.turn import Turn
from app.http.server.watches import HALF_CLOSED_SECONDS
from app.memory.accounts import MemoryAccount
from app.settings import Settings
from app.steps import in_step
from tests.http.clock import Timers
from tests.http.wire import heeding

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"\r\nconnection: close\r\n"
LOCAL = ("127.0.0.1", 1234)


class Clock(Timers):
    """The event loop, but for time, which passes when the test says so."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self._loop = asyncio.get_running_loop()
        self._soon: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def end_turn(self) -> bool:
        """Call what is to be called soon, if anything is."""
        soon, self._soon = self._soon, []
        for each in soon:
            each()
        return bool(soon)


class Transport(asyncio.Transport):
    """Notes what is done to it."""

    def __init__(self, encrypts: bool, **extra: Any) -> None:
        self.encrypts = encrypts
        self.extra = extra | ({"sslcontext": object()} if encrypts else {})
        self.written = b""
        self.events: list[str] = []
        self.is_read = True
        self.is_closed = False
        self.is_slow = False
        self.protocol: Connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.extra.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Whoever has it calls no protocol."""

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if self.is_closed:
            return  # it is lost
        self.written += bytes(data)
        if self.is_slow and len(data) >= LENT:
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return not self.encrypts

    def write_eof(self) -> None:
        self.events.append("eof")

    def close(self) -> None:
        self.is_closed = True
        self.events.append("close")

    def abort(self) -> None:
        self.is_closed = True
        self.events.append("abort")

    def take(self) -> bytes:
        """What was written since the last call."""
        written, self.written = self.written, b""
        return written


class One:
    """A connection. It is asked for `/wait/...`, answered when `answers` says so, and for all else, answered at once.

    An answer is the request's path, or for `/large` more than is sent with others, and for `/huge` more than is sent
    in one turn. `/steps` has three. What ends in `/body` reads its body, in `/fill` has it put into a buffer, in
    `/part` LARGE bytes of it.
    """

    def __init__(
        self,
        limit: ConnectionLimit | None = None,
        encrypts: bool = False,
        transfers: Any = NO_THREADS,
        client: Any = LOCAL,
        settings: Settings | None = None,
        descriptor: int = -1,
    ) -> None:
        """`descriptor` is that of a socket in which the rest of a large body may be."""
        self.clock = Clock()
        self.state = ServerState()
        self.state.default_headers = [(b"server", b"test")]
        self.requests: list[Request] = []
        self.sent: list[str] = []
        self.received = b""
        self.answers: dict[str, asyncio.Future[None]] = {}
        loop: Any = self.clock
        self.options: list[tuple[Any, ...]] = []
        lent = SimpleNamespace(
            family=socket.AF_INET,
            setsockopt=lambda *given: self.options.append(given),
            getsockopt=lambda *_: b"\1",  # the client is there
            fileno=lambda: descriptor,
        )
        self.transport = Transport(encrypts, peername=client, sockname=("127.0.0.1", 80), socket=lent)
        self.settings, self.limit = settings or Settings(), limit or ConnectionLimit()
        self.ends = Turn()
        self.memory = MemoryAccount(self.settings.max_memory_bytes)
        work = heeding(self._handle)
        self.connection = Connection(
            work, self.settings, self.limit, self.state, loop, self.ends, Scratch(), self.memory, transfers
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    async def _handle(self, request: Request) -> Reply:
        self.requests.append(request)
        path, body = request.path, request.body
        if path.endswith("/body"):
            while piece := await body.read():
                self.received += piece
        if path.endswith(("/fill", "/part")):
            buffer = memoryview(bytearray(body.announced if path.endswith("/fill") else LARGE))
            await body.fill(buffer)
            self.received += buffer
        if path.endswith("/fill"):
            assert await body.read() == b""
        if path.startswith("/wait"):
            self.answers[path] = asyncio.get_running_loop().create_future()
            await self.answers[path]
        if path == "/steps":
            await in_step()
            await in_step()
        if path == "/fault":
            raise KeyError
        if path == "/ended":
            ended = asyncio.get_running_loop().create_future()
            ended.cancel()
            await ended
        answer = b"x" * {"/large": LENT, "/huge": 2 * AT_ONCE}.get(path, 0) or path.encode()
        headers = [(b"content-length", b"%d" % len(answer))] + ([(b"connection", b"close")] if path == "/last" else [])
        return Reply(200, headers, Encoded(len(answer), [answer]), lambda: self.sent.append(path))

    def receive(self, *pieces: bytes) -> None:
        """Each of them in a read of its own, in a turn of the event loop of its own."""
        for piece in pieces:
            rest = piece
            while rest:
                taken = self.read(rest)
                self.clock.end_turn()
                rest = rest[taken:]

    def read(self, data: bytes) -> int:
        """How many bytes of `data` one read takes."""
        buffer = self.connection.get_buffer(-1)
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        self.connection.buffer_updated(taken)
        return taken

    async def turn(self) -> bytes:
        """What is written until all is done that need not wait."""
        for _ in range(4):
            await asyncio.sleep(0)
            while self.clock.end_turn():
                pass
        return self.transport.take()

    async def answer(self, path: str) -> bytes:
        self.answers[path].set_result(None)
        return await self.turn()

    @property
    def paths(self) -> list[str]:
        """What the handler was asked for."""
        return [request.path for request in self.requests]


def get(path: str, *fields: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([b"%b %b HTTP/%b" % (method, path.encode(), version), b"Host: a", *fields, b"", b""])


def post(path: str, length: int, *fields: bytes, version: bytes = b"1.1") -> bytes:
    return get(path, b"Content-Length: %d" % length, *fields, method=b"POST", version=version)


def post_chunks(path: str, chunks: list[bytes]) -> bytes:
    head = get(path, b"Transfer-Encoding: chunked", method=b"POST")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in [*chunks, b""])


def bodies(written: bytes) -> list[str]:
    """Of answers that are their paths."""
    return [part.rpartition(b"\r\n\r\n")[2].decode() for part in written.split(b"HTTP/1.1 200 OK")[1:]]


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


def test_what_an_event_loop_may_log_of_a_connection_tells_nothing_of_its_requests() -> None:
    """It does of one that fails; a header has a key."""

    async def main() -> None:
        one = One()
        one.receive(get("/wait", b"Authorization: Bearer a-key") * 2)
        await one.turn()
        for each in (one.connection, *one.connection._queue, *one.requests):
            assert repr(each).endswith(f"object at {id(each):#x}>")

    run(main)


class TestBeginning:
    @pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1"])
    def test_only_what_stays_on_this_machine_has_a_small_buffer(self, client: str) -> None:
        async def main() -> None:
            options = One(client=(client, 1)).options
            wanted = (socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)
            assert options == ([] if client == "192.0.2.1" else [wanted])

        run(main)

    @pytest.mark.parametrize(
        ("client", "address"), [(("192.0.2.1", 7), ("192.0.2.1", 7)), (("::2", 7, 0, 0), ("::2", 7)), ("", None)]
    )
    @pytest.mark.parametrize("encrypts", [False, True])
    def test_a_request_knows_its_ends(self, client: Any, address: Any, encrypts: bool) -> None:
        async def main() -> None:
            one = One(client=client, encrypts=encrypts)
            one.receive(get("/a%20b?c=d", b"X: y"))
            (request,) = one.requests
            assert (request.client, request.server) == (address, ("127.0.0.1", 80))
            assert request.scheme == ("https" if encrypts else "http")
            assert (request.method, request.path, request.raw_path, request.query) == ("GET", "/a b", b"/a%20b", b"c=d")
            assert (request.version, request.headers[b"x"]) == ("1.1", b"y")
            assert request.raw_headers == [(b"host", b"a"), (b"x", b"y")]
            await one.turn()
            one.receive(get("/c"))
            assert (one.requests[1].raw_path, one.requests[1].query) == (b"/c", b"")

        run(main)

    @pytest.mark.parametrize("encrypts", [False, True])
    def test_threads_do_not_encrypt(self, encrypts: bool) -> None:
        async def main() -> None:
            asked: list[int] = []
            threads = SimpleNamespace(worth=asked.append, enter=lambda _: asked.append(1), leave=lambda _: None)
            one = One(encrypts=encrypts, transfers=threads)
            one.receive(get("/large"))
            assert bool(asked) != encrypts

        run(main)

    def test_it_is_counted_while_it_is_there(self) -> None:
        async def main() -> None:
            one = One()
            connections: set[Any] = one.state.connections
            assert connections == {one.connection}
            assert one.limit.count == 1
            one.connection.connection_lost(None)
            assert one.state.connections == set()
            assert one.limit.count == 0

        run(main)


class TestEnd:
    def test_who_waits_is_told_and_what_was_to_be_sent_is_over(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/a"), get("/wait"), get("/never"))
            hung_up = asyncio.ensure_future(one.requests[1].body.hung_up())
            await one.turn()
            assert len(one.state.tasks) == 1
            one.transport.is_closed = True
            one.connection.connection_lost(None)
            await asyncio.wait_for(hung_up, 1)
            assert one.clock.timers == []
            assert await one.answer("/wait") == b""
            assert one.sent == ["/a", "/wait"]
            assert one.paths == ["/a", "/wait"]
            assert one.state.tasks == set()

        run(main)

    def test_no_timer_outlives_it(self) -> None:
        """Of a header, of who sends no more, of who is idle, of the end, and of who does not read."""

        async def main() -> None:
            for act in (
                lambda one: one.receive(b"GET "),
                lambda one: (one.receive(get("/wait")), one.connection.eof_received()),
                lambda one: (one.receive(get("/a")), one.connection.send_waiting()),
                lambda one: (one.receive(get("/a")), one.connection.shutdown()),
                lambda one: (one.receive(get("/a")), one.connection.pause_writing()),
            ):
                one = One()
                act(one)
                assert one.clock.timers
                one.connection.connection_lost(None)
                assert one.clock.timers == []

        run(main)

    @pytest.mark.parametrize("ask", [post("/fill", LENT), get("/large")])
    def test_what_threads_were_told_of_is_taken_back(self, ask: bytes) -> None:
        async def main() -> None:
            under_way: set[object] = set()
            threads = SimpleNamespace(worth=lambda _: False, enter=under_way.add, leave=under_way.discard)
            one = One(transfers=threads)
            one.transport.is_slow = True
            one.receive(ask)
            await one.turn()
            one.connection.get_buffer(-1)
            assert len(under_way) == 1
            one.connection.connection_lost(None)
            assert not under_way
            await one.turn()
            assert one.sent == (["/large"] if ask == get("/large") else [])

        run(main)

    def test_it_can_be_cut_off(self) -> None:
        async def main() -> None:
            one = One()
            one.connection.drop()
            assert one.transport.events == ["abort"]

        run(main)


class TestShutdown:
    def test_what_is_on_its_way_is_answered_and_then_it_closes(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/a"))
            assert bodies(await one.turn()) == ["/a"]
            one.connection.shutdown()
            one.clock.pass_by(0.9 * IDLE_SECONDS)
            one.receive(get("/b"))
            assert bodies(await one.turn()) == ["/b"]
            one.clock.pass_by(0.2 * IDLE_SECONDS)
            assert one.transport.events == ["eof"]
            one.receive(get("/c"))
            assert await one.turn() == b""
            one.clock.pass_by(LINGER_SECONDS)
            assert one.transport.events == ["eof", "close"]

        run(main)

    def test_who_is_gone_by_then_is_left_alone(self) -> None:
        async def main() -> None:
            one = One()
            one.connection.shutdown()
            one.transport.close()
            one.clock.pass_by(IDLE_SECONDS)
            assert one.transport.events == ["close"]

        run(main)

    def test_an_answer_that_waits_for_others_is_sent(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait"))
            await asyncio.sleep(0)
            one.ends.last = One().connection
            one.answers["/wait"].set_result(None)
            await asyncio.sleep(0)
            assert one.transport.take() == b""
            one.connection.shutdown()
            assert bodies(one.transport.take()) == ["/wait"]

        run(main)

    def test_so_is_one_when_nobody_is_waited_for_any_more(self) -> None:
        async def main() -> None:
            one = One()
            one.connection.shutdown()
            one.receive(get("/wait"))
            await asyncio.sleep(0)
            one.ends.last = One().connection
            one.answers["/wait"].set_result(None)
            await asyncio.sleep(0)
            assert one.transport.take() == b""
            one.clock.pass_by(IDLE_SECONDS)
            assert one.transport.events == ["eof"]
            assert bodies(one.transport.take()) == ["/wait"], "nothing can be written later"

        run(main)

    def test_the_last_of_those_that_run_is_told_to_be_that(self) -> None:
        async def main() -> None:
            one = One()
            paths = ["/wait/1", "/wait/2", "/wait/3"]
            one.receive(*map(get, paths))
            one.connection.shutdown()
            for path in paths:
                assert one.transport.events == []
                answer = await one.answer(path)
                assert bodies(answer) == [path]
                assert (CLOSE in answer) == (path == "/wait/3")
            assert one.transport.events == ["eof"]

        run(main)

    def test_what_comes_behind_the_last_one_is_read_and_dropped(self) -> None:
        """A connection that is closed while something is unread is reset, by which the client would lose its answer."""

        async def main() -> None:
            one = One()
            one.receive(get("/wait"))
            one.connection.shutdown()
            one.receive(*[get(f"/{number}") for number in range(PIPELINED - 1)])
            assert not one.transport.is_read
            answer = await one.answer("/wait")
            assert (bodies(answer), CLOSE in answer) == (["/wait"], True)
            assert one.transport.events == ["eof"]
            assert one.transport.is_read
            one.connection.pause_writing()
            one.connection.resume_writing()
            assert await one.turn() == b"", "nothing can be written any more"

        run(main)

    @pytest.mark.parametrize("path", ["/b", "/wait"])
    def test_of_those_that_have_come_the_last_is_told_to_be_that(self, path: str) -> None:
        """Though all answers say so from now on. They have a turn each, in one of which the server ends."""

        async def main() -> None:
            one = One()
            one.receive(get("/a") + get(path) + get("/c"))
            one.state.default_headers = [*one.state.default_headers, (b"connection", b"close")]
            written = await one.turn()
            if path in one.answers:
                written += await one.answer(path)
            assert bodies(written) == ["/a", path, "/c"]
            assert written.count(CLOSE) == 1
            assert written.endswith(b"/c")
            assert CLOSE in written[written.index(path.encode()) :]
            assert one.transport.events == ["eof"]

        run(main)

    def test_an_answer_that_is_the_last_by_itself_is_it_for_those_that_have_come(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/last") + get("/b"))
            assert bodies(await one.turn()) == ["/last"]
            assert one.transport.events == ["eof"]

        run(main)

    def test_after_an_answer_that_has_begun_there_may_be_another(self) -> None:
        """Too late to say in it that it is the last."""

        async def main() -> None:
            one = One()
            one.transport.is_slow = True
            one.receive(get("/large"))
            assert CLOSE not in await one.turn()
            one.connection.shutdown()
            assert one.transport.events == []
            one.connection.resume_writing()
            await one.turn()
            assert one.transport.events == []
            one.receive(get("/b"))
            assert bodies(await one.turn()) == ["/b"]
            one.clock.pass_by(IDLE_SECONDS)
            assert one.transport.events == ["eof"]

        run(main)

    def test_the_last_answer_that_has_begun_is_the_last(self) -> None:
        async def main() -> None:
            one = One()
            one.transport.is_slow = True
            one.receive(get("/large", b"Connection: close"))
            one.connection.shutdown()
            one.connection.resume_writing()
            await one.turn()
            assert one.transport.events == ["close"]

        run(main)

    def test_a_header_that_has_begun_is_waited_for(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/a"))
            await one.turn()
            one.connection.shutdown()
            request = get("/b")
            one.receive(request[:10])
            one.clock.pass_by(2 * IDLE_SECONDS)
            assert one.transport.events == []
            one.receive(request[10:])
            assert bodies(await one.turn()) == ["/b"]
            assert one.transport.events == []
            one.clock.pass_by(IDLE_SECONDS)
            assert one.transport.events == ["eof"]

        run(main)


class TestHalfClosed:
    @pytest.mark.parametrize("encrypts", [False, True])
    def test_who_waits_for_nothing_is_gone(self, encrypts: bool) -> None:
        async def main() -> None:
            one = One(encrypts=encrypts)
            assert not one.connection.eof_received()
            one = One(encrypts=encrypts)
            one.receive(get("/wait"))
            await asyncio.sleep(0)
            one.ends.last = One().connection
            one.answers["/wait"].set_result(None)
            await asyncio.sleep(0)
            assert one.transport.take() == b"", "it waits for others"
            assert not one.connection.eof_received()
            assert bodies(one.transport.take()) == ["/wait"]

        run(main)

    @pytest.mark.parametrize("rest", [b"", b"GET /never", post("/never", 4), post("/never", 4) + b"bod"])
    def test_what_is_whole_is_answered(self, rest: bytes) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait"), get("/b"), rest)
            assert one.connection.eof_received()
            assert bodies(await one.answer("/wait")) == ["/wait", "/b"]
            assert one.transport.events == ["close"]
            assert "/never" not in one.paths
            one.clock.pass_by(HALF_CLOSED_SECONDS)  # it may be a while until all of it is sent
            assert one.transport.take() == b""

        run(main)

    def test_what_will_never_be_whole_is_given_up(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(post("/body", 4) + b"bod")
            await one.turn()
            assert not one.connection.eof_received()
            one.connection.connection_lost(None)
            await one.turn()
            assert one.state.tasks == set(), "its handler was told so"
            one = One()
            one.connection.pause_writing()
            one.receive(post("/body", 4) + b"bod")
            assert not one.connection.eof_received()
            assert one.paths == []

        run(main)

    def test_with_tls_the_end_of_one_direction_is_that_of_both(self) -> None:
        async def main() -> None:
            one = One(encrypts=True)
            one.receive(get("/wait"))
            assert not one.connection.eof_received()

        run(main)

    def test_with_tls_the_end_may_come_with_what_is_answered_at_once(self) -> None:
        """In one turn of the event loop, in which nothing of it has been begun."""

        async def main() -> None:
            one = One(encrypts=True)
            one.read(get("/a") + get("/steps") + get("/b") + get("/wait") + get("/c"))
            assert not one.connection.eof_received()
            assert bodies(one.transport.take()) == ["/a", "/steps", "/b"]
            one.transport.is_closed = True
            assert await one.turn() == b""
            assert one.sent == ["/a", "/steps", "/b"]
            assert one.paths == ["/a", "/steps", "/b", "/wait"]

        run(main)

    @pytest.mark.parametrize(("version", "is_told"), [(b"1.1", True), (b"1.0", False)])
    def test_who_waits_long_is_told_to_go_on_waiting(self, version: bytes, is_told: bool) -> None:
        """Where there are interim responses."""

        async def main() -> None:
            one = One()
            one.receive(get("/wait", version=version))
            assert one.connection.eof_received()
            one.clock.pass_by(0.9 * HALF_CLOSED_SECONDS)
            assert one.transport.take() == b""
            one.clock.pass_by(0.15 * HALF_CLOSED_SECONDS)
            assert one.transport.take() == (CONTINUE if is_told else b"")

        run(main)

    def test_nothing_is_told_in_the_midst_of_an_answer(self) -> None:
        async def main() -> None:
            one = One()
            one.transport.is_slow = True
            one.receive(get("/large"))
            assert one.connection.eof_received()
            await one.turn()
            one.clock.pass_by(1.05 * HALF_CLOSED_SECONDS)
            assert one.transport.take() == b""
            one.connection.resume_writing()
            await one.turn()
            assert one.transport.events == ["close"]

        run(main)


class TestReading:
    def test_so_much_is_read_at_once(self) -> None:
        async def main() -> None:
            one = One()
            assert len(one.connection.get_buffer(-1)) == READ
            one.receive(post("/a", LARGE))
            assert len(one.connection.get_buffer(-1)) == READ
            one.receive(bytes(LARGE), post("/fill", LARGE + 10))
            await one.turn()
            assert len(one.connection.get_buffer(-1)) == LARGE + 10
            one.receive(bytes(LARGE + 10))
            await one.turn()
            assert len(one.connection.get_buffer(-1)) == HEADER, "the next one is probably large as well"

        run(main)

    @pytest.mark.parametrize("path", ["/body", "/a"])
    def test_of_small_chunks_few_are_read_at_once(self, path: str) -> None:
        """However many there are and whoever wants them: each takes some time, in which others wait."""

        async def main() -> None:
            one = One()
            begin, end = get(path, b"Transfer-Encoding: chunked", method=b"POST"), b"0\r\n\r\n"
            for size, most in ((1, CRUMBS), (CHUNK, READ), (CHUNK // 4, CRUMBS), (READ // 2, READ), (1, CRUMBS)):
                chunks = b"%x\r\n%b\r\n" % (size, bytes(size)) * max(SHORT // size, 1)
                one.receive(begin, chunks)
                await one.turn()
                assert len(one.connection.get_buffer(-1)) == most
                one.receive(chunks)
                await one.turn()
                one.receive(end)
                await one.turn()
                assert one.received == bytes(2 * size * max(SHORT // size, 1) if path == "/body" else 0)
                one.received = b""
            one.receive(begin, chunks)
            await one.turn()
            one.receive(chunks + end + begin + chunks[:-6])
            await one.turn()
            assert len(one.connection.get_buffer(-1)) == CRUMBS, "in another request, too"
            one.receive(chunks[-6:] + end, get("/b"))
            assert bodies(await one.turn())[-1] == "/b"
            assert len(one.connection.get_buffer(-1)) == READ, "it sends none any more"

        run(main)

    def test_a_large_body_that_is_there_is_answered_in_the_turn_of_its_header(self) -> None:
        async def main() -> None:
            client, server = socket.socketpair()
            with client, server:
                server.setblocking(False)
                one = One(descriptor=server.fileno())
                for size, path in ((LARGE + 1, "/one/fill"), (LARGE + 7, "/two/fill")):
                    data = random.randbytes(size)
                    client.sendall(data[100:])
                    one.receive(post(path, size) + data[:100])
                    assert one.received == data
                    assert one.state.tasks == set()
                    assert bodies(one.transport.take()) == [path]
                    one.received = b""
                client.sendall(bytes(9))
                one.receive(post("/three/fill", LARGE + 10) + bytes(LARGE))
                assert len(one.state.tasks) == 1, "for what has not come it waits"
                one.receive(bytes(1))
                assert bodies(await one.turn()) == ["/three/fill"]
                one.receive(get("/b"))
                assert bodies(await one.turn()) == ["/b"]

        run(main)

    @pytest.mark.parametrize("rest", [1, READ, READ + 1])
    def test_what_nobody_waits_for_any_more_is_read_up_to_its_end(self, rest: int) -> None:
        async def main() -> None:
            one = One()
            length = LARGE + rest
            one.receive(post("/part", length))
            await one.turn()
            one.receive(bytes(LARGE))
            assert bodies(await one.turn()) == ["/part"]
            assert one.transport.is_read
            assert len(one.connection.get_buffer(-1)) == min(rest, READ)
            one.receive(bytes(rest), get("/b"))
            assert bodies(await one.turn()) == ["/b"]

        run(main)

    def test_what_reads_much_does_not_wait_for_the_end_of_the_turn(self) -> None:
        """Or what a thousand clients send would be there at once, and no memory charged for it."""

        async def main() -> None:
            one = One()
            head = post("/a", JOINED)
            one.read(head + bytes(JOINED - len(head)))
            assert one.paths == []
            one = One()
            one.read(head + bytes(JOINED - len(head) + 1))
            assert one.paths == ["/a"]

        run(main)

    def test_who_seems_to_be_alone_does_not_wait_for_the_end_of_the_turn(self) -> None:
        async def main() -> None:
            one = One()
            one.read(get("/a"))
            assert one.paths == []
            assert bodies(await one.turn()) == ["/a"]
            one.read(get("/b"))
            assert bodies(one.transport.take()) == ["/b"]
            one.ends.last = One().connection
            one.read(get("/c"))
            assert one.paths == ["/a", "/b"]
            assert bodies(await one.turn()) == ["/c"]
            one.connection.connection_lost(None)
            assert one.ends.last is None, "who is gone is not kept"
            one, other = One(), One().connection
            one.ends.last = other
            one.connection.connection_lost(None)
            assert one.ends.last is other

        run(main)

    def test_a_body_that_somebody_waits_for_takes_no_turn_of_its_own(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(post("/body", 10))
            await one.turn()
            one.ends.last = One().connection
            one.read(b"begin")
            assert not one.clock.end_turn(), "there is nothing to begin"
            one.read(b"ended")
            assert bodies(await one.turn()) == ["/body"]

        run(main)

    @pytest.mark.parametrize("encrypts", [False, True])
    @pytest.mark.parametrize("first", ["/wait", "/a"])
    def test_of_a_long_pipeline_no_more_wait_than_may(self, first: str, encrypts: bool) -> None:
        """Or one read would bring thousands of requests, and memory for each."""

        async def main() -> None:
            one = One(encrypts=encrypts)
            paths = [first, *(f"/{number}" for number in range(100 * PIPELINED))]
            pieces = [get(path) if number % 3 else post(path, 500) + bytes(500) for number, path in enumerate(paths)]
            half = len(pieces) // 2
            for some in (pieces[:half], pieces[half:]) if encrypts else (pieces,):  # TLS reads on for a while
                assert one.read(b"".join(some)) == sum(map(len, some))
                assert len(one.connection._queue) in (PIPELINED - 1, PIPELINED)
            assert not one.transport.is_read
            one.connection.want()
            assert not one.transport.is_read, "what was read comes first"
            written = b""
            assert one.connection._further is not None
            kept = one.connection._further.obj
            assert isinstance(kept, bytes), "where all read to is not kept"
            if first == "/wait":
                await one.turn()
                one.answers[first].set_result(None)
            while one.connection._further:
                assert one.connection._further.obj is kept, "it is copied once"
                assert len(one.connection._queue) >= PIPELINED - 1
                assert not one.transport.is_read
                await asyncio.sleep(0)
                one.clock.end_turn()
                written += one.transport.take()
            assert bodies(written + await one.turn()) == paths
            assert one.transport.is_read

        run(main)

    @pytest.mark.parametrize(
        ("fault", "why"),
        [
            (b"", b"begin with a known method"),
            (b"GET / HTTP/1.1\r\n\r\n", b"0 Host"),
            (get("http://a#b"), b"not a valid URL"),
        ],
    )
    def test_a_fault_behind_a_long_pipeline_has_its_turn(self, fault: bytes, why: bytes) -> None:
        async def main() -> None:
            for count in (PIPELINED - 1, PIPELINED, PIPELINED + 1, 30 * PIPELINED):
                one = One()
                paths = [f"/{number}" for number in range(count)]
                one.read(b"".join(map(get, paths)) + fault + b"?" * SHORT)
                written = await one.turn()
                assert bodies(written.partition(b"HTTP/1.1 400 ")[0]) == paths
                assert written.count(b"HTTP/1.1 400 ") == 1
                assert why in written
                assert one.transport.events == ["eof"]

        run(main)

    def test_after_the_last_one_of_a_long_pipeline_there_is_none(self) -> None:
        async def main() -> None:
            for number in (0, PIPELINED - 1, PIPELINED, 30 * PIPELINED):
                one = One()
                one.read(get("/a") * number + get("/b", b"Connection: close") + get("/c") * 1000)
                assert bodies(await one.turn()) == ["/a"] * number + ["/b"]
                assert one.transport.is_closed

        run(main)

    def test_when_the_server_ends_a_long_pipeline_is_answered(self) -> None:
        async def main() -> None:
            one = One()
            one.read(get("/wait") + get("/a") * 1000)
            await one.turn()
            one.connection.shutdown()
            one.state.default_headers.append((b"connection", b"close"))
            assert bodies(await one.answer("/wait")) == ["/wait"] + ["/a"] * 1000
            assert one.transport.events == ["eof"], "as it has told with the last answer"

        run(main)

    def test_when_the_server_ends_a_pipeline_without_end_is_not_waited_for(self) -> None:
        """What has come is answered, and the last answer says that it is the last."""

        async def main() -> None:
            one = One()
            one.read(get("/a") * 1000)
            one.connection.shutdown()
            one.state.default_headers.append((b"connection", b"close"))
            written = b""
            while not one.transport.events:
                if one.transport.is_read:
                    one.read(get("/b") * 1000)
                await asyncio.sleep(0)
                one.clock.end_turn()
                written += one.transport.take()
            assert bodies(written) == ["/a"] * 1000
            assert written.count(CLOSE) == 1
            one.clock.pass_by(LINGER_SECONDS)
            assert one.transport.events == ["eof", "close"]

        run(main)

    @pytest.mark.parametrize("size", [1, SHORT, READ])
    def test_what_comes_behind_the_last_request_is_no_fault(self, size: int, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            one = One()
            data = get("/wait", b"Connection: close") + get("/a") * 2000
            for start in range(0, len(data), size):
                one.read(data[start : start + size])
            await one.turn()
            assert bodies(await one.answer("/wait")) == ["/wait"]
            assert one.transport.events == ["close"]

        run(main)
        assert caplog.records == []

    def test_of_a_long_pipeline_nothing_is_left_when_it_is_over(self) -> None:
        async def main() -> None:
            one = One()
            one.read(get("/wait") + get("/a") * 1000)
            await one.turn()
            one.transport.is_closed = True
            one.connection.connection_lost(None)
            assert one.connection._further is None
            assert await one.answer("/wait") == b""
            assert one.paths == ["/wait"]

        run(main)

    def test_what_is_left_of_a_long_pipeline_may_be_the_beginning_of_a_request(self) -> None:
        async def main() -> None:
            whole = post("/body", 5) + b"12345"
            for cut in (1, 20, len(whole) - 5, len(whole) - 1):
                one = One()
                one.read(get("/a") * 1000 + whole[:cut])
                written = await one.turn()
                one.receive(whole[cut:])
                assert bodies(written + await one.turn()) == ["/a"] * 1000 + ["/body"]
                assert one.received == b"12345"

        run(main)

    @pytest.mark.parametrize(
        ("field", "chunk", "last"),
        [(b"Content-Length: 81920", b"%b", b""), (b"Transfer-Encoding: chunked", b"1000\r\n%b\r\n", b"0\r\n\r\n")],
    )
    def test_a_body_is_taken_in_few_pieces(
        self, field: bytes, chunk: bytes, last: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            one = One()
            fed = Mock(wraps=one.connection._framing.feed)
            monkeypatch.setattr(one.connection._framing, "feed", fed)
            one.read(get("/body", field, method=b"POST") + chunk % bytes(0x1000) * 20 + last + get("/a"))
            assert bodies(await one.turn()) == ["/body", "/a"]
            assert one.received == bytes(20 * 0x1000)
            assert fed.call_count <= (14 if last else 3)

        run(main)

    def test_what_follows_a_large_body_is_a_request(self) -> None:
        async def main() -> None:
            one = One()
            for _ in range(2):
                one.receive(post("/fill", LARGE + 10))
                await one.turn()
                one.receive(b"x" * LARGE + b"y" * 10, get("/b"))
                assert bodies(await one.turn()) == ["/fill", "/b"]
            assert one.received == (b"x" * LARGE + b"y" * 10) * 2
            assert one.transport.is_read

        run(main)

    def test_it_reads_while_what_it_read_is_worked_on(self) -> None:
        """Or nobody would notice who hangs up."""

        async def main() -> None:
            one = One()
            one.receive(post("/wait/fill", LARGE + 10))
            await one.turn()
            one.receive(bytes(LARGE + 10))
            await one.turn()
            assert one.transport.is_read
            for number in range(PIPELINED - 1):
                assert one.transport.is_read
                one.receive(get(f"/{number}"))
            assert not one.transport.is_read
            one.connection.want()
            assert not one.transport.is_read, "even who waits for a hang-up waits for an answer first"
            assert len(bodies(await one.answer("/wait/fill"))) == PIPELINED
            assert one.transport.is_read

        run(main)

    def test_who_asks_whether_to_send_is_told_once(self) -> None:
        async def main() -> None:
            one = One()
            ask = (b"Expect: 100-Continue",)
            one.receive(post("/body", 4, *ask))
            assert await one.turn() == CONTINUE
            one.receive(b"bo", b"dy")
            assert bodies(await one.turn()) == ["/body"]
            one.receive(post("/body", 4, *ask) + b"bo")
            assert await one.turn() == b"", "it does not ask any more"
            one.receive(b"dy")
            assert bodies(await one.turn()) == ["/body"]
            one.receive(post("/body", 4, b"Expect: something"))
            assert await one.turn() == b""
            assert one.received == b"bodybody"
            one = One()
            one.receive(get("/a", *ask) + get("/b"))
            answers = await one.turn()
            assert (bodies(answers), CLOSE in answers) == (["/a", "/b"], False), "there is no body that could come"
            one = One()
            one.receive(post("/body", 4, *ask, version=b"1.0"))
            assert await one.turn() == b"", "HTTP/1.0 has no interim responses"
            one = One()
            one.transport.is_closed = True
            one.connection.expect()
            assert one.transport.take() == b""

        run(main)


class TestAhead:
    """What has come of requests before their turn is on the account, and nothing else is."""

    def test_it_is_charged_until_its_turn(self) -> None:
        async def main() -> None:
            one, held = One(), []
            one.receive(get("/wait"))
            assert one.memory.used == 0, "its turn has come"
            for piece in (get("/a", b"X: " + b"x" * 1000), post("/wait/body", 3000, b"Y: y"), b"y" * 1000, b"y" * 2000):
                one.receive(piece)
                held.append(one.memory.used)
            alone, header, more, whole = held
            assert 1000 + OBJECTS < alone < 1100 + OBJECTS + 2 * FIELD
            assert OBJECTS < header - alone < 100 + OBJECTS + 3 * FIELD
            assert (more - header, whole - more) == (1000, 2000)
            one.receive(get("/last"))
            await one.turn()
            assert bodies(await one.answer("/wait")) == ["/wait", "/a"]
            assert OBJECTS < one.memory.used < 100 + OBJECTS + FIELD
            assert bodies(await one.answer("/wait/body")) == ["/wait/body", "/last"]
            assert one.memory.used == 0

        run(main)

    def test_small_chunks_are_what_they_have(self) -> None:
        """Each piece would take some forty bytes more."""

        async def main() -> None:
            one = One()
            one.receive(get("/wait"), post_chunks("/body", [b"ab"] * 5000))
            assert 10_000 < one.memory.used < 10_100 + OBJECTS + 2 * FIELD
            (waiting,) = [each for each in one.connection._queue if not each.is_started]
            assert len(waiting._pieces) == 1
            await one.turn()
            assert bodies(await one.answer("/wait")) == ["/wait", "/body"]
            assert one.received == b"ab" * 5000

        run(main)

    def test_so_is_what_is_not_begun_since_its_client_takes_nothing(self) -> None:
        async def main() -> None:
            one = One()
            one.connection.pause_writing()
            one.receive(post("/body", 5000) + bytes(5000))
            assert one.memory.used > 5000
            one.connection.resume_writing()
            await one.turn()
            assert (one.memory.used, one.paths) == (0, ["/body"])

        run(main)

    def test_near_its_end_little_is_read_behind_what_is_not_answered(self) -> None:
        """And no more than that before there is an answer. Who has hung up is noticed."""

        async def main() -> None:
            one = One()
            assert len(one.connection.get_buffer(-1)) == READ
            others = one.memory.limit - READ + 1
            one.memory.move(others)
            assert len(one.connection.get_buffer(-1)) == HEADER
            paths = ["/wait", *(f"/{number}" for number in range(900))]
            data = b"".join(map(get, paths))
            taken = one.read(data)
            assert taken == HEADER
            assert len(one.connection._queue) == FEW
            assert not one.transport.is_read
            await one.turn()
            assert HEADER < one.memory.used - others < HEADER + 2 * OBJECTS
            written = await one.answer("/wait")
            while taken < len(data):
                assert one.transport.is_read
                taken += one.read(data[taken:])
                written += await one.turn()
            assert bodies(written) == paths
            one.receive(post("/body", 5 * HEADER), bytes(5 * HEADER))
            assert bodies(await one.turn()) == ["/body"]
            assert one.read(get("/a") * 100) < SHORT
            assert len(one.connection._queue) <= FEW, "of a short read, too"
            assert bodies(await one.turn()) == ["/a"] * 100
            assert one.memory.used == others
            one.memory.move(-others)
            assert len(one.connection.get_buffer(-1)) == READ
            one.read(b"".join(map(get, paths)))
            assert len(one.connection._queue) == PIPELINED

        run(main)

    def test_it_may_be_more_than_there_is(self) -> None:
        async def main() -> None:
            one = One()
            one.memory.move(one.memory.limit)
            one.receive(get("/wait"), post("/body", 1000) + bytes(1000))
            assert one.memory.used > one.memory.limit + 1000
            one.transport.is_closed = True
            one.connection.connection_lost(None)
            assert one.memory.used == one.memory.limit

        run(main)

    def test_nothing_is_left_however_it_ends(self) -> None:
        """Whatever is sent, in whatever pieces, whoever goes when."""
        requests = [
            get("/a"),
            get("/wait"),
            get("/large"),
            get("/fault"),
            get("/ended"),
            get("/steps"),
            post("/body", 3000) + bytes(3000),
            post("/a", 100_000) + bytes(100_000),
            post("/fill", LARGE + 5) + bytes(LARGE + 5),
            post("/body", 10, b"Expect: 100-continue") + bytes(10),
            post_chunks("/body", [b"a", b"bc"] * 300),
            get("/a", version=b"1.0"),
            get("/last"),
            b"GET / HTTP/1.1\r\n\r\n",
        ]

        async def end(rng: random.Random) -> int:
            one = One(encrypts=rng.random() < 0.2)
            others = rng.choice((0, 0, one.memory.limit - READ + 1, one.memory.limit))
            one.memory.move(others)
            weights = [*(3 for _ in requests[:-3]), 0.2, 0.2, 0.2]
            data, most = b"".join(rng.choices(requests, weights, k=40)), 0
            acts = rng.choices(
                ("read", "answer", "turn", "pause", "resume", "eof", "end"), (12, 4, 6, 1, 3, 0.1, 0.1), k=90
            )
            is_paused = is_over = False
            for act in acts:
                if one.transport.is_closed:
                    break
                if act == "read" and one.transport.is_read and not is_over:
                    data = data[one.read(data[: rng.choice((1, 50, SHORT, READ))]) :]
                elif act == "answer" and (path := next((p for p, each in one.answers.items() if not each.done()), "")):
                    await one.answer(path)
                elif act == "turn":
                    await one.turn()
                elif act == "pause" and not is_paused:
                    is_paused = True
                    one.connection.pause_writing()
                elif act == "resume" and is_paused:
                    is_paused = False
                    one.connection.resume_writing()
                elif act == "eof" and not is_over:
                    is_over = True
                    one.connection.eof_received()
                elif act == "end":
                    one.connection.shutdown()
                waiting = [each for each in one.connection._queue if not each.is_started]
                if len(waiting) > 1:
                    assert one.memory.used - others >= len(waiting) * OBJECTS
                elif not (waiting or one.connection._further):
                    assert one.memory.used == others
                most = max(most, one.memory.used - others)
            one.transport.is_closed = True
            one.connection.connection_lost(None)
            assert one.memory.used == others
            for path in one.answers:
                if not one.answers[path].done():
                    await one.answer(path)
            await one.turn()
            assert one.memory.used == others
            return most

        async def main() -> None:
            found = [await end(random.Random(seed)) for seed in range(60)]
            assert sum(most > HEADER for most in found) > 15, "most of them are no test"

        run(main)


class TestHeaderDeadline:
    def test_it_is_that_of_the_header(self) -> None:
        async def main() -> None:
            one = One()
            seconds = one.settings.header_seconds
            one.receive(b"GET ")
            one.clock.pass_by(0.9 * seconds)
            one.receive(b"/a HTTP/1.1\r\n")
            assert one.transport.take() == b""
            one.clock.pass_by(0.1 * seconds)
            refusal = one.transport.take()
            assert refusal.startswith(b"HTTP/1.1 408 ")
            assert b"was not complete after 10 seconds; send the whole request again." in refusal
            assert one.transport.events == ["eof"]

        run(main)

    def test_who_asks_nothing_is_closed(self) -> None:
        async def main() -> None:
            one = One()
            one.clock.pass_by(one.settings.header_seconds)
            assert (one.transport.take(), one.transport.events) == (b"", ["close"])

        run(main)

    def test_who_is_being_closed_is_told_nothing(self) -> None:
        """It may take a while until the answer before is sent, which was the last."""

        async def main() -> None:
            one = One()
            one.receive(b"GET ")
            one.transport.close()
            one.clock.pass_by(one.settings.header_seconds)
            assert one.transport.events == ["close"]

        run(main)

    def test_a_later_one_begins_with_its_header(self) -> None:
        async def main() -> None:
            one = One()
            seconds = one.settings.header_seconds
            one.receive(get("/a"))
            await one.turn()
            one.clock.pass_by(0.5 * seconds)
            one.receive(b"\r\n")
            one.clock.pass_by(0.5 * seconds)
            one.receive(b"GET ")
            one.clock.pass_by(0.9 * seconds)
            assert one.transport.take() == b""
            one.clock.pass_by(0.1 * seconds)
            assert one.transport.take().startswith(b"HTTP/1.1 408 ")

        run(main)

    @pytest.mark.parametrize("holds", ["reading", "writing"])
    def test_it_is_not_the_clients_fault_that_nobody_reads(self, holds: str) -> None:
        async def main() -> None:
            one = One()
            seconds = one.settings.header_seconds
            one.receive(b"GET ")
            if holds == "reading":
                one.connection.hold()
            else:
                one.connection._sender._is_paused = True
            one.clock.pass_by(1.5 * seconds)
            assert one.transport.take() == b""
            one.connection.want()
            one.connection._sender._is_paused = False
            one.clock.pass_by(0.5 * seconds)
            assert one.transport.take().startswith(b"HTTP/1.1 408 ")

        run(main)

    def test_it_holds_for_a_body_that_nobody_wants(self) -> None:
        async def main() -> None:
            one = One()
            seconds = one.settings.header_seconds
            one.receive(post("/a", 4))
            assert bodies(await one.turn()) == ["/a"]
            one.clock.pass_by(0.9 * seconds)
            assert one.transport.events == []
            one.receive(b"bod")
            one.clock.pass_by(0.1 * seconds)
            assert (one.transport.take(), one.transport.events) == (b"", ["close"])
            one = One()
            one.receive(post("/a", 4), b"body")
            await one.turn()
            one.clock.pass_by(1.1 * seconds)
            assert one.transport.events == []

        run(main)

    def test_nor_does_it_go_on_when_that_body_has_come(self) -> None:
        """Which nobody wants from some place on: what came before was put where it belonged."""

        async def main() -> None:
            one = One()
            one.receive(post("/part", LARGE + 10))
            await one.turn()
            one.receive(bytes(LARGE))
            assert bodies(await one.turn()) == ["/part"]
            one.receive(bytes(10))
            one.clock.pass_by(0.9 * one.settings.header_seconds)
            one.receive(b"GET ")
            one.clock.pass_by(0.9 * one.settings.header_seconds)
            assert (one.transport.take(), one.transport.events) == (b"", [])

        run(main)

    def test_an_answer_has_none(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait"))
            await one.turn()
            one.clock.pass_by(2 * one.settings.header_seconds)
            assert bodies(await one.answer("/wait")) == ["/wait"]

        run(main)

    def test_a_body_that_somebody_waits_for_has_none(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(post("/body", 4), b"bod")
            await one.turn()
            one.clock.pass_by(2 * one.settings.header_seconds)
            one.receive(b"y")
            assert bodies(await one.turn()) == ["/body"]

        run(main)

    def test_beyond_the_limit_of_connections_it_is_short(self) -> None:
        async def main() -> None:
            for seconds in (10.0, RESERVE_SECONDS / 2):
                one = One(ConnectionLimit(0), settings=Settings(header_seconds=seconds))
                one.clock.pass_by(0.9 * min(RESERVE_SECONDS, seconds))
                assert one.transport.events == []
                one.clock.pass_by(0.1 * min(RESERVE_SECONDS, seconds))
                assert one.transport.events == ["close"]

        run(main)


class TestReserve:
    @pytest.mark.parametrize("path", ["/health/live", "/v2/health/ready", "/metrics"])
    def test_it_answers_what_an_orchestrator_asks_and_closes(self, path: str) -> None:
        async def main() -> None:
            one = One(ConnectionLimit(0))
            one.receive(get(path))
            answer = await one.turn()
            assert bodies(answer) == [path]
            assert CLOSE in answer
            assert one.transport.events == ["close"]

        run(main)

    def test_all_else_is_refused(self) -> None:
        async def main() -> None:
            one = One(ConnectionLimit(0))
            one.receive(get("/a"))
            refusal = await one.turn()
            assert refusal.startswith(b"HTTP/1.1 503 ")
            assert b"as many connections as max_connections allows; try again." in refusal
            assert one.paths == []

        run(main)

    def test_who_holds_it_makes_room(self) -> None:
        async def main() -> None:
            limit = ConnectionLimit(0)
            first, *_ = [One(limit) for _ in range(RESERVE + 1)]
            assert first.transport.events == ["abort"]

        run(main)


class TestAnswers:
    def test_they_come_in_order_and_are_counted(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait") + get("/b") + get("/large") + get("/c"))
            assert one.paths == ["/wait"]
            written = await one.answer("/wait")
            assert bodies(written) == ["/wait", "/b", "x" * LENT, "/c"]
            assert written.count(b"\r\nserver: test\r\n") == 4
            assert CLOSE not in written
            assert one.sent == one.paths == ["/wait", "/b", "/large", "/c"]
            assert one.state.total_requests == 4
            assert one.state.tasks == set()

        run(main)

    def test_an_answer_is_sent_before_the_next_request_is_begun(self) -> None:
        """Also one that comes in the turn in which that is begun."""

        async def main() -> None:
            one = One()
            sent: list[list[str]] = []
            handle = one._handle

            async def noting(request: Request) -> Reply:
                sent.append(bodies(one.transport.written) + one.sent)
                return await handle(request)

            one.connection._handler = noting
            one.receive(get("/wait") + get("/b") + get("/c"))
            await one.answer("/wait")
            assert sent == [[], ["/wait", "/wait"], ["/wait", "/b", "/wait", "/b"]]

        run(main)

    def test_each_request_is_begun_in_a_turn_of_its_own(self) -> None:
        """Those of other connections come first."""

        async def main() -> None:
            one = One()
            one.receive(get("/a") + get("/b") + get("/c"))
            assert one.paths == ["/a"]
            one.clock.end_turn()
            assert one.paths == ["/a", "/b"]

        run(main)

    def test_all_steps_are_taken_in_one_turn_without_a_task(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/steps") + get("/steps"))
            assert bodies(one.transport.take()) == one.paths == one.sent == ["/steps"]
            one.clock.end_turn()
            assert bodies(one.transport.take()) == ["/steps"]
            assert one.state.tasks == set()

        run(main)

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_what_was_not_begun_when_it_was_cut_off_never_is(
        self, caplog: pytest.LogCaptureFixture, is_lost: bool
    ) -> None:
        async def main() -> None:
            one = One()
            one.read(get("/a") + get("/b"))
            one.connection.drop()
            if is_lost:
                one.connection.connection_lost(None)
            await one.turn()
            assert one.paths == []

        run(main)
        assert caplog.records == []

    def test_the_head_alone_is_sent_to_who_asks_for_it(self) -> None:
        """And no thread is asked to: it would wait for the rest."""

        async def main() -> None:
            for path, length in (("/a", 2), ("/large", LENT)):
                threads = SimpleNamespace(worth=lambda _: True, enter=lambda _: None, leave=lambda _: None)
                one = One(transfers=threads)
                one.receive(get(path, method=b"HEAD"))
                written = await one.turn()
                assert written.endswith(b"\r\ncontent-length: %d\r\n\r\n" % length)
                assert one.sent == [path]

        run(main)

    @pytest.mark.parametrize(
        "ask", [get("/a", b"Connection: close"), get("/last"), get("/a", version=b"1.0"), get("/large", version=b"1.0")]
    )
    def test_after_the_last_one_it_is_closed(self, ask: bytes) -> None:
        async def main() -> None:
            one = One()
            one.receive(ask + get("/never"))
            written = await one.turn()
            assert written.count(CLOSE) == 1
            is_ours = b"/last" in ask  # to end it, of which the client did not know
            assert one.transport.events == (["eof"] if is_ours else ["close"])
            one.clock.pass_by(LINGER_SECONDS)
            one.connection.connection_lost(None)
            assert one.clock.timers == []
            assert len(one.sent) == len(one.paths) == 1

        run(main)

    def test_a_fault_is_logged_and_answered(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/fault"))
            written = await one.turn()
            assert written.startswith(b"HTTP/1.1 500 ")
            assert one.transport.events == ["eof"]

        run(main)
        (record,) = caplog.records
        assert record.getMessage() == "Exception in answering /fault"
        assert record.exc_info
        assert record.exc_info[0] is KeyError

    @pytest.mark.parametrize("path", ["/a", "/wait", "/fault"])
    def test_who_cannot_be_answered_is_cut_off(
        self, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a task as well: nobody would else hear of it, and what the request holds would be held for ever."""

        def fail(*_: Any) -> bytes:
            raise MemoryError

        async def main() -> None:
            one = One()
            one.receive(get(path))
            if path == "/wait":
                await one.answer(path)
            assert one.transport.events == ["abort"]
            one.connection.connection_lost(None)
            assert one.sent == ([] if path == "/fault" else [path])
            assert one.state.tasks == set()

        monkeypatch.setattr(connection, "head_of", fail)
        run(main)
        assert caplog.messages[-1] == "Exception in a connection, which is closed"

    def test_who_has_gone_and_what_is_ended_are_no_faults(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            one = One()
            one.receive(post("/body", 4))
            (task,) = one.state.tasks
            await one.turn()
            one.connection.connection_lost(None)
            await one.turn()
            assert task.done()
            one = One()
            one.receive(get("/wait"))
            (task,) = one.state.tasks
            await one.turn()
            task.cancel()
            assert (await one.turn()).startswith(b"HTTP/1.1 500 ")
            assert task.cancelled(), "whoever ended it is told"

        run(main)
        assert caplog.records == []

    def test_so_is_what_was_ended_before_somebody_waits_for_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """Nor does it end the turn, in which others are to be answered."""

        async def main() -> None:
            one = One()
            one.receive(get("/ended"))
            assert (await one.turn()).startswith(b"HTTP/1.1 500 ")
            assert one.transport.events == ["eof"]
            assert not caplog.records

        run(main)

    def test_who_does_not_read_has_the_next_answer_later(self) -> None:
        async def main() -> None:
            one = One()
            one.connection.pause_writing()
            one.receive(get("/a"))
            assert (await one.turn(), one.paths) == (b"", [])
            one.connection.resume_writing()
            assert bodies(await one.turn()) == ["/a"]
            one.transport.is_slow = True
            one.receive(get("/large") + get("/b"))
            await one.turn()
            assert one.sent == ["/a"], "what the client has not taken is not sent"
            one.connection.resume_writing()
            assert bodies(await one.turn()) == ["/b"]
            assert one.sent == ["/a", "/large", "/b"]

        run(main)

    def test_a_small_answer_is_sent_when_the_client_takes_it(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait"))
            one.connection.pause_writing()
            assert bodies(await one.answer("/wait")) == ["/wait"]
            assert one.sent == []
            one.connection.resume_writing()
            await one.turn()
            assert one.sent == ["/wait"]

        run(main)

    @pytest.mark.parametrize("count", [2, 1000])
    def test_many_that_are_large(self, count: int) -> None:
        """However many: none is begun within another one."""

        async def main() -> None:
            one = One()
            heads: list[bytes] = []
            one.transport.write = lambda data: heads.append(bytes(data[:9]))  # type: ignore[method-assign]
            one.receive(get("/wait") + get("/large") * count)
            await one.answer("/wait")
            assert heads.count(b"HTTP/1.1 ") == 1 + count

        run(main)

    def test_after_one_that_took_several_turns_there_is_the_next(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/huge") + get("/b"))
            assert one.paths == ["/huge"]
            assert bodies(await one.turn())[1:] == ["/b"]

        run(main)

    def test_nothing_is_begun_for_who_has_gone(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait") + get("/b"))
            one.transport.is_closed = True
            assert await one.answer("/wait") == b""
            assert one.paths == ["/wait"]
            assert one.sent == ["/wait"]

        run(main)

    def test_an_idle_connection_is_closed(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/a"))
            await one.turn()
            one.clock.pass_by(0.9 * one.settings.keep_alive_seconds)
            one.receive(get("/b"))
            await one.turn()
            one.clock.pass_by(0.9 * one.settings.keep_alive_seconds)
            assert one.transport.events == []
            one.clock.pass_by(0.1 * one.settings.keep_alive_seconds)
            assert one.transport.events == ["close"]
            one = One()
            one.receive(get("/a"))
            await one.turn()
            one.receive(get("/wait"))
            one.clock.pass_by(2 * one.settings.keep_alive_seconds)
            await one.answer("/wait")
            one.clock.pass_by(0.9 * one.settings.keep_alive_seconds)
            assert one.transport.events == []
            one.clock.pass_by(0.1 * one.settings.keep_alive_seconds)
            assert one.transport.events == ["close"]

        run(main)

    @pytest.mark.parametrize("why", ["last", "idle", "half-closed", "wholly asked", "refused", "no request"])
    def test_who_does_not_take_what_is_left_is_cut_off(self, why: str) -> None:
        """It may be too little for anybody to have been told to pause, and a closed connection waits for it."""

        async def main() -> None:
            one = One()
            if why == "no request":
                one.clock.pass_by(one.settings.header_seconds)
            elif why == "refused":
                one.receive(get("/a") + b"fault\r\n\r\n")
            elif why == "half-closed":
                one.receive(get("/wait"))
                one.connection.eof_received()
                await one.answer("/wait")
            else:
                one.receive(get("/last" if why == "last" else "/a"))
            await one.turn()
            if why == "idle":
                one.clock.pass_by(one.settings.keep_alive_seconds)
            if why in ("refused", "last"):
                one.clock.pass_by(LINGER_SECONDS)
            if why == "wholly asked":
                assert not one.connection.eof_received()
                one.transport.close()  # as event loops do then
            assert one.transport.events[-1] == "close"
            one.connection.pause_writing()
            one.connection.resume_writing()  # a part of it is taken
            await one.turn()
            one.clock.pass_by(0.9 * one.settings.send_seconds)
            assert one.transport.events[-1] == "close"
            one.clock.pass_by(0.1 * one.settings.send_seconds)
            assert one.transport.events[-1] == "abort"
            one.connection.connection_lost(None)
            assert one.clock.timers == []

        run(main)

    def test_it_is_idle_since_its_last_answer(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/a"))
            await one.turn()
            one.clock.pass_by(0.5)
            one.receive(get("/b"))
            await one.turn()
            one.clock.pass_by(one.settings.keep_alive_seconds - 0.25)
            assert one.transport.events == []
            one.clock.pass_by(0.25)
            assert one.transport.events == ["close"]

        run(main)

    def test_it_reads_on_when_there_is_room(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait"))
            one.connection.hold()
            await one.answer("/wait")
            assert one.transport.is_read
            one.receive(get("/wait") + post("/wait/2", 2 * HELD) + bytes(HELD + 1))
            assert not one.transport.is_read
            await one.answer("/wait")
            assert one.paths[-1] == "/wait/2"
            assert not one.transport.is_read, "nobody has taken anything of what waits"
            await one.answer("/wait/2")
            assert one.transport.is_read

        run(main)


class TestRefusal:
    def test_what_follows_it_is_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            one = One()
            one.receive(b"\0", get("/never"))
            refusal = await one.turn()
            assert refusal.startswith(b"HTTP/1.1 400 ")
            assert b"\r\nserver: test\r\n" in refusal
            assert refusal.count(b"HTTP/1.1 ") == refusal.count(CLOSE) == 1
            assert one.transport.events == ["eof"]
            assert [timer.when for timer in one.clock.timers] == [one.clock.now + LINGER_SECONDS]
            one.clock.pass_by(LINGER_SECONDS)
            assert one.transport.events == ["eof", "close"]
            assert one.paths == []

        run(main)
        (record,) = caplog.records
        assert (record.levelno, record.getMessage().startswith("Refused a request: 400 ")) == (logging.WARNING, True)

    def test_with_tls_it_is_closed_at_once(self) -> None:
        async def main() -> None:
            one = One(encrypts=True)
            one.receive(b"\0")
            assert (await one.turn()).startswith(b"HTTP/1.1 400 ")
            assert one.transport.events == ["close"]

        run(main)

    @pytest.mark.parametrize("refused", [b"\0", get("http://a#b")])
    def test_it_has_its_turn(self, refused: bytes) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait") + get("/b") + refused)
            assert await one.turn() == b""
            written = await one.answer("/wait")
            assert bodies(written.partition(b"HTTP/1.1 400 ")[0]) == ["/wait", "/b"]
            assert written.count(b"HTTP/1.1 ") == 3
            assert one.transport.events == ["eof"]

        run(main)

    def test_it_reads_what_is_to_be_dropped(self) -> None:
        async def main() -> None:
            one = One()
            one.connection.hold()
            one.receive(b"\0")
            assert one.transport.is_read

        run(main)

    CHUNKED = get("/body", b"Transfer-Encoding: chunked", method=b"POST")

    def test_of_a_body_it_ends_the_request(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(self.CHUNKED)
            await one.turn()
            one.receive(b"x\r\n")
            assert (await one.turn()).startswith(b"HTTP/1.1 400 ")
            assert one.sent == [], "the handler was told that there is nobody"
            assert one.state.tasks == set()

        run(main)

    def test_of_a_body_whose_turn_has_not_come(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/wait") + self.CHUNKED + b"x\r\n")
            written = await one.answer("/wait")
            assert bodies(written.partition(b"HTTP/1.1 400 ")[0]) == ["/wait"]
            assert written.count(b"HTTP/1.1 ") == 2
            assert one.paths == ["/wait"]

        run(main)

    def test_what_came_with_its_fault_is_not_begun(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            one = One()
            one.receive(self.CHUNKED + b"x\r\n")
            assert (await one.turn()).startswith(b"HTTP/1.1 400 ")
            assert one.transport.events == ["eof"]
            assert one.paths == []

        run(main)
        (record,) = caplog.records
        assert record.getMessage().startswith("Refused a request: 400 ")

    def test_an_answer_that_has_begun_is_cut_short(self) -> None:
        async def main() -> None:
            one = One()
            one.transport.is_slow = True
            one.receive(get("/huge", b"Transfer-Encoding: chunked", method=b"POST"), b"x\r\n")
            assert (await one.turn()).count(b"HTTP/1.1 ") == 1
            assert one.transport.events == ["eof"]
            one.connection.resume_writing()
            assert await one.turn() == b""

        run(main)

    def test_of_a_body_whose_answer_was_sent_there_is_none(self) -> None:
        async def main() -> None:
            one = One()
            one.receive(get("/a", b"Transfer-Encoding: chunked", method=b"POST"))
            assert bodies(await one.turn()) == ["/a"]
            one.receive(b"x\r\n")
            assert await one.turn() == b""
            assert one.transport.events == ["eof"]

        run(main)

    @pytest.mark.parametrize("version", [b"1.1", b"1.0"])
    def test_after_the_last_answer_there_is_none(self, version: bytes) -> None:
        async def main() -> None:
            one = One()
            field = b"Connection: close" if version == b"1.1" else b"Connection: keep-alive"
            one.receive(get("/last", field, version=version) + b"\0")
            assert (await one.turn()).count(b"HTTP/1.1 ") == 1
            assert one.transport.events == ["close"]

        run(main)
