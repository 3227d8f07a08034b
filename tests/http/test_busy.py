"""More work than workers: queue, deadline, memory, hang-ups; and many clients at once."""

import gzip
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app.codecs.json_cutting import NAMES
from tests.conftest import RunningServer, ServerFactory, running_server
from tests.graphs.documents import between, graph, into, node, out, tensor
from tests.http.load import ENDLESS, ENDLESS_SETTINGS, NOT_BRIEF, metric, slow_dispatch, start, wait_for, wait_until
from tests.http.refusals import refusal_of
from tests.http.wire import JSON, connection, header, length
from tests.messages import CELU, CONSTANT_POW, PARAMETERIZED_RELU, output_of, post_json, post_msgpack, request

SMALL = request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)})
X = np.arange(NOT_BRIEF, dtype=np.float32)
QUEUED = request(CELU, {"InputTensor": X})
"""Just large enough to be handed to a worker."""


def assert_try_again(response: httpx.Response) -> dict[str, Any]:
    """The problem of a 503 that says when to try again."""
    problem = refusal_of(response, 503)
    assert int(response.headers["retry-after"]) > 0
    return problem


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that runs one dispatch while another may wait."""
    with running_server(tmp_path_factory.mktemp("busy") / "log", *ENDLESS_SETTINGS, "--queue-depth", "1") as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that gives up on long dispatches."""
    flags = [*ENDLESS_SETTINGS, "--deadline-seconds", "0.3"]
    with running_server(tmp_path_factory.mktemp("impatient") / "log", *flags) as running:
        yield running


