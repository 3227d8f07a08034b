"""Results at points that are known exactly: zeros, infinities and NaN, ties, ends of domains; and quantization."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from app.devices.device import Device
from app.memory.arrays import Array
from app.operators.operator import PREFIX
from tests.operators.numerics.evaluation import evaluate

E, A = PREFIX + "ELEMENT_WISE_", PREFIX + "ACTIVATION_"
INF, NAN, MAX = math.inf, math.nan, 3.4028234663852886e38
Points = list[tuple[float, float]]
floats = pytest.mark.parametrize("dtype", ["float32", "float16"])


def check(actual: Array, expected: list[float]) -> None:
    """Equal, zeros too, and NaN where NaN is expected."""
    np.testing.assert_array_equal(actual, np.array(expected, actual.dtype))
    zero = actual == 0
    if actual.dtype.kind == "f":
        assert np.array_equal(np.signbit(actual[zero]), np.signbit(np.array(expected)[zero])), (actual, expected)


@floats
@pytest.mark.parametrize(
    ("kind", "attributes", "points"),
    [
        (E + "SIGN", {}, [(NAN, 0), (-0.0, 0), (0.0, 0), (-INF, -1), (INF, 1), (-6e-8, -1), (6e-8, 1)]),
        (E + "ABS", {}, [(-0.0, 0.0), (-INF, INF), (NAN, NAN), (-2.5, 2.5)]),
        (E + "NEGATE", {}, [(0.0, -0.0), (-0.0, 0.0), (INF, -INF), (NAN, NAN)]),
        (E + "RECIP", {}, [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (NAN, NAN)]),
        (E + "SQRT", {}, [(-1.0, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (-INF, NAN), (4.0, 2.0)]),
        (E + "LOG", {}, [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (NAN, NAN)]),
        (E + "EXP", {}, [(-INF, 0.0), (INF, INF), (0.0, 1.0), (1000.0, INF), (-1000.0, 0.0), (NAN, NAN)]),
        (E + "ERF", {}, [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (100.0, 1.0), (NAN, NAN)]),
        (E + "TANH", {}, [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (100.0, 1.0), (NAN, NAN)]),
        (E + "SIN", {}, [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (NAN, NAN)]),
        (E + "COS", {}, [(0.0, 1.0), (INF, NAN), (NAN, NAN)]),
        (E + "TAN", {}, [(0.0, 0.0), (-0.0, -0.0), (INF, NAN)]),
        (E + "ASIN", {}, [(2.0, NAN), (-2.0, NAN), (0.0, 0.0), (-0.0, -0.0)]),
        (E + "ACOS", {}, [(2.0, NAN), (-1.5, NAN), (1.0, 0.0)]),
        (E + "ATAN", {}, [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN)]),
        (E + "SINH", {}, [(INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (1000.0, INF)]),
        (E + "COSH", {}, [(INF, INF), (-INF, INF), (0.0, 1.0)]),
        (E + "ASINH", {}, [(INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0)]),
        (E + "ACOSH", {}, [(1.0, 0.0), (0.5, NAN), (-3.0, NAN), (INF, INF)]),
        (E + "ATANH", {}, [(1.0, INF), (-1.0, -INF), (1.5, NAN), (0.0, 0.0), (-0.0, -0.0)]),
        (E + "FLOOR", {}, [(-0.5, -1), (0.5, 0.0), (-0.0, -0.0), (INF, INF), (NAN, NAN), (1.0, 1)]),
        (E + "CEIL", {}, [(-0.5, -0.0), (0.5, 1), (-0.0, -0.0), (INF, INF), (NAN, NAN), (1.0, 1)]),
        (E + "CLIP", {"Min": -1, "Max": 2}, [(NAN, NAN), (INF, 2), (-INF, -1), (0.5, 0.5)]),
        (E + "CLIP", {"Min": 2, "Max": -1}, [(NAN, NAN), (INF, 2), (-INF, 2), (0.5, 2)]),
        (E + "THRESHOLD", {"Min": 1}, [(NAN, NAN), (INF, INF), (-INF, 1), (1.5, 1.5)]),
        (A + "RELU", {}, [(NAN, NAN), (INF, INF), (-INF, 0.0), (-2.0, 0.0)]),
        (A + "THRESHOLDED_RELU", {"Alpha": 1}, [(NAN, 0.0), (1.0, 0.0), (1.5, 1.5), (INF, INF), (-INF, 0.0)]),
        (A + "THRESHOLDED_RELU", {"Alpha": -1}, [(-1.0, 0.0), (-0.5, -0.5), (0.0, 0.0)]),
        (
            A + "SHRINK",
            {"Bias": 1, "Threshold": 2},
            [(2.0, 0.0), (-2.0, 0.0), (2.5, 1.5), (-2.5, -1.5), (NAN, 0.0), (INF, INF)],
        ),
        (A + "LEAKY_RELU", {"Alpha": 0.5}, [(-2.0, -1), (2.0, 2), (NAN, NAN), (-INF, -INF), (INF, INF), (-0.0, -0.0)]),
        (A + "LEAKY_RELU", {"Alpha": -2}, [(-2.0, 4), (2.0, 2), (NAN, NAN), (-INF, INF), (INF, INF)]),
        (A + "LEAKY_RELU", {"Alpha": 0}, [(-2.0, -0.0), (INF, INF), (NAN, NAN)]),
        (A + "ELU", {"Alpha": 2}, [(-INF, -2), (INF, INF), (NAN, NAN), (-200.0, -2), (0.0, 0.0)]),
        (A + "SCALED_ELU", {"Alpha": 2, "Gamma": 0.5}, [(-INF, -1), (INF, INF), (NAN, NAN), (-200.0, -1), (4.0, 2)]),
        (A + "SIGMOID", {}, [(-INF, 0.0), (INF, 1.0), (0.0, 0.5), (NAN, NAN)]),
        (A + "HARD_SIGMOID", {"Alpha": 0.25, "Beta": 0.5}, [(-INF, 0.0), (INF, 1), (NAN, NAN), (0.0, 0.5)]),
        (A + "SOFTSIGN", {}, [(-INF, -1), (INF, 1), (1.0, 0.5), (NAN, NAN), (-0.0, -0.0)]),
        (A + "SOFTPLUS", {"Steepness": 1}, [(-INF, 0.0), (INF, INF), (1000.0, 1000), (NAN, NAN)]),
        (A + "SOFTPLUS", {"Steepness": 2}, [(-INF, 0.0), (INF, INF), (60000.0, 60000), (NAN, NAN)]),
        (A + "PARAMETRIC_SOFTPLUS", {"Alpha": 0.5, "Beta": 2}, [(-INF, 0.0), (INF, INF), (60000.0, 60000), (NAN, NAN)]),
        (A + "SWISH", {"SigmoidInputScale": 1}, [(-INF, -0.0), (INF, INF), (0.0, 0.0), (NAN, NAN), (-1000.0, -0.0)]),
        (A + "SWISH", {"SigmoidInputScale": 2}, [(-INF, -0.0), (INF, INF), (NAN, NAN)]),
        (A + "SWISH", {"SigmoidInputScale": -2}, [(-INF, -INF), (INF, 0.0), (NAN, NAN)]),
        (A + "GELU", {}, [(-INF, -0.0), (INF, INF), (0.0, 0.0), (NAN, NAN), (-1000.0, -0.0), (1000.0, 1000)]),
        (A + "TANH", {}, [(-INF, -1), (INF, 1), (NAN, NAN), (-0.0, -0.0)]),
    ],
)
def test_points(device: Device, dtype: str, kind: str, attributes: dict[str, Any], points: Points) -> None:
    x, expected = zip(*points, strict=True)
    check(evaluate(device, kind, attributes, np.array(x, dtype)), list(expected))


@floats
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("HALVES_TO_NEAREST_EVEN", [-2, -2, -2, -1, 1, 2, 2, 2, 0.0, -0.0, 0.0, 1000]),
        ("TOWARD_ZERO", [-2, -1, -1, -1, 1, 1, 1, 2, 0.0, -0.0, 0.0, 999]),
        ("TOWARD_INFINITY", [-3, -2, -2, -1, 1, 2, 2, 3, 1, -1, 0.0, 1000]),
    ],
)
def test_rounding_modes(device: Device, dtype: str, mode: str, expected: list[float]) -> None:
    """The table of DML_ROUNDING_MODE, and halves."""
    x = np.array([-2.5, -1.75, -1.5, -1.25, 1.25, 1.5, 1.75, 2.5, 0.5, -0.5, 0.25, 999.5], dtype)
    check(evaluate(device, E + "ROUND", {"RoundingMode": mode}, x), expected)
    ends = np.array([INF, -INF, NAN, -0.0, 2048], dtype)
    check(evaluate(device, E + "ROUND", {"RoundingMode": mode}, ends), ends.tolist())


@floats
@pytest.mark.parametrize(
    ("mode", "expected"), [("EITHER", [1, 1, 0, 0, 0]), ("POSITIVE", [1, 0, 0, 0, 0]), ("NEGATIVE", [0, 1, 0, 0, 0])]
)
def test_infinity_modes(device: Device, dtype: str, mode: str, expected: list[int]) -> None:
    x = np.array([INF, -INF, NAN, 0, 65504], dtype)
    assert evaluate(device, E + "IS_INFINITY", {"InfinityMode": mode}, x).tolist() == expected


@floats
@pytest.mark.parametrize("output", ["UINT8", "UINT32"])
def test_predicates(device: Device, dtype: str, output: str) -> None:
    a = np.array([1, 2, 3, NAN, NAN, 0.0, INF, -INF], dtype)
    b = np.array([2, 2, 2, 1, NAN, -0.0, INF, INF], dtype)
    attributes = {"OutputTensor": {"DataType": output, "Sizes": [8]}}
    with np.errstate(invalid="ignore"):
        expected = {"EQUALS": a == b, "GREATER_THAN": a > b, "LESS_THAN": a < b}
        expected |= {"GREATER_THAN_OR_EQUAL": a >= b, "LESS_THAN_OR_EQUAL": a <= b}
    for kind, holds in expected.items():
        actual = evaluate(device, f"{E}LOGICAL_{kind}", attributes, a, b)
        assert (actual.dtype, actual.tolist()) == (np.dtype(output.lower()), holds.astype(int).tolist())
    assert evaluate(device, E + "IS_NAN", attributes, a).tolist() == np.isnan(a).astype(int).tolist()


@floats
def test_many_predicates(device: Device, dtype: str) -> None:
    """More than one block, and for FLOAT16 by table."""
    every = np.random.default_rng(1).integers(0, 1 << 16, 300_000, np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):  # ARM tells of NaN that signal
        x = every.astype(dtype)
    np.testing.assert_array_equal(evaluate(device, E + "IS_NAN", {}, x), np.isnan(x))
    infinite = evaluate(device, E + "IS_INFINITY", {"InfinityMode": "EITHER"}, x)
    np.testing.assert_array_equal(infinite, np.isinf(x))


@floats
@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("DIVIDE", [(1, 0.0, INF), (-1, 0.0, -INF), (0.0, 0.0, NAN), (1, INF, 0.0), (INF, INF, NAN), (7, 2, 3.5)]),
        ("MODULUS_TRUNCATE", [(7, 3, 1), (-7, 3, -1), (7, -3, 1), (-7, -3, -1), (1, 0.0, NAN), (INF, 2, NAN)]),
        ("MODULUS_TRUNCATE", [(5.5, INF, 5.5), (-5.5, INF, -5.5), (-6, 3, -0.0), (NAN, 1, NAN), (1, NAN, NAN)]),
        ("MODULUS_FLOOR", [(7, 3, 1), (-7, 3, 2), (7, -3, -2), (-7, -3, -1), (1, 0.0, NAN), (INF, 2, NAN)]),
        ("MODULUS_FLOOR", [(5.5, INF, 5.5), (-5.5, INF, INF), (-6, 3, 0.0), (6, -3, -0.0), (NAN, 1, NAN)]),
        ("MAX", [(NAN, 1, NAN), (1, NAN, NAN), (-INF, 1, 1), (2, 3, 3)]),
        ("MIN", [(NAN, 1, NAN), (1, NAN, NAN), (-INF, 1, -INF), (2, 3, 2)]),
        ("MEAN", [(INF, -INF, NAN), (60000, 60000, 60000), (-65504, 65504, 0.0), (1, 2, 1.5)]),
        ("ATAN_YX", [(0.0, 1, 0.0), (-0.0, 1, -0.0), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (1, INF, 0.0), (NAN, 1, NAN)]),
        (
            "POW",
            [(-2, 3, -8), (-2, 0.5, NAN), (0.0, 0.0, 1), (0.0, -1, INF), (NAN, 0.0, 1), (1, NAN, 1), (-8, -1, -0.125)],
        ),
    ],
)
def test_points_of_two(device: Device, dtype: str, kind: str, points: list[tuple[float, float, float]]) -> None:
    a, b, expected = zip(*points, strict=True)
    check(evaluate(device, E + kind, {}, np.array(a, dtype), np.array(b, dtype)), list(expected))


def test_the_mean_of_the_largest(device: Device) -> None:
    x = np.array([MAX, MAX, -MAX], np.float32)
    check(evaluate(device, E + "MEAN", {}, x, x), x.tolist())


@floats
def test_gradients(device: Device, dtype: str) -> None:
    x, gradient = np.array([-2, -1, 0, 1, 2, NAN, INF], dtype), np.arange(1, 8).astype(dtype)
    bounds = {"Min": -1, "Max": 2}
    check(evaluate(device, E + "CLIP_GRAD", bounds, x, gradient), [0.0, 0.0, 3, 4, 0.0, 6, 0.0])
    of_type = bounds | {"MinMaxDataType": dtype.upper()}
    check(evaluate(device, E + "CLIP_GRAD1", of_type, x, gradient), [0.0, 0.0, 3, 4, 0.0, 6, 0.0])
    check(evaluate(device, A + "RELU_GRAD", {}, x, gradient), [0.0, 0.0, 0.0, 4, 5, 0.0, 7])


def test_bounds_of_float16(device: Device) -> None:
    x = np.array([-65504, 0.1, 1, 65504], np.float16)
    tenth = float(np.float16(0.1))
    check(evaluate(device, E + "CLIP", {"Min": 0.1, "Max": 1e5}, x), [tenth, tenth, 1, 65504])  # 1e5 is +inf
    bits = {"MinMaxDataType": "FLOAT16", "Min": {"UInt16": 0x2E66}, "Max": 1e5}
    check(evaluate(device, E + "CLIP1", bits, x), [tenth, tenth, 1, 65504])


@floats
def test_bounds_that_are_infinities_are_none(device: Device, dtype: str) -> None:
    x = np.array([-np.inf, -1, 1, np.inf], dtype)
    gradient = np.array([2, 3, 4, 5], dtype)
    bounds = {"MinMaxDataType": f"FLOAT{x.itemsize * 8}", "Min": -np.inf, "Max": 0.5}
    check(evaluate(device, E + "CLIP1", bounds, x), [-np.inf, -1, 0.5, 0.5])
    check(evaluate(device, E + "CLIP_GRAD1", bounds, x, gradient), [0.0, 3, 0.0, 0.0])
    of_float = {"Min": -np.inf, "Max": 0.5}
    check(evaluate(device, E + "CLIP", of_float, x), [-np.inf, -1, 0.5, 0.5])
    check(evaluate(device, E + "CLIP_GRAD", of_float, x, gradient), [0.0, 3, 0.0, 0.0])
    check(evaluate(device, E + "THRESHOLD", {"Min": -np.inf}, x), x.tolist())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_infinite_bounds_of_integers_are_the_ends_of_their_range(device: Device, dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([least, 1, 2, most], dtype)
    check(evaluate(device, E + "CLIP", {"Min": -np.inf, "Max": np.inf}, x), [least, 1, 2, most])
    check(evaluate(device, E + "CLIP", {"Min": 2, "Max": np.inf}, x), [2, 2, 2, most])
    check(evaluate(device, E + "CLIP", {"Min": -np.inf, "Max": -np.inf}, x), [least] * 4)


# ADD1


@floats
@pytest.mark.parametrize(
    ("fused", "expected"),
    [
        (None, [6, 10, -2]),
        ({"Type": "ACTIVATION_ELU", "Alpha": 0.5}, [6, 10, 0.5 * math.expm1(-2)]),
        ({"Type": "ACTIVATION_RELU"}, [6, 10, 0]),
        ({"Type": "ACTIVATION_LINEAR", "Alpha": 2, "Beta": 1}, [13, 21, -3]),
        ({"Type": "ACTIVATION_SHRINK", "Bias": 1, "Threshold": 6}, [0, 9, 0]),
        ({"Type": "ACTIVATION_SOFTPLUS", "Steepness": 1}, [6.00247568, 10.0000454, 0.126928011]),
        ({"Type": "ACTIVATION_CELU", "Alpha": 2}, [6, 10, 2 * math.expm1(-1)]),
        ({"Type": "ACTIVATION_IDENTITY"}, [6, 10, -2]),
    ],
)
def test_fused_activations(device: Device, dtype: str, fused: Any, expected: list[float]) -> None:
    """The first two are DxDispatch's models."""
    a, b = np.array([1, 2, 3], dtype), np.array([5, 8, -5], dtype)
    actual = evaluate(device, E + "ADD1", {"FusedActivation": fused}, a, b)
    np.testing.assert_allclose(actual, np.array(expected, dtype), rtol=4 * float(np.finfo(dtype).eps))


