"""Regions of a tensor { N, C, H, W }, each made to one size: ROI_POOLING and ROI_ALIGN.

Source: the DML_ROI_POOLING_OPERATOR_DESC and DML_ROI_ALIGN*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import FeatureLevel, ReduceFunction
from app.contract.scalars import Bool, Float, FloatOrInfinity, Size2D
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, maximum_over, sum_over
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    INT64,
    Constant,
    Value,
    absolute,
    cast,
    ceil,
    equal,
    floor,
    maximum,
    minimum,
    quotient,
    rint,
    saturate,
    where,
    widen,
)
from app.operators.accuracy import EXACT, SUM
from app.operators.element_wise.quantization import TIES
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import TensorParameters
from app.operators.pooling.windows import Positive

FARTHEST = 2.0**29
"""Coordinates beyond are as good as this one: no products of them and of sizes overflow."""

MOST_SAMPLES = 1024
"""Of an output element along each of both dimensions, so that what one request costs has a bound."""


class RoiPooling(Operator):
    """The maxima of parts of regions, each region cut into equally many."""

    Type: Literal["DML_OPERATOR_ROI_POOLING", "ROI_POOLING"]
    InputTensor: InputTensorDesc
    ROITensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    SpatialScale: Float = Field(description="Factor of the regions' coordinates.", examples=[1.0])
    PooledSize: Size2D = Field(description="How many parts a region is cut into.", examples=[{"Width": 2, "Height": 2}])

    formula_text = (
        "f(x, roi) = maximum of the rows from floor(i * height / PooledSize.Height) + y1 to below "
        "ceil((i + 1) * height / PooledSize.Height) + y1, and the columns alike; x1, y1, x2, y2 = round(roi * "
        "SpatialScale), height = y2 - y1 + 1"
    )
    accuracy = EXACT
    by_coordinates = True
    same_sizes = ()
    sizes_from = ("InputTensor", "ROITensor", "PooledSize")
    support = SupportTable.of("1_0 4 F32-16")
    example: ClassVar[Mapping[str, Any]] = {
        "InputTensor": {"Sizes": [1, 1, 4, 4]},
        "ROITensor": {"Sizes": [1, 1, 2, 5]},
    }
    example_data: ClassVar[Mapping[str, Sequence[float]]] = {"ROITensor": (0, 0, 0, 3, 3, 0, 1, 1, 2, 2)}
    notes = (
        TIES,
        "The last row and column of a part are those before its end. DirectML's page leaves open whether the end is "
        "one of them.",
        "A part without elements inside the input is 0, a region whose end lies before its beginning has one row or "
        "column, and a batch outside the input is the nearest one. DirectML's documentation does not say.",
        "A part that holds NaN is NaN.",
    )

    def implied_sizes(self, name: str) -> list[int]:
        regions, channels = self.ROITensor.Sizes[2], self.InputTensor.Sizes[1]
        return [regions, channels, self.PooledSize.Height, self.PooledSize.Width]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _region_violations(self.ROITensor, 5)

    def formula(self, p: TensorParameters, x: Operand, rois: Operand) -> Value:
        region, channel, *parts = coordinates(4)

        def corner(place: int) -> Value:
            scaled = rint(widen(rois[[0, 0, region, place]]) * widen(p.SpatialScale))
            return saturate(_bounded(scaled), INT64)

        begins, counts = [], []
        sizes = p.out("OutputTensor").sizes[2:]
        for part, pooled, size, first, last in zip(parts, sizes, x.sizes[2:], (2, 1), (4, 3), strict=True):
            start = corner(first)
            length = maximum(corner(last) - start + 1, 1)
            begin = maximum(quotient(part * length, pooled) + start, 0)
            end = minimum(quotient((part + 1) * length + (pooled - 1), pooled) + start, size)
            begins.append(begin)
            counts.append(maximum(end - begin, 0))
        batch = saturate(_bounded(widen(rois[[0, 0, region, 0]])), INT64)
        made = maximum_over(counts, lambda i, j: x[[batch, channel, begins[0] + i, begins[1] + j]])
        return where(counts[0] * counts[1] > 0, made, 0)


def _bounded(coordinate: Value) -> Value:
    """NaN stays."""
    return minimum(maximum(coordinate, -FARTHEST), FARTHEST)


def _region_violations(rois: TensorDesc, length: int) -> Iterator[Violation]:
    """ROITensor has `length` numbers for each region."""
    right = [1] * (rois.rank - 2) + [rois.Sizes[-2], length]
    if rois.Sizes != right:
        yield Violation(
            ("ROITensor", "Sizes"),
            f"ROITensor has Sizes {rois.Sizes}; it must have {length} numbers for each region and leading dimensions "
            f"of 1, that is {right}.",
            rois.Sizes,
            right,
        )


class AlignTensors(Operator):
    """The fields that come first in ROI_ALIGN."""

    InputTensor: InputTensorDesc
    ROITensor: InputTensorDesc
    BatchIndicesTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc


class Sampling(Operator):
    """The next ones."""

    ReductionFunction: ReduceFunction = Field(
        description="What is made of the samples of an output element: AVERAGE or MAX.", examples=["AVERAGE"]
    )
    InterpolationMode: constants.InterpolationMode = Field(
        description="How a sample is made of the elements around it.", examples=["LINEAR"]
    )
    SpatialScaleX: Float = Field(description="Factor of the regions' x.", examples=[1.0])
    SpatialScaleY: Float = Field(description="Factor of the regions' y.", examples=[1.0])


class Offsets(Operator):
    """The next ones, from ROI_ALIGN1 on."""

    InputPixelOffset: Float = Field(0.5, description="From the corner of an input element to its center.")
    OutputPixelOffset: Float = Field(-0.5, description="From the center of an output element to its corner.")


class OutOfBounds(Operator):
    """The next one."""

    OutOfBoundsInputValue: FloatOrInfinity = Field(description="Read outside the input.", examples=[0.0])


class Samples(Sampling):
    """Base: the next ones, and what all have in common."""

    MinimumSamplesPerOutput: Positive = Field(description="Samples along each dimension, at least.", examples=[1])
    MaximumSamplesPerOutput: Positive = Field(description="Samples along each dimension, at most.", examples=[2])

    same_sizes = ()

    @property
    def aligned(self) -> bool:
        """Whether the outermost samples lie on the region's corners."""
        return False

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        tensors = self.tensors()
        rois, batches = tensors["ROITensor"], tensors["BatchIndicesTensor"]
        yield from _region_violations(rois, 4)
        right = [1] * (batches.rank - 1) + [rois.Sizes[-2]]
        if batches.Sizes != right:
            yield Violation(
                ("BatchIndicesTensor", "Sizes"),
                f"BatchIndicesTensor has Sizes {batches.Sizes}; it must have one index for each region of ROITensor "
                f"{rois.Sizes} and leading dimensions of 1, that is {right}.",
                batches.Sizes,
                right,
            )
        function = self.ReductionFunction
        allowed = [ReduceFunction.AVERAGE, ReduceFunction.MAX]
        if function not in allowed:
            yield Violation(
                ("ReductionFunction",),
                f"ReductionFunction is {function}; it must be AVERAGE or MAX.",
                function,
                list(allowed),
            )
        least, most = self.MinimumSamplesPerOutput, self.MaximumSamplesPerOutput
        if least > min(most, MOST_SAMPLES):
            yield Violation(
                ("MinimumSamplesPerOutput",),
                f"MinimumSamplesPerOutput is {least}; it must be at most MaximumSamplesPerOutput, which is {most}, and "
                f"at most {MOST_SAMPLES}.",
                least,
                f"<= {min(most, MOST_SAMPLES)}",
            )


