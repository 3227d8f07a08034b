"""Windows that move over the spatial dimensions of a tensor { N, C, [D], H, W }: their fields, rules and places.

Source: the DML_*_POOLING*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import UINT_MAX, Bool, Uint
from app.contract.violations import Violation
from app.formula.coordinates import Operand
from app.formula.values import INT64, Constant, Value, maximum, minimum, quotient
from app.operators.convolution.windows import Windows
from app.operators.operator import Count, InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import TensorParameters

Positive = Annotated[int, Field(ge=1, le=UINT_MAX)]

DILATED_SIZES = (
    "The output's sizes count with the dilated window, 1 + (WindowSize - 1) * Dilations. The formula on DirectML's "
    "page leaves Dilations out."
)
ROUNDED = (
    "Where a last window would reach beyond EndPadding, OutputTensor may have an element for it: its sizes are rounded "
    "down or up. DirectML's page rounds down; DirectMLX and Chromium's WebNN pass on both."
)
AT_LEAST_1 = "Strides, WindowSize and Dilations of 0 are refused. DirectML's documentation does not mention them."
INCLUDE_PADDING = Field(
    description="Whether elements outside the input count in the divisor, as they count 0 in the sum.", examples=[False]
)
IncludePadding = Annotated[Bool, INCLUDE_PADDING]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Along one dimension, the part of a window that lies inside the tensor. Values are int64."""

    begin: Value
    """The coordinate of the first element."""
    step: Value
    """From one element to the next."""
    count: Value
    """How many elements, at least 0."""


class OneInput(Operator):
    """The fields that come before those of the window."""

    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None


