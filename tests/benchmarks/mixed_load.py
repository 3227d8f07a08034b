"""Measure what large requests do to small ones: latency of 4 KiB requests while 64 MiB requests run beside them.

The yardstick meets the same mix as raw bodies right before each measurement of the service. Every answer is checked
once before it is timed. Exits with 1 if one was wrong or any timed request failed.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import cases
import load
import options
import report
import servers
from targets import Target, Targets

LEAD_SECONDS = 1


@dataclass(frozen=True)
class Mix:
    """Small requests alone, then beside large ones."""

    alone: load.Load
    beside: load.Load
    large: load.Load


@dataclass(frozen=True)
class Pair:
    """A small and a large request to the same server."""

    small: Target
    large: Target

    def measure(self, arguments: argparse.Namespace) -> Mix:
        """The large requests start before the small ones and end after them."""
        small, large = arguments.small_connections, arguments.large_connections
        seconds = self.large.long_enough(large, arguments.seconds)
        try:
            alone = load.run(self.small.request, small, seconds)
            with ThreadPoolExecutor(1) as executor:
                larges = executor.submit(load.run, self.large.request, large, seconds + 2 * LEAD_SECONDS)
                time.sleep(LEAD_SECONDS)
                beside = load.run(self.small.request, small, seconds)
            return Mix(alone, beside, larges.result())
        finally:
            self.small.server.settle()


def row(name: str, mixes: list[Mix]) -> list[str]:
    """Medians over the rounds; the two ratios are medians of the rounds' ratios."""

    def median(value: Callable[[Mix], float]) -> str:
        return report.number(statistics.median(map(value, mixes)))

    return [
        name,
        median(lambda mix: mix.alone.rate),
        median(lambda mix: mix.alone.p50_ms),
        median(lambda mix: mix.alone.p99_ms),
        median(lambda mix: mix.beside.rate),
        median(lambda mix: mix.beside.p50_ms),
        median(lambda mix: mix.beside.p99_ms),
        median(lambda mix: mix.beside.max_ms),
        median(lambda mix: mix.beside.p99_ms / mix.alone.p99_ms),
        median(lambda mix: mix.large.rate),
        median(lambda mix: mix.large.p50_ms),
    ]


HEAD = ["", "alone /s", "p50 ms", "p99 ms", "beside /s", "p50 ms", "**p99 ms**", "max ms", "p99 beside / alone"]
HEAD += ["large /s", "large p50 ms"]


def render(facts: str, arguments: argparse.Namespace, rows: Iterable[list[str]]) -> str:
    small, large = options.format_size(arguments.small), options.format_size(arguments.large)
    return (
        f"# Mixed load benchmark\n\n{facts}\n{small} requests on {arguments.small_connections} connections, alone and "
        f"beside {large} requests on {arguments.large_connections} more. Medians over {arguments.rounds} rounds of at "
        f"least {arguments.seconds} s; the yardstick is a bare uvicorn echo of the raw tensors.\n\n"
        f"{report.table(HEAD, rows, texts=1)}"
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--small", type=options.parse_size, default=4 << 10, help="default: 4K")
    parser.add_argument("--large", type=options.parse_size, default=64 << 20, help="default: 64M")
    parser.add_argument("--small-connections", type=options.bounded(256), default=4, help="default: 4")
    parser.add_argument("--large-connections", type=options.bounded(16), default=1, help="default: 1")
    arguments = parser.parse_args(argv)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    arguments.seconds = arguments.seconds or (3 if arguments.quick else 10)
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    options.end_on_signals()
    load.require_wrk()
    facts = report.facts(os.getloadavg()[0])
    rows: list[list[str]] = []
    failures: list[str] = []
    with ExitStack() as stack:
        targets = Targets(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mixed_load-"))))
        service = stack.enter_context(options.service(arguments))
        yardstick = stack.enter_context(servers.yardstick())
        small, large = (cases.make("HARD_SIGMOID", "FLOAT32", size) for size in (arguments.small, arguments.large))

        def pair(server: servers.Server, encoding: str) -> Pair:
            return Pair(targets.target(server, small, encoding), targets.target(server, large, encoding))

        for encoding in arguments.encodings:
            yardsticks, services = [], []
            try:
                raw, encoded = pair(yardstick, "raw"), pair(service, encoding)
                for number in range(1, arguments.rounds + 1):
                    yardsticks.append(raw.measure(arguments))
                    services.append(encoded.measure(arguments))
                    p99 = report.number(services[-1].beside.p99_ms)
                    options.progress(f"round {number}: {encoding}: p99 {p99} ms beside large requests")
            except (load.LoadError, cases.WrongAnswerError) as error:
                failures.append(f"{encoding}: {error}")
                options.progress(f"FAILED: {failures[-1]}")
            else:
                rows += [row(f"yardstick before {encoding}", yardsticks), row(f"service {encoding}", services)]
    text = render(facts, arguments, rows) + report.failures(failures)
    report.publish(text, arguments.output)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
