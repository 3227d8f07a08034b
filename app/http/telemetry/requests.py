"""What is noted of each request: an id, a line in the log, metrics."""

import logging
import re
from collections.abc import Callable
from functools import partial
from random import getrandbits
from time import perf_counter, time_ns
from typing import Any

from app.http.core.exchange import Handler, Reply, Request
from app.http.core.headers import REQUEST_ID
from app.http.core.problems import EXPECTED, refused
from app.http.telemetry.access_log import AccessLog
from app.http.telemetry.metrics import Metrics
from app.http.telemetry.tracing import Parent, Tracing

log = logging.getLogger("app.http")

_FIELD = REQUEST_ID.lower().encode()
_ACCEPTED_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def observing(
    handler: Handler, metrics: Metrics, access_log: AccessLog | None, tracing: Tracing | None = None
) -> Handler:
    """Middleware around everything else. Where `handler` raises, it answers with a problem: what is not EXPECTED is a
    500, once, and the log says why. A request that has a flaw does not come as far as `handler`."""

    async def handle(request: Request) -> Reply:
        started = perf_counter()
        request_id = _identify(request)
        parent = tracing.begin(request) if tracing else None
        try:
            reply = refused(request, request.flaw) if request.flaw else await handler(request)
        except Exception as error:
            if not isinstance(error, EXPECTED):
                log.exception("Exception in answering %s", request.path, extra={"request_id": request.id})
            reply = refused(request, error)
        except BaseException:  # it is given up, as the service ends
            note(request, 500, 0, perf_counter() - started, parent)
            raise

        answered = time_ns() if request.stages is not None else 0
        reply.headers.append((_FIELD, request_id))
        length = 0 if request.method == "HEAD" else reply.length  # no more than the header is sent
        # Not of `reply` itself, which has this: the collector would have to find them.
        reply.sent = partial(over, reply.sent, request, reply.status, length, started, answered, parent)
        return reply

    def over(
        sent: Callable[[], None],
        request: Request,
        status: int,
        length: int,
        started: float,
        answered: int,
        parent: "Parent | None",
    ) -> None:
        """The answer is sent. One that is traced was ready at `answered`, in nanoseconds since 1970."""
        sent()
        if request.stages is not None:
            request.stages.add("send", answered)
        note(request, status, length, perf_counter() - started, parent)

    def note(request: Request, status: int, sent: int, seconds: float, parent: "Parent | None") -> None:
        received = request.body.received
        traced = None
        if tracing and request.stages is not None:
            traced = tracing.end(request, request.stages, parent, status, sent)
            metrics.exemplify(request.route, seconds, *traced)
        metrics.requested(request.route, request.method, status, received, sent, seconds)
        if request.refusal:
            metrics.refused(request.refusal)
        if request.key:
            metrics.asked_with_key(request.key, status, received, sent)
        # Taken out, since the connection keeps the request until its next one, and with it the memory of the output,
        # and of a graph that somebody drops.
        prepared, request.prepared = request.prepared, None
        outcome, request.outcome = request.outcome, None
        if prepared and outcome:
            metrics.dispatched(prepared, outcome)
        if access_log:
            facts: dict[str, Any] = {
                "request_id": request.id,
                "client": request.client[0] if request.client else None,
                "key": request.key or None,
                "method": request.method,
                "path": request.path,
                "status": status,
                "seconds": int(seconds * 1e6) / 1e6,  # round() takes longer than the rest of this
                "request_bytes": received,
                "response_bytes": sent,
                "operator": prepared and prepared.name,
                "device": outcome and outcome.ran.device,
            }
            if tracing:
                facts["trace_id"] = traced.trace_id if traced else parent and f"{parent.trace_id:032x}"
                facts["span_id"] = traced and traced.span_id
            access_log.add(request.raw_path, facts)

    return handle


def _identify(request: Request) -> bytes:
    """The request's id, which it has from now on: its own one, if it has one that is fit to be logged."""
    request_id = request.headers.get(_FIELD)
    if request_id is None or not _ACCEPTED_ID.fullmatch(request_id):
        request.id = getrandbits(128).to_bytes(16).hex()
        return request.id.encode()
    request.id = request_id.decode()
    return request_id
