"""Small answers of several connections, sent right after one another.

A client that waits for its answer sleeps, and often its processor with it. To wake them takes longer than to send the
answer, and while one client process is awake it takes further answers as they come. So those that are ready in one
turn of the event loop wait for each other, and what else there is to do about their requests waits until all are sent.
"""

import asyncio
import threading
from time import perf_counter
from typing import Protocol

SECONDS = 0.001
"""How long an answer may have to wait for others that are being computed. The last of them may take longer."""


class Connection(Protocol):
    """A connection whose answer can wait."""

    loop: asyncio.AbstractEventLoop

    def send_waiting(self) -> None:
        """Send it, unless that was done meanwhile."""

    def end_answer(self) -> None:
        """Do what is left to do when it is sent."""


class Batch:
    """Those of the connections of an event loop whose answers wait."""

    def __init__(self) -> None:
        self._waiting: list[Connection] = []
        self._since = 0.0
        self._last = 0

    def add(self, connection: Connection) -> None:
        """Let the answer of `connection` wait, but not beyond this turn of the event loop."""
        now = perf_counter()
        if not self._waiting:
            self._since = now
        self._waiting.append(connection)
        last, self._last = self._last, id(connection)
        is_alone = last == self._last  # it had the last answer as well, so nobody else seems to ask
        if is_alone or now - self._since > SECONDS:
            self.send()
        elif len(self._waiting) == 1:
            connection.loop.call_soon(self.send)

    def send(self) -> None:
        """Send all that wait."""
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.send_waiting()
        for connection in waiting:
            connection.end_answer()


class _Here(threading.local):
    def __init__(self) -> None:
        self.batch = Batch()


_here = _Here()


def batch_here() -> Batch:
    """That of this thread's event loop."""
    return _here.batch
