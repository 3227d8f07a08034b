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


def count(numbers: Cells, start: int, inferences: Iterable[tuple[int, Took | None]]) -> None:
    """Count inferences that have just ended in the numbers that begin at `start`: the nanoseconds of each, which failed
    if its parts `took` None. For one thread."""
    sums = [0.0] * NUMBERS
    for ns, took in inferences:
        if took is None:
            sums[FAILURES] += 1.0
            sums[_FAIL] += ns
            continue
        queue, given, infer, made = took
        sums[SUCCESSES] += 1.0
        sums[_SUCCESS] += ns
        sums[_QUEUE] += queue
        sums[_INPUT] += given
        sums[_INFER] += infer
        sums[_OUTPUT] += made
    for place, each in enumerate(sums, start):
        if each:
            numbers[place] += each
    if sums[SUCCESSES]:
        numbers[start + LAST] = time() * 1000.0


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
