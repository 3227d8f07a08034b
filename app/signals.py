"""Signals: what ends the service, what has it read its files again, and what it does not care about."""

import ctypes
import logging
import math
import os
import select
import signal
import threading
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, NoReturn

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
RELOADING = signal.SIGHUP
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""They mean nothing here, but would end the process by default."""

_PR_SET_PDEATHSIG = 1  # of Linux' prctl

_LAST_WORDS_SECONDS = 1.0
_DAY = 86_400.0
"""As long at a time the system waits, which counts milliseconds in 31 bits."""


def expect_the_end() -> None:
    """From now on, an ending signal ends this process at once, with 0. For a start that has nothing yet to lose."""
    for number in ENDING:
        signal.signal(number, _leave)
    for number in (RELOADING, *_IGNORED):
        signal.signal(number, signal.SIG_IGN)


def end_with_parent(number: signal.Signals, parent: int) -> None:
    """From now on this process, which `parent` has forked, gets the signal `number` when that is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it was gone before, of which the system tells nothing
        os.kill(os.getpid(), number)


class Signals:
    """What signals tell this process. To be made and used in its main thread, the only one that may.

    Until `hold` is called, an ending signal ends the process at once, with 0; from then on it waits for `next`. SIGHUP
    waits from the beginning. What was in force before comes back with the end of a `with` statement.
    """

    def __init__(self) -> None:
        # Written to by Python's own handler in C, whatever thread the signal came to. Handlers in Python would only
        # run once something wakes the main thread.
        self._told, self._telling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._fd_before = signal.set_wakeup_fd(self._telling, warn_on_full_buffer=False)
        for number in ENDING:
            self._handle(number, _leave)
        for number in _IGNORED:
            self._handle(number, signal.SIG_IGN)
        self._handle(RELOADING, _note)

    def __enter__(self) -> "Signals":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self.close()

    def close(self) -> None:
        """In a child that has signals of its own."""
        os.close(self._told)
        os.close(self._telling)

    def hold(self, *others: signal.Signals) -> None:
        """Have ending signals, and `others`, wait for `next`."""
        for number in (*ENDING, *others):
            self._handle(number, _note)

    def tell(self, number: int) -> None:
        """As if the signal had come. From any thread."""
        os.write(self._telling, bytes([number]))

    def next(self, end: float = math.inf) -> int | None:
        """Waits for a signal; None if none has come until `end`, on the monotonic clock."""
        told = select.poll()
        told.register(self._told, select.POLLIN)
        while not told.poll(None if end == math.inf else math.ceil(min(max(end - monotonic(), 0), _DAY) * 1000)):
            if monotonic() >= end:
                return None
        return os.read(self._told, 1)[0]

    def _handle(self, number: int, handler: Any) -> None:
        self._before.setdefault(number, signal.signal(number, handler))


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)  # not by an exception: it would come up in the middle of an import, or be swallowed there


def _note(number: int, frame: FrameType | None) -> None:
    """The signal's number is in the pipe already."""


def end(status: int, *last_words: Any) -> NoReturn:
    """End this process with `status`, without waiting for its threads. From any thread.

    `last_words` are the arguments of an error to log, the message first. Whoever reads the log has a second for it.
    """

    def speak() -> None:
        if last_words:
            logging.getLogger("app").error(*last_words)
        logging.shutdown()

    try:
        speaker = threading.Thread(target=speak, daemon=True)
        try:
            speaker.start()
        except RuntimeError:  # there are as many threads as may be
            signal.setitimer(signal.ITIMER_REAL, _LAST_WORDS_SECONDS)  # which ends the process, too
            speak()
        else:
            speaker.join(_LAST_WORDS_SECONDS)
    finally:
        os._exit(status)
