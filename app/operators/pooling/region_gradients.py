"""The gradients of ROI_ALIGN and ROI_ALIGN1.

Source: the DML_ROI_ALIGN_GRAD_OPERATOR_DESC page of DirectML's reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from app.contract import constants
from app.contract.constants import FeatureLevel, ReduceFunction
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.operators.accuracy import SUM
from app.operators.looks import look
from app.operators.operator import InputTensorDesc, Operator, OptionalInputTensorDesc, OptionalOutputTensorDesc
from app.operators.pooling.regions import (
    ALIGNED,
    BATCHES,
    BOUNDED_SAMPLES,
    MOST_SAMPLES,
    NEAREST,
    SAMPLE_COUNT,
    Corners,
    Offsets,
    Samples,
    Sampling,
)

_PIECE = 1 << 18
"""Samples at a time, each of which takes a few numbers of scratch."""


class _Tensors(Operator):
    """The fields that come first."""

    InputTensor: OptionalInputTensorDesc = None
    InputGradientTensor: InputTensorDesc
    ROITensor: InputTensorDesc
    BatchIndicesTensor: InputTensorDesc
    OutputGradientTensor: OptionalOutputTensorDesc = None
    OutputROIGradientTensor: OptionalOutputTensorDesc = None


class RoiAlignGrad(Corners, Samples, Offsets, Sampling, _Tensors):
    """The gradients of ROI_ALIGN1's input and of its regions, of that of its output."""

    Type: Literal["DML_OPERATOR_ROI_ALIGN_GRAD", "ROI_ALIGN_GRAD"]

    formula_text = (
        "f(x, dy, roi) = sum of dy * the weight of x in ROI_ALIGN1's result; for regions the sums of gx * (width - "
        "ox), gy * (height - oy), gx * ox and gy * oy, of dy at (ox, oy) times the sample's slopes along x and y"
    )
    accuracy = SUM
    same_types = (
        (
            *("InputTensor", "InputGradientTensor", "ROITensor"),
            *("OutputGradientTensor", "OutputROIGradientTensor"),
        ),
    )
    same_ranks = (("ROITensor", "OutputROIGradientTensor"),)
    support = SupportTable.of("4_1 4 F32-16, ROITensor OutputROIGradientTensor 2-4 F32-16, BatchIndicesTensor 1-4 U32")
    sizes_from = ("ROITensor",)
    example: ClassVar[Mapping[str, Any]] = {
        "InputTensor": {"Sizes": [1, 1, 4, 4]},
        "InputGradientTensor": {"Sizes": [2, 1, 2, 2]},
        "ROITensor": {"Sizes": [2, 4]},
        "BatchIndicesTensor": {"Sizes": [2]},
        "OutputGradientTensor": {"Sizes": [1, 1, 4, 4]},
    }
    example_data: ClassVar[Mapping[str, Sequence[float]]] = {
        "InputGradientTensor": (1, 2, 3, 4),
        "ROITensor": (0, 0, 4, 4, 1, 1, 3, 3),
        "BatchIndicesTensor": (0,),
    }
    notes = (
        "OutputROIGradientTensor follows the code on DirectML's page, which is for one sample per output element: "
        "width and height are InputGradientTensor's, several samples share dy equally, and of MAX the greatest has it. "
        "With NEAREST_NEIGHBOR, whose result has no slope, it is 0.",
        "What is outside the input counts 0, and no gradient goes there. Of the samples that are greatest the first "
        "has the gradient, and NaN is greater than all.",
        "Sums are made in float64 and rounded once.",
        SAMPLE_COUNT,
        BOUNDED_SAMPLES,
        BATCHES,
        NEAREST,
        ALIGNED,
    )

    def implied_sizes(self, name: str) -> list[int] | None:
        return self.ROITensor.Sizes if name == "OutputROIGradientTensor" else None

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from super().rules(level)
        if not (self.OutputGradientTensor or self.OutputROIGradientTensor):
            yield Violation(
                ("OutputGradientTensor",),
                "OutputGradientTensor and OutputROIGradientTensor are null; at least one of them must be given.",
                None,
                "a tensor",
            )
            return
        if not self.InputTensor and (self.OutputROIGradientTensor or self._is_maximum):
            yield Violation(
                ("InputTensor",),
                "InputTensor is null; it must be given with OutputROIGradientTensor, and with ReductionFunction MAX.",
                None,
                "a tensor",
            )
            return
        whole = self._input_sizes
        of = "InputTensor" if self.InputTensor else "OutputGradientTensor"
        right = {
            "InputGradientTensor": [self.ROITensor.Sizes[-2], whole[1], *self.InputGradientTensor.Sizes[2:]],
            "OutputGradientTensor": whole,
        }
        for name, sizes in right.items():
            desc = getattr(self, name)
            if desc and desc.Sizes != sizes:
                yield Violation(
                    (name, "Sizes"),
                    f"{name} has Sizes {desc.Sizes}; the regions of ROITensor {self.ROITensor.Sizes} and the forward "
                    f"input, {of} {whole}, imply {sizes}.",
                    desc.Sizes,
                    sizes,
                )

    @property
    def _is_maximum(self) -> bool:
        return self.ReductionFunction is ReduceFunction.MAX

    @property
    def _is_linear(self) -> bool:
        return self.InterpolationMode is constants.InterpolationMode.LINEAR

    @property
    def _input_sizes(self) -> list[int]:
        """Of ROI_ALIGN1's input: those of the tensor that it is, or whose sizes it has."""
        desc = self.InputTensor or self.OutputGradientTensor
        assert desc, "one of them is given"
        return desc.Sizes

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        dy = inputs["InputGradientTensor"]
        batches, channels, height, width = self._input_sizes
        regions, _, rows, columns = dy.shape
        corners = inputs["ROITensor"].reshape(-1, 4).astype(np.float32)
        batch = xp.minimum(inputs["BatchIndicesTensor"].reshape(-1).astype(np.int64), batches - 1)
        down = self._axis(xp, corners[:, 1], corners[:, 3], self.SpatialScaleY, rows)
        across = self._axis(xp, corners[:, 0], corners[:, 2], self.SpatialScaleX, columns)
        gradient = _Sums(xp, batches * channels * height * width) if self.OutputGradientTensor else None
        slopes = xp.zeros((2, regions * rows * columns)) if self.OutputROIGradientTensor else None
        for elements, counts in _alike(xp, down.counts, across.counts, rows * columns, channels):
            region, inner = elements // (rows * columns), elements % (rows * columns)
            row, column = inner // columns, inner % columns
            y = self._lines(xp, down, region, row, counts[0], height).spread(2)
            x = self._lines(xp, across, region, column, counts[1], width).spread(3)
            for piece in _spans(channels, _PIECE // (counts[0] * counts[1])):
                channel = xp.arange(piece.start, piece.stop)
                planes = (batch[region][:, None] * channels + channel)[..., None, None]
                share = dy[region[:, None], channel, row[:, None], column[:, None]].astype(np.float64)[..., None, None]
                read = _Reader(xp, inputs.get("InputTensor"), planes // channels, planes % channels)
                if self._is_maximum:
                    share = xp.where(_is_first_maximum(xp, read.interpolated(y, x)), share, 0)
                else:
                    share = share / (counts[0] * counts[1])
                if gradient:
                    for i in y.lines:
                        for j in x.lines:
                            look()
                            weight = i.weight * j.weight
                            index = (planes * height + i.index) * width + j.index
                            gradient.add(index, xp.where(weight != 0, share * weight, 0))  # not NaN * 0
                if slopes is not None and self._is_linear:
                    along_x, along_y = read.slopes(y, x)
                    slopes[0, elements] += (share * along_x).sum((1, 2, 3))
                    slopes[1, elements] += (share * along_y).sum((1, 2, 3))
        made: dict[str, Any] = {}
        if gradient:
            made["OutputGradientTensor"] = gradient.made().reshape(self._input_sizes).astype(dy.dtype)
        if slopes is not None:
            sums = _by_corner(xp, *slopes.reshape(2, regions, rows, columns))
            made["OutputROIGradientTensor"] = sums.reshape(self.ROITensor.Sizes).astype(dy.dtype)
        return made

    def _axis(self, xp: Any, first: Any, last: Any, scale: float, size: int) -> "_Axis":
        """As ROI_ALIGN1's formula has it: corners in float32, positions in float64."""
        begin, end = first * np.float32(scale), last * np.float32(scale)
        length = end - begin
        most = min(self.MaximumSamplesPerOutput, MOST_SAMPLES)
        counts = xp.clip(xp.ceil(xp.abs(length) / np.float32(size)), self.MinimumSamplesPerOutput, most)
        counts = xp.where(xp.isnan(counts), 1, counts).astype(np.int64)
        samples, offset = counts * size, xp.full(len(counts), self.OutputPixelOffset, np.float64)
        if self.aligned:
            offset = xp.where(samples == 1, -0.5, 0.0)
            samples = xp.maximum(samples - 1, 1)
        return _Axis(counts, begin.astype(np.float64), length.astype(np.float64) / samples, offset)

    def _lines(self, xp: Any, axis: "_Axis", region: Any, out: Any, count: int, size: int) -> "_Lines":
        """The lines of `size` elements that samples are made of, by output element and sample: the nearest one, or one
        before and one behind, which are the same one if the sample lies on it."""
        number = (out * count)[:, None] + xp.arange(count)
        step, begin, offset = (each[region][:, None] for each in (axis.step, axis.begin, axis.offset))
        at = (number - offset) * step + begin - self.InputPixelOffset
        if not self._is_linear:
            return _Lines([_line(xp, xp.ceil(at - 0.5), size, xp.ones_like(at))], xp.zeros_like(at))
        before = xp.floor(at)
        fraction = xp.where(xp.isfinite(at), at - before, 0)
        lines = [_line(xp, before, size, 1 - fraction), _line(xp, xp.ceil(at), size, fraction)]
        return _Lines(lines, fraction)


class _Axis(NamedTuple):
    """For each region, along one dimension: how many samples an output element has, the first corner, how far it is
    from one sample to the next, and what is subtracted from their numbers."""

    counts: Any
    begin: Any
    step: Any
    offset: Any


class _Line(NamedTuple):
    """Along one dimension, coordinates of elements, 0 for those that are outside, and their weights, then 0 too."""

    index: Any
    inside: Any
    weight: Any


def _line(xp: Any, place: Any, size: int, weight: Any) -> _Line:
    inside = (place >= 0) & (place < size)
    return _Line(xp.where(inside, place, 0).astype(np.int64), inside, xp.where(inside, weight, 0))


class _Lines(NamedTuple):
    """What samples are made of along one dimension, and how far they are behind the first line."""

    lines: list[_Line]
    fraction: Any

    def spread(self, dimension: int) -> "_Lines":
        """By output element, channel and samples along both dimensions."""

        def of(each: Any) -> Any:
            count, samples = each.shape
            return each.reshape(count, 1, *((samples, 1) if dimension == 2 else (1, samples)))

        return _Lines([_Line(*map(of, line)) for line in self.lines], of(self.fraction))


class _Reader(NamedTuple):
    """Elements of the forward input, in float64."""

    xp: Any
    x: Any
    batch: Any
    channel: Any

    def at(self, row: _Line, column: _Line) -> Any:
        """0 outside."""
        read = self.x[self.batch, self.channel, row.index, column.index]
        return self.xp.where(row.inside & column.inside, read, 0).astype(np.float64)

    def interpolated(self, y: _Lines, x: _Lines) -> Any:
        """The samples. An element of weight 0 is as if it were not there."""
        made: Any = 0
        for row in y.lines:
            for column in x.lines:
                weight = row.weight * column.weight
                made = made + self.xp.where(weight != 0, self.at(row, column) * weight, 0)
        return made

    def slopes(self, y: _Lines, x: _Lines) -> tuple[Any, Any]:
        """How the samples change along x and along y."""
        (top, bottom), (left, right) = y.lines, x.lines
        corners = self.at(top, left), self.at(top, right), self.at(bottom, left), self.at(bottom, right)
        top_left, top_right, bottom_left, bottom_right = corners
        along_x = (1 - y.fraction) * (top_right - top_left) + y.fraction * (bottom_right - bottom_left)
        along_y = (1 - x.fraction) * (bottom_left - top_left) + x.fraction * (bottom_right - top_right)
        return along_x, along_y


class _Sums:
    """Sums of weights by index, in float64. They are added up when they are as many as the sums."""

    def __init__(self, xp: Any, size: int) -> None:
        self._xp = xp
        self._total = xp.zeros(size)
        self._pending: list[tuple[Any, Any]] = []
        self._count = 0

    def add(self, index: Any, weights: Any) -> None:
        """Of shapes that are broadcast."""
        pair = self._xp.broadcast_arrays(index, weights)
        self._pending.append((pair[0].reshape(-1), pair[1].reshape(-1)))
        self._count += self._pending[-1][0].size
        if self._count >= max(self._total.size, 4 * _PIECE):
            self._flush()

    def made(self) -> Any:
        self._flush()
        return self._total

    def _flush(self) -> None:
        if self._pending:
            index, weights = (self._xp.concatenate(each) for each in zip(*self._pending, strict=True))
            self._total += self._xp.bincount(index, weights, self._total.size)
        self._pending, self._count = [], 0


def _alike(xp: Any, down: Any, across: Any, each: int, channels: int) -> Iterator[tuple[Any, tuple[int, int]]]:
    """The output's elements but for their channels, `each` of a region, in pieces of equally many samples along both
    dimensions."""
    kinds = down * (MOST_SAMPLES + 1) + across
    for kind in xp.unique(kinds).tolist():
        counts = divmod(kind, MOST_SAMPLES + 1)
        found = (xp.flatnonzero(kinds == kind)[:, None] * each + xp.arange(each)).reshape(-1)
        for piece in _spans(len(found), _PIECE // (channels * counts[0] * counts[1])):
            yield found[piece], counts


def _spans(size: int, most: int) -> Iterator[slice]:
    """`size` things, `most` at a time, at least one, with a look before each."""
    step = max(most, 1)
    for begin in range(0, size, step):
        look()
        yield slice(begin, min(begin + step, size))


def _is_first_maximum(xp: Any, samples: Any) -> Any:
    """Of each output element's samples."""
    flat = samples.reshape(*samples.shape[:2], -1)
    return (xp.arange(flat.shape[-1]) == flat.argmax(-1)[..., None]).reshape(samples.shape)


def _by_corner(xp: Any, along_x: Any, along_y: Any) -> Any:
    """The gradient of regions, of that of their output elements' positions."""
    _, rows, columns = along_x.shape
    x, y = xp.arange(columns), xp.arange(rows)[:, None]
    parts = along_x * (columns - x), along_y * (rows - y), along_x * x, along_y * y
    return xp.stack([part.sum((1, 2)) for part in parts], axis=-1)
