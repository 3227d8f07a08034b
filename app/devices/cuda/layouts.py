"""How the tensors of a formula that goes by position lie, as far as it chooses a kernel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

ACCESS_BYTES = 16
"""The most that a thread loads or stores at once."""

TILES, TILE_BYTES = (64, 32), 24 << 10
"""Elements of a tile along both dimensions, and bytes that the tiles of all inputs may have."""

LEAST_TURNED = 1 << 14
"""Elements of an output of which some inputs are read across."""


class Access(StrEnum):
    """How a tensor moves along the innermost dimension."""

    UNIT = "unit"  # from each element to the next
    NONE = "none"  # not at all
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Layout:
    """What of the tensors' layouts chooses code: the number of dimensions, the elements that a thread computes at once
    along the innermost of them, and each tensor's step there, the output's last.

    With a width above 1 all steps are UNIT or NONE, all pointers are aligned to a vector, and so are, if there are
    several dimensions, the innermost size and the other strides.
    """

    rank: int
    width: int
    steps: tuple[Access, ...]
    across: int = -1
    """Along which dimension inputs lie that do not lie along the innermost, if blocks turn tiles of them,"""
    turned: tuple[bool, ...] = ()
    """which inputs these are,"""
    tile: int = 0
    """and how many elements a tile has along both."""


def widest(bytes_of_elements: Sequence[int]) -> int:
    """Elements of a vector, so that none takes more than `ACCESS_BYTES`."""
    return max(ACCESS_BYTES // max(bytes_of_elements), 1)


def choose_layout(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], bytes_of_elements: Sequence[int], *, aligned: bool
) -> Layout:
    """The layout of tensors whose `sizes` and `strides`, in elements, are collapsed, the output's last."""
    steps = tuple(
        Access.UNIT if each[-1] == 1 else Access.NONE if each[-1] == 0 or sizes[-1] == 1 else Access.ANY
        for each in strides
    )
    moving = [size for size, step in zip(bytes_of_elements, steps, strict=True) if step is not Access.NONE]
    width = widest(moving or bytes_of_elements)
    if not aligned or Access.ANY in steps or steps[-1] is Access.NONE or math.prod(sizes) < width:
        width = 1
    if len(sizes) > 1:
        for each, step in zip(strides, steps, strict=True):
            places = each[:-1] if step is Access.UNIT else []
            width = math.gcd(width, sizes[-1], *places)
    return Layout(len(sizes), width, steps, *_turned(sizes, strides, bytes_of_elements, steps))


def _turned(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], bytes_of_elements: Sequence[int], steps: Sequence[Access]
) -> tuple[int, tuple[bool, ...], int]:
    """What a layout says of tiles."""
    inputs = [*zip(strides, steps, strict=True)][:-1]
    found = [each.index(1) for each, step in inputs if step is Access.ANY and 1 in each]
    if not found or steps[-1] is not Access.UNIT or math.prod(sizes) < LEAST_TURNED:
        return -1, (), 0
    across = found[0]
    turned = tuple(step is Access.ANY and each[across] == 1 for each, step in inputs)
    row_bytes = sum(size for size, is_turned in zip(bytes_of_elements, turned, strict=False) if is_turned)
    tile = next((tile for tile in TILES if tile * tile * row_bytes <= TILE_BYTES), 0)
    if not tile or min(sizes[across], sizes[-1]) < tile // 2:
        return -1, (), 0
    return across, turned, tile


def tiles_of(sizes: Sequence[int], layout: Layout) -> int:
    """How many there are, each of which a block computes."""
    others = math.prod(sizes) // (sizes[layout.across] * sizes[-1])
    return others * math.prod(-(-size // layout.tile) for size in (sizes[layout.across], sizes[-1]))
