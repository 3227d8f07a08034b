"""C++ types of NumPy's, numbers in them, and conversions between them."""

import math

import numpy as np

from app.formula.values import FLOAT32
from app.operators.c_numbers import INTEGERS

C_TYPES = {
    "bool": "bool",
    "float16": "half_bits",
    "float32": "float",
    "float64": "double",
    **INTEGERS,
}
"""By NumPy name. float16 is only ever stored: elements are converted on loading and on storing."""


def literal(value: np.generic) -> str:
    """`value` to the last bit."""
    number = value.item()
    match _name(value):
        case "float32":
            exact = math.isfinite(number)
            return f"{number.hex()}f" if exact else f"float_of_bits({hex(int(value.view(np.uint32)))}u)"
        case "float64":
            exact = math.isfinite(number)
            return number.hex() if exact else f"double_of_bits({hex(int(value.view(np.uint64)))}ull)"
        case "bool":
            return "true" if number else "false"
        case name:
            return f"(({C_TYPES[name]}){hex(number & (1 << 64) - 1)}ull)"


def _name(value: np.generic) -> str:
    name: str = value.dtype.name
    return name


def convert(value: str, given: str, wanted: str) -> str:
    """`value` of the NumPy type `given` as `wanted`, rounded once."""
    if given == wanted:
        return value
    if given == "float16":
        return convert(f"float_of_half({value})", "float32", wanted)
    if wanted == "float16":
        return f"half_of_double({value})" if given == "float64" else f"half_of_float({convert(value, given, FLOAT32)})"
    return f"({C_TYPES[wanted]}){value}"
