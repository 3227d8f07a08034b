"""Graphs that are kept, over HTTP: their requests/s beside those of one operator, and what compiling does to others.

    python tests/benchmarks/kept_graphs.py [--rounds 9] [--seconds 2]

One server, MessagePack and 4 KiB tensors. A kept graph of 20 operators and a single operator are sent by turns, each
over eight connections; the share is the median of the rounds', with the least and the most. Then 4 KiB dispatches are
timed alone, beside graphs of 200 operators that are kept and dropped one after the other, none of whose kernels is
known, and beside those of the one before sent again. Linux, with wrk.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import load
import msgpack
import options
import servers
from graphs import CHAINS, document

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
    """Requests/s of a kept graph over those of an operator."""
    data = bytes(4 * ELEMENTS)
    kinds = [(kind, dict(more)) for kind, _, more in CHAINS["cheap"]] * 4
    id_ = sent(f"{server.url}/v1/graphs", "POST", {"graph": document(kinds, ELEMENTS)})["id"]
    desc = {"DataType": "FLOAT32", "Sizes": [ELEMENTS]}
    operator = {"Type": "ACTIVATION_HARD_SIGMOID", "InputTensor": desc, "Alpha": 0.2, "Beta": 0.5}
    one = bodies.request("one", f"{server.url}/v1/dispatch", {"operator": operator, "inputs": {"InputTensor": data}})
    graph = bodies.request("graph", f"{server.url}/v1/graphs/{id_}/dispatch", {"inputs": {"0": data}})
    found = []
    for _ in range(rounds):
        alone, kept = (load.run(each, CONNECTIONS, seconds).rate for each in (one, graph))
        found.append(kept / alone)
        options.progress(f"one operator {alone:7.0f} /s, a kept graph of {len(kinds)} {kept:7.0f} /s: {found[-1]:.2f}")
    print(f"a kept graph has {median(found):.2f} ({min(found):.2f} to {max(found):.2f}) of one operator's requests/s")


def beside(server: servers.Server, bodies: Bodies, seconds: int) -> None:
    """Latencies of dispatches beside graphs that are compiled."""
    rng = random.Random(0)
    kinds = [(kind, dict(more)) for kind, _, more in CHAINS["with tanh"]]
    desc = {"DataType": "FLOAT32", "Sizes": [ELEMENTS]}
    body = {"operator": {"Type": "ACTIVATION_RELU", "InputTensor": desc}, "inputs": {"InputTensor": bytes(4096)}}
    small = bodies.request("small", f"{server.url}/v1/dispatch", body)
    over = threading.Event()
    took: list[float] = []

    def compile_graphs(again: bool) -> None:
        described = document([rng.choice(kinds) for _ in range(200)], ELEMENTS)
        while not over.is_set():
            if not again:
                described = document([rng.choice(kinds) for _ in range(200)], ELEMENTS)
            started = time.perf_counter()
            id_ = sent(f"{server.url}/v1/graphs", "POST", {"graph": described})["id"]
            took.append((time.perf_counter() - started) * 1e3)
            sent(f"{server.url}/v1/graphs/{id_}", "DELETE")

    for name, again in (("alone", None), ("beside new graphs", False), ("beside a known graph", True)):
        over.clear()
        took.clear()
        thread = threading.Thread(target=compile_graphs, args=(again,)) if again is not None else None
        if thread:
            thread.start()
        try:
            measured = load.run(small, 4, seconds)
        finally:
            over.set()
            if thread:
                thread.join()
        line = f"4 KiB dispatches {name}: {measured.rate:.0f} /s, p50 {measured.p50_ms:.2f} ms, "
        line += f"p99 {measured.p99_ms:.2f} ms, at most {measured.max_ms:.1f} ms"
        print(line + (f"; {len(took)} graphs, {median(took):.0f} ms each" if took else ""))


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
                beside(server, bodies, 5 * arguments.seconds)


if __name__ == "__main__":
    main()
