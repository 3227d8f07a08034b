"""Which endpoint answers a request."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from fastapi.routing import APIRoute

from app.http.core.exchange import Handler, Reply, Request

_PATHS = 256
"""Paths of which is remembered what is there."""

Endpoint: TypeAlias = Callable[[Request, Mapping[str, str]], Coroutine[Any, Any, Reply]]
"""Answers a request, given what its path has in the place of the route's parameters."""


class DirectRoute(APIRoute):
    """A route for POST to an `Endpoint`, documented as FastAPI's are."""

    def __init__(self, path: str, direct: Endpoint, tag: str, description: str, described: dict[str, Any]) -> None:
        super().__init__(path, lambda: None, methods=["POST"], tags=[tag], description=description, **described)
        self.direct = direct


def routed(routes: Sequence[DirectRoute], others: Handler) -> Handler:
    """A handler that takes tensors straight to their endpoints, and `others` for all that is not at `routes`.

    What FastAPI and Starlette do in between, none of which they need, costs as much as a small dispatch itself.
    """

    @lru_cache(_PATHS)
    def at(path: str) -> tuple[DirectRoute, Mapping[str, str]] | None:
        for route in routes:
            if found := route.path_regex.match(path):
                return route, MappingProxyType(found.groupdict())
        return None

    def handle(request: Request) -> Coroutine[Any, Any, Reply]:
        found = at(request.path) if request.method == "POST" else None
        if found is None:
            return others(request)
        route, given = found
        request.route = route.path
        return route.direct(request, given)

    return handle
