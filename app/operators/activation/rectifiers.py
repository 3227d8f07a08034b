"""ACTIVATION_* operators that are straight on either side of a corner.

Source: the DML_ACTIVATION_*_OPERATOR_DESC pages of DirectML's reference.
"""

from operator import neg
from typing import Literal

from pydantic import Field

from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.formula.values import Value, converted, derived, is_float, maximum, where
from app.operators.accuracy import EXACT, LINEAR
from app.operators.forms import Unary
from app.operators.operator import WRAPPING, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import Parameters


class ActivationRelu(Unary):
    """Rectified linear unit."""

    Type: Literal["DML_OPERATOR_ACTIVATION_RELU", "ACTIVATION_RELU"]

    formula_text = "f(x) = max(0, x)"
    accuracy = EXACT
    support = SupportTable.of(
        "5_1 1-8 F32-16 I32-8",
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return maximum(x, 0)


class ActivationLeakyRelu(Unary):
    """Rectified linear unit with a slope below 0."""

    Type: Literal["DML_OPERATOR_ACTIVATION_LEAKY_RELU", "ACTIVATION_LEAKY_RELU"]
    Alpha: Float = Field(0.01, description="Slope below 0.")

    formula_text = "f(x) = x if x >= 0, else Alpha * x"
    accuracy = LINEAR
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        if p.ask(lambda alpha: 0 < alpha <= 1, p.Alpha):
            return maximum(x, p.Alpha * x)
        return where(x >= 0, x, p.Alpha * x)


class ActivationParameterizedRelu(Operator):
    """Rectified linear unit whose slope below 0 is a tensor."""

    Type: Literal["DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU", "ACTIVATION_PARAMETERIZED_RELU"]
    InputTensor: InputTensorDesc
    SlopeTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(x, slope) = x if x >= 0, else slope * x"
    accuracy = LINEAR
    in_place = ("InputTensor",)
    support = SupportTable.of(
        "5_1 1-8 F32-16 I32-8",
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (WRAPPING,)

    def formula(self, p: Parameters, x: Value, slope: Value) -> Value:
        return where(x >= 0, x, slope * x)


class ActivationThresholdedRelu(Unary):
    """Nothing up to a threshold."""

    Type: Literal["DML_OPERATOR_ACTIVATION_THRESHOLDED_RELU", "ACTIVATION_THRESHOLDED_RELU"]
    Alpha: Float = Field(1.0, description="The threshold, which itself gives 0.")

    formula_text = "f(x) = x if x > Alpha, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("NaN gives 0: it is not greater than Alpha.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        return where(x > p.Alpha, x, 0)


class ActivationShrink(Unary):
    """Nothing near 0, and what is further away moved toward it."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SHRINK", "ACTIVATION_SHRINK"]
    Bias: Float = Field(0.0, description="How far numbers are moved toward 0.")
    Threshold: Float = Field(0.5, description="Greatest magnitude that gives 0.")

    formula_text = "f(x) = x - Bias if x > Threshold; x + Bias if x < -Threshold; else 0"
    accuracy = LINEAR
    support = SupportTable.of(
        "5_1 1-8 F32-16 I32-8 U32-8",
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
    )
    notes = (
        "On integer tensors Bias, Threshold and -Threshold are converted to the tensor's type as ELEMENT_WISE_CLIP "
        "converts its bounds: truncated toward zero, and saturated. DirectML's documentation does not say.",
        "NaN gives 0: it is beyond neither threshold.",
        WRAPPING,
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        bias, high, low = p.Bias, p.Threshold, derived(p.Threshold, p.Threshold.type, neg)
        if not is_float(x.type):
            bias, high, low = (converted(each, self.InputTensor.DataType) for each in (bias, high, low))
        return where(x > high, x - bias, where(x < low, x + bias, 0))


class ActivationReluGrad(Operator):
    """Backward pass of ACTIVATION_RELU."""

    Type: Literal["DML_OPERATOR_ACTIVATION_RELU_GRAD", "ACTIVATION_RELU_GRAD"]
    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: OutputTensorDesc = None

    formula_text = "f(x, gradient) = gradient if x > 0, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "5_1 1-8 F32-16 I32-8",
        "4_0 1-8 F32-16",
        "3_0 1-8 F32-16",
    )
    notes = ("Where x is NaN the result is 0: it is not greater than 0.",)

    def formula(self, p: Parameters, x: Value, gradient: Value) -> Value:
        return where(x > 0, gradient, 0)
