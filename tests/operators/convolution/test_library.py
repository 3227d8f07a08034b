"""Convolutions by cuDNN, some of whose engines (9.19) compute something else: how tensors are told to it, and on a GPU
what went wrong."""

from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.device import CudaDevice
from app.memory.arrays import Array
from app.operators.convolution.library import _is_row, _lies, _padded
from app.operators.convolution.windows import Windows
from tests.gpu import first_gpu
from tests.operators.arrays import bytes_of
from tests.operators.calls import DEVICE
from tests.operators.descriptors import compiled


def strided(sizes: list[int], strides: list[int]) -> Array:
    return np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), sizes, [4 * step for step in strides])


@pytest.mark.parametrize(
    ("sizes", "strides", "told"),
    [
        ([3, 3, 1, 2, 1], [6, 2, 18, 1, 6], [6, 2, 2, 1, 1]),
        ([1, 2, 3], [0, 3, 1], [6, 3, 1]),
        ([2, 3, 1, 4], [12, 1, 7, 3], [12, 1, 12, 3]),  # channels last
        ([1, 1, 1, 1], [5, 0, 9, 3], [1, 1, 1, 1]),
        ([2, 3, 4, 5], [60, 20, 5, 1], [60, 20, 5, 1]),
    ],
)
def test_what_is_one_element_long_has_a_packed_stride(sizes: list[int], strides: list[int], told: list[int]) -> None:
    assert _lies(strided(sizes, strides)) == (tuple(sizes), tuple(told))


def test_zeros_before_and_behind() -> None:
    x = np.arange(1, 7, dtype=np.float16).reshape(1, 1, 2, 3)
    made = _padded(np, x, [0, 2], [1, 0])
    assert (made.dtype, made.tolist()) == (x.dtype, [[[[0, 0, 1, 2, 3], [0, 0, 4, 5, 6], [0, 0, 0, 0, 0]]]])


@pytest.mark.parametrize(
    ("sizes", "extents", "is_row"),
    [([5], [3], True), ([1, 5], [1, 3], True), ([5, 1], [3, 1], True), ([1, 1], [1, 1], True), ([1, 5], [2, 3], False)],
)
def test_a_row(sizes: list[int], extents: list[int], is_row: bool) -> None:
    ones = [1] * len(sizes)
    assert _is_row(Windows(sizes, ones, extents, ones, ones, ones)) is is_row


def convolution(
    data_type: str, x: list[int], filters: list[int], before: list[int], behind: list[int], **more: Any
) -> dict[str, Any]:
    document: dict[str, Any] = {"Type": "CONVOLUTION", "Mode": "CROSS_CORRELATION", "Direction": "FORWARD"}
    document |= {"GroupCount": 1, "DimensionCount": len(before), "StartPadding": before, "EndPadding": behind}
    document |= {name: [1] * len(before) for name in ("Strides", "Dilations")} | {"OutputPadding": [0] * len(before)}
    tensors = {"InputTensor": x, "FilterTensor": filters}
    return document | {name: {"DataType": data_type, "Sizes": sizes} for name, sizes in tensors.items()} | more


def bias(data_type: str, channels: int, rank: int) -> dict[str, Any]:
    return {"BiasTensor": {"DataType": data_type, "Sizes": [1, channels, *[1] * rank]}}


BACKWARD: dict[str, Any] = {"Direction": "BACKWARD"}
SOFTSIGN: dict[str, Any] = {"FusedActivation": {"Type": "ACTIVATION_SOFTSIGN"}}
ODD_STRIDES: dict[str, Any] = {
    "FilterTensor": {"DataType": "FLOAT32", "Sizes": [3, 3, 1, 2, 1], "Strides": [6, 2, 18, 1, 6]}
}
WENT_WRONG = {
    "another stride of one element": convolution("FLOAT32", [3, 3, 4, 3, 1], [], [2, 0, 0], [0, 1, 0])
    | {"Strides": [2, 1, 3], "Dilations": [1, 1, 2]}
    | ODD_STRIDES
    | SOFTSIGN,
    "more behind a row": convolution("FLOAT32", [3, 1, 3], [1, 1, 3], [1], [2]),
    "more before a row, in groups": convolution("FLOAT32", [1, 4, 5], [4, 1, 3], [1], [0], GroupCount=4),
    "more behind a row of two dimensions": convolution(
        "FLOAT32", [2, 1, 1, 7], [1, 1, 1, 3], [0, 1], [0, 2], **SOFTSIGN
    ),
    "more before a row, backward": convolution("FLOAT16", [2, 1, 2], [1, 1, 3], [1], [0], **BACKWARD),
    "to one element with a bias": convolution(
        "FLOAT16", [3, 8, 1], [8, 8, 2], [1], [0], **bias("FLOAT16", 8, 1), **BACKWARD
    ),
    "to one of several elements": convolution(
        "FLOAT16", [3, 16, 3, 1], [16, 8, 1, 1], [0, 0], [2, 0], **bias("FLOAT16", 8, 2), **BACKWARD
    ),
}


def made_by(device: NumpyDevice | CudaDevice, document: dict[str, Any], inputs: list[Array]) -> Array:
    operator = compiled(document)
    desc = operator.outputs["OutputTensor"]
    output = np.zeros(desc.Sizes, desc.DataType.value.lower())
    device.prepare(operator).dispatch([bytes_of(each) for each in inputs], [bytes_of(output)], lambda: False)
    return output


@pytest.mark.gpu
@pytest.mark.parametrize("document", WENT_WRONG.values(), ids=WENT_WRONG)
def test_what_went_wrong(document: dict[str, Any]) -> None:
    rng, gpu = np.random.default_rng(3), first_gpu()
    descs = compiled(document).inputs.values()
    inputs = [rng.standard_normal(each.elements).astype(each.DataType.value.lower()) for each in descs]
    near = 1e-5 if document["InputTensor"]["DataType"] == "FLOAT32" else 1e-2
    np.testing.assert_allclose(made_by(gpu, document, inputs), made_by(DEVICE, document, inputs), near, near)
