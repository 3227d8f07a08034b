"""TOP_K on the CPU, by loops that LLVM compiled."""

import math
from array import array

from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import firsts
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.coordinate_loops import LOOK
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import llvm_type
from app.memory.addresses import whole_lines
from app.operators.compiled import CompiledOperator
from app.operators.indexing.top_k import TopK, TopK1

WORK = 4
"""Of an element."""

FOUND = 1 << 3
"""Of one that is found, for each halving of so many that leads to one."""


def firsts_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is one of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, TopK | TopK1):
        return None
    x, values, indices = (
        *compiled.inputs.values(),
        compiled.outputs["OutputValueTensor"],
        compiled.outputs["OutputIndexTensor"],
    )
    size, inner, count = x.Sizes[operator.Axis], math.prod(x.Sizes[operator.Axis + 1 :]), operator.K
    if not all(each.is_packed for each in (x, values, indices)):
        return None
    lanes = next(each for each in firsts.LANES if each <= max(size if inner == 1 else inner, 1))
    by_rows = inner == 1 and lanes > 1
    together = 1 if by_rows else lanes
    name = x.DataType.value.lower()
    type_, index = llvm_type(name), llvm_type(indices.DataType.value.lower())
    is_unsigned, is_decreasing = name.startswith("u"), operator.decreasing
    source = firsts.source(type_, index, lanes, by_rows=by_rows, is_unsigned=is_unsigned, is_decreasing=is_decreasing)
    code = Code(team.compiler, source)
    outputs = list(compiled.outputs)
    pointers = [
        Pointer(0, Of.INPUT),
        *(
            Pointer(place, Of.OUTPUT, outputs.index(each))
            for place, each in enumerate(("OutputValueTensor", "OutputIndexTensor"), 1)
        ),
        Pointer(5, Of.WATCH),
    ]
    tiles, room = -(-inner // together), min(max(count, firsts.LEAST), size - count)
    own = whole_lines(firsts.memory_bytes(type_, together, count, room))
    reach = firsts.reach(type_, count, room)
    work = together * (WORK * size + FOUND * count * (count.bit_length() + 4) * (size // count).bit_length())
    calls = [
        Call(
            code,
            array("q", [0, 0, 0, 0, LOOK, 0, part.start, part.stop, tiles, size, inner, count, room, reach]),
            [*pointers, Pointer(3, Of.OWN, offset=number * own)],
            work * len(part),
        )
        for number, part in enumerate(portions(range(x.elements // (size * inner) * tiles), work, team.most))
    ]
    return CallsKernel(compiled, Calls([calls], len(calls) * own), team)
