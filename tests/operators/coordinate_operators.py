"""Operators whose formulas go by coordinates, for tests of what devices make of such formulas; sizes are not judged."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal
from unittest import mock

from app.contract.constants import NEWEST
from app.contract.scalars import Float, Uint
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.formula.coordinates import (
    Operand,
    coordinates,
    maximum_over,
    minimum_over,
    position_over,
    product_over,
    sum_over,
)
from app.formula.structures import Structures
from app.formula.values import FLOAT32, Constant, Value, absolute, cast, exp, log, maximum, minimum, sqrt, where
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import (
    InputTensorDesc,
    Operator,
    OptionalInputTensorDesc,
    OptionalOutputTensorDesc,
    OutputTensorDesc,
    Role,
)
from app.operators.parameters import STRUCTURAL, TensorParameters


class Unjudged(Operator):
    by_coordinates = True
    formula_text = ""
    support = SupportTable.of("1_0 1-8 F64-16 I64-8 U64-8")


class Slice1(Unjudged):
    """Windows with steps of either sign; those below 0 begin at the window's end."""

    Type: Literal["DML_OPERATOR_TEST_SLICE1"] = "DML_OPERATOR_TEST_SLICE1"
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    InputWindowOffsets: list[Uint]
    InputWindowSizes: list[Uint]
    InputWindowStrides: list[int]

    def is_bitwise(self) -> bool:
        return True

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return x[
            [
                offset + where(stride < 0, size - 1, 0) + c * stride
                for c, offset, size, stride in zip(
                    coordinates(x.rank),
                    p.InputWindowOffsets,
                    p.InputWindowSizes,
                    p.InputWindowStrides,
                    strict=True,
                )
            ]
        ]


class Gather(Unjudged):
    """Of tensors of rank 2, with one dimension of indices; 0 in the place of what is outside, if there is a Beyond."""

    Type: Literal["DML_OPERATOR_TEST_GATHER"] = "DML_OPERATOR_TEST_GATHER"
    InputTensor: InputTensorDesc
    IndicesTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Axis: Annotated[Uint, STRUCTURAL]
    Beyond: Float | None = None

    def formula(self, p: TensorParameters, x: Operand, indices: Operand) -> Value:
        at = coordinates(x.rank)
        index = cast(indices[[at[self.Axis]]], "int64")
        size = x.sizes[self.Axis]
        at[self.Axis] = where(index < 0, index + size, index)
        inside = (at[self.Axis] >= 0) & (at[self.Axis] < size)
        return x[at] if p.Beyond is None else where(inside, x[at], cast(p.Beyond, x.type))


class Reduce(Unjudged):
    Type: Literal["DML_OPERATOR_TEST_REDUCE"] = "DML_OPERATOR_TEST_REDUCE"
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Function: str
    Axes: Annotated[list[Uint], STRUCTURAL]
    Last: bool = False

    FUNCTIONS: ClassVar[list[str]] = [
        *("ARGMAX", "ARGMIN", "AVERAGE", "L1", "L2", "LOG_SUM", "LOG_SUM_EXP"),
        *("MAX", "MIN", "MULTIPLY", "SUM", "SUM_SQUARE"),
    ]

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        counts = [x.sizes[axis] for axis in self.Axes]

        def element(*indices: Value) -> Value:
            at = coordinates(x.rank)
            for axis, index in zip(self.Axes, indices, strict=True):
                at[axis] = index
            return x[at]

        def sum_of(function: Any) -> Value:
            return sum_over(counts, lambda *indices: function(element(*indices)))

        match self.Function:
            case "ARGMAX":
                return cast(position_over("last_maximum" if self.Last else "first_maximum", counts, element), "uint32")
            case "ARGMIN":
                return cast(position_over("last_minimum" if self.Last else "first_minimum", counts, element), "uint32")
            case "AVERAGE":
                terms = sum_over(counts, lambda *_: Constant("int64", 1))
                return sum_of(lambda e: e) / cast(terms, x.type)
            case "L1":
                return sum_of(absolute)
            case "L2":
                return sqrt(sum_of(lambda e: e * e))
            case "LOG_SUM":
                return log(sum_of(lambda e: e))
            case "LOG_SUM_EXP":
                largest = maximum_over(counts, element)
                return log(sum_of(lambda e: exp(e - largest))) + largest
            case "MAX":
                return maximum_over(counts, element)
            case "MIN":
                return minimum_over(counts, element)
            case "MULTIPLY":
                return product_over(counts, element)
            case "SUM":
                return sum_of(lambda e: e)
        return sum_of(lambda e: e * e)


class AveragePooling(Unjudged):
    """Of tensors of rank 1: windows are cut off at the tensor's ends, so that counts depend on coordinates."""

    Type: Literal["DML_OPERATOR_TEST_POOLING"] = "DML_OPERATOR_TEST_POOLING"
    InputTensor: InputTensorDesc
    WeightTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    OutputCountTensor: OptionalOutputTensorDesc = None
    WindowSize: Uint
    StartPadding: Uint

    def formula(self, p: TensorParameters, x: Operand, weight: Operand | None) -> dict[str, Value]:
        (c,) = coordinates(1)
        begin = maximum(c - p.StartPadding, 0)
        count = maximum(minimum(c - p.StartPadding + p.WindowSize, x.sizes[0]) - begin, 0)
        total = sum_over([count], lambda i: x[[begin + i]] * (weight[[i]] if weight else 1))
        return {"OutputTensor": total / cast(count, FLOAT32), "OutputCountTensor": count}


class Join(Unjudged):
    """Of an array of tensors, one after the other along an axis."""

    Type: Literal["DML_OPERATOR_TEST_JOIN"] = "DML_OPERATOR_TEST_JOIN"
    InputTensors: Annotated[list[TensorDesc], Role.INPUT]
    OutputTensor: OutputTensorDesc = None
    Axis: Annotated[Uint, STRUCTURAL]

    def formula(self, p: TensorParameters, tensors: list[Operand]) -> Value:
        def shifted(x: Operand, begin: Value | int) -> Value:
            at = coordinates(x.rank)
            at[self.Axis] = at[self.Axis] - begin
            return x[at]

        begin: Value | int = 0
        made = shifted(tensors[0], 0)
        for before, x in pairwise(tensors):
            begin = before.sizes[self.Axis] + begin
            made = where(coordinates(x.rank)[self.Axis] < begin, made, shifted(x, begin))
        return made


class CumulativeSum(Unjudged):
    """A call."""

    Type: Literal["DML_OPERATOR_TEST_CUMULATIVE_SUM"] = "DML_OPERATOR_TEST_CUMULATIVE_SUM"
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Axis: Uint

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x = inputs["InputTensor"]
        return {"OutputTensor": xp.cumsum(x, axis=self.Axis, dtype=x.dtype)}


def compiled(kind: type[Operator], members: dict[str, Any], structures: Structures | None = None) -> CompiledOperator:
    """The operator of `kind` that a descriptor states; it is not judged."""
    with mock.patch("app.operators.compiled.judge"):
        return compile_operator(kind.model_validate_json(json.dumps(members)), NEWEST, structures)
