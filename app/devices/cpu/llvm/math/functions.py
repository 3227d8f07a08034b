"""Functions of floats for loops compiled with LLVM, made of operations that the processor has.

They are formulas again, over the operations of `app/formula/values.py` and those of `primitives.py`. The
coefficients are Chebyshev fits over the interval, computed in 200 bits; no function has a branch, so that a loop
computes as many elements at a time as the processor's vectors hold.
"""

import math
from collections.abc import Sequence

from app.devices.cpu.llvm.math import angles, arcs, powers, remainders
from app.devices.cpu.llvm.math.arcs import in_float64
from app.devices.cpu.llvm.math.primitives import (
    EXP,
    FORMATS,
    LOG2_E,
    by_steps,
    chosen,
    fraction_of_normal,
    fused,
    nearest,
    polynomial,
    reduced,
    scaled,
    two_to_the,
)
from app.formula.expansions import EXPANSIONS as SHARED
from app.formula.expansions import NORMAL_TAIL as TAIL
from app.formula.expansions import NORMAL_TAIL_IS_0, Ask, Expansion, erf_by_quotient, plain
from app.formula.functions import FLOAT_MAX
from app.formula.precision import MODERATE
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
    exp,
    expm1_of_negative,
    log1p,
    maximum,
    minimum,
    sqrt,
    where,
    widen,
)

EXPM1 = (0.5000000013457727, 0.16666666681614256, 0.04166646500604005, 0.008333310934448869, 0.0013933641031986701,
         0.00019890980869750327)  # fmt: skip
"""What `Format.expm1` is, of float64 with the digits of float32: 3e-9."""

EXPM1_FOR_HALF = (0.49999998696186787, 0.16741906643353555, 0.041792433436336984)
"""The same of float32 with the digits of float16: 9e-5."""

ATANH = (0.3333338924561032, 0.19988626503748846, 0.1494007409282445)
"""(atanh(s) / s - 1) / s^2 by powers of s^2, up to 0.172: 8e-10."""

SINH = (0.16666666646842135, 0.00833333967591706, 0.00019838101968683888, 2.8062802582276946e-06)
"""(sinh(x) / x - 1) / x^2 by powers of x^2, up to 1: 2e-10."""

EXPM1_IS_MINUS_1 = -26.0
"""From this on, in float32 and with its digits."""

EXP_IS_0 = -128.0
"""exp of this is less than half of the least float32."""

SHIFTED, EXP_OF_SQUARE_IS_0 = 35, -130.0
"""exp(-y^2 / 2) is 2^SHIFTED times too large, lest it be subnormal; of this exponent it is 0 all the same."""

NORMAL_TAIL = ([each * 2.0**-SHIFTED for each in TAIL[0]], TAIL[1])


def _bounded(x: Value) -> Value:
    """What exp need not go beyond."""
    most = FORMATS[x.type].exponents * math.log(2)
    return maximum(minimum(x, most), -most)


def _exp(x: Value) -> Value:
    """2^n exp(f) for x = n ln 2 + f with a whole n."""
    if x.type == FLOAT32:
        return _exp_of_sum(x, None)
    n, f = reduced(_bounded(x))
    return scaled(1 + fused(f * f, polynomial(FORMATS[x.type].expm1, f), f), n)


def _exp_of_sum(x: Value, more: Value | None) -> Value:
    """exp(x + more) of float32 and something tiny, if there is `more`."""
    n, f = reduced(_bounded(x))
    return _scaled_exp(f + more if more else f, n)


def _scaled_exp(f: Value, n: Value) -> Value:
    """2^n exp(f) of float32. What is added to 1 is the product of two numbers, of which the second one is nearly 1, so
    that its error is small."""
    return scaled(fused(f, fused(f, by_steps(EXP, f), 1), 1), n)


def _expm1_of_negative(x: Value) -> Value:
    """Of float64 it has no more digits than float32."""
    n, f = reduced(maximum(x, EXPM1_IS_MINUS_1))
    return _scaled_back(n, f, EXPM1 if x.type == FLOAT64 else FORMATS[FLOAT32].expm1)


def _expm1_for_half(x: Value) -> Value:
    """The same with the digits of float16, for which one part of ln 2 will do."""
    bounded = maximum(x, EXPM1_IS_MINUS_1)
    n = nearest(bounded, LOG2_E)
    return _scaled_back(n, fused(n, -1 / LOG2_E, bounded), EXPM1_FOR_HALF)


def _scaled_back(n: Value, f: Value, coefficients: Sequence[float]) -> Value:
    """expm1(n ln 2 + f): 2^n (exp(f) - 1) + (2^n - 1), the last term being exact."""
    scale = two_to_the(n)
    return fused(fused(f * f, polynomial(coefficients, f), f), scale, scale - 1)


def _is_ordinary_scale(number: Number) -> bool:
    return number != 1 and 1 / MODERATE <= number <= MODERATE


