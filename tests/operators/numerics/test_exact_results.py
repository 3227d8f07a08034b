"""Results that are known exactly: infinities, zeros and NaN, subnormals, powers of negative bases, integers."""

import math
from typing import Any

import numpy as np
import pytest

from app.devices.device import Device
from app.memory.arrays import Array
from tests.operators.descriptors import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU
from tests.operators.numerics.evaluation import evaluate
from tests.operators.numerics.ulp import check, distance

INF, NAN = math.inf, math.nan
Points = list[tuple[float, float]]
"""Inputs and results."""

floats = pytest.mark.parametrize("dtype", ["float32", "float16"])


def check_exact(actual: Array, expected: Any) -> None:
    """Equal to the last bit, except for what a NaN carries."""
    number = np.isnan(actual)
    assert np.array_equal(number, np.isnan(expected))
    expected = np.asarray(expected, actual.dtype)
    assert actual[~number].tobytes() == expected[~number].tobytes(), (actual, expected)


# Powers, by IEEE 754's pow and DirectML's rule for negative bases


@floats
@pytest.mark.parametrize(
    ("exponent", "powers"),
    [
        (0, [(0.0, 1), (-0.0, 1), (3, 1), (-3, 1), (INF, 1), (-INF, 1), (NAN, 1)]),
        (1, [(0.0, 0.0), (-0.0, -0.0), (2.5, 2.5), (-2.5, -2.5), (INF, INF), (-INF, -INF), (NAN, NAN)]),
        (-1, [(0.0, INF), (-0.0, -INF), (2, 0.5), (-2, -0.5), (INF, 0.0), (-INF, -0.0), (NAN, NAN)]),
        (2, [(0.0, 0.0), (-0.0, 0.0), (3, 9), (-3, 9), (INF, INF), (-INF, INF), (NAN, NAN)]),
        (-2, [(0.0, INF), (-0.0, INF), (2, 0.25), (-2, 0.25), (INF, 0.0), (-INF, 0.0), (NAN, NAN)]),
        (3, [(0.0, 0.0), (-0.0, -0.0), (2, 8), (-2, -8), (INF, INF), (-INF, -INF), (NAN, NAN)]),
        (-3, [(0.0, INF), (-0.0, -INF), (2, 0.125), (-2, -0.125), (INF, 0.0), (-INF, -0.0), (NAN, NAN)]),
        (4, [(0.0, 0.0), (-0.0, 0.0), (-2, 16), (INF, INF), (-INF, INF), (NAN, NAN)]),
        (5, [(0.0, 0.0), (-0.0, -0.0), (-2, -32), (INF, INF), (-INF, -INF), (NAN, NAN)]),
        (0.5, [(0.0, 0.0), (-0.0, 0.0), (4, 2), (-4, NAN), (INF, INF), (-INF, INF), (NAN, NAN)]),
        (-0.5, [(0.0, INF), (-0.0, INF), (4, 0.5), (-4, NAN), (INF, 0.0), (-INF, 0.0), (NAN, NAN)]),
        (2.5, [(0.0, 0.0), (-0.0, 0.0), (4, 32), (-4, NAN), (INF, INF), (-INF, INF), (NAN, NAN)]),
        (-2.5, [(0.0, INF), (-0.0, INF), (4, 0.03125), (-4, NAN), (INF, 0.0), (-INF, 0.0), (NAN, NAN)]),
        (1 / 3, [(0.0, 0.0), (-0.0, 0.0), (1, 1), (-8, NAN), (INF, INF), (-INF, INF), (NAN, NAN)]),
        (1e10, [(0.5, 0.0), (-0.5, 0.0), (1, 1), (-1, 1), (2, INF), (-2, INF), (-0.0, 0.0), (-INF, INF), (NAN, NAN)]),
        (-3e38, [(0.5, INF), (-0.5, INF), (1, 1), (-1, 1), (2, 0.0), (-2, 0.0), (-0.0, INF), (-INF, 0.0), (NAN, NAN)]),
        # the greatest odd number in float32, and what is left of a fraction
        (16777215, [(-1, -1), (-0.5, -0.0), (-2, -INF), (-0.0, -0.0), (-INF, -INF)]),
        (16777216, [(-1, 1), (-0.5, 0.0), (-2, INF), (-0.0, 0.0), (-INF, INF)]),
        (8388607.5, [(-1, NAN), (-0.5, NAN), (1, 1), (-INF, INF), (-0.0, 0.0)]),
        (1e-45, [(0.0, 0.0), (-0.0, 0.0), (3, 1), (-1, NAN), (INF, INF), (-INF, INF), (NAN, NAN)]),
    ],
)
def test_powers(device: Device, dtype: str, exponent: float, powers: Points) -> None:
    bases, results = (np.array(column, dtype) for column in zip(*powers, strict=True))
    check_exact(evaluate(device, CONSTANT_POW, {"Exponent": exponent}, bases), results)
    # x * 1 + 0 is x, but for the sign of -0
    same = {"Exponent": exponent, "ScaleBias": {"Scale": 1, "Bias": 0}}
    kept = ~(np.signbit(bases) & (bases == 0))
    check_exact(evaluate(device, CONSTANT_POW, same, bases)[kept], results[kept])


