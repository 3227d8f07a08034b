"""Timers of a connection, whose time passes when the test says so."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.http.server.watches import (
    FAREWELL_SECONDS,
    GONE_SECONDS,
    HALF_CLOSED_SECONDS,
    LEAST_PROGRESS,
    Deadline,
    SendWatch,
    Watch,
    has_all,
    has_gone,
)
from tests.http.clock import Timers
from tests.http.load import wait_until

Pair = tuple[socket.socket, socket.socket]


class Transport:
    """One whose client takes what the test says."""

    def __init__(self, connected: socket.socket | None = None) -> None:
        self.connected = connected
        self.waiting = 0
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> Any:
        assert name == "socket"
        return self.connected

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["TCP", "Unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A client's socket, and the server's of the same connection."""
    if request.param == socket.AF_UNIX:
        client, server = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            server, _ = listening.accept()
    with client, server:
        yield client, server


def watched(connected: socket.socket | None = None) -> tuple[Any, Any]:
    return Transport(connected), Timers()


def test_a_deadline_runs_from_its_first_start_on() -> None:
    (_, clock), reached = watched(), list[float]()
    deadline = Deadline(clock)

    def note() -> None:
        reached.append(clock.now)

    deadline.stop()
    deadline.start(10.0, note)
    clock.pass_by(6.0)
    deadline.start(10.0, note)
    clock.pass_by(3.9)
    assert reached == []
    clock.pass_by(100.0)
    assert reached == [10.0]
    deadline.start(10.0, note)
    deadline.stop()
    clock.pass_by(100.0)
    assert reached == [10.0]
    deadline.start(1.0, note)
    clock.pass_by(1.0)
    assert reached == [10.0, clock.now]


def test_who_takes_enough_of_an_answer_each_time_may_take_all_day(caplog: pytest.LogCaptureFixture) -> None:
    transport, clock = watched()
    watch = SendWatch(transport, clock, 30.0)
    transport.waiting = 6 * LEAST_PROGRESS
    watch.start()
    clock.pass_by(29.0)
    watch.start()  # more waits for it
    for _ in range(5):
        transport.waiting -= LEAST_PROGRESS
        clock.pass_by(30.0)
        assert not transport.is_aborted
    transport.waiting -= LEAST_PROGRESS - 1
    clock.pass_by(29.0)
    assert not transport.is_aborted
    assert not caplog.records
    clock.pass_by(1.0)
    assert transport.is_aborted
    assert "for 30 seconds" in caplog.text


def test_nobody_is_dropped_for_whom_nothing_waits() -> None:
    transport, clock = watched()
    watch = SendWatch(transport, clock, 30.0)
    transport.waiting = 1
    watch.start()
    clock.pass_by(29.0)
    watch.stop()
    clock.pass_by(100.0)
    assert not transport.is_aborted


def test_a_farewell_lasts_until_all_is_there(pair: Pair) -> None:
    client, server = pair
    transport, clock = watched(server)
    watch = Watch(transport, clock, FAREWELL_SECONDS, has_all)
    server.setblocking(False)
    sent = 0
    try:
        while True:
            sent += server.send(bytes(1 << 20))
    except BlockingIOError:
        pass
    watch.start()
    clock.pass_by(10 * FAREWELL_SECONDS)
    assert not transport.is_aborted
    while sent:
        sent -= len(client.recv(1 << 20))

    def is_over() -> bool:
        clock.pass_by(0.9 * FAREWELL_SECONDS)  # the system says when all has come
        return bool(transport.is_aborted)

    wait_until(is_over)
    transport.is_aborted = False
    watch.start()
    watch.stop()
    clock.pass_by(10 * FAREWELL_SECONDS)
    assert not transport.is_aborted


def test_who_sends_no_more_is_asked_once_whether_it_is_there(pair: Pair) -> None:
    client, server = pair
    transport, clock = watched(server)
    probes = list[float]()

    def probe() -> None:
        probes.append(clock.now)
        server.send(b"are you there?")

    watch = Watch(transport, clock, GONE_SECONDS, has_gone)
    watch.start_after(HALF_CLOSED_SECONDS, probe)
    client.shutdown(socket.SHUT_WR)
    clock.pass_by(100 * HALF_CLOSED_SECONDS)
    assert probes == [HALF_CLOSED_SECONDS]
    assert not transport.is_aborted, "it only sends no more"
    client.close()  # with something that it did not read

    def is_noticed() -> bool:
        clock.pass_by(GONE_SECONDS)
        return bool(transport.is_aborted)

    wait_until(is_noticed)
    transport.is_aborted = False
    clock.pass_by(100 * HALF_CLOSED_SECONDS)
    assert not transport.is_aborted, "nobody looks any more"
    watch.start_after(HALF_CLOSED_SECONDS, probe)
    watch.stop()
    clock.pass_by(100 * HALF_CLOSED_SECONDS)
    assert not transport.is_aborted
    assert len(probes) == 1
