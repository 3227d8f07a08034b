"""RESAMPLE to RESAMPLE3: tensors enlarged and reduced.

Source: the DML_RESAMPLE*_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from app.contract.constants import AxisDirection, DataType, FeatureLevel, InterpolationMode
from app.contract.scalars import UINT_MAX, Bool
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, sum_over
from app.formula.values import (
    FLOAT64,
    INT64,
    Value,
    absolute,
    cast,
    ceil,
    floor,
    is_float,
    maximum,
    minimum,
    rint,
    rounded,
    saturate,
    where,
    widen,
)
from app.operators.accuracy import SUM
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import TensorParameters
from app.operators.resampling.grid import (
    COUNTS,
    HALVES,
    POSITIVE,
    ROWS,
    SHIFTED,
    SNAP,
    Axis,
    InputOffsets,
    Mode,
    OutputOffsets,
    Rank,
    Rounding,
    ScaleList,
    axes_of,
    scale_violations,
)

_SAMPLE = (
    "the element of InputTensor nearest to that coordinate, or the mean of the two beside it, weighted by nearness, "
    "along each dimension; coordinates end at the edges"
)
_FORMULA = f"f(c) = x at (c - OutputPixelOffsets) / Scales - InputPixelOffsets, for each coordinate c: {_SAMPLE}"
_INTEGERS = (
    "LINEAR is computed in float64 and rounded once, of INT8 and UINT8 to the nearest integer, of two to the even one. "
    "DirectML's documentation does not say."
)
_WEIGHT_0 = "An element of weight 0 is not looked at, whatever it is: infinities and NaN stay where they are."
_IMPLIED = "OutputTensor left out has the sizes of InputTensor times Scales, rounded down."
_NOTES = (_IMPLIED, SNAP, _INTEGERS, _WEIGHT_0, POSITIVE)


class Resampling(Operator):
    """Samples of a tensor at the places of another grid."""

    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    InterpolationMode: Mode
    if TYPE_CHECKING:
        Scales: list[float]  # subclasses state it, in its place

    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensor"),)
    sizes_from = ("InputTensor", "Scales")
    by_coordinates = True

    def implied_sizes(self, name: str) -> list[int]:
        """Whatever is given, cropped or with its edges repeated."""
        if self.OutputTensor:
            return self.OutputTensor.Sizes
        return [_scaled(size, scale) for size, scale in zip(self.InputTensor.Sizes, self.Scales, strict=True)]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from scale_violations(self.Scales, "InputTensor", self.InputTensor.rank)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return self.sampled(p, x, None)

    def sampled(
        self, p: TensorParameters, x: Operand, direction: AxisDirection | None, *, antialiased: bool = False
    ) -> Value:
        """The element at the output's coordinates."""
        axes = axes_of(p, x.sizes, offsets="InputPixelOffsets" in type(self).model_fields)
        places = coordinates(x.rank)
        if self.InterpolationMode is InterpolationMode.NEAREST_NEIGHBOR:
            return x[
                [
                    place if axis.is_whole(p) else axis.nearest(place, direction)
                    for axis, place in zip(axes, places, strict=True)
                ]
            ]
        shrunk = [n for n, axis in enumerate(axes) if antialiased and axis.is_shrunk(p)]
        sources = [
            None if axis.is_whole(p) else axis.source(at, filtered=n in shrunk)
            for n, (axis, at) in enumerate(zip(axes, places, strict=True))
        ]
        sampler = _Linear(x, sources)
        made = sampler.filtered(axes, shrunk) if shrunk else sampler.sample({})
        return cast(made, x.type) if is_float(x.type) else saturate(rint(made), x.type)


def _scaled(size: int, scale: float) -> int:
    """A size, rounded down after the product is a FLOAT: 10 * 0.7 is 7."""
    return math.floor(min(rounded(size * scale, DataType.FLOAT32), UINT_MAX))


class _Linear:
    """Samples of `x` at coordinates `sources`, which are None where the output's own will do."""

    def __init__(self, x: Operand, sources: Sequence[Value | None]) -> None:
        self._x = x
        self._sources = sources
        self._below = [source and floor(source) for source in sources]
        self._indices = [below and saturate(below, INT64) for below in self._below]

    def sample(self, given: Mapping[int, Value], before: Sequence[Value] = ()) -> Value:
        """The mean of the elements around, in float64, along dimensions after `before`; `given` are at that index."""
        axis = len(before)
        if axis == len(self._sources):
            return widen(self._x[before])
        source, below, index = self._sources[axis], self._below[axis], self._indices[axis]
        if axis in given or not (source and below and index):
            return self.sample(given, [*before, given.get(axis, coordinates(self._x.rank)[axis])])
        share = source - below
        here, there = (self.sample(given, [*before, each]) for each in (index, index + 1))
        return where(share > 0, here * (1 - share) + there * share, here)

    def filtered(self, axes: Sequence[Axis], shrunk: Sequence[int]) -> Value:
        """The mean along the `shrunk` dimensions of all that lies nearer than a step of the output."""
        spans = {n: _Span(axes[n], source) for n in shrunk if (source := self._sources[n])}

        def term(*indices: Value) -> Value:
            each = list(zip(spans.items(), indices, strict=True))
            at = {n: span.place(index) for (n, span), index in each}
            weight = reduce(mul, [span.weight_at(index) for (_, span), index in each])
            return where(weight > 0, weight * self.sample(at), 0)

        total = sum_over([span.count for span in spans.values()], term)
        weights = [sum_over([span.count], span.weight_at) for span in spans.values()]
        return total / reduce(mul, weights)


