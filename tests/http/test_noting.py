"""What is noted of each request, around a handler of the test's own."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanContext
from starlette.exceptions import HTTPException

from app import logs
from app.codecs.codec import Encoded
from app.engine.service import Draining
from app.http.core.exchange import Reply, Request
from app.http.telemetry import access_log as access_logs
from app.http.telemetry.access_log import AccessLog
from app.http.telemetry.requests import observing
from app.http.telemetry.tracing import Traced
from app.stages import Stages

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = SpanContext(int("1" * 32, 16), int("2" * 16, 16), is_remote=True)


class Noted:
    """Metrics, log and traces, which note what they are told."""

    def __init__(self) -> None:
        self.counted: list[tuple[Any, ...]] = []
        self.lines: list[tuple[bytes, dict[str, Any]]] = []
        self.traces: list[tuple[Any, ...]] = []
        self.is_traced = False
        self.parent: SpanContext | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.counted.append((name, *given))

    def add(self, raw_path: bytes, facts: dict[str, Any]) -> None:
        self.lines.append((raw_path, facts))

    def begin(self, request: Request) -> SpanContext | None:
        if self.is_traced:
            request.stages = Stages()
        return self.parent

    def end(self, request: Request, stages: Stages, parent: SpanContext | None, status: int, sent: int) -> Traced:
        assert all(stages.begun <= stage.begun <= stage.ended for stage in stages.done)
        self.traces.append(([stage.name for stage in stages.done], parent, status, sent))
        return Traced(TRACE, SPAN)


def request_of(*fields: tuple[bytes, bytes], method: str = "POST", client: Any = ("192.0.2.1", 7)) -> Request:
    body: Any = SimpleNamespace(received=11)
    return Request(method, "/a b", b"/a%20b", b"", list(fields), body, dict(fields), client=client)


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
        ((raw_path, facts),) = noting.lines
        assert raw_path == b"/a%20b"
        assert 0 <= seconds - facts.pop("seconds") < 1e-6
        assert facts == {
            "request_id": request.id,
            "client": "192.0.2.1",
            "key": None,
            "method": "POST",
            "path": "/a b",
            "status": 200,
            "request_bytes": 11,
            "response_bytes": 5,
            "operator": None,
            "device": None,
        }
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
        assert noting.lines[0][1]["response_bytes"] == 0

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
        assert noting.counted[0][5] == reply.length == noting.lines[0][1]["response_bytes"] > 0
        return request.id

    id_ = asyncio.run(main())
    told = [(record.getMessage(), record.__dict__["request_id"]) for record in caplog.records]
    assert told == ([("Exception in answering /a b", id_)] if status == 500 else [])


def test_what_has_a_flaw_is_refused_for_it_alone() -> None:
    async def main() -> None:
        request = request_of(method="-")
        request.flaw = HTTPException(431, "It is too long.")
        noting, reply = await noted(request)
        reply.sent()
        assert (reply.status, b"It is too long." in b"".join(map(bytes, reply.pieces))) == (431, True)
        assert [each[:4] for each in noting.counted] == [("requested", "none", "-", 431), ("refused", "http")]

    asyncio.run(main())


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
            ((_, facts),) = noting.lines
            assert [facts[name] for name in ("client", "key", "operator", "device")] == [None, "mine", "CELU", device]
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
        ((_, facts),) = noting.lines
        assert (facts["trace_id"], facts["span_id"]) == (TRACE, SPAN)

    asyncio.run(main())


@pytest.mark.parametrize("parent", [None, PARENT])
def test_one_that_is_not_traced_where_others_are(parent: SpanContext | None) -> None:
    async def main() -> None:
        noting = Noted()
        noting.parent = parent
        _, reply = await noted(request_of(), traces=True, noting=noting)
        reply.sent()
        assert noting.traces == []
        assert [name for name, *_ in noting.counted] == ["requested"]
        ((_, facts),) = noting.lines
        assert (facts["trace_id"], facts["span_id"]) == (parent and "1" * 32, None)

    asyncio.run(main())


FACTS = {"method": "GET", "status": 200, "seconds": 0.01234, "operator": None, "device": None, "request_id": "1f0e"}


def test_lines_of_one_moment_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(logs, "write", written.append)
    monkeypatch.setattr(access_logs, "time_ns", lambda: 1_500_000_000_123_456_789)

    async def main() -> None:
        log = AccessLog(as_json=True)
        for path in (b"/a", b"/b"):
            log.add(path, FACTS)
        assert written == []
        await asyncio.sleep(0.05)
        (lines,) = written
        first, second = map(json.loads, lines.splitlines())
        assert (first["message"], second["message"]) == ("GET /a 200", "GET /b 200")
        assert (first["logger"], first["status"], first["time"]) == (
            "app.request",
            200,
            "2017-07-14T02:40:00.123+00:00",
        )
        log.add(b"/c", FACTS)
        await asyncio.sleep(0.05)
        assert len(written) == 2
        assert b"GET /c 200" in written[1]

    asyncio.run(main())


def test_a_line_has_all_facts_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the line before had, and whatever an id is made of."""
    written: list[bytes] = []
    monkeypatch.setattr(logs, "write", written.append)
    times = iter([1_500_000_000_123_456_789, 1_500_000_000_123_999_999, 1_500_000_001_000_000_000])
    monkeypatch.setattr(access_logs, "time_ns", lambda: next(times))
    given = [FACTS | {"request_id": each} for each in ("1f0e", '"\\%s{}', "%")]

    async def main() -> None:
        log = AccessLog(as_json=True)
        for facts in given:
            log.add(b"/a", facts)
        log.flush()

    asyncio.run(main())
    lines = [json.loads(line) for line in written[0].splitlines()]
    seconds = ("2017-07-14T02:40:00.123", "2017-07-14T02:40:00.123", "2017-07-14T02:40:01.000")
    for line, facts, second in zip(lines, given, seconds, strict=True):
        told = {"time": f"{second}+00:00", "level": "INFO", "logger": "app.request", "message": "GET /a 200"}
        assert list(line.items()) == list((told | facts).items())


@pytest.mark.parametrize(
    ("operator", "told"),
    [(None, ""), ("DML_OPERATOR_ACTIVATION_CELU", ", ACTIVATION_CELU on numpy"), ("a graph", ", a graph on numpy")],
)
def test_text_says_what_people_look_for(operator: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(logs, "write", written.append)

    async def main() -> None:
        log = AccessLog(as_json=False)
        log.add(b"/a", FACTS | {"operator": operator, "device": "numpy"})
        log.flush()

    asyncio.run(main())
    assert written[0].decode().rstrip("\n").endswith(f"app.request: GET /a 200 in 12.34 ms{told}, id 1f0e")
