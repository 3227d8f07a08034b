"""Rows are put together and taken apart, and those that depend on one another are found."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.buffers import Buffer
from app.models.onnx.importer import ModelTensor
from app.models.repository.rows import RowSlice, are_apart, put_together, take_apart
from tests.models.documents import Array

ROWS, WIDTH = 5, 3


def test_what_is_left_of_a_batch_is_its_last_row() -> None:
    parts = [b"aabb", b"cc"]
    into = bytearray(10)
    put_together([RowSlice(memoryview(each), len(each)) for each in parts], memoryview(into), 2)
    assert bytes(into) == b"aabbcccccc"
    made = [bytearray(4), bytearray(3)]
    take_apart(memoryview(into), [RowSlice(memoryview(made[0]), 4), RowSlice(memoryview(made[1]), 2)])
    assert [bytes(each) for each in made] == [b"aabb", b"cc\0"]


def found_apart(type_: str, compute: Callable[[Array], Array]) -> bool:
    tensor = ModelTensor(type_, DataType.UINT8 if type_ == "bool" else DataType(type_.upper()), (ROWS, WIDTH))

    def execute(data: Mapping[str, Buffer]) -> Mapping[str, bytes]:
        x = np.frombuffer(data["x"], np.uint8 if type_ == "bool" else type_).reshape(ROWS, WIDTH)
        return {"y": np.ascontiguousarray(compute(x)).tobytes()}

    return are_apart({"x": tensor}, {"y": tensor}, execute)


@pytest.mark.parametrize(
    "type_", ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "uint64", "bool"]
)
def test_rows_that_depend_on_one_another(type_: str) -> None:
    assert found_apart(type_, lambda x: x)
    assert found_apart(type_, lambda x: np.cumsum(x, 1).astype(x.dtype))
    for mixed in (
        lambda x: np.cumsum(x, 0).astype(x.dtype),
        lambda x: np.cumsum(x[::-1], 0)[::-1].astype(x.dtype),
        lambda x: x + x.max(),
        lambda x: x + x.min(),
        lambda x: x[::-1] + x,
    ):
        assert not found_apart(type_, mixed)


def test_scales_of_a_whole_tensor_are_found_by_large_numbers() -> None:
    assert not found_apart("float32", lambda x: x + np.float32(x.std() > 4))
    assert not found_apart("uint8", lambda x: x + np.uint8(x.max() > 50))


@pytest.mark.parametrize(("type_", "most"), [("bool", 1), ("int32", 1), ("int64", 1), ("int8", 100), ("int16", 100)])
def test_whole_numbers_may_be_places_in_a_table(type_: str, most: int) -> None:
    given: list[Array] = []

    def compute(x: Array) -> Array:
        given.append(x)
        return x

    assert found_apart(type_, compute)
    assert (np.min(given), np.max(given)) == (0, most)
