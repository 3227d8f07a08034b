"""TOP_K of few elements on the CPU, by loops that LLVM compiled."""

import math
from array import array
from functools import lru_cache

from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import firsts
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import llvm_type
from app.operators.compiled import CompiledOperator
from app.operators.indexing.top_k import TopK, TopK1
from app.programs.dispatchable import Dispatchable

WORK = 4
"""Of an element: some wait for what those before them were."""

FOUND = 1 << 6
"""Elements that are as much work as one that is found."""


def firsts_kernel(compiled: Dispatchable, compiler: Compiler, team: Team) -> CallsKernel | None:
    """For the operator, if it is one of packed rows, of elements of at most 32 bits."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, TopK | TopK1) or operator.K > firsts.MOST:
        return None
    x, values, indices = (
        *compiled.inputs.values(),
        compiled.outputs["OutputValueTensor"],
        compiled.outputs["OutputIndexTensor"],
    )
    size = x.Sizes[operator.Axis]
    is_rows = math.prod(x.Sizes[operator.Axis + 1 :]) == 1
    if not is_rows or x.DataType.bits > 32 or not all(each.is_packed for each in (x, values, indices)):
        return None
    name = x.DataType.value.lower()
    index = llvm_type(indices.DataType.value.lower())
    code = Code(compiler, _source(llvm_type(name), index, name.startswith("u"), operator.decreasing))
    outputs = list(compiled.outputs)
    pointers = [
        Pointer(0, Of.INPUT),
        *(
            Pointer(place, Of.OUTPUT, outputs.index(each))
            for place, each in enumerate(("OutputValueTensor", "OutputIndexTensor"), 1)
        ),
    ]
    work = WORK * (size + FOUND * operator.K)
    calls = [
        Call(code, array("q", [0, 0, 0, part.start, part.stop, size, operator.K]), pointers, work * len(part))
        for part in portions(range(x.elements // size), work, team.most)
    ]
    return CallsKernel(compiled, Calls([calls]), team)


@lru_cache(32)
def _source(type_: str, index: str, is_unsigned: bool, is_decreasing: bool) -> str:
    return firsts.source(type_, index, is_unsigned=is_unsigned, is_decreasing=is_decreasing)
