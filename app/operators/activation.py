"""ACTIVATION_* operators. Source: the DML_ACTIVATION_*_OPERATOR_DESC pages of DirectML's reference."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from app.contract.constants import DataType, FeatureLevel
from app.contract.scalars import Float
from app.contract.support import FLOATS, Row, SupportTable
from app.contract.violations import Violation
from app.formula.values import Value, expm1, expm1_of_negative, maximum, minimum, multiply_add, where, widen
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc, Parameters


class ActivationHardSigmoid(Operator):
    """A straight line cut off at 0 and at 1."""

    Type: Literal["DML_OPERATOR_ACTIVATION_HARD_SIGMOID", "ACTIVATION_HARD_SIGMOID"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Alpha: Float = Field(0.2, description="Slope of the line.")
    Beta: Float = Field(0.5, description="Value of the line at 0.")

    formula_text = "f(x) = max(0, min(Alpha * x + Beta, 1))"
    in_place = ("InputTensor",)
    support = SupportTable.of(
        Row(FeatureLevel.V3_0, (1, 8), FLOATS),
        Row(FeatureLevel.V2_0, (4, 5), FLOATS),
        Row(FeatureLevel.V1_0, (4, 4), FLOATS),
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        # Where the line is between 0 and 1, a Beta of at most 1 keeps the product below 2 and its rounding below 6e-8.
        line = p.Alpha * x + p.Beta if abs(self.Beta) <= 1 else multiply_add(p.Alpha, x, p.Beta)
        return maximum(0, minimum(line, 1))


class ActivationCelu(Operator):
    """Continuously differentiable exponential linear unit."""

    Type: Literal["DML_OPERATOR_ACTIVATION_CELU", "ACTIVATION_CELU"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Alpha: Float = Field(1.0, description="Minus the limit for very negative x. Not 0.")

    formula_text = "f(x) = max(0, x) + min(0, Alpha * (exp(x / Alpha) - 1))"
    in_place = ("InputTensor",)
    support = SupportTable.of(Row(FeatureLevel.V3_0, (1, 8), FLOATS))
    notes = (
        "Alpha 0 is refused. DirectML's documentation does not mention it; the formula would divide by it and answer "
        "NaN for every positive x.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if self.Alpha == 0:
            yield Violation(("Alpha",), "Alpha is 0 but the formula divides by it; give any other number.", 0, "not 0")

    def formula(self, p: Parameters, x: Value) -> Value:
        if self.Alpha < 0:
            # In float64, since the exponential of a positive number magnifies the rounding of x / Alpha by up to 88.
            return maximum(0, x) + minimum(0, p.Alpha * expm1(widen(x) / p.Alpha))
        # The exponential is wanted where x is negative, and positive x need not go through it. In float64 unless the
        # division is exact: its rounding adds to the others, and x / Alpha may be subnormal while the result is not.
        v = x if self.Alpha == 1 else widen(x)
        return maximum(0, v) + p.Alpha * expm1_of_negative(minimum(v / p.Alpha, 0))


class ActivationParameterizedRelu(Operator):
    """Rectified linear unit whose slope below 0 is a tensor."""

    Type: Literal["DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU", "ACTIVATION_PARAMETERIZED_RELU"]
    InputTensor: InputTensorDesc
    SlopeTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(x, slope) = x if x >= 0, else slope * x"
    in_place = ("InputTensor",)
    support = SupportTable.of(
        Row(FeatureLevel.V5_1, (1, 8), (*FLOATS, DataType.INT32, DataType.INT16, DataType.INT8)),
        Row(FeatureLevel.V3_0, (1, 8), FLOATS),
        Row(FeatureLevel.V2_0, (4, 5), FLOATS),
        Row(FeatureLevel.V1_0, (4, 4), FLOATS),
    )
    notes = ("Integer products wrap around (two's complement). DirectML's documentation does not say.",)

    def formula(self, p: Parameters, x: Value, slope: Value) -> Value:
        return where(x >= 0, x, slope * x)
