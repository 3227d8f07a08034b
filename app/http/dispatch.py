"""POST /v1/dispatch, the path that tensors take. A plain ASGI application, since every microsecond counts here."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from app.http import openapi
from app.http.bodies import codec_of_answer, codec_of_request, fields, read_body, send_pieces
from app.messages import DispatchReader
from app.service import Service

OFFLOADED = 1 << 20
"""Documents of at least so many bytes are decoded and encoded in a thread; the event loop goes on meanwhile."""

T = TypeVar("T")


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
            size = len(body)
            dispatch, data = await _aside(size, lambda: self._reader.read(given, body, memory))
            scope["state"]["dispatch"] = dispatch.prepared

            async def hang_up() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass

            outcome = await service.execute(dispatch.prepared, data, memory, hang_up)
            scope["state"]["outcome"] = outcome
            await send_pieces(send, dispatch.write(wanted, outcome), wanted.media_type)


class DispatchRoute(APIRoute):
    """The route, documented as FastAPI's are, but with no machinery between it and `endpoint`."""

    def __init__(self, endpoint: DispatchEndpoint) -> None:
        super().__init__("/v1/dispatch", _documented, methods=["POST"], tags=["native"], **openapi.dispatch())
        self.app = endpoint


def _documented() -> None:
    """Execute one operator: a descriptor and tensors in, the result and what the device is capable of out."""


async def _aside(size: int, work: Callable[[], T]) -> T:
    """`work` done here if it concerns few bytes, in a thread if many."""
    return work() if size < OFFLOADED else await asyncio.to_thread(work)
