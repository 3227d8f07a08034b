"""Elements quantized by their own range, in three stages: bounds of parts, what follows from them, and the elements."""

from functools import lru_cache
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.text import Text
from app.devices.cpu.llvm.types import bytes_of

Stored: TypeAlias = Literal["float", "half"]
"""What elements are in memory."""

TOGETHER = 4
"""Vectors at a time, which hides what each takes."""

INFINITY = 0x7F800000
"""Of float32, as an integer."""

BOUNDS = ("elements", "bounds", "count")
"""What the frame of the first stage has, 8 bytes each: two addresses, and how many elements there are. The bounds are
one vector of the least, and one of the largest."""

SCALES = ("bounds", "scale", "zero", "numbers", "count")
"""The same of the second one: four addresses, and how many pairs of vectors the bounds are. The numbers are two floats
for the third stage, scale and zero point."""

ELEMENTS = ("elements", "results", "numbers", "count")
"""The same of the third one: three addresses, and how many elements there are."""


@lru_cache(4)
def bounds(width: int, stored: Stored) -> str:
    """The module of the first stage, whose function `kernel` takes a frame: bounds are NaN where any element is.

    What of an element is below its sign is, as an integer, larger than INFINITY's if it is NaN."""
    text = Text(width)
    frame, vector = text.frame(BOUNDS, 2), text.vector
    integers = f"<{width} x i32>"
    unsigned = text.spread(str((1 << 31) - 1), "i32")
    start = text.spread_as(stored, frame["elements"])
    values = [start, start, "zeroinitializer"] * TOGETHER
    block = str(width * TOGETHER)
    whole = text.sub(frame["count"], text.let(f"urem i64 {frame['count']}, {block}"))
    for begin, end in (("0", whole), (whole, frame["count"])):
        carried = list(zip([vector, vector, integers] * TOGETHER, values, strict=True))
        with text.loop(begin, end, block, carried, may_be_none=True) as each:
            for number in range(TOGETHER):
                at = text.add(each.index, str(width * number))
                there = None if end == whole else text.below(text.lanes(at), frame["count"])
                # What is not there is 0, which is in the range anyway.
                loaded = text.load_as(stored, text.at(frame["elements"], at, stored), there)
                low, high, largest = each.values[3 * number : 3 * number + 3]
                each.next += [_extreme(text, "olt", low, loaded), _extreme(text, "ogt", high, loaded)]
                size = text.let(f"and {integers} {text.let(f'bitcast {vector} {loaded} to {integers}')}, {unsigned}")
                each.next.append(_larger(text, largest, size))
        values = each.results
    (low, high, largest), *others = zip(*[iter(values)] * 3, strict=True)
    for other in others:
        low, high = _extreme(text, "olt", low, other[0]), _extreme(text, "ogt", high, other[1])
        largest = _larger(text, largest, other[2])
    none = text.let(f"icmp ugt {integers} {largest}, {text.spread(str(INFINITY), 'i32')}")
    nan = text.spread("0x7FF8000000000000")
    for place, bound in enumerate((low, high)):
        made = text.let(f"select <{width} x i1> {none}, {vector} {nan}, {vector} {bound}")
        text.do(f"store {vector} {made}, ptr {text.at(frame['bounds'], str(width * place))}, align 4")
    return text.module()


@lru_cache(4)
def scales(width: int, least: int) -> str:
    """The module of the second stage, of a type whose numbers go up from `least` to 255 more."""
    text = Text(width)
    frame = text.frame(SCALES, 4)
    with text.loop("0", frame["count"], "1", [("float", "0.0")] * 2) as pair:
        start = text.at(frame["bounds"], text.mul(pair.index, str(2 * width)))
        with text.loop("0", str(width), "1", list(zip(["float"] * 2, pair.values, strict=True))) as each:
            for place, name in enumerate(("minimum", "maximum")):
                found = text.at(start, text.add(each.index, str(width * place)))
                bound, before = text.let(f"load float, ptr {found}, align 4"), each.values[place]
                each.next.append(text.call("float", f"llvm.{name}.f32", f"float {before}, float {bound}"))
        pair.next = each.results
    low, high = pair.results
    extent = text.let(f"fdiv float {text.let(f'fsub float {high}, {low}')}, 255.0")
    none = text.let(f"fcmp oeq float {extent}, 0.0")
    scale = text.let(f"select i1 {none}, float 1.0, float {extent}")
    zero = text.let(f"fsub float {least}.0, {text.let(f'fdiv float {low}, {scale}')}")
    point = saturated(text, zero, "0.0", least, "float")
    whole = text.let(f"fpto{'s' if least else 'u'}i float {point} to i8")
    text.do(f"store float {scale}, ptr {frame['scale']}, align 4")
    text.do(f"store i8 {whole}, ptr {frame['zero']}")
    for place, value in enumerate((scale, point)):
        text.do(f"store float {value}, ptr {text.at(frame['numbers'], str(place))}, align 4")
    return text.module()


@lru_cache(8)
def elements(width: int, least: int, stored: Stored) -> str:
    """The module of the third stage."""
    text = Text(width)
    frame = text.frame(ELEMENTS, 3)
    numbers = [text.at(frame["numbers"], str(place)) for place in range(2)]
    scale, zero = (text.let(f"load float, ptr {number}, align 4") for number in numbers)
    with text.parallel(frame["count"]) as each:
        place = text.at(frame["elements"], each.index, stored)
        one = text.let(f"load {stored}, ptr {place}, align {bytes_of(stored)}, !llvm.access.group !2")
        number = one if stored == "float" else text.let(f"fpext {stored} {one} to float")
        rounded = saturated(text, text.let(f"fdiv float {number}, {scale}"), zero, least, "float")
        byte = text.let(f"trunc i32 {text.let(f'fptosi float {rounded} to i32')} to i8")
        text.do(f"store i8 {byte}, ptr {text.at(frame['results'], each.index, 'i8')}, !llvm.access.group !2")
    return text.module()


def _extreme(text: Text, comparison: str, a: str, b: str) -> str:
    """Of elements that are numbers. Which of two zeros it is makes no difference to what follows."""
    is_first = text.let(f"fcmp {comparison} {text.vector} {a}, {b}")
    return text.let(f"select <{text.width} x i1> {is_first}, {text.vector} {a}, {text.vector} {b}")


def _larger(text: Text, a: str, b: str) -> str:
    vector = f"<{text.width} x i32>"
    return text.call(vector, f"llvm.umax.v{text.width}i32", f"{vector} {a}, {vector} {b}")


def saturated(text: Text, quotient: str, zero: str, least: int, type_: str = "double") -> str:
    """Rounded with halves to even, moved by `zero` and limited; 0 of NaN."""
    suffix = {"double": "f64", "float": "f32"}[type_]
    made = text.call(type_, f"llvm.roundeven.{suffix}", f"{type_} {quotient}")
    made = text.let(f"fadd {type_} {made}, {zero}")
    for comparison, bound in (("olt", f"{least}.0"), ("ogt", f"{least + 255}.0")):
        beyond = text.let(f"fcmp {comparison} {type_} {made}, {bound}")
        made = text.let(f"select i1 {beyond}, {type_} {bound}, {type_} {made}")
    return text.let(f"select i1 {text.let(f'fcmp uno {type_} {made}, {made}')}, {type_} 0.0, {type_} {made}")
