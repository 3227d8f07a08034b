"""Operators that are a few of NumPy's calls on whole arrays: copies of parts, and totals of windows and axes.

What their formulas say element by element, without a step of its own for each.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from app.contract.constants import DataType, PaddingMode, ReduceFunction
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.convolution.windows import Windows
from app.operators.data_movement.joins import Join
from app.operators.data_movement.padding import Padding1
from app.operators.data_movement.slices import Slice1
from app.operators.operator import Operator
from app.operators.pooling.averages import AveragePooling, AveragePooling1
from app.operators.pooling.maxima import MaxPooling
from app.operators.pooling.windows import Pooling
from app.operators.reduction.reductions import Reduce
from app.programs.dispatchable import Dispatchable

MOST_ELEMENTS = 1 << 22
"""Of all tensors: what is larger is worth several threads, and is done by coordinates."""

FEW_MEETINGS = 64
"""Calls that a pooling may take, some microseconds each."""

LARGE_WINDOW = 16
"""Elements of which the loops of a pooling, which are short, are slower than that."""

MOST_COUNTED = 1 << 18
"""Positions along a dimension of averages, for each of which a kernel keeps a number of 8 bytes."""

LARGE_TOTAL = 1 << 14
"""Elements that a reduction has, which loops add up in float64 in a third of the time that NumPy takes to make them."""

Work: TypeAlias = Callable[[Sequence[Array], Array], object]
"""Makes the output, whose memory is no input's. What it returns is nothing to anybody."""

_OPERATORS = (Slice1, Join, Padding1, Reduce, AveragePooling, AveragePooling1, MaxPooling)


def array_kernel(compiled: Dispatchable, *, has_loops: bool, is_of_run: bool) -> "ArrayKernel | None":
    """For the operator, if it is one of these; where loops are part of a run, which needs no Python from kernel to
    kernel, only if it is one that they are slower at."""
    if not isinstance(compiled, CompiledOperator) or len(compiled.outputs) != 1:
        return None
    operator = compiled.operator
    if not isinstance(operator, _OPERATORS):
        return None
    if has_loops and _is_large_total(operator):
        return None
    if is_of_run and not (isinstance(operator, Pooling) and math.prod(operator.WindowSize) > LARGE_WINDOW):
        return None
    tensors = [*compiled.inputs.values(), *compiled.outputs.values()]
    if sum(desc.elements for desc in tensors) > MOST_ELEMENTS or any(desc.DataType.bits < 8 for desc in tensors):
        return None
    work = _work(compiled, operator)
    return ArrayKernel(compiled, work) if work else None


class ArrayKernel:
    """Implements `Kernel`."""

    def __init__(self, compiled: Dispatchable, work: Work) -> None:
        self._inputs = [Tensor(compiled, name, desc) for name, desc in compiled.inputs.items()]
        ((name, desc),) = compiled.outputs.items()
        self._output = Tensor(compiled, name, desc)
        self._elements = compiled.elements
        self._work = work

    @property
    def runs_inline(self) -> bool:
        return self._elements <= 1 << 16

    @property
    def kept_bytes(self) -> int:
        return sum(each.nbytes for each in self._work.counts) if isinstance(self._work, _Averages) else 0

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if cancelled():
            raise Cancelled
        output = self._output.view(outputs[0])
        given = [tensor.view(buffer) for tensor, buffer in zip(self._inputs, inputs, strict=True)]
        given = [each.copy() if np.may_share_memory(each, output) else each for each in given]
        self._work(given, output)
        return RAN


def _work(compiled: CompiledOperator, operator: Operator) -> Work | None:
    match operator:
        case Slice1():
            return _slice(operator, compiled.outputs["OutputTensor"].Sizes)
        case Join():
            return _join(operator)
        case Padding1() if operator.PaddingMode is not PaddingMode.CONSTANT:
            return _mirrored(operator)
        case Padding1():
            return _padding(operator, compiled.stored_types["OutputTensor"], compiled.numbers["PaddingValue"])
        case Reduce():
            return _reduce(operator)
        case AveragePooling() | AveragePooling1() | MaxPooling() if operator.InputTensor.DataType is DataType.FLOAT32:
            return _pooling(operator, compiled.outputs["OutputTensor"].Sizes[2:])
    return None


def _slice(operator: Slice1, sizes: Sequence[int]) -> Work:
    windows = zip(
        *(operator.InputWindowOffsets, operator.InputWindowSizes, operator.InputWindowStrides, sizes), strict=True
    )
    parts = []
    for offset, window, stride, size in windows:
        start = offset if stride > 0 else offset + window - 1
        stop = start + (size - 1) * stride + (1 if stride > 0 else -1)
        parts.append(slice(start, stop if stop >= 0 else None, stride))
    part = tuple(parts)

    def work(inputs: Sequence[Array], output: Array) -> None:
        output[...] = inputs[0][part]

    return work


