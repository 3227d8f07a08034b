"""Measure replicas behind each front against one process alone: requests/s, the front's cost, requests that fail.

    PYTHONPATH=. python tests/benchmarks/cluster.py          # all of it, fifteen minutes; as root
    PYTHONPATH=. python tests/benchmarks/cluster.py --fronts haproxy --replicas 1 2

Every replica has one thread. Machines with few cores are full long before the replicas are: what holds on any number of
machines is the CPU time that a request takes, of the service and of the front, which is measured too. Each cell is held
against one process alone, turn by turn: others may use the machine, and more at one time than at another.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import load
import msgpack
import numpy as np
import options
import processes
import servers

from tests.cluster.haproxy import running_haproxy
from tests.cluster.namespace import own_network
from tests.cluster.ray_cluster import URL, Cluster, ray_cluster, wait_for_replicas, wait_until

SIZES = [4 << 10, 256 << 10, 4 << 20]
REPLICAS = [1, 2, 4]
TICKS_PER_SECOND = 100
SETTINGS = ["--threads", "1", "--no-access-log", "--drain-seconds", "2", "--gpus", "none"]


class Front(NamedTuple):
    """What is asked: replicas, and what stands in front of them. CPU time is in ticks, of the one and the other."""

    url: str
    service_ticks: Callable[[], int]
    front_ticks: Callable[[], int]
    update: Callable[[], None]


class Figures(NamedTuple):
    """Of one size: with many connections, and half of the requests over one."""

    rate: float
    service_us: float
    front_us: float
    one_ms: float


class Replica:
    """A process of the service that may be started again, on the same port."""

    def __init__(self) -> None:
        self.port = servers.free_port()
        self._stack = ExitStack()
        self.pid = 0
        self.start()

    def start(self) -> None:
        command = ["dmlserve", "serve", "--port", str(self.port), *SETTINGS]
        running = servers.running("service", command, self.port, "/health/ready")
        self.pid = self._stack.enter_context(running).pid or 0

    def stop(self) -> None:
        self._stack.close()


@contextmanager
def started(count: int) -> Iterator[list[Replica]]:
    made: list[Replica] = []
    try:
        made.extend(Replica() for _ in range(count))
        yield made
    finally:
        for each in made:
            each.stop()


@contextmanager
def alone() -> Iterator[Front]:
    with started(1) as (replica,):
        yield Front(f"http://127.0.0.1:{replica.port}", lambda: processes.cpu_ticks(replica.pid), int, lambda: None)


@contextmanager
def haproxy(count: int) -> Iterator[Front]:
    """Replicas are processes; to update them is to end and start one after the other."""
    with ExitStack() as stack:
        made = stack.enter_context(started(count))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with running_haproxy(folder, [each.port for each in made]) as front:

            def update() -> None:
                for each in made:
                    each.stop()
                    each.start()
                    wait_until(lambda: len(front.ready()) == count)

            yield Front(
                front.url,
                lambda: sum(processes.cpu_ticks(each.pid) for each in made),
                lambda: processes.cpu_ticks(front.process.pid),
                update,
            )


@contextmanager
def ray(count: int) -> Iterator[Front]:
    """Ray Serve with HAProxy as its ingress, on one node; to update it is to deploy it with another setting."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        stack.enter_context(own_network())
        with ray_cluster(Path(folder)) as cluster:
            cluster.start("127.0.0.1", 2 * count)
            deploy(cluster, count, 64)
            before = wait_for_replicas(count, cluster.logs)

            def update() -> None:
                deploy(cluster, count, 65)
                wait_for_replicas(count, cluster.logs, before)

            def ticks(name: str) -> int:
                found = (each for each in processes.tree(cluster.pids[0]) if name in processes.read(each, "cmdline"))
                return sum(processes.cpu_ticks(each) for each in found)

            yield Front(URL, lambda: ticks("ray::ServeReplica"), lambda: ticks("/haproxy\0"), update)


def deploy(cluster: Cluster, count: int, mib: int) -> None:
    cluster.deploy(count, count, max_body_bytes=mib << 20)


FRONTS: dict[str, Callable[[int], AbstractContextManager[Front]]] = {"haproxy": haproxy, "ray": ray}


