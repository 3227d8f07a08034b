"""TOP_K and TOP_K1 against Python's stable sort, and what they refuse."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType, FeatureLevel
from app.memory.arrays import Array, numpy_type
from app.operators.indexing import rows
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.indexing.running import MOVED, bits, run, sizes_of

P = "DML_OPERATOR_"
SORTED = [each for each in MOVED if each is not DataType.FLOAT64]
of_each_type = pytest.mark.parametrize("data_type", SORTED)
directions = pytest.mark.parametrize("direction", ["DECREASING", "INCREASING"])


def the_first(x: Array, axis: int, count: int, direction: str) -> tuple[Array, Array]:
    """Values and indices: NaN above all numbers, equals in their order."""

    def order(sequence: Array) -> Array:
        numbers = sequence.tolist()
        keys = [(number != number, 0 if number != number else number) for number in numbers]
        if direction == "INCREASING":
            return np.array(sorted(range(len(keys)), key=keys.__getitem__)[:count])
        # In reverse the sort keeps the order of equals as well.
        return np.array(sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[:count])

    indices = np.apply_along_axis(order, axis, x)
    return np.take_along_axis(x, indices, axis), indices


def run_it(x: Array, axis: int, count: int, direction: str, **outputs: Array) -> tuple[Array, Array]:
    attributes: dict[str, Any] = {"Axis": axis, "K": count, "AxisDirection": direction}
    made = run(P + "TOP_K1", {"InputTensor": x}, outputs, **attributes)
    if direction == "DECREASING":
        del attributes["AxisDirection"]
        same = run(P + "TOP_K", {"InputTensor": x}, outputs, **attributes)
        for name in made:
            np.testing.assert_array_equal(made[name], same[name])
    return made["OutputValueTensor"], made["OutputIndexTensor"]


@pytest.mark.usefixtures("on_cpu_and_gpu")
@of_each_type
@directions
@pytest.mark.parametrize("most", [rows.MOST, 5])
def test_random_tensors(data_type: DataType, direction: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any bits, and of few numbers, so that many are equal; all at a time, and in pieces."""
    monkeypatch.setattr(rows.pieces, "__defaults__", (most,))
    rng = np.random.default_rng(1)
    dtype = numpy_type(data_type)
    for turn in range(6):
        sizes = sizes_of(rng, int(rng.integers(1, 5)), 9)
        axis = int(rng.integers(0, len(sizes)))
        count = int(rng.integers(1, sizes[axis] + 1))
        if turn % 2:
            x = bits(rng, sizes, data_type)
        elif dtype.kind == "f":
            x = rng.choice(np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan], dtype), sizes)
        else:
            limits = np.iinfo(dtype)
            x = rng.choice(np.array([limits.min, limits.min + 1, 0, 1, limits.max], dtype), sizes)
        values, indices = the_first(x, axis, count, direction)
        wide = data_type.bits == 64
        laid = {
            "OutputValueTensor": laid_out(rng, values),
            "OutputIndexTensor": laid_out(rng, indices.astype(np.uint64 if wide else np.uint32)),
        }
        for outputs in ({}, laid):
            made = run_it(laid_out(rng, x), axis, count, direction, **outputs)
            np.testing.assert_array_equal(made[1], indices)
            np.testing.assert_array_equal(made[0], values)
            assert made[1].dtype == (np.uint64 if wide and outputs else np.uint32)


@pytest.mark.usefixtures("on_cpu_and_gpu")
@of_each_type
@directions
def test_many_equals_among_long_sequences(data_type: DataType, direction: str) -> None:
    x = np.random.default_rng(2).integers(0, 20, (3, 1000)).astype(numpy_type(data_type))
    for count in (1, 300, 1000):
        values, indices = the_first(x, 1, count, direction)
        made = run_it(x, 1, count, direction)
        np.testing.assert_array_equal(made[0], values)
        np.testing.assert_array_equal(made[1], indices)


@pytest.mark.usefixtures("on_cpu_and_gpu")
def test_zeros_of_both_signs_are_equal_and_stay_as_they_are() -> None:
    x = np.array([-0.0, 0, -0.0, 0], np.float32)
    for direction in ("INCREASING", "DECREASING"):
        values, indices = run_it(x, 0, 4, direction)
        assert indices.tolist() == [0, 1, 2, 3]
        assert np.signbit(values).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("members", "pointer", "given", "allowed"),
    [
        ({"Axis": 4}, "/Axis", 4, "0 to 3"),
        ({"K": 0}, "/K", 0, "1 to 3"),
        ({"K": 4}, "/K", 4, "1 to 3"),
        (
            {"K": 2, "OutputValueTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}},
            *("/OutputValueTensor/Sizes", [1, 1, 2, 3], [1, 1, 2, 2]),
        ),
        (
            {"K": 2, "OutputIndexTensor": {"DataType": "UINT32", "Sizes": [1, 1, 2, 1]}},
            *("/OutputIndexTensor/Sizes", [1, 1, 2, 1], [1, 1, 2, 2]),
        ),
        (
            {"OutputIndexTensor": {"DataType": "INT32", "Sizes": [1, 1, 2, 2]}},
            *("/OutputIndexTensor/DataType", "INT32", ["UINT64", "UINT32"]),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["TOP_K", "TOP_K1"])
def test_refusals(kind: str, members: dict[str, Any], pointer: str, given: Any, allowed: Any) -> None:
    (refusal,) = refusals(descriptor(P + kind, **members))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (pointer, given, allowed)


def test_implied_indices_are_of_a_type_that_each_level_has() -> None:
    for level in (FeatureLevel.V2_1, FeatureLevel.V3_1, FeatureLevel.V6_4):
        made = compiled(descriptor(P + "TOP_K1"), level).outputs
        assert [desc.DataType for desc in made.values()] == [DataType.FLOAT32, DataType.UINT32]
