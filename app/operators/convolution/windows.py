"""Convolution as products of matrices: windows are packed into the columns of one, filters are the rows of another.

Nothing is padded. An element of the filter meets some positions of the filter inside the tensor, and these are a slice
of the tensor: so the columns are packed slice by slice, and where the filter lies beside the tensor they stay 0. The
columns are made in boxes of positions, of a bounded number of bytes each.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.operators.arrays import SCRATCH, boxes, for_blas, matmul
from app.operators.looks import look

Finish: TypeAlias = Callable[[Any], None]
"""What becomes of results, { batch, channels, spatial... } and packed, in place, before they are stored."""

Place: TypeAlias = int | slice
Meeting: TypeAlias = tuple[tuple[Place, ...], tuple[Place, ...], tuple[slice, ...]]
"""Elements of the filter, positions of the filter, and elements of the tensor where they meet, along each spatial
dimension. One of the first two is a number there, and the other a slice as long as that of the tensor."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Where a filter lies over a tensor, along each spatial dimension: at position p its element k meets the tensor's
    element p * stride + k * dilation - start, if there is one."""

    sizes: Sequence[int]
    """Of the tensor."""
    positions: Sequence[int]
    """How many there are."""
    extents: Sequence[int]
    """Of the filter."""
    strides: Sequence[int]
    dilations: Sequence[int]
    starts: Sequence[int]

    @property
    def is_pointwise(self) -> bool:
        """Whether each position is one element of the tensor, at the same place."""
        return (
            all(extent == 1 for extent in self.extents)
            and not any(self.starts)
            and all(stride == 1 or count == 1 for stride, count in zip(self.strides, self.positions, strict=True))
            and list(self.sizes) == list(self.positions)
        )

    @property
    def is_inside(self) -> bool:
        """Whether at all positions all elements of the filter meet one of the tensor."""
        return all(
            start <= 0 and (count - 1) * stride + (extent - 1) * dilation - start < size
            for size, count, extent, stride, dilation, start in zip(
                *(self.sizes, self.positions, self.extents, self.strides, self.dilations, self.starts), strict=True
            )
        )

    def part(self, box: Sequence[range]) -> "Windows":
        """Of the positions of `box` alone, counted from its beginning."""
        starts = [
            start - along.start * stride for start, along, stride in zip(self.starts, box, self.strides, strict=True)
        ]
        return Windows(self.sizes, [*map(len, box)], self.extents, self.strides, self.dilations, starts)

    def meetings(self, box: Sequence[range]) -> Iterator[Meeting]:
        """What of the filter meets what of the tensor at the positions of `box`, which are counted from its beginning.

        Along each dimension one by one of whichever are fewer, elements of the filter or positions.
        """
        along = [list(self._along(axis, positions)) for axis, positions in enumerate(box)]
        for combination in itertools.product(*along):
            look()
            places, positions, elements = zip(*combination, strict=True)
            yield places, positions, elements

    def _along(self, axis: int, box: range) -> Iterator[tuple[Place, Place, slice]]:
        size, extent = self.sizes[axis], self.extents[axis]
        stride, dilation, start = self.strides[axis], self.dilations[axis], self.starts[axis]
        if extent <= len(box):
            for k in range(extent):
                first = box.start * stride + k * dilation - start
                met = _inside(first, stride, len(box), size)
                if met:
                    yield k, slice(met.start, met.stop), _steps(first, stride, met)
        else:
            for place, p in enumerate(box):
                first = p * stride - start
                met = _inside(first, dilation, extent, size)
                if met:
                    yield slice(met.start, met.stop), place, _steps(first, dilation, met)


def _inside(first: int, step: int, count: int, size: int) -> range:
    """Which of `count` places, the first one and each a step after the other, lie from 0 to below `size`."""
    return range(max(-(first // step), 0), min((size - 1 - first) // step + 1, count))


def _steps(first: int, step: int, met: range) -> slice:
    return slice(first + met.start * step, first + (met.stop - 1) * step + 1, step)


def forward(xp: Any, x: Any, filters: Any, groups: int, windows: Windows, finish: Finish, made: Any) -> None:
    """Into `made`, at each position the sums of what the filters meet, times their elements, computed in their type.

    `x` is { batch, channels, spatial... }, `filters` { outputs, channels / groups, spatial... }.
    """
    batch, channels = x.shape[:2]
    outputs, depth = filters.shape[:2]
    each = outputs // groups
    extent = math.prod(windows.extents)
    if windows.is_pointwise and 0 not in x.strides and x.dtype == filters.dtype:
        columns = for_blas(xp, x.reshape(batch, groups, depth, -1))
        results = xp.ascontiguousarray(matmul(xp, filters.reshape(groups, each, depth), columns)).reshape(made.shape)
        finish(results)
        made[...] = results
        return
    rows = filters.reshape(groups, each, depth * extent)
    scratch = _Scratch(xp, filters.dtype)
    widest = max(channels * extent, outputs) * filters.itemsize
    for items, *box in boxes([batch, *windows.positions], max(SCRATCH[xp.__name__] // widest, 1)):
        there = slice(items.start, items.stop)
        part = x[there].reshape(len(items), groups, depth, *windows.sizes)
        columns = _packed(part, box, windows, scratch)
        results = xp.ascontiguousarray(matmul(xp, rows, columns))
        results = results.reshape(len(items), outputs, *map(len, box))
        finish(results)
        made[(there, slice(None), *_slices(box))] = results


class _Scratch:
    """Memory that is used again and again."""

    def __init__(self, xp: Any, dtype: Any) -> None:
        self._xp, self._dtype = xp, dtype
        self._memory = xp.empty(0, dtype)

    def zeros(self, *sizes: int) -> Any:
        """An array of zeros, where the one before was."""
        size = math.prod(sizes)
        if size > self._memory.size:
            self._memory = self._xp.empty(0, self._dtype)
            self._memory = self._xp.empty(size, self._dtype)
        made = self._memory[:size]
        made.fill(0)
        return made.reshape(sizes)


def _packed(x: Any, box: Sequence[range], windows: Windows, scratch: _Scratch) -> Any:
    """Columns { batch, groups, channels * filter, positions } of what the filter meets at the positions of `box`."""
    columns = scratch.zeros(*x.shape[:3], *windows.extents, *map(len, box))
    turned = _turned(columns, len(box))
    for places, positions, elements in windows.meetings(box):
        turned[_meeting(places, positions)] = x[(..., *elements)]
    return columns.reshape(*x.shape[:2], -1, math.prod(map(len, box)))


def _turned(columns: Any, rank: int) -> Any:
    """{ ..., filter..., positions... } as { ..., filter, positions, filter, positions... }, dimension by dimension."""
    return columns.transpose(0, 1, 2, *itertools.chain(*[(3 + axis, 3 + rank + axis) for axis in range(rank)]))


def _meeting(places: Sequence[Place], positions: Sequence[Place]) -> tuple[Any, ...]:
    """Where in what is `_turned`."""
    return (..., *itertools.chain(*zip(places, positions, strict=True)))


def backward(xp: Any, x: Any, filters: Any, groups: int, windows: Windows) -> Any:
    """The other way round: the filters' elements, each times the element of `x` at a position, are added to what they
    meet there. `filters` is { channels, outputs / groups, spatial... }, what is made { batch, outputs, sizes... }."""
    batch, channels = x.shape[:2]
    each = filters.shape[1]
    depth, extent = channels // groups, math.prod(windows.extents)
    rows = filters.reshape(groups, depth, each * extent).swapaxes(1, 2)
    made = xp.zeros((batch, groups, each, *windows.sizes), filters.dtype)
    widest = max(groups * each * extent, channels) * filters.itemsize
    for items, *box in boxes([batch, *windows.positions], max(SCRATCH[xp.__name__] // widest, 1)):
        part = x[(slice(items.start, items.stop), slice(None), *_slices(box))].reshape(len(items), groups, depth, -1)
        columns = matmul(xp, rows, part).reshape(len(items), groups, each, *windows.extents, *map(len, box))
        turned, target = _turned(columns, len(box)), made[items.start : items.stop]
        for places, positions, elements in windows.meetings(box):
            target[(..., *elements)] += turned[_meeting(places, positions)]
    return made.reshape(batch, groups * each, *windows.sizes)


def _slices(box: Sequence[range]) -> list[slice]:
    return [slice(along.start, along.stop) for along in box]
