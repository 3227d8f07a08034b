"""FILL_VALUE_* and DIAGONAL_MATRIX*, which need no input, against NumPy."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.formula.values import parts
from app.memory.arrays import Array, numpy_type
from tests.operators.calls import compiled, run
from tests.operators.data_movement.tensors import DESC, TYPES, any_bits, assert_same_bits, some_layout, told
from tests.operators.descriptors import descriptor, refusals

every_type = pytest.mark.parametrize("data_type", TYPES)


def distance(shape: tuple[int, ...]) -> Array:
    """Of each element of a matrix to the right of its diagonal."""
    return np.broadcast_to(np.arange(shape[-1]) - np.arange(shape[-2])[:, None], shape)


@every_type
def test_diagonal_matrix(data_type: DataType) -> None:
    rng = np.random.default_rng(1)
    dtype = numpy_type(data_type)
    for shape in ((3, 5), (2, 5, 3), (1, 2, 4, 4), (1, 1)):
        for offset in (-6, -1, 0, 2, 2**31 - 1, -(2**31)):
            expected = np.where(distance(shape) == offset, dtype.type(7), dtype.type(0))
            document = {"Type": "DIAGONAL_MATRIX", "Offset": offset, "OutputTensor": some_layout(rng, expected)}
            assert_same_bits(run(document | {"Value": 7})["OutputTensor"], expected)
            assert_same_bits(run(document)["OutputTensor"], (expected / dtype.type(7)).astype(dtype))


def test_the_value_of_a_diagonal_is_converted() -> None:
    for dtype, value, expected in (
        ("INT8", -10.6, -10),
        ("UINT8", 300, 255),
        ("FLOAT16", 2049, 2048),
        ("FLOAT32", -np.inf, -np.inf),
        ("INT32", "Infinity", 2**31 - 1),
    ):
        output = {"DataType": dtype, "Sizes": [1, 1]}
        made = run({"Type": "DIAGONAL_MATRIX", "Offset": 0, "Value": value, "OutputTensor": output})
        assert made["OutputTensor"].tolist() == [[expected]]


BANDS = [(0, 1), (-1, 2), (1, 1), (2, -1), (1, 0), (-(2**31), 0), (0, 2**31 - 1), (2**31 - 1, -(2**31)), (9, 12)]


@every_type
def test_diagonal_matrix1(data_type: DataType) -> None:
    rng = np.random.default_rng(2)
    for shape in ((3, 5), (2, 5, 3), (1, 2, 4, 4)):
        x = any_bits(rng, list(shape), data_type)
        value = x.dtype.type(3)
        for begin, end in BANDS:
            d = distance(shape)
            filled = (begin <= d) & (d < end) if begin <= end else (d >= begin) | (d < end)
            document = {"Type": "DIAGONAL_MATRIX1", "ValueDataType": data_type.value, "Value": 3}
            document |= {"DiagonalFillBegin": begin, "DiagonalFillEnd": end}
            expected = np.where(filled, value, x)
            assert_same_bits(run(document, InputTensor=x)["OutputTensor"], expected)
            output = {"OutputTensor": some_layout(rng, x)}
            assert_same_bits(run(document | output, InputTensor=x)["OutputTensor"], expected)
            assert_same_bits(run(document | output)["OutputTensor"], np.where(filled, value, x.dtype.type(0)))


def test_what_diagonal_matrix1_refuses() -> None:
    document = descriptor("DML_OPERATOR_DIAGONAL_MATRIX1", Value=1)
    assert refusals(document) == []
    assert told(document | {"InputTensor": None, "OutputTensor": None}) == (
        "/OutputTensor",
        None,
        "a tensor descriptor",
    )
    other = DESC | {"Sizes": [1, 1, 3, 2]}
    assert told(document | {"OutputTensor": other}) == ("/OutputTensor/Sizes", [1, 1, 3, 2], [1, 1, 2, 3])
    assert told(document | {"ValueDataType": "INT8"}) == ("/ValueDataType", "INT8", "FLOAT32")
    assert told(document | {"Value": {"Int8": 1}})[0] == "/Value"


@every_type
def test_fill_value_constant(data_type: DataType) -> None:
    rng = np.random.default_rng(3)
    for rank in range(1, 9):
        expected = np.full(rng.integers(1, 4, rank), 77, numpy_type(data_type))
        document = {"Type": "FILL_VALUE_CONSTANT", "ValueDataType": data_type.value, "Value": 77}
        assert_same_bits(run(document | {"OutputTensor": some_layout(rng, expected)})["OutputTensor"], expected)


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("FLOAT64", {"Float64": 0.1}, 0.1),
        ("FLOAT16", {"UInt16": 0xBC00}, -1),
        ("FLOAT16", 1 + 2**-11 + 2**-40, 1 + 2**-10),  # float32 has it as a half between two numbers
        ("FLOAT16", 65520 - 2**-20, 65504),
        ("FLOAT16", 65520, np.inf),
        ("FLOAT32", -0.0, -0.0),
        ("FLOAT32", -np.inf, -np.inf),
        ("FLOAT64", {"Float64": np.inf}, np.inf),
        ("FLOAT16", {"UInt16": 0xFC00}, -np.inf),
        ("INT64", -(2**63), -(2**63)),
        ("UINT64", {"UInt64": 2**64 - 1}, 2**64 - 1),
    ],
)
def test_constants(data_type: str, value: Any, expected: float) -> None:
    output = {"DataType": data_type, "Sizes": [2]}
    made = run({"Type": "FILL_VALUE_CONSTANT", "ValueDataType": data_type, "Value": value, "OutputTensor": output})
    assert_same_bits(made["OutputTensor"], np.array([expected] * 2, made["OutputTensor"].dtype))


@pytest.mark.parametrize("data_type", [each for each in TYPES if each is not DataType.FLOAT64])
def test_fill_value_sequence(data_type: DataType) -> None:
    """Row-major, whatever the layout is; integers wrap around."""
    rng = np.random.default_rng(4)
    dtype = numpy_type(data_type)
    for rank in range(1, 7):
        shape = tuple(rng.integers(1, 5, rank))
        index = np.arange(np.prod(shape))
        for start, delta in ((3, 2), (100, 27), (10, -2), (5, 0)):
            with np.errstate(all="ignore"):
                expected = (start + index * delta).astype(dtype).reshape(shape)
            document = {"Type": "FILL_VALUE_SEQUENCE", "ValueStart": start, "ValueDelta": delta}
            document |= {"ValueDataType": data_type.value, "OutputTensor": some_layout(rng, expected)}
            assert_same_bits(run(document)["OutputTensor"], expected)


def test_sequences_of_floats_do_not_accumulate() -> None:
    document = {"Type": "FILL_VALUE_SEQUENCE", "ValueDataType": "FLOAT32", "ValueStart": 1, "ValueDelta": 0.1}
    made = run(document | {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [50000]}})["OutputTensor"]
    assert_same_bits(made, (1 + np.arange(50000) * float(np.float32(0.1))).astype(np.float32))


def test_negative_steps_of_unsigned_types() -> None:
    document = {"Type": "FILL_VALUE_SEQUENCE", "ValueDataType": "UINT8", "ValueStart": 10}
    document |= {"OutputTensor": {"DataType": "UINT8", "Sizes": [7]}}
    delta: object
    for delta in (-2, 254, {"UInt8": 254}):
        assert run(document | {"ValueDelta": delta})["OutputTensor"].tolist() == [10, 8, 6, 4, 2, 0, 254]
    assert refusals(document | {"ValueDelta": -128}) == []
    for delta in (-129, 256, {"Int8": -2}, -0.5):
        assert told(document | {"ValueDelta": delta})[0] == "/ValueDelta"
    assert told(document | {"ValueStart": -1, "ValueDelta": -1})[0] == "/ValueStart"


@pytest.mark.parametrize("name", ["Value", "ValueStart", "ValueDelta"])
def test_numbers_are_of_the_outputs_type(name: str) -> None:
    kind = "DML_OPERATOR_FILL_VALUE_CONSTANT" if name == "Value" else "DML_OPERATOR_FILL_VALUE_SEQUENCE"
    document = descriptor(kind)
    assert refusals(document) == []
    assert told(document | {"ValueDataType": "INT32"}) == ("/ValueDataType", "INT32", "FLOAT32")
    for value in (1e39, {"Int32": 1}, float("nan")):
        assert told(document | {name: value})[0] == f"/{name}"


@pytest.mark.parametrize(("size", "is_short"), [(1 << 31, True), ((1 << 31) + 1, False)])
def test_positions_are_converted_from_32_bits_where_they_fit(size: int, is_short: bool) -> None:
    desc = {"DataType": "FLOAT32", "Sizes": [size]}
    operator = compiled(
        {"Type": "FILL_VALUE_SEQUENCE", "ValueDataType": "FLOAT32", "ValueStart": 1, "ValueDelta": 2}
        | {"OutputTensor": desc}
    )
    nodes = parts(operator.program.maps["OutputTensor"].expression)
    assert any(each.type == "int32" for each in nodes) == is_short
