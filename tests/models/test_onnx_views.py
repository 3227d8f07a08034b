"""What is only read another way: the strides of tensors that are reshaped, as NumPy finds them."""

import random

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from app.contract.constants import DataType
from app.graphs.graph import GraphInput
from app.models.onnx.tensors import View
from tests.models.onnx_runs import Array


def laid(random_: random.Random) -> Array:
    """Integers in any order of dimensions, some of which repeat themselves, some cut."""
    sizes = [random_.choice([1, 2, 2, 3, 4]) for _ in range(random_.randint(1, 4))]
    made = np.arange(np.prod(sizes), dtype=np.int64).reshape(sizes)
    axes = [*range(len(sizes))]
    if random_.random() < 0.6:
        random_.shuffle(axes)
    made = made.transpose(axes)
    if random_.random() < 0.4:
        made = np.broadcast_to(made[:, np.newaxis], (sizes[axes[0]], 2, *made.shape[1:]))
    return made


def factored(random_: random.Random, count: int) -> list[int]:
    sizes: list[int] = []
    while count > 1:
        size = random_.choice([each for each in range(2, count + 1) if count % each == 0])
        sizes.append(size)
        count //= size
    for _ in range(random_.randint(0, 2)):
        sizes.insert(random_.randint(0, len(sizes)), 1)
    return sizes


def view_of(array: Array) -> View:
    return View(GraphInput("x"), DataType.INT64, array.shape, tuple(each // 8 for each in array.strides))


def read(array: Array, view: View) -> Array:
    """Elements of `array`'s memory as `view` has them."""
    made: Array = as_strided(array, view.sizes, [8 * each for each in view.strides], writeable=False)
    return made


def is_seen_by_numpy(array: Array, sizes: list[int]) -> bool:
    made = array.reshape(sizes)
    return bool(np.shares_memory(made, array))


@pytest.mark.parametrize("seed", range(4))
def test_tensors_reshaped_are_those_of_numpy(seed: int) -> None:
    random_, seen = random.Random(seed), 0
    for _ in range(500):
        array = laid(random_)
        sizes = factored(random_, array.size)
        made = view_of(array).reshaped(sizes)
        assert (made is not None) == is_seen_by_numpy(array, sizes), (array.shape, array.strides, sizes)
        if made is not None:
            seen += not array.flags.c_contiguous
            np.testing.assert_array_equal(read(array, made), array.reshape(sizes))
    assert seen > 50


def test_what_has_other_elements() -> None:
    view = View.packed(GraphInput("x"), DataType.INT64, (2, 3))
    with pytest.raises(ValueError, match=r"\(2, 3\) cannot be reshaped to \(7,\)"):
        view.reshaped([7])
    for sizes in ((3,), (2, 4), (3, 3)):
        with pytest.raises(ValueError, match="cannot be broadcast"):
            view.broadcast(sizes)
    assert view.broadcast((4, 2, 3)).strides == (0, 3, 1)
    assert View.packed(GraphInput("x"), DataType.INT64, (2, 1)).broadcast((2, 3)).strides == (1, 0)