@floats
@pytest.mark.parametrize(("scale", "bias"), [(2, -3), (0, 2), (-1, 0), (0.25, 0.5), (-4, 1)])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5])
def test_scale_bias_comes_before_the_power(
    device: Device, dtype: str, scale: float, bias: float, exponent: float
) -> None:
    x = np.array([-8, -2, -1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2, 4], dtype)
    scale_bias = {"Scale": scale, "Bias": bias}
    with np.errstate(all="ignore"):
        base = x.astype(np.float64) * scale + bias
        exact = base**exponent
    check_exact(evaluate(device, CONSTANT_POW, {"Exponent": exponent, "ScaleBias": scale_bias}, x), exact.astype(dtype))


def test_scaled_base_keeps_its_digits_where_it_cancels(device: Device) -> None:
    """1 - x / 3 next to x = 3, and what a square or a reciprocal makes of it."""
    third = float(np.float32(1 / 3))
    x = np.array([3, 3.0000002, 2.9999998, 2.9999995], np.float32)
    base = 1 - x.astype(np.float64) * third
    for exponent in (1, 2, 3, -1, -2):
        attributes = {"Exponent": exponent, "ScaleBias": {"Scale": -third, "Bias": 1}}
        check_exact(evaluate(device, CONSTANT_POW, attributes, x), (base**exponent).astype(np.float32))


def test_scaled_base_may_leave_the_range_of_its_type(device: Device) -> None:
    x = np.array([1e38, -1e38, 1e-38], np.float32)
    attributes = {"Exponent": 0.5, "ScaleBias": {"Scale": 1e38, "Bias": 0}}
    actual = evaluate(device, CONSTANT_POW, attributes, x)
    assert actual[0] == np.float32(np.sqrt(np.float64(np.float32(1e38)) ** 2))
    assert np.isnan(actual[1])


# Activations at infinities, zeros and NaN


@floats
@pytest.mark.parametrize(
    ("alpha", "beta", "results"),
    [
        (
            0.25,
            0.5,
            [
                (0.0, 0.5),
                (-0.0, 0.5),
                (2, 1),
                (-2, 0.0),
                (1, 0.75),
                (40, 1),
                (-40, 0.0),
                (INF, 1),
                (-INF, 0.0),
                (NAN, NAN),
            ],
        ),
        (-0.25, 0.5, [(0.0, 0.5), (2, 0.0), (-2, 1), (1, 0.25), (INF, 0.0), (-INF, 1), (NAN, NAN)]),
        (0, 0.25, [(0.0, 0.25), (3, 0.25), (-3, 0.25), (INF, NAN), (-INF, NAN), (NAN, NAN)]),
        (0, 7, [(0.0, 1), (-3, 1), (NAN, NAN)]),
        (0, -7, [(0.0, 0.0), (-3, 0.0), (NAN, NAN)]),
    ],
)
def test_hard_sigmoid(device: Device, dtype: str, alpha: float, beta: float, results: Points) -> None:
    x, expected = (np.array(column, dtype) for column in zip(*results, strict=True))
    check_exact(evaluate(device, HARD_SIGMOID, {"Alpha": alpha, "Beta": beta}, x), expected)


