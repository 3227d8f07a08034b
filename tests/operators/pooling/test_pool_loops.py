"""MAX_POOLING, AVERAGE_POOLING and LP_POOLING by loops along rows: the bits by coordinates, which are the judge."""

import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cpu import alone
from app.devices.cpu import device as cpu_device
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import coordinate_loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.pools import LEAST_OF_LARGE, LEAST_ROW, SMALL, PoolKernel
from app.devices.device import Cancelled, InTurn, Kernel
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from app.operators.pooling.averages import MOST_RAISED

HELPERS = ThreadPoolExecutor(1)
JUDGE = NumpyDevice(HELPERS, 1)
"""By NumPy's calls, for which nothing is compiled: loops by coordinates take ten times as long to make as these."""


@pytest.fixture(scope="module")
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(4) as helpers:
        yield NumpyDevice(helpers, 3, Compiler())


def computed(kernel: Kernel, x: Array, sizes: list[int]) -> Array:
    return outputs(kernel, x, sizes, [x.dtype])[0]


def outputs(kernel: Kernel, x: Array, sizes: list[int], types: list[np.dtype[Any]]) -> list[Array]:
    made = [np.full(sizes, 7, each) for each in types]
    kernel.dispatch([memoryview(x.tobytes())], [each.reshape(-1).view(np.uint8).data for each in made], lambda: False)
    return made


def windows_of(
    rng: np.random.Generator, largest: int = 4, row: tuple[int, int] = (10, 150)
) -> tuple[list[int], list[int], dict[str, list[int]]]:
    """Sizes of a tensor with rows of such lengths, those of the output, and attributes."""
    while True:
        rank = int(rng.integers(2, 4))
        members = {
            name: [int(each) for each in rng.integers(least, most + 1, rank)]
            for name, least, most in (
                *(("Strides", 1, 5), ("WindowSize", 1, largest), ("Dilations", 1, 3)),
                *(("StartPadding", 0, 5), ("EndPadding", 0, 5)),
            )
        }
        spatial = [*(int(each) for each in rng.integers(1, 5 + largest, rank - 1)), int(rng.integers(*row))]
        pooled = [
            (size + start + end - 1 - (window - 1) * dilation) // stride + 1
            for size, start, end, window, dilation, stride in zip(
                spatial,
                *(members[name] for name in ("StartPadding", "EndPadding", "WindowSize", "Dilations", "Strides")),
                strict=True,
            )
        ]
        least = LEAST_ROW if math.prod(members["WindowSize"]) <= SMALL else LEAST_OF_LARGE
        if min(pooled) > 0 and pooled[-1] >= least:
            leading = [int(each) for each in rng.integers(1, 9, 2)]
            return [*leading, *spatial], [*leading, *pooled], members


TYPES = ["FLOAT32", "FLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"]


def elements(rng: np.random.Generator, sizes: list[int], type_: str) -> Array:
    """Of floats NaN, infinities and both zeros as well, of integers the first and the last."""
    dtype = np.dtype(type_.lower())
    if dtype.kind == "f":
        x = rng.standard_normal(sizes).astype(dtype)
        x[rng.random(sizes) < 0.2] = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype))
        return x
    limits = np.iinfo(dtype.name)
    x = rng.integers(limits.min, limits.max, sizes, dtype, endpoint=True)
    x[rng.random(sizes) < 0.2] = rng.choice(np.array([limits.min, limits.max], dtype))
    return x


