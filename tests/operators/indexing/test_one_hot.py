"""ONE_HOT and NONZERO_COORDINATES against plain NumPy, and what they refuse."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType, FeatureLevel
from app.memory.arrays import Array, numpy_type
from app.operators.indexing import one_hot as operators
from tests.contract.refusals import check_wording
from tests.operators.arrays import desc_of, laid_out
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.indexing.running import INDICES, MOVED, bits, run, sizes_of, unsigned

ONE_HOT = "DML_OPERATOR_ONE_HOT"
NONZERO = "DML_OPERATOR_NONZERO_COORDINATES"
COUNTED = [each for each in MOVED if each.bits < 64]


@pytest.mark.parametrize("data_type", MOVED)
def test_one_hot(data_type: DataType) -> None:
    """Indices inside and outside, values of any bits, along any dimension."""
    rng = np.random.default_rng(1)
    for index_type in INDICES * 2:
        limits = np.iinfo(index_type)
        rank = int(rng.integers(1, 5))
        sizes = sizes_of(rng, rank)
        axis, along = int(rng.integers(0, rank)), int(rng.integers(0, rank))
        size = sizes[axis]
        # Of the values' sizes those behind `along` are 1.
        values = bits(rng, [*sizes_of(rng, along), int(rng.integers(2, 4)), *[1] * (rank - along - 1)], data_type)
        off, on = values.reshape(-1)[:2]
        beyond = [size, size + 1, limits.max, *([-size - 1, limits.min] if limits.min else [limits.max // 2 + 1])]
        least = -size if limits.min else 0
        of_indices = [*sizes[:axis], 1, *sizes[axis + 1 :]]
        indices = np.where(
            rng.random(of_indices) < 0.7,
            rng.integers(least, size, of_indices).astype(index_type),
            rng.choice(np.array(beyond, index_type), of_indices),
        )
        places = np.arange(size).reshape([-1 if each == axis else 1 for each in range(rank)])
        meant = indices.astype(object) + size * (indices < 0)
        expected = np.where(np.asarray(meant == places, np.bool_), unsigned(on[None]), unsigned(off[None]))
        inputs = {"IndicesTensor": laid_out(rng, indices), "ValuesTensor": laid_out(rng, values)}
        output = laid_out(rng, np.zeros(sizes, values.dtype))
        made = run(ONE_HOT, inputs, {"OutputTensor": output}, Axis=axis)["OutputTensor"]
        np.testing.assert_array_equal(unsigned(made), expected)


def nonzero(x: Array, **outputs: Array) -> tuple[int, Array]:
    made = run(NONZERO, {"InputTensor": x}, outputs)
    count, rows = made["OutputCountTensor"], made["OutputCoordinatesTensor"]
    assert count.dtype == rows.dtype == np.uint32
    assert count.size == 1
    assert rows.shape[:-2] == (1,) * (rows.ndim - 2)
    return int(count.reshape(-1)[0]), rows[(0,) * (rows.ndim - 2)]


@pytest.mark.parametrize("data_type", COUNTED)
def test_nonzero_coordinates(data_type: DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and a few at a time; of as many elements as 32 bits count, and of more."""
    rng = np.random.default_rng(2)
    dtype = numpy_type(data_type)
    for number in range(12):
        if number == 6:
            monkeypatch.setattr(operators, "PIECE", 8)
        if number == 9:
            monkeypatch.setattr(operators, "UINT_MAX", 0)
        rank = int(rng.integers(1, 6))
        sizes = sizes_of(rng, rank)
        leading = int(rng.integers(0, rank))
        sizes[:leading] = [1] * leading
        x = np.where(rng.random(sizes) < 0.5, bits(rng, sizes, data_type), dtype.type(0))
        effective = len(np.trim_zeros(np.array(sizes) - 1, "f")) or 1
        expected = np.argwhere(x)
        x = laid_out(rng, x)
        for columns in {effective, rank}:
            wide = [1] * int(rng.integers(0, 3))
            rows_of = laid_out(rng, np.zeros([*wide, x.size, columns], np.uint32))
            count, rows = nonzero(x, OutputCoordinatesTensor=rows_of)
            assert count == len(expected)
            np.testing.assert_array_equal(rows[:count], expected[:, rank - columns :])
            assert not rows[count:].any()
        count, rows = nonzero(x)
        assert rows.shape == (x.size, rank)
        np.testing.assert_array_equal(rows[:count], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_zero(dtype: Any) -> None:
    x = np.array([0, -0.0, np.nan, np.inf, np.finfo(dtype).smallest_subnormal], dtype)
    count, rows = nonzero(x)
    assert count == 3
    assert rows.ravel().tolist() == [2, 3, 4, 0, 0]
    assert nonzero(np.zeros((2, 2), dtype))[0] == 0


def tensor(*sizes: int, data_type: str = "FLOAT32") -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


def one_hot(indices: list[int], values: list[int], output: list[int], axis: int) -> dict[str, Any]:
    tensors = {
        "IndicesTensor": tensor(*indices, data_type="UINT32"),
        "ValuesTensor": tensor(*values),
        "OutputTensor": tensor(*output),
    }
    return descriptor(ONE_HOT, **tensors, Axis=axis)


def of_nonzero(x: list[int], **outputs: list[int]) -> dict[str, Any]:
    made = {name: tensor(*sizes, data_type="UINT32") for name, sizes in outputs.items()}
    return descriptor(NONZERO, InputTensor=tensor(*x), **made)


@pytest.mark.parametrize(
    ("document", "pointer", "given", "allowed"),
    [
        (one_hot([2, 1], [1, 2], [2, 5], 2), "/Axis", 2, "0 to 1"),
        (one_hot([2, 5], [1, 2], [2, 5], 1), "/IndicesTensor/Sizes", [2, 5], [2, 1]),
        (one_hot([3, 1], [1, 2], [2, 5], 1), "/IndicesTensor/Sizes", [3, 1], [2, 1]),
        (one_hot([2, 1], [1, 1], [2, 5], 1), "/ValuesTensor/Sizes", [1, 1], "2 or more elements"),
        (of_nonzero([2, 3], OutputCountTensor=[1, 2]), "/OutputCountTensor/Sizes", [1, 2], [1, 1]),
        (of_nonzero([2, 3], OutputCoordinatesTensor=[6, 1]), "/OutputCoordinatesTensor/Sizes", [6, 1], [6, 2]),
        (of_nonzero([2, 3], OutputCoordinatesTensor=[6, 3]), "/OutputCoordinatesTensor/Sizes", [6, 3], [6, 2]),
        (of_nonzero([1, 2, 3], OutputCoordinatesTensor=[6, 1]), "/OutputCoordinatesTensor/Sizes", [6, 1], [6, 2]),
        (of_nonzero([2, 3], OutputCoordinatesTensor=[5, 2]), "/OutputCoordinatesTensor/Sizes", [5, 2], [6, 2]),
        (of_nonzero([2, 3], OutputCoordinatesTensor=[2, 6, 2]), "/OutputCoordinatesTensor/Sizes", [2, 6, 2], [1, 6, 2]),
    ],
)
def test_refusals(document: dict[str, Any], pointer: str, given: Any, allowed: Any) -> None:
    (refusal,) = refusals(document)
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (pointer, given, allowed)


@pytest.mark.parametrize("output", [[6, 2], [6, 3], [1, 1, 6, 2]])
def test_coordinates_may_leave_out_leading_dimensions_of_1(output: list[int]) -> None:
    assert refusals(of_nonzero([1, 2, 3], OutputCoordinatesTensor=output, OutputCountTensor=[1])) == []
    assert refusals(of_nonzero([1, 1, 1], OutputCoordinatesTensor=[1, 1], OutputCountTensor=[1])) == []


def test_implied_outputs_are_of_the_level() -> None:
    document = descriptor(NONZERO, InputTensor=desc_of(np.zeros((1, 1, 2, 3), np.float32)))
    for level in (FeatureLevel.V3_0, FeatureLevel.V6_4):
        sizes = [desc.Sizes for desc in compiled(document, level).outputs.values()]
        assert sizes == [[1, 1, 1, 1], [1, 1, 6, 4]]
