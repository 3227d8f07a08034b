"""Operators between images and the windows that go over them, a column for each place of the window.

Source: the DML_FOLD_OPERATOR_DESC and DML_UNFOLD_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_, mul
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, sum_over
from app.formula.values import Value, equal, quotient, remainder_of_floor, where, widen
from app.operators.accuracy import EXACT, SUM
from app.operators.data_movement.attributes import Positive
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import TensorParameters

MOST_DIMENSIONS = 6

_Entries = Field(min_length=1, max_length=MOST_DIMENSIONS)
Positives = Annotated[list[Positive], _Entries]
Uints = Annotated[list[Uint], _Entries]

ARRAYS = ("WindowSizes", "Strides", "Dilations", "StartPadding", "EndPadding")
FORMS = (
    "The image has DimensionCount + 2 dimensions. The columns are a tensor of 3, or of more of which the first are 1. "
    "The operator's page asks for equally many dimensions in one place and shows 3 in another.",
    "Data types are those of the examples; the operator's page leaves the table open.",
)


WindowSizes = Annotated[Positives, Field(description="Places of the window along each dimension, 1 at least.")]
Strides = Annotated[Positives, Field(description="Steps from one window to the next, 1 at least.")]
Dilations = Annotated[Positives, Field(description="Steps from one place of the window to the next, 1 at least.")]


class _Windowed(Operator):
    """What both have in common."""

    same_types: ClassVar = (("InputTensor", "OutputTensor"),)
    same_sizes: ClassVar = ()
    sizes_from: ClassVar = ("InputTensor", *ARRAYS)
    counts: ClassVar = {"DimensionCount": ARRAYS}
    by_coordinates: ClassVar = True


class Fold(_Windowed):
    """An image as the sum of windows (col2im): the adjoint of UNFOLD."""

    Type: Literal["DML_OPERATOR_FOLD", "FOLD"]
    InputTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc
    DimensionCount: Count = None
    WindowSizes: WindowSizes
    Strides: Strides
    Dilations: Dilations
    StartPadding: Uints = Field(description="How far windows reach beyond the image's beginning.")
    EndPadding: Uints = Field(description="How far windows may reach beyond the image's end.")

    formula_text = (
        "f(x)[n, c, q] = sum of x[n, c * K + k, b] over all places k of the window, row-major, and windows b, "
        "row-major, with q = b * Strides + k * Dilations - StartPadding, K = product of WindowSizes"
    )
    accuracy = SUM
    example: ClassVar = {
        "InputTensor": {"Sizes": [1, 4, 4]},
        "OutputTensor": {"Sizes": [1, 1, 3, 3]},
        "WindowSizes": [2, 2],
        "Strides": [1, 1],
        "Dilations": [1, 1],
        "StartPadding": [0, 0],
        "EndPadding": [0, 0],
    }
    support = SupportTable.of("6_4 3-8 F32-16")
    notes = (*FORMS, "Sums are computed in float64 and rounded once.")

    def implied_sizes(self, name: str) -> None:
        return None

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(_image_violations(self, "OutputTensor", self.OutputTensor))
        yield from wrong
        if wrong:
            return
        expected, given = _columns(self, self.OutputTensor, self.InputTensor.rank), self.InputTensor.Sizes
        if given != expected:
            yield Violation(
                ("InputTensor", "Sizes"),
                f"InputTensor has Sizes {given}; OutputTensor {self.OutputTensor.Sizes} with {_stated(self)} implies "
                f"{expected}.",
                given,
                expected,
            )

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        n, c, *place = coordinates(p.out("OutputTensor").rank)
        image = p.out("OutputTensor").sizes[2:]
        blocks = _blocks(p, image)

        def element(*window: Value) -> Value:
            steps = [
                q + start - k * dilation
                for q, k, start, dilation in zip(place, window, p.StartPadding, p.Dilations, strict=True)
            ]
            block = [quotient(step, stride) for step, stride in zip(steps, p.Strides, strict=True)]
            along = zip(steps, block, p.Strides, blocks, strict=True)
            inside = [equal(b * stride, step) & (b >= 0) & (b < count) for step, b, stride, count in along]
            row = c * reduce(mul, p.WindowSizes) + _index(window, p.WindowSizes)
            found = x[[*[0] * (x.rank - 3), n, row, _index(block, blocks)]]
            return where(reduce(and_, inside), widen(found), 0)

        return sum_over(p.WindowSizes, element)


class Unfold(_Windowed):
    """The windows of an image, each as a column (im2col)."""

    Type: Literal["DML_OPERATOR_UNFOLD", "UNFOLD"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    DimensionCount: Count = None
    WindowSizes: WindowSizes
    Strides: Strides
    Dilations: Dilations
    StartPadding: Uints = Field(description="Zeros before the image.")
    EndPadding: Uints = Field(description="Zeros behind the image.")

    formula_text = (
        "f(x)[n, c * K + k, b] = x[n, c, q], or 0 outside of it, q = b * Strides + k * Dilations - StartPadding, of "
        "places k of the window, row-major, and windows b, row-major, K = product of WindowSizes"
    )
    accuracy = EXACT
    example: ClassVar = {
        "InputTensor": {"Sizes": [1, 1, 3, 3]},
        "WindowSizes": [2, 2],
        "Strides": [1, 1],
        "Dilations": [1, 1],
        "StartPadding": [0, 0],
        "EndPadding": [0, 0],
    }
    support = SupportTable.of("6_4 3-8 F32-16")
    notes = FORMS

    def is_bitwise(self) -> bool:
        return True

    def windows(self) -> list[int]:
        """How many windows there are along each dimension of the image."""
        return _counts(self, self.InputTensor)

    def implied_sizes(self, name: str) -> list[int]:
        return _columns(self, self.InputTensor, self.OutputTensor.rank if self.OutputTensor else 3)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _image_violations(self, "InputTensor", self.InputTensor)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        n, row, column = coordinates(p.out("OutputTensor").rank)[-3:]
        image = x.sizes[2:]
        count = reduce(mul, p.WindowSizes)
        window = _places(remainder_of_floor(row, count), p.WindowSizes)
        block = _places(column, _blocks(p, image))
        at = [
            b * stride + k * dilation - start
            for b, k, stride, dilation, start in zip(block, window, p.Strides, p.Dilations, p.StartPadding, strict=True)
        ]
        inside = [(q >= 0) & (q < size) for q, size in zip(at, image, strict=True)]
        return where(reduce(and_, inside), x[[n, quotient(row, count), *at]], 0)


def _image_violations(operator: Fold | Unfold, name: str, image: TensorDesc) -> Iterator[Violation]:
    """What is wrong with windows over `image`."""
    dimensions = len(operator.WindowSizes)
    if image.rank != dimensions + 2:
        yield Violation(
            (name, "Sizes"),
            f"Sizes of {name} has {image.rank} dimensions; it must have batch, channels and the {dimensions} that "
            "WindowSizes has entries for.",
            image.rank,
            dimensions + 2,
        )
        return
    for i, count in enumerate(_counts(operator, image)):
        if count < 1:
            reach = image.Sizes[i + 2] + operator.StartPadding[i] + operator.EndPadding[i]
            yield Violation(
                ("WindowSizes", i),
                f"WindowSizes[{i}] is {operator.WindowSizes[i]}, over {_reach(operator, i)} elements by Dilations[{i}]"
                f"; {name} with StartPadding[{i}] and EndPadding[{i}] has {reach}.",
                operator.WindowSizes[i],
                (reach - 1) // operator.Dilations[i] + 1,
            )


def _stated(operator: Fold | Unfold) -> str:
    return ", ".join(f"{name} {getattr(operator, name)}" for name in ARRAYS)


def _reach(operator: Fold | Unfold, i: int) -> int:
    """Elements from the first to the last place of the window, both included."""
    return operator.Dilations[i] * (operator.WindowSizes[i] - 1) + 1


def _counts(operator: Fold | Unfold, image: TensorDesc) -> list[int]:
    """How many windows there are along each dimension."""
    return [
        (size + operator.StartPadding[i] + operator.EndPadding[i] - _reach(operator, i)) // operator.Strides[i] + 1
        for i, size in enumerate(image.Sizes[2:])
    ]


def _columns(operator: Fold | Unfold, image: TensorDesc, rank: int) -> list[int]:
    """Sizes of the columns, as a tensor of `rank` dimensions."""
    batch, channels, *_ = image.Sizes
    rows, columns = channels * math.prod(operator.WindowSizes), math.prod(_counts(operator, image))
    return [*[1] * (rank - 3), batch, rows, columns]


def _blocks(p: TensorParameters, image: Sequence[Value]) -> list[Value]:
    """`_counts` in a formula."""
    return [
        quotient(size + start + end - dilation * (window - 1) - 1, stride) + 1
        for size, start, end, dilation, window, stride in zip(
            image, p.StartPadding, p.EndPadding, p.Dilations, p.WindowSizes, p.Strides, strict=True
        )
    ]


def _index(places: Sequence[Value], counts: Sequence[Value]) -> Value:
    """The row-major index of a combination of `places`."""
    made = places[0]
    for place, count in zip(places[1:], counts[1:], strict=True):
        made = made * count + place
    return made


def _places(index: Value, counts: Sequence[Value]) -> list[Value]:
    """The combination of places of a row-major index that is below the product of `counts`."""
    made = []
    for count in reversed(counts[1:]):
        made.append(remainder_of_floor(index, count))
        index = quotient(index, count)
    return [index, *reversed(made)]
