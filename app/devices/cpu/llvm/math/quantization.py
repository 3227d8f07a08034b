"""Sums of two quantized tensors in float32, and where that does not do; see `functions.py`."""

from collections.abc import Sequence
from typing import NamedTuple

from app.devices.cpu.llvm.math.primitives import FORMATS, fused, lowest_bits
from app.formula.values import (
    FLOAT32,
    Constant,
    Input,
    Operation,
    Value,
    absolute,
    cast,
    integer_range,
    maximum,
    minimum,
)

INT32 = "int32"

ROUNDINGS = 2.1 * 2.0**-24, 3.1 * 2.0**-24
"""How far a sum of two products may be off in float32, of the size of each: of the ratio of scales and of the sum, and
of the second one's product."""


class Quick(NamedTuple):
    """What is computed in the place of an expression, unless `is_doubtful` holds for an element."""

    value: Value
    is_doubtful: Value


def quick_sum(root: Value) -> Quick | None:
    """Of (x * a + y * b) / c, of numbers of 8 bits, rounded, moved and saturated to 8 bits: x (a / c) + y (b / c).

    That has the same nearest integer, unless it is about as near to the next one.
    """
    zero: Value | None = None
    match root:
        case Operation(type="int8" | "uint8", name="saturate", arguments=(Operation(name="add") as sum_,)):
            rounded, zero = sum_.arguments
        case Operation(type="int8" | "uint8", name="saturate", arguments=(rounded,)):
            pass
        case _:
            return None
    match rounded:
        case Operation(name="rint", arguments=(Operation(name="divide", arguments=(total, c)),)):
            pass
        case _:
            return None
    match total:
        case Operation(
            name="add",
            arguments=(
                Operation(name="multiply", arguments=(x, a)),
                Operation(name="multiply", arguments=(y, b)),
            ),
        ):
            return _quick(root.type, [x, y], [a / c, b / c], zero)
    return None


def _quick(type_: str, numbers: Sequence[Value], ratios: Sequence[Value], zero: Value | None) -> Quick | None:
    first, second = map(_Small.of, numbers)
    moves = _number_of(zero) if zero else None
    if first is None or second is None or (zero and moves is None):
        return None
    by_first, by_second = (cast(each, FLOAT32) for each in ratios)
    total = fused(first.value, by_first, second.value * by_second)
    rounder = FORMATS[FLOAT32].rounder
    raised = total + rounder  # whose lowest bits are the nearest integer where that is not doubtful
    sizes = (absolute(by_first) * first.largest, absolute(by_second) * second.largest)
    off = sizes[0] * ROUNDINGS[0] + sizes[1] * ROUNDINGS[1]
    whole = lowest_bits(raised)
    moved = whole + cast(moves, INT32) if moves else whole
    least, most = integer_range(type_)
    value = cast(minimum(maximum(moved, least), most), type_)
    return Quick(value, ~(absolute(total - (raised - rounder)) < 0.5 - off))  # so it is of NaN


class _Small(NamedTuple):
    """A float64 of a number of 8 bits, or of the difference of two, as float32, and how large its size may be."""

    value: Value
    largest: Value

    @classmethod
    def of(cls, x: Value) -> "_Small | None":
        match x:
            case Operation(name="subtract", arguments=(given, zero)):
                number, less = _number_of(given), _number_of(zero)
                moved = cast(less, FLOAT32) if less else None
            case _:
                number, moved = _number_of(x), Constant(FLOAT32, 0)
        if number is None or moved is None:
            return None
        least, most = integer_range(number.type)
        return cls(cast(number, FLOAT32) - moved, maximum(moved - least, most - moved))


def _number_of(x: Value) -> Value | None:
    """What a float64 is, that is a number of 8 bits."""
    match x:
        case Operation(name="cast", arguments=(Input(type="int8" | "uint8") as given,)):
            return given
    return None
