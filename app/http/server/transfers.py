"""Threads that receive and send large bodies while the event loop goes on with other connections.

A thread has a connection's socket for as long as bytes come, or are taken, without a pause. Then, or when it is done,
the event loop has it back: clients that are slow, deadlines, and what becomes of those that hang up are the loop's, and
no client can keep a thread. So there is nothing here that the loop does not do as well; it does all where threads would
only take its processor, and where none is idle.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Protocol

from app.codecs.codec import Piece
from app.memory.buffers import Buffer

LENT = 1 << 20
"""Bytes still to come, or to go, that are worth a thread: to hand them over and back takes some 0.1 ms."""

ALONE = 1 << 24
"""The same where no other large body is under way, which the thread's time would be saved for."""

PROBE = 1 << 16
"""Bytes of a large body that the event loop reads at once. If so many were there, more are coming."""

PAUSE_SECONDS = 0.005
"""In which a client must send or take PROBE bytes, or the thread gives its socket back."""

WOKEN = 1 << 18
"""Bytes that wake a thread which waits for more of a body, unless fewer are left: each time it needs the interpreter's
lock, which others have."""


class Work(Protocol):
    """What a thread does with a socket."""

    is_over: bool
    """Set in the event loop once nobody wants the rest of it."""

    def run(self, lent: socket.socket) -> None:
        """Go on until all is done, the client pauses, or `is_over`. Raises OSError."""


class Receiving:
    """Fills `buffer`. `count` bytes have come."""

    __slots__ = ("buffer", "count", "is_over")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.count = 0
        self.is_over = False

    def run(self, lent: socket.socket) -> None:
        pace, wakes_at = _Pace(lent, select.POLLIN), 1
        try:
            while (left := len(self.buffer) - self.count) and not self.is_over:
                try:
                    received = lent.recv_into(self.buffer[self.count :])
                except BlockingIOError:
                    if wakes_at != min(left, WOKEN):
                        wakes_at = min(left, WOKEN)
                        lent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)
                    if not pace.goes_on(self.count):
                        break
                else:
                    if not received:
                        break
                    self.count += received
        finally:
            if wakes_at != 1:
                lent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class Sending:
    """Sends `groups` of pieces; `rest` of them is not sent."""

    __slots__ = ("error", "groups", "is_over", "rest", "sent")

    def __init__(self, groups: Iterator[list[Piece]]) -> None:
        self.groups = groups
        self.rest: list[Piece] = []
        self.sent = 0
        """Bytes."""
        self.error: Exception | None = None
        """From making the pieces."""
        self.is_over = False

    def run(self, lent: socket.socket) -> None:
        pace = _Pace(lent, select.POLLOUT)
        while not self.is_over and (self.rest or self._has_next()):
            try:
                sent = lent.sendmsg(self.rest)
            except BlockingIOError:
                if not pace.goes_on(self.sent):
                    break
            else:
                self.sent += sent
                _, self.rest = split(self.rest, sent)

    def _has_next(self) -> bool:
        try:
            self.rest = next(self.groups, [])
        except Exception as error:
            self.error = error
        return bool(self.rest)


class Transfers:
    """At most `threads` at work, for the connections of one event loop, to which everything here belongs."""

    def __init__(self, threads: int) -> None:
        self.idle = threads
        """How many would begin at once."""
        self._under_way = 0
        self._executor = ThreadPoolExecutor(max(threads, 1), thread_name_prefix="dmlserve-transfer")

    def enter(self) -> None:
        """A large body begins to come or to go, whoever moves it; `leave` follows."""
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1

    def worth(self, size: int) -> bool:
        """Whether a thread should have so many bytes now."""
        return self.idle > 0 and size >= (LENT if self._under_way > 1 else ALONE)

    def submit(
        self, work: Work, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, done: Callable[[], None]
    ) -> None:
        """Have an idle thread do `work` on the socket of `transport`; `done` is called in the event loop.

        The thread has a descriptor of its own: that of a connection which is closed meanwhile may be another one's at
        once.
        """
        lent = transport.get_extra_info("socket").dup()
        self.idle -= 1
        self._executor.submit(self._run, [work], lent, loop, done)

    def _run(
        self, given: list[Work], lent: socket.socket, loop: asyncio.AbstractEventLoop, done: Callable[[], None]
    ) -> None:
        work = given.pop()  # the executor keeps the list for a while, and would keep the buffers with it
        try:
            with lent, contextlib.suppress(OSError):  # the event loop meets it, too
                work.run(lent)
        finally:
            del work
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._end, done)

    def _end(self, done: Callable[[], None]) -> None:
        self.idle += 1
        done()


class _Pace:
    """Whether a client keeps up."""

    def __init__(self, lent: socket.socket, event: int) -> None:
        self._poll = select.poll()
        self._poll.register(lent, event)
        self._since = perf_counter()
        self._count = 0

    def goes_on(self, count: int) -> bool:
        """Wait for the client, of which `count` bytes have come by now, or which has taken them. Whether to try again:
        not if there were fewer than PROBE in the last PAUSE_SECONDS."""
        now = perf_counter()
        if now - self._since >= PAUSE_SECONDS:
            if count - self._count < PROBE:
                return False
            self._since, self._count = now, count
        self._poll.poll(1000 * PAUSE_SECONDS)
        return True


def split(pieces: list[Piece], size: int) -> tuple[list[Piece], list[Piece]]:
    """The first `size` bytes of `pieces`, and the rest."""
    for number, piece in enumerate(pieces):
        if size < len(piece):
            view = memoryview(piece)
            return [*pieces[:number], *([view[:size]] if size else ())], [view[size:], *pieces[number + 1 :]]
        size -= len(piece)
    return pieces, []
