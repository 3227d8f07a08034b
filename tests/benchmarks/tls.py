"""Measure what TLS costs: the same dispatches over HTTP and over HTTPS, each round one right after the other.

    PYTHONPATH=. python tests/benchmarks/tls.py          # 2 minutes

CPU time is of the service; the client, which encrypts as well, is wrk.
"""

import argparse
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import load
import options
import processes
import report
import servers
from cluster import SIZES, TICKS_PER_SECOND, message

SETTINGS = ["--threads", "1", "--no-access-log", "--gpus", "none"]


class Figures(NamedTuple):
    """Of one size over one scheme: requests/s, and microseconds of the service's CPU time for each."""

    rate: float
    cpu_us: float


def certificate(folder: Path) -> list[str]:
    """The flags for a new one."""
    files = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=localhost", "-days", "2", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return ["--tls-certificate", str(files[0]), "--tls-key", str(files[1])]


def measure(server: servers.Server, body: Path, connections: int, seconds: int) -> Figures:
    before = processes.cpu_ticks(server.pid or 0)
    found = load.run(load.Request(f"{server.url}/v1/dispatch", "msgpack", body), connections, seconds)
    ticks = processes.cpu_ticks(server.pid or 0) - before
    return Figures(found.rate, ticks / TICKS_PER_SECOND * 1e6 / found.requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=options.parse_size, default=SIZES)
    parser.add_argument("--connections", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=2)
    given = parser.parse_args()
    load.require_wrk()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = []
        for scheme, flags in (("http", []), ("https", certificate(folder))):
            port = servers.free_port()
            command = [str(shutil.which("dmlserve")), "serve", "--port", str(port), *SETTINGS, *flags]
            running = servers.running(scheme, command, port, "/health/ready", scheme=scheme)
            made.append(stack.enter_context(running))
        for size in given.sizes:
            body = folder / str(size)
            body.write_bytes(message(size))
            for connections in given.connections:
                for each in made:  # kernels are compiled
                    measure(each, body, connections, 1)
                rounds = [
                    [measure(each, body, connections, given.seconds) for each in made] for _ in range(given.rounds)
                ]
                rates = [max(each[place].rate for each in rounds) for place in range(2)]
                times = [min(each[place].cpu_us for each in rounds) for place in range(2)]
                cells = [*rates, *times, times[1] / times[0]]
                rows.append([options.format_size(size), str(connections), *map(report.number, cells)])
    head = ["tensor", "connections", "HTTP, requests/s", "HTTPS, requests/s", "HTTP, us CPU", "HTTPS, us CPU", "ratio"]
    print(report.table(head, rows, texts=1))


if __name__ == "__main__":
    main()
