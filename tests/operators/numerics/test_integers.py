"""Integer results against Python's integers, which neither wrap nor round: all pairs of 8 bits, corners and random
numbers of the others."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.device import Device
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.operators.numerics.evaluation import evaluate

E, A = PREFIX + "ELEMENT_WISE_", PREFIX + "ACTIVATION_"
PAIRS = 1 << 12


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(base: int, exponent: int) -> int:
    if exponent < 0:
        return {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0)
    return pow(base, exponent, 1 << 64) if base >= 0 else pow(base % (1 << 64), exponent, 1 << 64)


BINARY: dict[str, Callable[[int, int], int]] = {
    "ADD": lambda a, b: a + b,
    "SUBTRACT": lambda a, b: a - b,
    "MULTIPLY": lambda a, b: a * b,
    "DIVIDE": truncated,
    "MODULUS_TRUNCATE": lambda a, b: a - b * truncated(a, b) if b else 0,
    "MODULUS_FLOOR": lambda a, b: a % b if b else 0,
    "MAX": max,
    "MIN": min,
    "MEAN": lambda a, b: truncated(a + b, 2),
    "DIFFERENCE_SQUARE": lambda a, b: (a - b) ** 2,
    "POW": power,
    "BIT_AND": lambda a, b: a & b,
    "BIT_OR": lambda a, b: a | b,
    "BIT_XOR": lambda a, b: a ^ b,
    "LOGICAL_AND": lambda a, b: a != 0 and b != 0,
    "LOGICAL_OR": lambda a, b: a != 0 or b != 0,
    "LOGICAL_XOR": lambda a, b: (a != 0) != (b != 0),
    "LOGICAL_EQUALS": lambda a, b: a == b,
    "LOGICAL_GREATER_THAN": lambda a, b: a > b,
    "LOGICAL_LESS_THAN": lambda a, b: a < b,
    "LOGICAL_GREATER_THAN_OR_EQUAL": lambda a, b: a >= b,
    "LOGICAL_LESS_THAN_OR_EQUAL": lambda a, b: a <= b,
    "BIT_SHIFT_LEFT": lambda a, b: a << b if b < 64 else 0,
    "BIT_SHIFT_RIGHT": lambda a, b: a >> b,
}
UNARY: dict[str, Callable[[int], int]] = {
    "IDENTITY": lambda x: x,
    "ABS": abs,
    "NEGATE": lambda x: -x,
    "SIGN": lambda x: (x > 0) - (x < 0),
    "BIT_NOT": lambda x: ~x,
    "LOGICAL_NOT": lambda x: x == 0,
}


def integer_types(kind: str) -> list[str]:
    types = OPERATORS[kind].support.rows[-1].of(OPERATORS[kind].tensor_names()[0]).data_types
    return [each.value.lower() for each in types if "INT" in each]


def corners(dtype: str) -> Array:
    """Powers of 2 with neighbours, and the ends."""
    limits = np.iinfo(dtype)
    near = [sign * (1 << bit) + step for bit in range(limits.bits) for sign in (1, -1) for step in (-1, 0, 1)]
    ends = [limits.min, limits.min + 1, limits.max - 1, limits.max, 0, 3, 7, 10, 100, -3]
    return np.array(sorted({each for each in near + ends if limits.min <= each <= limits.max}), dtype)


def some(dtype: str, seed: int) -> Array:
    """Of all magnitudes."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    values = rng.integers(limits.min, limits.max, PAIRS, dtype, endpoint=True)
    shifted: Array = values >> rng.integers(0, limits.bits, PAIRS).astype(dtype)
    return shifted


def pairs(dtype: str) -> list[tuple[Array, Array]]:
    if np.dtype(dtype).itemsize == 1:
        every = np.arange(256).astype(np.uint8).view(dtype)
        return [tuple(each.ravel() for each in np.meshgrid(every, every))]
    meeting = tuple(each.ravel() for each in np.meshgrid(corners(dtype)[::3], corners(dtype)[1::3]))
    return [meeting, (some(dtype, 1), some(dtype, 2))]  # type: ignore[list-item]


def wrapped(value: int, dtype: np.dtype[Any]) -> int:
    bits = 8 * dtype.itemsize
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low


def check(actual: Array, expected: list[int], *inputs: Array) -> None:
    for place, (got, value) in enumerate(zip(actual.tolist(), expected, strict=True)):
        assert got == wrapped(value, actual.dtype), [int(array[place]) for array in inputs]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("kind", BINARY)
