"""Copies from a layout in which elements lie one behind the other along one dimension to one in which they do along
another: tiles of as many rows as a vector has elements are turned in registers."""

from collections.abc import Sequence
from functools import lru_cache

from app.devices.cpu.llvm.text import Text


@lru_cache(32)
def source(size: int, width: int, outer: int) -> str:
    """The module whose function `kernel` takes a frame, of 8 bytes each: the addresses of the elements and of their
    copies; of each of the `outer` dimensions its size and strides in bytes, of the elements and of the copies; how
    many elements there are along the dimension `down`, along which they lie one behind the other, and along the
    dimension `along`, where their copies do; strides in bytes, of elements along the latter and of copies along the
    former.

    Elements have `size` bytes, tiles `width` elements each way.
    """
    text = Text(width)
    dimensions = [(f"size{axis}", f"from{axis}", f"to{axis}") for axis in range(outer)]
    frame = text.frame(
        ("elements", "copies", *(name for each in dimensions for name in each), "down", "along", "from", "to"), 2
    )
    _Tiles(text, frame, size).around(dimensions, frame["elements"], frame["copies"])
    return text.module()


class _Tiles:
    def __init__(self, text: Text, frame: dict[str, str], size: int) -> None:
        self._text, self._frame = text, frame
        self._size, self._type = size, f"i{8 * size}"

    def around(self, dimensions: Sequence[tuple[str, str, str]], read: str, written: str) -> None:
        """Loops over these, and tiles inside."""
        if not dimensions:
            self._tiles(read, written)
            return
        text, (size, *steps) = self._text, [self._frame[name] for name in dimensions[0]]
        with text.loop("0", size, "1") as each:
            moved = [
                text.at(place, text.mul(each.index, step), "i8")
                for place, step in zip((read, written), steps, strict=True)
            ]
            self.around(dimensions[1:], *moved)

    def _tiles(self, read: str, written: str) -> None:
        """Those that there are, and element by element what is beside them."""
        text, down, along = self._text, self._frame["down"], self._frame["along"]
        whole_down, whole_along = (text.let(f"and i64 {each}, {-text.width}") for each in (down, along))
        some = [text.let(f"icmp ne i64 {each}, 0") for each in (whole_down, whole_along)]
        with (
            text.when(text.let(f"and i1 {some[0]}, {some[1]}")),
            text.loop("0", whole_along, str(text.width)) as column,
            text.loop("0", whole_down, str(text.width)) as row,
        ):
            self._tile(*self._at(read, written, row.index, column.index))
        self._rest(read, written, (whole_down, down), ("0", along))
        self._rest(read, written, ("0", whole_down), (whole_along, along))

    def _at(self, read: str, written: str, down: str, along: str) -> tuple[str, str]:
        """Where the element at these coordinates is, and where its copy goes."""
        text, frame = self._text, self._frame
        given = text.at(text.at(read, text.mul(along, frame["from"]), "i8"), down, self._type)
        taken = text.at(text.at(written, text.mul(down, frame["to"]), "i8"), along, self._type)
        return given, taken

    def _tile(self, read: str, written: str) -> None:
        """Exchanges halves of pairs of rows, then quarters of nearer ones, until each row is a column."""
        text, frame, count = self._text, self._frame, self._text.width
        vector = f"<{count} x {self._type}>"
        rows = [
            text.let(f"load {vector}, ptr {text.at(read, text.mul(frame['from'], str(number)), 'i8')}, align 1")
            for number in range(count)
        ]
        apart = count // 2
        while apart:
            before = list(rows)
            for number in range(count):
                first, second = number & ~apart, number | apart
                lanes = [lane & ~apart if lane & apart else lane for lane in range(count)]
                lanes = [lane | (number & apart) | (count if place & apart else 0) for place, lane in enumerate(lanes)]
                mask = ", ".join(f"i32 {lane}" for lane in lanes)
                rows[number] = text.let(
                    f"shufflevector {vector} {before[first]}, {vector} {before[second]}, <{count} x i32> <{mask}>"
                )
            apart //= 2
        for number, row in enumerate(rows):
            place = text.at(written, text.mul(frame["to"], str(number)), "i8")
            text.do(f"store {vector} {row}, ptr {place}, align 1")

    def _rest(self, read: str, written: str, down: tuple[str, str], along: tuple[str, str]) -> None:
        text = self._text
        some = [text.let(f"icmp ult i64 {begin}, {end}") for begin, end in (down, along)]
        with (
            text.when(text.let(f"and i1 {some[0]}, {some[1]}")),
            text.loop(*down, "1") as row,
            text.loop(*along, "1") as column,
        ):
            given, taken = self._at(read, written, row.index, column.index)
            text.do(f"store {self._type} {text.let(f'load {self._type}, ptr {given}, align 1')}, ptr {taken}, align 1")
