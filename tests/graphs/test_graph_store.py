"""Graphs that are kept: compiled once, dispatched many times, bounded, and the same for all workers."""

import errno
import gc
import os
import re
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app import logs
from app.codecs.codec import Piece
from app.contract.validation import validate
from app.engine.dispatch import GraphCapability
from app.engine.graph_documents import GraphKeepRequest
from app.engine.graph_entries import Entry, Record, SharedEntries
from app.engine.graph_store import DESCRIBED, KeptGraph, StoreFull, UnknownGraph
from app.engine.service import Service
from app.http.core.documents import CODECS
from app.http.core.keys import Keys
from app.http.telemetry.slots import Slots
from app.main import _server
from app.settings import Settings
from tests.conftest import RunningServer, ServerFactory, running_server
from tests.graphs.documents import OWNED, between, graph, into, node, out, relu, tensor
from tests.graphs.requests import BIAS, MSGPACK, X, Y, biased, dispatch, keep, post, result, weighted
from tests.http.load import metric, wait_until
from tests.http.refusals import error_at, refusal_of

both = pytest.mark.parametrize("binary", [True, False], ids=["MessagePack", "JSON"])
GRAPHS = "/v1/graphs"
MIB = 1 << 20


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """A client of the server with default settings, which keeps nothing before and after."""
    with httpx.Client(base_url=server.url, timeout=30) as opened:
        drop_all(opened)
        yield opened
        drop_all(opened)


def drop_all(client: httpx.Client) -> None:
    for each in client.get(GRAPHS).json():
        client.delete(f"{GRAPHS}/{each['id']}")


class TestTimes:
    """How long each kernel takes."""

    def test_each_kernel_of_a_dispatch_has_a_time(self, client: httpx.Client) -> None:
        """Of a graph whose kernels cannot be one, with scratch between them, kept tensors and one that is done once."""
        big = tensor(sizes=(256, 256))
        owned = big | {"Flags": OWNED["Flags"]}
        gemm = {"ATensor": big, "BTensor": big, "Alpha": 1, "Beta": 0, "TransA": "NONE", "TransB": "NONE"}
        document = graph(
            [
                node("GEMM", "gemm", **gemm),
                node("ACTIVATION_SOFTMAX", "softmax", InputTensor=big),
                relu("w", desc=owned),
            ],
            [into("x", "gemm", "ATensor"), into("w", "w", "InputTensor")],
            [out("softmax", "y", "OutputTensor")],
            [
                between("w", "gemm", "BTensor", "OutputTensor"),
                between("gemm", "softmax", "InputTensor", "OutputTensor"),
            ],
        )
        w = np.ones((256, 256), np.float32).tobytes()
        path = f"{GRAPHS}/{keep(client, document, inputs={'w': w})['id']}"
        kernels = [each for each in client.get(path).json()["kernels"] if not each["at_initialization"]]
        assert len(kernels) > 1
        for query in ("", "?device=auto", "?device=numpy"):
            told = client.post(f"{path}/times{query}").raise_for_status().json()
            assert (told["device"], told["kind"], told["fallback_reason"]) == ("numpy", "cpu", None)
            assert [each["nodes"] for each in told["kernels"]] == [each["nodes"] for each in kernels]
            assert all(1e-7 < each["seconds"] < 5 for each in told["kernels"])
        assert client.get(path).json()["dispatches"] == 0

    def test_refusals(self, client: httpx.Client) -> None:
        path = f"{GRAPHS}/{keep(client, biased())['id']}"
        assert refusal_of(client.post(f"{path}/times?device=cuda:7"), 422)["errors"][0]["pointer"] == "/device"
        assert refusal_of(client.post(f"{path}/times?devices=numpy"), 422)["errors"][0]["pointer"] == "/devices"
        refusal_of(client.post(f"{GRAPHS}/{'0' * 32}/times"), 404)
        refusal_of(client.get(f"{path}/times"), 405)
        assert client.options(f"{path}/times").headers["allow"] == "OPTIONS, POST"

    def test_what_it_takes_is_within_the_memory(self, start_server: ServerFactory) -> None:
        server = start_server("--max-memory-bytes", str(MIB))
        with httpx.Client(base_url=server.url) as client:
            wide = relu("relu", desc=tensor(sizes=(1 << 18,)))
            ends = [into("x", "relu", "InputTensor")], [out("relu", "y", "OutputTensor")]
            path = f"{GRAPHS}/{keep(client, graph([wide], *ends))['id']}"
            assert "max_memory_bytes" in refusal_of(client.post(f"{path}/times"), 413)["detail"]
            assert "dmlserve_memory_bytes 0.0" in client.get("/metrics").text


