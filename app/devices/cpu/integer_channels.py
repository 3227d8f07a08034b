"""Sums of products of 8-bit integers where each group of channels has a filter or two: they are read as they lie."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.devices.cpu.alone import portions
from app.devices.cpu.calls import Call, Of, Pointer
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.integer_packing import NO_ZERO
from app.devices.cpu.integer_planes import Groups, Planes, pointer_to
from app.devices.cpu.llvm import integer_channels as loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_channels import CHANNELS, STRIDES, Sums
from app.memory.arrays import Array

MOST_FILTERS = 2
"""Of a group: for more it is quicker to pack what they meet."""

WIDEST, TALLEST = 4, 8
"""Vectors of a row that are computed at once, and of all rows."""

FASTER, LEAST = 4, 8
"""Products that take as long as one instruction by which work is counted, and how many take as long as all else."""


@dataclass(frozen=True, eq=False, slots=True)
class Channels:
    """How all groups' sums are made."""

    planes: Planes
    code: Code
    columns: int
    """Of a tile."""
    groups: Groups
    terms: Array
    filters: None = None
    """None are packed."""

    @classmethod
    def of(cls, compiler: Compiler, planes: Planes, groups: Groups) -> "Channels":
        _, height, width = planes.space.positions
        vectors = min(-(-width // compiler.vector_floats), WIDEST)
        blocks = -(-height // (TALLEST // vectors))
        tile = Sums(-(-height // blocks), vectors, compiler.vector_floats)
        source = loops.source(tile, _stride(planes), groups.elements_are_signed, groups.filters_are_signed)
        return cls(planes, Code(compiler, source), tile.columns, groups, planes.terms(groups.channels))

    @staticmethod
    def takes(space: Space, filters: int) -> bool:
        """Whether it is quick for so many of each group."""
        return filters <= MOST_FILTERS and (space.positions[2] == 1 or space.strides[2] in STRIDES)

    @property
    def line(self) -> int:
        """Sums of a row of positions."""
        return self.planes.space.positions[2]

    @property
    def beside(self) -> int:
        """Bytes behind padded channels that are read."""
        return self.columns * _stride(self.planes)

    def scratch_bytes(self, lines: int) -> int:
        return 0

    def stages(
        self,
        reads: Sequence[str],
        items: int,
        rows: range,
        places: tuple[int, int, Pointer | int],
        to: Pointer,
        row: int,
        threads: int,
    ) -> Iterator[list[Call]]:
        """Of so many items, and some rows of positions. Padded channels are at the first place of the kernel's own
        memory. Sums of an output are `row` bytes long."""
        of_row = self.planes.space.strides[1] * self.planes.sizes[1]
        of_group, outputs = self.terms.shape[0] * self.planes.channel_bytes, self.groups.count * self.groups.filters
        frame = dict.fromkeys(CHANNELS, 0) | {
            "zero": NO_ZERO.ctypes.data,
            "filter_zeros": NO_ZERO.ctypes.data,
            "table": self.terms.ctypes.data,
            "end_group": items,
            "terms": self.terms.size,
            "each": self.groups.filters,
            "padded_group": self.groups.count * of_group,
            "padded_channels": of_group,
            "filter_zero": self.groups.zero_line or 0,
            "sums_group": outputs * row,
            "sums_row": row,
            "row": of_row,
            "positions_y": len(rows),
            "positions_x": self.line,
        }
        pointers = [
            Pointer(0, Of.OWN, 0, places[0] + rows.start * of_row),
            Pointer(1, Of.INPUT, reads.index("FilterTensor")),
            *pointer_to("InputZeroPointTensor", 2, reads),
            *pointer_to("FilterZeroPointTensor", 3, reads),
            to._replace(place=CHANNELS.index("sums")),
        ]
        calls = []
        work = items * len(rows) * self.line * (self.terms.size + LEAST) // FASTER
        for part in portions(range(outputs), work, threads):
            frame |= {"first": part.start, "end": part.stop}
            calls.append(Call(self.code, array("q", frame.values()), pointers, work * len(part)))
        yield calls


def _stride(planes: Planes) -> int:
    """From position to position of a row."""
    return 1 if planes.space.positions[2] == 1 else planes.space.strides[2]
