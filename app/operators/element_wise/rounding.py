"""ELEMENT_WISE_* operators that make whole numbers of floats.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from typing import Annotated, Literal

from pydantic import Field

from app.contract import constants
from app.contract.support import SupportTable
from app.formula.functions import round_half_away
from app.formula.values import Value, ceil, floor, rint, trunc
from app.operators.accuracy import EXACT, Accuracy
from app.operators.forms import SCALED, ScaledUnary, Unary
from app.operators.parameters import Parameters


class ElementWiseFloor(ScaledUnary):
    """The next whole number down."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_FLOOR", "ELEMENT_WISE_FLOOR"]

    formula_text = f"f(x) = floor(g(x)), {SCALED}"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return floor(x)


class ElementWiseCeil(ScaledUnary):
    """The next whole number up."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CEIL", "ELEMENT_WISE_CEIL"]

    formula_text = f"f(x) = ceil(g(x)), {SCALED}"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return ceil(x)


class ElementWiseRound(Unary):
    """The whole number near each element."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ROUND", "ELEMENT_WISE_ROUND"]
    RoundingMode: Annotated[
        constants.RoundingMode,
        Field(
            description="Nearest with ties to even, truncation, or (TOWARD_INFINITY) nearest with ties away from zero.",
            examples=["HALVES_TO_NEAREST_EVEN"],
        ),
    ]

    formula_text = "f(x) = x rounded to the nearest whole number, ties to even or away from zero, or truncated"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_1 4 F32-16",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        match self.RoundingMode:
            case constants.RoundingMode.HALVES_TO_NEAREST_EVEN:
                return rint(x)
            case constants.RoundingMode.TOWARD_ZERO:
                return trunc(x)
            case constants.RoundingMode.TOWARD_INFINITY:
                return round_half_away(x)
