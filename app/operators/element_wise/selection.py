"""ELEMENT_WISE_* operators that limit elements or choose among them.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import FeatureLevel
from app.contract.scalars import Bound, Scalar
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import Number, Value, converted, maximum, minimum, not_equal, where
from app.operators.accuracy import EXACT
from app.operators.forms import SCALED, ScaledUnary
from app.operators.operator import SCALED_INTEGERS, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import Parameters
from app.operators.typed_numbers import number_violations, typed_numbers

BOUNDS = (
    "Bounds are converted to the tensor's type: floats to nearest even, integers truncated toward zero and saturated. "
    "For integer tensors they are not rounded to float32 before."
)
CROSSED = "Min greater than Max is taken."
NAN = "NaN stays NaN. DirectML's documentation does not say."


class ElementWiseClip(ScaledUnary):
    """Each element, or the nearer of two bounds."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CLIP", "ELEMENT_WISE_CLIP"]
    Min: Bound = Field(description="Lower bound.", examples=[-1.0])
    Max: Bound = Field(description="Upper bound.", examples=[1.0])

    formula_text = f"f(x) = max(Min, min(g(x), Max)), {SCALED}"
    accuracy = EXACT
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16",
    )
    notes = (BOUNDS, CROSSED + " It gives Min.", NAN, SCALED_INTEGERS)

    def function(self, p: Parameters, x: Value) -> Value:
        least, most = (converted(each, self.InputTensor.DataType) for each in (p.Min, p.Max))
        return maximum(minimum(x, most), least)


class ElementWiseClip1(ScaledUnary):
    """Each element, or the nearer of two bounds, which are of the tensor's type."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CLIP1", "ELEMENT_WISE_CLIP1"]
    MinMaxDataType: Annotated[
        constants.DataType, Field(description="Type of Min and Max: that of OutputTensor.", examples=["FLOAT32"])
    ]
    Min: Scalar = Field(description="Lower bound: a number, or DML_SCALAR_UNION.", examples=[-1.0])
    Max: Scalar = Field(description="Upper bound: a number, or DML_SCALAR_UNION.", examples=[1.0])

    formula_text = f"f(x) = max(Min, min(g(x), Max)), {SCALED}"
    accuracy = EXACT
    support = SupportTable.of("5_0 1-8 F32-16 I64-8 U64-8")
    notes = (CROSSED + " It gives Min.", NAN, SCALED_INTEGERS)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from number_violations(self, "MinMaxDataType", ["Min", "Max"], "OutputTensor", "InputTensor")

    def function(self, p: Parameters, x: Value) -> Value:
        least, most = (converted(each, self.MinMaxDataType) for each in (p.Min, p.Max))
        return maximum(minimum(x, most), least)

    def numbers(self) -> dict[str, Number]:
        return super().numbers() | typed_numbers(self, "MinMaxDataType", "Min", "Max")


class ElementWiseClipGrad(Operator):
    """Backward pass of ELEMENT_WISE_CLIP."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CLIP_GRAD", "ELEMENT_WISE_CLIP_GRAD"]
    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: OutputTensorDesc = None
    Min: Bound = Field(description="Lower bound, where the gradient is 0.", examples=[-1.0])
    Max: Bound = Field(description="Upper bound, where the gradient is 0.", examples=[1.0])

    formula_text = "f(x, gradient) = 0 if x <= Min or x >= Max, else gradient"
    accuracy = EXACT
    in_place = ("InputTensor",)
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8",
        "3_1 1-8 F32-16 I32-8 U32-8",
    )
    notes = (BOUNDS, CROSSED, "Where x is NaN the result is the gradient: x is beyond neither bound.")

    def formula(self, p: Parameters, x: Value, gradient: Value) -> Value:
        least, most = (converted(each, self.InputTensor.DataType) for each in (p.Min, p.Max))
        return where((x <= least) | (x >= most), 0, gradient)


class ElementWiseClipGrad1(Operator):
    """Backward pass of ELEMENT_WISE_CLIP1."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CLIP_GRAD1", "ELEMENT_WISE_CLIP_GRAD1"]
    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: OutputTensorDesc = None
    MinMaxDataType: Annotated[
        constants.DataType,
        Field(description="Type of Min and Max: that of OutputGradientTensor.", examples=["FLOAT32"]),
    ]
    Min: Scalar = Field(
        description="Lower bound, where the gradient is 0: a number, or DML_SCALAR_UNION.", examples=[-1.0]
    )
    Max: Scalar = Field(
        description="Upper bound, where the gradient is 0: a number, or DML_SCALAR_UNION.", examples=[1.0]
    )

    formula_text = "f(x, gradient) = 0 if x <= Min or x >= Max, else gradient"
    accuracy = EXACT
    in_place = ("InputTensor",)
    support = SupportTable.of("5_0 1-8 F32-16 I64-8 U64-8")
    notes = (CROSSED, "Where x is NaN the result is the gradient: x is beyond neither bound.")

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from number_violations(self, "MinMaxDataType", ["Min", "Max"], "OutputGradientTensor", "InputTensor")

    def formula(self, p: Parameters, x: Value, gradient: Value) -> Value:
        least, most = (converted(each, self.MinMaxDataType) for each in (p.Min, p.Max))
        return where((x <= least) | (x >= most), 0, gradient)

    def numbers(self) -> dict[str, Number]:
        return super().numbers() | typed_numbers(self, "MinMaxDataType", "Min", "Max")


class ElementWiseThreshold(ScaledUnary):
    """Each element, or a lower bound."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_THRESHOLD", "ELEMENT_WISE_THRESHOLD"]
    Min: Bound = Field(description="Lower bound.", examples=[0.5])

    formula_text = f"f(x) = max(g(x), Min), {SCALED}"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16",
    )
    notes = (BOUNDS, NAN, SCALED_INTEGERS)

    def function(self, p: Parameters, x: Value) -> Value:
        return maximum(x, converted(p.Min, self.InputTensor.DataType))


class ElementWiseIf(Operator):
    """Each element of one of two tensors, as a third one says."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_IF", "ELEMENT_WISE_IF"]
    ConditionTensor: InputTensorDesc
    ATensor: InputTensorDesc
    BTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(c, a, b) = a if c != 0, else b"
    accuracy = EXACT
    same_types = (("ATensor", "BTensor", "OutputTensor"),)
    support = SupportTable.of(
        "5_0 1-8 U8, ATensor BTensor OutputTensor F64-16 I64-8 U64-8",
        "3_0 1-8 U8, ATensor BTensor OutputTensor F32-16 I32-8 U32-8",
        "2_0 4 U8, ATensor BTensor OutputTensor F16",
    )
    notes = (
        "At feature levels 2_0 and 2_1 the tensors are FLOAT16, as the operator's page has it; the feature level "
        "history names integer types at 2_1.",
    )

    def is_bitwise(self) -> bool:
        return True

    def implied_type(self, name: str, level: FeatureLevel) -> constants.DataType:
        return self.ATensor.DataType

    def formula(self, p: Parameters, condition: Value, a: Value, b: Value) -> Value:
        return where(not_equal(condition, 0), a, b)
