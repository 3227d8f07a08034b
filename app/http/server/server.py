"""A uvicorn server that an orchestrator can stop without losing requests."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn

from app.http.server.replies import CLOSE
from app.http.server.tls import ADMITTED, Handshakes, Listener
from app.settings import Unusable

_BACKLOG = 2048
"""Connections that may wait to be accepted; uvicorn's default."""

_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses that `host` has; a port of 0 is a free one. Raises Unusable.

    From here on clients wait for the service instead of being refused. `localhost` may have an address of IPv6 where
    there is no IPv6, as in containers.
    """
    sockets: list[socket.socket] = []
    without: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=_BACKLOG))
            except OSError as error:
                if family != socket.AF_INET6 or error.errno not in _NO_IPV6:
                    raise
                without = error
        if without and not sockets:
            raise without
    except OSError as error:
        for opened in sockets:
            opened.close()
        # To the system's words Python adds what it was doing.
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise Unusable(f"The service cannot listen on {host}, port {port}: {why}.") from None
    return sockets


class UnixSocket:
    """A socket that listens at `path`, in place of one that nobody listens on any more. Raises Unusable.

    Who may connect is for the process' umask, and for the folder, to say.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            if _is_deserted(path):
                os.unlink(path)
            self.socket.bind(path)
            self._identity = _identity(path)
            self.socket.listen(_BACKLOG)
        except OSError as error:
            self.socket.close()
            why = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                why = "somebody listens there" if _is_socket(path) else "what is there is no socket"
            raise Unusable(f"The service cannot listen at {path}: {why}.") from None

    def remove(self) -> None:
        """Remove it from its folder, unless another one is there by now."""
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._identity:
                os.unlink(self._path)


def _is_deserted(path: str) -> bool:
    """Whether there is a socket which nobody listens on. What else may be there is nobody's to remove."""
    if not _is_socket(path):
        return False
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            asking.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _waiting(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept those who have connected, and close it right behind the last one."""
    with listening, contextlib.suppress(OSError):  # nobody is left, or no descriptor for them
        listening.setblocking(False)
        for _ in range(_BACKLOG):  # and no more: others may go on connecting
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            yield accepted


class Server(uvicorn.Server):
    """Drains when `stop` is called first, then returns from `run` normally, so that the process can exit with 0.

    1. `on_drain` is called at once, in the event loop: from here on the application reports that it is not ready.
    2. For `drain_seconds` everything is answered as before, so that load balancers notice. In the second half of them
       each connection ends with its next answer, so that clients that keep theirs go elsewhere.
    3. uvicorn's own shutdown follows: the listening sockets and idle connections are closed, but for those who have
       just connected, running requests have `Config.timeout_graceful_shutdown` seconds to finish, and the application's
       lifespan ends.

    The same happens when `limit_max_requests` is reached or `should_exit` is set. A second `stop` drops what is still
    running and skips the rest; `force_exit` then tells.

    `run` is for another thread than the main one, or uvicorn would catch signals.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_drain: Callable[[], None],
        drain_seconds: float = 0.0,
        handshake_seconds: float = 10.0,
        rehearse: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`rehearse` is done before anybody is listened to. With a `config.ssl`, clients have `handshake_seconds` for
        the handshake of TLS."""
        super().__init__(config)
        self._handshake_seconds = handshake_seconds
        self._handshakes: Handshakes | None = None
        self._on_drain = on_drain
        self._rehearse = rehearse
        self._drain_seconds = drain_seconds
        self._drain_end: float | None = None  # on the loop's clock
        self._loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        sockets, context = sockets or [], self.config.ssl
        if context:
            self._handshakes = Handshakes(context, self._protocol, self._handshake_seconds)
        await super().startup([])  # uvicorn itself listens on none
        if self._rehearse and not self.should_exit:
            await self._rehearse()
        for listening in sockets:
            if self._handshakes:
                self.servers.append(Listener(listening, self._handshakes))  # type: ignore[arg-type]
                continue
            # libuv accepts one for each listening socket in a turn, so that of many clients that come together to a
            # busy service the last one would wait until as many turns are over.
            duplicates = [socket.socket(fileno=os.dup(listening.fileno())) for _ in range(ADMITTED - 1)]
            self.servers += [await self._listen(each) for each in (listening, *duplicates)]
        self._log_started_message(sockets)

    async def _listen(self, listening: socket.socket) -> asyncio.Server:
        backlog = self.config.backlog
        if listening.family != socket.AF_UNIX:
            return await self._loop.create_server(self._protocol, sock=listening, backlog=backlog)
        more: dict[str, Any] = {}
        if sys.version_info >= (3, 13) and isinstance(self._loop, asyncio.BaseEventLoop):
            more["cleanup_socket"] = False  # other workers still listen there
        return await self._loop.create_unix_server(self._protocol, sock=listening, backlog=backlog, **more)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]  # as in uvicorn
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, but for clients who have connected and are not accepted yet: the end of a listening socket would
        be theirs, too, and they may have sent a request."""
        last = [listening.dup() for listening in sockets or []]
        for server in self.servers:  # these close what they were given
            server.close()
        if self._handshakes:
            self._handshakes.is_ending = True
        for accepted in [accepted for listening in last for accepted in _waiting(listening)]:
            if self._handshakes:
                self._handshakes.begin(accepted)
            else:
                await self._loop.connect_accepted_socket(self._protocol, accepted)
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Drain, or if that was called for before, hurry. From any thread, once the server has `started`."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to end
            if self.should_exit:
                self.force_exit = True
                self._loop.call_soon_threadsafe(self._abort_connections)
            self.should_exit = True
            self._loop.call_soon_threadsafe(self._begin_drain)

    async def on_tick(self, counter: int) -> bool:
        if not await super().on_tick(counter):
            return False
        self.should_exit = True
        drain_end = self._begin_drain()
        return self.force_exit or self._loop.time() >= drain_end

    def _begin_drain(self) -> float:
        """Returns when the draining ends. In the event loop, so that it begins once."""
        if self._drain_end is None:
            self._drain_end = self._loop.time() + self._drain_seconds
            self._loop.call_soon(self._on_drain)  # where an error does not end the server
            if self._drain_seconds:
                self._loop.call_later(self._drain_seconds / 2, self._close_after_answers)
            else:
                self._close_after_answers()
        return self._drain_end

    def _close_after_answers(self) -> None:
        """Each connection ends with its next answer, so that none is cut off under a request that is on its way."""
        self.config.encoded_headers.append(CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]

    def _abort_connections(self) -> None:
        # From Python 3.12 on, asyncio's Server.wait_closed waits for them, however long that takes.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
