"""What is noted of each request: an id, a line in the log, metrics."""

import logging
import re
import uuid
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.metrics import Metrics

REQUEST_ID = "x-request-id"
_ACCEPTED_ID = re.compile(r"[\x21-\x7e]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = logging.getLogger("app.request")


class Observation:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _ACCEPTED_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status, received, sent = 0, 0, 0

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def identifying_send(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counting_receive, identifying_send)
        finally:
            self._note(scope, status or 500, received, sent, perf_counter() - started)

    def _note(self, scope: Scope, status: int, received: int, sent: int, seconds: float) -> None:
        state = scope["state"]
        route = getattr(scope.get("route"), "path", "none")  # the template, not the path that was asked for
        method = scope["method"] if scope["method"] in _METHODS else "other"
        metrics = self._metrics
        metrics.requests.labels(route, method, status).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        metrics.request_bytes.labels(route).observe(received)
        metrics.response_bytes.labels(route).observe(sent)
        execution = state.get("execution")
        if execution:
            metrics.dispatched(state["operator"], execution)
        if self._access_log:
            log.info(
                "%s %s %d",
                scope["method"],
                scope["raw_path"].decode(),  # percent-encoded, so that it stays on its line in the text format
                status,
                extra={
                    "request_id": state["request_id"],
                    "client": scope["client"][0] if scope.get("client") else None,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "seconds": round(seconds, 6),
                    "request_bytes": received,
                    "response_bytes": sent,
                    "operator": state.get("operator"),
                    "device": execution and execution["device"],
                },
            )
