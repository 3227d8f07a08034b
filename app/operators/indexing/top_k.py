"""Operators that find the largest or the least elements along an axis.

Source: the DML_TOP_K*_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import AxisDirection, DataType, FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.operators.accuracy import EXACT
from app.operators.axes import all_but, axis_violations
from app.operators.indexing import firsts_on_gpu
from app.operators.indexing.places import AxisUint, Direction
from app.operators.indexing.rows import back, pieces, rows_of
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc


class Sorting(Operator):
    """Finds the first of an order along an axis."""

    InputTensor: InputTensorDesc
    OutputValueTensor: OutputTensorDesc = None
    OutputIndexTensor: OutputTensorDesc = None
    Axis: AxisUint
    K: Uint = Field(description="How many elements of each sequence.", examples=[2])

    same_types = (("InputTensor", "OutputValueTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputValueTensor", "OutputIndexTensor"),)
    sizes_from = ("InputTensor", "Axis", "K")
    example: ClassVar[Mapping[str, Any]] = {"Axis": 3}
    working_bytes = 20
    only_queues = makes_in = True
    notes: ClassVar[tuple[str, ...]] = (
        "Equal elements, 0 and -0 among them, are in the order of their indices.",
        "NaN counts as larger than all numbers. DirectML's documentation does not say.",
        "K may be the size along Axis. DirectML says that it must be less.",
        "OutputIndexTensor is UINT32 if it is null.",
    )

    @property
    def decreasing(self) -> bool:
        """Whether the largest elements come first."""
        return True

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = [*axis_violations(self.Axis, "InputTensor", self.InputTensor.rank)]
        yield from found
        size = 0 if found else self.InputTensor.Sizes[self.Axis]
        if size and not 1 <= self.K <= size:
            yield Violation(
                ("K",),
                f"K is {self.K}; it must be from 1 to {size}, the size of InputTensor along Axis, which is "
                f"{self.Axis}.",
                self.K,
                f"1 to {size}",
            )

    def implied_sizes(self, name: str) -> list[int]:
        sizes = self.InputTensor.Sizes
        return [*sizes[: self.Axis], self.K, *sizes[self.Axis + 1 :]]

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.UINT32 if name == "OutputIndexTensor" else self.InputTensor.DataType

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield from all_but(self, self.Axis, self.InputTensor.rank)

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x = inputs["InputTensor"]
        rows = rows_of(xp, x, self.Axis)
        wide = self.OutputIndexTensor and self.OutputIndexTensor.DataType is DataType.UINT64
        types = {"OutputValueTensor": x.dtype, "OutputIndexTensor": xp.uint64 if wide else xp.uint32}
        is_last = math.prod(x.shape[self.Axis + 1 :]) == 1
        direct = {name: each for name, each in (into or {}).items() if is_last and each.flags.c_contiguous}
        made = {name: direct[name] if name in direct else xp.empty((len(rows), self.K), types[name]) for name in types}
        values, indices = (each.reshape(len(rows), self.K) for each in made.values())
        if xp.__name__ == "cupy" and self.K <= firsts_on_gpu.MOST_FIRST:
            firsts_on_gpu.find(xp, rows, self.K, values, indices, decreasing=self.decreasing)
        else:
            for piece in pieces(rows):
                part = rows[piece]
                first = _first(xp, part, self.K, self.decreasing)
                indices[piece] = first
                values[piece] = xp.take_along_axis(part, first, -1)
        return {name: each if name in direct else back(xp, each, x, self.Axis) for name, each in made.items()}


class TopK(Sorting):
    """The largest elements along an axis in descending order, and where they are."""

    Type: Literal["DML_OPERATOR_TOP_K", "TOP_K"]

    formula_text = (
        "per sequence along Axis: the K largest elements in descending order, and their positions in the sequence"
    )
    accuracy = EXACT
    notes = (
        *Sorting.notes,
        "It is there from feature level 2_0 on, as its page has it; DirectML's header declares it for 1_0.",
    )
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8, OutputIndexTensor U64-32",
        "3_1 1-8 F32-16 I32-8 U32-8, OutputIndexTensor U32",
        "2_1 4 F32-16 I32-8 U32-8, OutputIndexTensor U32",
        "2_0 4 F32-16, OutputIndexTensor U32",
    )


class TopK1(Sorting):
    """The largest elements along an axis in descending order, or the least in ascending order, and where they are."""

    Type: Literal["DML_OPERATOR_TOP_K1", "TOP_K1"]
    AxisDirection: Direction

    formula_text = (
        "per sequence along Axis: the K largest elements in descending order (AxisDirection DECREASING) or the K "
        "smallest in ascending order (INCREASING), and their positions in the sequence"
    )
    accuracy = EXACT
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8, OutputIndexTensor U64-32",
        "3_1 1-8 F32-16 I32-8 U32-8, OutputIndexTensor U32",
        "2_1 4 F32-16 I32-8 U32-8, OutputIndexTensor U32",
    )

    @property
    def decreasing(self) -> bool:
        return self.AxisDirection is AxisDirection.DECREASING


def _first(xp: Any, rows: Any, count: int, decreasing: bool) -> Any:
    """Indices of the `count` largest or least elements of each row, in order, int64."""
    if rows.dtype.itemsize == 8:
        # All bits inverted are the other way round, for either sign, and the order of equals stays.
        return xp.argsort(~rows if decreasing else rows, axis=-1, kind="stable")[:, :count]
    # Elements with their indices below them are 64 bits of which no two are equal, and so quick to sort.
    keys = _ordered(xp, rows)
    if decreasing:
        xp.invert(keys, out=keys)
    keys <<= 32
    keys |= xp.arange(rows.shape[-1], dtype=xp.int64)
    if count < rows.shape[-1]:
        keys.partition(count - 1, axis=-1)
        keys = keys[:, :count]
    keys = xp.sort(keys, axis=-1)
    keys &= 0xFFFFFFFF
    return keys


def _ordered(xp: Any, rows: Any) -> Any:
    """Whole numbers of 32 bits, as int64, in the order of the elements of at most 32 bits."""
    if rows.dtype.kind == "f":
        numbers = rows.astype(xp.float32)
        numbers[numbers != numbers] = xp.nan  # all NaN become one, beyond infinity
        bits = numbers.view(xp.int32)
        bits[bits == -(1 << 31)] = 0  # -0 becomes 0; CuPy's sum with 0 would make it of what is subnormal, too
        bits ^= (bits >> 31) & 0x7FFFFFFF
        return bits.astype(xp.int64)
    made = rows.astype(xp.int64)
    if rows.dtype.kind == "u":
        made -= 1 << 31
    return made
