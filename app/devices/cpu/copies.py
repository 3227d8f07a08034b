"""Operators that only copy parts, on the CPU by loops that LLVM compiled: one for each part, along the longest rows
that there are. By coordinates each element would look for the part that it is in."""

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType, DepthSpaceOrder, PaddingMode
from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer, call_of_nest, part_of, pieces
from app.devices.cpu.llvm.bytes import zeros
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.cpu.runs import WORTH_A_THREAD
from app.devices.layout import blocks
from app.formula.coordinates import Coordinate, Element
from app.formula.structures import Questions
from app.formula.uniform import Numbers, evaluator, is_uniform
from app.formula.values import Input, Operation, Value
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator
from app.operators.data_movement.depth import DepthToSpace, DepthToSpace1, SpaceToDepth, SpaceToDepth1
from app.operators.data_movement.fills import DiagonalMatrix1
from app.operators.data_movement.joins import Join
from app.operators.data_movement.padding import Padding1
from app.operators.data_movement.slices import Slice1, SliceGrad
from app.operators.data_movement.windows import Unfold
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

MOST_CALLS = 1 << 8
"""Of an operator: with more parts, each is too small to be one of its own."""

_TYPES = {1: DataType.UINT8, 2: DataType.UINT16, 4: DataType.FLOAT32, 8: DataType.FLOAT64}
"""As what elements of so many bytes are copied, bit for bit."""


EVERY_OTHER = 2
"""Steps between elements that loops take out of vectors; at others NumPy's are as quick."""


class Copy(NamedTuple):
    """What is copied: from an input by its number, where it begins in bytes there and in the output, strides in bytes
    of both, and the output's number."""

    number: int
    start: int
    target: int
    sizes: Sequence[int]
    strides: Sequence[Sequence[int]]
    output: int = 0


