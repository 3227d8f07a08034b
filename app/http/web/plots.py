"""Curves as drawings: where each line and label of a plot goes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.engine.curves import Curve
from app.memory.arrays import Array

WIDTH, HEIGHT = 3200, 2000
"""Of a plot, in its own units, tenths of which make a pixel where it is 320 pixels wide."""

LEFT, TOP, RIGHT, BOTTOM = 400, 60, WIDTH - 60, HEIGHT - 180
"""The frame, outside of which are the labels."""

_TOLERANCE = 2.0  # how far a line may be from the samples


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled position on an axis."""

    at: int
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """What an SVG of WIDTH by HEIGHT consists of. `path` is the curve, which may lead out of the frame."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_axis: int | None
    y_axis: int | None
    path: str
    discrete: bool


def draw(curve: Curve) -> Plot:
    """The plot of `curve`."""
    x_low, x_high = curve.x_range
    low, high = curve.y_range
    margin = (high - low) * 0.06 or 1.0
    y_low, y_high = low - margin, high + margin
    if curve.discrete:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    xs, ys = (RIGHT - LEFT) / (x_high - x_low), (BOTTOM - TOP) / (y_high - y_low)

    def across(x: float) -> int:
        return round(LEFT + (x - x_low) * xs)

    def down(y: float) -> int:
        return round(BOTTOM - (y - y_low) * ys)

    pieces = [np.array(piece) for piece in curve.pieces]
    # What is far outside of the frame need not be exact, only outside.
    pieces = [
        np.column_stack(
            [
                LEFT + (piece[:, 0] - x_low) * xs,
                np.clip(BOTTOM - (piece[:, 1] - y_low) * ys, TOP - HEIGHT, BOTTOM + HEIGHT),
            ]
        )
        for piece in pieces
    ]
    return Plot(
        x_ticks=tuple(Tick(across(x), label) for x, label in _ticks(x_low, x_high)),
        y_ticks=tuple(Tick(down(y), label) for y, label in _ticks(y_low, y_high)),
        x_axis=down(0) if y_low < 0 < y_high else None,
        y_axis=across(0) if x_low < 0 < x_high else None,
        path="".join(_dots(piece) if curve.discrete or len(piece) == 1 else _line(piece) for piece in pieces),
        discrete=curve.discrete,
    )


def _ticks(low: float, high: float) -> Iterator[tuple[float, str]]:
    """Round numbers from `low` to `high`, at most eight."""
    rough = (high - low) / 7
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    for count in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield count * step, f"{count * step:.6g}"


def _line(points: Array) -> str:
    """A path through `points`, in whole units, relative."""
    corners = np.rint(points[_corners(points, 0, len(points) - 1)]).astype(int)
    moves = "".join(f"l{x} {y}" for x, y in np.diff(corners, axis=0).tolist() if x or y)
    return f"M{corners[0][0]} {corners[0][1]}{moves or 'h0'}"


def _dots(points: Array) -> str:
    """A path of one dot for each of `points`: a line without length, whose ends are round."""
    return "".join(f"M{x} {y}h0" for x, y in np.rint(points).astype(int).tolist())


def _corners(points: Array, first: int, last: int) -> list[int]:
    """The few of `points` from which the others are no farther than _TOLERANCE (Douglas and Peucker)."""
    start, end = points[first], points[last]
    dx, dy = end - start
    between = points[first + 1 : last] - start
    distances = abs(between[:, 0] * dy - between[:, 1] * dx) / (math.hypot(dx, dy) or 1.0)
    if not distances.size or distances.max() <= _TOLERANCE:
        return [first, last]
    middle = first + 1 + int(distances.argmax())
    return _corners(points, first, middle) + _corners(points, middle, last)[1:]
