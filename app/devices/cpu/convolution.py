"""CONVOLUTION on the CPU, forward, by loops that LLVM compiled.

There are three, by what is much: `panels` packs what filters meet for many of them, `channelwise` copies a channel
with its padding for the few that meet it, and `dots` is for few positions. All write results where they belong,
activated. What they pack is in memory that each thread uses again and again.
"""

import math
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from app.contract.constants import ConvolutionMode, DataType
from app.devices.cpu.activations import LoweredActivation, lowered_activation
from app.devices.cpu.llvm import channelwise, panels
from app.devices.cpu.llvm.channelwise import Rows
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.sums import Tile
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import ExecutionRecord
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import Activation
from app.operators.compiled import CompiledOperator
from app.operators.convolution.floats import Convolution
from app.operators.convolution.windows import Windows
from app.programs.dispatchable import Dispatchable

LEAST = 1 << 8
"""Products that are worth the loop."""

WORTH_A_PIECE, MOST_OF_A_PIECE = 1 << 21, 1 << 28
"""Products that take a thread some 10 us, and some 3 ms, after which it looks whether it is to go on."""

TERMS = 512
"""Elements of a filter that are packed at a time: the filters' and what they meet stay in the second cache."""

MOST_SCRATCH = 4 << 20
"""Bytes that a thread packs at most."""

MOST_CHANNELWISE, MOST_COPIED = 2, 1 << 19
"""Filters to a group of channels for which these are copied, and bytes of the copy, which is read at once."""

MOST_PIECES = 16
"""For each thread: the last ones are computed while others have nothing to do."""

FARTHEST = 1 << 30
"""Coordinates are computed in 32 bits."""

INLINE = 1 << 24
"""Products that are done in less than a millisecond."""


