"""What kernels compute in float32 and in integers where formulas say float64: the same, at all sizes."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cuda.lowering import Arithmetic, Lowering
from app.formula.expansions import Ask
from app.formula.values import Value
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator
from tests.devices import cuda_on_cpu
from tests.devices.cuda_on_cpu import COMPILER, build, build_words
from tests.operators.descriptors import compiled
from tests.operators.numerics.ulp import distance

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

SCALES = (0.1, 0.2, 1.0, 1 / 3, 6.0, -0.1, 3e-5, 7e4, 1e-39, 1e-30, 3e38, 0.0, np.inf, np.nan)
"""Of some, quotients are halves; the others are beyond what the quick ways are for."""
RANDOM = np.random.default_rng(7)


def tensor(data_type: str, size: int) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": [size]}


def quantized_add(data_type: str, size: int) -> CompiledOperator:
    document: dict[str, Any] = {"Type": "ELEMENT_WISE_QUANTIZED_LINEAR_ADD"}
    for name in ("A", "B", "Output"):
        document |= {f"{name}Tensor": tensor(data_type, size)}
        document |= {f"{name}ScaleTensor": tensor("FLOAT32", 1), f"{name}ZeroPointTensor": tensor(data_type, 1)}
    return compiled(document)


def saturated(quotient: Array, zero: Array, dtype: np.dtype[Any]) -> Array:
    ends = np.iinfo(dtype)
    moved = np.rint(quotient) + zero
    return np.where(np.isnan(moved), 0, np.clip(moved, ends.min, ends.max)).astype(dtype)


def scales() -> Iterator[tuple[np.float32, ...]]:
    for each in product(SCALES, repeat=3):
        yield tuple(map(np.float32, each))
    for _ in range(2000):
        a, b, c = RANDOM.standard_normal(3)
        yield np.float32(a), np.float32(b), np.float32(c)


@pytest.mark.parametrize("data_type", ["INT8", "UINT8"])
def test_sums_of_quantized_numbers(tmp_path: Path, data_type: str) -> None:
    dtype = np.dtype(data_type.lower())
    count = 256
    columns: list[list[Array]] = [[] for _ in range(8)]
    for first, second, scale in scales():
        a, b = (RANDOM.integers(0, 256, count).astype(np.uint8).view(dtype) for _ in range(2))
        zeros = RANDOM.integers(0, 256, 3).astype(np.uint8).view(dtype)
        given = (a, first, zeros[0], b, second, zeros[1], scale, zeros[2])
        for column, each in zip(columns, given, strict=True):
            column.append(np.broadcast_to(np.asarray(each), count))
    inputs = [np.concatenate(column) for column in columns]
    (element,) = build(tmp_path, [quantized_add(data_type, inputs[0].size)])
    a_data, a_scale, a_zero, b_data, b_scale, b_zero, divisor, zero = (each.astype(np.float64) for each in inputs)
    with np.errstate(all="ignore"):
        expected = saturated(((a_data - a_zero) * a_scale + (b_data - b_zero) * b_scale) / divisor, zero, dtype)
    np.testing.assert_array_equal(element(*inputs), expected)


@pytest.mark.parametrize("data_type", ["INT8", "UINT8"])
def test_four_sums_of_quantized_numbers_at_once(tmp_path: Path, data_type: str) -> None:
    """As vectors of bytes are computed: the same, or known not to be."""
    dtype, count, known = np.dtype(data_type.lower()), 256, 0
    operator = quantized_add(data_type, count)
    (element,) = build(tmp_path, [operator])
    words = build_words(tmp_path, operator)
    for first, second, scale in scales():
        a, b = (RANDOM.integers(0, 256, count).astype(np.uint8).view(dtype) for _ in range(2))
        zeros = RANDOM.integers(0, 256, 3).astype(np.uint8).view(dtype)
        given = [np.atleast_1d(each) for each in (a, first, zeros[0], b, second, zeros[1], scale, zeros[2])]
        expected = element(*(np.ascontiguousarray(np.broadcast_to(each, count)) for each in given))
        made, far = words(*given)
        near = ~np.repeat(far, 4)
        known += int(near.sum())
        np.testing.assert_array_equal(made[near], expected[near])
    assert known > 2000 * count


class AtOnce(Lowering):
    """As in kernels of rows and of what goes by coordinates, whose functions look themselves whether it was too far."""

    looks_again = False


def lower_at_once(ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> Arithmetic:
    return AtOnce(ask, root, inputs, stored).arithmetic()


def test_all_kernels_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an operator's results are no others in a graph."""
    size = 1 << 16
    bits = RANDOM.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32)
    x = np.concatenate([bits, (4 * RANDOM.standard_normal(size)).astype(np.float32)])
    y = np.concatenate([RANDOM.permutation(bits), (9 * RANDOM.standard_normal(size)).astype(np.float32)])
    a, b = (RANDOM.integers(0, 256, x.size).astype(np.uint8) for _ in range(2))
    scale = [np.abs(each) for each in (x, y, RANDOM.permutation(y))]
    float32 = tensor("FLOAT32", x.size)
    gelu = {"Type": "ACTIVATION_GELU", "InputTensor": float32}
    power = {"Type": "ELEMENT_WISE_POW", "InputTensor": float32, "ExponentTensor": float32}
    operators = [compiled(gelu), compiled(power), quantized_add("UINT8", x.size)]
    given = [[x], [x, y], [a, scale[0], b, b, scale[1], a, scale[2], b]]
    folders = [tmp_path / each for each in ("twice", "once")]
    for folder in folders:
        folder.mkdir()
    twice = build(folders[0], operators)
    monkeypatch.setattr(cuda_on_cpu, "lower", lower_at_once)
    once = build(folders[1], operators)
    for inputs, one, other in zip(given, twice, once, strict=True):
        np.testing.assert_array_equal(one(*inputs).view(np.uint8), other(*inputs).view(np.uint8))


