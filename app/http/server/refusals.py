"""What the HTTP protocol answers by itself, where the application does not come to it."""

import asyncio
import json
from http import HTTPStatus

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def problem(status: int, detail: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The header fields and the body of an RFC 9457 problem after which the connection is closed."""
    title = HTTPStatus(status).phrase
    body = json.dumps(
        {"type": "about:blank", "title": title, "status": status, "detail": detail, "errors": []}
    ).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    return headers, body


async def answered(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Calls the application; if it does not answer, that is answered before uvicorn does it in its own way."""
    try:
        await app(scope, receive, send)
        if not cycle.response_started and not cycle.disconnected:
            raise RuntimeError("The ASGI application returned without starting a response.")
    except (Exception, asyncio.CancelledError):
        if not cycle.response_started:
            await _send_problem(send, 500, "The server failed to answer the request; report it if it happens again.")
        raise  # uvicorn logs it


async def over_concurrency_limit(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """An ASGI application in the place of uvicorn's, which answers in plain text."""
    await _send_problem(send, 503, "The server handles as many requests as it is allowed to; try again in a moment.")


async def _send_problem(send: ASGISendCallable, status: int, detail: str) -> None:
    headers, body = problem(status, detail)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
