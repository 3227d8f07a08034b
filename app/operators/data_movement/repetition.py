"""Operators that enlarge a tensor by repeating what is in it, or what lies between.

Source: the DML_TILE_OPERATOR_DESC and DML_UPSAMPLE_2D_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import FeatureLevel
from app.contract.scalars import Size2D
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Value, equal, maximum, minimum, quotient, remainder_of_floor, where, widen
from app.operators.accuracy import EXACT, SUM
from app.operators.data_movement.attributes import Positives, length_violations
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import TensorParameters


class Tile(Operator):
    """A tensor again and again, along each dimension."""

    Type: Literal["DML_OPERATOR_TILE", "TILE"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    RepeatsCount: Count = None
    Repeats: Positives = Field(description="How often the tensor is there, along each dimension.")

    formula_text = "f(x)[c] = x[c mod InputTensor.Sizes]"
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensor"),)
    sizes_from = ("InputTensor", "Repeats")
    counts: ClassVar = {"RepeatsCount": ("Repeats",)}
    example: ClassVar = {"Repeats": [1, 1, 1, 2]}
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8",
        "3_1 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16",
    )

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> list[int]:
        return [size * count for size, count in zip(self.InputTensor.Sizes, self.Repeats, strict=True)]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from length_violations(self, ["Repeats"], "InputTensor", self.InputTensor.rank)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return x[[remainder_of_floor(c, size) for c, size in zip(coordinates(x.rank), x.sizes, strict=True)]]


class Upsample2D(Operator):
    """An image, enlarged by whole factors."""

    Type: Literal["DML_OPERATOR_UPSAMPLE_2D", "UPSAMPLE_2D"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    ScaleSize: Size2D = Field(
        description="The factors of the last two dimensions.", examples=[{"Width": 2, "Height": 2}]
    )
    InterpolationMode: Annotated[
        constants.InterpolationMode, Field(description="How elements are made.", examples=["NEAREST_NEIGHBOR"])
    ]

    formula_text = (
        "f(x)[..., i, j] = x at row (i + 0.5) / ScaleSize.Height - 0.5 and column (j + 0.5) / ScaleSize.Width - 0.5, "
        "at the edges at most: NEAREST_NEIGHBOR the nearest element, LINEAR the mean of the 2 x 2 around, by their "
        "nearness"
    )
    accuracy = SUM
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensor"),)
    sizes_from = ("InputTensor", "ScaleSize")
    support = SupportTable.of("1_0 4-5 F32-16")
    notes = (
        "Elements are at the centers of pixels, and beyond the first and the last those are repeated, as for RESAMPLE.",
        "LINEAR is computed in float64 and rounded once; an element of weight 0 has no part in the mean, be it an "
        "infinity or NaN.",
    )

    def is_bitwise(self) -> bool:
        return self.InterpolationMode is constants.InterpolationMode.NEAREST_NEIGHBOR

    def implied_sizes(self, name: str) -> list[int]:
        *rest, height, width = self.InputTensor.Sizes
        return [*rest, height * self.ScaleSize.Height, width * self.ScaleSize.Width]

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        *rest, row, column = coordinates(x.rank)
        height, width = p["ScaleSize.Height"], p["ScaleSize.Width"]
        if self.is_bitwise():
            return x[[*rest, quotient(row, height), quotient(column, width)]]
        top, down = _between(row, height, x.sizes[-2])
        left, right = _between(column, width, x.sizes[-1])
        rows = [
            _mean(widen(x[[*rest, each, left]]), widen(x[[*rest, each, left + 1]]), right) for each in (top, top + 1)
        ]
        return _mean(rows[0], rows[1], down)


def _between(place: Value, factor: Value, size: Value) -> tuple[Value, Value]:
    """The element before `place`, which is enlarged by `factor`, and how far the place is from it to the next, below 1.
    Both are exact: (place + 0.5) / factor - 0.5 is a quotient of whole numbers."""
    twice = 2 * factor
    inside = minimum(maximum(2 * place + 1 - factor, 0), (size - 1) * twice)
    before = quotient(inside, twice)
    return before, widen(inside - before * twice) / widen(twice)


def _mean(one: Value, other: Value, weight: Value) -> Value:
    return where(equal(weight, 0), one, one * (1 - weight) + other * weight)
