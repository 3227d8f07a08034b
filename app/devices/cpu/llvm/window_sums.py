"""Windows added up where they lie: rows of the tensor under them, in float64, each rounded once."""

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("source", "output", "sums", "shares", "starts", "offsets", "factors", "taps", "counts"),
    *("first", "last", "rows", "size", "plane", "length", "tap_count", "tap_step", "stride"),
)
"""What the frame has, 8 bytes each. Nine addresses: of what is added up and of the output; of memory for a row of the
output and for a row of windows, in doubles; of tables. Then numbers: which rows of the output to make, and how many a
plane has, of `size` elements each; bytes of a plane of the source, and the `length` of its rows.

For each row of a plane `starts` has where what lies over it begins in `offsets`, those of rows of the source in bytes,
and at the end where it ends. For each of `tap_count` elements along a window's row, `taps` has three numbers: which
element of the output's row the first of the source's row goes to that goes anywhere, which one that is, and how many
there are, which go to elements a `stride` apart. From one tap to the next are `tap_step` bytes of the source.

An average is divided by a factor, of which there is one for each row in `offsets`, times one of `counts`, which has one
for each element of the source's row, or by 1 where that is less. All of them are doubles."""


def source(load: Element, store: Element, *, is_average: bool, is_dense: bool) -> str:
    """The module whose function `kernel` takes a frame. `load` makes a double of an element, `store` an element of a
    double, or of the float that it is rounded to. With a stride of 1 it `is_dense`. Averages are of rows that are the
    same for all taps."""
    text = Text(0)
    frame = text.frame(FIELDS, 9)
    stride = "1" if is_dense else frame["stride"]
    (stored,), (rounded,) = load.inputs.values(), store.inputs.values()

    def read(row: str, index: str) -> str:
        place = text.at(row, index, stored)
        element = text.let(f"load {stored}, ptr {place}, align 1, !llvm.access.group !2")
        return text.let(f"call double @{load.name}({stored} {element})")

    def shares(row: str, entry: str) -> None:
        factor = text.let(f"load double, ptr {text.at(frame['factors'], entry, 'double')}")
        with text.parallel(frame["length"]) as t:
            count = text.at(frame["counts"], t.index, "double")
            divisor = text.let(f"fmul double {factor}, {text.let(f'load double, ptr {count}')}")
            is_less = text.let(f"fcmp olt double {divisor}, 1.0")
            divisor = text.let(f"select i1 {is_less}, double 1.0, double {divisor}")
            share = text.let(f"fdiv double {read(row, t.index)}, {divisor}")
            text.do(f"store double {share}, ptr {text.at(frame['shares'], t.index, 'double')}, !llvm.access.group !2")

    def add(to: str, of: str, count: str) -> None:
        """So many elements of a row `of` the source, or of shares, `to` those of the output's row."""
        with text.parallel(count) as t:
            place = text.at(to, text.mul(t.index, stride), "double")
            before = text.let(f"load double, ptr {place}, !llvm.access.group !2")
            if is_average:
                more = text.let(f"load double, ptr {text.at(of, t.index, 'double')}, !llvm.access.group !2")
            else:
                more = read(of, t.index)
            text.do(f"store double {text.let(f'fadd double {before}, {more}')}, ptr {place}, !llvm.access.group !2")

    text.declare("void", "llvm.memset.p0.i64", "ptr a, i8 b, i64 c, i1 d")
    with text.loop(frame["first"], frame["last"], "1") as each:
        plane, row = (text.let(f"u{name} i64 {each.index}, {frame['rows']}") for name in ("div", "rem"))
        here = text.at(frame["source"], text.mul(plane, frame["plane"]), "i8")
        text.do(
            f"call void @llvm.memset.p0.i64(ptr {frame['sums']}, i8 0, i64 {text.mul(frame['size'], '8')}, i1 false)"
        )
        begin, end = (
            text.let(f"load i64, ptr {text.at(frame['starts'], number, 'i64')}") for number in (row, text.add(row, "1"))
        )
        with text.when(text.let(f"icmp ult i64 {begin}, {end}")), text.loop(begin, end, "1") as entry:
            offset = text.let(f"load i64, ptr {text.at(frame['offsets'], entry.index, 'i64')}")
            line = text.at(here, offset, "i8")
            if is_average:
                shares(line, entry.index)
            with text.loop("0", frame["tap_count"], "1") as tap:
                numbers = text.at(frame["taps"], text.mul(tap.index, "3"), "i64")
                to, of, count = (
                    text.let(f"load i64, ptr {text.at(numbers, str(number), 'i64')}") for number in range(3)
                )
                with text.when(text.let(f"icmp ugt i64 {count}, 0")):
                    at = text.at(frame["sums"], to, "double")
                    if is_average:
                        add(at, text.at(frame["shares"], of, "double"), count)
                    else:
                        moved = text.at(line, text.mul(tap.index, frame["tap_step"]), "i8")
                        add(at, text.at(moved, of, stored), count)
        made = text.at(frame["output"], text.mul(each.index, frame["size"]), store.output)
        with text.parallel(frame["size"]) as x:
            total = text.let(f"load double, ptr {text.at(frame['sums'], x.index, 'double')}, !llvm.access.group !2")
            if rounded == "float":
                total = text.let(f"fptrunc double {total} to float")
            result = text.let(f"call {store.output} @{store.name}({rounded} {total})")
            place = text.at(made, x.index, store.output)
            text.do(f"store {store.output} {result}, ptr {place}, align 1, !llvm.access.group !2")
    return text.module(load, store)
