"""QUANTIZE_LINEAR by loops, which multiply by a scale's inverse, against fractions: halves, what is next to them, and
numbers of any size."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.lowering import lower
from app.devices.cpu.llvm.types import literal
from app.memory.arrays import Array
from tests.devices.test_numpy_device import never
from tests.formula.spelled import ask
from tests.operators.conftest import compiler
from tests.operators.descriptors import compiled, descriptor, expression_of

QUANTIZE = "DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR"
RNG = np.random.default_rng(12)


def quantized(x: Array, scale: Array, zero: Array) -> Array:
    """By the loop; `scale` has one element, or as many as `x`."""
    types = {"ScaleTensor": "FLOAT32", "ZeroPointTensor": zero.dtype.name.upper()}
    descs = {
        name: {"DataType": type_, "Sizes": [x.size], "Strides": [int(each.size > 1)]}
        for (name, type_), each in zip(types.items(), (scale, zero), strict=True)
    }
    output = {"DataType": types["ZeroPointTensor"], "Sizes": [x.size]}
    operator = compiled(descriptor(QUANTIZE, {"DataType": "FLOAT32", "Sizes": [x.size]}, **descs, OutputTensor=output))
    made = np.zeros(x.size, zero.dtype)
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler(), least=1).prepare(operator)
        buffers = [np.ascontiguousarray(each).view(np.uint8).data for each in (x, scale, zero)]
        kernel.dispatch(buffers, [made.view(np.uint8).data], never)
    return made


def nearest(x: float, scale: float, zero: int, dtype: type[np.integer[Any]]) -> int:
    """round() takes halves to even."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return int(min(max(round(Fraction(float(x)) / Fraction(float(scale))) + zero, least), most))


def scales() -> Array:
    drawn = RNG.integers(1, 1 << 24, 12).astype(np.float32) * np.float32(2.0**-20)
    least, tiny = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).tiny
    chosen = [1.0, 0.1, 1 / 3, 2 / 255, 3.0, 1e-30, 1e30, least, 7 * least, tiny, -0.1, 1 + 2.0**-23, 2 - 2.0**-23]
    return np.concatenate([drawn, np.array(chosen, np.float32)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("scale", scales())
def test_quotients_are_rounded_once(scale: np.float32, dtype: type[np.integer[Any]]) -> None:
    """At halves, and from one float32 to the next around them; each element has its own scale, too."""
    with np.errstate(all="ignore"):
        halves = ((np.arange(-300, 300) + 0.5) * float(scale)).astype(np.float32)
        around = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
        wide = (RNG.standard_normal(500) * 2.0 ** RNG.integers(-30, 60, 500) * float(scale)).astype(np.float32)
    x = np.concatenate([*around, wide])
    x = x[np.isfinite(x)]
    for zero in (0, 100):
        wanted = [nearest(float(each), float(scale), zero, dtype) for each in x]
        for by in (np.array([scale]), np.full(x.size, scale)):
            np.testing.assert_array_equal(quantized(x, by, np.array([zero], dtype)), wanted)


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


def test_loops_divide_1_by_the_scale() -> None:
    desc = {"DataType": "FLOAT32", "Sizes": [8]}
    whole = {"DataType": "UINT8", "Sizes": [8]}
    operator = compiled(descriptor(QUANTIZE, desc, ScaleTensor=desc, ZeroPointTensor=whole, OutputTensor=whole))
    element = lower(ask, expression_of(operator), DataType.UINT8)
    (divided,) = (line for line in element.body if "fdiv" in line)
    assert f"fdiv double {literal('float64', 1.0)}," in divided
