"""SPACE_TO_DEPTH and DEPTH_TO_SPACE, both versions, against reshaping and transposing."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array
from tests.operators.calls import run
from tests.operators.data_movement.tensors import TYPES, any_bits, assert_same_bits, sized, some_layout, told
from tests.operators.descriptors import descriptor, refusals

ORDERS = [{}, {"Order": "DEPTH_COLUMN_ROW"}, {"Order": "DML_DEPTH_SPACE_ORDER_COLUMN_ROW_DEPTH"}]
"""Of the version without and of that with."""


def deep(x: Array, block: int, depth_first: bool) -> Array:
    n, c, h, w = x.shape
    apart = x.reshape(n, c, h // block, block, w // block, block)
    turned = apart.transpose(0, 1, 3, 5, 2, 4) if depth_first else apart.transpose(0, 3, 5, 1, 2, 4)
    return turned.reshape(n, -1, h // block, w // block)


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("order", ORDERS)
def test_there_and_back(order: dict[str, Any], data_type: DataType) -> None:
    rng = np.random.default_rng(1)
    version = "1" if order else ""
    for block in (1, 2, 3):
        n, c, h, w = (int(each) for each in rng.integers(1, 4, 4))
        flat = any_bits(rng, [n, c, h * block, w * block], data_type)
        made = deep(flat, block, "COLUMN_ROW_DEPTH" in str(order))
        for kind, x, expected in (("SPACE_TO_DEPTH", flat, made), ("DEPTH_TO_SPACE", made, flat)):
            for output in ({}, {"OutputTensor": some_layout(rng, expected)}):
                document = {"Type": kind + version, "BlockSize": block} | order | output
                assert_same_bits(run(document, InputTensor=x)["OutputTensor"], expected)


@pytest.mark.parametrize("version", ["", "1"])
def test_blocks_that_do_not_fit(version: str) -> None:
    document = descriptor(f"DML_OPERATOR_SPACE_TO_DEPTH{version}", InputTensor=sized(1, 1, 6, 4), BlockSize=2)
    assert refusals(document) == []
    for size in (3, 4, 2**32 - 1):
        assert told(document | {"BlockSize": size}) == ("/BlockSize", size, "a divisor of 6 and 4")
    assert told(document | {"BlockSize": 0}) == ("/BlockSize", 0, ">= 1")
    assert told(document | {"OutputTensor": sized(1, 1, 12, 8)}) == ("/OutputTensor/Sizes", [1, 1, 12, 8], [1, 4, 3, 2])
    document = descriptor(f"DML_OPERATOR_DEPTH_TO_SPACE{version}", InputTensor=sized(1, 12, 6, 4), BlockSize=2)
    assert refusals(document) == []
    for size in (3, 12):
        assert told(document | {"BlockSize": size}) == ("/BlockSize", size, "a number whose square divides 12")
    assert told(document | {"OutputTensor": sized(1, 3, 3, 2)}) == ("/OutputTensor/Sizes", [1, 3, 3, 2], [1, 3, 12, 8])
