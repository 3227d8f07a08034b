"""SLICE, SLICE1 and SLICE_GRAD against NumPy's slices."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array
from tests.operators.arrays import desc_of
from tests.operators.calls import run
from tests.operators.data_movement.tensors import (
    TYPES,
    any_bits,
    assert_same_bits,
    sized,
    some_layout,
    spelled,
    told,
)
from tests.operators.descriptors import descriptor, refusals

every_type = pytest.mark.parametrize("data_type", TYPES)


def windows(rng: np.random.Generator, sizes: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Offsets, sizes and strides of a window."""
    offsets = [int(rng.integers(0, size)) for size in sizes]
    counts = [int(rng.integers(1, size - offset + 1)) for size, offset in zip(sizes, offsets, strict=True)]
    return offsets, counts, [int(rng.choice([-9, -3, -2, -1, 1, 2, 3, 9])) for _ in sizes]


def cut(x: Array, offsets: list[int], counts: list[int], strides: list[int]) -> Array:
    window = x[tuple(slice(o, o + n) for o, n in zip(offsets, counts, strict=True))]
    return window[tuple(slice(None, None, step) for step in strides)]


def stated(kind: str, offsets: list[int], counts: list[int], strides: list[int]) -> dict[str, Any]:
    return {
        "Type": kind,
        "InputWindowOffsets": offsets,
        "InputWindowSizes": counts,
        "InputWindowStrides": strides,
    }


@every_type
def test_slice(data_type: DataType) -> None:
    rng = np.random.default_rng(1)
    for rank in range(1, 9):
        sizes = [int(each) for each in rng.integers(1, 7 if rank < 6 else 3, rank)]
        x = any_bits(rng, sizes, data_type)
        offsets, counts, strides = windows(rng, sizes)
        strides = list(map(abs, strides))
        expected = cut(x, offsets, counts, strides)
        document = {"Type": "SLICE", "Offsets": offsets, "Sizes": list(expected.shape), "Strides": strides}
        for output in ({}, {"OutputTensor": some_layout(rng, expected), "DimensionCount": rank}):
            assert_same_bits(run(document | output, InputTensor=x)["OutputTensor"], expected)


@every_type
def test_slice1(data_type: DataType) -> None:
    """All that a window has, or less."""
    rng = np.random.default_rng(2)
    for rank in range(1, 9):
        sizes = [int(each) for each in rng.integers(1, 8 if rank < 6 else 3, rank)]
        x = any_bits(rng, sizes, data_type)
        window = windows(rng, sizes)
        expected = cut(x, *window)
        less = expected[tuple(slice(int(rng.integers(1, size + 1))) for size in expected.shape)]
        document = stated("SLICE1", *window)
        assert_same_bits(run(document, InputTensor=x)["OutputTensor"], expected)
        for part in (expected, less):
            output = {"OutputTensor": some_layout(rng, part), "DimensionCount": rank}
            assert_same_bits(run(document | output, InputTensor=x)["OutputTensor"], part)


@every_type
def test_slice_grad(data_type: DataType) -> None:
    rng = np.random.default_rng(3)
    for rank in range(1, 7):
        sizes = [int(each) for each in rng.integers(1, 8 if rank < 5 else 4, rank)]
        window = windows(rng, sizes)
        expected = np.zeros(sizes, any_bits(rng, [1], data_type).dtype)
        place = cut(expected, *window)
        place = place[tuple(slice(int(rng.integers(1, size + 1))) for size in place.shape)]
        gradient = any_bits(rng, list(place.shape), data_type)
        np.copyto(place, gradient)
        document = stated("SLICE_GRAD", *window) | {"OutputGradientTensor": some_layout(rng, expected)}
        assert_same_bits(run(document, InputGradientTensor=gradient)["OutputGradientTensor"], expected)


