"""Products of matrices: some rows of one with panels of another, the sums in registers.

A panel is as many columns as a tile has. Each term of a sum is a multiplication and an addition at once, from the first
to the last.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

FIELDS = (
    *("a", "b", "c", "results"),
    *("depth", "columns", "first_group", "end_group", "first_panel", "end_panel", "first_row", "end_row"),
    *("a_group", "a_row", "a_term", "b_group", "b_panel", "b_term", "c_group", "c_row", "r_group", "r_row"),
    *("alpha", "beta"),
)
"""What the frame has, 8 bytes each: four addresses, then numbers, the last two of which are float32. From `first` to
before `end` of each is computed: groups, that is matrices, panels, and rows, as many as a multiple of those of a tile.
What is "of" something, as `a_row`, is the way to the next one, in elements. Past the last of `columns` nothing is
written, nor read unless b is packed."""

Addend: TypeAlias = Literal["none", "rows", "columns"]
"""What is added: nothing, something whose columns lie one after the other, or one number for all columns of a row."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Results in registers: so many rows, each with so many vectors of so many float32.

    If b `is_packed`, its panels are filled up with anything; those `ahead` are asked for meanwhile, in elements.
    """

    rows: int
    vectors: int
    width: int
    is_packed: bool = False
    addend: Addend = "none"
    is_scaled: bool = False
    """Whether products are multiplied by alpha, and the addend by beta."""
    ahead: int = 0

    @property
    def columns(self) -> int:
        return self.vectors * self.width


class _Text:
    """Lines of a function, and fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"%n{self._names}"

    def let(self, expression: str) -> str:
        name = self.name()
        self.lines.append(f"{name} = {expression}")
        return name

    def at(self, pointer: str, *steps: str) -> str:
        """Behind a float, by the product of `steps`."""
        index = steps[0]
        for step in steps[1:]:
            index = self.let(f"mul i64 {index}, {step}")
        return self.let(f"getelementptr float, ptr {pointer}, i64 {index}")


def source(tile: ProductTile) -> str:
    """The module whose function `kernel` takes a frame of FIELDS."""
    text = _Text()
    frame = {}
    for number, name in enumerate(FIELDS):
        kind = "ptr" if number < 4 else "float" if name in ("alpha", "beta") else "i64"
        place = text.let(f"getelementptr i64, ptr %frame, i64 {number}")
        frame[name] = text.let(f"load {kind}, ptr {place}")
    loops = [("group", "first_group", "end_group", 1), ("panel", "first_panel", "end_panel", 1)]
    loops.append(("row", "first_row", "end_row", tile.rows))
    before = "entry"
    for name, first, _, _ in loops:
        text.lines += [f"br label %{name}s", f"{name}s:"]
        text.lines.append(f"%{name} = phi i64 [{frame[first]}, %{before}], [%next_{name}, %after_{name}]")
        before = f"{name}s"
    _tile(text, tile, frame)
    for name, _, end, step in reversed(loops):
        text.lines += [f"br label %after_{name}", f"after_{name}:", f"%next_{name} = add i64 %{name}, {step}"]
        text.lines.append(f"%more_{name} = icmp ult i64 %next_{name}, {frame[end]}")
        text.lines += [f"br i1 %more_{name}, label %{name}s, label %end_{name}", f"end_{name}:"]
    vector, mask = f"<{tile.width} x float>", f"<{tile.width} x i1>"
    suffix = f"v{tile.width}f32"
    body = "\n".join(text.lines)
    return f"""declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})
declare {vector} @llvm.masked.load.{suffix}.p0(ptr, i32, {mask}, {vector})
declare void @llvm.masked.store.{suffix}.p0({vector}, ptr, i32, {mask})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @kernel(ptr noalias readonly %frame) {{
entry:
{body}
ret void
}}
"""


