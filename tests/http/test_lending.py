"""Who has a connection's socket, the event loop or a thread, and that nobody reads what nobody wants."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from app.codecs.codec import Piece
from app.http.server.moving import PROBE
from app.http.server.reader import Reader
from app.http.server.sender import AT_ONCE, ENCRYPTED, Sender
from app.http.server.transfers import LENT, NO_THREADS, Receiving, Sending
from app.memory.buffers import Buffer

SIZE = 4 * LENT


class Transport:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.reads = True
        self.is_closed = False
        self.is_aborted = False
        self.waiting = 0
        self.encrypts: Any = None
        self.socket: Any = None
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return {"sslcontext": self.encrypts, "socket": self.socket}[name]

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        assert self.reads
        assert not self.is_closed
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        assert not self.is_closed
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: Piece) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True


class Threads:
    """Has what a thread would do done by the test."""

    def __init__(self) -> None:
        self.entered: set[object] = set()
        self.lent: list[tuple[Any, Callable[[], None]]] = []

    @property
    def under_way(self) -> int:
        return len(self.entered)

    def enter(self, who: object) -> None:
        self.entered.add(who)

    def leave(self, who: object) -> None:
        self.entered.discard(who)

    def worth(self, size: int) -> bool:
        return size >= LENT

    def submit(self, work: Any, _transport: Any, _loop: Any, done: Callable[[], None]) -> bool:
        self.lent.append((work, done))
        return True


class Body:
    """An exchange that wants its body in a buffer."""

    def __init__(self, size: int) -> None:
        self.whole = bytearray(size)
        self.memory: Buffer | None = memoryview(self.whole)
        self.left = size
        self.is_lent = False

    def target(self) -> Buffer | None:
        return None if self.memory is None or not self.left else self.memory[len(self.memory) - self.left :]

    def filled(self, count: int) -> None:
        self.left -= count


class Reading:
    def __init__(self, size: int = SIZE, threads: Any = NO_THREADS, lent: Any = None, encrypts: Any = None) -> None:
        """On the socket `lent`."""
        self.transport, self.threads, self.ended = Transport(), threads, list[Any]()
        self.transport.socket, self.transport.encrypts = lent, encrypts
        made: Any = (self.transport, None, threads, self.ended.append)
        self.reader = Reader(*made)
        self.body: Any = Body(size)

    def buffer(self) -> int | None:
        buffer = self.reader.buffer(self.body)
        return None if buffer is None else len(buffer)

    def lend(self) -> tuple[Receiving, Callable[[], None]]:
        """To a thread, since PROBE bytes came at once."""
        self.reader.filled(self.body, PROBE)
        lent: tuple[Receiving, Callable[[], None]] = self.threads.lent.pop()
        return lent


def test_nothing_is_read_while_nobody_wants_it() -> None:
    one = Reading()
    for _ in range(2):
        one.reader.hold()
        assert (one.transport.reads, one.reader.is_paused) == (False, True)
    for _ in range(2):
        one.reader.want()
        assert (one.transport.reads, one.reader.is_paused) == (True, False)
    one.transport.is_closed = True
    one.reader.hold()
    assert not one.reader.is_paused, "what is closed is not touched"
    one.reader.is_held = True
    one.reader.want()
    assert one.reader.is_held


def test_without_threads_the_event_loop_reads_all() -> None:
    one = Reading()
    assert one.buffer() == SIZE
    one.reader.filled(one.body, SIZE - 1)
    assert (one.ended, one.buffer()) == ([], 1)
    one.reader.filled(one.body, 1)
    assert one.ended == [one.body]


@pytest.mark.parametrize("threads", [NO_THREADS, Threads()])
def test_what_nobody_waits_for_has_no_place(threads: Any) -> None:
    one = Reading(SIZE, threads)
    one.body.memory = None
    assert one.buffer() is None


class TestWhatHasCome:
    """It is taken without the event loop."""

    @pytest.fixture
    def pair(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        client, server = socket.socketpair()
        with client, server:
            server.setblocking(False)
            yield client, server

    def test_as_much_as_there_is(self, pair: tuple[socket.socket, socket.socket]) -> None:
        (client, server), data = pair, bytes(range(200))
        one = Reading(len(data), lent=server)
        for sent, left in ((b"", 200), (data[:150], 50), (b"", 50), (data[150:] + b"next", 0)):
            client.sendall(sent)
            one.reader.receive(one.body)
            assert one.body.left == left
        assert (one.body.whole, one.ended) == (data, [one.body])
        one.reader.receive(one.body)
        assert server.recv(10) == b"next", "what follows is no part of it"

    def test_nothing_while_others_read_or_may_read(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        held, stopped, lent = (Reading(SIZE, threads, server) for threads in (NO_THREADS, NO_THREADS, Threads()))
        held.reader.hold()
        stopped.reader.stop()  # the descriptor may be another connection's
        lent.buffer()
        lent.lend()
        encrypted = Reading(SIZE, lent=server, encrypts=object())
        for one in (held, stopped, lent, encrypted, Reading(SIZE)):
            left = one.body.left
            client.sendall(b"x")
            one.reader.receive(one.body)
            assert one.body.left == left
            assert server.recv(10) == b"x"

    def test_a_quick_client_has_a_thread(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PROBE)
        client.sendall(bytes(PROBE + 1))
        one = Reading(SIZE, Threads(), server)
        one.reader.receive(one.body)
        assert (one.body.left, one.body.is_lent) == (SIZE - PROBE, True)
        assert len(server.recv(10)) == 1, "the rest is the thread's"

    def test_who_is_gone_is_the_transport_s_to_notice(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        one = Reading(SIZE, lent=server)
        server.send(b"unread")
        client.close()
        for _ in range(2):  # it is broken, then at its end
            one.reader.receive(one.body)
            assert (one.body.left, one.ended) == (SIZE, [])


@pytest.mark.parametrize(("size", "is_large"), [(LENT - 1, False), (LENT, True)])
def test_a_large_body_is_under_way_until_it_is_there(size: int, is_large: bool) -> None:
    one = Reading(size, Threads())
    assert one.threads
    for _ in range(2):
        assert one.buffer() == (PROBE if is_large else size), "as much as shows whether the client is quick"
        assert one.threads.under_way == is_large
    one.reader.filled(one.body, PROBE - 1)
    assert one.threads.lent == [], "it is not"
    one.reader.filled(one.body, one.body.left)
    assert (one.threads.under_way, one.ended) == (0, [one.body])
    one.reader.stop()
    assert one.threads.under_way == 0


def test_a_thread_receives_the_rest_and_gives_it_back() -> None:
    one = Reading(SIZE, Threads())
    one.buffer()
    work, done = one.lend()
    assert (one.transport.reads, one.reader.is_paused, one.body.is_lent) == (False, True, True)
    assert len(work.buffer) == SIZE - PROBE
    one.reader.hold()
    assert work.is_over, "nobody wants what it would receive"
    one.reader.want()
    assert not one.transport.reads, "the thread still has it"
    work.count = PROBE - 1
    done()
    assert (one.transport.reads, one.reader.is_paused, one.body.is_lent) == (True, False, False)
    assert one.body.left == SIZE - 2 * PROBE + 1
    work, done = one.lend()
    work.count = one.body.left
    done()
    assert one.ended == [one.body]
    assert one.threads
    assert one.threads.under_way == 0


def test_where_no_descriptor_is_left_for_a_thread_the_event_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threads, "submit", lambda *_: False)
    reading = Reading(SIZE, Threads())
    reading.reader.filled(reading.body, PROBE)
    assert (reading.transport.reads, reading.reader.is_paused, reading.body.is_lent) == (True, False, False)
    reading.reader.filled(reading.body, reading.body.left)
    assert reading.ended == [reading.body]
    writing = Writing(Threads())
    writing.send([bytes(LENT)], [b"rest"])
    assert (writing.transport.written, writing.sent) == ([bytes(LENT), b"rest"], [True])


def test_what_is_held_or_closed_meanwhile_is_not_read_on() -> None:
    held, closed = Reading(SIZE, Threads()), Reading(SIZE, Threads())
    for one in (held, closed):
        one.buffer()
        work, done = one.lend()
        if one is held:
            one.reader.hold()
        else:
            one.reader.stop()
            assert one.threads
            assert (work.is_over, one.threads.under_way) == (True, 0)
            one.transport.is_closed = True
        work.count = 5
        done()
        assert not one.transport.reads
    assert (held.body.left, closed.body.left) == (SIZE - PROBE - 5, SIZE - PROBE)
    held.lend()  # of which it had not read before
    assert not held.transport.reads


class Writing:
    def __init__(self, threads: Any = NO_THREADS, encrypts: object = None) -> None:
        self.transport, self.threads, self.sent = Transport(), threads, list[bool]()
        self.transport.encrypts = encrypts
        self.loop = Loop()
        made: Any = (self.transport, self.loop, 30.0, threads, lambda: self.sent.append(True))
        self.sender = Sender(*made)

    def send(self, *groups: list[Piece], size: int | None = None) -> None:
        known = sum(len(piece) for group in groups for piece in group)
        self.sender.send(iter(groups), known if size is None else size, "/path")


class Loop:
    """Its turns are the test's."""

    def __init__(self) -> None:
        self.turns: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.turns.append(callback)

    def call_later(self, _seconds: float, _callback: Any, *_: Any) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(0, print, (), self)  # type: ignore[arg-type]

    call_at = call_later

    def time(self) -> float:
        return 0.0

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _: Any) -> None: ...


