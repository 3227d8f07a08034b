"""AVERAGE_POOLING_GRAD and FOLD on the CPU, by loops that LLVM compiled: windows added up where they lie.

Their formulas look from each element for the windows that it is in, which divides by strides for each. Here rows of
windows are added to rows of elements, a window's element after the other, so that sums are made in the same order.
"""

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel, portions
from app.devices.cpu.arrays import counts_inside
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import window_sums
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.lowering import lower_part
from app.devices.cpu.llvm.team import Team
from app.formula.values import FLOAT32, FLOAT64, Input, widen
from app.memory.addresses import LINE, whole_lines
from app.operators.compiled import CompiledOperator
from app.operators.convolution.windows import Windows
from app.operators.data_movement.windows import Fold
from app.operators.pooling.averages import AveragePoolingGrad

MOST_MEETINGS = 1 << 18
"""Rows of the tensor times those of a window, which tables are made of."""

LONGEST_ROW = 1 << 16
"""Elements of a row, of which each thread has some in memory of its own."""

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

WORK = 4
"""Of a term, and of an element."""

APART = 4 * LINE
"""Bytes between what several threads write again and again: processors fetch the lines beside one, too."""


class _Sums(NamedTuple):
    """What is added up: windows over the output, and how they lie in the source."""

    windows: Windows
    planes: int
    row_step: int
    """Bytes of the source from one row of windows to the next."""
    tap_steps: Sequence[int]
    """The same from one element of a window to the next, along each dimension."""
    plane_step: int
    include_padding: bool | None
    """Of averages."""


def window_sums_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is one that the loops are for, of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, AveragePoolingGrad | Fold):
        return None
    (x,), (made,) = compiled.inputs.values(), compiled.outputs.values()
    if not x.is_packed or not made.is_packed or x.DataType not in (DataType.FLOAT32, DataType.FLOAT16):
        return None
    sums = _of_gradient(operator) if isinstance(operator, AveragePoolingGrad) else _of_columns(operator)
    windows = sums.windows
    meetings = math.prod(windows.sizes[:-1]) * math.prod(windows.extents[:-1])
    if max(meetings, *windows.positions) > MOST_MEETINGS:
        return None
    if max(windows.sizes[-1], windows.positions[-1], windows.extents[-1]) > LONGEST_ROW:
        return None
    return _kernel(compiled, sums, x.DataType, team)


def _of_gradient(operator: AveragePoolingGrad) -> _Sums:
    planes, positions = math.prod(operator.InputGradientTensor.Sizes[:2]), operator.InputGradientTensor.Sizes[2:]
    size, sizes = operator.InputGradientTensor.DataType.bits // 8, operator.OutputGradientTensor.Sizes[2:]
    windows, step = operator.windows(sizes, positions), positions[-1] * size
    return _Sums(windows, planes, step, [0] * len(sizes), math.prod(positions) * size, operator.IncludePadding)