def _join(operator: Join) -> Work:
    ends = list(itertools.accumulate(each.Sizes[operator.Axis] for each in operator.InputTensors))
    before = (slice(None),) * operator.Axis
    parts = [(*before, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]

    def work(inputs: Sequence[Array], output: Array) -> None:
        for part, each in zip(parts, inputs, strict=True):
            output[part] = each

    return work


def _padding(operator: Padding1, stored: DataType, value: Any) -> Work | None:
    if value != 0 or math.copysign(1, value) < 0:
        return None  # whose bits the formula makes
    part = tuple(
        slice(start, start + size)
        for start, size in zip(operator.StartPadding, operator.InputTensor.Sizes, strict=True)
    )
    beside = [
        (*part[:axis], each)
        for axis, (along, end) in enumerate(zip(part, operator.EndPadding, strict=True))
        for each, count in ((slice(along.start), along.start), (slice(along.stop, None), end))
        if count
    ]

    def work(inputs: Sequence[Array], output: Array) -> None:
        for each in beside:
            output[each] = 0
        output[part] = inputs[0]

    return work


def _mirrored(operator: Padding1) -> Work | None:
    """One dimension after the other, each from what is there of those before. WRAP is left to the formula, and what is
    beyond a whole mirror image."""
    sizes, mode = operator.InputTensor.Sizes, operator.PaddingMode
    ends = list(zip(operator.StartPadding, operator.EndPadding, sizes, strict=True))
    step = 1 if mode is PaddingMode.REFLECTION else 0
    if mode is PaddingMode.WRAP:
        return None
    if mode is not PaddingMode.EDGE and any(max(before, after) > size - step for before, after, size in ends):
        return None
    whole = tuple(slice(before, before + size) for before, _, size in ends)

    def work(inputs: Sequence[Array], output: Array) -> None:
        output[whole] = inputs[0]
        for axis, (before, after, size) in enumerate(ends):
            made = np.moveaxis(output[(*[slice(None)] * axis, slice(None), *whole[axis + 1 :])], axis, 0)
            end = before + size
            if mode is PaddingMode.EDGE:
                made[:before], made[end:] = made[before : before + 1], made[end - 1 : end]
                continue
            made[:before] = made[before + step :][:before][::-1]
            made[end:] = made[: end - step][::-1][:after]

    return work


def _is_large_total(operator: Operator) -> bool:
    return isinstance(operator, Reduce) and operator.InputTensor.elements >= LARGE_TOTAL


def _reduce(operator: Reduce) -> Work | None:
    if operator.InputTensor.DataType is not DataType.FLOAT32:
        return None
    axes = tuple(operator.Axes)
    count = math.prod(operator.InputTensor.Sizes[axis] for axis in axes)
    match operator.Function:
        case ReduceFunction.MAX:
            return lambda inputs, output: np.maximum.reduce(inputs[0], axes, out=output, keepdims=True)
        case ReduceFunction.MIN:
            return lambda inputs, output: np.minimum.reduce(inputs[0], axes, out=output, keepdims=True)
        case ReduceFunction.SUM | ReduceFunction.AVERAGE:
            divisor = 1 if operator.Function is ReduceFunction.SUM else count

            def work(inputs: Sequence[Array], output: Array) -> None:
                with np.errstate(all="ignore"):
                    output[...] = np.add.reduce(inputs[0], axes, np.float64, keepdims=True) / divisor

            return work
    return None


def _pooling(operator: AveragePooling | AveragePooling1 | MaxPooling, positions: Sequence[int]) -> Work | None:
    """Window element by window element at all positions at once; along a dimension with fewer positions than elements,
    position by position."""
    windows = operator.windows(operator.InputTensor.Sizes[2:], positions)
    if math.prod(map(min, zip(positions, operator.WindowSize, strict=True))) > FEW_MEETINGS:
        return None
    meetings: list[tuple[Any, Any, tuple[int, ...]]] = []
    for _, places, elements in windows.meetings([range(count) for count in positions]):
        axes = tuple(2 + axis for axis, place in enumerate(places) if isinstance(place, int))
        kept = tuple(slice(place, place + 1) if isinstance(place, int) else place for place in places)
        meetings.append(((..., *kept), (..., *elements), axes))
    if isinstance(operator, MaxPooling):

        def largest(inputs: Sequence[Array], output: Array) -> None:
            output[...] = -np.inf
            for there, here, axes in meetings:
                met = inputs[0][here].max(axes, keepdims=True) if axes else inputs[0][here]
                part = output[there]
                np.maximum(part, met, out=part)

        return largest
    if not operator.IncludePadding and max(positions) > MOST_COUNTED:
        return None
    counts = [] if operator.IncludePadding else [*counts_inside(windows)]
    return _Averages(meetings, counts, float(math.prod(windows.extents)))


@dataclass(frozen=True, eq=False)
class _Averages:
    """Work: totals where windows and the tensor meet, divided by what is inside along each dimension, or by `whole`."""

    meetings: Sequence[tuple[Any, Any, tuple[int, ...]]]
    counts: Sequence[Array]
    whole: float

    def __call__(self, inputs: Sequence[Array], output: Array) -> None:
        total = np.zeros(output.shape)
        with np.errstate(all="ignore"):
            for there, here, axes in self.meetings:
                x = inputs[0][here]
                total[there] += np.add.reduce(x, axes, np.float64, keepdims=True) if axes else x
            output[...] = total / (_divisors(self.counts) if self.counts else self.whole)


def _divisors(counts: Sequence[Array]) -> Array:
    """What the totals at all positions are divided by, of what is inside along each dimension. There are as many as
    there are positions, so they are made for each dispatch, and not kept."""
    made: Array = np.ones(())
    for count in counts:
        made = made[..., None] * count
    return np.maximum(made, 1)


def counts_inside(windows: Windows | Space) -> Iterator[Array]:
    """Along each dimension, how many elements of a window are inside the tensor at each position."""
    along = zip(
        windows.positions,
        windows.sizes,
        windows.extents,
        windows.strides,
        windows.dilations,
        windows.starts,
        strict=True,
    )
    for count, size, extent, stride, dilation, start in along:
        first = np.arange(count) * stride - start
        begin = np.maximum(-(first // dilation), 0)
        end = np.minimum((size - 1 - first) // dilation + 1, extent)
        yield np.maximum(end - begin, 0)
