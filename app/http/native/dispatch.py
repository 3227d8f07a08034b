"""POST /v1/dispatch, the path that tensors take. A plain ASGI application, since every microsecond counts here."""

import contextlib

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from app.codecs.codec import Body, Codec
from app.engine.service import Outcome, Service
from app.engine.workers import Ticket
from app.http.core import openapi
from app.http.core.at_once import Reply, Request
from app.http.core.bodies import (
    OFFLOADED,
    codec_of_answer,
    codec_of_request,
    headers_of,
    hung_up,
    read_body,
    send_pieces,
)
from app.http.core.documents import TooHeavy
from app.http.core.headers import fields
from app.http.core.problems import EXPECTED, problem_for
from app.http.core.routes import DirectRoute
from app.http.native.requests import Dispatch, DispatchReader
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

QUICK = 1 << 23
"""Bytes of a document like an earlier one whose tensor data are decoded in less time than a thread is woken twice."""


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
            state = scope["state"]
            read = self._read_here(given, body, memory)
            if read:
                dispatch, data = read
                state["dispatch"] = dispatch.prepared
                outcome = await service.execute(dispatch.prepared, data, memory, lambda: hung_up(receive))
            else:

                def work(ticket: Ticket[None]) -> tuple[Dispatch, Outcome]:
                    dispatch, data = self._reader.read(given, body, memory)
                    state["dispatch"] = dispatch.prepared
                    return dispatch, service.execute_in(ticket, dispatch.prepared, data, memory)

                dispatch, outcome = await service.run(work, memory, lambda: hung_up(receive))
            state["outcome"] = outcome
            await send_pieces(send, dispatch.write(wanted, outcome), wanted.media_type)

    def _read_here(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]] | None:
        """The request, if it is read in a moment. Raises ContractError, Unreadable, LimitExceeded."""
        if codec.views or len(body) < QUICK:
            found = self._reader.find(codec, body, memory)
            if found:
                return found
        if len(body) < OFFLOADED:
            with contextlib.suppress(TooHeavy):
                return self._reader.judge(codec, body, memory, only_light=True)
        return None

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
                        return
                    except EXPECTED as error:
                        problem = problem_for(error)
                    # The error is gone here, and with it what the frames on its way held of the request.
                    await problem(scope, receive, send)
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
