"""REDUCE, ARGMIN and ARGMAX: one element of all those that differ only along some dimensions.

Source: the DML_REDUCE_OPERATOR_DESC, DML_ARGMIN_OPERATOR_DESC and DML_ARGMAX_OPERATOR_DESC pages of DirectML's
reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import mul
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from app.contract import constants
from app.contract.constants import DataType, FeatureLevel, ReduceFunction
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.tensors import MAX_RANK
from app.contract.violations import Violation
from app.formula.coordinates import (
    Operand,
    coordinates,
    maximum_over,
    minimum_over,
    position_over,
    product_over,
    sum_over,
)
from app.formula.values import (
    FLOAT64,
    INFINITY,
    INT64,
    Constant,
    Value,
    absolute,
    cast,
    exp,
    is_float,
    log,
    sqrt,
    where,
    widen,
)
from app.operators.accuracy import EXACT, SUM
from app.operators.axes import AXES, axes_violations
from app.operators.operator import WRAPPING, Count, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import STRUCTURAL, TensorParameters

PositionName: TypeAlias = Literal["first_maximum", "last_maximum", "first_minimum", "last_minimum"]
Elements: TypeAlias = Callable[..., Value]
"""Takes an index along each reduced axis and gives the element."""

ORDER = "Elements of a group are counted row-major along Axes in ascending order, in whatever order they are given."
NAN = "NaN counts as beyond all numbers, so the index is that of a NaN if there is one. DirectML does not say."
INDEX = "OutputTensor left out is of UINT32."


class _ByFunction(Operator):
    """The field that comes before all others."""

    Function: ReduceFunction = Field(description="What is made of a group.", examples=["SUM"])


class _OneInput(Operator):
    """The fields that come before Axes."""

    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None


class OfAxes(_OneInput):
    """Base: groups are the elements that differ only along the dimensions in Axes, and each makes one element."""

    by_coordinates = True
    same_types = ()
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensor"),)
    sizes_from = ("InputTensor", "Axes")
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"AxisCount": ("Axes",)}

    AxisCount: Count = Field(None, description="Number of axes; if given, the length of Axes.")
    Axes: Annotated[
        list[Uint],
        STRUCTURAL,
        Field(
            max_length=MAX_RANK,
            description="Dimensions to go along, each once; the output's sizes there are 1.",
            examples=[[2, 3]],
        ),
    ]

    def implied_sizes(self, name: str) -> list[int]:
        return [1 if axis in self.Axes else size for axis, size in enumerate(self.InputTensor.Sizes)]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from axes_violations(self.Axes, "InputTensor", self.InputTensor.rank)

    def group(self, x: Operand) -> tuple[list[Value], Elements]:
        """How many elements there are along each of the reduced axes, and the elements by their places there."""
        axes = sorted(self.Axes)

        def element(*places: Value) -> Value:
            at = coordinates(x.rank)
            for axis, place in zip(axes, places, strict=True):
                at[axis] = place
            return x[at]

        return [x.sizes[axis] for axis in axes], element


_FLOATS = SupportTable.of(
    "3_0 1-8 F32-16",
    "1_0 4 F32-16",
)
_FLOATS_AND_LONG = SupportTable.of(
    "5_0 1-8 F32-16 I64-32 U64-32",
    "3_0 1-8 F32-16",
    "1_0 4 F32-16",
)
_SUMS = SupportTable.of(
    "5_0 1-8 F32-16 I64-32 U64-32",
    "3_0 1-8 F32-16 I32 U32",
    "2_1 4 F32-16 I32 U32",
    "1_0 4 F32-16",
)
_BOUNDS = SupportTable.of(
    "5_0 1-8 F32-16 I64-8 U64-8",
    "3_0 1-8 F32-16 I32-8 U32-8",
    "2_1 4 F32-16 I32 U32",
    "1_0 4 F32-16",
)
_INDICES = SupportTable.of(
    "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor I64-32 U64-32",
    "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor I64-32 U64-32",
    "2_1 4 F32-16 I32-8 U32-8, OutputTensor U32",
    "1_0 4 F32-16, OutputTensor U32",
)


class Reduce(OfAxes, _ByFunction):
    """A sum, an average, a bound, a norm or the like of each group of elements."""

    Type: Literal["DML_OPERATOR_REDUCE", "REDUCE"]

    formula_text = (
        "f(x) = F over the elements that differ only along Axes: SUM sum(x), AVERAGE sum(x) / n, MULTIPLY product(x), "
        "MIN, MAX, L1 sum(|x|), L2 sqrt(sum(x^2)), SUM_SQUARE sum(x^2), LOG_SUM ln(sum(x)), LOG_SUM_EXP "
        "ln(sum(exp(x))), ARGMAX and ARGMIN the index of the largest and the smallest element"
    )
    accuracy = SUM
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-8 U64-8",
        "4_1 1-8 F32-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor F32-16 I64-8 U64-8",
        "2_1 4 F32-16 I32-8 U32-8, OutputTensor F32-16 I32 U32",
        "1_0 4 F32-16, OutputTensor F32-16 U32",
    )
    by_function: ClassVar[Mapping[ReduceFunction, SupportTable]] = {
        ReduceFunction.ARGMAX: _INDICES,
        ReduceFunction.ARGMIN: _INDICES,
        ReduceFunction.AVERAGE: _FLOATS,
        ReduceFunction.L1: _FLOATS_AND_LONG,
        ReduceFunction.L2: _FLOATS,
        ReduceFunction.LOG_SUM: _FLOATS,
        ReduceFunction.LOG_SUM_EXP: _FLOATS,
        ReduceFunction.MAX: _BOUNDS,
        ReduceFunction.MIN: _BOUNDS,
        ReduceFunction.MULTIPLY: _SUMS,
        ReduceFunction.SUM: _SUMS,
        ReduceFunction.SUM_SQUARE: _FLOATS_AND_LONG,
    }
    """The tables of the operator's page; `support` is what they have together."""
    notes = (
        "AVERAGE, L2, LOG_SUM and LOG_SUM_EXP are of FLOAT32 and FLOAT16; MIN and MAX of all types; L1, MULTIPLY, SUM "
        "and SUM_SQUARE also of INT64, INT32, UINT64 and UINT32, where the feature level has them. ARGMAX and ARGMIN "
        "take all types and give INT64, INT32, UINT64 or UINT32; OutputTensor left out is then of UINT32.",
        "ARGMAX and ARGMIN take 64-bit integers from feature level 4_1 on, as the operator's page has it; the feature "
        "level history does not name that.",
        "Floats are added and multiplied in float64 and rounded once; LOG_SUM_EXP does not overflow.",
        WRAPPING,
        AXES,
        "The first element wins a tie in ARGMAX and ARGMIN. " + ORDER,
        "A group that holds NaN makes NaN, or for ARGMAX and ARGMIN the index of the first NaN. DirectML's "
        "documentation does not say.",
    )

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.UINT32 if self.is_index else self.InputTensor.DataType

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from super().rules(level)
        row = self.by_function[self.Function].at(level)
        assert row is not None, "each function is as old as the operator"
        given = self.InputTensor.DataType
        outputs = row.of("OutputTensor").data_types if self.is_index else (given,)
        for name, allowed in (("InputTensor", row.of("InputTensor").data_types), ("OutputTensor", outputs)):
            desc = getattr(self, name)
            if desc is not None and desc.DataType not in allowed:
                of = f", InputTensor of {given}" if name == "OutputTensor" else ""
                yield Violation(
                    (name, "DataType"),
                    f"{name} is {desc.DataType}; with Function {self.Function}{of} and feature level {level} its "
                    f"DataType must be {' or '.join(allowed)}.",
                    desc.DataType,
                    list(allowed),
                )

    @property
    def is_index(self) -> bool:
        """Whether what is made is where an element is."""
        return self.Function in (ReduceFunction.ARGMAX, ReduceFunction.ARGMIN)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        counts, element = self.group(x)
        match self.Function:
            case ReduceFunction.ARGMAX:
                return cast(position_over("first_maximum", counts, element), p.out("OutputTensor").type)
            case ReduceFunction.ARGMIN:
                return cast(position_over("first_minimum", counts, element), p.out("OutputTensor").type)
            case ReduceFunction.MAX:
                return maximum_over(counts, element)
            case ReduceFunction.MIN:
                return minimum_over(counts, element)
            case ReduceFunction.MULTIPLY:
                return product_over(counts, element)
            case ReduceFunction.L1:
                signed = not x.type.startswith("u")
                return sum_over(counts, (lambda *at: absolute(element(*at))) if signed else element)
            case ReduceFunction.SUM_SQUARE:
                return cast(_sum_of_squares(counts, element), x.type)
            case ReduceFunction.L2:
                return cast(sqrt(_sum_of_squares(counts, element)), x.type)
            case ReduceFunction.LOG_SUM:
                return cast(log(_sum_of_wide(counts, element)), x.type)
            case ReduceFunction.LOG_SUM_EXP:
                return cast(_log_sum_exp(counts, element), x.type)
            case ReduceFunction.AVERAGE:
                terms = reduce(mul, counts or [Constant(INT64, 1)])
                return cast(_sum_of_wide(counts, element) / cast(terms, FLOAT64), x.type)
            case _:
                return sum_over(counts, element)


