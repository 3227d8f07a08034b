"""Measure what traces cost a request: handlers with and without, turn by turn in one process.

    PYTHONPATH=. python tests/benchmarks/tracing.py                # a minute and a half
    PYTHONPATH=. python tests/benchmarks/tracing.py --sizes 4K --rounds 20

Each handler is that of `dmlserve serve`, without the access log and without the connection around it. A turn is as many
dispatches, seen before, as make one batch of spans, which is then sent to a collector in another process; what counts
is the CPU time of all threads. `off` is measured twice, by two handlers: their ratio tells what the others are worth.

What it costs to trace 1 % is a hundredth of what it costs to trace all, and is held against the CPU time of a whole
request, over HTTP. Where traces are off, what is left is to ask whether there is anything to record: how often, and how
long that takes, is said at the end.
"""

import argparse
import asyncio
import dis
import os
import statistics
import sys
import tempfile
import timeit
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import process_time
from types import CodeType
from typing import Any

import load
import options
import processes
import servers
from cluster import message

from app.codecs.codec import Body
from app.engine.service import Service
from app.http.core.bodies import read_body
from app.http.core.exchange import Handler, Incoming, Request
from app.http.core.keys import Keys
from app.http.native.dispatch import answer_in
from app.http.server.limit import ConnectionLimit
from app.http.telemetry.requests import observing
from app.main import create_app, handler_of
from app.settings import Settings

SIZES = [4 << 10, 256 << 10]
REQUESTS = 128
"""Of a turn. Each has four spans when it is not the first of its kind, and a batch has 512."""
WARM = 5
SETTINGS = ["--threads", "1", "--gpus", "none", "--no-access-log"]
OFF, NONE, ALL = "off", "0 %", "100 %"
ASKS = (observing, read_body, answer_in, Service.execute, Service.execute_here)
"""All of a small dispatch that looks whether there is anything to record."""

COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
"""


class Whole:
    """Implements `Incoming`: a body that is there."""

    def __init__(self, data: bytes) -> None:
        self.announced = self.received = len(data)
        self._body = memoryview(bytearray(data))

    def whole(self) -> Body:
        return self._body

    async def hung_up(self) -> None:
        """Nobody does."""


class Subject:
    """A handler, and what it takes."""

    def __init__(self, handler: Handler, traces: Any) -> None:
        self._handler = handler
        self._traces = traces

    def microseconds(self, data: bytes) -> float:
        """CPU time of a request."""
        fields = [(b"content-type", b"application/msgpack"), (b"accept", b"application/msgpack")]
        bodies = [Whole(data) for _ in range(REQUESTS)]
        begun = process_time()
        for body in bodies:
            incoming: Incoming = body  # type: ignore[assignment]  # what is there is not read
            request = Request("POST", "/v1/dispatch", b"/v1/dispatch", b"", fields, incoming, dict(fields))
            try:
                self._handler(request).send(None)
            except StopIteration as done:
                if done.value.status != 200:
                    raise SystemExit(b"".join(done.value.pieces)) from None
                done.value.sent()
        if self._traces:
            self._traces.flush()
        return (process_time() - begun) / REQUESTS * 1e6


@asynccontextmanager
async def subject(settings: Settings) -> AsyncIterator[Subject]:
    service = Service(settings)
    app = create_app(settings, service, ConnectionLimit())
    async with app.router.lifespan_context(app):
        yield Subject(handler_of(app, settings, Keys("", "")), app.state.tracing)


def asked(code: CodeType) -> int:
    """How often a function, and those in it, look at `stages`."""
    here: int = sum(each.opname.startswith("LOAD") and each.argval == "stages" for each in dis.get_instructions(code))
    return here + sum(asked(each) for each in code.co_consts if isinstance(each, CodeType))


def whole_request(body: Path, connections: int, seconds: int) -> float:
    """Microseconds of CPU time that a request takes the service over HTTP, where nothing is traced."""
    with servers.service(SETTINGS) as server:
        assert server.pid
        request = load.Request(f"{server.url}/v1/dispatch", "msgpack", body)
        load.run(request, connections, 1)
        before = processes.cpu_ticks(server.pid)
        done = load.run(request, connections, seconds)
        return (processes.cpu_ticks(server.pid) - before) / os.sysconf("SC_CLK_TCK") / done.requests * 1e6


async def measure(given: argparse.Namespace, url: str) -> None:
    alone: dict[str, Any] = {"threads": 1, "gpus": "none", "access_log": False}
    kinds: dict[str, dict[str, Any]] = {OFF: {}, "off, another one": {}}
    kinds |= {name: {"otlp_endpoint": url, "trace_ratio": ratio} for name, ratio in ((NONE, 0), (ALL, 1))}
    async with AsyncExitStack() as stack:
        subjects = {
            kind: await stack.enter_async_context(subject(Settings(**alone, **more))) for kind, more in kinds.items()
        }
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shares = []
        print("| tensor | traced | us CPU | ratio to off | quarter below | quarter above |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for size in given.sizes:
            data = message(size)
            found: dict[str, list[float]] = {kind: [] for kind in kinds}
            names = [*kinds]
            for turn in range(given.rounds + WARM):
                names = [*names[1:], names[0]]  # nobody is always the first
                for kind in names:
                    took = subjects[kind].microseconds(data)
                    if turn >= WARM:
                        found[kind].append(took)
            for kind, costs in found.items():
                ratios = [each / off for each, off in zip(costs, found[OFF], strict=True)]
                low, middle, high = statistics.quantiles(ratios)
                cells = [options.format_size(size), kind, f"{statistics.median(costs):.1f}"]
                print("|", " | ".join([*cells, f"{middle:.3f}", f"{low:.3f}", f"{high:.3f}"]), "|", flush=True)
            more = statistics.median(all_ - none for none, all_ in zip(found[NONE], found[ALL], strict=True)) / 100
            (folder / "body").write_bytes(data)
            whole = whole_request(folder / "body", given.connections, given.seconds)
            shares.append(
                f"{options.format_size(size)}: to trace 1 % takes {more:.1f} us of CPU time more for each request, "
                f"{more / whole:.1%} of the {whole:.0f} us that one takes over HTTP."
            )
        print("", *shares, sep="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=options.parse_size, default=SIZES)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=8)
    given = parser.parse_args(arguments)
    load.require_wrk()
    port = servers.free_port()
    with servers.running("collector", [sys.executable, "-c", COLLECTOR, str(port)], port, "/") as collector:
        asyncio.run(measure(given, collector.url))
    times = sum(asked(each.__code__) for each in ASKS)
    seconds = min(timeit.repeat("None if stages is None else 1", "stages = None", number=1_000_000)) / 1e6
    print(f"\nOff, `stages` is looked at {times} times at most, {times * seconds * 1e9:.0f} ns in all.")


if __name__ == "__main__":
    main()
