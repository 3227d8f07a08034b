"""What is prepared for a dispatch takes little memory and time, whatever sizes a client describes: it is before the
dispatch is charged for memory, and no one can end it."""

import tracemalloc
from typing import Any

import pytest

from app.devices.cpu.device import NumpyDevice
from tests.operators.calls import compiled

MOST = 4 << 20


def tensor(*sizes: int, data_type: str = "FLOAT32") -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": [*sizes]}


BYTES = {name: [0, 0] for name in ("StartPadding", "EndPadding")} | {name: [1, 1] for name in ("Strides", "Dilations")}
LONG = 1 << 20
AVERAGES: dict[str, Any] = {
    "Type": "AVERAGE_POOLING",
    "Strides": [1, 1],
    "WindowSize": [1, 2],
    "StartPadding": [0, 0],
    "EndPadding": [0, 2 * LONG],
}

DESCRIBED: dict[str, dict[str, Any]] = {
    "calls for each of many steps of many sequences": {
        "Type": "RNN",
        "Direction": "FORWARD",
        "ActivationDescs": [{"Type": "ACTIVATION_TANH"}],
        "InputTensor": tensor(1, 1024, 256, 1),
        "WeightTensor": tensor(1, 1, 512, 1),
        "RecurrenceTensor": tensor(1, 1, 512, 512),
        "OutputSingleTensor": tensor(1, 1, 256, 512),
    },
    "weights of each row": {
        "Type": "RESAMPLE_GRAD",
        "InterpolationMode": "LINEAR",
        "Scales": [1, 1, 2, 1],
        "InputPixelOffsets": [0.5] * 4,
        "OutputPixelOffsets": [-0.5] * 4,
        "InputGradientTensor": tensor(1, 1, 2 * LONG, 1),
        "OutputGradientTensor": tensor(1, 1, LONG, 1),
    },
    "what each element of a filter meets": {
        "Type": "CONVOLUTION",
        "Mode": "CROSS_CORRELATION",
        "Direction": "BACKWARD",
        "OutputPadding": [0, 0],
        "GroupCount": 1,
        **BYTES,
        "InputTensor": tensor(1, 1, 1, 2),
        "FilterTensor": tensor(1, 1, 1, 2 * LONG + 1),
        "OutputTensor": tensor(1, 1, 1, 2 * LONG + 2),
    },
    "phases of a filter": {
        "Type": "CONVOLUTION",
        "Mode": "CROSS_CORRELATION",
        "Direction": "BACKWARD",
        "OutputPadding": [0, 0],
        "GroupCount": 2,
        **BYTES,
        "Strides": [1, 8],
        "InputTensor": tensor(1, 2, 1, 2),
        "FilterTensor": tensor(2, 1, 1, 2 * LONG + 1),
        "OutputTensor": tensor(1, 2, 1, 2 * LONG + 9),
    },
    "what each element of a filter of bytes meets": {
        "Type": "CONVOLUTION_INTEGER",
        "GroupCount": 1,
        **BYTES,
        "InputTensor": tensor(1, 1, 1024, 1024, data_type="INT8"),
        "FilterTensor": tensor(1, 1, 1024, 1024, data_type="INT8"),
        "OutputTensor": tensor(1, 1, 1, 1, data_type="INT32"),
    },
    "counts of windows along a row": {**AVERAGES, "IncludePadding": False, "InputTensor": tensor(1, 1, 1, 1)},
    "counts of windows along a row of halves": {
        **AVERAGES,
        "IncludePadding": True,
        "InputTensor": tensor(1, 1, 1, 1, data_type="FLOAT16"),
    },
    "counts of windows over a plane": {
        "Type": "AVERAGE_POOLING",
        "Strides": [1, 1, 1],
        "WindowSize": [2, 2, 3],
        "StartPadding": [0, 0, 0],
        "EndPadding": [1024, 1024, 2],
        "IncludePadding": False,
        "InputTensor": tensor(1, 1, 1, 1, 1),
    },
    "weights of each combination of rows": {
        "Type": "RESAMPLE_GRAD",
        "InterpolationMode": "NEAREST_NEIGHBOR",
        "Scales": [1, 2 / 1024, 2 / 1024, 1],
        "InputPixelOffsets": [0.5] * 4,
        "OutputPixelOffsets": [-0.5] * 4,
        "InputGradientTensor": tensor(1, 2, 2, 1),
        "OutputGradientTensor": tensor(1, 1024, 1024, 1),
    },
    "counts of windows beside the tensor": {
        "Type": "AVERAGE_POOLING_GRAD",
        "Strides": [1, 1],
        "WindowSize": [1, 1],
        "StartPadding": [LONG, 0],
        "EndPadding": [0, 0],
        "IncludePadding": False,
        "InputGradientTensor": tensor(1, 1, LONG + 4, 4),
        "OutputGradientTensor": tensor(1, 1, 4, 4),
    },
}


@pytest.mark.parametrize("what", DESCRIBED)
def test_it_takes_little_memory(device: NumpyDevice, what: str) -> None:
    operator = compiled(DESCRIBED[what])
    tracemalloc.start()
    try:
        device.prepare(operator)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MOST
