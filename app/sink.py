"""Where log lines go. A thread writes them, so that nobody who has something to log waits until it is read."""

import fcntl
import io
import logging
import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeAlias

MOST_BYTES = 1 << 20
"""When so many are held, further lines are dropped."""

REST_SECONDS = 0.05
"""How long the thread leaves lines together after a write. For each write it needs the interpreter twice, and while it
waits for that, each call that gives it away meanwhile, as every dispatch does, has to wake it in vain."""

FLUSH_SECONDS = 1.0
"""How long a process that ends waits for its last lines to be written, or for one write that hangs."""

Cells: TypeAlias = "memoryview[float]"
"""Numbers in memory, of format d."""

STANDARD_ERROR = 2
_NONE = -1
_END = ord("\n")


class Sink:
    """Standard error or a file, as lines see it.

    Those of one process keep their order. Those of several, forked after this was made, are not mixed up: whoever
    writes holds a lock, which the kernel takes from a process that dies.
    """

    def __init__(self, file: str, has_several: bool, line: Callable[[int, str], bytes]) -> None:
        """`line` makes one of a level and a message, or nothing. Raises OSError if `file` cannot be opened."""
        self._file = file
        self._line = line
        self._descriptor = _open(file) if file else _standard_error()
        lock = os.memfd_create("dmlserve-log")
        os.ftruncate(lock, 1)
        self._lock = lock if has_several else None
        self._is_cut = mmap.mmap(lock, 1)  # whether the last line that anyone wrote lacks its end
        self._begin()
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._begin)

    def _begin(self) -> None:
        """With nothing to write, as a process does that was forked: what there was is its parent's to write."""
        self._changed = threading.Condition(threading.RLock())  # a signal's handler may log in the midst of `write`
        self._waiting: list[bytes] = []
        self._held = 0  # bytes that wait or are being written
        self._since: float | None = None  # when the write that is under way began
        self._flushing = 0  # threads that wait for it
        self._is_opening = False
        self._is_resting = False
        self._is_started = False
        self._untold = 0
        self._dropped: Cells = memoryview(bytearray(8)).cast("d")

    def _hold(self) -> None:
        self._changed.acquire()

    def _release(self) -> None:
        self._changed.release()

    def count_in(self, dropped: Cells) -> None:
        """From now on count this process' lines that are dropped in the one number of `dropped`."""
        with self._changed:
            dropped[0] += self._dropped[0]
            self._dropped = dropped

    def write(self, lines: bytes) -> None:
        """Have whole lines written, or drop them. Never waits. For any thread, and for signals' handlers."""
        with self._changed:
            if self._held >= MOST_BYTES:
                self._drop(lines)
                return
            self._held += len(lines)
            self._waiting.append(lines)
            if not self._is_resting or self._is_urgent():
                self._wake()

    def reopen(self) -> None:
        """Have the file opened again before the next write, since its name may mean another one now. Never waits."""
        if self._file:
            with self._changed:
                self._is_opening = True
                self._wake()

    def flush(self) -> None:
        """Wait for what there is to be written, at most FLUSH_SECONDS from the beginning of the write under way.

        Where no thread can be started for that it is written here, however long that takes.
        """
        with self._changed:
            if self._waiting and not self._is_started:
                self._wake()
                if not self._is_started:
                    self._put(b"".join(self._waiting))
                    self._waiting.clear()
                    self._held = 0
                    return
            begun = monotonic() if self._since is None else self._since
            self._flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: not self._held, max(begun + FLUSH_SECONDS - monotonic(), 0))
            finally:
                self._flushing -= 1

    def _is_urgent(self) -> bool:
        return self._is_opening or self._flushing > 0 or self._held > MOST_BYTES // 2

    def _drop(self, lines: bytes) -> None:
        count = lines.count(b"\n")
        self._dropped[0] += count
        self._untold += count

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._is_started:
            return
        # Signals are for the main thread, which sometimes blocks them; this one must not take them in its place.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._run, name="log", daemon=True).start()
            self._is_started = True
        except RuntimeError:  # there are too many threads now; the next line tries again
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    # In the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_opening)
                lines = b"".join(self._waiting)
                self._waiting.clear()
                is_opening, self._is_opening = self._is_opening, False
                self._since = monotonic()
            if is_opening:
                self._open_again()
            if self._put(lines):
                self._recover()
            with self._changed:
                self._held -= len(lines)
                self._since = None
                self._changed.notify_all()
                self._is_resting = True
                self._changed.wait_for(self._is_urgent, REST_SECONDS)
                self._is_resting = False

    def _recover(self) -> None:
        """Tell what was dropped, once all is written that was not."""
        with self._changed:
            told = 0 if self._waiting else self._untold
        if told and self._put(self._line(logging.WARNING, f"{told} log lines were dropped, as nobody took them")):
            with self._changed:
                self._untold -= told

    def _put(self, lines: bytes) -> bool:
        """Whether all of them could be written; those that could not are dropped. May take forever."""
        if not lines:
            return True
        if self._lock is not None:
            fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            was_cut = self._is_cut[0]
            beginning = b"\n" if was_cut else b""
            piece = beginning + lines
            self._is_cut[0] = True  # for the others, if this process is killed in the midst of it
            written = _write(self._descriptor, piece)
            self._is_cut[0] = piece[written - 1] != _END if written else was_cut
        finally:
            if self._lock is not None:
                fcntl.lockf(self._lock, fcntl.LOCK_UN)
        if written < len(piece):
            with self._changed:
                self._drop(lines[max(written - len(beginning), 0) :])
            return False
        return True

    def _open_again(self) -> None:
        try:
            new = _open(self._file)
        except OSError as error:
            told = f"The log file {self._file} cannot be opened again: {error.strerror}; the old one is kept"
            self._put(self._line(logging.ERROR, told))
        else:
            os.close(self._descriptor)
            self._descriptor = new


class TextSink(io.RawIOBase):
    """What Python itself and other libraries print to standard error goes to a sink as well, as it is."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = bytes(data)
        self._sink.write(text)
        return len(text)


def _open(file: str) -> int:
    # A pipe that nobody reads would keep us here. Then it is an error.
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY, 0o666)


def _standard_error() -> int:
    return STANDARD_ERROR if sys.__stderr__ is not None else _NONE  # it was closed before the start


def _write(descriptor: int, data: bytes) -> int:
    """Write `data`, and return how many bytes of it could be written. May take forever."""
    written = 0
    while written < len(data):
        try:
            written += os.write(descriptor, memoryview(data)[written:])
        except BlockingIOError:  # whoever started us shares it and may have made it so
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll()
        except OSError:
            break
    return written
