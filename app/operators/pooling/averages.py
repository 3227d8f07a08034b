"""Averages and norms of windows, and the average's gradient.

Source: the DML_AVERAGE_POOLING*_OPERATOR_DESC, DML_LP_POOLING*_OPERATOR_DESC and
DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import mul
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, maximum_over, sum_over
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    INFINITY,
    INT64,
    Value,
    absolute,
    cast,
    maximum,
    minimum,
    power,
    quotient,
    sqrt,
    where,
    widen,
)
from app.operators.accuracy import NEAREST, ONCE, SUM
from app.operators.element_wise.quantization import SCALE_0, TIES, quantized
from app.operators.operator import (
    InputTensorDesc,
    Operator,
    OptionalInputTensorDesc,
    OutputTensorDesc,
    StatedOutputTensorDesc,
)
from app.operators.parameters import TensorParameters
from app.operators.pooling.windows import (
    AT_LEAST_1,
    DILATED_SIZES,
    ROUNDED,
    DilatedPooling,
    IncludePadding,
    OneInput,
    Pooling,
    Positive,
    WindowOperator,
    element_of,
)
from app.operators.quantization.integers import channel_violations

MOST_RAISED = 64
"""P up to which there is a formula of its own for each."""

PADDING_ALONE = (
    "A window that lies in the padding alone is 0, also where padding does not count in the divisor. DirectML's "
    "documentation does not say."
)
EXACT = "Sums are made in float64 and rounded once."
ABSOLUTE = (
    "Of the elements' absolute values, as a norm is. DirectML's page writes x^P, which differs for an odd P and "
    "negative elements."
)
P_0 = "P of 0 is refused. DirectML's documentation does not mention it."


def divisor(p: TensorParameters, inside: Value, include_padding: bool) -> Value:
    """What the sum of a window is divided by, in float64, where `inside` elements of it are inside the input."""
    return cast(reduce(mul, p.WindowSize) if include_padding else maximum(inside, 1), FLOAT64)


def average(operator: WindowOperator, p: TensorParameters, x: Operand, include_padding: bool) -> Value:
    at = coordinates(x.rank)
    spans = operator.spans(p, x.sizes[2:], at[2:])
    counts = [span.count for span in spans]
    element = element_of(x, at[:2], spans)
    total = sum_over(counts, lambda *indices: widen(element(*indices)))
    return cast(total / divisor(p, reduce(mul, counts), include_padding), x.type)


class AveragePooling(Pooling, OneInput):
    """The average of each window."""

    Type: Literal["DML_OPERATOR_AVERAGE_POOLING", "AVERAGE_POOLING"]
    IncludePadding: IncludePadding

    formula_text = (
        "f(x) = sum of the window / divisor, which is the number of its elements, or where IncludePadding is false of "
        "those that lie inside the input"
    )
    accuracy = SUM
    support = SupportTable.of("1_0 4-5 F32-16")
    notes = (PADDING_ALONE, EXACT, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return average(self, p, x, self.IncludePadding)


class AveragePooling1(DilatedPooling, OneInput):
    """The average of each dilated window."""

    Type: Literal["DML_OPERATOR_AVERAGE_POOLING1", "AVERAGE_POOLING1"]
    IncludePadding: IncludePadding

    formula_text = AveragePooling.formula_text
    accuracy = SUM
    support = SupportTable.of("6_2 4-5 F32-16")
    notes = (PADDING_ALONE, EXACT, DILATED_SIZES, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return average(self, p, x, self.IncludePadding)


def norm(operator: WindowOperator, p: TensorParameters, x: Operand) -> Value:
    at = coordinates(x.rank)
    spans = operator.spans(p, x.sizes[2:], at[2:])
    counts = [span.count for span in spans]
    element = element_of(x, at[:2], spans)

    def magnitude(*indices: Value) -> Value:
        return absolute(widen(element(*indices)))

    if p.ask(lambda exponent: exponent == 1, p.P):
        return cast(sum_over(counts, magnitude), x.type)
    if p.ask(lambda exponent: exponent == 2, p.P):  # squares of float32 do not overflow in float64
        return cast(sqrt(sum_over(counts, lambda *indices: magnitude(*indices) * magnitude(*indices))), x.type)
    largest = maximum(maximum_over(counts, magnitude), 0)
    scale = where((largest > 0) & (largest < INFINITY), largest, 1)
    few: int = p.ask(_if_few, p.P)
    if few:
        return cast(scale * _root(sum_over(counts, lambda *at: _raised(magnitude(*at) / scale, few)), few), x.type)
    exponent = cast(p.P, FLOAT64)
    total = sum_over(counts, lambda *indices: power(magnitude(*indices) / scale, exponent))
    return cast(scale * power(total, 1 / exponent), x.type)


def _if_few(exponent: int) -> int:
    """An exponent whose powers are few products, or 0: `power` of float64 is a loop's nowhere."""
    return exponent if exponent <= MOST_RAISED else 0