def test_what_is_fused_equals_what_is_not(device: Device) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(1000).astype(np.float32) * 5 for _ in range(2))
    for name, attributes in [
        ("SIGMOID", {}),
        ("HARD_SIGMOID", {"Alpha": 0.3, "Beta": 0.1}),
        ("TANH", {}),
        ("SCALED_TANH", {"Alpha": 1.5, "Beta": 0.5}),
        ("LEAKY_RELU", {"Alpha": 0.1}),
        ("THRESHOLDED_RELU", {"Alpha": 0.5}),
        ("SCALED_ELU", {"Alpha": 1.5, "Gamma": 1.1}),
        ("PARAMETRIC_SOFTPLUS", {"Alpha": 0.5, "Beta": 2.0}),
        ("SOFTSIGN", {}),
        ("GELU", {}),
    ]:
        fused = evaluate(device, E + "ADD1", {"FusedActivation": {"Type": f"ACTIVATION_{name}"} | attributes}, a, b)
        np.testing.assert_array_equal(fused, evaluate(device, A + name, attributes, a + b), err_msg=name)


# Quantization, against fractions


def exact_quotient(x: float, scale: float) -> Fraction:
    return Fraction(float(x)) / Fraction(float(scale))


def clamped(value: int, dtype: str) -> int:
    limits = np.iinfo(dtype)
    return min(max(value, limits.min), limits.max)


