"""Elements quantized by their own range, in three stages: bounds of parts, what follows from them, and the elements."""

from app.devices.cpu.llvm.text import Text

TOGETHER = 4
"""Vectors of bounds at a time, which hides what each takes."""

BOUNDS = ("elements", "bounds", "count")
"""What the frame of the first stage has, 8 bytes each: two addresses, and how many elements there are. The bounds are
one vector of the least, and one of the largest."""

SCALES = ("bounds", "scale", "zero", "numbers", "count")
"""The same of the second one: four addresses, and how many pairs of vectors the bounds are. The numbers are two doubles
for the third stage, scale and zero point."""

ELEMENTS = ("elements", "results", "numbers", "count")
"""The same of the third one: three addresses, and how many elements there are."""


def bounds(width: int) -> str:
    """The module of the first stage, whose function `kernel` takes a frame: bounds are NaN where any element is."""
    text = Text(width)
    frame, vector = text.frame(BOUNDS, 2), text.vector
    start = text.spread(text.let(f"load float, ptr {frame['elements']}, align 4"))
    with text.loop("0", frame["count"], str(width * TOGETHER), [(vector, start)] * (2 * TOGETHER)) as each:
        for number in range(TOGETHER):
            at = text.add(each.index, str(width * number))
            there = text.below(text.lanes(at), frame["count"])
            loaded = text.load(text.at(frame["elements"], at), there, start)
            for name, before in zip(("minimum", "maximum"), each.values[2 * number :], strict=False):
                each.next.append(_extreme(text, name, before, loaded))
    for place, name in enumerate(("minimum", "maximum")):
        made, *others = each.results[place::2]
        for other in others:
            made = _extreme(text, name, made, other)
        text.do(f"store {vector} {made}, ptr {text.at(frame['bounds'], str(width * place))}, align 4")
    return text.module()


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


def elements(least: int) -> str:
    """The module of the third stage."""
    text = Text(0)
    frame = text.frame(ELEMENTS, 3)
    scale, zero = (
        text.let(f"load double, ptr {text.at(frame['numbers'], str(place), 'double')}, align 8") for place in range(2)
    )
    with text.parallel(frame["count"]) as each:
        place = text.at(frame["elements"], each.index)
        wide = text.let(f"fpext float {text.let(f'load float, ptr {place}, align 4, !llvm.access.group !2')} to double")
        made = saturated(text, text.let(f"fdiv double {wide}, {scale}"), zero, least)
        byte = text.let(f"trunc i32 {text.let(f'fptosi double {made} to i32')} to i8")
        text.do(f"store i8 {byte}, ptr {text.at(frame['results'], each.index, 'i8')}, !llvm.access.group !2")
    return text.module()


def _extreme(text: Text, name: str, a: str, b: str) -> str:
    """Which of two zeros it is makes no difference to what follows."""
    text.declare(text.vector, f"llvm.{name}.v{text.width}f32", f"{text.vector} {a}, {text.vector} {b}")
    return text.let(f"call nsz {text.vector} @llvm.{name}.v{text.width}f32({text.vector} {a}, {text.vector} {b})")


def saturated(text: Text, quotient: str, zero: str, least: int) -> str:
    """Rounded with halves to even, moved by `zero` and limited; 0 of NaN."""
    made = text.call("double", "llvm.roundeven.f64", f"double {quotient}")
    made = text.let(f"fadd double {made}, {zero}")
    for comparison, bound in (("olt", f"{least}.0"), ("ogt", f"{least + 255}.0")):
        beyond = text.let(f"fcmp {comparison} double {made}, {bound}")
        made = text.let(f"select i1 {beyond}, double {bound}, double {made}")
    return text.let(f"select i1 {text.let(f'fcmp uno double {made}, {made}')}, double 0.0, double {made}")
