"""Transposed convolution, after its products: what each element of a filter makes at each position is added to what it
meets there, channel by channel."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

AXES = ("z", "y", "x")

FIELDS = (
    *("columns", "bias", "results", "table"),
    *("first", "last", "positions", "size"),
    *("extent_z", "extent_y", "extent_x", "positions_y", "positions_x", "size_y", "size_x"),
    *("stride_z", "stride_y", "stride_x"),
)
"""What the frame has, 8 bytes each: four addresses, then numbers, then the activation's attributes. Of channels, those
from the `first` to before the `last` are taken: `columns` has for each, and each element of its filter, products at all
positions, and `results` gets so many elements, its `size`. The `table` has three numbers for each element of a filter
along z, then along y and x: the first position at which it meets the output, the one after the last, and where in the
output it is at the first."""


def source(width: int, together: int, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame. If `together` is not 0, there are so many elements along x, the
    stride is as long, and they meet the output at the same positions, one behind the other: they are taken at once."""
    text = Text(width)
    frame = text.frame(FIELDS, 4)
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    extents = [frame[f"extent_{axis}"] for axis in AXES]
    taps = text.mul(text.mul(extents[0], extents[1]), extents[2])
    with text.loop(frame["first"], frame["last"], "1") as channel:
        results = text.at(frame["results"], text.mul(channel.index, frame["size"]))
        columns = text.at(frame["columns"], text.mul(text.mul(channel.index, taps), frame["positions"]))
        bias = text.let(f"load float, ptr {text.at(frame['bias'], channel.index)}, align 4")
        text.each(frame["size"], [], [results], lambda: bias)
        with meetings(text, frame, "1" if together else extents[2]) as (tap, position, place, count):
            made = text.at(columns, text.add(text.mul(tap, frame["positions"]), position))
            written = text.at(results, place)
            reads = [text.at(made, text.mul(str(each), frame["positions"])) for each in range(together or 1)]
            _add(text, count, reads, written, str(together) if together else frame["stride_x"])
    if activation:
        start = text.at(frame["results"], text.mul(frame["first"], frame["size"]))
        text.activate(activation, attributes, start, text.mul(text.sub(frame["last"], frame["first"]), frame["size"]))
    return text.module(*[activation] if activation else [])


@contextmanager
def meetings(text: Text, frame: Mapping[str, str], extent_x: str) -> Iterator[tuple[str, str, str, str]]:
    """Loops over the elements of a filter, so many along x, and over the rows in which each meets elements of a tensor:
    the number of the filter's element, the first of the positions and of the tensor's elements, and how many they are.
    The `frame` has what FIELDS have from the table on."""
    extents = [frame[f"extent_{axis}"] for axis in AXES]
    tables = [frame["table"]]
    for extent in extents[:2]:
        tables.append(text.at(tables[-1], text.mul(extent, "3"), "i64"))
    with (
        text.loop("0", extents[0], "1") as k_z,
        text.loop("0", extents[1], "1") as k_y,
        text.loop("0", extent_x, "1") as k_x,
    ):
        ks = [k_z.index, k_y.index, k_x.index]
        tap = text.add(text.mul(text.add(text.mul(ks[0], extents[1]), ks[1]), extents[2]), ks[2])
        first, last, target = zip(*[_met(text, *each) for each in zip(tables, ks, strict=True)], strict=True)
        there = [text.let(f"icmp ult i64 {a}, {b}") for a, b in zip(first, last, strict=True)]
        with (
            text.when(text.let(f"and i1 {there[0]}, {text.let(f'and i1 {there[1]}, {there[2]}')}")),
            text.loop(first[0], last[0], "1") as z,
            text.loop(first[1], last[1], "1") as y,
        ):
            place, row = "0", "0"
            for number, (at, axis) in enumerate(((z.index, "z"), (y.index, "y"))):
                steps = text.mul(text.sub(at, first[number]), frame[f"stride_{axis}"])
                place = text.add(text.mul(place, frame["size_y"]), text.add(target[number], steps))
                row = text.add(text.mul(row, frame["positions_y"]), at)
            position = text.add(text.mul(row, frame["positions_x"]), first[2])
            element = text.add(text.mul(place, frame["size_x"]), target[2])
            yield tap, position, element, text.sub(last[2], first[2])


def _met(text: Text, table: str, k: str) -> tuple[str, str, str]:
    """What the table has of an element."""
    start = text.mul(k, "3")
    first, last, target = (
        text.let(f"load i64, ptr {text.at(table, text.add(start, str(number)), 'i64')}, align 8") for number in range(3)
    )
    return first, last, target


def _add(text: Text, count: str, reads: list[str], written: str, step: str) -> None:
    """To every so manieth element that is written, and those behind it, one of each of `reads`."""
    with text.parallel(count) as each:
        place = text.mul(each.index, step)
        for number, read in enumerate(reads):
            target = text.at(written, text.add(place, str(number)))
            old, new = (
                text.let(f"load float, ptr {pointer}, align 4, !llvm.access.group !2")
                for pointer in (target, text.at(read, each.index))
            )
            text.do(f"store float {text.let(f'fadd float {old}, {new}')}, ptr {target}, align 4, !llvm.access.group !2")
