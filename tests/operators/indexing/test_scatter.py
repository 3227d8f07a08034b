"""What is written at indices, against plain NumPy; and what is refused."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.validation import validate
from app.devices.cuda.compiler import compile_source
from app.memory.arrays import Array
from app.operators.catalog import find_operator
from app.operators.indexing.updates import source_of
from tests.contract.refusals import check_wording
from tests.gpu import assert_recorded, first_gpu
from tests.operators.arrays import bytes_of, laid_out
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.indexing.running import INDICES, MOVED, bits, run, sizes_of, unsigned

P = "DML_OPERATOR_"
of_each_type = pytest.mark.parametrize("data_type", MOVED)
of_each_index = pytest.mark.parametrize("index_type", INDICES)


def only(kind: str, x: Array, indices: Array, updates: Array, **attributes: Any) -> Array:
    before = x.copy()
    inputs = {"InputTensor": x, "IndicesTensor": indices, "UpdatesTensor": updates}
    (made,) = run(kind, inputs, {"OutputTensor": x}, **attributes).values()
    np.testing.assert_array_equal(unsigned(x), unsigned(before))
    array: Array = made
    return array


def negated(rng: np.random.Generator, places: Array, size: int, dtype: Any) -> Array:
    """Indices that mean these places, counted from either end if their type has a sign."""
    from_the_end = rng.random(places.shape) < 0.5 if np.dtype(dtype).kind == "i" else False
    return np.where(from_the_end, places - size, places).astype(dtype)


@of_each_type
def test_scatter(data_type: DataType) -> None:
    rng = np.random.default_rng(1)
    for index_type in INDICES * 2:
        sizes = sizes_of(rng, int(rng.integers(1, 5)))
        axis = int(rng.integers(0, len(sizes)))
        x = laid_out(rng, bits(rng, sizes, data_type))
        count = int(rng.integers(1, sizes[axis] + 1))
        # Along the axis no place comes twice.
        places = rng.permuted(
            np.broadcast_to(np.arange(sizes[axis]), [*sizes[:axis], *sizes[axis + 1 :], sizes[axis]]), axis=-1
        )
        places = np.moveaxis(places[..., :count], -1, axis)
        indices = laid_out(rng, negated(rng, places, sizes[axis], index_type))
        updates = laid_out(rng, bits(rng, list(places.shape), data_type))
        expected = x.copy()
        np.put_along_axis(expected, places, updates, axis)
        made = only(P + "SCATTER", x, indices, updates, Axis=axis)
        np.testing.assert_array_equal(unsigned(made), unsigned(expected))


@of_each_type
def test_scatter_nd(data_type: DataType) -> None:
    rng = np.random.default_rng(2)
    for index_type in INDICES * 2:
        taken, rest = sizes_of(rng, int(rng.integers(1, 4))), sizes_of(rng, int(rng.integers(0, 3)))
        x = bits(rng, [*taken, *rest], data_type)
        count = int(rng.integers(1, np.prod(taken) + 1))
        flat = rng.permutation(int(np.prod(taken)))[:count]
        places = np.stack(np.unravel_index(flat, taken), axis=-1)
        indices = np.stack(
            [negated(rng, places[:, along], size, index_type) for along, size in enumerate(taken)], axis=-1
        )
        updates = bits(rng, [count, *rest], data_type)
        expected = x.copy()
        expected[tuple(places.T)] = updates
        counts = {"InputDimensionCount": x.ndim, "IndicesDimensionCount": 2}
        if count == 1 and rng.random() < 0.5:
            counts["IndicesDimensionCount"], updates = 1, updates[0]
        rank = max(x.ndim, 2, updates.ndim) + int(rng.integers(0, 2))
        x, indices, updates, expected = (
            each.reshape([1] * (rank - each.ndim) + list(each.shape)) for each in (x, indices, updates, expected)
        )
        made = only(P + "SCATTER_ND", laid_out(rng, x), laid_out(rng, indices), laid_out(rng, updates), **counts)
        np.testing.assert_array_equal(unsigned(made), unsigned(expected))


@of_each_index
def test_updates_out_of_range_are_left_out(index_type: Any) -> None:
    limits = np.iinfo(index_type)
    x = np.arange(5, dtype=np.int16)
    beyond = [-6, limits.min, limits.min + 1] if limits.min else [2**31, limits.max // 2 + 1]
    indices = np.array([3, 5, 6, limits.max, limits.max - 1, *beyond, 0], dtype=index_type)
    updates = np.arange(100, 100 + len(indices), dtype=np.int16)
    expected = np.array([updates[-1], 1, 2, 100, 4])
    np.testing.assert_array_equal(only(P + "SCATTER", x, indices, updates, Axis=0), expected)
    counts = {"InputDimensionCount": 1, "IndicesDimensionCount": 2}
    made = only(P + "SCATTER_ND", x[None], indices[:, None], updates[None], **counts)
    np.testing.assert_array_equal(made, expected[None])


def test_a_tuple_is_out_of_range_if_one_of_its_coordinates_is() -> None:
    """Though the place that they make together may be one of the tensor."""
    x = np.zeros((3, 4), np.float32)
    indices = np.array([[0, 5], [1, -5], [2, 3], [3, -4]], np.int32)
    made = only(
        *(P + "SCATTER_ND", x, indices, np.array([[1, 2, 3, 4]], np.float32)),
        InputDimensionCount=2,
        IndicesDimensionCount=2,
    )
    expected = x.copy()
    expected[2, 3] = 3
    np.testing.assert_array_equal(made, expected)


def test_one_of_several_updates_is_written() -> None:
    x, updates = np.zeros(3, np.float32), np.array([1, 2, 3, 4], np.float32)
    made = only(P + "SCATTER", x, np.array([1, 1, -2, 0], np.int64), updates, Axis=0)
    assert made[0] == 4
    assert made[1] in (1, 2, 3)
    assert made[2] == 0


def test_both_names() -> None:
    scatter = find_operator("SCATTER")
    assert scatter is not None
    for name in ("SCATTER_ELEMENTS", "DML_OPERATOR_SCATTER_ELEMENTS", "DML_OPERATOR_SCATTER"):
        assert find_operator(name) is scatter
        document = descriptor(P + "SCATTER", Type=name)
        assert validate(scatter, document).name() == P + "SCATTER"
    assert compiled(descriptor(P + "SCATTER")).name == P + "SCATTER"


def tensor(*sizes: int, data_type: str = "FLOAT32") -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


def of(kind: str, x: list[int], indices: list[int], updates: list[int], **members: Any) -> dict[str, Any]:
    tensors = {
        "InputTensor": tensor(*x),
        "IndicesTensor": tensor(*indices, data_type="UINT32"),
        "UpdatesTensor": tensor(*updates),
    }
    return descriptor(P + kind, **tensors, **members)


@pytest.mark.parametrize(
    ("document", "pointer", "given", "allowed"),
    [
        (of("SCATTER", [2, 3], [2, 3], [2, 3], Axis=2), "/Axis", 2, "0 to 1"),
        (of("SCATTER", [2, 3], [1, 5], [1, 5], Axis=1), "/IndicesTensor/Sizes", [1, 5], [2, 5]),
        (of("SCATTER", [2, 3], [2, 5], [2, 3], Axis=1), "/UpdatesTensor/Sizes", [2, 3], [2, 5]),
        (
            of("SCATTER", [2, 3], [2, 5], [2, 5], Axis=1, OutputTensor=tensor(2, 5)),
            *("/OutputTensor/Sizes", [2, 5], [2, 3]),
        ),
        (
            of("SCATTER_ND", [2, 3], [2, 1], [2, 3], InputDimensionCount=3, IndicesDimensionCount=2),
            *("/InputDimensionCount", 3, "1 to 2"),
        ),
        (
            of("SCATTER_ND", [2, 3], [2, 3], [1, 2], InputDimensionCount=2, IndicesDimensionCount=2),
            *("/IndicesTensor/Sizes", [2, 3], "at most 2 along the last dimension"),
        ),
        (
            of("SCATTER_ND", [2, 3], [4, 1], [3, 4], InputDimensionCount=2, IndicesDimensionCount=2),
            *("/UpdatesTensor/Sizes", [3, 4], [4, 3]),
        ),
        (
            of("SCATTER_ND", [2, 3, 4], [5, 6, 1], [5, 3, 4], InputDimensionCount=3, IndicesDimensionCount=3),
            *("/UpdatesTensor/Sizes", [5, 6, 3, 4], "3 dimensions"),
        ),
    ],
)
def test_refusals(document: dict[str, Any], pointer: str, given: Any, allowed: Any) -> None:
    (refusal,) = refusals(document)
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (pointer, given, allowed)


def test_sizes_of_updates_are_told_with_the_counts_that_imply_them() -> None:
    document = of("SCATTER_ND", [2, 3], [4, 1], [3, 4], InputDimensionCount=2, IndicesDimensionCount=2)
    (refusal,) = refusals(document)
    assert "InputDimensionCount 2" in refusal.message
    assert "IndicesDimensionCount 2" in refusal.message
    counts = {"InputDimensionCount": 3, "IndicesDimensionCount": 3}
    (refusal,) = refusals(of("SCATTER_ND", [2, 3, 4], [5, 6, 1], [5, 3, 4], **counts))
    assert all(name in refusal.message for name in ("InputTensor", "IndicesTensor", *counts))


@pytest.mark.usefixtures("on_cpu_and_gpu")
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int32, np.float64])
def test_the_last_of_several_updates_stays(dtype: Any) -> None:
    """Also on a GPU, whose threads write in any order."""
    rng = np.random.default_rng(7)
    for width, count in ((1, 5000), (3, 700), (1000, 60)):
        x, updates = (rng.integers(0, 250, (each, width)).astype(dtype) for each in (20, count))
        indices = rng.integers(-22, 22, (count, 1)).astype(np.int32)
        expected = x.copy()
        for (index,), update in zip(indices, updates, strict=True):
            if -20 <= index < 20:
                expected[index] = update
        inputs = {"InputTensor": x, "IndicesTensor": indices, "UpdatesTensor": updates}
        counts = {"InputDimensionCount": 2, "IndicesDimensionCount": 2}
        outputs = {"OutputTensor": np.empty_like(x)}
        made = run(P + "SCATTER_ND", inputs, outputs, **counts)["OutputTensor"]
        np.testing.assert_array_equal(made, expected)
        if width > 1:
            continue
        made = run(P + "SCATTER", inputs, outputs, Axis=0)["OutputTensor"]
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("bytes_", [1, 2, 4, 8])
def test_kernels_compile(bytes_: int) -> None:
    assert compile_source(source_of(bytes_), 80).startswith(b"\x7fELF")


@pytest.mark.gpu
def test_updates_are_part_of_a_cuda_graph() -> None:
    """The third dispatch is recorded, and the following ones are of other updates and other places."""
    rng, gpu = np.random.default_rng(3), first_gpu()
    tensor, indices = {"DataType": "FLOAT32", "Sizes": [40, 30]}, {"DataType": "INT64", "Sizes": [25, 30]}
    document = descriptor(P + "SCATTER", InputTensor=tensor, IndicesTensor=indices, UpdatesTensor=tensor, Axis=0)
    document = document | {"UpdatesTensor": tensor | {"Sizes": [25, 30]}, "OutputTensor": tensor}
    kernel = gpu.prepare(compiled(document))
    for _ in range(5):
        x, updates = (rng.standard_normal((rows, 30)).astype(np.float32) for rows in (40, 25))
        places, made = rng.integers(-40, 40, (25, 30)), np.zeros_like(x)
        kernel.dispatch([bytes_of(each) for each in (x, places, updates)], [bytes_of(made)], lambda: False)
        for row in range(25):
            x[places[row], range(30)] = updates[row]
        np.testing.assert_array_equal(made, x)
    assert_recorded(kernel, gpu)