class _Span:
    """The indices whose elements lie nearer to a coordinate than one step of the output, along a dimension."""

    def __init__(self, axis: Axis, source: Value) -> None:
        reach = 1 / axis.scale
        self._source, self._scale = source, axis.scale
        self._begin = maximum(saturate(ceil(source - reach), INT64), 0)
        self.count = minimum(saturate(floor(source + reach), INT64), axis.size - 1) - self._begin + 1

    def place(self, index: Value) -> Value:
        """In the tensor, of an index from 0 to below `count`."""
        return self._begin + index

    def weight_at(self, index: Value) -> Value:
        """1 at the coordinate itself, 0 where a step of the output away."""
        return maximum(1 - absolute(self._source - cast(self.place(index), FLOAT64)) * self._scale, 0)


class Resample(Resampling):
    """Samples of a tensor at the places of a larger or smaller grid, centres of pixels on centres of pixels."""

    Type: Literal["DML_OPERATOR_RESAMPLE", "RESAMPLE"]
    ScaleCount: Count = Field(None, description="Number of dimensions; if given, the length of Scales.")
    Scales: ScaleList

    formula_text = f"f(c) = x at (c + 0.5) / Scales - 0.5, for each coordinate c: {_SAMPLE}"
    accuracy = SUM
    support = SupportTable.of(
        "6_2 1-4 F32-16 I8 U8",
        "5_1 1-4 F32-16",
        "2_0 4 F32-16",
    )
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"ScaleCount": ("Scales",)}
    notes = (HALVES, ROWS, *_NOTES)


class Resample1(Resampling):
    """The same with offsets of the coordinates."""

    Type: Literal["DML_OPERATOR_RESAMPLE1", "RESAMPLE1"]
    DimensionCount: Rank = None
    Scales: ScaleList
    InputPixelOffsets: InputOffsets
    OutputPixelOffsets: OutputOffsets

    formula_text = _FORMULA
    accuracy = SUM
    support = SupportTable.of(
        "6_2 1-4 F32-16 I8 U8",
        "5_1 1-4 F32-16",
        "2_1 4 F32-16",
    )
    counts = COUNTS
    notes = (HALVES, ROWS, *_NOTES)


class Resample2(Resampling):
    """The same with a direction in which coordinates are rounded to those of elements."""

    Type: Literal["DML_OPERATOR_RESAMPLE2", "RESAMPLE2"]
    RoundingDirection: Rounding
    DimensionCount: Rank = None
    Scales: ScaleList
    InputPixelOffsets: InputOffsets
    OutputPixelOffsets: OutputOffsets

    formula_text = f"{_FORMULA}; NEAREST_NEIGHBOR rounds up with INCREASING, down with DECREASING"
    accuracy = SUM
    support = SupportTable.of(
        "6_2 1-4 F32-16 I8 U8",
        "5_1 1-4 F32-16",
    )
    counts = COUNTS
    notes = (SHIFTED.format(other="RESAMPLE1"), *_NOTES)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return self.sampled(p, x, self.RoundingDirection)


class Resample3(Resampling):
    """The same, with all elements in the means where a dimension becomes much smaller."""

    Type: Literal["DML_OPERATOR_RESAMPLE3", "RESAMPLE3"]
    RoundingDirection: Rounding
    DimensionCount: Rank = None
    Scales: ScaleList
    InputPixelOffsets: InputOffsets
    OutputPixelOffsets: OutputOffsets
    Antialiased: Bool = Field(
        description="Whether LINEAR weighs all elements that are nearer than a step of the output, along dimensions "
        "whose scale is below 0.5.",
        examples=[True],
    )

    formula_text = (
        f"{_FORMULA}; NEAREST_NEIGHBOR rounds up with INCREASING, down with DECREASING; Antialiased with LINEAR, along "
        "dimensions with Scales < 0.5: sum(x_k * w_k) / sum(w_k), w_k = max(1 - abs(coordinate - k) * Scales, 0)"
    )
    accuracy = SUM
    support = SupportTable.of("6_4 1-4 F32-16 I8 U8")
    counts = COUNTS
    notes = (
        "Antialiased: the weights, and that those of elements in the tensor sum up to 1, are read as in ONNX's Resize. "
        "DirectML's documentation has no formula.",
        "Antialiased: a filtered coordinate does not end at the edges; where no element has weight, the one at the "
        "edge is taken.",
        "Only dimensions with Scales below 0.5 are filtered, as the operator's page says; ONNX filters all below 1.",
        *_NOTES,
    )

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return self.sampled(p, x, self.RoundingDirection, antialiased=self.Antialiased)
