"""What a transposed convolution does on the CPU, as calls of loops that LLVM compiled.

What each element of the filters makes at all positions is products, which the loops of convolutions compute, into
memory of its own. Then each channel's are added to what they meet. Of what takes too much memory for all channels at
once, some come after the others.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from app.devices.cpu.activations import LoweredActivation, source_with
from app.devices.cpu.calls import WORTH_A_CALL, Call, Calls, Of, Pointer, pieces
from app.devices.cpu.convolution_loops import ConvolutionLoop, ItemWork, Space, loop_of
from app.devices.cpu.llvm import spreading
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.threads import parts
from app.memory.addresses import whole_lines
from app.memory.arrays import Array

MOST_AT_ONCE = 4 << 20
"""Bytes of products that wait to be added, unless one channel has more."""

MOST_OWN = 16 << 20
"""Bytes of memory of its own."""

MOST_OF_A_CALL = 1 << 25
"""Work of adding, after which a thread looks whether it is to go on: some 5 ms."""

MOST_TOGETHER = 4
"""Elements along x that are taken at once."""

FILTERS = 1
"""The number of the input that has the filters, one of a single element for each element of the operator's."""


class Layer(NamedTuple):
    """What is to be computed."""

    space: Space
    """Where the filters lie over the output: positions are the input's elements."""
    items: int
    groups: int
    depth: int
    """Channels of the input in a group."""
    outputs: int
    """And of the output."""

    @property
    def products(self) -> int:
        return self.items * self.groups * self.depth * self.outputs * self.products_of_channel

    @property
    def products_of_channel(self) -> int:
        """Of one of the output with one of the input."""
        return self.space.taps * self.space.places


class _Block(NamedTuple):
    """What is computed at once: channels of the output, of each of some groups."""

    groups: range
    channels: range

    @property
    def size(self) -> int:
        return len(self.groups) * len(self.channels)


