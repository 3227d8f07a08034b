"""Sums of two quantized tensors in float32, and where that does not do; see `functions.py`."""

from collections.abc import Sequence
from typing import NamedTuple

from app.devices.cpu.llvm.math.primitives import fused, truncated
from app.formula.values import FLOAT32, Input, Operation, Value, absolute, cast, integer_range, maximum, minimum, rint

INT32 = "int32"

LARGEST = 255
"""The most that a number of 8 bits less a zero point of as many may be."""

ROUNDINGS = 3.1 * 2.0**-24
"""How far a sum of two products may be off in float32, of both their sizes together: of the ratio of scales, of the
product and of the sum."""


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
    first, second = map(_small, numbers)
    moves = _number_of(zero) if zero else None
    if first is None or second is None or (zero and moves is None):
        return None
    by_first, by_second = (cast(each, FLOAT32) for each in ratios)
    total = fused(first, by_first, second * by_second)
    nearest = rint(total)
    off = (absolute(by_first) + absolute(by_second)) * (LARGEST * ROUNDINGS)
    whole = truncated(nearest, INT32)  # which is in range where it is not doubtful
    moved = whole + cast(moves, INT32) if moves else whole
    least, most = integer_range(type_)
    value = cast(minimum(maximum(moved, least), most), type_)
    return Quick(value, ~(absolute(total - nearest) < 0.5 - off))  # so it is of NaN


def _small(x: Value) -> Value | None:
    """A float64 of a number of 8 bits, or of the difference of two, as float32."""
    match x:
        case Operation(name="subtract", arguments=(given, zero)):
            number, less = _number_of(given), _number_of(zero)
            return cast(number, FLOAT32) - cast(less, FLOAT32) if number and less else None
    number = _number_of(x)
    return cast(number, FLOAT32) if number else None


def _number_of(x: Value) -> Value | None:
    """What a float64 is, that is a number of 8 bits."""
    match x:
        case Operation(name="cast", arguments=(Input(type="int8" | "uint8") as given,)):
            return given
    return None
