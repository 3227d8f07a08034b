"""Subnormal FLOAT32 are numbers like others on each device, also where an operator is no formula of an element."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators import calls

ROOT = Path(__file__).resolve().parents[2]
TINY = np.float32(2.0**-133)
"""Times numbers around 1."""

UNIT = np.finfo(np.float32).smallest_subnormal


def numbers(*sizes: int) -> Any:
    return np.random.default_rng(9).standard_normal(sizes).astype(np.float32) * TINY


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("sizes", [(3, 5), (2, 9000), (9000, 20)])
def test_scans(sizes: tuple[int, int]) -> None:
    x = numbers(*sizes)
    document = {"Axis": 1, "AxisDirection": "INCREASING"}
    made = calls.run({"Type": "CUMULATIVE_SUMMATION", "HasExclusiveSum": False} | document, InputTensor=x)
    np.testing.assert_array_equal(made["OutputTensor"], x.astype(np.float64).cumsum(1).astype(np.float32))
    x[:, 1:] = 1
    made = calls.run({"Type": "CUMULATIVE_PRODUCT", "HasExclusiveProduct": False} | document, InputTensor=x)
    np.testing.assert_array_equal(made["OutputTensor"], np.repeat(x[:, :1], sizes[1], 1))


@pytest.mark.usefixtures("on_each_device")
def test_maxima() -> None:
    x, gradient = numbers(2, 3, 4, 8), np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)
    window = {"WindowSize": [1, 2], "Strides": [1, 2], "Dilations": [1, 1]}
    document = {"Type": "MAX_POOLING_GRAD", **window, "StartPadding": [0, 0], "EndPadding": [0, 0]}
    made = calls.run(document, InputTensor=x, InputGradientTensor=gradient)["OutputGradientTensor"]
    pairs = x.reshape(2, 3, 4, 4, 2)
    np.testing.assert_array_equal(made.reshape(pairs.shape).sum(-1), gradient)
    np.testing.assert_array_equal(made.reshape(pairs.shape).argmax(-1)[gradient > 0], pairs.argmax(-1)[gradient > 0])
    tiny = gradient * TINY
    of_tiny = calls.run(document, InputTensor=x, InputGradientTensor=tiny)["OutputGradientTensor"]
    assert np.count_nonzero(of_tiny) == np.count_nonzero(tiny)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("count", [7, 3000])
def test_the_first_elements(count: int) -> None:
    x = numbers(2, 3000)
    document = {"Type": "TOP_K1", "Axis": 1, "K": count, "AxisDirection": "DECREASING"}
    made = calls.run(document, InputTensor=x)
    np.testing.assert_array_equal(made["OutputValueTensor"], -np.sort(-x, axis=1)[:, :count])


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("scales", [(1, 1), (1, 30), (4, 6)])
def test_quantization(scales: tuple[int, int]) -> None:
    x, scale = numbers(4, 30), np.full(scales, UNIT * 200, np.float32)
    document: dict[str, Any] = {"QuantizationType": "SCALE", "OutputTensor": {"DataType": "INT8", "Sizes": [4, 30]}}
    made = calls.run({"Type": "QUANTIZE"} | document, InputTensor=x, QuantizationTensors=[scale])["OutputTensor"]
    expected = np.rint(x.astype(np.float64) / np.float64(scale[0, 0])).clip(-128, 127).astype(np.int8)
    np.testing.assert_array_equal(made, expected)
    document["OutputTensor"] = {"DataType": "FLOAT32", "Sizes": [4, 30]}
    back = calls.run({"Type": "DEQUANTIZE"} | document, InputTensor=expected, QuantizationTensors=[scale])
    np.testing.assert_array_equal(back["OutputTensor"], expected * np.float32(UNIT * 200))


@pytest.mark.usefixtures("on_each_device")
def test_quantization_by_their_own_range() -> None:
    x = numbers(3, 200) * np.float32(8)
    made = calls.run({"Type": "DYNAMIC_QUANTIZE_LINEAR"}, InputTensor=x)
    wide = x.astype(np.float64)
    scale = np.float32((wide.max() - wide.min()) / 255)
    assert made["OutputScaleTensor"].item() == scale > 0
    zero = np.rint(-wide.min() / np.float64(scale))
    np.testing.assert_array_equal(made["OutputTensor"], (np.rint(wide / np.float64(scale)) + zero).clip(0, 255))


def test_no_kernel_is_compiled_by_cupy() -> None:
    """Whose RawKernel and RawModule take subnormal numbers for 0."""
    for path in (ROOT / "app").rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(each, ast.Attribute) or each.attr not in ("RawKernel", "RawModule"), path
