"""Which loop a convolution is computed by, in which pieces, and what the loop is told of each."""

import math
from array import array
from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import NamedTuple, TypeAlias

import numpy as np

from app.devices.cpu.activations import LoweredActivation, source_with
from app.devices.cpu.llvm import channelwise, dots, outputs, panels
from app.devices.cpu.llvm.channelwise import Rows
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.outputs import Lanes
from app.devices.cpu.llvm.panels import Tile
from app.devices.cpu.threads import parts
from app.memory.arrays import Array
from app.operators.convolution.windows import Windows

MOST_OF_A_PIECE = 1 << 28
"""Products that take a thread some 3 ms, after which it looks whether it is to go on."""

MOST_PIECES = 4
"""For each thread: while the last ones are computed, the others have nothing to do."""

TERMS, PANELS = 512, 1 << 18
"""Elements of a filter that are packed at a time, and bytes of panels: what filters meet stays in the second cache, and
some filters in the first."""

Addresses: TypeAlias = tuple[int, int, int, int]
"""Of an item: the elements, the filters, the biases and the results."""

MOST_SCRATCH, MOST_OF_DOTS = 64 << 20, 4 << 20
"""Bytes that a thread packs at most, which only the longest filters take, and for few positions."""

MOST_POSITIONS, MOST_POINTWISE, MOST_PACKED = 32, 256, 32 << 20
"""Positions for which vectors are along the output's channels, those of filters of one element, for which nothing else
is packed, and bytes of filters that are packed for that."""

MOST_CHANNELWISE, MOST_COPIED = 2, 1 << 19
"""Filters to a group of channels for which these are copied, and bytes of the copy, which is read at once."""

MOST_WRITTEN = 49
"""Elements of a filter for which code is written one by one."""

CHANNELWISE_WORK = 4
"""How many times as long a product takes there, where each waits for what is loaded."""

MOST_FRAMES = 1 << 14
"""Pieces of an item, each of which takes a KiB: of a filter of a million elements there are hundreds of thousands."""

FARTHEST = 1 << 30
"""Coordinates are computed in 32 bits."""


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
        of_all = (windows.sizes, windows.positions, windows.extents, windows.strides, windows.dilations, windows.starts)
        # Axes along which nothing goes on are left out: the innermost one is the one that vectors are along.
        axes = [each for each in zip(*of_all, strict=True) if each[:3] != ones or each[-1]]
        axes = [(1, 1, 1, 1, 1, 0)] * (3 - len(axes)) + axes
        return cls(*zip(*axes, strict=True))

    @property
    def is_pointwise(self) -> bool:
        """Whether filters of one element meet all elements of a channel, in their order."""
        return self.sizes == self.positions and self.taps == 1 and self.strides == (1, 1, 1) and not any(self.starts)

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


class _Piece(NamedTuple):
    """What one thread computes at a time."""

    groups: range
    channels: range
    """Of each group."""
    places: range


class ConvolutionLoop:
    """The code for a convolution, and what it is told of each piece but for addresses."""

    def __init__(
        self, code: Code, frames: Sequence["array[int]"], scratch: int, table: Array | None = None, factor: int = 1
    ) -> None:
        """`scratch` is how many float32 are packed. Frames begin with the addresses of an item and of scratch; they
        have the address of the `table`. A product takes `factor` times as long as others."""
        self.code = code
        self._table = table
        self.pieces = len(frames)
        self.frames = frames
        self.scratch = scratch
        self.factor = factor
        self.kept_bytes = (0 if table is None else table.nbytes) + sum(map(getsizeof, frames))


