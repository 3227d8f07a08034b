"""A request's memory is gone with its answer, and a connection's with its end: nothing of them refers to itself and
waits for the garbage collector."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import numpy as np
import pytest
from uvicorn.server import ServerState

import app.main
from app.engine.service import Service
from app.http.core.keys import Keys
from app.http.server.connection import Connection
from app.http.server.limit import ConnectionLimit
from app.http.server.scratch import Scratch
from app.http.server.turn import Turn
from app.settings import Settings
from tests.http.wire import CHUNKED, SECONDS, header, length
from tests.messages import CELU, as_json, request

ASKED = 40

SENT = 1 << 20
"""Bytes of a large body."""


class Sink(asyncio.Transport):
    """Takes all that is written, and keeps the last of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = b""
        self.written = asyncio.Event()
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        self.last = bytes(data)
        self.written.set()

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        """Whoever sends does not wait for it."""

    def resume_reading(self) -> None:
        """The same."""


def requests(kind: str, count: int) -> Iterator[bytes]:
    """Each with another Alpha, so that each is read from the beginning."""
    for number in range(count):
        message = request(CELU, {"InputTensor": np.ones(300, np.float32)}, {"Alpha": 1 + number / 64})
        body: bytes = json.dumps(as_json(message)).encode() if kind == "json" else msgpack.packb(message)
        media_type = f"Content-Type: application/{kind}".encode()
        yield header(media_type, length(len(body))) + body


class Client:
    """One connection to a service of its own."""

    def __init__(self, connection: Connection, transport: Sink, service: Service) -> None:
        self._connection = connection
        self._transport = transport
        self.service = service

    def send(self, data: bytes) -> None:
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))

    async def ask(self, data: bytes) -> None:
        self._transport.written.clear()
        self.send(data)
        await self._transport.written.wait()  # the first ones are compiled by a worker
        assert self._transport.last.startswith(b"HTTP/1.1 200"), self._transport.last[:300]

    async def answered(self) -> None:
        await self._transport.written.wait()

    @property
    def answer(self) -> bytes:
        """The last one."""
        return self._transport.last

    def close(self) -> None:
        self._transport.is_closed = True
        self._connection.connection_lost(None)


@asynccontextmanager
async def clients() -> AsyncIterator[Any]:
    """A function that makes them, all of one service."""
    service = Service(Settings(gpus="none"))
    application = app.main.create_app(service.settings, service, ConnectionLimit())
    service.open()
    handler, turn, scratch = app.main.handler_of(application, service.settings, Keys("", "")), Turn(), Scratch()
    limit, state, settings, memory = ConnectionLimit(), ServerState(), service.settings, service.memory

    def client() -> Client:
        connection = Connection(handler, settings, limit, state, asyncio.get_running_loop(), turn, scratch, memory)
        transport = Sink()
        connection.connection_made(transport)
        return Client(connection, transport, service)

    yield client
    service.close()


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_requests_leave_nothing_to_collect(kind: str) -> None:
    async def found() -> int:
        async with clients() as client:
            asking = client()
            one, another, *others = requests(kind, ASKED)  # of which Alpha = 1 has a loop of its own
            await asking.ask(one)
            await asking.ask(another)
            gc.collect()
            for data in others:
                await asking.ask(data)
            return gc.collect()

    assert asyncio.run(found()) < ASKED // 2


@pytest.mark.usefixtures("_no_collections")
def test_connections_leave_nothing_to_collect() -> None:
    async def found() -> int:
        async with clients() as client:
            data, *_ = requests("json", 1)
            for _ in range(2):
                gc.collect()
                for _ in range(ASKED):
                    asking = client()
                    await asking.ask(data)
                    asking.close()
                del asking
            return gc.collect()

    assert asyncio.run(found()) < ASKED // 2


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("later", [False, True], ids=["at once", "in its body"])
def test_refused_connections_leave_nothing_to_collect(later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.server.connection.LINGER_SECONDS", 0.0)

    async def found() -> int:
        async with clients() as client:
            begun = header(b"Content-Type: application/json", CHUNKED)
            for _ in range(2):
                gc.collect()
                for _ in range(ASKED):
                    asking = client()
                    for data in (begun, b"x\r\n") if later else (begun + b"x\r\n",):
                        asking.send(data)
                        await asyncio.sleep(0.002)
                    await asyncio.wait_for(asking.answered(), SECONDS)
                    assert asking.answer.startswith(b"HTTP/1.1 400 ")
                    asking.close()
                await asyncio.sleep(0.01)
                del asking
            return gc.collect()

    assert asyncio.run(found()) < ASKED // 2


@pytest.mark.usefixtures("_no_collections")
def test_the_memory_of_a_body_goes_with_a_client_that_sends_half_of_it() -> None:
    """By the hundred megabytes, of which the account knows nothing any more."""

    async def kept() -> int:
        async with clients() as client:
            leaving = client()
            fields = b"Content-Type: application/octet-stream", length(SENT)
            path = b"/v1/operators/ACTIVATION_TANH/dispatch?Sizes=262144&DataType=FLOAT32"
            leaving.send(header(*fields, path=path) + bytes(1000))
            for _ in range(2):
                await asyncio.sleep(0.05)  # the buffer's pages are touched by another thread
                leaving.send(bytes(1000))
            leaving.close()
            pool, end = leaving.service.memory.pool, time.monotonic() + SECONDS
            while pool.idle_bytes < SENT and time.monotonic() < end:  # noqa: ASYNC110 - of the other thread
                await asyncio.sleep(0.01)
            idle: int = pool.idle_bytes
            return idle

    assert asyncio.run(kept()) >= SENT
