"""ACTIVATION_* operators that are straight above 0 and exponential below.

Source: the DML_ACTIVATION_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import Value, expm1, expm1_of_negative, maximum, minimum, scaled_expm1, widen
from app.operators.accuracy import FUNCTION
from app.operators.forms import Unary
from app.operators.parameters import Parameters

_FOR_HALF = "On CPUs the exponential of FLOAT16 has 13 bits, with which results are within 0.6 ULP of FLOAT16."


class ActivationElu(Unary):
    """Exponential linear unit."""

    Type: Literal["DML_OPERATOR_ACTIVATION_ELU", "ACTIVATION_ELU"]
    Alpha: Float = Field(1.0, description="Minus the limit for very negative x.")

    formula_text = "f(x) = x if x >= 0, else Alpha * (exp(x) - 1)"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (_FOR_HALF,)

    def formula(self, p: Parameters, x: Value) -> Value:
        # The exponential is wanted where x is negative, and positive x need not go through it. A large Alpha would
        # magnify the rounding of a subnormal number.
        v = x if p.ask(lambda alpha: abs(alpha) <= 2, p.Alpha) else widen(x)
        return maximum(0, v) + p.Alpha * expm1_of_negative(minimum(v, 0))


class ActivationCelu(Unary):
    """Continuously differentiable exponential linear unit."""

    Type: Literal["DML_OPERATOR_ACTIVATION_CELU", "ACTIVATION_CELU"]
    Alpha: Float = Field(1.0, description="Minus the limit for very negative x. Not 0.")

    formula_text = "f(x) = max(0, x) + min(0, Alpha * (exp(x / Alpha) - 1))"
    accuracy = FUNCTION
    support = SupportTable.of("3_0 1-8 F32-16")
    notes = (
        "Alpha 0 is refused. DirectML's documentation does not mention it; the formula would divide by it and answer "
        "NaN for every positive x.",
        _FOR_HALF,
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if self.Alpha == 0:
            yield Violation(("Alpha",), "Alpha is 0 but the formula divides by it; give any other number.", 0, "not 0")

    def formula(self, p: Parameters, x: Value) -> Value:
        if p.ask(lambda alpha: alpha < 0, p.Alpha):
            # In float64, since the exponential of a positive number magnifies the rounding of x / Alpha by up to 88.
            return maximum(0, x) + minimum(0, p.Alpha * expm1(widen(x) / p.Alpha))
        # The exponential is wanted where x is negative, and positive x need not go through it.
        return maximum(0, x) + scaled_expm1(minimum(x, 0), p.Alpha)


class ActivationScaledElu(Unary):
    """Scaled exponential linear unit."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SCALED_ELU", "ACTIVATION_SCALED_ELU"]
    Alpha: Float = Field(1.6732, description="Minus the limit for very negative x, before Gamma.")
    Gamma: Float = Field(1.0507, description="Scale of the result.")

    formula_text = "f(x) = Gamma * x if x > 0, else Gamma * (Alpha * exp(x) - Alpha)"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (_FOR_HALF,)

    def formula(self, p: Parameters, x: Value) -> Value:
        # A factor that is much greater than 1 would magnify what the other product lost as a subnormal number.
        small = p.ask(lambda alpha, gamma: max(abs(alpha), abs(gamma)) <= 2, p.Alpha, p.Gamma)
        v = x if small else widen(x)
        return p.Gamma * maximum(0, v) + p.Gamma * (p.Alpha * expm1_of_negative(minimum(v, 0)))
