"""PADDING and PADDING1 against numpy.pad, which folds as often as it takes."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType, FeatureLevel
from app.memory.arrays import numpy_type
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

MODES: dict[str, Any] = {
    "CONSTANT": "constant",
    "EDGE": "edge",
    "REFLECTION": "reflect",
    "SYMMETRIC": "symmetric",
    "WRAP": "wrap",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["PADDING", "PADDING1"])
def test_modes(kind: str, mode: str) -> None:
    rng = np.random.default_rng(1)
    for data_type in TYPES:
        dtype = numpy_type(data_type)
        for rank in (1, 2, 5):
            sizes = [int(each) for each in rng.integers(1, 6 if rank < 4 else 3, rank)]
            x = any_bits(rng, sizes, data_type)
            most = 12 if rank < 3 else 4 if rank < 5 else 2
            start, end = ([int(each) for each in rng.integers(0, most, rank)] for _ in range(2))
            value = int(rng.integers(0, 100))
            constant = {"constant_values": dtype.type(value)} if mode == "CONSTANT" else {}
            expected = np.pad(x, list(zip(start, end, strict=True)), MODES[mode], **constant)
            document: dict[str, Any] = {"Type": kind, "PaddingMode": mode, "PaddingValue": value}
            document |= {"StartPadding": start, "EndPadding": end}
            if kind == "PADDING1":
                document["PaddingValueDataType"] = data_type.value
            for output in ({}, {"OutputTensor": some_layout(rng, expected), "DimensionCount": rank}):
                assert_same_bits(run(document | output, InputTensor=x)["OutputTensor"], expected)


def test_the_rows_of_the_operators_page() -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    document = {"Type": "PADDING", "PaddingValue": 9, "StartPadding": [2], "EndPadding": [4]}
    for mode, expected in {
        "DML_PADDING_MODE_CONSTANT": [9, 9, 1, 2, 3, 4, 9, 9, 9, 9],
        "EDGE": [1, 1, 1, 2, 3, 4, 4, 4, 4, 4],
        "REFLECTION": [3, 2, 1, 2, 3, 4, 3, 2, 1, 2],
        "SYMMETRIC": [2, 1, 1, 2, 3, 4, 4, 3, 2, 1],
        "WRAP": [3, 4, 1, 2, 3, 4, 1, 2, 3, 4],
    }.items():
        assert run(document | {"PaddingMode": mode}, InputTensor=x)["OutputTensor"].tolist() == expected


def test_one_element_is_reflected_as_itself() -> None:
    document = {"Type": "PADDING", "PaddingMode": "REFLECTION", "PaddingValue": 9}
    made = run(document | {"StartPadding": [3], "EndPadding": [2]}, InputTensor=np.array([7], np.int16))
    assert made["OutputTensor"].tolist() == [7] * 6


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("INT32", 10.6, 10),
        ("INT32", -10.6, -10),
        ("UINT8", -3, 0),
        ("INT8", 300, 127),
        ("INT64", 1e30, 2**63 - 1),
        ("UINT64", 1e30, 2**64 - 1),
        ("FLOAT16", 2049, 2048),
        ("FLOAT16", 1e30, np.inf),
        ("FLOAT16", -0.0, -0.0),
        ("FLOAT32", 0.1, 0.1),
        ("FLOAT64", 0.1, float(np.float32(0.1))),
        ("FLOAT32", -np.inf, -np.inf),
        ("FLOAT64", np.inf, np.inf),
        ("INT16", -np.inf, -(1 << 15)),
        ("UINT64", np.inf, 2**64 - 1),
    ],
)
def test_the_value_is_converted(data_type: str, value: float, expected: float) -> None:
    x = np.zeros(1, numpy_type(DataType(data_type)))
    document = {"Type": "PADDING", "PaddingMode": "CONSTANT", "PaddingValue": value}
    made = run(document | {"StartPadding": [1], "EndPadding": [0]}, InputTensor=x)["OutputTensor"]
    assert_same_bits(made[:1], np.array([expected], x.dtype))


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("FLOAT16", {"UInt16": 0x3C00}, 1),
        ("FLOAT16", 1.5, 1.5),
        ("FLOAT16", -1 - 2**-11 - 2**-40, -1 - 2**-10),  # float32 has it as a half between two numbers
        ("FLOAT16", {"UInt16": 0xFC00}, -np.inf),
        ("FLOAT32", -np.inf, -np.inf),
        ("FLOAT64", 0.1, 0.1),
        ("FLOAT64", {"Float64": 0.1}, 0.1),
        ("FLOAT64", 2**60, 2.0**60),
        ("UINT64", 2**64 - 1, 2**64 - 1),
        ("INT64", {"Int64": -(2**63)}, -(2**63)),
        ("INT8", {"Int8": -5}, -5),
        ("UINT16", {"UInt16": 65535}, 65535),
    ],
)
def test_a_value_of_the_tensors_type(data_type: str, value: Any, expected: float) -> None:
    x = np.zeros(1, numpy_type(DataType(data_type)))
    document = {"Type": "PADDING1", "PaddingMode": "CONSTANT", "PaddingValueDataType": data_type, "PaddingValue": value}
    made = run(document | {"StartPadding": [1], "EndPadding": [1]}, InputTensor=x)["OutputTensor"]
    assert_same_bits(made, np.array([expected, 0, expected], x.dtype))


@pytest.mark.parametrize(
    ("mode", "level", "allowed"),
    [
        ("SYMMETRIC", FeatureLevel.V2_1, ["CONSTANT", "EDGE", "REFLECTION"]),
        ("WRAP", FeatureLevel.V2_1, ["CONSTANT", "EDGE", "REFLECTION"]),
        ("WRAP", FeatureLevel.V6_3, ["CONSTANT", "EDGE", "REFLECTION", "SYMMETRIC"]),
    ],
)
def test_modes_of_later_levels(mode: str, level: FeatureLevel, allowed: list[str]) -> None:
    document = descriptor("DML_OPERATOR_PADDING", PaddingMode=mode)
    assert told(document, level) == ("/PaddingMode", mode, allowed)
    assert refusals(document) == []
    assert refusals(descriptor("DML_OPERATOR_PADDING", PaddingMode="SYMMETRIC"), FeatureLevel.V3_0) == []


@pytest.mark.parametrize("kind", ["DML_OPERATOR_PADDING", "DML_OPERATOR_PADDING1"])
def test_what_is_refused(kind: str) -> None:
    document = descriptor(kind, StartPadding=[0, 0, 1, 2], EndPadding=[0, 1, 0, 3])
    assert refusals(document | {"OutputTensor": sized(1, 2, 3, 8)}) == []
    wrong = document | {"OutputTensor": sized(1, 2, 3, 7)}
    assert told(wrong) == ("/OutputTensor/Sizes", [1, 2, 3, 7], [1, 2, 3, 8])
    assert told(document | {"StartPadding": [2**32 - 1, 0, 0, 0]})[0] == "/OutputTensor/Sizes"
    assert told(document | {"DimensionCount": 2}) == ("/DimensionCount", 2, 4)
    found = refusals(document | {"StartPadding": [1], "EndPadding": [1]})
    assert list(map(spelled, found)) == [("/StartPadding", 1, 4), ("/EndPadding", 1, 4)]


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"PaddingValueDataType": "INT32"}, "/PaddingValueDataType"),
        ({"PaddingValue": {"Int32": 1}}, "/PaddingValue"),
        ({"PaddingValue": {}}, "/PaddingValue"),
        ({"PaddingValue": 1e39}, "/PaddingValue"),
        ({"PaddingValue": float("nan")}, "/PaddingValue"),
    ],
)
def test_values_that_are_none_of_the_type(members: dict[str, Any], pointer: str) -> None:
    assert told(descriptor("DML_OPERATOR_PADDING1", **members))[0] == pointer


@pytest.mark.parametrize("value", [2**1100, {"Float32": 1.0}, float("nan")])
def test_values_that_are_no_float64(value: Any) -> None:
    tensor = sized(1, 1, 2, 3, DataType="FLOAT64")
    document = descriptor("DML_OPERATOR_PADDING1", InputTensor=tensor, PaddingValueDataType="FLOAT64")
    assert refusals(document) == []
    assert told(document | {"PaddingValue": value})[0] == "/PaddingValue"