class Corners(Operator):
    """The last one, from ROI_ALIGN1 on."""

    AlignRegionsToCorners: Bool = Field(False, description="Whether the outermost samples lie on a region's corners.")

    @property
    def aligned(self) -> bool:
        return self.AlignRegionsToCorners


SAMPLE_COUNT = (
    "The number of samples is the region's size divided by the output's, rounded up, before it is clamped; an inverted "
    "region has as many as the one that it mirrors. DirectML's documentation does not say whether it is rounded."
)
BOUNDED_SAMPLES = (
    f"There are at most {MOST_SAMPLES} samples along a dimension: a greater MinimumSamplesPerOutput is refused, and "
    f"with it one of 0 and one above MaximumSamplesPerOutput; a greater MaximumSamplesPerOutput counts as "
    f"{MOST_SAMPLES}."
)
BATCHES = "A batch index outside the input is the nearest one. DirectML leaves it undefined."
NEAREST = "NEAREST_NEIGHBOR takes the lower of two elements that are equally near, as DirectML's example does."
OUTSIDE = (
    "Each of the elements that LINEAR reads is OutOfBoundsInputValue if it lies outside the input, and is not read if "
    "its weight is 0. A region with NaN lies outside."
)
ALIGNED = (
    "With AlignRegionsToCorners the samples go from corner to corner in equal steps, OutputPixelOffset takes no part, "
    "and a single sample lies halfway: an inverted region mirrors the result, which is itself then. DirectML's "
    "documentation has no formula for it."
)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The samples of an output element along one dimension."""

    count: Value
    first: Value
    """The number of the first one of all of the region's."""
    begin: Value
    """The region's first corner. It, `step` and the offsets are float64."""
    step: Value
    input_offset: Value
    output_offset: Value

    def at(self, index: Value) -> Value:
        """Step by step as DirectML's page has it, since ties are decided by the last bit."""
        number = cast(self.first + index, FLOAT64)
        return (number - self.output_offset) * self.step + self.begin - self.input_offset