def test_so_much_is_handed_over_in_one_turn() -> None:
    one = Writing()
    one.send([b"head", bytes(2 * AT_ONCE)], [b"tail"])
    assert sum(map(len, one.transport.written)) == AT_ONCE
    assert not one.sender.is_free()
    one.loop.turns.pop()()
    one.loop.turns.pop()()
    assert b"".join(one.transport.written) == b"head" + bytes(2 * AT_ONCE) + b"tail"
    assert (one.sent, one.sender.is_free(), one.loop.turns) == ([True], True, [])
    assert not one.transport.is_aborted


@pytest.mark.parametrize(("encrypts", "most"), [(None, AT_ONCE), (True, ENCRYPTED)])
def test_so_much_is_handed_over_at_one_time(encrypts: object, most: int) -> None:
    one = Writing(encrypts=encrypts)
    one.send([bytes(2 * most + 1)])
    while one.loop.turns:
        one.loop.turns.pop()()
    assert [len(each) for each in one.transport.written] == [most, most, 1]


def test_no_more_is_made_than_the_client_takes() -> None:
    one = Writing()
    one.sender.pause()
    one.send([b"some"])
    assert (one.transport.written, one.sent, one.sender.is_free()) == ([], [], False)
    one.sender.resume()
    one.sender.go_on()
    assert (one.transport.written, one.sent, one.sender.is_free()) == ([b"some"], [True], True)
    one.sender.go_on()
    assert (one.sent, one.transport.is_aborted) == ([True], False)