@pytest.mark.parametrize("output", ["int8", "uint8"])
@pytest.mark.parametrize("given", ["float32", "float16", "int32"])
def test_quantize(device: Device, given: str, output: str) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(4000) * 40).astype(given)
    scale = rng.choice([0.5, 0.25, 2, 0.1, 1 / 3, 0.7, -0.3], 4000).astype("float32" if given == "int32" else given)
    zero = rng.integers(np.iinfo(output).min, np.iinfo(output).max, 4000, output, endpoint=True)
    expected = [clamped(round(exact_quotient(a, s)) + int(z), output) for a, s, z in zip(x, scale, zero, strict=True)]
    assert evaluate(device, E + "QUANTIZE_LINEAR", {}, x, scale, zero).tolist() == expected
    attributes = {"OutputTensor": {"DataType": output.upper(), "Sizes": [4000]}}
    expected = [clamped(round(exact_quotient(a, s)), output) for a, s in zip(x, scale, strict=True)]
    assert evaluate(device, E + "QUANTIZE_LINEAR", attributes, x, scale, None).tolist() == expected


def test_quantize_ties_and_ends(device: Device) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 1e38, -1e38, INF, -INF, NAN, 1, 0], np.float32)
    scale = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0], np.float32)
    zero = np.full(11, 3, np.int8)
    expected = [3, 5, 5, 3, 127, -128, 127, -128, 0, 127, 0]
    assert evaluate(device, E + "QUANTIZE_LINEAR", {}, x, scale, zero).tolist() == expected
    # 2^31 - 1 is no float32: as one it would be 2^31
    ends = np.array([2**31 - 1, -(2**31)], np.int32)
    two = np.array([2**24, 2**24], np.float32)
    assert evaluate(device, E + "QUANTIZE_LINEAR", {}, ends, two, np.zeros(2, np.int8)).tolist() == [127, -128]
    assert evaluate(device, E + "QUANTIZE_LINEAR", {}, ends, two * 2, np.zeros(2, np.int8)).tolist() == [64, -64]


