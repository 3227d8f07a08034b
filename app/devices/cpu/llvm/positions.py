"""Where in rows the largest or the smallest elements are, by reading them once: each lane of a block keeps the most
extreme element that it has met, and in which block that was."""

from functools import lru_cache

from app.devices.cpu.llvm.text import Text
from app.devices.cpu.llvm.types import bytes_of, llvm_type
from app.formula.values import is_float

FRAME = ("elements", "results", "first", "after", "count")
"""What the frame has, 8 bytes each: the addresses of rows and of their positions, the first row and the one after the
last, and how many elements a row has."""

LANES = (32, 8, 1)
"""Of a block. There are functions for each, since a row has at least one block."""


@lru_cache(32)
def source(type_: str, index: str, lanes: int, *, is_largest: bool, is_last: bool) -> str:
    """The module whose function `kernel` takes a frame, of rows of at least so many elements, `lanes`, and below 2^31.

    Elements are of the NumPy type, positions of LLVM's type `index`. The last of equal ones is found if it `is_last`,
    else the first. NaN, both zeros: a NaN is more extreme than any number, the zeros are equal.
    """
    return _Positions(type_, index, lanes, is_largest, is_last).text.module()


class _Positions:
    def __init__(self, type_: str, index: str, lanes: int, is_largest: bool, is_last: bool) -> None:
        self.text = text = Text(lanes)
        self._stored, self._is_float, self._is_last = llvm_type(type_), is_float(type_), is_last
        self._value = "float" if self._stored == "half" else self._stored
        self._vector, self._places = f"<{lanes} x {self._value}>", f"<{lanes} x i32>"
        side = "g" if is_largest else "l"
        kind = "o" if self._is_float else "u" if type_.startswith("u") else "s"
        self._compare = f"{'f' if self._is_float else 'i'}cmp {kind}{side}{'e' if is_last else 't'}"
        name = ("fm" if self._is_float else f"{kind}m") + ("ax" if is_largest else "in")
        short = {"float": "f32", "double": "f64"}.get(self._value, self._value)
        self._reduce = f"llvm.vector.reduce.{name}.v{lanes}{short}"
        frame = text.frame(FRAME, 2)
        with text.loop(frame["first"], frame["after"], "1") as row:
            start = text.at(frame["elements"], text.mul(row.index, frame["count"]), self._stored)
            place, is_nan = self._found(start, frame["count"])
            result = text.at(frame["results"], row.index, index)
            self._put(place, result, index)
            if is_nan:
                with text.when(is_nan):
                    self._put(self._nan(start, frame["count"]), result, index)

    def _put(self, place: str, result: str, index: str) -> None:
        made = self.text.let(f"trunc i64 {place} to i32") if index == "i32" else place
        self.text.do(f"store {index} {made}, ptr {result}, align 1")

    def _found(self, start: str, count: str) -> tuple[str, str]:
        """Where in a row the most extreme number is, and of floats whether there is a NaN, with which that is
        anything."""
        text, lanes = self.text, self.text.width
        last = text.sub(count, str(lanes))
        first = self._loaded(start)
        halves = f"<{max(lanes // 2, 1)} x i32>"
        carried = [(self._vector, first), (self._places, "zeroinitializer")]
        if self._is_float:
            carried.append((halves, self._nans(first, halves)))
        # The last block begins where it still is a whole one: what it has of the one before changes nothing.
        with text.loop(text.least(str(lanes), last), count, str(lanes), carried) as block:
            begin = text.least(block.index, last)
            value = self._loaded(text.at(start, begin, self._stored))
            best, where = block.values[:2]
            taken = text.let(f"{self._compare} {self._vector} {value}, {best}")
            here = text.spread(text.let(f"trunc i64 {begin} to i32"), "i32")
            for type_, own, other in ((self._vector, value, best), (self._places, here, where)):
                block.next.append(text.let(f"select <{lanes} x i1> {taken}, {type_} {own}, {type_} {other}"))
            if self._is_float:
                nans = self._nans(value, halves)
                block.next.append(text.let(f"or {halves} {block.values[2]}, {nans}"))
        best, where, *unordered = block.results
        flags = "nnan nsz " if self._is_float else ""
        text.declare(self._value, self._reduce, f"{self._vector} {best}")
        most = text.let(f"call {flags}{self._value} @{self._reduce}({self._vector} {best})")
        equal = "fcmp oeq" if self._is_float else "icmp eq"
        are_most = text.let(f"{equal} {self._vector} {best}, {text.spread(most, self._value)}")
        numbers = ", ".join(f"i32 {number}" for number in range(lanes))
        places = text.let(f"add {self._places} {where}, <{numbers}>")
        nowhere = text.spread("-1", "i32")
        places = text.let(f"select <{lanes} x i1> {are_most}, {self._places} {places}, {self._places} {nowhere}")
        name = f"llvm.vector.reduce.{'smax' if self._is_last else 'umin'}.v{lanes}i32"
        place = text.let(f"zext i32 {text.call('i32', name, f'{self._places} {places}')} to i64")
        if not unordered:
            return place, ""
        some = text.call("i32", f"llvm.vector.reduce.or.v{max(lanes // 2, 1)}i32", f"{halves} {unordered[0]}")
        return place, text.let(f"icmp ne i32 {some}, 0")

    def _loaded(self, place: str) -> str:
        """A block, of floats in float32 at least."""
        text, lanes = self.text, self.text.width
        stored = f"<{lanes} x {self._stored}>"
        loaded = text.let(f"load {stored}, ptr {place}, align {bytes_of(self._stored)}")
        return loaded if stored == self._vector else text.let(f"fpext {stored} {loaded} to {self._vector}")

    def _nans(self, value: str, halves: str) -> str:
        """Where in either half of a block there is one, as integers of all bits."""
        text, lanes = self.text, self.text.width
        half = max(lanes // 2, 1)
        parts = [
            text.let(
                f"shufflevector {self._vector} {value}, {self._vector} poison, "
                f"<{half} x i32> <{', '.join(f'i32 {first + number}' for number in range(half))}>"
            )
            for first in (0, lanes - half)
        ]
        are = text.let(f"fcmp uno <{half} x {self._value}> {parts[0]}, {parts[1]}")
        return text.let(f"sext <{half} x i1> {are} to {halves}")

    def _nan(self, start: str, count: str) -> str:
        """Where the first or the last one in a row is."""
        text = self.text
        with text.loop("0", count, "1", [("i64", "0")]) as each:
            at = each.index
            if not self._is_last:  # from the end, so that the first one is the last that is found
                at = text.sub(text.sub(count, "1"), at)
            loaded = text.let(f"load {self._stored}, ptr {text.at(start, at, self._stored)}, align 1")
            is_nan = text.let(f"fcmp uno {self._stored} {loaded}, {loaded}")
            each.next = [text.let(f"select i1 {is_nan}, i64 {at}, i64 {each.values[0]}")]
        return each.results[0]