class TransposedCalls:
    """The calls for a layer whose tensors are packed float32, on at most so many `threads`."""

    def __init__(
        self,
        layer: Layer,
        compiler: Compiler,
        activation: LoweredActivation | None,
        threads: int,
        *,
        has_bias: bool,
        filters: Array | None,
    ) -> None:
        """The `filters` are given here or, if that is None, as an input. Raises LookupError if it takes too much
        memory."""
        self._layer, self._threads, self._has_bias = layer, threads, has_bias
        self._filters = filters.ctypes.data if filters is not None else None
        self._attributes = activation.attributes if activation else ()
        blocks = list(_blocks(layer))
        widest = max(block.size for block in blocks)
        at_once = whole_lines(4 * widest * layer.products_of_channel)
        if at_once > MOST_OWN:
            raise LookupError("products of a channel take too much memory")
        self._zeros = np.zeros(max(widest * layer.space.taps, layer.groups * layer.outputs), np.float32)
        self._table, together = meetings_of(layer.space)
        self._held = filters, self._zeros, self._table
        self._spread = Code(compiler, source_with(activation, spreading.source, compiler.vector_floats, together))
        loops: dict[tuple[int, int], ConvolutionLoop] = {}
        for block in blocks:
            form = len(block.groups), len(block.channels)
            if form not in loops:
                loops[form] = self._products(*form, compiler)
        own = at_once + max(loop.pieces * whole_lines(4 * loop.scratch) for loop in loops.values())
        if own > MOST_OWN:
            raise LookupError("products of a channel, and what is packed for them, take too much memory")
        stages: list[Sequence[Call]] = []
        for item in range(layer.items):
            for block in blocks:
                loop = loops[len(block.groups), len(block.channels)]
                stages += [[*self._multiplied(item, block, loop, at_once)], [*self._added(item, block)]]
        self.calls = Calls(stages, own)

    def _products(self, groups: int, channels: int, compiler: Compiler) -> ConvolutionLoop:
        layer, ones = self._layer, (1, 1, 1)
        row = (1, 1, layer.space.places)
        space = Space(row, row, ones, ones, ones, (0, 0, 0))
        products = groups * channels * layer.depth * layer.products_of_channel
        worth = max(WORTH_A_CALL, products // (2 * self._threads))
        work = ItemWork(space, groups, layer.depth, channels * layer.space.taps, 1, self._threads, worth)
        loop = loop_of(work, compiler, None)
        if loop is None:
            raise LookupError("no loop counts so far")
        return loop

    def _multiplied(self, item: int, block: _Block, loop: ConvolutionLoop, scratch: int) -> Iterator[Call]:
        """The products."""
        layer = self._layer
        group, channel = block.groups.start, block.groups.start * layer.outputs + block.channels.start
        elements = (item * layer.groups + group) * layer.depth * layer.space.places
        filters = channel * layer.space.taps * layer.depth
        work = block.size * layer.depth * layer.products_of_channel // loop.pieces
        for number, frame in enumerate(loop.frames):
            made = frame[:]
            made[2] = self._zeros.ctypes.data
            pointers = [Pointer(0, Of.INPUT, 0, 4 * elements), Pointer(3, Of.OWN)]
            pointers.append(Pointer(4, Of.OWN, 0, scratch + number * whole_lines(4 * loop.scratch)))
            if self._filters is None:
                pointers.append(Pointer(1, Of.INPUT, FILTERS, 4 * filters))
            else:
                made[1] = self._filters + 4 * filters
            yield Call(loop.code, made, pointers, work)

    def _added(self, item: int, block: _Block) -> Iterator[Call]:
        """The output, of the products."""
        layer, space = self._layer, self._layer.space
        channel = block.groups.start * layer.outputs + block.channels.start
        result = (item * layer.groups * layer.outputs + channel) * space.elements
        work = 4 * (space.elements + layer.products_of_channel)
        count = max(pieces(work * block.size, self._threads), work * block.size // MOST_OF_A_CALL)
        for part in parts(range(block.size), count):
            numbers = [part.start, part.stop, space.places, space.elements, *space.extents]
            numbers += [*space.positions[1:], *space.sizes[1:], *space.strides, *self._attributes]
            frame = array("q", [0, self._zeros.ctypes.data, 0, self._table.ctypes.data, *numbers])
            pointers = [Pointer(0, Of.OWN), Pointer(2, Of.OUTPUT, 0, 4 * result)]
            if self._has_bias:
                pointers.append(Pointer(1, Of.INPUT, 2, 4 * channel))
            yield Call(self._spread, frame, pointers, work * len(part))


def _blocks(layer: Layer) -> Iterator[_Block]:
    most = max(1, MOST_AT_ONCE // (4 * layer.products_of_channel))
    if most >= layer.outputs:
        for groups in parts(range(layer.groups), -(-layer.groups // (most // layer.outputs))):
            yield _Block(groups, range(layer.outputs))
        return
    for group in range(layer.groups):
        for channels in parts(range(layer.outputs), -(-layer.outputs // most)):
            yield _Block(range(group, group + 1), channels)


def meetings_of(space: Space) -> tuple[Array, int]:
    """The table of `spreading`, and how many elements along x it takes at once, or 0."""
    made: list[Array] = []
    axes = zip(space.sizes, space.positions, space.extents, space.strides, space.dilations, space.starts, strict=True)
    for size, positions, extent, stride, dilation, start in axes:
        firsts = np.arange(extent, dtype=np.int64) * dilation - start
        before = np.maximum(-(firsts // stride), 0)
        after = np.clip((size - 1 - firsts) // stride + 1, 0, positions)
        made.append(np.stack([before, after, before * stride + firsts], 1))
    along = made[2]
    is_dense = np.array_equal(along, along[0] + np.outer(np.arange(len(along)), [0, 0, 1]))
    together = len(along) if is_dense and 1 < len(along) == space.strides[2] <= MOST_TOGETHER else 0
    return np.concatenate(made).reshape(-1), together
