"""Products of matrices: some rows of one with panels of another, the sums in registers.

A panel is as many columns as a tile has. Each term of a sum is a multiplication and an addition at once, from the first
to the last, or in as many sums as a vector has elements, which are added pair by pair.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import WIDEST, Text
from app.devices.cpu.llvm.types import bytes_of

FIELDS = (
    *("a", "b", "c", "results"),
    *("depth", "columns", "first_group", "end_group", "first_panel", "end_panel", "first_row", "end_row"),
    *("a_group", "a_row", "a_term", "b_group", "b_panel", "b_term", "b_column"),
    *("c_group", "c_row", "r_group", "r_row"),
    *("alpha", "beta"),
)
"""What the frame has, 8 bytes each: four addresses, then numbers, the last two of which are float32, then the
activation's attributes. From `first` to before `end` of each is computed: groups, that is matrices, panels, and rows,
as many as a multiple of those of a tile. What is "of" something, as `a_row`, is the way to the next one, in elements.
Past the last of `columns` nothing is written, nor read unless b is packed."""

POINTERS = 10
"""Rows that processors have a register each to point to. Were there one to each of more, LLVM would move sums to the
stack and back: each but the first is found from the one before."""

Addend: TypeAlias = Literal["none", "rows", "columns"]
"""What is added: nothing, something whose columns lie one after the other, or one number for all columns of a row."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Results in registers: so many rows, each with so many vectors of so many float32.

    If b `is_packed`, its panels are filled up with something that is in it, or 0. What is `ahead` is asked for
    meanwhile: so many elements of a packed b, terms of another.
    """

    rows: int
    vectors: int
    width: int
    is_packed: bool = False
    addend: Addend = "none"
    is_scaled: bool = False
    """Whether products are multiplied by alpha, and the addend by beta."""
    ahead: int = 0
    stored: Literal["float", "half"] = "float"
    """What elements are in memory. All are computed as float."""
    along: int = 0
    """If it is not 0, so many columns, at most a vector of results, of which each term follows the one before, as do
    those of a's rows: each sum is a vector along them."""

    @property
    def columns(self) -> int:
        return self.along or self.vectors * self.width


