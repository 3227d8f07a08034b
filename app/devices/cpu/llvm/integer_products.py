"""Products of matrices of 8-bit integers, exact modulo 2^32: both are packed, then rows of one meet panels of the
other.

A lane of 32 bits has some terms of a sum, as many as the processor multiplies and adds up at once. Packed, the left
matrix has a sign and the right one has none: so 128 is taken from what has none on the left, and added to what has one
on the right, and to zero points too, so that differences stay what they are. Of packed a and b, with zero points y and
z,

    sum of (a - y) * (b - z)  =  sum of a * b  -  y * sum of b  -  z * sum of (a - y)

where the last two sums are of one column or row, and packed before it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.text import Text

Terms: TypeAlias = Literal[2, 4]
"""Of a lane: four bytes for AVX-512's or AVX's VNNI, or two that are widened to 16 bits."""

Lies: TypeAlias = Literal["dense", "apart", "listed"]
"""How a right matrix lies: its columns one after the other, or apart from one another; or as they lie dense, and a list
of 64-bit numbers says how many bytes behind the first one each row begins, where `term` of the frame is its address.
What is listed is packed for whole panels."""

PACKED = (
    *("elements", "zeros", "packed"),
    *("depth", "size", "first_group", "end_group", "first", "end"),
    *("group", "line", "term", "zero_group", "zero_line", "packed_group"),
)
"""What the frame of what packs has, 8 bytes each: three addresses, then numbers. From `first` to before `end` of each
is packed: matrices, and rows or panels. `size` is how many columns there are. What is "of" something is the way to the
next one, in bytes: matrices, their lines (rows or columns), and the terms of these; zero points of a matrix and of a
line; and packed matrices."""

PRODUCTS = (
    *("a", "b", "results"),
    *("lanes", "columns", "first_group", "end_group", "first_panel", "end_panel", "first_row", "end_row"),
    *("a_group", "b_group", "r_group", "r_row"),
)
"""The same of what multiplies: from `first` to before `end` of each is computed, rows in multiples of those of a tile.
`lanes` are those of a row. What is "of" something, as `a_group`, is the way to the next one, in bytes."""

HEAD = 8
"""Bytes before a row's lanes: its zero point, and its sum of differences. A panel has as many for each column, all zero
points first, and sums of elements."""


@dataclass(frozen=True, slots=True)
class Panel:
    """As many columns as some vectors have elements."""

    vectors: int
    width: int
    terms: Terms

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def row_bytes(depth: int, terms: Terms) -> int:
    """Of a packed row of the left matrix, or of a column of the right one."""
    return HEAD + 4 * -(-depth // terms)


@lru_cache(16)
def rows(terms: Terms, is_signed: bool, is_dense: bool) -> str:
    """The module that packs a left matrix, whose function `kernel` takes a frame of PACKED. In one that is dense, the
    terms of a row lie one after the other."""
    text = Text(1)
    frame = text.frame(PACKED, 3)
    lanes = _lanes(text, frame, terms)
    step = text.add(text.mul(lanes, "4"), str(HEAD))
    depth = text.let(f"trunc i64 {frame['depth']} to i32")
    with (
        text.loop(frame["first_group"], frame["end_group"], "1") as group,
        text.loop(frame["first"], frame["end"], "1") as row,
    ):
        start = text.behind(frame["elements"], (group.index, frame["group"]), (row.index, frame["line"]))
        packed = text.behind(frame["packed"], (group.index, frame["packed_group"]), (row.index, step))
        found = text.behind(frame["zeros"], (group.index, frame["zero_group"]), (row.index, frame["zero_line"]))
        zero = _moved(text, text.let(f"load i8, ptr {found}"), not is_signed, "sext", "i32")
        made = text.at(packed, str(HEAD), "i8")
        text.do(f"store i32 0, ptr {text.at(made, text.sub(lanes, '1'), 'i32')}, align 4")
        with text.parallel(frame["depth"], [("i32", "0")]) as term:
            place = term.index if is_dense else text.mul(term.index, frame["term"])
            byte = text.let(f"load i8, ptr {text.at(start, place, 'i8')}, !llvm.access.group !2")
            kept = f"i{32 // terms}"
            value = _moved(text, byte, not is_signed, "sext", kept)
            text.do(f"store {kept} {value}, ptr {text.at(made, term.index, kept)}, !llvm.access.group !2")
            term.next.append(text.let(f"add i32 {term.values[0]}, {text.let(f'sext {kept} {value} to i32')}"))
        all_zeros = text.let(f"mul i32 {zero}, {depth}")
        text.do(f"store i32 {zero}, ptr {packed}, align 4")
        rest = text.let(f"sub i32 {term.results[0]}, {all_zeros}")
        text.do(f"store i32 {rest}, ptr {text.at(packed, '1', 'i32')}, align 4")
    return text.module()


@lru_cache(64)
def panels(panel: Panel, is_signed: bool, lies: Lies) -> str:
    """The same of a right matrix."""
    text = Text(panel.width)
    frame, columns = text.frame(PACKED, 3), str(panel.columns)
    lanes = _lanes(text, frame, panel.terms)
    step = text.mul(text.add(text.mul(lanes, "4"), str(HEAD)), columns)
    with (
        text.loop(frame["first_group"], frame["end_group"], "1") as group,
        text.loop(frame["first"], frame["end"], "1") as number,
    ):
        column = text.mul(number.index, columns)
        start = text.behind(frame["elements"], (group.index, frame["group"]), (column, frame["line"]))
        packed = text.behind(frame["packed"], (group.index, frame["packed_group"]), (number.index, step))
        zeros = text.behind(frame["zeros"], (group.index, frame["zero_group"]), (column, frame["zero_line"]))
        left = text.least(text.sub(frame["size"], column), columns)
        with text.loop("0", left, "1") as each:
            found = text.let(f"load i8, ptr {text.behind(zeros, (each.index, frame['zero_line']))}")
            zero = _moved(text, found, is_signed, "zext", "i32")
            text.do(f"store i32 {zero}, ptr {text.at(packed, each.index, 'i32')}, align 4")
        sums = text.at(packed, columns, "i32")
        made = text.at(sums, columns, "i32")
        where = start, sums, made
        if lies == "listed":
            _whole(text, panel, frame, lanes, is_signed, where, text.let(f"inttoptr i64 {frame['term']} to ptr"))
        else:
            is_whole = text.let(f"icmp eq i64 {left}, {columns}") if lies == "dense" else "false"
            with text.when(is_whole):
                _whole(text, panel, frame, lanes, is_signed, where)
            with text.when(text.let(f"xor i1 {is_whole}, true")):
                _one_by_one(text, panel, frame, lanes, is_signed, where, left)
    return text.module()


def _whole(
    text: Text,
    panel: Panel,
    frame: dict[str, str],
    lanes: str,
    is_signed: bool,
    where: tuple[str, str, str],
    listed: str = "",
) -> None:
    """A panel of which all columns are there and lie one after the other, from `start`: their sums and lanes."""
    start, sums, made = where
    width, terms = panel.width, panel.terms
    bytes_, vector = f"<{width} x i8>", f"<{width} x i32>"
    kept = f"<{width} x i{32 // terms}>"
    last = text.sub(frame["depth"], "1")
    ones = text.spread(str(sum(1 << 32 // terms * place for place in range(terms))), "i32")
    with text.loop("0", lanes, "1", [(vector, "zeroinitializer")] * panel.vectors) as lane:
        first = text.mul(lane.index, str(terms))
        places = [text.add(first, str(number)) for number in range(terms)]
        there = [text.let(f"icmp ule i64 {place}, {last}") for place in places]
        lines = []
        for place in places:
            row = text.least(place, last)
            far = text.let(f"load i64, ptr {text.at(listed, row, 'i64')}") if listed else text.mul(row, frame["term"])
            lines.append(text.at(start, far, "i8"))
        for number in range(panel.vectors):
            found = []
            for line, is_there in zip(lines, there, strict=True):
                byte = text.let(f"load {bytes_}, ptr {text.at(line, str(number * width), 'i8')}, align 1")
                value = _moved(text, byte, is_signed, "zext", kept, width)
                found.append(text.let(f"select i1 {is_there}, {kept} {value}, {kept} zeroinitializer"))
            lined = _interleaved(text, found, width, 32 // terms)
            place = text.at(text.at(made, text.mul(lane.index, str(panel.columns)), "i32"), str(number * width), "i32")
            text.do(f"store {vector} {lined}, ptr {place}, align 4")
            lane.next.append(_dot(text, terms, lane.values[number], lined, ones))
    for number, total in enumerate(lane.results):
        text.do(f"store {vector} {total}, ptr {text.at(sums, str(number * width), 'i32')}, align 4")


def _one_by_one(
    text: Text, panel: Panel, frame: dict[str, str], lanes: str, is_signed: bool, where: tuple[str, str, str], left: str
) -> None:
    """The first columns of a panel, so many as are `left`, wherever they lie."""
    start, sums, made = where
    kept = f"i{32 // panel.terms}"
    with text.loop("0", left, "1") as column:
        line = text.behind(start, (column.index, frame["line"]))
        own = text.at(made, column.index, "i32")
        end = text.at(own, text.mul(text.sub(lanes, "1"), str(panel.columns)), "i32")
        text.do(f"store i32 0, ptr {end}, align 4")
        with text.loop("0", frame["depth"], "1", [("i32", "0")]) as term:
            byte = text.let(f"load i8, ptr {text.behind(line, (term.index, frame['term']))}")
            value = _moved(text, byte, is_signed, "zext", kept)
            lane = text.let(f"udiv i64 {term.index}, {panel.terms}")
            place = text.at(own, text.mul(lane, str(panel.columns)), "i32")
            part = text.let(f"urem i64 {term.index}, {panel.terms}")
            text.do(f"store {kept} {value}, ptr {text.at(place, part, kept)}")
            term.next.append(text.let(f"add i32 {term.values[0]}, {text.let(f'zext {kept} {value} to i32')}"))
        text.do(f"store i32 {term.results[0]}, ptr {text.at(sums, column.index, 'i32')}, align 4")


@lru_cache(64)
def products(panel: Panel, count: int) -> str:
    """The module that multiplies so many packed rows with a panel, again and again, whose function `kernel` takes a
    frame of PRODUCTS."""
    text = Text(panel.width)
    frame, columns, width = text.frame(PRODUCTS, 3), panel.columns, panel.width
    vector = f"<{width} x i32>"
    made = text.let(f"alloca [{count * columns} x i32], align {4 * width}")
    a_row = text.add(text.mul(frame["lanes"], "4"), str(HEAD))
    b_panel = text.mul(a_row, str(columns))
    with (
        text.loop(frame["first_group"], frame["end_group"], "1") as group,
        text.loop(frame["first_panel"], frame["end_panel"], "1") as number,
        text.loop(frame["first_row"], frame["end_row"], str(count)) as row,
    ):
        a = text.behind(frame["a"], (group.index, frame["a_group"]), (row.index, a_row))
        of_rows = [text.behind(a, (str(each), a_row)) for each in range(count)]
        b = text.behind(frame["b"], (group.index, frame["b_group"]), (number.index, b_panel))
        terms = text.at(b, str(HEAD * columns), "i8")
        sums = [(vector, "zeroinitializer")] * (count * panel.vectors)
        with text.loop("0", frame["lanes"], "1", sums) as lane:
            here = text.at(terms, text.mul(lane.index, str(columns)), "i32")
            right = [_load(text, vector, here, str(each * width)) for each in range(panel.vectors)]
            for line in range(count):
                weight = text.at(text.at(of_rows[line], str(HEAD), "i8"), lane.index, "i32")
                spread = text.spread(text.let(f"load i32, ptr {weight}, align 4"), "i32")
                for place, found in enumerate(right):
                    before = lane.values[line * panel.vectors + place]
                    lane.next.append(_dot(text, panel.terms, before, found, spread))
        for place, total in enumerate(lane.results):
            text.do(f"store {vector} {total}, ptr {text.at(made, str(place * width), 'i32')}, align 4")
        column = text.mul(number.index, str(columns))
        result = text.behind(frame["results"], (group.index, frame["r_group"]), (row.index, frame["r_row"]))
        with text.loop("0", str(count), "1") as each, text.loop("0", str(columns), str(width)) as part:
            along = text.lanes(text.add(column, part.index))
            mask = text.below(along, frame["columns"])
            own = text.behind(a, (each.index, a_row))
            zero, rest = (
                text.spread(text.let(f"load i32, ptr {text.at(own, str(word), 'i32')}, align 4"), "i32")
                for word in range(2)
            )
            zeros, totals = (_load(text, vector, b, text.add(part.index, str(word * columns))) for word in range(2))
            found = _load(text, vector, made, text.add(text.mul(each.index, str(columns)), part.index))
            found = text.let(f"sub {vector} {found}, {text.let(f'mul {vector} {zero}, {totals}')}")
            found = text.let(f"sub {vector} {found}, {text.let(f'mul {vector} {rest}, {zeros}')}")
            there = text.at(text.behind(result, (each.index, frame["r_row"])), text.add(column, part.index), "i32")
            text.store(text.let(f"bitcast {vector} {found} to {text.vector}"), there, mask)
    return text.module()


def _lanes(text: Text, frame: dict[str, str], terms: Terms) -> str:
    return text.let(f"udiv i64 {text.add(frame['depth'], str(terms - 1))}, {terms}")


def _load(text: Text, vector: str, pointer: str, place: str) -> str:
    return text.let(f"load {vector}, ptr {text.at(pointer, place, 'i32')}, align 4")


def _moved(text: Text, byte: str, is_moved: bool, widened: str, kept: str, width: int = 0) -> str:
    """A byte, or so many, as it is packed: moved by 128 or not, and widened to the type that is `kept`."""
    given = f"<{width} x i8>" if width else "i8"
    if is_moved:
        number = f"<{', '.join(['i8 -128'] * width)}>" if width else "-128"
        byte = text.let(f"xor {given} {byte}, {number}")
    return byte if kept == given else text.let(f"{widened} {given} {byte} to {kept}")


def _interleaved(text: Text, values: list[str], width: int, bits: int) -> str:
    """Vectors of numbers of so many bits as one of 32-bit lanes, of which each has one number of each vector."""
    size = width
    while len(values) > 1:
        both = ", ".join(f"i32 {half * size + each}" for each in range(size) for half in range(2))
        joined = []
        for low, high in zip(values[::2], values[1::2], strict=True):
            vector = f"<{size} x i{bits}>"
            mixed = text.let(f"shufflevector {vector} {low}, {vector} {high}, <{2 * size} x i32> <{both}>")
            joined.append(text.let(f"bitcast <{2 * size} x i{bits}> {mixed} to <{size} x i{2 * bits}>"))
        values, bits = joined, 2 * bits
    return values[0]


def _dot(text: Text, terms: Terms, before: str, right: str, left: str) -> str:
    """`before`, more in each lane by the sum of the products of its terms, those on the right without a sign."""
    width = text.width
    vector, wide = f"<{width} x i32>", f"<{2 * width} x i32>"
    if terms == 4:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
        return text.call(vector, name, f"{vector} {before}, {vector} {right}, {vector} {left}")
    halves = [text.let(f"bitcast {vector} {each} to <{2 * width} x i16>") for each in (right, left)]
    factors = [text.let(f"sext <{2 * width} x i16> {each} to {wide}") for each in halves]
    made = text.let(f"mul {wide} {factors[0]}, {factors[1]}")
    for place in range(2):  # which processors with vectors have one instruction for, and LLVM knows it
        lanes = ", ".join(f"i32 {2 * each + place}" for each in range(width))
        part = text.let(f"shufflevector {wide} {made}, {wide} poison, <{width} x i32> <{lanes}>")
        halves[place] = part
    return text.let(f"add {vector} {before}, {text.let(f'add {vector} {halves[0]}, {halves[1]}')}")
