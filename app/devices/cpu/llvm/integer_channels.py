"""Sums of products of 8-bit integers where each group of channels has a filter or two: nothing is read often enough to
be packed. A filter's element meets the elements of one row of a padded channel at the positions of one row.

Of elements x with the zero point y, and weights w that have no zero point any more,

    sum of (x - y) * w  =  sum of x * w  -  y * sum of w
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from app.devices.cpu.llvm.text import Text

CHANNELS = (
    *("padded", "filters", "zero", "filter_zeros", "table", "sums"),
    *("first_group", "end_group", "first", "end", "terms", "each"),
    *("padded_group", "padded_channels", "filter_zero", "sums_group", "sums_row"),
    *("row", "positions_y", "positions_x"),
)
"""What the frame has, 8 bytes each: six addresses, then numbers. From `first` to before `end` of each is computed:
items, and outputs, of which `each` go with the same channels. The table tells how many bytes behind a position each of
`terms` meets its element. What is "of" something is the way to the next one, in bytes: items and groups of channels as
they are padded, zero points of filters, items and outputs of sums, and rows of positions in a padded channel."""

STRIDES = (1, 2, 4)
"""Between positions of a row: so many bytes are loaded as one number, whose lowest one is met."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums in registers: of so many rows, each with so many vectors of so many."""

    rows: int
    vectors: int
    width: int

    @property
    def columns(self) -> int:
        return self.vectors * self.width


@lru_cache(64)
def source(tile: Sums, stride: int, is_signed: bool, filter_is_signed: bool) -> str:
    """The module whose function `kernel` takes a frame. Behind padded channels may be read as far as a tile is wide."""
    text = Text(tile.width)
    frame = text.frame(CHANNELS, 6)
    zero = _byte(text, frame["zero"], is_signed)
    with (
        text.loop(frame["first_group"], frame["end_group"], "1") as item,
        text.loop(frame["first"], frame["end"], "1") as output,
    ):
        group = text.let(f"udiv i64 {output.index}, {frame['each']}")
        channels = text.behind(frame["padded"], (item.index, frame["padded_group"]), (group, frame["padded_channels"]))
        sums = text.behind(frame["sums"], (item.index, frame["sums_group"]), (output.index, frame["sums_row"]))
        weights = _Weights(
            text,
            text.behind(frame["filters"], (output.index, frame["terms"])),
            text.behind(frame["filter_zeros"], (output.index, frame["filter_zero"])),
            filter_is_signed,
        )
        with text.loop("0", frame["terms"], "1", [("i32", "0")]) as term:
            term.next.append(text.let(f"add i32 {term.values[0]}, {weights.one(term.index)}"))
        start = text.spread(text.let(f"sub i32 0, {text.let(f'mul i32 {zero}, {term.results[0]}')}"), "i32")
        elements = _Elements(text, tile, stride, is_signed)
        is_tall = text.let(f"icmp uge i64 {frame['positions_y']}, {tile.rows}")
        for rows, are_there in ((tile.rows, is_tall), (1, text.let(f"xor i1 {is_tall}, true"))):
            with text.when(are_there):
                _channel(text, replace(tile, rows=rows), frame, (channels, sums), (elements, weights), start)
    return text.module()


@dataclass(frozen=True, slots=True)
class _Weights:
    """A filter's, whose zero point is where a pointer says."""

    text: Text
    pointer: str
    zero: str
    is_signed: bool

    def one(self, term: str) -> str:
        """It has 16 bits, which vectors multiply sooner than 32."""
        text = self.text
        given, zero = (_byte(text, each, self.is_signed) for each in (text.at(self.pointer, term, "i8"), self.zero))
        own = text.let(f"trunc i32 {text.let(f'sub i32 {given}, {zero}')} to i16")
        return text.let(f"sext i16 {own} to i32")


@dataclass(frozen=True, slots=True)
class _Elements:
    """Those that neighbouring positions of a row meet."""

    text: Text
    tile: Sums
    stride: int
    is_signed: bool

    def read(self, pointer: str) -> list[str]:
        """As vectors of 32 bits."""
        text, found = self.text, []
        loaded, bytes_, wide = (f"<{self.tile.width} x i{bits}>" for bits in (8 * self.stride, 8, 32))
        for number in range(self.tile.vectors):
            value = text.let(
                f"load {loaded}, ptr {text.at(pointer, str(number * self.tile.width), f'i{8 * self.stride}')}, align 1"
            )
            if self.stride > 1:
                value = text.let(f"trunc {loaded} {value} to {bytes_}")
            found.append(text.let(f"{'sext' if self.is_signed else 'zext'} {bytes_} {value} to {wide}"))
        return found


def _channel(
    text: Text,
    tile: Sums,
    frame: dict[str, str],
    places: tuple[str, str],
    met: tuple[_Elements, _Weights],
    start: str,
) -> None:
    """One of the output, of so many rows or more."""
    (channels, sums), (elements, weights) = places, met
    stride, vector = str(elements.stride), f"<{tile.width} x i32>"
    last_y = text.sub(frame["positions_y"], str(tile.rows))
    with (
        text.loop("0", frame["positions_y"], str(tile.rows)) as block,
        text.loop("0", frame["positions_x"], str(tile.columns)) as x,
    ):
        y = text.least(block.index, last_y)  # the last tile goes back to where the one before has been
        here = text.at(text.behind(channels, (y, frame["row"])), text.mul(x.index, stride), "i8")
        rows = [text.behind(here, (str(row), frame["row"])) for row in range(tile.rows)]
        added = [(vector, start)] * (tile.rows * tile.vectors)
        with text.loop("0", frame["terms"], "1", added) as term:
            offset = text.let(f"load i64, ptr {text.at(frame['table'], term.index, 'i64')}")
            weight = text.spread(weights.one(term.index), "i32")
            found = [each for row in rows for each in elements.read(text.at(row, offset, "i8"))]
            for each, before in zip(found, term.values, strict=True):
                product = text.let(f"mul {vector} {each}, {weight}")
                term.next.append(text.let(f"add {vector} {before}, {product}"))
        left = text.sub(frame["positions_x"], x.index)
        masks = [text.below(text.lanes(str(number * tile.width)), left) for number in range(tile.vectors)]
        for row in range(tile.rows):
            own = text.add(text.mul(text.add(y, str(row)), frame["positions_x"]), x.index)
            for number, mask in enumerate(masks):
                place = text.at(sums, text.add(own, str(number * tile.width)), "i32")
                text.store(term.results[row * tile.vectors + number], place, mask, "i32")


def _byte(text: Text, pointer: str, is_signed: bool) -> str:
    return text.let(f"{'sext' if is_signed else 'zext'} i8 {text.let(f'load i8, ptr {pointer}')} to i32")
