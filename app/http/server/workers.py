"""Several processes that serve one port."""

import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from app.http.core.watched import SECONDS, Looking
from app.http.server.process import GRACE_SECONDS
from app.signals import ENDING, RELOADING, Signals, end, end_with_parent

log = logging.getLogger("app")

_NOTED = (*ENDING, RELOADING, signal.SIGCHLD)
_SHORT_LIFE_SECONDS = 5.0
"""A worker that ends sooner is not started again at once, but after `_REST_SECONDS`."""
_REST_SECONDS = 1.0


class Supervisor:
    """Runs `work(number, signals)` in `count` processes. It returns whether it went well; one that fails is run again.

    In the main thread, which nothing else keeps busy:

    - Ending signals are passed on. Workers that have not ended `end_seconds` after the first, and some more that they
      have to end themselves, are killed.
    - SIGHUP calls `reload`, for the workers that will be started, and is passed on to those that are there. For the
      same workers `watched` are looked at.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[int, Signals], bool],
        signals: Signals,
        reload: Callable[[], None],
        end_seconds: float,
        watched: Sequence[Looking] = (),
    ) -> None:
        self._work = work
        self._signals = signals
        self._reload = reload
        self._end_seconds = end_seconds
        self._watched = watched
        self._wanted = dict.fromkeys(range(count), 0.0)  # when to start them, by number
        self._started: dict[int, tuple[int, float]] = {}  # number and time, by process id
        self._ending = False
        self._deadline = math.inf
        self._failed = False

    def run(self, sockets: Iterable[socket.socket] = ()) -> bool:
        """Returns when all have ended: whether they ended well. `sockets` are the workers', to be closed at their end.

        As long as they are open here, the port is taken and clients wait, although nobody will answer.
        """
        self._signals.hold(signal.SIGCHLD)
        while True:
            self._reap()
            for number in [number for number, due in self._wanted.items() if due <= monotonic()]:
                self._start(number)
            if not self._started and not self._wanted:
                return not self._failed
            look = monotonic() + SECONDS if self._watched and not self._ending else math.inf
            told = self._signals.next(min(self._deadline, *self._wanted.values(), look))
            if told == RELOADING:
                self._reload()
                self._pass_on(told)
            elif told in ENDING:
                self._end(told)
                for each in sockets:
                    each.close()
            elif monotonic() >= self._deadline:
                self._failed = True
                self._pass_on(signal.SIGKILL)
                self._deadline = math.inf
                log.error("Workers do not end; they are killed")
            elif monotonic() >= look:
                for one in self._watched:
                    one.look()

    def _end(self, told: int) -> None:
        seconds = 0.0 if self._ending else self._end_seconds
        self._ending = True
        self._deadline = min(self._deadline, monotonic() + seconds + 2 * GRACE_SECONDS)
        self._wanted.clear()
        self._pass_on(told)

    def _pass_on(self, told: int) -> None:
        for process in self._started:
            os.kill(process, told)

    def _reap(self) -> None:
        while self._started:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process not in self._started:  # an orphan, if this is process 1
                continue
            number, since = self._started.pop(process)
            code = os.waitstatus_to_exitcode(status)
            if self._ending:
                self._failed |= code != 0
                continue
            now = monotonic()
            self._wanted[number] = now + (_REST_SECONDS if now - since < _SHORT_LIFE_SECONDS else 0.0)
            log.error("Worker %d, process %d, ended with %d; it is started again", number, process, code)

    def _start(self, number: int) -> None:
        del self._wanted[number]
        # Between the fork and its own handlers a signal would have a worker do what is its parent's to do.
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOTED)
        parent = os.getpid()
        try:
            process = os.fork()
        except OSError as error:  # there are as many processes as may be, or no memory for one: later there may be
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTED)
            self._wanted[number] = monotonic() + _REST_SECONDS
            log.error("Worker %d cannot be started: %s; it is tried again", number, error.strerror)
            return
        if process:
            self._started[process] = number, monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTED)
            return
        went_well = False
        try:
            end_with_parent(signal.SIGTERM, parent)  # nobody would stop a worker without its parent
            os.setpgrp()  # Ctrl-C is the parent's to forward; twice would mean to hurry
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signals = Signals()
            self._signals.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTED)
            went_well = self._work(number, signals)
        except BaseException:
            log.exception("Worker %d failed", number)
        finally:
            end(0 if went_well else 1)  # the rest of what there is to clean up is the parent's