def _tile(text: _Text, tile: ProductTile, frame: dict[str, str]) -> None:
    """One tile of results, all of its terms."""
    width, vector = tile.width, f"<{tile.width} x float>"
    rows, columns = range(tile.rows), range(tile.vectors)
    column = text.let(f"mul i64 %panel, {tile.columns}")
    left = _spread(text, text.let(f"sub i64 {frame['columns']}, {column}"), "i64", width)
    masks = []
    for number in columns:
        lanes = ", ".join(f"i64 {number * width + lane}" for lane in range(width))
        masks.append(text.let(f"icmp ugt <{width} x i64> {left}, <{lanes}>"))
    a = text.at(text.at(frame["a"], "%group", frame["a_group"]), "%row", frame["a_row"])
    of_rows = [text.at(a, str(row), frame["a_row"]) for row in rows]
    b = text.at(text.at(frame["b"], "%group", frame["b_group"]), "%panel", frame["b_panel"])
    sums = [text.name() for _ in rows for _ in columns]
    following: list[str] = []
    text.lines += ["br label %terms_before", "terms_before:", "br label %terms", "terms:"]
    text.lines.append("%term = phi i64 [0, %terms_before], [%next_term, %terms]")
    head = len(text.lines)
    here = text.at(b, "%term", frame["b_term"])
    for line in range(0, tile.ahead and tile.columns, 16):  # of 64 bytes
        ahead = text.at(here, str(tile.ahead + line))
        text.lines.append(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")
    loaded = []
    for number in columns:
        there = text.at(here, str(number * width))
        loaded.append(
            text.let(f"load {vector}, ptr {there}, align 4")
            if tile.is_packed
            else _read(text, there, masks[number], width)
        )
    for row in rows:
        weight = text.let(f"load float, ptr {text.at(of_rows[row], '%term', frame['a_term'])}, align 4")
        spread = _spread(text, weight, "float", width)
        for number in columns:
            known = sums[row * tile.vectors + number]
            of_both = f"{vector} {spread}, {vector} {loaded[number]}, {vector} {known}"
            following.append(text.let(f"call {vector} @llvm.fma.v{width}f32({of_both})"))
    text.lines.append("%next_term = add i64 %term, 1")
    text.lines.append(f"%more_terms = icmp ult i64 %next_term, {frame['depth']}")
    text.lines += ["br i1 %more_terms, label %terms, label %terms_after", "terms_after:"]
    text.lines[head:head] = [
        f"{name} = phi {vector} [zeroinitializer, %terms_before], [{value}, %terms]"
        for name, value in zip(sums, following, strict=True)
    ]
    results = text.at(text.at(frame["results"], "%group", frame["r_group"]), "%row", frame["r_row"])
    addends = text.at(text.at(frame["c"], "%group", frame["c_group"]), "%row", frame["c_row"])
    alpha, beta = (_spread(text, frame[name], "float", width) for name in ("alpha", "beta"))
    for row in rows:
        target = text.at(text.at(results, str(row), frame["r_row"]), column)
        addend = text.at(addends, str(row), frame["c_row"])
        if tile.addend == "columns":
            one = _spread(text, text.let(f"load float, ptr {addend}, align 4"), "float", width)
        for number in columns:
            made = following[row * tile.vectors + number]
            if tile.is_scaled:
                made = text.let(f"fmul {vector} {made}, {alpha}")
            if tile.addend != "none":
                more = one if tile.addend == "columns" else ""
                if tile.addend == "rows":
                    there = text.at(text.at(addend, column), str(number * width))
                    more = _read(text, there, masks[number], width)
                if tile.is_scaled:
                    more = text.let(f"fmul {vector} {more}, {beta}")
                made = text.let(f"fadd {vector} {made}, {more}")
            there = text.at(target, str(number * width))
            kept = f"<{width} x i1> {masks[number]}"
            text.lines.append(
                f"call void @llvm.masked.store.v{width}f32.p0({vector} {made}, ptr {there}, i32 4, {kept})"
            )


def _read(text: _Text, there: str, mask: str, width: int) -> str:
    """A vector, 0 where it is not there."""
    vector = f"<{width} x float>"
    return text.let(
        f"call {vector} @llvm.masked.load.v{width}f32.p0(ptr {there}, i32 4, <{width} x i1> {mask}, "
        f"{vector} zeroinitializer)"
    )


def _spread(text: _Text, value: str, type_: str, width: int) -> str:
    vector = f"<{width} x {type_}>"
    one = text.let(f"insertelement {vector} poison, {type_} {value}, i64 0")
    return text.let(f"shufflevector {vector} {one}, {vector} poison, <{width} x i32> zeroinitializer")
