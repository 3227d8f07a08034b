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
from app.memory.arrays import numpy_type
from app.operators.arrays import Activation, computed
from app.operators.convolution import attributes
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
        channels = filters[1] * groups if self._is_backward else filters[0]
        sizes = [
            size + more if size > 0 else size
            for size, more in zip(self._result_sizes(), self.OutputPadding, strict=True)
        ]
        return [batch, channels, *sizes]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(self.array_violations("Strides", "Dilations", "StartPadding", "EndPadding", "OutputPadding"))
        yield from wrong or self.channel_violations(self.BiasTensor, backward=self._is_backward)
        if self.FusedActivation:
            yield from (each.below("FusedActivation") for each in self.FusedActivation.violations(level))

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, filters = (
            xp.broadcast_to(computed(inputs[name]), inputs[name].shape) for name in ("InputTensor", "FilterTensor")
        )
        if self.Mode is ConvolutionMode.CONVOLUTION:
            filters = filters[(..., *[slice(None, None, -1)] * (x.ndim - 2))]
        filters = xp.ascontiguousarray(filters)
        bias = computed(inputs["BiasTensor"]) if self.BiasTensor else None
        activation = Activation(self.FusedActivation)

        def finish(results: Any) -> None:
            if bias is not None:
                results += bias
            activation.apply(xp, results)

        sizes, results = self.implied_sizes("OutputTensor"), self._result_sizes()
        padded = results != sizes[2:]
        made = (xp.zeros if padded else xp.empty)(sizes, numpy_type(self.InputTensor.DataType))
        whole = made[(..., *map(slice, results))]
        if self._is_backward:
            windows = Windows(results, x.shape[2:], filters.shape[2:], self.Strides, self.Dilations, self.StartPadding)
            spread = backward(xp, x, filters, self.GroupCount, windows)
            finish(spread)
            whole[...] = spread
        else:
            forward(xp, x, filters, self.GroupCount, self.forward_windows(), finish, whole)
        return {"OutputTensor": made}

    @property
    def _is_backward(self) -> bool:
        return self.Direction is ConvolutionDirection.BACKWARD

    def _result_sizes(self) -> list[int]:
        """Of the output, along the spatial dimensions, without OutputPadding."""
        if not self._is_backward:
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
