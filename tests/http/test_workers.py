"""Several processes on one port."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pytest

from tests.conftest import ROOT, SERVER, RunningServer, ServerFactory, running_server
from tests.graphs.documents import graph, into, out, relu
from tests.http.load import SECONDS, metric, series, wait_until
from tests.http.wire import connection, header, length
from tests.messages import CELU, output_of, post_json, request
from tests.models.documents import affine, put

X = np.array([1, 2, 3], np.float32)
SMALL = request(CELU, {"InputTensor": X})
WORKERS = 3


def workers_of(running: RunningServer) -> set[int]:
    """Process ids."""
    process = running.process.pid
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("three") / "log", "--workers", str(WORKERS)) as running:
        with httpx.Client(base_url=running.url) as client:
            wait_until(lambda: metric(client, "workers") == WORKERS)
        yield running


def test_all_of_them_answer_and_are_counted_together(three: RunningServer) -> None:
    """Whichever is asked, the metrics are of all, and none counts backwards."""
    body = msgpack.packb(SMALL)
    asked, counted = 0, 0.0
    for _ in range(10):
        with connection(three) as client:
            for _ in range(3):
                output_of(client.ask(header(b"Content-Type: application/msgpack", length(len(body))), body))
                asked += 1
        with httpx.Client(base_url=three.url) as observer:
            wait_until(lambda observer=observer: metric(observer, "workers") == WORKERS)  # type: ignore[misc]
            current = series(observer)
            assert current["ready"] == 1
            labels = f'{{device="numpy",operator="{CELU}"}}'
            assert current[f"dispatches_total{labels}"] == asked
            assert current[f"dispatch_compute_seconds_count{labels}"] == asked
            requests = sum(value for name, value in current.items() if name.startswith("http_requests_total"))
            assert requests > counted
            counted = requests


def test_each_reads_its_own_requests(three: RunningServer) -> None:
    """Memory that a process has when it is forked may be its children's as well."""

    def ask(number: int) -> None:
        x = np.full(50_000, number + 1, np.float32)
        body = msgpack.packb(request(CELU, {"InputTensor": x}))
        with connection(three) as client:
            for _ in range(40):
                answer = client.ask(header(b"Content-Type: application/msgpack", length(len(body))), body)
                assert (output_of(answer) == number + 1).all()

    with ThreadPoolExecutor(4 * WORKERS) as pool:
        list(pool.map(ask, range(4 * WORKERS)))


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_ends_with_0(start_server: ServerFactory, signal_number: signal.Signals) -> None:
    running = start_server("--workers", "2")
    wait_until(lambda: len(workers_of(running)) == 2)
    workers = workers_of(running)
    output_of(httpx.post(f"{running.url}/v1/dispatch", content=msgpack.packb(SMALL), headers=MSGPACK))
    running.process.send_signal(signal_number)
    assert running.process.wait(SECONDS) == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert "Traceback" not in running.log.read_text()


MSGPACK = {"content-type": "application/msgpack"}


def test_one_that_dies_is_started_again(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2")
    wait_until(lambda: len(workers_of(running)) == 2)
    victim = min(workers_of(running))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(workers_of(running) - {victim}) == 2)
    assert re.search(rf"process {victim}, ended with -9; it is started again", running.log.read_text())
    for _ in range(10):
        with httpx.Client(base_url=running.url, timeout=30) as client:
            output_of(post_json(client, SMALL))
    assert running.stop(SECONDS) == 0


def test_where_there_can_be_no_process_now_another_one_is_tried() -> None:
    program = """
import errno, logging, os, signal
from app.http.server import workers
from app.signals import Signals
logging.basicConfig(format="%(message)s")
workers._REST_SECONDS = 0.01
fork, failures = os.fork, [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))] * 2
def fork_at_last():
    if failures:
        raise failures.pop()
    return fork()
os.fork = fork_at_last
def work(number, signals):
    os.kill(os.getppid(), signal.SIGTERM)
    return True
with Signals() as signals:
    print(workers.Supervisor(1, work, signals, lambda: None, 10.0).run())
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS
    )
    assert ended.stdout == "True\nset()\n"
    assert ended.stderr.count("Worker 0 cannot be started: Resource temporarily unavailable; it is tried again") == 2


def test_one_whose_work_fails_is_told_and_started_again() -> None:
    program = """
