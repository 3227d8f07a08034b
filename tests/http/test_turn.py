"""Requests of one turn of the event loop, answered in step and sent together: nobody must notice but by the time."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from app.codecs.codec import Encoded
from app.http.core.exchange import JOINED, Handler, Reply, Request
from app.http.server import turn
from app.http.server.connection import Connection, connections
from app.http.server.limit import ConnectionLimit
from app.memory.accounts import MemoryAccount
from app.settings import Settings
from app.steps import here, in_step
from tests.http.test_protocol import (
    CLIENT_SECONDS,
    CLOSE,
    LIMITS,
    Application,
    Client,
    Running,
    get,
    post,
    running,
)

PATIENT = 10.0
"""How long answers may wait for each other in most of these tests, in seconds."""


class Prompt(Application):
    """Answers "POST /NAME" at once with its path, and notes when, and when that was sent.

    For /last it does not begin before it is `released`: what is sent meanwhile arrives in one turn of the event loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self.released = threading.Event()
        self.actions: dict[str, Callable[[], None]] = {}
        """What happens in the event loop's thread while a path is computed."""

    async def handle(self, request: Request) -> Reply:
        path = request.path
        if request.method != "POST":
            return await super().handle(request)
        if path == "/last":
            self.held.set()
            assert self.released.wait(CLIENT_SECONDS)
        self.actions.get(path, lambda: None)()
        self.events.put(path)
        if path.startswith("/steps"):
            for number in (1, 2):
                await in_step()
                self.events.put(f"{path} {number}")
        asyncio.get_running_loop().call_soon(self.events.put, f"turn after {path}")
        answer = path.encode() * {"/large": JOINED, "/huge": 1 << 22}.get(path, 1)
        fields = [(b"content-length", b"%d" % len(answer))]
        return Reply(200, fields, Encoded(len(answer), [answer]), lambda: self.events.put(f"sent {path}"))

    def seen(self, count: int) -> list[str]:
        """The next events, without the turns."""
        found: list[str] = []
        while len(found) < count:
            event = self.events.get(timeout=CLIENT_SECONDS)
            if not event.startswith("turn"):
                found.append(event)
        return found


@pytest.fixture(autouse=True)
def _nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if "Refused" not in record.message]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "SECONDS", PATIENT)


made: list[Connection] = []
"""The connections of the server that runs."""


def noting(
    handler: Handler, settings: Settings, limit: ConnectionLimit, memory: MemoryAccount
) -> Callable[..., Connection]:
    connect = connections(handler, settings, limit, memory)

    def make(**given: Any) -> Connection:
        connection: Connection = connect(**given)
        made.append(connection)
        return connection

    return make


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    made.clear()
    with running(LIMITS, request.param, application=Prompt(), connect=noting) as started:
        yield started


@pytest.fixture
def application(server: Running) -> Prompt:
    assert isinstance(server.application, Prompt)
    return server.application


@pytest.fixture
def clients(server: Running, application: Prompt) -> Iterator[list[Client]]:
    """Four, which have all asked before, the first one last."""
    with ExitStack() as stack:
        connected = [stack.enter_context(server.connect()) for _ in range(4)]
        for client in reversed(connected):
            client.send(ask("/first"))
            assert client.receive_response().body == b"/first"
        application.seen(8)
        yield connected


def ask(path: str, *fields: bytes, body: bytes = b"x") -> bytes:
    return post(b"Content-Length: %d" % len(body), *fields, path=path, body=body)


def in_one_turn(application: Prompt, blocking: Client, *sends: tuple[Client, bytes]) -> None:
    """Sends all of it so that the event loop finds it at once. `blocking` gets an answer to /last, too."""
    application.held.clear()
    application.released.clear()
    blocking.send(ask("/last"))
    assert application.held.wait(CLIENT_SECONDS)
    for client, data in sends:
        client.send(data)
    time.sleep(0.05)
    application.released.set()


def test_they_are_sent_together(clients: list[Client], application: Prompt) -> None:
    first, *others = clients
    paths = ["/a", "/b", "/c"]
    in_one_turn(application, first, *[(client, ask(path)) for client, path in zip(others, paths, strict=True)])
    assert first.receive_response().body == b"/last"
    for client, path in zip(others, paths, strict=True):
        assert client.receive_response().body == path.encode()
    events = application.seen(8)
    assert events[:2] == ["/last", "sent /last"]  # a turn of its own
    assert sorted(events[2:5]) == paths
    assert [f"sent {path}" for path in events[2:5]] == events[5:]


