"""The server's end, as an orchestrator sees it: a process, signals, an exit code."""

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.http.server import ADMITTED

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 10.0
"""After which a test fails instead of hanging, in seconds."""

# Prints what happens to it, line by line; exits with what Server.run leaves it with.
PROGRAM = """
import asyncio, sys, uvicorn
from app.http.server import Server

draining = False

def on_drain():
    global draining
    draining = True
    print("draining", flush=True)
    if "faulty" in sys.argv:
        raise ValueError

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        if "slow-startup" in sys.argv:
            print("starting", flush=True)
            await asyncio.sleep(0.2)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        print("lifespan over", flush=True)
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/exit":
        server.should_exit = True
    if scope["path"].startswith("/sleep/"):
        print("sleeping", flush=True)
        try:
            await asyncio.sleep(float(scope["path"].removeprefix("/sleep/")))
        except asyncio.CancelledError:
            print("cancelled", flush=True)
            raise
    status = 503 if draining else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})

loop, drain_seconds, graceful_seconds, max_requests = sys.argv[1:5]
config = uvicorn.Config(
    app, port=0, loop=loop, log_level="info", access_log=False,
    timeout_graceful_shutdown=float(graceful_seconds), limit_max_requests=int(max_requests) or None,
)
server = Server(config, on_drain, float(drain_seconds))
server.run()
print("force_exit", server.force_exit, flush=True)
"""


class Process:
    """A server in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = 0

    def wait_until_up(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError("The server did not start.")

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()

    def send(self, *signals: signal.Signals) -> None:
        for each in signals:
            self._process.send_signal(each)

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        connection.connect()
        return connection

    def end(self) -> tuple[int, list[str], str]:
        """Waits for the process to exit; the exit code, the lines it still printed and what it logged."""
        out, log = self._process.communicate(timeout=TIMEOUT_SECONDS)
        return self._process.returncode, out.splitlines(), log

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Starter:
    """Starts servers, and sees to it that none survives its test."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self.processes: list[Process] = []

    def __call__(
        self,
        *options: str,
        drain_seconds: float = 0,
        graceful_seconds: float = 5,
        max_requests: int = 0,
        wait: bool = True,
    ) -> Process:
        process = Process(self._loop, str(drain_seconds), str(graceful_seconds), str(max_requests), *options)
        self.processes.append(process)
        if wait:
            process.wait_until_up()
        return process


@pytest.fixture(params=["uvloop", "asyncio"])
def start(request: pytest.FixtureRequest) -> Iterator[Starter]:
    starter = Starter(request.param)
    yield starter
    for process in starter.processes:
        process.kill()


def status(connection: http.client.HTTPConnection, path: str = "/") -> int:
    connection.request("GET", path)
    with connection.getresponse() as response:
        response.read()
        return response.status


def is_closed(connection: http.client.HTTPConnection) -> bool:
    return connection.sock.recv(1) == b""


def test_several_connections_are_accepted_in_one_turn_of_the_event_loop(start: Starter) -> None:
    """By as many file descriptors of the one socket that listens."""
    server = start()
    connection = server.connect()
    assert status(connection) == 200  # it is up
    connection.close()
    listening = "0A"
    (socket,) = [
        fields[9]
        for fields in map(str.split, Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines())
        if fields[1].endswith(f":{server.port:04X}") and fields[3] == listening
    ]
    targets = [os.readlink(each) for each in Path(f"/proc/{server.pid}/fd").iterdir()]
    assert targets.count(f"socket:[{socket}]") == ADMITTED


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_finishes_what_runs_and_exits_with_0(start: Starter, sig: signal.Signals) -> None:
    server = start()
    idle, busy = server.connect(), server.connect()
    assert status(idle) == 200
    busy.request("GET", "/sleep/0.4")
    assert server.next_line() == "sleeping"

    server.send(sig)
    assert server.next_line() == "draining"
    assert is_closed(idle)
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    response = busy.getresponse()
    assert (response.status, response.headers["connection"]) == (503, "close")

    code, lines, log = server.end()
    assert (code, lines) == (0, ["lifespan over", "force_exit False"])
    assert "Traceback" not in log
    idle.close()
    busy.close()


def test_while_draining_everything_is_answered(start: Starter) -> None:
    server = start(drain_seconds=0.5)
    idle = server.connect()
    assert status(idle) == 200
    signalled = time.monotonic()
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    assert time.monotonic() - signalled < 0.09  # at once, not at uvicorn's next tick
    time.sleep(0.25)  # some ticks later
    assert status(idle) == 503
    new = server.connect()
    assert status(new) == 503

    assert is_closed(idle)
    assert is_closed(new)
    assert 0.5 <= time.monotonic() - signalled < 1.0
    code, lines, _ = server.end()
    assert (code, lines) == (0, ["lifespan over", "force_exit False"])
    idle.close()
    new.close()


def test_what_runs_too_long_is_cancelled(start: Starter) -> None:
    server = start(graceful_seconds=0.2)
    busy = server.connect()
    busy.request("GET", "/sleep/60")
    assert server.next_line() == "sleeping"
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    code, lines, _ = server.end()
    assert (code, lines) == (0, ["cancelled", "lifespan over", "force_exit False"])
    busy.close()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("drain_seconds", [0, 60])
def test_a_second_signal_ends_it_at_once(start: Starter, second: signal.Signals, drain_seconds: float) -> None:
    server = start(drain_seconds=drain_seconds, graceful_seconds=60)
    busy = server.connect()
    busy.request("GET", "/sleep/60")
    assert server.next_line() == "sleeping"
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    server.send(second)
    with pytest.raises(ConnectionError):
        busy.getresponse()
    code, lines, _ = server.end()
    assert code == 0
    assert "force_exit True" in lines
    assert "lifespan over" not in lines
    busy.close()


def test_a_signal_during_startup_is_not_lost(start: Starter) -> None:
    server = start("slow-startup", wait=False)
    assert server.next_line() == "starting"
    server.send(signal.SIGTERM)
    code, lines, _ = server.end()
    assert (code, lines) == (0, ["draining", "lifespan over", "force_exit False"])


def test_other_reasons_to_exit_drain_too(start: Starter) -> None:
    for server, path in [(start(drain_seconds=0.3, max_requests=1), "/"), (start(drain_seconds=0.3), "/exit")]:
        connection = server.connect()
        assert status(connection, path) == 200
        assert server.next_line() == "draining"
        assert status(connection) == 503
        code, lines, log = server.end()
        assert (code, lines) == (0, ["lifespan over", "force_exit False"])
        assert log.count("Maximum request limit") == (path == "/")
        connection.close()


def test_an_error_in_the_callback_does_not_keep_it_from_draining(start: Starter) -> None:
    server = start("faulty")
    server.send(signal.SIGTERM)
    code, lines, log = server.end()
    assert (code, lines) == (0, ["draining", "lifespan over", "force_exit False"])
    assert "ValueError" in log
