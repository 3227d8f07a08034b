"""A client that sends more requests than it waits for answers to."""

import asyncio
from typing import Any

from uvicorn.server import ServerState

from app.codecs.codec import Encoded
from app.http.core.exchange import Reply, Request
from app.http.server.connection import PIPELINED, Connection
from app.http.server.limit import ConnectionLimit
from app.http.server.scratch import Scratch
from app.http.server.turn import Turn
from app.memory.accounts import MemoryAccount
from app.settings import Settings

ASKED = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"


class Transport(asyncio.Transport):
    """Notes whether it is read, and the answers."""

    is_read = True
    written = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)


def test_no_more_is_read_until_some_are_answered() -> None:
    """However many requests a read brings, and whoever asks whether the client is still there."""

    async def ask() -> None:
        transport, turns = Transport(), asyncio.Semaphore(0)

        async def handler(request: Request) -> Reply:
            watching = asyncio.ensure_future(request.body.hung_up())
            await turns.acquire()
            watching.cancel()
            return Reply(200, [(b"content-length", b"0")], Encoded(0, ()))

        connection = Connection(
            handler,
            Settings(),
            ConnectionLimit(),
            ServerState(),
            asyncio.get_running_loop(),
            Turn(),
            Scratch(),
            MemoryAccount(1 << 30),
        )
        connection.connection_made(transport)
        count = 2 * PIPELINED
        data = b"".join(ASKED % number for number in range(count))
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        for answered in range(count):
            for _ in range(20):  # turns, however long they take
                await asyncio.sleep(0)
            assert transport.is_read == (count - answered < PIPELINED), answered
            assert transport.written.count(b"HTTP/1.1 200") == answered
            turns.release()
        connection.connection_lost(None)

    asyncio.run(ask())
