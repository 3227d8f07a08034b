"""CUDA kernels of formulas longer than any operator's, as graphs have them, over tensors that lie in any way, against
NumPy: built for the CPU, and on a GPU."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.lowering import MOST_FUNCTIONS, is_long
from app.formula.structures import Structures
from app.graphs.schedule import schedule
from app.memory.arrays import numpy_type
from tests.devices.coordinate_cases import Case
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.devices.test_cuda_splits import differing
from tests.gpu import first_gpu
from tests.graphs.documents import between, graph, into, node, out, resolved, tensor

COUNT, SIZES = MOST_FUNCTIONS + 1, (3, 100)
LAYOUTS = {
    "packed": ([100, 1], [100, 1]),
    "rows with gaps": ([128, 1], [100, 1]),
    "one for each row": ([100, 1], [1, 0]),
    "one for each column": ([100, 1], [0, 1]),
    "turned": ([1, 3], [100, 1]),
}


@pytest.fixture(scope="module")
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


def cases() -> Iterator[Case]:
    """Remainders, which are exact, of all widths of vectors."""
    rng = np.random.default_rng(4)
    for data_type in ("FLOAT32", "FLOAT16", "INT8"):
        for name, strides in LAYOUTS.items():
            x, y = (tensor(data_type, SIZES, Strides=each) for each in strides)
            made = tensor(data_type, SIZES)
            nodes: list[Any] = [
                node("ELEMENT_WISE_MODULUS_TRUNCATE", ATensor=x if number == 0 else made, BTensor=y)
                for number in range(COUNT)
            ]
            inputs = [into(0, 0), *(into(1, number, 1) for number in range(COUNT))]
            links = [between(number, number + 1) for number in range(COUNT - 1)]
            (step,) = schedule(resolved(graph(nodes, inputs, [out(COUNT - 1)], links)), Structures()).steps
            work = step.dispatchable
            assert all(is_long(each.expression) for each in work.program.maps.values())
            given = {}
            for key, desc in work.inputs.items():
                packed = rng.integers(1, 99, desc.data_bytes).astype(numpy_type(desc.DataType))
                steps = [step * packed.itemsize for step in desc.strides]
                given[key] = np.lib.stride_tricks.as_strided(packed, desc.Sizes, steps)
            yield Case(f"{data_type} {name}", work, given)  # type: ignore[arg-type]


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_long_formulas(tmp_path: Path, numpy_device: NumpyDevice) -> None:
    assert differing(CudaDeviceOnCpu(BuiltKernels(tmp_path)), numpy_device, list(cases())) == []


@pytest.mark.gpu
def test_a_gpu_computes_what_numpy_does(numpy_device: NumpyDevice) -> None:
    assert differing(first_gpu(), numpy_device, list(cases())) == []
