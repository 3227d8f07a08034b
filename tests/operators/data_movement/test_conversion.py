"""CAST and VALUE_SCALE_2D against NumPy."""

import math
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array, numpy_type
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.data_movement.tensors import TYPES, any_bits, assert_same_bits, some_layout, told
from tests.operators.descriptors import descriptor, refusals


def elements_of(rng: np.random.Generator, data_type: DataType) -> Array:
    """Numbers of all magnitudes that the type has, halves, ends of ranges, and what is no number."""
    dtype = numpy_type(data_type)
    if dtype.kind == "f":
        ends = [
            sign * 2.0**bits + near
            for bits in (7, 8, 15, 16, 31, 32, 63, 64)
            for sign in (1, -1)
            for near in (-1, -0.5, 0, 0.5)
        ]
        special = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 65504, 65520, 1e-8, 1e300, math.inf, -math.inf, math.nan]
        with np.errstate(over="ignore"):
            listed = np.array([*ends, *special]).astype(dtype)
            spread = (rng.standard_normal(64) * 2.0 ** rng.integers(-30, 70, 64)).astype(dtype)
        return np.concatenate([listed, spread])
    limits = np.iinfo(dtype)
    listed = np.array([limits.min, limits.max, 0, 1, limits.max // 2 + 1], dtype)
    return np.concatenate([listed, any_bits(rng, [64], data_type)])


def converted(x: Array, data_type: DataType) -> Array:
    """By exact arithmetic of Python, element by element."""
    dtype = numpy_type(data_type)
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    limits = np.iinfo(dtype)

    def whole(value: float) -> int:
        if isinstance(value, int):
            bits = value & ((1 << data_type.bits) - 1)
            return bits - (1 << data_type.bits) if bits > limits.max else bits
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return limits.max if value > 0 else limits.min
        return int(min(max(math.trunc(value), limits.min), limits.max))

    return np.array([whole(value) for value in x.tolist()], dtype)


@pytest.mark.parametrize("of", TYPES)
@pytest.mark.parametrize("to", TYPES)
def test_cast(of: DataType, to: DataType) -> None:
    rng = np.random.default_rng(1)
    x = laid_out(rng, elements_of(rng, of).reshape(1, -1))
    expected = converted(x.reshape(-1), to).reshape(x.shape)
    made = run({"Type": "CAST", "OutputTensor": some_layout(rng, expected)}, InputTensor=x)["OutputTensor"]
    if of is to:
        assert_same_bits(made, x)
    np.testing.assert_array_equal(made, expected)


def test_floats_are_rounded_once() -> None:
    """By way of float32, this would become a half that is rounded once more."""
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40])
    made = run({"Type": "CAST", "OutputTensor": {"DataType": "FLOAT16", "Sizes": [2]}}, InputTensor=x)["OutputTensor"]
    assert made.tolist() == [1 + 2.0**-10, 1]


def test_the_output_of_cast_is_stated() -> None:
    document = descriptor("DML_OPERATOR_CAST")
    assert refusals(document) == []
    assert told(document | {"OutputTensor": {"DataType": "INT8", "Sizes": [1, 1, 2, 2]}}) == (
        "/OutputTensor/Sizes",
        [1, 1, 2, 2],
        [1, 1, 2, 3],
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [1, 3])
def test_value_scale(channels: int, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x = laid_out(rng, (rng.standard_normal((2, channels, 3, 4)) * 5).astype(dtype))
    bias = [float(each) for each in rng.standard_normal(channels).astype(np.float32)]
    scale = float(np.float32(1.7))
    expected = (x.astype(np.float64) * scale + np.array(bias)[:, None, None]).astype(dtype)
    document = {"Type": "VALUE_SCALE_2D", "Scale": scale, "Bias": bias}
    for output in ({}, {"OutputTensor": some_layout(rng, expected), "ChannelCount": channels}):
        assert_same_bits(run(document | output, InputTensor=x)["OutputTensor"], expected)


def test_value_scale_has_a_bias_for_each_channel() -> None:
    document = descriptor("DML_OPERATOR_VALUE_SCALE_2D")
    assert refusals(document) == []
    three = document | {"InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 3, 2, 3]}}
    assert told(three) == ("/Bias", 1, 3)
    assert refusals(three | {"Bias": [1, 2, 3]}) == []
    assert told(document | {"Bias": [1, 2, 3]}) == ("/Bias", 3, 1)
    assert told(document | {"Bias": [1, 2]}) == ("/Bias", 2, [1, 3])
    assert told(document | {"ChannelCount": 3}) == ("/ChannelCount", 3, 1)
