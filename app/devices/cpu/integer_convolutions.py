"""Convolutions of 8-bit integers on the CPU, by loops that LLVM compiled: exact products of filters and windows.

What an element of a filter meets at neighbouring positions is a run of bytes of a padded channel, so the right matrix
is packed from these. Rows of results are as long as those of channels: what is behind the last position is left out
when sums become results. As much is packed at a time as the second cache holds, about.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.integer_packing import NO_ZERO, Side, Tiles, packing
from app.devices.cpu.integer_results import KINDS, LARGEST, Given, Results
from app.devices.cpu.llvm import integer_windows as loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_results import Result
from app.devices.cpu.llvm.integer_windows import WINDOWS
from app.devices.cpu.llvm.team import Team
from app.memory.addresses import whole_lines
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.quantization.convolutions import ConvolutionInteger, QuantizedLinearConvolution
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

Convolution: TypeAlias = ConvolutionInteger | QuantizedLinearConvolution

MOST_AT_ONCE = 2 << 20
"""Bytes of panels and sums at a time, unless one row of positions has more."""

MOST_STAGES = 1 << 10
"""Of all items and rows."""

LEAST_PADDED, MOST_TIMES = 1 << 14, 4
"""Bytes that a padded channel may always have, and how many times as many as it has without padding and as there are
positions: of far dilations it would be padding for the most part, and gigabytes of it."""


def integer_convolution_kernel(
    compiled: Dispatchable, team: Team, known: Mapping[str, Buffer] | None
) -> CallsKernel | None:
    """For the operator, if it is one that the loops are for. `known` are inputs that are the same for all dispatches;
    it is None outside of graphs."""
    found = _IntegerConvolution.of(compiled, team.compiler)
    if found is None:
        return None
    filters = found.filters.kept(known or {}, team)
    kept = [found.terms, *([] if filters is None else [filters])]
    return CallsKernel(compiled, found.calls(filters, team.most), team, kept)


def packed_integer_filter_bytes(compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> int:
    """Of the filters that `integer_convolution_kernel` keeps a second time, packed, if inputs of the names `known` are
    the same for all dispatches."""
    found = _IntegerConvolution.of(compiled, compiler)
    return found.filters.kept_bytes(known) if found else 0


@dataclass(frozen=True, slots=True)
class _Planes:
    """How channels lie padded: `sizes` and strides, those of the tensor along y and x."""

    space: Space
    strides: tuple[int, int]
    phases: tuple[int, int]
    sizes: tuple[int, int]

    @classmethod
    def of(cls, space: Space) -> "_Planes":
        along = [*zip(space.positions, space.extents, space.strides, space.dilations, strict=True)][1:]
        strides = [1 if count == 1 else stride for count, _, stride, _ in along]
        reaches = [(extent - 1) * dilation for _, extent, _, dilation in along]
        phases = [min(stride, reach + 1) for stride, reach in zip(strides, reaches, strict=True)]
        sizes = [count + reach // stride for (count, *_), reach, stride in zip(along, reaches, strides, strict=True)]
        return cls(space, _pair(strides), _pair(phases), _pair(sizes))

    @property
    def channel_bytes(self) -> int:
        return math.prod(self.phases) * math.prod(self.sizes)

    def terms(self, depth: int) -> Array:
        """Of a filter over so many channels, how far behind a position's first byte each element meets one."""
        (_, rows, columns), (_, *dilations) = self.space.extents, self.space.dilations
        far = []
        for extent, dilation, stride in zip((rows, columns), dilations, self.strides, strict=True):
            reached = np.arange(extent, dtype=np.int64) * dilation
            far.append((reached % stride, reached // stride))
        (phase_y, y), (phase_x, x) = ([each[:, None] for each in far[0]], far[1])
        plane = phase_y * self.phases[1] + phase_x
        taps = (plane * self.sizes[0] + y) * self.sizes[1] + x
        channels = np.arange(depth, dtype=np.int64)[:, None] * self.channel_bytes
        return np.ascontiguousarray(channels + taps.reshape(1, -1))


@dataclass(frozen=True, eq=False, slots=True)
class _IntegerConvolution:
    """The products of an operator, in groups of channels."""

    reads: Sequence[str]
    """Its inputs, in their order."""
    items: int
    groups: int
    planes: _Planes
    filters: Side
    tiles: Tiles
    terms: Array
    windows: Code
    panels: tuple[Code, dict[str, int]]
    results: Results | None
    """What sums become; they are results themselves where rows of channels are as long as those of results."""

    @classmethod
    def of(cls, compiled: Dispatchable, compiler: Compiler) -> "_IntegerConvolution | None":
        """None where it is none, or lies so that loops would not be quick."""
        operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
        if not isinstance(operator, Convolution):
            return None
        x, filters, output = operator.InputTensor, operator.FilterTensor, compiled.outputs["OutputTensor"]
        space = Space.of(operator.forward_windows())
        planes = _Planes.of(space)
        if planes.channel_bytes > max(LEAST_PADDED, MOST_TIMES * (space.elements + space.places)):
            return None
        groups, outputs, depth = operator.GroupCount, filters.Sizes[0], math.prod(filters.Sizes[1:])
        if not (x.is_packed and filters.is_packed and output.is_packed):
            return None
        quantized = operator if isinstance(operator, QuantizedLinearConvolution) else None
        if quantized and depth > LARGEST:
            return None
        reads = list(compiled.inputs)
        rows = outputs // groups
        tiles = Tiles.of(rows, depth, math.prod(planes.space.positions), compiler)
        zeros = operator.FilterZeroPointTensor
        zero_line = _each_channel(zeros) if zeros else 0
        numbers = {"depth": depth, "size": rows, "line": depth, "term": 1, "zero_line": zero_line}
        is_signed = filters.DataType is DataType.INT8
        packed = packing(compiler, tiles.panel.terms, is_signed, "dense", numbers)
        zeros_name = "FilterZeroPointTensor" if zeros else None
        steps = [rows * depth if groups > 1 else 0], [rows * zero_line if groups > 1 else 0]
        side = Side(*packed, "FilterTensor", zeros_name, [groups], steps, rows, tiles.row_bytes)
        terms = planes.terms(filters.Sizes[1])
        numbers = {"depth": depth, "line": 1, "term": terms.ctypes.data}
        panels = packing(compiler, tiles.panel, x.DataType is DataType.INT8, "listed", numbers)
        windows = Code(compiler, loops.source(planes.strides[1] if planes.strides[1] <= 2 else 0))
        results = None
        if quantized or planes.sizes[1] != planes.space.positions[2]:
            result = Result(KINDS[output.DataType], "BiasTensor" in reads)
            results = Results.of(result, compiler, reads, _given(quantized) if quantized else {})
        found = cls(reads, x.Sizes[0], groups, planes, side, tiles, terms, windows, panels, results)
        return found if sum(1 for _ in found._parts()) <= MOST_STAGES else None

    @property
    def _outputs(self) -> int:
        return self.groups * self.tiles.rows

    def _sizes(self, lines: int) -> tuple[int, int]:
        """Bytes of an item's panels and of its sums, for so many rows of positions."""
        columns = lines * self.planes.sizes[1]
        sums = 4 * self._outputs * columns if self.results else 0
        return self.groups * self.tiles.panels(columns) * self.tiles.panel_bytes, sums

    def _parts(self) -> Iterator[tuple[range, range]]:
        """Items and rows of positions that are computed at a time."""
        rows = self.planes.space.positions[1]
        each = max(1, sum(self._sizes(rows)))
        together = max(1, min(MOST_AT_ONCE // each, self.items))
        lines = max(1, rows * MOST_AT_ONCE // each) if each > MOST_AT_ONCE else rows
        for first in range(0, self.items, together):
            for row in range(0, rows, lines):
                yield range(first, min(first + together, self.items)), range(row, min(row + lines, rows))

    def calls(self, filters: Array | None, threads: int) -> Calls:
        """All: filters are packed unless they are already, and part by part channels are padded, windows are packed and
        met, and results are made."""
        channels = self.groups * (self.terms.shape[0])
        parts = list(self._parts())
        most = max(len(items) for items, _ in parts)
        sizes = [[len(items) * each for each in self._sizes(len(rows))] for items, rows in parts]
        left: Pointer | int = Pointer(0, Of.OWN)
        first: list[Call] = []
        own = 0
        if filters is None:
            first, own = [*self.filters.calls(self.reads, Pointer(2, Of.OWN), threads)], self.filters.packed_bytes
        else:
            left = filters.ctypes.data
        padded = whole_lines(own)
        beside = self.planes.sizes[1] + self.tiles.panel.columns
        panels = whole_lines(padded + most * channels * self.planes.channel_bytes + beside)
        sums = whole_lines(panels + max(size for size, _ in sizes))
        stages = []
        for items, rows in parts:
            if rows.start == 0:
                stages.append([*first, *self._padded(items, channels, padded, threads)])
                first = []
            stages.append([*self._packed(items, rows, padded, panels, threads)])
            stages += self._met(items, rows, left, panels, sums, threads)
        return Calls(stages, sums + max(size for _, size in sizes))

    def _padded(self, items: range, channels: int, to: int, threads: int) -> Iterator[Call]:
        """What writes padded channels, so many for each item."""
        planes, space = self.planes, self.planes.space
        size = math.prod(space.sizes)
        frame = dict.fromkeys(WINDOWS, 0) | {
            "zero": NO_ZERO.ctypes.data,
            "end_group": len(items),
            "group": channels * size,
            "channel": size,
            "padded_group": channels * planes.channel_bytes,
            "padded_channel": planes.channel_bytes,
        }
        named = {
            "size": space.sizes[1:],
            "stride": planes.strides,
            "start": space.starts[1:],
            "phases": planes.phases,
            "padded": planes.sizes,
        }
        for name, (y, x) in named.items():
            frame |= {f"{name}_y": y, f"{name}_x": x}
        pointers = [
            Pointer(0, Of.INPUT, self.reads.index("InputTensor"), items.start * channels * size),
            *self._zero(1),
            Pointer(2, Of.OWN, 0, to),
        ]
        for part in portions(range(channels), len(items) * planes.channel_bytes, threads):
            frame |= {"first": part.start, "end": part.stop}
            yield Call(
                self.windows, array("q", frame.values()), pointers, len(items) * len(part) * planes.channel_bytes
            )

    def _zero(self, place: int) -> list[Pointer]:
        name = "InputZeroPointTensor"
        return [Pointer(place, Of.INPUT, self.reads.index(name))] if name in self.reads else []

    def _packed(self, items: range, rows: range, start: int, to: int, threads: int) -> Iterator[Call]:
        """What packs what filters meet at the positions of some rows."""
        code, numbers = self.panels
        width = self.planes.sizes[1]
        lines = self.tiles.panels(len(rows) * width)
        groups = len(items) * self.groups
        frame = numbers | {
            "size": lines * self.tiles.panel.columns,
            "group": self.terms.shape[0] * self.planes.channel_bytes,
            "packed_group": lines * self.tiles.panel_bytes,
        }
        pointers = [Pointer(0, Of.OWN, 0, start + rows.start * width), *self._zero(1), Pointer(2, Of.OWN, 0, to)]
        whole = [range(groups), range(lines)]
        cut = 0 if groups > lines else 1
        for part in portions(whole[cut], len(whole[1 - cut]) * self.tiles.panel_bytes, threads):
            of_groups, of_lines = (part, whole[1]) if cut == 0 else (whole[0], part)
            frame |= {"first_group": of_groups.start, "end_group": of_groups.stop}
            frame |= {"first": of_lines.start, "end": of_lines.stop}
            work = len(of_groups) * len(of_lines) * self.tiles.panel_bytes
            yield Call(code, array("q", frame.values()), pointers, work)

    def _met(
        self, items: range, rows: range, left: Pointer | int, right: int, sums: int, threads: int
    ) -> Iterator[list[Call]]:
        """What multiplies, and makes results of sums."""
        _, height, width = self.planes.space.positions
        columns = len(rows) * self.planes.sizes[1]
        panels = self.tiles.panels(columns) * self.tiles.panel_bytes
        results = self.results
        size = results.result.bytes if results else 4
        start = size * (items.start * self._outputs * height + rows.start) * width
        to, row = (
            (Pointer(2, Of.OWN, 0, sums), 4 * columns)
            if results
            else (
                Pointer(2, Of.OUTPUT, 0, start),
                4 * height * width,
            )
        )
        each = self.tiles.rows
        steps = [self.filters.packed_steps[0], panels, each * row]
        strides = [[0, steps[0]], [self.groups * panels, steps[1]], [self.groups * steps[2], steps[2]]]
        walk = collapse([len(items), self.groups], strides)
        yield [*self.tiles.calls(columns, walk, left, Pointer(1, Of.OWN, 0, right), to, row, threads)]
        if results:
            lines = {"sums_row": row, "results_row": size * height * width}
            lines |= {"sums_line": 4 * self.planes.sizes[1], "results_line": size * width}
            of_items = [self._outputs * row, size * self._outputs * height * width]
            groups = [len(items)], [[each] for each in of_items] + results.strides(1)
            sizes = self._outputs, len(rows), width
            yield [*results.calls(groups, sizes, lines, (sums, start), threads)]


def _given(operator: QuantizedLinearConvolution) -> dict[str, Given]:
    """What results are made with. A scale of zero points and biases is one for all, or one for each channel."""
    given = {
        "left": Given("FilterScaleTensor", [0], 4 * _each_channel(operator.FilterScaleTensor)),
        "right": Given("InputScaleTensor", [0], 0),
        "scale": Given("OutputScaleTensor", [0], 0),
    }
    if operator.OutputZeroPointTensor:
        given["zero"] = Given("OutputZeroPointTensor", [0], 0)
    if operator.BiasTensor:
        given["bias"] = Given("BiasTensor", [0], 4 * _each_channel(operator.BiasTensor))
    return given


def _each_channel(desc: TensorDesc) -> int:
    """The step from channel to channel of what has one element, or one for each."""
    return 0 if desc.elements == 1 else desc.steps[0 if desc.rank == 1 else 1]


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    first, second = numbers
    return first, second
