"""Sequences along an axis as rows of a matrix, so many at a time."""

from collections.abc import Iterator
from typing import Any

MOST = 1 << 20
"""Elements at a time, each of which takes some 40 bytes meanwhile; one row at least."""


def rows_of(xp: Any, x: Any, axis: int) -> Any:
    """The sequences of `x` along `axis`."""
    moved = xp.moveaxis(x, axis, -1)
    return xp.ascontiguousarray(moved).reshape(-1, moved.shape[-1])


def back(xp: Any, rows: Any, like: Any, axis: int) -> Any:
    """`rows` of any length as sequences along `axis`, in the order of those of `like`."""
    others = [size for place, size in enumerate(like.shape) if place != axis]
    return xp.moveaxis(rows.reshape(*others, rows.shape[-1]), -1, axis)


def pieces(rows: Any, most: int = MOST) -> Iterator[slice]:
    """Some rows at a time, of up to so many elements, until they are all done."""
    step = max(most // rows.shape[-1], 1)
    return (slice(start, start + step) for start in range(0, len(rows), step))