def test_none_waits_long(clients: list[Client], application: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "SECONDS", 0.001)
    paths = ["/a", "/b", "/c"]
    application.actions = dict.fromkeys(paths, lambda: time.sleep(0.01))
    in_one_turn(
        application, clients[0], *[(client, ask(path)) for client, path in zip(clients[1:], paths, strict=True)]
    )
    events = application.seen(8)[2:]
    assert sorted(events[::2]) == paths
    assert events[1::2] == [f"sent {path}" for path in events[::2]]


def test_who_is_alone_does_not_wait(clients: list[Client], application: Prompt) -> None:
    clients[0].send(ask("/a"))
    events = iter(lambda: application.events.get(timeout=CLIENT_SECONDS), "turn after /a")
    assert [event for event in events if event.endswith("/a")] == ["/a", "sent /a"]


def test_none_waits_for_a_large_one(clients: list[Client], application: Prompt) -> None:
    small, large = (clients[1], ask("/a")), (clients[2], ask("/large", body=b"x" * (JOINED + 1)))
    in_one_turn(application, clients[0], small, large)
    assert clients[2].receive_response().body == b"/large" * JOINED
    assert application.seen(6)[2:] == ["/a", "sent /a", "/large", "sent /large"]


def test_a_large_answer_does_not_wait(clients: list[Client], application: Prompt) -> None:
    in_one_turn(application, clients[0], (clients[1], ask("/large")), (clients[2], ask("/a")))
    assert clients[1].receive_response().body == b"/large" * JOINED
    assert application.seen(6)[2:] == ["/large", "sent /large", "/a", "sent /a"]


def test_one_that_the_client_does_not_take_is_not_sent(clients: list[Client], application: Prompt) -> None:
    clients[1].send(ask("/huge"))
    assert application.seen(1) == ["/huge"]
    clients[2].send(ask("/a"))
    assert application.seen(2) == ["/a", "sent /a"]
    assert clients[1].receive_response().body == b"/huge" * (1 << 22)
    assert application.seen(1) == ["sent /huge"]


def test_answers_keep_their_order(clients: list[Client], application: Prompt) -> None:
    clients[1].send(ask("/a") + ask("/b") + get("/c") + b"\0")
    a, b, c, refusal = clients[1].receive_responses()
    assert [a.body, b.body, c.json()["path"], refusal.status] == [b"/a", b"/b", "/c", 400]
    assert application.seen(4) == ["/a", "sent /a", "/b", "sent /b"]


def test_a_refusal_comes_after_them(clients: list[Client]) -> None:
    clients[1].send(ask("/a") + b"\0")
    assert [each.status for each in clients[1].receive_responses()] == [200, 400]


def test_the_last_one_comes_after_them(clients: list[Client]) -> None:
    clients[1].send(ask("/a") + ask("/b", CLOSE))
    assert [each.body for each in clients[1].receive_responses()] == [b"/a", b"/b"]
    clients[2].send(ask("/c", CLOSE))
    assert [each.body for each in clients[2].receive_responses()] == [b"/c"]


def test_a_server_that_stops_sends_them(clients: list[Client], application: Prompt) -> None:
    def stop() -> None:
        for each in made:
            each.shutdown()

    application.actions["/b"] = stop
    in_one_turn(application, clients[0], (clients[1], ask("/a")), (clients[2], ask("/b")))
    assert [each.body for each in clients[1].receive_responses()] == [b"/a"]


def test_a_client_that_is_gone(clients: list[Client], application: Prompt) -> None:
    def reset() -> None:
        clients[1].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        clients[1].socket.close()

    application.actions["/b"] = reset
    in_one_turn(application, clients[0], (clients[1], ask("/a")), (clients[2], ask("/b")))
    assert clients[2].receive_response().body == b"/b"
    assert application.seen(6)[2:] == ["/a", "/b", "sent /a", "sent /b"]


