"""What becomes of exact sums of products of 8-bit integers: scaled in float64 and rounded once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.quantizing import saturated
from app.devices.cpu.llvm.text import Text

Kind: TypeAlias = Literal["int32", "int8", "uint8", "float32"]

GIVEN = ("left", "right", "scale", "zero", "bias")
"""Scales of both sides, that of results and their zero point, and what is added."""

FIELDS = (
    *("sums", "results", *GIVEN),
    *("first_group", "end_group", "first_row", "end_row", "lines", "count"),
    *(f"{name}_{way}" for name in ("sums", "results", *GIVEN) for way in ("group", "row")),
    *("sums_line", "results_line"),
)
"""What the frame has, 8 bytes each: addresses, then numbers. From `first` to before `end` of each is computed: groups,
and rows of so many lines of so many results. What is "of" something is the way to the next one, in bytes."""

_TYPES = {"int32": "i32", "float32": "float", "int8": "i8", "uint8": "i8"}


@dataclass(frozen=True, slots=True)
class Result:
    """What sums become: themselves, quantized with an int32 for each row added before, or floats with a float32 for
    each result added at the end. Scales on the right may be one for each column."""

    kind: Kind
    has_bias: bool = False
    by_column: bool = False

    @property
    def bytes(self) -> int:
        return 1 if _TYPES[self.kind] == "i8" else 4


@lru_cache(64)
def source(result: Result) -> str:
    """The module whose function `kernel` takes a frame of FIELDS."""
    text = Text(0)
    frame = text.frame(FIELDS, 2 + len(GIVEN))
    with (
        text.loop(frame["first_group"], frame["end_group"], "1") as group,
        text.loop(frame["first_row"], frame["end_row"], "1") as row,
    ):
        of_row = {}
        for name in ("sums", "results", *GIVEN):
            of_group = text.at(frame[name], text.mul(group.index, frame[f"{name}_group"]), "i8")
            of_row[name] = text.at(of_group, text.mul(row.index, frame[f"{name}_row"]), "i8")
        made_of = _made_of(text, result, of_row)
        with text.loop("0", frame["lines"], "1") as line:
            sums, results = (
                text.at(of_row[name], text.mul(line.index, frame[f"{name}_line"]), "i8") for name in ("sums", "results")
            )
            with text.parallel(frame["count"]) as each:
                found = text.let(f"load i32, {_there(text, sums, each.index, 'i32')}")
                type_ = _TYPES[result.kind]
                text.do(f"store {type_} {made_of(found, each.index)}, {_there(text, results, each.index, type_)}")
    return text.module()


def _made_of(text: Text, result: Result, of_row: dict[str, str]) -> Callable[[str, str], str]:
    """What writes the result of a sum in a column of the row whose numbers there are."""
    if result.kind == "int32":
        return lambda found, column: found

    def wide(name: str, column: str = "0") -> str:
        one = text.let(f"load float, {_there(text, of_row[name], column, 'float')}")
        return text.let(f"fpext float {one} to double")

    left, right = wide("left"), "" if result.by_column else wide("right")
    if result.kind == "float32":

        def rounded(found: str, column: str) -> str:
            both = text.let(f"fmul double {left}, {right or wide('right', column)}")
            made = text.let(f"fmul double {text.let(f'sitofp i32 {found} to double')}, {both}")
            made = text.let(f"fadd double {made}, {wide('bias', column)}") if result.has_bias else made
            return text.let(f"fptrunc double {made} to float")

        return rounded
    scale, byte = wide("scale"), text.let(f"load i8, ptr {of_row['zero']}")
    zero = text.let(f"{'sitofp' if result.kind == 'int8' else 'uitofp'} i8 {byte} to double")
    bias = ""
    if result.has_bias:
        found = text.let(f"load i32, ptr {of_row['bias']}, align 4")
        bias = text.let(f"sitofp i32 {found} to double")

    def quantized(found: str, column: str) -> str:
        made = text.let(f"sitofp i32 {found} to double")
        made = text.let(f"fadd double {made}, {bias}") if bias else made
        both = text.let(f"fmul double {left}, {right or wide('right', column)}")
        made = text.let(f"fmul double {made}, {both}")
        made = saturated(text, text.let(f"fdiv double {made}, {scale}"), zero, -128 if result.kind == "int8" else 0)
        return text.let(f"trunc i32 {text.let(f'fptosi double {made} to i32')} to i8")

    return quantized


def _there(text: Text, pointer: str, place: str, type_: str) -> str:
    """Where an element is loaded or stored by turns that have nothing to do with one another."""
    return f"ptr {text.at(pointer, place, type_)}, align {1 if type_ == 'i8' else 4}, !llvm.access.group !2"
