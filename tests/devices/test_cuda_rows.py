"""CUDA kernels that add up without float64, on the CPU: sums of any size, as exact as operators say."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cuda import groups as groups_of_rows
from app.devices.cuda.groups import MOST_ELEMENTS, Rows
from app.devices.device import DeviceFailed
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.devices.rows_on_cpu import build_rows
from tests.operators.arrays import run
from tests.operators.numerics.samples import Exact, off_by, wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

ROWS = 7


def rows_of(dtype: str, size: int) -> Array:
    """Rows about 2, large, small, near the end of the range, with a NaN, an infinity, and of one number."""
    x = np.random.default_rng(size).standard_normal((1, 1, ROWS, size)) + 2
    factors = (1, 1e30, 1e-30, 3e37, 1, 1, 0) if dtype == "float32" else (1, 6e3, 1e-6, 1e-4, 1, 1, 0)
    x *= np.array(factors).reshape(-1, 1)
    x[0, 0, 4, size // 2], x[0, 0, 5, 0], x[0, 0, 6] = np.nan, np.inf, 0.1
    return x.astype(dtype)


def operator_of(name: str, x: Array, **members: Any) -> CompiledOperator:
    kind = OPERATORS[f"DML_OPERATOR_{name}"]
    tensor = {"DataType": x.dtype.name.upper(), "Sizes": list(x.shape)}
    return compile_operator(validate(kind, {"Type": kind.name(), "InputTensor": tensor, **members}), NEWEST)


def is_as_exact(made: Array, right: Array, of: Array, bound: float) -> None:
    """In units in the last place of `of`; where there is no number, there is none."""
    known = np.isfinite(right)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(right))
    assert off_by(made[known], Exact(right[known], of[known])) <= bound


@pytest.mark.parametrize("size", [MOST_ELEMENTS - 1, MOST_ELEMENTS, (1 << 32) - 1])
def test_groups_that_32_bits_do_not_count_go_the_other_way(tmp_path: Path, size: int) -> None:
    kind = OPERATORS["DML_OPERATOR_ACTIVATION_SOFTMAX"]
    tensor = {"DataType": "FLOAT16", "Sizes": [1, size]}
    softmax = compile_operator(validate(kind, {"Type": kind.name(), "InputTensor": tensor}), NEWEST)
    (kernel,) = CudaDeviceOnCpu(BuiltKernels(tmp_path)).kernels(softmax)
    if size < MOST_ELEMENTS:
        kernel.launch()
        return
    with pytest.raises(DeviceFailed, match=f"does not count {size} elements of a group"):
        kernel.launch()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalizations_of_rows(tmp_path: Path, dtype: str) -> None:
    """In registers of warps and of blocks, by one and by vectors, and read again."""
    sizes, rng = (2, 5, 17, 64, 768, 1023, 1024, 2500), np.random.default_rng(1)
    repeated = {"DataType": dtype.upper(), "Sizes": [1, 1, ROWS, 0], "Strides": [0, 0, 0, 1]}
    given = [(rows_of(dtype, size), *rng.standard_normal((2, size)).astype(dtype)) for size in sizes]
    operators = []
    for x, *_ in given:
        more = repeated | {"Sizes": list(x.shape)}
        members = {"Axes": [3], "NormalizeVariance": True, "Epsilon": 1e-5, "ScaleTensor": more, "BiasTensor": more}
        operators += [operator_of("MEAN_VARIANCE_NORMALIZATION1", x, **members)]
        operators += [operator_of("LP_NORMALIZATION", x, Axis=3, Epsilon=1e-5, P=p) for p in (1, 2)]
    functions = iter(build_rows(tmp_path, operators))
    epsilon = np.longdouble(np.float32(1e-5))
    for x, scale, bias in given:
        w, s, b = wide(x, scale, bias)
        with np.errstate(all="ignore"):
            mean = w.mean(-1, keepdims=True)
            factor = s / np.sqrt(((w - mean) ** 2).mean(-1, keepdims=True) + epsilon)
            right, of = factor * (w - mean) + b, abs(factor * w) + abs(factor * mean) + abs(b)
            is_as_exact(next(functions)(x, scale, bias), right, of, 1)
            for p in (1, 2):
                norm = (abs(w) ** p).sum(-1, keepdims=True) ** (np.longdouble(1) / p)
                right = w / np.maximum(norm, epsilon)
                is_as_exact(next(functions)(x), right, abs(right), 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalizations_across(tmp_path: Path, dtype: str) -> None:
    """Of groups side by side: by one thread, by one of each warp in registers, and read again."""
    sizes, groups = (5, 24, 100, 300), 37
    given = [np.repeat(rows_of(dtype, size)[..., None], groups, -1)[0] for size in sizes]
    operators = []
    for x in given:
        repeated = {"DataType": x.dtype.name.upper(), "Sizes": list(x.shape), "Strides": [0, 0, 1, 0]}
        members = {"Axes": [2], "NormalizeVariance": True, "Epsilon": 1e-5, "ScaleTensor": repeated}
        operators.append(operator_of("MEAN_VARIANCE_NORMALIZATION1", x, **members))
    with mock.patch.object(groups_of_rows, "LEAST_ACROSS", ROWS * groups):
        functions = build_rows(tmp_path, operators)
        kinds = [Rows.of(each, "OutputTensor").kind(aligned=True) for each in operators]
    assert [(kind.threads, kind.kept) for kind in kinds] == [(1, 5), (4, 6), (8, 13), (16, 0)]
    assert all(kind.across for kind in kinds)
    for x, function in zip(given, functions, strict=True):
        scale = np.random.default_rng(1).standard_normal(x.shape[2]).astype(dtype)
        w, s = wide(x, scale.reshape(-1, 1))
        with np.errstate(all="ignore"):
            mean = w.mean(2, keepdims=True)
            factor = s / np.sqrt(((w - mean) ** 2).mean(2, keepdims=True) + np.longdouble(np.float32(1e-5)))
            is_as_exact(function(x, scale), factor * (w - mean), abs(factor * w) + abs(factor * mean), 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_groups_of_several_dimensions(tmp_path: Path, dtype: str) -> None:
    """Vectors of the last one, one by one where these would go beyond it; and one scale for all of a group."""
    groups, repeated = 5, {"DataType": dtype.upper(), "Strides": [0, 1, 0, 0]}
    given = [
        np.moveaxis(rows_of(dtype, 2 * 3 * size)[0, 0, :groups].reshape(groups, 2, 3, size), 0, 1).copy()
        for size in (16, 15)
    ]
    operators = []
    for x in given:
        one_of_a_group = repeated | {"Sizes": list(x.shape)}
        members = {"Axes": [0, 2, 3], "NormalizeVariance": True, "Epsilon": 1e-5, "ScaleTensor": one_of_a_group}
        operators.append(operator_of("MEAN_VARIANCE_NORMALIZATION1", x, **members))
    functions = build_rows(tmp_path, operators)
    kinds = [Rows.of(each, "OutputTensor").kind(aligned=True) for each in operators]
    assert [(kind.inner, kind.width) for kind in kinds] == [(2, 16 // given[0].itemsize), (2, 1)]
    scale = np.random.default_rng(1).standard_normal(groups).astype(dtype)
    for x, function in zip(given, functions, strict=True):
        w, s = wide(x, scale.reshape(-1, 1, 1))
        with np.errstate(all="ignore"):
            mean = w.mean((0, 2, 3), keepdims=True)
            factor = s / np.sqrt(((w - mean) ** 2).mean((0, 2, 3), keepdims=True) + np.longdouble(np.float32(1e-5)))
            is_as_exact(function(x, scale), factor * (w - mean), abs(factor * w) + abs(factor * mean), 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_that_no_thread_keeps(tmp_path: Path, dtype: str) -> None:
    """They are read again, some neighbours at a time."""
    given = [rows_of(dtype, size) for size in (23, 48)]
    members: dict[str, Any] = {"Axes": [3], "NormalizeVariance": True, "Epsilon": 1e-5}
    with mock.patch.object(groups_of_rows, "MOST_KEPT", {4: 1}):
        operators = [operator_of("MEAN_VARIANCE_NORMALIZATION1", x, **members) for x in given]
        operators += [operator_of("ACTIVATION_HARDMAX1", x, Axes=[3]) for x in given]
        functions = build_rows(tmp_path, operators)
        kinds = [Rows.of(each, "OutputTensor").kind(aligned=True) for each in operators]
    vector = 16 // given[0].itemsize
    assert [(kind.threads, kind.kept, kind.width) for kind in kinds] == 2 * [(4, 0, 1), (4, 0, vector)]
    for x, normalized, hardmax in zip(given, functions[:2], functions[2:], strict=True):
        (w,) = wide(x)
        with np.errstate(all="ignore"):
            mean = w.mean(-1, keepdims=True)
            factor = 1 / np.sqrt(((w - mean) ** 2).mean(-1, keepdims=True) + np.longdouble(np.float32(1e-5)))
            is_as_exact(normalized(x), factor * (w - mean), abs(factor * w) + abs(factor * mean), 1)
        np.testing.assert_array_equal(hardmax(x).argmax(-1), np.argmax(x, -1))


FUNCTIONS = ("SUM", "AVERAGE", "L1", "L2", "SUM_SQUARE", "LOG_SUM", "LOG_SUM_EXP")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reductions_of_rows(tmp_path: Path, dtype: str) -> None:
    """By threads alone, and by those of a block."""
    cases = [(function, rows_of(dtype, size)) for function in FUNCTIONS for size in (9, 700)]
    operators = [operator_of("REDUCE", x, Function=function, Axes=[3]) for function, x in cases]
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, operators))
    for (function, x), operator in zip(cases, operators, strict=True):
        (w,) = wide(x)
        with np.errstate(all="ignore"):
            total, parts = w.sum(-1, keepdims=True), abs(w).sum(-1, keepdims=True)
            squares, shift = (w * w).sum(-1, keepdims=True), w.max(-1, keepdims=True)
            right = {
                "SUM": total,
                "AVERAGE": total / x.shape[-1],
                "L1": parts,
                "L2": np.sqrt(squares),
                "SUM_SQUARE": squares,
                "LOG_SUM": np.log(total),
                "LOG_SUM_EXP": np.log(np.exp(w - shift).sum(-1, keepdims=True)) + shift,
            }[function]
            size = {"SUM": parts, "AVERAGE": parts / x.shape[-1]}.get(function, abs(right))
            limited = np.where(abs(right) > np.finfo(dtype).max, np.inf, right)  # sums that their type does not hold
        (made,) = run(device, operator, {"InputTensor": x}).values()
        known = np.isfinite(limited) & np.isfinite(made)
        is_as_exact(made[known], limited[known], size[known], 1)
        np.testing.assert_array_equal(np.isnan(made[..., 4, :]), True)
