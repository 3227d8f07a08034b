"""Convolutions of 8-bit integers on the CPU, by loops that LLVM compiled: exact products of filters and windows.

Channels are padded in memory of the kernel's own. There sums are made of them, and results of these, of as much at a
time as the second cache holds, about.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.integer_channels import Channels
from app.devices.cpu.integer_panels import Panels
from app.devices.cpu.integer_planes import Groups, Planes
from app.devices.cpu.integer_results import KINDS, LARGEST, Given, Results
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_results import Result
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.packs import Packing
from app.memory.addresses import whole_lines
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.quantization.convolutions import ConvolutionInteger, QuantizedLinearConvolution
from app.programs.dispatchable import Dispatchable

Convolution: TypeAlias = ConvolutionInteger | QuantizedLinearConvolution

MOST_AT_ONCE = 2 << 20
"""Bytes of panels and sums at a time, unless one row of positions has more."""

MOST_STAGES = 1 << 10
"""Of all items and rows."""

MOST_TERMS = 1 << 19
"""Elements of a filter, for each of which the kernel keeps a number of 8 bytes."""

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
    side = found.sums.filters
    filters = side.kept(known or {}, team) if side else None
    kept = [found.sums.terms, *([] if filters is None else [filters])]
    return CallsKernel(compiled, found.calls(filters, team.most), team, kept)


def integer_filter_packing_of(compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> Packing | None:
    """Of the filters that `integer_convolution_kernel` keeps a second time, packed, if inputs of the names `known` are
    the same for all dispatches."""
    found = _IntegerConvolution.of(compiled, compiler)
    return found.sums.filters.packing(known) if found and found.sums.filters else None


@dataclass(frozen=True, eq=False, slots=True)
class _IntegerConvolution:
    """The products of an operator, in groups of channels."""

    reads: Sequence[str]
    """Its inputs, in their order."""
    items: int
    channels: int
    """Of an item."""
    outputs: int
    planes: Planes
    padding: Code
    sums: Panels | Channels
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
        outputs, depth, zeros = filters.Sizes[0], math.prod(filters.Sizes[1:]), operator.FilterZeroPointTensor
        if depth > MOST_TERMS:
            return None
        groups = Groups(
            operator.GroupCount,
            outputs // operator.GroupCount,
            filters.Sizes[1],
            x.DataType is DataType.INT8,
            filters.DataType is DataType.INT8,
            _each_channel(zeros) if zeros else None,
        )
        of_few = Channels.takes(space, groups.filters)
        planes = Planes.whole(space) if of_few else Planes.of(space)
        if planes.channel_bytes > max(LEAST_PADDED, MOST_TIMES * (space.elements + space.places)):
            return None
        if not (x.is_packed and filters.is_packed and output.is_packed):
            return None
        quantized = operator if isinstance(operator, QuantizedLinearConvolution) else None
        if quantized and depth > LARGEST:
            return None
        reads = list(compiled.inputs)
        sums = (Channels if of_few else Panels).of(compiler, planes, groups)
        results = None
        if quantized or sums.line != space.positions[2]:
            result = Result(KINDS[output.DataType], "BiasTensor" in reads)
            results = Results.of(result, compiler, reads, _given(quantized) if quantized else {})
        found = cls(reads, x.Sizes[0], x.Sizes[1], outputs, planes, planes.code(compiler), sums, results)
        return found if sum(1 for _ in found._parts()) <= MOST_STAGES else None

    def _sizes(self, lines: int) -> tuple[int, int]:
        """Bytes of what is packed of an item and of its sums, for so many rows of positions."""
        sums = 4 * self.outputs * lines * self.sums.line if self.results else 0
        return self.sums.scratch_bytes(lines), sums

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
        """All: filters are packed unless they are already, and part by part channels are padded, and sums and results
        are made."""
        parts = list(self._parts())
        most = max(len(items) for items, _ in parts)
        sizes = [[len(items) * each for each in self._sizes(len(rows))] for items, rows in parts]
        left: Pointer | int = Pointer(0, Of.OWN)
        first: list[Call] = []
        own = 0
        if filters is not None:
            left = filters.ctypes.data
        elif self.sums.filters:
            first = [*self.sums.filters.calls(self.reads, Pointer(2, Of.OWN), threads)]
            own = self.sums.filters.packed_bytes
        padded = whole_lines(own)
        scratch = whole_lines(padded + most * self.channels * self.planes.channel_bytes + self.sums.beside)
        made = whole_lines(scratch + max(size for size, _ in sizes))
        stages = []
        for items, rows in parts:
            if rows.start == 0:
                given = self.planes.calls(self.padding, self.reads, items, self.channels, padded, threads)
                stages.append([*first, *given])
                first = []
            stages += self._made(items, rows, (padded, scratch, left), made, threads)
        return Calls(stages, made + max(size for _, size in sizes))

    def _made(
        self, items: range, rows: range, places: tuple[int, int, Pointer | int], made: int, threads: int
    ) -> Iterator[list[Call]]:
        """Sums, and results of them if they are none themselves."""
        _, height, width = self.planes.space.positions
        results, line = self.results, self.sums.line
        size = results.result.bytes if results else 4
        start = size * (items.start * self.outputs * height + rows.start) * width
        if not results:
            to, row = Pointer(2, Of.OUTPUT, 0, start), 4 * height * width
        else:
            to, row = Pointer(2, Of.OWN, 0, made), 4 * len(rows) * line
        yield from self.sums.stages(self.reads, len(items), rows, places, to, row, threads)
        if results:
            steps = {"sums_row": row, "results_row": size * height * width}
            steps |= {"sums_line": 4 * line, "results_line": size * width}
            of_items = [self.outputs * row, size * self.outputs * height * width]
            groups = [len(items)], [[each] for each in of_items] + results.strides(1)
            lines = (1, len(rows) * width) if line == width else (len(rows), width)
            yield [*results.calls(groups, (self.outputs, *lines), steps, (made, start), threads)]


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