class TestKeeping:
    @both
    def test_a_new_one_is_201_and_a_known_one_200(self, client: httpx.Client, binary: bool) -> None:
        first = post(client, GRAPHS, {"graph": biased(), "name": "biased"}, binary)
        assert first.status_code == 201
        told = keep(client, biased(), binary)
        assert first.headers["location"] == f"{GRAPHS}/{told['id']}"
        again = post(client, GRAPHS, {"graph": biased()}, not binary)
        assert again.status_code == 200
        assert again.headers["location"] == first.headers["location"]
        layout = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": None, "TotalTensorSizeInBytes": 24}
        assert (told["name"], told["inputs"], told["outputs"]) == ("biased", {"x": layout}, {"y": layout})
        assert told["capability"]["graph"] == told["id"]
        assert told["kernels"] == [{"nodes": [0, 2], "at_initialization": False, "bytes_read": 36, "bytes_written": 24}]

    @both
    def test_it_is_dispatched_many_times(self, client: httpx.Client, binary: bool) -> None:
        told = keep(client, biased(), binary)
        for factor in range(5):
            response = dispatch(client, told["id"], binary, x=X * factor)
            np.testing.assert_array_equal(result(response), np.maximum(X * factor + BIAS, 0))
        assert client.get(f"{GRAPHS}/{told['id']}").json()["dispatches"] == 5

    @both
    def test_what_is_owned_is_sent_once(self, client: httpx.Client, binary: bool) -> None:
        told = keep(client, weighted(), binary, inputs={"1": X.tobytes()})
        assert told["inputs"].keys() == {"0"}
        assert [each["at_initialization"] for each in told["kernels"]] == [True, False]
        for factor in range(3):
            response = dispatch(client, told["id"], binary, _0=X * factor)
            np.testing.assert_array_equal(result(response, "0"), X * factor + np.maximum(X, 0))
        bound = post(client, f"{GRAPHS}/{told['id']}/dispatch", {"inputs": {"0": X.tobytes(), "1": X.tobytes()}})
        assert "it is OWNED_BY_DML, and was bound at initialization" in error_at("/inputs/1", bound)["message"]

    @both
    def test_what_it_keeps_is_its_own(self, client: httpx.Client, binary: bool) -> None:
        """The memory that it came in is the next requests'."""
        sizes = (1 << 9, 1 << 10)
        w = np.random.default_rng(1).standard_normal(sizes).astype(np.float32)
        made = {}
        for factor in (1, -1):
            inputs = {"1": (factor * w).tobytes()}
            made[factor] = keep(client, weighted(sizes), binary, inputs=inputs)["id"]
        for _ in range(2):
            for factor, id_ in made.items():
                response = dispatch(client, id_, binary, _0=w)
                np.testing.assert_array_equal(result(response, "0"), w + np.maximum(factor * w, 0))

    def test_it_is_described(self, client: httpx.Client) -> None:
        told = keep(client, biased(), name="biased", device="numpy")
        before = time.time()
        described = client.get(f"{GRAPHS}/{told['id']}").json()
        sent = biased()
        del sent["Nodes"][1]["Data"]
        sent["Nodes"][1]["DataSize"] = 12
        assert described.pop("graph") == sent
        assert described == told
        assert (described["device"], described["dispatches"], described["scratch_bytes"]) == ("numpy", 0, 0)
        assert 0 <= before - described["created"] < 30
        (listed,) = client.get(GRAPHS).json()
        assert listed == {name: told[name] for name in listed}
        assert listed.keys() >= {"id", "name", "created", "dispatches", "memory_bytes"}
        sent["Nodes"][1]["Data"] = biased()["Nodes"][1]["Data"]
        assert keep(client, sent, device="numpy")["outputs"] == told["outputs"]  # what is told is taken

    def test_its_device(self, client: httpx.Client) -> None:
        told = keep(client, biased(), device="numpy")
        path = f"{GRAPHS}/{told['id']}/dispatch"
        for device in ("auto", "numpy"):
            np.testing.assert_array_equal(
                result(post(client, path, {"inputs": {"x": X.tobytes()}, "device": device})), Y
            )
        error_at("/device", post(client, path, {"inputs": {"x": X.tobytes()}, "device": "cuda:77"}))
        error_at("/device", post(client, GRAPHS, {"graph": biased(), "device": "cuda:77"}))

    @both
    def test_what_is_no_request_is_refused(self, client: httpx.Client, binary: bool) -> None:
        for nothing, pointer in (([], ""), ("graph", ""), ({"graph": []}, "/graph"), ({"graph": None}, "/graph")):
            how: Any = {"content": msgpack.packb(nothing), "headers": MSGPACK} if binary else {"json": nothing}
            error_at(pointer, client.post(GRAPHS, **how))
        assert client.get(GRAPHS).json() == []

    def test_bytes_between_nodes_are_within_the_memory(self, start_server: ServerFactory) -> None:
        """A product of a column and a row, times a column."""
        wide = 1 << 10
        gemm = {"TransA": "NONE", "TransB": "NONE", "Alpha": 1, "Beta": 0}
        column, row, product = (tensor(sizes=sizes) for sizes in ((wide, 1), (1, wide), (wide, wide)))
        document = graph(
            [
                node("GEMM", "first", ATensor=column, BTensor=row, **gemm),
                node("GEMM", "second", ATensor=product, BTensor=column, **gemm),
            ],
            [
                into("column", "first", "ATensor"),
                into("row", "first", "BTensor"),
                into("column", "second", "BTensor"),
            ],
            [out("second", "y", "OutputTensor")],
            [between("first", "second", "ATensor", "OutputTensor")],
        )
        server = start_server("--max-memory-bytes", str(MIB))
        with httpx.Client(base_url=server.url) as client:
            told = error_at("/graph", post(client, GRAPHS, {"graph": document}), 413)
        assert (told["given"], told["allowed"]) == (4 * wide * wide, [MIB])
        assert "Bytes between nodes" in told["message"]

    def test_the_metrics_and_the_log(self, start_server: ServerFactory) -> None:
        running = start_server()
        with httpx.Client(base_url=running.url) as client:
            told = keep(client, biased())
            assert (metric(client, "graphs"), metric(client, "graph_bytes")) == (1, told["memory_bytes"])
            result(dispatch(client, told["id"], x=X))
            assert metric(client, "dispatches_total", operator="graph", device="numpy") == 1
            client.delete(f"{GRAPHS}/{told['id']}")
            assert (metric(client, "graphs"), metric(client, "graph_bytes")) == (0, 0)
        wait_until(lambda: '"operator": "graph"' in running.log.read_text().replace('":"', '": "'))

    @both
    def test_a_structure_longer_than_a_dispatch_may_have(self, client: httpx.Client, binary: bool) -> None:
        count = 2000
        nodes = [relu(f"a node with a long name, so that there is much to read, of number {n}") for n in range(count)]
        edges = [between(n, n + 1) for n in range(count - 1)]
        long = graph(nodes, [into(0, 0)], [out(count - 1)], edges)
        told = keep(client, long, binary)
        np.testing.assert_array_equal(result(dispatch(client, told["id"], binary, _0=X), "0"), np.maximum(X, 0))
        one_shot = post(client, "/v1/dispatch", {"graph": long, "inputs": {"0": X.tobytes()}}, binary)
        assert "max_structure_bytes allows" in refusal_of(one_shot, 413)["detail"]
        beyond = {"graph": long, "name": "n" * (5 << 20)}
        assert "max_graph_structure_bytes allows" in refusal_of(post(client, GRAPHS, beyond, binary), 413)["detail"]


