"""The operators as their documentation prints them, in long double: exact for our purposes.

Inputs are long double arrays that hold FLOAT32 or FLOAT16 values, attributes are FLOAT. `test_reference.py` holds these
against mpmath.
"""

from typing import Any

import numpy as np

from app.execution.numpy_lowering import Array


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