def _scaled_expm1(ask: Ask, x: Value, scale: Value) -> Value:
    """Of x / scale with what the division has lost, which for x / scale = n ln 2 + f with n = 0 is x + x f / 2 + ..."""
    if not (isinstance(scale, Parameter) and ask(_is_ordinary_scale, scale)):
        return SHARED["scaled_expm1"](ask, x, scale)
    inverse = 1 / scale
    bounded = where(x < scale * EXPM1_IS_MINUS_1, scale * EXPM1_IS_MINUS_1, x)
    quotient = bounded * inverse
    n, f = reduced(quotient)
    f = f + fused(-quotient, scale, bounded) * inverse
    rest = polynomial(FORMATS[FLOAT32].expm1, f)
    two_to_n = two_to_the(n)
    far = scale * fused(fused(f * f, rest, f), two_to_n, two_to_n - 1)
    return where(equal(n, 0), fused(bounded * f, rest, bounded), far)


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
    return _corrected(product, fused(a, b, -product))


def _corrected(x: Value, rest: Value) -> Value:
    """exp(x + rest) for a tiny `rest`, which is NaN where x is infinite."""
    return where(x < EXP_IS_0, 0, _exp_of_sum(x, rest))


def _tanh(x: Value) -> Value:
    """Of float64 t / (2 + t) for t = expm1(-2 |x|), but for the sign."""
    if x.type == FLOAT32:
        return chosen("tanh", x)
    t = expm1_of_negative(absolute(x) * -2)
    return copysign(t / (t + 2), x)


def _log(x: Value) -> Value:
    return powers.log(x) if x.type == FLOAT64 else chosen("log", x)


def _erf(x: Value) -> Value:
    return erf_by_quotient(x) if x.type == FLOAT64 else chosen("erf", x)


# In float64, whose digits make up for all that cancels.


def _normal_cdf(x: Value) -> Value:
    """As the shared one, but that all of exp is in float32: its exponent comes with what the square has lost."""
    if x.type == FLOAT32:
        return cast(_normal_cdf(widen(x)), FLOAT32)
    y = minimum(absolute(cast(x, FLOAT32)), NORMAL_TAIL_IS_0)
    square = y * y
    n, f = reduced(maximum(square * -0.5, EXP_OF_SQUARE_IS_0))
    shifted = _scaled_exp(fused(fused(y, y, -square), -0.5, f), n + SHIFTED)
    numerator, denominator = (by_steps(each, widen(y)) for each in NORMAL_TAIL)
    tail = widen(shifted) * (numerator / denominator)
    return where(x < 0, tail, 1 - tail)


def gated_by_normal(x: Value) -> Value:
    """x times that."""
    return cast(widen(maximum(x, -FLOAT_MAX)) * _normal_cdf(widen(x)), FLOAT32)


def _sinh(x: Value) -> Value:
    size = absolute(x)
    square, e = x * x, exp(size)
    near = fused(size * square, polynomial(SINH, square), size)
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
    """Half of the logarithm of (1 + x) / (1 - x), which is 2^k (1 + s) / (1 - s)."""
    size = absolute(x)
    k, _ = fraction_of_normal((1 + size) / (1 - size))
    wide, scale = widen(size), widen(two_to_the(k))
    s = fused(wide, 1 + scale, 1 - scale) / fused(wide, 1 - scale, 1 + scale)
    result = fused(widen(k), math.log(2) / 2, fused(s * (s * s), polynomial(ATANH, s * s), s))
    beyond = where(equal(size, 1), Constant(x.type, math.inf), math.nan)
    return copysign(where(size < 1, cast(result, x.type), beyond), x)


EXPANSIONS: dict[str, Expansion] = {
    **angles.EXPANSIONS,
    **arcs.EXPANSIONS,
    **remainders.EXPANSIONS,
    "exp": plain(_exp),
    "expm1_of_negative": plain(_expm1_of_negative),
    "scaled_expm1": _scaled_expm1,
    "exp_of_difference": plain(_exp_of_difference),
    "exp_of_product": plain(_exp_of_product),
    "tanh": plain(_tanh),
    "log": plain(_log),
    "log1p": plain(powers.log1p),
    "power": powers.power,
    "sinh": in_float64(_sinh),
    "cosh": in_float64(_cosh),
    "arcsinh": in_float64(_arcsinh),
    "arccosh": in_float64(_arccosh),
    "arctanh": plain(_arctanh),
    "erf": plain(_erf),
    "normal_cdf": plain(_normal_cdf),
    "remainder": SHARED["remainder"],
    "log1p_of_fraction": SHARED["log1p_of_fraction"],
}
"""By the operation's name: it, as a function of `ask` and its arguments, made of others. Those of NumPy serve too."""

FOR_HALF: dict[str, Expansion] = {
    **EXPANSIONS,
    "power": powers.power_for_half,
    "expm1_of_negative": plain(_expm1_for_half),
}
"""The same for formulas that are `precision.is_for_half`."""

STORED_AS_HALF: dict[str, Expansion] = {**EXPANSIONS, **arcs.STORED_AS_HALF}
"""The same for other formulas whose results are stored as FLOAT16."""

ROWS_FOR_HALF: dict[str, Expansion] = {**EXPANSIONS, "exp_of_difference": plain(lambda a, b: exp(a - b))}
"""The same for what reduces and is stored as FLOAT16: what the difference loses is some millionths of the result."""
