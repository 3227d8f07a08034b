"""Dispatches over HTTP that differ in their `device` alone, in turns, so that both meet the same minutes.

    python tests/benchmarks/gpu_http.py [--size 64M] [--rounds 20]

Times are a client's, from the first byte sent to the last received, over one kept connection on 127.0.0.1; every
first answer is checked.
"""

import argparse
import http.client
import json
import sys
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

import cases
import options
import servers

DEVICES = ("cuda:0", "numpy")
OPERATORS = ("HARD_SIGMOID", "CELU", "CONSTANT_POW")
TYPE = {"content-type": "application/msgpack", "accept": "application/msgpack"}


def post(connection: http.client.HTTPConnection, body: bytes, answer: bytearray) -> tuple[float, memoryview]:
    """Seconds, and the answer's part of the buffer."""
    started = perf_counter()
    connection.request("POST", "/v1/dispatch", body, TYPE)
    response = connection.getresponse()
    view, size = memoryview(answer), 0
    while count := response.readinto(view[size:]):
        size += count
    seconds = perf_counter() - started
    if response.status != 200:
        raise SystemExit(f"{response.status}: {bytes(view[:500])!r}")
    return seconds, view[:size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=options.parse_size, default=64 << 20, help="bytes of the tensor")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    answer = bytearray(arguments.size + (1 << 16))
    with servers.service() as service:
        connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=60)
        connection.request("GET", "/v1/capabilities")
        devices = json.loads(connection.getresponse().read())["devices"]
        print("; ".join(f"{each['name']}: {each['description']}" for each in devices), file=sys.stderr)
        print("| operator | cuda:0, ms | numpy, ms | numpy / cuda:0, median of rounds | least | most |")
        print("|---|--:|--:|--:|--:|--:|")
        for name in OPERATORS:
            case = cases.make(name, "FLOAT32", arguments.size)
            request = cases.msgpack.unpackb(case.body("msgpack"))
            bodies = {device: cases.msgpack.packb(request | {"device": device}) for device in DEVICES}
            times: dict[str, list[float]] = {device: [] for device in DEVICES}
            for device, body in bodies.items():
                _, data = post(connection, body, answer)
                case.check("msgpack", bytes(data))
                ran = cases.msgpack.unpackb(data)["execution"]
                assert ran["device"] == device, ran
            for _ in range(arguments.rounds):
                for device, body in bodies.items():
                    times[device].append(post(connection, body, answer)[0])
            ratios = [numpy / cuda for cuda, numpy in zip(*times.values(), strict=True)]
            milliseconds = [f"{1e3 * median(times[device]):.1f}" for device in DEVICES]
            numbers = [median(ratios), min(ratios), max(ratios)]
            print(f"| {name} | {' | '.join(milliseconds)} | {' | '.join(f'{each:.2f}' for each in numbers)} |")


if __name__ == "__main__":
    main()
