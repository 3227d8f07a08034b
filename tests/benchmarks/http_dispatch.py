"""Measure dispatches, native ones and inferences, over HTTP: rate, latency and memory, beside a bare uvicorn echo.

Each measurement of the service follows one of the yardstick, so that their ratio compares two neighbours in time; that
of another operator or type than HARD_SIGMOID FLOAT32 is followed by one of that.
Every answer is checked once before it is timed. Exits with 1 if one was wrong or any timed request failed.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import cases
import load
import options
import processes
import report
import servers
from targets import Target, Targets

DEFAULT = ("HARD_SIGMOID", "FLOAT32")
SMALL = 16 << 10
SIZES = [4 << 10, 256 << 10, 4 << 20, 64 << 20]


@dataclass(frozen=True)
class Round:
    """Loads measured one right after another."""

    yardstick: load.Load
    service: load.Load
    floor: load.Load | None
    default: load.Load | None

    @property
    def ratio(self) -> float:
        return self.service.rate / self.yardstick.rate

    @property
    def floor_ratio(self) -> float | None:
        return self.floor.rate / self.yardstick.rate if self.floor else None

    @property
    def default_ratio(self) -> float | None:
        return self.service.rate / self.default.rate if self.default else None


@dataclass(frozen=True)
class Cell:
    """One row of the result: what is sent over how many connections, and its rounds."""

    operator: str
    data_type: str
    size: int
    encoding: str
    connections: int
    tensor_bytes: int
    yardstick: Target
    service: Target
    floor: Target | None
    default: Target | None
    rounds: list[Round] = field(default_factory=list)

    def __str__(self) -> str:
        size = options.format_size(self.size)
        return f"{self.operator} {self.data_type} {self.encoding} {size} c{self.connections}"

    def measure(self, seconds: int) -> None:
        """Add a round."""
        yardstick = self.yardstick.measure(self.connections, seconds)
        service = self.service.measure(self.connections, seconds)
        floor = self.floor.measure(self.connections, seconds) if self.floor else None
        default = self.default.measure(self.connections, seconds) if self.default else None
        self.rounds.append(Round(yardstick, service, floor, default))

    def median(self, value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, self.rounds))


class Bench:
    """The servers that run throughout, the measured cells, and what failed."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments = arguments
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="http_dispatch-"))
        self.targets = Targets(Path(folder))
        self.service = stack.enter_context(options.service(arguments))
        self.yardstick = stack.enter_context(servers.yardstick())
        self.floor = stack.enter_context(servers.floor()) if arguments.floor else None
        self.failures: list[str] = []

    def fail(self, what: object, error: Exception) -> None:
        self.failures.append(f"{what}: {error}")
        options.progress(f"FAILED: {what}: {error}")

    def prepare(self, operator: str, data_type: str, size: int) -> list[Cell]:
        """The cells of one tensor, without those whose answer is wrong."""
        case = cases.make(operator, data_type, size)
        yardstick = self.targets.target(self.yardstick, case, "raw")
        is_default = (operator, data_type) == DEFAULT
        floor = self.targets.target(self.floor, case, "raw") if self.floor and is_default else None
        beside = None if is_default else cases.make(*DEFAULT, size)
        cells = []
        for encoding in self.arguments.encodings:
            try:
                service = self.targets.target(self.service, case, encoding)
                default = self.targets.target(self.service, beside, encoding) if beside else None
            except (load.LoadError, cases.WrongAnswerError) as error:
                self.fail(f"{operator} {data_type} {encoding} {options.format_size(size)}", error)
                continue
            for connections in self.arguments.connections or default_connections(size, self.arguments.quick):
                named = (operator, data_type, size, encoding, connections, case.tensor_bytes)
                cells.append(Cell(*named, yardstick, service, floor, default))
        return cells

    def measure(self, operator: str, data_type: str) -> list[Cell]:
        """All rounds of one operator, rounds outermost so that a slow minute meets all cells alike."""
        cells = [cell for size in self.arguments.sizes for cell in self.prepare(operator, data_type, size)]
        for number in range(1, self.arguments.rounds + 1):
            for cell in list(cells):
                try:
                    cell.measure(self.arguments.seconds)
                except load.LoadError as error:
                    self.fail(cell, error)
                    cells.remove(cell)
                else:
                    last = cell.rounds[-1]
                    rate = report.number(last.service.rate)
                    options.progress(f"round {number}: {cell}: {rate} requests/s, ratio {report.number(last.ratio)}")
        self.targets.forget()
        return cells

    def memory(self, encoding: str) -> processes.Memory:
        """Memory of a fresh service while it answers three requests of 64 MiB, one after another."""
        with options.service(self.arguments) as service:
            if service.pid is None:
                raise ValueError("memory is measured only of a service started here")
            for size in SIZES[:3]:
                request = self.targets.request(service, cases.make(*DEFAULT, size), encoding)
                for _ in range(10):
                    load.send(request)
            case = cases.make(*DEFAULT, SIZES[3])
            request = self.targets.request(service, case, encoding)
            service.settle()
            answers: list[bytes] = []

            def work() -> None:
                for _ in range(3):
                    answers[:] = [load.send(request)]

            used = processes.memory_during(service.pid, work)
            case.check(encoding, answers[0])
            return used


def default_connections(size: int, quick: bool) -> list[int]:
    return [1, 8, 32] if size <= SMALL and not quick else [1, 8]


