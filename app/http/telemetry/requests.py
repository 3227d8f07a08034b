"""What is noted of each request: an id, a line in the log, metrics."""

import logging
import re
from collections.abc import Callable
from random import getrandbits
from time import perf_counter
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from app.codecs.codec import Encoded
from app.engine.service import Outcome, Prepared
from app.http.core.at_once import Prompt, Reply, Request
from app.http.core.headers import REQUEST_ID, Headers, fields
from app.http.core.problems import Problem
from app.http.core.transfer import RECEIVE_INTO, WHOLE_BODY, ReceiveInto
from app.http.telemetry.access_log import AccessLog
from app.http.telemetry.metrics import Metrics
from app.memory.buffers import Buffer

log = logging.getLogger("app.http")

_FIELD = REQUEST_ID.lower().encode()
_ACCEPTED_ID = re.compile(rb"[\x21-\x7e]{1,128}")

_PROXIED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
"""By which uvicorn's own middleware, around all of ours, tells who the client is behind a proxy."""

_FAILURE = Problem(500, "The server failed to answer the request; report it, with its X-Request-ID.")


def _failed(sent: Callable[[], None]) -> Reply:
    return Reply(_FAILURE.raw_headers, Encoded(len(_FAILURE.body), [_FAILURE.body]), sent, _FAILURE.status_code)


def _nothing() -> None:
    """There is nothing to do when it is sent."""


class Observation:
    """ASGI middleware around everything else."""

    def __init__(self, app: Prompt, metrics: Metrics, access_log: AccessLog | None) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            if self._access_log:
                self._access_log.flush()  # it is the end of the application
            return
        started = perf_counter()
        request_id = _identify(scope, fields(scope["headers"]))
        status, received, sent, started_answer = 500, 0, 0, False

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def identifying_send(message: Message) -> None:
            nonlocal status, sent, started_answer
            if message["type"] == "http.response.start":
                started_answer = True
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (_FIELD, request_id)]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        extensions = scope.get("extensions", {})
        whole_body: bytes | None = extensions.get(WHOLE_BODY)
        receive_into: ReceiveInto | None = extensions.get(RECEIVE_INTO)
        if receive_into:

            async def counting_receive_into(buffer: Buffer) -> None:
                nonlocal received
                await receive_into(buffer)
                received += len(buffer)

            extensions[RECEIVE_INTO] = counting_receive_into
        try:
            await self._app(scope, counting_receive, identifying_send)
        except Exception:
            if not started_answer:
                await _FAILURE(scope, receive, identifying_send)
            raise  # it will be logged
        finally:
            if whole_body is not None:
                received = len(whole_body)
            self._note(scope, status, received, sent, perf_counter() - started)

    def at_once(self, request: Request) -> Reply | None:
        if not _PROXIED.isdisjoint(request.headers):
            return None
        started = perf_counter()
        reply: Reply | None = None
        try:
            reply = self._app.at_once(request)
            if reply is None:
                return None
            answer = reply._replace(content=Encoded(reply.content.length, list(reply.content.pieces)))
        except Exception:
            log.exception("Exception in answering %s", request.scope["path"])
            answer = _failed(reply.sent if reply else _nothing)
        request_id = _identify(request.scope, request.headers)
        scope, received = request.scope, len(request.body)

        def sent() -> None:
            answer.sent()
            self._note(scope, answer.status, received, answer.content.length, perf_counter() - started)

        return answer._replace(headers=[*answer.headers, (_FIELD, request_id)], sent=sent)

    def _note(self, scope: Scope, status: int, received: int, sent: int, seconds: float) -> None:
        # The template of the path, not the path that was asked for.
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requested(route, scope["method"], status, received, sent, seconds)
        prepared: Prepared | None = scope["state"].get("dispatch")
        # Taken out, since the connection keeps the scope until its next request, and with it the output's memory.
        outcome: Outcome | None = scope["state"].pop("outcome", None)
        if prepared and outcome:
            self._metrics.dispatched(prepared, outcome)
        if self._access_log:
            # The path is percent-encoded, so that it stays on its line in the text format.
            message = f"{scope['method']} {scope['raw_path'].decode()} {status}"
            facts: dict[str, Any] = {
                "request_id": scope["state"]["request_id"],
                "client": scope["client"][0] if scope.get("client") else None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": int(seconds * 1e6) / 1e6,  # round() takes longer than the rest of this
                "request_bytes": received,
                "response_bytes": sent,
                "operator": prepared and prepared.operator_name,
                "device": outcome and outcome.ran.device,
            }
            self._access_log.add(message, facts)


def _identify(scope: Scope, headers: Headers) -> bytes:
    """The request's id, which from now on is in its state: its own one, if it has one that is fit to be logged."""
    request_id = headers.get(_FIELD, b"")
    if not _ACCEPTED_ID.fullmatch(request_id):
        request_id = b"%032x" % getrandbits(128)
    scope.setdefault("state", {})["request_id"] = request_id.decode()
    return request_id
