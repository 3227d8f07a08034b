"""RNN, LSTM and GRU on the CPU: loops that LLVM compiled take all steps of a few sequences."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import Making, TooMuchWork
from app.devices.cpu.calls import Calls
from app.devices.cpu.conversions import Conversions
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.recurrent_calls import WEIGHTS, RecurrentCalls
from app.devices.cpu.recurrent_cells import LoweredCell, lowered_cell
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN
from app.devices.device import ExecutionRecord
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.recurrent.steps import Recurrent

FEW, MANY = 16, 256
"""Of more than few sequences, weights that no cache keeps from some sequences to the next ones are multiplied sooner by
BLAS. Of many there would be many calls."""

KEPT = 1 << 22
"""Bytes of a state's weights from which caches do not keep them."""

INLINE = 1 << 23
"""Products that are done in less than a millisecond."""

MOST_OWN = 16 << 20
"""Bytes that a graph's step may have of its own."""


def recurrent_kernel(compiled: CompiledOperator, team: Team, conversions: Conversions) -> "RecurrentKernel | None":
    """For the operator, if it is one that the loop is for."""
    operator = compiled.operator
    if not isinstance(operator, Recurrent):
        return None
    sequences, weights = operator.InputTensor.Sizes[2], 4 * math.prod(operator.RecurrenceTensor.Sizes[2:])
    if sequences > (FEW if weights >= KEPT else MANY):
        return None
    cells = [lowered_cell(operator, direction) for direction in range(operator.directions)]
    found = [cell for cell in cells if cell]
    if len(found) == len(cells):
        with suppress(TooMuchWork):
            return RecurrentKernel(compiled, operator, found, team, conversions)
    return None


class RecurrentKernel:
    """Implements `Kernel`, and `Compiled` where loops read and write the buffers themselves."""

    def __init__(
        self,
        compiled: CompiledOperator,
        operator: Recurrent,
        cells: Sequence[LoweredCell],
        team: Team,
        conversions: Conversions,
    ) -> None:
        self._inputs = [Tensor(compiled, name, desc) for name, desc in compiled.inputs.items()]
        self._outputs = [Tensor(compiled, name, desc) for name, desc in compiled.outputs.items()]
        self._sizes = [operator.implied_sizes(name) for name in compiled.outputs]
        self._is_direct = all(
            each.desc.is_packed and each.desc.DataType is not DataType.FLOAT16
            for each in (*self._inputs, *self._outputs)
        )
        """Whether loops may read and write the buffers themselves."""
        self._conversions, self._converts = conversions, operator.InputTensor.DataType is DataType.FLOAT16
        self._layer = RecurrentCalls(compiled, operator, cells, team.compiler, team.most)
        self._making = Making(self._layer.calls, len(self._inputs), len(self._outputs), team)

    @property
    def runs_inline(self) -> bool:
        is_ready = self._making.is_ready and (not self._converts or self._conversions.are_compiled)
        return self._layer.work <= INLINE and is_ready

    @property
    def own_bytes(self) -> int:
        """The outputs as loops make them, copies of inputs, and what calls take."""
        made = 4 * sum(map(math.prod, self._sizes))
        copied = sum(each.copied_bytes for each in self._inputs if not (each.name in WEIGHTS and each.desc.is_packed))
        return made + copied + self._layer.calls.own_bytes

    @property
    def kept_bytes(self) -> int:
        return self._making.kept_bytes

    def calls(self) -> Calls | None:
        return self._layer.calls if self._is_direct and self._layer.calls.own_bytes <= MOST_OWN else None

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if self._converts:
            self._conversions.get_compiled()
        given = [self._read(tensor, each) for tensor, each in zip(self._inputs, inputs, strict=True)]
        made = [np.empty(sizes, np.float32) for sizes in self._sizes]
        self._making.over(given, made, cancelled)
        with np.errstate(all="ignore"):
            for tensor, array, each in zip(self._outputs, made, outputs, strict=True):
                self._conversions.store(array, tensor.view(each))
        return RAN

    def _read(self, tensor: Tensor, buffer: Buffer) -> Array:
        """A tensor as the loops read it."""
        x = tensor.view(buffer)
        if tensor.name in WEIGHTS or tensor.name == "SequenceLengthsTensor":
            return np.ascontiguousarray(x)
        return self._conversions.packed(x)
