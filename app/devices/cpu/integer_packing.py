"""How the CPU packs and multiplies matrices of 8-bit integers, by loops that LLVM compiled."""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import mul

import numpy as np

from app.contract.tensors import packed_strides
from app.devices.cpu.alone import MOST_OF_A_CALL, make_calls, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer, pieces
from app.devices.cpu.llvm import integer_products as loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_products import HEAD, PACKED, PRODUCTS, Lies, Panel, Terms, row_bytes
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.packs import Packing
from app.devices.cpu.products import MOST_PACKED, shares, sums_at_once
from app.memory.addresses import LINE
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.programs.walks import Walk, collapse

FASTER = 4
"""Products of bytes that take as long as one of floats, in which work is counted."""

NO_ZERO = np.zeros(1, np.uint8)
"""What is read where there is no zero point."""


@dataclass(frozen=True, eq=False, slots=True)
class Side:
    """One of the two matrices of each product, and how it is packed: in so many lines, rows or panels, of so many
    bytes. What leads the matrices has the sizes `batch`, and steps of the elements and of the zero points. It is read
    from inputs that have names."""

    code: Code
    frame: Mapping[str, int]
    """What all calls have that pack it."""
    elements: str
    zeros: str | None
    batch: Sequence[int]
    steps: Sequence[list[int]]
    lines: int
    line_bytes: int

    @property
    def _sizes(self) -> list[int]:
        """Of what leads the packed matrices: what repeats neither elements nor zero points."""
        return [size if any(steps) else 1 for size, *steps in zip(self.batch, *self.steps, strict=True)]

    @property
    def packed_steps(self) -> list[int]:
        """Bytes from one packed matrix to the next one."""
        sizes, each = self._sizes, self.lines * self.line_bytes
        return [each * step if size > 1 else 0 for size, step in zip(sizes, packed_strides(sizes), strict=True)]

    @property
    def packed_bytes(self) -> int:
        return math.prod(self._sizes) * self.lines * self.line_bytes

    def walk(self) -> Walk:
        """Through the matrices, by elements, zero points and packed bytes."""
        return collapse(self._sizes, [*self.steps, self.packed_steps])

    @property
    def _reads(self) -> list[str]:
        return [name for name in (self.elements, self.zeros) if name]

    def packing(self, known: Collection[str]) -> Packing | None:
        """How it is packed once, if it is where inputs of these names are known before."""
        if not set(self._reads) <= set(known) or self.packed_bytes > MOST_PACKED:
            return None
        steps = tuple(map(tuple, self.steps))
        layout = self.code.source, tuple(self.frame.items()), tuple(self.batch), steps, self.lines, self.line_bytes
        return Packing(self._reads, layout, self.packed_bytes + LINE)

    def kept(self, known: Mapping[str, Buffer], team: Team) -> Array | None:
        """Packed, from a multiple of a line on, if it is known before."""
        packing = self.packing(known)
        return packing.made(known, lambda: self._packed(known, team)) if packing else None

    def _packed(self, known: Mapping[str, Buffer], team: Team) -> Array:
        memory = np.empty(self.packed_bytes + LINE, np.uint8)
        made = memory[-memory.ctypes.data % LINE :]
        calls = Calls([list(self.calls(self._reads, Pointer(2, Of.OUTPUT), team.most))])
        make_calls(calls, [np.frombuffer(known[name], np.uint8) for name in self._reads], [made], team, lambda: False)
        return made

    def calls(self, reads: Sequence[str], to: Pointer, threads: int) -> Iterator[Call]:
        """What packs it from inputs in this order to where the pointer says, on so many threads."""
        (*outer, groups), strides = self.walk()
        frame = dict(self.frame) | {
            name: steps[-1] for name, steps in zip(("group", "zero_group", "packed_group"), strides, strict=True)
        }
        for at in product(*map(range, outer)):
            start, zero, packed = (sum(map(mul, at, steps)) for steps in strides)
            pointers = [Pointer(0, Of.INPUT, reads.index(self.elements), start)]
            if self.zeros:
                pointers.append(Pointer(1, Of.INPUT, reads.index(self.zeros), zero))
            pointers.append(to._replace(offset=to.offset + packed))
            whole = [range(groups), range(self.lines)]
            cut = whole.index(max(whole, key=len))
            for part in portions(whole[cut], len(whole[1 - cut]) * self.line_bytes, threads):
                own = [part, whole[1]] if cut == 0 else [whole[0], part]
                for name, along in zip(("group", ""), own, strict=True):
                    frame["_".join(["first", name]).strip("_")] = along.start
                    frame["_".join(["end", name]).strip("_")] = along.stop
                work = math.prod(map(len, own)) * self.line_bytes
                yield Call(self.code, array("q", frame.values()), pointers, work)


