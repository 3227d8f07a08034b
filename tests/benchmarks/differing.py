"""Measure requests that differ: rate and latency of 4 KiB dispatches and inferences, beside a bare uvicorn echo.

What differs in each row, and what is wanted, stands in variety.py. The yardstick is given the very same requests, and
so is a second checkout (--old), by turns, round by round. A sample of each row is checked before it is timed: against a
service started afresh, to the bit, and against the formula where one is written down. Exits with 1 if an answer was
wrong or any timed request failed.
"""

import argparse
import contextlib
import http.client
import itertools
import os
import shlex
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import cases
import load
import options
import processes
import report
import servers
from variety import INFER_WANTED, ROWS, Message, Row, wanted

SAMPLE = 66
CHECKING_CONNECTIONS = 8
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """What wrk saw, and how many cores the server used meanwhile (None of one that was not started here)."""

    load: load.Load
    cores: float | None


@dataclass(frozen=True)
class Round:
    """Measured one right after another, over the same requests."""

    yardstick: Measured
    service: Measured
    old: Measured | None

    @property
    def ratio(self) -> float:
        return self.service.load.rate / self.yardstick.load.rate


@dataclass
class Cell:
    """One line of the result: the prepared requests of a row in one encoding, over some connections."""

    row: Row
    encoding: str
    connections: int
    requests: Path
    first: int = 0
    """Where the next measurement begins, so that no round sends what the last one sent."""
    rounds: list[Round] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.encoding} {self.row.name} c{self.connections}"

    def measure(self, bench: "Bench") -> None:
        """Add a round."""
        yardstick, service, *old = [self._measured(server, bench.arguments.seconds) for server in bench.servers]
        self.rounds.append(Round(yardstick, service, old[0] if old else None))
        self.first += max(each.load.requests + self.connections for each in (service, *old))

    def _measured(self, server: servers.Server, seconds: int) -> Measured:
        ticks = processes.cpu_ticks(server.pid) if server.pid else 0
        try:
            seen = load.run_each(self.requests, self.first, server.url, self.connections, seconds)
            used = processes.cpu_ticks(server.pid) - ticks if server.pid else 0
        finally:
            server.settle()
        return Measured(seen, used / TICKS_PER_SECOND / seen.seconds if server.pid else None)

    def median(self, value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, self.rounds))


