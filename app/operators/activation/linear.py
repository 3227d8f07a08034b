"""ACTIVATION_* operators that are one straight line.

Source: the DML_ACTIVATION_*_OPERATOR_DESC pages of DirectML's reference.
"""

from typing import Literal

from pydantic import Field

from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.formula.values import Value
from app.operators.accuracy import EXACT, LINEAR
from app.operators.forms import Unary
from app.operators.parameters import Parameters


class ActivationIdentity(Unary):
    """Each element as it is."""

    Type: Literal["DML_OPERATOR_ACTIVATION_IDENTITY", "ACTIVATION_IDENTITY"]

    formula_text = "f(x) = x"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def is_bitwise(self) -> bool:
        return True

    def formula(self, p: Parameters, x: Value) -> Value:
        return x


class ActivationLinear(Unary):
    """A straight line."""

    Type: Literal["DML_OPERATOR_ACTIVATION_LINEAR", "ACTIVATION_LINEAR"]
    Alpha: Float = Field(description="Slope of the line.", examples=[0.5])
    Beta: Float = Field(description="Value of the line at 0.", examples=[1.0])

    formula_text = "f(x) = Alpha * x + Beta"
    accuracy = LINEAR
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return p.Alpha * x + p.Beta
