"""Traces of requests, by OpenTelemetry.

Whether a request is traced is decided when its header has come, by W3C's `traceparent` or else by chance. Its spans
are made when its answer is sent, of what was recorded meanwhile: no request waits for them, and one that is not traced
meets nothing of OpenTelemetry, which is not even imported where there is no collector.
"""

import importlib.util
import os
import re
import threading
from functools import partial
from random import getrandbits, random
from typing import Any, NamedTuple

from app import __version__
from app.http.core.exchange import Request
from app.settings import Settings, Unusable
from app.stages import Stages

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_SAMPLED = 1

_CLOSING_SECONDS = 2.0
"""How long the end waits for the collector to take what is left."""


class Parent(NamedTuple):
    """What a client says of its trace."""

    trace_id: str
    span_id: str
    is_sampled: bool
    state: str


class Traced(NamedTuple):
    """A request's trace and its first span, in hexadecimal digits."""

    trace_id: str
    span_id: str


def parent_of(request: Request) -> Parent | None:
    """W3C's `traceparent`, if it is there and one; of versions to come as much as is known."""
    given = request.headers.get(b"traceparent")
    found = _TRACEPARENT.fullmatch(given) if given else None
    if not found:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    state = request.headers.get(b"tracestate", b"").decode("latin-1")
    return Parent(trace.decode(), span.decode(), bool(int(flags, 16) & _SAMPLED), state)


def check(settings: Settings) -> None:
    """Raises Unusable where traces are wanted and cannot be sent: there is no such URL, or no OpenTelemetry."""
    if settings.otlp_endpoint:
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", settings.otlp_endpoint):
            raise Unusable("otlp_endpoint is no URL of a collector, as http://localhost:4318 is.")
        try:
            is_there = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise Unusable("otlp_endpoint is given, but OpenTelemetry is not installed; the extra otel brings it.")


class Tracing:
    """Sends traces to an OTLP collector. To be made in the process that uses it."""

    def __init__(self, endpoint: str, ratio: float) -> None:
        """`ratio` is how many of the requests without a parent are traced."""
        from opentelemetry import trace  # noqa: PLC0415 - only with the extra otel
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        service: dict[str, Any] = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "dmlserve",
            "service.version": __version__,
            "process.pid": os.getpid(),
        }
        self._ratio = ratio
        self._api: Any = trace
        # Spans are complete when they are made: the SDK's tracer, which begins and ends them, takes ten times as long.
        self._span: Any = partial(
            ReadableSpan,
            resource=Resource.create(service),
            instrumentation_scope=InstrumentationScope("dmlserve", __version__),
        )
        self._processor: Any = BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces"))

    def begin(self, request: Request) -> Parent | None:
        """Decide whether to trace `request`, and record its stages if so. Returns what its client said."""
        parent = parent_of(request)
        if parent.is_sampled if parent else random() < self._ratio:  # noqa: S311 - nothing to be kept from anyone
            request.stages = Stages()
        return parent

    def end(self, request: Request, stages: Stages, parent: Parent | None, status: int, sent: int) -> Traced:
        """Make the spans of a request whose answer, of `sent` bytes, is sent."""
        api = self._api
        ended = stages.done[-1].ended if stages.done else stages.begun
        remote = self._remote(parent) if parent else None
        context = self._made(remote.trace_id, remote.trace_state) if remote else self._made(getrandbits(128) or 1)
        for stage in stages.done:
            inside = self._made(context.trace_id, context.trace_state)
            self._processor.on_end(
                self._span(stage.name, inside, context, start_time=stage.begun, end_time=stage.ended)
            )
        root = self._span(
            f"{request.method} {request.route}" if request.route != "none" else request.method,
            context,
            remote,
            attributes=_attributes(request, stages, status, sent),
            kind=api.SpanKind.SERVER,
            status=api.Status(api.StatusCode.ERROR if status >= 500 else api.StatusCode.UNSET),
            start_time=stages.begun,
            end_time=ended,
        )
        self._processor.on_end(root)
        return Traced(f"{context.trace_id:032x}", f"{context.span_id:016x}")

    def flush(self) -> None:
        """Send what there is, and wait until it is sent."""
        self._processor.force_flush()

    def close(self) -> None:
        """Send what is left, for a moment."""
        closing = threading.Thread(target=self._processor.shutdown, name="dmlserve-traces", daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)

    def _remote(self, parent: Parent) -> Any:
        state = self._api.TraceState.from_header([parent.state]) if parent.state else None
        flags = self._api.TraceFlags(_SAMPLED)
        return self._api.SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, flags, state)

    def _made(self, trace_id: int, state: Any = None) -> Any:
        """The context of a span of our own."""
        flags = self._api.TraceFlags(_SAMPLED)
        return self._api.SpanContext(trace_id, getrandbits(64) or 1, False, flags, state)


def _attributes(request: Request, stages: Stages, status: int, sent: int) -> dict[str, Any]:
    """By OpenTelemetry's semantic conventions for HTTP servers, and our own ones."""
    names = [stage.name for stage in stages.done]
    found: dict[str, Any] = {
        "http.request.method": request.method,
        "url.path": request.path,
        "url.scheme": request.scheme,
        "network.protocol.version": request.version,
        "http.response.status_code": status,
        "http.request.body.size": request.body.received,
        "http.response.body.size": sent,
        "dmlserve.request.id": request.id,
    }
    if request.route != "none":
        found["http.route"] = request.route
    if request.client:
        found["client.address"], found["client.port"] = request.client
    if request.server:
        found["server.address"], found["server.port"] = request.server
    if status >= 500:
        found["error.type"] = request.refusal or str(status)
    if request.refusal:
        found["dmlserve.rejection.reason"] = request.refusal
    if request.key:
        found["dmlserve.key.name"] = request.key
    if request.prepared:
        found["dmlserve.operator"] = request.prepared.name
        found["dmlserve.request_cache.hit"] = "judge" not in names
        found["dmlserve.kernels.compiled"] = names.count("compile")
    if request.outcome:
        found["dmlserve.device"] = request.outcome.ran.device
    return found