def row(cell: Cell) -> list[str]:
    ratios = [each.ratio for each in cell.rounds]
    rate = cell.median(lambda each: each.service.rate)
    numbers = [
        rate,
        cell.median(lambda each: each.service.p50_ms),
        cell.median(lambda each: each.service.p99_ms),
        cell.median(lambda each: each.service.p99_ms / each.yardstick.p99_ms),
        rate * cell.tensor_bytes / 1e9,
        cell.median(lambda each: each.yardstick.rate),
        statistics.median(ratios),
    ]
    return [
        cell.operator,
        cell.data_type,
        cell.encoding,
        options.format_size(cell.size),
        str(cell.connections),
        *map(report.number, numbers),
        f"{report.number(min(ratios))} - {report.number(max(ratios))}",
        median_of([each.floor_ratio for each in cell.rounds]),
        median_of([each.default_ratio for each in cell.rounds]),
    ]


def median_of(ratios: list[float | None]) -> str:
    measured = [ratio for ratio in ratios if ratio is not None]
    return report.number(statistics.median(measured)) if measured else "-"


HEAD = ["operator", "type", "encoding", "tensor", "c", "requests/s", "p50 ms", "p99 ms", "p99 ratio", "GB/s"]
HEAD += ["yardstick requests/s", "**ratio**", "of rounds", "floor ratio", "of HARD_SIGMOID"]


def summary(cells: list[Cell]) -> str:
    """The ratios alone: a row for each encoding, a column for each tensor size and number of connections."""
    columns = {(cell.size, cell.connections): "" for cell in cells}
    rows: dict[tuple[str, str, str], dict[tuple[int, int], str]] = {}
    for cell in cells:
        ratio = report.number(cell.median(lambda each: each.ratio))
        rows.setdefault((cell.operator, cell.data_type, cell.encoding), {})[cell.size, cell.connections] = ratio
    names = [f"{options.format_size(size)} c{connections}" for size, connections in columns]
    lines = [[*name, *(columns | found).values()] for name, found in rows.items()]
    return report.table(["operator", "type", "encoding", *names], lines, texts=3)


def memory_table(memory: dict[str, processes.Memory]) -> str:
    rows = [
        [encoding, *map(report.number, (used.idle, used.idle + used.above, used.above, used.above * 2**20 / SIZES[3]))]
        for encoding, used in memory.items()
    ]
    return report.table(["encoding", "idle", "peak", "**above idle**", "tensors"], rows, texts=1)


def render(facts: str, arguments: argparse.Namespace, cells: list[Cell], memory: dict[str, processes.Memory]) -> str:
    text = (
        f"# HTTP dispatch benchmark\n\n{facts}\nMedians over {arguments.rounds} rounds of at least {arguments.seconds} "
        "s. c: connections. GB/s: tensor bytes in and out. Ratios: requests/s, and p99, over those of the yardstick, a "
        "bare uvicorn echo of the raw tensor measured right before; compare ratios, not requests/s. Of HARD_SIGMOID: "
        "requests/s over those of HARD_SIGMOID FLOAT32 measured right after.\n\n"
        f"{report.table(HEAD, map(row, cells), texts=4)}\n## Ratios\n\n{summary(cells)}"
    )
    if memory:
        text += (
            "\n## Memory of the service's processes, MiB\n\nThree 64 MiB requests one after another, after smaller "
            "ones. Tensors: above idle in units of the 64 MiB tensor, which goes in and comes out.\n\n"
            f"{memory_table(memory)}"
        )
    return text


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__, "npy")
    listed, one_of = options.listed, options.one_of
    parser.add_argument("--sizes", type=listed(options.parse_size), help="of the tensor; default: 4K,256K,4M,64M")
    parser.add_argument("--connections", type=listed(options.bounded(256)), help="default: 1,8 and for 4K also 32")
    parser.add_argument(
        "--operators",
        type=listed(one_of(*cases.OPERATORS)),
        default=[DEFAULT[0]],
        help=f"of {', '.join(cases.OPERATORS)}; default: {DEFAULT[0]}",
    )
    parser.add_argument(
        "--data-types",
        type=listed(one_of(*cases.DATA_TYPES)),
        default=[DEFAULT[1]],
        help=f"of {', '.join(cases.DATA_TYPES)}; default: {DEFAULT[1]}",
    )
    parser.add_argument("--floor", action="store_true", help="measure the socket server too (HARD_SIGMOID, FLOAT32)")
    parser.add_argument("--no-memory", action="store_true", help="leave out memory, as --url always does")
    arguments = parser.parse_args(argv)
    arguments.sizes = arguments.sizes or SIZES[: 3 if arguments.quick else 4]
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    arguments.seconds = arguments.seconds or (1 if arguments.quick else 4)
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    options.end_on_signals()
    load.require_wrk()
    facts = report.facts(os.getloadavg()[0])
    with ExitStack() as stack:
        bench = Bench(arguments, stack)
        cells = []
        for operator in arguments.operators:
            for data_type in arguments.data_types:
                cells += bench.measure(operator, data_type)
        memory = {}
        for encoding in [] if arguments.url or arguments.no_memory else arguments.encodings:
            try:
                memory[encoding] = bench.memory(encoding)
            except (load.LoadError, cases.WrongAnswerError) as error:
                bench.fail(f"memory {encoding}", error)
    text = render(facts, arguments, cells, memory) + report.failures(bench.failures)
    report.publish(text, arguments.output)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
