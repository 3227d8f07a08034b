"""JOIN and SPLIT against NumPy's."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.tensors import MAX_TENSORS
from tests.operators.calls import run
from tests.operators.data_movement.tensors import DESC, TYPES, any_bits, assert_same_bits, sized, some_layout, told
from tests.operators.descriptors import descriptor, refusals


@pytest.mark.parametrize("data_type", TYPES)
def test_join_and_split(data_type: DataType) -> None:
    """One is the way back from the other."""
    rng = np.random.default_rng(1)
    for rank in range(1, 9):
        sizes = [int(each) for each in rng.integers(1, 5 if rank < 6 else 3, rank)]
        axis = int(rng.integers(0, rank))
        counts = [int(each) for each in rng.integers(1, 4, rng.integers(1, 8))]
        parts = [any_bits(rng, [*sizes[:axis], count, *sizes[axis + 1 :]], data_type) for count in counts]
        joined = np.concatenate(parts, axis)
        for output in ({}, {"OutputTensor": some_layout(rng, joined), "InputCount": len(parts)}):
            made = run({"Type": "JOIN", "Axis": axis} | output, InputTensors=[*parts])
            assert_same_bits(made["OutputTensor"], joined)
        outputs = {"OutputTensors": [some_layout(rng, part) for part in parts]}
        made = run({"Type": "SPLIT", "Axis": axis} | outputs, InputTensor=joined)
        assert list(made) == [f"OutputTensors[{k}]" for k in range(len(parts))]
        for part, output_made in zip(parts, made.values(), strict=True):
            assert_same_bits(output_made, part)


def test_as_many_tensors_as_there_may_be() -> None:
    rng = np.random.default_rng(2)
    parts = [any_bits(rng, [2, 1 + k % 3], DataType.INT32) for k in range(MAX_TENSORS)]
    joined = np.concatenate(parts, 1)
    assert_same_bits(run({"Type": "JOIN", "Axis": 1}, InputTensors=[*parts])["OutputTensor"], joined)
    outputs = [{"DataType": "INT32", "Sizes": list(part.shape)} for part in parts]
    made = run({"Type": "SPLIT", "Axis": 1, "OutputTensors": outputs}, InputTensor=joined)
    for part, output in zip(parts, made.values(), strict=True):
        assert_same_bits(output, part)
    tensors = [{"DataType": "INT32", "Sizes": [1]}] * (MAX_TENSORS + 1)
    assert told({"Type": "JOIN", "InputTensors": tensors, "Axis": 0})[0] == "/InputTensors"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Axis": 4}, ("/Axis", 4, "0 to 3")),
        ({"InputCount": 3}, ("/InputCount", 3, 2)),
        ({"InputTensors": [DESC, sized(1, 1, 1, 3)]}, ("/InputTensors/1/Sizes", [1, 1, 1, 3], [1, 1, 2, 3])),
        ({"InputTensors": [DESC, sized(1, 2, 3)]}, ("/InputTensors/1/Sizes", 3, 4)),
        ({"InputTensors": [DESC, DESC | {"DataType": "INT8"}]}, ("/InputTensors/1/DataType", "INT8", "FLOAT32")),
        ({"OutputTensor": sized(1, 1, 2, 6)}, ("/OutputTensor/Sizes", [1, 1, 2, 6], [1, 1, 2, 4])),
        ({"InputTensors": [sized(1, 1, 1, 2**31)] * 2}, ("/OutputTensor/Sizes", [1, 1, 1, 2**32], None)),
    ],
)
def test_what_join_refuses(change: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    document = descriptor("DML_OPERATOR_JOIN", InputTensors=[DESC, sized(1, 1, 2, 1)], Axis=3)
    assert refusals(document) == []
    assert told(document | change) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Axis": 4}, ("/Axis", 4, "0 to 3")),
        ({"OutputCount": 1}, ("/OutputCount", 1, 2)),
        ({"OutputTensors": [sized(1, 1, 2, 1)] * 2}, ("/OutputTensors", 2, 3)),
        ({"OutputTensors": [sized(1, 1, 2, 2)] * 2}, ("/OutputTensors", 4, 3)),
        (
            {"OutputTensors": [sized(1, 1, 2, 1), sized(1, 2, 2, 2)]},
            ("/OutputTensors/1/Sizes", [1, 2, 2, 2], [1, 1, 2, 2]),
        ),
    ],
)
def test_what_split_refuses(change: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    """One output is a copy."""
    document = descriptor("DML_OPERATOR_SPLIT", OutputTensors=[sized(1, 1, 2, 1), sized(1, 1, 2, 2)], Axis=3)
    assert refusals(document) == refusals(document | {"OutputTensors": [DESC]}) == []
    assert told(document | change) == expected