def _of_columns(operator: Fold) -> _Sums:
    *_, rows, columns = operator.InputTensor.Sizes
    image, size, extents = operator.OutputTensor.Sizes, operator.InputTensor.DataType.bits // 8, operator.WindowSizes
    reaches = [dilation * (extent - 1) for extent, dilation in zip(extents, operator.Dilations, strict=True)]
    padding = zip(operator.StartPadding, operator.EndPadding, strict=True)
    positions = [
        (along + sum(both) - reach - 1) // stride + 1
        for along, both, reach, stride in zip(image[2:], padding, reaches, operator.Strides, strict=True)
    ]
    windows = Windows(image[2:], positions, extents, operator.Strides, operator.Dilations, operator.StartPadding)
    taps = [columns * size * math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    return _Sums(windows, math.prod(image[:2]), positions[-1] * size, taps, rows // image[1] * columns * size, None)


def _kernel(compiled: CompiledOperator, sums: _Sums, stored: DataType, team: Team) -> CallsKernel | None:
    windows, is_average = sums.windows, sums.include_padding is not None
    size, length, stride = windows.sizes[-1], windows.positions[-1], windows.strides[-1]
    counts = _counts(sums)
    starts, offsets, factors = _rows(sums, counts)
    taps = taps_along(windows, falling=is_average)
    tables = [starts, offsets, factors, taps, counts[-1]]
    rows = math.prod(windows.sizes[:-1])
    work = WORK * (len(offsets) * windows.extents[-1] * length * 2 // rows + size + 1)
    if work > MOST_OF_A_CALL:
        return None
    code = Code(team.compiler, _source(stored, is_average, stride == 1))
    own = [whole_lines(8 * each) for each in (size, length)]
    numbers = [rows, size, sums.plane_step, length, windows.extents[-1], sums.tap_steps[-1], stride]
    calls, slots, slot = [], 2 * team.most, sum(own) + APART
    for number, part in enumerate(portions(range(sums.planes * rows), work, team.most)):
        frame = array("q", [0, 0, 0, 0, *(each.ctypes.data for each in tables), part.start, part.stop, *numbers])
        sums_at = number % slots * slot
        pointers = [
            *(Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT)),
            *(Pointer(2, Of.OWN, 0, sums_at), Pointer(3, Of.OWN, 0, sums_at + own[0])),
        ]
        calls.append(Call(code, frame, pointers, work * len(part)))
    stages = [calls[first : first + slots] for first in range(0, len(calls), slots)]
    return CallsKernel(compiled, Calls(stages, min(len(calls), slots) * slot), team, tables)


def _counts(sums: _Sums) -> list[Numbers]:
    """Along each dimension, what of a window counts at each of its positions, as doubles."""
    windows = sums.windows
    if sums.include_padding:
        along = zip(windows.positions, windows.extents, strict=True)
        return [np.full(count, extent, np.float64) for count, extent in along]
    return [each.astype(np.float64) for each in counts_inside(windows)]


def _rows(sums: _Sums, counts: Sequence[Numbers]) -> tuple[Numbers, Numbers, Numbers]:
    """For each row of the output, which rows of the source lie over it, and what they are divided by."""
    windows, is_average = sums.windows, sums.include_padding is not None
    others = range(len(windows.sizes) - 1)
    shape = [*windows.sizes[:-1], *windows.extents[:-1]]
    over, offset, factor = np.ones(shape, np.bool_), np.zeros(shape, np.int64), np.ones(shape)
    step = sums.row_step
    for axis in reversed(others):
        # Windows go up as their elements go down: an element's sum is of windows in their order, or of their elements.
        element = np.arange(windows.extents[axis])
        element = element[::-1] if is_average else element
        place = np.arange(windows.sizes[axis])[:, None] + windows.starts[axis] - element * windows.dilations[axis]
        window = place // windows.strides[axis]
        meets = (place % windows.strides[axis] == 0) & (window >= 0) & (window < windows.positions[axis])
        along = [1] * len(shape)
        along[axis], along[len(others) + axis] = windows.sizes[axis], windows.extents[axis]
        over &= meets.reshape(along)
        offset += (window * step + element * sums.tap_steps[axis]).reshape(along)
        factor *= counts[axis][np.where(meets, window, 0)].reshape(along)
        step *= windows.positions[axis]
    rows = math.prod(windows.sizes[:-1])
    over = over.reshape(rows, -1)
    starts = np.concatenate([[0], np.cumsum(over.sum(1))]).astype(np.int64)
    return starts, offset.reshape(rows, -1)[over], factor.reshape(rows, -1)[over]


def taps_along(windows: Windows, *, falling: bool = False) -> Numbers:
    """For each element of a window's row, from the first one on or from the last: which element of the tensor it is in
    the first window in which it is one, which window that is, and in how many it is one, each a stride farther."""
    size, count, extent = windows.sizes[-1], windows.positions[-1], windows.extents[-1]
    element = np.arange(extent, dtype=np.int64)
    first = (element[::-1] if falling else element) * windows.dilations[-1] - windows.starts[-1]
    begin = np.maximum(-(first // windows.strides[-1]), 0)
    end = np.minimum((size - 1 - first) // windows.strides[-1] + 1, count)
    return np.stack([first + begin * windows.strides[-1], begin, np.maximum(end - begin, 0)], 1)


@lru_cache(8)
def _source(stored: DataType, is_average: bool, is_dense: bool) -> str:
    load = lower_part(ask_nothing, widen(Input(FLOAT32, "X", stored)), DataType.FLOAT64, "load")
    # As the formulas have it: an average is a float32 before it is stored.
    total = Input(FLOAT32, "X", DataType.FLOAT32) if is_average else Input(FLOAT64, "X", DataType.FLOAT64)
    store = lower_part(ask_nothing, total, stored, "store")
    return window_sums.source(load, store, is_average=is_average, is_dense=is_dense)


def ask_nothing(*asked: Any) -> Any:
    """For formulas that have no numbers of a request."""
    raise LookupError("there is nothing to ask")
