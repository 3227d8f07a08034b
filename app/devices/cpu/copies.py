"""Operators that only copy parts, on the CPU by loops that LLVM compiled: one for each part, along the longest rows
that there are. By coordinates each element would look for the part that it is in."""

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.contract.constants import DataType, DepthSpaceOrder, PaddingMode
from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Call, Calls, Of, Pointer, call_of_nest, part_of, pieces
from app.devices.cpu.llvm.kernels import Code, Loop, LoopCode
from app.devices.cpu.llvm.tables import CLEARS
from app.devices.cpu.threads import Threads
from app.devices.layout import blocks
from app.formula.structures import Questions
from app.formula.values import FLOAT32, FLOAT64, Input
from app.operators.compiled import CompiledOperator
from app.operators.data_movement.depth import DepthToSpace, DepthToSpace1, SpaceToDepth, SpaceToDepth1
from app.operators.data_movement.joins import Join
from app.operators.data_movement.padding import Padding1
from app.operators.data_movement.slices import Slice1
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

MOST_CALLS = 1 << 8
"""Of an operator: with more parts, each is too small to be one of its own."""

_TYPES = {4: (FLOAT32, DataType.FLOAT32), 8: (FLOAT64, DataType.FLOAT64)}
"""As what elements of so many bytes are copied, bit for bit."""


class Copy(NamedTuple):
    """What is copied: from an input by its number, where it begins in bytes there and in the output, and strides in
    bytes of both."""

    number: int
    start: int
    target: int
    sizes: Sequence[int]
    strides: Sequence[Sequence[int]]


class Copier:
    """Copies elements of so many bytes, 4 or 8, on at most so many threads."""

    def __init__(self, size: int, loops: LoopCode, threads: int) -> None:
        type_, stored = _TYPES[size]
        self._size, self._threads = size, threads
        self._loop = Loop(Questions({}).ask, Input(type_, "X", stored), ["X"], stored, loops)

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
            yield made._replace(
                pointers=[each._replace(of=to) if each.of is Of.OUTPUT else each for each in made.pointers]
            )


def copies_kernel(
    compiled: Dispatchable, loops: LoopCode, threads: Threads, *, is_of_run: bool
) -> "CopiesKernel | None":
    """For the operator, if it is one that copies elements of 4 or 8 bytes; outside of runs, which need no Python, only
    if NumPy's slices are no quicker."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if len(compiled.outputs) != 1:
        return None
    (made,) = compiled.outputs.values()
    size = made.DataType.bits // 8
    if size not in _TYPES or len(compiled.inputs) > MOST_CALLS:
        return None
    match operator:
        case DepthToSpace() | DepthToSpace1() if operator.BlockSize**2 <= MOST_CALLS:
            parts = list(_blocks(operator, operator.InputTensor, made, size))
        case SpaceToDepth() | SpaceToDepth1() if operator.BlockSize**2 <= MOST_CALLS:
            parts = [
                Copy(0, each.target, each.start, each.sizes, each.strides[::-1])
                for each in _blocks(operator, made, operator.InputTensor, size)
            ]
        case _ if not is_of_run:
            return None
        case Join():
            parts = list(_joined(operator, made, size))
        case Slice1():
            parts = [_sliced(operator, made, size)]
        case Padding1() if operator.PaddingMode is PaddingMode.CONSTANT and made.is_packed:
            value = compiled.numbers["PaddingValue"]
            if value != 0 or math.copysign(1, value) < 0:
                return None  # whose bits the formula makes
            parts = [_padded(operator, made, size)]
        case _:
            return None
    return CopiesKernel(compiled, parts, size, loops, threads, clears=isinstance(operator, Padding1))


def _joined(operator: Join, made: TensorDesc, size: int) -> Iterator[Copy]:
    widths = [each.Sizes[operator.Axis] for each in operator.InputTensors]
    target = _bytes(made, size)
    for number, (each, before) in enumerate(
        zip(operator.InputTensors, itertools.accumulate([0, *widths]), strict=False)
    ):
        yield Copy(number, 0, before * target[operator.Axis], each.Sizes, [_bytes(each, size), target])


def _sliced(operator: Slice1, made: TensorDesc, size: int) -> Copy:
    steps, start = _bytes(operator.InputTensor, size), 0
    windows = zip(operator.InputWindowOffsets, operator.InputWindowSizes, operator.InputWindowStrides, strict=True)
    read = []
    for (offset, window, stride), step in zip(windows, steps, strict=True):
        start += step * (offset if stride > 0 else offset + window - 1)
        read.append(step * stride)
    return Copy(0, start, 0, made.Sizes, [read, _bytes(made, size)])


def _padded(operator: Padding1, made: TensorDesc, size: int) -> Copy:
    given, target = operator.InputTensor, _bytes(made, size)
    before = sum(start * step for start, step in zip(operator.StartPadding, target, strict=True))
    return Copy(0, 0, before, given.Sizes, [_bytes(given, size), target])


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
        threads: Threads,
        *,
        clears: bool,
    ) -> None:
        """Elements have so many bytes, `size`; the output is set to 0 before if it `clears`."""
        copier = Copier(size, loops, threads.most)
        stages: list[Sequence[Call]] = [[call for part in parts for call in copier.calls(part)]]
        if clears:
            ((_, desc),) = compiled.outputs.items()
            clear = Code(loops.team.compiler, CLEARS)
            frame = array("q", [0, desc.data_bytes])
            stages.insert(0, [Call(clear, frame, [Pointer(0, Of.OUTPUT)], desc.data_bytes)])
        super().__init__(compiled, Calls(stages), threads)
