"""TLS, with a certificate that can be renewed while the service runs, and handshakes that are bounded."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from app.settings import Settings, Unusable

log = logging.getLogger("app")

HANDSHAKES = 256
"""Clients that a process agrees on TLS with at one time. Whoever is silent has buffers of some 300 KiB meanwhile."""

ADMITTED = 4
"""Connections accepted in one turn of the event loop."""

_CLOSING_SECONDS = 3600.0
"""Event loops' own limit for the end of a connection, its last answer among it. That of its sender is sooner."""

_REST_SECONDS = 1.0
"""How long nobody is accepted where the system has no descriptor left."""


class Handshakes:
    """Agrees on TLS with those who connect, who become connections, and count as such, then. For one event loop."""

    def __init__(self, context: ssl.SSLContext, make: Callable[[], Any], seconds: float) -> None:
        """`make` makes connections' protocols, as uvicorn has them; clients have so many `seconds`."""
        self._context = context
        self._make = make
        self._seconds = seconds
        self.is_ending = False
        """Whether those that are connections already have been told that the server ends."""
        self._running: dict[asyncio.Task[None], None] = {}  # the one that came first is the first

    def begin(self, accepted: socket.socket) -> None:
        """With the client of a socket that was just accepted. One too many, and who has been silent longest is cut off:
        it takes anybody else a moment."""
        if len(self._running) >= HANDSHAKES:
            oldest = next(iter(self._running))
            del self._running[oldest]
            oldest.cancel()  # which has begun, and so closes its socket: only those of this turn have not
        task = asyncio.get_running_loop().create_task(self._agree(accepted))
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _agree(self, accepted: socket.socket) -> None:
        connection = self._make()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=_CLOSING_SECONDS,
            )
        except OSError as error:  # of ssl, too
            log.debug("No TLS with a client: %s", error)
        else:
            if self.is_ending:
                connection.shutdown()


class Listener:
    """In place of asyncio's server, whose handshakes nobody counts."""

    def __init__(self, listening: socket.socket, handshakes: Handshakes) -> None:
        """`listening` does so already."""
        self._socket = listening
        self._handshakes = handshakes
        self._loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept nobody any more."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def wait_closed(self) -> None:
        """It is."""

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ADMITTED):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # another worker has it
            except OSError as error:
                log.error("Nobody is accepted for %g seconds: %s", _REST_SECONDS, error)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_REST_SECONDS, self._listen)
                return
            self._handshakes.begin(accepted)


class Certificate:
    """A certificate with those that vouch for it, and its private key, in PEM. Raises Unusable.

    Connections are made with `context`. It is made before workers are forked, so that a session begun with one of them
    goes on with another.
    """

    def __init__(self, certificate: str, key: str) -> None:
        """Without a file `key`, the key is in the file `certificate`."""
        self.files = [certificate, key] if key else [certificate]
        self.context = self._current = self._read()
        # To change the certificate of a context that handshakes use is not safe; to choose another context is.
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again, in any thread. If they cannot be used, the log says why and the old ones stay."""
        try:
            self._current = self._read()
        except Unusable as error:
            log.error("The TLS certificate stays as it was: %s", error)
        else:
            log.info("The TLS certificate was read again")

    def _choose(self, connecting: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connecting.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        names = " and ".join(self.files)
        try:
            context.load_cert_chain(self.files[0], self.files[-1], _no_password)
        except ssl.SSLError as error:
            why = (error.reason or "no PEM").lower().replace("_", " ")
            raise Unusable(
                f"The TLS files {names} cannot be used: {why}. They hold a certificate and its key, in PEM and without "
                "a password."
            ) from None
        except OSError as error:
            raise Unusable(f"The TLS files {names} cannot be read: {error.strerror}.") from None
        return context


def certificate_of(settings: Settings) -> Certificate | None:
    """None where none is set. Raises Unusable."""
    if settings.tls_certificate:
        return Certificate(settings.tls_certificate, settings.tls_key)
    if settings.tls_key:  # never taken for that there is to be no TLS
        raise Unusable("tls_key is given, but there is no tls_certificate that it belongs to.")
    return None


def _no_password() -> str:
    """OpenSSL would else ask for it on the terminal, and wait."""
    return ""
