"""ELEMENT_WISE_* operators of arithmetic.

Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Literal

from app.contract.constants import FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import (
    INT64,
    Constant,
    Value,
    absolute,
    cast,
    is_float,
    maximum,
    minimum,
    quotient,
    remainder_of_floor,
    remainder_of_truncation,
    where,
)
from app.operators.accuracy import EXACT, LINEAR, Accuracy
from app.operators.forms import SCALED, Binary, ScaledUnary, Unary
from app.operators.fusion import OptionalFusedActivation
from app.operators.operator import SCALED_INTEGERS, WRAPPING
from app.operators.parameters import Parameters

BY_ZERO = "An integer divided by 0 is 0, and so is the remainder. DirectML's documentation does not say."


class ElementWiseIdentity(ScaledUnary):
    """Each element as it is: a copy, a change of layout by different strides, or ScaleBias alone."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_IDENTITY", "ELEMENT_WISE_IDENTITY"]

    formula_text = f"f(x) = g(x), {SCALED}"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4-5 F32-16 I32-8 U32-8",
        "1_0 4-5 F32-16",
    )
    notes = (SCALED_INTEGERS,)

    def is_bitwise(self) -> bool:
        return self.ScaleBias is None

    def function(self, p: Parameters, x: Value) -> Value:
        return x


class ElementWiseAbs(ScaledUnary):
    """The magnitude of each element."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ABS", "ELEMENT_WISE_ABS"]

    formula_text = f"f(x) = abs(g(x)), {SCALED}"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8",
        "3_0 1-8 F32-16 I32-8",
        "2_1 4 F32-16 I32-8",
        "1_0 4 F32-16",
    )
    notes = (SCALED_INTEGERS, "The least number of an integer type stays as it is: it has no opposite in the type.")

    def function(self, p: Parameters, x: Value) -> Value:
        return absolute(x)


class ElementWiseNegate(Unary):
    """The opposite of each element."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_NEGATE", "ELEMENT_WISE_NEGATE"]

    formula_text = "f(x) = -x"
    accuracy = EXACT
    support = SupportTable.of("5_0 1-8 F32-16 I64-8")
    notes = ("The least number of an integer type stays as it is: it has no opposite in the type.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        return -x


class ElementWiseSign(Unary):
    """The sign of each element."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_SIGN", "ELEMENT_WISE_SIGN"]

    formula_text = "f(x) = -1 if x < 0; 1 if x > 0; 0 otherwise"
    accuracy = EXACT
    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "2_0 4 F32-16",
    )
    notes = ("NaN and -0 give 0.",)

    def formula(self, p: Parameters, x: Value) -> Value:
        above = where(x > 0, Constant(x.type, 1), 0)
        return above if x.type.startswith("u") else where(x < 0, Constant(x.type, -1), above)


class ElementWiseRecip(ScaledUnary):
    """The reciprocal of each element."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_RECIP", "ELEMENT_WISE_RECIP"]

    formula_text = f"f(x) = 1 / g(x), {SCALED}"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "1_0 4 F32-16",
    )
    notes = ("Of zero, the infinity of its sign.",)

    def function(self, p: Parameters, x: Value) -> Value:
        return 1 / x


