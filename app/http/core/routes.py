"""Which endpoint answers a request."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from inspect import getdoc
from types import MappingProxyType
from typing import Any, TypeAlias

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from app.http.core.exchange import Handler, Reply, Request

_PATHS = 256
"""Paths of which is remembered what is there."""

Given: TypeAlias = Mapping[str, str]
"""What a path has in the place of the route's parameters."""

Endpoint: TypeAlias = Callable[[Request, Given], Coroutine[Any, Any, Reply]]
"""Answers a request. What it says of itself is its description in the OpenAPI document."""


class Route(APIRoute):
    """A route to an `Endpoint`, documented as FastAPI's are.

    What FastAPI and Starlette do before they call one, which none here needs, costs as much as a small dispatch itself.
    """

    def __init__(self, path: str, endpoint: Endpoint, **stated: Any) -> None:
        stated["description"] = stated.get("description") or getdoc(endpoint)
        super().__init__(path, lambda: None, **stated)
        self.answer = endpoint


def router(tag: str, prefix: str = "") -> APIRouter:
    """For routes of one part of the API."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=Route)


def pages() -> APIRouter:
    """For routes that are no part of the API."""
    return APIRouter(include_in_schema=False, route_class=Route)


def routed(routes: Sequence[BaseRoute]) -> Handler:
    """A handler that takes requests to their endpoints. Raises HTTPException 404 and 405."""
    known = [route for route in routes if isinstance(route, Route)]

    @lru_cache(_PATHS)
    def at(path: str) -> Mapping[str, tuple[Route, Given]]:
        there: dict[str, tuple[Route, Given]] = {}
        for route in known:
            if found := route.path_regex.match(path):
                for method in route.methods or ():
                    there.setdefault(method, (route, MappingProxyType(found.groupdict())))
        return there

    def handle(request: Request) -> Coroutine[Any, Any, Reply]:
        there = at(request.path)
        found = there.get(request.method)
        if found is None:
            raise _missing(request, there)
        route, given = found
        request.route = route.path
        return route.answer(request, given)

    return handle


def _missing(request: Request, there: Mapping[str, tuple[Route, Given]]) -> HTTPException:
    """Of a request whose method has no route at its path, where these are."""
    if not there:
        return HTTPException(404)
    request.route = next(iter(there.values()))[0].path
    allowed = {*there, "OPTIONS"} | ({"HEAD"} if "GET" in there else set())  # which kept.py answers
    return HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
