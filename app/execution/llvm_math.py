"""Functions of floats for loops compiled with LLVM, made of operations that the processor has.

They are formulas again, over the operations of `app/formula/values.py` and some that LLVM's lowering has besides:
`fused` is a * b + c rounded once, and `two_to_the`, `exponent_of` and `fraction_of` are on the bits of a float. The
coefficients are Chebyshev fits over the interval, computed in 200 bits; no function has a branch, so that a loop
computes as many elements at a time as the processor's vectors hold.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.execution import numpy_expansions
from app.execution.precision import MODERATE
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Operation,
    Parameter,
    Value,
    absolute,
    arctan,
    cast,
    copysign,
    equal,
    exp,
    expm1_of_negative,
    is_nan,
    log,
    log1p,
    maximum,
    minimum,
    sqrt,
    trunc,
    where,
    widen,
)

LOG2_E = 1 / math.log(2)


@dataclass(frozen=True, slots=True)
class Format:
    """What depends on the width of a float. A whole number plus `rounder` has it in its lowest bits."""

    rounder: float
    exponents: float
    """Results of exp lie between 2^-exponents, which is 0, and 2^exponents, which is infinite."""
    least_normal: float
    digits: int
    ln_2: tuple[float, float]
    """ln 2 in two parts, the first one rounded to the format."""
    exp: tuple[float, ...]
    """(exp(f) - 1 - f) / f^2 by powers of f, up to ln(2) / 2: of float32 7e-8, of float64 5e-13."""


FORMATS = {
    FLOAT32: Format(
        rounder=1.5 * 2**23,
        exponents=151,
        least_normal=2.0**-126,
        digits=24,
        ln_2=(0.693147182464599609375, -1.904654299957767e-09),
        exp=(0.5, 0.16666576666119928, 0.04166655421298415, 0.008363232883682618, 0.0013926250831497611),
    ),
    FLOAT64: Format(
        rounder=1.5 * 2**52,
        exponents=1076,
        least_normal=2.0**-1022,
        digits=53,
        ln_2=(0.6931471805599453, 2.3190468138462996e-17),
        exp=(0.4999999999995475, 0.16666666666662555, 0.04166666678698556, 0.008333333344268395, 0.0013888838910996056,
             0.00019841224418291943, 2.4868002978056962e-05, 2.7617685465165067e-06),
    ),
}  # fmt: skip

EXPM1 = (0.5000000013457727, 0.16666666681614256, 0.04166646500604005, 0.008333310934448869, 0.0013933641031986701,
         0.00019890980869750327)  # fmt: skip
"""The same of float64 with the digits of float32: 3e-9."""

EXPM1_FOR_HALF = (0.49999998696186787, 0.16741906643353555, 0.041792433436336984)
"""The same with the digits of float16: 9e-5."""

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

ATAN = (-0.33333333293301176, 0.19999990275947271, -0.14285317963907304, 0.1110470678864422, -0.09036742342070782,
        0.0741749696430051, -0.05760716083128117, 0.038327445983064846, -0.019261081322765883, 0.00620725453378005,
        -0.0009362994719496015)  # fmt: skip
"""(atan(x) / x - 1) / x^2 by powers of x^2, up to 1: 4e-10."""

SINH = (0.16666666646842135, 0.00833333967591706, 0.00019838101968683888, 2.8062802582276946e-06)
"""(sinh(x) / x - 1) / x^2 by powers of x^2, up to 1: 2e-10."""

FARTHEST_POWER, FARTHEST_FOR_HALF = 200.0, 40.0
"""2 to this is infinite in float32, or in float16, and its reciprocal 0."""

LARGEST_EXPONENT, SMALL_EXPONENT = 2.0**60, 64.0
"""The power of any float32 by the first is infinite, 1 or 0. By the second one products have a range to spare in
float64, and the rest of a logarithm's product is tiny."""

EXP_IS_0 = -128.0
"""exp of this is less than half of the least float32."""