def _align(operator: Samples, p: TensorParameters, x: Operand, rois: Operand, batches: Operand) -> Value:
    region, channel, *places = coordinates(4)
    sizes = p.out("OutputTensor").sizes[2:]
    leading: list[Value | int] = [0] * (rois.rank - 2)
    scales = p.SpatialScaleY, p.SpatialScaleX
    corners = [rois[[*leading, region, place]] for place in (1, 0, 3, 2)]
    y, x_axis = (
        _axis(operator, p, corners[axis] * scales[axis], corners[axis + 2] * scales[axis], sizes[axis], places[axis])
        for axis in range(2)
    )
    last = cast(x.sizes[0] - 1, "uint64")
    batch = cast(minimum(cast(batches[[*[0] * (batches.rank - 1), region]], "uint64"), last), INT64)
    outside = widen(p.OutOfBoundsInputValue)

    def element(row: Value, column: Value) -> Value:
        """Of whole numbers in float64, which may be NaN."""
        inside = (row >= 0) & (row < cast(x.sizes[2], FLOAT64)) & (column >= 0) & (column < cast(x.sizes[3], FLOAT64))
        read = x[[batch, channel, saturate(row, INT64), saturate(column, INT64)]]
        return where(inside, widen(read), outside)

    def sample(i: Value, j: Value) -> Value:
        row, column = y.at(i), x_axis.at(j)
        if operator.InterpolationMode is constants.InterpolationMode.NEAREST_NEIGHBOR:
            return element(ceil(row - 0.5), ceil(column - 0.5))
        top, left = floor(row), floor(column)
        down, right = row - top, column - left
        return _between(
            _between(element(top, left), element(top, left + 1), right),
            _between(element(top + 1, left), element(top + 1, left + 1), right),
            down,
        )

    counts = [y.count, x_axis.count]
    if operator.ReductionFunction is ReduceFunction.MAX:
        return cast(maximum_over(counts, sample), x.type)
    return cast(sum_over(counts, sample) / cast(y.count * x_axis.count, FLOAT64), x.type)


def _between(a: Value, b: Value, weight: Value) -> Value:
    """`a` where the weight is 0, whatever `b` is."""
    return where(weight > 0, a * (1 - weight) + b * weight, a)


def _axis(operator: Samples, p: TensorParameters, begin: Value, end: Value, size: Value, place: Value) -> _Axis:
    """Corners are float32, in which they are what a caller means: 0.7 * 10 is 7, and no sample more."""
    length = end - begin
    least = cast(p.MinimumSamplesPerOutput, FLOAT32)
    most = cast(minimum(p.MaximumSamplesPerOutput, MOST_SAMPLES), FLOAT32)
    clamped = minimum(maximum(ceil(absolute(length) / cast(size, FLOAT32)), least), most)
    count = maximum(saturate(clamped, INT64), 1)  # NaN is 0
    samples = count * size
    has_offsets = isinstance(operator, Offsets)
    input_offset: Value = widen(p.InputPixelOffset) if has_offsets else Constant(FLOAT64, 0.5)
    output_offset: Value = widen(p.OutputPixelOffset) if has_offsets else Constant(FLOAT64, -0.5)
    if operator.aligned:
        output_offset = where(equal(samples, 1), Constant(FLOAT64, -0.5), Constant(FLOAT64, 0))
        samples = maximum(samples - 1, 1)
    step = widen(length) / cast(samples, FLOAT64)
    return _Axis(count, place * count, widen(begin), step, input_offset, output_offset)


