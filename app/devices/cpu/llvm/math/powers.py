"""Logarithms and powers for loops compiled with LLVM; see `functions.py`."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.devices.cpu.llvm.math.primitives import (
    FORMATS,
    LOG2_E,
    called_power,
    fraction,
    fraction_of_normal,
    fused,
    kept,
    nearest,
    polynomial,
    scaled,
    two_to_the,
)
from app.formula.expansions import Ask
from app.formula.uniform import is_uniform
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Number,
    Parameter,
    Value,
    absolute,
    cast,
    copysign,
    equal,
    maximum,
    minimum,
    sqrt,
    trunc,
    where,
    widen,
)

LOG = (0.33333331180030046, -0.24999996957950882, 0.200007157488921, -0.16667802319501254, 0.1424905764569748,
       -0.12425687331451106, 0.1168541992348674, -0.11479733846637635, 0.06971611471451178)  # fmt: skip
"""(log(1 + f) - f + f^2 / 2) / f^3 by powers of f, for 1 + f within sqrt(2) of 1: 3e-8."""

LOG2 = (0.9617966923048699, 0.5770797764553204, 0.4119010125701226, 0.336594661366502)
"""(log2(m) - s * 2 / ln 2) / s^3 by powers of s^2, for s = (m - 1) / (m + 1) and m within sqrt(2) of 1: 2e-9."""

TWO_LOG2_E = (2.885390043258667, 3.851926067000022e-08)
"""2 / ln 2 in two parts, the first one rounded to float32."""

EXP2 = (0.6931471880352003, 0.24022650760645808, 0.05550357071152507, 0.009618082519990467, 0.0013390886332106697,
        0.0001545318282995974)  # fmt: skip
"""(2^y - 1) / y by powers of y, for y from -1/2 to 1/2: 8e-9."""

LOG2_FOR_HALF = (0.9617510007195289, 0.5894602258705312)
"""The same as LOG2 with the digits of float16: 5e-5."""

EXP2_FOR_HALF = (0.6931367338836215, 0.24022530097412242, 0.055838282946219855, 0.009656710288544356)
"""The same as EXP2: 1e-5."""

LOG2_OF_SUM = (-0.7213474865378442, 0.4808982992822264, -0.36068503113027606, 0.28855681768676966,
               -0.2398717919576035, 0.20493275239316275, -0.1893905943710658, 0.18354936938116376,
               -0.11070724540024855)  # fmt: skip
"""(log2(1 + f) - f / ln 2) / f^2 by powers of f, for 1 + f within sqrt(2) of 1: 5e-8."""

FARTHEST_POWER, FARTHEST_FOR_HALF = 200.0, 40.0
"""2 to this is infinite in float32, or in float16, and its reciprocal 0."""

LARGEST_EXPONENT, SMALL_EXPONENT = 2.0**60, 64.0
"""The power of any float32 by the first is infinite, 1 or 0. By the second one products have a range to spare in
float64, and the rest of a logarithm's product is tiny."""

MILD_EXPONENT = 3.0
"""Exponents up to this magnify the rounding of a logarithm so little that it need not be made up for."""

STEEP_EXPONENT = 1.25
"""Powers of what is not normal by exponents from this on are 0 or infinite, and so are those of powers of two next to
it: 0, subnormal numbers and infinity need not be looked at."""


def log(x: Value) -> Value:
    """k ln 2 + log(m)."""
    k, m = fraction(x)
    if x.type == FLOAT64:
        return _at_ends(x, _log2(k, m) * math.log(2))
    f = m - 1
    high, low = FORMATS[x.type].ln_2
    rest = fused(f * f, fused(f, polynomial(LOG, f), -0.5), k * low)
    return _at_ends(x, fused(k, high, f + rest))


def log1p(x: Value) -> Value:
    """log(u) for u = 1 + x, made up for what the sum has lost (W. Kahan)."""
    u = x + 1
    return where(equal(u, 1) | equal(u, math.inf), x, log(u) * (x / (u - 1)))


