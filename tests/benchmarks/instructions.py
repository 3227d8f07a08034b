"""Count the instructions that a request takes, by valgrind: where no minute is like another, they stay what they are.

    apt-get update && apt-get install -y valgrind
    python tests/benchmarks/instructions.py [--rows same,all] [--encodings msgpack,infer] [--old ../before]

The requests of variety.py are handed to eight connections in turn, in a process that runs under callgrind, as an event
loop hands over what has come: all that the service does with them, its metrics and its access log among it, but for
sockets and the collection of garbage. Loops are compiled for what valgrind knows, which is AVX2. Two runs differ by
less than a thousandth. Instructions are no time: a request whose code and data no cache holds takes longer for as many.
"""

import argparse
import asyncio
import gc
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import options
import report
from variety import ROWS

CONNECTIONS = 8
WARMING, COUNTED = 1600, 800
SECONDS = 0.15
"""How long lines of the access log are left together: as many requests as otherwise, at valgrind's pace."""

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).relative_to(ROOT)
"""Each checkout has its own: what it calls differs, too."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=options.listed(options.one_of(*ROWS)), default=["same", "header", "all"])
    encodings = options.listed(options.one_of("msgpack", "json", "infer"))
    parser.add_argument("--encodings", type=encodings, default=["msgpack", "json", "infer"])
    parser.add_argument("--old", type=Path, metavar="ROOT", help="count those of this checkout, too")
    parser.add_argument("--handle", nargs=2, metavar=("ROW", "ENCODING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.handle:
        asyncio.run(handle(*arguments.handle))
        return 0
    if not shutil.which("valgrind"):
        raise SystemExit("valgrind is missing: apt-get install -y valgrind")
    roots = [ROOT, *([arguments.old.resolve()] if arguments.old else [])]
    head = ["encoding", "row", "instructions", *(["old", "of old"] if arguments.old else [])]
    lines = []
    for encoding in arguments.encodings:
        for row in arguments.rows:
            new, *old = [instructions(root, row, encoding) for root in roots]
            lines.append([encoding, row, f"{new:,}", *(f"{each:,}" for each in old)])
            lines[-1] += [report.number(new / each) for each in old]
            options.progress(" ".join(lines[-1]))
    print(report.table(head, lines, 2))
    return 0


def instructions(root: Path, row: str, encoding: str) -> int:
    """Of a request, in the checkout at `root`."""
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        out = Path(folder, "counted")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        command += [sys.executable, str(root / SCRIPT), "--handle", row, encoding]
        environment = os.environ | {"PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        (total,) = re.findall(r"^totals: (\d+)", out.with_name("counted.1").read_text(), re.MULTILINE)
    return round(int(total) / COUNTED)


def callgrind(*what: str) -> None:
    command = ["callgrind_control", *what, str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Transport(asyncio.Transport):
    """Of a connection on this machine, that drops what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2), "socket": socket.socket()})
        self.answered = asyncio.Event()

    def write(self, data: Any) -> None:
        if not data.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"{data[:500]!r}")
        self.answered.set()

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def handle(row: str, encoding: str) -> None:
    """Count what it takes to answer the requests of `row`, for callgrind."""
    from uvicorn import Config
    from uvicorn.server import ServerState

    from app import logs
    from app.engine.service import Service
    from app.http.core.keys import Keys
    from app.http.server.connection import connections
    from app.http.server.limit import ConnectionLimit
    from app.http.telemetry import access_log
    from app.main import create_app, handler_of
    from app.settings import Settings

    access_log._SECONDS = SECONDS
    warming, messages = ROWS[row].messages(WARMING + COUNTED)
    requests = [each.http(encoding) for each in messages] * (1 if len(messages) > 1 else WARMING + COUNTED)
    settings = Settings(gpus="none", log_file=os.devnull, _env_file=None)
    logs.configure(settings)
    limit = ConnectionLimit()
    service = Service(settings)
    app = create_app(settings, service, limit)
    async with app.router.lifespan_context(app):
        config = Config(app)
        config.load()
        connect = connections(handler_of(app, settings, Keys("", "")), settings, limit, service.memory)
        clients = []
        for _ in range(CONNECTIONS):
            clients.append((connect(config, ServerState(), {}), Transport()))
            clients[-1][0].connection_made(clients[-1][1])
        await answer([each.http(encoding) for each in warming], clients)
        await answer(requests[:WARMING], clients)
        gc.disable()
        await asyncio.sleep(2 * SECONDS)  # the lines of those are no part of it
        callgrind("--instr=on")
        await answer(requests[WARMING:], clients)
        await asyncio.sleep(2 * SECONDS)  # but all lines of these
        callgrind("--instr=off")
        callgrind("--dump")


async def answer(requests: Sequence[bytes], clients: Sequence[tuple[Any, Transport]]) -> None:
    """Hand over one to each client, and the next ones when these are answered."""
    for start in range(0, len(requests), CONNECTIONS):
        handed = requests[start : start + CONNECTIONS]
        for request, (connection, transport) in zip(handed, clients, strict=False):
            transport.answered.clear()
            connection.get_buffer(-1)[: len(request)] = request
            connection.buffer_updated(len(request))
        for _, transport in clients[: len(handed)]:
            await transport.answered.wait()


if __name__ == "__main__":
    sys.exit(main())
