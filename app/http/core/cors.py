"""Cross-origin requests from web pages."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.http.core.exchange import Handler, Reply, Request
from app.http.core.headers import JSON_LENGTH, REQUEST_ID
from app.http.core.problems import Problem


def sharing(handler: Handler, origins: Sequence[str]) -> Handler:
    """Middleware that lets pages of `origins` call the service. A refused preflight is a problem, like any error."""
    policy = CORSMiddleware(
        _never,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=[
            *("Authorization", "Content-Encoding", "Content-Type", "If-Match", "If-None-Match", "Prefer"),
            *(JSON_LENGTH, REQUEST_ID),
        ],
        expose_headers=[
            *("ETag", "Location", "Preference-Applied", "Retry-After", "Tensor-DataType", "Tensor-Sizes"),
            *(JSON_LENGTH, REQUEST_ID),
        ],
    )

    async def handle(request: Request) -> Reply:
        headers = Headers(raw=request.raw_headers)
        if request.method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
            return _preflight(policy.preflight_response(headers), request.path)
        reply = await handler(request)
        if "origin" not in headers:  # for which Starlette 1.0 has no answer
            reply.headers = [*reply.headers, (b"vary", b"Origin")]
            return reply

        async def send(message: Message) -> None:
            reply.headers = message["headers"]

        start = {"type": "http.response.start", "headers": reply.headers}
        await policy.send(start, send, headers)
        return reply

    return handle


def _preflight(response: Response, path: str) -> Reply:
    if response.status_code == 200:
        return Reply.of(response)
    headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return Problem(response.status_code, f"{bytes(response.body).decode()}.", headers=headers).at(path)


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    """Starlette's policy is asked, and its application never called."""
