"""Sums of a tensor's elements, each times weights that depend on one dimension each: rows of the output, in float64."""

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("source", "output", "starts", "offsets", "weights", "begins", "places", "factors"),
    *("first", "last", "rows", "size", "plane"),
)
"""What the frame has, 8 bytes each. Eight addresses: of the elements and of the output, then of tables. Then numbers:
which rows of the output to make, how many a plane has, and of how many elements; bytes of a plane of the source.

For each row of a plane `starts` has where what it is made of begins in `offsets`, those of rows of the source in bytes,
and in `weights`, theirs, and at the end where it ends. So have `begins`, `places` and `factors` for each element of the
output's row where in those of the source, in bytes, what it is made of is, and its weight. Weights are doubles above
0."""


def source(load: Element, store: Element) -> str:
    """The module whose function `kernel` takes a frame. `load` makes a double of an element, `store` an element of a
    float."""
    text = Text(0)
    frame = text.frame(FIELDS, 8)
    (stored,) = load.inputs.values()
    total = text.let("alloca double")

    def each_of(begins: str, number: str) -> tuple[str, str]:
        """Where what belongs to that number begins, and where it ends."""
        begin, end = (
            text.let(f"load i64, ptr {text.at(begins, place, 'i64')}") for place in (number, text.add(number, "1"))
        )
        return begin, end

    with text.loop(frame["first"], frame["last"], "1") as each:
        plane, row = (text.let(f"u{name} i64 {each.index}, {frame['rows']}") for name in ("div", "rem"))
        here = text.at(frame["source"], text.mul(plane, frame["plane"]), "i8")
        made = text.at(frame["output"], text.mul(each.index, frame["size"]), store.output)
        begin, end = each_of(frame["starts"], row)
        with text.loop("0", frame["size"], "1") as x:
            text.do(f"store double 0.0, ptr {total}")
            first, last = each_of(frame["begins"], x.index)
            some = text.let(
                f"and i1 {text.let(f'icmp ult i64 {begin}, {end}')}, {text.let(f'icmp ult i64 {first}, {last}')}"
            )
            with text.when(some), text.loop(begin, end, "1") as entry:
                offset = text.let(f"load i64, ptr {text.at(frame['offsets'], entry.index, 'i64')}")
                weight = text.let(f"load double, ptr {text.at(frame['weights'], entry.index, 'double')}")
                line = text.at(here, offset, "i8")
                with text.loop(first, last, "1") as term:
                    place = text.let(f"load i64, ptr {text.at(frame['places'], term.index, 'i64')}")
                    factor = text.let(f"load double, ptr {text.at(frame['factors'], term.index, 'double')}")
                    element = text.let(f"load {stored}, ptr {text.at(line, place, 'i8')}, align 1")
                    value = text.let(f"call double @{load.name}({stored} {element})")
                    value = text.let(f"fmul double {text.let(f'fmul double {weight}, {factor}')}, {value}")
                    before = text.let(f"load double, ptr {total}")
                    text.do(f"store double {text.let(f'fadd double {before}, {value}')}, ptr {total}")
            result = text.let(f"fptrunc double {text.let(f'load double, ptr {total}')} to float")
            result = text.let(f"call {store.output} @{store.name}(float {result})")
            text.do(f"store {store.output} {result}, ptr {text.at(made, x.index, store.output)}, align 1")
    return text.module(load, store)
