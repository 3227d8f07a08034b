"""ELEMENT_WISE_* operators of logic: zero is false, anything else true, and results are 1 and 0.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from typing import Literal

from app.contract.support import SupportTable
from app.formula.values import Value, equal, not_equal
from app.operators.accuracy import EXACT
from app.operators.forms import Binary, Unary
from app.operators.parameters import Parameters


class ElementWiseLogicalAnd(Binary):
    """Whether both elements are true."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND", "ELEMENT_WISE_LOGICAL_AND"]

    formula_text = "f(a, b) = 1 if a && b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 U32 U8",
        "2_0 4 U32 U8",
        "1_0 4 U32",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return not_equal(a, 0) & not_equal(b, 0)


class ElementWiseLogicalOr(Binary):
    """Whether either element is true."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR", "ELEMENT_WISE_LOGICAL_OR"]

    formula_text = "f(a, b) = 1 if a || b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 U32 U8",
        "2_0 4 U32 U8",
        "1_0 4 U32",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return not_equal(a, 0) | not_equal(b, 0)


class ElementWiseLogicalXor(Binary):
    """Whether one of two elements is true."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR", "ELEMENT_WISE_LOGICAL_XOR"]

    formula_text = "f(a, b) = 1 if !!a != !!b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 U32 U8",
        "2_0 4 U32 U8",
        "1_0 4 U32",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return not_equal(a, 0) ^ not_equal(b, 0)


class ElementWiseLogicalNot(Unary):
    """Whether an element is false."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT", "ELEMENT_WISE_LOGICAL_NOT"]

    formula_text = "f(x) = 1 if !x, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 U32 U8",
        "2_0 4 U32 U8",
        "1_0 4 U32",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return equal(x, 0)
