"""Operations that NumPy has no function for, or only one that computes an element at a time, made of others.

The coefficients were fitted with weighted least squares in 100 bits, for the least relative error over the interval;
they are meant for float32, so functions of float64, whose results are stored as FLOAT32, go through it where they do
not magnify its rounding.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from app.formula.values import (
    FLOAT32,
    Constant,
    Operation,
    Parameter,
    Value,
    absolute,
    cast,
    exp,
    expm1_of_negative,
    is_float,
    maximum,
    minimum,
    not_equal,
    tanh,
    where,
    widen,
)

ATANH = (1.0, 0.3333315849304199, 0.20012454688549042, 0.13980305194854736, 0.14089149236679077)
"""atanh(z) / z by powers of z^2, for z from 0 to 1/3: 4e-9."""

ERF = (
    (1.1283791661262512, 0.19056498527526855, 0.05276608839631081, 0.0037714701134711504, 0.0002848465810529888,
     2.0466170099098235e-06),
    (1.0, 0.5022165775299072, 0.11417137086391449, 0.014981024898588657, 0.0011636459734290838, 3.8054015021771193e-05),
)  # fmt: skip
"""erf(x) / x as a quotient of polynomials in x^2, for x^2 from 0 to 15.4: 2e-8."""

ERF_IS_1 = 3.9243
"""From here on erf is 1 in float32."""

NORMAL_TAIL = (
    (0.5000000029525596, 0.4382946249688249, 0.18323480769252756, 0.04063308890323088, 0.004116280884259005),
    (1.0, 1.674474230914827, 1.2025019635634433, 0.4694697347547209, 0.1018584963771123, 0.010317866313240578),
)
"""normal_cdf(-y) * exp(y^2 / 2) as a quotient of polynomials in y, for y from 0 to 14.5: 6e-9."""

NORMAL_TAIL_IS_0 = 30.0
"""Here exp(SHIFT - y^2 / 2) is 0 in float32; normal_cdf(-y) * y is so from 14.5 on."""

SHIFT = 24

Ask: TypeAlias = Callable[..., Any]
"""`Questions.ask` of `structures.py`: what a function says of numbers that requests give."""

Expansion: TypeAlias = Callable[..., Value]
"""Takes what to `ask` numbers with, then the operation's arguments."""


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """The sum of coefficients[i] * x^i."""
    *lower, last, highest = coefficients
    result = x * highest + last
    for coefficient in reversed(lower):
        result = result * x + coefficient
    return result


def _multiply_add(a: Value, b: Value, c: Value) -> Value:
    """A product of two float32 is exact in float64, so the sum's two roundings there and back count as one."""
    return cast(widen(a) * widen(b) + widen(c), FLOAT32) if a.type == FLOAT32 else a * b + c


def _exp_of_difference(a: Value, b: Value) -> Value:
    """In float64, in which the difference is exact enough."""
    return cast(exp(widen(a) - widen(b)), a.type)


def _exp_of_product(a: Value, b: Value) -> Value:
    return cast(exp(widen(a) * widen(b)), a.type)


def _expm1_of_negative(x: Value) -> Value:
    """NumPy's expm1 computes one element at a time; these take a third of its time.

    In float32 with t = tanh(x / 2) it is 2t / (1 - t), where nothing cancels: 1 - t is between 1 and 2; 3 ULP at most.
    In float64, where digits abound, exp(x) - 1, but near 0 the beginning of its series; 1e-12 relative.
    """
    if x.type == FLOAT32:
        t = tanh(x * 0.5)
        return (t + t) / (1 - t)
    return where(x >= -1e-4, x + x * x * (0.5 + x * (1 / 6)), exp(x) - 1)


def scaled_expm1(ask: Ask, x: Value, scale: Value) -> Value:
    """In float64 unless the division is exact: its rounding adds to the others, and it may be subnormal."""
    if is_one(ask, scale):
        return expm1_of_negative(x)
    return cast(widen(scale) * expm1_of_negative(widen(x) / widen(scale)), x.type)


