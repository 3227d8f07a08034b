"""Operators that are calls on whole arrays end soon after nobody waits for them any more."""

import tracemalloc
from time import monotonic
from typing import Any

import numpy as np
import pytest

from app.devices.device import Cancelled, own_bytes
from app.memory.arrays import Array
from app.operators.looks import look, looking
from tests.operators.calls import DEVICE, compiled, desc_of

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

    with pytest.raises(Cancelled), looking(ensure):
        look()
    look()


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
FIXED = 40 << 20
"""What pieces take, however many."""


@pytest.mark.parametrize("kind", MANY)
def test_what_calls_take_is_told(kind: str) -> None:
    document, inputs = MANY[kind]
    operator = compiled({"Type": kind, **document} | {name: desc_of(each) for name, each in inputs.items()})
    outputs = [memoryview(bytearray(desc.data_bytes)) for desc in operator.outputs.values()]
    buffers = [memoryview(bytearray(desc.data_bytes)) for desc in operator.inputs.values()]
    kernel = DEVICE.prepare(operator)
    tracemalloc.start()
    try:
        kernel.dispatch(buffers, outputs, lambda: False)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < taken < own_bytes(kernel) + FIXED
    assert own_bytes(kernel) < 1 << 28
