"""Sums of products of 8-bit integers where some filters go with the same channels: both are packed.

What an element of a filter meets at neighbouring positions is a run of bytes of a padded channel, so the right matrix
is packed from these. Rows of sums are as long as those of channels: what is behind the last position is left out when
sums become results.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.devices.cpu.alone import portions
from app.devices.cpu.calls import Call, Of, Pointer
from app.devices.cpu.integer_packing import Side, Tiles, packing
from app.devices.cpu.integer_planes import Groups, Planes, pointer_to
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.memory.arrays import Array
from app.programs.walks import collapse


@dataclass(frozen=True, eq=False, slots=True)
class Panels:
    """How all groups' sums are made."""

    planes: Planes
    groups: int
    filters: Side
    tiles: Tiles
    terms: Array
    code: Code
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, compiler: Compiler, planes: Planes, groups: Groups) -> "Panels":
        terms = planes.terms(groups.channels)
        rows, depth, zero_line = groups.filters, terms.size, groups.zero_line or 0
        tiles = Tiles.of(rows, depth, planes.space.places, compiler)
        numbers = {"depth": depth, "size": rows, "line": depth, "term": 1, "zero_line": zero_line}
        packed = packing(compiler, tiles.panel.terms, groups.filters_are_signed, "dense", numbers)
        steps = [rows * depth if groups.count > 1 else 0], [rows * zero_line if groups.count > 1 else 0]
        zeros = None if groups.zero_line is None else "FilterZeroPointTensor"
        side = Side(*packed, "FilterTensor", zeros, [groups.count], steps, rows, tiles.row_bytes)
        numbers = {"depth": depth, "line": 1, "term": terms.ctypes.data}
        code, numbers = packing(compiler, tiles.panel, groups.elements_are_signed, "listed", numbers)
        return cls(planes, groups.count, side, tiles, terms, code, numbers)

    @property
    def line(self) -> int:
        """Sums of a row of positions, of which the last ones are of none."""
        return self.planes.sizes[1]

    @property
    def beside(self) -> int:
        """Bytes behind padded channels that are read."""
        return self.planes.sizes[1] + self.tiles.panel.columns

    def scratch_bytes(self, lines: int) -> int:
        """That an item's windows take, for so many rows of positions."""
        return self.groups * self.tiles.panels(lines * self.line) * self.tiles.panel_bytes

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
        memory, panels at the second, and filters at the third. Sums of an output are `row` bytes long."""
        start, scratch, left = places
        columns = len(rows) * self.line
        yield [*self._packed(reads, items, columns, start + rows.start * self.line, scratch, threads)]
        panels = self.tiles.panels(columns) * self.tiles.panel_bytes
        steps = [self.filters.packed_steps[0], panels, self.tiles.rows * row]
        strides = [[0, steps[0]], [self.groups * panels, steps[1]], [self.groups * steps[2], steps[2]]]
        walk = collapse([items, self.groups], strides)
        yield [*self.tiles.calls(columns, walk, left, Pointer(1, Of.OWN, 0, scratch), to, row, threads)]

    def _packed(
        self, reads: Sequence[str], items: int, columns: int, start: int, to: int, threads: int
    ) -> Iterator[Call]:
        """What packs what filters meet."""
        lines, groups = self.tiles.panels(columns), items * self.groups
        frame = dict(self.numbers) | {
            "size": lines * self.tiles.panel.columns,
            "group": self.terms.shape[0] * self.planes.channel_bytes,
            "packed_group": lines * self.tiles.panel_bytes,
        }
        pointers = [
            Pointer(0, Of.OWN, 0, start),
            *pointer_to("InputZeroPointTensor", 1, reads),
            Pointer(2, Of.OWN, 0, to),
        ]
        whole = [range(groups), range(lines)]
        cut = 0 if groups > lines else 1
        for part in portions(whole[cut], len(whole[1 - cut]) * self.tiles.panel_bytes, threads):
            of_groups, of_lines = (part, whole[1]) if cut == 0 else (whole[0], part)
            frame |= {"first_group": of_groups.start, "end_group": of_groups.stop}
            frame |= {"first": of_lines.start, "end": of_lines.stop}
            work = len(of_groups) * len(of_lines) * self.tiles.panel_bytes
            yield Call(self.code, array("q", frame.values()), pointers, work)
