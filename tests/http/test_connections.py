"""How many connections there may be, what those beyond get, and what they get at the server's end."""

import mmap
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pytest

from app.http.server import limit
from app.http.server.limit import FILES, RESERVE, room_for_connections
from app.operators.operator import PREFIX
from tests.conftest import COMMAND, RunningServer, ServerFactory, ours_only, running_server
from tests.http.load import wait_until
from tests.http.wire import Connection, connection, header, length
from tests.messages import CELU, output_of, problem_of, request

pytestmark = ours_only

MSGPACK = b"Content-Type: application/msgpack", b"Accept: application/msgpack"
BODY: bytes = msgpack.packb(request(CELU, {"InputTensor": np.ones(100, np.float32)}))
DISPATCH = header(*MSGPACK, length(len(BODY))) + BODY
HEALTH = header(method=b"GET", path=b"/health/live")
PATIENT = (
    sys.executable,
    "-c",
    "from app.cli import main; from app.http.server import connection; connection.IDLE_SECONDS = 30; main()",
)
"""The service, but that at its end it waits longer for those who seem idle than any machine pauses."""


def opened(stack: ExitStack, server: RunningServer, count: int) -> list[Connection]:
    return [stack.enter_context(connection(server)) for _ in range(count)]


def is_served(server: RunningServer) -> bool:
    with connection(server) as client:
        return client.ask(DISPATCH).status_code == 200


def test_beyond_the_limit_health_is_answered_and_all_else_refused(start_server: ServerFactory) -> None:
    server = start_server("--max-connections", "3")
    with ExitStack() as stack:
        kept = opened(stack, server, 3)
        for client in kept:
            output_of(client.ask(DISPATCH))
        for _ in range(2):
            with connection(server) as beyond:
                answer = beyond.ask(HEALTH)
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
                assert beyond.is_closed()
            with connection(server) as beyond:
                refused = beyond.ask(DISPATCH)
                assert "max_connections" in problem_of(refused, 503)["detail"]
                assert refused.headers["x-request-id"]
                assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "1")
        with connection(server) as silent:
            silent.socket.settimeout(9)  # less than header_seconds
            assert silent.is_closed()
        for client in kept:
            output_of(client.ask(DISPATCH))
        metrics = kept[0].ask(header(method=b"GET", path=b"/metrics")).text
        assert "dmlserve_connections 3.0" in metrics
        assert "dmlserve_connections_refused_total 5.0" in metrics
        assert 'dmlserve_http_requests_total{method="POST",route="none",status="503"} 2.0' in metrics
    wait_until(lambda: is_served(server))
    assert server.stop() == 0
    assert server.log.read_text().count("max_connections allows, 3") == 1


def test_who_fills_the_reserve_makes_room_for_who_asks(start_server: ServerFactory) -> None:
    server = start_server("--max-connections", "1")
    with ExitStack() as stack:
        first, *reserve = opened(stack, server, 1 + RESERVE)
        output_of(first.ask(DISPATCH))
        with connection(server) as beyond:
            assert beyond.ask(HEALTH).status_code == 200
        with pytest.raises((ConnectionError, AssertionError)):
            reserve[0].ask(HEALTH)
        assert reserve[-1].ask(HEALTH).status_code == 200


class Counted:
    """A connection, as its limit sees it."""

    def __init__(self) -> None:
        self.drops = 0

    def drop(self) -> None:
        self.drops += 1


def test_who_finds_no_place_is_counted_and_told_of_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 5.0  # of a machine that was just started
    monkeypatch.setattr(limit, "monotonic", lambda: now)
    counted = limit.ConnectionLimit(2)
    refused = memoryview(bytearray(8)).cast("d")
    counted.count_in(refused)
    served, reserve = [Counted() for _ in range(2)], [Counted() for _ in range(RESERVE + 2)]
    assert [counted.enter(each) for each in served] == [True, True]
    assert (counted.count, refused[0], caplog.records) == (2, 0, [])
    for number, each in enumerate(reserve[:RESERVE], 1):
        assert not counted.enter(each)
        assert (counted.count, refused[0]) == (2 + number, number)
    assert len(caplog.records) == 1
    assert {each.drops for each in [*served, *reserve]} == {0}

    now += 9.9
    counted.leave(reserve[1])
    assert not counted.enter(reserve[-2])
    assert len(caplog.records) == 1
    assert {each.drops for each in reserve} == {0}
    now += 0.1
    assert not counted.enter(reserve[-1])
    assert len(caplog.records) == 2
    assert [each.drops for each in reserve] == [1] + [0] * (RESERVE + 1), "the one that came first makes room"
    assert (counted.count, refused[0]) == (2 + RESERVE, RESERVE + 2)

    counted.leave(served[0])
    assert counted.enter(served[0])
    for each in [*served, *reserve]:  # one that was dropped is closed, too
        counted.leave(each)
    assert counted.count == 0


@pytest.mark.parametrize("threads", [0, 40])
def test_few_descriptors_are_survived(tmp_path: Path, threads: int) -> None:
    """The limit of open files is lower than what max_connections would need. There is one left for each thread that
    may have a connection lent."""
    files = 160
    limited = ("sh", "-c", f'ulimit -n {files}; exec "$0" "$@"', COMMAND)
    flags = ("--transfer-threads", str(threads))
    with running_server(tmp_path / "log", *flags, command=limited) as server, ExitStack() as stack:
        assert is_served(server)
        opened(stack, server, 2 * files)
        for _ in range(50):
            with connection(server) as client:
                assert client.ask(HEALTH).status_code == 200
        used = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert files - used >= FILES // 2 + threads  # the server itself has opened some since they were counted
        stack.close()
        wait_until(lambda: is_served(server))
        assert "there may be" in server.log.read_text()


