"""Where log lines go, and that no request waits until they are there."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import logs
from app.http.telemetry.access_log import AccessLog
from app.logs import TextFormatter
from tests.cli.command import dmlserve, refusal
from tests.conftest import ROOT, SERVER, RunningServer, ServerFactory
from tests.http.load import SECONDS, metric, series, wait_until
from tests.preloaded import Preloaded

LONG = "/" + "x" * 8000
"""A path that makes a line of some 16 KB."""

ENOUGH = 300
"""Of such lines, to fill a pipe and all that is held besides."""


def test_a_message_of_several_lines_is_one_in_text() -> None:
    """A client may have written the second one, in a path that is decoded."""
    record = logging.makeLogRecord({"name": "app", "levelname": "ERROR", "msg": "/a\n2026-11-30 app\r\x1b[2J: forged"})
    first, second = TextFormatter().format(record).split("\n")
    assert first.endswith(" ERROR   app: /a")
    assert second == "    2026-11-30 app\\x0d\\x1b[2J: forged"


def test_what_the_sink_tells_is_a_line_if_it_is_severe_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = logs._Handler(str(tmp_path / "log"), False)
    caplog.set_level(logging.ERROR, "app")
    assert handler._line(logging.WARNING, "some were dropped") == b""
    assert handler._line(logging.ERROR, "it cannot be opened") == b"it cannot be opened\n"


def test_a_path_that_is_no_text_keeps_no_line_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own connections refuse such a request. Another server's may not, and lines are made together."""
    written: list[bytes] = []
    monkeypatch.setattr(logs, "write", written.append)

    async def note() -> None:
        access_log = AccessLog(as_json=True)
        for path in (b"/\xff", b"/"):
            access_log.add(path, {"method": "GET", "status": 200})
        access_log.flush()

    asyncio.run(note())
    lines = b"".join(written).splitlines()  # it is flushed once more by its timer, if that is quick
    assert [json.loads(line)["message"] for line in lines] == ["GET /\\xff 200", "GET / 200"]


@contextlib.contextmanager
def logging_to(stderr: int, tmp_path: Path, *flags: str) -> Iterator[RunningServer]:
    """A server whose standard error is `stderr`, which is closed here; it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = Preloaded([str(SERVER[-1]), "serve", "--port", str(port), *flags], os.environ, 1, stderr)
    os.close(stderr)
    running = RunningServer(process, f"http://127.0.0.1:{port}", tmp_path / "none")
    try:
        wait_until(lambda: is_ready(running))
        yield running
    finally:
        process.kill()
        process.wait()


def is_ready(running: RunningServer) -> bool:
    assert running.process.poll() is None
    try:
        return httpx.get(f"{running.url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def small_pipe() -> tuple[int, int]:
    """The end to read and the end to write."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    return reading, writing


def ask(running: RunningServer, requests: int, path: str = LONG) -> None:
    """Each with an id of its own: log-0 and so on."""
    with httpx.Client(base_url=running.url, timeout=SECONDS) as client:
        for number in range(requests):
            assert client.get(path, headers={"X-Request-ID": f"log-{number}"}).status_code == 404


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["request_id"] for line in lines if line.get("request_id", "").startswith("log-")]


def told(lines: list[dict[str, Any]]) -> list[int]:
    """How many lines were dropped, each time it was told."""
    found = [re.fullmatch(r"(\d+) log lines were dropped, .*", line["message"]) for line in lines]
    return [int(each[1]) for each in found if each]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pipe_that_nobody_reads_stops_nothing(workers: int, tmp_path: Path) -> None:
    reading, writing = small_pipe()
    flags = ("--workers", str(workers), "--shutdown-seconds", "20")
    with logging_to(writing, tmp_path, *flags) as running:
        for _ in range(workers):
            ask(running, ENOUGH)
        assert running.stop() == 0
    os.close(reading)


