"""Where log lines go, in one process and in those forked from it."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import sink as sinks
from app.sink import MOST_BYTES, Sink
from tests.conftest import ROOT
from tests.forked import forked

SECONDS = 30.0
LONG = b"x" * (1 << 18) + b"\n"
"""More than a pipe takes."""


def line(level: int, message: str) -> bytes:
    return f"{message}\n".encode()


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A pipe's name, and its end to read, which does not wait."""
    name = str(tmp_path / "pipe")
    os.mkfifo(name)
    reading = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    yield name, reading
    os.close(reading)


def read(reading: int) -> bytes:
    """What the pipe holds now."""
    pieces = []
    try:
        while piece := os.read(reading, 1 << 16):
            pieces.append(piece)
    except BlockingIOError:
        pass
    return b"".join(pieces)


def read_until(reading: int, ending: bytes = b"", length: int = 0) -> bytes:
    """What comes, once it has at least this `length` and this `ending`."""
    received = bytearray()

    def ended() -> bool:
        received.extend(read(reading))
        return len(received) >= length and received.endswith(ending)

    wait_until(ended)
    return bytes(received)


def test_lines_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "log"
    sink = Sink(str(file), False, line)
    lines = [b"%d\n" % number for number in range(10_000)]
    for each in lines:
        sink.write(each)
    sink.flush()
    assert file.read_bytes() == b"".join(lines)


def test_what_nobody_takes_is_dropped_counted_and_told_once(pipe: tuple[str, int]) -> None:
    name, reading = pipe
    sink = Sink(name, False, line)
    before = memoryview(bytearray(16)).cast("d")
    held = MOST_BYTES // len(LONG) + 1
    for _ in range(held + 3):
        sink.write(LONG)
    sink.count_in(before[:1])
    sink.write(LONG + LONG)
    assert list(before) == [5, 0]
    told = b"5 log lines were dropped, as nobody took them\n"
    assert read_until(reading, told) == held * LONG + told
    sink.write(b"again\n")
    assert read_until(reading, b"again\n") == b"again\n"


def test_a_flush_ends_although_a_write_does_not(pipe: tuple[str, int]) -> None:
    name, reading = pipe
    sink = Sink(name, False, line)
    sink.write(LONG)
    sink.flush()  # or the test runs into its time limit
    assert read_until(reading, b"\n") == LONG
    sink.write(b"short\n")
    sink.flush()
    assert read(reading) == b"short\n"


class TestRest:
    """After a write lines are left together for a while."""

    @pytest.fixture(autouse=True)
    def long_rest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sinks, "REST_SECONDS", 1000.0)
        monkeypatch.setattr(sinks, "FLUSH_SECONDS", 1000.0)  # who waits for what is written is told when it is

    @pytest.fixture
    def pieces(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """What was written at once."""
        pieces: list[bytes] = []
        write = sinks._write

        def noting(descriptor: int, data: bytes) -> int:
            pieces.append(data)
            return write(descriptor, data)

        monkeypatch.setattr(sinks, "_write", noting)
        return pieces

    @pytest.fixture
    def resting(self, tmp_path: Path, pieces: list[bytes]) -> Sink:
        sink = Sink(str(tmp_path / "log"), False, line)
        sink.write(b"first\n")  # at once, and nobody asks for it
        wait_until(lambda: sink._is_resting)
        assert pieces == [b"first\n"]
        return sink

    def test_lines_are_written_together(self, resting: Sink, pieces: list[bytes]) -> None:
        for text in (b"one\n", b"two\n", b"three\n"):
            resting.write(text)
            time.sleep(0.01)
        assert len(pieces) == 1
        resting.flush()
        assert pieces[1:] == [b"one\ntwo\nthree\n"]
        resting.write(b"four\n")
        wait_until(lambda: len(pieces) == 3 and resting._is_resting)
        resting.write(b"five\n")
        time.sleep(0.05)
        assert len(pieces) == 3, "nobody waits for it"
        resting.flush()
        assert pieces[3:] == [b"five\n"]

    def test_it_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sinks, "REST_SECONDS", 0.01)
        sink = Sink(str(tmp_path / "log"), False, line)
        for number in range(5):
            sink.write(b"line\n")
            wait_until(lambda: (tmp_path / "log").read_bytes() == b"line\n" * (number + 1))  # noqa: B023 - now
            time.sleep(0.03)

    def test_many_bytes_end_it(self, resting: Sink, pieces: list[bytes]) -> None:
        half = MOST_BYTES // 2
        resting.write(b"x" * (half - 1) + b"\n")
        time.sleep(0.05)
        assert len(pieces) == 1
        resting.write(b"\n")
        wait_until(lambda: sum(map(len, pieces)) == len(b"first\n") + half + 1)

    def test_a_file_to_open_again_ends_it(self, resting: Sink, tmp_path: Path) -> None:
        (tmp_path / "log").rename(tmp_path / "log.1")
        resting.reopen()
        wait_until((tmp_path / "log").exists)


