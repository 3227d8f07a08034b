"""docker/haproxy/haproxy.cfg as HAProxy runs it, in front of replicas of which one drains and one dies."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.http.core.problems import PHRASES
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.cluster.haproxy import FOLDER, Haproxy, executable, running_haproxy
from tests.cluster.load import ALL_SIZES, load
from tests.conftest import RunningServer, running_server
from tests.graphs.requests import X, Y, biased, dispatch, keep, result
from tests.http.load import metric, wait_until
from tests.messages import HARD_SIGMOID, post_json, request

needs_haproxy = pytest.mark.skipif(executable() is None, reason="no haproxy on PATH, nor Ray Serve's")


@dataclass(frozen=True)
class Front:
    """HAProxy, and the replicas behind it."""

    haproxy: Haproxy
    replicas: list[RunningServer]

    def clients(self, count: int) -> Iterator[httpx.Client]:
        for _ in range(count):
            with httpx.Client(base_url=self.haproxy.url, timeout=30) as client:
                yield client


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The configuration as it is, but for addresses."""
    folder = tmp_path_factory.mktemp("haproxy")
    with ExitStack() as stack:

        def replica(number: int) -> RunningServer:
            flags = ("--drain-seconds", "3", "--threads", "1")  # as compose.yaml says
            return stack.enter_context(running_server(folder / f"replica-{number}", *flags))

        with ThreadPoolExecutor() as pool:
            replicas = [*pool.map(replica, range(3))]
        haproxy = stack.enter_context(running_haproxy(folder, [each.port for each in replicas]))
        yield Front(haproxy, replicas)


@needs_haproxy
def test_the_configuration_is_valid() -> None:
    command = [str(executable()), "-c", "-f", "haproxy.cfg"]
    done = subprocess.run(command, check=False, cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_what_is_told_from_graphs_are_the_operators() -> None:
    listed = [line for line in (FOLDER / "operators.lst").read_text().splitlines() if not line.startswith("#")]
    assert listed == [name.removeprefix(PREFIX) for name in OPERATORS]


@needs_haproxy
def test_operators_go_to_all_and_clients_are_told_by_address(front: Front) -> None:
    for client in front.clients(6):
        assert post_json(client, request(HARD_SIGMOID, {"InputTensor": X})).status_code == 200
        assert client.get("/v2/models/dml_operator_activation_celu", headers={"X-Forwarded-For": "1.2.3.4"}).is_success
    for replica in front.replicas:
        with httpx.Client(base_url=replica.url) as client:
            assert metric(client, "dispatches_total", device="numpy", operator=HARD_SIGMOID) == 2
        assert "1.2.3.4" not in replica.log.read_text()


@needs_haproxy
def test_graphs_go_to_one(front: Front) -> None:
    (id_,) = [keep(client, biased(), name="biased")["id"] for client in front.clients(1)]
    for client in front.clients(6):
        np.testing.assert_array_equal(result(dispatch(client, id_, x=X)), Y)
        assert len(client.get("/v1/graphs").json()) == 1
        for name in (id_, "biased"):
            assert client.get(f"/v2/models/{name}/ready").status_code == 200


@needs_haproxy
def test_a_body_that_is_too_long_is_refused_before_it_comes(front: Front) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(front.haproxy.url).port or 0), 10) as connection:
        connection.sendall(b"POST /v1/dispatch HTTP/1.1\r\nHost: x\r\nContent-Length: 268435457\r\n\r\n")
        answer = connection.recv(1 << 16)
    assert b" 413 " in answer.splitlines()[0]
    assert b'"status": 413' in answer


@needs_haproxy
def test_what_haproxy_refuses_itself_it_refuses_as_the_service_does(tmp_path: Path) -> None:
    """Here there is no replica at all."""
    text = (FOLDER / "haproxy.cfg").read_text()
    told = {int(code): json.loads(said) for code, said in re.findall(r" status (\d+) .* string '([^']*)'", text)}
    assert told.keys() == {408, 413, 502, 503, 504}
    for status, problem in told.items():
        assert problem.keys() == {"type", "title", "status", "detail", "errors"}
        assert (problem["status"], problem["title"]) == (status, PHRASES[status])
    with running_haproxy(tmp_path, []) as haproxy:
        answer = httpx.get(f"{haproxy.url}/v1/capabilities")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert (answer.json(), answer.headers["retry-after"]) == (told[503], "1")


@needs_haproxy
def test_neither_one_that_drains_nor_one_that_dies_fails_a_request(front: Front) -> None:
    """Whatever the size; from one that dies only what HAProxy still has. Keep this one last: it leaves one replica."""
    with load(front.haproxy.url, elements=ALL_SIZES) as running:
        assert front.replicas[0].stop() == 0
        running.wait_for_more()
    assert not running.failed, running.results
    with load(front.haproxy.url) as running:
        front.replicas[1].process.kill()
        wait_until(lambda: front.haproxy.ready() == {"replica2"})
    assert not running.failed, running.results
