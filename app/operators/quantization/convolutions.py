"""Convolutions of integers.

Source: the DML_CONVOLUTION_INTEGER_OPERATOR_DESC and DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC pages of DirectML's
reference.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import Number, Value, widen
from app.memory.arrays import numpy_type
from app.operators import blas, packing
from app.operators.accuracy import EXACT, NEAREST
from app.operators.convolution import attributes
from app.operators.convolution.direct import direct, is_direct
from app.operators.convolution.on_gpu import over_output, product_of_windows, steps_of_positions
from app.operators.convolution.windows import Finish, forward
from app.operators.element_wise.quantization import SCALE_0, TIES, quantized
from app.operators.endings import PRODUCT, Ended
from app.operators.operator import Count, InputTensorDesc, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.parameters import Parameters
from app.operators.quantization import integers, signed
from app.operators.quantization.signed import COLUMN_SUMS, ROW_SUMS, Side, Sides

_ARRAYS = ("Strides", "Dilations", "StartPadding", "EndPadding")
_EXAMPLE: dict[str, Any] = {"InputTensor": {"Sizes": [1, 1, 3, 4]}, "FilterTensor": {"Sizes": [1, 1, 2, 2]}}
_ONE = {"Sizes": [1, 1, 1, 1]}

_SCALED_BY = ("InputScaleTensor", "FilterScaleTensor", "BiasTensor", "OutputScaleTensor", "OutputZeroPointTensor")
"""What sums become results with."""


class _Convolutions(attributes.Spatial, Ended):
    """Forward, of cross-correlation."""

    if TYPE_CHECKING:  # they stand where the structures of DirectML have them, each in its own order
        InputZeroPointTensor: TensorDesc | None
        FilterZeroPointTensor: TensorDesc | None

    only_queues = True
    same_sizes = ()
    sizes_from = ("InputTensor", "FilterTensor", *_ARRAYS)
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"DimensionCount": _ARRAYS}

    def implied_sizes(self, name: str) -> list[int]:
        return [self.InputTensor.Sizes[0], self.FilterTensor.Sizes[0], *self.forward_sizes()]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        tensors, channels = self.tensors(), self.FilterTensor.Sizes[0]
        wrong = list(self.array_violations(*_ARRAYS))
        yield from wrong or self.channel_violations(tensors.get("BiasTensor"))
        for name in ("InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor"):
            yield from integers.single_violations(name, tensors.get(name))
        for name in ("FilterScaleTensor", "FilterZeroPointTensor"):
            yield from integers.channel_violations(name, tensors.get(name), "FilterTensor", channels)

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield {"InputTensor": 0, "OutputTensor": 0}

    def terms(self) -> int:
        """How many products a sum is of."""
        return math.prod(self.FilterTensor.Sizes[1:])

    def multiplications(self) -> int:
        return math.prod(self.implied_sizes("OutputTensor")) * self.terms()

    def is_ended_apart(self) -> bool:
        if not signed.are_multiplied(self.choice(), self.terms(), self.implied_sizes("OutputTensor")):
            return False
        is_near = packing.is_near(self.InputTensor.Sizes, self.InputTensor.strides, 1, leading=1)
        return is_near and packing.is_packed(self.forward_windows())

    def choice(self) -> Sides:
        """The filters' rows are the left matrix, and what they meet the right one. Sums by `direct` are corrected."""
        if self._is_direct():
            return Sides(Side(DataType.INT8, None), Side(DataType.INT8, None), self.output_type())
        left = Side.of(self.FilterTensor, "FilterZeroPointTensor", self.FilterZeroPointTensor)
        right = Side.of(self.InputTensor, "InputZeroPointTensor", self.InputZeroPointTensor)
        return Sides(left, right, self.output_type())

    def output_type(self) -> DataType:
        """Of OutputTensor."""
        return DataType.INT32

    def ending_numbers(self) -> dict[str, Number]:
        return {signed.TERMS: self.terms()}

    def _is_direct(self) -> bool:
        outputs, depth = self.FilterTensor.Sizes[:2]
        return is_direct(self.forward_windows(), outputs, self.GroupCount, depth)

    def made(self, sizes: list[int]) -> dict[str, TensorDesc]:
        if self._is_direct():
            return {PRODUCT: TensorDesc(DataType=DataType.INT32, Sizes=sizes)}
        product = steps_of_positions(sizes, blas.BYTES_COLUMNS)
        # Of several groups there is one for each channel, of one group one for all.
        columns = steps_of_positions(sizes, blas.BYTES_COLUMNS, of_channels=self.GroupCount > 1)
        rows = [0, int(sizes[1] > 1), *[0] * (len(sizes) - 2)]
        return signed.described(self.choice(), sizes, product, rows, columns)

    def product(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, filters, sides = inputs["InputTensor"], inputs["FilterTensor"], self.choice()
        if self._is_direct():
            zeros = inputs.get("InputZeroPointTensor"), inputs.get("FilterZeroPointTensor")
            return {PRODUCT: direct(xp, x, filters, self.forward_windows(), zeros)}
        groups, each = self.GroupCount, len(filters) // self.GroupCount
        rows, of_rows = packing.rows_of(
            xp, filters.reshape(groups, each, -1), signed=True, with_sums=sides.right.is_moved
        )
        columns = product_of_windows(
            *(xp, x, rows, self.forward_windows(), partial(blas.product_of_bytes, xp)),
            signed=True,
            around=inputs.get("InputZeroPointTensor"),
            multiple=blas.BYTES_COLUMNS,
            with_sums=sides.left.is_moved,
        )
        sizes = self.implied_sizes("OutputTensor")
        made = {PRODUCT: over_output(xp, columns.rows, sizes)}
        if of_rows is not None:
            made[ROW_SUMS] = xp.broadcast_to(of_rows.reshape(-1, *[1] * (x.ndim - 2)), sizes)
        if columns.sums is not None:
            sums = columns.sums
            if 1 not in (groups, each):
                sums = integers.spread(xp, sums, (each * len(sums), *sums.shape[1:]))
            made[COLUMN_SUMS] = over_output(xp, sums, sizes)
        return made

    def added(self, sizes: list[int]) -> dict[str, TensorDesc]:
        tensors, sides = self.tensors(), self.choice()
        names = [name for name in (sides.right.zero, sides.left.zero, *_SCALED_BY) if name and tensors.get(name)]
        return {name: integers.over_channels(tensors[name], sizes) for name in names}

    @classmethod
    def before_activation(cls, p: Parameters, choice: Sides, values: Mapping[str, Value]) -> Value:
        return signed.corrected(p, choice, values)

    def convolve(self, xp: Any, inputs: Mapping[str, Any], dtype: str, finish: Finish, made: Any) -> None:
        """Into `made`, sums of products in the float type `dtype`, which `finish` makes what is stored."""
        x, filters = inputs["InputTensor"], inputs["FilterTensor"]
        zero = inputs.get("InputZeroPointTensor")
        moved = integers.difference(xp, x, None if zero is None else zero.reshape(()), "int16")
        moved = xp.broadcast_to(moved, x.shape)
        weights = integers.difference(xp, filters, _each_filter(inputs.get("FilterZeroPointTensor"), x.ndim), dtype)
        weights = xp.ascontiguousarray(xp.broadcast_to(weights, filters.shape))
        forward(xp, moved, weights, self.GroupCount, self.forward_windows(), finish, made)


def _each_filter(x: Any, rank: int) -> Any:
    """One element for each filter, along its first dimension; None stays None."""
    return None if x is None else x.reshape(-1, *[1] * (rank - 1))


def _each_channel(x: Any, rank: int) -> Any:
    """One element for each channel, along the second dimension."""
    return x.reshape(1, -1, *[1] * (rank - 2))


class ConvolutionInteger(_Convolutions):
    """A filter of 8-bit integers moved over a tensor of such, as they are."""

    Type: Literal["DML_OPERATOR_CONVOLUTION_INTEGER", "CONVOLUTION_INTEGER"]
    InputTensor: InputTensorDesc
    InputZeroPointTensor: OptionalInputTensorDesc = None
    FilterTensor: InputTensorDesc
    FilterZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    DimensionCount: Count = None
    Strides: attributes.FilterStrides
    Dilations: attributes.FilterDilations
    StartPadding: attributes.PaddingBefore
    EndPadding: attributes.PaddingBehind
    GroupCount: attributes.Groups

    formula_text = (
        "y[n, o, p] = sum over c, k of (x[n, g * Cg + c, p * Strides + k * Dilations - StartPadding] - InputZeroPoint) "
        "* (w[o, c, k] - FilterZeroPoint[o])"
    )
    accuracy = EXACT
    same_types = (("InputTensor", "InputZeroPointTensor"), ("FilterTensor", "FilterZeroPointTensor"))
    same_ranks = (("InputZeroPointTensor", "FilterZeroPointTensor"), ("InputTensor", "FilterTensor", "OutputTensor"))
    support = SupportTable.of(
        "4_0 3-4 I8 U8, InputZeroPointTensor FilterZeroPointTensor 1-4 I8 U8, OutputTensor I32",
        "2_1 4 I8 U8, OutputTensor I32",
    )
    example: ClassVar[Mapping[str, Any]] = {
        **_EXAMPLE,
        "InputZeroPointTensor": _ONE,
        "FilterZeroPointTensor": _ONE,
    }
    notes = (
        "Sums of products are exact.",
        integers.OVERFLOW,
        integers.PADDING,
        attributes.SPATIAL,
        attributes.NO_STEPS,
    )

    def is_ended_apart(self) -> bool:
        return super().is_ended_apart() and not self._is_direct()

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if xp.__name__ == "cupy" and super().is_ended_apart() and self._is_direct():
            return {"OutputTensor": self.product(xp, inputs)[PRODUCT]}  # of which nothing is left to do
        overflows = self.terms() * integers.LARGEST >= 1 << 31

        def finish(results: Any) -> None:
            if overflows:
                integers.wrap(xp, results)

        made = xp.empty(self.implied_sizes("OutputTensor"), "int32")
        self.convolve(xp, inputs, integers.float_type(self.terms()), finish, made)
        return {"OutputTensor": made}


class QuantizedLinearConvolution(_Convolutions):
    """A quantized filter moved over a quantized tensor, quantized."""

    Type: Literal["DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION", "QUANTIZED_LINEAR_CONVOLUTION"]
    InputTensor: InputTensorDesc
    InputScaleTensor: InputTensorDesc
    InputZeroPointTensor: OptionalInputTensorDesc = None
    FilterTensor: InputTensorDesc
    FilterScaleTensor: InputTensorDesc
    FilterZeroPointTensor: OptionalInputTensorDesc = None
    BiasTensor: OptionalInputTensorDesc = None
    OutputScaleTensor: InputTensorDesc
    OutputZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    DimensionCount: Count = None
    Strides: attributes.FilterStrides
    Dilations: attributes.FilterDilations
    StartPadding: attributes.PaddingBefore
    EndPadding: attributes.PaddingBehind
    GroupCount: attributes.Groups

    formula_text = (
        "y[n, o, p] = clamp(round(s / OutputScale) + OutputZeroPoint, least of the type, greatest of the type), s = "
        "InputScale * FilterScale[o] * (bias[o] + sum over c, k of (x[n, g * Cg + c, p * Strides + k * Dilations - "
        "StartPadding] - InputZeroPoint) * (w[o, c, k] - FilterZeroPoint[o]))"
    )
    accuracy = NEAREST
    same_types = (
        ("OutputZeroPointTensor", "OutputTensor"),
        ("InputTensor", "InputZeroPointTensor"),
        ("FilterTensor", "FilterZeroPointTensor"),
    )
    same_ranks = (("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor"),)
    support = SupportTable.of(
        "5_2 3-4 I8 U8, InputScaleTensor FilterScaleTensor OutputScaleTensor 1-4 F32, InputZeroPointTensor "
        "FilterZeroPointTensor OutputZeroPointTensor 1-4 I8 U8, BiasTensor I32",
        "4_0 3-4 I8 U8, InputScaleTensor OutputScaleTensor 1-4 F32, FilterScaleTensor F32, InputZeroPointTensor "
        "FilterZeroPointTensor OutputZeroPointTensor 1-4 I8 U8, BiasTensor I32",
        "2_1 4 I8 U8, InputScaleTensor FilterScaleTensor OutputScaleTensor F32, BiasTensor I32",
    )
    example: ClassVar[Mapping[str, Any]] = {
        **_EXAMPLE,
        "BiasTensor": _ONE,
        **{f"{of}{what}Tensor": _ONE for of in ("Input", "Filter", "Output") for what in ("Scale", "ZeroPoint")},
    }
    notes = (
        integers.EXACT,
        integers.PADDING,
        "BiasTensor has the scale InputScale * FilterScale, and no zero point. DirectML's documentation does not say.",
        TIES,
        SCALE_0,
        attributes.SPATIAL,
        attributes.NO_STEPS,
        "OutputTensor left out has the type of OutputZeroPointTensor, or of InputTensor.",
    )

    def output_type(self) -> DataType:
        return (self.OutputTensor or self.OutputZeroPointTensor or self.InputTensor).DataType

    @classmethod
    def before_activation(cls, p: Parameters, choice: Sides, values: Mapping[str, Value]) -> Value:
        sums, bias = widen(super().before_activation(p, choice, values)), values.get("BiasTensor")
        scale = widen(values["InputScaleTensor"]) * widen(values["FilterScaleTensor"])
        scaled = (sums if bias is None else sums + widen(bias)) * scale
        quotient = scaled / widen(values["OutputScaleTensor"])
        return quantized(quotient, values.get("OutputZeroPointTensor"), choice.output)

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        data_type = self.output_type()
        rank = self.InputTensor.rank
        scale = inputs["InputScaleTensor"].reshape(()).astype("float64") * _each_channel(
            inputs["FilterScaleTensor"].astype("float64"), rank
        )
        output = inputs["OutputScaleTensor"].reshape(()).astype("float64")
        zero = inputs["OutputZeroPointTensor"].reshape(()) if self.OutputZeroPointTensor else None

        def finish(results: Any) -> None:
            if self.BiasTensor:
                results += inputs["BiasTensor"]
            results *= scale
            results /= output
            integers.saturated(xp, results, zero, data_type)

        made = xp.empty(self.implied_sizes("OutputTensor"), numpy_type(data_type))
        self.convolve(xp, inputs, "float64", finish, made)
        return {"OutputTensor": made}
