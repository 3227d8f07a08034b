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

SAFE = 2.0**-13
"""More than the error of a quotient below 512 that is a product in float32 with a float32's inverse, both rounded: a
larger one, which is limited anyway, may be rounded to any integer near it."""

BOUNDS = ("elements", "bounds", "count")
"""What the frame of the first stage has, 8 bytes each: two addresses, and how many elements there are. The bounds are
one vector of the least, and one of the largest."""

SCALES = ("bounds", "scale", "zero", "numbers", "count")
"""The same of the second one: four addresses, and how many pairs of vectors the bounds are. The numbers are two doubles
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
    with text.loop("0", frame["count"], "1", [("double", "0.0")] * 2) as pair:
        start = text.at(frame["bounds"], text.mul(pair.index, str(2 * width)))
        with text.loop("0", str(width), "1", list(zip(["double"] * 2, pair.values, strict=True))) as each:
            for place, name in enumerate(("minimum", "maximum")):
                found = text.at(start, text.add(each.index, str(width * place)))
                wide = text.let(f"fpext float {text.let(f'load float, ptr {found}, align 4')} to double")
                before = each.values[place]
                each.next.append(text.call("double", f"llvm.{name}.f64", f"double {before}, double {wide}"))
        pair.next = each.results
    low, high = pair.results
    extent = text.let(f"fdiv double {text.let(f'fsub double {high}, {low}')}, 255.0")
    rounded = text.let(f"fptrunc double {extent} to float")
    none = text.let(f"fcmp oeq float {rounded}, 0.0")
    scale = text.let(f"select i1 {none}, float 1.0, float {rounded}")
    wide = text.let(f"fpext float {scale} to double")
    zero = text.let(f"fsub double {least}.0, {text.let(f'fdiv double {low}, {wide}')}")
    point = saturated(text, zero, "0.0", least)
    text.do(f"store float {scale}, ptr {frame['scale']}, align 4")
    text.do(
        f"store i8 {text.let(f'fptosi double {point} to i8' if least else f'fptoui double {point} to i8')}, "
        f"ptr {frame['zero']}"
    )
    for place, value in enumerate((wide, point)):
        text.do(f"store double {value}, ptr {text.at(frame['numbers'], str(place), 'double')}, align 8")
    return text.module()


@lru_cache(8)
def elements(width: int, least: int, stored: Stored) -> str:
    """The module of the third stage.

    Quotients are rounded in float64, in which they are stated. Most need not be known so exactly: a product with the
    inverse in float32 is off by less than SAFE, so where it is further from a half, it rounds to the same integer.
    """
    text = Text(width)
    frame, block = text.frame(ELEMENTS, 3), str(width * TOGETHER)
    scale, zero = (
        text.let(f"load double, ptr {text.at(frame['numbers'], str(place), 'double')}, align 8") for place in range(2)
    )
    inverse = text.let(f"fdiv float 1.0, {text.let(f'fptrunc double {scale} to float')}")
    numbers = text.spread(inverse), text.spread(text.let(f"fptrunc double {zero} to float"))
    is_made = text.let("alloca i1")
    with text.loop("0", frame["count"], block) as part:
        count = text.least(text.sub(frame["count"], part.index), block)
        given, made = text.at(frame["elements"], part.index, stored), text.at(frame["results"], part.index, "i8")
        text.do(f"store i1 false, ptr {is_made}")
        with text.when(text.let(f"icmp eq i64 {count}, {block}")):
            _quickly(text, stored, given, made, numbers, least, is_made)
        rest = text.let(f"xor i1 {text.let(f'load i1, ptr {is_made}')}, true")
        with text.when(rest), text.parallel(count) as each:
            place = text.at(given, each.index, stored)
            one = text.let(f"load {stored}, ptr {place}, align {bytes_of(stored)}, !llvm.access.group !2")
            wide = text.let(f"fpext {stored} {one} to double")
            rounded = saturated(text, text.let(f"fdiv double {wide}, {scale}"), zero, least)
            byte = text.let(f"trunc i32 {text.let(f'fptosi double {rounded} to i32')} to i8")
            text.do(f"store i8 {byte}, ptr {text.at(made, each.index, 'i8')}, !llvm.access.group !2")
    return text.module()


def _quickly(
    text: Text, stored: Stored, given: str, made: str, numbers: tuple[str, str], least: int, is_made: str
) -> None:
    """A whole block, unless any quotient may be a half or is none: whether it `is_made` is stored."""
    (inverse, zero), width, vector = numbers, text.width, text.vector
    rounded, safe = [], ""
    most = text.spread(repr(0.5 - SAFE))
    for number in range(TOGETHER):
        found = text.load_as(stored, text.at(given, str(width * number), stored), None)
        quotient = text.let(f"fmul {vector} {found}, {inverse}")
        rounded.append(text.call(vector, f"llvm.roundeven.v{width}f32", f"{vector} {quotient}"))
        off = text.let(f"fsub {vector} {quotient}, {rounded[-1]}")
        size = text.call(vector, f"llvm.fabs.v{width}f32", f"{vector} {off}")
        one = text.let(f"fcmp olt {vector} {size}, {most}")
        safe = text.let(f"and <{width} x i1> {safe}, {one}") if safe else one
    are_safe = text.call("i1", f"llvm.vector.reduce.and.v{width}i1", f"<{width} x i1> {safe}")
    text.do(f"store i1 {are_safe}, ptr {is_made}")
    with text.when(are_safe):
        for number, quotient in enumerate(rounded):
            limited = text.let(f"fadd {vector} {quotient}, {zero}")
            for comparison, bound in (("olt", least), ("ogt", least + 255)):
                end = text.spread(f"{bound}.0")
                beyond = text.let(f"fcmp {comparison} {vector} {limited}, {end}")
                limited = text.let(f"select <{width} x i1> {beyond}, {vector} {end}, {vector} {limited}")
            whole = text.let(f"fptosi {vector} {limited} to <{width} x i32>")
            bytes_ = text.let(f"trunc <{width} x i32> {whole} to <{width} x i8>")
            text.do(f"store <{width} x i8> {bytes_}, ptr {text.at(made, str(width * number), 'i8')}, align 1")


def _extreme(text: Text, comparison: str, a: str, b: str) -> str:
    """Of elements that are numbers. Which of two zeros it is makes no difference to what follows."""
    is_first = text.let(f"fcmp {comparison} {text.vector} {a}, {b}")
    return text.let(f"select <{text.width} x i1> {is_first}, {text.vector} {a}, {text.vector} {b}")


def _larger(text: Text, a: str, b: str) -> str:
    vector = f"<{text.width} x i32>"
    return text.call(vector, f"llvm.umax.v{text.width}i32", f"{vector} {a}, {vector} {b}")


def saturated(text: Text, quotient: str, zero: str, least: int) -> str:
    """Rounded with halves to even, moved by `zero` and limited; 0 of NaN."""
    made = text.call("double", "llvm.roundeven.f64", f"double {quotient}")
    made = text.let(f"fadd double {made}, {zero}")
    for comparison, bound in (("olt", f"{least}.0"), ("ogt", f"{least + 255}.0")):
        beyond = text.let(f"fcmp {comparison} double {made}, {bound}")
        made = text.let(f"select i1 {beyond}, double {bound}, double {made}")
    return text.let(f"select i1 {text.let(f'fcmp uno double {made}, {made}')}, double 0.0, double {made}")
