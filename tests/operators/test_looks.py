"""Operators that are calls on whole arrays end soon after nobody waits for them any more."""

import itertools
import math
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Cancelled, Kernel, own_bytes
from app.memory.arrays import Array
from app.operators import arrays
from app.operators.compiled import CompiledOperator
from app.operators.looks import look, looking
from tests.operators.arrays import bytes_of, desc_of
from tests.operators.calls import DEVICE, compiled

WINDOWS: dict[str, Any] = {name: [0, 0] for name in ("StartPadding", "EndPadding")}
FILTERS = WINDOWS | {"Strides": [1, 1], "Dilations": [1, 1], "GroupCount": 1}


def ones(*sizes: int, dtype: str = "float32") -> Array:
    return np.ones(sizes, dtype)


LONG: dict[str, tuple[dict[str, Any], dict[str, Array]]] = {
    "CONVOLUTION": (
        FILTERS | {"Mode": "CROSS_CORRELATION", "Direction": "BACKWARD", "OutputPadding": [0, 0]},
        {"InputTensor": ones(1, 1, 1500, 1500), "FilterTensor": ones(1, 1, 1500, 1500)},
    ),
    "CONVOLUTION_INTEGER": (
        FILTERS,
        {"InputTensor": ones(1, 1, 3000, 3000, dtype="int8"), "FilterTensor": ones(1, 1, 1500, 1500, dtype="int8")},
    ),
    "MULTIHEAD_ATTENTION": (
        {"Scale": 1.0, "HeadCount": 1, "MaskType": "NONE"},
        {f"{name}Tensor": ones(1, 1 << 17, 64) for name in ("Query", "Key", "Value")},
    ),
    "ROI_ALIGN_GRAD": (
        {
            "ReductionFunction": "AVERAGE",
            "InterpolationMode": "LINEAR",
            "SpatialScaleX": 1.0,
            "SpatialScaleY": 1.0,
            "InputPixelOffset": 0.5,
            "OutputPixelOffset": -0.5,
            "MinimumSamplesPerOutput": 1000,
            "MaximumSamplesPerOutput": 1000,
            "AlignRegionsToCorners": False,
            "OutputGradientTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 50, 50]},
        },
        {
            "InputGradientTensor": ones(99, 1, 50, 50),
            "ROITensor": ones(99, 4),
            "BatchIndicesTensor": np.zeros(99, np.uint32),
        },
    ),
    "RNN": (
        {
            "Direction": "FORWARD",
            "ActivationDescs": [{"Type": "ACTIVATION_TANH"}],
            "OutputSingleTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]},
        },
        {
            "InputTensor": ones(1, 4_000_000, 1, 1),
            "WeightTensor": ones(1, 1, 1, 1),
            "RecurrenceTensor": ones(1, 1, 1, 1),
        },
    ),
}
"""What takes minutes to days, of few bytes."""


@pytest.mark.parametrize("kind", LONG)
def test_it_is_cancelled_between_pieces(kind: str) -> None:
    document, inputs = LONG[kind]
    operator = compiled({"Type": kind, **document} | {name: desc_of(each) for name, each in inputs.items()})
    outputs = [memoryview(bytearray(desc.data_bytes)) for desc in operator.outputs.values()]
    kernel = DEVICE.prepare(operator)
    started = monotonic()
    with pytest.raises(Cancelled):
        kernel.dispatch(
            [inputs[name].reshape(-1).view(np.uint8).data for name in operator.inputs],
            outputs,
            lambda: monotonic() - started > 0.2,
        )
    assert monotonic() - started < 5


def test_nobody_looks_afterwards() -> None:
    def ensure() -> None:
        raise Cancelled

    with looking(ensure):
        with looking(lambda: None):
            look()
        with pytest.raises(Cancelled):
            look()
    look()


