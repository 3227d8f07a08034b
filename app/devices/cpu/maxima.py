"""MAX_POOLING of float32 on the CPU, by loops that LLVM compiled: along rows of positions, without a look at bounds."""

import math
from array import array
from functools import lru_cache

from app.contract.constants import DataType
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.llvm import maxima
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.threads import Threads
from app.devices.cpu.transposed_calls import meetings_of
from app.operators.compiled import CompiledOperator
from app.operators.convolution.windows import Windows
from app.operators.pooling.maxima import MaxPooling, MaxPooling1, MaxPooling2
from app.programs.dispatchable import Dispatchable

MOST_TAPS = 64
"""Elements of a window: larger ones are gone along rather than rows of positions, as those of a whole picture."""


def maxima_kernel(compiled: Dispatchable, compiler: Compiler, threads: Threads) -> "MaximaKernel | None":
    """For the operator, if it is one that the loops are for: of some windows in a row, and without their indices."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, MaxPooling | MaxPooling1 | MaxPooling2) or len(compiled.outputs) != 1:
        return None
    x, output = operator.InputTensor, compiled.outputs["OutputTensor"]
    if not all(each.is_packed and each.DataType is DataType.FLOAT32 for each in (x, output)):
        return None
    sizes, positions = x.Sizes[2:], output.Sizes[2:]
    space = Space.of(
        Windows(sizes, positions, operator.WindowSize, operator.Strides, operator.dilations, operator.StartPadding)
    )
    if space.taps > MOST_TAPS or space.positions[2] < compiler.vector_floats:
        return None
    return MaximaKernel(compiled, space, math.prod(x.Sizes[:2]), compiler, threads)


class MaximaKernel(CallsKernel):
    """Implements `Compiled`."""

    def __init__(
        self, compiled: Dispatchable, space: Space, channels: int, compiler: Compiler, threads: Threads
    ) -> None:
        stride = space.strides[2]
        code = Code(compiler, _source(compiler.vector_floats, stride if stride <= 2 else 0))
        self._table, _ = meetings_of(space)
        work = space.places * (space.taps + 1)
        numbers = [space.elements, space.places, *space.extents, *space.positions[1:], *space.sizes[1:]]
        pointers = [Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT)]
        made = []
        for part in portions(range(channels), work, threads.most):
            frame = array("q", [0, 0, self._table.ctypes.data, part.start, part.stop, *numbers, *space.strides])
            made.append(Call(code, frame, pointers, work * len(part)))
        super().__init__(compiled, Calls([made]), threads)


@lru_cache(8)
def _source(width: int, stride: int) -> str:
    return maxima.source(width, stride)
