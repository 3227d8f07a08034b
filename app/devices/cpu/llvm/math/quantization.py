"""Sums of two quantized tensors in float32, and where that does not do; see `functions.py`."""

from collections.abc import Sequence
from typing import NamedTuple

from app.devices.cpu.llvm.math.primitives import bits_beyond, fused, truncated
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Input,
    Operation,
    Value,
    absolute,
    cast,
    integer_range,
    maximum,
    minimum,
    where,
    widen,
)

INT32 = "int32"

PLACES = 15
"""Binary digits after the point, of numbers from 256 to below 512: all that float32 has there."""

ROUNDING = 1.01 * 2.0**-24
"""How far a float32 may be off, of its size, and float64's errors with it."""


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
    """The sum is moved: by a half, so that what is before the point is the nearest integer, and to where 256 and more
    stand for the results. There a float32 has as many digits after the point wherever it is, so that its bits are the
    integer and what tells whether that is doubtful: if it is not farther above an integer than the sum is moved too
    far, and may be off. What is beyond the results is cut off in the middle between two integers."""
    first, second = map(_Small.of, numbers)
    moves = _number_of(zero) if zero else None
    if first is None or second is None or (zero and moves is None):
        return None
    by_first, by_second = (cast(each, FLOAT32) for each in ratios)
    least, most = integer_range(type_)
    start = 256 - least
    moved = first.moved(by_first) + second.moved(by_second)
    exact = (cast(moves, FLOAT64) if moves else Constant(FLOAT64, 0)) + (start + 0.5) - moved
    # The ratios, the first sum, and the second one, of which half of a last digit is lost.
    reach = maximum(*(absolute(exact + widen(by_second) * each) for each in second.range))
    off = (first.size(by_first) + second.size(by_second) + reach) * ROUNDING + 1.01 * 2.0 ** -(PLACES + 1)
    constant = cast(exact + (off + absolute(exact) * ROUNDING), FLOAT32)
    doubt = (widen(constant) - exact) + off
    total = fused(first.value, by_first, fused(second.value, by_second, constant))
    inside = minimum(maximum(total, start + least + 0.5), start + most + 0.5)
    bits = bits_beyond(inside, start)
    ones = 2.0**PLACES
    doubtful = truncated(where(doubt < 0.5, doubt * ones + 1, ones), INT32)  # everything, where it is NaN
    return Quick(cast(bits >> PLACES, type_), (bits & (2**PLACES - 1)) <= doubtful)


class _Small(NamedTuple):
    """A float64 of a number of 8 bits, or of the difference of two, as the float32 `value` less `zero`."""

    value: Value
    zero: Value
    range: tuple[int, int]
    """Of `value`."""

    @classmethod
    def of(cls, x: Value) -> "_Small | None":
        match x:
            case Operation(name="subtract", arguments=(given, less)):
                number, zero = _number_of(given), _number_of(less)
            case _:
                number, zero = _number_of(x), Constant(INT32, 0)
        if number is None or zero is None:
            return None
        return cls(cast(number, FLOAT32), cast(zero, FLOAT64), integer_range(number.type))

    def moved(self, ratio: Value) -> Value:
        """By how much a multiple of `value` is more than that of the difference."""
        return widen(ratio) * self.zero

    def size(self, ratio: Value) -> Value:
        """The largest one of the difference's multiples."""
        least, most = self.range
        return absolute(widen(ratio)) * maximum(self.zero - least, most - self.zero)


def _number_of(x: Value) -> Value | None:
    """What a float64 is, that is a number of 8 bits."""
    match x:
        case Operation(name="cast", arguments=(Input(type="int8" | "uint8") as given,)):
            return given
    return None