def test_gelu_down_to_its_least_results(tmp_path: Path) -> None:
    """Which are subnormal from some -13.1 on, and need no more digits than float32 has: NVRTC takes long for more."""
    x = np.concatenate([np.linspace(-16, -11, 1 << 16), [-np.inf, -1e30, -100.0, np.nan, np.inf]]).astype(np.float32)
    operator = compiled({"Type": "ACTIVATION_GELU", "InputTensor": tensor("FLOAT32", x.size)})
    (element,) = build(tmp_path, [operator])
    made = element(x)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = np.array([each * math.erfc(-each / math.sqrt(2)) / 2 for each in wide[:-5]])
        apart = np.abs(made[:-5] - expected) / np.spacing(np.abs(expected.astype(np.float32))).astype(np.float64)
    assert apart.max() < 1.5
    np.testing.assert_array_equal(made[-5:], np.array([-0.0, -0.0, -0.0, np.nan, np.inf], np.float32))
    assert np.signbit(made[-5:-2]).all()
    assert "wide" not in cuda_on_cpu.arithmetic_of(operator).source


HALVES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("ACTIVATION_GELU", {}, "gelu_half"),
    ("ACTIVATION_SOFTPLUS", {"Steepness": 1.0}, "softplus_half"),
    ("ACTIVATION_SOFTPLUS", {"Steepness": 3.0}, "steep_softplus_half"),
    ("ACTIVATION_SOFTPLUS", {"Steepness": 1e30}, ""),
    ("ACTIVATION_SWISH", {"SigmoidInputScale": 1.0}, "plain_swish_half"),
    ("ACTIVATION_SWISH", {"SigmoidInputScale": -1.7}, "swish_half"),
    ("ACTIVATION_SWISH", {"SigmoidInputScale": 1e-30}, ""),
    ("ACTIVATION_PARAMETRIC_SOFTPLUS", {"Alpha": 0.7, "Beta": -1.5}, "scaled_softplus_half"),
    ("ACTIVATION_PARAMETRIC_SOFTPLUS", {"Alpha": 1e-30, "Beta": 1.0}, ""),
    ("ACTIVATION_SIGMOID", {}, "sigmoid_half"),
    ("ELEMENT_WISE_ASIN", {"ScaleBias": None}, "asin_half"),
    ("ELEMENT_WISE_ACOS", {"ScaleBias": None}, "acos_half"),
    ("ELEMENT_WISE_ATAN", {"ScaleBias": None}, "atan_half"),
    ("ELEMENT_WISE_ATANH", {"ScaleBias": None}, "atanh_half"),
    ("ELEMENT_WISE_LOG", {"ScaleBias": None}, "log_half"),
    ("ELEMENT_WISE_SIN", {"ScaleBias": None}, "sine_half"),
    ("ELEMENT_WISE_COS", {"ScaleBias": None}, "cosine_half"),
    ("ELEMENT_WISE_SINH", {"ScaleBias": None}, "sinh_half"),
    ("ELEMENT_WISE_ERF", {"ScaleBias": None}, "erf_half"),
    ("ELEMENT_WISE_ASINH", {"ScaleBias": None}, "asinh_half"),
    ("ELEMENT_WISE_ACOSH", {"ScaleBias": None}, "acosh_half"),
)


