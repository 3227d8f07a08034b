"""Several processes on one port."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory, running_server
from tests.http.load import SECONDS, metric, series, wait_until
from tests.http.wire import connection, header, length
from tests.messages import CELU, output_of, post_json, request

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
            current = series(observer)
            assert current["workers"] == WORKERS
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


def test_ends_with_0(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2")
    wait_until(lambda: len(workers_of(running)) == 2)
    workers = workers_of(running)
    output_of(httpx.post(f"{running.url}/v1/dispatch", content=msgpack.packb(SMALL), headers=MSGPACK))
    assert running.stop(SECONDS) == 0
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


def test_they_end_with_their_parent(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2")
    wait_until(lambda: len(workers_of(running)) == 2)
    workers = workers_of(running)
    running.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_a_port_in_use(three: RunningServer, tmp_path: Path) -> None:
    server = running_server(tmp_path / "log", "--workers", "2", "--port", str(three.port))
    with pytest.raises(AssertionError, match="in use"), server:
        pass
