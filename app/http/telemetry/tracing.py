"""Traces of requests, by OpenTelemetry.

Whether a request is traced is decided when its header has come, by W3C's `traceparent` or else by chance. Its spans
are made when its answer is sent, of what was recorded meanwhile: no request waits for them, and one that is not traced
meets nothing of OpenTelemetry but what reads a `traceparent`. It is not even imported where there is no collector.
"""

import importlib.util
import os
import re
import threading
from functools import partial
from random import getrandbits, random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from app import __version__
from app.http.core.exchange import Request
from app.settings import Settings, Unusable
from app.stages import Stages

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

_CLOSING_SECONDS = 2.0
"""How long the end waits for the collector to take what is left."""

Parent: TypeAlias = "SpanContext"
"""What a client says of its trace."""


class Traced(NamedTuple):
    """A request's trace and its first span, in hexadecimal digits."""

    trace_id: str
    span_id: str


def check(settings: Settings) -> None:
    """Raises Unusable where traces are wanted and cannot be sent: there is no such URL, or no OpenTelemetry."""
    if settings.otlp_endpoint:
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", settings.otlp_endpoint):
            given = f"otlp_endpoint is {settings.otlp_endpoint.rpartition('@')[2]!r}"  # without who sends them
            raise Unusable(f"{given}, which is no URL of a collector, as http://localhost:4318 is.")
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
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        service: dict[str, Any] = {
            "service.name": "dmlserve",
            "service.version": __version__,
            "process.pid": os.getpid(),
        }
        self._ratio = ratio
        self._api: Any = trace
        self._propagator: Any = TraceContextTextMapPropagator()
        # What the variables say of the service, they say in place of this: the SDK takes it the other way round.
        service |= OTELResourceDetector().detect().attributes
        # Spans are complete when they are made: the SDK's tracer, which begins and ends them, takes ten times as long.
        self._span: Any = partial(
            ReadableSpan,
            resource=Resource.create(service),
            instrumentation_scope=InstrumentationScope("dmlserve", __version__),
        )
        self._processor: Any = BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces"))

    def begin(self, request: Request) -> "Parent | None":
        """Decide whether to trace `request`, and record its stages if so. Returns what its client said."""
        parent = self._parent_of(request) if b"traceparent" in request.headers else None
        if parent.trace_flags.sampled if parent else random() < self._ratio:  # noqa: S311 - nothing to be kept from anyone
            request.stages = Stages()
        return parent

    def _parent_of(self, request: Request) -> "Parent | None":
        """What its `traceparent` says, if it is one."""
        names, headers = ("traceparent", "tracestate"), request.headers
        given = {name: headers[name.encode()].decode("latin-1") for name in names if name.encode() in headers}
        found: Parent = self._api.get_current_span(self._propagator.extract(given)).get_span_context()
        return found if found.is_valid else None

    def end(self, request: Request, stages: Stages, parent: "Parent | None", status: int, sent: int) -> Traced:
        """Make the spans of a request whose answer, of `sent` bytes, is sent."""
        api = self._api
        ended = stages.done[-1].ended if stages.done else stages.begun
        context = self._made(parent.trace_id, parent.trace_state) if parent else self._made(getrandbits(128) or 1)
        for stage in stages.done:
            inside = self._made(context.trace_id, context.trace_state)
            self._processor.on_end(
                self._span(stage.name, inside, context, start_time=stage.begun, end_time=stage.ended)
            )
        root = self._span(
            f"{request.method} {request.route}" if request.route != "none" else request.method,
            context,
            parent,
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

    def _made(self, trace_id: int, state: Any = None) -> Any:
        """The context of a span of our own."""
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
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
