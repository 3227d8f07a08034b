"""Operators that cut a part out of a tensor, and the way back.

Source: the DML_SLICE*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Value, equal, quotient, where
from app.operators.accuracy import EXACT
from app.operators.data_movement.attributes import Positives, Strides, Uints, length_violations
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import TensorParameters

WINDOW = ("InputWindowOffsets", "InputWindowSizes", "InputWindowStrides")


class Slice(Operator):
    """Every so many elements of a window."""

    Type: Literal["DML_OPERATOR_SLICE", "SLICE"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    DimensionCount: Count = None
    Offsets: Uints = Field(description="Where the first element is, along each dimension.")
    Sizes: Positives = Field(description="Elements of the output along each dimension.")
    Strides: Positives = Field(description="Steps from one to the next in elements, along each dimension.")

    formula_text = "f(x)[c] = x[Offsets + Strides * c]"
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensor"),)
    sizes_from = ("Sizes",)
    counts: ClassVar = {"DimensionCount": ("Offsets", "Sizes", "Strides")}
    example: ClassVar = {"Offsets": [0, 0, 0, 1], "Sizes": [1, 1, 2, 1], "Strides": [1, 1, 1, 2]}
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4-5 F32-16 I32-8 U32-8",
        "1_0 4-5 F32-16 I32-16 U32-16",
    )
    notes = ("Strides of 0 are refused. DirectML's documentation does not say.",)

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> list[int]:
        return self.Sizes

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        sizes = self.InputTensor.Sizes
        wrong = list(length_violations(self, ("Offsets", "Sizes", "Strides"), "InputTensor", len(sizes)))
        yield from wrong
        if wrong:
            return
        for i, (offset, count, stride, size) in enumerate(
            zip(self.Offsets, self.Sizes, self.Strides, sizes, strict=True)
        ):
            last = offset + (count - 1) * stride
            if last >= size:
                name, given, allowed = _too_far(offset, count, stride, size)
                yield Violation(
                    (name, i),
                    f"Offsets[{i}] is {offset}, so that the last of {count} elements (Sizes[{i}]) in steps of {stride} "
                    f"(Strides[{i}]) is {last}; InputTensor has elements 0 to {size - 1} there.",
                    given,
                    allowed,
                )

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        places = zip(coordinates(x.rank), p.Offsets, p.Strides, strict=True)
        return x[[offset + stride * c for c, offset, stride in places]]


class Slice1(Operator):
    """Every so many elements of a window, forwards or backwards."""

    Type: Literal["DML_OPERATOR_SLICE1", "SLICE1"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    DimensionCount: Count = None
    InputWindowOffsets: Uints = Field(description="Where the window begins, along each dimension.")
    InputWindowSizes: Positives = Field(description="Elements of the window along each dimension.")
    InputWindowStrides: Strides = Field(
        description="Steps from one to the next in elements, not 0. Negative: from the window's end backwards."
    )

    formula_text = (
        "f(x)[c] = x[start + InputWindowStrides * c], start = InputWindowOffsets, plus InputWindowSizes - 1 where "
        "InputWindowStrides < 0"
    )
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensor"),)
    sizes_from = ("InputWindowSizes", "InputWindowStrides")
    counts: ClassVar = {"DimensionCount": WINDOW}
    example: ClassVar = {
        "InputWindowOffsets": [0, 0, 0, 0],
        "InputWindowSizes": [1, 1, 2, 3],
        "InputWindowStrides": [1, 1, 1, -2],
    }
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4-5 F32-16 I32-8 U32-8",
    )
    notes = (
        "OutputTensor may be smaller than the window allows; left out it has all elements that the window has.",
        "The most elements are 1 + floor((size - 1) / |stride|). The operator's page has the stride with its sign.",
        "Strides of 0 are refused, as the operator's page says; the page of SLICE_GRAD implies that they are taken.",
    )

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> list[int]:
        return self.OutputTensor.Sizes if self.OutputTensor else most_elements(self)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        output = ("OutputTensor", self.OutputTensor.Sizes) if self.OutputTensor else None
        yield from window_violations(self, "InputTensor", self.InputTensor.Sizes, output)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        places = zip(coordinates(x.rank), _starts(p), p.InputWindowStrides, strict=True)
        return x[[start + stride * c for c, start, stride in places]]


class SliceGrad(Operator):
    """Backward pass of SLICE1: each gradient where its element was, zeros elsewhere."""

    Type: Literal["DML_OPERATOR_SLICE_GRAD", "SLICE_GRAD"]
    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: StatedOutputTensorDesc
    DimensionCount: Count = None
    InputWindowOffsets: Uints = Field(description="Where the window begins, along each dimension.")
    InputWindowSizes: Positives = Field(description="Elements of the window along each dimension.")
    InputWindowStrides: Strides = Field(
        description="Steps from one to the next in elements, not 0. Negative: from the window's end backwards."
    )

    formula_text = (
        "f(gradient) = 0, but f(gradient)[start + InputWindowStrides * c] = gradient[c], start = InputWindowOffsets, "
        "plus InputWindowSizes - 1 where InputWindowStrides < 0"
    )
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputGradientTensor", "OutputGradientTensor"),)
    same_sizes = ()
    same_ranks = (("InputGradientTensor", "OutputGradientTensor"),)
    counts: ClassVar = {"DimensionCount": WINDOW}
    example: ClassVar = {
        "OutputGradientTensor": {"Sizes": [1, 1, 2, 6]},
        "InputWindowOffsets": [0, 0, 0, 1],
        "InputWindowSizes": [1, 1, 2, 5],
        "InputWindowStrides": [1, 1, 1, 2],
    }
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_1 1-8 F32-16 I32-8 U32-8",
        "3_0 4-5 F32-16 I32-8 U32-8",
    )
    notes = ("InputGradientTensor may be smaller than the window allows, as the output of SLICE1 may.",)

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> None:
        return None

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        gradient = ("InputGradientTensor", self.InputGradientTensor.Sizes)
        yield from window_violations(self, "OutputGradientTensor", self.OutputGradientTensor.Sizes, gradient)

    def formula(self, p: TensorParameters, gradient: Operand) -> Value:
        at: list[Value] = []
        inside: list[Value] = []
        places = zip(coordinates(gradient.rank), gradient.sizes, _starts(p), p.InputWindowStrides, strict=True)
        for c, size, start, stride in places:
            step = quotient(c - start, stride)
            inside.append(equal(step * stride, c - start) & (step >= 0) & (step < size))
            at.append(step)
        return where(reduce(and_, inside), gradient[at], 0)


def _starts(p: TensorParameters) -> Iterator[Value]:
    """Where the first element is, along each dimension."""
    for offset, size, stride in zip(*(p[name] for name in WINDOW), strict=True):
        yield offset + where(stride < 0, size - 1, 0)


def most_elements(operator: Slice1 | SliceGrad) -> list[int]:
    """How many elements the window has along each dimension."""
    windows = zip(operator.InputWindowSizes, operator.InputWindowStrides, strict=True)
    return [1 + (size - 1) // abs(stride) for size, stride in windows]


def _too_far(offset: int, count: int, stride: int, size: int) -> tuple[str, int, str]:
    """Which of these fields of SLICE may be another, so that all elements are in a tensor of `size`, as it is, and what
    it may be."""
    most, room = size - 1 - (count - 1) * stride, size - 1 - offset
    if most >= 0 or room < 0:
        return "Offsets", offset, f"0 to {most if most >= 0 else size - 1}"
    if room >= count - 1:
        return "Strides", stride, f"1 to {room // (count - 1)}"
    return "Sizes", count, f"1 to {room // stride + 1}"


def window_violations(
    operator: Slice1 | SliceGrad, whole: str, sizes: Sequence[int], part: tuple[str, Sequence[int]] | None
) -> Iterator[Violation]:
    """What is wrong with a window of the tensor `whole`, which has `sizes`, and with the `part` that it is to give."""
    wrong = [
        *length_violations(operator, WINDOW, whole, len(sizes)),
        *(
            Violation(
                ("InputWindowStrides", i), f"InputWindowStrides[{i}] is 0; it may be any other number.", 0, "not 0"
            )
            for i, stride in enumerate(operator.InputWindowStrides)
            if stride == 0
        ),
    ]
    yield from wrong
    if wrong:
        return
    windows: Any = zip(operator.InputWindowOffsets, operator.InputWindowSizes, sizes, strict=True)
    for i, (offset, window, size) in enumerate(windows):
        if offset + window > size:
            message = (
                f"InputWindowSizes[{i}] is {window} from InputWindowOffsets[{i}], {offset}, on, so it ends at "
                f"{offset + window}; {whole} ends at {size} there."
            )
            if offset < size:
                yield Violation(("InputWindowSizes", i), message, window, f"1 to {size - offset}")
            else:  # where no window is small enough
                yield Violation(("InputWindowOffsets", i), message, offset, f"0 to {max(size - window, 0)}")
    if part:
        name, given = part
        most = most_elements(operator)
        if any(count > limit for count, limit in zip(given, most, strict=True)):
            yield Violation(
                (name, "Sizes"),
                f"{name} has Sizes {list(given)}; the window, by InputWindowSizes and InputWindowStrides, has at most "
                f"{most}.",
                list(given),
                most,
            )
