"""Products of matrices: some rows of one with panels of another, the sums in registers.

A panel is as many columns as a tile has. Each term of a sum is a multiplication and an addition at once, from the first
to the last.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("a", "b", "c", "results"),
    *("depth", "columns", "first_group", "end_group", "first_panel", "end_panel", "first_row", "end_row"),
    *("a_group", "a_row", "a_term", "b_group", "b_panel", "b_term", "c_group", "c_row", "r_group", "r_row"),
    *("alpha", "beta"),
)
"""What the frame has, 8 bytes each: four addresses, then numbers, the last two of which are float32, then the
activation's attributes. From `first` to before `end` of each is computed: groups, that is matrices, panels, and rows,
as many as a multiple of those of a tile. What is "of" something, as `a_row`, is the way to the next one, in elements.
Past the last of `columns` nothing is written, nor read unless b is packed."""

Addend: TypeAlias = Literal["none", "rows", "columns"]
"""What is added: nothing, something whose columns lie one after the other, or one number for all columns of a row."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Results in registers: so many rows, each with so many vectors of so many float32.

    If b `is_packed`, its panels are filled up with anything; those `ahead` are asked for meanwhile, in elements.
    """

    rows: int
    vectors: int
    width: int
    is_packed: bool = False
    addend: Addend = "none"
    is_scaled: bool = False
    """Whether products are multiplied by alpha, and the addend by beta."""
    ahead: int = 0

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def source(tile: ProductTile, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame of FIELDS."""
    text = Text(tile.width)
    frame = text.frame(FIELDS[:-2], 4)
    for place, name in enumerate(FIELDS[-2:], len(FIELDS) - 2):
        frame[name] = text.let(f"load float, ptr {text.at('%frame', str(place), 'i64')}")
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    if activation:
        frame["activated"] = text.let(f"alloca [{tile.rows * tile.columns} x float], align {4 * tile.width}")
    with (
        text.loop(frame["first_group"], frame["end_group"], "1", note="") as group,
        text.loop(frame["first_panel"], frame["end_panel"], "1", note="") as panel,
        text.loop(frame["first_row"], frame["end_row"], str(tile.rows), note="") as row,
    ):
        made, places = _tile(text, tile, frame, group.index, panel.index, row.index)
        if activation:
            made = text.activated(activation, attributes, frame["activated"], made)
        for value, (target, mask) in zip(made, places, strict=True):
            text.store(value, target, mask)
    return text.module(*[activation] if activation else [])


def _tile(
    text: Text, tile: ProductTile, frame: dict[str, str], group: str, panel: str, first_row: str
) -> tuple[list[str], list[tuple[str, str]]]:
    """The vectors of one tile of results, all of its terms, and where each belongs, with those of its elements that
    there are."""
    width, vector = tile.width, text.vector
    rows, columns = range(tile.rows), range(tile.vectors)

    def start(matrix: str) -> str:
        """Where the tile's first row is in a matrix that has the results' rows."""
        of_group = _at(text, frame[matrix], group, frame[f"{matrix[0]}_group"])
        return _at(text, of_group, first_row, frame[f"{matrix[0]}_row"])

    column = text.mul(panel, str(tile.columns))
    left = text.spread(text.sub(frame["columns"], column), "i64")
    masks = []
    for number in columns:
        lanes = ", ".join(f"i64 {number * width + lane}" for lane in range(width))
        masks.append(text.let(f"icmp ugt <{width} x i64> {left}, <{lanes}>"))
    a = start("a")
    of_rows = [_at(text, a, str(row), frame["a_row"]) for row in rows]
    b = _at(text, _at(text, frame["b"], group, frame["b_group"]), panel, frame["b_panel"])
    zeros = [(vector, "zeroinitializer") for _ in rows for _ in columns]
    with text.loop("0", frame["depth"], "1", zeros, note="") as term:
        here = _at(text, b, term.index, frame["b_term"])
        for line in range(0, tile.ahead and tile.columns, 16):  # of 64 bytes
            arguments = f"ptr {text.at(here, str(tile.ahead + line))}, i32 0, i32 3, i32 1"
            text.declare("void", "llvm.prefetch.p0", arguments)
            text.do(f"call void @llvm.prefetch.p0({arguments})")
        loaded = []
        for number in columns:
            there = text.at(here, str(number * width))
            loaded.append(
                text.let(f"load {vector}, ptr {there}, align 4") if tile.is_packed else text.load(there, masks[number])
            )
        for row in rows:
            weight = text.let(f"load float, ptr {_at(text, of_rows[row], term.index, frame['a_term'])}, align 4")
            spread = text.spread(weight)
            for number in columns:
                term.next.append(text.fused(spread, loaded[number], term.values[row * tile.vectors + number]))
    results, addends = start("results"), start("c")
    alpha, beta = text.spread(frame["alpha"]), text.spread(frame["beta"])
    vectors, places = [], []
    for row in rows:
        target = text.at(_at(text, results, str(row), frame["r_row"]), column)
        addend = _at(text, addends, str(row), frame["c_row"])
        if tile.addend == "columns":
            one = text.spread(text.let(f"load float, ptr {addend}, align 4"))
        for number in columns:
            made = term.results[row * tile.vectors + number]
            if tile.is_scaled:
                made = text.let(f"fmul {vector} {made}, {alpha}")
            if tile.addend != "none":
                more = one if tile.addend == "columns" else ""
                if tile.addend == "rows":
                    more = text.load(text.at(text.at(addend, column), str(number * width)), masks[number])
                if tile.is_scaled:
                    more = text.let(f"fmul {vector} {more}, {beta}")
                made = text.let(f"fadd {vector} {made}, {more}")
            vectors.append(made)
            places.append((text.at(target, str(number * width)), masks[number]))
    return vectors, places


def _at(text: Text, pointer: str, number: str, step: str) -> str:
    """So many steps behind a float."""
    return text.at(pointer, text.mul(number, step))
