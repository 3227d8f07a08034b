"""A uvicorn server that an orchestrator can stop without losing requests."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import uvicorn

from app.settings import Unusable

_BACKLOG = 2048
"""Connections that may wait to be accepted; uvicorn's default."""

ADMITTED = 4
"""Connections accepted in one turn of the event loop. libuv accepts one for each listening socket, so that of many
clients that come together to a busy service the last one would wait until as many turns are over; hence duplicates."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses that `host` has; a port of 0 is a free one. Raises Unusable.

    From here on clients wait for the service instead of being refused.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            opened = socket.socket(family, kind, protocol)
            sockets.append(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
            opened.bind(address)
            opened.listen(_BACKLOG)
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise Unusable(f"The service cannot listen on {host}, port {port}: {error.strerror}.") from None
    return sockets


class Server(uvicorn.Server):
    """Drains when `stop` is called first, then returns from `run` normally, so that the process can exit with 0.

    1. `on_drain` is called at once, in the event loop: from here on the application reports that it is not ready and
       takes on no new work.
    2. For `drain_seconds` everything is answered as before, so that load balancers notice.
    3. uvicorn's own shutdown follows: the listening sockets and idle connections are closed, running requests have
       `Config.timeout_graceful_shutdown` seconds to finish, and the application's lifespan ends.

    The same happens when `limit_max_requests` is reached or `should_exit` is set. A second `stop` drops what is still
    running and skips the rest; `force_exit` then tells.

    `run` is for another thread than the main one, or uvicorn would catch signals.
    """

    def __init__(self, config: uvicorn.Config, on_drain: Callable[[], None], drain_seconds: float = 0.0) -> None:
        super().__init__(config)
        self._on_drain = on_drain
        self._drain_seconds = drain_seconds
        self._drain_end: float | None = None  # on the loop's clock
        self._loop: asyncio.AbstractEventLoop

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets:
            self._log_started_message(sockets)
        for listening in [each for server in self.servers for each in server.sockets]:
            for _ in range(ADMITTED - 1):
                again = socket.socket(fileno=os.dup(listening.fileno()))
                self.servers.append(
                    await self._loop.create_server(self._protocol, sock=again, backlog=self.config.backlog)
                )

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]  # as in uvicorn
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def stop(self) -> None:
        """Drain, or if that was called for before, hurry. From any thread, once the server has `started`."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to end
            if self.should_exit:
                self.force_exit = True
                self._loop.call_soon_threadsafe(self._abort_connections)
            self.should_exit = True
            self._begin_drain()

    async def on_tick(self, counter: int) -> bool:
        if not await super().on_tick(counter):
            return False
        self.should_exit = True
        drain_end = self._begin_drain()
        return self.force_exit or self._loop.time() >= drain_end

    def _begin_drain(self) -> float:
        """Returns when the draining ends."""
        if self._drain_end is None:
            self._drain_end = self._loop.time() + self._drain_seconds
            # Each connection ends with its next answer, so that none is cut off under a request that is on its way.
            close = [(b"connection", b"close")]
            self.config.encoded_headers += close
            self.server_state.default_headers = self.server_state.default_headers + close
            # Through the loop, whose own it is, and where an error does not end the server.
            self._loop.call_soon_threadsafe(self._on_drain)
        return self._drain_end

    def _abort_connections(self) -> None:
        # From Python 3.12 on, asyncio's Server.wait_closed waits for them, however long that takes.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
