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

from app.contract.suggestions import did_you_mean
from app.contract.validation import in_words
from app.http.core.exchange import Handler, Reply, Request
from app.http.core.queries import refuse_query

_PATHS = 256
"""Paths of which is remembered what is there."""

_STRICT = "/v1/"
"""Below this a query that nobody reads is refused: who sends one believes that it does something. Elsewhere other
programs' clients may add to it what they like."""

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
        documented = (self.openapi_extra or {}).get("parameters", ())
        self.has_query = not path.startswith(_STRICT) or any(each["in"] == "query" for each in documented)


def router(tag: str, prefix: str = "") -> APIRouter:
    """For routes of one part of the API."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=Route)


def pages() -> APIRouter:
    """For routes that are no part of the API."""
    return APIRouter(include_in_schema=False, route_class=Route)


def routed(routes: Sequence[BaseRoute]) -> Handler:
    """A handler that takes requests to their endpoints. Raises HTTPException 404 and 405, and ContractError."""
    known = [route for route in routes if isinstance(route, Route)]
    paths = [route.path for route in known if not route.param_convertors]

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
            raise _missing(request, there, paths)
        route, given = found
        request.route = route.path
        if request.query and not route.has_query:
            refuse_query(request.query)
        return route.answer(request, given)

    return handle


def _missing(request: Request, there: Mapping[str, tuple[Route, Given]], paths: Sequence[str]) -> HTTPException:
    """Of a request whose method has no route at its path, where these are. `paths` are those without parameters."""
    if not there:
        path = request.path
        return HTTPException(404, f"There is nothing at {in_words(path)}.{did_you_mean(path, paths)}")
    request.route = next(iter(there.values()))[0].path
    allowed = {*there, "OPTIONS"} | ({"HEAD"} if "GET" in there else set())  # which kept.py answers
    listed = ", ".join(sorted(allowed))
    return HTTPException(
        405, f"{in_words(request.method)} is not allowed at this path; allowed are {listed}.", {"Allow": listed}
    )
