"""ELEMENT_WISE_* operators that compare or inspect elements; the results are 1 for true and 0 for false.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from typing import Annotated, Literal

from pydantic import Field

from app.contract import constants
from app.contract.support import SupportTable
from app.formula.values import INFINITY, Value, absolute, equal, is_nan
from app.operators.accuracy import EXACT
from app.operators.forms import PREDICATE_OUTPUT, Binary, Predicate, Unary
from app.operators.parameters import Parameters


class Comparison(Predicate, Binary):
    """Two inputs of one type."""

    in_place = ()
    same_types = (("ATensor", "BTensor"),)


NAN_IS_FALSE = "False where either element is NaN. DirectML's documentation does not say."


class ElementWiseLogicalEquals(Comparison):
    """Which elements of two tensors are equal."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS", "ELEMENT_WISE_LOGICAL_EQUALS"]

    formula_text = "f(a, b) = 1 if a == b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor U32 U8",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor U32 U8",
        "2_1 4 F32-16 I32-8 U32-8, OutputTensor U32 U8",
        "2_0 4 F32-16, OutputTensor U32 U8",
        "1_0 4 F32-16, OutputTensor U32",
    )
    notes = (NAN_IS_FALSE, PREDICATE_OUTPUT)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return equal(a, b)


class ElementWiseLogicalGreaterThan(Comparison):
    """Which elements of two tensors are greater in the first."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN", "ELEMENT_WISE_LOGICAL_GREATER_THAN"]

    formula_text = "f(a, b) = 1 if a > b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor U32 U8",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor U32 U8",
        "2_1 4 F32-16 I32-8 U32-8, OutputTensor U32 U8",
        "2_0 4 F32-16, OutputTensor U32 U8",
        "1_0 4 F32-16, OutputTensor U32",
    )
    notes = (NAN_IS_FALSE, PREDICATE_OUTPUT)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a > b


class ElementWiseLogicalLessThan(Comparison):
    """Which elements of two tensors are less in the first."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN", "ELEMENT_WISE_LOGICAL_LESS_THAN"]

    formula_text = "f(a, b) = 1 if a < b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor U32 U8",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor U32 U8",
        "2_1 4 F32-16 I32-8 U32-8, OutputTensor U32 U8",
        "2_0 4 F32-16, OutputTensor U32 U8",
        "1_0 4 F32-16, OutputTensor U32",
    )
    notes = (NAN_IS_FALSE, PREDICATE_OUTPUT)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a < b


class ElementWiseLogicalGreaterThanOrEqual(Comparison):
    """Which elements of two tensors are greater in the first, or equal."""

    Type: Literal[
        "DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL", "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL"
    ]

    formula_text = "f(a, b) = 1 if a >= b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor U32 U8",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor U32 U8",
    )
    notes = (NAN_IS_FALSE, PREDICATE_OUTPUT)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a >= b


class ElementWiseLogicalLessThanOrEqual(Comparison):
    """Which elements of two tensors are less in the first, or equal."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL", "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL"]

    formula_text = "f(a, b) = 1 if a <= b, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor U32 U8",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor U32 U8",
    )
    notes = (NAN_IS_FALSE, PREDICATE_OUTPUT)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a <= b


class ElementWiseIsNan(Predicate, Unary):
    """Which elements are NaN."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_IS_NAN", "ELEMENT_WISE_IS_NAN"]

    formula_text = "f(x) = 1 if x is NaN, else 0"
    accuracy = EXACT
    in_place = ()
    support = SupportTable.of(
        "3_0 1-8 F32-16, OutputTensor U32 U8",
        "2_0 4 F32-16, OutputTensor U32 U8",
    )
    notes = (PREDICATE_OUTPUT,)

    def formula(self, p: Parameters, x: Value) -> Value:
        return is_nan(x)


class ElementWiseIsInfinity(Predicate, Unary):
    """Which elements are infinities."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_IS_INFINITY", "ELEMENT_WISE_IS_INFINITY"]
    InfinityMode: Annotated[
        constants.IsInfinityMode,
        Field(description="Which infinities: EITHER, the POSITIVE or the NEGATIVE one.", examples=["EITHER"]),
    ]

    formula_text = "f(x) = 1 if x is an infinity of InfinityMode, else 0"
    accuracy = EXACT
    in_place = ()
    support = SupportTable.of(
        "3_0 1-8 F32-16, OutputTensor U8",
        "2_1 4 F32-16, OutputTensor U8",
    )
    notes = ("Not in place: the operator's page does not offer it, although DirectML's schema header does.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        match self.InfinityMode:
            case constants.IsInfinityMode.EITHER:
                return equal(absolute(x), INFINITY)
            case constants.IsInfinityMode.POSITIVE:
                return equal(x, INFINITY)
            case constants.IsInfinityMode.NEGATIVE:
                return equal(x, -INFINITY)
