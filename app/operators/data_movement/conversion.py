"""Operators that convert elements.

Source: the DML_CAST_OPERATOR_DESC and DML_VALUE_SCALE_2D_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract.constants import DataType, FeatureLevel
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Value, cast, compute_type, equal, is_float, saturate, where, widen
from app.operators.accuracy import ONCE, SUM
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import Parameters, TensorParameters


class Cast(Operator):
    """Each element as another data type."""

    Type: Literal["DML_OPERATOR_CAST", "CAST"]
    InputTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc

    formula_text = "f(x) = x, converted to the data type of OutputTensor"
    accuracy = ONCE
    same_types = ()
    example: ClassVar = {"OutputTensor": {"DataType": "INT8"}}
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_1 1-8 F32-16 I64-8 U64-8",
        "3_0 4 F32-16 I64-8 U64-8",
        "1_0 4 F32-16 I16-8 U16-8",
    )
    notes = (
        "Floats become integers truncated toward zero; beyond the type's range they become the nearest number in it, "
        "and NaN becomes 0. DirectML's documentation does not say.",
        "Integers become narrower ones by their lowest bits. DirectML's documentation does not say.",
        "What becomes a float is rounded once, to nearest even; beyond the type's range it is an infinity.",
        "At feature level 1_0 there are no integers of 32 bits, as in the table of the operator's page.",
    )

    def is_bitwise(self) -> bool:
        return self.InputTensor.DataType == self.OutputTensor.DataType

    def formula(self, p: Parameters, x: Value) -> Value:
        if self.is_bitwise():
            return x
        data_type = self.OutputTensor.DataType
        type_ = compute_type(data_type)
        if is_float(x.type) and not is_float(type_):
            return saturate(x, type_)
        if x.type == "float64" and data_type is DataType.FLOAT16:
            return x  # to be rounded once, when it is stored
        return cast(x, type_)


class ValueScale2D(Operator):
    """A straight line for each channel of an image."""

    Type: Literal["DML_OPERATOR_VALUE_SCALE_2D", "VALUE_SCALE_2D"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Scale: Float = Field(description="Factor of all elements.")
    ChannelCount: Count = None
    Bias: Annotated[list[Float], Field(min_length=1, max_length=3)] = Field(
        description="What is added to the product, for each channel."
    )

    formula_text = "f(x)[n, c, h, w] = Scale * x[n, c, h, w] + Bias[c]"
    accuracy = SUM
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = (("InputTensor", "OutputTensor"),)
    counts: ClassVar = {"ChannelCount": ("Bias",)}
    example: ClassVar = {"Scale": 2, "Bias": [0.5]}
    support = SupportTable.of("1_0 4 F32-16")
    notes = ("Computed in float64 and rounded once.",)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        channels, length = self.InputTensor.Sizes[1], len(self.Bias)
        if length not in (1, 3):
            yield Violation(
                ("Bias",), f"Bias has {length} entries; it has 1 or 3, one for each channel.", length, [1, 3]
            )
        elif length != channels:
            yield Violation(
                ("Bias",),
                f"Bias has {length} entries but InputTensor has {channels} channels; give one for each channel.",
                length,
                channels,
            )

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        at = coordinates(x.rank)
        bias = widen(p.Bias[0])
        for channel, each in enumerate(p.Bias[1:], 1):
            bias = where(equal(at[1], channel), widen(each), bias)
        return widen(x[at]) * widen(p.Scale) + bias
