"""RESAMPLE_GRAD and RESAMPLE_GRAD1: what resampling hands back to its input of the gradient of its output.

Source: the DML_RESAMPLE_GRAD*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.contract.constants import AxisDirection, FeatureLevel, InterpolationMode
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, sum_over
from app.formula.values import (
    FLOAT64,
    INT64,
    Parameter,
    Value,
    absolute,
    cast,
    ceil,
    equal,
    floor,
    maximum,
    minimum,
    saturate,
    where,
    widen,
)
from app.operators.accuracy import SUM
from app.operators.operator import InputTensorDesc, Operator, StatedOutputTensorDesc
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

_FORMULA = (
    "f(c) = sum of InputGradientTensor's elements o, each times the weight that the element at c has in the element o "
    "of the resampled tensor"
)
_NOTES = (
    "Scales and offsets are those of the resampling, as DirectML's page and DirectMLX have it; TensorFlow's plugin for "
    "DirectML gives the two offsets exchanged, InputPixelOffsets for coordinates of InputGradientTensor.",
    SNAP,
    "Sums are added in float64 and rounded once; a gradient of weight 0 is not looked at, whatever it is.",
    POSITIVE,
)


class ResamplingGradient(Operator):
    """The gradient of the tensor that was resampled, from that of the result."""

    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: StatedOutputTensorDesc
    InterpolationMode: Mode
    if TYPE_CHECKING:
        Scales: list[float]  # subclasses state it, in its place

    same_sizes = ()
    same_ranks = (("InputGradientTensor", "OutputGradientTensor"),)
    by_coordinates = True
    counts = COUNTS
    example: ClassVar[dict[str, Any]] = {"OutputGradientTensor": {"Sizes": [1, 1, 1, 3]}, "Scales": [1, 1, 2, 1]}

    def implied_sizes(self, name: str) -> None:
        """None: many sizes have results of one size."""

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from scale_violations(self.Scales, "InputGradientTensor", self.InputGradientTensor.rank)

    def gathered(self, p: TensorParameters, gradient: Operand, direction: AxisDirection | None) -> Value:
        """The element at the output's coordinates."""
        sizes = p.out("OutputGradientTensor").sizes
        places: list[Value] = coordinates(gradient.rank)
        readers = {
            n: _Readers(axis, place, size, None if self.InterpolationMode is InterpolationMode.LINEAR else (direction,))
            for n, (axis, place, size) in enumerate(
                zip(axes_of(p, sizes, offsets=True), places, gradient.sizes, strict=True)
            )
            if not (axis.is_whole(p) and p.ask(lambda one, other: one == other, axis.size, size))
        }
        if not readers:
            return gradient[places]

        def term(*indices: Value) -> Value:
            at = list(places)
            for (n, each), index in zip(readers.items(), indices, strict=True):
                at[n] = each.begin + index
            weight = reduce(mul, [each.weight(at[n]) for n, each in readers.items()])
            return where(weight > 0, weight * widen(gradient[at]), 0)

        return cast(sum_over([each.count for each in readers.values()], term), gradient.type)


class _Readers:
    """Along a dimension, the resampled elements that may have read the element at `place`."""

    def __init__(self, axis: Axis, place: Value, size: Parameter, rounding: tuple[AxisDirection | None] | None) -> None:
        """`size` is the resampled tensor's; `rounding` has the direction of NEAREST_NEIGHBOR, and LINEAR has none."""
        self._axis, self._place, self._rounding = axis, place, rounding
        first, last = saturate(floor(axis.image(place, -1)), INT64), saturate(ceil(axis.image(place, 1)), INT64)
        # What lies beyond an edge has read the element there.
        self.begin = where(place > 0, maximum(first, 0), 0)
        end = where(place < axis.size - 1, minimum(last, size - 1), size - 1)
        self.count = end - self.begin + 1

    def weight(self, reader: Value) -> Value:
        """That of the element in the resampled one at `reader`."""
        if self._rounding:
            return cast(equal(self._axis.nearest(reader, *self._rounding), self._place), FLOAT64)
        return maximum(1 - absolute(self._axis.source(reader) - cast(self._place, FLOAT64)), 0)


class ResampleGrad(ResamplingGradient):
    """The gradient of RESAMPLE1: what it hands back to its input of the gradient of its output."""

    Type: Literal["DML_OPERATOR_RESAMPLE_GRAD", "RESAMPLE_GRAD"]
    DimensionCount: Rank = None
    Scales: ScaleList
    InputPixelOffsets: InputOffsets
    OutputPixelOffsets: OutputOffsets

    formula_text = f"{_FORMULA} by RESAMPLE1"
    accuracy = SUM
    support = SupportTable.of(
        "5_1 1-4 F32-16",
        "3_0 4 F32-16",
    )
    notes = (HALVES, ROWS, *_NOTES)

    def formula(self, p: TensorParameters, gradient: Operand) -> Value:
        return self.gathered(p, gradient, None)


class ResampleGrad1(ResamplingGradient):
    """The gradient of RESAMPLE2: what it hands back to its input of the gradient of its output."""

    Type: Literal["DML_OPERATOR_RESAMPLE_GRAD1", "RESAMPLE_GRAD1"]
    RoundingDirection: Rounding
    DimensionCount: Rank = None
    Scales: ScaleList
    InputPixelOffsets: InputOffsets
    OutputPixelOffsets: OutputOffsets

    formula_text = f"{_FORMULA} by RESAMPLE2"
    accuracy = SUM
    support = SupportTable.of("5_1 1-4 F32-16")
    notes = (SHIFTED.format(other="RESAMPLE_GRAD"), *_NOTES)

    def formula(self, p: TensorParameters, gradient: Operand) -> Value:
        return self.gathered(p, gradient, self.RoundingDirection)