@pytest.mark.parametrize(
    ("kind", "type_", "seed"),
    [
        *((kind, each, n) for kind in ("AVERAGE_POOLING1", "LP_POOLING1") for each in TYPES[:2] for n in range(6)),
        *(("MAX_POOLING2", each, n) for each in TYPES for n in [*range(6 if each in TYPES[:2] else 3), 9]),
    ],
)
def test_windows_are_those_by_coordinates(
    device: NumpyDevice, seed: int, kind: str, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the tensor and in pieces, large ones, and few in a row; of maxima with the places where they are, or
    without."""
    rng = np.random.default_rng(seed)
    sizes, pooled, members = windows_of(rng, 10 if seed % 4 == 0 else 4, (10, 150) if seed < 4 else (3, 10))
    x = elements(rng, sizes, type_)
    if seed % 2:
        monkeypatch.setattr(alone, "MOST_OF_A_CALL", 1 << 8)
    document: dict[str, Any] = {
        "Type": kind,
        "InputTensor": {"DataType": type_, "Sizes": sizes},
        "OutputTensor": {"DataType": type_, "Sizes": pooled},
        **members,
    }
    types = [x.dtype]
    if kind == "AVERAGE_POOLING1":
        document["IncludePadding"] = bool(rng.integers(2))
    elif kind == "LP_POOLING1":
        document["P"] = int(rng.integers(1, 3))
    elif seed in (2, 5, 9):
        types.append(np.dtype(["uint32", "uint64"][seed % 2]))
        document["OutputIndicesTensor"] = {"DataType": types[1].name.upper(), "Sizes": pooled}
    operator = compile_operator(OPERATORS[f"DML_OPERATOR_{kind}"].model_validate(document), NEWEST)
    kernel = device._kernel(operator, None, 1)
    assert isinstance(kernel, PoolKernel)
    made, *places = outputs(kernel, x, pooled, types)
    monkeypatch.setattr(cpu_device, "_OF_COORDINATES", ())
    monkeypatch.setattr(cpu_device, "array_kernel", lambda *_, **__: None)
    judge = JUDGE._kernel(operator, None, 1)
    assert isinstance(judge, CoordinateKernel | InTurn)
    right, *right_places = outputs(judge, x, pooled, types)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(right))
    there = ~np.isnan(right)
    assert made[there].tobytes() == right[there].tobytes()
    for one, other in zip(places, right_places, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(Cancelled):
        kernel.dispatch(
            [memoryview(x.tobytes())], [memoryview(bytearray(each.nbytes)) for each in (made, *places)], lambda: True
        )


@pytest.mark.parametrize(("window", "least"), [(8, LEAST_ROW), (9, LEAST_OF_LARGE)])
def test_there_are_loops_from_some_windows_of_a_row_on(device: NumpyDevice, window: int, least: int) -> None:
    assert (window * window <= SMALL) == (least == LEAST_ROW)
    for count in (least - 1, least):
        document = {
            "Type": "MAX_POOLING",
            "InputTensor": {"DataType": "FLOAT16", "Sizes": [1, 2, window, window + count - 1]},
            "WindowSize": [window, window],
            "Strides": [1, 1],
            "StartPadding": [0, 0],
            "EndPadding": [0, 0],
        }
        operator = compile_operator(validate(OPERATORS["DML_OPERATOR_MAX_POOLING"], document), NEWEST)
        assert isinstance(device._kernel(operator, None, 1), PoolKernel) == (count == least)


@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_windows_inside_are_taken_without_a_look_at_their_ends(dilation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By coordinates, too: of a dilated window's elements those that are inside are found by dividing, and where that
    comes out otherwise for each window, each is computed by itself."""
    runs = np.zeros(1, np.int64)
    counting = (
        f"%run.place = inttoptr i64 {runs.ctypes.data} to ptr\n%run.before = load i64, ptr %run.place\n"
        "%run.after = add i64 %run.before, 1\nstore i64 %run.after, ptr %run.place"
    )

    def code(compiler: Compiler, source: str) -> Code:
        lines = []
        for number, line in enumerate(source.splitlines()):
            lines.append(line)
            if re.match(r"%n\d+ = ", line):  # how long a run is
                lines.append(counting.replace("%run", f"%run{number}"))
        return Code(compiler, "\n".join(lines))

    monkeypatch.setattr(coordinate_loops, "Code", code)
    monkeypatch.setattr(cpu_device, "_OF_COORDINATES", ())
    document = {
        "Type": "MAX_POOLING2",
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1000]},
        "Strides": [1, 1],
        "WindowSize": [1, 3],
        "Dilations": [1, dilation],
        "StartPadding": [0, dilation],
        "EndPadding": [0, dilation],
    }
    operator = compile_operator(validate(OPERATORS["DML_OPERATOR_MAX_POOLING2"], document), NEWEST)
    kernel = NumpyDevice(HELPERS, 1, Compiler())._kernel(operator, None, 1)
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(computed(kernel, x, [1000]), np.where(x + dilation < 1000, x + dilation, x))
    assert runs[0] < 100