def _sum_of_wide(counts: Sequence[Value], element: Elements) -> Value:
    """The sum of floats, not rounded."""
    return sum_over(counts, lambda *at: widen(element(*at)))


def _sum_of_squares(counts: Sequence[Value], element: Elements) -> Value:
    """Of floats in float64, in which their squares are exact and do not overflow; integers wrap around."""

    def square(*at: Value) -> Value:
        x = element(*at)
        x = widen(x) if is_float(x.type) else x
        return x * x

    return sum_over(counts, square)


def _log_sum_exp(counts: Sequence[Value], element: Elements) -> Value:
    """In float64, without overflow: the largest exponential is 1, or that of an infinity."""
    largest = widen(maximum_over(counts, element))
    shift = where(absolute(largest) < INFINITY, largest, 0)
    return log(sum_over(counts, lambda *at: exp(widen(element(*at)) - shift))) + shift


class PositionOfBound(OfAxes):
    """Base: where the largest or the smallest element of each group is."""

    AxisDirection: constants.AxisDirection = Field(
        description="INCREASING: the first wins a tie. DECREASING: the last.", examples=["INCREASING"]
    )

    support = SupportTable.of(
        "4_1 1-8 F32-16 I64-8 U64-8, OutputTensor I64-32 U64-32",
        "3_0 1-8 F32-16 I32-8 U32-8, OutputTensor I64-32 U64-32",
    )
    notes = (AXES, ORDER, NAN, INDEX)

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.UINT32

    def position(self, p: TensorParameters, x: Operand, first: PositionName, last: PositionName) -> Value:
        name = first if self.AxisDirection is constants.AxisDirection.INCREASING else last
        return cast(position_over(name, *self.group(x)), p.out("OutputTensor").type)


class Argmin(PositionOfBound):
    """Where the smallest element of each group is."""

    Type: Literal["DML_OPERATOR_ARGMIN", "ARGMIN"]

    formula_text = "f(x) = index of the smallest of the elements that differ only along Axes, row-major along Axes"
    accuracy = EXACT

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return self.position(p, x, "first_minimum", "last_minimum")


class Argmax(PositionOfBound):
    """Where the largest element of each group is."""

    Type: Literal["DML_OPERATOR_ARGMAX", "ARGMAX"]

    formula_text = "f(x) = index of the largest of the elements that differ only along Axes, row-major along Axes"
    accuracy = EXACT

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return self.position(p, x, "first_maximum", "last_maximum")
