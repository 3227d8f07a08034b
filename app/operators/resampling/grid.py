"""Where the elements of a resampled tensor lie between those of the tensor that it is made of."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from app.contract.constants import AxisDirection, InterpolationMode
from app.contract.scalars import Float, Uint
from app.contract.tensors import MAX_RANK
from app.contract.violations import Violation
from app.formula.values import (
    FLOAT64,
    INT64,
    Constant,
    Parameter,
    Value,
    absolute,
    cast,
    ceil,
    floor,
    maximum,
    minimum,
    rint,
    saturate,
    where,
    widen,
)
from app.operators.parameters import TensorParameters

Mode = Annotated[
    InterpolationMode,
    Field(
        description="Whether to take the nearest element, or to weigh the two nearest along each dimension.",
        examples=["LINEAR"],
    ),
]
Rounding = Annotated[
    AxisDirection,
    Field(
        description="For NEAREST_NEIGHBOR: INCREASING takes the next element up, DECREASING the next one down.",
        examples=["DECREASING"],
    ),
]
Rank = Annotated[
    Uint | None, Field(description="Number of dimensions; if given, the length of Scales and of the offsets.")
]
ScaleList = Annotated[
    list[Float],
    Field(
        min_length=1,
        max_length=MAX_RANK,
        description="For each dimension how much larger the output is; below 1 it is smaller.",
        examples=[[1, 1, 2, 2]],
    ),
]
InputOffsets = Annotated[
    list[Float],
    Field(
        min_length=1,
        max_length=MAX_RANK,
        description="For each dimension what is added to coordinates of the input: 0.5 for centres of pixels.",
        examples=[[0.5, 0.5, 0.5, 0.5]],
    ),
]
OutputOffsets = Annotated[
    list[Float],
    Field(
        min_length=1,
        max_length=MAX_RANK,
        description="For each dimension what is added to scaled coordinates: -0.5 for centres of pixels.",
        examples=[[-0.5, -0.5, -0.5, -0.5]],
    ),
]

COUNTS: Mapping[str, tuple[str, ...]] = {"DimensionCount": ("Scales", "InputPixelOffsets", "OutputPixelOffsets")}

HALVES = (
    "NEAREST_NEIGHBOR takes the upper one of two elements that are equally near, as the page of RESAMPLE2 implies and "
    "as DirectML was seen to (web-platform-tests/wpt, pull request 41811); WebNN takes the lower one. DirectML's "
    "documentation of the operator does not say."
)
SNAP = (
    "Coordinates are computed in float64. For NEAREST_NEIGHBOR those that differ from a whole number or a half by no "
    "more than the rounding of Scales to FLOAT, such as that of 1 / 3, makes a difference count as that number."
)
POSITIVE = "Scales of 0 and below are refused. DirectML's documentation does not mention them."

ROWS = (
    "Which data types and dimensions a feature level added is as the operator's page has it; the feature level history "
    "does not name that."
)
SHIFTED = (
    "By the formula, DECREASING takes the nearest element, as {other} does, with InputPixelOffsets that are 0.5 lower. "
    "The operator's page lowers OutputPixelOffsets, which is the same for Scales of 1 alone."
)

_SCALE_ROUNDING = 2.0**-24
_ALMOST_1 = 1 - 2.0**-20


def scale_violations(scales: Sequence[float], name: str, rank: int) -> Iterator[Violation]:
    """What is wrong with Scales for the tensor `name`, which has `rank` dimensions."""
    if len(scales) != rank:
        yield Violation(
            ("Scales",),
            f"Scales has {len(scales)} entries but {name} has {rank} dimensions; give one for each.",
            len(scales),
            rank,
        )
    for place, scale in enumerate(scales):
        if scale <= 0:
            yield Violation(("Scales", place), f"Scales[{place}] is {scale}; it must be above 0.", scale, "> 0")


class Axis:
    """One dimension: coordinates of the output are (input + `before`) * `scale` + `after`, all float64."""

    def __init__(self, scale: Parameter, before: Parameter | None, after: Parameter | None, size: Parameter) -> None:
        """`size` is that of the input. Without offsets, both are centres of pixels."""
        self._scale = scale
        self._offsets = [before, after] if before and after else []
        self.scale = widen(scale)
        self.before: Value = widen(before) if before else Constant(FLOAT64, 0.5)
        self.after: Value = widen(after) if after else Constant(FLOAT64, -0.5)
        self.size = size

    def is_whole(self, p: TensorParameters) -> bool:
        """Whether coordinates of both are the same."""
        return bool(p.ask(_is_whole, self._scale, *self._offsets))

    def is_shrunk(self, p: TensorParameters) -> bool:
        """Whether it becomes smaller than half of it."""
        return bool(p.ask(lambda scale: scale < 0.5, self._scale))

    def source(self, place: Value, *, filtered: bool = False) -> Value:
        """The input's coordinate that the output's element at `place` is of, in float64 and not beyond the edges. If it
        is `filtered`, what lies within a step of the output has weight: it is not so far beyond that nothing has."""
        at = self._scaled_back(place) - self.before
        least: Value | int = 0
        most: Value = cast(self.size - 1, FLOAT64)
        if filtered:
            beyond = _ALMOST_1 / self.scale
            least, most = -beyond, most + beyond
        return minimum(maximum(at, least), most)

    def nearest(self, place: Value, direction: AxisDirection | None) -> Value:
        """The index in the input for the output's element at `place`, rounded in `direction`, or to the nearest."""
        scaled = self._scaled_back(place)
        at = scaled - self.before
        half = rint(at * 2) * 0.5
        at = where(absolute(at - half) <= absolute(scaled) * _SCALE_ROUNDING, half, at)
        match direction:
            case AxisDirection.INCREASING:
                at = ceil(at)
            case AxisDirection.DECREASING:
                at = floor(at)
            case None:
                at = floor(at + 0.5)
        return minimum(maximum(saturate(at, INT64), 0), self.size - 1)

    def image(self, place: Value, apart: float) -> Value:
        """The output's coordinate, in float64, of the input's element at `place` or `apart` from there."""
        return (cast(place, FLOAT64) + (self.before + apart)) * self.scale + self.after

    def _scaled_back(self, place: Value) -> Value:
        return (cast(place, FLOAT64) - self.after) / self.scale


def _is_whole(scale: float, before: float = 0.5, after: float = -0.5) -> bool:
    return scale == 1 and before + after == 0


def axes_of(p: TensorParameters, sizes: Sequence[Parameter], *, offsets: bool) -> list[Axis]:
    """The dimensions of an operator with Scales and perhaps `offsets`, where the input has these `sizes`."""
    if not offsets:
        return [Axis(scale, None, None, size) for scale, size in zip(p.Scales, sizes, strict=True)]
    return [Axis(*each) for each in zip(p.Scales, p.InputPixelOffsets, p.OutputPixelOffsets, sizes, strict=True)]