def test_a_connection_that_was_cut(clients: list[Client], application: Prompt) -> None:
    def cut() -> None:
        [connection] = [
            each for each in made if each.transport.get_extra_info("peername") == clients[1].socket.getsockname()
        ]
        connection.transport.abort()

    application.actions["/b"] = cut
    in_one_turn(application, clients[0], (clients[1], ask("/a")), (clients[2], ask("/b")))
    assert clients[2].receive_response().body == b"/b"
    assert application.seen(6)[2:] == ["/a", "/b", "sent /a", "sent /b"]


def test_handlers_go_in_step(clients: list[Client], application: Prompt) -> None:
    paths = ["/steps/a", "/steps/b", "/steps/c"]
    sends = [(client, ask(path)) for client, path in zip(clients[1:], paths, strict=True)]
    in_one_turn(application, clients[0], *sends)
    assert [each.receive_response().body for each in clients[1:]] == [path.encode() for path in paths]
    events = application.seen(14)[2:]
    order = events[:3]
    assert sorted(order) == paths
    assert events[3:9] == [f"{path} {number}" for number in (1, 2) for path in order]
    assert events[9:] == [f"sent {path}" for path in order]


def test_steps_of_a_handler_that_has_waited(clients: list[Client], application: Prompt) -> None:
    """It goes on in a task."""

    async def waits(request: Request) -> Reply:
        await asyncio.sleep(0.001)
        return await Prompt.handle(application, request)

    application.handle = waits  # type: ignore[method-assign]
    clients[1].send(ask("/steps/a"))
    assert clients[1].receive_response().body == b"/steps/a"
    assert application.seen(4) == ["/steps/a", "/steps/a 1", "/steps/a 2", "sent /steps/a"]


class Stepping:
    """A connection whose requests have so many steps each."""

    def __init__(self, name: str, turns: "Turns", *steps: int) -> None:
        self.loop: Any = turns
        self.name = name
        self._turns = turns
        self._steps = [*steps]
        self.faults: set[str] = set()

    def note(self, what: str) -> None:
        self._turns.events.append(f"{self.name} {what}")
        if what in self.faults:
            raise KeyError(what)

    def step(self) -> bool:
        self._steps[0] -= 1
        self.note("steps")
        if self._steps[0]:
            return here.has_others or self.step()
        del self._steps[0]
        self._turns.turn.answered(self)
        if self._steps:
            self._turns.turn.ready(self, is_large=False)
        return False

    def send_waiting(self) -> None:
        self.note("sends")

    def end_answer(self) -> None:
        self.note("ends")

    def drop(self) -> None:
        self.note("is dropped")


class Turns:
    """An event loop that calls one thing soon."""

    def __init__(self) -> None:
        self.turn = turn.Turn()
        self.events: list[str] = []
        self._due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        assert not self._due, "once is enough"
        self._due.append(callback)

    def end(self) -> list[str]:
        """What happens then."""
        self._due.pop()()
        events, self.events = self.events, []
        return events

    @property
    def is_over(self) -> bool:
        return not self._due

    def have(self, *connections: Stepping, is_large: bool = False, at_once: bool = False) -> None:
        for each in connections:
            self.turn.ready(each, is_large=is_large, at_once=at_once)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_all_take_a_step_before_any_takes_the_next(turns: Turns) -> None:
    turns.have(Stepping("a", turns, 3), Stepping("b", turns, 1), Stepping("c", turns, 2))
    events = turns.end()
    assert events[:5] == [f"{name} steps" for name in "abcac"]
    assert events[5:9] == ["b sends", "c sends", "b ends", "c ends"]
    assert events[9:] == ["a steps", "a sends", "a ends"], "who is left has nobody to be in step with"
    assert turns.is_over


