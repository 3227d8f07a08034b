"""DYNAMIC_QUANTIZE_LINEAR on GPUs: the kernels under NVRTC, which needs none, and on one."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.schedules import CudaScheduleKernel
from app.operators.quantization import elements_on_gpu
from app.operators.quantization.elements_on_gpu import EACH, MOST_BLOCKS, THREADS
from tests.gpu import assert_compiles, first_gpu
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
        assert isinstance(kernel, CudaScheduleKernel)
        ready = device.ready.newest(kernel._number)
        assert ready is not None
        assert ready.work._graphs
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
