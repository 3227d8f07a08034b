"""Maxima and averages of windows, channel by channel: along rows of positions, some vectors of which are made at once
in registers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from app.devices.cpu.llvm.text import Text
from app.devices.cpu.llvm.types import bytes_of, llvm_type

AXES = ("z", "y", "x")

FIELDS = (
    *("elements", "results", "counts"),
    *("first", "last", "channel_size", "size"),
    *(f"{name}_{axis}" for name in ("size", "extent", "positions", "stride", "dilation", "start") for axis in AXES),
)
"""What the frame has, 8 bytes each: three addresses, then numbers. Of channels, those from the `first` to before the
`last` are taken, of `channel_size` elements each, and so many results, the `size`. The rest is as `Windows` has it. The
`counts` are what averages are divided by, doubles: for the positions along z, then along y, then along x, where there
are as many more as a vector has; their products are divisors, or 1 where they are less."""

_LEAST = "0xFFF0000000000000"
"""-inf"""


@lru_cache(32)
def source(width: int, stride: int, together: int, type_: str, *, is_average: bool) -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, 1 or 2, or 0 where the frame tells.
    So many vectors are made `together`, which hides what each takes. Elements are of the `type_`, by NumPy name."""
    pools = _Pools(Text(width), stride, together, np.dtype(type_), is_average)
    pools.write()
    return pools.text.module()


