"""What is noted of each request, around a handler of the test's own."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app import logs
from app.codecs.codec import Encoded
from app.engine.service import Draining
from app.http.core.exchange import Reply, Request
from app.http.telemetry import access_log as access_logs
from app.http.telemetry.access_log import AccessLog
from app.http.telemetry.requests import observing
from app.http.telemetry.tracing import Parent, Traced
from app.stages import Stages

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = Parent("1" * 32, "2" * 16, False, "")


class Noted:
    """Metrics, log and traces, which note what they are told."""

    def __init__(self) -> None:
        self.counted: list[tuple[Any, ...]] = []
        self.lines: list[tuple[Any, ...]] = []
        self.traces: list[tuple[Any, ...]] = []
        self.is_traced = False
        self.parent: Parent | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.counted.append((name, *given))

    def add(self, request: Request, *told: Any) -> None:
        self.lines.append(told)

    def begin(self, request: Request) -> Parent | None:
        if self.is_traced:
            request.stages = Stages()
        return self.parent

    def end(self, request: Request, stages: Stages, parent: Parent | None, status: int, sent: int) -> Traced:
        assert all(stages.begun <= stage.begun <= stage.ended for stage in stages.done)
        self.traces.append(([stage.name for stage in stages.done], parent, status, sent))
        return Traced(TRACE, SPAN)


def request_of(*fields: tuple[bytes, bytes], method: str = "POST", client: Any = ("192.0.2.1", 7)) -> Request:
    body: Any = SimpleNamespace(received=11)
    return Request(method, "/a b", b"/a%20b", b"", list(fields), body, client=client)


async def found(request: Request) -> Reply:
    request.route = "/{name}"
    return Reply(200, [(b"x", b"y")], Encoded(5, (b"found",)))


async def noted(
    request: Request,
    handler: Callable[[Request], Awaitable[Reply]] = found,
    *,
    logs_it: bool = True,
    traces: bool = False,
    noting: Noted | None = None,
) -> tuple[Noted, Reply]:
    made: Any = noting or Noted()
    reply = await observing(handler, made, made if logs_it else None, made if traces else None)(request)  # type: ignore[arg-type]
    return made, reply


def test_an_answer_is_noted_when_it_is_sent() -> None:
    async def main() -> None:
        request = request_of()
        noting, reply = await noted(request)
        assert noting.counted == noting.lines == []
        reply.sent()
        ((name, *counted, seconds),) = noting.counted
        assert (name, counted) == ("requested", ["/{name}", "POST", 200, 11, 5])
        assert 0 < seconds < 10
        assert noting.lines == [(200, seconds, 11, 5, None, None, ())]
        assert reply.headers == [(b"x", b"y"), (b"x-request-id", request.id.encode())]

    asyncio.run(main())


def test_what_there_was_to_do_when_it_is_sent_is_done_before() -> None:
    async def main() -> None:
        done: list[int] = []
        noting = Noted()

        async def handler(request: Request) -> Reply:
            return Reply(200, [], Encoded(0, ()), lambda: done.append(len(noting.counted)))

        _, reply = await noted(request_of(), handler, noting=noting)
        reply.sent()
        assert done == [0]

    asyncio.run(main())


def test_of_an_answer_to_head_no_byte_is_sent() -> None:
    async def main() -> None:
        noting, reply = await noted(request_of(method="HEAD"))
        reply.sent()
        assert noting.counted[0][:6] == ("requested", "/{name}", "HEAD", 200, 11, 0)
        assert noting.lines[0][3] == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        (b"mine-1", True),
        (b"x" * 128, True),
        (b"!~", True),
        (b"x" * 129, False),
        (b"a b", False),
        (b"", False),
        (b"\xff", False),
        (b"x\n", False),
    ],
)
def test_an_id_is_the_clients_if_it_can_be_logged(given: bytes, is_taken: bool) -> None:
    async def main() -> None:
        request = request_of((b"x-request-id", given))
        _, reply = await noted(request)
        assert reply.headers[-1] == (b"x-request-id", request.id.encode())
        assert (request.id.encode() == given) == is_taken
        assert is_taken or re.fullmatch("[0-9a-f]{32}", request.id)

    asyncio.run(main())


def test_ids_differ() -> None:
    async def main() -> None:
        requests = [request_of() for _ in range(10)]
        for request in requests:
            await noted(request)
        assert len({request.id for request in requests}) == 10

    asyncio.run(main())


@pytest.mark.parametrize(("error", "status", "reason"), [(Draining(), 503, "draining"), (KeyError(), 500, "fault")])
def test_what_is_raised_is_a_problem(
    error: Exception, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody expected is logged."""

    async def main() -> str:
        async def handler(request: Request) -> Reply:
            raise error

        request = request_of()
        noting, reply = await noted(request, handler)
        assert reply.status == status
        reply.sent()
        assert noting.counted[0][:4] == ("requested", "none", "POST", status)
        assert noting.counted[1] == ("refused", reason)
        assert noting.counted[0][5] == reply.length == noting.lines[0][3] > 0
        return request.id

    id_ = asyncio.run(main())
    told = [(record.getMessage(), record.__dict__["request_id"]) for record in caplog.records]
    assert told == ([("Exception in answering /a b", id_)] if status == 500 else [])


