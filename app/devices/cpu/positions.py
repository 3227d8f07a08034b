"""ARGMAX, ARGMIN and REDUCE to such positions along rows, on the CPU, by loops that LLVM compiled."""

import math
from array import array

from app.contract.constants import AxisDirection, ReduceFunction
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import positions
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import llvm_type
from app.operators.compiled import CompiledOperator
from app.operators.reduction.reductions import Argmax, Argmin, Reduce

WORK = 4
"""Of an element."""


def position_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is one of packed rows: what it reduces lies together."""
    operator = compiled.operator
    if not isinstance(operator, Argmax | Argmin | Reduce):
        return None
    is_last = not isinstance(operator, Reduce) and operator.AxisDirection is AxisDirection.DECREASING
    if isinstance(operator, Reduce):
        if operator.Function not in (ReduceFunction.ARGMAX, ReduceFunction.ARGMIN):
            return None
        is_largest = operator.Function is ReduceFunction.ARGMAX
    else:
        is_largest = isinstance(operator, Argmax)
    x, made = operator.InputTensor, compiled.outputs["OutputTensor"]
    reduced = [axis for axis in operator.Axes if x.Sizes[axis] > 1]
    count = math.prod(x.Sizes[axis] for axis in reduced)
    is_rows = count == math.prod(x.Sizes[min(reduced, default=x.rank) :])
    if not is_rows or not x.is_packed or not made.is_packed or count > MOST_OF_A_CALL // WORK:
        return None
    lanes = next(each for each in positions.LANES if each <= count)
    index = llvm_type(made.DataType.value.lower())
    source = positions.source(x.DataType.value.lower(), index, lanes, is_largest=is_largest, is_last=is_last)
    code = Code(team.compiler, source)
    pointers = [Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT)]
    calls = [
        Call(code, array("q", [0, 0, part.start, part.stop, count]), pointers, WORK * count * len(part))
        for part in portions(range(x.elements // count), WORK * count, team.most)
    ]
    return CallsKernel(compiled, Calls([calls]), team)
