"""LOCAL_RESPONSE_NORMALIZATION and its gradient: elements divided by a power of the squares around them.

Source: the DML_LOCAL_RESPONSE_NORMALIZATION_OPERATOR_DESC and DML_LOCAL_RESPONSE_NORMALIZATION_GRAD_OPERATOR_DESC pages
of DirectML's reference.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Bool, Float, Uint
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Element, Operand, coordinates, sum_over
from app.formula.values import Number, Value, cast, maximum, minimum, power, quotient, sqrt, widen
from app.operators.accuracy import ONCE, SUM
from app.operators.forms import Unary
from app.operators.looks import look
from app.operators.normalization.fields import IN_FLOAT64
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import TensorParameters

_REGION = (
    "The region is LocalSize channels with CrossChannel, as ONNX's LRN has it, else LocalSize by LocalSize elements of "
    "the channel. The two pages of DirectML's documentation contradict each other.",
    "The region of an even LocalSize has one element more after the element than before it, as ONNX's LRN has it. "
    "DirectML's documentation does not say.",
    "The divisor is LocalSize for both kinds of regions, also where they are cut off.",
    IN_FLOAT64,
)
_SUM = (
    "s = Bias + Alpha / LocalSize * sum(x_k^2) over the region around x, which is LocalSize channels with "
    "CrossChannel, else a square in the channel, cut off at the tensor's ends"
)

_PIECE = {"numpy": 1 << 13, "cupy": 1 << 22}
"""Elements that the gradient is computed for at a time: with NumPy so few that what it makes of them stays in the
cache, and is too small for the C library to hand memory back to the system for each array."""


def _axes(*, cross_channel: bool) -> tuple[int, ...]:
    """The dimensions that regions extend along."""
    return (1,) if cross_channel else (2, 3)


def around(
    p: TensorParameters, x: Operand, value: Callable[[Element], Value], *, cross_channel: bool, is_in: bool = False
) -> Value:
    """The sum of `value` over all elements of the region around the output's, or over those in whose region it `is_in`,
    in float64."""
    here = coordinates(x.rank)
    before = quotient(p.LocalSize - 1, 2)
    after = p.LocalSize - 1 - before
    if is_in:  # those lie as far before it as its own region reaches after it
        before, after = after, before
    axes = _axes(cross_channel=cross_channel)
    begins = [maximum(here[axis] - before, 0) for axis in axes]
    ends = [minimum(here[axis] + after + 1, x.sizes[axis]) for axis in axes]

    def at(*indices: Value) -> Value:
        place = list(here)
        for axis, begin, index in zip(axes, begins, indices, strict=True):
            place[axis] = begin + index
        return value(x[place])

    return sum_over([end - begin for begin, end in zip(begins, ends, strict=True)], at)


def share(p: TensorParameters) -> Value:
    """Alpha / LocalSize."""
    return widen(p.Alpha) / cast(p.LocalSize, "float64")


def sum_of_squares(p: TensorParameters, x: Operand, *, cross_channel: bool) -> Value:
    """What is called s, in float64."""

    def square(element: Element) -> Value:
        wide = widen(element)
        return wide * wide

    return widen(p.Bias) + share(p) * around(p, x, square, cross_channel=cross_channel)


def _size_violations(local_size: int) -> Iterator[Violation]:
    if not local_size:
        yield Violation(("LocalSize",), "LocalSize is 0; it must be at least 1.", 0, ">= 1")


def power_of(p: TensorParameters, s: Value) -> Value:
    """s^Beta, in float64. Most networks have 0.75, for which roots will do, and loops need no power."""
    if p.ask(is_three_quarters, p.Beta):
        root = sqrt(s)
        return root * sqrt(root)
    return power(s, widen(p.Beta))


def is_three_quarters(number: Number) -> bool:
    return number == 0.75


class LocalResponseNormalization(Unary):
    """Elements divided by a power of the sum of squares around them."""

    Type: Literal["DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION"]
    CrossChannel: Bool = Field(description="Whether the region goes across channels.", examples=[True])
    LocalSize: Uint = Field(description="Size of the region along each of its dimensions.", examples=[3])
    Alpha: Float = Field(1e-4, description="Factor of the mean square.")
    Beta: Float = Field(0.75, description="The power.")
    Bias: Float = Field(1.0, description="Added to the mean square.")

    formula_text = f"f(x) = x / s^Beta, {_SUM}"
    accuracy = ONCE
    support = SupportTable.of("1_0 4 F32-16")
    in_place = ()
    same_sizes = (("InputTensor", "OutputTensor"),)
    by_coordinates = True
    notes = _REGION

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _size_violations(self.LocalSize)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        s = sum_of_squares(p, x, cross_channel=self.CrossChannel)
        return cast(widen(x[coordinates(x.rank)]) / power_of(p, s), x.type)


class LocalResponseNormalizationGrad(Operator):
    """What LOCAL_RESPONSE_NORMALIZATION hands back to its input of the gradient of its output."""

    Type: Literal["DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION_GRAD", "LOCAL_RESPONSE_NORMALIZATION_GRAD"]
    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: OutputTensorDesc = None
    CrossChannel: Bool = Field(description="Whether the region goes across channels.", examples=[True])
    LocalSize: Uint = Field(description="Size of the region along each of its dimensions.", examples=[3])
    Alpha: Float = Field(1e-4, description="Factor of the mean square.")
    Beta: Float = Field(0.75, description="The power.")
    Bias: Float = Field(1.0, description="Added to the mean square.")

    formula_text = (
        "f(x, g) = g * s^-Beta - 2 * Alpha * Beta / LocalSize * x * sum(g_j * x_j * s_j^(-Beta - 1)) over all j in "
        f"whose region x is, {_SUM}"
    )
    accuracy = SUM
    support = SupportTable.of("3_1 4 F32-16")
    same_sizes = (("InputTensor", "InputGradientTensor", "OutputGradientTensor"),)
    notes = (
        "The formula is the derivative of LOCAL_RESPONSE_NORMALIZATION. DirectML's page has none.",
        *_REGION,
    )
    working_bytes = 32

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _size_violations(self.LocalSize)

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        made = xp.empty(inputs["InputTensor"].shape, inputs["InputTensor"].dtype)
        batch, channels, *sizes = made.shape
        # With a region's dimensions in the middle, as few as there are, what is before and after them is cut in pieces.
        shape = (batch, channels, math.prod(sizes)) if self.CrossChannel else (batch * channels, *sizes, 1)
        x, gradient = (inputs[name].reshape(shape) for name in ("InputTensor", "InputGradientTensor"))
        flat, region = made.reshape(shape), math.prod(shape[1:-1])
        most = _PIECE[xp.__name__]
        columns = max(most // region, 1)
        rows = max(most // (region * shape[-1]), 1)
        for row, column in itertools.product(range(0, shape[0], rows), range(0, shape[-1], columns)):
            look()
            piece = (slice(row, row + rows), ..., slice(column, column + columns))
            flat[piece] = self._gradient(xp, x[piece].astype(xp.float64), gradient[piece].astype(xp.float64))
        return {"OutputGradientTensor": made}

    def _gradient(self, xp: Any, x: Any, gradient: Any) -> Any:
        """Of a piece, in float64."""
        before = (self.LocalSize - 1) // 2
        after = self.LocalSize - 1 - before
        axes = range(1, x.ndim - 1)
        factor = self.Alpha / self.LocalSize
        s = self.Bias + factor * _windows(xp, x * x, axes, before, after)
        if is_three_quarters(self.Beta):
            root = xp.sqrt(s)
            shares = gradient / (root * xp.sqrt(root))
        else:
            shares = gradient * s**-self.Beta
        # An element is in the regions of those that lie as far before it as its own reaches after it.
        around = _windows(xp, shares * x / s, axes, after, before)
        return shares - 2 * factor * self.Beta * x * around


def _windows(xp: Any, values: Any, axes: Sequence[int], before: int, after: int) -> Any:
    """Of each element the sum of those from `before` places before it to `after` places after it, along all `axes`.

    Sums of 1, 2, 4 and so on are made of one another, so that the steps are as many as the binary digits of the
    window's length, and nothing is taken off again, which infinities would not survive.
    """
    for axis in axes:
        size = values.shape[axis]
        ahead, behind = min(before, size - 1), min(after, size - 1)

        def part(array: Any, start: int, stop: int, axis: int = axis) -> Any:
            return array[(slice(None),) * axis + (slice(start, stop),)]

        shape = [*values.shape]
        shape[axis] += ahead + behind
        sums = xp.zeros(shape)  # of the next `span`, from each place on
        part(sums, ahead, ahead + size)[...] = values
        length, span, done = ahead + behind + 1, 1, 0

        values = 0
        while True:
            if length & span:
                values = values + part(sums, done, done + size)
                done += span
            if 2 * span > length:
                break
            count = sums.shape[axis]
            sums = part(sums, 0, count - span) + part(sums, span, count)
            span *= 2
    return values