def test_what_is_given_up_as_the_service_ends_is_noted() -> None:
    async def main() -> None:
        noting = Noted()

        async def handler(request: Request) -> Reply:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await noted(request_of(), handler, noting=noting)
        assert noting.counted[0][:6] == ("requested", "none", "POST", 500, 11, 0)
        assert 0 < noting.counted[0][6] < 10

    asyncio.run(main())


def test_a_dispatch_is_counted_and_let_go() -> None:
    async def main() -> None:
        prepared: Any = SimpleNamespace(name="CELU")
        outcome: Any = SimpleNamespace(ran=SimpleNamespace(device="numpy"))

        async def handler(request: Request) -> Reply:
            request.prepared, request.key = prepared, "mine"
            if request.method == "POST":
                request.outcome = outcome
            return Reply(200, [], Encoded(3, (b"abc",)))

        for method, device in (("POST", "numpy"), ("PUT", None)):
            request = request_of(method=method, client=None)
            noting, reply = await noted(request, handler)
            reply.sent()
            assert noting.counted[1] == ("asked_with_key", "mine", 200, 11, 3)
            assert noting.counted[2:] == ([("dispatched", prepared, outcome)] if device else [])
            ((*_, operator, ran, _),) = noting.lines
            assert (operator, ran) == ("CELU", device)
            assert (request.prepared, request.outcome) == (None, None), "the connection keeps the request"
        noting, reply = await noted(request_of(), handler, logs_it=False)
        reply.sent()
        assert (len(noting.counted), noting.lines) == (3, [])

    asyncio.run(main())


def test_one_that_is_traced() -> None:
    async def main() -> None:
        noting = Noted()
        noting.is_traced = True
        noting.parent = PARENT
        _, reply = await noted(request_of(), traces=True, noting=noting)
        reply.sent()
        assert noting.traces == [(["send"], PARENT, 200, 5)]
        (name, route, seconds, *trace), (_, *_, same_seconds) = noting.counted
        assert (name, route, trace) == ("exemplify", "/{name}", [TRACE, SPAN])
        assert seconds == same_seconds
        assert noting.lines[0][-1] == (TRACE, SPAN)

    asyncio.run(main())


@pytest.mark.parametrize("parent", [None, PARENT])
def test_one_that_is_not_traced_where_others_are(parent: Parent | None) -> None:
    async def main() -> None:
        noting = Noted()
        noting.parent = parent
        _, reply = await noted(request_of(), traces=True, noting=noting)
        reply.sent()
        assert noting.traces == []
        assert [name for name, *_ in noting.counted] == ["requested"]
        assert noting.lines[0][-1] == (parent and parent.trace_id, None)

    asyncio.run(main())


def written(monkeypatch: pytest.MonkeyPatch, log: AccessLog, *answered: tuple[Any, ...]) -> list[str]:
    """The lines of what was answered."""
    lines: list[bytes] = []
    monkeypatch.setattr(logs, "write", lines.append)

    async def main() -> None:
        for each in answered:
            log.add(*each)
        log.flush()

    asyncio.run(main())
    return b"".join(lines).decode().splitlines()


