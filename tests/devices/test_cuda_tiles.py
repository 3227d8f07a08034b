"""CUDA kernels that turn tiles of inputs that lie along another dimension than the output, against NumPy: built for the
CPU, and on a GPU."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cuda import layouts
from app.devices.cuda.layouts import Access, choose_layout, tiles_of
from tests.devices.coordinate_cases import Case
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.devices.test_cuda_splits import differing
from tests.gpu import first_gpu
from tests.operators.arrays import desc_of
from tests.operators.descriptors import compiled


@pytest.fixture(scope="module")
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


def turned(sizes: list[int], order: list[int], dtype: type, rng: np.random.Generator) -> Any:
    """An array of these sizes, whose dimensions lie in this order, the last one after the other."""
    packed: Any = rng.integers(-90, 90, [sizes[axis] for axis in order])
    if dtype is not np.int8:
        packed = packed / 16
    return packed.astype(dtype).transpose(np.argsort(order))


def cases() -> Iterator[Case]:
    """Whole tiles and not, of all widths; one of two inputs is turned, or both are; dimensions around and between."""
    rng = np.random.default_rng(8)
    for dtype in (np.float32, np.float16, np.int8, np.float64):
        for sizes, order in (
            ([64, 128], [1, 0]),
            ([40, 70], [1, 0]),
            ([3, 33, 66], [0, 2, 1]),
            ([66, 2, 50], [2, 1, 0]),
            ([35, 3, 3, 40], [1, 3, 2, 0]),
        ):
            x, y = turned(sizes, order, dtype, rng), turned(sizes, [*range(len(sizes))], dtype, rng)
            out = {"OutputTensor": {"DataType": desc_of(x)["DataType"], "Sizes": sizes}}
            name = f"{dtype.__name__} {sizes}"
            identity = compiled({"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": desc_of(x), **out})
            yield Case(f"identity {name}", identity, {"InputTensor": x})
            if dtype is np.float32:
                for other in (y, x):
                    document = {
                        "Type": "ELEMENT_WISE_POW",
                        "InputTensor": desc_of(abs(x)),
                        "ExponentTensor": desc_of(other),
                    }
                    given = {"InputTensor": abs(x), "ExponentTensor": other}
                    yield Case(
                        f"power {name}",
                        compiled(document | {"ExponentTensor": desc_of(other)} | out),
                        given,
                        exact=False,
                    )


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_tiles_are_turned(tmp_path: Path, numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LEAST_TURNED", 0)
    ahead = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    kernels: list[Any] = [ahead.prepare(each.operator) for each in cases()]
    sources = {source for kernel in kernels for _, step in kernel._steps for source in step.sources()}
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, sources=[*sources]))  # at once, which takes a tenth of the time
    assert differing(device, numpy_device, list(cases())) == []
    assert device.kernels_built.sources
    assert all("__shared__" in source for source in device.kernels_built.sources)


def test_what_is_read_across_chooses_tiles() -> None:
    def of(sizes: list[int], strides: list[list[int]], sizes_in_bytes: int = 4) -> tuple[int, tuple[bool, ...], int]:
        layout = choose_layout(sizes, strides, [sizes_in_bytes] * len(strides), aligned=True)
        return layout.across, layout.turned, layout.tile

    packed = [500, 1]
    assert of([400, 500], [[1, 400], packed]) == (0, (True,), 64)
    assert of([400, 500], [[1, 400], packed], 8) == (0, (True,), 32)
    assert of([400, 500], [packed, [1, 400], [1, 0], packed]) == (0, (False, True, False), 64)
    assert of([400, 500], [[1, 400]] * 3 + [packed]) == (0, (True,) * 3, 32)
    nothing = (-1, (), 0)
    assert of([400, 500], [[1, 400]] * 9 + [packed]) == nothing  # too much for a multiprocessor
    assert of([400, 500], [[1, 400], [1, 400]]) == nothing
    assert of([400, 500], [[3, 1200], packed]) == nothing
    assert of([20, 5000], [[1, 20], [5000, 1]]) == nothing  # tiles would be half empty
    assert of([40, 50], [[1, 40], [50, 1]]) == nothing  # little
    layout = choose_layout([3, 400, 500], [[200000, 1, 400], [200000, 500, 1]], [4, 4], aligned=True)
    assert layout.steps == (Access.ANY, Access.UNIT)
    assert tiles_of([3, 400, 500], layout) == 3 * 7 * 8


@pytest.mark.gpu
def test_a_gpu_computes_what_numpy_does(numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LEAST_TURNED", 0)
    assert differing(first_gpu(), numpy_device, list(cases())) == []