def test_nobody_waits_longer_for_a_write_that_hangs_than_it_may_take(
    pipe: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, reading = pipe
    sink, now = Sink(name, False, line), [0.0]
    monkeypatch.setattr(sinks, "FLUSH_SECONDS", 2 * SECONDS)
    monkeypatch.setattr(sinks, "monotonic", lambda: now[0])
    sink.write(LONG)
    wait_until(lambda: bool(select.select([reading], [], [], 0)[0]))
    now[0] = 2 * SECONDS
    waiting = threading.Thread(target=sink.flush)
    waiting.start()
    waiting.join(SECONDS / 2)
    assert not waiting.is_alive(), "it counts from when the write began"
    assert read_until(reading, b"\n") == LONG


def test_what_has_no_room_is_dropped_and_told_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that was cut is ended before the next one."""
    room = [0]

    def full(descriptor: int, data: bytes) -> int:
        taken = os.write(descriptor, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(sinks, "_write", full)
    file, dropped = tmp_path / "log", memoryview(bytearray(8)).cast("d")
    sink = Sink(str(file), False, line)
    sink.count_in(dropped)
    for space, lines, count, text in (
        (4, b"one\n", 0, "one\n"),
        (0, b"two\n", 1, "one\n"),
        (1, b"three\nfour\n", 3, "one\nt"),
        (0, b"five\n", 4, "one\nt"),
        (1, b"six\n", 5, "one\nt\n"),
        (2, b"seven\n", 6, "one\nt\nse"),
        (3, b"8\n9\n", 7, "one\nt\nse\n8\n"),
    ):
        room[0] = space
        sink.write(lines)
        sink.flush()
        assert (dropped[0], file.read_text()) == (count, text)
    room[0] = 1000
    sink.write(b"ten\n")
    told = "one\nt\nse\n8\nten\n7 log lines were dropped, as nobody took them\n"
    wait_until(lambda: file.read_text() == told)


def test_what_nobody_can_take_any_more_is_not_written() -> None:
    reading, writing = os.pipe()
    assert sinks._write(writing, b"abc") == 3
    os.close(reading)
    assert sinks._write(writing, b"abc") == 0
    os.close(writing)


def test_where_no_thread_can_be_started_the_next_line_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sink = Sink(str(tmp_path / "log"), False, line)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        sink.write(b"one\n")
    sink.write(b"two\n")
    sink.flush()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("is_read", [True, False])
def test_the_last_words_of_a_process_that_has_no_threads_are_written(is_read: bool) -> None:
    """And are not waited for where nobody reads them."""
    program = """
import threading
from app import logs, signals
from app.settings import Settings
def fail(_):
    raise RuntimeError("can't start new thread")
threading.Thread.start = fail
logs.configure(Settings())
signals.end(1, "last" + "." * (1 << 20))
"""
    reading, writing = os.pipe()
    started = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=writing)
    os.close(writing)
    with open(reading, "rb") as log:
        text = log.read() if is_read else b""
        assert started.wait(SECONDS) == (1 if is_read else -signal.SIGALRM)
        assert (b"last....." in text) == is_read


def test_standard_error_is_not_opened_again() -> None:
    sink = Sink("", False, line)
    sink.reopen()
    assert not sink._is_opening


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        Sink(str(tmp_path / "pipe"), False, line)


def test_signals_are_left_to_the_main_thread(tmp_path: Path) -> None:
    """Which blocks them while it starts a worker, for instance."""
    before = set(threading.enumerate())
    Sink(str(tmp_path / "log"), False, line).write(b"line\n")
    (thread,) = set(threading.enumerate()) - before
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert blocked >> number - 1 & 1
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_python_prints_to_standard_error_goes_there(tmp_path: Path) -> None:
    file = tmp_path / "log"
    program = f"""
import sys, warnings
from app import logs
from app.settings import Settings
logs.configure(Settings(log_file={str(file)!r}))
print("printed", file=sys.stderr)
warnings.warn("warned")
1 / 0
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True)
    assert (ended.returncode, ended.stderr) == (1, b"")
    text = file.read_text()
    assert text.startswith("printed\n")
    assert '"message":"<string>:7: UserWarning: warned' in text.split("\n")[1]
    assert text.endswith("ZeroDivisionError: division by zero\n")