def _log2(k: Value, m: Value, coefficients: Sequence[float] = LOG2) -> Value:
    """k + log2(m)."""
    s = (m - 1) / (m + 1)
    return fused(s, fused(s * s, polynomial(coefficients, s * s), 2 * LOG2_E), k)


def _at_ends(x: Value, result: Value) -> Value:
    """`result` of a positive number, or what a logarithm is of an `x` that is none."""
    return where(x > 0, where(x < math.inf, result, x), where(equal(x, 0), Constant(x.type, -math.inf), math.nan))


def _log2_in_parts(k: Value, m: Value) -> tuple[Value, Value]:
    """k + log2(m) of float32 as a sum whose second part are digits that the first one has no place for.

    Both the quotient of `_log2` and its product with 2 / ln 2 come with what they have lost.
    """
    f = m - 1
    divisor = f + 2
    inverse = 1 / divisor
    s = f * inverse
    s_rest = fused(s, (divisor - 2) - f, fused(-s, divisor, f)) * inverse
    square = s * s
    high, low = TWO_LOG2_E
    beyond = polynomial(LOG2, square)
    factor = fused(square, beyond, high)
    factor_rest = fused(square, beyond, high - factor) + low
    product = s * factor
    rest = fused(s, factor, -product) + fused(s_rest, factor, s * factor_rest)
    total = k + product
    return total, (k - total) + product + rest


def _power_of_positive(k: Value, m: Value, exponent: Value, *, is_small: bool = True) -> Value:
    """2^(exponent * log2(2^k m)), of which the product is in two parts; of an exponent of at most LARGEST_EXPONENT, or
    if it `is_small`, SMALL_EXPONENT."""
    log2, log2_rest = _log2_in_parts(k, m)
    if not is_small:  # then there is much to do with them
        log2, log2_rest = kept(log2), kept(log2_rest)
    y = exponent * log2
    rest = fused(exponent, log2_rest, fused(exponent, log2, -y))
    n, f = _nearest_and_rest(y, FARTHEST_POWER)
    return _exp2(n, f + (rest if is_small else maximum(minimum(rest, 1), -1)))


def _mild_power_of_positive(k: Value, m: Value, exponent: Value) -> Value:
    """The same of an exponent of at most MILD_EXPONENT. Only its product with k has digits to lose.

    Beyond FARTHEST_POWER what is left for `_exp2` is not small. Its polynomial's degree is even, so the sign stays.
    """
    f = m - 1
    k, log2 = kept(k), kept(fused(f, LOG2_E, f * f * polynomial(LOG2_OF_SUM, f)))
    product = exponent * k
    n, _ = _nearest_and_rest(fused(exponent, log2, product), FARTHEST_POWER)
    return _exp2(n, fused(exponent, log2, (product - n) + fused(exponent, k, -product)))


def _exp2(n: Value, f: Value) -> Value:
    """2^(n + f) for a whole number n, of a small `f`."""
    return scaled(fused(f, polynomial(EXP2, f), 1), n)


def _nearest_and_rest(y: Value, farthest: float) -> tuple[Value, Value]:
    """The whole number next to `y`, which is as good if it is `farthest` from 0, and what is left."""
    near = maximum(minimum(y, farthest), -farthest)
    n = nearest(near, 1)
    return n, near - n


class _Small(NamedTuple):
    """What chooses code of an ordinary exponent that is not 0."""

    product: float | None
    """The exponent itself, if it is a multiple of a half: as many factors, and a square root."""
    is_positive: bool
    is_mild: bool
    is_steep: bool


def _small_number(exponent: Number) -> _Small | None:
    if not 0 < abs(exponent) <= SMALL_EXPONENT:
        return None
    if exponent * 2 == int(exponent * 2):
        return _Small(float(exponent), False, False, False)
    return _Small(None, exponent > 0, abs(exponent) <= MILD_EXPONENT, abs(exponent) >= STEEP_EXPONENT)


def _small(ask: Ask, exponent: Value) -> _Small | None:
    """What is known of `exponent`, if it is an attribute."""
    small: _Small | None = ask(_small_number, exponent) if isinstance(exponent, Parameter) else None
    return small


