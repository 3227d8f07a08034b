"""Layouts made simple before a kernel walks them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import le
from typing import Protocol

from app.programs.dispatchable import Dispatchable
from app.programs.walks import Walk, collapse

Index = tuple[slice | int, ...]

ENDS = "a buffer ends before its tensor"


def walk(compiled: Dispatchable, output: str, item_sizes: Sequence[int] | None = None) -> Walk:
    """How to visit all elements of `output` and of the inputs, in as few dimensions as will do. Strides are in
    elements, or in bytes if `item_sizes`, the output's last, say how many an element has."""
    made = compiled.outputs[output]
    descs = [*compiled.inputs.values(), made]
    units = item_sizes or [1] * len(descs)
    count, steps = made.elements, []
    for desc, unit in zip(descs, units):  # noqa: B905 - to say so takes as long as all the rest
        elements = desc.elements
        if desc.Strides is not None or 1 < elements < count:
            sizes, strides = collapse(made.Sizes, compiled.layouts(output))
            return sizes, [[step * unit for step in each] for each, unit in zip(strides, units, strict=True)]
        steps.append([unit if elements > 1 else 0])
    return [count], steps


def reaches(sizes: Sequence[int], strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> list[int]:
    """How many bytes of each tensor's buffer are read or written, from strides in bytes."""
    if len(sizes) == 1:
        last = sizes[0] - 1
        return [last * steps[0] + size for steps, size in zip(strides, item_sizes)]  # noqa: B905 - as above
    return [
        sum([(count - 1) * step for count, step in zip(sizes, steps, strict=True)]) + size
        for steps, size in zip(strides, item_sizes, strict=True)
    ]


class Tensor(Protocol):
    """Bytes anywhere."""

    @property
    def nbytes(self) -> int: ...


def check_ends(tensors: Iterable[Tensor], sizes: Iterable[int]) -> None:
    """Raises ValueError if one has fewer bytes."""
    if not all(map(le, sizes, [each.nbytes for each in tensors])):
        raise ValueError(ENDS)


def packed_along(sizes: Sequence[int], chosen: Sequence[bool]) -> list[int]:
    """Row-major strides of the chosen dimensions, 0 for the others."""
    strides = [0] * len(sizes)
    step = 1
    for axis in range(len(sizes) - 1, -1, -1):
        if chosen[axis]:
            strides[axis] = step
            step *= sizes[axis]
    return strides


def grouped(compiled: Dispatchable, output: str) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """How to visit `output`, whose formula reduces, and the inputs, in as few dimensions as will do: their sizes, an
    element's steps to its place in its group along each, its steps to its group, 0 along what the formula reduces, and
    each tensor's strides in elements, the output's last."""
    sizes, axes = compiled.outputs[output].Sizes, compiled.program.maps[output].axes
    # Two more layouts see to it that elements keep their places in groups, and that groups stay apart.
    places = packed_along(sizes, [axis in axes for axis in range(len(sizes))])
    groups = packed_along(sizes, [axis not in axes for axis in range(len(sizes))])
    merged, (places, groups, *steps) = collapse(sizes, [places, groups, *compiled.layouts(output)])
    return merged, places, groups, steps


BLOCK_BYTES = 1 << 8
"""Of memory, that an index of a block takes."""


def blocks(sizes: Sequence[int], most: int) -> Iterator[Index]:
    """Indices that cut an array of `sizes` into blocks of at most `most` elements, in memory order."""
    axis = len(sizes) - 1
    while axis > 0 and math.prod(sizes[axis:]) <= most:
        axis -= 1
    rows = max(most // math.prod(sizes[axis + 1 :]), 1)
    for outer in _coordinates(sizes[:axis]):
        for start in range(0, sizes[axis], rows):
            yield (*outer, slice(start, start + rows))


def _coordinates(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for head in _coordinates(sizes[:-1]):
        for last in range(sizes[-1]):
            yield (*head, last)
