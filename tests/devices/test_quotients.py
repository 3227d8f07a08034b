"""QUANTIZE_LINEAR by loops: quotients of FLOAT32 at halves, what is next to them, and numbers of any size."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array
from tests.devices.test_numpy_device import never
from tests.operators.conftest import compiler
from tests.operators.descriptors import compiled, descriptor

QUANTIZE = "DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR"
RNG = np.random.default_rng(12)


def quantized(x: Array, scale: Array, zero: Array) -> Array:
    """By the loop; `scale` has one element, or as many as `x`."""
    types = {"ScaleTensor": scale.dtype.name.upper(), "ZeroPointTensor": zero.dtype.name.upper()}
    descs = {
        name: {"DataType": type_, "Sizes": [x.size], "Strides": [int(each.size > 1)]}
        for (name, type_), each in zip(types.items(), (scale, zero), strict=True)
    }
    given = {"DataType": x.dtype.name.upper(), "Sizes": [x.size]}
    output = {"DataType": types["ZeroPointTensor"], "Sizes": [x.size]}
    operator = compiled(descriptor(QUANTIZE, given, **descs, OutputTensor=output))
    made = np.zeros(x.size, zero.dtype)
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler(), least=1).prepare(operator)
        buffers = [np.ascontiguousarray(each).view(np.uint8).data for each in (x, scale, zero)]
        kernel.dispatch(buffers, [made.view(np.uint8).data], never)
    return made


def scales() -> Array:
    drawn = RNG.integers(1, 1 << 24, 12).astype(np.float32) * np.float32(2.0**-20)
    least, tiny = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).tiny
    chosen = [1.0, 0.1, 1 / 3, 2 / 255, 3.0, 1e-30, 1e30, least, 7 * least, tiny, -0.1, 1 + 2.0**-23, 2 - 2.0**-23]
    return np.concatenate([drawn, np.array(chosen, np.float32)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("scale", scales())
def test_quotients_are_of_float32(scale: np.float32, dtype: type[np.integer[Any]]) -> None:
    """At halves, and from one float32 to the next around them; each element has its own scale, too."""
    with np.errstate(all="ignore"):
        halves = ((np.arange(-300, 300) + 0.5) * float(scale)).astype(np.float32)
        around = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
        wide = (RNG.standard_normal(500) * 2.0 ** RNG.integers(-30, 60, 500) * float(scale)).astype(np.float32)
        x = np.concatenate([*around, wide])
        x = x[np.isfinite(x)]
        quotients = x / scale
    ends = np.iinfo(dtype)
    for zero in (0, 100):
        wanted = np.clip(np.rint(quotients.astype(np.float64)) + zero, ends.min, ends.max)
        for by in (np.array([scale]), np.full(x.size, scale)):
            np.testing.assert_array_equal(quantized(x, by, np.array([zero], dtype)), wanted)


def test_decimals_are_halves_where_float32_has_them_so() -> None:
    """Of some of these no exact quotient is a half. An INT32 has one that FLOAT32 would have rounded to it."""
    x, by = np.array([0.05, 0.15, 0.25, 0.35, -0.35, 1.45], np.float32), np.array([0.1], np.float32)
    assert quantized(x, by, np.array([0], np.int8)).tolist() == [0, 2, 2, 4, -4, 14]
    whole = np.array([17170431, 17170432, 17170433], np.int32)  # the first, in FLOAT32 the second, would be 66
    assert quantized(whole, np.array([2.0**18], np.float32), np.array([0], np.int8)).tolist() == [65, 66, 66]


@pytest.mark.parametrize(
    ("scale", "numbers", "wanted"),
    [
        (1.0, [np.inf, -np.inf, 0.0, -0.0], [127, -128, 3, 3]),
        (0.0, [np.inf, -np.inf, 1.0, -1.0], [127, -128, 127, -128]),
        (np.inf, [0.0, 1.0, -1.0, 3e38], [3, 3, 3, 3]),
    ],
)
def test_infinities(scale: float, numbers: list[float], wanted: list[int]) -> None:
    made = quantized(np.array(numbers, np.float32), np.array([scale], np.float32), np.array([3], np.int8))
    assert made.tolist() == wanted
