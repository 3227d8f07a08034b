"""Windows over a few elements whose steps and paddings are as large as numbers go."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from app.contract.scalars import UINT_MAX

FAR = (1, 2, 1 << 20, 1 << 31, UINT_MAX)

FARTHEST_STRIDE = 1 << 20
"""Where something is made for each element of a stride, it is found out before there is no memory left."""


class FarWindows(NamedTuple):
    """Along each dimension: elements of a tensor, the first of all windows, and those of a window."""

    sizes: list[int]
    positions: list[int]
    extents: list[int]
    strides: list[int]
    dilations: list[int]
    starts: list[int]
    ends: list[int]

    @classmethod
    def drawn(cls, rng: np.random.Generator, rank: int) -> "FarWindows":
        return cls(*map(list, zip(*[_along(rng) for _ in range(rank)], strict=True)))

    def meetings(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        """Positions, elements of the window there, and elements of the tensor that these lie over."""
        for position in np.ndindex(*self.positions):
            for element in np.ndindex(*self.extents):
                each = zip(position, self.strides, element, self.dilations, self.starts, strict=True)
                place = tuple(at * stride + k * dilation - start for at, stride, k, dilation, start in each)
                if all(0 <= at < size for at, size in zip(place, self.sizes, strict=True)):
                    yield position, element, place


def _along(rng: np.random.Generator) -> Sequence[int]:
    while True:
        size, extent = int(rng.integers(1, 7)), int(rng.integers(1, 4))
        stride, dilation, start, end = (int(rng.choice(FAR)) for _ in range(4))
        stride = min(stride, FARTHEST_STRIDE)
        reach = 1 + (extent - 1) * dilation
        if rng.random() < 0.5:  # so that the last elements of the first window are inside
            start, end = min(max(reach - int(rng.integers(1, size + 1)), 0), UINT_MAX), int(rng.integers(3))
        positions = (size + start + end - reach) // stride + 1
        if 1 <= positions <= 8:
            return size, positions, extent, stride, dilation, start, end