class Bench:
    """The servers that run throughout, the measured cells, and what failed."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments = arguments
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="differing-")))
        self.service = stack.enter_context(options.service(arguments))
        self.yardstick = stack.enter_context(servers.yardstick())
        self.old: list[servers.Server] = []
        if arguments.old:
            self.old.append(stack.enter_context(self._service(arguments.old)))
        self.servers = [self.yardstick, self.service, *self.old]
        self.failures: list[str] = []

    def _service(self, root: Path | None = None) -> AbstractContextManager[servers.Server]:
        return servers.service(shlex.split(self.arguments.serve_args), root)

    def fail(self, what: object, error: Exception) -> None:
        self.failures.append(f"{what}: {error}")
        options.progress(f"FAILED: {what}: {error}")

    def prepare(self, row: Row) -> list[Cell]:
        """The cells of one row, without those whose answers are wrong; the servers have met its kernels then."""
        warm, messages = row.messages(self.arguments.requests)
        cells = []
        for encoding in self.arguments.encodings:
            try:
                for server in (self.service, *self.old):
                    send(server, (each.http(encoding) for each in warm))
                with self._service() as fresh:
                    check(encoding, messages, self.service, [fresh, *self.old], self.yardstick)
            except (load.LoadError, cases.WrongAnswerError) as error:
                self.fail(f"{encoding} {row.name}", error)
                continue
            path = self.folder / f"{row.name}.{encoding}"
            load.prepare((each.http(encoding) for each in messages), path)
            cells += [Cell(row, encoding, connections, path) for connections in self.arguments.connections]
        return cells

    def run(self, cells: list[Cell]) -> None:
        """All rounds, rounds outermost so that a slow minute meets all cells alike."""
        for number in range(1, self.arguments.rounds + 1):
            for cell in [each for each in cells if len(each.rounds) == number - 1]:
                try:
                    cell.measure(self)
                except load.LoadError as error:
                    self.fail(cell, error)
                else:
                    last = cell.rounds[-1]
                    rate = report.number(last.service.load.rate)
                    options.progress(f"round {number}: {cell}: {rate} requests/s, ratio {report.number(last.ratio)}")


def check(
    encoding: str,
    messages: Sequence[Message],
    service: servers.Server,
    others: Iterable[servers.Server],
    yardstick: servers.Server,
) -> None:
    """WrongAnswerError unless `service` answers a sample rightly, and `others` the same, over several connections."""
    sample = messages[:: max(1, len(messages) // SAMPLE)]
    requests = [each.http(encoding) for each in sample]
    results = [each.check(encoding, answer) for each, answer in zip(sample, send(service, requests), strict=True)]
    for server in others:
        for message, answer, result in zip(sample, send(server, requests), results, strict=True):
            if message.check(encoding, answer) != result:
                raise cases.WrongAnswerError(f"another result than that of the {server.name}: {message.structure}")
    if send(yardstick, requests) != [request.partition(b"\r\n\r\n")[2] for request in requests]:
        raise cases.WrongAnswerError("the yardstick did not echo the requests")


def send(server: servers.Server, requests: Iterable[bytes]) -> list[bytes]:
    """The bodies of the answers, over several connections at once; LoadError unless each is a 200."""
    with ThreadPoolExecutor(CHECKING_CONNECTIONS) as executor:
        found = list(executor.map(lambda part: list(_exchange(server.url, part)), _dealt(list(requests))))
    return [answer for answers in itertools.zip_longest(*found) for answer in answers if answer is not None]


def _dealt(requests: list[bytes]) -> list[list[bytes]]:
    return [requests[start::CHECKING_CONNECTIONS] for start in range(CHECKING_CONNECTIONS)]


def _exchange(url: str, requests: list[bytes]) -> Iterator[bytes]:
    """Answers to whole requests, one after the other over one connection."""
    where = urlsplit(url)
    try:
        with socket.create_connection((where.hostname, where.port or 80), 60) as connection:
            for request in requests:
                connection.sendall(request)
                with contextlib.closing(http.client.HTTPResponse(connection, method="POST")) as response:
                    response.begin()
                    answer = response.read()
                if response.status != 200:
                    raise load.LoadError(f"status {response.status}: {answer[:300]!r}")
                yield answer
    except (OSError, http.client.HTTPException) as error:
        raise load.LoadError(f"no answer: {error!r}") from error


HEAD = ["encoding", "row", "c", "wanted", "**ratio**", "of rounds", "requests/s", "cores", "p50 ms", "p99 ms"]
HEAD += ["yardstick requests/s", "p50 ms", "p99 ms", "of msgpack"]
OLD_HEAD = ["old requests/s", "p99 ms", "**over old**", "of rounds"]


def line(cell: Cell, cells: list[Cell]) -> list[str]:
    """A cell of the table; `cells` has the one in MessagePack that an inference is held against."""
    ratio = wanted(cell.row, cell.encoding)
    cores = [each.service.cores for each in cell.rounds if each.service.cores is not None]
    made = [
        cell.encoding,
        cell.row.name,
        str(cell.connections),
        "-" if ratio is None else report.number(ratio),
        *spread([each.ratio for each in cell.rounds]),
        report.number(cell.median(lambda each: each.service.load.rate)),
        report.number(statistics.median(cores)) if cores else "-",
        report.number(cell.median(lambda each: each.service.load.p50_ms)),
        report.number(cell.median(lambda each: each.service.load.p99_ms)),
        report.number(cell.median(lambda each: each.yardstick.load.rate)),
        report.number(cell.median(lambda each: each.yardstick.load.p50_ms)),
        report.number(cell.median(lambda each: each.yardstick.load.p99_ms)),
        of_msgpack(cell, cells),
    ]
    old = [(each.service.load, each.old.load) for each in cell.rounds if each.old]
    if old:
        made.append(report.number(statistics.median(before.rate for _, before in old)))
        made.append(report.number(statistics.median(before.p99_ms for _, before in old)))
        made += spread([now.rate / before.rate for now, before in old])
    return made


def of_msgpack(cell: Cell, cells: list[Cell]) -> str:
    """Requests/s over those of the same row in MessagePack, round by round, with what is wanted of an inference."""
    for other in cells:
        if (other.row, other.encoding, other.connections) == (cell.row, "msgpack", cell.connections) and other != cell:
            pairs = zip(cell.rounds, other.rounds, strict=False)  # a cell that failed has fewer
            found = report.number(statistics.median(a.service.load.rate / b.service.load.rate for a, b in pairs))
            is_wanted = cell.encoding == "infer" and cell.row.name == "same"
            return f"{found} ({INFER_WANTED})" if is_wanted else found
    return "-"


def spread(ratios: list[float]) -> list[str]:
    """The median, and the least and the most."""
    return [report.number(statistics.median(ratios)), f"{report.number(min(ratios))} - {report.number(max(ratios))}"]


def render(facts: str, arguments: argparse.Namespace, cells: list[Cell]) -> str:
    rows = "".join(f"- {name}: {ROWS[name].what}\n" for name in arguments.rows)
    ordered = sorted(cells, key=lambda cell: arguments.encodings.index(cell.encoding))
    lines = [line(cell, cells) for cell in ordered if cell.rounds]
    return (
        f"# Requests that differ\n\n{facts}\nMedians over {arguments.rounds} rounds of {arguments.seconds} s, with "
        f"{arguments.requests} prepared requests for each row. c: connections. Ratio: requests/s over those of the "
        "yardstick, a bare uvicorn echo that was given the same requests right before; compare ratios, not requests/s. "
        "Wanted: by issue 15, in brackets of an inference beside MessagePack.\n\n"
        f"{rows}\n{report.table(HEAD + OLD_HEAD if arguments.old else HEAD, lines, texts=2)}"
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--rows", type=options.listed(options.one_of(*ROWS)), default=list(ROWS), help="default: all")
    parser.add_argument("--connections", type=options.listed(options.bounded(256)), default=[8], help="default: 8")
    parser.add_argument("--requests", type=options.bounded(100_000), help="prepared for each row; default 30000")
    parser.add_argument(
        "--old", type=Path, metavar="ROOT", help="a second checkout of dmlserve, measured by turns with the service"
    )
    arguments = parser.parse_args(argv)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (1 if arguments.quick else 2)
    arguments.requests = arguments.requests or (1_000 if arguments.quick else 30_000)
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    options.end_on_signals()
    load.require_wrk()
    facts = report.facts(os.getloadavg()[0])
    with ExitStack() as stack:
        bench = Bench(arguments, stack)
        cells = [cell for name in arguments.rows for cell in bench.prepare(ROWS[name])]
        bench.run(cells)
    report.publish(render(facts, arguments, cells) + report.failures(bench.failures), arguments.output)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