def test_what_was_dropped_is_counted_and_told_when_it_is_read_again(tmp_path: Path) -> None:
    reading, writing = small_pipe()
    with logging_to(writing, tmp_path) as running, httpx.Client(base_url=running.url) as client:
        ask(running, ENOUGH)
        wait_until(lambda: metric(client, "log_lines_dropped_total") > 0)
        received: list[dict[str, Any]] = []

        def read() -> None:
            with open(reading, "rb") as pipe:
                received.extend(map(json.loads, pipe))  # all of them whole

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: bool(told(received)))
        current = series(client)
        assert running.stop() == 0
        reader.join(SECONDS)
    seen = [int(each.removeprefix("log-")) for each in ids(received)]
    assert seen == sorted(set(seen))
    assert seen[:20] == [*range(20)]
    assert len(seen) < ENOUGH
    dropped = current["log_lines_dropped_total"]
    assert told(received) == [dropped]
    asked = sum(count for name, count in current.items() if name.startswith("http_requests_total")) + 1
    assert sum("request_id" in line for line in received) + dropped == asked


def test_a_pipe_whose_reader_is_gone(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert_goes_on(writing, tmp_path)


def test_a_full_device(tmp_path: Path) -> None:
    assert_goes_on(os.open("/dev/full", os.O_WRONLY), tmp_path)


def assert_goes_on(stderr: int, tmp_path: Path) -> None:
    with logging_to(stderr, tmp_path) as running, httpx.Client(base_url=running.url) as client:
        ask(running, 20)
        wait_until(lambda: metric(client, "log_lines_dropped_total") >= 20)
        assert running.stop() == 0


def test_a_terminal_gets_text(tmp_path: Path) -> None:
    """And a pipe gets JSON, as many tests here show."""
    reading, writing = pty.openpty()
    with logging_to(writing, tmp_path) as running:
        ask(running, 1, "/nowhere")
        assert running.stop() == 0
    lines = os.read(reading, 1 << 16).decode().splitlines()
    os.close(reading)
    assert lines
    assert not [line for line in lines if line.startswith("{")]
    assert [line for line in lines if re.search(r" GET /nowhere 404 in \S+ ms, id log-0$", line)]


def test_without_standard_streams(tmp_path: Path) -> None:
    """Descriptors 0 to 2 are then the first ones that sockets would take."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *SERVER, "serve", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    running = RunningServer(process, f"http://127.0.0.1:{port}", tmp_path)
    try:
        wait_until(lambda: is_ready(running))
        ask(running, 20)
        targets = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        assert not any(target.startswith("socket:") for target in targets)
        assert running.stop() == 0
    finally:
        process.kill()
        process.wait()


def test_warnings_of_python_are_lines_too() -> None:
    program = (
        "import warnings; from app import logs; from app.settings import Settings\n"
        "logs.configure(Settings(log_format='json'))\nwarnings.warn('two\\nlines')"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    line = json.loads(done.stderr)
    assert (line["level"], line["logger"]) == ("WARNING", "py.warnings")
    assert "two\nlines" in line["message"]


def test_lines_of_several_workers_are_not_mixed_up(tmp_path: Path) -> None:
    """In a pipe that is smaller than each of them."""
    reading, writing = small_pipe()
    received: list[bytes] = []

    def read() -> None:
        with open(reading, "rb") as pipe:
            received.extend(pipe)

    reader = threading.Thread(target=read)
    reader.start()
    with logging_to(writing, tmp_path, "--workers", "3") as running:
        clients = [threading.Thread(target=ask, args=(running, 20, LONG[:3000])) for _ in range(6)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert running.stop() == 0
    reader.join(SECONDS)
    lines = [json.loads(line) for line in received]
    assert len(ids(lines)) == 6 * 20


def test_a_file(start_server: ServerFactory, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*SERVER, "serve", "--port", str(port), "--workers", "2", "--log-file", str(file)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    running = RunningServer(process, f"http://127.0.0.1:{port}", file)
    try:
        wait_until(lambda: is_ready(running))
        ask(running, 10)
        assert running.stop() == 0
        assert process.stderr
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.communicate()
    before, *lines = file.read_text().splitlines()
    assert before == "before"
    # A worker that is told to end while it starts may die right after a line, which the others then end once more.
    assert len(ids([json.loads(line) for line in lines if line])) == 10


@pytest.mark.parametrize(("name", "reason"), [(".", "Is a directory"), ("no/log", "No such file or directory")])
def test_a_file_that_cannot_be_opened(name: str, reason: str, tmp_path: Path) -> None:
    file = f"{tmp_path}/{name}"
    assert refusal(dmlserve("serve", "--port", "0", "--log-file", file), status=2) == [
        f"The log file {file} cannot be opened: {reason}."
    ]
