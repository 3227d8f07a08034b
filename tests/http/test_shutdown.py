"""The end: what was sent is answered, exit status 0. And what is not the end, although it might be."""

import contextlib
import fcntl
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.signals import Signals
from tests.conftest import COMMAND, ROOT, RunningServer, ServerFactory, ours_only, running_server
from tests.http.load import ENDLESS, ENDLESS_SETTINGS, NOT_BRIEF, admitted, slow_dispatch, start, wait_for, wait_until
from tests.http.wire import JSON, Connection, connection, header, length
from tests.messages import CELU, as_json, output_of, post_json, post_msgpack, request

SMALL = request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)})
QUEUED = slow_dispatch(NOT_BRIEF)
"""Just large enough to be handed to a worker, and sent in a moment."""
SECONDS = 60.0


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_an_idle_server_exits_with_0(start_server: ServerFactory, signal_number: signal.Signals) -> None:
    running = start_server()
    with httpx.Client(base_url=running.url) as client:
        output_of(post_json(client, SMALL))  # and keeps the connection open
        running.process.send_signal(signal_number)
        assert running.process.wait(SECONDS) == 0
    assert "Traceback" not in running.log.read_text()


def test_what_runs_and_what_waits_is_answered(start_server: ServerFactory) -> None:
    running = start_server("--threads", "1", "--no-llvm")
    elements = 8 << 20
    with (
        httpx.Client(base_url=running.url) as client,
        connection(running) as first,
        connection(running) as second,
    ):
        start(first, slow_dispatch(elements))
        wait_until(lambda: admitted(client) == 1)
        start(second, QUEUED)
        wait_until(lambda: admitted(client) == 2)
        running.process.send_signal(signal.SIGTERM)
        assert output_of(first.receive()).size == elements
        assert output_of(second.receive()).size == NOT_BRIEF
        assert first.is_closed()
    assert running.process.wait(SECONDS) == 0


def drain(running: RunningServer, client: httpx.Client) -> None:
    """Send SIGTERM and wait until it is noticed."""
    running.process.send_signal(signal.SIGTERM)
    wait_until(lambda: bool(client.get("/health/ready").status_code == 503))


def test_while_draining_everything_is_answered(start_server: ServerFactory) -> None:
    """Load balancers see that the service is not ready; until they do, nothing that they send is refused."""
    running = start_server("--threads", "1", "--drain-seconds", "1000")
    with httpx.Client(base_url=running.url, timeout=SECONDS) as client, connection(running) as slow:
        assert client.get("/health/ready").json()["status"] == "ready"
        body = post_json(client, SMALL).request.content
        slow.send(header(JSON, length(len(body))), body[:-1])
        drain(running, client)

        ready = client.get("/health/ready")
        assert ready.json()["status"] == "draining"
        assert int(ready.headers["retry-after"]) > 0
        assert ready.headers["cache-control"] == "no-store"
        for answer in (post_json(client, SMALL), post_msgpack(client, QUEUED), slow.ask(body[-1:])):
            output_of(answer)
            assert "connection" not in answer.headers, "as long as a balancer may not know"

        live = client.get("/health/live")  # or it would be ended before it is done
        assert (live.status_code, live.json()["status"]) == (200, "draining")
        assert client.get("/v1/capabilities").json()["state"] == "draining"
        assert "\ndmlserve_ready 0.0\n" in client.get("/metrics").text

        running.process.send_signal(signal.SIGTERM)  # the second one does not wait
        assert running.process.wait(SECONDS) == 0


def test_what_is_on_its_way_when_the_port_is_closed_is_answered(start_server: ServerFactory) -> None:
    running = start_server()
    with httpx.Client(base_url=running.url) as client, connection(running) as slow:
        body = post_json(client, SMALL).request.content
        slow.send(header(JSON, length(len(body))), body[:-1])
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not answers(running.port))
        output_of(slow.ask(body[-1:]))
    assert running.process.wait(SECONDS) == 0


@ours_only
def test_who_sends_the_next_request_before_the_last_answer_is_read_loses_nothing_of_that(
    start_server: ServerFactory,
) -> None:
    """A connection that was closed under a request would be reset, and what the client has not read be thrown away."""
    running = start_server()
    with contextlib.ExitStack() as stack:
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        opened.settimeout(SECONDS)
        opened.connect(("127.0.0.1", running.port))
        client = Connection(opened)
        stack.callback(client.hang_up)
        body = json.dumps(as_json(request(CELU, {"InputTensor": np.zeros(40_000, np.float32)}))).encode()
        asked = header(JSON, length(len(body))) + body
        client.send(asked[:-1])
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not answers(running.port))
        client.send(asked[-1:])
        time.sleep(0.5)  # in which it is answered, as far as the systems on both sides take it
        client.send(asked)
        time.sleep(0.1)
        answer = client.receive()
        assert answer.headers["connection"] == "close"
        assert (output_of(answer) == 0).all()
        assert client.is_closed()
    assert running.process.wait(SECONDS) == 0


def test_the_drain_ends(start_server: ServerFactory) -> None:
    running = start_server("--drain-seconds", "0.5")
    began = time.monotonic()
    assert running.stop(SECONDS) == 0
    assert time.monotonic() - began >= 0.5


def test_who_says_so_twice_has_it_end_at_once(start_server: ServerFactory) -> None:
    """Which is an order, and no fault: a sentence in the log instead of a traceback, behind the lines of requests."""
    running = start_server("--drain-seconds", "1000")
    with httpx.Client(base_url=running.url) as client:
        drain(running, client)
        client.get("/v1/last")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
    log = running.log.read_text()
    assert "Traceback" not in log
    assert log.count("told twice to end") == 1
    assert "/v1/last" in log


