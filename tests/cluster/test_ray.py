"""The service on a cluster of Ray's, of two nodes: no client sees which replica it met, nor that one was replaced."""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import pytest

from app.engine.capabilities import example
from app.operators.catalog import OPERATORS
from tests.cluster.load import ALL_SIZES, CONNECTIONS, load
from tests.cluster.namespace import own_network
from tests.cluster.ray_cluster import URL, Cluster, ray_cluster, replicas, wait_for_replicas, wait_until
from tests.conftest import running_server
from tests.graphs.requests import X, Y, biased, dispatch, keep, result

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install '.[ray]'")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # of which a quick machine takes a tenth

HEAD, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
MIB = 1 << 20


KEEPERS = """
import time
import ray
from app.cluster import NAMESPACE, GraphKeeper, RayCall
from app.engine.cluster_entries import ClusterEntries
from app.engine.graph_entries import Record

ID = "0" * 32
ray.init(logging_level="ERROR")
entries = ClusterEntries(RayCall("a keeper"), 200)


def keep():
    with entries.adding():
        entries.add(Record(ID, None, "auto", 1.0, 1, {}), [b"x"])
    assert entries.find(ID)


def wait_until(happened):
    end = time.monotonic() + 200
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_there(name):
    try:
        return bool(ray.get_actor(name, namespace=NAMESPACE))
    except ValueError:
        return False


keep()
print("kept")
ray.kill(ray.get_actor("a keeper", namespace=NAMESPACE), no_restart=False)
wait_until(lambda: entries.find(ID) is None)
print("gone after a crash")
keep()
print("kept again")
entries.close()
keeper = ray.get_actor("a keeper", namespace=NAMESPACE)
ray.kill(keeper)
brief = ray.remote(GraphKeeper).options(name="brief", namespace=NAMESPACE, max_restarts=-1, num_cpus=0).remote()
assert is_there("brief")
brief.end_if_alone.remote(0.5)
wait_until(lambda: not is_there("brief"))
print("ended")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes, with a replica on each."""
    # Paths of sockets may have 108 bytes.
    with (
        TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        own_network(),
        ray_cluster(Path(folder)) as started,
    ):
        started.start(HEAD, 2)
        started.start(SECOND, 2)
        started.deploy(1, 2, max_body_bytes=16 * MIB)
        wait_until(lambda: bool(replicas()), started.logs)
        yield started


def each_its_own(count: int) -> Iterator[httpx.Client]:
    """Clients with a connection each, which meet one replica after the other."""
    for _ in range(count):
        with httpx.Client(base_url=URL, timeout=30) as client:
            yield client


def dispatches(path: str) -> set[int]:
    """Of the graph at `path`, as each replica tells."""
    return {client.get(path).json()["dispatches"] for client in each_its_own(4)}


def test_work_brings_a_second_replica(cluster: Cluster) -> None:
    with load(URL, 0) as running:
        wait_for_replicas(2, cluster.logs)
    assert not running.failed, running.results


def test_results_are_bit_for_bit_those_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """And both replicas answer: connections go to each in turn."""
    requests = [example(operator) for operator in [*OPERATORS.values()][::6]]
    with running_server(tmp_path / "log", "--threads", "1") as alone, httpx.Client(base_url=alone.url) as client:
        for request, other in zip(requests, each_its_own(len(requests)), strict=True):
            expected, answer = [each.post("/v1/dispatch", json=request, timeout=30) for each in (client, other)]
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"] == expected.json()["outputs"], request["operator"]["Type"]


def test_a_graph_is_kept_by_all_as_soon_as_it_is_kept(cluster: Cluster) -> None:
    for _ in range(3):
        (id_,) = [keep(client, biased(), name="biased")["id"] for client in each_its_own(1)]
        for client in each_its_own(6):
            np.testing.assert_array_equal(result(dispatch(client, id_, x=X)), Y)
            assert [each["id"] for each in client.get("/v1/graphs").json()] == [id_]
            assert client.get("/v2/models/biased").status_code == 200
        wait_until(lambda path=f"/v1/graphs/{id_}": dispatches(path) == {6})  # type: ignore[misc]
        assert httpx.delete(f"{URL}/v1/graphs/{id_}").status_code == 204
        assert {dispatch(each, id_, x=X).status_code for each in each_its_own(4)} == {404}


def test_a_keeper_comes_back_when_it_dies_and_ends_when_nobody_needs_it(cluster: Cluster) -> None:
    assert cluster.run(sys.executable, "-c", KEEPERS).splitlines() == [
        "kept",
        "gone after a crash",
        "kept again",
        "ended",
    ]


def test_a_rolling_update_fails_no_request(cluster: Cluster) -> None:
    (id_,) = [keep(client, biased())["id"] for client in each_its_own(1)]
    with load(URL, 0.05, ALL_SIZES) as running:
        before = wait_for_replicas(2, cluster.logs)
        cluster.deploy(2, 2, max_body_bytes=17 * MIB)
        wait_for_replicas(2, cluster.logs, before)
    assert not running.failed, running.results
    for client in each_its_own(4):
        assert client.get("/v1/capabilities").json()["limits"]["max_body_bytes"] == 17 * MIB
        np.testing.assert_array_equal(result(dispatch(client, id_, x=X)), Y)  # which the old replicas compiled


def test_a_node_that_dies_is_replaced_and_fails_only_what_it_had_in_hand(cluster: Cluster) -> None:
    with load(URL, 0.05) as running:
        before = wait_for_replicas(2, cluster.logs)
        cluster.start(THIRD, 2)
        cluster.kill(SECOND)
        running.wait_for_more()
        after = wait_for_replicas(2, cluster.logs)
    assert running.failed <= CONNECTIONS, running.results
    assert len(after & before) == 1
