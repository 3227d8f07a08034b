"""A transposed convolution of one channel to a group, on the CPU, as calls of loops that LLVM compiled.

Elements of the output that are a stride apart meet the same elements of a filter: they are a phase, which is what a
convolution makes that is not transposed, of these elements from the last to the first. The phases are made one by one
and then interleaved.
"""

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.devices.cpu.activations import LoweredActivation
from app.devices.cpu.calls import WORTH_A_CALL, Call, Calls, Of, Pointer, pieces
from app.devices.cpu.convolution_loops import ConvolutionLoop, ItemWork, Space, channelwise_loop
from app.devices.cpu.llvm import interleaving
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.threads import parts
from app.devices.cpu.transposed_calls import FILTERS, MOST_OF_A_CALL, MOST_OWN, Layer
from app.memory.addresses import whole_lines
from app.memory.arrays import Array

MOST_PHASES, MOST_STRIDE = 64, 8
"""Of an output, and elements that are stored side by side, for which code is written one by one."""

LEAST_TAPS = 2
"""Elements of a filter in a phase, on average, for which products are better not written before they are added."""

WORK = 8
"""Of an element that is interleaved."""


class _Along(NamedTuple):
    """A phase along a dimension: elements of the filter, and what `Space` has."""

    taps: range
    positions: int
    dilation: int
    start: int

    @property
    def places(self) -> slice:
        """The elements of the filter."""
        taps = self.taps
        return slice(taps.start, taps.stop if taps.stop >= 0 else None, taps.step)