import logging, os, signal
from app.http.server import workers
from app.signals import Signals
logging.basicConfig(format="%(message)s")
workers._REST_SECONDS = 0.01
reading, writing = os.pipe()
os.write(writing, b"x")
os.close(writing)
def work(number, signals):
    if os.read(reading, 1):
        raise RuntimeError("out of order")
    os.kill(os.getppid(), signal.SIGTERM)
    return True
with Signals() as signals:
    print(workers.Supervisor(1, work, signals, lambda: None, 10.0).run())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS
    )
    assert ended.stdout == "True\n"
    assert ended.stderr.count("Worker 0 failed\nTraceback") == 1
    assert ended.stderr.count("RuntimeError: out of order") == 1
    assert ended.stderr.count(", ended with 1; it is started again") == 1


ADOPTS = """
import os, sys, time
if not os.fork():
    time.sleep(float(sys.argv[1]))
    os._exit(3)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""A command that has a child when it becomes another one, as process 1 of a container gets orphans."""


def test_children_that_are_no_workers_end_without_a_word(tmp_path: Path) -> None:
    adopts = (sys.executable, "-c", ADOPTS, "0.5", *SERVER)
    with running_server(tmp_path / "log", "--workers", "2", command=adopts) as running:
        wait_until(lambda: len(workers_of(running)) >= 2)
        assert running.stop(SECONDS) == 0
        said = running.log.read_text()
        assert "started again" not in said
        assert "Traceback" not in said


def test_what_one_that_is_killed_has_counted_is_not_lost(start_server: ServerFactory) -> None:
    """Each client has one request at a time, and an answer is counted before the worker reads from its client again.

    So of what a client was answered at most its last one is not counted, if the worker was killed right after it.
    """
    running = start_server("--workers", str(WORKERS))
    body = msgpack.packb(SMALL)
    asked = header(b"Content-Type: application/msgpack", length(len(body)))
    clients, answered, is_over = 4 * WORKERS, [0] * 4 * WORKERS, threading.Event()

    def ask(number: int) -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError, AssertionError), connection(running) as client:  # its worker is gone
                while not is_over.is_set():
                    answer = client.ask(asked, body)
                    assert answer.status_code == 200
                    answered[number] += 1

    def counted() -> float:
        with httpx.Client(base_url=running.url, timeout=SECONDS) as observer:
            return metric(observer, "http_requests_total", method="POST", route="/v1/dispatch", status="200")

    def worked() -> float:
        with httpx.Client(base_url=running.url, timeout=SECONDS) as observer:
            return metric(observer, "cpu_seconds_total")

    def wait_for_more_than(count: float) -> None:
        wait_until(lambda: min(answered) > 0 and counted() > count)

    with ThreadPoolExecutor(clients) as pool:
        running_clients = [pool.submit(ask, number) for number in range(clients)]
        wait_until(lambda: len(workers_of(running)) == WORKERS)
        before = 0.0
        killed: set[int] = set()
        for _ in range(2):  # the second time perhaps one that went on with a dead one's counts
            wait_for_more_than(before + 100)
            before, seconds, victim = counted(), worked(), max(workers_of(running))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            after = counted()
            assert after >= before
            assert worked() >= seconds > 0
            before = after
            wait_until(lambda: len(workers_of(running) - killed) == WORKERS)
        is_over.set()
        for each in running_clients:
            each.result()
    least = sum(answered) - clients * len(killed)
    wait_until(lambda: counted() >= least)
    assert counted() <= sum(answered) + clients * len(killed)