class ItemWork(NamedTuple):
    """What is to be done for one item."""

    space: Space
    groups: int
    depth: int
    """Channels of a filter."""
    outputs: int
    """Channels of the output in a group."""
    items: int
    threads: int
    worth_a_piece: int
    """Products."""

    @property
    def products(self) -> int:
        return self.groups * self.outputs * self.depth * self.space.taps * self.space.places

    def pieces(self, factor: int = 1) -> int:
        """How many of an item are wanted, where a product takes `factor` times as long as others."""
        work = self.products * self.items * factor
        most = MOST_PIECES * self.threads if self.threads > 1 else 1
        return -(-max(1, min(most, work // self.worth_a_piece), work // MOST_OF_A_PIECE) // self.items)

    @property
    def results(self) -> int:
        """Of a group."""
        return self.outputs * self.space.places

    @property
    def channel_numbers(self) -> list[int]:
        """What a frame has of channels: elements of the input's, how many a group has of the output, and elements."""
        return [self.space.elements, self.outputs, self.space.places]


def lanes_of(work: ItemWork, compiler: Compiler) -> Lanes | None:
    """How vectors are along the output's channels, if that is better than `loop_of`'s where filters are known before:
    few positions leave most of a vector empty, or else filters would not be read one after the other."""
    places, width = work.space.places, compiler.vector_floats
    most = outputs.MOST_TOGETHER if width != 8 else outputs.MOST_TOGETHER // 2
    if places > (MOST_POINTWISE if work.space.is_pointwise else MOST_POSITIONS):
        return None
    if work.groups > 1 or work.outputs < width or work.space.farthest >= FARTHEST:
        return None
    # Those that are alike follow each other: one loop is for all of them.
    together = tuple(sorted(len(part) for part in parts(range(places), -(-places // most))))
    vectors = 4 if 2 * max(together) <= most and work.outputs % (4 * width) == 0 else 2
    lanes = Lanes(vectors, width, together, work.space.is_pointwise)
    if 4 * _scratch_of(work, lanes) > MOST_OF_DOTS or packed_elements(work, lanes) * 4 > MOST_PACKED:
        return None
    return lanes


def _scratch_of(work: ItemWork, lanes: Lanes) -> int:
    """Elements that are packed beside the filters."""
    return 0 if lanes.is_pointwise else work.depth * work.space.taps * lanes.panel.places


def packed_elements(work: ItemWork, lanes: Lanes) -> int:
    """Of the filters."""
    return work.depth * work.space.taps * -(-work.outputs // lanes.channels) * lanes.channels


def pack_filters(filters: Array, lanes: Lanes) -> Array:
    """The filters, of float32, as `outputs` reads them; they begin at a cache line."""
    count, terms = len(filters), math.prod(filters.shape[1:])
    blocks = -(-count // lanes.channels)
    memory = np.zeros(blocks * lanes.channels * terms + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    packed = memory[start : start + blocks * lanes.channels * terms].reshape(blocks, terms, lanes.channels)
    flat = filters.reshape(count, terms)
    for block in range(blocks):
        part = flat[block * lanes.channels : (block + 1) * lanes.channels]
        packed[block, :, : len(part)] = part.T
    return packed


def loop_of_packed(
    work: ItemWork, lanes: Lanes, compiler: Compiler, activation: LoweredActivation | None
) -> ConvolutionLoop:
    """That whose filters are packed."""
    space = work.space
    numbers = [work.outputs, work.depth, space.taps, space.elements, *_along(space), *_attributes(activation)]
    blocks = range(-(-work.outputs // lanes.channels))
    frames = []
    for part in parts(blocks, work.pieces()):
        end = min(part.stop * lanes.channels, work.outputs)
        frames.append(array("q", [*[0] * 5, part.start * lanes.channels, end, *numbers]))
    code = Code(compiler, source_with(activation, outputs.source, lanes, _stride(space)))
    return ConvolutionLoop(code, frames, _scratch_of(work, lanes))


def loop_of(work: ItemWork, compiler: Compiler, activation: LoweredActivation | None) -> ConvolutionLoop | None:
    """None where a loop would pack too much, count too far, or have too many pieces."""
    space, width = work.space, compiler.vector_floats
    if space.farthest >= FARTHEST or work.pieces() > MOST_FRAMES:
        return None
    by_channels = channelwise_loop(work, compiler, activation) if space.taps > 1 else None
    if by_channels:
        return by_channels
    packed = 4 * space.places * (work.depth * space.taps + 2 * width)
    if dots.are_few(space.places, width) and packed <= MOST_OF_DOTS:
        return _dots(work, dots.rows_for(space.places, width), compiler, activation)
    if 4 * space.taps * width <= MOST_SCRATCH:
        return _panels(work, compiler, activation)
    return None


def channelwise_loop(
    work: ItemWork, compiler: Compiler, activation: LoweredActivation | None
) -> ConvolutionLoop | None:
    """That which copies the channels of a group; None where it would copy too much for the filters there are."""
    if work.outputs > MOST_CHANNELWISE or work.space.farthest >= FARTHEST or 4 * _Copy.of(work).size > MOST_COPIED:
        return None
    return _channelwise(work, compiler, activation)


def _widest(compiler: Compiler) -> Tile:
    """32 registers of AVX-512 and NEON hold the sums of 8 channels, two vectors each, 16 of AVX2 those of 4."""
    return Tile(8 if compiler.vector_floats != 8 else 4, 2, compiler.vector_floats)


def _panels(work: ItemWork, compiler: Compiler, activation: LoweredActivation | None) -> ConvolutionLoop:
    space, widest = work.space, _widest(compiler)
    channels = min(widest.channels, work.outputs)
    width = widest.width
    vectors = min(widest.vectors if channels > widest.channels // 2 else 2 * widest.vectors, -(-space.places // width))
    tile = Tile(channels, max(1, min(vectors, MOST_SCRATCH // (4 * space.taps * width))), width)
    at_a_time = min(max(1, TERMS // space.taps), work.depth)
    frames, panel = [], at_a_time * space.taps * tile.places
    pieces = list(_cut(work, tile))
    most = max(-(-len(piece.places) // tile.places) for piece in pieces)
    together = max(1, min(most, PANELS // (4 * panel)))
    for groups, own, places in pieces:
        numbers = [groups.start, groups.stop, own.start, own.stop, places.start, places.stop]
        numbers += [work.depth, at_a_time, together * tile.places, space.taps, *work.channel_numbers, *_along(space)]
        frames.append(array("q", [*[0] * 5, *numbers, *_attributes(activation)]))
    code = Code(compiler, source_with(activation, panels.source, tile, work.outputs % channels, _stride(space)))
    return ConvolutionLoop(code, frames, together * panel)


def _dots(work: ItemWork, rows: int, compiler: Compiler, activation: LoweredActivation | None) -> ConvolutionLoop:
    space, width = work.space, compiler.vector_floats
    packed = (-(-work.depth * space.taps // width) + 1) * width  # one more, so that rows differ in their cache lines
    numbers = [work.depth, space.taps, packed, space.elements, work.outputs, space.places, 1, *_along(space)]
    frames = [
        array("q", [*[0] * 5, groups.start, groups.stop, own.start, own.stop, *numbers, *_attributes(activation)])
        for groups, own, _ in _cut(work, Tile(rows, space.places, 1))
    ]
    code = Code(compiler, source_with(activation, dots.source, rows, space.places, width))
    return ConvolutionLoop(code, frames, packed * space.places)


def _cut(work: ItemWork, tile: Tile) -> Iterator[_Piece]:
    """Groups, or places. Where these are few tiles, as many as all threads have equally often come first, and then the
    others, of which each thread takes channels, though it packs the same. So it is where one tile takes too long."""
    groups, channels, places = range(work.groups), range(work.outputs), range(work.space.places)
    wanted = work.pieces()
    if len(groups) >= wanted:
        yield from (_Piece(each, channels, places) for each in parts(groups, wanted))
        return
    tiles, blocks = range(-(-len(places) // tile.places)), range(max(1, work.outputs // tile.channels))
    rest = 0 if wanted == 1 or len(tiles) >= MOST_PIECES * work.threads else len(tiles) % work.threads
    if work.products // len(tiles) > MOST_OF_A_PIECE:
        rest = len(tiles)
    shared = tiles[: len(tiles) - rest]
    if shared:
        for part in parts(shared, wanted):
            yield _Piece(groups, channels, _places(part, tile, work))
    if rest:
        last = _places(tiles[len(shared) :], tile, work)
        for part in parts(blocks, max(1, -(-wanted * len(last) // len(places)))):
            end = work.outputs if part.stop == len(blocks) else part.stop * tile.channels
            yield _Piece(groups, range(part.start * tile.channels, end), last)


def _places(tiles: range, tile: Tile, work: ItemWork) -> range:
    return range(tiles.start * tile.places, min(tiles.stop * tile.places, work.space.places))


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
    def of(cls, work: ItemWork) -> "_Copy":
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

    def table(self, work: ItemWork) -> Array:
        """How far behind a position's place each term meets its own."""
        space, row = work.space, self.phases * self.part
        k_z, k_y, k_x = (np.arange(count) * step for count, step in zip(space.extents, space.dilations, strict=True))
        along_x = k_x % space.strides[2] // self.phase_step * self.part + k_x // space.strides[2]
        rows = (np.arange(work.depth)[:, None, None] * self.rows[0] + k_z[:, None]) * self.rows[1] + k_y
        made: Array = (rows[..., None] * row + along_x).reshape(-1)
        return made


def _channelwise(work: ItemWork, compiler: Compiler, activation: LoweredActivation | None) -> ConvolutionLoop:
    space, copy = work.space, _Copy.of(work)
    tile = _rows_of(space, work.depth, compiler.vector_floats)
    table, row = copy.table(work), copy.phases * copy.part
    copied = copy.size + 5 * compiler.vector_floats  # with what is read behind it
    of_rows = []
    for axis in range(2):  # those of the tensor that are in the copy
        start = space.starts[axis]
        of_rows += [start, max(0, min(space.sizes[axis], copy.rows[axis] - start))]
    numbers = [work.depth, len(table), copied, *work.channel_numbers, *space.sizes[1:], copy.rows[1], row, copy.part]
    numbers += [copy.phases, copy.phase_step, space.starts[2], space.strides[2], *of_rows, copy.size // work.depth]
    numbers += [*space.positions, space.strides[0] * copy.rows[1] * row, space.strides[1] * row]
    numbers += _attributes(activation)
    frames = [
        array("q", [*[0] * 5, table.ctypes.data, groups.start, groups.stop, *numbers])
        for groups in parts(range(work.groups), work.pieces(CHANNELWISE_WORK))
    ]
    code = Code(compiler, source_with(activation, channelwise.source, tile, _stride(space)))
    return ConvolutionLoop(code, frames, copied, table, CHANNELWISE_WORK)


def _rows_of(space: Space, depth: int, width: int) -> Rows:
    """Eight vectors of results, in such rows that few are computed twice."""
    _, lines, columns = space.positions
    vectors = 1 if -(-columns // width) % 2 else 2
    most = [rows for rows in (8, 4, 2, 1) if rows * vectors <= 8 and rows <= lines]
    rows = min(most, key=lambda rows: -(-lines // rows) * (rows + 1))
    is_written = depth == space.extents[0] == space.dilations[1] == 1 and space.taps <= MOST_WRITTEN
    return Rows(rows, vectors, width, (space.extents[1], space.extents[2], space.strides[1]) if is_written else None)


def _along(space: Space) -> list[int]:
    """What the frame of panels has of axes."""
    return [
        *(*space.extents, *space.dilations, *space.strides, *space.starts, *space.sizes),
        *space.positions[1:],
    ]


def _stride(space: Space) -> int:
    """That along x for which there is code of its own, or 0."""
    return space.strides[2] if space.strides[2] <= 2 else 0


def _attributes(activation: LoweredActivation | None) -> tuple[int, ...]:
    return activation.attributes if activation else ()
