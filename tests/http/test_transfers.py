"""Threads that have connections' sockets for a while."""

import asyncio
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from uvicorn.server import ServerState

from app.codecs.codec import Encoded, Piece
from app.devices.cpu.llvm.compiler import Compiler
from app.http.core.exchange import Disconnected, Reply, Request
from app.http.server import machine, reader, transfers
from app.http.server.connection import Connection
from app.http.server.exchange import HELD, Exchange
from app.http.server.limit import ConnectionLimit
from app.http.server.machine import overcommitted, suited
from app.http.server.moving import PAUSE_SECONDS, PROBE, Moving
from app.http.server.scratch import LARGE, Scratch
from app.http.server.transfers import ALONE, LENT, Receiving, Sending, Transfers, split
from app.http.server.turn import Turn
from app.main import _transfers
from app.memory.accounts import MemoryAccount
from app.memory.buffers import Buffer
from app.settings import GIB, Settings
from tests.conftest import ServerFactory

SIZE = 6 << 20
DATA = np.random.default_rng(0).bytes(SIZE)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture(scope="module")
def moving(compiler: Compiler) -> Moving:
    return Moving(compiler.functions)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's socket, and one for a thread."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as lent,
    ):
        lent.setblocking(False)
        yield client, lent


Pair = tuple[socket.socket, socket.socket]


def test_it_receives_what_was_asked_for_and_no_more(pair: Pair, moving: Moving) -> None:
    client, lent = pair
    sender = threading.Thread(target=client.sendall, args=(DATA + b"next",))
    sender.start()
    work = Receiving(memoryview(bytearray(SIZE)))
    while work.count < SIZE:  # on a busy machine it pauses
        work.run(lent.fileno(), moving)
    sender.join()
    assert (work.count, bytes(work.buffer)) == (SIZE, DATA)
    assert lent.recv(100) == b"next"
    assert lent.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1, "the event loop is woken by any byte"


