"""Where tensors lie that share memory, each for as long as it is needed."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

from app.memory.arrays import Array

K = TypeVar("K", bound=Hashable)

Intervals = Mapping[K, tuple[int, int, int]]
"""Tensors that live from one step to another, both included, and have a size."""

MOST_PLACED = 2048
"""Tensors are placed so often at most, in one order after the other, which takes some 50 ms; each of them once."""


def place_intervals(intervals: Intervals[K]) -> tuple[dict[K, int], int]:
    """Offsets for tensors, and where the last of them ends: rarely more than a tenth beyond the least there can be.

    Each goes into the smallest gap that will do among those that live at the same time, in one of several orders. Of an
    order, the tensor that ended last is put first, and it is tried again. It takes half a second for 4,096 that all
    live at the same time.
    """
    if not intervals:
        return {}, 0
    least, left = most_alive(intervals), MOST_PLACED
    best: tuple[dict[K, int], int] | None = None
    for order in _orders(intervals):
        for _ in range(_TRIES):
            placed, last = _placed(intervals, order)
            total = placed[last] + intervals[last][2]
            if best is None or total < best[1]:
                best = placed, total
            left -= len(order)
            if best[1] == least or left < len(order):
                return best
            order.remove(last)
            order.insert(0, last)
    assert best is not None, "there is an order"
    return best


_TRIES = 8
"""Of each order."""


def most_alive(intervals: Intervals[K]) -> int:
    """The sizes of all that live at one step, where that is the most."""
    changes: dict[int, int] = {}
    for start, end, size in intervals.values():
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    return max(accumulate([changes[step] for step in sorted(changes)]), default=0)


def _orders(intervals: Intervals[K]) -> Iterator[list[K]]:
    """The largest first; those that take most of memory and time; the longest first; as they come."""

    def steps(key: K) -> int:
        start, end, _ = intervals[key]
        return end - start + 1

    yield sorted(intervals, key=lambda key: -intervals[key][2])
    yield sorted(intervals, key=lambda key: -intervals[key][2] * steps(key))
    yield sorted(intervals, key=lambda key: (-steps(key), -intervals[key][2]))
    yield sorted(intervals, key=lambda key: (intervals[key][0], -intervals[key][2]))


def _placed(intervals: Intervals[K], order: Sequence[K]) -> tuple[dict[K, int], K]:
    """Where tensors lie that are placed in this order, and the one that ends last."""
    placed: dict[K, int] = {}
    known = np.zeros((4, len(order)), np.int64)  # of those placed: first step, last step, where it begins and ends
    highest, top = -1, order[0]
    for number, key in enumerate(order):
        start, end, size = intervals[key]
        firsts, lasts, begins, stops = known[:, :number]
        alive = (firsts <= end) & (start <= lasts)
        at = placed[key] = _place(begins[alive], stops[alive], size)
        known[:, number] = start, end, at, at + size
        if at + size > highest:
            highest, top = at + size, key
    return placed, top


def _place(begins: Array, stops: Array, size: int) -> int:
    """Where the smallest gap between some tensors begins that has room for `size`; after them all if none has."""
    order = np.argsort(begins)
    reached = np.concatenate(([0], np.maximum.accumulate(stops[order])))
    room = begins[order] - reached[:-1]
    fitting = np.flatnonzero(room >= size)
    return int(reached[fitting[np.argmin(room[fitting])]] if fitting.size else reached[-1])
