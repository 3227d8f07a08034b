"""CONVOLUTION on the CPU, forward, by a loop that LLVM compiled.

The tensor is copied, padded, so that what a filter's element meets at all positions lies one after the other: positions
are counted along rows of the padded tensor, those at which the filter would lie across its edge among them, and left
out in the end. With strides, elements that the same filter's element meets lie together.
"""

import itertools
import math
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from app.contract.constants import ConvolutionMode
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.sums import Tile, source
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import Activation
from app.operators.compiled import CompiledOperator
from app.operators.convolution.floats import Convolution
from app.operators.convolution.windows import Windows
from app.programs.dispatchable import Dispatchable

LEAST, MOST_EXTRA = 1 << 14, 4
"""Products that are worth the loop, and how many times as large as tensors the copies may be."""

WORTH_A_PIECE = 1 << 20
"""Products that take a thread some 20 us."""

FEW_PHASES = 8
"""Of a copy, that are copied one by one."""

MOST_SCRATCH = 64 << 20
"""Bytes that a thread keeps for its next convolutions."""

INLINE = 1 << 24
"""Products that are done in less than a millisecond."""


def convolution_kernel(compiled: Dispatchable, compiler: Compiler, threads: Threads) -> "ConvolutionKernel | None":
    """For the operator, if it is one that the loop is for."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Convolution) or operator.is_backward:
        return None
    places = Places(operator.forward_windows())
    channels, outputs = operator.InputTensor.Sizes[1], compiled.outputs["OutputTensor"].Sizes[1]
    terms = math.prod(operator.FilterTensor.Sizes[1:])
    if outputs * places.count * terms * operator.InputTensor.Sizes[0] < LEAST:
        return None
    given = math.prod(operator.InputTensor.Sizes[1:]) + math.prod(compiled.outputs["OutputTensor"].Sizes[1:])
    if channels * places.of_channel + outputs * places.count > MOST_EXTRA * given + (1 << 16):
        return None
    return ConvolutionKernel(compiled, operator, places, compiler, threads)


class Places:
    """Where in a copy of a tensor's channel its elements lie, and which of these the filter's elements meet.

    A copy has a part for each phase, that is the remainder of a padded coordinate by the stride, as far as the filter
    meets it. All parts have the same sizes, `grid`, and a position of the filter is a place in any of them.
    """

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        along = list(zip(windows.extents, windows.strides, windows.dilations, strict=True))
        self._reached = [[divmod(k * dilation, stride) for k in range(extent)] for extent, stride, dilation in along]
        self.grid = [
            count + max(quotient for quotient, _ in reached)
            for count, reached in zip(windows.positions, self._reached, strict=True)
        ]
        self.phases = list(itertools.product(*[sorted({phase for _, phase in reached}) for reached in self._reached]))
        self.part = math.prod(self.grid)
        self.of_channel = len(self.phases) * self.part
        self._steps = [math.prod(self.grid[axis + 1 :]) for axis in range(len(self.grid))]
        last = sum((count - 1) * step for count, step in zip(windows.positions, self._steps, strict=True))
        self.count = last + 1
        """Places of positions, those between the last of a row and the first of the next among them."""

    def table(self, channels: int) -> Array:
        """How far behind a position's place each element of the filter, { channels, spatial... }, meets its own."""
        numbers = {phase: number for number, phase in enumerate(self.phases)}
        met = [
            numbers[tuple(phase for _, phase in each)] * self.part
            + sum(quotient * step for (quotient, _), step in zip(each, self._steps, strict=True))
            for each in itertools.product(*self._reached)
        ]
        made: Array = (np.arange(channels)[:, None] * self.of_channel + np.array(met)).reshape(-1)
        return made

    @property
    def is_covered(self) -> bool:
        """Whether each element of a copy is one of the tensor."""
        return all(
            grid * stride - start <= size and not start and len(self.phases) in (1, math.prod(self.windows.strides))
            for grid, size, stride, start in zip(
                self.grid, self.windows.sizes, self.windows.strides, self.windows.starts, strict=True
            )
        )

    def fill(self, x: Array, copy: Array) -> None:
        """`copy`, { channels, phases, grid... } of zeros, with the elements of `x`, { channels, spatial... }."""
        strides = self.windows.strides
        if FEW_PHASES < len(self.phases) == math.prod(strides):
            padded = np.zeros(
                (len(x), *[count * stride for count, stride in zip(self.grid, strides, strict=True)]), x.dtype
            )
            self._fill_phase(x, padded, (0,) * len(strides), (1,) * len(strides))
            both = [each for pair in zip(self.grid, strides, strict=True) for each in pair]
            turned = padded.reshape(len(x), *both)
            axes = range(1, 1 + len(both))
            copy[...] = turned.transpose(0, *axes[1::2], *axes[::2]).reshape(copy.shape)
            return
        for number, phase in enumerate(self.phases):
            self._fill_phase(x, copy[:, number], phase, strides)

    def _fill_phase(self, x: Array, part: Array, phase: Sequence[int], strides: Sequence[int]) -> None:
        """`part`, { channels, ... }, with every element of the padded tensor that is a multiple of the stride, and the
        phase, from its beginning."""
        there, here = [], []
        for axis, (of_axis, stride) in enumerate(zip(phase, strides, strict=True)):
            size, start = self.windows.sizes[axis], self.windows.starts[axis]
            begin = max(0, -((of_axis - start) // stride))
            first = begin * stride + of_axis - start
            count = max(0, min(part.shape[1 + axis] - begin, -((first - size) // stride)))
            there.append(slice(begin, begin + count))
            here.append(slice(first, first + (count - 1) * stride + 1, stride) if count else slice(0, 0))
        part[(slice(None), *there)] = x[(slice(None), *here)]


class _Scratch(threading.local):
    """Memory that each thread uses again and again: fresh memory costs more than what is done with it."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.float32)

    def take(self, *sizes: int) -> list[Array]:
        """Arrays of so many float32, of anything, until this thread takes others."""
        whole = sum(sizes)
        memory = self._held if self._held.size >= whole else np.empty(whole, np.float32)
        if memory.nbytes <= MOST_SCRATCH:
            self._held = memory
        ends = list(itertools.accumulate(sizes))
        return [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]


_scratch = _Scratch()


class _Piece(NamedTuple):
    """What one thread computes at a time."""

    tile: Tile
    groups: range
    channels: range
    """Of each group."""
    tiles: range


@dataclass(frozen=True, slots=True)
class _Memory:
    """Of a dispatch: addresses of the copy, the filters and the biases, and of the results, with the way from channel
    to channel."""

    elements: int
    weights: int
    bias: int
    results: int


class ConvolutionKernel:
    """Implements `Kernel`."""

    def __init__(
        self, compiled: Dispatchable, operator: Convolution, places: Places, compiler: Compiler, threads: Threads
    ) -> None:
        self._tensors = [
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        ]
        self._places = places
        self._threads = threads
        self._is_turned = operator.Mode is ConvolutionMode.CONVOLUTION
        self._activation = Activation(operator.FusedActivation)
        self._batch, self._channels = operator.InputTensor.Sizes[:2]
        self._outputs = compiled.outputs["OutputTensor"].Sizes[1]
        self._groups = operator.GroupCount
        depth = operator.FilterTensor.Sizes[1]
        self._depth, self._table = depth, places.table(depth)
        each = self._outputs // self._groups
        self._tiles = [(tile, part) for tile, part in _tiles(each, compiler.vector_floats)]
        self._row = max(-(-places.count // tile.places) * tile.places for tile, _ in self._tiles)
        self._codes = {tile: Code(compiler, source(tile)) for tile, _ in self._tiles}
        products = self._outputs * places.count * len(self._table)
        self._work = products * self._batch
        self._pieces = list(self._cut(products))

    @property
    def runs_inline(self) -> bool:
        return self._work <= INLINE and all(code.is_compiled for code in self._codes.values())

    def _cut(self, products: int) -> Iterator[_Piece]:
        wanted = max(1, min(4 * self._threads.most, products // WORTH_A_PIECE)) if self._threads.most > 1 else 1
        groups, outputs = self._groups, self._outputs // self._groups
        for tile, channels in self._tiles:
            tiles = range(-(-self._places.count // tile.places))
            share = max(1, wanted * len(channels) // outputs)
            if groups >= share:
                yield from (_Piece(tile, each, channels, tiles) for each in _parts(range(groups), share))
            elif len(tiles) >= share:
                yield from (_Piece(tile, range(groups), channels, each) for each in _parts(tiles, share))
            else:
                blocks = range(len(channels) // tile.channels)
                for part in _parts(blocks, share):
                    start = channels.start + part.start * tile.channels
                    own = range(start, start + len(part) * tile.channels)
                    yield _Piece(tile, range(groups), own, tiles)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        *given, target = self._tensors
        x, filters, *rest = (tensor.elements(buffer) for tensor, buffer in zip(given, inputs, strict=True))
        if self._is_turned:
            filters = np.flip(filters, tuple(range(2, filters.ndim)))
        filters = np.ascontiguousarray(filters, np.float32)
        bias = np.ascontiguousarray(rest[0].reshape(-1) if rest else np.zeros(self._outputs), np.float32)
        results = self._places.windows.positions
        out = target.elements(outputs[0])
        direct = out.dtype == np.float32 and out.flags.c_contiguous and list(out.shape[2:]) == list(results)
        direct = direct and not any(np.may_share_memory(out, each) for each in (x, filters, bias))
        made = out if direct else np.empty((*out.shape[:2], *results), np.float32)
        copied = self._channels * self._places.of_channel
        copy, sums = _scratch.take(copied + self._row, self._outputs * self._row)
        copy[0 if not self._places.is_covered else copied :] = 0  # behind the copy a tile's last places reach
        sums = sums.reshape(self._outputs, self._row)
        for item in range(self._batch):
            if cancelled():
                raise Cancelled
            self._fill(x[item], copy)
            memory = _Memory(*(each.ctypes.data for each in (copy, filters, bias, sums)))
            self._threads.share(len(self._pieces), partial(self._run, memory), cancelled)
            made[item] = self._cropped(sums)
        with np.errstate(all="ignore"):
            self._activation.apply(np, made)
        if not direct:
            if list(out.shape[2:]) != list(results):
                out[...] = 0
            with np.errstate(all="ignore"):
                out[(slice(None), slice(None), *map(slice, results))] = made
        return RAN

    def _fill(self, x: Array, copy: Array) -> None:
        size = self._channels * self._places.of_channel
        shaped = copy[:size].reshape(self._channels, len(self._places.phases), *self._places.grid)
        self._places.fill(x, shaped)

    def _cropped(self, sums: Array) -> Any:
        """Without what lies between rows."""
        grid, positions = self._places.grid, self._places.windows.positions
        steps = [4 * math.prod(grid[axis + 1 :]) for axis in range(len(grid))]
        return np.lib.stride_tricks.as_strided(sums, (self._outputs, *positions), (sums.strides[0], *steps))

    def _run(self, memory: _Memory, turn: int) -> None:
        tile, groups, channels, tiles = self._pieces[turn]
        frame = array(
            "q",
            [
                *(memory.elements, memory.weights, self._table.ctypes.data, memory.bias, memory.results),
                *(len(self._table), groups.start, groups.stop, channels.start, channels.stop, tiles.start, tiles.stop),
                *(self._depth * self._places.of_channel, self._outputs // self._groups, len(self._table), self._row),
            ],
        )
        self._codes[tile](frame)


def _parts(whole: range, count: int) -> Iterator[range]:
    """`whole` in at most so many parts, about equally long."""
    count = min(count, len(whole))
    for number in range(count):
        yield whole[len(whole) * number // count : len(whole) * (number + 1) // count]


def _tiles(channels: int, width: int) -> Iterator[tuple[Tile, range]]:
    """Tiles for so many channels of a group, and which of them each is for: 32 registers of AVX-512 hold 8 channels' of
    two vectors, 16 of AVX2 four."""
    most = 8 if width != 8 else 4
    whole = channels // most * most
    if whole:
        yield Tile(most, 2, width), range(whole)
    rest = channels - whole
    if rest:
        yield Tile(rest, 4 if rest <= most // 2 else 2, width), range(whole, channels)
