"""Models over requests each of which has other sizes than any before it, as texts of any length have:
`python tests/benchmarks/model_sizes.py FILE=input_ids:1xN,attention_mask:1xN,token_type_ids:1xN --values 16-47`.

Sizes are as `--warm` has them, with N for what is one of the values. A client posts tritonclient's binary request for
each value once, and then for all of them again, to the service and to another checkout's (`--old`) by turns. `new` and
`known` are milliseconds that the client waits, the median of the first and of the later ones; `held` is what the
service then says that it holds of `max_memory_bytes`, `PSS` what its processes have. onnxruntime, for which no size is
new, computes beside it with as many threads, in process.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import first_request
import numpy as np
import processes
import report
import servers
import tritonclient.http as triton

AGAIN = 3
HEAD = ["model", "service", "new, ms", "known, ms", "onnxruntime, ms", "held, MiB", "PSS, MiB"]


@contextlib.contextmanager
def serving(file: Path, root: Path | None) -> Iterator[tuple[servers.Server, http.client.HTTPConnection]]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(file, Path(folder) / "model.onnx")
        given = ["--gpus", "none", "--models", folder, "--no-access-log", "--workers", "1"]
        with servers.service(given, root) as server:
            yield server, http.client.HTTPConnection(urlsplit(server.url).netloc)


def ask(connection: http.client.HTTPConnection, path: str, body: bytes = b"", json_bytes: int | None = None) -> bytes:
    headers = {} if json_bytes is None else {"Inference-Header-Content-Length": str(json_bytes)}
    connection.request("POST" if body else "GET", path, body or None, headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {said[:500]!r}")
    return said


def times(
    connection: http.client.HTTPConnection, requests: list[tuple[bytes, int | None]]
) -> tuple[list[float], list[float]]:
    """Milliseconds of each request, for the first time and later."""

    def once(request: tuple[bytes, int | None]) -> float:
        started = time.perf_counter()
        ask(connection, "/v2/models/model/infer", *request)
        return 1e3 * (time.perf_counter() - started)

    return [once(each) for each in requests], [once(each) for _ in range(AGAIN) for each in requests]


def beside(file: Path, inputs: list[list[triton.InferInput]]) -> float:
    """Milliseconds that onnxruntime takes for one, the median."""
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = os.cpu_count() or 1
    session = onnxruntime.InferenceSession(file, chosen, providers=["CPUExecutionProvider"])
    took = []
    for tensors in inputs:
        given = {}
        for each in tensors:
            data = np.frombuffer(each._get_binary_data(), first_request.TYPES[each.datatype()])
            given[each.name()] = data.reshape(each.shape())
        started = time.perf_counter()
        session.run(None, given)
        took.append(1e3 * (time.perf_counter() - started))
    return statistics.median(took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="FILE=1xN or FILE=input:1xN,other:1xN")
    parser.add_argument("--values", default="16-47", help="of N, the first and the last")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--old", type=Path, help="another checkout, measured by turns")
    options = parser.parse_args()
    first, last = map(int, options.values.split("-"))
    load = os.getloadavg()[0]
    rows = []
    for each in options.models:
        path, _, stated = each.rpartition("=")
        file = Path(path)
        known: dict[str, list[list[float]]] = {}
        for _ in range(options.rounds):
            for name, root in (("old", options.old), ("new", None)):
                if name == "old" and root is None:
                    continue
                with serving(file, root) as (server, connection):
                    metadata = json.loads(ask(connection, "/v2/models/model"))
                    inputs = [
                        first_request.tensors_of(metadata, stated.replace("N", str(value)), is_binary=True)
                        for value in range(first, last + 1)
                    ]
                    bodies = [triton.InferenceServerClient.generate_request_body(tensors) for tensors in inputs]
                    new, again = map(statistics.median, times(connection, bodies))
                    said = ask(connection, "/metrics").decode()
                    held = re.search(r"^dmlserve_memory_bytes (\S+)$", said, re.MULTILINE)
                    assert held
                    assert server.pid
                    made = [new, again, float(held[1]) / (1 << 20), processes.pss_mib(server.pid)]
                    known.setdefault(name, []).append(made)
        theirs = beside(file, inputs)
        for name, measured in known.items():
            new, again, held_bytes, resident = (min(column) for column in zip(*measured, strict=True))
            numbers = [new, again, theirs, held_bytes, resident]
            rows.append([file.name, name, *map(report.number, numbers)])
    print(f"{report.facts(load)}\n{report.table(HEAD, rows, texts=2)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
