"""CONVOLUTION on the CPU, forward, by loops that LLVM compiled.

There are three, by what is much: `panels` packs what filters meet for many of them, `channelwise` copies a channel
with its padding for the few that meet it, and `dots` is for few positions. All write results where they belong,
activated. What they pack is in memory that each thread uses again and again.
"""

from collections.abc import Callable, Sequence
from operator import le

import numpy as np

from app.contract.constants import ConvolutionMode, DataType
from app.devices.cpu.activations import lowered_activation
from app.devices.cpu.calls import WORTH_A_CALL, Call, Calls, Of, Pointer
from app.devices.cpu.convolution_job import ConvolutionJob
from app.devices.cpu.convolution_loops import ConvolutionLoop, Space, Work, loop_of
from app.devices.cpu.llvm.nests import LINE
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN
from app.devices.device import ExecutionRecord
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import Activation
from app.operators.compiled import CompiledOperator
from app.operators.convolution.floats import Convolution
from app.programs.dispatchable import Dispatchable

LEAST = 1 << 8
"""Products that are worth the loop, outside of graphs, which are made for more than one dispatch."""

MOST_OWN = 4 << 20
"""Bytes that pieces of a graph's step may pack at the same time."""

INLINE = 1 << 24
"""Products that are done in less than a millisecond."""


def convolution_kernel(compiled: Dispatchable, team: Team, *, is_in_graph: bool) -> "ConvolutionKernel | None":
    """For the operator, if it is one that the loops are for."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Convolution) or operator.is_backward:
        return None
    batch, groups = operator.InputTensor.Sizes[0], operator.GroupCount
    outputs, depth = operator.FilterTensor.Sizes[:2]
    space = Space.of(operator.forward_windows())
    work = Work(space, groups, depth, outputs // groups, batch, team.most, WORTH_A_CALL)
    fused = operator.FusedActivation
    lowered = lowered_activation(fused) if fused else None
    loop = loop_of(work, team.compiler, lowered) if is_in_graph or work.products * batch >= LEAST else None
    if loop is None:
        return None
    return ConvolutionKernel(
        compiled, operator, work, loop, Activation(fused) if fused and lowered is None else None, team
    )


class ConvolutionKernel:
    """Implements `Kernel`, and `Compiled` where the loop reads and writes the buffers themselves."""

    def __init__(
        self,
        compiled: Dispatchable,
        operator: Convolution,
        work: Work,
        loop: ConvolutionLoop,
        activation: Activation | None,
        team: Team,
    ) -> None:
        """The `activation` is what is left of it after the loop."""
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._loop = loop
        self._activation = activation
        self._is_turned = operator.Mode is ConvolutionMode.CONVOLUTION and work.space.taps > 1
        outputs = work.groups * work.outputs
        self._batch = work.items
        self._item, self._result = work.groups * work.depth * work.space.elements, outputs * work.space.places
        self._results = tuple(operator.forward_sizes())
        self._is_direct = _is_packed(self._target) and list(self._results) == self._target.desc.Sizes[2:]
        self._is_read = [
            _is_packed(tensor) and not (place == 1 and self._is_turned) for place, tensor in enumerate(self._given)
        ]
        """Whether the loop reads the buffer itself."""
        self._bytes = [tensor.desc.data_bytes for tensor in (*self._given, self._target)]
        self._zeros = np.zeros(outputs, np.float32)
        self._no_bias = self._zeros.ctypes.data
        self._work = work.products * loop.factor
        self._job = ConvolutionJob(loop, work, work.items if self._is_read[0] else 1, team)
        self._is_small = work.products * work.items <= INLINE

    @property
    def runs_inline(self) -> bool:
        return self._is_small and self._job.is_ready

    @property
    def own_bytes(self) -> int:
        """What threads pack at the same time, and copies of tensors that the loop cannot read or write."""
        copied = 0 if self._is_direct else self._batch * self._result
        for place, tensor in enumerate(self._given):
            if not self._is_read[place]:
                copied += tensor.desc.elements if place else self._item * min(self._batch, 2)  # the next one, and this
        return self._job.own_bytes + 4 * copied

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if not all(map(le, self._bytes, [each.nbytes for each in (*inputs, *outputs)])):
            raise ValueError("a buffer ends before its tensor")
        *starts, target = map(address_of, (*inputs, *outputs))
        end = target + self._bytes[-1]
        apart = all(target >= start + each.nbytes or end <= start for start, each in zip(starts, inputs, strict=True))
        made: Array | None = None
        if not (apart and self._is_direct):
            made = np.empty((*self._target.desc.Sizes[:2], *self._results), np.float32)
            target = made.ctypes.data
        held = [None if self._is_read[place] else self._packed(place, inputs[place]) for place in range(1, len(inputs))]
        weights, bias = [
            start if array is None else array.ctypes.data for start, array in zip(starts[1:], held, strict=True)
        ] + [self._no_bias] * (3 - len(inputs))
        if self._is_read[0]:
            self._job.run((starts[0], weights, bias, target), cancelled)
        else:
            x = self._given[0].view(inputs[0])
            for item in range(self._batch):
                one = np.ascontiguousarray(x[item], np.float32)
                results = target + 4 * item * self._result
                self._job.run((one.ctypes.data, weights, bias, results), cancelled)
        if made is not None or self._activation:
            self._finish(made, outputs[0])
        return RAN

    def calls(self) -> Calls | None:
        loop = self._loop
        own = -(-4 * loop.scratch // LINE) * LINE
        count = self._batch * loop.pieces
        if not self._is_direct or self._activation or not all(self._is_read) or own > MOST_OWN:
            return None
        together = min(count, MOST_OWN // own)  # own is never 0: a loop packs something
        made = []
        for number in range(count):
            item, piece = divmod(number, loop.pieces)
            pointers = [Pointer(0, Of.INPUT, 0, 4 * item * self._item), Pointer(1, Of.INPUT, 1)]
            if len(self._given) > 2:
                pointers.append(Pointer(2, Of.INPUT, 2))
            pointers += [
                Pointer(3, Of.OUTPUT, 0, 4 * item * self._result),
                Pointer(4, Of.OWN, 0, number % together * own),
            ]
            frame = loop.frames[piece][:]
            frame[2] = self._no_bias
            made.append(Call(loop.code, frame, pointers, self._work // loop.pieces))
        return Calls([made[first : first + together] for first in range(0, count, together)], own * together)

    @np.errstate(all="ignore")
    def _finish(self, made: Array | None, output: Buffer) -> None:
        """What the loop leaves to NumPy, where results are in the output, or are `made` elsewhere."""
        out = self._target.view(output)
        if self._activation:
            self._activation.apply(np, out if made is None else made)
        if made is not None:
            if out.shape[2:] != self._results:
                out[...] = 0
            out[(slice(None), slice(None), *map(slice, self._results))] = made

    def _packed(self, place: int, buffer: Buffer) -> Array:
        """Filters or biases as the loop reads them."""
        found = self._given[place].view(buffer)
        if place == 1 and self._is_turned:
            found = np.flip(found, tuple(range(2, found.ndim)))
        return np.ascontiguousarray(found, np.float32)


def _is_packed(tensor: Tensor) -> bool:
    """Whether it is float32 as the loops read and write it."""
    return tensor.desc.DataType is DataType.FLOAT32 and tensor.desc.is_packed