def test_lines_of_one_moment_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[bytes] = []
    monkeypatch.setattr(logs, "write", lines.append)

    async def main() -> None:
        log = AccessLog(as_json=True)
        for method in ("PUT", "GET", "POST"):
            log.add(request_of(method=method), 200, 0.0, 1, 2, None, None, ())
            assert lines == []
        await asyncio.sleep(0.05)
        (together,) = lines
        assert [json.loads(line)["method"] for line in together.splitlines()] == ["PUT", "GET", "POST"]
        log.add(request_of(), 404, 0.0, 1, 2, None, None, ())
        await asyncio.sleep(0.05)
        assert len(lines) == 2
        assert b"POST /a%20b 404" in lines[1]

    asyncio.run(main())


@pytest.fixture
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_logs, "time_ns", lambda: 1_500_000_000_123_456_789)


LINE = {
    "time": "2017-07-14T02:40:00.123+00:00",
    "level": "INFO",
    "logger": "app.request",
    "message": "POST /a%20b 200",
    "request_id": "1f0e",
    "client": "192.0.2.1",
    "key": None,
    "method": "POST",
    "path": "/a b",
    "status": 200,
    "seconds": 0.012346,
    "request_bytes": 11,
    "response_bytes": 5,
    "operator": None,
    "device": None,
}


def test_a_line_has_all_facts_in_their_order(monkeypatch: pytest.MonkeyPatch, then: None) -> None:
    log = AccessLog(as_json=True)
    request = request_of()
    request.id = "1f0e"
    (line,) = written(monkeypatch, log, (request, 200, 0.0123456, 11, 5, None, None, ()))
    assert list(json.loads(line).items()) == list(LINE.items())
    assert written(monkeypatch, log) == []


def test_what_differs_is_told_of_each(monkeypatch: pytest.MonkeyPatch, then: None) -> None:
    """Whatever was the same in the line before."""
    log = AccessLog(as_json=True)
    request = request_of(client=None)
    request.id, request.key = '"\\%s{}', "mine"
    other = request_of(client=("::1", 7), method="PUT")
    other.id = "%"
    answered: list[tuple[Any, ...]] = [
        (request, 200, 0.0, 1, 2, "CELU", "numpy", (TRACE, None)),
        (request, 200, 3.0, 4, 5, "CELU", "numpy", (None, SPAN)),
        (other, 404, 1e-6, 0, 1 << 40, "CELU", "cuda:0", ()),
    ]
    first, second, third = map(json.loads, written(monkeypatch, log, *answered))
    same = {"request_id": '"\\%s{}', "client": None, "key": "mine", "operator": "CELU", "device": "numpy"}
    sizes = {"seconds": 0.0, "request_bytes": 1, "response_bytes": 2}
    assert first == LINE | same | sizes | {"trace_id": TRACE, "span_id": None}
    sizes = {"seconds": 3.0, "request_bytes": 4, "response_bytes": 5}
    assert second == LINE | same | sizes | {"trace_id": None, "span_id": SPAN}
    told = {"message": "PUT /a%20b 404", "method": "PUT", "status": 404, "request_id": "%", "client": "::1"}
    told |= {"seconds": 1e-6, "request_bytes": 0, "response_bytes": 1 << 40, "operator": "CELU", "device": "cuda:0"}
    assert third == LINE | told


def test_long_paths_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    log = AccessLog(as_json=True)
    before = access_logs._json_form.cache_info().currsize
    for length, remembered in ((513, 0), (512, 1), (513, 1)):
        request = request_of()
        request.raw_path = b"/".ljust(length, b"l")
        (line,) = written(monkeypatch, log, (request, 200, 0.0, 1, 2, None, None, ()))
        assert request.raw_path.decode() in json.loads(line)["message"]
        assert access_logs._json_form.cache_info().currsize - before == remembered


@pytest.mark.parametrize(
    ("operator", "told"),
    [(None, ""), ("DML_OPERATOR_ACTIVATION_CELU", ", ACTIVATION_CELU on numpy"), ("a graph", ", a graph on numpy")],
)
def test_text_says_what_people_look_for(operator: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AccessLog(as_json=False)
    request = request_of()
    request.id = "1f0e"
    (line,) = written(monkeypatch, log, (request, 200, 0.01234, 11, 5, operator, "numpy", ()))
    assert line.endswith(f"app.request: POST /a%20b 200 in 12.34 ms{told}, id 1f0e")
