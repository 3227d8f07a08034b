"""CUMULATIVE_SUMMATION and CUMULATIVE_PRODUCT on the CPU, by loops that LLVM compiled."""

import math
from array import array
from collections.abc import Iterator

from app.contract.constants import AxisDirection
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import scans
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import bytes_of, llvm_type
from app.operators.compiled import CompiledOperator
from app.operators.indexing.scans import CumulativeProduct, CumulativeSummation

WORK = 8
"""Of an element."""


def scan_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is a scan of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, CumulativeSummation | CumulativeProduct):
        return None
    x, made = compiled.inputs["InputTensor"], compiled.outputs["OutputTensor"]
    if not x.is_packed or not made.is_packed:
        return None
    axis, type_ = operator.Axis, llvm_type(x.DataType.value.lower())
    blocks, count, columns = math.prod(x.Sizes[:axis]), x.Sizes[axis], math.prod(x.Sizes[axis + 1 :])
    is_sum = isinstance(operator, CumulativeSummation)
    is_exclusive = (
        operator.HasExclusiveSum if isinstance(operator, CumulativeSummation) else operator.HasExclusiveProduct
    )
    operation = "add" if is_sum else "mul"
    code = Code(team.compiler, scans.source(type_, operation, by_rows=columns == 1, is_exclusive=is_exclusive))
    is_decreasing = operator.AxisDirection is AxisDirection.DECREASING
    start = (count - 1) * columns * bytes_of(type_) if is_decreasing else 0
    pointers = [Pointer(0, Of.INPUT, offset=start), Pointer(1, Of.OUTPUT, offset=start)]
    numbers = [count - is_exclusive, count * columns, -columns if is_decreasing else columns]

    def calls() -> Iterator[Call]:
        if blocks >= columns:
            for part in portions(range(blocks), WORK * count * columns, team.most):
                yield Call(code, frame(part, range(columns)), pointers, WORK * count * columns * len(part))
        else:
            for part in portions(range(columns), WORK * count * blocks, team.most):
                yield Call(code, frame(range(blocks), part), pointers, WORK * count * blocks * len(part))

    def frame(block: range, column: range) -> "array[int]":
        return array("q", [0, 0, block.start, block.stop, column.start, column.stop, *numbers])

    return CallsKernel(compiled, Calls([list(calls())]), team)
