"""Layouts made simple before a kernel walks them."""

import math
from collections.abc import Iterator, Sequence

from app.programs.dispatchable import Dispatchable
from app.programs.walks import Walk, collapse

Index = tuple[slice | int, ...]


def walk(compiled: Dispatchable, output: str, item_sizes: Sequence[int] | None = None) -> Walk:
    """How to visit all elements of `output` and of the inputs, in as few dimensions as will do. Strides are in
    elements, or in bytes if `item_sizes`, the output's last, say how many an element has."""
    made, inputs = compiled.outputs[output], compiled.inputs
    count = made.elements
    is_one = made.Strides is None and count > 1  # run of elements, in all tensors
    for desc in inputs.values() if is_one else ():
        if desc is not made and (desc.Strides is not None or desc.elements != count):
            is_one = False
            break
    units = item_sizes or [1] * (len(inputs) + 1)
    if is_one:
        return [count], [[unit] for unit in units]
    sizes, strides = collapse(made.Sizes, compiled.layouts(output))
    return sizes, [[step * unit for step in each] for each, unit in zip(strides, units, strict=True)]


def reaches(sizes: Sequence[int], strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> list[int]:
    """How many bytes of each tensor's buffer are read or written, from strides in bytes."""
    if len(sizes) == 1:
        last = sizes[0] - 1
        return [last * steps[0] + size for steps, size in zip(strides, item_sizes)]  # noqa: B905 - as above
    return [
        sum([(count - 1) * step for count, step in zip(sizes, steps, strict=True)]) + size
        for steps, size in zip(strides, item_sizes, strict=True)
    ]


def packed_along(sizes: Sequence[int], chosen: Sequence[bool]) -> list[int]:
    """Row-major strides of the chosen dimensions, 0 for the others."""
    strides = [0] * len(sizes)
    step = 1
    for axis in range(len(sizes) - 1, -1, -1):
        if chosen[axis]:
            strides[axis] = step
            step *= sizes[axis]
    return strides


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
