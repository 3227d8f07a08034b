"""ELEMENT_WISE_* operators on the bits of elements, as they lie in memory: of floats too.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from typing import Literal

from app.contract.support import SupportTable
from app.formula.values import Value, bit_count
from app.operators.accuracy import EXACT
from app.operators.forms import Binary, Predicate, Unary
from app.operators.parameters import Parameters


class Bitwise(Binary):
    """On the raw bits of two elements."""

    def is_bitwise(self) -> bool:
        return True


BEYOND = "A shift by the element's width or more gives 0. DirectML's documentation does not say."


class ElementWiseBitAnd(Bitwise):
    """Bits that are set in both elements."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_AND", "ELEMENT_WISE_BIT_AND"]

    formula_text = "f(a, b) = a & b"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 U32-8",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a & b


class ElementWiseBitOr(Bitwise):
    """Bits that are set in either element."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_OR", "ELEMENT_WISE_BIT_OR"]

    formula_text = "f(a, b) = a | b"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 U32-8",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a | b


class ElementWiseBitXor(Bitwise):
    """Bits that are set in one of two elements."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_XOR", "ELEMENT_WISE_BIT_XOR"]

    formula_text = "f(a, b) = a ^ b"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 U32-8",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a ^ b


class ElementWiseBitShiftLeft(Bitwise):
    """Bits moved up; zeros enter at the low end."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_SHIFT_LEFT", "ELEMENT_WISE_BIT_SHIFT_LEFT"]

    formula_text = "f(a, b) = a << b"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 U64-8",
        "3_0 1-8 U32-8",
        "2_1 4 U32-8",
    )
    notes = (BEYOND,)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a << b


class ElementWiseBitShiftRight(Bitwise):
    """Bits moved down; zeros enter at the high end."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_SHIFT_RIGHT", "ELEMENT_WISE_BIT_SHIFT_RIGHT"]

    formula_text = "f(a, b) = a >> b"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 U64-8",
        "3_0 1-8 U32-8",
        "2_1 4 U32-8",
    )
    notes = (BEYOND,)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a >> b


class ElementWiseBitNot(Unary):
    """All bits inverted."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_NOT", "ELEMENT_WISE_BIT_NOT"]

    formula_text = "f(x) = ~x"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 U32-8",
    )

    def is_bitwise(self) -> bool:
        return True

    def formula(self, p: Parameters, x: Value) -> Value:
        return ~x


class ElementWiseBitCount(Predicate, Unary):
    """How many bits are set."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_BIT_COUNT", "ELEMENT_WISE_BIT_COUNT"]

    formula_text = "f(x) = number of bits of x that are 1"
    accuracy = EXACT
    in_place = ()
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8, OutputTensor U32 U8",
        "3_0 1-8 U32-8, OutputTensor U32 U8",
    )
    notes = ("OutputTensor left out is of UINT8.",)

    def is_bitwise(self) -> bool:
        return True

    def formula(self, p: Parameters, x: Value) -> Value:
        return bit_count(x)