def test_a_signal_is_waited_for_however_long() -> None:
    """What a setting may say in seconds the system may not be able to count in milliseconds."""
    with Signals() as signals:
        for far in (30 * 86_400.0, 1e300, math.inf):
            signals.tell(signal.SIGTERM)
            assert signals.next(time.monotonic() + far) == signal.SIGTERM
        assert signals.next(time.monotonic() + 0.01) is None


def test_what_does_not_end_in_time_is_dropped(start_server: ServerFactory) -> None:
    running = start_server(*ENDLESS_SETTINGS, "--shutdown-seconds", "1")
    with httpx.Client(base_url=running.url) as client, connection(running) as busy:
        start(busy, ENDLESS)
        wait_for(client, "running_dispatches", 1)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_other_signals_end_nothing(start_server: ServerFactory, workers: str) -> None:
    running = start_server("--workers", workers)
    with httpx.Client(base_url=running.url) as client:
        output_of(post_json(client, SMALL))
        for signal_number in [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE]:
            for _ in range(3):
                running.process.send_signal(signal_number)
                output_of(post_json(client, SMALL))
                assert running.process.poll() is None, signal_number
    assert running.stop(SECONDS) == 0
    assert "started again" not in running.log.read_text()


def test_what_fails_of_what_sighup_asks_for_ends_nothing(tmp_path: Path) -> None:
    program = (
        "from app import logs; from app.cli import main\n"
        "def fail(): raise RuntimeError('out of order')\n"
        "logs.reopen = fail\n"
        "main()"
    )
    command = (sys.executable, "-c", program)
    with running_server(tmp_path / "log", "--workers", "2", command=command) as running:
        wait_until(lambda: running.log.read_text().count("Application startup complete") == 2)
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: running.log.read_text().count("What SIGHUP asks for failed") == 3)
        assert httpx.get(f"{running.url}/health/live").status_code == 200
        assert "started again" not in running.log.read_text()


def test_a_log_that_nobody_reads_does_not_keep_it_from_ending() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command: list[str | Path] = [COMMAND, "serve", "--port", "0", "--shutdown-seconds", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    try:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        url = next(found[1] for line in process.stderr if (found := re.search(rb"running on (http://[\d.:]+)", line)))
        with contextlib.suppress(httpx.TimeoutException):
            for _ in range(100):  # of 300 bytes each in the log
                httpx.get(f"{url.decode()}/health/live", timeout=2)
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def starting(log: Path, *flags: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A server that is not waited for."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with log.open("wb") as stderr:
        process = subprocess.Popen([COMMAND, "serve", "--port", "0", *flags], stderr=stderr, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("library", "signal_number"),
    [("numpy", signal.SIGTERM), ("pydantic_core", signal.SIGQUIT), ("httptools", signal.SIGINT)],
)
def test_a_signal_in_the_middle_of_the_start(
    tmp_path: Path, workers: str, library: str, signal_number: signal.Signals
) -> None:
    """At the moment when the process has just loaded `library`."""
    with starting(tmp_path / "log", "--workers", workers) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: f"/{library}" in maps.read_text())
        process.send_signal(signal_number)
        assert process.wait(SECONDS) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_while_the_server_starts(tmp_path: Path, workers: str) -> None:
    log = tmp_path / "log"
    with starting(log, "--workers", workers) as process:
        wait_until(lambda: "Started server process" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert "Traceback" not in log.read_text()


CLOSING = ("<&-", ">&-", "2>&-")


@pytest.mark.parametrize(
    "closed", [some for count in (1, 3) for some in itertools.combinations(CLOSING, count)], ids=" ".join
)
def test_standard_streams_may_be_closed(closed: tuple[str, ...]) -> None:
    """A socket in their place would be written the log to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = f'exec "$0" serve --port {port} {" ".join(closed)}'
    process = subprocess.Popen(
        ["sh", "-c", line, COMMAND], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        wait_until(lambda: answers(port))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            output_of(post_json(client, SMALL))
        for each in closed:
            number = CLOSING.index(each)
            assert os.readlink(f"/proc/{process.pid}/fd/{number}") == os.devnull
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        pass  # it waited to be accepted when one of the sockets that listen was closed; another one may be left
    return True


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use(start_server: ServerFactory, workers: str) -> None:
    running = start_server("--workers", workers)
    command: list[str | Path] = [COMMAND, "serve", "--port", str(running.port), "--workers", workers]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"Error: The service cannot listen on 127.0.0.1, port {running.port}: Address already in use.\n",
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_port_can_be_taken_again_at_once(start_server: ServerFactory, workers: str) -> None:
    running = start_server("--workers", workers)
    with httpx.Client(base_url=running.url) as client:
        output_of(post_json(client, SMALL))
        assert running.stop(SECONDS) == 0
        again = start_server("--workers", workers, "--port", str(running.port))
        assert again.port == running.port
        output_of(httpx.post(f"{again.url}/v1/dispatch", json=as_json(SMALL)))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_while_the_last_requests_run_nobody_waits_for_an_answer_that_will_not_come(
    start_server: ServerFactory, workers: str
) -> None:
    running = start_server(*ENDLESS_SETTINGS, "--workers", workers)
    with httpx.Client(base_url=running.url) as client, connection(running) as busy:
        start(busy, ENDLESS)
        wait_for(client, "running_dispatches", 1)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not answers(running.port))
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