def convolution_kernel(compiled: Dispatchable, compiler: Compiler, threads: Threads) -> "ConvolutionKernel | None":
    """For the operator, if it is one that the loops are for."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Convolution) or operator.is_backward:
        return None
    space = Space.of(operator.forward_windows())
    products = math.prod(operator.FilterTensor.Sizes) * space.places * operator.InputTensor.Sizes[0]
    if products < LEAST or space.farthest >= FARTHEST or 4 * space.taps * _widest(compiler).places > MOST_SCRATCH:
        return None
    return ConvolutionKernel(compiled, operator, space, compiler, threads)


class Space(NamedTuple):
    """Where filters lie over channels of three dimensions, z, y and x: `Windows`, those that are missing filled up in
    front."""

    sizes: tuple[int, ...]
    positions: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, windows: Windows) -> "Space":
        ones = (1, 1, 1)
        if windows.is_pointwise:
            row = (1, 1, math.prod(windows.sizes))
            return cls(row, row, ones, ones, ones, (0, 0, 0))
        front = ones[len(windows.sizes) :]
        of_all = (windows.sizes, windows.positions, windows.extents, windows.strides, windows.dilations)
        sizes, positions, extents, strides, dilations = ((*front, *each) for each in of_all)
        return cls(sizes, positions, extents, strides, dilations, (*[0] * len(front), *windows.starts))

    @property
    def elements(self) -> int:
        """Of a channel."""
        return math.prod(self.sizes)

    @property
    def places(self) -> int:
        return math.prod(self.positions)

    @property
    def taps(self) -> int:
        """Elements of a filter in a channel."""
        return math.prod(self.extents)

    @property
    def farthest(self) -> int:
        """No coordinate is larger, nor are those of the elements that a vector has besides."""
        along = zip(self.sizes, self.positions, self.extents, self.strides, self.dilations, self.starts, strict=True)
        far: list[int] = [
            size + start + (count + 64) * stride + extent * dilation
            for size, count, extent, stride, dilation, start in along
        ]
        return max(far)


class _Scratch(threading.local):
    """Memory that each thread uses again and again."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.float32)

    def address(self, size: int) -> int:
        """Of so many float32, with anything in them, until this thread asks again; it is a multiple of 64."""
        if self._held.size < size + 16:
            self._held = np.empty(size + 16, np.float32)
        start: int = self._held.ctypes.data
        return -(-start // 64) * 64


_scratch = _Scratch()


class _Piece(NamedTuple):
    """What one thread computes at a time."""

    groups: range
    channels: range
    """Of each group."""
    places: range


class _Addresses(NamedTuple):
    """Of an item: the elements, the filters, the biases and the results."""

    elements: int
    weights: int
    bias: int
    results: int


class _Loop:
    """The code for a convolution, and what it is told of each piece but for addresses."""

    def __init__(self, code: Code, frames: Sequence["array[int]"], scratch: int, table: Array | None = None) -> None:
        """`scratch` is how many float32 are packed. The frames have the address of the `table`."""
        self.code = code
        self._table = table
        self.pieces = len(frames)
        self._frames = frames
        self._scratch = scratch

    def run(self, piece: int, memory: _Addresses) -> None:
        frame = self._frames[piece][:]
        frame[0], frame[1], frame[2], frame[3] = memory
        frame[4] = _scratch.address(self._scratch)
        self.code(frame)


class _Work(NamedTuple):
    """Of one item."""

    space: Space
    groups: int
    depth: int
    """Channels of a filter."""
    outputs: int
    """Channels of the output in a group."""
    pieces: int
    """Wanted."""
    threads: int

    @property
    def channel_numbers(self) -> list[int]:
        """What a frame has of channels: elements of the input's, how many a group has of the output, and elements."""
        return [self.space.elements, self.outputs, self.space.places]


class ConvolutionKernel:
    """Implements `Kernel`."""

    def __init__(
        self, compiled: Dispatchable, operator: Convolution, space: Space, compiler: Compiler, threads: Threads
    ) -> None:
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._threads = threads
        self._is_turned = operator.Mode is ConvolutionMode.CONVOLUTION
        self._batch, channels = operator.InputTensor.Sizes[:2]
        outputs, depth = operator.FilterTensor.Sizes[:2]
        self._item, self._result = channels * space.elements, outputs * space.places
        self._results = tuple(operator.forward_sizes())
        self._is_direct = _is_packed(self._target) and list(self._results) == self._target.desc.Sizes[2:]
        self._packed = [_is_packed(tensor) for tensor in self._given]
        self._zeros = np.zeros(outputs, np.float32)
        self._work = self._result * depth * space.taps * self._batch
        fused = operator.FusedActivation
        lowered = lowered_activation(fused) if fused else None
        self._activation = Activation(fused) if fused and lowered is None else None
        wanted = max(1, min(MOST_PIECES * threads.most, self._work // WORTH_A_PIECE) if threads.most > 1 else 1)
        wanted = -(-max(wanted, self._work // MOST_OF_A_PIECE) // self._batch)
        groups = operator.GroupCount
        work = _Work(space, groups, depth, outputs // groups, wanted, threads.most)
        make = _channelwise if _is_channelwise(work) else _panels
        self._loop = make(work, compiler, lowered)

    @property
    def runs_inline(self) -> bool:
        return self._work <= INLINE and self._loop.code.is_compiled

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        x = self._given[0].view(inputs[0])
        out = self._target.view(outputs[0])
        filters, weights = self._numbers(1, inputs)
        bias, biases = self._numbers(2, inputs) if len(inputs) > 2 else (self._zeros, self._zeros.ctypes.data)
        direct = self._is_direct and not any(np.may_share_memory(out, each) for each in (x, filters, bias))
        made = out if direct else np.empty((*out.shape[:2], *self._results), np.float32)
        addresses = _Addresses(0, weights, bias=biases, results=made.ctypes.data)
        if self._packed[0]:
            self._share(x, range(self._batch), addresses, cancelled)
        else:
            for item in range(self._batch):
                self._share(np.ascontiguousarray(x[item], np.float32), range(item, item + 1), addresses, cancelled)
        with np.errstate(all="ignore"):
            if self._activation:
                self._activation.apply(np, made)
            if not direct:
                if out.shape[2:] != self._results:
                    out[...] = 0
                out[(slice(None), slice(None), *map(slice, self._results))] = made
        return RAN

    def _numbers(self, place: int, inputs: Sequence[Buffer]) -> tuple[Array, int]:
        """Of filters or biases, packed, and where they are."""
        found = self._given[place].view(inputs[place])
        if place == 1 and self._is_turned:
            found = np.flip(found, tuple(range(2, found.ndim)))
        elif self._packed[place]:
            return found, address_of(inputs[place])
        found = np.ascontiguousarray(found, np.float32)
        return found, found.ctypes.data

    def _share(self, x: Array, items: range, memory: _Addresses, cancelled: Callable[[], bool]) -> None:
        """Compute items, of which `x` has the elements."""
        memory = memory._replace(elements=x.ctypes.data)
        self._threads.share(len(items) * self._loop.pieces, partial(self._run, items.start, memory), cancelled)

    def _run(self, first: int, memory: _Addresses, turn: int) -> None:
        item, piece = divmod(turn, self._loop.pieces)
        elements, weights, bias, results = memory
        elements, results = elements + 4 * item * self._item, results + 4 * (first + item) * self._result
        self._loop.run(piece, _Addresses(elements, weights, bias, results))


def _is_packed(tensor: Tensor) -> bool:
    """Whether it is float32 as the loops read and write it."""
    return tensor.desc.DataType is DataType.FLOAT32 and tensor.desc.is_packed


def _widest(compiler: Compiler) -> Tile:
    """32 registers of AVX-512 and NEON hold the sums of 8 channels, two vectors each, 16 of AVX2 those of 4."""
    return Tile(8 if compiler.vector_floats != 8 else 4, 2, compiler.vector_floats)


def _panels(work: _Work, compiler: Compiler, activation: LoweredActivation | None) -> _Loop:
    space, most = work.space, _widest(compiler)
    channels = min(most.channels, work.outputs)
    width = most.width
    vectors = min(most.vectors if channels > most.channels // 2 else 2 * most.vectors, -(-space.places // width))
    tile = Tile(channels, vectors, width)
    at_a_time = min(max(1, TERMS // space.taps), work.depth)
    frames = []
    for groups, own, places in _cut(work, tile):
        numbers = [groups.start, groups.stop, own.start, own.stop, places.start, places.stop]
        numbers += [work.depth, at_a_time, space.taps, *work.channel_numbers, *_along(space)]
        frames.append(array("q", [*[0] * 5, *numbers, *(activation.attributes if activation else ())]))
    code = Code(compiler, _panels_source(tile, work.outputs % channels, _stride(space), activation))
    return _Loop(code, frames, at_a_time * space.taps * tile.places)


@lru_cache(256)
def _panels_source(tile: Tile, rest: int, stride: int, activation: LoweredActivation | None) -> str:
    return panels.source(tile, rest, stride, activation.element if activation else None)


def _cut(work: _Work, tile: Tile) -> Iterator[_Piece]:
    """Groups, or places, or channels, each of which needs a panel of its own, where their filters are what is much."""
    groups, channels, places = range(work.groups), range(work.outputs), range(work.space.places)
    tiles, blocks = range(-(-len(places) // tile.places)), range(max(1, work.outputs // tile.channels))
    if len(groups) >= work.pieces:
        yield from (_Piece(each, channels, places) for each in parts(groups, work.pieces))
    elif 2 * work.outputs > len(places) and len(blocks) > 1:
        for part in parts(blocks, min(work.pieces, 2 * work.threads)):
            end = work.outputs if part.stop == len(blocks) else part.stop * tile.channels
            yield _Piece(groups, range(part.start * tile.channels, end), places)
    else:
        for part in parts(tiles, work.pieces):
            yield _Piece(groups, channels, range(part.start * tile.places, min(part.stop * tile.places, len(places))))


def _is_channelwise(work: _Work) -> bool:
    return work.outputs <= MOST_CHANNELWISE and work.space.taps > 1 and 4 * _Copy.of(work).size <= MOST_COPIED


class _Copy(NamedTuple):
    """How the copy of a group's channels lies in memory."""

    rows: tuple[int, int]
    """Along z and y."""
    part: int
    phases: int
    phase_step: int
    size: int
    """Of all channels."""

    @classmethod
    def of(cls, work: _Work) -> "_Copy":
        space = work.space
        far = [(k - 1) * step for k, step in zip(space.extents, space.dilations, strict=True)]
        rows = [
            (count - 1) * step + more + 1 for count, step, more in zip(space.positions, space.strides, far, strict=True)
        ]
        stride = space.strides[2]
        phase_step = math.gcd(space.dilations[2], stride)
        phases = stride // phase_step if space.extents[2] > 1 else 1
        part = space.positions[2] + far[2] // stride
        return cls((rows[0], rows[1]), part, phases, phase_step, work.depth * rows[0] * rows[1] * phases * part)

    def table(self, work: _Work) -> Array:
        """How far behind a position's place each term meets its own."""
        space, row = work.space, self.phases * self.part
        k_z, k_y, k_x = (np.arange(count) * step for count, step in zip(space.extents, space.dilations, strict=True))
        along_x = k_x % space.strides[2] // self.phase_step * self.part + k_x // space.strides[2]
        rows = (np.arange(work.depth)[:, None, None] * self.rows[0] + k_z[:, None]) * self.rows[1] + k_y
        made: Array = (rows[..., None] * row + along_x).reshape(-1)
        return made


def _channelwise(work: _Work, compiler: Compiler, activation: LoweredActivation | None) -> _Loop:
    space, copy = work.space, _Copy.of(work)
    vectors = min(4, -(-space.positions[2] // compiler.vector_floats))
    most = min(8 // vectors, space.positions[1])
    tile = Rows(1 << most.bit_length() - 1, vectors, compiler.vector_floats)
    table, row = copy.table(work), copy.phases * copy.part
    of_rows = []
    for axis in range(2):  # those of the tensor that are in the copy
        start = space.starts[axis]
        of_rows += [start, max(0, min(space.sizes[axis], copy.rows[axis] - start))]
    numbers = [work.depth, len(table), copy.size, *work.channel_numbers, *space.sizes[1:], copy.rows[1], row, copy.part]
    numbers += [copy.phases, copy.phase_step, space.starts[2], space.strides[2], *of_rows, copy.size // work.depth]
    numbers += [*space.positions, space.strides[0] * copy.rows[1] * row, space.strides[1] * row]
    numbers += activation.attributes if activation else ()
    frames = [
        array("q", [*[0] * 5, table.ctypes.data, groups.start, groups.stop, *numbers])
        for groups in parts(range(work.groups), work.pieces)
    ]
    code = Code(compiler, _channelwise_source(tile, _stride(space), activation))
    return _Loop(code, frames, copy.size + 5 * compiler.vector_floats, table)


@lru_cache(256)
def _channelwise_source(tile: Rows, stride: int, activation: LoweredActivation | None) -> str:
    return channelwise.source(tile, stride, activation.element if activation else None)


def _along(space: Space) -> list[int]:
    """What the frame of panels has of axes."""
    return [
        *(*space.extents, *space.dilations, *space.strides, *space.starts, *space.sizes),
        *space.positions[1:],
    ]


def _stride(space: Space) -> int:
    """That along x for which there is code of its own, or 0."""
    return space.strides[2] if space.strides[2] <= 2 else 0