def _log1p_of_fraction(x: Value) -> Value:
    """log(1 + x) is 2 atanh(x / (2 + x))."""
    z = x / (x + 2)
    return (z + z) * _polynomial(ATANH, z * z)


def erf_by_quotient(x: Value) -> Value:
    """In float64, since near 1, where float32 is coarsest, the roundings of both polynomials would add up."""
    v = maximum(minimum(widen(x), ERF_IS_1), -ERF_IS_1)
    numerator, denominator = (_polynomial(each, v * v) for each in ERF)
    return cast(v * (numerator / denominator), x.type)


def _normal_cdf(x: Value) -> Value:
    """Of a negative x, exp(-x^2 / 2) times a quotient of polynomials; of others, 1 minus that of -x.

    exp is that of float32, for in float64 it takes long: what the rounding of the exponent would cost is made up for,
    and it is exp(SHIFT) times too large, lest it be subnormal.
    """
    if x.type == FLOAT32:
        return cast(_normal_cdf(widen(x)), FLOAT32)
    y = minimum(absolute(cast(x, FLOAT32)), NORMAL_TAIL_IS_0)
    exponent = widen(y) * widen(y) * -0.5 + SHIFT
    rounded = cast(exponent, FLOAT32)
    shifted = exp(rounded)
    shifted = shifted + shifted * cast(exponent - widen(rounded), FLOAT32)
    numerator, denominator = (_polynomial(each, widen(y)) for each in NORMAL_TAIL)
    tail = widen(shifted) * (numerator / denominator) * math.exp(-SHIFT)
    return where(x < 0, tail, 1 - tail)


def _quotient(a: Value, b: Value) -> Value:
    """NumPy's integer division rounds down, for which it takes three times as long as for unsigned integers."""
    if a.type.startswith("u"):
        return Operation(a.type, "floor_divide", (a, b))
    unsigned = f"u{a.type}"
    # The magnitude of the least integer is right as unsigned, and its quotient by 1 is again that integer.
    magnitude = Operation(unsigned, "floor_divide", tuple(cast(absolute(each), unsigned) for each in (a, b)))
    sign = (a ^ b) >> (int(a.type.removeprefix("int")) - 1)  # 0 or -1, of which exclusive or and subtraction negate
    return (cast(magnitude, a.type) ^ sign) - sign


def _remainder(a: Value, b: Value) -> Value:
    """From C's remainder, which NumPy computes in a third of the time: plus b where the signs differ."""
    rest = Operation(a.type, "fmod", (a, b))
    if a.type.startswith("u"):
        return rest
    if is_float(a.type):
        moved = where(not_equal(rest, 0) & ((rest < 0) ^ (b < 0)), rest + b, rest)
        return where(not_equal(rest, 0), moved, Operation(a.type, "copysign", (rest, b)))
    return where(not_equal(rest, 0) & ((rest ^ b) < 0), rest + b, rest)


def is_one(ask: Ask, value: Value) -> bool:
    """Whether `value` is known to be 1 for all elements."""
    if isinstance(value, Constant):
        return value.value == 1
    return isinstance(value, Parameter) and bool(ask(lambda number: number == 1, value))


def plain(function: Callable[..., Value]) -> Expansion:
    """`function` of an operation's arguments, as an expansion that asks nothing."""
    return lambda ask, *arguments: function(*arguments)


EXPANSIONS: dict[str, Expansion] = {
    "multiply_add": plain(_multiply_add),
    "exp_of_difference": plain(_exp_of_difference),
    "exp_of_product": plain(_exp_of_product),
    "expm1_of_negative": plain(_expm1_of_negative),
    "scaled_expm1": scaled_expm1,
    "log1p_of_fraction": plain(_log1p_of_fraction),
    "erf": plain(erf_by_quotient),
    "normal_cdf": plain(_normal_cdf),
    "quotient": plain(_quotient),
    "remainder": plain(_remainder),
}
"""By the operation's name: it, as a function of `ask` and its arguments, made of operations that are no expansions, or
other."""