def test_not_for_longer_than_some_time(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(turn, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(turn, "SECONDS", 1.5)
    turns.have(Stepping("a", turns, 3), Stepping("b", turns, 2), Stepping("c", turns, 2))
    over = {name: [f"{name} sends", f"{name} ends"] for name in "abc"}
    by_itself = ["a steps", "a steps", *over["a"], "b steps", *over["b"], "c steps", "c steps", *over["c"]]
    assert turns.end() == ["a steps", "b steps", *by_itself]


def test_what_is_ready_does_not_wait_for_what_is_late(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(turn, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(turn, "SECONDS", 1.5)
    turns.have(Stepping("a", turns, 1), Stepping("b", turns, 2), Stepping("c", turns, 1))
    assert turns.end()[:6] == ["a steps", "b steps", "a sends", "a ends", "b steps", "b sends"]


def test_no_more_than_some_go_together(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "TOGETHER", 2)
    turns.have(*[Stepping(name, turns, 1) for name in "abc"])
    events = turns.end()
    assert events[:6] == ["a steps", "b steps", "a sends", "b sends", "a ends", "b ends"]
    assert events[6:] == ["c steps", "c sends", "c ends"]


def test_large_ones_go_by_themselves_behind_the_others(turns: Turns) -> None:
    turns.have(Stepping("a", turns, 2), Stepping("b", turns, 2), is_large=True)
    turns.have(Stepping("c", turns, 1))
    events = turns.end()
    assert events[:3] == ["c steps", "c sends", "c ends"]
    assert events[3:] == ["a steps", "a steps", "a sends", "a ends", "b steps", "b steps", "b sends", "b ends"]


def test_all_that_are_ready_are_answered_at_once_if_one_must(turns: Turns) -> None:
    turns.have(Stepping("a", turns, 1))
    turns.have(Stepping("b", turns, 1, 1), is_large=True, at_once=True)
    events, turns.events = turns.events, []
    assert events == ["a steps", "a sends", "a ends", "b steps", "b sends", "b ends"]
    assert turns.end() == ["b steps", "b sends", "b ends"]


def test_nothing_is_left_for_the_end_of_the_turn_then(turns: Turns) -> None:
    turns.have(Stepping("a", turns, 1), at_once=True)
    assert (turns.events, turns.is_over) == (["a steps", "a sends", "a ends"], True)


def test_who_is_alone_has_its_answer_sent_at_once(turns: Turns) -> None:
    one, other = Stepping("one", turns), Stepping("other", turns)
    turns.turn.last = one
    turns.turn.answered(one)
    assert (turns.events, turns.is_over) == (["one sends", "one ends"], True)
    turns.events = []
    turns.turn.answered(other)
    turns.turn.answered(one)
    assert turns.end() == ["other sends", "one sends", "other ends", "one ends"]


def test_the_next_of_a_connection_has_the_next_turn(turns: Turns) -> None:
    turns.have(Stepping("a", turns, 1, 1), Stepping("b", turns, 1))
    assert turns.end() == ["a steps", "b steps", "a sends", "b sends", "a ends", "b ends"]
    assert turns.end() == ["a steps", "a sends", "a ends"]
    assert turns.is_over


def test_answers_of_tasks_are_sent_in_the_same_turn(turns: Turns) -> None:
    task = Stepping("task", turns)
    turns.turn.answered(task)
    turns.have(Stepping("a", turns, 1))
    assert sorted(turns.end()) == ["a ends", "a sends", "a steps", "task ends", "task sends"]
    turns.turn.answered(task)
    assert turns.end() == ["task sends", "task ends"]


def test_answers_of_tasks_do_not_wait_for_large_ones(turns: Turns) -> None:
    turns.turn.answered(Stepping("task", turns))
    turns.have(Stepping("a", turns, 1), is_large=True)
    assert turns.end() == ["task sends", "task ends", "a steps", "a sends", "a ends"]


@pytest.mark.parametrize("what", ["steps", "sends", "ends"])
def test_a_fault_in_one_is_no_fault_of_others(turns: Turns, what: str, caplog: pytest.LogCaptureFixture) -> None:
    faulty, fine = Stepping("faulty", turns, 2), Stepping("fine", turns, 2)
    faulty.faults.add(what)
    turns.have(faulty, fine)
    events = turns.end()
    of_the_other = [each.removeprefix("fine ") for each in events if each.startswith("fine")]
    assert of_the_other == ["steps", "steps", "sends", "ends"]
    assert events.count("faulty is dropped") == 1
    (record,) = caplog.records
    assert record.exc_info
    assert isinstance(record.exc_info[1], KeyError)
    caplog.clear()
    turns.have(Stepping("next", turns, 1))
    assert turns.end() == ["next steps", "next sends", "next ends"]