@dataclass(frozen=True, eq=False, slots=True)
class Tiles:
    """What multiplies packed rows and panels."""

    panel: Panel
    tiles: Sequence[tuple[int, Code, range]]
    """So many rows at a time, and which rows they are for."""
    rows: int
    depth: int

    @classmethod
    def of(cls, rows: int, depth: int, columns: int, compiler: Compiler) -> "Tiles":
        """Of pairs there are products in registers, too, before they are added."""
        terms: Terms = 4 if compiler.adds_bytes else 2
        tiles = list(sums_at_once(rows, columns, compiler.vector_floats, int(terms == 2)))
        panel = Panel(tiles[0][1], compiler.vector_floats, terms)
        codes = [(count, Code(compiler, loops.products(panel, count)), own) for count, _, own in tiles]
        return cls(panel, codes, rows, depth)

    @property
    def row_bytes(self) -> int:
        """Of a packed row."""
        return row_bytes(self.depth, self.panel.terms)

    @property
    def panel_bytes(self) -> int:
        return self.row_bytes * self.panel.columns

    def panels(self, columns: int) -> int:
        """Of so many columns."""
        return -(-columns // self.panel.columns)

    def calls(
        self, columns: int, walk: Walk, left: Pointer | int, right: Pointer | int, to: Pointer, row: int, threads: int
    ) -> Iterator[Call]:
        """Those for so many columns of the matrices that `walk` goes to, by bytes of packed left ones, right ones and
        results, whose rows are so many bytes apart. Left and right ones are where pointers say, or at addresses."""
        (*outer, groups), strides = walk
        frame = dict.fromkeys(PRODUCTS, 0) | {"columns": columns, "r_row": row}
        frame["lanes"] = (self.row_bytes - HEAD) // 4
        frame |= {name: steps[-1] for name, steps in zip(("a_group", "b_group", "r_group"), strides, strict=True)}
        work = max(1, self.rows * self.depth * columns // FASTER)
        total, matrices = work * groups * math.prod(outer), math.prod(outer)
        wanted = -(-max(pieces(total, threads), total // MOST_OF_A_CALL) // matrices)
        panels = range(self.panels(columns))
        for at in product(*map(range, outer)):
            pointers = []
            for name, place, steps in zip(("a", "b", "results"), (left, right, to), strides, strict=True):
                start = sum(map(mul, at, steps))
                if isinstance(place, Pointer):
                    pointers.append(place._replace(place=PRODUCTS.index(name), offset=place.offset + start))
                else:
                    frame[name] = place + start
            for count, code, rows in self.tiles:
                for part in shares(groups, panels, rows, count, wanted):
                    for name, along in part.items():
                        frame[f"first_{name}"], frame[f"end_{name}"] = along.start, along.stop
                    own = math.prod(map(len, part.values())) * work // (len(panels) * self.rows)
                    yield Call(code, array("q", frame.values()), pointers, own)


def packing(
    compiler: Compiler, of: Panel | Terms, is_signed: bool, lies: Lies, numbers: dict[str, int]
) -> tuple[Code, dict[str, int]]:
    """What packs lines of such integers, panels or else rows, and what is in all frames."""
    frame = dict.fromkeys(PACKED, 0) | {"zeros": NO_ZERO.ctypes.data} | numbers
    source = loops.panels(of, is_signed, lies) if isinstance(of, Panel) else loops.rows(of, is_signed, lies == "dense")
    return Code(compiler, source), frame
