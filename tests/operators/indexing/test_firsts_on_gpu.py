"""TOP_K on GPUs: the kernel under NVRTC, which needs none, and on one."""

from typing import Any

import numpy as np
import pytest

from app.memory.arrays import numpy_type
from app.operators.indexing import firsts_on_gpu
from app.operators.indexing.firsts_on_gpu import LEAST_PART, MOST_FIRST
from tests.gpu import assert_compiles, assert_recorded, first_gpu
from tests.operators.arrays import bytes_of
from tests.operators.descriptors import compiled
from tests.operators.indexing import running
from tests.operators.indexing.test_top_k import directions, of_each_type


@of_each_type
@pytest.mark.parametrize("found", [False, True])
def test_kernel_compiles(data_type: Any, found: bool) -> None:
    assert_compiles(firsts_on_gpu.source(numpy_type(data_type), found=found), 80)


def the_first(x: Any, count: int, direction: str) -> Any:
    """Where they are in each row of numbers of which none is NaN, equals in their order."""
    if direction == "INCREASING":
        return np.argsort(x, axis=1, kind="stable")[:, :count]
    return x.shape[1] - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, : -count - 1 : -1]


@pytest.mark.gpu
@of_each_type
@directions
def test_long_rows(data_type: Any, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one part and in several, around the sizes that decide; of random numbers, of few and of one."""
    monkeypatch.setattr(running, "DEVICE", first_gpu())
    rng, dtype = np.random.default_rng(1), numpy_type(data_type)
    for rows, length in [
        (1, 2 * LEAST_PART - 1),
        (3, 2 * LEAST_PART),
        (2, 8 * LEAST_PART + 7),
        (1, 1 << 20),
        (600, 4500),
    ]:
        for most in (1, 5, 1 << 40):
            limits = np.iinfo(dtype) if dtype.kind in "iu" else np.iinfo(np.int16)
            low, high = max(limits.min, -most), min(limits.max, most)
            x = rng.integers(low, high, (rows, length), np.int64 if dtype != np.uint64 else np.uint64, endpoint=True)
            x = x.astype(dtype)
            for count in (1, 2, 50, 1000, MOST_FIRST, MOST_FIRST + 1):
                expected = the_first(x, count, direction)
                made = running.run(
                    "DML_OPERATOR_TOP_K1", {"InputTensor": x}, {}, Axis=1, K=count, AxisDirection=direction
                )
                np.testing.assert_array_equal(made["OutputIndexTensor"], expected)
                np.testing.assert_array_equal(made["OutputValueTensor"], np.take_along_axis(x, expected, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("count", [40, MOST_FIRST + 1])
def test_it_is_part_of_a_cuda_graph(count: int) -> None:
    """The third dispatch is recorded, and the following ones find what is first of their own elements; more than a
    block sorts are found by CuPy, recorded or not."""
    rng, gpu = np.random.default_rng(2), first_gpu()
    x = {"DataType": "FLOAT32", "Sizes": [2, 50257]}
    kernel = gpu.prepare(compiled({"Type": "TOP_K", "InputTensor": x, "Axis": 1, "K": count}))
    for _ in range(6):
        numbers = rng.standard_normal((2, 50257), np.float32)
        values, indices = np.full((2, count), 77, np.float32), np.full((2, count), 77, np.uint32)
        kernel.dispatch([bytes_of(numbers)], [bytes_of(values), bytes_of(indices)], lambda: False)
        expected = the_first(numbers, count, "DECREASING")
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(numbers, expected, 1))
    if count <= MOST_FIRST:
        assert_recorded(kernel, gpu)


@pytest.mark.gpu
def test_elements_that_change_meanwhile() -> None:
    """As those of a client's memory may: what is found is anything, but the GPU goes on."""
    gpu = first_gpu()
    gpu.use()
    import cupy

    x, stream, other = cupy.zeros((64, 50257), cupy.float32), *(cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    noise = cupy.random.default_rng(1).standard_normal(x.shape, cupy.float32)
    values, indices = cupy.empty((64, 1000), cupy.float32), cupy.empty((64, 1000), cupy.uint32)
    cupy.cuda.Device().synchronize()
    for turn in range(200):
        with stream:
            firsts_on_gpu.find(cupy, x, 1000, values, indices, decreasing=True)
        x.data.copy_from_device_async((noise if turn % 2 else -noise).data, x.nbytes, other)
    cupy.cuda.Device().synchronize()
    assert int(indices.max()) < 50257
