"""The requests that are found in one turn of the event loop, answered in step (app/steps.py): all are received, then
each is read, then each is computed, then each is answered.

A client that waits for its answer sleeps, and often its processor with it. To wake them takes longer than to send the
answer, and while one client process is awake it takes further answers as they come. So small answers that are ready in
one turn are sent right after one another, and what else there is to do about their requests waits until all are sent.
"""

import asyncio
import logging
from time import perf_counter
from typing import Protocol

log = logging.getLogger("app.http")

TOGETHER = 16
"""Requests that go in step: what is in use of more would push each other's out of the caches."""

SECONDS = 0.002
"""How long they go in step. Then each goes as far as it does by itself, in their order, so that no answer waits much
longer for others than it would without steps."""


class Connection(Protocol):
    """A connection whose requests go in step with those of others."""

    loop: asyncio.AbstractEventLoop

    def step(self) -> bool:
        """Take the next step of the request whose turn it is, if there is one. Whether it has another."""

    def send_waiting(self) -> None:
        """Send the answer that waits, unless that was done meanwhile."""

    def end_answer(self) -> None:
        """Do what is left to do when it is sent."""

    def drop(self) -> None:
        """Cut it off."""


class Turn:
    """Those of the connections of an event loop that have something to do when all is received that has arrived."""

    def __init__(self) -> None:
        self._small: list[Connection] = []
        self._large: list[Connection] = []
        self._answered: list[Connection] = []
        self._is_due = False

    def ready(self, connection: Connection, *, is_large: bool) -> None:
        """Have the next request of `connection` answered: a large one by itself, when the small ones are."""
        (self._large if is_large else self._small).append(connection)
        self._be_due(connection)

    def answered(self, connection: Connection) -> None:
        """Have the answer that waits on `connection` sent, with others."""
        self._answered.append(connection)
        self._be_due(connection)

    def _be_due(self, connection: Connection) -> None:
        if not self._is_due:
            self._is_due = True
            connection.loop.call_soon(self._end)

    def _end(self) -> None:
        small, self._small = self._small, []
        large, self._large = self._large, []
        for first in range(0, len(small), TOGETHER):
            self._answer(small[first : first + TOGETHER])
        self._send()  # what tasks have answered, if there was no small one: a large one takes its time
        for connection in large:
            self._answer([connection])
        self._is_due = False
        for connection in (*self._small, *self._large):  # whose requests came right behind those
            self._be_due(connection)

    def _answer(self, going: list[Connection]) -> None:
        end = perf_counter() + SECONDS
        while going:
            further = []
            for number, connection in enumerate(going):
                if _step(connection):
                    further.append(connection)
                if perf_counter() > end:
                    self._send()
                    self._answer_in_order([*further, *going[number + 1 :]])
                    return
            going = further
        self._send()

    def _answer_in_order(self, going: list[Connection]) -> None:
        """Answer each before the next one."""
        for connection in going:
            while _step(connection):
                pass
            self._send()

    def _send(self) -> None:
        answered, self._answered = self._answered, []
        for connection in answered:
            try:
                connection.send_waiting()
            except Exception as error:
                _fail(connection, error)
        for connection in answered:
            try:
                connection.end_answer()
            except Exception as error:
                _fail(connection, error)


def _step(connection: Connection) -> bool:
    try:
        return connection.step()
    except Exception as error:
        _fail(connection, error)
        return False


def _fail(connection: Connection, error: Exception) -> None:
    """What should not happen in one connection is not to stop the others."""
    log.error("Exception in a connection, which is closed", exc_info=error)
    connection.drop()
