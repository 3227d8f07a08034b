"""What is counted of inferences: by each worker in the metrics, model by model, and of a graph's own with the graph."""

from collections.abc import Iterable, Mapping, Sequence
from time import time
from typing import NamedTuple, TypeAlias

from app.sink import Cells

PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
"""What takes time: inferences from beginning to end, by how that was, and what those are made of that succeed."""

SUCCESSES, FAILURES, LAST, _NANOSECONDS = range(4)
"""Places of the numbers: how many inferences there were, Unix time of the last one that succeeded, in ms, and from here
on what each of the PARTS took."""

NUMBERS = _NANOSECONDS + len(PARTS)
"""How many these are."""

_SUCCESS, _FAIL, _QUEUE, _INPUT, _INFER, _OUTPUT = range(_NANOSECONDS, NUMBERS)

Took: TypeAlias = tuple[float, float, float, float]
"""Nanoseconds of the last four of the PARTS."""


def count(numbers: Cells, ns: int, took: Took | None) -> None:
    """Count an inference of so many nanoseconds, which failed if its parts `took` None. For one thread."""
    if took is None:
        numbers[FAILURES] += 1.0
        numbers[_FAIL] += ns
        return
    numbers[SUCCESSES] += 1.0
    numbers[LAST] = time() * 1000.0
    numbers[_SUCCESS] += ns
    queue, given, infer, made = took
    numbers[_QUEUE] += queue
    numbers[_INPUT] += given
    numbers[_INFER] += infer
    numbers[_OUTPUT] += made


def together(workers: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The numbers of several workers as one."""
    sums = [0.0] * NUMBERS
    for numbers in workers:
        last = max(sums[LAST], numbers[LAST])
        sums = [mine + theirs for mine, theirs in zip(sums, numbers, strict=True)]
        sums[LAST] = last
    return tuple(sums)


class Counted(NamedTuple):
    """What was counted of one model."""

    parts: Mapping[str, tuple[int, int]]
    """By part, how many inferences and nanoseconds."""
    last: int
    """Unix time of the last one that succeeded, in ms."""

    @classmethod
    def by(cls, workers: Iterable[Sequence[float]]) -> "Counted":
        numbers = together(workers)
        parts = {}
        for part, ns in zip(PARTS, numbers[_NANOSECONDS:], strict=True):
            parts[part] = int(numbers[FAILURES if part == "fail" else SUCCESSES]), int(ns)
        return cls(parts, int(numbers[LAST]))
