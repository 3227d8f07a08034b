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
from functools import partial
from typing import NamedTuple

import numpy as np

from app.contract.constants import ConvolutionMode, DataType
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.sums import MOST_TERMS, Tile, source
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import Activation
from app.operators.compiled import CompiledOperator
from app.operators.convolution.floats import Convolution
from app.operators.convolution.windows import Windows
from app.programs.dispatchable import Dispatchable

LEAST, MOST_EXTRA = 1 << 8, 4
"""Products that are worth the loop, and how many times as large as tensors the copies may be."""

WORTH_A_PIECE = 1 << 20
"""Products that take a thread some 20 us."""

MOST_ROOMS = 512
"""Convolutions whose use of its memory a thread knows."""

FEW_PHASES = 8
"""Of a copy, that are copied one by one."""

FOR_BLAS = 1 << 18
"""Products for which OpenBLAS does not wake threads of its own, which on a busy machine can take 10 ms."""

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
    products = outputs * places.count * terms * operator.InputTensor.Sizes[0]
    if products < LEAST and not places.windows.is_pointwise:
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
        self.is_covered = self._is_covered()
        """Whether each element of a copy is one of the tensor."""

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

    def _is_covered(self) -> bool:
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
        self._rooms: dict[_Geometry, _Room] = {}

    def room(self, geometry: "_Geometry") -> "_Room":
        """Memory of this geometry, with anything in it, until this thread asks for another one."""
        room = self._rooms.get(geometry)
        if room is None:
            size = geometry.copied + geometry.summed
            memory = self._held
            if memory.size < size:
                memory = np.empty(size, np.float32)
            room = _Room.of(memory, geometry)
            if memory.nbytes <= MOST_SCRATCH:
                if memory is not self._held or len(self._rooms) >= MOST_ROOMS:
                    self._held, self._rooms = memory, {}
                self._rooms[geometry] = room
        return room


class _Geometry(NamedTuple):
    """What a convolution needs, in float32: the copy of an item and its sums."""

    parts: tuple[int, ...]
    """The sizes of the copy."""
    copied: int
    outputs: int
    row: int
    """Of the sums of one channel."""
    grid: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def summed(self) -> int:
        return self.outputs * self.row


class _Room(NamedTuple):
    """Memory in the arrays that it is used as."""

    copy: Array
    parts: Array
    """The copy without what lies behind it."""
    sums: Array
    cropped: Array
    """The sums without those between rows."""
    copy_address: int
    sums_address: int

    @classmethod
    def of(cls, memory: Array, geometry: _Geometry) -> "_Room":
        copy, sums = memory[: geometry.copied], memory[geometry.copied : geometry.copied + geometry.summed]
        grid = geometry.grid
        steps = [4 * math.prod(grid[axis + 1 :]) for axis in range(len(grid))]
        cropped = np.lib.stride_tricks.as_strided(
            sums, (geometry.outputs, *geometry.positions), (4 * geometry.row, *steps)
        )
        parts = copy[: math.prod(geometry.parts)].reshape(geometry.parts)
        return cls(copy, parts, sums, cropped, copy.ctypes.data, sums.ctypes.data)


_scratch = _Scratch()


class _Piece(NamedTuple):
    """What one thread computes at a time."""

    tile: Tile
    groups: range
    channels: range
    """Of each group."""
    tiles: range


class _Addresses(NamedTuple):
    """Of a dispatch: the elements, the filters, the biases and the results."""

    elements: int
    weights: int
    bias: int
    results: int


