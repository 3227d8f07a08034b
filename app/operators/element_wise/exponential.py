"""ELEMENT_WISE_* operators of exponentials, logarithms and powers.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.functions import constant_power, integer_power
from app.formula.values import Value, cast, erf, exp, is_float, log, power, saturate, sqrt, widen
from app.operators.accuracy import FUNCTION, Accuracy
from app.operators.forms import SCALED, ScaledUnary
from app.operators.operator import (
    SCALED_INTEGERS,
    WRAPPING,
    InputTensorDesc,
    Operator,
    OptionalScaleBias,
    OutputTensorDesc,
    scaled,
)
from app.operators.parameters import Parameters


class ElementWiseExp(ScaledUnary):
    """The exponential."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_EXP", "ELEMENT_WISE_EXP"]

    formula_text = f"f(x) = exp(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return exp(x)


class ElementWiseLog(ScaledUnary):
    """The natural logarithm."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOG", "ELEMENT_WISE_LOG"]

    formula_text = f"f(x) = ln(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("NaN below 0, -inf of zeros.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return log(x)


class ElementWiseSqrt(ScaledUnary):
    """The square root."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_SQRT", "ELEMENT_WISE_SQRT"]

    formula_text = f"f(x) = sqrt(g(x)), {SCALED}"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("NaN below 0, -0 of -0.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return sqrt(x)


class ElementWiseErf(ScaledUnary):
    """The Gauss error function."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ERF", "ELEMENT_WISE_ERF"]

    formula_text = f"f(x) = erf(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return erf(x)


class ElementWisePow(Operator):
    """Each element raised to the power that another tensor has."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_POW", "ELEMENT_WISE_POW"]
    InputTensor: InputTensorDesc
    ExponentTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    ScaleBias: OptionalScaleBias = None

    formula_text = f"f(x, e) = pow(g(x), e), {SCALED}"
    accuracy = FUNCTION
    in_place = ("InputTensor",)
    same_types = (("InputTensor", "OutputTensor"),)
    support = SupportTable.of(
        "3_0 1-8 F32-16 I32-8 U32-8",
        "1_0 4 F32-16",
    )
    notes = (
        "A negative base gives NaN unless the exponent is a whole number. Otherwise as IEEE 754's pow.",
        "Of integers with integer exponents the result is exact. A negative exponent truncates the reciprocal toward "
        "zero, so that only 1 and -1 give other numbers than 0, and 0 gives 0. " + WRAPPING,
        "Of integers with float exponents it is computed in float64, truncated toward zero and saturated; NaN is 0.",
        SCALED_INTEGERS,
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if level < FeatureLevel.V3_0 and self.ExponentTensor.DataType != self.InputTensor.DataType:
            yield Violation(
                ("ExponentTensor", "DataType"),
                f"ExponentTensor is {self.ExponentTensor.DataType} but InputTensor is {self.InputTensor.DataType}; "
                f"below feature level {FeatureLevel.V3_0} their DataType must be equal.",
                self.ExponentTensor.DataType,
                self.InputTensor.DataType,
            )

    def formula(self, p: Parameters, x: Value, exponent: Value) -> Value:
        base = scaled(p, x, self.ScaleBias)
        if is_float(base.type):
            # Of integers only those of 8 and 16 bits are float32 numbers.
            exact = is_float(exponent.type) or exponent.type.endswith(("int8", "int16"))
            return power(base, cast(exponent, base.type) if exact else widen(exponent))
        if is_float(exponent.type):
            return saturate(power(widen(base), widen(exponent)), base.type)
        return integer_power(base, exponent)


class ElementWiseConstantPow(ScaledUnary):
    """Each element raised to one and the same power."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW", "ELEMENT_WISE_CONSTANT_POW"]
    Exponent: Float = Field(description="The power.", examples=[2.5])

    formula_text = f"f(x) = pow(g(x), Exponent), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )
    notes = (
        "A negative base gives NaN unless Exponent is a whole number. Otherwise as IEEE 754's pow: exponent 0 gives 1 "
        "(of NaN too), pow(-inf, 0.5) is +inf.",
        "Within 4 ULP, except with ScaleBias and an Exponent beyond 2^24 or so: the scaled base is rounded to 48 bits "
        "or more, which the power magnifies.",
        "Integer types are refused: the operator's page lists none, although the feature level history names some at "
        "3_0.",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return constant_power(p.ask, x, p.Exponent)
