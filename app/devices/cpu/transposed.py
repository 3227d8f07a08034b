"""CONVOLUTION on the CPU, BACKWARD (also called transposed), by loops that LLVM compiled."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.contract.constants import ConvolutionMode, DataType
from app.devices.cpu.activations import lowered_activation
from app.devices.cpu.alone import Making
from app.devices.cpu.calls import Calls
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, parts
from app.devices.cpu.transposed_calls import Layer, TransposedCalls
from app.devices.cpu.transposed_phases import PhaseCalls, Phases
from app.devices.device import ExecutionRecord
from app.memory.arrays import Array, ignoring_float_errors
from app.memory.buffers import Buffer
from app.operators.arrays import Activation
from app.operators.compiled import CompiledOperator
from app.operators.convolution.floats import Convolution

LEAST = 1 << 8
"""Products that are worth the loops, outside of graphs, which are made for more than one dispatch."""

MOST_ITEMS = 1 << 6
"""Of a batch at a time; each has calls of its own."""

MOST_OF_ONE = 1 << 16
"""Products of filters that meet one element of each channel, outside of graphs: for more of them, a product of matrices
takes less time than to turn the filters."""

MOST_KEPT = 32 << 20
"""Bytes of filters that may be kept a second time, turned."""

_TURNED = 2
"""Copies of filters, one after the other, where they are turned in each dispatch."""

INLINE = 1 << 24
"""Products that are done in less than a millisecond."""


def transposed_kernel(
    compiled: CompiledOperator, team: Team, known: Mapping[str, Buffer] | None
) -> "TransposedKernel | None":
    """For the operator, if it is one that the loops are for. `known` are inputs that are the same for all dispatches;
    it is None outside of graphs."""
    operator = compiled.operator
    if not isinstance(operator, Convolution) or not operator.is_backward:
        return None
    items, channels = operator.InputTensor.Sizes[:2]
    groups = operator.GroupCount
    space = Space.of(operator.backward_windows())
    layer = Layer(space, items, groups, channels // groups, operator.FilterTensor.Sizes[1])
    most = MOST_OF_ONE if space.places == 1 else math.inf
    if known is None and not LEAST <= layer.products < most:
        return None
    try:
        return TransposedKernel(compiled, operator, layer, team, known or {})
    except LookupError:
        return None


class TransposedKernel:
    """Implements `Kernel`, and `Compiled` where the filters are known and loops read and write the buffers themselves.

    Raises LookupError if it takes too much memory.
    """

    def __init__(
        self,
        compiled: CompiledOperator,
        operator: Convolution,
        layer: Layer,
        team: Team,
        known: Mapping[str, Buffer],
    ) -> None:
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._layer = layer
        self._is_turned = operator.Mode is ConvolutionMode.CONVOLUTION
        fused = operator.FusedActivation
        lowered = lowered_activation(fused) if fused else None
        self._activation = Activation(fused) if fused and lowered is None else None
        """What is left of it after the loops."""
        sizes = self._target.desc.Sizes
        self._results = (*sizes[:2], *operator.result_sizes())
        self._phases = Phases.of(layer, team.compiler, lowered, team.most)
        self._filters: Array | None = None
        if "FilterTensor" in known and operator.FilterTensor.total_bytes <= MOST_KEPT:
            self._filters = self._packed(1, known["FilterTensor"])
        items = list(parts(range(layer.items), -(-layer.items // MOST_ITEMS)))
        counts = {len(part) for part in items}
        more: dict[str, Any] = {"has_bias": len(self._given) > 2, "filters": self._filters}
        self._own: dict[int, TransposedCalls | PhaseCalls] = {}
        """Which has the memory that calls have addresses of."""
        for count in counts:
            self._own[count] = (
                PhaseCalls(self._phases, count, team.compiler, team.most, **more)
                if self._phases
                else TransposedCalls(layer._replace(items=count), team.compiler, lowered, team.most, **more)
            )
        makings = {count: Making(own.calls, len(self._given), 1, team) for count, own in self._own.items()}
        self._rounds = [(slice(part.start, part.stop), makings[len(part)]) for part in items]
        others = [tensor for place, tensor in enumerate(self._given) if place != 1]
        is_direct = all(
            each.desc.is_packed and each.desc.DataType is DataType.FLOAT32 for each in (*others, self._target)
        )
        is_whole = math.prod(self._results) == self._target.desc.elements
        is_direct = is_direct and is_whole and self._filters is not None and not self._activation
        self._calls = self._own[layer.items].calls if is_direct and len(items) == 1 else None

    @property
    def runs_inline(self) -> bool:
        return self._layer.products <= INLINE and all(making.is_ready for _, making in self._rounds)

    @property
    def own_bytes(self) -> int:
        """The results as loops make them, copies of the input and the bias, the filters turned, and what calls take."""
        copied = sum(each.copied_bytes for place, each in enumerate(self._given) if place != 1)
        if self._filters is None:
            copied += _TURNED * 4 * self._given[1].desc.elements
        return 4 * math.prod(self._results) + copied + max(own.calls.own_bytes for own in self._own.values())

    @property
    def kept_bytes(self) -> int:
        return sum(making.kept_bytes for making in {id(each): each for _, each in self._rounds}.values())

    def calls(self) -> Calls | None:
        return self._calls

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        given = [
            self._filters if place == 1 and self._filters is not None else self._packed(place, buffer)
            for place, buffer in enumerate(inputs)
        ]
        out = self._target.view(outputs[0])
        is_direct = out.shape == self._results and out.dtype == np.float32 and out.flags.c_contiguous
        is_direct = is_direct and not any(np.may_share_memory(out, each) for each in given)
        made = out if is_direct else np.empty(self._results, np.float32)
        x, *others = given
        for items, making in self._rounds:
            making.over([x[items], *others], [made[items]], cancelled)
        self._store(made, out)
        return RAN

    @ignoring_float_errors
    def _store(self, made: Array, out: Array) -> None:
        if self._activation:
            self._activation.apply(np, made)
        if made is out:
            return
        if out.shape != made.shape:
            out[...] = 0
        out[tuple(map(slice, made.shape))] = made

    def _packed(self, place: int, buffer: Buffer) -> Array:
        """An input as the loops read it."""
        found = self._given[place].view(buffer)
        if place != 1:
            return np.ascontiguousarray(found, np.float32)
        if self._is_turned:
            found = np.flip(found, tuple(range(2, found.ndim)))
        layer = self._layer
        if self._phases:
            return self._phases.filters(found.reshape(layer.groups * layer.outputs, *layer.space.extents))
        apart = found.reshape(layer.groups, layer.depth, layer.outputs * layer.space.taps)
        return np.ascontiguousarray(apart.swapaxes(1, 2), np.float32)