def _raised(x: Value, exponent: int) -> Value:
    """`x` to the power of a whole `exponent`, at least 1, by products."""
    half = _raised(x, exponent // 2) if exponent > 1 else None
    return x if half is None else half * half * x if exponent % 2 else half * half


def _root(x: Value, degree: int) -> Value:
    """Of float64, at least 1 unless it is 0 or none: that in float32, and a step of Newton's method, with which as many
    digits again are right."""
    near = widen(power(cast(x, FLOAT32), 1 / degree))
    better = near * ((x / _raised(near, degree) + (degree - 1)) / degree)
    return where((x > 0) & (x < INFINITY), better, x)


class LpPooling(Pooling, OneInput):
    """The Lp norm of each window."""

    Type: Literal["DML_OPERATOR_LP_POOLING", "LP_POOLING"]
    P: Positive = Field(description="Exponent of the norm, at least 1; usually 1 or 2.", examples=[2])

    formula_text = "f(x) = (sum of |x|^P over the window)^(1/P)"
    accuracy = ONCE
    support = SupportTable.of("1_0 4-5 F32-16")
    notes = (ABSOLUTE, P_0, EXACT, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return norm(self, p, x)


class LpPooling1(DilatedPooling, OneInput):
    """The Lp norm of each dilated window."""

    Type: Literal["DML_OPERATOR_LP_POOLING1", "LP_POOLING1"]
    P: Positive = Field(description="Exponent of the norm, at least 1; usually 1 or 2.", examples=[2])

    formula_text = LpPooling.formula_text
    accuracy = ONCE
    support = SupportTable.of("6_2 4-5 F32-16")
    notes = (ABSOLUTE, P_0, EXACT, DILATED_SIZES, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return norm(self, p, x)


class _Gradients(Operator):
    """The fields that come before those of the window."""

    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: StatedOutputTensorDesc


class AveragePoolingGrad(WindowOperator, _Gradients):
    """The gradient of AVERAGE_POOLING's input, of that of its output."""

    Type: Literal["DML_OPERATOR_AVERAGE_POOLING_GRAD", "AVERAGE_POOLING_GRAD"]
    IncludePadding: IncludePadding

    formula_text = "f(dy) = sum of dy / divisor over the windows that hold the element; divisors as in AVERAGE_POOLING"
    accuracy = SUM
    by_coordinates = True
    same_types = (("InputGradientTensor", "OutputGradientTensor"),)
    same_ranks = (("InputGradientTensor", "OutputGradientTensor"),)
    window_tensor = "OutputGradientTensor"
    support = SupportTable.of("3_0 4-5 F32-16")
    example: ClassVar[Mapping[str, Any]] = {"OutputGradientTensor": {"Sizes": [1, 1, 3, 4]}}
    notes = (EXACT, AT_LEAST_1, ROUNDED)

    def implied_sizes(self, name: str) -> None:
        """The input's sizes are not those of its windows alone: what is left over at the end is in none."""

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(super().rules(level))
        yield from wrong or gradient_violations(self, self.InputGradientTensor.Sizes)

    def formula(self, p: TensorParameters, dy: Operand) -> Value:
        at = coordinates(dy.rank)
        sizes = p.out("OutputGradientTensor").sizes[2:]
        firsts, counts = [], []
        each = zip(at[2:], dy.sizes[2:], p.Strides, p.WindowSize, p.StartPadding, strict=True)
        for place, windows, stride, window, padding in each:
            # The windows that hold it begin after place - window, and at most there.
            first = quotient(maximum(place + padding - window + 1, 0) + (stride - 1), stride)
            last = minimum(quotient(place + padding, stride), windows - 1)
            firsts.append(first)
            counts.append(maximum(last - first + 1, 0))

        def share(*indices: Value) -> Value:
            places = [first + index for first, index in zip(firsts, indices, strict=True)]
            inside = reduce(mul, [span.count for span in self.spans(p, sizes, places)])
            return widen(dy[[*at[:2], *places]]) / divisor(p, inside, self.IncludePadding)

        return cast(sum_over(counts, share), dy.type)


def gradient_violations(operator: WindowOperator, given: list[int]) -> Iterator[Violation]:
    """InputGradientTensor, of the sizes `given`, has an element for each window over the operator's `window_tensor`."""
    name = operator.window_tensor
    sizes = operator.tensors()[name].Sizes
    right = operator.pooled(sizes, given)
    if given != right:
        (arrays,) = operator.counts.values()
        stated = ", ".join(f"{array} {getattr(operator, array)}" for array in arrays)
        yield Violation(
            ("InputGradientTensor", "Sizes"),
            f"InputGradientTensor has Sizes {given}; {name} {sizes} with {stated} implies {right}.",
            given,
            right,
        )


class _QuantizedTensors(Operator):
    """The fields that come before those of the window."""

    InputTensor: InputTensorDesc
    InputScaleTensor: InputTensorDesc
    InputZeroPointTensor: OptionalInputTensorDesc = None
    OutputScaleTensor: InputTensorDesc
    OutputZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None


class QuantizedLinearAveragePooling(DilatedPooling, _QuantizedTensors):
    """The average of each dilated window of a quantized tensor, quantized."""

    Type: Literal["DML_OPERATOR_QUANTIZED_LINEAR_AVERAGE_POOLING", "QUANTIZED_LINEAR_AVERAGE_POOLING"]
    IncludePadding: IncludePadding

    formula_text = (
        "f(x) = clamp(round(average / OutputScale) + OutputZeroPoint, least of the type, greatest of the type), where "
        "average is that of (x - InputZeroPoint) * InputScale as in AVERAGE_POOLING1"
    )
    accuracy = NEAREST
    same_types = (("InputTensor", "InputZeroPointTensor"), ("OutputZeroPointTensor", "OutputTensor"))
    support = SupportTable.of(
        "6_2 4-5 I8 U8, InputScaleTensor OutputScaleTensor 1-5 F32, "
        "InputZeroPointTensor OutputZeroPointTensor 1-5 I8 U8"
    )
    example: ClassVar[Mapping[str, Any]] = {
        name: {"Sizes": [1, 1, 1, 1]}
        for name in ("InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor")
    }
    notes = (
        TIES,
        SCALE_0,
        "Padding is 0 after dequantization, the input's zero point before. DirectML's documentation does not say.",
        "A scale or zero point has one element, or one for each channel: of one dimension, that is it; of more, the "
        "second, and the others are 1, however many InputTensor has.",
        PADDING_ALONE,
        "OutputTensor left out has the type of OutputZeroPointTensor, or of InputTensor.",
        DILATED_SIZES,
        AT_LEAST_1,
        ROUNDED,
    )

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return (self.OutputZeroPointTensor or self.InputTensor).DataType

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from super().rules(level)
        for name in ("InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor"):
            yield from channel_violations(name, getattr(self, name), "InputTensor", self.InputTensor.Sizes[1])

    def formula(
        self,
        p: TensorParameters,
        x: Operand,
        x_scale: Operand,
        x_zero: Operand | None,
        scale: Operand,
        zero: Operand | None,
    ) -> Value:
        at = coordinates(x.rank)
        spans = self.spans(p, x.sizes[2:], at[2:])
        counts = [span.count for span in spans]
        element = element_of(x, at[:2], spans)
        inside = reduce(mul, counts)
        total = sum_over(counts, lambda *indices: cast(element(*indices), INT64))
        if x_zero:
            total -= cast(_of_channel(x_zero, x), INT64) * inside
        restored = cast(total, FLOAT64) * widen(_of_channel(x_scale, x))
        mean = restored / divisor(p, inside, self.IncludePadding)
        quotient = mean / widen(_of_channel(scale, x))
        return quantized(quotient, _of_channel(zero, x) if zero else None, self.stored_types()["OutputTensor"])


def _of_channel(parameter: Operand, x: Operand) -> Value:
    """The scale or zero point of this channel of `x`, which may be the only one."""
    at: list[Value | int] = [0] * parameter.rank
    along = min(1, parameter.rank - 1)
    at[along] = minimum(coordinates(x.rank)[1], parameter.sizes[along] - 1)
    return parameter[at]