@pytest.mark.parametrize(
    ("name", "tensors", "function", "exact"),
    [
        ("ELEMENT_WISE_POW", ("InputTensor", "ExponentTensor"), "power_of_halves", np.float_power),
        ("ELEMENT_WISE_ATAN_YX", ("ATensor", "BTensor"), "atan2_half", np.arctan2),
    ],
)
def test_functions_of_two_with_the_digits_of_float16(
    tmp_path: Path, name: str, tensors: tuple[str, str], function: str, exact: Callable[..., Any]
) -> None:
    """Of any float16, of ordinary ones, of bases next to 1, and of all that is special."""
    operator = compiled({"Type": name, **dict.fromkeys(tensors, tensor("FLOAT16", 8))})
    assert f"({function}(" in cuda_on_cpu.arithmetic_of(operator).source
    (element,) = build(tmp_path, [operator])
    rng, count = np.random.default_rng(4), 1 << 16
    any_ = [rng.integers(0, 1 << 16, count).astype(np.uint16).view(np.float16) for _ in range(3)]
    ordinary = [(rng.standard_normal(count) * scale).astype(np.float16) for scale in (1, 4)]
    near_1 = (1 + rng.integers(-256, 256, count) / 2048).astype(np.float16)
    special = np.array([0, -0.0, 1, -1, 2, -3, 0.5, np.inf, -np.inf, np.nan, 6e-8, -65504], np.float16)
    x = np.concatenate([np.repeat(special, special.size), any_[0], ordinary[0], near_1])
    y = np.concatenate([np.tile(special, special.size), any_[1], ordinary[1], any_[2]])
    with np.errstate(all="ignore"):
        right = exact(x.astype(np.float64), y.astype(np.float64))
        if function == "power_of_halves":  # of NaN too, which not every NumPy has
            right = np.where((y == 0) | (x == 1), 1, right)
        right, made = right.astype(np.float16), element(x, y)
    assert distance(made, right).max() <= 1
    zero = (made == 0) & (right == 0)
    np.testing.assert_array_equal(np.signbit(made[zero]), np.signbit(right[zero]))


def of_each_type(name: str, attributes: dict[str, Any]) -> dict[str, CompiledOperator]:
    return {
        data_type: compiled({"Type": name, "InputTensor": tensor(data_type, 8), **attributes})
        for data_type in ("FLOAT16", "FLOAT32")
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[cuda_on_cpu.Element]]:
    """The functions of those by name and attributes, built at once."""
    operators = [each for row in HALVES for each in of_each_type(*row[:2]).values()]
    made = build(tmp_path_factory.mktemp("halves"), operators)
    return {str(row[:2]): made[2 * place : 2 * place + 2] for place, row in enumerate(HALVES)}


@pytest.mark.parametrize(("name", "attributes", "function"), HALVES)
def test_functions_with_the_digits_of_float16(
    built: dict[str, list[cuda_on_cpu.Element]], name: str, attributes: dict[str, Any], function: str
) -> None:
    """Of all float16: the nearest one, or one beside it; and not of float32."""
    operators = of_each_type(name, attributes)
    sources = {data_type: cuda_on_cpu.arithmetic_of(each).source for data_type, each in operators.items()}
    bodies = {data_type: source.split("template <bool NEAR>")[-1] for data_type, source in sources.items()}
    assert [each for each in dict.fromkeys(row[2] for row in HALVES) if each and f"({each}(" in bodies["FLOAT16"]] == (
        [function] if function else []
    )
    assert not any(row[2] and f"{row[2]}(" in bodies["FLOAT32"] for row in HALVES)
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    half, single = built[str((name, attributes))]
    with np.errstate(all="ignore"):
        made, right = half(x), single(x.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(right))
    there = ~np.isnan(right)
    steps = [
        np.where(each < 0, -(each & 0x7FFF), each)
        for each in (y[there].view(np.int16).astype(int) for y in (made, right))
    ]
    assert np.abs(steps[0] - steps[1]).max() <= 1
    if not name.startswith("ACTIVATION"):  # those of activations of -0 are 0 with either sign
        zeros = np.flatnonzero((x == 0) & there)
        np.testing.assert_array_equal(np.signbit(made[zeros]), np.signbit(right[zeros]))
