"""What one service reaches on a host of many processors: requests/s by size and connections, and what large requests do
to small ones beside them.

    python tests/benchmarks/several_cores.py --serve "" --serve "--transfer-threads 0" --serve "--workers 4"

Each connection has a process of its own, so that clients are not what is measured. Rows are the floor (floor.py: a
thread for each connection) and the service with each of the given arguments, in turns. The first answer of
each size is checked.
"""

import argparse
import json
import multiprocessing
import shlex
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import cases
import options
import report
import servers

CELLS = [(4 << 10, 1), (4 << 10, 8), (256 << 10, 8), (4 << 20, 1), (4 << 20, 8), (64 << 20, 1), (64 << 20, 8)]
SMALL, SMALL_CONNECTIONS = 4 << 10, 4
BESIDE = [(4 << 20, 8), (64 << 20, 8)]


@dataclass(frozen=True)
class Row:
    """A server, and what is sent to it."""

    name: str
    server: servers.Server
    path: str
    device: str | None = None

    def message(self, case: cases.Case) -> bytes:
        if self.device is None:
            body, kind = case.body("raw"), "application/octet-stream"
        else:
            body, kind = replace(case, device=self.device).body("msgpack"), "application/msgpack"
        fields = f"Host: a\r\nContent-Type: {kind}\r\nAccept: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return f"POST {self.path} HTTP/1.1\r\n{fields}".encode() + body


def ask(opened: socket.socket, sent: bytes, answer: bytearray) -> memoryview:
    """The answer's body, which lies in `answer`."""
    opened.sendall(sent)
    view, size, begin, whole = memoryview(answer), 0, 0, sys.maxsize
    while size < whole:
        count = opened.recv_into(view[size:])
        if not count:
            raise SystemExit("the server hung up")
        size += count
        if not begin and (begin := answer.find(b"\r\n\r\n", 0, size) + 4) >= 4:
            head = bytes(view[:begin]).lower()
            if b" 200 " not in head[:20]:
                raise SystemExit(f"{bytes(view[:size])!r:.500}")
            whole = begin + int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    return view[begin:whole]


@cache
def message(row: Row, size: int) -> bytes:
    """What each client of `row` sends. Made, and the first answer checked, before clients are forked."""
    case = cases.make("HARD_SIGMOID", "FLOAT32", size)
    made = row.message(case)
    if row.device is not None:
        with connected(row) as first:
            case.check("msgpack", bytes(ask(first, made, bytearray(size + (1 << 16)))))
    return made


def connected(row: Row) -> socket.socket:
    url = urlsplit(row.server.url)
    opened = socket.create_connection((url.hostname, url.port), timeout=60)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def client(row: Row, size: int, until: float, begin: float) -> list[float]:
    """Seconds of each request that began after `begin` and was answered before `until`, on the clock of all processes,
    asking from now on."""
    sent, answer = message(row, size), bytearray(size + (1 << 16))
    took: list[float] = []
    with connected(row) as opened:
        while (started := time.monotonic()) < until:
            ask(opened, sent, answer)
            ended = time.monotonic()
            if started >= begin and ended <= until:
                took.append(ended - started)
    return took


def load(row: Row, seconds: float, *kinds: tuple[int, int]) -> list[list[float]]:
    """Seconds of all requests of each kind, of a size over so many connections, all at a time."""
    for size, _ in kinds:
        message(row, size)
    begin = time.monotonic() + 0.5 + max(size * count for size, count in kinds) / (1 << 29)
    with ProcessPoolExecutor(sum(count for _, count in kinds), multiprocessing.get_context("fork")) as clients:
        asked = [
            [clients.submit(client, row, size, begin + seconds, begin) for _ in range(count)] for size, count in kinds
        ]
        return [[took for each in group for took in each.result()] for group in asked]


def p99(times: list[float]) -> float:
    """In milliseconds."""
    return 1e3 * sorted(times)[int(0.99 * len(times))] if times else float("nan")


def measure(row: Row, seconds: float) -> Iterator[float]:
    for size, connections in CELLS:
        (took,) = load(row, seconds, (size, connections))
        yield connections * len(took) / sum(took) if took else float("nan")  # the rate of the closed loop
    for large in BESIDE:
        small, _ = load(row, seconds, (SMALL, SMALL_CONNECTIONS), large)
        yield p99(small)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="append", help="arguments for `dmlserve serve`; may be repeated")
    parser.add_argument("--old", type=Path, help="another checkout, to be measured with the first arguments")
    parser.add_argument("--device", default="numpy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    variants = arguments.serve or [""]
    with ExitStack() as stack:
        rows = [Row("floor", stack.enter_context(servers.floor()), "/")]
        given = [(flags, None) for flags in variants]
        given += [(variants[0], arguments.old)] if arguments.old else []
        for flags, root in given:
            server = stack.enter_context(servers.service(shlex.split(flags), root))
            rows.append(Row(f"{'old ' if root else ''}{flags or 'as it is'}", server, "/v1/dispatch", arguments.device))
        found: dict[str, list[list[float]]] = {row.name: [] for row in rows}
        for number in range(arguments.rounds):
            for row in rows:
                found[row.name].append(list(measure(row, arguments.seconds)))
                options.progress(
                    f"round {number + 1}: {row.name}: {json.dumps([round(each, 1) for each in found[row.name][-1]])}"
                )
    head = [f"{options.format_size(size)} c{count}" for size, count in CELLS]
    head += [f"p99 of 4K beside {options.format_size(size)} c{count}, ms" for size, count in BESIDE]
    lines = [
        [name, *(report.number(statistics.median(cell)) for cell in zip(*rounds, strict=True))]
        for name, rounds in found.items()
    ]
    print(f"Requests/s, medians of {arguments.rounds} rounds\n\n{report.table(['', *head], lines, texts=1)}")


if __name__ == "__main__":
    main()
