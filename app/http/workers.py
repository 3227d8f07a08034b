"""Several processes that serve one port."""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("app")

_ENDING = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_SHORT_LIFE_SECONDS = 5.0
"""A worker that ends sooner is not started again at once."""


class _Left(BaseException):
    """A worker was told to end before its server was there."""


def _leave(number: int, frame: FrameType | None) -> None:
    raise _Left


class Supervisor:
    """Runs `work(number)` in `count` processes. One that fails is started again; SIGTERM and SIGINT end them all."""

    def __init__(self, count: int, work: Callable[[int], None]) -> None:
        self._count = count
        self._work = work
        self._started: dict[int, tuple[int, float]] = {}  # number and time, by process id
        self._stopping = False
        self._failed = False

    def run(self) -> bool:
        """Returns when all have ended: whether they ended well."""
        for name in _ENDING:
            signal.signal(name, self._forward)
        for number in range(self._count):
            self._start(number)
        while self._started:
            process, status = os.wait()
            number, since = self._started.pop(process)
            code = os.waitstatus_to_exitcode(status)
            if self._stopping:
                self._failed |= code != 0
                continue
            log.error("Worker %d, process %d, ended with %d; it is started again", number, process, code)
            if time.monotonic() - since < _SHORT_LIFE_SECONDS:
                time.sleep(1)
            self._start(number)
        return not self._failed

    def _start(self, number: int) -> None:
        if self._stopping:
            return
        # Between the fork and its own handlers a signal would have a worker do what is its parent's to do.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        process = os.fork()
        if process:
            self._started[process] = number, time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            return
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # nobody would stop a worker without its parent
            os.setpgrp()  # Ctrl-C is the parent's to forward; twice would mean to hurry
            for name in _ENDING:
                signal.signal(name, _leave)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            self._work(number)
            code = 0
        except _Left:
            code = 0
        except BaseException:
            log.exception("Worker %d failed", number)
        finally:
            logging.shutdown()
            os._exit(code)  # the rest of what there is to clean up is the parent's

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        for process in self._started:
            os.kill(process, number)