@floats
@pytest.mark.parametrize(
    ("alpha", "results"),
    [
        (1, [(0.0, 0.0), (2.5, 2.5), (-20, -1), (-200, -1), (INF, INF), (-INF, -1), (NAN, NAN)]),
        (0.25, [(0.0, 0.0), (2.5, 2.5), (-20, -0.25), (INF, INF), (-INF, -0.25), (NAN, NAN)]),
        (-0.25, [(0.0, 0.0), (2.5, 2.5), (-2000, -INF), (INF, INF), (-INF, -INF), (NAN, NAN)]),
        (3e38, [(0.0, 0.0), (2.5, 2.5), (-2.5, -2.5), (-20, -20), (INF, INF), (NAN, NAN)]),
        (-3e38, [(0.0, 0.0), (2.5, 2.5), (-2.5, -2.5), (-20, -20), (INF, INF), (-INF, -INF), (NAN, NAN)]),
        (1e-30, [(0.0, 0.0), (2.5, 2.5), (INF, INF), (NAN, NAN)]),
    ],
)
def test_celu(device: Device, dtype: str, alpha: float, results: Points) -> None:
    x, expected = (np.array(column, dtype) for column in zip(*results, strict=True))
    check_exact(evaluate(device, CELU, {"Alpha": alpha}, x), expected)


@floats
@pytest.mark.parametrize("alpha", [1, 0.3, 100, 3e38, -1, -0.3, -3e38])
def test_celu_near_0_is_x(device: Device, dtype: str, alpha: float) -> None:
    """exp(x / Alpha) - 1 would cancel there."""
    limits = np.finfo(dtype)
    far = min(abs(alpha) * float(limits.eps) / 8, float(limits.max))
    x = -np.geomspace(float(limits.smallest_subnormal), far, 200).astype(dtype)
    assert distance(evaluate(device, CELU, {"Alpha": alpha}, x), x).max() <= 1


@floats
def test_parameterized_relu(device: Device, dtype: str) -> None:
    table = [
        *[(0.0, slope, 0.0) for slope in (2, -2, INF, -INF, NAN)],
        *[(-0.0, slope, -0.0) for slope in (2, -2, INF, -INF, NAN)],
        *[(3, slope, 3) for slope in (2, 0.0, INF, -INF, NAN)],
        *[(INF, slope, INF) for slope in (2, 0.0, -INF, NAN)],
        *[(NAN, slope, NAN) for slope in (2, 0.0, INF, NAN)],
        (-3, 2, -6),
        (-3, -2, 6),
        (-3, 0.0, -0.0),
        (-3, -0.0, 0.0),
        (-3, INF, -INF),
        (-3, NAN, NAN),
        (-INF, 2, -INF),
        (-INF, -2, INF),
        (-INF, 0.0, NAN),
        (-INF, NAN, NAN),
    ]
    x, slope, results = (np.array(column, dtype) for column in zip(*table, strict=True))
    check_exact(evaluate(device, PARAMETERIZED_RELU, {}, x, slope), results)


# Subnormals

IDENTITIES: list[tuple[str, dict[str, float], bool]] = [
    (HARD_SIGMOID, {"Alpha": 1, "Beta": 0}, False),
    (HARD_SIGMOID, {"Alpha": -1, "Beta": 0}, True),
    (CELU, {"Alpha": 1}, False),
    (CELU, {"Alpha": 1}, True),
    (CELU, {"Alpha": -100}, True),
    (CONSTANT_POW, {"Exponent": 1}, False),
    (CONSTANT_POW, {"Exponent": 1}, True),
]


