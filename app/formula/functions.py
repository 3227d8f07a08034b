"""Functions shared by several formulas, made of the elementary operations."""

import math

from app.formula.values import Constant, Parameter, Value, equal, power, sqrt, where


def constant_power(base: Value, exponent: Parameter) -> Value:
    """IEEE 754's pow(base, exponent) with the exponent known: the cheap exponents need no logarithm.

    Within 2 ULP of the exact power, also where an intermediate result would be subnormal or overflow: pow(x, -2) is
    the square of the reciprocal because the reciprocal of the square is 0 long before the result is.
    """
    match exponent.value:
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
