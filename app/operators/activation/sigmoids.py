"""ACTIVATION_* operators between two limits, what is gated by them, and their integrals.

Source: the DML_ACTIVATION_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.functions import FLOAT_MAX, NORMAL_EXP, decay_of, decay_of_product, sigmoid, softplus
from app.formula.values import (
    Value,
    absolute,
    exp,
    log1p_of_fraction,
    maximum,
    minimum,
    multiply_add,
    normal_cdf,
    tanh,
    widen,
)
from app.operators.accuracy import FUNCTION, LINEAR
from app.operators.forms import Unary
from app.operators.parameters import Parameters


class ActivationSigmoid(Unary):
    """The logistic function."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SIGMOID", "ACTIVATION_SIGMOID"]

    formula_text = "f(x) = 1 / (1 + exp(-x))"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return sigmoid(decay_of(x), x < 0)


class ActivationHardSigmoid(Unary):
    """A straight line cut off at 0 and at 1."""

    Type: Literal["DML_OPERATOR_ACTIVATION_HARD_SIGMOID", "ACTIVATION_HARD_SIGMOID"]
    Alpha: Float = Field(0.2, description="Slope of the line.")
    Beta: Float = Field(0.5, description="Value of the line at 0.")

    formula_text = "f(x) = max(0, min(Alpha * x + Beta, 1))"
    accuracy = LINEAR
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return hard_sigmoid(p, x)


class ActivationTanh(Unary):
    """The hyperbolic tangent."""

    Type: Literal["DML_OPERATOR_ACTIVATION_TANH", "ACTIVATION_TANH"]

    formula_text = "f(x) = (1 - exp(-2 * x)) / (1 + exp(-2 * x))"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return tanh(x)