class _Pools:
    def __init__(self, text: Text, stride: int, together: int, type_: "np.dtype[np.generic]", is_average: bool) -> None:
        self.text = text
        self._frame = text.frame(FIELDS, 3)
        self._stride, self._together = stride, together
        self._is_average = is_average
        self._type, self._is_float, self._sign = llvm_type(type_.name), type_.kind == "f", type_.kind.replace("i", "s")
        self._vector = f"<{text.width} x {self._type}>"
        one = "double" if is_average else "float" if self._is_float else self._type
        self._kind = f"<{text.width} x {one}>"
        """Of totals, and of maxima."""
        least = _LEAST if self._is_float else str(np.iinfo(type_.name).min)
        self._nothing, self._least = (
            "zeroinitializer" if is_average else f"<{', '.join([f'{each} {least}'] * text.width)}>"
            for each in (self._type, one)
        )

    def write(self) -> None:
        """All channels."""
        text, frame = self.text, self._frame
        totals = [text.let(f"alloca {self._kind}, align 64") for _ in range(self._together)]
        counts = [frame["counts"]]
        for axis in ("z", "y"):
            counts.append(text.at(counts[-1], frame[f"positions_{axis}"], "double"))
        with (
            text.loop(frame["first"], frame["last"], "1") as channel,
            text.loop("0", frame["positions_z"], "1") as z,
            text.loop("0", frame["positions_y"], "1") as y,
            text.loop("0", frame["positions_x"], str(text.width * self._together)) as x,
        ):
            for total in totals:
                text.do(f"store {self._kind} {self._least}, ptr {total}")
            elements = text.at(frame["elements"], text.mul(channel.index, frame["channel_size"]), self._type)
            # The last vector of a row ends where the row does, over what is made already: it is a whole one.
            last = text.call("i64", "llvm.smax.i64", f"i64 {text.sub(frame['positions_x'], str(text.width))}, i64 0")
            positions = [text.least(text.add(x.index, str(text.width * each)), last) for each in range(self._together)]
            with self._inside("z", z.index) as in_z, self._inside("y", y.index) as in_y:
                row = text.mul(text.add(text.mul(in_z, frame["size_y"]), in_y), frame["size_x"])
                with text.loop("0", frame["extent_x"], "1") as k:
                    for total, position in zip(totals, positions, strict=True):
                        self._add(total, text.at(elements, row, self._type), self._coordinate("x", position, k.index))
            rows = text.add(text.mul(z.index, frame["positions_y"]), y.index)
            place = text.add(text.mul(channel.index, frame["size"]), text.mul(rows, frame["positions_x"]))
            for total, position in zip(totals, positions, strict=True):
                with text.when(text.let(f"icmp ult i64 {position}, {frame['positions_x']}")):
                    kind, made = self._kind, text.let(f"load {self._kind}, ptr {total}")
                    if self._is_average:
                        made = self._averages(made, list(zip(counts, (z.index, y.index, position), strict=True)))
                        kind = text.vector
                    if self._vector != kind:
                        made = text.let(f"fptrunc {kind} {made} to {self._vector}")
                    there = text.below(text.lanes(position), frame["positions_x"])
                    result = text.at(frame["results"], text.add(place, position), self._type)
                    text.store(made, result, there, self._type)

    def _coordinate(self, axis: str, position: str, element: str) -> str:
        """That of a window's element in the tensor, or beside it."""
        text, frame = self.text, self._frame
        begin = text.sub(text.mul(position, frame[f"stride_{axis}"]), frame[f"start_{axis}"])
        return text.add(begin, text.mul(element, frame[f"dilation_{axis}"]))

    @contextmanager
    def _inside(self, axis: str, position: str) -> Iterator[str]:
        """Over the window's elements along an axis, of those that are in the tensor the coordinate."""
        text, frame = self.text, self._frame
        with text.loop("0", frame[f"extent_{axis}"], "1") as each:
            at = self._coordinate(axis, position, each.index)
            with text.when(text.let(f"icmp ult i64 {at}, {frame[f'size_{axis}']}")):
                yield at

    def _add(self, total: str, row: str, first: str) -> None:
        """The elements of a row from the `first` coordinate on, a stride apart; those beside it change nothing. Most
        vectors have none of these, which is asked first: masks take longer to make than all the rest."""
        text = self.text
        if not self._stride:
            self._take(total, self._spaced(row, first))
            return
        size = self._frame["size_x"]
        reach = text.sub(size, str(self._stride * (text.width - 1)))  # where a whole one begins at most
        is_inside = text.let(f"icmp ult i64 {first}, {text.call('i64', 'llvm.smax.i64', f'i64 {reach}, i64 0')}")
        with text.when(is_inside):
            self._take(total, self._packed(lambda begin: self._all(row, begin), first))
        with text.when(text.let(f"xor i1 {is_inside}, true")):
            self._take(total, self._packed(lambda begin: self._some(row, begin), first))

    def _take(self, total: str, met: str) -> None:
        text = self.text
        before = text.let(f"load {self._kind}, ptr {total}")
        if self._kind != self._vector:
            met = text.let(f"fpext {self._vector} {met} to {self._kind}")
        if self._is_average:
            made = text.let(f"fadd {self._kind} {before}, {met}")
        else:
            name = f"maximum.v{text.width}f32" if self._is_float else f"{self._sign}max.v{text.width}{self._type}"
            made = text.call(self._kind, f"llvm.{name}", f"{self._kind} {before}, {self._kind} {met}")
        text.do(f"store {self._kind} {made}, ptr {total}")

    def _all(self, row: str, begin: str) -> str:
        """A vector that is in the row."""
        place = self.text.at(row, begin, self._type)
        return self.text.let(f"load {self._vector}, ptr {place}, align {bytes_of(self._type)}")

    def _some(self, row: str, begin: str) -> str:
        """What of a vector is in the row."""
        text = self.text
        mask = text.below(text.lanes(begin), self._frame["size_x"])
        return text.load(text.at(row, begin, self._type), mask, self._nothing, self._type)

    def _packed(self, vector: Callable[[str], str], first: str) -> str:
        """Elements of a vector, or every other one of two, of which each is read where it begins; the second one, from
        its second element on, no farther than what is taken."""
        text = self.text
        low = vector(first)
        if self._stride == 1:
            return low
        high = vector(text.add(first, str(text.width - 1)))
        lanes = [*range(0, text.width, 2), *range(text.width + 1, 2 * text.width, 2)]
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        return text.let(f"shufflevector {self._vector} {low}, {self._vector} {high}, <{text.width} x i32> <{order}>")

    def _spaced(self, row: str, first: str) -> str:
        text, frame = self.text, self._frame
        lanes = text.let(f"mul <{text.width} x i64> {text.steps()}, {text.spread(frame['stride_x'], 'i64')}")
        lanes = text.let(f"add <{text.width} x i64> {lanes}, {text.spread(first, 'i64')}")
        inside = text.let(f"icmp ult <{text.width} x i64> {lanes}, {text.spread(frame['size_x'], 'i64')}")
        places = text.let(f"getelementptr {self._type}, ptr {row}, <{text.width} x i64> {lanes}")
        found = text.gather(places, inside, self._type)
        return text.let(f"select <{text.width} x i1> {inside}, {self._vector} {found}, {self._vector} {self._nothing}")

    def _averages(self, totals: str, counts: list[tuple[str, str]]) -> str:
        """The `totals` divided, as floats."""
        text, kind = self.text, self._kind
        z, y = (text.let(f"load double, ptr {text.at(table, place, 'double')}, align 8") for table, place in counts[:2])
        table, place = counts[2]
        x = text.let(f"load {kind}, ptr {text.at(table, place, 'double')}, align 8")
        count = text.let(f"fmul {kind} {x}, {text.spread(text.let(f'fmul double {z}, {y}'), 'double')}")
        one = text.spread("1.0", "double")
        is_less = text.let(f"fcmp olt {kind} {count}, {one}")
        divisor = text.let(f"select <{text.width} x i1> {is_less}, {kind} {one}, {kind} {count}")
        return text.let(f"fptrunc {kind} {text.let(f'fdiv {kind} {totals}, {divisor}')} to {text.vector}")