def test_connections_are_as_many_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = len(os.listdir("/proc/self/fd")) + FILES + RESERVE

    def room(most: int, wanted: int, others: int = 0) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
        return room_for_connections(wanted, others)

    assert room(resource.RLIM_INFINITY, 5000) == 5000
    assert room(files + 1000, 500, others=20) == 500
    assert not caplog.records
    assert 90 <= room(files + 120, 500, others=20) <= 110
    assert "there may be" in caplog.messages[-1]
    assert room(10, 500) == 1
    caplog.clear()
    assert room(10, 1) == 1
    assert not caplog.records  # nothing is amiss


def test_the_limit_of_descriptors_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -S -n 64; exec "$0" "$@"', COMMAND)
    with running_server(tmp_path / "log", command=limited) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text().splitlines()
        (soft, hard) = next(line for line in limits if line.startswith("Max open files")).split()[3:5]
        assert soft == hard != "64"


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_limit_of_descriptors_that_leaves_none_for_connections_is_told(workers: str) -> None:
    limited = ["sh", "-c", 'ulimit -n 63; exec "$0" "$@"', str(COMMAND), "serve", "--port", "0", "--workers", workers]
    ended = subprocess.run(limited, check=False, capture_output=True, text=True, timeout=60)
    told = "Error: The system allows this process 63 open files, where the service needs 64 at least; `ulimit -n` "
    assert (ended.returncode, ended.stderr) == (2, told + "raises that.\n")


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_limit_of_descriptors_that_stays_holds_up_no_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise error("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 128))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    limit.raise_descriptor_limit()
    assert "stays at 64: not allowed" in caplog.text


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("drain_seconds", ["0", "0.5"])
def test_no_kept_connection_is_reset_at_the_end(tmp_path: Path, workers: str, drain_seconds: str) -> None:
    """Each client learns from an answer to go elsewhere."""
    flags = ["--workers", workers, "--drain-seconds", drain_seconds, "--no-access-log"]
    outcomes: list[str] = []
    unannounced: list[bool] = []
    all_ask = threading.Barrier(25)

    def ask_on() -> None:
        with connection(server) as client:
            output_of(client.ask(DISPATCH))
            all_ask.wait()
            try:
                while True:
                    answer = client.ask(DISPATCH)
                    if answer.headers.get("connection") == "close":
                        assert answer.status_code in (200, 503)
                        unannounced.append(not client.is_closed())
                        outcomes.append("told")
                        return
            except AssertionError:
                outcomes.append("closed")  # before another answer began
            except OSError as error:
                outcomes.append(type(error).__name__)

    with running_server(tmp_path / "log", *flags, command=PATIENT) as server:
        threads = [threading.Thread(target=ask_on) for _ in range(24)]
        for thread in threads:
            thread.start()
        all_ask.wait()
        time.sleep(0.3)
        assert server.stop(60) == 0
        for thread in threads:
            thread.join()
    assert outcomes == ["told"] * 24
    assert not any(unannounced)


def test_an_answer_that_had_begun_at_the_end_is_not_the_last_one(tmp_path: Path) -> None:
    """It does not say that it would be, so the client goes on."""
    body: bytes = msgpack.packb(request(CELU, {"InputTensor": np.ones(2 << 20, np.float32)}))
    with running_server(tmp_path / "log", command=PATIENT) as server, connection(server) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.send(header(*MSGPACK, length(len(body))), body)
        assert client.received.peek(100)
        server.process.terminate()
        time.sleep(0.3)
        answer, last = client.receive(), client.ask(DISPATCH)
        assert "connection" not in answer.headers
        assert (output_of(answer) == 1).all()
        assert (last.status_code, last.headers["connection"]) == (200, "close")
        assert client.is_closed()
        assert server.process.wait(60) == 0


def test_an_idle_connection_is_closed_cleanly_at_the_end(start_server: ServerFactory) -> None:
    server = start_server()
    with connection(server) as client:
        output_of(client.ask(DISPATCH))
        server.process.terminate()
        assert client.is_closed()
        client.send(DISPATCH)  # too late, but no reset
        assert client.socket.recv(1) == b""
        client.hang_up()
        assert server.process.wait(20) == 0


def test_large_requests_that_begin_and_stop_touch_no_more_memory_than_has_come(start_server: ServerFactory) -> None:
    """Fresh memory is slow to touch, and while the event loop does it nobody else is answered."""
    server = start_server("--no-access-log", "--keep-alive-seconds", "300")
    body: bytes = msgpack.packb(request(f"{PREFIX}ACTIVATION_IDENTITY", {"InputTensor": np.zeros(1 << 20, np.float32)}))
    large = header(*MSGPACK, length(len(body))) + body
    count, begun = 100, 40_000
    with ExitStack() as stack, httpx.Client(base_url=server.url) as observer:
        clients = opened(stack, server, count)
        for client in clients:
            output_of(client.ask(large))
        before = resident_bytes(server)
        for client in clients:
            client.send(large[:begun])
        assert observer.get("/health/live").status_code == 200
        time.sleep(0.5)
        assert resident_bytes(server) - before < count * 8 * begun


def resident_bytes(server: RunningServer) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
