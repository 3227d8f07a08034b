"""MAX_POOLING, AVERAGE_POOLING and LP_POOLING on the CPU, by loops that LLVM compiled: along rows of positions."""

import math
from array import array
from typing import TypeAlias

import numpy as np

from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.arrays import MOST_COUNTED, counts_inside
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.llvm import pools
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.pools import Kind
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import llvm_type
from app.memory.arrays import numpy_type
from app.operators.compiled import CompiledOperator
from app.operators.pooling.averages import (
    AveragePooling,
    AveragePooling1,
    LpPooling,
    LpPooling1,
    QuantizedLinearAveragePooling,
)
from app.operators.pooling.maxima import MaxPooling, MaxPooling1, MaxPooling2

LEAST_ROW, LEAST_OF_LARGE = 2, 4
"""Positions of a row: of fewer, most of a vector would be nothing. For windows of more than SMALL elements, which are
gone along as quickly then, there must be more."""

SMALL = 64

WORK = 4
"""Of an element of a window: to see whether a vector is inside takes longer than to take it."""

TOGETHER = 4
"""Vectors of a row that are made at once, at most."""

FARTHEST_PACKED = 4
"""Steps between what vectors are made of that are read with all that is between; of halves each is read by itself else.
"""

FARTHEST = 1 << 31
"""Coordinates that vectors have, with 32 bits."""


Pool: TypeAlias = MaxPooling | MaxPooling1 | MaxPooling2 | AveragePooling | AveragePooling1 | LpPooling | LpPooling1


def pool_kernel(compiled: CompiledOperator, team: Team) -> "PoolKernel | None":
    """For the operator, if it is one that the loops are for, of some windows in a row."""
    operator = compiled.operator
    kind = _kind_of(operator, len(compiled.outputs)) if isinstance(operator, Pool) else None
    if not isinstance(operator, Pool) or kind is None:
        return None
    x = operator.InputTensor
    space = space_of(operator, compiled.outputs["OutputTensor"])
    if space is None or not all(each.is_packed for each in (x, *compiled.outputs.values())):
        return None
    counts = None
    if isinstance(operator, AveragePooling | AveragePooling1):
        if max(space.positions) > MOST_COUNTED:
            return None
        counts = _counts(space, team.compiler.vector_floats, include_padding=operator.IncludePadding)
    return PoolKernel(compiled, space, math.prod(x.Sizes[:2]), kind, counts, team)


def space_of(operator: Pool | QuantizedLinearAveragePooling, output: TensorDesc) -> Space | None:
    """The windows of an operator, if there are enough of them in a row."""
    space = Space.of(operator.windows(operator.InputTensor.Sizes[2:], output.Sizes[2:]))
    least_row = LEAST_ROW if space.taps <= SMALL else LEAST_OF_LARGE
    is_near = space.farthest < FARTHEST and space.elements < FARTHEST
    return space if space.positions[2] >= least_row and is_near else None


def _kind_of(operator: Pool, outputs: int) -> Kind | None:
    """None of other norms than those whose power is a product at most."""
    match operator:
        case AveragePooling() | AveragePooling1():
            return "average"
        case LpPooling() | LpPooling1():
            kinds: dict[int, Kind] = {1: "sum", 2: "norm"}
            return kinds.get(operator.P)
        case _:
            return "maximum" if outputs == 1 else "place"


def _counts(space: Space, width: int, *, include_padding: bool) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Those that divisors are products of."""
    inside = counts_inside(space)
    each = [
        np.full(positions, extent) if include_padding else count
        for positions, extent, count in zip(space.positions, space.extents, inside, strict=True)
    ]
    return np.concatenate([*each, np.ones(width)]).astype(np.float64)


class PoolKernel(CallsKernel):
    """Implements `Compiled`."""

    def __init__(
        self,
        compiled: CompiledOperator,
        space: Space,
        channels: int,
        kind: Kind,
        counts: "np.ndarray[tuple[int], np.dtype[np.float64]] | None",
        team: Team,
    ) -> None:
        """The `counts` are those of averages."""
        stride = space.strides[2]
        width = team.compiler.vector_floats
        together = min(-(-space.positions[2] // width), TOGETHER)
        type_ = numpy_type(compiled.inputs["InputTensor"].DataType).name
        known_stride = stride if stride <= FARTHEST_PACKED else 0
        indices = compiled.outputs.get("OutputIndicesTensor")
        place = llvm_type(indices.DataType.value.lower()) if indices else "i32"
        source = pools.source(width, known_stride, together, type_, kind, place)
        code = Code(team.compiler, source)
        table = 0 if counts is None else counts.ctypes.data
        work = WORK * space.places * (space.taps + 1)
        numbers = [space.elements, space.places, *space.sizes, *space.extents, *space.positions]
        numbers += [*space.strides, *space.dilations, *space.starts]
        pointers = [
            Pointer(0, Of.INPUT),
            *(Pointer(1 + number, Of.OUTPUT, number) for number in range(len(compiled.outputs))),
        ]
        made = [
            Call(code, array("q", [0, 0, 0, table, part.start, part.stop, *numbers]), pointers, work * len(part))
            for part in portions(range(channels), work, team.most)
        ]
        super().__init__(compiled, Calls([made]), team, [] if counts is None else [counts])