PRODUCTS = [
    ((40, 30), (30, 20)),
    ((20, 3, 4), (20, 4, 2)),
    ((3, 2, 40, 30), (3, 2, 30, 20)),
    ((2, 1, 40, 30), (3, 30, 20)),
    ((3, 0, 4), (3, 4, 50)),
]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is less than a matrix of 40 rows."""
    monkeypatch.setattr(arrays, "_PRODUCTS", 1 << 13)
    monkeypatch.setattr(arrays, "_MATRIX", 1 << 10)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_products_are_looked_at_in_parts(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, sizes).astype(np.float32) for sizes in (left, right))
    looked: list[None] = []
    with looking(lambda: looked.append(None)):
        made = arrays.matmul(np, a, b)
    expected = np.matmul(a, b)
    np.testing.assert_array_equal(made, expected)
    work = 1024 * math.prod(expected.shape[:-2]) + a.shape[-1] * expected.size
    assert work <= 1 << 13 or work >> 14 < len(looked) <= work >> 11


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("left", "right"), PRODUCTS[:3])
def test_products_are_cancelled_between_parts(dtype: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    inputs = {name: np.ones((1, 1, *sizes)[-4:], dtype) for name, sizes in (("ATensor", left), ("BTensor", right))}
    document = {"Type": "GEMM", "TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0}
    operator = compiled(document | {name: desc_of(each) for name, each in inputs.items()})
    (desc,) = operator.outputs.values()
    asked = itertools.count()
    with pytest.raises(Cancelled):
        DEVICE.prepare(operator).dispatch(
            [inputs[name].reshape(-1).view(np.uint8).data for name in operator.inputs],
            [memoryview(bytearray(desc.data_bytes))],
            lambda: next(asked) == 2,
        )


MANY: dict[str, tuple[dict[str, Any], dict[str, Array]]] = {
    "LOCAL_RESPONSE_NORMALIZATION_GRAD": (
        {"CrossChannel": False, "LocalSize": 3},
        {name: ones(1, 1, 1 << 20, 2) for name in ("InputTensor", "InputGradientTensor")},
    ),
    "TOP_K1": ({"Axis": 3, "K": 1 << 21, "AxisDirection": "INCREASING"}, {"InputTensor": ones(1, 1, 1, 1 << 21)}),
    "NONZERO_COORDINATES": ({}, {"InputTensor": ones(1, 1, 1, 1 << 22)}),
    "CUMULATIVE_PRODUCT": (
        {"Axis": 0, "AxisDirection": "INCREASING", "HasExclusiveProduct": False},
        {"InputTensor": ones(1 << 20, 1, 2, 2, dtype="float16")},
    ),
    "DYNAMIC_QUANTIZE_LINEAR": ({}, {"InputTensor": ones(1, 1, 1, 1 << 22)}),
    "GEMM": (
        {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.5},
        {
            "ATensor": ones(1, 1, 1 << 11, 1 << 12)[..., ::2],
            "BTensor": np.broadcast_to(ones(1, 1, 1, 8), (1, 1, 1 << 11, 8)),
            "CTensor": ones(1, 1, 1 << 11, 8),
        },
    ),
}


@pytest.mark.parametrize(
    ("document", "sizes", "most"),
    [
        ({"Type": "ACTIVATION_HARDMAX"}, (1, 1, 1, 1 << 20), 4 << 20),
        (
            {"Type": "RANDOM_GENERATOR", "GeneratorType": "PHILOX_4X32_10"}
            | {"OutputTensor": {"DataType": "UINT32", "Sizes": [1, 1, 1 << 8, 1 << 9]}},
            (6,),
            24 << 20,
        ),
    ],
    ids=["where elements are", "a long formula"],
)
def test_what_a_thread_takes_is_bounded(document: dict[str, Any], sizes: tuple[int, ...], most: int) -> None:
    """However long groups and formulas are."""
    name, dtype = ("InputTensor", "float32") if "HARDMAX" in document["Type"] else ("InputStateTensor", "uint32")
    operator = compiled(document | {name: desc_of(ones(*sizes, dtype=dtype))})
    kernel = DEVICE.prepare(operator)
    assert own_bytes(kernel) == 0
    assert taken(kernel, operator) < most


FIXED = 40 << 20
"""What pieces take, however many."""


@pytest.mark.parametrize("kind", MANY)
def test_what_calls_take_is_told(kind: str) -> None:
    document, inputs = MANY[kind]
    operator = compiled({"Type": kind, **document} | {name: desc_of(each) for name, each in inputs.items()})
    kernel = DEVICE.prepare(operator)
    assert 0 < taken(kernel, operator) < own_bytes(kernel) + FIXED
    assert own_bytes(kernel) < 1 << 28


def test_what_lanes_take_is_told() -> None:
    """Those of each thread have all elements of their groups, twice."""
    x = desc_of(ones(1, 4096, 256))
    operator = compiled({"Type": "ACTIVATION_SOFTMAX1", "Axes": [1], "InputTensor": x})
    with ThreadPoolExecutor(2) as helpers:
        kernel = NumpyDevice(helpers, 2, Compiler()).prepare(operator)
        taken(kernel, operator)  # which compiles
        assert 0.9 * own_bytes(kernel) < taken(kernel, operator) < own_bytes(kernel) + (1 << 18)
    assert own_bytes(kernel) == 2 * 64 * 4096 * 8


LONG_ROW = 1 << 22

LONG_ROWS: list[tuple[dict[str, Any], Array]] = [
    ({"Type": "NONZERO_COORDINATES"}, ones(LONG_ROW)),
    ({"Type": "NONZERO_COORDINATES"}, ones(1, LONG_ROW // 2, 2)),
    *(
        ({"Type": "TOP_K1", "Axis": 0, "K": k, "AxisDirection": "DECREASING"}, x)
        for k in (1, LONG_ROW)
        for x in (ones(LONG_ROW), ones(2 * LONG_ROW)[::2], ones(LONG_ROW, dtype="float16"))
    ),
    *(
        (
            {"Type": "CUMULATIVE_SUMMATION", "Axis": 0, "AxisDirection": "DECREASING", "HasExclusiveSum": True},
            ones(LONG_ROW, dtype=dtype),
        )
        for dtype in ("float32", "float16")
    ),
]


@pytest.mark.parametrize("number", range(len(LONG_ROWS)))
def test_what_one_row_takes_is_told(number: int) -> None:
    """Which is not done in pieces, so that it grows with the row."""
    document, x = LONG_ROWS[number]
    operator = compiled(document | {"InputTensor": desc_of(x)})
    kernel = DEVICE.prepare(operator)
    assert taken(kernel, operator, [bytes_of(x)]) < own_bytes(kernel) + (1 << 20)


def test_sums_of_repeated_elements_are_written_out_in_pieces() -> None:
    """All of them would be 64 MiB."""
    terms = 1 << 18
    a = np.broadcast_to(np.arange(64, dtype=np.float32)[:, None], (64, terms))
    b = ones(terms, 4)
    tracemalloc.start()
    try:
        made = arrays.product(np, a, b)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(made, np.broadcast_to(a[:, :1] * terms, (64, 4)), 1e-5)


@pytest.mark.parametrize(
    ("sizes", "strides", "is_taken"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (4, 1), True),
        ((2, 3), (2, 1), False),
        ((2, 3), (1, 1), False),
        ((2, 3), (6, 2), False),
        ((1, 3), (0, 1), True),
        ((3, 1), (1, 0), True),
        ((3, 1), (2, 2), True),
    ],
)
def test_matrices_that_a_blas_takes(sizes: tuple[int, int], strides: tuple[int, int], is_taken: bool) -> None:
    """With one dimension of stride 1, and rows or columns that do not overlap."""
    assert arrays.is_for_blas(sizes, strides) is is_taken


def taken(kernel: Kernel, operator: CompiledOperator, inputs: Sequence[memoryview] = ()) -> int:
    """The most bytes at a time that a dispatch over zeros, or such inputs, takes beside its buffers."""
    zeros, outputs = (
        [memoryview(bytearray(desc.data_bytes)) for desc in descs.values()]
        for descs in (operator.inputs, operator.outputs)
    )
    inputs = inputs or zeros
    tracemalloc.start()
    try:
        kernel.dispatch(inputs, outputs, lambda: False)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
