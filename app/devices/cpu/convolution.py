"""CONVOLUTION on the CPU, forward, by loops that LLVM compiled.

There are four, by what is much: `panels` packs what filters meet for many of them, `channelwise` copies a channel with
its padding for the few that meet it, and for few positions there are `outputs`, where filters are known before, and
else `dots`. All write results where they belong,
activated. What they pack is in memory that each thread uses again and again.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from app.contract.constants import ConvolutionMode, DataType
from app.contract.tensors import packed_strides
from app.devices.cpu.activations import lowered_activation
from app.devices.cpu.calls import WORTH_A_CALL, Call, Calls, Of, Pointer
from app.devices.cpu.conversions import Conversions
from app.devices.cpu.convolution_job import ConvolutionJob
from app.devices.cpu.convolution_loops import (
    ConvolutionLoop,
    ItemWork,
    Space,
    lanes_of,
    loop_of,
    loop_of_packed,
    pack_filters,
    packed_elements,
)
from app.devices.cpu.copies import Copier, Copy
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import LoopCode
from app.devices.cpu.llvm.outputs import Lanes
from app.devices.cpu.packs import Packing
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN
from app.devices.device import ExecutionRecord
from app.devices.layout import check_ends
from app.memory.addresses import address_of, whole_lines
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import Activation
from app.operators.compiled import CompiledOperator
from app.operators.convolution.floats import Convolution
from app.programs.dispatchable import Dispatchable

LEAST = 1 << 8
"""Products that are worth the loop, outside of graphs, which are made for more than one dispatch."""

MOST_CALLS = 1 << 10
"""Of a graph's step, of each item one at least: for larger batches they would take more memory than the tensors."""

MOST_OWN = 4 << 20
"""Bytes that pieces of a graph's step may pack at the same time."""

INLINE = 1 << 24
"""Products that are done in less than a millisecond."""


def convolution_kernel(
    compiled: Dispatchable, loops: LoopCode, conversions: Conversions, known: Mapping[str, Buffer] | None
) -> "ConvolutionKernel | None":
    """For the operator, if it is one that the loops are for. `known` are inputs that are the same for all dispatches;
    it is None outside of graphs."""
    operator = _forward(compiled)
    if operator is None:
        return None
    team = loops.team
    work, fused = _work_of(operator, team.most), operator.FusedActivation
    lowered = lowered_activation(fused) if fused else None
    left = Activation(fused) if fused and lowered is None else None
    lanes = lanes_of(work, team.compiler) if known and "FilterTensor" in known else None
    if lanes and known:
        loop = loop_of_packed(work, lanes, team.compiler, lowered)
        tensor = Tensor(compiled, "FilterTensor", operator.FilterTensor)
        read = partial(_filters, operator, tensor, known["FilterTensor"], conversions)
        filters = _packing(operator, work, lanes).made(known, lambda: pack_filters(read(), lanes))
        return ConvolutionKernel(compiled, operator, work, loop, left, loops, conversions, filters)
    found = loop_of(work, team.compiler, lowered) if known is not None or work.products * work.items >= LEAST else None
    return ConvolutionKernel(compiled, operator, work, found, left, loops, conversions, None) if found else None


