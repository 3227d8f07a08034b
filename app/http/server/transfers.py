"""Threads that receive and send large bodies while the event loop goes on with other connections.

A thread has a connection's socket for as long as bytes come, or are taken, without a pause. Then, or when it is done,
the event loop has it back: clients that are slow, deadlines, and what becomes of those that hang up are the loop's, and
no client can keep a thread. So there is nothing here that the loop does not do as well; it does all where threads would
only take its processor, and where none is idle.
"""

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Protocol

from app.codecs.codec import Piece
from app.http.server.moving import PAUSE_SECONDS, PROBE, Moving
from app.memory.buffers import Buffer

log = logging.getLogger("app.http")

LENT = 1 << 20
"""Bytes still to come, or to go, that are worth a thread: to hand them over and back takes some 0.1 ms."""

ALONE = 1 << 24
"""The same where no other large body is under way, which the thread's time would be saved for."""


class Transfer(Protocol):
    """What a thread does with a socket, by its descriptor."""

    is_over: bool
    """Set in the event loop once nobody wants the rest of it."""

    def run(self, lent: int, moving: Moving) -> None:
        """Go on until all is done, the client pauses or is gone, or `is_over`."""


@dataclass(slots=True)
class Receiving:
    """Fills `buffer`. `count` bytes have come."""

    buffer: Buffer
    count: int = 0
    is_over: bool = False

    def run(self, lent: int, moving: Moving) -> None:
        pace = _Pace()
        while self.count < len(self.buffer) and not self.is_over:
            received = moving.receive(lent, self.buffer[self.count :])
            self.count += received
            if not pace.is_kept(received):
                break


@dataclass(slots=True)
class Sending:
    """Sends `groups` of pieces; `rest` of them is not sent."""

    groups: Iterator[list[Piece]]
    rest: list[Piece] = field(default_factory=list)
    sent: int = 0
    """Bytes."""
    error: Exception | None = None
    """From making the pieces."""
    is_over: bool = False

    def run(self, lent: int, moving: Moving) -> None:
        pace = _Pace()
        while not self.is_over and (self.rest or self._has_next()):
            size = len(self.rest[0])
            sent = moving.send(lent, self.rest[0], more=len(self.rest) > 1)
            self.sent += sent
            _, self.rest = split(self.rest, sent)
            if sent < size and not pace.is_kept(sent):
                break

    def _has_next(self) -> bool:
        try:
            self.rest = next(self.groups, [])
        except Exception as error:
            self.error = error
        return bool(self.rest)


@dataclass(slots=True)
class _Job:
    """For a thread, which calls `done` in the event loop."""

    work: Transfer
    lent: int
    loop: asyncio.AbstractEventLoop
    done: Callable[[], None]


class Transfers:
    """At most `threads` at work, for the connections of one event loop, to which everything here belongs."""

    def __init__(self, threads: int, moving: Moving | None) -> None:
        """`moving` is what they do it with: None for no threads."""
        self.idle = threads
        """How many would begin at once."""
        self._under_way: set[object] = set()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # a thread pool's futures are as much work again
        weakref.finalize(self, _end, self._jobs, threads)
        # At once: later there may be too many threads for one more, in the midst of somebody's body.
        for number in range(threads):
            name = f"dmlserve-transfer_{number}"
            Thread(target=_serve, args=(self._jobs, moving), name=name, daemon=True).start()

    def enter(self, who: object) -> None:
        """A large body comes or goes, whoever moves it, until `who` leaves."""
        self._under_way.add(who)

    def leave(self, who: object) -> None:
        """Also if it has not entered."""
        self._under_way.discard(who)

    def worth(self, size: int) -> bool:
        """Whether a thread should have so many bytes now."""
        return self.idle > 0 and size >= (LENT if len(self._under_way) > 1 else ALONE)

    def submit(
        self, work: Transfer, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, done: Callable[[], None]
    ) -> bool:
        """Have an idle thread do `work` on the socket of `transport`; `done` is called in the event loop.

        The thread has a descriptor of its own: that of a connection which is closed meanwhile may be another one's at
        once. Where none is left the event loop has to go on, which False says.
        """
        try:
            lent = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:
            return False
        self.idle -= 1
        self._jobs.put(_Job(work, lent, loop, lambda: self._done(done)))
        return True

    def _done(self, done: Callable[[], None]) -> None:
        self.idle += 1
        done()


def _serve(jobs: "SimpleQueue[_Job | None]", moving: Moving) -> None:
    while job := jobs.get():
        try:
            job.work.run(job.lent, moving)
        except Exception:
            log.exception("A thread could not go on with a connection")  # the event loop does
        finally:
            os.close(job.lent)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                job.loop.call_soon_threadsafe(job.done)
            del job  # it has buffers


def _end(jobs: "SimpleQueue[_Job | None]", threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)


class _Pace:
    """Whether a client keeps up."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def is_kept(self, count: int) -> bool:
        """Whether `count` bytes, since this was asked before, are PROBE in each PAUSE_SECONDS."""
        since, self._since = self._since, perf_counter()
        return count >= PROBE * max((self._since - since) / PAUSE_SECONDS, 1)


def split(pieces: list[Piece], size: int) -> tuple[list[Piece], list[Piece]]:
    """The first `size` bytes of `pieces`, and the rest."""
    for number, piece in enumerate(pieces):
        if size < len(piece):
            view = memoryview(piece)
            return [*pieces[:number], *([view[:size]] if size else ())], [view[size:], *pieces[number + 1 :]]
        size -= len(piece)
    return pieces, []


NO_THREADS = Transfers(0, None)
"""Where the event loop moves all."""
