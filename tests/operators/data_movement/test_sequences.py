"""REVERSE_SUBSEQUENCES against reversing one sequence after the other."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.data_movement.tensors import TYPES, any_bits, assert_same_bits, sized, some_layout, told
from tests.operators.descriptors import descriptor, refusals


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_lengths(dtype: Any, data_type: DataType) -> None:
    """Of nothing, of one element, of some, of all, and of more than there are."""
    rng = np.random.default_rng(1)
    for rank in range(1, 7):
        sizes = [int(each) for each in rng.integers(1, 6 if rank < 5 else 3, rank)]
        axis = int(rng.integers(0, rank))
        x = any_bits(rng, sizes, data_type)
        some = [*range(sizes[axis] + 1), sizes[axis] + 1, np.iinfo(dtype).max, np.iinfo(dtype).max // 2 + 1]
        lengths = rng.choice(np.array(some, dtype), [*sizes[:axis], 1, *sizes[axis + 1 :]])
        expected = x.copy()
        rows, counts = np.moveaxis(expected, axis, -1), np.moveaxis(lengths, axis, -1)
        for place in np.ndindex(rows.shape[:-1]):
            count = min(int(counts[place][0]), sizes[axis])
            rows[place][:count] = rows[place][:count][::-1].copy()
        for output in ({}, {"OutputTensor": some_layout(rng, expected)}):
            document = {"Type": "REVERSE_SUBSEQUENCES", "Axis": axis} | output
            made = run(document, InputTensor=x, SequenceLengthsTensor=laid_out(rng, lengths))["OutputTensor"]
            assert_same_bits(made, expected)


def test_what_is_refused() -> None:
    document = descriptor("DML_OPERATOR_REVERSE_SUBSEQUENCES")
    assert refusals(document) == []
    assert told(document | {"Axis": 4}) == ("/Axis", 4, "0 to 3")
    assert told(document | {"Axis": 2}) == ("/SequenceLengthsTensor/Sizes", [1, 1, 2, 1], [1, 1, 1, 3])
    assert told(document | {"OutputTensor": sized(1, 1, 2, 1)}) == ("/OutputTensor/Sizes", [1, 1, 2, 1], [1, 1, 2, 3])
    lengths = sized(1, 1, 2, 1, DataType="INT32")
    assert told(document | {"SequenceLengthsTensor": lengths})[:2] == ("/SequenceLengthsTensor/DataType", "INT32")
