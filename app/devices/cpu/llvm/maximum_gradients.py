"""What belongs to windows, added to the first maximum of each: rows of windows at a time, sums in float64."""

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import ROLLED, Text

FIELDS = (
    *("elements", "gradients", "output", "sums", "most", "found", "starts", "offsets", "taps"),
    *("first", "last", "plane", "rows", "length", "tap_count", "stride"),
)
"""What the frame has, 8 bytes each. Nine addresses: of the elements that windows lie over, of a number for each window
and of the output; of memory for the sums of a plane, in doubles, for the maxima of a row of windows, in floats, and for
where these are, in 32 bits; of tables. Then numbers: which planes to make, and how many elements each has; how many
`rows` of windows, of what `length`.

For each of these `starts` has where the rows of elements under it begin in `offsets`, by their first elements, and at
the end where they end. For each of `tap_count` elements along a window's row, `taps` has three numbers: which element
of a row it is in the first window that has it in the row, which window that is, and how many there are, in which it is
a `stride` farther each."""

_LEAST = "0xFFF0000000000000"
"""-inf"""


def source(load: Element, store: Element, *, stride: int) -> str:
    """The module whose function `kernel` takes a frame. `load` makes a float of an element, `store` an element of a
    double. The `stride` is 0 where the frame tells it."""
    text = Text(0)
    frame = text.frame(FIELDS, 9)
    step = str(stride) if stride else frame["stride"]
    (stored,) = load.inputs.values()

    def read(row: str, index: str) -> str:
        element = text.let(f"load {stored}, ptr {text.at(row, index, stored)}, align 1, !llvm.access.group !2")
        return text.let(f"call float @{load.name}({stored} {element})")

    def look(row: str, tap: str) -> None:
        """At an element of each window that has it in the row. NaN is more than all numbers."""
        numbers = text.at(frame["taps"], text.mul(tap, "3"), "i64")
        at, window, count = (text.let(f"load i64, ptr {text.at(numbers, str(number), 'i64')}") for number in range(3))
        first = text.let(f"trunc i64 {text.add(row, at)} to i32")
        with text.when(text.let(f"icmp ugt i64 {count}, 0")):
            here = text.at(elements, text.add(row, at), stored)
            most, found = text.at(frame["most"], window), text.at(frame["found"], window, "i32")
            with text.parallel(count) as t:
                moved = text.mul(t.index, step)
                value = read(here, moved)
                value_at, place_at = text.at(most, t.index), text.at(found, t.index, "i32")
                before = text.let(f"load float, ptr {value_at}, !llvm.access.group !2")
                place = text.let(f"load i32, ptr {place_at}, !llvm.access.group !2")
                # More, or NaN; but nothing is more than NaN.
                more = text.let(f"fcmp ugt float {value}, {before}")
                known = text.let(f"fcmp ord float {before}, {before}")
                none = text.let(f"icmp slt i32 {place}, 0")
                better = text.let(f"or i1 {none}, {text.let(f'and i1 {more}, {known}')}")
                index = text.let(f"add i32 {first}, {text.let(f'trunc i64 {moved} to i32')}")
                value = text.let(f"select i1 {better}, float {value}, float {before}")
                index = text.let(f"select i1 {better}, i32 {index}, i32 {place}")
                text.do(f"store float {value}, ptr {value_at}, !llvm.access.group !2")
                text.do(f"store i32 {index}, ptr {place_at}, !llvm.access.group !2")

    text.declare("void", "llvm.memset.p0.i64", "ptr a, i8 b, i64 c, i1 d")
    with text.loop(frame["first"], frame["last"], "1") as plane:
        size = text.mul(frame["plane"], "8")
        text.do(f"call void @llvm.memset.p0.i64(ptr {frame['sums']}, i8 0, i64 {size}, i1 false)")
        elements = text.at(frame["elements"], text.mul(plane.index, frame["plane"]), stored)
        rows = text.mul(plane.index, frame["rows"])
        with text.loop("0", frame["rows"], "1") as row:
            with text.parallel(frame["length"]) as t:
                text.do(f"store float {_LEAST}, ptr {text.at(frame['most'], t.index)}, !llvm.access.group !2")
                text.do(f"store i32 -1, ptr {text.at(frame['found'], t.index, 'i32')}, !llvm.access.group !2")
            begin, end = (
                text.let(f"load i64, ptr {text.at(frame['starts'], number, 'i64')}")
                for number in (row.index, text.add(row.index, "1"))
            )
            with text.when(text.let(f"icmp ult i64 {begin}, {end}")), text.loop(begin, end, "1") as entry:
                under = text.let(f"load i64, ptr {text.at(frame['offsets'], entry.index, 'i64')}")
                with text.loop("0", frame["tap_count"], "1") as tap:
                    look(under, tap.index)
            given = text.at(frame["gradients"], text.mul(text.add(rows, row.index), frame["length"]), stored)
            with text.loop("0", frame["length"], "1", note=ROLLED) as t:
                found = text.let(f"load i32, ptr {text.at(frame['found'], t.index, 'i32')}")
                with text.when(text.let(f"icmp sge i32 {found}, 0")):
                    place = text.at(frame["sums"], text.let(f"zext i32 {found} to i64"), "double")
                    before = text.let(f"load double, ptr {place}")
                    more = text.let(f"fpext float {read(given, t.index)} to double")
                    text.do(f"store double {text.let(f'fadd double {before}, {more}')}, ptr {place}")
        made = text.at(frame["output"], text.mul(plane.index, frame["plane"]), store.output)
        with text.parallel(frame["plane"]) as each:
            total = text.let(f"load double, ptr {text.at(frame['sums'], each.index, 'double')}, !llvm.access.group !2")
            result = text.let(f"call {store.output} @{store.name}(double {total})")
            place = text.at(made, each.index, store.output)
            text.do(f"store {store.output} {result}, ptr {place}, align 1, !llvm.access.group !2")
    return text.module(load, store)
