"""Products of matrices over HTTP, GEMM float32 in MessagePack, requests/s: one size again and again, and 400 in turn.
The service on each of the devices, and a second checkout (--old) on the same, by turns.

    python tests/benchmarks/gpu_products.py [--devices numpy,cuda:0] [--old ROOT] [--rounds 2]

Each size is checked once on each device before it is timed.
"""

import argparse
import http.client
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import load
import numpy as np
import options
import report
import servers
from cases import msgpack

SQUARES = (16, 64, 256)
SIZES, LEAST, MOST = 400, 8, 200
CONNECTIONS = (1, 8)
HEAD = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}


class Product:
    """One request."""

    def __init__(self, rows: int, terms: int, columns: int, device: str) -> None:
        rng = np.random.default_rng(rows * terms * columns)
        self.a, self.b = (rng.standard_normal(sizes, np.float32) for sizes in ((rows, terms), (terms, columns)))
        tensors = {"ATensor": self.a, "BTensor": self.b}
        operator = {name: {"DataType": "FLOAT32", "Sizes": [1, 1, *each.shape]} for name, each in tensors.items()}
        attributes = {"Type": "GEMM", "TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0}
        inputs = {name: each.tobytes() for name, each in tensors.items()}
        self.device = device
        self.body: bytes = msgpack.packb({"operator": attributes | operator, "inputs": inputs, "device": device})

    def whole(self) -> bytes:
        """With its head."""
        fields = {"Host": "127.0.0.1", "Content-Length": str(len(self.body))} | HEAD
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST /v1/dispatch HTTP/1.1\r\n{head}\r\n".encode() + self.body

    def check(self, connection: http.client.HTTPConnection) -> None:
        """Raises SystemExit unless it is answered by its device with the product."""
        connection.request("POST", "/v1/dispatch", self.body, HEAD)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer[:500]!r}")
        document = msgpack.unpackb(answer)
        made = np.frombuffer(document["outputs"]["OutputTensor"]["data"], np.float32)
        ran = document["execution"]["device"]
        if ran != self.device or not np.allclose(made, (self.a @ self.b).ravel(), 1e-3, 1e-3):
            raise SystemExit(f"{self.a.shape} x {self.b.shape} is not right on {self.device}, answered by {ran}")


def rows(device: str) -> Iterator[tuple[str, list[Product]]]:
    for size in SQUARES:
        yield f"{size} x {size} x {size}", [Product(size, size, size, device)]
    drawn = partial(random.Random(1).randrange, LEAST, MOST)
    yield f"{SIZES} sizes from {LEAST} to {MOST}", [Product(drawn(), drawn(), drawn(), device) for _ in range(SIZES)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=options.listed(str), default=["numpy", "cuda:0"])
    parser.add_argument("--old", type=Path, metavar="ROOT", help="another checkout")
    parser.add_argument("--rounds", type=options.bounded(20), default=2, help="medians are taken over rounds")
    parser.add_argument("--seconds", type=options.bounded(load.MAX_SECONDS), default=2, help="for each measurement")
    arguments = parser.parse_args()
    options.end_on_signals()
    load.require_wrk()
    lines = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu_products-")))
        roots = [None, *([arguments.old] if arguments.old else [])]
        services = [stack.enter_context(servers.service((), root)) for root in roots]
        asked = [(service, device) for service in services for device in arguments.devices]
        of_device = {device: dict(rows(device)) for device in arguments.devices}
        for name in next(iter(of_device.values())):
            for service, device in asked:
                connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=60)
                for product in of_device[device][name]:
                    product.check(connection)
                connection.close()
            for device, each in of_device.items():
                load.prepare((product.whole() for product in each[name]), folder / device)
            for connections in CONNECTIONS:
                loads = [
                    [
                        load.run_each(folder / device, 0, f"{service.url}/v1/dispatch", connections, arguments.seconds)
                        for service, device in asked
                    ]
                    for _ in range(arguments.rounds)
                ]
                columns = list(zip(*loads, strict=True))
                figures = [median(each.rate for each in column) for column in columns]
                figures += [median(each.p99_ms for each in column) for column in columns]
                lines.append([f"{name}, c{connections}", *map(report.number, figures)])
                options.progress(" | ".join(lines[-1]))
    heads = [f"{device}{'' if service is services[0] else ', old'}" for service, device in asked]
    print(report.table(["", *heads, *(f"p99 of {each}, ms" for each in heads)], lines, texts=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