def test_a_client_that_does_not_keep_up_is_watched() -> None:
    one = Writing()
    watch = one.sender._watch = mock.Mock()
    one.sender.pause()
    assert not one.sender.is_free()
    one.sender.resume()
    assert one.sender.is_free()
    one.sender.pause()
    one.sender.stop()
    assert one.sender.is_free()
    assert watch.mock_calls == [mock.call.start(), mock.call.stop(), mock.call.start(), mock.call.stop()]


@pytest.mark.parametrize("size", [LENT - 1, LENT])
def test_a_large_answer_is_a_threads(size: int) -> None:
    threads = Threads()
    one = Writing(threads)
    one.send([bytes(size)])
    if size < LENT:
        assert (threads.lent, threads.under_way, one.sent) == ([], 0, [True])
        one.sender.pause()
        one.send([bytes(size)])
        assert threads.under_way == 0
        return
    work, done = threads.lent.pop()
    assert isinstance(work, Sending)
    assert threads.under_way == 1
    one.sender.go_on()
    assert (threads.lent, one.transport.written) == ([], []), "the thread has it"
    work.sent, work.rest = size - 4, [b"rest"]
    assert next(work.groups) == [bytes(size)]
    done()
    assert (one.transport.written, one.sent, threads.under_way) == ([b"rest"], [True], 0)
    one.sender.stop()
    assert threads.under_way == 0


@pytest.mark.parametrize("by_thread", [False, True])
def test_what_is_left_of_a_large_answer_is_a_small_one(by_thread: bool) -> None:
    threads = Threads()
    one = Writing(threads)
    one.transport.waiting = not by_thread

    def made() -> Iterator[list[Piece]]:
        yield [bytes(LENT)]
        one.transport.waiting = 0
        yield [b"tail"]

    one.sender.send(made(), LENT + 4, "/path")
    if by_thread:
        work, done = threads.lent.pop()
        work.sent = len(next(work.groups)[0])
        done()
    assert (threads.lent, one.transport.written[-1], one.sent) == ([], b"tail", [True])


def test_what_is_handed_over_goes_before_what_a_thread_sends() -> None:
    threads = Threads()
    one = Writing(threads)
    one.transport.waiting = 1
    one.send([bytes(SIZE)])
    assert threads.lent == []
    assert sum(map(len, one.transport.written)) == SIZE


def test_an_answer_that_nobody_takes_any_more() -> None:
    threads = Threads()
    one = Writing(threads)
    one.send([bytes(SIZE)])
    work, done = threads.lent.pop()
    one.sender.stop()
    assert (work.is_over, threads.under_way, one.sender.is_free()) == (True, 0, True)
    work.rest = [b"rest"]
    done()
    assert (one.transport.written, one.sent) == ([], [])


@pytest.mark.parametrize("by_thread", [False, True])
def test_an_answer_that_cannot_be_made_is_cut_short(by_thread: bool, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Iterator[list[Piece]]:
        yield [b"some"]
        raise RuntimeError("out of order")

    one = Writing(Threads() if by_thread else NO_THREADS)
    one.sender.send(fail(), SIZE, "/path")
    if by_thread:
        work, done = one.threads.lent.pop()
        work.error, work.rest = RuntimeError("out of order"), [b"rest"]
        done()
    assert b"rest" not in one.transport.written
    assert one.transport.is_aborted
    assert caplog.messages == ["Exception in making the answer to /path"]
    assert one.sent == []