def _fused(a: Value, b: Value | float, c: Value | float) -> Value:
    b, c = (each if isinstance(each, Value) else Constant(a.type, each) for each in (b, c))
    return Operation(a.type, "fused", (a, b, c))


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """The sum of coefficients[i] * x^i, added up in pairs (G. Estrin), which need not wait for each other."""
    terms: list[Value | float] = list(coefficients)
    while len(terms) > 1:
        pairs = [_fused(x, high, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[2 * len(pairs) :]]
        x = x * x
    (result,) = terms
    assert isinstance(result, Value)
    return result


def _nearest(x: Value, factor: float) -> Value:
    """The whole number next to x * factor, which must be less than 2^21."""
    rounder = FORMATS[x.type].rounder
    return _fused(x, factor, rounder) - rounder


def _scaled(x: Value, n: Value) -> Value:
    """x * 2^n with one rounding, for a whole `n` of up to twice the format's largest exponent."""
    half = _nearest(n, 0.5)
    return x * _two_to_the(half) * _two_to_the(n - half)


def _two_to_the(n: Value) -> Value:
    """2^n of a whole number, for which there is an exponent."""
    return Operation(n.type, "two_to_the", (n + FORMATS[n.type].rounder,))


def _reduced(x: Value) -> tuple[Value, Value]:
    """The whole number n next to x / ln 2, and x - n ln 2."""
    n = _nearest(x, LOG2_E)
    high, low = FORMATS[x.type].ln_2
    return n, _fused(n, -low, _fused(n, -high, x))


def _exp(x: Value) -> Value:
    """2^n exp(f) for x = n ln 2 + f."""
    form = FORMATS[x.type]
    most = form.exponents * math.log(2)
    n, f = _reduced(maximum(minimum(x, most), -most))
    return _scaled(1 + _fused(f * f, _polynomial(form.exp, f), f), n)


def _expm1_of_negative(x: Value) -> Value:
    """Of float64 it has no more digits than float32."""
    return _expm1_with(EXPM1 if x.type == FLOAT64 else FORMATS[FLOAT32].exp, x)


def _expm1_with(coefficients: Sequence[float], x: Value) -> Value:
    """2^n (exp(f) - 1) + (2^n - 1), the last term being exact, of a negative `x`."""
    n, f = _reduced(maximum(x, -26.0))  # -1 from there on
    scale = _two_to_the(n)
    return _fused(_fused(f * f, _polynomial(coefficients, f), f), scale, scale - 1)


def _scaled_expm1(x: Value, scale: Value) -> Value:
    """Of x / scale with what the division has lost, which for x / scale = n ln 2 + f with n = 0 is x + x f / 2 + ..."""
    if not (isinstance(scale, Parameter) and scale.value != 1 and 1 / MODERATE <= scale.value <= MODERATE):
        return numpy_expansions.EXPANSIONS["scaled_expm1"](x, scale)
    inverse = 1 / scale
    bounded = where(x < scale * -26, scale * -26, x)  # -scale from there on
    quotient = bounded * inverse
    n, f = _reduced(quotient)
    f = f + _fused(-quotient, scale, bounded) * inverse
    rest = _polynomial(FORMATS[FLOAT32].exp, f)
    two_to_n = _two_to_the(n)
    far = scale * _fused(_fused(f * f, rest, f), two_to_n, two_to_n - 1)
    return where(equal(n, 0), _fused(bounded * f, rest, bounded), far)


def _exp_of_difference(a: Value, b: Value) -> Value:
    """With what Knuth's two-sum says the difference has lost."""
    if a.type == FLOAT64:
        return exp(a - b)
    difference = a - b
    subtrahend = a - difference
    rest = (a - (difference + subtrahend)) + (subtrahend - b)
    return _corrected(difference, rest)


def _exp_of_product(a: Value, b: Value) -> Value:
    """With what the product has lost."""
    if a.type == FLOAT64:
        return exp(a * b)
    product = a * b
    return _corrected(product, _fused(a, b, -product))


def _corrected(x: Value, rest: Value) -> Value:
    """exp(x + rest) for a tiny `rest`, which is NaN where x is infinite."""
    whole = exp(x)
    return where(x < EXP_IS_0, 0, _fused(whole, rest, whole))


def _tanh(x: Value) -> Value:
    """t / (2 + t) for t = expm1(-2 |x|), but for the sign."""
    t = expm1_of_negative(absolute(x) * -2)
    return copysign(t / (t + 2), x)


def _fraction(x: Value) -> tuple[Value, Value]:
    """For a positive number k and m, within sqrt(2) of 1, so that x = 2^k m."""
    form = FORMATS[x.type]
    subnormal = x < form.least_normal
    normal = where(subnormal, x * 2.0**form.digits, x)
    k = Operation(x.type, "exponent_of", (normal,)) - where(subnormal, Constant(x.type, form.digits), 0)
    return k, Operation(x.type, "fraction_of", (normal,))


def _log(x: Value) -> Value:
    """k ln 2 + log(m)."""
    k, m = _fraction(x)
    if x.type == FLOAT64:
        return _at_ends(x, _log2(k, m) * math.log(2))
    f = m - 1
    high, low = FORMATS[x.type].ln_2
    rest = _fused(f * f, _fused(f, _polynomial(LOG, f), -0.5), k * low)
    return _at_ends(x, _fused(k, high, f + rest))


def _log1p(x: Value) -> Value:
    """log(u) for u = 1 + x, made up for what the sum has lost (W. Kahan)."""
    u = x + 1
    return where(equal(u, 1) | equal(u, math.inf), x, log(u) * (x / (u - 1)))


def _log2(k: Value, m: Value, coefficients: Sequence[float] = LOG2) -> Value:
    """k + log2(m)."""
    s = (m - 1) / (m + 1)
    return _fused(s, _fused(s * s, _polynomial(coefficients, s * s), 2 * LOG2_E), k)


def _at_ends(x: Value, result: Value) -> Value:
    """`result` of a positive number, or what a logarithm is of an `x` that is none."""
    return where(x > 0, where(x < math.inf, result, x), where(equal(x, 0), Constant(x.type, -math.inf), math.nan))


def _log2_in_parts(x: Value) -> tuple[Value, Value]:
    """k + log2(m) of a positive float32 as a sum whose second part are digits that the first one has no place for.

    Both the quotient of `_log2` and its product with 2 / ln 2 come with what they have lost.
    """
    k, m = _fraction(x)
    f = m - 1
    divisor = f + 2
    inverse = 1 / divisor
    s = f * inverse
    s_rest = _fused(s, (divisor - 2) - f, _fused(-s, divisor, f)) * inverse
    square = s * s
    high, low = TWO_LOG2_E
    beyond = _polynomial(LOG2, square)
    factor = _fused(square, beyond, high)
    factor_rest = _fused(square, beyond, high - factor) + low
    log = s * factor
    log_rest = _fused(s, factor, -log) + _fused(s_rest, factor, s * factor_rest)
    total = k + log
    return total, (k - total) + log + log_rest


def _power_of_positive(base: Value, exponent: Value) -> Value:
    """2^(exponent * log2(base)), of which the product is in two parts; of an exponent of at most LARGEST_EXPONENT."""
    log, log_rest = _log2_in_parts(base)
    y = exponent * log
    rest = _fused(exponent, log_rest, _fused(exponent, log, -y))
    if _small(exponent) is None:
        rest = maximum(minimum(rest, 1), -1)
    n, f = _nearest_and_rest(y, FARTHEST_POWER)
    f = f + rest
    return _scaled(_fused(f, _polynomial(EXP2, f), 1), n)


def _nearest_and_rest(y: Value, farthest: float) -> tuple[Value, Value]:
    """The whole number next to `y`, which is as good if it is `farthest` from 0, and what is left."""
    near = maximum(minimum(y, farthest), -farthest)
    n = _nearest(near, 1)
    return n, near - n


def _small(exponent: Value) -> float | None:
    """The exponent, if it is known to be an ordinary number that is not 0."""
    if isinstance(exponent, Parameter) and 0 < abs(exponent.value) <= SMALL_EXPONENT:
        return float(exponent.value)
    return None


def _power(base: Value, exponent: Value) -> Value:
    """As IEEE 754 has it. An attribute's value tells what need not be looked at."""
    if base.type != FLOAT32:
        raise LookupError("power of float64 has to be exact to the last bit where it is a whole number")
    known = _small(exponent)
    if known is None:
        return _any_power(base, exponent)
    if known * 2 == int(known * 2):
        return cast(_product(base, known, widen), FLOAT32)  # in float64 all products are exact enough
    return _at_ends_of_power(base, known, _power_of_positive(absolute(base), exponent))


def _power_for_half(base: Value, exponent: Value) -> Value:
    """The same with the digits that float16 has."""
    known = _small(exponent)
    if known is None:
        return _power(base, exponent)
    if known * 2 == int(known * 2):
        return _product(base, known, lambda x: x)
    k, m = _fraction(absolute(base))
    n, f = _nearest_and_rest(exponent * _log2(k, m, LOG2_FOR_HALF), FARTHEST_FOR_HALF)
    result = _fused(f, _polynomial(EXP2_FOR_HALF, f), 1) * _two_to_the(n)
    return _at_ends_of_power(base, known, result)


def _at_ends_of_power(base: Value, exponent: float, result: Value) -> Value:
    """`result` of a positive number, or what its power by a fraction is of a `base` that is none."""
    of_infinity, of_zero = (math.inf, 0.0) if exponent > 0 else (0.0, math.inf)
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
    result = _power_of_positive(size, maximum(minimum(exponent, LARGEST_EXPONENT), -LARGEST_EXPONENT))
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


# In float64, whose digits make up for all that cancels.


def _sinh(x: Value) -> Value:
    size = absolute(x)
    square, e = x * x, exp(size)
    near = _fused(size * square, _polynomial(SINH, square), size)
    return copysign(where(size < 1, near, (e - 1 / e) * 0.5), x)


def _cosh(x: Value) -> Value:
    e = exp(absolute(x))
    return (e + 1 / e) * 0.5


def _arcsinh(x: Value) -> Value:
    size = absolute(x)
    square = x * x
    result = log1p(size + square / (1 + sqrt(square + 1)))
    return copysign(where(size < math.inf, result, size), x)


def _arccosh(x: Value) -> Value:
    beyond = x - 1
    return where(beyond >= 0, log1p(beyond + sqrt(beyond * (x + 1))), math.nan)


def _arctanh(x: Value) -> Value:
    size = absolute(x)
    return copysign(log1p((size + size) / (1 - size)) * 0.5, x)


def _arctan(x: Value) -> Value:
    """Beyond 1 by way of 1 / x."""
    size = absolute(x)
    beyond = size > 1
    z = where(beyond, 1 / size, size)
    square = z * z
    angle = _fused(z * square, _polynomial(ATAN, square), z)
    return copysign(where(beyond, math.pi / 2 - angle, angle), x)


def _arcsin(x: Value) -> Value:
    return arctan(x / sqrt(1 - x * x))


def _arccos(x: Value) -> Value:
    angle = arctan(sqrt(1 - x * x) / absolute(x))
    return where(x < 0, math.pi - angle, angle)


def _arctan2(y: Value, x: Value) -> Value:
    rise, run = absolute(y), absolute(x)
    slope = where(equal(rise, 0), 0, where(equal(rise, run), 1, rise / run))  # also where both are 0 or infinite
    angle = arctan(slope)
    angle = where(copysign(1, x) < 0, math.pi - angle, angle)
    return where(is_nan(x), x, copysign(angle, y))


def _wide(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function` of float64, for other floats."""
    return lambda *given: cast(function(*map(widen, given)), given[0].type)


EXPANSIONS: dict[str, Callable[..., Value]] = {
    "exp": _exp,
    "expm1_of_negative": _expm1_of_negative,
    "scaled_expm1": _scaled_expm1,
    "exp_of_difference": _exp_of_difference,
    "exp_of_product": _exp_of_product,
    "tanh": _tanh,
    "log": _log,
    "log1p": _log1p,
    "power": _power,
    "sinh": _wide(_sinh),
    "cosh": _wide(_cosh),
    "arcsinh": _wide(_arcsinh),
    "arccosh": _wide(_arccosh),
    "arctanh": _wide(_arctanh),
    "arcsin": _wide(_arcsin),
    "arccos": _wide(_arccos),
    "arctan": _wide(_arctan),
    "arctan2": _wide(_arctan2),
    **{name: numpy_expansions.EXPANSIONS[name] for name in ("log1p_of_fraction", "erf", "normal_cdf")},
}
"""By the operation's name: it, as a function of its arguments, made of others. Those of NumPy serve here too."""

FOR_HALF: dict[str, Callable[..., Value]] = {
    **EXPANSIONS,
    "power": _power_for_half,
    "expm1_of_negative": functools.partial(_expm1_with, EXPM1_FOR_HALF),
}
"""The same for formulas that are `precision.is_for_half`."""