class ElementWiseAdd(Binary):
    """The sum of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ADD", "ELEMENT_WISE_ADD"]

    formula_text = "f(a, b) = a + b"
    accuracy = EXACT
    support = SupportTable.of(
        "5_1 1-8 F32-16 I64-8 U64-8",
        "4_1 1-8 F32-16 I64-32 U64-32",
        "3_0 1-8 F32-16 I32 U32",
        "2_1 4-5 F32-16 I32 U32",
        "1_0 4-5 F32-16",
    )
    notes = (WRAPPING,)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a + b


class ElementWiseAdd1(Binary):
    """The sum of two tensors, and an activation of it in the same pass."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_ADD1", "ELEMENT_WISE_ADD1"]
    FusedActivation: OptionalFusedActivation = None

    formula_text = "f(a, b) = act(a + b), act = FusedActivation, else the identity"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
    )
    notes = (
        "The activation is given the sum in float32, for FLOAT16 tensors too. DirectML's documentation does not say.",
        "An activation can be fused at the feature levels that have it as an operator. DirectML's documentation does "
        "not say.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if self.FusedActivation:
            for violation in self.FusedActivation.violations(level):
                yield violation.below("FusedActivation")

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        total = a + b
        return self.FusedActivation.formula(p.below("FusedActivation."), total) if self.FusedActivation else total


class ElementWiseSubtract(Binary):
    """The difference of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_SUBTRACT", "ELEMENT_WISE_SUBTRACT"]

    formula_text = "f(a, b) = a - b"
    accuracy = EXACT
    support = SupportTable.of(
        "5_1 1-8 F32-16 I64-8 U64-8",
        "4_1 1-8 F32-16 I64-32 U64-32",
        "3_0 1-8 F32-16 I32 U32",
        "2_1 4 F32-16 I32 U32",
        "1_0 4 F32-16",
    )
    notes = (WRAPPING,)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a - b


class ElementWiseMultiply(Binary):
    """The product of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_MULTIPLY"]

    formula_text = "f(a, b) = a * b"
    accuracy = EXACT
    support = SupportTable.of(
        "5_1 1-8 F32-16 I64-8 U64-8",
        "4_1 1-8 F32-16 I64-32 U64-32",
        "3_0 1-8 F32-16 I32 U32",
        "2_1 4-5 F32-16 I32 U32",
        "1_0 4-5 F32-16",
    )
    notes = (WRAPPING,)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a * b


class ElementWiseDivide(Binary):
    """The quotient of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_DIVIDE", "ELEMENT_WISE_DIVIDE"]

    formula_text = "f(a, b) = a / b; of integers, truncated toward zero"
    accuracy = EXACT
    support = SupportTable.of(
        "6_0 1-8 F32-16 I64-8 U64-8",
        "5_1 1-8 F32-16 I32-8 U32-8",
        "3_0 1-8 F32-16 I32 U32",
        "2_1 4 F32-16 I32 U32",
        "1_0 4 F32-16",
    )
    notes = (BY_ZERO, "The least number of an integer type divided by -1 is itself: it has no opposite in the type.")

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return a / b if is_float(a.type) else quotient(a, b)


class ElementWiseModulusTruncate(Binary):
    """The remainder with the sign of the dividend, as in C."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_MODULUS_TRUNCATE", "ELEMENT_WISE_MODULUS_TRUNCATE"]

    formula_text = "f(a, b) = a - b * trunc(a / b)"
    accuracy = EXACT
    support = SupportTable.of(
        "6_0 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
    )
    notes = (BY_ZERO, "Of floats, by 0 and of infinities it is NaN, and by infinities a, as C's fmod has it.")

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return remainder_of_truncation(a, b)


class ElementWiseModulusFloor(Binary):
    """The remainder with the sign of the divisor, as in Python."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_MODULUS_FLOOR", "ELEMENT_WISE_MODULUS_FLOOR"]

    formula_text = "f(a, b) = a - b * floor(a / b)"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "6_0 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
    )
    notes = (
        BY_ZERO,
        "Of floats, by 0 and of infinities it is NaN, and by an infinity a if that has its sign, else the infinity.",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return remainder_of_floor(a, b)


class ElementWiseMax(Binary):
    """The larger element of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_MAX", "ELEMENT_WISE_MAX"]

    formula_text = "f(a, b) = max(a, b)"
    accuracy = EXACT
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16",
    )
    notes = ("NaN if either is NaN. DirectML's documentation does not say.",)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return maximum(a, b)


class ElementWiseMin(Binary):
    """The smaller element of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_MIN", "ELEMENT_WISE_MIN"]

    formula_text = "f(a, b) = min(a, b)"
    accuracy = EXACT
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16",
    )
    notes = ("NaN if either is NaN. DirectML's documentation does not say.",)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        return minimum(a, b)


class ElementWiseMean(Binary):
    """The mean of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_MEAN", "ELEMENT_WISE_MEAN"]

    formula_text = "f(a, b) = (a + b) / 2"
    accuracy = Accuracy(1)
    support = SupportTable.of(
        "3_0 1-8 F32-16 I32 U32",
        "2_1 4 F32-16 I32 U32",
        "1_0 4 F32-16",
    )
    notes = (
        "The sum cannot overflow. The mean of integers is truncated toward zero, as a quotient is. DirectML's "
        "documentation does not say.",
    )

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        if is_float(a.type):
            return a * 0.5 + b * 0.5
        total = cast(a, INT64) + cast(b, INT64)
        return cast((total - (total >> 63)) >> 1, a.type)  # a shift rounds down, so that negative sums need 1 more


class ElementWiseDifferenceSquare(Binary):
    """The square of the difference of two tensors."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_DIFFERENCE_SQUARE", "ELEMENT_WISE_DIFFERENCE_SQUARE"]

    formula_text = "f(a, b) = (a - b) * (a - b)"
    accuracy = LINEAR
    support = SupportTable.of("3_1 1-8 F32-16 I32 U32")
    notes = (WRAPPING,)

    def formula(self, p: Parameters, a: Value, b: Value) -> Value:
        difference = a - b
        return difference * difference
