"""The operators as their documentation prints them, in long double: exact for our purposes.

Inputs are long double arrays that hold FLOAT32 or FLOAT16 values, attributes are FLOAT. `test_reference.py` holds these
against mpmath.
"""

import math
from typing import Any

import numpy as np

from app.memory.arrays import Array


def wide(value: Any) -> Any:
    """FLOAT attributes and tensors, in long double."""
    return np.asarray(value, np.longdouble) if isinstance(value, np.ndarray) else np.longdouble(np.float32(value))


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    line = wide(alpha) * x + wide(beta)
    cut: Array = np.clip(line, 0, 1)  # keeps NaN
    return cut


def celu(x: Array, alpha: float) -> Array:
    # Alpha * (exp(x / Alpha) - 1) has the sign of x for either sign of Alpha, so that only one of the terms is not 0.
    a = wide(alpha)
    return np.where(x > 0, x, a * np.expm1(x / a))


def parameterized_relu(x: Array, slope: Array) -> Array:
    return np.where(x >= 0, x, slope * x)


def constant_pow(x: Array, exponent: float) -> Array:
    # In double, which is fast, holds `x` exactly, and every power that FLOAT32 does not round to 0 or infinity.
    return _power(x.astype(np.float64), exponent)


def scaled_constant_pow(x: Array, exponent: float, scale: float, bias: float) -> Array:
    return _power(wide(scale) * x + wide(bias), exponent)


def _power(base: Array, exponent: float) -> Array:
    # The exponent as an array, since NumPy takes other functions, such as the square root, for some scalars.
    power: Array = np.power(base, np.full_like(base, np.float32(exponent)))
    return power


def _erfc(x: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(np.asarray(x, np.float64)), np.float64)


def erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(np.asarray(x, np.float64)), np.float64)


def normal_cdf(x: Array) -> Array:
    """In double: sqrt(0.5) is rounded, so the tail is corrected by its derivative."""
    z = -np.asarray(x, np.longdouble) * np.sqrt(np.longdouble(0.5))
    near = z.astype(np.float64)
    slope = -2 / np.sqrt(np.longdouble(np.pi)) * np.exp(-(np.longdouble(near) ** 2))
    return np.asarray((_erfc(near) + np.nan_to_num(slope * (z - near))) / 2)


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def softplus(z: Array) -> Array:
    return np.asarray(np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))


def round_half_away(x: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(x) + np.longdouble(0.5)), x))


def modulus_floor(a: Array, b: Array) -> Array:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, np.copysign(rest, np.where(rest == 0, b, rest)))
