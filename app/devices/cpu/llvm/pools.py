"""Maxima, averages and norms of windows, channel by channel: along rows of positions, some vectors of which are made at
once in registers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from app.devices.cpu.llvm.text import Text
from app.devices.cpu.llvm.types import bytes_of, llvm_type

Kind: TypeAlias = Literal["maximum", "place", "average", "sum", "norm", "whole", "squares"]
"""What is made of a window: its maximum, or that and where it is, the average, the sum of magnitudes, the root of the
sum of squares, of integers the sum, of 32 bits, or the sum of squares itself, in float64."""

AXES = ("z", "y", "x")

FIELDS = (
    *("elements", "results", "places", "counts"),
    *("first", "last", "channel_size", "size"),
    *(f"{name}_{axis}" for name in ("size", "extent", "positions", "stride", "dilation", "start") for axis in AXES),
)
"""What the frame has, 8 bytes each: four addresses, then numbers. Of channels, those from the `first` to before the
`last` are taken, of `channel_size` elements each, and so many results, the `size`. The rest is as `Windows` has it.
Where maxima are is written to `places`: an element's number among all, 0 for a window that has none. The `counts` are
what averages are divided by, doubles: for the positions along z, then along y, then along x, where there are as many
more as a vector has; their products are divisors, or 1 where they are less."""

_LEAST = "0xFFF0000000000000"
"""-inf"""


@lru_cache(32)
def source(width: int, stride: int, together: int, type_: str, kind: Kind, place: str = "i32") -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, or 0 where the frame tells.
    So many vectors are made `together`, which hides what each takes. Elements are of the `type_`, by NumPy name, and
    places of LLVM's type `place`; a channel with places has fewer than 2^31 elements."""
    pools = _Pools(Text(width), stride, together, np.dtype(type_), kind, place)
    pools.write()
    return pools.text.module()


class _Total(NamedTuple):
    """Memory for what is made of windows, a vector of them, and for where that is in the channel, below 0 before any
    element is met."""

    value: str
    place: str