def test_gauges_are_of_those_that_live(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2")
    with httpx.Client(base_url=running.url) as client:
        wait_until(lambda: metric(client, "workers") == 2)
    victim = min(workers_of(running))
    os.kill(victim, signal.SIGSTOP)

    def workers() -> float:
        with contextlib.suppress(httpx.TimeoutException), httpx.Client(base_url=running.url, timeout=1) as client:
            return metric(client, "workers")
        return 0.0  # it was the one that is stopped

    wait_until(lambda: workers() == 1)
    os.kill(victim, signal.SIGCONT)
    wait_until(lambda: workers() == 2)


def test_they_end_with_their_parent(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2")
    wait_until(lambda: len(workers_of(running)) == 2)
    workers = workers_of(running)
    running.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_one_whose_parent_was_gone_before_it_asked_ends_too() -> None:
    """Between the fork and that there are moments in which the parent may be killed."""
    program = """
import os, signal, time
from app.signals import end_with_parent
reading, writing = os.pipe()
if not os.fork():
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent:
            time.sleep(0.001)
        end_with_parent(signal.SIGTERM, parent)
        os.write(writing, b"goes on")
    os._exit(0)
os.close(writing)
print(os.read(reading, 100))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, timeout=SECONDS) == b"b''\n"


def test_one_that_stands_still_is_killed(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2", "--shutdown-seconds", "1")
    wait_until(lambda: len(workers_of(running)) == 2)
    victim = min(workers_of(running))
    os.kill(victim, signal.SIGSTOP)
    assert running.stop(SECONDS) == 1
    assert not Path(f"/proc/{victim}").exists()
    assert "they are killed" in running.log.read_text()


def test_one_that_is_to_be_started_again_is_not_once_they_end(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2")
    wait_until(lambda: len(workers_of(running)) == 2)
    os.kill(min(workers_of(running)), signal.SIGKILL)
    wait_until(lambda: "started again" in running.log.read_text())
    assert running.stop(SECONDS) == 0


def test_without_their_folder_they_have_kept_nothing_and_do_all_else(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    put(tmp_path / "models" / "affine.onnx", affine())
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    running = start_server("--workers", "2", "--models", str(tmp_path / "models"), TMPDIR=str(temporary))
    wait_until(lambda: running.log.read_text().count("Application startup complete") == 2)
    (folder,) = temporary.iterdir()
    assert_is_ours_alone(folder)
    kept = {"graph": graph([relu()], [into(0, 0)], [out(0)])}
    with httpx.Client(base_url=running.url, timeout=30) as client:
        id_ = client.post("/v1/graphs", json=kept).raise_for_status().json()["id"]
    shutil.rmtree(temporary)
    victim = min(workers_of(running))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: running.log.read_text().count("Application startup complete") == 3)
    for _ in range(6):
        with httpx.Client(base_url=running.url, timeout=30) as client:  # each connection is of one worker
            assert client.get("/v1/graphs").raise_for_status().json() == []
            assert metric(client, "graphs") == 0
            assert client.get(f"/v1/graphs/{id_}").status_code == 404
            for path, sent in (("/v1/graphs", kept), ("/v2/repository/models/affine/unload", {})):
                refused = client.post(path, json=sent)
                assert refused.status_code == 507
                assert "No such file or directory" in refused.text
            output_of(post_json(client, SMALL))
            assert client.get("/v2/models/affine/ready").status_code == 200
    temporary.mkdir()
    wait_until(lambda: "it is made again" in running.log.read_text())
    assert_is_ours_alone(folder)
    with httpx.Client(base_url=running.url, timeout=30) as client:
        assert client.post("/v1/graphs", json=kept).raise_for_status().json()["id"] == id_
        assert client.post("/v2/repository/models/affine/unload").status_code == 200
    for _ in range(6):
        with httpx.Client(base_url=running.url, timeout=30) as client:
            assert client.get(f"/v1/graphs/{id_}").status_code == 200
            assert client.get("/v2/models/affine/ready").status_code == 503
    assert running.stop(SECONDS) == 0
    assert not folder.exists()
    assert "Traceback" not in running.log.read_text()


def assert_is_ours_alone(folder: Path) -> None:
    """And locked, so that what clears away old temporary files leaves it there."""
    assert folder.stat().st_mode & 0o777 == 0o700
    opened = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(opened)
