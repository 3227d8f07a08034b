"""Sums of products of 8-bit integers on a GPU: cuBLAS multiplies rows of signed bytes, and an ending corrects what it
makes for zero points.

With zero points p and q, sums of (a - p) (b - q) are those of a b, less p times those of b and q times those of a - p.
An unsigned byte is 128 less here, and so is its zero point. What wraps around on the way comes back.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc, packed_strides
from app.formula.values import Value, cast
from app.operators.endings import PRODUCT
from app.operators.parameters import Parameters
from app.operators.quantization.integers import LARGEST

ROW_SUMS, COLUMN_SUMS, TERMS = "RowSums", "ColumnSums", "Terms"
"""Inputs of an ending, what rows of the left matrix and columns of the right one add up to, and a number."""

MOST_ELEMENTS = 1 << 29
"""Of an output, so that 32 bits count what is beside them, too."""

_INT32 = "int32"


class Side(NamedTuple):
    """One of two that are multiplied."""

    data_type: DataType
    zero: str | None
    """The name of its zero points, if it has some."""

    @classmethod
    def of(cls, tensor: TensorDesc, zero: str, points: TensorDesc | None) -> "Side":
        """That of a tensor whose zero points are the field `zero`."""
        return cls(tensor.DataType, zero if points else None)

    @property
    def is_moved(self) -> bool:
        """Whether its elements are not what is multiplied."""
        return self.zero is not None or self.data_type is DataType.UINT8


class Sides(NamedTuple):
    """What chooses a formula."""

    left: Side
    right: Side
    output: DataType

    @property
    def are_moved(self) -> bool:
        """Whether sums are not those of what is multiplied."""
        return self.left.is_moved or self.right.is_moved


def are_multiplied(sides: Sides, terms: int, sizes: Sequence[int]) -> bool:
    """Whether they are bytes, and INT32 holds sums of so many products, for an output of these `sizes`."""
    are_bytes = sides.left.data_type.bits == sides.right.data_type.bits == 8
    return are_bytes and terms * LARGEST < 1 << 31 and math.prod(sizes) < MOST_ELEMENTS


def corrected(p: Parameters, sides: Sides, values: Mapping[str, Value]) -> Value:
    """Sums of products, of PRODUCT and what is made with it."""
    left, right = (_point(each, values) for each in (sides.left, sides.right))
    sums = values[PRODUCT]
    if left is not None:
        sums = sums - values[COLUMN_SUMS] * left
    if right is not None:
        of_rows = values[ROW_SUMS]
        if left is not None:
            of_rows = of_rows - cast(p[TERMS], _INT32) * left
        sums = sums - of_rows * right
    return sums


def _point(side: Side, values: Mapping[str, Value]) -> Value | int | None:
    """The zero point of what is multiplied; None for 0."""
    less = 128 if side.data_type is DataType.UINT8 else 0
    if side.zero is None:
        return -less or None
    zero = cast(values[side.zero], _INT32)
    return zero - less if less else zero


def described(
    sides: Sides, sizes: Sequence[int], product: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> dict[str, TensorDesc]:
    """What is made, over the output's `sizes`, by the steps of these."""
    steps = {PRODUCT: product}
    if sides.right.is_moved:
        steps[ROW_SUMS] = rows
    if sides.left.is_moved:
        steps[COLUMN_SUMS] = columns
    sizes = list(sizes)
    return {name: TensorDesc(DataType=DataType.INT32, Sizes=sizes, Strides=[*each]) for name, each in steps.items()}


def steps_of(sizes: Sequence[int], like: Sequence[int] | None = None) -> list[int]:
    """Of what is packed with these sizes, 0 where it is one for all, or where `like` is, if that is given."""
    return [0 if size == 1 else step for size, step in zip(like or sizes, packed_strides([*sizes]), strict=True)]
