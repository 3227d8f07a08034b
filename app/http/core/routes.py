"""Which endpoint answers a request."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from fastapi.routing import APIRoute

from app.http.core.exchange import Handler, Reply, Request

Endpoint: TypeAlias = Callable[[Request, Mapping[str, str]], Coroutine[Any, Any, Reply]]
"""Answers a request, given what its path has in the place of the route's parameters."""


class DirectRoute(APIRoute):
    """A route for POST to an `Endpoint`, documented as FastAPI's are. `documented` has the description."""

    def __init__(
        self, path: str, direct: Endpoint, documented: Callable[[], None], tag: str, described: dict[str, Any]
    ) -> None:
        super().__init__(path, documented, methods=["POST"], tags=[tag], **described)
        self.direct = direct


def routed(routes: Sequence[DirectRoute], others: Handler) -> Handler:
    """A handler that takes tensors straight to their endpoints, and `others` for all that is not at `routes`.

    What FastAPI and Starlette do in between, none of which they need, costs as much as a small dispatch itself.
    """
    whole = {route.path: route for route in routes if not route.param_convertors}
    patterns = [route for route in routes if route.param_convertors]

    def handle(request: Request) -> Coroutine[Any, Any, Reply]:
        if request.method == "POST":
            route = whole.get(request.path)
            if route is not None:
                request.route = route.path
                return route.direct(request, {})
            for each in patterns:
                if found := each.path_regex.match(request.path):
                    request.route = each.path
                    return each.direct(request, found.groupdict())
        return others(request)

    return handle
