"""SCATTER, SCATTER_ND and MAX_UNPOOLING on the CPU, by loops that LLVM compiled: all elements are copied, or cleared,
then the updates go where indices lead."""

import math
from array import array
from collections.abc import Iterator, Sequence

from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import scatters
from app.devices.cpu.llvm.bytes import copies, zeros
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import llvm_type
from app.devices.cpu.threads import parts
from app.operators.compiled import CompiledOperator
from app.operators.indexing.scatter import Scatter, ScatterNd
from app.operators.pooling.maxima import MaxUnpooling
from app.programs.walks import collapse

WORK = 1 << 4
"""Of an update."""

CACHED = 1 << 24
"""Bytes of an output of which a good part is still in a thread's cache when all of it is written."""

WIDE = 1 << 9
"""Bytes of an update of which threads take parts each."""


def scatter_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is one of these, of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, Scatter | ScatterNd | MaxUnpooling):
        return None
    if not all(each.is_packed for each in (*compiled.inputs.values(), *compiled.outputs.values())):
        return None
    match operator:
        case Scatter():
            along = _along_axis(compiled, operator, team)
            stages = [_copied(compiled, team.compiler, _writers(compiled, [along], team)), along]
        case ScatterNd():
            x, length = operator.InputTensor, operator.IndicesTensor.Sizes[-1]
            first = x.rank - operator.InputDimensionCount  # those before have one element
            sizes, strides = (each[first : first + length] for each in (x.Sizes, packed_strides(x.Sizes)))
            width = math.prod(x.Sizes[first + length :])
            led = _led(compiled, "UpdatesTensor", sizes, strides, width, team)
            stages = [_copied(compiled, team.compiler, _writers(compiled, led, team)), *led]
        case MaxUnpooling():
            elements = compiled.outputs["OutputTensor"].elements
            led = _led(compiled, "InputTensor", [elements], [1], 1, team)
            stages = [_cleared(compiled, team.compiler, _writers(compiled, led, team)), *led]
    return CallsKernel(compiled, Calls(stages), team)


def _along_axis(compiled: CompiledOperator, operator: Scatter, team: Team) -> list[Call]:
    """Updates of which each has an index of its own."""
    x, indices, _ = compiled.inputs.values()
    size, index = x.DataType.bits // 8, indices.DataType.value.lower()
    to = [step * size for step in packed_strides(x.Sizes)]
    stride, to[operator.Axis] = to[operator.Axis], 0
    counts, (to, steps) = collapse(indices.Sizes, [to, packed_strides(indices.Sizes)])
    names = list(compiled.inputs)
    code = Code(
        team.compiler, scatters.source(size, llvm_type(index), len(counts), is_signed=not index.startswith("u"))
    )
    # Along the axis updates stay in their order. Of the longest one of the others there are parts for threads.
    others = [axis for axis, step in enumerate(to) if step]
    split = max(others, key=lambda axis: counts[axis], default=0)
    work = WORK * indices.elements // counts[split]

    def calls() -> Iterator[Call]:
        whole = range(counts[split])
        for part in portions(whole, work, team.most) if others else [whole]:
            sizes = [len(part) if axis == split else count for axis, count in enumerate(counts)]
            numbers = [each for dimension in zip(sizes, steps, to, strict=True) for each in dimension]
            number = part.start * steps[split]
            pointers = [
                Pointer(0, Of.INPUT, names.index("IndicesTensor"), number * indices.DataType.bits // 8),
                Pointer(1, Of.INPUT, names.index("UpdatesTensor"), number * size),
                Pointer(2, Of.OUTPUT, 0, part.start * to[split]),
            ]
            frame = array("q", [0, 0, 0, *numbers, x.Sizes[operator.Axis], stride])
            yield Call(code, frame, pointers, work * len(part))

    return list(calls())


def _led(
    compiled: CompiledOperator,
    updates: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    width: int,
    team: Team,
) -> list[list[Call]]:
    """Updates of `width` elements, each with a tuple of coordinates along dimensions of these sizes and strides.

    They stay in their order: stages have some of them each, and threads parts of their width."""
    names, indices = list(compiled.inputs), compiled.inputs["IndicesTensor"]
    size, index = compiled.inputs[updates].DataType.bits // 8, indices.DataType
    type_, is_signed = llvm_type(index.value.lower()), index.value.startswith("I")
    code = Code(team.compiler, scatters.tuples(size, type_, len(sizes), is_signed=is_signed, is_one=width == 1))
    count, step = indices.elements // len(sizes), width * size
    along = [number for along, stride in zip(sizes, strides, strict=True) for number in (along, size * stride)]

    def call(some: range, part: range) -> Call:
        pointers = [
            Pointer(0, Of.INPUT, names.index("IndicesTensor"), some.start * len(sizes) * index.bits // 8),
            Pointer(1, Of.INPUT, names.index(updates), some.start * step + part.start),
            Pointer(2, Of.OUTPUT, 0, part.start),
        ]
        frame = array("q", [0, 0, 0, len(some), step, len(part), *along])
        return Call(code, frame, pointers, (WORK + len(part)) * len(some))

    stages = []
    for some in parts(range(count), (WORK + step) * count // MOST_OF_A_CALL + 1):
        taken = portions(range(step), len(some), team.most) if step >= WIDE else [range(step)]
        stages.append([call(some, part) for part in taken])
    return stages


def _writers(compiled: CompiledOperator, led: Sequence[Sequence[Call]], team: Team) -> int:
    """How many threads write what is `led` into then: one if that is one's work, unless caches are too small for it.
    What another one has written comes more slowly out of its cache than it is written."""
    is_of_one = all(len(stage) == 1 for stage in led)
    return 1 if is_of_one and _bytes(compiled.outputs["OutputTensor"]) < CACHED else team.most


def _copied(compiled: CompiledOperator, compiler: Compiler, threads: int) -> list[Call]:
    """All of the input, to the output."""
    code, number = Code(compiler, copies()), list(compiled.inputs).index("InputTensor")
    return [
        Call(
            code,
            array("q", [0, 0, len(part)]),
            [Pointer(0, Of.INPUT, number, part.start), Pointer(1, Of.OUTPUT, 0, part.start)],
            2 * len(part),
        )
        for part in portions(range(_bytes(compiled.inputs["InputTensor"])), 2, threads)
    ]


def _cleared(compiled: CompiledOperator, compiler: Compiler, threads: int) -> list[Call]:
    """All of the output."""
    code = Code(compiler, zeros())
    return [
        Call(code, array("q", [0, len(part)]), [Pointer(0, Of.OUTPUT, 0, part.start)], len(part))
        for part in portions(range(_bytes(compiled.outputs["OutputTensor"])), 1, threads)
    ]


def _bytes(desc: TensorDesc) -> int:
    return desc.elements * desc.DataType.bits // 8