@floats
@pytest.mark.parametrize("given", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_dequantize(device: Device, dtype: str, given: str) -> None:
    rng = np.random.default_rng(5)
    limits = np.iinfo(given)
    x, zero = rng.integers(limits.min, limits.max, (2, 4000), given, endpoint=True)
    scale = rng.choice([0.5, 2.0**-20, 0.1, -1 / 3, 3e-5], 4000).astype(dtype)
    exact = (x.astype(np.longdouble) - zero.astype(np.longdouble)) * scale.astype(np.longdouble)
    with np.errstate(over="ignore", invalid="ignore"):
        for zeros, expected in [(zero, exact), (None, x.astype(np.longdouble) * scale.astype(np.longdouble))]:
            actual = evaluate(device, E + "DEQUANTIZE_LINEAR", {}, x, scale, zeros)
            assert actual.dtype == dtype
            nearest = expected.astype(np.float64).astype(dtype)
            apart = np.abs(actual.astype(np.float64) - nearest.astype(np.float64))
            finite = np.isfinite(nearest)
            assert np.array_equal(np.isfinite(actual), finite)
            assert np.all(apart[finite] <= np.spacing(np.abs(nearest[finite])))


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("types", [("uint8", "int8", "uint8"), ("int8", "int8", "int8"), ("uint8", "uint8", "int8")])
def test_quantized_linear_add(device: Device, types: tuple[str, str, str], zeros: bool) -> None:
    rng = np.random.default_rng(6)
    for scales in [(0.5, 0.25, 0.125), (0.1, 1 / 3, 0.7), (2, 3, 10)]:
        a, b = (rng.integers(np.iinfo(each).min, np.iinfo(each).max, 2000, each, endpoint=True) for each in types[:2])
        sa, sb, so = (np.array([scale], np.float32) for scale in scales)
        za, zb, zo = (np.array([5], each) if zeros else None for each in types)
        output = {"OutputTensor": {"DataType": types[2].upper(), "Sizes": [2000]}}
        offset = 5 if zeros else 0
        expected = [
            clamped(
                round(
                    ((int(x) - offset) * Fraction(float(sa[0])) + (int(y) - offset) * Fraction(float(sb[0])))
                    / Fraction(float(so[0]))
                )
                + offset,
                types[2],
            )
            for x, y in zip(a, b, strict=True)
        ]
        actual = evaluate(device, E + "QUANTIZED_LINEAR_ADD", output, a, sa, za, b, sb, zb, so, zo)
        assert actual.tolist() == expected


# Choice


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint64", "int8"])
def test_if(device: Device, dtype: str) -> None:
    condition = np.array([0, 1, 2, 255, 128], np.uint8)
    a, b = np.arange(5).astype(dtype), np.arange(5, 10).astype(dtype)
    assert evaluate(device, E + "IF", {}, condition, a, b).tolist() == [5, 1, 2, 3, 4]
