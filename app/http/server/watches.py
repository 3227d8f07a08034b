"""Timers of a connection: for clients that do not read, and for those that may be gone."""

import asyncio
import fcntl
import logging
import select
import socket
import sys
import termios
from collections.abc import Callable

log = logging.getLogger("app.http")

LEAST_PROGRESS = 1 << 16
"""Bytes of an answer that waits for its client which the client must take within `send_seconds`."""

HALF_CLOSED_SECONDS = 1.0
"""How long after a client's last byte to wait for the answer before finding out whether the client is still there."""

GONE_SECONDS = 0.1
"""How often to look then, in seconds."""

FAREWELL_SECONDS = 1.0
"""How long a client of TLS that has its answer may leave it open whether it has noticed the end."""

_TCP_CLOSE = 7  # of Linux' tcp_info: the other side has reset the connection


class Deadline:
    """Calls somebody once, some seconds after it was started, unless it is stopped before.

    Who is known while it runs only: whoever has a deadline, and is called by it, would else refer to itself.
    """

    __slots__ = ("_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float, reached: Callable[[], None]) -> None:
        """Without effect if it runs already."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._end, reached)

    def stop(self) -> None:
        """Also if it does not run."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, reached: Callable[[], None]) -> None:
        self._timer = None
        reached()


class SendWatch:
    """Drops a client that takes less than LEAST_PROGRESS of what waits for it in `seconds`."""

    __slots__ = ("_deadline", "_seconds", "_transport", "_unsent_bytes")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._deadline = Deadline(loop)
        self._unsent_bytes = 0

    def start(self) -> None:
        """From now on something waits for the client."""
        self.stop()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._deadline.start(self._seconds, self._look)

    def stop(self) -> None:
        """Nothing does."""
        self._deadline.stop()

    def _look(self) -> None:
        if self._unsent_bytes - self._transport.get_write_buffer_size() < LEAST_PROGRESS:
            log.warning("Dropped a client that took nothing of its answer for %g seconds", self._seconds)
            self._transport.abort()
        else:
            self.start()


class Watch:
    """Looks at a client's socket every `seconds`, and cuts the client off once `is_over` says so of it."""

    __slots__ = ("_deadline", "_is_over", "_seconds", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        is_over: Callable[[socket.socket], bool],
    ) -> None:
        self._transport = transport
        self._deadline = Deadline(loop)
        self._seconds = seconds
        self._is_over = is_over

    def start(self) -> None:
        """Looks for the first time when so many are over."""
        self._deadline.start(self._seconds, self._look)

    def start_after(self, seconds: float, probe: Callable[[], None]) -> None:
        """The same in `seconds`, with what `probe` does then."""

        def begin() -> None:
            probe()
            self.start()

        self._deadline.start(seconds, begin)

    def stop(self) -> None:
        """The connection is over."""
        self._deadline.stop()

    def _look(self) -> None:
        if self._is_over(self._transport.get_extra_info("socket")):
            self._transport.abort()
        else:
            self.start()


def has_gone(connected: socket.socket) -> bool:
    """Whether a client that sends no more is not there any more, and was sent something since.

    A client that hung up and one that only sends no more look alike until something is sent to them. To an interim
    response the system of one that hung up answers with a reset; any other client skips it (RFC 9110, 15.2).
    """
    if connected.family == socket.AF_UNIX:
        asked = select.poll()
        asked.register(connected.fileno(), 0)
        return bool(asked.poll(0))  # the other side is closed for both directions, at once and without a probe
    return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE


def has_all(connected: socket.socket) -> bool:
    """Whether the system of the other side has all that was sent; nothing waits in this process then, either."""
    waiting = fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(waiting, sys.byteorder) == 0