class Copier:
    """Copies elements of so many bytes, 1, 2, 4 or 8."""

    def __init__(self, size: int, loops: LoopCode) -> None:
        stored = _TYPES[size]
        self._size, self._threads = size, loops.team.most
        self._loop = Loop(Questions({}).ask, Input(stored.value.lower(), "X", stored), ["X"], stored, loops)

    def calls(self, part: Copy, to: Of = Of.OUTPUT) -> Iterator[Call]:
        """Those for a part."""
        loop = self._loop
        sizes, strides = collapse(part.sizes, part.strides)
        elements = math.prod(sizes)
        code = loop.codes_for(sizes, strides, [self._size, self._size]).plain
        for block in blocks(sizes, -(-elements // pieces(loop.work * elements, self._threads))):
            along = part_of(block, sizes)
            starts = [
                start + sum(each.start * step for each, step in zip(along, steps, strict=True))
                for start, steps in zip((part.start, part.target), strides, strict=True)
            ]
            count = [len(each) for each in along]
            work = loop.work * math.prod(count)
            made = call_of_nest(code, count, strides, starts, [part.number], loop.arguments({}), work)
            *read, written = made.pointers
            yield made._replace(pointers=[*read, written._replace(of=to, number=part.output)])


def copies_kernel(compiled: Dispatchable, loops: LoopCode, *, is_of_run: bool) -> "CopiesKernel | None":
    """For what only copies elements of whole bytes; outside of runs, which need no Python, only if it is enough for
    several threads or else NumPy's slices are no quicker."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    made, *others = compiled.outputs.values()
    size = made.DataType.bits // 8
    if size not in _TYPES or max(len(compiled.inputs), len(compiled.outputs)) > MOST_CALLS:
        return None
    is_shared = loops.team.most > 1 and 2 * size * made.elements >= WORTH_A_THREAD
    is_sliced = not is_of_run and not is_shared
    match operator:
        case DepthToSpace() | DepthToSpace1() if operator.BlockSize**2 <= MOST_CALLS:
            parts = list(_blocks(operator, operator.InputTensor, made, size))
        case SpaceToDepth() | SpaceToDepth1() if operator.BlockSize**2 <= MOST_CALLS:
            parts = [
                Copy(0, each.target, each.start, each.sizes, each.strides[::-1])
                for each in _blocks(operator, made, operator.InputTensor, size)
            ]
        case Unfold() if made.is_packed and math.prod(operator.WindowSizes) <= MOST_CALLS:
            parts = list(_unfolded(operator, made, size))
        case SliceGrad() if made.is_packed:
            parts = [_within(operator, made, size)]
        case Slice1() if is_sliced and operator.InputWindowStrides[-1] != EVERY_OTHER:
            return None
        case Join() | Padding1() if is_sliced:
            return None
        case Join():
            parts = list(_joined(operator, made, size))
        case Padding1() if operator.PaddingMode is PaddingMode.CONSTANT and made.is_packed:
            value = compiled.numbers["PaddingValue"]
            if value != 0 or math.copysign(1, value) < 0:
                return None  # whose bits the formula makes
            parts = [_padded(operator, made, size)]
        case DiagonalMatrix1():
            if not operator.InputTensor or operator.DiagonalFillBegin > operator.DiagonalFillEnd:
                return None
            parts = [Copy(0, 0, 0, made.Sizes, [_bytes(operator.InputTensor, size), _bytes(made, size)])]
        case _:
            found = [_evenly(compiled, output, number) for number, output in enumerate(compiled.outputs)]
            parts = [each for each in found if each]
            if len(parts) < len(found) or any(each.DataType.bits != made.DataType.bits for each in others):
                return None
    fills, filling = _band(compiled, operator, made, size) if isinstance(operator, DiagonalMatrix1) else ([], None)
    if len(fills) > MOST_CALLS:
        return None
    clears = isinstance(operator, Padding1 | SliceGrad | Unfold)
    clears = clears and made.elements > sum(math.prod(each.sizes) for each in parts)
    return CopiesKernel(compiled, parts, size, loops, clears=clears, fills=fills, value=filling)


def _evenly(compiled: Dispatchable, output: str, number: int) -> Copy | None:
    """The copy that the output of that number is, if it is of one input's elements at coordinates that go up evenly
    along each dimension."""
    map_, made = compiled.program.maps[output], compiled.outputs[output]
    element = map_.expression
    if not isinstance(element, Element) or element.stored is not map_.stored:
        return None
    if element.type != map_.stored.value.lower() or not map_.by_coordinates:
        return None  # what is computed with as another type is no copy of its bits
    given, size = compiled.inputs[element.name], made.DataType.bits // 8
    start, strides = 0, [0] * made.rank
    for at, limit, step in zip(element.at, given.Sizes, _bytes(given, size), strict=True):
        line = _line(at, made.rank, compiled.numbers)
        if line is None:
            return None
        ends = [(each * (count - 1)) for each, count in zip(line.steps, made.Sizes, strict=True)]
        least, most = (line.start + sum(limited(end, 0) for end in ends) for limited in (min, max))
        if least < 0 or most >= limit:
            return None  # formulas read the nearest element inside
        start += step * line.start
        strides = [stride + step * each for stride, each in zip(strides, line.steps, strict=True)]
    place = list(compiled.inputs).index(element.name)
    return Copy(place, start, 0, made.Sizes, [strides, _bytes(made, size)], number)


class _Line(NamedTuple):
    """A coordinate that is `start` at first, and goes up by `steps` along the dimensions of the output."""

    start: int
    steps: Sequence[int]


def _line(value: Value, rank: int, numbers: Numbers) -> _Line | None:
    """The coordinate `value`, if it goes up evenly."""
    match value:
        case Coordinate(axis=axis):
            return _Line(0, [int(each == axis) for each in range(rank)])
        case _ if is_uniform(value):
            return _Line(int(evaluator(value)(numbers)), [0] * rank)
        case Operation(name="add" | "subtract" | "multiply" as name, arguments=(a, b)):
            one, other = _line(a, rank, numbers), _line(b, rank, numbers)
            if one is None or other is None:
                return None
            if name == "multiply":
                scale, line = (one, other) if not any(one.steps) else (other, one)
                if any(scale.steps):
                    return None
                return _Line(scale.start * line.start, [scale.start * step for step in line.steps])
            sign = 1 if name == "add" else -1
            steps = [step + sign * more for step, more in zip(one.steps, other.steps, strict=True)]
            return _Line(one.start + sign * other.start, steps)
    return None


def _joined(operator: Join, made: TensorDesc, size: int) -> Iterator[Copy]:
    widths = [each.Sizes[operator.Axis] for each in operator.InputTensors]
    target = _bytes(made, size)
    for number, (each, before) in enumerate(
        zip(operator.InputTensors, itertools.accumulate([0, *widths]), strict=False)
    ):
        yield Copy(number, 0, before * target[operator.Axis], each.Sizes, [_bytes(each, size), target])


def _padded(operator: Padding1, made: TensorDesc, size: int) -> Copy:
    given, target = operator.InputTensor, _bytes(made, size)
    before = sum(start * step for start, step in zip(operator.StartPadding, target, strict=True))
    return Copy(0, 0, before, given.Sizes, [_bytes(given, size), target])


def _within(operator: SliceGrad, made: TensorDesc, size: int) -> Copy:
    """The gradients, to where the window of the slice was."""
    given, start, target = operator.InputGradientTensor, 0, []
    windows = zip(operator.InputWindowOffsets, operator.InputWindowSizes, operator.InputWindowStrides, strict=True)
    for (offset, window, stride), step in zip(windows, _bytes(made, size), strict=True):
        start += step * (offset if stride > 0 else offset + window - 1)
        target.append(step * stride)
    return Copy(0, 0, start, given.Sizes, [_bytes(given, size), target])


def _unfolded(operator: Unfold, made: TensorDesc, size: int) -> Iterator[Copy]:
    """For each place of the window, what it has of the image in all windows."""
    (first, channel, *image), sizes = _bytes(operator.InputTensor, size), operator.InputTensor.Sizes
    batch, row, column = _bytes(made, size)[-3:]
    counts, steps = operator.windows(), operator.Strides
    along = [column * step for step in packed_strides(counts)]
    for number, places in enumerate(itertools.product(*map(range, operator.WindowSizes))):
        start, target, inside = 0, row * number, []
        for axis, place in enumerate(places):
            begin = place * operator.Dilations[axis] - operator.StartPadding[axis]
            low = max(-(begin // steps[axis]), 0)
            high = min((sizes[axis + 2] - 1 - begin) // steps[axis] + 1, counts[axis])
            inside.append(high - low)
            start += image[axis] * (begin + low * steps[axis])
            target += along[axis] * low
        if min(inside) > 0:
            read = [first, channel, *map(mul, image, steps)]
            written = [batch, row * math.prod(operator.WindowSizes), *along]
            yield Copy(0, start, target, [*sizes[:2], *inside], [read, written])


def _blocks(
    operator: DepthToSpace | DepthToSpace1 | SpaceToDepth | SpaceToDepth1, deep: TensorDesc, flat: TensorDesc, size: int
) -> Iterator[Copy]:
    """One for each place in a block, from the tensor that has them as channels to the one that has them as blocks."""
    block, (batch, channels, *_) = operator.BlockSize, flat.Sizes
    (first, along, *image), (other, channel, row, column) = _bytes(deep, size), _bytes(flat, size)
    is_place_first = getattr(operator, "Order", DepthSpaceOrder.DEPTH_COLUMN_ROW) is DepthSpaceOrder.DEPTH_COLUMN_ROW
    for place in range(block * block):
        start = place * (channels if is_place_first else 1) * along
        target = place // block * row + place % block * column
        read = [first, along if is_place_first else block * block * along, *image]
        written = [other, channel, block * row, block * column]
        yield Copy(0, start, target, [batch, channels, *deep.Sizes[2:]], [read, written])


def _band(
    compiled: Dispatchable, operator: DiagonalMatrix1, made: TensorDesc, size: int
) -> tuple[Sequence[Copy], Array | None]:
    """The diagonals that are filled, as copies of an element that is not a tensor's, and that."""
    (formula,) = compiled.program.maps.values()
    _, value, _ = formula.expression.operands()
    element = np.array([evaluator(value)(compiled.numbers)], f"u{size}")
    *others, rows, columns = made.Sizes
    *along, down, right = _bytes(made, size)
    parts = []
    begin, end = max(operator.DiagonalFillBegin, 1 - rows), min(operator.DiagonalFillEnd, columns)
    for diagonal in range(begin, min(end, begin + MOST_CALLS + 1)):
        row, column = max(-diagonal, 0), max(diagonal, 0)
        sizes = [*others, min(rows - row, columns - column)]
        target = [*along, down + right]
        parts.append(Copy(0, 0, row * down + column * right, sizes, [[0] * len(sizes), target]))
    return parts, element


def _bytes(desc: TensorDesc, size: int) -> list[int]:
    return [step * size for step in desc.strides]


class CopiesKernel(CallsKernel):
    """Implements `Compiled`."""

    def __init__(
        self,
        compiled: Dispatchable,
        parts: Sequence[Copy],
        size: int,
        loops: LoopCode,
        *,
        clears: bool,
        fills: Sequence[Copy] = (),
        value: Array | None = None,
    ) -> None:
        """Elements have so many bytes, `size`; the output is set to 0 before if it `clears`. What then `fills` parts of
        it is a `value`."""
        team = loops.team
        copier = Copier(size, loops)
        stages: list[Sequence[Call]] = [[call for part in parts for call in copier.calls(part)]]
        if clears:
            ((_, desc),) = compiled.outputs.items()
            clear = Code(team.compiler, zeros())
            cleared = [
                Call(clear, array("q", [0, len(part)]), [Pointer(0, Of.OUTPUT, 0, part.start)], len(part))
                for part in portions(range(desc.data_bytes), 1, team.most)
            ]
            stages.insert(0, cleared)
        if value is not None:
            stages.append([_of(value, call) for part in fills for call in copier.calls(part)])
        super().__init__(compiled, Calls([stage for stage in stages if stage]), team, [] if value is None else [value])


def _of(value: Array, call: Call) -> Call:
    """The call with what it reads at that value."""
    read, written = call.pointers
    frame = call.frame[:]
    frame[read.place] = value.ctypes.data
    return call._replace(frame=frame, pointers=[written])
