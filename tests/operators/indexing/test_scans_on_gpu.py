"""Cumulative sums and products on GPUs: the kernels under NVRTC, which needs none, and as CUDA graphs."""

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.operators.indexing import scans_on_gpu
from tests.gpu import assert_compiles, assert_recorded, first_gpu
from tests.operators.arrays import bytes_of
from tests.operators.descriptors import compiled
from tests.operators.indexing.test_scans import of_each_type


@of_each_type
@pytest.mark.parametrize("products", [False, True])
def test_kernels_compile(data_type: DataType, products: bool) -> None:
    assert_compiles(scans_on_gpu.source(numpy_type(data_type).name, products=products), 80)


def test_what_32_bits_do_not_count_is_left() -> None:
    """In the loops of 2^32 - 1 elements the step beyond the last one would be the first again."""
    x = np.broadcast_to(np.zeros((), np.float16), (1, scans_on_gpu.LONGEST + 1))
    with pytest.raises(NotImplementedError, match="2147483648 elements"):
        scans_on_gpu.scan(np, x, 1, None, products=False, reversed_=False, exclusive=False)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [[3, 50257], [50257, 3], [9000, 20]])
def test_it_is_part_of_a_cuda_graph(sizes: list[int]) -> None:
    """The third dispatch is recorded, and the following ones add up their own elements."""
    rng, gpu = np.random.default_rng(2), first_gpu()
    axis = int(np.argmax(sizes))
    ways = {"Axis": axis, "AxisDirection": "INCREASING", "HasExclusiveSum": False}
    kernel = gpu.prepare(
        compiled({"Type": "CUMULATIVE_SUMMATION", "InputTensor": {"DataType": "FLOAT32", "Sizes": sizes}, **ways})
    )
    for _ in range(6):
        x, made = rng.integers(-9, 10, sizes).astype(np.float32), np.empty(sizes, np.float32)
        kernel.dispatch([bytes_of(x)], [bytes_of(made)], lambda: False)
        np.testing.assert_array_equal(made, np.cumsum(x, axis, np.float64).astype(np.float32))
    assert_recorded(kernel, gpu)