@contextmanager
def client_of(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


class TestQueue:
    def test_full(self, one_worker: RunningServer) -> None:
        """What is one too many is refused at once, what waits is answered."""
        with client_of(one_worker) as client, connection(one_worker) as busy, connection(one_worker) as waiting:
            start(busy, ENDLESS)
            wait_for(client, "running_dispatches", 1)
            start(waiting, QUEUED)
            wait_for(client, "queue_depth", 1)
            for post in (post_json, post_msgpack):
                for message in (SMALL, QUEUED):
                    assert "busy" in assert_try_again(post(client, message))["detail"]
            assert client.get("/health/ready").status_code == 200
            assert client.get("/v1/capabilities").status_code == 200
            assert (metric(client, "running_dispatches"), metric(client, "queue_depth")) == (1, 1)

            busy.hang_up()
            response = waiting.receive()
            assert output_of(response).tolist() == X.tolist()
            assert msgpack.unpackb(response.content)["execution"]["queue_seconds"] > 0
            wait_for(client, "running_dispatches", 0)
            output_of(post_json(client, SMALL))

    def test_a_hang_up_frees_its_place(self, one_worker: RunningServer) -> None:
        with client_of(one_worker) as client, connection(one_worker) as busy:
            start(busy, ENDLESS)
            wait_for(client, "running_dispatches", 1)
            for _ in range(3):
                with connection(one_worker) as waiting:
                    start(waiting, QUEUED)
                    wait_for(client, "queue_depth", 1)
                    assert_try_again(post_json(client, SMALL))
                wait_for(client, "queue_depth", 0)
            assert metric(client, "running_dispatches") == 1

    def test_a_hang_up_stops_what_runs(self, one_worker: RunningServer) -> None:
        with client_of(one_worker) as client:
            for _ in range(3):
                with connection(one_worker) as busy:
                    start(busy, ENDLESS)
                    wait_for(client, "running_dispatches", 1)
                wait_for(client, "running_dispatches", 0)
                wait_for(client, "memory_bytes", 0)
                output_of(post_json(client, SMALL))
            assert metric(client, "dispatches_total", operator=CONSTANT_POW, device="numpy") == 0

    def test_a_hang_up_ends_the_timing_of_a_graph(self, one_worker: RunningServer) -> None:
        """Of which the kernel takes some 40 s, three times."""
        count = 64
        powers = [node(CONSTANT_POW, InputTensor=tensor(sizes=(1 << 25,)), Exponent=1.5) for _ in range(count)]
        edges = [between(each, each + 1) for each in range(count - 1)]
        document = graph(powers, [into(0, 0)], [out(count - 1)], edges)
        with client_of(one_worker) as client:
            id_ = client.post("/v1/graphs", json={"graph": document}).raise_for_status().json()["id"]
            with connection(one_worker) as timing:
                timing.send(header(length(0), path=f"/v1/graphs/{id_}/times".encode()))
                wait_for(client, "running_dispatches", 1)
            wait_for(client, "running_dispatches", 0)
            wait_for(client, "memory_bytes", 0)
            client.delete(f"/v1/graphs/{id_}").raise_for_status()


LARGE_JSON = [
    pytest.param(header(JSON, length(2 << 20)), id="dispatch"),
    pytest.param(header(JSON, length(2 << 20), path=b"/v1/feature-support"), id="feature support"),
    pytest.param(header(JSON, length(2 << 20), path=b"/v2/models/activation_celu/infer"), id="inference"),
    pytest.param(
        header(JSON, length(2 << 20), b"Content-Encoding: gzip", path=b"/v2/models/activation_celu/infer"),
        id="compressed",
    ),
]


@pytest.mark.parametrize("head", LARGE_JSON)
class TestReading:
    """To read a large body is work like any other."""

    BODY = b'{"a": 1}' + b"A" * ((2 << 20) - 8)

    def test_has_to_be_admitted(self, one_worker: RunningServer, head: bytes) -> None:
        with client_of(one_worker) as client, connection(one_worker) as busy, connection(one_worker) as waiting:
            start(busy, ENDLESS)
            wait_for(client, "running_dispatches", 1)
            waiting.send(head, self.BODY)
            wait_for(client, "queue_depth", 1)
            with connection(one_worker) as refused:
                assert refused.ask(head, self.BODY).status_code == 503
            waiting.hang_up()
            wait_for(client, "queue_depth", 0)


MANY_STRINGS = b"[" + b'"%b",' % (b"A" * NAMES) * 300_000  # each of which is cut out
MANY_NUMBERS = (
    b'{"inputs":[{"name":"InputTensor","datatype":"FP32","shape":[1000001],"data":[' + b"1," * 1_000_000 + b"1]}]}"
)
LONG_READS = [
    pytest.param(b"/v1/dispatch", MANY_STRINGS, b"X: y", id="dispatch"),
    pytest.param(b"/v1/feature-support", MANY_STRINGS, b"X: y", id="feature support"),
    pytest.param(b"/v2/models/activation_celu/infer", MANY_NUMBERS, b"X: y", id="inference"),
    pytest.param(
        b"/v2/models/activation_celu/infer",
        gzip.compress(bytes(128 << 20), 1),
        b"Content-Encoding: gzip",
        id="compressed",
    ),
]


@pytest.mark.parametrize(("path", "body", "field"), LONG_READS)
def test_reading_has_the_deadline_of_computing(
    start_server: ServerFactory, path: bytes, body: bytes, field: bytes
) -> None:
    # Nothing of it is refused for being too long before the deadline has passed, however slow the machine.
    running = start_server("--deadline-seconds", "0.01", "--max-structure-bytes", str(1 << 30))
    with client_of(running) as client, connection(running) as reading:
        response = reading.ask(header(JSON, length(len(body)), field, path=path), body)
        assert response.status_code == 504
        assert "deadline_seconds" in response.text
        wait_for(client, "running_dispatches", 0)
        wait_for(client, "memory_bytes", 0)


def test_those_who_left_are_no_burden(start_server: ServerFactory) -> None:
    """What they sent costs next to nothing to refuse; others get their answers meanwhile."""
    running = start_server("--deadline-seconds", "5")
    bad = b'{"inputs": {"InputTensor": "' + b'\\"' * (12 << 20) + b'"}}'
    for _ in range(8):
        with connection(running) as leaving:
            leaving.send(header(JSON, length(len(bad))), bad)
    with httpx.Client(base_url=running.url, timeout=15) as client:
        output_of(post_json(client, request(CELU, {"InputTensor": np.ones(9 << 18, np.float32)})))
        output_of(post_json(client, SMALL))


class TestDeadline:
    def test_passes_while_it_runs(self, impatient: RunningServer) -> None:
        with client_of(impatient) as client:
            for post in (post_json, post_msgpack):
                problem = refusal_of(post(client, ENDLESS), 504)
                assert "deadline_seconds" in problem["detail"]
            wait_for(client, "running_dispatches", 0)
            wait_for(client, "memory_bytes", 0)
        assert '"ERROR"' not in impatient.log.read_text()

    def test_passes_while_it_waits(self, impatient: RunningServer) -> None:
        with client_of(impatient) as client, connection(impatient) as one, connection(impatient) as other:
            start(one, ENDLESS)
            start(other, ENDLESS)
            refusal_of(one.receive(), 504)
            refusal_of(other.receive(), 504)
            wait_for(client, "queue_depth", 0)
            wait_for(client, "running_dispatches", 0)


class TestMemory:
    MIB = 1 << 20

    def test_held_by_others(self, start_server: ServerFactory) -> None:
        running = start_server("--max-memory-bytes", str(2 * self.MIB))
        message = request(CELU, {"InputTensor": np.ones(100_000, np.float32)})
        with client_of(running) as client, connection(running) as slow:
            output_of(post_msgpack(client, message))
            slow.send(header(JSON, length(1_800_000)), b" " * 1_799_999)
            wait_until(lambda: metric(client, "memory_bytes") >= 1_799_999)
            for post in (post_json, post_msgpack):
                problem = assert_try_again(post(client, message))
                assert "max_memory_bytes" in problem["detail"]
                assert problem["hresult"] == "0x8007000E"
            output_of(post_json(client, SMALL))
            slow.hang_up()
            wait_for(client, "memory_bytes", 0)
            output_of(post_json(client, message))

    def test_is_given_back_whatever_happens(self, server: RunningServer, client: httpx.Client) -> None:
        headers = {"content-type": "application/json"}
        for _ in range(5):
            output_of(post_json(client, SMALL))
            output_of(post_msgpack(client, SMALL))
            for body in (b"{", b"{}", b'{"inputs": {"InputTensor": "%b"}}' % (b"A" * 100_000), b"[" * 1000):
                assert 400 <= client.post("/v1/dispatch", content=body, headers=headers).status_code < 500
                assert 400 <= client.post("/v1/feature-support", content=body, headers=headers).status_code < 500
            with connection(server) as hanging_up:
                hanging_up.send(header(JSON, length(1000)), b"{")
        wait_for(client, "memory_bytes", 0)


def test_what_the_system_has_no_memory_for_is_refused(start_server: ServerFactory) -> None:
    """As `ulimit -v` and vm.overcommit_memory=2 have it, however much max_memory_bytes allows."""
    running = start_server("--threads", "1")
    large = request(CELU, {"InputTensor": np.zeros(16 << 20, np.float32)})
    with client_of(running) as client:
        output_of(post_msgpack(client, SMALL))
        (pages, *_) = Path(f"/proc/{running.process.pid}/statm").read_text().split()
        most = int(pages) * resource.getpagesize() + (48 << 20)
        resource.prlimit(running.process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        for binary in (True, False):
            problem = assert_try_again((post_msgpack if binary else post_json)(client, large))
            assert problem["type"] == "/errors#memory"
            assert "The system has no memory left" in problem["detail"]
            output_of(post_msgpack(client, SMALL))
        resource.prlimit(running.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        output_of(post_msgpack(client, large))
        assert metric(client, "rejections_total", reason="memory") == 2
        assert metric(client, "memory_bytes") == 0
    assert "Traceback" not in running.log.read_text()


NO_MORE_THREADS = """
import gc, threading
from app.cli import main
freeze = gc.freeze
def fail(_):
    raise RuntimeError("can't start new thread")
def freeze_threads_too():
    freeze()
    threading.Thread.start = fail
gc.freeze = freeze_threads_too
main()
"""
"""The command `dmlserve` where the system has no more threads for it than those that it starts with."""


def test_where_no_thread_can_be_started_all_is_answered(tmp_path: Path) -> None:
    command = (sys.executable, "-c", NO_MORE_THREADS)
    with running_server(tmp_path / "log", command=command) as running, client_of(running) as client:
        for size in (3, 1 << 18, 4 << 20):
            output_of(post_msgpack(client, request(CELU, {"InputTensor": np.zeros(size, np.float32)})))
        assert client.get("/docs").status_code == 200
        assert "Traceback" not in running.log.read_text()


def test_a_hang_up_within_the_body(server: RunningServer, client: httpx.Client) -> None:
    """Nothing is left of it but a line in the log."""
    with connection(server) as hanging_up:
        hanging_up.send(header(JSON, length(500_000), b"X-Request-ID: hung-up-1"), b"{" * 100_000)
        wait_until(lambda: metric(client, "memory_bytes") >= 100_000)
    wait_for(client, "memory_bytes", 0)
    wait_until(lambda: "hung-up-1" in server.log.read_text())
    output_of(post_json(client, SMALL))


def test_a_slow_client_holds_nobody_up(server: RunningServer, client: httpx.Client) -> None:
    body = msgpack.packb(SMALL)
    with connection(server) as slow_header, connection(server) as slow_body, connection(server) as slow_reader:
        whole = header(b"Content-Type: application/msgpack", length(len(body)))
        slow_header.send(whole[:20])
        slow_body.send(whole, body[:-1])
        start(slow_reader, slow_dispatch(1 << 20))  # and does not read the 4 MiB that it is answered
        for post in (post_json, post_msgpack):
            for _ in range(20):
                output_of(post(client, SMALL))
        assert output_of(slow_body.ask(body[-1:])).tolist() == [1, 2, 3]
        assert output_of(slow_header.ask(whole[20:], body)).tolist() == [1, 2, 3]
        assert output_of(slow_reader.receive()).size == 1 << 20


def test_many_clients_get_their_own_answers(server: RunningServer) -> None:
    """Different operators, sizes, encodings, layouts and errors, all at the same time."""

    def one_client(seed: int) -> None:
        random = np.random.default_rng(seed)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for turn in range(12):
                rows, columns = (int(size) for size in random.integers(1, 300, 2))
                x = random.integers(-100, 100, (rows, columns)).astype(np.float32)
                slope = random.integers(-9, 9, (rows, columns)).astype(np.float32)
                post = (post_json, post_msgpack)[(seed + turn) % 2]
                if turn % 4 == 3:
                    wrong = request(CELU, {"InputTensor": x}, {"Alpha": 0.0})
                    assert refusal_of(post(client, wrong), 422)["errors"][0]["given"] == 0
                in_place: dict[str, Any] = {"in_place": "InputTensor"} if turn % 3 else {}
                relu = request(PARAMETERIZED_RELU, {"InputTensor": x, "SlopeTensor": slope}, **in_place)
                np.testing.assert_array_equal(output_of(post(client, relu)), np.where(x >= 0, x, x * slope))
                desc = {"DataType": "FLOAT32", "Sizes": [columns, rows], "Strides": [1, columns]}
                power = request(CONSTANT_POW, {"InputTensor": x}, {"InputTensor": desc, "Exponent": 2.0})
                np.testing.assert_array_equal(output_of(post(client, power)), x.T**2)

    with ThreadPoolExecutor(12) as clients:
        list(clients.map(one_client, range(12)))


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    with connection(server) as client:
        for size in range(1, 11):
            start(client, request(CELU, {"InputTensor": np.full(size, size, np.float32)}))
        for size in range(1, 11):
            assert output_of(client.receive()).tolist() == [size] * size
