"""Maxima of windows, where they are, the way back, and the gradient.

Source: the DML_MAX_POOLING*_OPERATOR_DESC and DML_MAX_UNPOOLING_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import mul
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, maximum_over, position_over
from app.formula.values import Value, cast, quotient, remainder_of_truncation, where
from app.operators.accuracy import EXACT, SUM
from app.operators.indexing.updates import put_last
from app.operators.looks import look
from app.operators.operator import (
    InputTensorDesc,
    Operator,
    OptionalOutputTensorDesc,
    OutputTensorDesc,
    StatedOutputTensorDesc,
)
from app.operators.parameters import TensorParameters
from app.operators.pooling import maxima_on_gpu
from app.operators.pooling.averages import gradient_violations
from app.operators.pooling.maxima_on_gpu import Axis
from app.operators.pooling.windows import (
    AT_LEAST_1,
    DILATED_SIZES,
    ROUNDED,
    Dilated,
    DilatedPooling,
    OneInput,
    Pooling,
    WindowOperator,
    element_of,
)

PADDING = (
    "Padding takes no part in the maximum. A window that lies in the padding alone is -inf, or the least number of an "
    "integer type, and its index 0. DirectML's documentation does not say."
)
NAN = "A window that holds NaN is NaN, and its index that of the first NaN. DirectML's documentation does not say."


def maxima(operator: WindowOperator, p: TensorParameters, x: Operand) -> dict[str, Value]:
    """The maximum of each window, and where it is, if that is asked for."""
    at = coordinates(x.rank)
    spans = operator.spans(p, x.sizes[2:], at[2:])
    counts = [span.count for span in spans]
    element = element_of(x, at[:2], spans)
    made = {"OutputTensor": maximum_over(counts, element)}
    if p.has("OutputIndicesTensor"):
        place = position_over("first_maximum", counts, element)
        found: list[Value] = []
        for span in reversed(spans):
            found.insert(0, span.begin + remainder_of_truncation(place, span.count) * span.step)
            place = quotient(place, span.count)
        index = at[0]
        for along, size in zip([at[1], *found], x.sizes[1:], strict=True):
            index = index * size + along
        index = where(reduce(mul, counts) > 0, index, 0)
        made["OutputIndicesTensor"] = cast(index, p.out("OutputIndicesTensor").type)
    return made


class MaxPooling(Pooling, OneInput):
    """The maximum of each window."""

    Type: Literal["DML_OPERATOR_MAX_POOLING", "MAX_POOLING"]

    formula_text = "f(x) = maximum of the window"
    accuracy = EXACT
    support = SupportTable.of(
        "5_0 4-5 F32-16 I64-8 U64-8",
        "3_0 4-5 F32-16 I8 U8",
        "1_0 4-5 F32-16",
    )
    notes = (PADDING, NAN, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> dict[str, Value]:
        return maxima(self, p, x)


class _WithIndices(OneInput):
    """The fields that come before those of the window."""

    OutputIndicesTensor: OptionalOutputTensorDesc = None

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.UINT32 if name == "OutputIndicesTensor" else self.InputTensor.DataType


class MaxPooling1(Pooling, _WithIndices):
    """The maximum of each window, and its index in the input."""

    Type: Literal["DML_OPERATOR_MAX_POOLING1", "MAX_POOLING1"]

    formula_text = "f(x) = maximum of the window, and the index of the first such element in the whole input, row-major"
    accuracy = EXACT
    same_ranks = (("InputTensor", "OutputTensor", "OutputIndicesTensor"),)
    support = SupportTable.of(
        "5_0 4-5 F32-16 I64-8 U64-8, OutputIndicesTensor U64-32",
        "3_0 4-5 F32-16 I8 U8, OutputIndicesTensor U32",
        "2_0 4-5 F32-16, OutputIndicesTensor U32",
    )
    notes = (PADDING, NAN, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> dict[str, Value]:
        return maxima(self, p, x)


class MaxPooling2(DilatedPooling, _WithIndices):
    """The maximum of each dilated window, and its index in the input."""

    Type: Literal["DML_OPERATOR_MAX_POOLING2", "MAX_POOLING2"]

    formula_text = MaxPooling1.formula_text
    accuracy = EXACT
    same_ranks = (("InputTensor", "OutputTensor", "OutputIndicesTensor"),)
    support = SupportTable.of(
        "5_0 4-5 F32-16 I64-8 U64-8, OutputIndicesTensor U64-32",
        "3_0 4-5 F32-16 I8 U8, OutputIndicesTensor U32",
        "2_1 4-5 F32-16, OutputIndicesTensor U32",
    )
    notes = (PADDING, NAN, DILATED_SIZES, AT_LEAST_1, ROUNDED)

    def formula(self, p: TensorParameters, x: Operand) -> dict[str, Value]:
        return maxima(self, p, x)


class MaxUnpooling(Operator):
    """Elements put back to where MAX_POOLING1 found them, among zeros."""

    Type: Literal["DML_OPERATOR_MAX_UNPOOLING", "MAX_UNPOOLING"]
    InputTensor: InputTensorDesc
    IndicesTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc

    only_queues = True
    formula_text = "f(x, i) = 0 everywhere, but x at the index i in the whole output, row-major"
    accuracy = EXACT
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = (("InputTensor", "IndicesTensor"),)
    support = SupportTable.of(
        "5_0 4 F32-16 I64-8 U64-8, IndicesTensor U64-32",
        "3_0 4 F32-16, IndicesTensor U32",
    )
    example: ClassVar[Mapping[str, Any]] = {"OutputTensor": {"Sizes": [1, 1, 4, 6]}}
    notes = (
        "Of elements with the same index the last one stays, row-major in the input; an index outside the output is "
        "passed over. DirectML's documentation does not say.",
        "It is there from feature level 3_0 on, as its page has it; the feature level history has it from 2_0 on.",
    )

    def implied_sizes(self, name: str) -> None:
        """Any."""

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, indices = inputs["InputTensor"].reshape(-1), inputs["IndicesTensor"].reshape(-1)
        made = xp.zeros(self.OutputTensor.Sizes, x.dtype)
        if xp is np:  # which assigns in order, so that the last of those with one index stays
            inside = indices < made.size
            if not inside.all():
                x, indices = x[inside], indices[inside]
            made.reshape(-1)[indices] = x
            return {"OutputTensor": made}
        cells = xp.minimum(indices, made.size).astype(np.int64)
        put_last(xp, made.reshape(-1, 1), cells, xp.ascontiguousarray(x).reshape(-1, 1))
        return {"OutputTensor": made}


class _Gradients(Operator):
    """The fields that come before those of the window."""

    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    OutputGradientTensor: OutputTensorDesc = None


class MaxPoolingGrad(Dilated, _Gradients):
    """The gradient of MAX_POOLING2's input, of that of its output."""

    Type: Literal["DML_OPERATOR_MAX_POOLING_GRAD", "MAX_POOLING_GRAD"]

    makes_in = True
    formula_text = "f(x, dy) = sum of dy over the windows whose first maximum the element of x is"
    accuracy = SUM
    same_types = (("InputTensor", "InputGradientTensor", "OutputGradientTensor"),)
    same_ranks = (("InputTensor", "InputGradientTensor", "OutputGradientTensor"),)
    support = SupportTable.of(
        "4_0 4-5 F32-16",
        "3_0 4 F32-16",
    )
    example: ClassVar[Mapping[str, Any]] = {"InputTensor": {"Sizes": [1, 1, 3, 4]}}
    notes = (
        "The element with the lowest index wins a tie. NaN is greater than all numbers.",
        "A window that lies in the padding alone has no maximum, and its gradient goes nowhere.",
        "Sums are made in float64 and rounded once.",
        DILATED_SIZES,
        AT_LEAST_1,
        ROUNDED,
    )

    def implied_sizes(self, name: str) -> list[int]:
        return self.InputTensor.Sizes

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(super().rules(level))
        yield from wrong or gradient_violations(self, self.InputGradientTensor.Sizes)

    def most_working_bytes(self, elements: int) -> int:
        planes = (math.prod(each.Sizes[2:]) for each in (self.InputTensor, self.InputGradientTensor))
        return super().most_working_bytes(elements) + _SCRATCH_BYTES * min(elements, max(_PIECE, *planes))

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x, dy = inputs["InputTensor"], inputs["InputGradientTensor"]
        if xp.__name__ == "cupy":
            window = zip(self.WindowSize, self.Strides, self.Dilations, self.StartPadding, strict=True)
            sizes = zip(window, x.shape[2:], dy.shape[2:], strict=True)
            axes = [Axis(*attributes, size, windows) for attributes, size, windows in sizes]
            quick = maxima_on_gpu.gradient(xp, x, dy, axes, into["OutputGradientTensor"] if into else None)
            if quick is not None:
                return {"OutputGradientTensor": quick}
        made = xp.empty(x.shape, x.dtype)
        spans = [_Spans.of(self, axis, x.shape[axis + 2], dy.shape[axis + 2]) for axis in range(x.ndim - 2)]
        planes = x.shape[0] * x.shape[1]
        plane, windows = math.prod(x.shape[2:]), math.prod(dy.shape[2:])
        at_once = max(_PIECE // max(plane, windows), 1)
        x, dy = x.reshape(planes, *x.shape[2:]), dy.reshape(planes, windows)
        rows = made.reshape(planes, plane)
        for begin in range(0, planes, at_once):
            look()
            piece = slice(begin, begin + at_once)
            rows[piece] = _scattered(xp, x[piece], dy[piece], spans)
        return {"OutputGradientTensor": made}


_PIECE = 1 << 20
"""Elements of scratch at a time, unless a plane has more."""

_SCRATCH_BYTES = 80
"""Of each of them, most of it for indices of 8 bytes."""


class _Spans(NamedTuple):
    """Along one dimension, the parts of all windows that lie inside the tensor; arrays of NumPy."""

    begins: Any
    step: int
    counts: Any

    @classmethod
    def of(cls, operator: Dilated, axis: int, size: int, windows: int) -> "_Spans":
        step, window = operator.Dilations[axis], operator.WindowSize[axis]
        bases = np.arange(windows) * operator.Strides[axis] - operator.StartPadding[axis]
        firsts = -(np.minimum(bases, 0) // step)
        ends = np.minimum(-((bases - size) // step), window)
        return cls(bases + firsts * step, step, np.maximum(ends - firsts, 0))


def _scattered(xp: Any, x: Any, dy: Any, spans: list[_Spans]) -> Any:
    """The gradient of some planes. Maxima are found along one dimension after the other, the last first: the first of
    the largest rows has the first maximum."""
    values, planes, plane = x.astype(np.float32), x.shape[0], math.prod(x.shape[1:])
    index = xp.zeros((1,) * x.ndim, np.int64)
    stride = 1
    shape: Any
    for axis, span in reversed(list(enumerate(spans, 1))):
        size = values.shape[axis]
        moved = xp.moveaxis(values, axis, -1)
        best, place = _maxima(xp, xp.ascontiguousarray(moved).reshape(-1, size), span)
        shape = (*moved.shape[:-1], len(span.counts))
        values = xp.moveaxis(best.reshape(shape), -1, axis)
        place = xp.moveaxis(place.reshape(shape), -1, axis)
        before = xp.take_along_axis(index, place, axis) if axis < len(spans) else index
        index = before + place * stride
        stride *= size
    is_window = xp.ones((1,) * len(spans), np.bool_)
    for axis, span in enumerate(spans):
        shape = [1] * len(spans)
        shape[axis] = -1
        is_window = is_window & xp.asarray(span.counts > 0).reshape(shape)
    weights = xp.where(is_window.reshape(1, -1), dy, 0).astype(np.float64)
    index = index.reshape(planes, -1) + xp.arange(planes)[:, None] * plane
    return xp.bincount(index.reshape(-1), weights.reshape(-1), planes * plane).reshape(planes, plane)


def _maxima(xp: Any, values: Any, span: _Spans) -> tuple[Any, Any]:
    """The maximum of each window along the last dimension, and the coordinate of the first, some coordinate of the
    tensor where the window is empty."""
    rows, size = values.shape
    begins, counts = xp.asarray(span.begins), xp.asarray(span.counts)
    best = xp.full((rows, len(span.counts)), -np.inf, values.dtype)
    place = xp.zeros(best.shape, np.int64) + xp.clip(begins, 0, size - 1)
    nothing = xp.asarray(-np.inf, values.dtype)
    most = int(span.counts.max())
    at_once = max(_PIECE // best.size, 1)
    for first in range(0, most, at_once):
        look()
        steps = xp.arange(first, min(first + at_once, most))
        at = xp.clip(begins[:, None] + steps * span.step, 0, size - 1)
        taken = xp.where(steps < counts[:, None], values[:, at], nothing)
        found = taken.argmax(-1)
        value = xp.take_along_axis(taken, found[..., None], -1)[..., 0]
        better = (value > best) | ((value != value) & (best == best))
        place = xp.where(better, begins + (first + found) * span.step, place)
        best = xp.where(better, value, best)
    return best, place