def filter_packing_of(compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> Packing | None:
    """Of filters that `convolution_kernel` keeps a second time, packed, if inputs of the names `known` are the same for
    all dispatches."""
    operator = _forward(compiled)
    if operator is None or "FilterTensor" not in known:
        return None
    work = _work_of(operator, 1)
    lanes = lanes_of(work, compiler)
    return _packing(operator, work, lanes) if lanes else None


def _packing(operator: Convolution, work: ItemWork, lanes: Lanes) -> Packing:
    given = operator.FilterTensor
    layout = "filters", given.DataType, *given.Sizes, *given.strides, _is_turned(operator), lanes.channels
    return Packing(("FilterTensor",), layout, 4 * packed_elements(work, lanes))


def _forward(compiled: Dispatchable) -> Convolution | None:
    """The operator, if it is such a convolution."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    return operator if isinstance(operator, Convolution) and not operator.is_backward else None


def _work_of(operator: Convolution, threads: int) -> ItemWork:
    batch, groups = operator.InputTensor.Sizes[0], operator.GroupCount
    outputs, depth = operator.FilterTensor.Sizes[:2]
    space = Space.of(operator.forward_windows())
    return ItemWork(space, groups, depth, outputs // groups, batch, threads, WORTH_A_CALL)


def _filters(operator: Convolution, tensor: Tensor, buffer: Buffer, conversions: Conversions) -> Array:
    """As the loops read them, of float32."""
    found = tensor.view(buffer)
    if _is_turned(operator):
        found = np.flip(found, tuple(range(2, found.ndim)))
    return conversions.packed(found)


def _is_turned(operator: Convolution) -> bool:
    return operator.Mode is ConvolutionMode.CONVOLUTION and math.prod(operator.FilterTensor.Sizes[2:]) > 1


class ConvolutionKernel:
    """Implements `Kernel`, and `Compiled` where the loop reads and writes the buffers themselves."""

    def __init__(
        self,
        compiled: Dispatchable,
        operator: Convolution,
        work: ItemWork,
        loop: ConvolutionLoop,
        activation: Activation | None,
        loops: LoopCode,
        conversions: Conversions,
        filters: Array | None,
    ) -> None:
        """The `activation` is what is left of it after the loop. Where `filters` are packed, none are read."""
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._loop = loop
        self._activation = activation
        self._operator, self._filters, self._loops = operator, filters, loops
        self._conversions = conversions
        outputs = work.groups * work.outputs
        self._batch = work.items
        self._item, self._result = work.groups * work.depth * work.space.elements, outputs * work.space.places
        self._results = tuple(operator.forward_sizes())
        self._is_direct = _is_packed(self._target) and list(self._results) == self._target.desc.Sizes[2:]
        self._is_read = [
            (place == 1 and filters is not None) or (_is_packed(tensor) and not (place == 1 and _is_turned(operator)))
            for place, tensor in enumerate(self._given)
        ]
        """Whether the loop reads the buffer itself, if any."""
        self._bytes = [tensor.desc.data_bytes for tensor in (*self._given, self._target)]
        self._zeros = np.zeros(outputs, np.float32)
        self._no_bias = self._zeros.ctypes.data
        self._weights = 0 if filters is None else filters.ctypes.data
        self._work = work.products * loop.factor
        self._job = ConvolutionJob(loop, work, work.items if self._is_read[0] else 1, loops.team)
        self._is_small = work.products * work.items <= INLINE
        self._converts = self._target.desc.DataType is DataType.FLOAT16

    @property
    def runs_inline(self) -> bool:
        return self._is_small and self._job.is_ready and (not self._converts or self._conversions.are_compiled)

    @property
    def own_bytes(self) -> int:
        """What threads pack at the same time, and copies of tensors that the loop cannot read or write."""
        copied = 0 if self._is_direct else self._batch * self._result
        for place, tensor in enumerate(self._given):
            if not self._is_read[place]:
                copied += tensor.desc.elements if place else self._item * min(self._batch, 2)  # the next one, and this
        return self._job.own_bytes + 4 * copied

    @property
    def kept_bytes(self) -> int:
        return self._job.kept_bytes + self._zeros.nbytes

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        check_ends((*inputs, *outputs), self._bytes)
        if self._converts:
            self._conversions.get_compiled()
        *starts, target = map(address_of, (*inputs, *outputs))
        end = target + self._bytes[-1]
        apart = all(target >= start + each.nbytes or end <= start for start, each in zip(starts, inputs, strict=True))
        made: Array | None = None
        if not (apart and self._is_direct):
            made = np.empty((*self._target.desc.Sizes[:2], *self._results), np.float32)
            target = made.ctypes.data
        held = [None if self._is_read[place] else self._packed(place, inputs[place]) for place in range(1, len(inputs))]
        if self._filters is not None:
            held[0] = self._filters
        weights, bias = [
            start if array is None else array.ctypes.data for start, array in zip(starts[1:], held, strict=True)
        ] + [self._no_bias] * (3 - len(inputs))
        if self._is_read[0]:
            self._job.run((starts[0], weights, bias, target), cancelled)
        else:
            x = self._given[0].view(inputs[0])
            for item in range(self._batch):
                one = self._conversions.packed(x[item])
                results = target + 4 * item * self._result
                self._job.run((one.ctypes.data, weights, bias, results), cancelled)
        if made is not None or self._activation:
            self._finish(made, outputs[0])
        return RAN

    def calls(self) -> Calls | None:
        loop = self._loop
        own = whole_lines(4 * loop.scratch)
        count = self._batch * loop.pieces
        if count > MOST_CALLS or self._given[0].desc.DataType is not DataType.FLOAT32:
            return None
        copied = 0 if self._is_read[0] else whole_lines(4 * self._batch * self._item)
        if not self._is_direct or self._activation or not all(self._is_read[1:]) or own + copied > MOST_OWN:
            return None
        stages = [[*self._unpacked()]] if copied else []
        room = Of.OWN if copied else Of.INPUT
        together = min(count, (MOST_OWN - copied) // own) if own else count
        made = []
        for number in range(count):
            item, piece = divmod(number, loop.pieces)
            pointers = [Pointer(0, room, 0, 4 * item * self._item)]
            if self._filters is None:
                pointers.append(Pointer(1, Of.INPUT, 1))
            if len(self._given) > 2:
                pointers.append(Pointer(2, Of.INPUT, 2))
            pointers.append(Pointer(3, Of.OUTPUT, 0, 4 * item * self._result))
            if own:
                pointers.append(Pointer(4, Of.OWN, 0, copied + number % together * own))
            frame = loop.frames[piece][:]
            frame[1], frame[2] = self._weights, self._no_bias
            made.append(Call(loop.code, frame, pointers, self._work // loop.pieces))
        stages += [made[first : first + together] for first in range(0, count, together)]
        return Calls(stages, copied + own * together)

    def _unpacked(self) -> Iterator[Call]:
        """What packs the elements, which the loop does not read as they lie, into memory of its own."""
        tensor = self._given[0]
        packed = [4 * step for step in packed_strides(tensor.desc.Sizes)]
        part = Copy(0, 0, 0, tensor.desc.Sizes, [tensor.strides, packed])
        return Copier(4, self._loops).calls(part, Of.OWN)

    @np.errstate(all="ignore")
    def _finish(self, made: Array | None, output: Buffer) -> None:
        """What the loop leaves to NumPy, where results are in the output, or are `made` elsewhere."""
        out = self._target.view(output)
        if self._activation:
            self._activation.apply(np, out if made is None else made)
        if made is not None:
            if out.shape[2:] != self._results:
                out[...] = 0
            self._conversions.store(made, out[(slice(None), slice(None), *map(slice, self._results))])

    def _packed(self, place: int, buffer: Buffer) -> Array:
        """Filters or biases as the loop reads them."""
        if place == 1:
            return _filters(self._operator, self._given[1], buffer, self._conversions)
        return self._conversions.packed(self._given[place].view(buffer))


def _is_packed(tensor: Tensor) -> bool:
    """Whether it is float32 as the loops read and write it."""
    return tensor.desc.DataType is DataType.FLOAT32 and tensor.desc.is_packed
