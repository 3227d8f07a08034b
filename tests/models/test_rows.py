"""Rows are put together and taken apart."""

from app.models.repository.rows import RowSlice, put_together, take_apart


def test_what_is_left_of_a_batch_is_its_last_row() -> None:
    parts = [b"aabb", b"cc"]
    into = bytearray(10)
    put_together([RowSlice(memoryview(each), len(each)) for each in parts], memoryview(into), 2)
    assert bytes(into) == b"aabbcccccc"
    made = [bytearray(4), bytearray(3)]
    take_apart(memoryview(into), [RowSlice(memoryview(made[0]), 4), RowSlice(memoryview(made[1]), 2)])
    assert [bytes(each) for each in made] == [b"aabb", b"cc\0"]
