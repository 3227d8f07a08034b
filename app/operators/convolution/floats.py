"""Convolutions of floats.

Source: the DML_CONVOLUTION_OPERATOR_DESC page of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import ConvolutionDirection, ConvolutionMode, FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import FLOAT32
from app.memory.arrays import numpy_type
from app.operators.accuracy import PRODUCTS
from app.operators.arrays import Activation, computed, stored
from app.operators.convolution import attributes
from app.operators.convolution.library import convolution
from app.operators.convolution.windows import Windows, backward, forward
from app.operators.fusion import OptionalFusedActivationOrClip
from app.operators.operator import Count, InputTensorDesc, OptionalInputTensorDesc, OutputTensorDesc


class Convolution(attributes.Spatial):
    """A filter moved over each channel of a tensor, forward, or backward (also called transposed)."""

    Type: Literal["DML_OPERATOR_CONVOLUTION", "CONVOLUTION"]
    InputTensor: InputTensorDesc
    FilterTensor: InputTensorDesc
    BiasTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    Mode: ConvolutionMode = Field(
        description="Whether the filter is mirrored along every spatial dimension.", examples=["CROSS_CORRELATION"]
    )
    Direction: ConvolutionDirection = Field(
        description="Whether elements are gathered, or spread (a convolution's gradient).", examples=["FORWARD"]
    )
    DimensionCount: Count = None
    Strides: attributes.FilterStrides
    Dilations: attributes.FilterDilations
    StartPadding: attributes.PaddingBefore
    EndPadding: attributes.PaddingBehind
    OutputPadding: Annotated[
        list[Uint],
        Field(min_length=1, max_length=3, description="Zeros behind the output's last elements.", examples=[[0, 0]]),
    ]
    GroupCount: attributes.Groups
    FusedActivation: OptionalFusedActivationOrClip = None

    formula_text = (
        "y[n, o, p] = act(bias[o] + sum over c, k of x[n, g * Cg + c, p * Strides + k * Dilations - StartPadding] * "
        "w[o, c, k]), x = 0 outside; BACKWARD: every x[n, c, p] * w[c, f, k] is added to "
        "y[n, g * F + f, p * Strides + k * Dilations - StartPadding]"
    )
    accuracy = PRODUCTS
    only_queues = makes_in = True
    same_sizes = ()
    same_ranks = (("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor"),)
    sizes_from = (
        *("InputTensor", "FilterTensor", "Direction", "Strides", "Dilations", "StartPadding", "EndPadding"),
        *("OutputPadding", "GroupCount"),
    )
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "DimensionCount": ("Strides", "Dilations", "StartPadding", "EndPadding", "OutputPadding")
    }
    support = SupportTable.of(
        "4_0 3-5 F32-16",
        "1_0 4-5 F32-16",
    )
    example: ClassVar[Mapping[str, Any]] = {
        "InputTensor": {"Sizes": [1, 1, 3, 4]},
        "FilterTensor": {"Sizes": [1, 1, 2, 2]},
        "BiasTensor": {"Sizes": [1, 1, 1, 1]},
    }
    notes = (
        "Computed in float32, FLOAT16 too, and FLOAT16 rounded once: sums of K terms are within K * 2^-24 of the sum "
        "of their magnitudes, in any order.",
        attributes.SPATIAL,
        attributes.NO_STEPS,
        "FORWARD, FilterTensor is { output channels, input channels / GroupCount, spatial... }; BACKWARD, { input "
        "channels, output channels / GroupCount, spatial... }.",
        "BACKWARD, the output is (input - 1) * stride + filter's reach - paddings + OutputPadding long, or up to "
        "stride - 1 more, which the filter may reach as well.",
        "The OutputPadding elements at each dimension's end are 0: no bias is added and no activation applied to them. "
        "They are there FORWARD, too.",
        "Where an infinity or NaN of the filter meets the padding, the result may be NaN or as if it met nothing.",
    )

    def implied_sizes(self, name: str) -> list[int]:
        batch, groups = self.InputTensor.Sizes[0], self.GroupCount
        filters = self.FilterTensor.Sizes
        channels = filters[1] * groups if self.is_backward else filters[0]
        sizes = [
            size + more if size > 0 else size
            for size, more in zip(self.result_sizes(), self.OutputPadding, strict=True)
        ]
        return [batch, channels, *sizes]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(self.array_violations("Strides", "Dilations", "StartPadding", "EndPadding", "OutputPadding"))
        yield from wrong or self.channel_violations(self.BiasTensor, backward=self.is_backward)
        if self.FusedActivation:
            yield from (each.below("FusedActivation") for each in self.FusedActivation.violations(level))

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x, filters = inputs["InputTensor"], inputs["FilterTensor"]
        if self.Mode is ConvolutionMode.CONVOLUTION:
            filters = filters[(..., *[slice(None, None, -1)] * (x.ndim - 2))]
        bias = inputs["BiasTensor"] if self.BiasTensor else None
        results = self.result_sizes()
        windows = self.backward_windows() if self.is_backward else self.forward_windows()
        sizes = self.implied_sizes("OutputTensor")
        dtype = numpy_type(self.InputTensor.DataType)
        made = self._by_library(xp, x, filters, bias, windows, sizes[1], into["OutputTensor"] if into else None)
        if made is None:
            made = xp.empty((*sizes[:2], *results), dtype)
            self._by_products(xp, x, filters, bias, windows, made)
        if results != sizes[2:]:
            padded = xp.zeros(sizes, dtype)
            padded[(..., *map(slice, results))] = made
            made = padded
        return {"OutputTensor": stored(made, self.InputTensor.DataType)}

    def _by_library(self, xp: Any, x: Any, filters: Any, bias: Any, windows: Windows, channels: int, into: Any) -> Any:
        """By cuDNN; None where that does not do it. It may be made in the array `into`."""
        if xp.__name__ != "cupy":
            return None
        made_type = numpy_type(self.InputTensor.DataType) if self.FusedActivation is None else FLOAT32
        contiguous = xp.ascontiguousarray(filters)
        made = convolution(xp, x, contiguous, bias, windows, channels, made_type, into, backward=self.is_backward)
        if made is not None:
            Activation(self.FusedActivation).apply(xp, made)
        return made

    def _by_products(self, xp: Any, x: Any, filters: Any, bias: Any, windows: Windows, made: Any) -> None:
        """Into `made`, by products of matrices."""
        x, filters = (xp.broadcast_to(computed(each), each.shape) for each in (x, filters))
        filters = xp.ascontiguousarray(filters)
        bias = computed(bias) if bias is not None else None
        activation = Activation(self.FusedActivation)

        def finish(results: Any) -> None:
            if bias is not None:
                results += bias
            activation.apply(xp, results)

        if self.is_backward:
            spread = backward(xp, x, filters, self.GroupCount, windows)
            finish(spread)
            made[...] = spread
        else:
            forward(xp, x, filters, self.GroupCount, windows, finish, made)

    @property
    def is_backward(self) -> bool:
        return self.Direction is ConvolutionDirection.BACKWARD

    def backward_windows(self) -> Windows:
        """Where filters lie over the output, without OutputPadding: each element of the input is one's position."""
        sizes = self.InputTensor.Sizes[2:]
        return Windows(
            self.result_sizes(), sizes, self.FilterTensor.Sizes[2:], self.Strides, self.Dilations, self.StartPadding
        )

    def result_sizes(self) -> list[int]:
        """Of the output, along the spatial dimensions, without OutputPadding."""
        if not self.is_backward:
            return self.forward_sizes()
        least = [
            (size - 1) * stride + kernel - start - end
            for size, kernel, stride, start, end in zip(
                self.InputTensor.Sizes[2:],
                self.kernel_sizes(),
                self.Strides,
                self.StartPadding,
                self.EndPadding,
                strict=True,
            )
        ]
        if not self.OutputTensor or len(self.OutputTensor.Sizes) != len(least) + 2:
            return least
        stated = [size - more for size, more in zip(self.OutputTensor.Sizes[2:], self.OutputPadding, strict=True)]
        return [
            size if 0 <= size - fewest < stride else fewest
            for size, fewest, stride in zip(stated, least, self.Strides, strict=True)
        ]