def message(size: int) -> bytes:
    x = np.random.default_rng(1).standard_normal(size // 4).astype(np.float32)
    operator = {"Type": "ACTIVATION_HARD_SIGMOID", "InputTensor": {"DataType": "FLOAT32", "Sizes": [x.size]}}
    packed: bytes = msgpack.packb(
        {"operator": operator | {"Alpha": 0.2, "Beta": 0.5}, "inputs": {"InputTensor": x.tobytes()}}
    )
    return packed


def measure(front: Front, body: Path, connections: int, seconds: int) -> Figures:
    request = load.Request(f"{front.url}/v1/dispatch", "msgpack", body)
    one = load.run(request, 1, seconds)
    before = front.service_ticks(), front.front_ticks()
    many = load.run(request, connections, seconds)
    ticks = front.service_ticks() - before[0], front.front_ticks() - before[1]
    service_us, front_us = (each / TICKS_PER_SECOND * 1e6 / many.requests for each in ticks)
    return Figures(many.rate, service_us, front_us, one.p50_ms)


def by_turns(front: Front, single: Front, body: Path, given: argparse.Namespace) -> list[float]:
    """The cells of a row, behind `front` and alone: medians, and how much longer the quickest round took for one."""
    for each in (front, single):  # kernels are compiled, connections made
        request = load.Request(f"{each.url}/v1/dispatch", "msgpack", body)
        load.send(request)
        load.run(request, given.connections, 1)
    rounds = [
        (
            measure(front, body, given.connections, given.seconds),
            measure(single, body, given.connections, given.seconds),
        )
        for _ in range(given.rounds)
    ]
    cells = [
        [there.rate, there.rate / here.rate, there.service_us, here.service_us, there.front_us]
        for there, here in rounds
    ]
    there_ms, here_ms = (min(each.one_ms for each in side) for side in zip(*rounds, strict=True))
    return [*map(statistics.median, zip(*cells, strict=True)), 1000 * (there_ms - here_ms)]


def failed_in_update(front: Front, bodies: Sequence[Path], connections: int) -> tuple[int, int]:
    """Requests that fail while all replicas are replaced, and requests in all. Connections take the bodies by turns."""
    ended = threading.Event()
    counts = [0, 0]
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    contents = [each.read_bytes() for each in bodies]

    def ask(content: bytes) -> None:
        with httpx.Client(timeout=60) as client:
            while not ended.is_set():
                try:
                    is_right = client.post(f"{front.url}/v1/dispatch", content=content, headers=headers).is_success
                except httpx.TransportError:
                    is_right = False
                counts[0] += not is_right
                counts[1] += 1
                time.sleep(0.005)

    taken = [contents[number % len(contents)] for number in range(connections)]
    threads = [threading.Thread(target=ask, args=(each,)) for each in taken]
    for each in threads:
        each.start()
    front.update()
    time.sleep(1)
    ended.set()
    for each in threads:
        each.join()
    return counts[0], counts[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fronts", nargs="*", choices=FRONTS, default=[*FRONTS])
    parser.add_argument("--replicas", nargs="*", type=int, default=REPLICAS)
    parser.add_argument("--sizes", nargs="*", type=options.parse_size, default=SIZES)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    load.require_wrk()
    head = ["front", "replicas", "tensor", "requests/s", "to 1 alone", "service, us CPU", "alone, us CPU"]
    head += ["front, us CPU", "longer for one, us"]
    print("|", " | ".join(head), "|")
    print("| --- | ---: |", " | ".join(["---:"] * 7), "|")
    updates = []
    with tempfile.TemporaryDirectory() as folder:
        bodies = {size: Path(folder) / str(size) for size in given.sizes}
        for size, body in bodies.items():
            body.write_bytes(message(size))
        for name, count in ((name, count) for name in given.fronts for count in given.replicas):
            with FRONTS[name](count) as front:
                with alone() as single:  # in the same network
                    for size, body in bodies.items():
                        rate, ratio, *rest = by_turns(front, single, body, given)
                        cells = [name, count, options.format_size(size), f"{rate:,.0f}", f"{ratio:.2f}"]
                        print("|", " | ".join(map(str, [*cells, *(f"{each:,.0f}" for each in rest)])), "|", flush=True)
                if count > 1:
                    failed, asked = failed_in_update(front, [*bodies.values()], given.connections)
                    updates.append(f"{name}, {count} replicas: {failed} of {asked:,} requests failed in an update")
    print("", *updates, sep="\n")


if __name__ == "__main__":
    main()