@dataclass(frozen=True, slots=True)
class Phases:
    """Those of a layer, the last dimension's fastest, each by its dimensions, with what makes it."""

    layer: Layer
    each: Sequence[tuple[_Along, ...]]
    loops: Sequence[ConvolutionLoop]

    @classmethod
    def of(
        cls, layer: Layer, compiler: Compiler, activation: LoweredActivation | None, threads: int
    ) -> "Phases | None":
        """None where products are made before they are added."""
        space = layer.space
        count = math.prod(space.strides)
        is_few = count <= MOST_PHASES and space.strides[2] <= MOST_STRIDE and space.taps >= LEAST_TAPS * count
        if layer.depth > 1 or layer.groups == 1 or not is_few:
            return None
        along = [list(_along(space, axis)) for axis in range(3)]
        phases = list(itertools.product(*along))
        if len(phases) < count or any(not each.taps or each.start < 0 for each in itertools.chain(*along)):
            return None
        loops = []
        for each in phases:
            of_phase = _space(layer, each)
            products = layer.groups * layer.outputs * of_phase.taps * of_phase.places
            worth = max(WORTH_A_CALL, products // (2 * threads))
            work = ItemWork(of_phase, layer.groups, 1, layer.outputs, 1, threads, worth)
            loop = channelwise_loop(work, compiler, activation)
            if loop is None:
                return None
            loops.append(loop)
        found = cls(layer, phases, loops)
        return found if found.own_bytes <= MOST_OWN else None

    @property
    def scratch(self) -> int:
        """Where memory begins that each call has for itself, behind all that is made."""
        return whole_lines(4 * _results(self.layer))

    @property
    def own_bytes(self) -> int:
        return self.scratch + sum(loop.pieces * whole_lines(4 * loop.scratch) for loop in self.loops)

    @property
    def spaces(self) -> list[Space]:
        return [_space(self.layer, each) for each in self.each]

    def filters(self, apart: Array) -> Array:
        """{ channels, z, y, x } as the calls read them: phase by phase those of all channels."""
        taken = [apart[:, *(phase.places for phase in each)].reshape(-1) for each in self.each]
        return np.concatenate(taken).astype(np.float32, copy=False)


def _space(layer: Layer, each: tuple[_Along, ...]) -> Space:
    """Where the filters of a phase lie, over the input."""
    return Space(
        layer.space.positions,
        tuple(phase.positions for phase in each),
        tuple(len(phase.taps) for phase in each),
        (1, 1, 1),
        tuple(phase.dilation for phase in each),
        tuple(phase.start for phase in each),
    )


def _results(layer: Layer) -> int:
    return layer.groups * layer.outputs * layer.space.elements


def _along(space: Space, axis: int) -> Iterator[_Along]:
    """The phases along a dimension. An input's element i and a filter's element k meet an output's at i * stride + k *
    dilation - start, so that one with a larger i has a smaller k."""
    size, extent, stride, dilation, start = (
        each[axis] for each in (space.sizes, space.extents, space.strides, space.dilations, space.starts)
    )
    common = math.gcd(stride, dilation)
    step = stride // common
    for phase in range(min(stride, size)):
        found = [k for k in range(min(extent, step)) if (k * dilation - start - phase) % stride == 0]
        taps = range(found[0], extent, step) if found else range(0)
        last = taps[-1] if taps else 0
        yield _Along(
            taps[::-1],
            -(-(size - phase) // stride),
            dilation // common,
            (last * dilation - start - phase) // stride,
        )


class PhaseCalls:
    """The calls for a layer whose tensors are packed float32, on at most so many `threads`."""

    def __init__(
        self, phases: Phases, items: int, compiler: Compiler, threads: int, *, has_bias: bool, filters: Array | None
    ) -> None:
        """Of so many items. The `filters` are as for `TransposedCalls`."""
        self._layer, self._threads, self._has_bias = phases.layer, threads, has_bias
        self._filters = filters.ctypes.data if filters is not None else None
        channels = self._layer.groups * self._layer.outputs
        self._zeros = np.zeros(channels, np.float32)
        self._loops, self._spaces, self._scratch = phases.loops, phases.spaces, phases.scratch
        self._starts = list(itertools.accumulate((channels * space.places for space in self._spaces[:-1]), initial=0))
        self._table = self._table_of()
        self._held = filters, self._zeros, self._table
        self._interleave = Code(compiler, interleaving.source(self._layer.space.strides[2]))
        stages: list[Sequence[Call]] = []
        for item in range(items):
            stages.append([*self._made(item)])
            if len(self._loops) > 1:
                stages.append([*self._interleaved(item)])
        self.calls = Calls(stages, phases.own_bytes)

    def _made(self, item: int) -> Iterator[Call]:
        """The phases, or the output if it is one."""
        layer, scratch, taps = self._layer, self._scratch, 0
        for loop, space, start in zip(self._loops, self._spaces, self._starts, strict=True):
            work = loop.factor * layer.groups * layer.outputs * space.taps * space.places // loop.pieces
            for frame in loop.frames:
                made = frame[:]
                pointers = [
                    Pointer(0, Of.INPUT, 0, 4 * item * layer.groups * space.elements),
                    Pointer(4, Of.OWN, 0, scratch),
                    Pointer(3, Of.OWN, 0, 4 * start)
                    if len(self._loops) > 1
                    else Pointer(3, Of.OUTPUT, 0, 4 * item * _results(layer)),
                ]
                if self._has_bias:
                    pointers.append(Pointer(2, Of.INPUT, 2))
                else:
                    made[2] = self._zeros.ctypes.data
                if self._filters is None:
                    pointers.append(Pointer(1, Of.INPUT, FILTERS, 4 * taps))
                else:
                    made[1] = self._filters + 4 * taps
                scratch += whole_lines(4 * loop.scratch)
                yield Call(loop.code, made, pointers, work)
            taps += layer.groups * layer.outputs * space.taps

    def _interleaved(self, item: int) -> Iterator[Call]:
        """The output, of the phases."""
        layer, space = self._layer, self._layer.space
        channels, work = layer.groups * layer.outputs, WORK * space.elements
        count = max(pieces(work * channels, self._threads), work * channels // MOST_OF_A_CALL)
        for part in parts(range(channels), count):
            numbers = [part.start, part.stop, space.elements, *space.sizes, *space.strides]
            frame = array("q", [0, 0, self._table.ctypes.data, *numbers])
            pointers = [Pointer(0, Of.OWN), Pointer(1, Of.OUTPUT, 0, 4 * item * _results(layer))]
            yield Call(self._interleave, frame, pointers, work * len(part))

    def _table_of(self) -> Array:
        """That of `interleaving`."""
        along = self._layer.space.strides[2]
        made = []
        for number, (space, start) in enumerate(zip(self._spaces, self._starts, strict=True)):
            *_, last = self._spaces[number // along * along : number // along * along + along]
            made += [start, space.places, *space.positions[1:], last.positions[2]]
        return np.array(made, np.int64)
