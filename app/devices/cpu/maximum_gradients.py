"""MAX_POOLING_GRAD on the CPU, by loops that LLVM compiled: along rows of windows."""

import math
from array import array
from functools import lru_cache

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import maximum_gradients
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.lowering import lower_part
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.window_sums import APART, LONGEST_ROW, MOST_MEETINGS, Numbers, ask_nothing, taps_along
from app.formula.values import FLOAT32, FLOAT64, Input
from app.memory.addresses import whole_lines
from app.operators.compiled import CompiledOperator
from app.operators.convolution.windows import Windows
from app.operators.pooling.maxima import MaxPoolingGrad

LARGEST_PLANE = 1 << 20
"""Elements of a plane, whose sums each thread has in memory of its own."""

WORK = 4
"""Of an element of a window."""


def maximum_gradient_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is the one, of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, MaxPoolingGrad):
        return None
    if not all(each.is_packed for each in (*compiled.inputs.values(), *compiled.outputs.values())):
        return None
    x, positions = operator.InputTensor, operator.InputGradientTensor.Sizes[2:]
    windows = operator.windows(x.Sizes[2:], positions)
    plane, rows, length = math.prod(windows.sizes), math.prod(positions[:-1]), positions[-1]
    work = WORK * math.prod(positions) * math.prod(windows.extents) + plane
    if plane > LARGEST_PLANE or rows * math.prod(windows.extents[:-1]) > MOST_MEETINGS:
        return None
    if max(length, windows.extents[-1]) > LONGEST_ROW or work > MOST_OF_A_CALL:
        return None
    tables = [*_rows(windows), taps_along(windows)]
    stride = windows.strides[-1]
    code = Code(team.compiler, _source(x.DataType, stride if stride <= 2 else 0))
    own = [whole_lines(size) for size in (8 * plane, 4 * length, 4 * length)]
    addresses = [each.ctypes.data for each in tables]
    numbers = [plane, rows, length, windows.extents[-1], stride]
    calls, slots, slot = [], 2 * team.most, sum(own) + APART
    for number, part in enumerate(portions(range(math.prod(x.Sizes[:2])), work, team.most)):
        memory = number % slots * slot
        pointers = [
            *(Pointer(0, Of.INPUT), Pointer(1, Of.INPUT, 1), Pointer(2, Of.OUTPUT)),
            *(Pointer(3 + place, Of.OWN, 0, memory + sum(own[:place])) for place in range(3)),
        ]
        frame = array("q", [0] * 6 + [*addresses, part.start, part.stop, *numbers])
        calls.append(Call(code, frame, pointers, work * len(part)))
    stages = [calls[first : first + slots] for first in range(0, len(calls), slots)]
    return CallsKernel(compiled, Calls(stages, min(len(calls), slots) * slot), team, tables)


def _rows(windows: Windows) -> tuple[Numbers, Numbers]:
    """For each row of windows, which rows of elements lie under it, in their order."""
    others = range(len(windows.sizes) - 1)
    shape = [*windows.positions[:-1], *windows.extents[:-1]]
    under, offset, step = np.ones(shape, np.bool_), np.zeros(shape, np.int64), windows.sizes[-1]
    for axis in reversed(others):
        first = np.arange(windows.positions[axis])[:, None] * windows.strides[axis] - windows.starts[axis]
        place = first + np.arange(windows.extents[axis]) * windows.dilations[axis]
        along = [1] * len(shape)
        along[axis], along[len(others) + axis] = place.shape
        under &= ((place >= 0) & (place < windows.sizes[axis])).reshape(along)
        offset += (place * step).reshape(along)
        step *= windows.sizes[axis]
    rows = math.prod(windows.positions[:-1])
    under = under.reshape(rows, -1)
    starts = np.concatenate([[0], np.cumsum(under.sum(1))]).astype(np.int64)
    return starts, offset.reshape(rows, -1)[under]


@lru_cache(8)
def _source(stored: DataType, stride: int) -> str:
    load = lower_part(ask_nothing, Input(FLOAT32, "X", stored), DataType.FLOAT32, "load")
    store = lower_part(ask_nothing, Input(FLOAT64, "X", DataType.FLOAT64), stored, "store")
    return maximum_gradients.source(load, store, stride=stride)
