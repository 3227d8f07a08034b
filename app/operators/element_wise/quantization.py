"""ELEMENT_WISE_* operators between numbers and their quantized forms.

A scale or a zero point for each channel, or for all elements, is a tensor with strides of 0.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Literal

from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import FLOAT64, Value, cast, rint, saturate, widen
from app.operators.accuracy import NEAREST, NEAREST_TO_QUOTIENT, ONCE
from app.operators.operator import InputTensorDesc, Operator, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.parameters import Parameters

TIES = "round() takes halves to even. DirectML's documentation does not say."
QUOTIENTS = (
    "The quotient of two floats is one of FLOAT32, as ONNX's operator has it, so that 0.35 by a scale of 0.1 is 3.5; "
    "exactly divided, it would be less. DirectML's documentation does not say."
)
SCALE_0 = (
    "A scale of 0, which DirectML leaves undefined, follows the formula; a NaN that comes of it is quantized to 0."
)


class ElementWiseQuantizeLinear(Operator):
    """Numbers quantized: divided by a scale, rounded, moved by a zero point and saturated."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR", "ELEMENT_WISE_QUANTIZE_LINEAR"]
    InputTensor: InputTensorDesc
    ScaleTensor: InputTensorDesc
    ZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(x, scale, zero) = clamp(round(x / scale) + zero, least of the type, greatest of the type)"
    accuracy = NEAREST_TO_QUOTIENT
    same_types = (("ZeroPointTensor", "OutputTensor"),)
    support = SupportTable.of(
        "6_2 1-8 F32-16 I32, ScaleTensor F32-16, ZeroPointTensor OutputTensor I8 U8",
        "6_0 1-8 F32-16 I32, ScaleTensor F32-16, ZeroPointTensor OutputTensor I8 U8",
        "3_0 1-8 F32 I32, ScaleTensor F32, ZeroPointTensor OutputTensor I8 U8",
        "2_1 4 F32 I32, ScaleTensor F32, ZeroPointTensor OutputTensor I8 U8",
        "1_0 4 F32, ZeroPointTensor OutputTensor U8",
    )
    notes = (TIES, QUOTIENTS, SCALE_0, "OutputTensor left out has the type of ZeroPointTensor, or is UINT8.")

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return self.ZeroPointTensor.DataType if self.ZeroPointTensor else DataType.UINT8

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from zero_point_violations(self.ZeroPointTensor, level)
        given, scale = self.InputTensor.DataType, self.ScaleTensor.DataType
        expected = DataType.FLOAT32 if given is DataType.INT32 else given
        if scale != expected:
            yield Violation(
                ("ScaleTensor", "DataType"),
                f"DataType of ScaleTensor is {scale}; it must be {expected}, since InputTensor is {given}.",
                scale,
                expected,
            )

    def formula(self, p: Parameters, x: Value, scale: Value, zero: Value | None) -> Value:
        quotient = widen(x) / widen(scale) if self.InputTensor.DataType is DataType.INT32 else x / scale
        return quantized(quotient, zero, self.stored_types()["OutputTensor"])


class ElementWiseDequantizeLinear(Operator):
    """Quantized numbers restored: moved by a zero point and multiplied by a scale."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR", "ELEMENT_WISE_DEQUANTIZE_LINEAR"]
    InputTensor: InputTensorDesc
    ScaleTensor: InputTensorDesc
    ZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(x, scale, zero) = (x - zero) * scale"
    accuracy = ONCE
    same_types = (("InputTensor", "ZeroPointTensor"), ("ScaleTensor", "OutputTensor"))
    support = SupportTable.of(
        "6_2 1-8 I32-8 U32-8, ScaleTensor OutputTensor F32-16",
        "6_0 1-8 I32-8 U32-8, ScaleTensor OutputTensor F32-16",
        "3_0 1-8 I32-8 U32-8, ScaleTensor OutputTensor F32",
        "2_1 4 I32-8 U32-8, ScaleTensor OutputTensor F32",
        "1_0 4 U8, ScaleTensor OutputTensor F32",
    )
    notes = ("x - zero does not overflow. DirectML's documentation does not say.",)

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return self.ScaleTensor.DataType

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from zero_point_violations(self.ZeroPointTensor, level)

    def formula(self, p: Parameters, x: Value, scale: Value, zero: Value | None) -> Value:
        return dequantized(x, scale, zero)


class ElementWiseQuantizedLinearAdd(Operator):
    """The sum of two quantized tensors, quantized."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD", "ELEMENT_WISE_QUANTIZED_LINEAR_ADD"]
    ATensor: InputTensorDesc
    AScaleTensor: InputTensorDesc
    AZeroPointTensor: OptionalInputTensorDesc = None
    BTensor: InputTensorDesc
    BScaleTensor: InputTensorDesc
    BZeroPointTensor: OptionalInputTensorDesc = None
    OutputScaleTensor: InputTensorDesc
    OutputZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    formula_text = (
        "f(a, b) = clamp(round((va + vb) / OutputScale) + OutputZeroPoint, least of the type, greatest of the type), "
        "va = (a - AZeroPoint) * AScale, vb = (b - BZeroPoint) * BScale"
    )
    accuracy = NEAREST
    same_types = (
        ("ATensor", "AZeroPointTensor"),
        ("BTensor", "BZeroPointTensor"),
        ("OutputZeroPointTensor", "OutputTensor"),
    )
    one_element = (
        "AScaleTensor",
        "AZeroPointTensor",
        "BScaleTensor",
        "BZeroPointTensor",
        "OutputScaleTensor",
        "OutputZeroPointTensor",
    )
    support = SupportTable.of("4_0 1-8 I8 U8, AScaleTensor BScaleTensor OutputScaleTensor F32")
    notes = (TIES, SCALE_0, "OutputTensor left out has the type of OutputZeroPointTensor, or of ATensor.")

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return (self.OutputZeroPointTensor or self.ATensor).DataType

    def formula(
        self,
        p: Parameters,
        a: Value,
        a_scale: Value,
        a_zero: Value | None,
        b: Value,
        b_scale: Value,
        b_zero: Value | None,
        scale: Value,
        zero: Value | None,
    ) -> Value:
        total = dequantized(a, widen(a_scale), a_zero) + dequantized(b, widen(b_scale), b_zero)
        return quantized(total / widen(scale), zero, self.stored_types()["OutputTensor"])


def zero_point_violations(zero_point: TensorDesc | None, level: FeatureLevel) -> Iterator[Violation]:
    """ZeroPointTensor may be null, for 0, from 6_2 on."""
    if zero_point is None and level < FeatureLevel.V6_2:
        yield Violation(
            ("ZeroPointTensor",),
            f"ZeroPointTensor is null; at feature level {level} it is required, and may be null from "
            f"{FeatureLevel.V6_2} on.",
            None,
            "a tensor",
        )


def quantized(quotient: Value, zero: Value | None, data_type: DataType) -> Value:
    """`quotient` rounded, moved by `zero`, and saturated to the type."""
    rounded = rint(quotient)
    return saturate(rounded + cast(zero, rounded.type) if zero else rounded, data_type.value.lower())


def dequantized(x: Value, scale: Value, zero: Value | None) -> Value:
    """(x - zero) * scale, in float64 where float32 would not hold the difference."""
    type_ = FLOAT64 if x.type.endswith("32") else scale.type
    x = cast(x, type_)
    return (x - cast(zero, type_) if zero else x) * scale