class ActivationScaledTanh(Unary):
    """The hyperbolic tangent, scaled in both directions."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SCALED_TANH", "ACTIVATION_SCALED_TANH"]
    Alpha: Float = Field(1.0, description="Scale of the result.")
    Beta: Float = Field(0.5, description="Scale of x.")

    formula_text = "f(x) = Alpha * tanh(Beta * x)"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        # A large Alpha would magnify what Beta * x lost as a subnormal number.
        v = x if p.ask(lambda alpha: abs(alpha) <= 2, p.Alpha) else widen(x)
        return p.Alpha * tanh(p.Beta * v)


class ActivationSoftsign(Unary):
    """A sigmoid without an exponential."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SOFTSIGN", "ACTIVATION_SOFTSIGN"]

    formula_text = "f(x) = x / (1 + abs(x))"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("Infinities give the limits, -1 and 1.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        finite = maximum(minimum(x, FLOAT_MAX), -FLOAT_MAX)
        return finite / (1 + absolute(finite))


class ActivationSoftplus(Unary):
    """A smooth rectifier."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SOFTPLUS", "ACTIVATION_SOFTPLUS"]
    Steepness: Float = Field(1.0, description="How close to the corner the curve keeps. Below 6_4 at least 1; not 0.")

    formula_text = "f(x) = ln(1 + exp(Steepness * x)) / Steepness"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (
        "Steepness below 1 is taken from feature level 6_4 on, by the feature level history; the operator's page still "
        "forbids it.",
        "Steepness 0 is refused. DirectML's documentation does not mention it; the formula divides by it.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if level < FeatureLevel.V6_4 and self.Steepness < 1:
            yield Violation(
                ("Steepness",),
                f"Steepness is {self.Steepness:g}; at feature level {level} it must be at least 1, and from "
                f"{FeatureLevel.V6_4} on it may be less.",
                self.Steepness,
                ">= 1",
            )
        elif self.Steepness == 0:
            yield Violation(
                ("Steepness",), "Steepness is 0 but the formula divides by it; give any other number.", 0, "not 0"
            )

    def formula(self, p: Parameters, x: Value) -> Value:
        if p.ask(lambda steepness: steepness == 1, p.Steepness):
            return softplus(x, decay_of(x))
        if p.ask(lambda steepness: abs(steepness) < 0.5, p.Steepness):
            # What is lost as subnormal would be magnified.
            product = p.Steepness * widen(x)
            return softplus(product, decay_of(product)) / p.Steepness
        rises = p.ask(lambda steepness: steepness > 0, p.Steepness)
        line = maximum(x, 0) if rises else minimum(x, 0)  # without a product that may overflow
        return widen(line) + widen(log1p_of_fraction(decay_of_product(p.Steepness, x))) / p.Steepness


class ActivationParametricSoftplus(Unary):
    """A smooth rectifier, scaled in both directions."""

    Type: Literal["DML_OPERATOR_ACTIVATION_PARAMETRIC_SOFTPLUS", "ACTIVATION_PARAMETRIC_SOFTPLUS"]
    Alpha: Float = Field(description="Scale of the result.", examples=[0.5])
    Beta: Float = Field(description="Scale of x.", examples=[2.0])

    formula_text = "f(x) = Alpha * ln(1 + exp(Beta * x))"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        product = p.Beta * widen(x)  # which may overflow in float32 while the result does not
        if p.ask(lambda alpha: abs(alpha) > 2, p.Alpha):
            # What is lost as subnormal would be magnified.
            return p.Alpha * softplus(product, decay_of(product))
        return p.Alpha * (maximum(product, 0) + widen(log1p_of_fraction(decay_of_product(p.Beta, x))))


class ActivationSwish(Unary):
    """Each element gated by its own sigmoid."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SWISH", "ACTIVATION_SWISH"]
    SigmoidInputScale: Float = Field(1.0, description="Scale of x inside the sigmoid.")

    formula_text = "f(x) = x * sigmoid(SigmoidInputScale * x), sigmoid(z) = 1 / (1 + exp(-z))"
    accuracy = FUNCTION
    support = SupportTable.of("6_2 1-8 F32-16")
    notes = ("Where the sigmoid of an infinity is 0 the result is its limit, 0.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        if p.ask(lambda scale: scale == 1, p.SigmoidInputScale):
            # The exponential of a sum, factor by factor, lest it be subnormal where its product with x is not.
            decay, rest = exp(maximum(-absolute(x), -NORMAL_EXP)), exp(minimum(x + NORMAL_EXP, 0))
            return maximum(x, -FLOAT_MAX) * sigmoid(decay, x < 0) * rest
        z = p.SigmoidInputScale * widen(x)
        rises = p.ask(lambda scale: scale > 0, p.SigmoidInputScale)
        limited = maximum(x, -FLOAT_MAX) if rises else minimum(x, FLOAT_MAX)
        return limited * sigmoid(decay_of(z), z < 0)


class ActivationHardSwish(Unary):
    """Each element gated by its own hard sigmoid."""

    Type: Literal["DML_OPERATOR_ACTIVATION_HARD_SWISH", "ACTIVATION_HARD_SWISH"]
    Alpha: Float = Field(0.166667, description="Slope of the hard sigmoid.")
    Beta: Float = Field(0.5, description="Value of the hard sigmoid at 0.")

    formula_text = "f(x) = x * max(0, min(Alpha * x + Beta, 1))"
    accuracy = LINEAR
    support = SupportTable.of("6_2 1-8 F32-16")

    def formula(self, p: Parameters, x: Value) -> Value:
        return x * hard_sigmoid(p, x)


class ActivationGelu(Unary):
    """Gaussian error linear unit: each element gated by the normal distribution."""

    Type: Literal["DML_OPERATOR_ACTIVATION_GELU", "ACTIVATION_GELU"]

    formula_text = "f(x) = 0.5 * x * (1 + erf(x / sqrt(2)))"
    accuracy = FUNCTION
    support = SupportTable.of("5_1 1-8 F32-16")
    notes = ("-inf gives the limit, 0.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        # In float64, where the distribution's tail is not subnormal while its product with x is a number.
        return maximum(x, -FLOAT_MAX) * normal_cdf(widen(x))


def hard_sigmoid(p: Parameters, x: Value) -> Value:
    """max(0, min(Alpha * x + Beta, 1))."""
    # Where the line is between 0 and 1, a Beta of at most 1 keeps the product below 2 and its rounding below 6e-8.
    small = p.ask(lambda beta: abs(beta) <= 1, p.Beta)
    line = p.Alpha * x + p.Beta if small else multiply_add(p.Alpha, x, p.Beta)
    return maximum(0, minimum(line, 1))
