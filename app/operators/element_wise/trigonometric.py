"""ELEMENT_WISE_* operators of trigonometry, circular and hyperbolic.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from typing import Literal

from app.contract.support import SupportTable
from app.formula.values import (
    Value,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    cos,
    cosh,
    sin,
    sinh,
    tan,
    tanh,
)
from app.operators.accuracy import FUNCTION
from app.operators.forms import SCALED, Binary, ScaledUnary
from app.operators.parameters import Parameters


class ElementWiseSin(ScaledUnary):
    """The sine, of radians."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_SIN", "ELEMENT_WISE_SIN"]

    formula_text = f"f(x) = sin(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return sin(x)


class ElementWiseCos(ScaledUnary):
    """The cosine, of radians."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_COS", "ELEMENT_WISE_COS"]

    formula_text = f"f(x) = cos(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return cos(x)


class ElementWiseTan(ScaledUnary):
    """The tangent, of radians."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_TAN", "ELEMENT_WISE_TAN"]

    formula_text = f"f(x) = tan(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return tan(x)


class ElementWiseAsin(ScaledUnary):
    """The inverse sine, in radians."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ASIN", "ELEMENT_WISE_ASIN"]

    formula_text = f"f(x) = asin(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("NaN beyond -1 and 1.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return arcsin(x)


class ElementWiseAcos(ScaledUnary):
    """The inverse cosine, in radians."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ACOS", "ELEMENT_WISE_ACOS"]

    formula_text = f"f(x) = acos(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("NaN beyond -1 and 1.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return arccos(x)


class ElementWiseAtan(ScaledUnary):
    """The inverse tangent, in radians."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ATAN", "ELEMENT_WISE_ATAN"]

    formula_text = f"f(x) = atan(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return arctan(x)


class ElementWiseSinh(ScaledUnary):
    """The hyperbolic sine."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_SINH", "ELEMENT_WISE_SINH"]

    formula_text = f"f(x) = sinh(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return sinh(x)


class ElementWiseCosh(ScaledUnary):
    """The hyperbolic cosine."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_COSH", "ELEMENT_WISE_COSH"]

    formula_text = f"f(x) = cosh(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return cosh(x)


class ElementWiseTanh(ScaledUnary):
    """The hyperbolic tangent."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_TANH", "ELEMENT_WISE_TANH"]

    formula_text = f"f(x) = tanh(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return tanh(x)


class ElementWiseAsinh(ScaledUnary):
    """The inverse hyperbolic sine."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ASINH", "ELEMENT_WISE_ASINH"]

    formula_text = f"f(x) = asinh(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )

    def function(self, p: Parameters, x: Value) -> Value:
        return arcsinh(x)


class ElementWiseAcosh(ScaledUnary):
    """The inverse hyperbolic cosine."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ACOSH", "ELEMENT_WISE_ACOSH"]

    formula_text = f"f(x) = acosh(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )
    notes = ("NaN below 1.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return arccosh(x)


class ElementWiseAtanh(ScaledUnary):
    """The inverse hyperbolic tangent."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ATANH", "ELEMENT_WISE_ATANH"]

    formula_text = f"f(x) = atanh(g(x)), {SCALED}"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4 F32-16",
    )
    notes = ("Infinities at -1 and 1, NaN beyond.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return arctanh(x)


class ElementWiseAtanYx(Binary):
    """The angle of a point, in radians, from -pi to pi."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ATAN_YX", "ELEMENT_WISE_ATAN_YX"]

    formula_text = "f(a, b) = atan2(a, b): a is the y coordinate, b the x coordinate"
    accuracy = FUNCTION
    support = SupportTable.of("3_1 1-8 F32-16")
    notes = ("At the origin, which DirectML leaves undefined, as in C: 0 or pi by the sign of b, with the sign of a.",)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return arctan2(a, b)