class TestRefusals:
    def test_unknown_ids(self, client: httpx.Client) -> None:
        for id_ in ("0" * 32, "0" * 31, "..", "lock", "A" * 32, "x" * 500, "0" * 32 + "%0a"):
            path = f"{GRAPHS}/{id_}" if id_ != ".." else f"{GRAPHS}/%2e%2e"
            for response in (
                client.get(path),
                client.delete(path),
                post(client, f"{path}/dispatch", {"inputs": {}}),
            ):
                assert "send it again to POST /v1/graphs" in refusal_of(response, 404)["detail"]

    def test_a_name_is_told_with_the_id_that_it_stands_for(self, client: httpx.Client) -> None:
        id_ = keep(client, biased(), name="mine")["id"]
        path = f"{GRAPHS}/mine"
        for response in (client.get(path), client.delete(path), post(client, f"{path}/dispatch", {"inputs": {}})):
            assert refusal_of(response, 404)["detail"] == f"mine is a graph's name; here it goes by its id, {id_}."

    def test_one_that_is_not_as_it_was_is_not_dropped(self, client: httpx.Client) -> None:
        """DELETE depends on what GET tells, in the form that the client takes (RFC 9110, 13.1.1 and 13.1.2)."""
        path = f"{GRAPHS}/{keep(client, biased())['id']}"
        for coding in ("identity", "gzip"):
            plain = {"accept-encoding": coding}
            old = client.get(path, headers=plain).headers["etag"]
            result(post(client, f"{path}/dispatch", {"inputs": {"x": X.tobytes()}}))
            tag = client.get(path, headers=plain).headers["etag"]
            assert tag != old
            for condition in ({"if-match": old}, {"if-none-match": tag}, {"if-none-match": "*"}):
                assert refusal_of(client.delete(path, headers=plain | condition), 412)["type"] == "/errors#changed"
            assert client.delete(path, headers=plain | {"if-match": tag, "accept": "text/html"}).status_code == 406
            assert client.get(path).status_code == 200
            assert client.delete(path, headers=plain | {"if-match": tag, "if-none-match": old}).status_code == 204
            for condition in ({"if-match": tag}, {"if-match": "*"}, {"if-none-match": "*"}):
                refusal_of(client.delete(path, headers=condition), 404)
            keep(client, biased())

    def test_methods(self, client: httpx.Client) -> None:
        id_ = keep(client, biased())["id"]
        for path, allowed in (
            (GRAPHS, "GET, HEAD, OPTIONS, POST"),
            (f"{GRAPHS}/{id_}", "DELETE, GET, HEAD, OPTIONS"),
            (f"{GRAPHS}/{id_}/dispatch", "OPTIONS, POST"),
        ):
            for method in ("PUT", "PATCH"):
                response = client.request(method, path)
                refusal_of(response, 405)
                assert response.headers["allow"] == allowed
            assert client.head(path).status_code == (200 if "HEAD" in allowed else 405)

    def test_names(self, client: httpx.Client) -> None:
        one = keep(client, biased(), name="one")["id"]
        taken = post(client, GRAPHS, {"graph": weighted(), "inputs": {"1": X.tobytes()}, "name": "one"})
        assert one in error_at("/name", taken, 409)["message"]
        other = error_at("/name", post(client, GRAPHS, {"graph": biased(), "name": "two"}), 409)
        assert (other["given"], other["allowed"]) == ("two", ["one"])
        error_at("/device", post(client, GRAPHS, {"graph": biased(), "device": "numpy"}), 409)
        for name in ("", "a b", "n" * 129, "0" * 32, "activation_celu", "DML_OPERATOR_ACTIVATION_CELU"):
            error_at("/name", post(client, GRAPHS, {"graph": biased(), "name": name}))
        assert len(client.get(GRAPHS).json()) == 1
        client.delete(f"{GRAPHS}/{one}")
        keep(client, biased(), name="two")

    def test_inputs_that_are_not_owned(self, client: httpx.Client) -> None:
        given = post(client, GRAPHS, {"graph": biased(), "inputs": {"x": X.tobytes(), "z": b"\0"}})
        assert "bind it in each dispatch" in error_at("/inputs/x", given)["message"]
        assert "nor an input" in error_at("/inputs/z", given)["message"]
        error_at("/inputs/1", post(client, GRAPHS, {"graph": weighted()}))
        assert client.get(GRAPHS).json() == []

    @both
    def test_null_is_what_is_bound_to_others(self, client: httpx.Client, binary: bool) -> None:
        """At initialization to inputs that are not owned, at execution to those that are, and to what no node reads."""
        owned, x = {"1": X.tobytes()}, {"0": X.tobytes()}
        document = weighted() | {"InputCount": 3}
        kept = keep(client, document, binary, inputs=owned | {"0": None, "2": None})
        path = f"{GRAPHS}/{kept['id']}/dispatch"
        for _ in range(3):
            made = post(client, path, {"inputs": x | {"1": None, "2": None}}, binary)
            np.testing.assert_array_equal(result(made, "0"), X + np.maximum(X, 0))
        assert "are null" in error_at("/inputs/0", post(client, path, {"inputs": {"0": None}}, binary))["message"]
        for name, data in (("1", X.tobytes()), ("2", X.tobytes()), ("3", None)):
            bound = post(client, path, {"inputs": x | {name: data}}, binary)
            assert f"has no input {name}" in error_at(f"/inputs/{name}", bound)["message"]
        for name in ("1", "3"):
            null = post(client, GRAPHS, {"graph": document, "inputs": owned | {name: None}}, binary)
            error_at(f"/inputs/{name}", null)

    @both
    def test_dispatches(self, client: httpx.Client, binary: bool) -> None:
        path = f"{GRAPHS}/{keep(client, biased())['id']}/dispatch"
        error_at("/inputs", post(client, path, {}, binary))
        error_at("/inputs/x", post(client, path, {"inputs": {}}, binary))
        for data in (b"", [1.0], None):
            unknown = post(client, path, {"inputs": {"x": X.tobytes(), "z": data}}, binary)
            assert "has no input z" in error_at("/inputs/z", unknown)["message"]
        error_at("/graph", post(client, path, {"inputs": {}, "graph": biased()}, binary))
        for _ in range(3):  # that one like it is known makes no difference
            np.testing.assert_array_equal(result(post(client, path, {"inputs": {"x": X.tobytes()}}, binary)), Y)
        short = error_at("/inputs/x", post(client, path, {"inputs": {"x": bytes(20)}}, binary))
        assert (short["given"], short["allowed"]) == (20, [24])
        error_at("/inputs/x", post(client, path, {"inputs": {"x": [1, 2]}}, binary))


