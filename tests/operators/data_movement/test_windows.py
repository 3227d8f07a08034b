"""UNFOLD and FOLD against loops over windows, and against each other."""

import itertools
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.data_movement.tensors import assert_same_bits, sized, some_layout, told
from tests.operators.descriptors import descriptor, refusals

ARRAYS = ("WindowSizes", "Strides", "Dilations", "StartPadding", "EndPadding")


def windows(rng: np.random.Generator, image: list[int]) -> dict[str, Any]:
    """Windows of which there is one at least, along each dimension."""
    while True:
        made = {
            name: [int(each) for each in rng.integers(name in ARRAYS[:3], 4 if name in ARRAYS[:3] else 3, len(image))]
            for name in ARRAYS
        }
        if min(counts(image, made)) >= 1:
            return made


def counts(image: list[int], windows: dict[str, Any]) -> list[int]:
    return [
        (size + start + end - dilation * (window - 1) - 1) // stride + 1
        for size, window, stride, dilation, start, end in zip(image, *(windows[name] for name in ARRAYS), strict=True)
    ]


def places(image: list[int], windows: dict[str, Any]) -> Array:
    """For each place of the window and each window the flat index in the image; -1 outside."""
    blocks = counts(image, windows)
    made = np.full((np.prod(windows["WindowSizes"]), np.prod(blocks)), -1)
    for row, k in enumerate(itertools.product(*map(range, windows["WindowSizes"]))):
        for column, b in enumerate(itertools.product(*map(range, blocks))):
            q = np.array(b) * windows["Strides"] + np.array(k) * windows["Dilations"] - windows["StartPadding"]
            if ((q >= 0) & (q < image)).all():
                made[row, column] = np.ravel_multi_index(tuple(q), tuple(image))
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dimensions", [1, 2, 3, 6])
def test_unfold_and_fold(dimensions: int, dtype: Any) -> None:
    rng = np.random.default_rng(dimensions)
    for _ in range(4):
        n, c = (int(each) for each in rng.integers(1, 4, 2))
        image = [int(each) for each in rng.integers(1, {1: 9, 2: 7, 3: 4, 6: 2}[dimensions], dimensions)]
        document = (
            windows(rng, image)
            if dimensions < 6
            else {name: [2 if name == "WindowSizes" else int(name != "EndPadding")] * 6 for name in ARRAYS}
        )
        at = places(image, document)
        x = laid_out(rng, rng.integers(-9, 9, (n, c, *image)).astype(dtype))
        flat = x.reshape(n, c, -1)
        columns = np.where(at >= 0, flat[..., at], dtype(0)).reshape(n, c * at.shape[0], at.shape[1])
        made = run({"Type": "UNFOLD"} | document, InputTensor=x)["OutputTensor"]
        assert_same_bits(made, columns)
        leading = columns.reshape(1, 1, *columns.shape)
        stated = {"OutputTensor": some_layout(rng, leading), "DimensionCount": dimensions}
        assert_same_bits(run({"Type": "UNFOLD"} | document | stated, InputTensor=x)["OutputTensor"], leading)
        given = rng.integers(-9, 9, (n, c, *at.shape)).astype(dtype)
        total = np.zeros(flat.shape, np.float64)
        for row, column in zip(*np.nonzero(at >= 0), strict=True):
            total[..., at[row, column]] += given[:, :, row, column]
        expected = total.reshape(x.shape).astype(dtype)
        stated = {"OutputTensor": some_layout(rng, expected)}
        for shape in ((n, -1, at.shape[1]), (1, n, c * at.shape[0], at.shape[1])):
            folded = run({"Type": "FOLD"} | document | stated, InputTensor=laid_out(rng, given.reshape(shape)))
            np.testing.assert_array_equal(folded["OutputTensor"], expected)


def test_the_example_of_the_operators_page() -> None:
    window = dict(zip(ARRAYS, ([3, 3], [1, 1], [1, 1], [0, 0], [0, 0]), strict=True))
    x = np.arange(36, dtype=np.float32).reshape(1, 9, 4)
    made = run({"Type": "FOLD", "OutputTensor": sized(1, 1, 4, 4)} | window, InputTensor=x)["OutputTensor"]
    assert made[0, 0].tolist() == [[0, 5, 13, 9], [14, 38, 54, 32], [38, 86, 102, 56], [26, 57, 65, 35]]


def test_sums_are_rounded_once() -> None:
    """Three windows of 3 over an image of 1: by way of float32 the sum would be a half, to be rounded once more."""
    window = dict(zip(ARRAYS, ([3], [1], [1], [2], [2]), strict=True))
    x = np.zeros((1, 3, 3), np.float16)
    x[0, [0, 1, 2], [2, 1, 0]] = 2048, 1, 2.0**-24
    document = {"Type": "FOLD", "OutputTensor": sized(1, 1, 1, DataType="FLOAT16")} | window
    assert run(document, InputTensor=x)["OutputTensor"].tolist() == [[[2050]]]


@pytest.mark.parametrize("kind", ["FOLD", "UNFOLD"])
def test_what_is_refused(kind: str) -> None:
    image, columns = ("OutputTensor", "InputTensor") if kind == "FOLD" else ("InputTensor", "OutputTensor")
    document = descriptor(f"DML_OPERATOR_{kind}", **{image: sized(2, 3, 4, 5), columns: sized(2, 12, 12)})
    assert refusals(document) == []
    assert refusals(document | {columns: sized(1, 1, 2, 12, 12)}) == []
    for sizes, right in (([2, 12, 11], [2, 12, 12]), ([2, 3, 4, 12], [1, 2, 12, 12])):
        assert told(document | {columns: sized(*sizes)}) == (f"/{columns}/Sizes", sizes, right)
    assert told(document | {image: sized(2, 3, 4)}) == (f"/{image}/Sizes", 3, 4)
    assert told(document | {"WindowSizes": [2, 6]}) == ("/WindowSizes/1", 6, 5)
    assert told(document | {"Dilations": [1, 5]}) == ("/WindowSizes/1", 2, 1)
    padded = {"StartPadding": [0, 2], "EndPadding": [0, 1]}
    assert told(document | {"WindowSizes": [2, 9]} | padded) == ("/WindowSizes/1", 9, 8)
    for change in ({columns: sized(2, 12, 11)}, {"StartPadding": [1, 0]}, {"Dilations": [1, 5]}):
        (refusal,) = refusals(document | change)
        assert all(name in refusal.message for name in ("Dilations", "StartPadding", "EndPadding"))
    assert told(document | {"DimensionCount": 3}) == ("/DimensionCount", 3, 2)
    assert told(document | {"Strides": [1]})[0] == "/Strides"
    for name in ARRAYS[:3]:
        assert told(document | {name: [1, 0]}) == (f"/{name}/1", 0, ">= 1")