def test_pairs(device: Device, kind: str, dtype: str) -> None:
    if dtype not in integer_types(E + kind):
        return
    for a, b in pairs(dtype):
        actual = evaluate(device, E + kind, {}, a, b)
        check(actual, [BINARY[kind](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], a, b)


def test_every_operator_of_two_integers_is_covered() -> None:
    pairs_of_integers = {
        kind.removeprefix(E)
        for kind, operator in OPERATORS.items()
        if kind.startswith(E) and len(operator.tensor_names()) == 3 and integer_types(kind)
    }
    others = {"CLIP_GRAD", "CLIP_GRAD1"}
    assert pairs_of_integers == set(BINARY) | others


@pytest.mark.parametrize("kind", UNARY)
def test_single_integers(device: Device, kind: str) -> None:
    for dtype in integer_types(E + kind):
        x = np.concatenate([corners(dtype), some(dtype, 3)])
        check(evaluate(device, E + kind, {}, x), [UNARY[kind](each) for each in x.tolist()], x)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_rectifiers(device: Device, dtype: str) -> None:
    x, other = corners(dtype), some(dtype, 4)[: corners(dtype).size]
    numbers, others = x.tolist(), other.tolist()
    check(evaluate(device, A + "RELU", {}, x), [max(each, 0) for each in numbers], x)
    expected = [a if a >= 0 else a * b for a, b in zip(numbers, others, strict=True)]
    check(evaluate(device, A + "PARAMETERIZED_RELU", {}, x, other), expected, x, other)
    expected = [g if a > 0 else 0 for a, g in zip(numbers, others, strict=True)]
    check(evaluate(device, A + "RELU_GRAD", {}, x, other), expected, x, other)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize(("bias", "threshold"), [(1.9, 2.9), (0, 0.5), (-3.5, 1), (300, 1e10), (2, -1.5)])
def test_shrink(device: Device, dtype: str, bias: float, threshold: float) -> None:
    x, limits = corners(dtype), np.iinfo(dtype)
    b, high, low = (min(max(math.trunc(each), limits.min), limits.max) for each in (bias, threshold, -threshold))
    expected = [each - b if each > high else each + b if each < low else 0 for each in x.tolist()]
    check(evaluate(device, A + "SHRINK", {"Bias": bias, "Threshold": threshold}, x), expected, x)


ALL = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
BOUNDS = [(-1.9, 5.7), (3, -3), (-1e30, 1e30), (0.5, 200), (1e10, 2e10)]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("least", "most"), BOUNDS)
def test_clip(device: Device, dtype: str, least: float, most: float) -> None:
    x, gradient, limits = corners(dtype), some(dtype, 5)[: corners(dtype).size], np.iinfo(dtype)
    low, high = (min(max(math.trunc(each), limits.min), limits.max) for each in (least, most))
    numbers = x.tolist()
    check(evaluate(device, E + "CLIP", {"Min": least, "Max": most}, x), [max(low, min(n, high)) for n in numbers], x)
    expected = [0 if n <= low or n >= high else g for n, g in zip(numbers, gradient.tolist(), strict=True)]
    check(evaluate(device, E + "CLIP_GRAD", {"Min": least, "Max": most}, x, gradient), expected, x, gradient)
    of_type = {"MinMaxDataType": dtype.upper(), "Min": low, "Max": high}
    check(evaluate(device, E + "CLIP1", of_type, x), [max(low, min(n, high)) for n in numbers], x)
    check(evaluate(device, E + "CLIP_GRAD1", of_type, x, gradient), expected, x, gradient)
    if limits.bits < 64:
        check(evaluate(device, E + "THRESHOLD", {"Min": least}, x), [max(n, low) for n in numbers], x)


def test_bounds_of_64_bits_are_exact(device: Device) -> None:
    x = np.array([-(2**63), 2**63 - 1, 2**62 + 1], np.int64)
    attributes = {"MinMaxDataType": "INT64", "Min": -(2**53) - 1, "Max": {"Int64": 2**62 + 3}}
    assert evaluate(device, E + "CLIP1", attributes, x).tolist() == [-(2**53) - 1, 2**62 + 3, 2**62 + 1]
    assert evaluate(device, E + "CLIP", {"Min": 0, "Max": 2147483645}, x).tolist() == [0, 2147483645, 2147483645]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("scale", "bias"), [(1, 0), (-1, 0), (2.5, -7), (0.3, 0.9), (1e30, 0), (0, 3.99)])
