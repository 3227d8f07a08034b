"""Operators that fill tensors with numbers.

Source: the DML_FILL_VALUE_*_OPERATOR_DESC and DML_DIAGONAL_MATRIX*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import FeatureLevel
from app.contract.scalars import FloatOrInfinity, Int, Scalar, scalar_value
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import FLOAT64, INT64, Constant, Number, cast, converted, equal, is_float, where, widen
from app.formula.values import Value as Expression
from app.operators.accuracy import EXACT, ONCE
from app.operators.operator import (
    Operator,
    OptionalInputTensorDesc,
    OutputTensorDesc,
    StatedOutputTensorDesc,
)
from app.operators.parameters import TensorParameters
from app.operators.typed_numbers import SCALAR, number_violations, raw, typed_numbers

NumberType = Annotated[
    constants.DataType, Field(description="Type of the numbers: that of OutputTensor.", examples=["FLOAT32"])
]


class _Filled(Operator):
    """Tensors of numbers alone, whose sizes nothing else tells."""

    OutputTensor: StatedOutputTensorDesc

    by_coordinates = True
    same_types = ()
    same_sizes = ()
    example: ClassVar = {"OutputTensor": {}}

    def implied_sizes(self, name: str) -> None:
        return None


class DiagonalMatrix(_Filled):
    """Matrices with a number along a diagonal, and zeros."""

    Type: Literal["DML_OPERATOR_DIAGONAL_MATRIX", "DIAGONAL_MATRIX"]
    Offset: Int = Field(description="How far the diagonal is to the right; negative: to the left.", examples=[1])
    Value: FloatOrInfinity = Field(1.0, description="What is there, converted to the tensor's type.")

    formula_text = "f()[..., i, j] = Value if j = i + Offset, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "5_1 2-4 F64-16 I64-8 U64-8",
        "4_0 2-4 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "2_0 4 F32-16",
    )
    notes = (
        "Value becomes an integer truncated toward zero and saturated, and a float to nearest even.",
        "Integer types are there from feature level 2_1 on, as the operator's page has it; the feature level history "
        "does not name them.",
    )

    def is_bitwise(self) -> bool:
        return True

    def formula(self, p: TensorParameters) -> Expression:
        *_, i, j = coordinates(p.out("OutputTensor").rank)
        return where(equal(j, i + p.Offset), raw(p.Value, self.OutputTensor.DataType), 0)


class DiagonalMatrix1(Operator):
    """Matrices with a number in a band of diagonals, or outside of it."""

    Type: Literal["DML_OPERATOR_DIAGONAL_MATRIX1", "DIAGONAL_MATRIX1"]
    InputTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    ValueDataType: NumberType
    Value: Scalar = Field(description=f"What is there. {SCALAR}", examples=[7])
    DiagonalFillBegin: Int = Field(description="The first diagonal of the band, 0 the main one.", examples=[0])
    DiagonalFillEnd: Int = Field(
        description="The first diagonal behind the band. Less than the other: all but those between is filled.",
        examples=[1],
    )

    formula_text = (
        "f(x)[..., i, j] = Value if Begin <= d < End, d = j - i, or where Begin > End if d >= Begin or d < End, else "
        "x[..., i, j], or 0 without InputTensor; Begin = DiagonalFillBegin, End = DiagonalFillEnd"
    )
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = (("InputTensor", "OutputTensor"),)
    example: ClassVar = {"OutputTensor": {}}
    support = SupportTable.of("5_1 2-4 F64-16 I64-8 U64-8")
    notes = ("OutputTensor may be left out where there is an InputTensor.",)

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> list[int] | None:
        return self.InputTensor.Sizes if self.InputTensor else None

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if self.OutputTensor or self.InputTensor:
            yield from number_violations(self, "ValueDataType", ["Value"], "OutputTensor", "InputTensor")
        else:
            yield Violation(
                ("OutputTensor",),
                "OutputTensor is null and so is InputTensor, so that nothing says what sizes there are.",
                None,
                "a tensor descriptor",
            )

    def formula(self, p: TensorParameters, x: Operand | None) -> Expression:
        at = coordinates(p.out("OutputTensor").rank)
        diagonal, begin, end = at[-1] - at[-2], p.DiagonalFillBegin, p.DiagonalFillEnd
        after, before = diagonal >= begin, diagonal < end
        filled = (after & before) | ((after | before) & (begin > end))
        return where(filled, raw(p.Value, self.ValueDataType), x[at] if x else 0)

    def numbers(self) -> dict[str, Number]:
        return super().numbers() | typed_numbers(self, "ValueDataType", "Value")


class FillValueConstant(_Filled):
    """A number everywhere."""

    Type: Literal["DML_OPERATOR_FILL_VALUE_CONSTANT", "FILL_VALUE_CONSTANT"]
    ValueDataType: NumberType
    Value: Scalar = Field(description=f"The number. {SCALAR}", examples=[7])

    formula_text = "f()[c] = Value"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "4_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
    )

    def is_bitwise(self) -> bool:
        return True

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from number_violations(self, "ValueDataType", ["Value"], "OutputTensor")

    def formula(self, p: TensorParameters) -> Expression:
        return raw(p.Value, self.ValueDataType)

    def numbers(self) -> dict[str, Number]:
        return super().numbers() | typed_numbers(self, "ValueDataType", "Value")


def _has_32_bits(size: Number) -> bool:
    return size <= 1 << 31


class FillValueSequence(_Filled):
    """Numbers in even steps, row-major."""

    Type: Literal["DML_OPERATOR_FILL_VALUE_SEQUENCE", "FILL_VALUE_SEQUENCE"]
    ValueDataType: NumberType
    ValueStart: Scalar = Field(description=f"The first number. {SCALAR}", examples=[10])
    ValueDelta: Scalar = Field(description=f"The step from one to the next. {SCALAR}", examples=[-2])

    formula_text = "f()[c] = ValueStart + i * ValueDelta, i the row-major index of c from 0"
    accuracy = ONCE
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8",
        "4_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
    )
    notes = (
        "Integers wrap around (two's complement). DirectML's documentation does not say.",
        "Floats are computed in float64, each by itself, and rounded once; nothing is accumulated.",
        "A bare ValueDelta of an unsigned type may be negative, as in the example of the operator's page; in a "
        "DML_SCALAR_UNION it is what it wraps around to, such as 254 for -2.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        names = ["ValueStart"] if self._counts_down() else ["ValueStart", "ValueDelta"]
        yield from number_violations(self, "ValueDataType", names, "OutputTensor")

    def formula(self, p: TensorParameters) -> Expression:
        sizes = p.out("OutputTensor").sizes
        *outer, inner = coordinates(len(sizes))
        row: Expression = Constant(INT64, 0)
        for c, size in zip(outer, sizes[1:], strict=True):
            row = (row + c) * size
        start, delta = (converted(each, self.ValueDataType) for each in (p.ValueStart, p.ValueDelta))
        if not is_float(start.type):
            return start + cast(row + inner, start.type) * delta
        # There are fewer than 2^53 elements, so that both casts and their sum are exact; 32 bits are converted at once.
        index = cast(row, FLOAT64) + cast(cast(inner, "int32") if p.ask(_has_32_bits, sizes[-1]) else inner, FLOAT64)
        return widen(start) + index * widen(delta)

    def numbers(self) -> dict[str, Number]:
        delta = self.ValueDelta
        return super().numbers() | {
            "ValueStart": scalar_value(self.ValueStart, self.ValueDataType),
            "ValueDelta": delta % (1 << self.ValueDataType.bits)
            if self._counts_down() and isinstance(delta, int)
            else scalar_value(delta, self.ValueDataType),
        }

    def _counts_down(self) -> bool:
        """Whether ValueDelta is a negative number of an unsigned type, of the size that the signed type has."""
        delta, data_type = self.ValueDelta, self.ValueDataType
        return data_type.startswith("U") and isinstance(delta, int) and -(1 << (data_type.bits - 1)) <= delta < 0
