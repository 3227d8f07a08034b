"""The inverse functions of sine, cosine and tangent, for loops compiled with LLVM; see `functions.py`.

Those of float32 are in float32, of which a register holds twice as many: what a step rounds off counts only where a
result is larger than it, or is made up for. They are within 1.3 units in the last place of what is exact. Those of
float64 have the digits of float32 and some more.
"""

import math
from collections.abc import Callable
from functools import partial

from app.devices.cpu.llvm.math.primitives import (
    by_steps,
    chosen,
    fused,
    guessed_inverse_of_root,
    signed,
)
from app.formula.expansions import Expansion, plain
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Value,
    absolute,
    arctan,
    cast,
    copysign,
    equal,
    is_nan,
    minimum,
    sqrt,
    where,
    widen,
)

PI = 3.1415927410125732
"""The float32 next to pi."""

REST_OF_PI = (math.pi - PI) / PI
"""What PI lacks, of itself. So it is of its half and its quarter."""

ATAN_IN_FLOAT64 = (-0.33333333293301176, 0.19999990275947271, -0.14285317963907304, 0.1110470678864422,
                   -0.09036742342070782, 0.0741749696430051, -0.05760716083128117, 0.038327445983064846,
                   -0.019261081322765883, 0.00620725453378005, -0.0009362994719496015)  # fmt: skip
"""(atan(x) / x - 1) / x^2 by powers of x^2, up to 1: 4e-10."""

ATAN = (-0.33333301865956133, 0.19998638595966328, -0.14265245072350113, 0.10957574372029039, -0.08419453415480518,
        0.05823444865009411, -0.03145559796551834, 0.011064384497326971, -0.0018272002279458568)  # fmt: skip
"""The same: 2e-9."""

ASIN = (0.16666646400812923, 0.07501297887872366, 0.04436805916968019, 0.03301653764212207, 0.010012791200931567,
        0.0435135505074847)  # fmt: skip
"""(asin(x) / x - 1) / x^2 by powers of x^2, up to 0.54: 1e-9."""

FAR = 0.54
"""From here on by way of half of the arc cosine. Up to here this is more than 1, and so rounded where it is largest."""

SHIFT = 0.0625
"""At least what the correction of an arc sine beyond FAR takes away: shifted by so much, what it is of is less than 1
where the result is, and rounded as that."""

LEAST = 1e-30
"""What lets a root of 0 be a divisor; it is none of the digits of any other."""

MOST = 2.0**30
"""More than the inverse of any root is, but of 0, for which that lets the product be 0."""


Root = Callable[[Value], tuple[Value, Value]]
"""A float32 next to a root, and what that is more."""


def _root(x: Value) -> tuple[Value, Value]:
    root = sqrt(x)
    return root, fused(-root, root, x) / fused(root, 2, LEAST)


def _root_by_guess(x: Value) -> tuple[Value, Value]:
    """By one step from a guess at its inverse, with half of that to divide by it."""
    guess = minimum(guessed_inverse_of_root(x), MOST)
    near, half = x * guess, guess * 0.5
    off = fused(-half, near, 0.5)
    root = fused(near, off, near)
    return root, fused(-root, root, x) * fused(half, off, half)


def _arc(x: Value, root_of: Root) -> tuple[Value, Value, Value]:
    """Whether |x| is FAR, and the arc sine of it, or of sqrt((1 - |x|) / 2), as a number and what is to add."""
    size = absolute(x)
    far = size > FAR
    half = fused(size, -0.5, 0.5)
    root, rest = root_of(half)
    lost = where(far, rest, 0)
    square, base = where(far, half, x * x), where(far, root, size)
    return far, base, fused(base * square, by_steps(ASIN, square), lost)


def _arcsin(x: Value, root_of: Root) -> Value:
    far, base, more = _arc(x, root_of)
    beyond = fused(more - (PI / 4 * REST_OF_PI + SHIFT / 2), -2, fused(base, -2, PI / 2 - SHIFT))
    return signed(where(far, beyond, base + more), x)


def _arccos(x: Value, root_of: Root) -> Value:
    """pi / 2 less the arc sine, or twice that of the half, or what is left of pi."""
    far, base, more = _arc(x, root_of)
    factor = signed(where(far, Constant(FLOAT32, 2), -1), x)
    offset = where(far, where(x < 0, Constant(FLOAT32, PI), 0), PI / 2)
    return fused(factor, base, offset) + fused(offset, REST_OF_PI, factor * more)


def _arctan(x: Value) -> Value:
    """Beyond 1 by way of 1 / x."""
    size = absolute(x)
    beyond = size > 1
    z = where(beyond, 1 / size, size)
    square = z * z
    more = z * square * by_steps(ATAN, square)
    return signed(where(beyond, (PI / 2 - z) - (more - PI / 2 * REST_OF_PI), z + more), x)


def _arctan_in_float64(x: Value) -> Value:
    size = absolute(x)
    beyond = size > 1
    return copysign(_angle(where(beyond, 1 / size, size), beyond), x)


def _angle(z: Value, beyond: Value) -> Value:
    """The arc tangent of z, which is up to 1, or of 1 / z."""
    square = z * z
    angle = fused(z * square, by_steps(ATAN_IN_FLOAT64, square), z)
    return where(beyond, math.pi / 2 - angle, angle)


def _arcsin_in_float64(x: Value) -> Value:
    return arctan(x / sqrt(1 - x * x))


def _arccos_in_float64(x: Value) -> Value:
    angle = arctan(sqrt(1 - x * x) / absolute(x))
    return where(x < 0, math.pi - angle, angle)


def _arctan2(y: Value, x: Value) -> Value:
    rise, run = absolute(y), absolute(x)
    beyond = rise > run
    smaller, larger = where(beyond, run, rise), where(beyond, rise, run)
    z = where(equal(smaller, 0), 0, where(equal(smaller, larger), 1, smaller / larger))  # also of 0 / 0, and infinities
    angle = _angle(z, beyond)
    angle = where(copysign(1, x) < 0, math.pi - angle, angle)
    return where(is_nan(x), x, copysign(angle, y))


WHOLE: dict[str, Callable[[Value], Value]] = {
    "arcsin": lambda x: _arcsin(x, _root),
    "arccos": lambda x: _arccos(x, _root),
}
BY_GUESS: dict[str, Callable[[Value], Value]] = {
    "arcsin": lambda x: _arcsin(x, _root_by_guess),
    "arccos": lambda x: _arccos(x, _root_by_guess),
}
"""Without a root and a division, for each of which a processor takes as long as for ten other operations."""


def _by_type(of_float32: Callable[[Value], Value], of_float64: Callable[[Value], Value]) -> Expansion:
    return plain(lambda x: of_float64(x) if x.type == FLOAT64 else of_float32(x))


def in_float64(function: Callable[..., Value]) -> Expansion:
    """`function` of float64, for other floats."""
    return plain(lambda *given: cast(function(*map(widen, given)), given[0].type))


EXPANSIONS: dict[str, Expansion] = {
    "arcsin": _by_type(partial(chosen, "arcsin"), _arcsin_in_float64),
    "arccos": _by_type(partial(chosen, "arccos"), _arccos_in_float64),
    "arctan": _by_type(_arctan, _arctan_in_float64),
    "arctan2": in_float64(_arctan2),
}

STORED_AS_HALF: dict[str, Expansion] = {
    "arcsin": in_float64(_arcsin_in_float64),
    "arccos": in_float64(_arccos_in_float64),
    "arctan": in_float64(_arctan_in_float64),
}
"""For results stored as FLOAT16, of which some are next to what is halfway between two. They are looked up soon."""