_SIZES: Mapping[str, Any] = {
    "InputTensor": {"Sizes": [1, 1, 4, 4]},
    "ROITensor": {"Sizes": [2, 4]},
    "BatchIndicesTensor": {"Sizes": [2]},
}
_REGIONS: Mapping[str, Sequence[float]] = {"ROITensor": (0, 0, 4, 4, 1, 1, 3, 3), "BatchIndicesTensor": (0,)}


class _Align(Samples):
    """Base of ROI_ALIGN and ROI_ALIGN1."""

    by_coordinates = True
    same_types = (("InputTensor", "ROITensor", "OutputTensor"),)
    example: ClassVar[Mapping[str, Any]] = {**_SIZES, "OutputTensor": {"Sizes": [2, 1, 2, 2]}}
    example_data: ClassVar[Mapping[str, Sequence[float]]] = _REGIONS

    def implied_sizes(self, name: str) -> None:
        """Regions and channels are implied, the size of what is made of each region is not."""

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from super().rules(level)
        tensors = self.tensors()
        given = tensors["OutputTensor"].Sizes
        right = [tensors["ROITensor"].Sizes[-2], tensors["InputTensor"].Sizes[1], *given[2:]]
        if given != right:
            yield Violation(
                ("OutputTensor", "Sizes"),
                f"OutputTensor has Sizes {given}; the regions of ROITensor {tensors['ROITensor'].Sizes} and the "
                f"channels of InputTensor {tensors['InputTensor'].Sizes} imply {right}.",
                given,
                right,
            )


class RoiAlign(_Align, OutOfBounds, Sampling, AlignTensors):
    """Regions resampled to one size, and reduced."""

    Type: Literal["DML_OPERATOR_ROI_ALIGN", "ROI_ALIGN"]

    formula_text = (
        "f(x, roi) = average or maximum of the samples of x that lie at (s + 0.5) * step + roi1 * SpatialScale - 0.5 "
        "along each dimension, s from out * n to below out * n + n, n = clamp(ceil(abs(region) / output), "
        "MinimumSamplesPerOutput, MaximumSamplesPerOutput), step = region / (output * n)"
    )
    accuracy = SUM
    support = SupportTable.of(
        "5_0 4 F32-16, ROITensor 2-4 F32-16, BatchIndicesTensor 1-4 U64-32",
        "3_0 4 F32-16, ROITensor 2-4 F32-16, BatchIndicesTensor 1-4 U32",
    )
    notes = (SAMPLE_COUNT, BOUNDED_SAMPLES, BATCHES, NEAREST, OUTSIDE)

    def formula(self, p: TensorParameters, x: Operand, rois: Operand, batches: Operand) -> Value:
        return _align(self, p, x, rois, batches)


class RoiAlign1(Corners, _Align, OutOfBounds, Offsets, Sampling, AlignTensors):
    """Regions resampled to one size, and reduced; where samples lie is for the caller to say."""

    Type: Literal["DML_OPERATOR_ROI_ALIGN1", "ROI_ALIGN1"]

    formula_text = (
        "f(x, roi) = average or maximum of the samples of x that lie at (s - OutputPixelOffset) * step + roi1 * "
        "SpatialScale - InputPixelOffset along each dimension, s from out * n to below out * n + n, n = "
        "clamp(ceil(abs(region) / output), MinimumSamplesPerOutput, MaximumSamplesPerOutput), step = region / (output "
        "* n)"
    )
    accuracy = SUM
    support = SupportTable.of(
        "5_0 4 F32-16, ROITensor 2-4 F32-16, BatchIndicesTensor 1-4 U64-32",
        "4_0 4 F32-16, ROITensor 2-4 F32-16, BatchIndicesTensor 1-4 U32",
    )
    notes = (
        *(SAMPLE_COUNT, BOUNDED_SAMPLES, BATCHES, NEAREST, OUTSIDE, ALIGNED),
        "Steps along y are of the region's height, and samples end before the next element's. The code on DirectML's "
        "page has x for y in a place, and a sample more.",
    )

    def formula(self, p: TensorParameters, x: Operand, rois: Operand, batches: Operand) -> Value:
        return _align(self, p, x, rois, batches)