def source(tile: ProductTile, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame of FIELDS."""
    text = Text(tile.width)
    frame = text.frame(FIELDS[:-2], 4)
    for place, name in enumerate(FIELDS[-2:], len(FIELDS) - 2):
        frame[name] = text.let(f"load float, ptr {text.at('%frame', str(place), 'i64')}")
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    if activation:
        frame["activated"] = text.let(
            f"alloca [{tile.rows * tile.vectors * tile.width} x float], align {4 * tile.width}"
        )
    with (
        text.loop(frame["first_group"], frame["end_group"], "1", note="") as group,
        text.loop(frame["first_panel"], frame["end_panel"], "1", note="") as panel,
        text.loop(frame["first_row"], frame["end_row"], str(tile.rows), note="") as row,
    ):
        for is_whole in _ways(text, tile, frame["columns"], panel.index):
            made, places = _tile(text, tile, frame, (group.index, panel.index, row.index), is_whole=is_whole)
            if activation:
                made = text.activated(activation, attributes, frame["activated"], made)
            for value, (target, mask) in zip(made, places, strict=True):
                text.store_as(tile.stored, value, target, mask)
    return text.module(*[activation] if activation else [])


def _ways(text: Text, tile: ProductTile, columns: str, panel: str) -> Iterator[bool]:
    """Whether a panel is known to be whole, for all ways in which a tile is written: two where processors load some
    elements of 16 bits one by one, and otherwise one, for all panels."""
    if tile.is_packed or tile.along or tile.stored == "float" or tile.width == WIDEST:
        yield False
        return
    end = text.mul(text.add(panel, "1"), str(tile.columns))
    for is_whole, compared in ((True, "ule"), (False, "ugt")):
        with text.when(text.let(f"icmp {compared} i64 {end}, {columns}")):
            yield is_whole


def _tile(
    text: Text, tile: ProductTile, frame: dict[str, str], where: tuple[str, str, str], *, is_whole: bool
) -> tuple[list[str], list[tuple[str, str]]]:
    """The vectors of one tile of results, all of its terms, and where each belongs, with those of its elements that
    there are. It is `where` group, panel and first row say; a panel that `is_whole` has all columns."""
    group, panel, first_row = where
    width, vector = tile.width, text.vector
    rows, columns = range(tile.rows), range(tile.vectors)
    at = partial(_at, text, tile)

    def start(matrix: str) -> str:
        """Where the tile's first row is in a matrix that has the results' rows."""
        of_group = at(frame[matrix], group, frame[f"{matrix[0]}_group"])
        return at(of_group, first_row, frame[f"{matrix[0]}_row"])

    column = text.mul(panel, str(tile.columns))
    left_columns = text.sub(frame["columns"], column)
    left = text.spread(left_columns, "i64")
    masks = []
    for number in columns:
        lanes = ", ".join(f"i64 {number * width + lane}" for lane in range(width))
        masks.append(text.let(f"icmp ugt <{width} x i64> {left}, <{lanes}>"))
    if tile.along:
        lanes = ", ".join(f"i1 {int(lane < tile.along)}" for lane in range(width))
        masks = [text.let(f"and <{width} x i1> {masks[0]}, <{lanes}>")]
    a = start("a")
    b = at(at(frame["b"], group, frame["b_group"]), panel, frame["b_panel"])
    if tile.along:
        lines = [
            at(b, text.least(str(number), text.sub(left_columns, "1")), frame["b_column"])
            for number in range(tile.along)
        ]
        sums = _along(text, tile, frame["depth"], [at(a, str(row), frame["a_row"]) for row in rows], lines)
    else:
        sums = _across(text, tile, frame, a, b, [None if tile.is_packed or is_whole else each for each in masks])
    results, addends = start("results"), start("c")
    alpha, beta = text.spread(frame["alpha"]), text.spread(frame["beta"])
    vectors, places = [], []
    for row in rows:
        target = text.at(at(results, str(row), frame["r_row"]), column, tile.stored)
        addend = at(addends, str(row), frame["c_row"])
        if tile.addend == "columns":
            one = text.spread_as(tile.stored, addend)
        for number in columns:
            made = sums[row * tile.vectors + number]
            if tile.is_scaled:
                made = text.let(f"fmul {vector} {made}, {alpha}")
            if tile.addend != "none":
                added = one if tile.addend == "columns" else ""
                if tile.addend == "rows":
                    there = text.at(text.at(addend, column, tile.stored), str(number * width), tile.stored)
                    added = text.load_as(tile.stored, there, None if is_whole else masks[number])
                if tile.is_scaled:
                    added = text.let(f"fmul {vector} {added}, {beta}")
                made = text.let(f"fadd {vector} {made}, {added}")
            vectors.append(made)
            places.append((text.at(target, str(number * width), tile.stored), masks[number]))
    return vectors, places


def _at(text: Text, tile: ProductTile, pointer: str, number: str, step: str) -> str:
    """So many steps behind an element."""
    return text.at(pointer, text.mul(number, step), tile.stored)


def _across(text: Text, tile: ProductTile, frame: dict[str, str], a: str, b: str, masks: list[str | None]) -> list[str]:
    """Sums of a row after the other, whose vectors are of columns."""
    rows, columns = range(tile.rows), range(tile.vectors)
    at = partial(_at, text, tile)
    pointers = [at(a, str(row), frame["a_row"]) for row in (rows if tile.rows <= POINTERS else range(1))]
    zeros = [(text.vector, "zeroinitializer") for _ in rows for _ in columns]
    with text.loop("0", frame["depth"], "1", zeros, note="") as term:
        here = at(b, term.index, frame["b_term"])
        far, more = here, tile.ahead
        if tile.ahead and not tile.is_packed:
            far, more = at(b, text.add(term.index, str(tile.ahead)), frame["b_term"]), 0
        for line in range(0, tile.ahead and tile.columns, 64 // bytes_of(tile.stored)):  # of 64 bytes
            arguments = f"ptr {text.at(far, str(more + line), tile.stored)}, i32 0, i32 3, i32 1"
            text.declare("void", "llvm.prefetch.p0", arguments)
            text.do(f"call void @llvm.prefetch.p0({arguments})")
        loaded = [
            text.load_as(tile.stored, text.at(here, str(number * tile.width), tile.stored), mask)
            for number, mask in zip(columns, masks, strict=True)
        ]
        place = ""
        for row in rows:
            is_pointed_to = row < len(pointers)
            place = at(pointers[row], term.index, frame["a_term"]) if is_pointed_to else at(place, "1", frame["a_row"])
            spread = text.spread_as(tile.stored, place)
            for number in columns:
                term.next.append(text.fused(spread, loaded[number], term.values[row * tile.vectors + number]))
    return term.results


def _along(text: Text, tile: ProductTile, depth: str, rows: list[str], columns: list[str]) -> list[str]:
    """A vector for each of the rows, which begins with the sums for all columns, of which each is a vector of terms."""
    whole = text.sub(depth, text.let(f"urem i64 {depth}, {text.width}"))
    sums = ["zeroinitializer"] * (len(rows) * len(columns))
    for begin, end in (("0", whole), (whole, depth)):
        carried = [(text.vector, each) for each in sums]
        with text.loop(begin, end, str(text.width), carried, note="", may_be_none=True) as term:
            there = None if end == whole else text.below(text.lanes(term.index), depth)
            a, b = (
                [text.load_as(tile.stored, text.at(each, term.index, tile.stored), there) for each in lines]
                for lines in (rows, columns)
            )
            known = iter(term.values)
            term.next = [text.fused(one, other, next(known)) for one in a for other in b]
        sums = term.results
    return [text.totals(sums[first : first + len(columns)]) for first in range(0, len(sums), len(columns))]