def power(ask: Ask, base: Value, exponent: Value) -> Value:
    """As IEEE 754 has it. An attribute's value tells what need not be looked at."""
    if base.type == FLOAT64 and is_uniform(base):
        return called_power(base, exponent)
    if base.type != FLOAT32:
        raise LookupError("power of float64 has to be exact to the last bit where it is a whole number")
    known = _small(ask, exponent)
    if known is None:
        return _any_power(base, exponent)
    if known.product is not None:
        return cast(_product(base, known.product, widen), FLOAT32)  # in float64 all products are exact enough
    of_positive = _mild_power_of_positive if known.is_mild else _power_of_positive
    return _at_ends_of_power(base, known, of_positive(*_fraction(base, known), exponent))


def power_for_half(ask: Ask, base: Value, exponent: Value) -> Value:
    """The same with the digits that float16 has."""
    known = _small(ask, exponent)
    if known is None:
        return power(ask, base, exponent)
    if known.product is not None:
        return _product(base, known.product, lambda x: x)
    log2 = kept(_log2(*_fraction(base, known), LOG2_FOR_HALF))
    n, f = _nearest_and_rest(exponent * log2, FARTHEST_FOR_HALF)
    result = fused(f, polynomial(EXP2_FOR_HALF, f), 1) * two_to_the(n)
    if known.is_steep:  # a product, since LLVM would store float16 first and choose between these
        return result * where((base >= 0) | equal(base, -math.inf), Constant(FLOAT32, 1), math.nan)
    return _at_ends_of_power(base, known, result)


def _fraction(base: Value, exponent: _Small) -> tuple[Value, Value]:
    """Of the size of `base`, for its power."""
    return (fraction_of_normal if exponent.is_steep else fraction)(absolute(base))


def _at_ends_of_power(base: Value, exponent: _Small, result: Value) -> Value:
    """`result`, which is that of the size of `base`, or what its power by a fraction is if that is not the same."""
    of_infinity, of_zero = (math.inf, 0.0) if exponent.is_positive else (0.0, math.inf)
    if exponent.is_steep:
        return where(equal(base, -math.inf), of_infinity, where(base >= 0, result, math.nan))
    result = where(base > 0, result, math.nan)
    return where(equal(absolute(base), math.inf), of_infinity, where(equal(base, 0), of_zero, result))


def _product(base: Value, exponent: float, exact: Callable[[Value], Value]) -> Value:
    """The power by a multiple of a half: as many factors, made `exact` enough, and a square root."""
    factors: list[Value] = []
    if exponent != int(exponent):
        base = where(equal(base, -math.inf), math.inf, base) + 0  # as pow has it, unlike roots, and so of -0
        factors.append(exact(sqrt(base)))
    base, left = exact(base), int(abs(exponent))
    while left:
        if left % 2:
            factors.append(base)
        base, left = base * base, left // 2
    product = functools.reduce(operator.mul, factors)
    return product if exponent > 0 else 1 / product


def _any_power(base: Value, exponent: Value) -> Value:
    """What depends on the exponent alone, which may be one for all, is not mixed with conditions on the base."""
    size = absolute(base)
    bounded = maximum(minimum(exponent, LARGEST_EXPONENT), -LARGEST_EXPONENT)
    result = _power_of_positive(*fraction(size), bounded, is_small=False)
    half = exponent * 0.5
    whole, even = equal(trunc(exponent), exponent), equal(trunc(half), half)
    result = where(base < 0, result * where(whole, Constant(FLOAT32, 1), math.nan), result) + (base - base)
    grows, shrinks = exponent > 0, exponent < 0
    of_infinity = where(grows, Constant(FLOAT32, math.inf), where(shrinks, 0, exponent))
    of_zero = where(grows, 0, where(shrinks, Constant(FLOAT32, math.inf), exponent))
    result = where(equal(size, math.inf), of_infinity, where(equal(size, 0), of_zero, result))
    result = copysign(result, where(whole & ~even, base, 1))
    one = where(equal(absolute(exponent), math.inf), size, base)
    return where(equal(exponent, 0), 1, where(equal(one, 1), 1, result))
