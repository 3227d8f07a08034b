"""ACTIVATION_* operators that set an element in relation to its group: all elements along one or several axes.

Source: the DML_ACTIVATION_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import (
    Position,
    Value,
    cast,
    equal,
    exp_of_difference,
    first_maximum_of,
    log1p,
    maximum_of,
    sum_of,
    where,
)
from app.operators.accuracy import EXACT, FUNCTION
from app.operators.axes import AxisList, axes_violations
from app.operators.forms import Unary
from app.operators.operator import Count
from app.operators.parameters import Parameters


class OfGroups(Unary):
    """Base of those whose groups depend on the sizes of the tensor."""

    in_place = ()

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from self.group_violations("InputTensor")

    def group_violations(self, tensor: str) -> Iterator[Violation]:
        """What is wrong with the groups. A request has the tensor as `tensor`: of an activation that is fused, that is
        a tensor of the operator around it."""
        raise NotImplementedError


class OfRows(OfGroups):
    """Groups are the rows of a matrix: the last dimension of at most two that are not 1."""

    def axes(self) -> tuple[int, ...]:
        return (self.InputTensor.rank - 1,)

    def group_violations(self, tensor: str) -> Iterator[Violation]:
        sizes = self.InputTensor.Sizes
        if any(size != 1 for size in sizes[:-2]):
            yield Violation(
                (tensor, "Sizes"),
                f"Sizes of {tensor} is {sizes}; all but the last two dimensions must be 1, since "
                f"{self.short_name()} is for matrices, and {self.short_name()}1 for other axes.",
                sizes,
                [1] * (len(sizes) - 2) + sizes[-2:],
            )


class OfAxes(OfGroups):
    """Groups are the elements that differ only along the dimensions in Axes."""

    AxisCount: Count = Field(None, description="Number of axes; if given, the length of Axes.")
    Axes: Annotated[AxisList, Field(min_length=1)]

    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"AxisCount": ("Axes",)}

    def axes(self) -> tuple[int, ...]:
        return tuple(self.Axes)

    def group_violations(self, tensor: str) -> Iterator[Violation]:
        yield from axes_violations(self.Axes, tensor, self.InputTensor.rank)


AXES = "An empty list of Axes, and an axis given twice, are refused. DirectML's documentation does not mention them."
SPECIAL = "A group that holds NaN or +inf, or nothing but -inf, is NaN throughout."
FIRST = "NaN counts as greater than all numbers. DirectML's documentation does not say."


def softmax(x: Value) -> Value:
    """Without overflow: the largest exponential is 1."""
    exponential = exp_of_difference(x, maximum_of(x))
    return exponential / sum_of(exponential)


def log_softmax(x: Value) -> Value:
    """x - max - ln(sum(exp(x - max))), where the maxima's exponentials, which are 1, are counted instead of added:
    what is beside the first of them is the argument of log1p, so that it is not lost beside 1."""
    largest = maximum_of(x)
    difference = x - largest
    is_largest = difference >= 0  # false of NaN
    others = sum_of(where(is_largest, 0, exp_of_difference(x, largest)))
    ties = sum_of(cast(is_largest, x.type))
    return difference - log1p(others + (ties - 1))


def hardmax(x: Value) -> Value:
    return cast(equal(Position("int64"), first_maximum_of(x)), x.type)


class ActivationSoftmax(OfRows):
    """Shares of each row's sum of exponentials."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SOFTMAX", "ACTIVATION_SOFTMAX"]

    formula_text = "f(x) = exp(x) / sum(exp(x_k)) over the row of x"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (SPECIAL,)

    def formula(self, p: Parameters, x: Value) -> Value:
        return softmax(x)


class ActivationSoftmax1(OfAxes):
    """Shares of each group's sum of exponentials."""

    Type: Literal["DML_OPERATOR_ACTIVATION_SOFTMAX1", "ACTIVATION_SOFTMAX1"]

    formula_text = "f(x) = exp(x) / sum(exp(x_k)) over the elements that differ from x only along Axes"
    accuracy = FUNCTION
    support = SupportTable.of("5_1 1-8 F32-16")
    notes = (SPECIAL, AXES)

    def formula(self, p: Parameters, x: Value) -> Value:
        return softmax(x)


class ActivationLogSoftmax(OfRows):
    """Logarithms of the shares of each row's sum of exponentials."""

    Type: Literal["DML_OPERATOR_ACTIVATION_LOG_SOFTMAX", "ACTIVATION_LOG_SOFTMAX"]

    formula_text = "f(x) = ln(exp(x) / sum(exp(x_k))) over the row of x"
    accuracy = FUNCTION
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (SPECIAL,)

    def formula(self, p: Parameters, x: Value) -> Value:
        return log_softmax(x)


class ActivationLogSoftmax1(OfAxes):
    """Logarithms of the shares of each group's sum of exponentials."""

    Type: Literal["DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1"]

    formula_text = "f(x) = ln(exp(x) / sum(exp(x_k))) over the elements that differ from x only along Axes"
    accuracy = FUNCTION
    support = SupportTable.of("5_1 1-8 F32-16")
    notes = (
        SPECIAL,
        AXES,
        "The numeric examples on DirectML's page are those of ACTIVATION_HARDMAX1; its formula is followed.",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return log_softmax(x)


class ActivationHardmax(OfRows):
    """1 at the first maximum of each row, else 0."""

    Type: Literal["DML_OPERATOR_ACTIVATION_HARDMAX", "ACTIVATION_HARDMAX"]

    formula_text = "f(x) = 1 if x is the first maximum of its row, else 0"
    accuracy = EXACT
    support = SupportTable.of(
        "3_0 1-8 F32-16",
        "2_0 4-5 F32-16",
        "1_0 4 F32-16",
    )
    notes = (FIRST,)

    def formula(self, p: Parameters, x: Value) -> Value:
        return hardmax(x)


class ActivationHardmax1(OfAxes):
    """1 at the first maximum of each group, else 0."""

    Type: Literal["DML_OPERATOR_ACTIVATION_HARDMAX1", "ACTIVATION_HARDMAX1"]

    formula_text = "f(x) = 1 if x is the first maximum of the elements that differ from it only along Axes, else 0"
    accuracy = EXACT
    support = SupportTable.of("5_1 1-8 F32-16")
    notes = (FIRST, AXES, "Elements of a group follow each other row-major along Axes in ascending order.")

    def formula(self, p: Parameters, x: Value) -> Value:
        return hardmax(x)
