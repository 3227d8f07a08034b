"""The first request of a warmed model beside later ones, in fresh starts of the service:
`python tests/benchmarks/first_request.py FILE=1x3x48x192 FILE=input:1x576,state:2x1x128`.

Sizes are as `--warm` has them. A client that has asked 50 times before whether the service is ready, over the same
connection, sends tritonclient's request with binary data 60 times, and to another start its numbers in JSON. Then it
asks 50 times and sends one, again and again: what comes after other requests finds the processor's caches cold, be it
the first one or not. `wall` is what the client waits, `CPU` what the service's threads computed meanwhile. `at once` is
the first one over the median of those that follow each other, from the sixth on, `in turn` over that of those which
come after other requests, as the first one does. Exits with 1 if one of the latter is above 1.2, in the median of the
starts: other work on the machine hits a wall time by chance.
"""

import argparse
import http.client
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import report
import servers
import tritonclient.http as triton

REQUESTS, FIRST_LATER = 60, 5
ASKED_BEFORE = 50
IN_TURN = 15
PROMISED = 1.2
SETTLED_SECONDS = 0.0005
"""After an answer, until the service's threads sleep and the system knows what they computed."""

TYPES = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64}


def cpu_seconds(pid: int) -> float:
    """That the threads of a process have computed so far."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def body_of(metadata: object, stated: str, *, is_binary: bool) -> tuple[bytes, int | None]:
    """tritonclient's request, and how much of it is JSON."""
    body, json_bytes = triton.InferenceServerClient.generate_request_body(
        tensors_of(metadata, stated, is_binary=is_binary)
    )
    return body, json_bytes


def tensors_of(metadata: object, stated: str, *, is_binary: bool) -> list[triton.InferInput]:
    """What it is made of."""
    assert isinstance(metadata, dict)
    sizes = {}
    for each in stated.split(","):
        name, _, text = each.rpartition(":")
        sizes[name] = [int(size) for size in text.split("x")]
    tensors = []
    random = np.random.default_rng(0)
    for port in metadata["inputs"]:
        own = sizes.get(port["name"]) or (sizes.get("") if -1 in port["shape"] else None) or port["shape"]
        data = (random.standard_normal(own) * 0.3 if port["datatype"] == "FP32" else np.ones(own)).astype(
            TYPES[port["datatype"]]
        )
        tensors.append(triton.InferInput(port["name"], own, port["datatype"]).set_data_from_numpy(data, is_binary))
    return tensors


class Start(NamedTuple):
    """Of one start: a later request's seconds, and the first one over later ones, by the clock and by computing."""

    later: float
    wall: float
    at_once: float
    in_turn: float


def once(file: Path, stated: str, *, is_binary: bool) -> Start:
    """What comes of a fresh start."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(file, Path(folder) / "model.onnx")
        with servers.service(
            ["--gpus", "none", "--models", folder, "--warm", f"model={stated}", "--no-access-log"]
        ) as server:
            connection = http.client.HTTPConnection(urlsplit(server.url).netloc)

            def ask(method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
                connection.request(method, path, body, headers or {})
                answer = connection.getresponse()
                said = answer.read()
                assert answer.status == 200, said[:500]
                return said

            metadata = json.loads(ask("GET", "/v2/models/model"))
            body, json_bytes = body_of(metadata, stated, is_binary=is_binary)
            headers = {} if json_bytes is None else {"Inference-Header-Content-Length": str(json_bytes)}

            def others() -> None:
                for _ in range(ASKED_BEFORE):
                    ask("GET", "/v2/models/model/ready")
                time.sleep(SETTLED_SECONDS)

            def infer() -> tuple[float, float]:
                assert server.pid
                before, started = cpu_seconds(server.pid), time.perf_counter()
                ask("POST", "/v2/models/model/infer", body, headers)
                wall = time.perf_counter() - started
                time.sleep(SETTLED_SECONDS)
                return wall, cpu_seconds(server.pid) - before

            others()
            walls, computed = zip(*(infer() for _ in range(REQUESTS)), strict=True)
            in_turn = []
            for _ in range(IN_TURN):
                others()
                in_turn.append(infer()[1])
            later = statistics.median(walls[FIRST_LATER:])
            at_once = computed[0] / statistics.median(computed[FIRST_LATER:])
            return Start(later, walls[0] / later, at_once, computed[0] / statistics.median(in_turn))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="FILE=1x3x64x96 or FILE=input:1x128,other:1x128")
    parser.add_argument("--starts", type=int, default=10)
    options = parser.parse_args()
    is_late = False
    load = os.getloadavg()[0]
    rows = []
    for each in options.models:
        path, _, stated = each.rpartition("=")
        for is_binary in (True, False):
            starts = [once(Path(path), stated, is_binary=is_binary) for _ in range(options.starts)]
            later, wall, at_once, in_turn = map(statistics.median, zip(*starts, strict=True))
            is_late |= in_turn > PROMISED
            rows.append(
                [
                    Path(path).name,
                    "binary" if is_binary else "numbers",
                    report.number(later * 1e3),
                    report.number(wall),
                    report.number(at_once),
                    report.number(in_turn),
                ]
            )
    head = ["model", "inputs", "later, ms", "wall", "CPU, at once", "CPU, in turn"]
    print(f"{report.facts(load)}\n{report.table(head, rows, texts=2)}")
    return int(is_late)


if __name__ == "__main__":
    sys.exit(main())
