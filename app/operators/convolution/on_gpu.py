"""Convolutions on a GPU as products of matrices: what filters meet at each position is packed into a row by a kernel of
ours, for some positions at a time, and cuBLAS multiplies the filters with all these rows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from app.contract.tensors import packed_strides
from app.formula.values import FLOAT32
from app.operators import blas, packing
from app.operators.arrays import SCRATCH, boxes
from app.operators.convolution.windows import Windows
from app.operators.packing import Packed

QUICK_POSITIONS = 4
"""What positions are a multiple of for cuBLAS to take its quick ways to make float32."""


def product_of_floats(cupy: Any, x: Any, filters: Any, windows: Windows, groups: int) -> Any:
    """Forward, of float16 or float32, what `filters` meet of `x` times their elements, added up in float32: { batch,
    outputs, positions... }, by `steps_of_positions`."""
    rows = packing.rows_of(cupy, filters.reshape(groups, len(filters) // groups, -1)).rows

    def multiply(a: Any, b: Any) -> Any:
        return blas.product_of_floats(cupy, a, b.swapaxes(-1, -2), FLOAT32)

    made = product_of_windows(cupy, x, rows, windows, multiply, multiple=QUICK_POSITIONS).rows
    return over_output(cupy, made, (len(x), len(filters), *windows.positions))


def product_of_windows(
    cupy: Any, x: Any, filters: Any, windows: Windows, multiply: Callable[[Any, Any], Any], **more: Any
) -> Packed:
    """What `filters`, { groups, outputs of each, terms } and packed as `packed` makes rows, give at the positions of
    `windows` over `x`, by `multiply`, which gets them and all packed positions, { groups, positions, terms }:
    { outputs, batch, positions }. The sums, { groups, batch, positions }, are those of `packed`, which gets `more`."""
    groups, each, terms = filters.shape
    count = math.prod(windows.positions)
    whole: Packed | None = None
    most = max(SCRATCH["cupy"] // (groups * terms * filters.itemsize), 1)
    for items, *box in boxes([len(x), *windows.positions], most):
        rows, sums = packing.packed(cupy, x[items.start : items.stop], windows.part(box), groups, **more)
        made = multiply(filters, rows.reshape(groups, -1, terms))
        part = Packed(made.reshape(groups * each, *rows.shape[1:3]), sums)
        here = math.prod(map(len, box))
        if len(items) == len(x) and here == count:
            return part
        if whole is None:
            columns = packing.up(count, more.get("multiple", 1))
            kept = [None if made is None else cupy.empty((len(made), len(x), columns), made.dtype) for made in part]
            whole = Packed(*kept)
        first = _place(windows, box)
        for target, made in zip(whole, part, strict=True):
            if target is not None:
                target[:, items.start : items.stop, first : first + here] = made[..., :here]
    assert whole, "there are positions"
    return whole


def _place(windows: Windows, box: Sequence[range]) -> int:
    """Which of all positions the first one of `box` is. Those of a box are one after the other."""
    place = 0
    for size, along in zip(windows.positions, box, strict=True):
        place = place * size + along.start
    return place


def over_output(xp: Any, made: Any, sizes: Sequence[int]) -> Any:
    """What `product_of_windows` makes, of the output's channels or of one for all, over the output of these `sizes`,
    without a copy."""
    there = made[..., : math.prod(sizes[2:])].swapaxes(0, 1)
    return xp.broadcast_to(there, (*sizes[:2], there.shape[-1])).reshape(sizes)


def steps_of_positions(sizes: Sequence[int], multiple: int, *, of_channels: bool = True) -> list[int]:
    """How that lies."""
    batch, _, *positions = sizes
    width = packing.up(math.prod(positions), multiple)
    steps = [width, batch * width if of_channels else 0, *packed_strides(positions)]
    return [0 if size == 1 else step for size, step in zip(sizes, steps, strict=True)]
