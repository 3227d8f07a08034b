"""Who the client is behind a proxy."""

from collections.abc import Coroutine
from typing import Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.http.core.exchange import Handler, Reply, Request

_FIELDS = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})


def forwarded(handler: Handler, trusted: list[str] | str) -> Handler:
    """Middleware that believes what proxies with the addresses `trusted` say of their clients, as uvicorn does."""
    believe = ProxyHeadersMiddleware(_never, trusted)

    async def behind_a_proxy(request: Request) -> Reply:
        scope: Any = {
            "type": "http",
            "scheme": request.scheme,
            "client": request.client,
            "headers": request.raw_headers,
        }
        await believe(scope, _never, _never)
        request.scheme, request.client = scope["scheme"], scope["client"]
        return await handler(request)

    def handle(request: Request) -> Coroutine[Any, Any, Reply]:
        return handler(request) if _FIELDS.isdisjoint(request.headers) else behind_a_proxy(request)

    return handle


async def _never(*_: Any) -> Any:
    """uvicorn's middleware changes the scope, and has nothing to call."""
