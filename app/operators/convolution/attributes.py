"""What convolutions of floats and of integers have in common: attributes along the spatial dimensions, and sizes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from app.contract.scalars import Uint
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.operators.convolution.windows import Windows
from app.operators.operator import Operator

_Steps = list[Annotated[Uint, Field(ge=1)]]

FilterStrides = Annotated[
    _Steps, Field(min_length=1, max_length=3, description="Steps of the filter, from 1.", examples=[[1, 1]])
]
FilterDilations = Annotated[
    _Steps,
    Field(min_length=1, max_length=3, description="Steps between the filter's elements, from 1.", examples=[[1, 1]]),
]
PaddingBefore = Annotated[
    list[Uint],
    Field(min_length=1, max_length=3, description="Zeros before the first elements of InputTensor.", examples=[[0, 0]]),
]
PaddingBehind = Annotated[
    list[Uint],
    Field(min_length=1, max_length=3, description="Zeros behind the last elements of InputTensor.", examples=[[0, 0]]),
]
Groups = Annotated[
    Uint, Field(ge=1, description="Groups that the channels are in, each with filters of its own.", examples=[1])
]
SPATIAL = "Arrays have an entry for each spatial dimension: 1 for tensors of 3 dimensions, 2 of 4, 3 of 5."
NO_STEPS = "Strides and Dilations of 0 are refused. DirectML's documentation does not mention them."


class Spatial(Operator):
    """Operators that move a filter over InputTensor."""

    if TYPE_CHECKING:  # they stand where the structures of DirectML have them, each in its own order
        InputTensor: TensorDesc
        FilterTensor: TensorDesc
        Strides: list[int]
        Dilations: list[int]
        StartPadding: list[int]
        EndPadding: list[int]
        GroupCount: int

    def kernel_sizes(self) -> list[int]:
        """How far the filter reaches along each spatial dimension."""
        return [1 + (k - 1) * step for k, step in zip(self.FilterTensor.Sizes[2:], self.Dilations, strict=True)]

    def forward_sizes(self) -> list[int]:
        """Of the output, along the spatial dimensions; below 1 where the filter does not fit."""
        return [
            (size + start + end - kernel) // stride + 1
            for size, kernel, stride, start, end in zip(
                self.InputTensor.Sizes[2:],
                self.kernel_sizes(),
                self.Strides,
                self.StartPadding,
                self.EndPadding,
                strict=True,
            )
        ]

    def forward_windows(self) -> Windows:
        return Windows(
            self.InputTensor.Sizes[2:],
            self.forward_sizes(),
            self.FilterTensor.Sizes[2:],
            self.Strides,
            self.Dilations,
            self.StartPadding,
        )

    def array_violations(self, *names: str) -> Iterator[Violation]:
        """What is wrong with the lengths of these attributes."""
        spatial = self.InputTensor.rank - 2
        for name in names:
            given = getattr(self, name)
            if len(given) != spatial:
                yield Violation(
                    (name,),
                    f"{name} has {len(given)} entries but InputTensor has {spatial} spatial dimensions; give one for "
                    "each.",
                    len(given),
                    spatial,
                )

    def channel_violations(self, bias: TensorDesc | None, *, backward: bool = False) -> Iterator[Violation]:
        """What is wrong with groups and channels, of which a filter has those of a group."""
        channels, groups = self.InputTensor.Sizes[1], self.GroupCount
        given = self.FilterTensor.Sizes
        if channels % groups:
            yield Violation(
                ("GroupCount",),
                f"GroupCount is {groups} but InputTensor has {channels} channels; it must divide them.",
                groups,
                f"a divisor of {channels}",
            )
        elif backward and given[0] != channels:
            yield Violation(
                ("FilterTensor", "Sizes"),
                f"FilterTensor has Sizes {given}; its first dimension must be {channels}, the channels of InputTensor, "
                "since Direction is BACKWARD.",
                given,
                [channels, *given[1:]],
            )
        elif not backward and given[1] != channels // groups:
            since = ", since Direction is FORWARD" if "Direction" in type(self).model_fields else ""
            yield Violation(
                ("FilterTensor", "Sizes"),
                f"FilterTensor has Sizes {given}; its second dimension must be {channels // groups}, the channels of "
                f"InputTensor ({channels}) over GroupCount ({groups}){since}.",
                given,
                [given[0], channels // groups, *given[2:]],
            )
        elif not backward and given[0] % groups:
            yield Violation(
                ("FilterTensor", "Sizes"),
                f"FilterTensor has Sizes {given}; GroupCount ({groups}) must divide its first dimension, the channels "
                "of the output.",
                given,
                None,
            )
        elif bias:
            outputs = given[1] * groups if backward else given[0]
            right = [1, outputs, *[1] * (bias.rank - 2)]
            if bias.Sizes != right:
                yield Violation(
                    ("BiasTensor", "Sizes"),
                    f"BiasTensor has Sizes {bias.Sizes}; it must have {right}, one element for each channel of the "
                    f"output by FilterTensor{' and GroupCount' if backward else ''}.",
                    bias.Sizes,
                    right,
                )
