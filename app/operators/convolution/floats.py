"""Convolutions of floats.

Source: the DML_CONVOLUTION_OPERATOR_DESC page of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import ConvolutionDirection, ConvolutionMode, DataType, FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import FLOAT32, Value
from app.memory.arrays import numpy_type
from app.operators import packing
from app.operators.accuracy import PRODUCTS
from app.operators.arrays import Activation, computed, stored
from app.operators.convolution import attributes
from app.operators.convolution.direct import direct, is_direct
from app.operators.convolution.library import convolution, is_product
from app.operators.convolution.on_gpu import QUICK_POSITIONS, product_of_floats, steps_of_positions
from app.operators.convolution.windows import Finish, Windows, backward, forward
from app.operators.endings import PRODUCT, Ended
from app.operators.fusion import Fused, OptionalFusedActivationOrClip
from app.operators.operator import Count, InputTensorDesc, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.parameters import Parameters

DEEP = 256
"""Channels of float32 from which on cuBLAS, and a kernel that adds the bias, are quicker than cuDNN, which adds it. Of
FLOAT16 they always are, but where rows begin at odd elements. With several groups, a bias makes cuDNN four times as
slow."""


QUICK_CHANNELS = 8
"""What channels of halves are a multiple of for cuDNN to take its quick ways."""

MANY_OUTPUTS = {DataType.FLOAT32: 128, DataType.FLOAT16: 512}
MANY_TERMS = {DataType.FLOAT32: 1024, DataType.FLOAT16: 1}
MANY_POSITIONS = 256
"""Outputs of a group, terms of a sum, and positions in all items, from which on packed rows are quicker than cuDNN:
what is packed and ended is little then for what is multiplied, and that is enough for a GPU."""


class Convolution(attributes.Spatial, Ended):
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
        "Where an infinity or NaN of the filter meets the padding, or BACKWARD nothing between elements that Strides "
        "keep apart, the result may be NaN or as if it met nothing.",
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

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield {"InputTensor": 0, "OutputTensor": 0}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(self.array_violations("Strides", "Dilations", "StartPadding", "EndPadding", "OutputPadding"))
        yield from wrong or self.channel_violations(self.BiasTensor, backward=self.is_backward)
        if self.FusedActivation:
            yield from (each.below("FusedActivation") for each in self.FusedActivation.violations(level))

    def multiplications(self) -> int:
        meeting = self.InputTensor.Sizes if self.is_backward else self.implied_sizes("OutputTensor")
        return math.prod(meeting) * math.prod(self.FilterTensor.Sizes[1:])

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        dtype = numpy_type(self.InputTensor.DataType)
        made = self._by_library(xp, inputs, into["OutputTensor"] if into else None)
        if made is None:
            made = self._by_products(xp, inputs, dtype, self._finish(xp, inputs))
        sizes, results = self.implied_sizes("OutputTensor"), self.result_sizes()
        if results != sizes[2:]:
            padded = xp.zeros(sizes, dtype)
            padded[(..., *map(slice, results))] = made
            made = padded
        return {"OutputTensor": stored(made, self.InputTensor.DataType)}

    def made(self, sizes: list[int]) -> dict[str, TensorDesc]:
        if not self._is_packed():
            return super().made(sizes)
        steps = steps_of_positions(sizes, QUICK_POSITIONS)
        return {PRODUCT: TensorDesc(DataType=DataType.FLOAT32, Sizes=sizes, Strides=steps)}

    def product(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, filters = inputs["InputTensor"], self._filters(inputs)
        if self._is_packed():
            return {PRODUCT: product_of_floats(xp, x, filters, self._windows(), self.GroupCount)}
        if self._is_direct():
            return {PRODUCT: direct(xp, x, filters, self._windows())}
        made = self._library_product(xp, inputs, None, FLOAT32, None)
        if made is None:
            made = self._by_products(xp, inputs, FLOAT32, lambda results: None)
        return {PRODUCT: made}

    def is_ended_apart(self) -> bool:
        if any(self.OutputPadding):
            return False  # which is no part of the product
        windows, is_half = self._windows(), self.InputTensor.DataType is DataType.FLOAT16
        if self._is_always_packed():
            return True
        if self.FusedActivation or not self.BiasTensor:
            return self.FusedActivation is not None
        if self.GroupCount > 1:
            return True
        is_quick = math.prod(windows.positions) % 2 == 0 if is_half else self.InputTensor.Sizes[1] >= DEEP
        return is_quick and is_product(windows, self.GroupCount)

    def added(self, sizes: list[int]) -> dict[str, TensorDesc]:
        bias = self.BiasTensor
        if not bias:
            return {}
        strides = [0, bias.strides[1] if sizes[1] > 1 else 0, *[0] * (len(sizes) - 2)]
        return {"BiasTensor": TensorDesc(DataType=bias.DataType, Sizes=sizes, Strides=strides)}

    @classmethod
    def before_activation(cls, p: Parameters, choice: None, values: Mapping[str, Value]) -> Value:
        product, bias = values[PRODUCT], values.get("BiasTensor")
        return product if bias is None else product + bias

    @property
    def fused(self) -> Fused | None:
        return self.FusedActivation

    def _by_library(self, xp: Any, inputs: Mapping[str, Any], into: Any) -> Any:
        """On a GPU; None where no library does it. It may be made in the array `into`."""
        made_type = numpy_type(self.InputTensor.DataType) if self.FusedActivation is None else FLOAT32
        made = self._library_product(xp, inputs, inputs["BiasTensor"] if self.BiasTensor else None, made_type, into)
        if made is not None:
            Activation(self.FusedActivation).apply(xp, made)
        return made

    def _is_packed(self) -> bool:
        """Whether the product that a GPU ends is one of packed rows. Of halves cuDNN would round it, or compute it in
        float32, and of much float32 cuBLAS is quicker."""
        x, windows = self.InputTensor, self._windows()
        if not self._is_counted():
            return False
        whole = is_product(windows, self.GroupCount)
        if x.DataType is DataType.FLOAT32:
            return not whole and self._is_large()
        is_for_cublas = whole and math.prod(windows.positions) % QUICK_POSITIONS == 0  # as it lies
        return not is_for_cublas and not self._has_few()

    def _is_direct(self) -> bool:
        """Whether a kernel adds up what a GPU ends, without tensor cores. cuDNN computes such halves in float32."""
        if self.InputTensor.DataType is not DataType.FLOAT16 or is_product(self._windows(), self.GroupCount):
            return False
        return self._is_counted() and self._has_few()

    def _has_few(self) -> bool:
        """Few terms for few outputs."""
        return is_direct(self._windows(), self.FilterTensor.Sizes[0], self.GroupCount, self.FilterTensor.Sizes[1])

    def _is_counted(self) -> bool:
        """Whether our kernels, which go forward, have bits enough to count what they read."""
        x = self.InputTensor
        is_near_by = packing.is_near(x.Sizes, x.strides, x.DataType.bytes, leading=1)
        return not self.is_backward and is_near_by and packing.is_packed(self._windows())

    def _is_always_packed(self) -> bool:
        """Whether that is quicker than cuDNN also where there is no activation."""
        if not self._is_packed() or is_product(self._windows(), self.GroupCount):
            return False
        return self.FilterTensor.Sizes[1] % QUICK_CHANNELS > 0 or self._is_large()

    def _is_large(self) -> bool:
        """Enough for packed rows to be quicker than cuDNN."""
        data_type, (outputs, terms) = self.InputTensor.DataType, self._outputs_and_terms()
        positions = self.InputTensor.Sizes[0] * math.prod(self._windows().positions)
        many = outputs >= MANY_OUTPUTS[data_type] and terms >= MANY_TERMS[data_type]
        return many and positions >= MANY_POSITIONS

    def _outputs_and_terms(self) -> tuple[int, int]:
        """Of a group, and of a sum, forward."""
        outputs, *rest = self.FilterTensor.Sizes
        return outputs // self.GroupCount, math.prod(rest)

    def _library_product(self, xp: Any, inputs: Mapping[str, Any], bias: Any, made_type: Any, into: Any) -> Any:
        if xp.__name__ != "cupy":
            return None
        filters = xp.ascontiguousarray(self._filters(inputs))
        channels = self.implied_sizes("OutputTensor")[1]
        windows = self._windows()
        return convolution(
            xp, inputs["InputTensor"], filters, bias, windows, channels, made_type, into, backward=self.is_backward
        )

    def _by_products(self, xp: Any, inputs: Mapping[str, Any], made_type: Any, finish: Finish) -> Any:
        """By products of matrices."""
        x, filters = (
            xp.broadcast_to(computed(each), each.shape) for each in (inputs["InputTensor"], self._filters(inputs))
        )
        filters = xp.ascontiguousarray(filters)
        made = xp.empty((*self.implied_sizes("OutputTensor")[:2], *self.result_sizes()), made_type)
        if self.is_backward:
            spread = backward(xp, x, filters, self.GroupCount, self._windows())
            finish(spread)
            made[...] = spread
        else:
            forward(xp, x, filters, self.GroupCount, self._windows(), finish, made)
        return made

    def _finish(self, xp: Any, inputs: Mapping[str, Any]) -> Finish:
        bias = computed(inputs["BiasTensor"]) if self.BiasTensor else None
        activation = Activation(self.FusedActivation)

        def finish(results: Any) -> None:
            if bias is not None:
                results += bias
            activation.apply(xp, results)

        return finish

    def _filters(self, inputs: Mapping[str, Any]) -> Any:
        """As they lie over what they are moved over."""
        filters = inputs["FilterTensor"]
        if self.Mode is ConvolutionMode.CONVOLUTION:
            filters = filters[(..., *[slice(None, None, -1)] * (filters.ndim - 2))]
        return filters

    def _windows(self) -> Windows:
        return self.backward_windows() if self.is_backward else self.forward_windows()

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
