"""MAX_POOLING of float32 on the CPU, by loops that LLVM compiled: along rows of positions, without a look at bounds."""

import math
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import make_calls
from app.devices.cpu.calls import Call, Calls, Of, Pointer, pieces
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.llvm import maxima
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.cpu.transposed_calls import meetings_of
from app.devices.device import ExecutionRecord
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.convolution.windows import Windows
from app.operators.pooling.maxima import MaxPooling, MaxPooling1, MaxPooling2
from app.programs.dispatchable import Dispatchable

MOST_TAPS = 64
"""Elements of a window: larger ones are gone along rather than rows of positions, as those of a whole picture."""

MOST_OF_A_CALL = 1 << 25
"""Work, after which a thread looks whether it is to go on: some 5 ms."""

INLINE = 1 << 22
"""Work that is done in less than a millisecond."""


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


class MaximaKernel:
    """Implements `Compiled`."""

    def __init__(
        self, compiled: Dispatchable, space: Space, channels: int, compiler: Compiler, threads: Threads
    ) -> None:
        self._input = Tensor(compiled, "InputTensor", compiled.inputs["InputTensor"])
        self._output = Tensor(compiled, "OutputTensor", compiled.outputs["OutputTensor"])
        self._threads = threads
        stride = space.strides[2]
        self._code = Code(compiler, _source(compiler.vector_floats, stride if stride <= 2 else 0))
        self._table, _ = meetings_of(space)
        work = space.places * (space.taps + 1)
        self._work = work * channels
        count = max(pieces(self._work, threads.most), self._work // MOST_OF_A_CALL)
        numbers = [space.elements, space.places, *space.extents, *space.positions[1:], *space.sizes[1:]]
        pointers = [Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT)]
        made = []
        for part in parts(range(channels), count):
            frame = array("q", [0, 0, self._table.ctypes.data, part.start, part.stop, *numbers, *space.strides])
            made.append(Call(self._code, frame, pointers, work * len(part)))
        self._calls = Calls([made])

    @property
    def runs_inline(self) -> bool:
        return self._work <= INLINE and self._code.is_compiled

    def calls(self) -> Calls:
        return self._calls

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        x, out = self._input.view(inputs[0]), self._output.view(outputs[0])
        made = np.empty_like(out) if np.may_share_memory(x, out) else out
        make_calls(self._calls, [x], [made], self._threads, cancelled)
        if made is not out:
            out[...] = made
        return RAN


@lru_cache(8)
def _source(width: int, stride: int) -> str:
    return maxima.source(width, stride)