def test_scaled_integers_are_truncated_and_saturated(device: Device, dtype: str, scale: float, bias: float) -> None:
    x, limits = corners(dtype), np.iinfo(dtype)
    s, b = float(np.float32(scale)), float(np.float32(bias))
    g = [min(max(math.trunc(float(n) * s + b), limits.min), limits.max) for n in x.tolist()]
    attributes = {"ScaleBias": {"Scale": scale, "Bias": bias}}
    check(evaluate(device, E + "IDENTITY", attributes, x), g, x)
    if dtype.startswith("i"):
        check(evaluate(device, E + "ABS", attributes, x), [abs(n) for n in g], x)
    check(
        evaluate(device, E + "CLIP", attributes | {"Min": -5, "Max": 9}, x),
        [max(-5, limits.min, min(n, 9)) for n in g],
        x,
    )


@pytest.mark.parametrize("exponent", ["int8", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("base", ["int8", "uint8", "int16", "int32", "uint32"])
def test_powers_of_mixed_integers(device: Device, base: str, exponent: str) -> None:
    x, e = (each.ravel() for each in np.meshgrid(corners(base)[::4], corners(exponent)[::4]))
    check(
        evaluate(device, E + "POW", {}, x, e), [power(a, b) for a, b in zip(x.tolist(), e.tolist(), strict=True)], x, e
    )


def test_powers_of_integers_by_floats(device: Device) -> None:
    x = np.array([-8, -2, 0, 2, 3, 100, 127], np.int8)
    for exponent, expected in [
        (0.5, [0, 0, 0, 1, 1, 10, 11]),
        (2.0, [64, 4, 0, 4, 9, 127, 127]),
        (3.0, [-128, -8, 0, 8, 27, 127, 127]),
        (-1.0, [0, 0, 127, 0, 0, 0, 0]),
        (0.0, [1] * 7),
    ]:
        assert evaluate(device, E + "POW", {}, x, np.full(7, exponent, np.float32)).tolist() == expected


def test_powers_of_floats_by_integers(device: Device) -> None:
    x = np.array([-1, 1.0000001, -2, 0, 2], np.float32)
    e = np.array([2**31 - 1, 2**24 + 1, 3, -1, -149], np.int32)
    with np.errstate(divide="ignore"):
        expected = np.power(x.astype(np.float64), e.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(device, E + "POW", {}, x, e), expected)


# Bits, also of floats


@pytest.mark.parametrize("data_type", [each for each in DataType if each.bits >= 8])
def test_bits_of_every_type(device: Device, data_type: DataType) -> None:
    dtype = np.dtype(data_type.value.lower())
    unsigned = np.dtype(f"u{dtype.itemsize}")
    a, b = (some(unsigned.name, seed) for seed in (6, 7))
    for kind, function in {"AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor}.items():
        actual = evaluate(device, f"{E}BIT_{kind}", {}, a.view(dtype), b.view(dtype))
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual.view(unsigned), function(a, b))
    np.testing.assert_array_equal(evaluate(device, E + "BIT_NOT", {}, a.view(dtype)).view(unsigned), ~a)
    np.testing.assert_array_equal(evaluate(device, E + "IDENTITY", {}, a.view(dtype)).view(unsigned), a)
    condition = (b % 3).astype(np.uint8)
    chosen = evaluate(device, E + "IF", {}, condition, a.view(dtype), b.view(dtype))
    np.testing.assert_array_equal(chosen.view(unsigned), np.where(condition != 0, a, b))
    for output in ("UINT8", "UINT32"):
        attributes = {"OutputTensor": {"DataType": output, "Sizes": [a.size]}}
        actual = evaluate(device, E + "BIT_COUNT", attributes, a.view(dtype))
        assert actual.dtype == output.lower()
        assert actual.tolist() == [each.bit_count() for each in a.tolist()]


def test_nothing_is_made_of_a_signaling_nan(device: Device) -> None:
    """Copies are copies, whatever the bits mean."""
    x = np.array([0x7C01, 0xFC01, 0x7E01], np.uint16)
    for kind in (E + "IDENTITY", A + "IDENTITY"):
        assert evaluate(device, kind, {}, x.view(np.float16)).view(np.uint16).tolist() == x.tolist()