class TestBounds:
    def test_how_many(self, start_server: ServerFactory) -> None:
        running = start_server("--max-graphs", "2")
        with httpx.Client(base_url=running.url) as client:
            ids = [keep(client, biased(BIAS * each))["id"] for each in range(2)]
            full = refusal_of(post(client, GRAPHS, {"graph": biased(BIAS * 3)}), 507)
            assert "2 in use and 1 more wanted, where max_graphs allows 2" in full["detail"]
            assert post(client, GRAPHS, {"graph": biased(BIAS)}).status_code == 200
            for number, id_ in enumerate(ids):  # nothing was thrown out
                np.testing.assert_array_equal(result(dispatch(client, id_, x=X)), np.maximum(X + BIAS * number, 0))
            assert client.delete(f"{GRAPHS}/{ids[0]}").status_code == 204
            assert post(client, GRAPHS, {"graph": biased(BIAS * 3)}).status_code == 201

    def test_how_large(self, start_server: ServerFactory) -> None:
        running = start_server("--max-graph-bytes", str(MIB))
        sizes = (100, 1000)

        def weights(number: int) -> dict[str, Any]:
            return {"graph": weighted(sizes), "inputs": {"1": np.full(sizes, number, np.float32).tobytes()}}

        with httpx.Client(base_url=running.url) as client:
            bytes_each = keep(client, described=weights(1)["graph"], inputs=weights(1)["inputs"])["memory_bytes"]
            assert 400_000 < bytes_each < 450_000
            assert post(client, GRAPHS, weights(2)).status_code == 201
            detail = refusal_of(post(client, GRAPHS, weights(3)), 507)["detail"]
            assert f"{2 * bytes_each} in use and {bytes_each} more wanted, where max_graph_bytes allows {MIB}" in detail
            large = weighted((300, 1000))
            alone = post(client, GRAPHS, {"graph": large, "inputs": {"1": bytes(1_200_000)}})
            assert error_at("/graph", alone, 413)["allowed"] == [MIB]
            assert len(client.get(GRAPHS).json()) == 2

    def test_a_description_counts_for_what_it_takes(self) -> None:
        """And for no less: of nodes that are not fused, whose kernels are the most there are for its length."""
        service = Service(Settings(threads=1, gpus="none"))
        count = 300
        wide = graph(
            [relu() for _ in range(count)], [into(0, n) for n in range(count)], [out(n, n) for n in range(count)]
        )
        request = validate(GraphKeepRequest, {"graph": wide})

        def kept() -> KeptGraph:
            with service.memory.open() as memory:
                codec = CODECS["application/msgpack"]
                return service.graphs.keep(request, codec, b"", memory, lambda: False)[0]

        service.graphs.drop(kept().entry.record.id)  # what is made of formulas is there now
        gc.collect()
        tracemalloc.start()
        found = kept()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        service.close()
        assert taken < found.entry.record.memory_bytes < DESCRIBED * taken

    def test_parts_are_held_before_they_are_judged(self, start_server: ServerFactory) -> None:
        """A byte of MessagePack may be an edge, of which all that is wrong would be told."""
        running = start_server("--max-memory-bytes", str(32 * MIB), "--max-graph-nodes", "1000")
        with httpx.Client(base_url=running.url) as client:
            for field in ("InputEdges", "IntermediateEdges", "OutputEdges"):
                for path in (GRAPHS, "/v1/dispatch"):
                    over = {"graph": biased() | {field: [{}] * 16_001}, "inputs": {}}
                    assert error_at(f"/graph/{field}", post(client, path, over))["given"] == 16_001
                    held = {"graph": biased() | {field: [{}] * 16_000}, "inputs": {}}
                    assert "max_memory_bytes" in refusal_of(post(client, path, held), 413)["detail"]
            error_at("/graph/Nodes", post(client, GRAPHS, {"graph": biased() | {"Nodes": [0] * 1001}}))
            error_at(
                "/graph/InputEdges/0/GraphInputIndex",
                post(client, GRAPHS, {"graph": biased() | {"InputEdges": [{}] * 100}}),
            )

    def test_idle_ones_are_dropped_if_that_is_asked_for(self, start_server: ServerFactory) -> None:
        running = start_server("--graph-seconds", "4")
        with httpx.Client(base_url=running.url) as client:
            used, idle = (keep(client, biased(BIAS * each))["id"] for each in range(2))

            def is_alone() -> bool:
                result(dispatch(client, used, x=X))
                return [each["id"] for each in client.get(GRAPHS).json()] == [used]

            wait_until(is_alone)
            assert "send it again" in refusal_of(dispatch(client, idle, x=X), 404)["detail"]
            wait_until(lambda: metric(client, "graphs") == 0)


