"""Graphs that are kept, over HTTP: their requests/s beside those of one operator, and what compiling does to others.

    python tests/benchmarks/kept_graphs.py [--rounds 9] [--seconds 2]

One server, MessagePack and 4 KiB tensors. A kept graph of 20 operators and a single operator are sent by turns, each
over eight connections; the share is the median of the rounds', with the least and the most. Then 4 KiB dispatches are
timed alone, beside graphs of 200 operators that are kept and dropped one after the other, none of whose kernels is
known, and beside those of the one before sent again. Linux, with wrk.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import random
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import load
import msgpack
import options
import processes
import servers
from graphs import CHAINS, document

FORK = multiprocessing.get_context("fork")

CONNECTIONS = 8
ELEMENTS = 1024


def sent(url: str, method: str, body: Any = None) -> Any:
    """The answer's document, if it has one."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(UrlRequest(url, data, {"Content-Type": "application/json"}, method=method), timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


class Bodies:
    """Bodies of requests, in files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def request(self, name: str, url: str, body: dict[str, Any]) -> load.Request:
        path = self._folder / name
        path.write_bytes(msgpack.packb(body))
        request = load.Request(url, "msgpack", path)
        for _ in range(5):  # so that it is compiled, and remembered
            load.send(request)
        return request


def shares(server: servers.Server, bodies: Bodies, rounds: int, seconds: int) -> None:
    """Requests/s of a kept graph over those of an operator, by the clock and by the service's processor time: the
    latter are those that one processor would have answered with nothing else to do."""
    assert server.pid is not None
    clock = processes.clock(server.pid)
    data = bytes(4 * ELEMENTS)
    kinds = [(kind, dict(more)) for kind, _, more in CHAINS["cheap"]] * 4
    id_ = sent(f"{server.url}/v1/graphs", "POST", {"graph": document(kinds, ELEMENTS)})["id"]
    desc = {"DataType": "FLOAT32", "Sizes": [ELEMENTS]}
    operator = {"Type": "ACTIVATION_HARD_SIGMOID", "InputTensor": desc, "Alpha": 0.2, "Beta": 0.5}
    one = bodies.request("one", f"{server.url}/v1/dispatch", {"operator": operator, "inputs": {"InputTensor": data}})
    graph = bodies.request("graph", f"{server.url}/v1/graphs/{id_}/dispatch", {"inputs": {"0": data}})

    def rates(request: load.Request) -> tuple[float, float]:
        used = time.clock_gettime(clock)
        answered = load.run(request, CONNECTIONS, seconds)
        return answered.rate, answered.requests / (time.clock_gettime(clock) - used)

    found = []
    for _ in range(rounds):
        alone, kept = rates(one), rates(graph)
        found.append([of_graph / of_one for of_graph, of_one in zip(kept, alone, strict=True)])
        options.progress(
            f"one operator {alone[0]:7.0f} /s, a kept graph of {len(kinds)} {kept[0]:7.0f} /s: {found[-1][0]:.2f}; by "
            f"processor time {alone[1]:7.0f} and {kept[1]:7.0f}: {found[-1][1]:.2f}"
        )
    for what, shares in zip(
        ("requests/s", "requests per second of processor time"), zip(*found, strict=True), strict=True
    ):
        print(
            f"a kept graph has {median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) of one operator's {what}"
        )


class Latencies:
    """What dispatches took, one after the other over one connection: milliseconds until each was answered, and of the
    service's processor time meanwhile, in all its threads. The latter is what the former would at most be on a machine
    that has nothing else to do."""

    def __init__(self, server: servers.Server, request: load.Request) -> None:
        assert server.pid is not None
        self._clock = processes.clock(server.pid)
        url = urlsplit(request.url)
        self._connection = http.client.HTTPConnection(str(url.hostname), url.port)
        kind = load.CONTENT_TYPES[request.encoding]
        self._request = ("POST", url.path, request.body.read_bytes(), {"Content-Type": kind, "Accept": kind})
        self.walls: list[float] = []
        self.used: list[float] = []

    def measure(self, seconds: float) -> None:
        """Go on dispatching for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            used, started = time.clock_gettime(self._clock), time.perf_counter()
            self._connection.request(*self._request)
            self._connection.getresponse().read()
            self.walls.append((time.perf_counter() - started) * 1e3)
            self.used.append((time.clock_gettime(self._clock) - used) * 1e3)
            time.sleep(0.001)

    def __str__(self) -> str:
        parts = [
            f"{what} p50 {values[len(values) // 2]:.2f}, p99 {values[len(values) * 99 // 100]:.2f}, "
            f"at most {values[-1]:.1f} ms"
            for what, values in (("answered after", sorted(self.walls)), ("the service used", sorted(self.used)))
        ]
        return f"{'; '.join(parts)} ({len(self.walls)})"


