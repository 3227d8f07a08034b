"""What is read at indices, against plain NumPy; and what is refused."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import descriptor, refusals
from tests.operators.indexing.running import INDICES, MOVED, bits, run, sizes_of, some_indices, unsigned

P = "DML_OPERATOR_"
of_each_type = pytest.mark.parametrize("data_type", MOVED)
of_each_index = pytest.mark.parametrize("index_type", INDICES)


def only(kind: str, x: Array, indices: Array, output: Array | None = None, **attributes: Any) -> Array:
    outputs = {} if output is None else {"OutputTensor": output}
    (made,) = run(kind, {"InputTensor": x, "IndicesTensor": indices}, outputs, **attributes).values()
    array: Array = made
    return array


@of_each_type
def test_gather(data_type: DataType) -> None:
    """Of sizes as they are meant, behind leading 1s: the output has as many dimensions as they all."""
    rng = np.random.default_rng(1)
    for index_type in INDICES * 2:
        meant = sizes_of(rng, int(rng.integers(1, 4)))
        axis, count = int(rng.integers(0, len(meant))), int(rng.integers(0, 4))
        rank = max(len(meant), count, len(meant) + count - 1) + int(rng.integers(0, 2))
        x = bits(rng, meant, data_type)
        indices = some_indices(rng, sizes_of(rng, count), meant[axis], index_type)
        expected = x.take(indices.astype(np.int64), axis)  # NumPy has negative ones as well
        expected = expected.reshape([1] * (rank - expected.ndim) + list(expected.shape))
        x = laid_out(rng, x.reshape([1] * (rank - x.ndim) + list(x.shape)))
        indices = laid_out(rng, indices.reshape([1] * (rank - count) + list(indices.shape)))
        attributes: dict[str, Any] = {"Axis": axis + rank - len(meant), "IndexDimensions": count}
        for output in (None, laid_out(rng, expected)):
            made = only(P + "GATHER", x, indices, output, **attributes)
            np.testing.assert_array_equal(unsigned(made), unsigned(expected))


@of_each_type
def test_gather_elements(data_type: DataType) -> None:
    rng = np.random.default_rng(2)
    for index_type in INDICES * 2:
        sizes = sizes_of(rng, int(rng.integers(1, 5)))
        axis = int(rng.integers(0, len(sizes)))
        x = laid_out(rng, bits(rng, sizes, data_type))
        taken = [*sizes[:axis], int(rng.integers(1, 7)), *sizes[axis + 1 :]]
        indices = laid_out(rng, some_indices(rng, taken, sizes[axis], index_type))
        expected = np.take_along_axis(x, indices.astype(np.int64), axis)
        made = only(P + "GATHER_ELEMENTS", x, indices, laid_out(rng, expected), Axis=axis)
        np.testing.assert_array_equal(unsigned(made), unsigned(expected))


@of_each_type
@pytest.mark.parametrize("kind", ["GATHER_ND", "GATHER_ND1"])
def test_gather_nd(kind: str, data_type: DataType) -> None:
    rng = np.random.default_rng(3)
    for index_type in INDICES * 2:
        batches = sizes_of(rng, int(rng.integers(0, 3)) if kind == "GATHER_ND1" else 0)
        taken, rest = sizes_of(rng, int(rng.integers(1, 3))), sizes_of(rng, int(rng.integers(0, 3)))
        rows = sizes_of(rng, int(rng.integers(0, 2)))
        x = bits(rng, [*batches, *taken, *rest], data_type)
        parts = [some_indices(rng, [*batches, *rows], size, index_type) for size in taken]
        indices = np.stack(parts, axis=-1)
        expected = np.empty([*batches, *rows, *rest], x.dtype)
        for at in np.ndindex(*batches, *rows):
            tuple_of = tuple(int(each) for each in indices[at])
            expected[at] = x[at[: len(batches)] + tuple_of]
        counts: dict[str, Any] = {"InputDimensionCount": x.ndim, "IndicesDimensionCount": indices.ndim}
        if kind == "GATHER_ND1":
            counts["BatchDimensionCount"] = len(batches)
        rank = max(x.ndim, indices.ndim, expected.ndim) + int(rng.integers(0, 2))
        x, indices, expected = (
            each.reshape([1] * (rank - each.ndim) + list(each.shape)) for each in (x, indices, expected)
        )
        for output in (None, laid_out(rng, expected)):
            made = only(P + kind, laid_out(rng, x), laid_out(rng, indices), output, **counts)
            np.testing.assert_array_equal(unsigned(made), unsigned(expected))


@of_each_index
def test_indices_out_of_range_read_the_nearest_element(index_type: Any) -> None:
    """Whatever they are: nothing is read outside the tensor."""
    limits = np.iinfo(index_type)
    x = np.arange(5, dtype=np.float32)
    signed = [-1, -5, -6, limits.min, limits.min + 1] if limits.min else [2**31, limits.max // 2 + 1]
    indices = np.array([0, 4, 5, 6, limits.max, limits.max - 1, *signed], dtype=index_type)
    expected = np.array([min(max(each + 5 * (each < 0), 0), 4) for each in indices.tolist()], np.float32)
    np.testing.assert_array_equal(only(P + "GATHER", x, indices, Axis=0, IndexDimensions=1), expected)
    np.testing.assert_array_equal(only(P + "GATHER_ELEMENTS", x, indices, Axis=0), expected)
    counts: dict[str, Any] = {"InputDimensionCount": 1, "IndicesDimensionCount": 2}
    made = only(P + "GATHER_ND", x.reshape(1, 5), indices[:, None], **counts)
    np.testing.assert_array_equal(made, expected[None])


def test_strides_of_0_repeat() -> None:
    x = np.broadcast_to(np.arange(3, dtype=np.int8)[:, None], (3, 4))
    indices = np.broadcast_to(np.array([[2]], np.uint32), (1, 2))
    made = only(P + "GATHER", x, indices, Axis=0, IndexDimensions=1)
    np.testing.assert_array_equal(made, np.full((2, 4), 2))


def the_refusal(document: dict[str, Any]) -> Any:
    (refusal,) = refusals(document)
    check_wording(refusal)
    return refusal


def tensor(*sizes: int, data_type: str = "FLOAT32") -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


def of(kind: str, x: list[int], indices: list[int], **members: Any) -> dict[str, Any]:
    tensors = {"InputTensor": tensor(*x), "IndicesTensor": tensor(*indices, data_type="UINT32")}
    return descriptor(P + kind, **tensors, **members)


@pytest.mark.parametrize(
    ("document", "pointer", "given", "allowed"),
    [
        (of("GATHER", [2, 3], [1, 2], Axis=2, IndexDimensions=1), "/Axis", 2, "0 to 1"),
        (of("GATHER", [2, 3], [1, 2], Axis=0, IndexDimensions=3), "/IndexDimensions", 3, "0 to 2"),
        (of("GATHER", [2, 3], [4, 2], Axis=0, IndexDimensions=1), "/IndicesTensor/Sizes", [4, 2], [1, 2]),
        (of("GATHER", [2, 3], [4, 2], Axis=1, IndexDimensions=2), "/OutputTensor/Sizes", [2, 4, 2], "2 dimensions"),
        (
            of("GATHER", [2, 3], [1, 2], Axis=0, IndexDimensions=1, OutputTensor=tensor(3, 2)),
            *("/OutputTensor/Sizes", [3, 2], [2, 3]),
        ),
        (of("GATHER", [2, 3], [2], Axis=0, IndexDimensions=1), "/IndicesTensor/Sizes", 1, 2),
        (of("GATHER_ELEMENTS", [2, 3], [2, 3], Axis=2), "/Axis", 2, "0 to 1"),
        (of("GATHER_ELEMENTS", [2, 3], [1, 5], Axis=1), "/IndicesTensor/Sizes", [1, 5], [2, 5]),
        (
            of("GATHER_ELEMENTS", [2, 3], [2, 5], Axis=1, OutputTensor=tensor(2, 3)),
            *("/OutputTensor/Sizes", [2, 3], [2, 5]),
        ),
        (
            of("GATHER_ND", [2, 3], [2, 1], InputDimensionCount=3, IndicesDimensionCount=2),
            *("/InputDimensionCount", 3, "1 to 2"),
        ),
        (
            of("GATHER_ND", [2, 3], [2, 1], InputDimensionCount=2, IndicesDimensionCount=0),
            *("/IndicesDimensionCount", 0, "1 to 2"),
        ),
        (
            of("GATHER_ND", [2, 3], [1, 1], InputDimensionCount=1, IndicesDimensionCount=2),
            *("/InputTensor/Sizes", [2, 3], [1, 3]),
        ),
        (
            of("GATHER_ND", [1, 2, 3], [2, 4, 3], InputDimensionCount=2, IndicesDimensionCount=3),
            *("/IndicesTensor/Sizes", [2, 4, 3], "at most 2 along the last dimension"),
        ),
        (
            of("GATHER_ND", [2, 3, 4], [5, 6, 1], InputDimensionCount=3, IndicesDimensionCount=3),
            *("/OutputTensor/Sizes", [5, 6, 3, 4], "3 dimensions"),
        ),
        (
            of("GATHER_ND1", [2, 3], [2, 1], InputDimensionCount=0, IndicesDimensionCount=2, BatchDimensionCount=1),
            *("/InputDimensionCount", 0, "1 to 2"),
        ),
        (
            of("GATHER_ND1", [2, 3], [2, 1], InputDimensionCount=2, IndicesDimensionCount=3, BatchDimensionCount=1),
            *("/IndicesDimensionCount", 3, "1 to 2"),
        ),
        (
            of("GATHER_ND1", [2, 3], [2, 1], InputDimensionCount=3, IndicesDimensionCount=2, BatchDimensionCount=1),
            *("/InputDimensionCount", 3, "1 to 2"),
        ),
        (
            of("GATHER_ND1", [1, 3], [2, 1], InputDimensionCount=1, IndicesDimensionCount=2, BatchDimensionCount=1),
            *("/BatchDimensionCount", 1, "0 to 0"),
        ),
        (
            of("GATHER_ND1", [2, 3], [2, 1], InputDimensionCount=2, IndicesDimensionCount=2, BatchDimensionCount=2),
            *("/BatchDimensionCount", 2, "0 to 1"),
        ),
        (
            of("GATHER_ND1", [2, 3], [4, 1], InputDimensionCount=2, IndicesDimensionCount=2, BatchDimensionCount=1),
            *("/IndicesTensor/Sizes", [4, 1], [2, 1]),
        ),
        (
            of("GATHER_ND1", [2, 3], [2, 2], InputDimensionCount=2, IndicesDimensionCount=2, BatchDimensionCount=1),
            *("/IndicesTensor/Sizes", [2, 2], "at most 1 along the last dimension"),
        ),
    ],
)
def test_refusals(document: dict[str, Any], pointer: str, given: Any, allowed: Any) -> None:
    refusal = the_refusal(document)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (pointer, given, allowed)


COUNTS = {"InputDimensionCount": 3, "IndicesDimensionCount": 3}


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (of("GATHER", [2, 3], [4, 2], Axis=1, IndexDimensions=2), ["IndicesTensor", "Axis", "IndexDimensions"]),
        (of("GATHER_ND", [2, 3, 4], [5, 6, 1], **COUNTS), ["IndicesTensor", *COUNTS]),
        (
            of("GATHER_ND1", [2, 3, 4], [2, 6, 3], **COUNTS, BatchDimensionCount=1),
            ["IndicesTensor", "InputDimensionCount", "BatchDimensionCount"],
        ),
    ],
)
def test_sizes_that_do_not_fit_are_told_with_all_that_implies_them(document: dict[str, Any], names: list[str]) -> None:
    message = the_refusal(document).message
    assert [name for name in ["InputTensor", *names] if name not in message] == []


def test_leading_1s_are_cropped() -> None:
    """Two dimensions of indices in the place of one, where the tensor has a 1 to spare in front."""
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    indices = np.array([[[1, 0], [0, 0]]], np.uint32)
    made = only(P + "GATHER", x, indices, Axis=1, IndexDimensions=2)
    np.testing.assert_array_equal(made, x[0][indices[0]])