def test_dropped_while_it_is_dispatched(client: httpx.Client) -> None:
    """That dispatch finishes."""
    sizes = (1 << 11, 1 << 12)
    kinds = ["ACTIVATION_SOFTMAX"] * 12
    nodes = [{"Type": "OPERATOR", "Desc": {"Type": kind, "InputTensor": tensor(sizes=sizes)}} for kind in kinds]
    id_ = keep(client, graph(nodes, [into(0, 0)], [out(11)], [between(n, n + 1) for n in range(11)]))["id"]
    x = np.zeros(sizes, np.float32)
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=client.base_url, timeout=60) as other:
        answer = pool.submit(dispatch, other, id_, True, _0=x)
        wait_until(lambda: metric(client, "running_dispatches") > 0 or answer.done())
        assert not answer.done()
        assert client.delete(f"{GRAPHS}/{id_}").status_code == 204
        assert not answer.done()
        refusal_of(dispatch(client, id_, _0=X), 404)
        np.testing.assert_allclose(result(answer.result(), "0"), 1 / sizes[1], rtol=1e-5)


def test_the_same_graph_has_one_id_everywhere(client: httpx.Client, start_server: ServerFactory) -> None:
    running = start_server("--threads", "1", "--no-llvm")
    with httpx.Client(base_url=running.url) as other:
        assert keep(client, biased())["id"] == keep(other, biased(), binary=False)["id"]
        changed = [biased(BIAS * 2), biased() | {"NodeCount": 3}]
        ids = {keep(other, each)["id"] for each in [biased(), *changed]} | {
            keep(other, weighted(), inputs={"1": bytes(24)})["id"]
        }
        assert len(ids) == 4


