"""Operators that put something around a tensor.

Source: the DML_PADDING*_OPERATOR_DESC pages of DirectML's reference, and the feature level history for the mode WRAP.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import FeatureLevel, PaddingMode
from app.contract.scalars import FloatOrInfinity, Scalar
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Number, Parameter, Value, minimum, remainder_of_floor, where
from app.operators.accuracy import EXACT
from app.operators.data_movement.attributes import Uints, length_violations
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import TensorParameters
from app.operators.typed_numbers import SCALAR, number_violations, raw, typed_numbers

MODES = {PaddingMode.SYMMETRIC: FeatureLevel.V3_0, PaddingMode.WRAP: FeatureLevel.V6_4}
"""The levels from which on there are modes that were not there from the beginning."""

WRAPPED = "WRAP, of which only the name is documented, repeats the tensor periodically."
FOLDED = (
    "REFLECTION and SYMMETRIC fold again and again where paddings are larger than the tensor; REFLECTION of one "
    "element repeats it."
)


class _Padded(Operator):
    """What both have in common."""

    same_types: ClassVar = (("InputTensor", "OutputTensor"),)
    same_sizes: ClassVar = ()
    same_ranks: ClassVar = (("InputTensor", "OutputTensor"),)
    sizes_from: ClassVar = ("InputTensor", "StartPadding", "EndPadding")
    counts: ClassVar = {"DimensionCount": ("StartPadding", "EndPadding")}
    by_coordinates: ClassVar = True

    def is_bitwise(self) -> bool:
        return True


class Padding(_Padded):
    """A tensor with elements added before and behind it, along each dimension."""

    Type: Literal["DML_OPERATOR_PADDING", "PADDING"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    PaddingMode: Annotated[constants.PaddingMode, Field(description="What is added.", examples=["CONSTANT"])]
    PaddingValue: FloatOrInfinity = Field(
        description="What CONSTANT adds, converted to the tensor's type.", examples=[9.0]
    )
    DimensionCount: Count = None
    StartPadding: Uints = Field(description="Elements before the tensor, along each dimension.")
    EndPadding: Uints = Field(description="Elements behind the tensor, along each dimension.")

    formula_text = (
        "f(x)[c] = x[i], i = c - StartPadding; where i is outside of n elements: CONSTANT PaddingValue, EDGE the "
        "nearest element, REFLECTION mirrored (period 2n - 2), SYMMETRIC mirrored with the edge twice (period 2n), "
        "WRAP x[i mod n]"
    )
    accuracy = EXACT
    example: ClassVar = {"StartPadding": [0, 0, 0, 1], "EndPadding": [0, 0, 1, 2]}
    support = SupportTable.of(
        "5_0 1-8 F64-16 I64-8 U64-8",
        "3_1 1-8 F32-16 I32-8 U32-8",
        "2_1 4-5 F32-16 I32-8 U32-8",
        "1_0 4-5 F32-16",
    )
    notes = (
        "PaddingValue becomes an integer truncated toward zero and saturated, and a float to nearest even.",
        FOLDED,
        WRAPPED,
    )

    def implied_sizes(self, name: str) -> list[int]:
        return _padded_sizes(self)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _violations(self, level)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return _padded(self, p, x, raw(p.PaddingValue, self.InputTensor.DataType))


class Padding1(_Padded):
    """A tensor with elements added before and behind it, the added ones of its own type."""

    Type: Literal["DML_OPERATOR_PADDING1", "PADDING1"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    PaddingMode: Annotated[constants.PaddingMode, Field(description="What is added.", examples=["CONSTANT"])]
    PaddingValueDataType: Annotated[
        constants.DataType, Field(description="Type of PaddingValue: that of OutputTensor.", examples=["FLOAT32"])
    ]
    PaddingValue: Scalar = Field(description=f"What CONSTANT adds. {SCALAR}", examples=[9.0])
    DimensionCount: Count = None
    StartPadding: Uints = Field(description="Elements before the tensor, along each dimension.")
    EndPadding: Uints = Field(description="Elements behind the tensor, along each dimension.")

    formula_text = Padding.formula_text
    accuracy = EXACT
    example: ClassVar = {"StartPadding": [0, 0, 0, 1], "EndPadding": [0, 0, 1, 2]}
    support = SupportTable.of("5_0 1-8 F64-16 I64-8 U64-8")
    notes = (FOLDED, WRAPPED)

    def implied_sizes(self, name: str) -> list[int]:
        return _padded_sizes(self)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _violations(self, level)
        yield from number_violations(self, "PaddingValueDataType", ["PaddingValue"], "OutputTensor", "InputTensor")

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return _padded(self, p, x, raw(p.PaddingValue, self.PaddingValueDataType))

    def numbers(self) -> dict[str, Number]:
        return super().numbers() | typed_numbers(self, "PaddingValueDataType", "PaddingValue")


def _padded_sizes(operator: Padding | Padding1) -> list[int]:
    ends = zip(operator.InputTensor.Sizes, operator.StartPadding, operator.EndPadding, strict=True)
    return [size + start + end for size, start, end in ends]


def _violations(operator: Padding | Padding1, level: FeatureLevel) -> Iterator[Violation]:
    mode = operator.PaddingMode
    since = MODES.get(mode, level)
    if level < since:
        yield Violation(
            ("PaddingMode",),
            f"PaddingMode is {mode}, which there is from feature level {since} on; this is {level}.",
            mode,
            [each for each in PaddingMode if MODES.get(each, level) <= level],
        )
    rank = operator.InputTensor.rank
    yield from length_violations(operator, ("StartPadding", "EndPadding"), "InputTensor", rank)


def _padded(operator: Padding | Padding1, p: TensorParameters, x: Operand, constant: Parameter) -> Value:
    at = [c - start for c, start in zip(coordinates(x.rank), p.StartPadding, strict=True)]
    if operator.PaddingMode is PaddingMode.CONSTANT:
        inside = (at[0] >= 0) & (at[0] < x.sizes[0])
        for i, size in zip(at[1:], x.sizes[1:], strict=True):
            inside &= (i >= 0) & (i < size)
        return where(inside, x[at], constant)
    return x[[_source(operator.PaddingMode, i, size) for i, size in zip(at, x.sizes, strict=True)]]


def _source(mode: PaddingMode, i: Value, size: Value) -> Value:
    """Which element along a dimension is at `i`, which may be outside of `size` elements."""
    match mode:
        case PaddingMode.REFLECTION:
            period = 2 * size - 2  # 0 of one element, where the remainder is 0 as well
            place = remainder_of_floor(i, period)
            return minimum(place, period - place)
        case PaddingMode.SYMMETRIC:
            place = remainder_of_floor(i, 2 * size)
            return minimum(place, 2 * size - 1 - place)
        case PaddingMode.WRAP:
            return remainder_of_floor(i, size)
    return i  # EDGE: whatever is outside is read at the nearest place inside
