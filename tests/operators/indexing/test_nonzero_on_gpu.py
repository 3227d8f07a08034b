"""NONZERO_COORDINATES on GPUs: the kernels under NVRTC, which needs none, and on one."""

from typing import Any

import numpy as np
import pytest

from app.memory.arrays import numpy_type
from app.operators.indexing import nonzero_on_gpu
from app.operators.indexing.nonzero_on_gpu import _ADDING, _EACH, _THREADS
from tests.gpu import assert_compiles, assert_recorded, first_gpu
from tests.operators.arrays import bytes_of
from tests.operators.descriptors import compiled
from tests.operators.indexing import running
from tests.operators.indexing import test_one_hot as on_any

BLOCK = _THREADS * _EACH


@pytest.mark.parametrize("data_type", on_any.COUNTED)
@pytest.mark.parametrize("columns", [1, 4, 8])
def test_kernels_compile(data_type: Any, columns: int) -> None:
    assert_compiles(nonzero_on_gpu.source(numpy_type(data_type), columns), 80)


@pytest.mark.gpu
@pytest.mark.parametrize("data_type", on_any.COUNTED)
def test_nonzero_coordinates(data_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all bits, and outputs that are packed or not."""
    monkeypatch.setattr(running, "DEVICE", first_gpu())
    on_any.test_nonzero_coordinates(data_type, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_zero(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "DEVICE", first_gpu())
    on_any.test_what_is_zero(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.0, 1e-4, 0.5, 1.0])
@pytest.mark.parametrize(
    "sizes",
    [
        *([size] for size in (31, 33, 511, 512, 513, BLOCK - 1, BLOCK, BLOCK + 1)),
        *([1, BLOCK, _ADDING + blocks] for blocks in (-1, 0, 1)),
        [3, 5, 7, 11, 13, 17, 19, 2],
    ],
)
def test_pieces(sizes: list[int], share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of warps, of blocks and of the sums of their counts: a little less, as much, a little more."""
    monkeypatch.setattr(running, "DEVICE", first_gpu())
    rng = np.random.default_rng(1)
    x = (rng.random(sizes, np.float32) < share).astype(np.uint8)
    count, rows = on_any.nonzero(x)
    expected = np.argwhere(x)
    assert count == len(expected)
    np.testing.assert_array_equal(rows[:count], expected)
    assert not rows[count:].any()


@pytest.mark.gpu
def test_it_is_part_of_a_cuda_graph() -> None:
    """The third dispatch is recorded, and the following ones find their own elements, and how many there are."""
    rng, gpu = np.random.default_rng(2), first_gpu()
    kernel = gpu.prepare(compiled({"Type": on_any.NONZERO, "InputTensor": on_any.tensor(3, 1000)}))
    for turn in range(6):
        x = (rng.random((3, 1000)) < turn / 5).astype(np.float32)
        count, rows = np.full(1, 77, np.uint32), np.full((3000, 2), 77, np.uint32)
        kernel.dispatch([bytes_of(x)], [bytes_of(count), bytes_of(rows)], lambda: False)
        expected = np.argwhere(x)
        assert count == [len(expected)]
        np.testing.assert_array_equal(rows[: len(expected)], expected)
        assert not rows[len(expected) :].any()
    assert_recorded(kernel, gpu)