WORKERS = 3


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("three") / "log"
    folder = tmp_path_factory.mktemp("tmp")
    flags = ("--workers", str(WORKERS), "--max-graphs", "4", "--threads", "1")
    with running_server(log, *flags, TMPDIR=str(folder)) as running:
        with httpx.Client(base_url=running.url) as client:
            wait_until(lambda: metric(client, "workers") == WORKERS)
        (found,) = folder.iterdir()
        assert found.stat().st_mode & 0o777 == 0o700
        yield running
        assert running.stop() == 0
        assert list(folder.iterdir()) == []


def clients(running: RunningServer) -> Iterator[httpx.Client]:
    """Connections enough that each of the workers has some."""
    for _ in range(16):
        with httpx.Client(base_url=running.url, timeout=30) as client:
            yield client


class TestSeveralWorkers:
    @pytest.fixture(autouse=True)
    def _empty(self, three: RunningServer) -> None:
        with httpx.Client(base_url=three.url) as client:
            drop_all(client)

    @both
    def test_one_takes_it_and_all_have_it(self, three: RunningServer, binary: bool) -> None:
        with httpx.Client(base_url=three.url) as client:
            one = keep(client, biased(), binary, name="biased")["id"]
            two = keep(client, weighted(), binary, inputs={"1": X.tobytes()})["id"]
        for number, client in enumerate(clients(three)):
            np.testing.assert_array_equal(result(dispatch(client, one, binary, x=X)), Y)
            np.testing.assert_array_equal(result(dispatch(client, two, binary, _0=X), "0"), X + np.maximum(X, 0))
            described = client.get(f"{GRAPHS}/{one}").json()
            assert (described["name"], described["dispatches"]) == ("biased", number + 1)
            assert post(client, GRAPHS, {"graph": biased()}, binary).status_code == 200
            assert [each["id"] for each in client.get(GRAPHS).json()] == [one, two]
            assert metric(client, "graphs") == 2

    def test_one_drops_it_and_none_has_it(self, three: RunningServer) -> None:
        with httpx.Client(base_url=three.url) as first:
            id_ = keep(first, biased())["id"]
            for client in clients(three):
                result(dispatch(client, id_, x=X))
            assert first.delete(f"{GRAPHS}/{id_}").status_code == 204
            for client in clients(three):
                refusal_of(dispatch(client, id_, x=X), 404)
                refusal_of(client.get(f"{GRAPHS}/{id_}"), 404)
                assert client.get(GRAPHS).json() == []
            keep(first, biased(), name="again")
            for client in clients(three):
                result(dispatch(client, id_, x=X))
                assert client.get(f"{GRAPHS}/{id_}").json()["name"] == "again"
            assert first.get(f"{GRAPHS}/{id_}").json()["dispatches"] == 16

    def test_bounds_and_names_hold_for_all(self, three: RunningServer) -> None:
        def create(client: httpx.Client, number: int) -> int:
            return post(client, GRAPHS, {"graph": biased(BIAS * number), "name": f"n{number % 6}"}).status_code

        with ThreadPoolExecutor(12) as pool:
            opened = [httpx.Client(base_url=three.url, timeout=30) for _ in range(12)]
            statuses = list(pool.map(create, opened, range(12)))
            for each in opened:
                each.close()
        assert sorted(set(statuses) - {409}) == [201, 507]
        assert statuses.count(201) == 4
        for client in clients(three):
            listed = client.get(GRAPHS).json()
            assert len({each["name"] for each in listed}) == len(listed) == 4

    def test_what_a_dropped_one_kept_is_given_back(self, three: RunningServer) -> None:
        """By workers that nobody asks for it any more, too."""

        def mapped() -> int:
            process = three.process.pid
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
            return sum(id_ in Path(f"/proc/{child}/maps").read_text() for child in children)

        with httpx.Client(base_url=three.url) as first:
            id_ = keep(first, biased())["id"]

            def all_have_it() -> bool:
                """A busy machine may leave one of them out for a while."""
                for client in clients(three):
                    result(dispatch(client, id_, x=X))
                return mapped() == WORKERS

            wait_until(all_have_it)
            first.delete(f"{GRAPHS}/{id_}")
        wait_until(lambda: mapped() == 0)