class _Pools:
    def __init__(
        self, text: Text, stride: int, together: int, type_: "np.dtype[np.generic]", kind: Kind, place: str
    ) -> None:
        self.text = text
        self._frame = text.frame(FIELDS, 4)
        self._stride, self._together = stride, together
        self._made, self._is_total, self._place = kind, kind not in ("maximum", "place"), place
        self._type, self._is_float, self._sign = llvm_type(type_.name), type_.kind == "f", type_.kind.replace("i", "s")
        self._vector, self._places = f"<{text.width} x {self._type}>", f"<{text.width} x i32>"
        one = "i32" if kind == "whole" else "double" if self._is_total else "float" if self._is_float else self._type
        self._kind = f"<{text.width} x {one}>"
        """Of totals, and of maxima."""
        self._stored = one if kind in ("whole", "squares") else self._type
        least = _LEAST if self._is_float else str(np.iinfo(type_.name).min)
        self._nothing, self._least = (
            "zeroinitializer" if self._is_total else f"<{', '.join([f'{each} {least}'] * text.width)}>"
            for each in (self._type, one)
        )

    def write(self) -> None:
        """All channels."""
        text, frame = self.text, self._frame
        totals = [
            _Total(*[text.let(f"alloca {each}, align 64") for each in (self._kind, self._places)])
            for _ in range(self._together)
        ]
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
                text.do(f"store {self._kind} {self._least}, ptr {total.value}")
                if self._made == "place":
                    text.do(f"store {self._places} {text.spread('-1', 'i32')}, ptr {total.place}")
            elements = text.at(frame["elements"], text.mul(channel.index, frame["channel_size"]), self._type)
            # The last vector of a row ends where the row does, over what is made already: it is a whole one.
            last = text.call("i64", "llvm.smax.i64", f"i64 {text.sub(frame['positions_x'], str(text.width))}, i64 0")
            positions = [text.least(text.add(x.index, str(text.width * each)), last) for each in range(self._together)]
            with self._inside("z", z.index) as in_z, self._inside("y", y.index) as in_y:
                row = text.mul(text.add(text.mul(in_z, frame["size_y"]), in_y), frame["size_x"])
                with text.loop("0", frame["extent_x"], "1") as k:
                    for total, position in zip(totals, positions, strict=True):
                        self._add(total, elements, row, self._coordinate("x", position, k.index))
            rows = text.add(text.mul(z.index, frame["positions_y"]), y.index)
            place = text.add(text.mul(channel.index, frame["size"]), text.mul(rows, frame["positions_x"]))
            for total, position in zip(totals, positions, strict=True):
                with text.when(text.let(f"icmp ult i64 {position}, {frame['positions_x']}")):
                    kind, made = self._kind, text.let(f"load {self._kind}, ptr {total.value}")
                    if self._made == "average":
                        made = self._averages(made, list(zip(counts, (z.index, y.index, position), strict=True)))
                    elif self._made == "norm":
                        made = text.call(kind, f"llvm.sqrt.v{text.width}f64", f"{kind} {made}")
                    if self._is_total and self._stored == self._type:
                        made, kind = text.let(f"fptrunc {kind} {made} to {text.vector}"), text.vector
                    if self._stored == self._type and self._vector != kind:
                        made = text.let(f"fptrunc {kind} {made} to {self._vector}")
                    there = text.below(text.lanes(position), frame["positions_x"])
                    result = text.at(frame["results"], text.add(place, position), self._stored)
                    text.store(made, result, there, self._stored)
                    if self._made == "place":
                        places = text.at(frame["places"], text.add(place, position), self._place)
                        first = text.mul(channel.index, frame["channel_size"])
                        text.store(self._numbers(total, first), places, there, self._place)

    def _numbers(self, total: "_Total", first: str) -> str:
        """Where the maxima are among all elements, those of the channel from the `first` on."""
        text, wide = self.text, f"<{self.text.width} x i64>"
        places = text.let(f"load {self._places}, ptr {total.place}")
        none = text.let(f"icmp slt {self._places} {places}, zeroinitializer")
        numbers = text.let(
            f"add {wide} {text.let(f'zext {self._places} {places} to {wide}')}, {text.spread(first, 'i64')}"
        )
        numbers = text.let(f"select <{text.width} x i1> {none}, {wide} zeroinitializer, {wide} {numbers}")
        return (
            numbers if self._place == "i64" else text.let(f"trunc {wide} {numbers} to <{text.width} x {self._place}>")
        )

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

    def _add(self, total: "_Total", elements: str, row: str, first: str) -> None:
        """The elements of a row, which begins so many after `elements`, from the `first` coordinate on, a stride apart;
        those beside it change nothing. Most vectors have none of these, which is asked first: masks take longer to
        make than all the rest."""
        text, size = self.text, self._frame["size_x"]
        here, begin = text.at(elements, row, self._type), text.add(row, first)
        if not self._stride:
            steps = text.let(f"mul <{text.width} x i64> {text.steps()}, {text.spread(self._frame['stride_x'], 'i64')}")
            lanes = text.let(f"add <{text.width} x i64> {steps}, {text.spread(first, 'i64')}")
            inside = text.let(f"icmp ult <{text.width} x i64> {lanes}, {text.spread(size, 'i64')}")
            self._take(total, self._spaced(here, lanes, inside), begin, inside)
            return
        reach = text.sub(size, str(self._stride * (text.width - 1)))  # where a whole one begins at most
        is_inside = text.let(f"icmp ult i64 {first}, {text.call('i64', 'llvm.smax.i64', f'i64 {reach}, i64 0')}")
        with text.when(is_inside):
            self._take(total, self._packed(lambda begin: self._all(here, begin), first), begin)
        with text.when(text.let(f"xor i1 {is_inside}, true")):
            inside = text.below(text.lanes(first, self._stride), size)
            self._take(total, self._packed(lambda begin: self._some(here, begin), first), begin, inside)

    def _take(self, total: "_Total", met: str, begin: str, inside: str | None = None) -> None:
        """What is `met`, of which the first one is the channel's element `begin`, all of it or what is `inside`."""
        text, width = self.text, self.text.width
        before = text.let(f"load {self._kind}, ptr {total.value}")
        if self._kind != self._vector:
            wider = "fpext" if self._is_float else f"{self._sign.replace('u', 'z')}ext"
            met = text.let(f"{wider} {self._vector} {met} to {self._kind}")
        if self._made == "place":
            self._take_place(total, met, before, begin, inside)
        if self._made == "whole":
            made = text.let(f"add {self._kind} {before}, {met}")
        elif self._is_total:
            if self._made == "sum":
                met = text.call(self._kind, f"llvm.fabs.v{width}f64", f"{self._kind} {met}")
            elif self._made in ("norm", "squares"):
                met = text.let(f"fmul {self._kind} {met}, {met}")
            made = text.let(f"fadd {self._kind} {before}, {met}")
        else:
            name = f"maximum.v{width}f32" if self._is_float else f"{self._sign}max.v{width}{self._type}"
            made = text.call(self._kind, f"llvm.{name}", f"{self._kind} {before}, {self._kind} {met}")
        text.do(f"store {self._kind} {made}, ptr {total.value}")

    def _take_place(self, total: "_Total", met: str, before: str, begin: str, inside: str | None) -> None:
        """Where what is `met` is, of what is more than all `before`, or the first at all. NaN is, once."""
        text, bits = self.text, f"<{self.text.width} x i1>"
        known = text.let(f"load {self._places}, ptr {total.place}")
        if self._is_float:
            more = text.let(f"fcmp ugt {self._kind} {met}, {before}")
            more = text.let(f"and {bits} {more}, {text.let(f'fcmp ord {self._kind} {before}, {before}')}")
        else:
            more = text.let(f"icmp {self._sign}gt {self._kind} {met}, {before}")
        taken = text.let(f"or {bits} {more}, {text.let(f'icmp slt {self._places} {known}, zeroinitializer')}")
        if inside:
            taken = text.let(f"and {bits} {taken}, {inside}")
        lanes = text.lanes("0", self._stride or 1)
        if not self._stride:
            stride = text.let(f"trunc i64 {self._frame['stride_x']} to i32")
            lanes = text.let(f"mul {self._places} {lanes}, {text.spread(stride, 'i32')}")
        first = text.spread(text.let(f"trunc i64 {begin} to i32"), "i32")
        here = text.let(f"add {self._places} {lanes}, {first}")
        made = text.let(f"select {bits} {taken}, {self._places} {here}, {self._places} {known}")
        text.do(f"store {self._places} {made}, ptr {total.place}")

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
        """Elements of a vector, or of as many as the stride those that are so far apart. Each vector begins with the
        last element of the one before, so that the last one ends with what is taken last."""
        text, reach = self.text, self.text.width - 1
        made = vector(first)
        for number in range(1, self._stride):
            other = vector(text.add(first, str(number * reach)))
            lanes = []
            for lane in range(text.width):
                place = self._stride * lane if number == 1 else lane
                at = self._stride * lane - number * reach
                lanes.append(place if at <= 0 else text.width + at if at <= reach else 0)
            order = ", ".join(f"i32 {lane}" for lane in lanes)
            kind = f"<{text.width} x i32>"
            made = text.let(f"shufflevector {self._vector} {made}, {self._vector} {other}, {kind} <{order}>")
        return made

    def _spaced(self, row: str, lanes: str, inside: str) -> str:
        text = self.text
        places = text.let(f"getelementptr {self._type}, ptr {row}, <{text.width} x i64> {lanes}")
        found = text.gather(places, inside, self._type)
        return text.let(f"select <{text.width} x i1> {inside}, {self._vector} {found}, {self._vector} {self._nothing}")

    def _averages(self, totals: str, counts: list[tuple[str, str]]) -> str:
        """The `totals` divided."""
        text, kind = self.text, self._kind
        z, y = (text.let(f"load double, ptr {text.at(table, place, 'double')}, align 8") for table, place in counts[:2])
        table, place = counts[2]
        x = text.let(f"load {kind}, ptr {text.at(table, place, 'double')}, align 8")
        count = text.let(f"fmul {kind} {x}, {text.spread(text.let(f'fmul double {z}, {y}'), 'double')}")
        one = text.spread("1.0", "double")
        is_less = text.let(f"fcmp olt {kind} {count}, {one}")
        divisor = text.let(f"select <{text.width} x i1> {is_less}, {kind} {one}, {kind} {count}")
        return text.let(f"fdiv {kind} {totals}, {divisor}")
