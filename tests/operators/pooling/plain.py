"""Windows as the facts say them, place by place, and random descriptors of them."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from app.memory.arrays import Array

Attributes = dict[str, Any]
Place = tuple[int, ...]


def drawn(rng: np.random.Generator, *, dilated: bool, rank: int | None = None) -> tuple[list[int], Attributes]:
    """The sizes of an input, and the fields of windows of which there is at least one."""
    while True:
        spatial = (rank or int(rng.integers(4, 6))) - 2
        sizes = [int(each) for each in rng.integers(1, 6, spatial)]
        made: Attributes = {
            "Strides": [int(each) for each in rng.integers(1, 4, spatial)],
            "WindowSize": [int(each) for each in rng.integers(1, 4, spatial)],
            "StartPadding": [int(each) for each in rng.integers(0, 4, spatial)],
            "EndPadding": [int(each) for each in rng.integers(0, 4, spatial)],
        }
        if dilated:
            made["Dilations"] = [int(each) for each in rng.integers(1, 4, spatial)]
        if rng.integers(0, 2):
            made["DimensionCount"] = spatial
        if min(pooled(sizes, made)) > 0:
            return [int(rng.integers(1, 3)), int(rng.integers(1, 3)), *sizes], made


def pooled(sizes: list[int], a: Attributes) -> list[int]:
    """How many windows there are along each spatial dimension."""
    made = []
    for i, size in enumerate(sizes):
        whole = 1 + (a["WindowSize"][i] - 1) * a.get("Dilations", [1] * len(sizes))[i]
        made.append((size + a["StartPadding"][i] + a["EndPadding"][i] - whole) // a["Strides"][i] + 1)
    return made


def windows(sizes: list[int], a: Attributes) -> Iterator[tuple[Place, list[Place]]]:
    """The place of each window, and of what it holds of a plane of these sizes, row-major."""
    dilations = a.get("Dilations", [1] * len(sizes))
    for place in product(*map(range, pooled(sizes, a))):
        along = [
            [
                at
                for k in range(a["WindowSize"][i])
                if 0 <= (at := p * a["Strides"][i] + k * dilations[i] - a["StartPadding"][i]) < sizes[i]
            ]
            for i, p in enumerate(place)
        ]
        yield place, list(product(*along))


def elements(rng: np.random.Generator, sizes: list[int], dtype: str) -> Array:
    """Few different ones, so that there are ties."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return (rng.integers(-12, 13, sizes) / 4).astype(kind)
    return rng.integers(max(np.iinfo(kind).min, -6), 7, sizes).astype(kind)


def of_all(place: Place) -> Any:
    """The index of this place in all planes."""
    return (..., *place)
