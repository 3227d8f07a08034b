"""RNN, LSTM and GRU on the CPU: a loop that LLVM compiled takes all steps of a few sequences."""

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from app.contract.constants import RecurrentNetworkDirection
from app.devices.cpu.activations import LoweredActivation, lowered_activation
from app.devices.cpu.llvm import dots
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.recurrent import Form, source
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import SCRATCH
from app.operators.compiled import CompiledOperator
from app.operators.recurrent.networks import Gru, Lstm, Rnn
from app.operators.recurrent.steps import Recurrent
from app.programs.dispatchable import Dispatchable

MOST_SEQUENCES = 8
"""Of more than these, weights are multiplied sooner by BLAS."""

AT_ONCE = 8
"""Inputs that are weighted at once."""

AT_A_TIME = 1 << 26
"""Products that take some 5 ms, after which it is asked whether to go on."""

INLINE = 1 << 23
"""Products that are done in less than a millisecond."""


def recurrent_kernel(compiled: Dispatchable, compiler: Compiler, threads: Threads) -> "RecurrentKernel | None":
    """For the operator, if it is one that the loop is for."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Recurrent) or operator.InputTensor.Sizes[2] > MOST_SEQUENCES:
        return None
    each = len(operator.activations)
    lowered = [lowered_activation(fused, f"f{place % each}") for place, fused in enumerate(operator.ActivationDescs)]
    found = [activation for activation in lowered if activation]
    return RecurrentKernel(compiled, operator, found, compiler, threads) if len(found) == len(lowered) else None


class RecurrentKernel:
    """Implements `Kernel`."""

    def __init__(
        self,
        compiled: Dispatchable,
        operator: Recurrent,
        activations: Sequence[LoweredActivation],
        compiler: Compiler,
        threads: Threads,
    ) -> None:
        self._inputs = [Tensor(compiled, name, desc) for name, desc in compiled.inputs.items()]
        self._outputs = [Tensor(compiled, name, desc) for name, desc in compiled.outputs.items()]
        self._threads = threads
        self._sizes = {name: operator.implied_sizes(name) for name in compiled.outputs}
        _, self._steps, self._batch, self._depth = operator.InputTensor.Sizes
        many, rows, self._size = operator.RecurrenceTensor.Sizes[1:]
        self._gates = rows // self._size
        self._directions = [
            each == 1 or operator.Direction is RecurrentNetworkDirection.BACKWARD for each in range(many)
        ]
        """Whether each goes from the last step to the first."""
        names = {*compiled.inputs, *compiled.outputs}
        is_linear = isinstance(operator, Gru) and operator.LinearBeforeReset
        lstm = operator if isinstance(operator, Lstm) else None
        form = Form(
            _kind(operator),
            compiler.vector_floats,
            self._batch,
            has_lengths="SequenceLengthsTensor" in names,
            has_sequence="OutputSequenceTensor" in names,
            has_peephole="PeepholeTensor" in names,
            is_clipped=bool(lstm and lstm.UseClipThreshold),
            is_coupled=bool(lstm and lstm.CoupleInputForget),
            is_linear=is_linear,
        )
        self._threshold = _bits(lstm.ClipThreshold) if lstm else 0
        self._apart = 2 * self._size if is_linear else rows
        """So many of the states' biases are added with those of the input."""
        each = len(operator.activations)
        some = [tuple(activations[start : start + each]) for start in range(0, len(activations), each)]
        self._codes = [Code(compiler, _source(form, own)) for own in some]
        self._attributes = [[number for own in part for number in own.attributes] for part in some]
        self._width = compiler.vector_floats
        self._work = rows * (self._depth + self._size) * self._batch
        at_a_time = max(min(AT_A_TIME // self._work, SCRATCH["numpy"] // (4 * rows * self._batch)), 1)
        self._parts = list(parts(range(self._steps), -(-self._steps // at_a_time)))
        self._at_once = min(AT_ONCE, self._batch * min(map(len, self._parts)))
        packed = -(-self._depth // self._width) * self._width
        self._panel = self._at_once * packed
        self._weighting = Code(compiler, _weighting(self._at_once, self._width))
        along = [*[1] * 6, *(1, 1, self._depth), *(0, 0, 0), *(1, 1, self._at_once * self._depth), 1, self._at_once]
        self._of_weighting = [0, 1, 0, rows, self._depth, 1, packed, 1, rows, 1, rows, *along]

    @property
    def runs_inline(self) -> bool:
        is_compiled = all(code.is_compiled for code in (self._weighting, *self._codes))
        return is_compiled and self._work * self._steps * len(self._directions) <= INLINE

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        given = {tensor.name: tensor.view(each) for tensor, each in zip(self._inputs, inputs, strict=True)}
        made = {name: np.zeros(sizes, np.float32) for name, sizes in self._sizes.items()}

        def work(direction: int) -> None:
            self._run(direction, given, made, cancelled)

        try:
            self._threads.share(len(self._directions), work, cancelled)
            with np.errstate(all="ignore"):
                for tensor, each in zip(self._outputs, outputs, strict=True):
                    tensor.store(made[tensor.name], each)
        finally:
            given.clear()  # a helper in the executor's queue, cancelled or not, is not to keep the tensors
        return RAN

    def _run(
        self, direction: int, given: Mapping[str, Array], made: Mapping[str, Array], cancelled: Callable[[], bool]
    ) -> None:
        """One direction."""
        size, batch, rows = self._size, self._batch, self._gates * self._size
        x = given["InputTensor"][0]
        weights, recurrence = (_packed(given[name][0, direction]) for name in ("WeightTensor", "RecurrenceTensor"))
        biases, of_states = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        if "BiasTensor" in given:
            both = given["BiasTensor"][0, 0, direction].astype(np.float32)
            biases, of_states = both[:rows], both[rows:]
            biases[: self._apart] += of_states[: self._apart]
        peephole = _packed(given["PeepholeTensor"][0, 0, direction]) if "PeepholeTensor" in given else biases
        lengths = _packed(given["SequenceLengthsTensor"], np.uint32) if "SequenceLengthsTensor" in given else biases
        width = -(-size // self._width) * self._width
        hidden, reset = np.zeros((2, batch, width), np.float32)
        cell, sums = np.zeros((batch, size), np.float32), np.empty((batch, rows), np.float32)
        for name, state in (("HiddenInitTensor", hidden), ("CellMemInitTensor", cell)):
            if name in given:
                state[:, :size] = given[name][0, direction]
        sequence = made.get("OutputSequenceTensor")
        target = sequence.ctypes.data + 4 * direction * batch * size if sequence is not None else 0
        fixed = [each.ctypes.data for each in (recurrence, of_states, peephole)]
        after = [each.ctypes.data for each in (lengths, hidden, cell, sums, reset)]
        numbers = [size, width, len(self._directions) * batch * size, self._threshold]
        numbers += self._attributes[direction]
        is_backward = self._directions[direction]
        for part in reversed(self._parts) if is_backward else self._parts:
            if cancelled():
                raise Cancelled
            projected = self._weighted(_packed(x[part.start : part.stop]).reshape(-1, self._depth), weights, biases)
            order = [part.stop - 1, len(part), -1] if is_backward else [part.start, len(part), 1]
            frame = array("q", [*fixed, projected.ctypes.data, *after, target, *order, part.start, *numbers])
            self._codes[direction](frame)
        for name, state in (("OutputSingleTensor", hidden), ("OutputCellSingleTensor", cell)):
            if name in made:
                made[name][0, direction] = state[:, :size]

    def _weighted(self, x: Array, weights: Array, biases: Array) -> Array:
        """Inputs, a row each."""
        made = np.empty((len(x), len(weights)), np.float32)
        panel = np.empty(self._panel, np.float32)
        for turn in range(0, len(x), self._at_once):
            start = min(turn, len(x) - self._at_once)  # the last ones go back to those before
            addresses = x[start:].ctypes.data, weights.ctypes.data, biases.ctypes.data, made[start:].ctypes.data
            self._weighting(array("q", [*addresses, panel.ctypes.data, *self._of_weighting]))
        return made


def _kind(operator: Recurrent) -> Literal["rnn", "lstm", "gru"]:
    return "rnn" if isinstance(operator, Rnn) else "lstm" if isinstance(operator, Lstm) else "gru"


def _bits(value: float) -> int:
    """Of a float32."""
    made: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return made


def _packed(x: Array, dtype: type = np.float32) -> Array:
    return np.ascontiguousarray(x, dtype)


@lru_cache(64)
def _source(form: Form, activations: tuple[LoweredActivation, ...]) -> str:
    return source(form, [each.element for each in activations])


@lru_cache(16)
def _weighting(at_once: int, width: int) -> str:
    """The product of a matrix and so many vectors."""
    return dots.source(dots.rows_for(at_once, width), at_once, width, None)
