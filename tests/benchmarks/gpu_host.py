"""What a host with a GPU reaches over HTTP: requests/s of HARD_SIGMOID float32 in MessagePack, by size and connections.

    python tests/benchmarks/gpu_host.py [--devices numpy,cuda:0] [--serve-args "--workers 1"] [--rounds 3]

By turns, in one run: the yardstick (a bare uvicorn echo), the naive peer (naive.py: FastAPI and CuPy, no checks), the
floor (floor.py: plain sockets, a thread for each connection, on the CPU), and the service with each of the devices.
wrk asks, with a thread for each connection from 4 MiB on, so that it is not what is measured. Every first answer is
checked.
"""

import argparse
import os
import shlex
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import cases
import load
import options
import report
import servers
from targets import Target, Targets

SIZES = [4 << 10, 256 << 10, 4 << 20, 64 << 20]
CONNECTIONS = [1, 8]
LARGE = 4 << 20


def threads(size: int, connections: int) -> int:
    return connections if size >= LARGE else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--devices", type=options.listed(str), default=["numpy", "cuda:0"], help="default: numpy,cuda:0"
    )
    parser.add_argument("--sizes", type=options.listed(options.parse_size), default=SIZES)
    parser.add_argument("--serve-args", default="", metavar="ARGS", help='for `dmlserve serve`, e.g. "--workers 2"')
    parser.add_argument(
        "--rounds", type=options.bounded(20), default=3, help="default 3; medians are taken over rounds"
    )
    parser.add_argument("--seconds", type=options.bounded(load.MAX_SECONDS), default=2, help="for each measurement")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the report there as well")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    options.end_on_signals()
    load.require_wrk()
    facts = report.facts(os.getloadavg()[0])
    lines = []
    with ExitStack() as stack:
        targets = Targets(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu_host-"))))
        yardstick, naive, floor = (
            stack.enter_context(each) for each in (servers.yardstick(), servers.naive(), servers.floor())
        )
        service = stack.enter_context(servers.service(shlex.split(arguments.serve_args)))
        for size in arguments.sizes:
            case = cases.make("HARD_SIGMOID", "FLOAT32", size)
            asked: list[Target] = [
                targets.target(yardstick, case, "raw"),
                targets.target(naive, case, "msgpack"),
                targets.target(floor, case, "raw"),
                *(targets.target(service, replace(case, device=each), "msgpack") for each in arguments.devices),
            ]
            for connections in CONNECTIONS:
                seconds, many = arguments.seconds, threads(size, connections)
                loads = [[each.measure(connections, seconds, many) for each in asked] for _ in range(arguments.rounds)]
                rates = [median(each.rate for each in column) for column in zip(*loads, strict=True)]
                slowest = [median(each.p99_ms for each in column) for column in zip(*loads, strict=True)][3:]
                lines.append([f"{options.format_size(size)} c{connections}", *map(report.number, (*rates, *slowest))])
                options.progress(" | ".join(lines[-1]))
            targets.forget()
    head = [
        "",
        "yardstick",
        "naive",
        "floor",
        *arguments.devices,
        *(f"p99 of {each}, ms" for each in arguments.devices),
    ]
    text = f"# A host with a GPU, requests/s\n\n{facts}\n{report.table(head, lines, texts=1)}"
    report.publish(text, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
