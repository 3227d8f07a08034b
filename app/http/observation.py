"""What is noted of each request: an id, a line in the log, metrics."""

import logging
import os
import re
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.metrics import Metrics
from app.service import Outcome, Prepared

REQUEST_ID = "X-Request-ID"
_FIELD = REQUEST_ID.lower().encode()
_ACCEPTED_ID = re.compile(rb"[\x21-\x7e]{1,128}")

log = logging.getLogger("app.request")


class Observation:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log and log.isEnabledFor(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        given = next((value for name, value in scope["headers"] if name == _FIELD), b"")
        request_id = given if _ACCEPTED_ID.fullmatch(given) else os.urandom(16).hex().encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        status, received, sent = 500, 0, 0

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def identifying_send(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (_FIELD, request_id)]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counting_receive, identifying_send)
        finally:
            self._note(scope, status, received, sent, perf_counter() - started)

    def _note(self, scope: Scope, status: int, received: int, sent: int, seconds: float) -> None:
        # The template of the path, not the path that was asked for.
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requested(route, scope["method"], status, received, sent, seconds)
        prepared: Prepared | None = scope["state"].get("dispatch")
        outcome: Outcome | None = scope["state"].get("outcome")
        if prepared and outcome:
            self._metrics.dispatched(prepared, outcome)
        if self._access_log:
            facts: dict[str, Any] = {
                "request_id": scope["state"]["request_id"],
                "client": scope["client"][0] if scope.get("client") else None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(seconds, 6),
                "request_bytes": received,
                "response_bytes": sent,
                "operator": prepared and prepared.compiled.operator.name(),
                "device": outcome and outcome.ran.device,
            }
            path = scope["raw_path"].decode()  # percent-encoded, so that it stays on its line in the text format
            log.info("%s %s %d", scope["method"], path, status, extra=facts)