@pytest.mark.parametrize("type_", ["INT8", "UINT8"])
@pytest.mark.parametrize("seed", range(6))
def test_sums_of_bytes_are_quantized(device: NumpyDevice, seed: int, type_: str) -> None:
    """Of windows, and of one that is all of the tensor: as NumPy makes it by the formula, to the last bit."""
    rng = np.random.default_rng(seed)
    sizes, pooled, members = windows_of(rng, 10 if seed == 4 else 4, (10, 90))
    if seed >= 4:
        sizes, pooled = [3, 5, 7, 9], [3, 5, 1, 1]
        members = {name: [1, 1] for name in ("Strides", "Dilations")} | {"WindowSize": [7, 9]}
        members |= {"StartPadding": [0, 0], "EndPadding": [0, 0]}
    channels = [1, sizes[1], *[1] * (len(sizes) - 2)]
    given = {
        "InputTensor": elements(rng, sizes, type_),
        "InputScaleTensor": rng.uniform(0.5, 2, channels).astype(np.float32),
        "InputZeroPointTensor": elements(rng, channels, type_),
        "OutputScaleTensor": rng.uniform(0.5, 2, [1] * len(sizes)).astype(np.float32),
        "OutputZeroPointTensor": elements(rng, [1] * len(sizes), type_),
    }
    document: dict[str, Any] = {"Type": "QUANTIZED_LINEAR_AVERAGE_POOLING", "IncludePadding": bool(seed % 2), **members}
    document |= {name: {"DataType": each.dtype.name.upper(), "Sizes": list(each.shape)} for name, each in given.items()}
    kind = OPERATORS["DML_OPERATOR_QUANTIZED_LINEAR_AVERAGE_POOLING"]
    operator = compile_operator(validate(kind, document), NEWEST)
    results = []
    for each in (device, NumpyDevice(HELPERS, 1)):
        kernel = each._kernel(operator, None, 1)
        results.append(np.full(pooled, 7, type_.lower()))
        kernel.dispatch([x.data.cast("B") for x in given.values()], [results[-1].data.cast("B")], lambda: False)
        assert isinstance(kernel, CallsKernel if each is device else CoordinateKernel)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("type_", TYPES[:2])
@pytest.mark.parametrize(
    ("along", "sizes"), [(1, [1, 2, 5, 40]), (2, [2, 3, 1, 9]), (5, [2, 3, 8, 37]), (16, [1, 2, 20, 7])]
)
def test_squares_around_elements_are_those_of_windows(
    device: NumpyDevice, along: int, sizes: list[int], type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOCAL_RESPONSE_NORMALIZATION within channels: as by coordinates, but for the order in which squares are added."""
    x = elements(np.random.default_rng(along), sizes, type_)
    document = {
        "Type": "LOCAL_RESPONSE_NORMALIZATION",
        "InputTensor": {"DataType": type_, "Sizes": sizes},
        "CrossChannel": False,
        "LocalSize": along,
        "Alpha": 0.5,
    }
    operator = compile_operator(validate(OPERATORS["DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION"], document), NEWEST)
    kernel = device._kernel(operator, None, 1)
    assert isinstance(kernel, CallsKernel)
    monkeypatch.setattr(cpu_device, "ended_windows_kernel", lambda *_, **__: None)
    judge = JUDGE._kernel(operator, None, 1)
    assert isinstance(judge, CoordinateKernel)
    made, right = (computed(each, x, sizes) for each in (kernel, judge))
    np.testing.assert_array_equal(np.isnan(made), np.isnan(right))
    np.testing.assert_array_max_ulp(np.nan_to_num(made), np.nan_to_num(right), 1)


@pytest.mark.parametrize("exponent", [3, MOST_RAISED])
def test_norms_whose_powers_are_products_are_loops(device: NumpyDevice, exponent: int) -> None:
    """By NumPy's `power` a window takes hundreds of times as long."""
    document = {
        "Type": "LP_POOLING",
        "P": exponent,
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 40, 40]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 20, 20]},
        "Strides": [2, 2],
        "WindowSize": [2, 2],
        "StartPadding": [0, 0],
        "EndPadding": [0, 0],
    }
    operator = compile_operator(OPERATORS["DML_OPERATOR_LP_POOLING"].model_validate(document), NEWEST)
    kernel = device._kernel(operator, None, 1)
    assert isinstance(kernel, CoordinateKernel)
    assert kernel.calls()