def test_a_file_is_opened_again(tmp_path: Path) -> None:
    file, rotated = tmp_path / "log", tmp_path / "log.1"
    sink = Sink(str(file), False, line)
    sink.write(b"one\n")
    sink.flush()
    file.rename(rotated)
    sink.write(b"two\n")
    sink.flush()
    before = sink._descriptor
    sink.reopen()
    wait_until(file.exists)
    sink.write(b"three\n")
    sink.flush()
    assert (rotated.read_text(), file.read_text()) == ("one\ntwo\n", "three\n")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(before)


def test_a_file_that_cannot_be_opened_again_is_written_on(tmp_path: Path) -> None:
    folder, moved = tmp_path / "folder", tmp_path / "moved"
    folder.mkdir()
    sink = Sink(str(folder / "log"), False, line)
    folder.rename(moved)
    sink.reopen()
    sink.write(b"two\n")
    wait_until(lambda: (moved / "log").read_text().endswith("two\n"))
    told = f"The log file {folder}/log cannot be opened again: No such file or directory; the old one is kept\n"
    assert (moved / "log").read_text() == f"{told}two\n"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
class TestForks:
    def test_each_writes_its_own_lines(self, pipe: tuple[str, int]) -> None:
        """What waits at the fork is written once."""
        name, reading = pipe
        sink = Sink(name, True, line)
        sink.write(LONG)
        sink.write(b"parent\n")

        def work() -> None:
            sink.write(b"child\n")
            for _ in range(30):
                sink.flush()

        process = forked(work)
        received = read_until(reading, length=len(LONG + b"parent\n" + b"child\n"))
        os.waitpid(process, 0)
        assert received.replace(b"child\n", b"") == LONG + b"parent\n"  # either of them may be the first to write

    def test_who_writes_meanwhile_waits_until_a_line_is_whole(self, pipe: tuple[str, int]) -> None:
        name, reading = pipe
        sink = Sink(name, True, line)

        def work() -> None:
            sink.write(LONG)
            for _ in range(30):
                sink.flush()

        process = forked(work)
        wait_until(lambda: bool(select.select([reading], [], [], 0)[0]))
        sink.write(b"whole\n")
        time.sleep(0.1)
        assert read_until(reading, b"whole\n", len(LONG) + 6) == LONG + b"whole\n"
        os.waitpid(process, 0)

    def test_one_that_is_killed_in_the_midst_of_a_line_spoils_no_other(self, pipe: tuple[str, int]) -> None:
        name, reading = pipe
        sink = Sink(name, True, line)

        def work() -> None:
            sink.write(LONG)
            time.sleep(SECONDS)

        process = forked(work)
        wait_until(lambda: bool(select.select([reading], [], [], 0)[0]))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        sink.write(b"whole\n")
        cut, _, rest = read_until(reading, b"whole\n").partition(b"\n")
        assert LONG.startswith(cut)
        assert len(cut) < len(LONG) - 1
        assert rest == b"whole\n"
