"""A request's memory is gone with its answer: nothing of it refers to itself and waits for the garbage collector."""

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from uvicorn.server import ServerState

import app.main
from app.engine.service import Service
from app.http.core.keys import Keys
from app.http.server.connection import Connection
from app.http.server.limit import ConnectionLimit, Limits
from app.http.server.scratch import Scratch
from app.http.server.turn import Turn
from app.settings import Settings
from tests.http.wire import header, length
from tests.messages import CELU, as_json, request

ASKED = 40


class Sink(asyncio.Transport):
    """Takes all that is written, and keeps the last of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = b""
        self.written = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        self.last = bytes(data)
        self.written.set()

    def is_closing(self) -> bool:
        return False


def requests(kind: str, count: int) -> Iterator[bytes]:
    """Each with another Alpha, so that each is read from the beginning."""
    for number in range(count):
        message = request(CELU, {"InputTensor": np.ones(300, np.float32)}, {"Alpha": 1 + number / 64})
        body: bytes = json.dumps(as_json(message)).encode() if kind == "json" else msgpack.packb(message)
        media_type = f"Content-Type: application/{kind}".encode()
        yield header(media_type, length(len(body))) + body


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_requests_leave_nothing_to_collect(kind: str) -> None:
    async def found() -> int:
        service = Service(Settings(gpus="none"))
        application = app.main.create_app(service.settings, service, ConnectionLimit())
        service.open()
        handler, transport = app.main.handler_of(application, service.settings, Keys("", "")), Sink()
        connection = Connection(handler, Limits(), ServerState(), 30, asyncio.get_running_loop(), Turn(), Scratch())
        connection.connection_made(transport)

        async def answer(data: bytes) -> None:
            transport.written.clear()
            connection.get_buffer(-1)[: len(data)] = data
            connection.buffer_updated(len(data))
            await transport.written.wait()  # the first ones are compiled by a worker
            assert transport.last.startswith(b"HTTP/1.1 200"), transport.last[:300]

        one, another, *others = requests(kind, ASKED)  # of which Alpha = 1 has a loop of its own
        await answer(one)
        await answer(another)
        gc.collect()
        for data in others:
            await answer(data)
        count = gc.collect()
        service.close()
        return count

    assert asyncio.run(found()) < ASKED // 2