def test_repeated_elements_of_an_input_are_read() -> None:
    x = np.broadcast_to(np.arange(3, dtype=np.float32), (4, 3))
    document = {"Type": "SLICE", "Offsets": [1, 1], "Sizes": [2, 2], "Strides": [2, 1]}
    assert run(document, InputTensor=x)["OutputTensor"].tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Offsets": [0, 0, 1, 1]}, ("/Offsets/3", 1, "0 to 0")),
        ({"Offsets": [0, 0, 2, 0]}, ("/Offsets/2", 2, "0 to 1")),
        ({"Strides": [1, 1, 1, 3]}, ("/Strides/3", 3, "1 to 2")),
        ({"Offsets": [0] * 4, "Sizes": [1, 1, 2, 2], "Strides": [1, 1, 2, 2]}, ("/Strides/2", 2, "1 to 1")),
        ({"Sizes": [1, 1, 3, 2]}, ("/Sizes/2", 3, "1 to 1")),
        ({"Offsets": [0, 0, 1, 1], "Sizes": [1, 1, 1, 3]}, ("/Sizes/3", 3, "1 to 1")),
        ({"Offsets": [0, 0, 1, 3], "Strides": [1, 1, 1, 3]}, ("/Offsets/3", 3, "0 to 2")),
        ({"Strides": [1, 1, 1, 0]}, ("/Strides/3", 0, ">= 1")),
        ({"Sizes": [1, 1, 1, 0]}, ("/Sizes/3", 0, ">= 1")),
        ({"DimensionCount": 3}, ("/DimensionCount", 3, 4)),
        ({"OutputTensor": sized(1, 1, 1, 1)}, ("/OutputTensor/Sizes", [1, 1, 1, 1], [1, 1, 1, 2])),
    ],
)
def test_what_slice_refuses(change: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    document = descriptor("DML_OPERATOR_SLICE", Offsets=[0, 0, 1, 0], Sizes=[1, 1, 1, 2], Strides=[1, 1, 1, 2])
    assert refusals(document) == []
    assert told(document | change) == expected


def test_what_reaches_too_far_is_told_with_every_field_that_says_how_far() -> None:
    document = descriptor("DML_OPERATOR_SLICE", Offsets=[0, 0, 1, 0], Sizes=[1, 1, 1, 2], Strides=[1, 1, 1, 3])
    (refusal,) = refusals(document)
    assert all(f"{name}[3]" in refusal.message for name in ("Offsets", "Sizes", "Strides"))
    document = descriptor("DML_OPERATOR_SLICE1") | {"InputWindowOffsets": [0, 0, 0, 2]}
    (refusal,) = refusals(document)
    assert all(f"{name}[3]" in refusal.message for name in ("InputWindowOffsets", "InputWindowSizes"))
    document = descriptor("DML_OPERATOR_SLICE1") | {"OutputTensor": sized(1, 1, 2, 6)}
    (refusal,) = refusals(document)
    assert all(name in refusal.message for name in ("OutputTensor", "InputWindowSizes", "InputWindowStrides"))


def test_there_is_an_entry_for_each_dimension() -> None:
    """Not only as many in one array as in another."""
    document = descriptor("DML_OPERATOR_SLICE", Offsets=[0, 0], Sizes=[1, 1], Strides=[1, 1])
    assert list(map(spelled, refusals(document))) == [(f"/{name}", 2, 4) for name in ("Offsets", "Sizes", "Strides")]
    document = descriptor("DML_OPERATOR_SLICE1") | stated("SLICE1", [0], [1], [1])
    assert {each[1:] for each in map(spelled, refusals(document))} == {(1, 4)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"InputWindowOffsets": [0, 0, 0, 2]}, ("/InputWindowSizes/3", 5, "1 to 4")),
        ({"InputWindowOffsets": [0, 0, 2, 1]}, ("/InputWindowOffsets/2", 2, "0 to 0")),
        ({"InputWindowOffsets": [0, 0, 0, 2**32 - 1]}, ("/InputWindowOffsets/3", 2**32 - 1, "0 to 1")),
        ({"InputWindowSizes": [1, 1, 2, 6]}, ("/InputWindowSizes/3", 6, "1 to 5")),
        ({"InputWindowSizes": [1, 1, 0, 5]}, ("/InputWindowSizes/2", 0, ">= 1")),
        ({"InputWindowStrides": [1, 1, 0, 1]}, ("/InputWindowStrides/2", 0, "not 0")),
        ({"DimensionCount": 5}, ("/DimensionCount", 5, 4)),
    ],
)
@pytest.mark.parametrize("kind", ["SLICE1", "SLICE_GRAD"])
def test_what_windows_refuse(kind: str, change: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    of, whole, part = ("Tensor" if kind == "SLICE1" else "GradientTensor"), sized(1, 1, 2, 6), sized(1, 1, 2, 3)
    small, large = ("Output", "Input") if kind == "SLICE1" else ("Input", "Output")
    window = stated(kind, [0, 0, 0, 1], [1, 1, 2, 5], [1, 1, -1, -2])
    document = descriptor(f"DML_OPERATOR_{kind}", **{large + of: whole, small + of: part}) | window
    assert refusals(document) == []
    assert told(document | change) == expected
    for sizes in ([1, 1, 3, 3], [1, 1, 2, 4]):
        assert told(document | {small + of: sized(*sizes)}) == (f"/{small}{of}/Sizes", sizes, [1, 1, 2, 3])


def test_the_largest_numbers() -> None:
    x = np.arange(4, dtype=np.int8)
    for stride in (2**31 - 1, -(2**31)):
        made = run(stated("SLICE1", [1], [3], [stride]), InputTensor=x)["OutputTensor"]
        assert made.tolist() == [1 if stride > 0 else 3]
    limit = [2**32 - 1]
    document = {"Type": "SLICE", "InputTensor": desc_of(x), "Offsets": limit, "Sizes": limit, "Strides": limit}
    assert told(document) == ("/Offsets/0", limit[0], "0 to 3")
