"""Sine, cosine and tangent of float32, for loops compiled with LLVM; see `functions.py`.

An angle is some whole turns, halves or quarters of one and a rest, in float64. Where it is not large, two parts of pi
tell the rest; of larger ones every digit counts of 1 / (2 pi), down to those that are beyond the angle's own.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from app.contract.constants import DataType
from app.devices.cpu.llvm.math.primitives import FORMATS, chosen, fused, polynomial
from app.formula.expansions import Expansion, plain
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Input,
    Operation,
    Value,
    absolute,
    cast,
    equal,
    floor,
    parts,
    rint,
    where,
    widen,
)

SIN = (-0.16666666663881236, 0.008333332768753579, -0.000198410865614788, 2.753646356257478e-06,
       -2.4080190432969248e-08)  # fmt: skip
"""(sin(r) / r - 1) / r^2 by powers of r^2, up to pi / 2: 1.1e-10."""

SIN_OF_QUARTER = (-0.1666666666385529, 0.008333331874710208, -0.0001984008673538484, 2.7249925803059296e-06)
COS_OF_QUARTER = (-0.49999999969119313, 0.04166665064451703, -0.001388758915560057, 2.44637882932652e-05)
"""The same, and (cos(r) - 1) / r^2, up to pi / 4: 2e-11 and 3e-10."""

PI = (math.pi, 1.2246467991473532e-16)
"""In two parts, the first one rounded to float64."""

NEAR = 2.0**26
"""Of which whole numbers of quarters of a turn times `PI` leave a rest that is right to float64's digits, for its own
digits are those of float32."""

INVERSE = [
    digits * 2.0 ** (-24 * place)
    for place, digits in enumerate((0x28BE60, 0xDB9391, 0x054A7F, 0x09D5F4, 0x7D4D37, 0x7036D8, 0xA5664F, 0x10E410), 1)
]
"""1 / (2 pi), 24 digits at a time, of which float64 has room for the product with a float32."""


class _Angle(NamedTuple):
    """A `whole` number of halves or quarters of a turn, and the `rest` in radians."""

    whole: Value
    rest: Value


def _near(x: Value, of_turn: int, more: float) -> _Angle:
    """`x` and `more` turns, in so many parts of a turn; `more` is in none of what is left."""
    parts_of_pi = of_turn / 2
    rounder, moved = FORMATS[FLOAT64].rounder, more * of_turn
    factor = parts_of_pi / math.pi
    whole = (fused(x, factor, moved) + rounder if more else fused(x, factor, rounder)) - rounder
    taken = whole - moved if more else whole
    high, low = (each / parts_of_pi for each in PI)
    return _Angle(whole, fused(taken, -low, fused(taken, -high, x)))


def _far(x: Value, of_turn: int, more: float) -> _Angle:
    """The same of any float32. Every product is exact, and so are the sums until the rest is as small as it gets."""
    whole: Value = Constant(FLOAT64, 0)
    rest: Value = Constant(FLOAT64, more * of_turn)
    for digits in INVERSE:
        turns = x * digits
        own = (turns - rint(turns)) * of_turn
        count = rint(own)
        rest = rest + (own - count)
        carried = rint(rest)
        whole, rest = whole + (count + carried), rest - carried
    return _Angle(whole, rest * (2 * math.pi / of_turn))


Turned = Callable[[Value, int, float], _Angle]


def _half_of_odd(whole: Value) -> Value:
    """1/2 of an odd number, of an even one 0."""
    half = whole * 0.5
    return half - floor(half)


def _sine(turned: Turned, more: float) -> Callable[[Value], Value]:
    """Of `more` turns beyond x: by halves of a turn, of which every other one has the other sign."""

    def function(x: Value) -> Value:
        angle = turned(_widened(x), 2, more)
        sign = 1 - _half_of_odd(angle.whole) * 4
        square = angle.rest * angle.rest
        return cast(angle.rest * sign * fused(square, polynomial(SIN, square), 1), FLOAT32)

    return function


def _tangent(turned: Turned) -> Callable[[Value], Value]:
    """By quarters of a turn: of every other one -1 over it."""

    def function(x: Value) -> Value:
        angle = turned(_widened(x), 4, 0)
        square = angle.rest * angle.rest
        sine = angle.rest * fused(square, polynomial(SIN_OF_QUARTER, square), 1)
        cosine = fused(square, polynomial(COS_OF_QUARTER, square), 1)
        is_even = equal(_half_of_odd(angle.whole), 0)
        return cast(where(is_even, sine, -cosine) / where(is_even, cosine, sine), FLOAT32)

    return function


def _widened(x: Value) -> Value:
    if x.type != FLOAT32:
        raise LookupError("angles of float64 are left to NumPy")
    return widen(x)


def _functions(turned: Turned) -> dict[str, Callable[[Value], Value]]:
    return {"sin": _sine(turned, 0), "cos": _sine(turned, 0.25), "tan": _tangent(turned)}


WHOLE, _OF_FAR = _functions(_near), _functions(_far)
"""In float64, of angles that are `NEAR`, and of any."""


def is_near(x: Value, near: float = NEAR) -> Value:
    """1, or 0 of what is too large, and of NaN."""
    return where(absolute(x) < near, Constant(FLOAT32, 1), 0)


def _is_far(x: Value) -> Value:
    return equal(chosen("is_near", x), 0)


def _near_one(name: str, x: Value) -> Value:
    """Of a half in float64: what is rounded twice is next to what it should be."""
    return WHOLE[name](x) if _is_half(x) else chosen(name, x)


def _any_one(name: str, x: Value) -> Value:
    """The same bits where that is right."""
    far = _OF_FAR[name](x)
    return where(_is_far(x), far, _near_one(name, x))


def _is_half(x: Value) -> bool:
    """Of which none but infinities, whose rest is NaN, are far."""
    return isinstance(x, Input) and x.stored is DataType.FLOAT16


def _expansion(name: str) -> Expansion:
    return plain(lambda x: (_near_one if _is_half(x) else _any_one)(name, x))


EXPANSIONS: dict[str, Expansion] = {name: _expansion(name) for name in WHOLE}

OF_NEAR: dict[str, Expansion] = {name: plain(partial(_near_one, name)) for name in WHOLE}
"""Of what is not `far`, in a third of the time."""


def far(root: Value) -> Iterator[Value]:
    """Of each angle in a formula that may be, whether it is too large for `OF_NEAR`, or no number."""
    for node in parts(root):
        if isinstance(node, Operation) and node.name in OF_NEAR and not _is_half(node.arguments[0]):
            yield _is_far(node.arguments[0])
