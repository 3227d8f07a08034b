"""Traces: spans of what a request went through, sent to an OTLP receiver of the test's own."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanContext, TraceFlags, TraceState
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from app import __version__
from app.http.core.exchange import Request
from app.http.telemetry import tracing
from app.settings import Settings, Unusable
from app.stages import Stage, Stages
from tests.conftest import ROOT, RunningServer, running_server
from tests.http.load import wait_until
from tests.messages import CELU, output_of, post_json, post_msgpack, request

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SMALL = request(CELU, {"InputTensor": np.array([-1, 2, 3], np.float32)})


class Receiver:
    """An OTLP collector: the spans that came, by trace."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Any]] = {}
        self.resources: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/collector/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    receiver.resources.append(attributes(each.resource))
                    for scope in each.scope_spans:
                        for span in scope.spans:
                            receiver.spans.setdefault(span.trace_id.hex(), []).append(span)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def trace(self, trace_id: str) -> tuple[Any, dict[str, Any]]:
        """The request's span of a trace, and those in it by their names."""

        def is_whole() -> bool:
            spans = self.spans.get(trace_id, [])
            return any(each.kind == each.SPAN_KIND_SERVER for each in spans)

        wait_until(is_whole)
        (root,) = [each for each in self.spans[trace_id] if each.kind == each.SPAN_KIND_SERVER]
        others = [each for each in self.spans[trace_id] if each is not root]
        assert all(each.parent_span_id == root.span_id for each in others)
        for each in others:
            assert root.start_time_unix_nano <= each.start_time_unix_nano <= each.end_time_unix_nano
            assert each.end_time_unix_nano <= root.end_time_unix_nano
        return root, {each.name: each for each in others}


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(scope="module")
def traced(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("traced") / "log"
    flags = ["--otlp-endpoint", f"{receiver.url}/collector/", "--trace-ratio", "1"]
    with running_server(log, *flags, OTEL_BSP_SCHEDULE_DELAY="50", DMLSERVE_API_KEYS="secret") as running:
        yield running


@pytest.fixture(scope="module")
def traced_client(traced: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=traced.url, timeout=30, headers={"authorization": "Bearer secret"}) as opened:
        yield opened


def child_of(trace_id: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{SPAN}-{flags}"}


def trace_of(traced: RunningServer, request_id: str) -> str | None:
    """The trace that the log names."""
    wait_until(lambda: f'"{request_id}"' in traced.log.read_text().rpartition("\n")[0])
    (line,) = [line for line in traced.log.read_text().splitlines() if f'"{request_id}"' in line]
    found: str | None = json.loads(line)["trace_id"]
    return found


def test_a_small_dispatch(traced_client: httpx.Client, receiver: Receiver) -> None:
    traced_client.headers.update(child_of(TRACE))
    answer = post_json(traced_client, SMALL)
    traced_client.headers.pop("traceparent")
    root, stages = receiver.trace(TRACE)
    assert root.name == "POST /v1/dispatch"
    assert root.parent_span_id.hex() == SPAN
    assert stages.keys() - {"receive"} == {"decode", "judge", "kernel", "encode", "send"}
    found = attributes(root)
    assert found["server.port"] == traced_client.base_url.port
    assert found["client.port"] > 0
    assert {name: value for name, value in found.items() if not name.endswith("port")} == {
        "http.request.method": "POST",
        "http.route": "/v1/dispatch",
        "url.path": "/v1/dispatch",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "http.response.status_code": 200,
        "http.request.body.size": len(answer.request.content),
        "http.response.body.size": len(answer.content),
        "client.address": "127.0.0.1",
        "server.address": "127.0.0.1",
        "dmlserve.request.id": answer.headers["x-request-id"],
        "dmlserve.key.name": "unnamed",
        "dmlserve.operator": CELU,
        "dmlserve.device": "numpy",
        "dmlserve.request_cache.hit": False,
        "dmlserve.kernels.compiled": 0,
    }
    assert receiver.resources[-1]["service.name"] == "dmlserve"


def test_a_large_dispatch_the_first_time_and_later(
    traced: RunningServer, traced_client: httpx.Client, receiver: Receiver
) -> None:
    message = request(CELU, {"InputTensor": np.linspace(-4, 4, 3_000_000, dtype=np.float32)}, {"Alpha": 0.37})
    ids = [trace_of(traced, post_msgpack(traced_client, message).headers["x-request-id"]) for _ in range(3)]
    first, *_, last = [receiver.trace(each or "") for each in ids]
    assert not first[0].parent_span_id
    assert first[1].keys() >= {"receive", "queue", "decode", "judge", "compile", "kernel", "encode", "send"}
    assert attributes(first[0])["dmlserve.kernels.compiled"] >= 1
    assert last[1].keys() == {"receive", "queue", "kernel", "encode", "send"}
    assert attributes(last[0])["dmlserve.request_cache.hit"] is True


def test_an_inference_and_a_refusal(traced: RunningServer, traced_client: httpx.Client, receiver: Receiver) -> None:
    tensor = {"name": "InputTensor", "datatype": "FP32", "shape": [2], "data": [-1, 2]}
    answer = traced_client.post("/v2/models/activation_celu/infer", json={"inputs": [tensor]})
    root, stages = receiver.trace(trace_of(traced, answer.headers["x-request-id"]) or "")
    assert root.name == "POST /v2/models/{name}/infer"
    assert stages.keys() - {"receive"} == {"decode", "judge", "kernel", "encode", "send"}
    answer = traced_client.post("/v1/dispatch", content=b"{", headers={"content-type": "application/json"})
    root, stages = receiver.trace(trace_of(traced, answer.headers["x-request-id"]) or "")
    assert attributes(root)["dmlserve.rejection.reason"] == "unreadable"
    assert root.status.code == root.status.STATUS_CODE_UNSET  # it is the client's fault


def test_who_is_not_sampled_is_named_in_the_log_only(
    traced: RunningServer, traced_client: httpx.Client, receiver: Receiver
) -> None:
    other = TRACE[::-1]
    answer = traced_client.get("/v1/capabilities", headers=child_of(other, "00"))
    assert trace_of(traced, answer.headers["x-request-id"]) == other
    later = traced_client.get("/v1/capabilities", headers=child_of("a" * 32))
    receiver.trace(trace_of(traced, later.headers["x-request-id"]) or "")
    assert other not in receiver.spans


def test_exemplars(traced_client: httpx.Client, receiver: Receiver) -> None:
    output_of(post_json(traced_client, SMALL))
    answer = traced_client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    shown = [
        sample
        for family in text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar
    ]
    assert any(sample.labels["route"] == "/v1/dispatch" for sample in shown)
    for sample in shown:
        assert sample.name == "dmlserve_http_request_duration_seconds_bucket"
        assert sample.exemplar.value <= float(sample.labels["le"])
        root, _ = receiver.trace(sample.exemplar.labels["trace_id"])
        assert root.span_id.hex() == sample.exemplar.labels["span_id"]
        assert attributes(root)["http.route"] == sample.labels["route"]
    assert "trace_id" not in traced_client.get("/metrics").text


@pytest.fixture(scope="module")
def made() -> Iterator[tracing.Tracing]:
    made = tracing.Tracing("http://127.0.0.1:9", 0.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_no_traceparent(made: tracing.Tracing, header: str) -> None:
    assert made.begin(asked(header)) is None


def asked(traceparent: str, *fields: tuple[bytes, bytes]) -> Request:
    body: Any = None
    given = [(b"traceparent", traceparent.encode()), *fields]
    return Request("GET", "/", b"/", b"", given, body, dict(given))


@pytest.mark.parametrize("more", ["", "-", "-more"])
def test_versions_to_come_are_read_as_far_as_they_are_known(made: tracing.Tracing, more: str) -> None:
    found = made.begin(asked(f"01-{TRACE}-{SPAN}-03{more}"))
    assert found
    assert (found.trace_id, found.span_id, found.trace_flags.sampled) == (int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("10", False)]
)
@pytest.mark.parametrize("state", ["", "a=b"])
def test_a_parent_is_sampled_if_its_last_bit_says_so(
    made: tracing.Tracing, flags: str, is_sampled: bool, state: str
) -> None:
    request = asked(f"00-{TRACE}-{SPAN}-{flags}", *([(b"tracestate", state.encode())] if state else []))
    found = made.begin(request)
    assert found
    assert (found.trace_id, found.span_id, found.trace_state.to_header()) == (int(TRACE, 16), int(SPAN, 16), state)
    assert (request.stages is not None) == is_sampled


def test_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(tracing, "random", lambda: next(numbers) / 100)
    made = tracing.Tracing("http://127.0.0.1:9", 0.25)
    try:
        requests = [asked("") for _ in range(100)]
        for each in requests:
            assert made.begin(each) is None
        assert [each.stages is not None for each in requests] == [True] * 25 + [False] * 75
        with_parents = [asked(f"00-{TRACE}-{SPAN}-{flags}") for flags in ("00", "01", "02", "03")]
        for each in with_parents:
            made.begin(each)
        assert [each.stages is not None for each in with_parents] == [False, True, False, True]
    finally:
        made.close()


def test_nothing_is_imported_where_there_is_no_collector() -> None:
    """FastAPI has an eye on OpenTelemetry's API, where it is installed; what costs is the rest."""
    modules = "[name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]"
    code = f"import sys, app.main, app.cli; assert not {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_without_opentelemetry_the_service_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.check(Settings())
    tracing.check(Settings(otlp_endpoint="http://localhost:4318"))
    for other in ("localhost:4318", "https://", "grpc://localhost", "http://a b"):
        with pytest.raises(Unusable, match=f"is '{other}', which is no URL"):
            tracing.check(Settings(otlp_endpoint=other))
    with pytest.raises(Unusable) as told:
        tracing.check(Settings(otlp_endpoint="htp://me:secret@localhost:4318"))
    assert "'localhost:4318'" in str(told.value)
    assert "secret" not in str(told.value)

    def without_parent(name: str) -> None:
        raise ModuleNotFoundError(name)

    for find_spec in (lambda _: None, without_parent):
        monkeypatch.setattr("importlib.util.find_spec", find_spec)
        with pytest.raises(Unusable, match="extra otel"):
            tracing.check(Settings(otlp_endpoint="http://localhost:4318"))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_collector_that_says_nothing_holds_nothing_up(tmp_path: Path, is_there: bool) -> None:
    """Neither one to which nobody listens, nor one that takes spans and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1] if is_there else 9}"
        flags = ["--otlp-endpoint", url, "--trace-ratio", "1"]
        with (
            running_server(tmp_path / "log", *flags, OTEL_BSP_SCHEDULE_DELAY="50") as running,
            httpx.Client(base_url=running.url) as client,
        ):
            for _ in range(20):
                output_of(post_json(client, SMALL))
            if is_there:
                silent.settimeout(60)
                silent.accept()[0].detach()  # it came, and stays open
            output_of(post_json(client, SMALL))
            assert running.stop(15) == 0


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, {"service.name": "dmlserve", "service.version": __version__}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,service.version=2"},
            {"service.name": "a", "service.version": "2"},
        ),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "OTEL_SERVICE_NAME": "b"}, {"service.name": "b"}),
    ],
)
def test_the_service_is_called_as_the_variables_say(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: dict[str, str]
) -> None:
    for name in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = tracing.Tracing("http://localhost:9/", 1.0)
    made._processor.shutdown()
    assert told.items() <= dict(made._span.keywords["resource"].attributes).items()


def spans_of(
    status: int,
    stages: list[Stage],
    monkeypatch: pytest.MonkeyPatch,
    parent: SpanContext | None = None,
    **noted: Any,
) -> list[Any]:
    """What is made of a request with these stages that began at 100, the request's own span last."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    made = tracing.Tracing("http://localhost:9/", 1.0)
    made._processor.shutdown()
    spans: list[Any] = []
    made._processor = SimpleNamespace(on_end=spans.append)
    body: Any = SimpleNamespace(received=11)
    of = Request("POST", "/a", b"/a", b"", [], body, {}, client=("192.0.2.1", 7), server=("192.0.2.2", 80))
    of.id = "mine-1"
    for name, value in noted.items():
        setattr(of, name, value)
    recorded = Stages()
    recorded.begun, recorded.done = 100, stages
    traced = made.end(of, recorded, parent, status, 5)
    assert (traced.trace_id, traced.span_id) == (
        f"{spans[-1].context.trace_id:032x}",
        f"{spans[-1].context.span_id:016x}",
    )
    told = {"service.name": "mine", "service.version": __version__, "process.pid": os.getpid()}
    assert all(told.items() <= dict(span.resource.attributes).items() for span in spans)
    return spans


ATTRIBUTES = {
    "http.request.method": "POST",
    "url.path": "/a",
    "url.scheme": "http",
    "network.protocol.version": "1.1",
    "http.request.body.size": 11,
    "http.response.body.size": 5,
    "dmlserve.request.id": "mine-1",
    "client.address": "192.0.2.1",
    "client.port": 7,
    "server.address": "192.0.2.2",
    "server.port": 80,
}


@pytest.mark.parametrize(
    ("status", "refusal", "code", "told"),
    [
        (200, "", "UNSET", {}),
        (499, "contract", "UNSET", {"dmlserve.rejection.reason": "contract"}),
        (500, "", "ERROR", {"error.type": "500"}),
        (503, "queue_full", "ERROR", {"error.type": "queue_full", "dmlserve.rejection.reason": "queue_full"}),
    ],
)
def test_from_500_on_it_is_an_error_of_the_service(
    status: int, refusal: str, code: str, told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (span,) = spans_of(status, [], monkeypatch, refusal=refusal)
    assert (span.name, span.status.status_code.name, span.kind.name) == ("POST", code, "SERVER")
    assert (span.start_time, span.end_time) == (100, 100)
    assert dict(span.attributes) == ATTRIBUTES | {"http.response.status_code": status} | told


def test_a_dispatch_and_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [Stage("judge", 101, 103), Stage("compile", 103, 105), Stage("compile", 105, 106), Stage("send", 107, 109)]
    noted: dict[str, Any] = {
        "route": "/v1/dispatch",
        "key": "mine",
        "prepared": SimpleNamespace(name="CELU"),
        "outcome": SimpleNamespace(ran=SimpleNamespace(device="numpy")),
    }
    for count, is_hit in ((0, False), (1, True)):
        *inside, span = spans_of(200, stages[count:], monkeypatch, **noted)
        assert [(each.name, each.start_time, each.end_time) for each in inside] == stages[count:]
        assert {each.parent.span_id for each in inside} == {span.context.span_id}
        assert {each.context.trace_id for each in inside} == {span.context.trace_id}
        assert len({each.context.span_id for each in [*inside, span]}) == len(inside) + 1
        assert (span.name, span.start_time, span.end_time) == ("POST /v1/dispatch", 100, 109)
        assert dict(span.attributes) == ATTRIBUTES | {
            "http.response.status_code": 200,
            "http.route": "/v1/dispatch",
            "dmlserve.key.name": "mine",
            "dmlserve.operator": "CELU",
            "dmlserve.request_cache.hit": is_hit,
            "dmlserve.kernels.compiled": 2,
            "dmlserve.device": "numpy",
        }


@pytest.mark.parametrize("state", ["", "a=b"])
def test_a_trace_that_the_client_began_goes_on(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = TraceState.from_header([state] if state else [])
    parent = SpanContext(int(TRACE, 16), int(SPAN, 16), True, TraceFlags(1), stated)
    inside, span = spans_of(200, [Stage("send", 101, 102)], monkeypatch, parent)
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.parent.is_remote
    for each in (inside, span):
        assert f"{each.context.trace_id:032x}" == TRACE
        assert each.context.trace_state.to_header() == state
        assert not each.context.is_remote


def test_any_other_request_has_a_trace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [spans_of(200, [], monkeypatch)[-1] for _ in range(3)]
    assert len({span.context.trace_id for span in found}) == 3
    assert [span.parent for span in found] == [None] * 3