def test_the_folder_is_removed_if_the_supervisor_is_killed(start_server: ServerFactory, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    running = start_server("--workers", "2", TMPDIR=str(folder))
    with httpx.Client(base_url=running.url) as client:
        wait_until(lambda: metric(client, "workers") == 2)
        keep(client, biased())
    assert len(list(folder.iterdir())) == 1
    running.process.kill()
    wait_until(lambda: not list(folder.iterdir()))


def resident(running: RunningServer) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    (kilobytes,) = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) << 10


def test_soak(start_server: ServerFactory) -> None:
    """Clients that have graphs kept, dispatch them and drop them leave the memory as it was."""
    running = start_server("--threads", "2", "--idle-buffer-bytes", "0")
    sizes, shape = (256, 256), (256, 256)
    rounds = 0
    lock = threading.Lock()

    def work(seconds: float, number: int) -> None:
        nonlocal rounds
        random = np.random.default_rng(number)
        end = time.monotonic() + seconds
        with httpx.Client(base_url=running.url) as client:
            while time.monotonic() < end or rounds <= 40:
                w, x = random.standard_normal((2, *shape)).astype(np.float32)
                id_ = keep(client, weighted(sizes), inputs={"1": w.tobytes()})["id"]
                for _ in range(3):
                    np.testing.assert_array_equal(result(dispatch(client, id_, _0=x), "0"), x + np.maximum(w, 0))
                assert client.delete(f"{GRAPHS}/{id_}").status_code == 204
                with lock:
                    rounds += 1

    def soak(seconds: float) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [seconds] * 4, range(4)))

    soak(2)
    before, rounds = resident(running), 0
    soak(4)
    assert resident(running) - before < 24 * MIB  # of what `rounds` graphs kept: at least 40 * 256 KiB and much more
    with httpx.Client(base_url=running.url) as client:
        assert (metric(client, "graphs"), metric(client, "graph_bytes"), metric(client, "memory_bytes")) == (0, 0, 0)


class FullDisk(SharedEntries):
    """Whose folder has no room for a file."""

    def add(self, record: Record, request: Iterable[Piece]) -> Entry:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class NoLock(SharedEntries):
    """Whose folder has no room for the file that is locked."""

    def adding(self, *_: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("kind", "is_kept"), [(SharedEntries, True), (FullDisk, False), (NoLock, False)])
def test_what_cannot_be_handed_to_other_workers_is_not_kept(
    tmp_path: Path, kind: type[SharedEntries], is_kept: bool
) -> None:
    service = Service(Settings(threads=1, gpus="none"), kind(tmp_path, 2, 1))
    request = validate(GraphKeepRequest, {"graph": graph([relu()], [into(0, 0)], [out(0)])})
    codec = CODECS["application/msgpack"]
    with service.memory.open() as memory:
        if is_kept:
            _, is_new = service.graphs.keep(request, codec, b"", memory, lambda: False)
            assert is_new
        else:
            with pytest.raises(StoreFull, match="No space left"):
                service.graphs.keep(request, codec, b"", memory, lambda: False)
    service.close()
    assert (service.graphs.count, len(service.graphs.summaries())) == (is_kept, is_kept)


