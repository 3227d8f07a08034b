"""Functions shared by several formulas, made of the elementary operations of `values.py`."""

import math

from app.formula.expansions import Ask
from app.formula.values import (
    INT64,
    Constant,
    Parameter,
    Value,
    absolute,
    cast,
    copysign,
    equal,
    exp,
    exp_of_product,
    log1p_of_fraction,
    maximum,
    power,
    sqrt,
    trunc,
    where,
)

FLOAT_MAX = 3.4028234663852886e38
NORMAL_EXP = 87.0
"""exp(-NORMAL_EXP) is a normal float32, and so is all above."""
BEFORE_HALF = 0.49999997
"""The float32 before 0.5."""


CHEAP_EXPONENTS = (0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 2.5, 0.5)


def constant_power(ask: Ask, base: Value, exponent: Parameter) -> Value:
    """IEEE 754's pow(base, exponent) with the exponent known: the cheap exponents need no logarithm.

    Within 2 ULP of the exact power, also where an intermediate result would be subnormal or overflow: pow(x, -2) is
    the square of the reciprocal because the reciprocal of the square is 0 long before the result is.
    """
    match ask(lambda number: number if number in CHEAP_EXPONENTS else None, exponent):
        case 0:
            return Constant(base.type, 1)  # also of NaN
        case 1:
            return base
        case 2:
            return base * base
        case 3:
            return base * base * base
        case -1:
            return 1 / base
        case -2:
            reciprocal = 1 / base
            return reciprocal * reciprocal
        # pow differs from roots in two places: pow(-0, 0.5) is +0 and pow(-inf, 0.5) is +inf.
        case 2.5:
            return where(equal(base, -math.inf), math.inf, base * base * (sqrt(base) + 0))
        case 0.5:
            return where(equal(base, -math.inf), math.inf, sqrt(base) + 0)
        case _:
            return power(base, exponent)


def sigmoid(decay: Value, negative: Value) -> Value:
    """1 / (1 + exp(-z)), from `decay`, exp(-|z|), and whether z is negative: neither side overflows or cancels."""
    return where(negative, decay, 1) / (1 + decay)


def softplus(z: Value, decay: Value) -> Value:
    """ln(1 + exp(z)), from z and `decay`, exp(-|z|)."""
    return maximum(z, 0) + log1p_of_fraction(decay)


def round_half_away(x: Value) -> Value:
    """The nearest whole number, of two the one further from 0.

    What is added is less than a half, lest the number before a half be rounded up.
    """
    return trunc(x + copysign(BEFORE_HALF, x))


def decay_of(x: Value) -> Value:
    """exp(-|x|)."""
    return exp(-absolute(x))


def decay_of_product(a: Value, b: Value) -> Value:
    """exp(-|a * b|)."""
    return exp_of_product(absolute(a), -absolute(b))


def integer_power(base: Value, exponent: Value) -> Value:
    """base^exponent of integers, truncated toward zero and wrapped around to the type of `base`.

    A negative exponent makes the reciprocal of a power: 1 of 1, 1 or -1 of -1, and 0 of others (so of 0).
    """
    b, e = cast(base, INT64), cast(exponent, INT64)  # whose lowest bits are those of the product in any type
    is_whole = (e >= 0) | equal(absolute(b), 1)
    return cast(power(where(is_whole, b, 0), absolute(e)), base.type)
