"""How far results are from exact ones, in units in the last place."""

import numpy as np
from numpy.typing import DTypeLike

from app.memory.arrays import Array

NOT_A_NUMBER_APART = 1 << 40
"""The distance between a NaN and a number."""


def order(values: Array) -> Array:
    """Floats as int64 in which neighbours differ by 1 and both zeros are 0; infinities follow the largest number."""
    width = values.dtype.itemsize
    bits = values.view(f"i{width}").astype(np.int64)
    return np.where(bits < 0, -(1 << (8 * width - 1)) - bits, bits)


def from_order(places: Array, dtype: DTypeLike) -> Array:
    """The inverse of `order`."""
    made = np.dtype(dtype)
    bits = np.where(places < 0, -(1 << (8 * made.itemsize - 1)) - places, places)
    return bits.astype(f"i{made.itemsize}").view(made)


def distance(actual: Array, expected: Array) -> Array:
    """ULPs between floats of one type; 0 between NaNs, whatever their payload."""
    assert actual.dtype == expected.dtype
    either, both = np.isnan(actual) | np.isnan(expected), np.isnan(actual) & np.isnan(expected)
    apart = np.abs(order(actual) - order(expected))
    return np.where(both, 0, np.where(either, NOT_A_NUMBER_APART, apart))


def rounded(exact: Array, dtype: DTypeLike) -> Array:
    """Exact results rounded once, to nearest even.

    To float16 by way of float64, since NumPy takes long double there by way of float32, which rounds twice.
    """
    with np.errstate(all="ignore"):
        return (exact.astype(np.float64) if np.dtype(dtype).itemsize == 2 else exact).astype(dtype)


def neighbours(values: Array, count: int) -> Array:
    """Each finite value with `count` floats of its type on either side."""
    finite = values[np.isfinite(values)]
    most = int(order(np.array(np.inf, values.dtype)))
    places = order(finite)[:, np.newaxis] + np.arange(-count, count + 1)
    return from_order(np.clip(places, -most, most).ravel(), values.dtype)


CANCELLATION = 1.2e-7
"""Of the largest term, where a sum cancels: a rounding to float32."""


def errors(actual: Array, exact: Array, largest: Array | None = None) -> Array:
    """ULPs from the exact results rounded once; 0 within the rounding of the `largest` terms, where these are given."""
    return _errors(actual, exact, rounded(exact, actual.dtype), largest)


def _errors(actual: Array, exact: Array, expected: Array, largest: Array | None) -> Array:
    apart = distance(actual, expected)
    if largest is None:
        return apart
    with np.errstate(all="ignore"):
        off = np.abs(actual.astype(np.longdouble) - exact)
        if actual.dtype == np.float16:  # half a unit is the rounding of the result
            off = off - np.spacing(np.abs(actual)).astype(np.longdouble) / 2
        return np.where(off <= CANCELLATION * largest, 0, apart)


def check(
    actual: Array, exact: Array, ulp: int, *inputs: Array, largest: Array | None = None, on: str = "a device"
) -> None:
    """Every result is within `ulp` of the exact one rounded once; else tells the worst, and what it was computed on."""
    expected = rounded(exact, actual.dtype)
    apart = _errors(actual, exact, expected, largest)
    worst = int(apart.argmax())
    told = ", ".join(f"{float(array[worst])!r} (0x{array[worst].view(f'u{array.itemsize}'):x})" for array in inputs)
    assert apart[worst] <= ulp, (
        f"on {on}, f({told}) is {actual[worst]!r}, expected {expected[worst]!r}: {apart[worst]} ULP, "
        f"with {np.count_nonzero(apart > ulp)} of {apart.size} beyond {ulp}"
    )
