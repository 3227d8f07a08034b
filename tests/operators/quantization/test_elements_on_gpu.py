"""DYNAMIC_QUANTIZE_LINEAR on GPUs: the kernels under NVRTC, which needs none, and on one."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.device import CudaDevice
from app.operators.quantization import elements_on_gpu
from app.operators.quantization.elements_on_gpu import EACH, MOST_BLOCKS, THREADS
from tests.gpu import assert_compiles, assert_recorded, first_gpu
from tests.operators.arrays import bytes_of
from tests.operators.calls import DEVICE
from tests.operators.descriptors import compiled

FLOATS = pytest.mark.parametrize("given", [DataType.FLOAT32, DataType.FLOAT16])
INTEGERS = pytest.mark.parametrize("made", [DataType.INT8, DataType.UINT8])
BLOCK = THREADS * EACH


@FLOATS
@INTEGERS
def test_kernels_compile(given: DataType, made: DataType) -> None:
    assert_compiles(elements_on_gpu.source(given, made), 80)


def dispatched(device: NumpyDevice | CudaDevice, x: Any, made: DataType) -> list[Any]:
    """Outputs, the third time, for which a GPU has a graph."""
    document = {
        "Type": "DYNAMIC_QUANTIZE_LINEAR",
        "InputTensor": {"DataType": x.dtype.name.upper(), "Sizes": list(x.shape)},
        "OutputTensor": {"DataType": made.value, "Sizes": list(x.shape)},
    }
    kernel = device.prepare(compiled(document))
    integers = made.value.lower()
    outputs = [np.empty(x.shape, integers), np.empty(1, np.float32), np.empty(1, integers)]
    for turn in range(3):
        source = x if turn == 2 else np.ones_like(x)
        kernel.dispatch([bytes_of(source)], [bytes_of(each) for each in outputs], lambda: False)
    if isinstance(device, CudaDevice):
        assert_recorded(kernel, device)
    return outputs


@pytest.mark.gpu
@FLOATS
@INTEGERS
@pytest.mark.parametrize("size", [1, THREADS - 1, BLOCK, BLOCK + 1, 9 * BLOCK - 1, MOST_BLOCKS * BLOCK + 1])
def test_pieces(size: int, given: DataType, made: DataType) -> None:
    """Of warps, of blocks and of more than there are: the bits of the CPU's, wherever the ends of the range lie."""
    rng, gpu = np.random.default_rng(5), first_gpu()
    x = rng.standard_normal(size, np.float32).astype(given.value.lower())
    for place, value in ((0, 9), (size - 1, -9), (size // 2, np.inf), (size // 2, np.nan), (0, 0)):
        x[place] = value
        for ours, theirs in zip(dispatched(gpu, x, made), dispatched(DEVICE, x, made), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["QUANTIZE", "DEQUANTIZE"])
def test_blocks_are_part_of_a_cuda_graph(kind: str) -> None:
    """The third dispatch is recorded, and the following ones are of their own elements."""
    rng, gpu = np.random.default_rng(6), first_gpu()
    given, made = ("FLOAT32", "UINT4") if kind == "QUANTIZE" else ("UINT4", "FLOAT32")
    by = [{"DataType": each, "Sizes": [8, 4]} for each in ("FLOAT32", "UINT4")]
    document = {"QuantizationType": "SCALE_ZERO_POINT", "QuantizationTensors": by}
    tensors = {
        "InputTensor": {"DataType": given, "Sizes": [8, 64]},
        "OutputTensor": {"DataType": made, "Sizes": [8, 64]},
    }
    operator = compiled({"Type": kind, **document, **tensors})
    ours, theirs = gpu.prepare(operator), DEVICE.prepare(operator)
    for _ in range(5):
        numbers, nibbles = rng.standard_normal((8, 64), np.float32), rng.integers(0, 256, 256, np.uint8)
        x, bytes_ = (numbers, 256) if kind == "QUANTIZE" else (nibbles, 2048)
        inputs = [bytes_of(each) for each in (x, rng.random((8, 4), np.float32), rng.integers(0, 256, 16, np.uint8))]
        here, there = (np.empty(bytes_, np.uint8) for _ in range(2))
        for kernel, output in ((ours, there), (theirs, here)):
            kernel.dispatch(inputs, [bytes_of(output)], lambda: False)
        np.testing.assert_array_equal(there, here)
    assert_recorded(ours, gpu)