class Compiling:
    """Graphs of 200 operators that are kept and dropped, one right after the other, in a block: each a new one, or the
    same one again.

    A process of its own sends them. A thread of this one would keep the interpreter, which takes the times, for 5 ms at
    a time while it writes and reads JSON.
    """

    def __init__(self, server: servers.Server, again: bool) -> None:
        self._url = f"{server.url}/v1/graphs"
        self._again = again
        self.took: list[float] = []

    def __enter__(self) -> None:
        self._ours, theirs = FORK.Pipe()
        self._process = FORK.Process(target=_compile, args=(self._url, self._again, len(self.took), theirs))
        self._process.start()
        theirs.close()
        assert self._ours.recv() == "started"

    def __exit__(self, *_: object) -> None:
        self._ours.send("over")
        self.took += self._ours.recv()
        self._process.join()


def _compile(url: str, again: bool, seed: int, ours: "Connection[Any, Any]") -> None:
    """Keep and drop graphs until something comes; sends how long each took, in milliseconds."""
    rng, took = random.Random(seed), []
    kinds = [(kind, dict(more)) for kind, _, more in CHAINS["with tanh"]]
    described: dict[str, Any] = {}
    while not ours.poll():
        if not (again and described):
            described = document([rng.choice(kinds) for _ in range(200)], ELEMENTS)
        started = time.perf_counter()
        id_ = sent(url, "POST", {"graph": described})["id"]
        took.append((time.perf_counter() - started) * 1e3)
        sent(f"{url}/{id_}", "DELETE")
        if len(took) == 1:
            ours.send("started")
    ours.send(took)


def beside(server: servers.Server, bodies: Bodies, rounds: int, seconds: int) -> None:
    """Latencies of dispatches beside graphs that are compiled, and alone, by turns."""
    desc = {"DataType": "FLOAT32", "Sizes": [ELEMENTS]}
    body = {"operator": {"Type": "ACTIVATION_RELU", "InputTensor": desc}, "inputs": {"InputTensor": bytes(4096)}}
    small = bodies.request("small", f"{server.url}/v1/dispatch", body)
    cases: dict[str, Compiling | contextlib.nullcontext[None]] = {
        "alone": contextlib.nullcontext(),
        "beside new graphs": Compiling(server, again=False),
        "beside a known graph": Compiling(server, again=True),
    }
    found = {name: Latencies(server, small) for name in cases}
    for turn in range(rounds):
        for name, case in cases.items():
            with case:
                found[name].measure(seconds)
        options.progress(f"round {turn + 1} of {rounds}")
    for name, case in cases.items():
        compiled = f"; {len(case.took)} graphs, {median(case.took):.0f} ms each" if isinstance(case, Compiling) else ""
        print(f"4 KiB dispatches {name}: {found[name]}{compiled}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--serve-args", default="", help="further arguments of `dmlserve serve`")
    parser.add_argument("--only", choices=["shares", "beside"])
    arguments = parser.parse_args()
    options.end_on_signals()
    load.require_wrk()
    with tempfile.TemporaryDirectory(prefix="kept-graphs-") as folder:
        bodies = Bodies(Path(folder))
        with servers.service(["--no-access-log", *arguments.serve_args.split()]) as server:
            if arguments.only != "beside":
                shares(server, bodies, arguments.rounds, arguments.seconds)
            if arguments.only != "shares":
                beside(server, bodies, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
