"""POST /v1/dispatch, the path that tensors take. A plain ASGI application, since every microsecond counts here."""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from app.buffers import Buffer
from app.http import openapi
from app.http.at_once import Reply, Request
from app.http.bodies import codec_of_answer, codec_of_request, headers_of, hung_up, read_body, send_pieces
from app.http.headers import fields
from app.http.problems import EXPECTED, problem_for
from app.limits import MemoryShare
from app.messages import Dispatch, DispatchReader
from app.service import Service

OFFLOADED = 1 << 20
"""Documents of at least so many bytes are decoded in a thread; the event loop goes on meanwhile."""

QUICK = 1 << 23
"""Bytes of a document like an earlier one whose tensor data are decoded in less time than a thread is woken twice."""

P = ParamSpec("P")
T = TypeVar("T")


async def aside(size: int, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`work` done here if it concerns few bytes, in a thread if many."""
    if size < OFFLOADED:
        return work(*arguments, **named)
    return await asyncio.to_thread(work, *arguments, **named)


class DispatchEndpoint:
    """The ASGI application behind the route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader = DispatchReader(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        headers = fields(scope["headers"])
        wanted = codec_of_answer(headers)
        given = codec_of_request(headers)
        with service.memory.open() as memory:
            body = await read_body(scope, headers, receive, service.settings, memory, given.data_start)
            quick = given.views or len(body) < QUICK
            read = self._reader.find(given, body, memory) if quick else None
            if read is None:
                rest = self._reader.judge if quick else self._reader.read
                read = await aside(len(body), rest, given, body, memory)
            dispatch, data = read
            scope["state"]["dispatch"] = dispatch.prepared
            outcome = await service.execute(dispatch.prepared, data, memory, lambda: hung_up(receive))
            scope["state"]["outcome"] = outcome
            await send_pieces(send, dispatch.write(wanted, outcome), wanted.media_type)

    def at_once(self, request: Request) -> Reply | None:
        """Answers a brief dispatch whose like was read before."""
        service, state = self._service, request.scope["state"]
        memory = service.memory.open()
        try:
            wanted = codec_of_answer(request.headers)
            admitted = self._admit(request, memory)
        except Exception:  # `__call__` comes to the same, and tells it
            admitted = None
        if admitted is None:
            memory.close()
            return None
        dispatch, buffers, output = admitted
        try:
            outcome = service.compute(dispatch.prepared, buffers, output)
            state["dispatch"], state["outcome"] = dispatch.prepared, outcome
            content = dispatch.write(wanted, outcome)
        except BaseException:
            memory.close()
            raise
        return Reply(headers_of(content, wanted.media_type), content, memory.close)

    def _admit(self, request: Request, memory: MemoryShare) -> tuple[Dispatch, list[Buffer], Buffer] | None:
        """The dispatch, and what to compute it on, if it is a brief one. Raises what `__call__` does."""
        memory.take(len(request.body))
        found = self._reader.find(codec_of_request(request.headers), request.body, memory)
        if found is None or not found[0].prepared.kernel.brief:
            return None
        dispatch, data = found
        return dispatch, *self._service.admit(dispatch.prepared, data, memory)


class DirectRoute(APIRoute):
    """A route for POST to an ASGI application, documented as FastAPI's are. `documented` has the description."""

    def __init__(
        self, path: str, app: ASGIApp, documented: Callable[[], None], tag: str, described: dict[str, Any]
    ) -> None:
        super().__init__(path, documented, methods=["POST"], tags=[tag], **described)
        self.app = app


class DispatchRoute(DirectRoute):
    """The route of POST /v1/dispatch."""

    def __init__(self, service: Service) -> None:
        self.endpoint_app = DispatchEndpoint(service)
        super().__init__("/v1/dispatch", self.endpoint_app, _documented, "native", openapi.dispatch())


class Shortcut:
    """ASGI middleware right before the application. It sends dispatches and inferences straight to their endpoints.

    What FastAPI and Starlette do in between, none of which they need, costs as much as a small dispatch itself.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._routes = [route for route in app.routes if isinstance(route, DirectRoute)]
        (self._dispatch,) = [route for route in self._routes if isinstance(route, DispatchRoute)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for route in self._routes:
                if found := route.path_regex.match(scope["path"]):
                    scope["route"], scope["path_params"] = route, found.groupdict()
                    try:
                        await route.app(scope, receive, send)
                    except EXPECTED as error:
                        await problem_for(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def at_once(self, request: Request) -> Reply | None:
        scope, route = request.scope, self._dispatch
        if scope["method"] != "POST" or scope["path"] != route.path:
            return None
        scope["route"] = route
        return route.endpoint_app.at_once(request)


def _documented() -> None:
    """Execute one operator: a descriptor and tensors in, the result and what the device is capable of out."""