def trickle(client: socket.socket, is_over: threading.Event) -> None:
    """Too slowly for a thread."""
    while not is_over.wait(PAUSE_SECONDS / 10):
        client.send(b"x" * (PROBE // 40))


@pytest.mark.parametrize("act", ["pauses", "trickles", "ends", "resets"])
def test_no_client_keeps_a_thread(pair: Pair, moving: Moving, act: str) -> None:
    client, lent = pair
    client.sendall(DATA[:1000])
    is_over = threading.Event()
    slow = threading.Thread(target=trickle, args=(client, is_over))
    if act == "trickles":
        slow.start()
    elif act == "ends":
        client.shutdown(socket.SHUT_WR)
    elif act == "resets":
        lent.send(b"unread")
        client.close()
    work = Receiving(memoryview(bytearray(SIZE)))
    work.run(lent.fileno(), moving)
    is_over.set()
    if act == "trickles":
        slow.join()
    assert work.count < SIZE, "it is left before all has come"
    assert bytes(work.buffer[: min(work.count, 1000)]) == DATA[: min(work.count, 1000)]
    assert lent.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    if act in ("pauses", "ends"):
        assert work.count == 1000, "what came before is counted"


def test_a_client_that_trickles_is_left_at_its_first_pause(pair: Pair, moving: Moving) -> None:
    client, lent = pair
    is_over = threading.Event()
    slow = threading.Thread(target=trickle, args=(client, is_over))
    slow.start()
    took = []
    for _ in range(10):
        started = time.monotonic()
        assert moving.receive(lent.fileno(), memoryview(bytearray(SIZE))) < PROBE
        took.append(time.monotonic() - started)
    is_over.set()
    slow.join()
    assert min(took) < 3 * PAUSE_SECONDS


def test_a_body_that_is_there_is_not_waited_for(pair: Pair, moving: Moving) -> None:
    client, lent = pair
    took = []
    for _ in range(10):
        client.sendall(DATA[:1000])
        started = time.monotonic()
        assert moving.receive(lent.fileno(), memoryview(bytearray(1000))) == 1000
        took.append(time.monotonic() - started)
    assert min(took) < PAUSE_SECONDS


@pytest.mark.skipif(not hasattr(socket, "MSG_MORE"), reason="only Linux has it")
def test_the_system_waits_for_more_only_where_there_is_more(pair: Pair, moving: Moving) -> None:
    client, lent = pair
    were_held = []
    for _ in range(5):
        assert moving.send(lent.fileno(), b"head", more=True) == 4
        were_held.append(not select.select([client], [], [], 0)[0])  # for 0.2 s, which may pass on a busy machine
        assert moving.send(lent.fileno(), b"tail", more=False) == 4
        assert select.select([client], [], [], 0.1)[0]
        assert client.recv(8, socket.MSG_WAITALL) == b"headtail"
    assert any(were_held)


def test_no_client_keeps_a_thread_by_bytes_that_are_few_and_many_times(moving: Moving) -> None:
    client, lent = socket.socketpair()  # whose other side is woken by any byte
    with client, lent:
        lent.setblocking(False)
        is_over = threading.Event()
        slow = threading.Thread(target=trickle, args=(client, is_over))
        slow.start()
        work = Receiving(memoryview(bytearray(SIZE)))
        work.run(lent.fileno(), moving)
        is_over.set()
        slow.join()
    assert work.count < SIZE, "it is left before all has come"
    assert bytes(work.buffer[: work.count]) == b"x" * work.count


@pytest.mark.parametrize("is_local", [False, True])
def test_all_is_sent_to_a_client_that_takes_it(pair: Pair, moving: Moving, is_local: bool) -> None:
    client, lent = socket.socketpair() if is_local else pair
    lent.setblocking(False)
    pieces: list[Piece] = [b"head", b"", memoryview(bytearray(DATA)), memoryview(bytearray()), b"tail"]
    received = bytearray()

    def take() -> None:
        while len(received) < SIZE + 8:
            received.extend(client.recv(1 << 16))

    taker = threading.Thread(target=take)
    taker.start()
    work = Sending(iter([pieces[:2], pieces[2:3], pieces[3:]]))
    while work.sent < SIZE + 8:  # on a busy machine it pauses
        work.run(lent.fileno(), moving)
    taker.join()
    assert (work.sent, work.rest) == (SIZE + 8, [])
    assert received == b"head" + DATA + b"tail"
    for each in (client, lent):
        each.close()


def test_what_a_slow_client_does_not_take_is_left_in_order(pair: Pair, moving: Moving) -> None:
    client, lent = pair
    groups: list[list[Piece]] = [[b"head", DATA[: SIZE // 2]], [DATA[SIZE // 2 :]], [b"tail"]]
    work = Sending(iter(groups))
    work.run(lent.fileno(), moving)
    left = b"".join(map(bytes, [*work.rest, *(piece for group in work.groups for piece in group)]))
    whole = b"head" + DATA + b"tail"
    assert 0 < work.sent < len(whole)
    assert left == whole[work.sent :]
    received = bytearray()
    while len(received) < work.sent:
        received += client.recv(1 << 20)
    assert received == whole[: work.sent]


def test_who_is_gone_is_sent_nothing_and_ends_no_process(moving: Moving) -> None:
    """The system would, by SIGPIPE, if Python had not told it otherwise."""
    client, lent = socket.socketpair()
    with lent:
        lent.setblocking(False)
        client.close()
        work = Sending(iter([[DATA]]))
        work.run(lent.fileno(), moving)
        assert (work.sent, work.rest) == (0, [DATA])


def test_nothing_goes_on_that_nobody_wants(pair: Pair, moving: Moving) -> None:
    client, lent = pair
    client.sendall(DATA[:1000])
    receiving, sending = Receiving(memoryview(bytearray(SIZE))), Sending(iter([[DATA]]))
    receiving.is_over = sending.is_over = True
    receiving.run(lent.fileno(), moving)
    sending.run(lent.fileno(), moving)
    assert (receiving.count, sending.sent) == (0, 0)


class Steady:
    """Moves what a client that keeps up makes possible."""

    def __init__(self) -> None:
        self.more: list[bool] = []

    def receive(self, _connected: int, buffer: Buffer) -> int:
        return min(len(buffer), PROBE)

    def send(self, _connected: int, piece: Piece, *, more: bool) -> int:
        self.more.append(more)
        return min(len(piece), PROBE)


def test_a_client_that_keeps_up_keeps_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is little, since it is all of a piece, is no pause."""
    monkeypatch.setattr(transfers, "perf_counter", lambda: 0.0)
    steady: Any = Steady()
    receiving, sending = Receiving(memoryview(bytearray(3 * PROBE + 1))), Sending(iter([[b"head", DATA], [b"tail"]]))
    receiving.run(0, steady)
    assert receiving.count == 3 * PROBE + 1
    sending.run(0, steady)
    assert sending.sent == SIZE + 8
    assert steady.more == [True, *[False] * (len(steady.more) - 1)]


@pytest.mark.parametrize("size", [0, 1, 4, 5, 9, 10, 11])
def test_split(size: int) -> None:
    before, after = split([b"abcd", b"", b"efghij"], size)
    assert b"".join(before) == b"abcdefghij"[:size]
    assert b"".join(after) == b"abcdefghij"[size:]


def test_a_large_body_by_itself_is_the_event_loops(moving: Moving) -> None:
    threads = Transfers(1, moving)
    one, other = object(), object()
    threads.enter(one)
    threads.enter(one)
    assert not threads.worth(ALONE - 1)
    assert threads.worth(ALONE)
    threads.enter(other)
    assert threads.worth(LENT)
    assert not threads.worth(LENT - 1)
    threads.idle = 0
    assert not threads.worth(ALONE)
    threads.idle = 1
    for _ in range(2):
        threads.leave(one)
    assert not threads.worth(LENT)
    threads.enter(one)
    assert threads.worth(LENT)


class Failing:
    """Work that does."""

    is_over = False

    def run(self, lent: int, moving: Moving) -> None:
        raise RuntimeError("out of order")


def test_work_that_fails_gives_its_socket_and_its_thread_back(
    pair: Pair, moving: Moving, caplog: pytest.LogCaptureFixture
) -> None:
    transport: Any = SimpleNamespace(get_extra_info=lambda _: pair[1])
    open_files = len(os.listdir("/proc/self/fd"))

    async def work() -> list[str]:
        threads, done = Transfers(1, moving), list[str]()
        loop = asyncio.get_running_loop()
        for name in ("first", "second"):
            ended = asyncio.Event()
            threads.submit(Failing(), transport, loop, ended.set)
            assert threads.idle == 0
            await asyncio.wait_for(ended.wait(), 10)
            assert threads.idle == 1
            done.append(name)
        return done

    assert asyncio.run(work()) == ["first", "second"]
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == 2 * ["out of order"]
    assert pair[1].getsockname(), "the thread had a descriptor of its own"
    assert len(os.listdir("/proc/self/fd")) == open_files, "which it has closed"


def test_a_socket_that_no_descriptor_is_left_for_is_not_lent(pair: Pair, moving: Moving) -> None:
    async def work() -> None:
        threads, closed = Transfers(1, moving), socket.socket()
        closed.close()
        sockets = iter([closed, pair[1]])
        transport: Any = SimpleNamespace(get_extra_info=lambda _: next(sockets))
        ended = asyncio.Event()
        receiving = Receiving(memoryview(bytearray(4)))
        assert not threads.submit(receiving, transport, asyncio.get_running_loop(), ended.set)
        assert threads.idle == 1
        pair[0].sendall(b"some")
        assert threads.submit(receiving, transport, asyncio.get_running_loop(), ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        assert bytes(receiving.buffer) == b"some"

    asyncio.run(work())


def test_what_is_wrong_in_making_the_pieces_is_kept_for_the_event_loop(pair: Pair, moving: Moving) -> None:
    error = RuntimeError("out of order")

    def groups() -> Iterator[list[Piece]]:
        yield [b"some"]
        raise error

    work = Sending(groups())
    work.run(pair[1].fileno(), moving)
    assert (work.sent, work.rest, work.error) == (4, [], error)
    assert pair[0].recv(10) == b"some"


def test_threads_are_there_before_anything_is_lent(moving: Moving) -> None:
    """One that could not be started later would cost a body, and a descriptor for good."""
    before = set(threading.enumerate())
    made = Transfers(2, moving)
    started = set(threading.enumerate()) - before
    assert made.idle == len(started) == 2
    del made
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_each_has_a_thread_and_nothing_is_kept_of_what_is_done(pair: Pair, moving: Moving) -> None:
    transport: Any = SimpleNamespace(get_extra_info=lambda _: pair[1])
    both = threading.Barrier(2)

    class Meeting:
        is_over = False

        def run(self, lent: int, moving: Moving) -> None:
            both.wait(10)

    async def work() -> None:
        threads, ended = Transfers(2, moving), asyncio.Semaphore(0)
        for _ in range(2):
            met = [Meeting(), Meeting()]
            for each in met:
                threads.submit(each, transport, asyncio.get_running_loop(), ended.release)
            for _ in range(2):
                await asyncio.wait_for(ended.acquire(), 20)
        kept = weakref.WeakSet(met)
        del met, each
        end = time.monotonic() + 10
        while kept and time.monotonic() < end:  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.001)
        assert not kept

    asyncio.run(work())
    assert not both.broken


def test_without_llvm_the_event_loop_does_all(compiler: Compiler) -> None:
    for loops, count, made in ((compiler, 2, 2), (None, 2, 0), (compiler, 0, 0)):
        service: Any = SimpleNamespace(loops=loops)
        assert _transfers(Settings(transfer_threads=count), service).idle == made


class Noting(Transfers):
    """Knows what was done."""

    def __init__(self, moving: Moving) -> None:
        super().__init__(2, moving)
        self.done: list[Any] = []

    def submit(self, work: Any, *arguments: Any) -> bool:
        self.done.append(work)
        return super().submit(work, *arguments)


def test_of_a_large_body_that_nobody_takes_only_what_came_with_the_header_is_read() -> None:
    held: list[bool] = []
    connection: Any = SimpleNamespace(hold=lambda: held.append(True))
    for length, is_held in ((LARGE + 1, True), (LARGE, False)):
        held.clear()
        exchange = Exchange(connection, "POST", "/", "1.1", length, keep_alive=True)
        exchange.add(b"x")
        assert (exchange.is_full(), bool(held)) == (is_held, is_held)
        assert asyncio.run(exchange.read()) == b"x"
        exchange.add(bytes(HELD))
        assert not exchange.is_full(), "what is taken piece by piece comes in larger ones"


def echoing(parted: list[bool]) -> Callable[[Request], Any]:
    async def handler(request: Request) -> Reply:
        body = memoryview(bytearray(request.body.announced))
        first = await request.body.read()
        body[: len(first)] = first
        try:
            await request.body.fill(body[len(first) :])
        except Disconnected:
            parted.append(True)
            raise
        return Reply(200, [(b"content-length", b"%d" % len(body))], Encoded(len(body), (body,)))

    return handler


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_connection_lends_its_socket_and_has_it_back(
    hangs_up: bool, moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "ALONE", LENT)
    monkeypatch.setattr(reader, "PROBE", 1)  # whatever the loop finds first is enough
    threads, parted = Noting(moving), list[bool]()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % SIZE

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            if hangs_up:
                client.sendall(head + DATA[: SIZE // 2])
                return b""
            with client.makefile("rb") as received:
                for _ in range(2):
                    client.sendall(head + DATA)
                    while received.readline() != b"\r\n":
                        pass
                    answer = received.read(SIZE)
                return answer

    async def serve() -> bytes:
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            settings, limit, memory = Settings(), ConnectionLimit(), MemoryAccount(GIB)
            return Connection(echoing(parted), settings, limit, ServerState(), loop, Turn(), Scratch(), memory, threads)

        async with await loop.create_server(make, "127.0.0.1", 0) as server:
            answer = await asyncio.to_thread(ask, server.sockets[0].getsockname()[1])
            end = loop.time() + 10
            while (threads.idle < 2 or (hangs_up and not parted)) and loop.time() < end:  # noqa: ASYNC110 - of the loop
                await asyncio.sleep(0.01)
            return answer

    answer = asyncio.run(serve())
    assert threads.idle == 2
    assert any(isinstance(work, Receiving) and work.count for work in threads.done)
    if hangs_up:
        assert parted == [True]
    else:
        assert answer == DATA
        assert any(isinstance(work, Sending) and work.sent for work in threads.done)


@pytest.mark.parametrize(
    ("cpus", "memory", "gpus", "given", "count"),
    [
        (2, 64, None, {}, 1),
        (4, 64, None, {}, 1),
        (8, 64, None, {}, 2),
        (16, 64, None, {}, 4),
        (128, 512, None, {}, 4),
        (16, 16, None, {}, 2),
        (16, 4, None, {}, 1),
        (16, 64, "turns", {}, 2),
        (16, 64, "shared", {}, 4),
        (16, 64, "turns", {"gpus": "none"}, 4),
        (16, 64, None, {"shared_memory": True}, 1),
        (16, 64, None, {"max_batch": 8}, 1),
    ],
)
def test_as_many_processes_as_suit_the_machine(
    monkeypatch: pytest.MonkeyPatch, cpus: int, memory: int, gpus: str | None, given: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr(machine, "processors", lambda: cpus)
    monkeypatch.setattr(machine, "memory_bytes", lambda: memory * GIB)
    monkeypatch.setattr(machine, "has_gpu", lambda: gpus is not None)
    found, why = suited(Settings(**given), gpus_are_shared=gpus == "shared")
    assert found == count
    assert why


def test_a_machine_with_less_memory_than_requests_may_hold_is_told_of(
    monkeypatch: pytest.MonkeyPatch, start_server: ServerFactory
) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 6 * GIB)
    assert overcommitted(Settings(workers=1)) == overcommitted(Settings(workers=3, max_memory_bytes=2 * GIB)) == ""
    assert "Requests may hold 8.00 GiB (max_memory_bytes, in each of 2 processes), and there are 6.00 GiB" in (
        overcommitted(Settings(workers=2))
    )
    server = start_server("--max-memory-bytes", str(1 << 50))
    assert "Requests may hold 1048576.00 GiB (max_memory_bytes), and there are " in server.log.read_text()