def test_what_else_fails_is_no_lack_of_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(Settings(threads=1, gpus="none"), SharedEntries(tmp_path, 2, 1))
    request = validate(GraphKeepRequest, {"graph": graph([relu()], [into(0, 0)], [out(0)])})

    def fails(*_: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(service.graphs, "_prepare", fails)
    with service.memory.open() as memory, pytest.raises(OSError, match="Input/output error"):
        service.graphs.keep(request, CODECS["application/msgpack"], b"", memory, lambda: False)
    service.close()
    assert service.graphs.count == 0


def test_one_that_is_dropped_and_kept_again_is_another_one_to_every_worker(tmp_path: Path) -> None:
    first, second = (SharedEntries(tmp_path, 2, worker) for worker in range(2))
    capability = GraphCapability(graph="0" * 32, feature_level="6_4", nodes=1, kernels=1, operators=[])
    record = Record("0" * 32, None, "numpy", 1.0, 0, capability)
    first.add(record, [b"sent"])
    before = second.find(record.id)
    assert before
    assert second.find(record.id) is before
    before.count()
    assert first.all()[record.id].dispatches == 1
    assert first.remove(record.id)
    first.add(record, [b"sent"])
    again = second.find(record.id)
    assert again
    assert again is not before
    assert again.dispatches == 0
    assert second.find(record.id) is again is second.all()[record.id]
    assert second.remove(record.id)
    assert not second.remove(record.id)
    assert (first.find(record.id), dict(first.all())) == (None, {})


def test_nobody_else_is_asked_where_there_is_one_process() -> None:
    service = Service(Settings(threads=1, gpus="none"))
    with service.memory.open() as memory, pytest.raises(UnknownGraph):
        service.graphs.load("0" * 32, memory, lambda: False)
    service.close()


def test_what_compiles_stops_a_server_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a thread has the interpreter for 5 ms whenever the event loop wants it, and what it made is looked
    through for garbage every second."""
    asked: list[float] = []
    thresholds: list[tuple[int, ...]] = []
    monkeypatch.setattr(sys, "setswitchinterval", asked.append)
    monkeypatch.setattr(gc, "set_threshold", lambda *each: thresholds.append(each))
    monkeypatch.setattr(logs, "count_dropped_in", lambda _: None)
    _server(Settings(gpus="none"), Keys("", ""), None, Slots(1), 0, None, None, None)
    assert max(asked) <= 0.001
    ((first, second, full),) = thresholds
    assert (first, second) == gc.get_threshold()[:2]
    assert full >= 1000


class TestPackedMatrices:
    """A known matrix is kept a second time, packed for the CPU's loops: that is charged, and counts as kept."""

    SIZES = (256, 256)

    def product(self, nodes: int = 1, sizes: tuple[int, int] = SIZES, matrices: int = 1) -> dict[str, Any]:
        """So many products of what comes with so many matrices, each of the result before."""
        gemm = {
            "ATensor": tensor(sizes=(1, sizes[0])),
            "BTensor": tensor(sizes=sizes) | {"Flags": OWNED["Flags"]},
            "TransA": "NONE",
            "TransB": "NONE",
            "Alpha": 1,
            "Beta": 0,
        }
        return graph(
            [
                *(node("GEMM", f"gemm{number}", **gemm) for number in range(nodes)),
                *(relu(f"relu{number}", desc=tensor(sizes=(1, sizes[1]))) for number in range(nodes)),
            ],
            [
                into("x", "gemm0", "ATensor"),
                *(into(f"w{number % matrices}", f"gemm{number}", "BTensor") for number in range(nodes)),
            ],
            [out(f"relu{nodes - 1}", "y", "OutputTensor")],
            [
                *(between(f"gemm{n}", f"relu{n}", "InputTensor", "OutputTensor") for n in range(nodes)),
                *(between(f"relu{n}", f"gemm{n + 1}", "ATensor", "OutputTensor") for n in range(nodes - 1)),
            ],
        )

    def test_count_as_kept(self, client: httpx.Client) -> None:
        """Once each, however many products there are with it."""
        matrix = 4 * 256 * 256
        for nodes, matrices in ((1, 1), (3, 1), (3, 3)):
            inputs = {f"w{number}": bytes([number] * matrix) for number in range(matrices)}
            told = keep(client, self.product(nodes, matrices=matrices), inputs=inputs)
            assert 2 * matrices * matrix <= told["memory_bytes"] < 2 * matrices * matrix + 20_000 * nodes

    def test_are_refused_before_they_are_made(self, start_server: ServerFactory) -> None:
        running = start_server("--max-graph-bytes", str(MIB), "--max-memory-bytes", str(2 * MIB))
        x = bytes(4 * 256)
        with httpx.Client(base_url=running.url) as client:

            def of(matrices: int, **bound: bytes) -> dict[str, Any]:
                given = {f"w{number}": bytes(4 * 256 * 256) for number in range(matrices)}
                return {"graph": self.product(matrices, matrices=matrices), "inputs": given | bound}

            assert error_at("/graph", post(client, GRAPHS, of(3)), 413)["allowed"] == [MIB]
            assert "max_memory_bytes" in refusal_of(post(client, "/v1/dispatch", of(5, x=x)), 413)["detail"]
            assert post(client, "/v1/dispatch", of(2, x=x)).status_code == 200
            wait_until(lambda: metric(client, "memory_bytes") == 0)

    def test_panels_of_one_column_are_within_the_bound_of_a_matrix(self, client: httpx.Client) -> None:
        """They would be filled up to a vector, which is 8 or 16 times as many."""
        depth = 1 << 20
        told = keep(client, self.product(sizes=(depth, 1)), inputs={"w0": bytes(4 * depth)})
        assert told["memory_bytes"] < 4 * depth + 20_000
