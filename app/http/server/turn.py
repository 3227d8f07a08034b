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

from app.steps import here

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
        """Take the next step of the request whose turn it is, if there is one: all of them, if there is nobody to be in
        step with. Whether it has another."""

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
        self._is_due = False  # to be called at the end of the turn
        self._is_answering = False
        self.last: Connection | None = None
        """That was read from. If it is again, nobody else seems to ask, and to wait for the end of the turn would take
        one more."""

    def ready(self, connection: Connection, *, is_large: bool, at_once: bool = False) -> None:
        """Have the next request of `connection` answered: a large one by itself, when the small ones are. All that are
        ready are answered at the end of the turn, or `at_once`."""
        (self._large if is_large else self._small).append(connection)
        if at_once:
            self._answer_all()
        else:
            self._be_due(connection)

    def answered(self, connection: Connection) -> None:
        """Have the answer that waits on `connection` sent, with others, if there seem to be any."""
        self._answered.append(connection)
        if self._is_answering:
            return
        if connection is self.last and not self._is_due:
            self._send()
        else:
            self._be_due(connection)

    def _be_due(self, connection: Connection) -> None:
        if not (self._is_due or self._is_answering):
            self._is_due = True
            connection.loop.call_soon(self._end)

    def _end(self) -> None:
        self._is_due = False
        self._answer_all()

    def _answer_all(self) -> None:
        self._is_answering = True
        small, self._small = self._small, []
        while len(small) > 1:
            together, small = small[:TOGETHER], small[TOGETHER:]
            left = self._in_step(together)
            self._send()
            self._answer_in_order(left)
        self._answer_in_order(small)
        if self._answered:
            self._send()  # what tasks have answered: a large one takes its time
        if self._large:
            large, self._large = self._large, []
            self._answer_in_order(large)
        self._is_answering = False
        if self._small or self._large:  # requests that came right behind those
            self._be_due((self._small or self._large)[0])

    def _in_step(self, going: list[Connection]) -> list[Connection]:
        """Take steps of these, of each in turn, while there is time and more than one goes on: which still do."""
        here.has_others, is_late, end = True, False, perf_counter() + SECONDS
        while len(going) > 1 and not is_late:
            further = []
            for number, connection in enumerate(going, 1):
                try:
                    if connection.step():
                        further.append(connection)
                except Exception as error:
                    fault(connection, error)
                is_late = perf_counter() > end
                if is_late:
                    further += going[number:]
                    break
            going = further
        here.has_others = False
        return going

    def _answer_in_order(self, going: list[Connection]) -> None:
        """Answer each before the next one."""
        for connection in going:
            try:
                connection.step()
            except Exception as error:
                fault(connection, error)
            self._send()

    def _send(self) -> None:
        answered, self._answered = self._answered, []
        for connection in answered:
            try:
                connection.send_waiting()
            except Exception as error:
                fault(connection, error)
        for connection in answered:
            try:
                connection.end_answer()
            except Exception as error:
                fault(connection, error)


def fault(connection: Connection, error: Exception) -> None:
    """What should not happen in one connection is not to stop the others."""
    log.error("Exception in a connection, which is closed", exc_info=error)
    connection.drop()
