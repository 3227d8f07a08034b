"""The reference itself against mpmath, at random and special points."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from app.memory.arrays import Array
from tests.operators.descriptors import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU
from tests.operators.numerics.cases import (
    PARAMETERIZED_RELUS,
    UNARY,
    A,
    Case,
    E,
    float32_inputs,
    ordinary_float32,
    random_float32,
    special_float32,
)
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import distance, from_order, neighbours, order, rounded

Real = Any  # an mpmath number; it has no types
mp = mpmath.mp.clone()
mp.prec = 200


def hard_sigmoid(x: Real, Alpha: Real, Beta: Real) -> Real:  # noqa: N803
    line = Alpha * x + Beta
    return line if mp.isnan(line) else max(mp.mpf(0), min(line, mp.mpf(1)))


def celu(x: Real, Alpha: Real) -> Real:  # noqa: N803
    below = Alpha * mp.expm1(x / Alpha)
    return x if mp.isnan(x) else max(mp.mpf(0), x) + min(mp.mpf(0), below)


def parameterized_relu(x: Real, slope: Real) -> Real:
    return x if x >= 0 else slope * x


def constant_pow(x: Real, Exponent: Real, Scale: Real = 1, Bias: Real = 0) -> Real:  # noqa: N803
    """Of finite bases other than 0: the others are in `test_exact_results.py`."""
    base = x * Scale + Bias
    if base < 0 and Exponent != mp.floor(Exponent):
        return mp.nan
    return mp.power(base, Exponent)


FORMULAS: dict[str, Callable[..., Real]] = {
    HARD_SIGMOID: hard_sigmoid,
    CELU: celu,
    PARAMETERIZED_RELU: parameterized_relu,
    CONSTANT_POW: constant_pow,
    E + "ERF": lambda x, Scale=1, Bias=0: mp.erf(x * Scale + Bias),  # noqa: N803
    A + "GELU": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    A + "SIGMOID": lambda x: 1 / (1 + mp.exp(-x)),
    A + "SOFTPLUS": lambda x, Steepness: mp.log1p(mp.exp(Steepness * x)) / Steepness,  # noqa: N803
    E + "ASINH": lambda x, Scale=1, Bias=0: mp.asinh(x * Scale + Bias),  # noqa: N803
    E + "SINH": lambda x, Scale=1, Bias=0: mp.sinh(x * Scale + Bias),  # noqa: N803
}
"""Of the four operators that came first, and of those whose reference is more than a function of NumPy's in long
double, with two of these."""


def exact(case: Case, *inputs: Array) -> Array:
    """Float32 results from 200 bits, one element after the other."""
    attributes = {name: value for name, value in case.attributes.items() if name != "ScaleBias"}
    attributes |= case.attributes.get("ScaleBias", {})
    reals = {name: mp.mpf(float(np.float32(value))) for name, value in attributes.items()}
    results = [FORMULAS[case.kind](*map(mp.mpf, map(float, point)), **reals) for point in zip(*inputs, strict=True)]
    # Through double where it is not subnormal: that rounds to float32 the same, but for ties at 2^-29 of an ULP.
    return np.array([_as_double(result) for result in results]).astype(np.float32)


def _as_double(result: Real) -> float:
    if mp.isfinite(result) and abs(result) > mp.mpf(2) ** 1000:
        return math.copysign(math.inf, result)
    return float(result)


def defined(case: Case, x: Array) -> Array:
    """Of `x`, where mpmath knows the function."""
    if case.kind not in (HARD_SIGMOID, CELU, PARAMETERIZED_RELU, CONSTANT_POW):
        moderate: Array = x[np.abs(x) < 13]
        return moderate
    if case.kind != CONSTANT_POW:
        return x
    scale_bias = case.attributes.get("ScaleBias", {"Scale": 1, "Bias": 0})
    with np.errstate(all="ignore"):
        base = x.astype(np.float64) * np.float32(scale_bias["Scale"]) + np.float32(scale_bias["Bias"])
    # Powers far beyond double take mpmath a long time, and are 0 or infinity.
    sane = np.abs(np.log2(np.abs(base), where=base != 0, out=np.ones_like(base)) * case.attributes["Exponent"]) < 2000
    kept: Array = x[np.isfinite(x) & (base != 0) & sane]
    return kept


@pytest.mark.parametrize("case", [case for case in UNARY if case.kind in FORMULAS], ids=str)
def test_unary_reference_is_exact(case: Case) -> None:
    rng = np.random.default_rng(6)
    with np.errstate(all="ignore"):
        x = np.concatenate([random_float32(20), ordinary_float32(20), rng.choice(float32_inputs(case), 40)])
        x = defined(case, x)
        reference = rounded(case.exact(wide(x)), np.float32)
        apart = distance(reference, exact(case, x))
    assert apart.max(initial=0) <= 1, x[apart.argmax()]
    assert np.count_nonzero(apart) <= 1  # a tie, at most


def test_slope_reference_is_exact() -> None:
    rng = np.random.default_rng(7)
    pool = np.concatenate([special_float32(), random_float32(100), ordinary_float32(100)])
    x, slope = rng.choice(pool, 500), rng.choice(pool, 500)
    (case,) = PARAMETERIZED_RELUS
    with np.errstate(all="ignore"):
        assert distance(rounded(case.exact(wide(x), wide(slope)), np.float32), exact(case, x, slope)).max() == 0


# The measure


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_neighbours_are_one_apart(dtype: type[np.floating[Any]]) -> None:
    values = np.array([0, 1, -1, 0.1, -3, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max], dtype)
    with np.errstate(over="ignore"):
        for direction in (np.inf, -np.inf):
            next_values = np.nextafter(values, dtype(direction))
            assert np.array_equal(distance(values, next_values), np.ones(values.size))
    assert distance(np.array([-0.0], dtype), np.array([0.0], dtype)) == 0
    assert distance(np.array([1], dtype), np.array([2], dtype)) == 1 << np.finfo(dtype).nmant


def test_nan_is_far_from_numbers_and_near_nan() -> None:
    nan, other, one = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFF800001, 0x3F800000))
    assert distance(nan, other) == 0
    assert distance(nan, one) == distance(one, nan) > 1 << 32


def test_order_has_an_inverse() -> None:
    values = random_float32(1000)
    values = values[~np.isnan(values) & (values != 0)]
    assert np.array_equal(from_order(order(values), np.float32), values)


def test_neighbours_lie_around() -> None:
    around = neighbours(np.array([1, np.inf, np.nan], np.float32), 2)
    assert list(order(around) - order(np.array([1], np.float32))) == [-2, -1, 0, 1, 2]
    assert np.isinf(neighbours(np.array([3.4028235e38], np.float32), 2)[-1])