@floats
@pytest.mark.parametrize(("kind", "attributes", "negative"), IDENTITIES)
def test_subnormals_pass(device: Device, dtype: str, kind: str, attributes: dict[str, float], negative: bool) -> None:
    bits = np.dtype(dtype).itemsize * 8
    count = 1 << np.finfo(dtype).nmant  # of all subnormals
    patterns = np.arange(1, count) if bits == 16 else np.random.default_rng(8).integers(1, count, 10_000)
    x = patterns.astype(f"u{bits // 8}").view(dtype)
    x = -x if negative else x
    results, expected = evaluate(device, kind, attributes, x), np.abs(x) if kind == HARD_SIGMOID else x
    if kind == CELU and negative:  # a half of x, if it takes one, is rounded
        check(results, expected, 1, x)
    else:
        check_exact(results, expected)


@floats
def test_subnormal_products(device: Device, dtype: str) -> None:
    least = np.finfo(dtype).smallest_subnormal
    x = -np.arange(1, 1000, dtype=dtype)
    check_exact(evaluate(device, PARAMETERIZED_RELU, {}, x, np.full_like(x, least)), x * least)
    check_exact(evaluate(device, PARAMETERIZED_RELU, {}, -np.full_like(x, least), -x), x * least)


@floats
def test_subnormal_powers(device: Device, dtype: str) -> None:
    limits = np.finfo(dtype)
    powers = np.float64(limits.smallest_normal) * np.array([0.75, 0.7, 0.6])
    for exponent in (1.5, 2, 3, 10, -1, -2):
        bases = (powers ** (1 / exponent)).astype(dtype)
        exact = bases.astype(np.float64) ** exponent
        actual = evaluate(device, CONSTANT_POW, {"Exponent": exponent}, bases)
        assert np.all((actual > 0) & (actual < limits.smallest_normal))
        assert np.all(np.abs(actual - exact) <= 2 * float(limits.smallest_subnormal))


# Integers


def check_integers(device: Device, x: Array, slope: Array) -> None:
    """Two's complement: the lowest bits of the product, which int64 holds."""
    exact = np.where(x >= 0, x.astype(np.int64), x.astype(np.int64) * slope)
    bits = 8 * x.itemsize
    low = exact & ((1 << bits) - 1)
    expected = np.where(low >= 1 << (bits - 1), low - (1 << bits), low)
    assert np.array_equal(evaluate(device, PARAMETERIZED_RELU, {}, x, slope), expected)


def test_all_pairs_of_int8(device: Device) -> None:
    values = np.arange(-128, 128).astype(np.int8)
    check_integers(device, *(each.ravel() for each in np.meshgrid(values, values)))


def corners(dtype: str) -> Array:
    limits = np.iinfo(dtype)
    powers = [1 << bit for bit in range(limits.bits - 1)]
    near = [sign * power + step for power in powers for sign in (1, -1) for step in (-1, 0, 1)]
    ends = [limits.min, limits.min + 1, limits.max - 1, limits.max, 0]
    return np.unique(np.clip(near + ends, limits.min, limits.max)).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_pairs_of_corner_integers(device: Device, dtype: str) -> None:
    check_integers(device, *(each.ravel() for each in np.meshgrid(corners(dtype), corners(dtype))))


def test_all_int16_with_corner_slopes(device: Device) -> None:
    x, slope = np.meshgrid(np.arange(-32768, 32768).astype(np.int16), corners("int16")[::6])
    check_integers(device, x.ravel(), slope.ravel())


@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_random_pairs_of_integers(device: Device, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x, slope = np.random.default_rng(9).integers(limits.min, limits.max, (2, 1 << 20), dtype, endpoint=True)
    check_integers(device, x, slope)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_the_least_integer_has_no_opposite(device: Device, dtype: str) -> None:
    least = np.iinfo(dtype).min
    x, slope = np.array([least, least, -1], dtype), np.array([-1, 2, least], dtype)
    assert list(evaluate(device, PARAMETERIZED_RELU, {}, x, slope)) == [least, 0, least]