class WindowOperator(Operator):
    """Base: windows over the spatial dimensions of `window_tensor`."""

    DimensionCount: Count = Field(None, description="Number of spatial dimensions; if given, the length of the arrays.")
    Strides: Annotated[
        list[Positive],
        Field(min_length=2, max_length=3, description="From one window to the next, [D], H and W.", examples=[[1, 1]]),
    ]
    WindowSize: Annotated[
        list[Positive],
        Field(min_length=2, max_length=3, description="Elements of a window, [D], H and W.", examples=[[2, 2]]),
    ]
    StartPadding: Annotated[
        list[Uint],
        Field(min_length=2, max_length=3, description="Elements before the first, [D], H and W.", examples=[[0, 0]]),
    ]
    EndPadding: Annotated[
        list[Uint],
        Field(min_length=2, max_length=3, description="Elements after the last, [D], H and W.", examples=[[0, 0]]),
    ]

    same_sizes = ()
    window_tensor: ClassVar[str] = "InputTensor"
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "DimensionCount": ("Strides", "WindowSize", "StartPadding", "EndPadding")
    }

    @property
    def dilations(self) -> Sequence[int]:
        """Steps between the elements of a window."""
        return [1] * len(self.WindowSize)

    def windows(self, sizes: Sequence[int], positions: Sequence[int]) -> Windows:
        """At so many positions over spatial dimensions of these `sizes`."""
        return Windows(sizes, positions, self.WindowSize, self.Strides, self.dilations, self.StartPadding)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        name = self.window_tensor
        sizes = self.tensors()[name].Sizes
        yield from [*self._wrong_lengths(name, len(sizes))] or self._too_large(name, sizes)

    def _wrong_lengths(self, name: str, rank: int) -> Iterator[Violation]:
        (arrays,) = self.counts.values()
        for array in arrays:
            length = len(getattr(self, array))
            if length != rank - 2:
                yield Violation(
                    (array,),
                    f"{array} has {length} entries but {name} has {rank} dimensions, all but the first two of them "
                    f"spatial; it must have {rank - 2}.",
                    length,
                    rank - 2,
                )

    def _too_large(self, name: str, sizes: Sequence[int]) -> Iterator[Violation]:
        """Of a window that is larger than the tensor `name` and its padding there is none."""
        spatial = zip(sizes[2:], self.StartPadding, self.EndPadding, self.WindowSize, self.dilations, strict=True)
        for place, (size, start, end, window, dilation) in enumerate(spatial):
            most = (size + start + end - 1) // dilation + 1
            if window > most:
                steps = f" in steps of {dilation} (Dilations[{place}])" if dilation > 1 else ""
                yield Violation(
                    ("WindowSize", place),
                    f"WindowSize[{place}] is {window} elements{steps}; dimension {place + 2} of {name} has {size} and "
                    f"{start + end} of padding (StartPadding[{place}], EndPadding[{place}]), so it must be at most "
                    f"{most}.",
                    window,
                    f"<= {most}",
                )

    def pooled(self, sizes: Sequence[int], stated: Sequence[int] | None = None) -> list[int]:
        """One element for each window over a tensor of these `sizes`; 0 or less where the window is too large. If the
        `stated` sizes are those with last windows that reach beyond the padding, along any dimensions, they are it."""
        spatial = zip(
            sizes[2:],
            self.StartPadding,
            self.EndPadding,
            self.WindowSize,
            self.dilations,
            self.Strides,
            strict=True,
        )
        room = [
            (size + start + end - 1 - (window - 1) * dilation, stride)
            for size, start, end, window, dilation, stride in spatial
        ]
        whole = [most // stride + 1 for most, stride in room]
        if not stated or len(stated) != len(sizes) or min(whole) < 1:
            return [*sizes[:2], *whole]
        begun = [-(-most // stride) + 1 for most, stride in room]
        is_rounded = all(count in each for count, *each in zip(stated[2:], whole, begun, strict=True))
        return [*sizes[:2], *(stated[2:] if is_rounded else whole)]

    def spans(self, p: TensorParameters, sizes: Sequence[Value], places: Sequence[Value]) -> list[Overlap]:
        """The window at `places` over spatial dimensions of these `sizes`, cut off where they end."""
        dilations = p.Dilations if "Dilations" in type(self).model_fields else [None] * len(sizes)
        each = zip(places, sizes, p.Strides, p.StartPadding, p.WindowSize, dilations, strict=True)
        return [
            _span(place * stride - padding, size, window, dilation)
            for place, size, stride, padding, window, dilation in each
        ]


def _span(base: Value, size: Value, window: Value, dilation: Value | None) -> Overlap:
    """Of a window that begins at `base`, which may be outside."""
    if dilation is None:
        begin = maximum(base, 0)
        return Overlap(begin, Constant(INT64, 1), maximum(minimum(base + window, size) - begin, 0))
    # The numerators are the same for all windows that are inside, as the loops of a CPU want them: a quotient is looked
    # at again wherever its numerator is another.
    before, after = (maximum(each, 0) for each in (-base, size - base))
    first = quotient(before + (dilation - 1), dilation)
    end = quotient(minimum(after, window * dilation) + (dilation - 1), dilation)
    return Overlap(base + first * dilation, dilation, maximum(end - first, 0))


def element_of(x: Operand, leading: Sequence[Value], spans: Sequence[Overlap]) -> Callable[..., Value]:
    """Takes an index along each spatial dimension of the window and gives the element."""

    def element(*indices: Value) -> Value:
        return x[[*leading, *(span.begin + index * span.step for span, index in zip(spans, indices, strict=True))]]

    return element


class Pooling(WindowOperator):
    """Base: OutputTensor has an element for each window over InputTensor."""

    by_coordinates = True
    same_types: ClassVar[tuple[tuple[str, ...], ...]] = (("InputTensor", "OutputTensor"),)
    same_ranks: ClassVar[tuple[tuple[str, ...], ...]] = (("InputTensor", "OutputTensor"),)
    sizes_from: ClassVar[tuple[str, ...]] = ("InputTensor", "Strides", "WindowSize", "StartPadding", "EndPadding")

    def implied_sizes(self, name: str) -> list[int]:
        tensors = self.tensors()
        stated, indices = tensors.get("OutputTensor"), tensors.get("OutputIndicesTensor")
        agree = stated and (indices is None or indices.Sizes == stated.Sizes)
        return self.pooled(tensors["InputTensor"].Sizes, stated.Sizes if stated and agree else None)


class Dilated(WindowOperator):
    """The field that dilated windows have besides."""

    Dilations: Annotated[
        list[Positive],
        Field(
            min_length=2,
            max_length=3,
            description="From one element of a window to the next, [D], H and W.",
            examples=[[1, 1]],
        ),
    ]

    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "DimensionCount": ("Strides", "WindowSize", "StartPadding", "EndPadding", "Dilations")
    }

    @property
    def dilations(self) -> Sequence[int]:
        return self.Dilations


class DilatedPooling(Dilated, Pooling):
    """Base: the same of dilated windows."""

    sizes_from = ("InputTensor", "Strides", "WindowSize", "StartPadding", "EndPadding", "Dilations")
