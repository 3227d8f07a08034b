"""What a fleet costs, from what `cluster.py` measured: the last part of cluster.md, from its first table.

    python tests/benchmarks/fleet.py

Cores are requests/s times CPU seconds for each, over the share of a core that one dares to use. Where replicas were
measured in several numbers, their median counts.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import options

TABLE = Path(__file__).with_name("cluster.md")
RATE = 1_000_000
SHARE = 0.6
HEADER_BYTES = 512
MACHINE_CORES, MACHINE_GIGABITS = 64, 100
DOLLARS = 0.04
"""For a core and an hour, an assumption."""

FLEETS = [("none", "4K"), ("haproxy", "4K"), ("ray", "4K"), ("haproxy", "256K"), ("ray", "256K"), ("haproxy", "4M")]
"""Fronts, and the tensors of the requests."""

_ROW = re.compile(
    r"\| (haproxy|ray) \| (\d+) \| (\d+[KM]) \| ([\d.,]+) \| [\d.]+ \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|"
)


class Measured(NamedTuple):
    """A row of the first table: requests/s, and microseconds of CPU time for each."""

    front: str
    replicas: int
    tensor: str
    rate: float
    service: float
    alone: float
    ahead: float
    """What the front takes."""


class Fleet(NamedTuple):
    """Microseconds of the service and the front, cores in all and the front's of them, Gbit/s each way, machines of the
    one and the other, and dollars an hour."""

    service: float
    ahead: float
    cores: float
    ahead_cores: float
    gigabits: float
    fronts: int
    machines: int
    dollars: float


def measured(text: str) -> list[Measured]:
    """The rows of the first table."""
    rows = []
    for front, replicas, tensor, *numbers in _ROW.findall(text):
        rows.append(Measured(front, int(replicas), tensor, *(float(each.replace(",", "")) for each in numbers)))
    return rows


def fleet(front: str, tensor: str, rows: list[Measured]) -> Fleet:
    """What RATE requests/s take."""
    of_tensor = [each for each in rows if each.tensor == tensor]
    behind = [each for each in of_tensor if each.front == front]
    service = median(each.service for each in behind) if behind else median(each.alone for each in of_tensor)
    ahead = median(each.ahead for each in behind) if behind else 0.0
    per_core = RATE / 1e6 / SHARE
    gigabits = (options.parse_size(tensor) + HEADER_BYTES) * 8 * RATE / 1e9  # the clients'
    cores, ahead_cores = per_core * (service + ahead), per_core * ahead
    fronts = _machines(ahead_cores, 2 * gigabits) if behind else 0
    machines = _machines(cores - ahead_cores, gigabits)
    total = gigabits * (2 if behind else 1)
    return Fleet(service, ahead, cores, ahead_cores, total, fronts, machines, cores * DOLLARS)


def _machines(cores: float, gigabits: float) -> int:
    return math.ceil(max(cores / MACHINE_CORES, gigabits / MACHINE_GIGABITS))


def rounded(number: float) -> str:
    """Two digits that count."""
    digits = 0 if not number else 1 - math.floor(math.log10(number))
    return f"{round(number, digits):,.0f}"


def lines(text: str) -> Iterator[str]:
    """What cluster.md says of fleets, if `text` is its first part."""
    rows = measured(text)
    for front, tensor in FLEETS:
        *costs, fronts, machines, dollars = fleet(front, tensor, rows)
        cells = [tensor, front, *map(rounded, costs), str(fronts), str(machines), rounded(dollars)]
        yield f"| {' | '.join(cells)} |"
    for front in ("haproxy", "ray"):
        for tensor in ("4K", "256K", "4M"):
            found = [each for each in rows if (each.front, each.tensor) == (front, tensor)]
            service, alone, ahead = (
                ", ".join(f"{each:,.0f}" for each in kind) for kind in zip(*[row[4:7] for row in found], strict=True)
            )
            yield f"| {front} | {tensor} | {ahead} | {service} | {alone} |"


if __name__ == "__main__":
    print(*lines(TABLE.read_text()), sep="\n")