class ConvolutionKernel:
    """Implements `Kernel`."""

    def __init__(
        self, compiled: Dispatchable, operator: Convolution, places: Places, compiler: Compiler, threads: Threads
    ) -> None:
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._places = places
        self._threads = threads
        self._is_turned = operator.Mode is ConvolutionMode.CONVOLUTION
        self._activation = Activation(operator.FusedActivation) if operator.FusedActivation else None
        self._batch, self._channels = operator.InputTensor.Sizes[:2]
        self._outputs = compiled.outputs["OutputTensor"].Sizes[1]
        self._groups = operator.GroupCount
        depth = operator.FilterTensor.Sizes[1]
        self._depth, self._table = depth, places.table(depth)
        each = self._outputs // self._groups
        self._tiles = [(tile, part) for tile, part in _tiles(each, compiler.vector_floats, places.count)]
        widest = max(tile.places for tile, _ in self._tiles)
        row = max(-(-places.count // tile.places) * tile.places for tile, _ in self._tiles)
        pointwise = places.windows.is_pointwise and all(map(_is_packed, self._given[:1]))
        is_small = self._outputs * places.count * depth <= FOR_BLAS
        self._is_product = pointwise and self._groups == 1 and places.count < widest and is_small
        self._reads_tensor = pointwise and places.count >= widest
        self._row = places.count if self._reads_tensor else row
        parts = (self._channels, len(places.phases), *places.grid)
        results = tuple(places.windows.positions)
        self._geometry = _Geometry(parts, math.prod(parts) + row, self._outputs, row, tuple(places.grid), results)
        self._is_direct = _is_packed(self._target) and list(results) == self._target.desc.Sizes[2:]
        self._results = results
        self._packed = [_is_packed(tensor) for tensor in self._given]
        self._zeros = np.zeros(self._outputs, np.float32)
        self._codes = {tile: Code(compiler, source(tile)) for tile, _ in self._tiles}
        products = self._outputs * places.count * len(self._table)
        self._work = products * self._batch
        self._pieces = [(self._codes[piece.tile], self._frame(piece)) for piece in self._cut(products)]

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
                yield from (_Piece(tile, each, channels, tiles) for each in parts(range(groups), share))
            elif len(tiles) >= share:
                yield from (_Piece(tile, range(groups), channels, each) for each in parts(tiles, share))
            else:
                blocks = range(len(channels) // tile.channels)
                for part in parts(blocks, share):
                    start = channels.start + part.start * tile.channels
                    own = range(start, start + len(part) * tile.channels)
                    yield _Piece(tile, range(groups), own, tiles)

    def _frame(self, piece: _Piece) -> "array[int]":
        """What the loop is told, but for the addresses of a dispatch."""
        tile, groups, channels, tiles = piece
        last, terms = tiles.stop * tile.places, MOST_TERMS
        if self._reads_tensor:  # the last tile goes back to where the one before has been, and must not add again
            last, terms = self._places.count - tile.places, len(self._table)
        return array(
            "q",
            [
                *(0, 0, self._table.ctypes.data, 0, 0, len(self._table)),
                *(groups.start, groups.stop, channels.start, channels.stop, tiles.start, tiles.stop),
                *(self._depth * self._places.of_channel, self._outputs // self._groups, len(self._table), self._row),
                *(last, terms, 0),
            ],
        )

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        x = self._given[0].view(inputs[0])
        out = self._target.view(outputs[0])
        filters, weights = self._numbers(1, inputs)
        bias, biases = self._numbers(2, inputs) if len(inputs) > 2 else (self._zeros, self._zeros.ctypes.data)
        direct = self._is_direct and not any(np.may_share_memory(out, each) for each in (x, filters, bias))
        made = out if direct else np.empty((*out.shape[:2], *self._results), np.float32)
        if self._is_product:
            if cancelled():
                raise Cancelled
            with np.errstate(all="ignore"):
                results = made.reshape(self._batch, self._outputs, -1)
                np.matmul(filters.reshape(self._outputs, -1), x.reshape(self._batch, self._channels, -1), out=results)
                if len(inputs) > 2:
                    results += bias.reshape(-1, 1)
        else:
            self._by_loop(x, made, weights, biases, cancelled)
        if self._activation:
            with np.errstate(all="ignore"):
                self._activation.apply(np, made)
        if not direct:
            if out.shape[2:] != self._results:
                out[...] = 0
            with np.errstate(all="ignore"):
                out[(slice(None), slice(None), *map(slice, self._results))] = made
        return RAN

    def _by_loop(self, x: Array, made: Array, weights: int, bias: int, cancelled: Callable[[], bool]) -> None:
        if self._reads_tensor:
            start, target = x.ctypes.data, made.ctypes.data
            for item in range(self._batch):
                elements = start + 4 * item * self._channels * self._places.count
                results = target + 4 * item * self._outputs * self._places.count
                self._share(_Addresses(elements, weights, bias, results), cancelled)
            return
        room = _scratch.room(self._geometry)
        copied = room.parts.size
        room.copy[0 if not self._places.is_covered else copied :] = 0  # behind the copy a tile's last places reach
        memory = _Addresses(room.copy_address, weights, bias, room.sums_address)
        for item in range(self._batch):
            self._places.fill(x[item], room.parts)
            self._share(memory, cancelled)
            made[item] = room.cropped

    def _numbers(self, place: int, inputs: Sequence[Buffer]) -> tuple[Array, int]:
        """Of filters or biases, packed, and where they are."""
        found = self._given[place].view(inputs[place])
        if place == 1 and self._is_turned:
            found = np.flip(found, tuple(range(2, found.ndim)))
        elif self._packed[place]:
            return found, address_of(inputs[place])
        found = np.ascontiguousarray(found, np.float32)
        return found, found.ctypes.data

    def _share(self, memory: _Addresses, cancelled: Callable[[], bool]) -> None:
        self._threads.share(len(self._pieces), partial(self._run, memory), cancelled)

    def _run(self, memory: _Addresses, turn: int) -> None:
        code, frame = self._pieces[turn]
        frame = frame[:]
        frame[0], frame[1], frame[3], frame[4] = memory
        code(frame)


def _is_packed(tensor: Tensor) -> bool:
    """Whether it is float32 as the loop reads and writes it."""
    return tensor.desc.DataType is DataType.FLOAT32 and tensor.desc.is_packed


def _tiles(channels: int, width: int, places: int) -> Iterator[tuple[Tile, range]]:
    """Tiles for so many channels of a group, and which of them each is for: 32 registers of AVX-512 hold 8 channels' of
    two vectors, 16 of AVX2 four. They are not wider than so many places take."""
    most, widest = 8 if width != 8 else 4, -(-places // width)
    whole = channels // most * most
    if whole:
        yield Tile(most, min(2, widest), width), range(whole)
    rest = channels - whole
    if rest:
        yield Tile(rest, min(4 if rest <= most // 2 else 2, widest), width), range(whole, channels)
