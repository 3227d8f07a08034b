"""Quantized sums that loops compute in float32 first, and again where that does not say which integer is nearest."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.lowering import lower
from app.devices.cpu.llvm.nests import GUESSED
from app.memory.arrays import Array
from tests.devices.test_numpy_device import never
from tests.formula.spelled import ask
from tests.operators.descriptors import compiled, descriptor, expression_of

ADD = "DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD"
COMPILER = Compiler()
COUNT = 1 << 12


def sums(a: Array, b: Array, scales: Sequence[float], zeros: Sequence[int], *, over: bool) -> Array:
    """By the loop, `over` the first input."""
    name = a.dtype.name.upper()
    one = {"DataType": name, "Sizes": [1, 1]}
    scale = {"DataType": "FLOAT32", "Sizes": [1, 1]}
    wide = {"DataType": name, "Sizes": [1, a.size]}
    operator = compiled(
        descriptor(
            ADD, wide, AScaleTensor=scale, BScaleTensor=scale, OutputScaleTensor=scale,
            AZeroPointTensor=one, BZeroPointTensor=one, OutputZeroPointTensor=one,
        )
    )  # fmt: skip
    by, of = (np.array(scales, np.float32), np.array(zeros, a.dtype))
    given = a.copy()
    arrays = [given, by[:1], of[:1], b, by[1:2], of[1:2], by[2:], of[2:]]
    output = given if over else np.zeros_like(a)
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, COMPILER, least=1).prepare(operator)
        buffers = [np.ascontiguousarray(each).view(np.uint8).data for each in arrays]
        kernel.dispatch(buffers, [output.view(np.uint8).data], never)
    return output


def nearest(a: int, b: int, scales: Sequence[float], zeros: Sequence[int], type_: str) -> int:
    """By fractions; round() takes halves to even."""
    by = [Fraction(float(np.float32(each))) for each in scales]
    value = round(((a - zeros[0]) * by[0] + (b - zeros[1]) * by[1]) / by[2]) + zeros[2]
    least, most = np.iinfo(type_).min, np.iinfo(type_).max
    return int(min(max(value, least), most))


@pytest.mark.parametrize("type_", ["uint8", "int8"])
@pytest.mark.parametrize(
    "scales",
    [
        (0.75, 0.1, 0.02),
        (0.04, 0.25, 0.5),
        (0.5, 0.25, 1.0),
        (1.0, 1.0, 6.0),
        (2.0, 3.0, 10.0),
        (-0.3, 0.7, 0.9),
        (1e-30, 1e-30, 3e-30),
        (1e30, 1.0, 1e30),
        (3.0, 1e-3, 1e-4),
    ],
)
def test_sums_are_the_nearest_integers(scales: tuple[float, float, float], type_: str) -> None:
    """Also over an input, and where many are halves."""
    a, b = np.random.default_rng(3).integers(0, 256, (2, COUNT), np.uint8).view(type_)
    zeros = (3, 100, 7) if type_ == "uint8" else (-3, 100, -7)
    expected = [nearest(x, y, scales, zeros, type_) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    for over in (False, True):
        np.testing.assert_array_equal(sums(a, b, scales, zeros, over=over), expected)


@pytest.mark.parametrize("type_", ["uint8", "int8"])
def test_sums_are_the_nearest_integers_for_any_ratios(type_: str) -> None:
    """So large that all are at an end, or cancel, and so small that nothing is left."""
    rng = np.random.default_rng(8)
    info = np.iinfo(type_)
    for _ in range(40):
        a, b = rng.integers(0, 256, (2, 3 * GUESSED + 1), np.uint8).view(type_)
        scales = [float(np.float32(each)) for each in np.exp(rng.uniform(-12, 12, 3)) * rng.choice([-1, 1], 3)]
        if rng.integers(2):
            scales[1] = float(np.float32(-scales[0] * rng.uniform(0.99, 1.01)))
        zeros = rng.integers(info.min, info.max, 3, endpoint=True).tolist()
        expected = [nearest(x, y, scales, zeros, type_) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        np.testing.assert_array_equal(sums(a, b, scales, zeros, over=False), expected)


@pytest.mark.parametrize("type_", ["uint8", "int8"])
def test_sums_without_zero_points_are_the_nearest_integers(type_: str) -> None:
    a, b = np.random.default_rng(9).integers(0, 256, (2, COUNT), np.uint8).view(type_)
    by = np.array([0.75, 0.1, 0.52], np.float32)
    scale = {"DataType": "FLOAT32", "Sizes": [1, 1]}
    wide = {"DataType": type_.upper(), "Sizes": [1, COUNT]}
    made = descriptor(ADD, wide, AScaleTensor=scale, BScaleTensor=scale, OutputScaleTensor=scale)
    operator = compiled({name: value for name, value in made.items() if "ZeroPoint" not in name})
    output = np.zeros_like(a)
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, COMPILER, least=1).prepare(operator)
        buffers = [np.ascontiguousarray(each).view(np.uint8).data for each in (a, by[:1], b, by[1:2], by[2:])]
        kernel.dispatch(buffers, [output.view(np.uint8).data], never)
    expected = [nearest(x, y, by.tolist(), (0, 0, 0), type_) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("scales", [(1.0, 1.0, 0.0), (np.inf, 1.0, 1.0), (np.nan, 1.0, 1.0), (1.0, 1.0, np.inf)])
def test_scales_that_are_none_are_as_the_formula_has_them(scales: tuple[float, float, float]) -> None:
    a, b = np.arange(GUESSED + 5, dtype=np.uint8), np.arange(GUESSED + 5, dtype=np.uint8)[::-1].copy()
    with np.errstate(all="ignore"):
        s = np.array(scales, np.float32).astype(np.float64)
        exact = ((a.astype(float) - 9) * s[0] + (b.astype(float) - 4) * s[1]) / s[2]
        expected = np.nan_to_num(np.clip(np.rint(exact) + 2, 0, 255), nan=0).astype(np.uint8)
    np.testing.assert_array_equal(sums(a, b, scales, (9, 4, 2), over=False), expected)


def test_there_is_a_quick_way_for_these_sums_only() -> None:
    byte, word, scale = ({"DataType": each, "Sizes": [1, 1]} for each in ("INT8", "INT32", "FLOAT32"))
    by = {"AScaleTensor": scale, "BScaleTensor": scale, "OutputScaleTensor": scale}
    of_sum = expression_of(compiled(descriptor(ADD, byte, **by)))
    assert lower(ask, of_sum, DataType.INT8).quick
    given = {"ScaleTensor": scale, "ZeroPointTensor": byte, "OutputTensor": byte}
    one = compiled(descriptor("DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR", word, **given))
    assert not lower(ask, expression_of(one), DataType.INT8).quick
