"""DirectML's enumerations against the tables of its documentation."""

from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_core import PydanticCustomError

from app.contract.constants import (
    NEWEST,
    AxisDirection,
    Constant,
    ConvolutionDirection,
    ConvolutionMode,
    DataType,
    DepthSpaceOrder,
    FeatureLevel,
    InterpolationMode,
    IsInfinityMode,
    MatrixTransform,
    MultiheadAttentionMaskType,
    PaddingMode,
    QuantizationType,
    RandomGeneratorType,
    RecurrentNetworkDirection,
    ReduceFunction,
    RoundingMode,
    TensorFlag,
)

# DML_TENSOR_DATA_TYPE in the order of its values, from 1 on, with the bits of an element.
DATA_TYPES = {
    "FLOAT32": 32,
    "FLOAT16": 16,
    "UINT32": 32,
    "UINT16": 16,
    "UINT8": 8,
    "INT32": 32,
    "INT16": 16,
    "INT8": 8,
    "FLOAT64": 64,
    "UINT64": 64,
    "INT64": 64,
    "UINT4": 4,
    "INT4": 4,
}
# DML_FEATURE_LEVEL with the values of the header.
FEATURE_LEVELS = {
    "1_0": 0x1000,
    "2_0": 0x2000,
    "2_1": 0x2100,
    "3_0": 0x3000,
    "3_1": 0x3100,
    "4_0": 0x4000,
    "4_1": 0x4100,
    "5_0": 0x5000,
    "5_1": 0x5100,
    "5_2": 0x5200,
    "6_0": 0x6000,
    "6_1": 0x6100,
    "6_2": 0x6200,
    "6_3": 0x6300,
    "6_4": 0x6400,
}
PREFIXES: dict[type[Constant], str] = {
    DataType: "DML_TENSOR_DATA_TYPE_",
    TensorFlag: "DML_TENSOR_FLAG_",
    FeatureLevel: "DML_FEATURE_LEVEL_",
    RoundingMode: "DML_ROUNDING_MODE_",
    IsInfinityMode: "DML_IS_INFINITY_MODE_",
    MatrixTransform: "DML_MATRIX_TRANSFORM_",
    ReduceFunction: "DML_REDUCE_FUNCTION_",
    ConvolutionMode: "DML_CONVOLUTION_MODE_",
    ConvolutionDirection: "DML_CONVOLUTION_DIRECTION_",
    PaddingMode: "DML_PADDING_MODE_",
    InterpolationMode: "DML_INTERPOLATION_MODE_",
    RecurrentNetworkDirection: "DML_RECURRENT_NETWORK_DIRECTION_",
    AxisDirection: "DML_AXIS_DIRECTION_",
    DepthSpaceOrder: "DML_DEPTH_SPACE_ORDER_",
    RandomGeneratorType: "DML_RANDOM_GENERATOR_TYPE_",
    MultiheadAttentionMaskType: "DML_MULTIHEAD_ATTENTION_MASK_TYPE_",
    QuantizationType: "DML_QUANTIZATION_TYPE_",
}
MEMBERS = [member for kind in PREFIXES for member in kind]


def test_every_enumeration_is_tested() -> None:
    here = {each for each in Constant.__subclasses__() if each.__module__ == Constant.__module__}
    assert set(PREFIXES) == here  # those of DxDispatch are tested with it


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (DataType, [*DATA_TYPES]),
        (TensorFlag, ["NONE", "OWNED_BY_DML"]),
        (FeatureLevel, [*FEATURE_LEVELS]),
        (RoundingMode, ["HALVES_TO_NEAREST_EVEN", "TOWARD_ZERO", "TOWARD_INFINITY"]),
        (IsInfinityMode, ["EITHER", "POSITIVE", "NEGATIVE"]),
        (MatrixTransform, ["NONE", "TRANSPOSE"]),
        (
            ReduceFunction,
            [
                "ARGMAX",
                "ARGMIN",
                "AVERAGE",
                "L1",
                "L2",
                "LOG_SUM",
                "LOG_SUM_EXP",
                "MAX",
                "MIN",
                "MULTIPLY",
                "SUM",
                "SUM_SQUARE",
            ],
        ),
        (ConvolutionMode, ["CONVOLUTION", "CROSS_CORRELATION"]),
        (ConvolutionDirection, ["FORWARD", "BACKWARD"]),
        (PaddingMode, ["CONSTANT", "EDGE", "REFLECTION", "SYMMETRIC", "WRAP"]),
        (InterpolationMode, ["NEAREST_NEIGHBOR", "LINEAR"]),
        (RecurrentNetworkDirection, ["FORWARD", "BACKWARD", "BIDIRECTIONAL"]),
        (AxisDirection, ["INCREASING", "DECREASING"]),
        (DepthSpaceOrder, ["DEPTH_COLUMN_ROW", "COLUMN_ROW_DEPTH"]),
        (RandomGeneratorType, ["PHILOX_4X32_10"]),
        (
            MultiheadAttentionMaskType,
            ["NONE", "KEY_SEQUENCE_LENGTH", "KEY_SEQUENCE_END_START", "KEY_QUERY_SEQUENCE_LENGTH_START_END", "BOOLEAN"],
        ),
        (QuantizationType, ["NONE", "SCALE", "SCALE_ZERO_POINT"]),
    ],
)
def test_members_are_the_documented_ones_in_the_order_of_their_values(kind: type[Constant], names: list[str]) -> None:
    assert [member.value for member in kind] == names


@pytest.mark.parametrize("member", MEMBERS)
def test_name_is_taken_with_and_without_prefix(member: Constant) -> None:
    kind = type(member)
    full = PREFIXES[kind] + member.value
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    assert adapter.validate_python(member.value) is member
    assert adapter.validate_python(full) is member
    assert adapter.validate_json(f'"{full}"') is member
    assert member.full_name == full
    assert adapter.dump_json(member).decode() == f'"{member.value}"'


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize(
    "misspell",
    [
        pytest.param(str.lower, id="lower case"),
        pytest.param(lambda name: f" {name}", id="space before"),
        pytest.param(lambda name: f"{name}\n", id="newline after"),
        pytest.param(lambda name: f"_{name}", id="underscore before"),
        pytest.param(lambda name: f"DML_{name}", id="part of a prefix"),
        pytest.param(lambda name: f"{name}0", id="digit after"),
    ],
)
def test_misspelt_name_is_refused(member: Constant, misspell: Any) -> None:
    for name in {misspell(member.value), misspell(member.full_name)} - set(type(member).spellings()):
        with pytest.raises(PydanticCustomError):
            type(member).parse(name)


@pytest.mark.parametrize("kind", PREFIXES)
@pytest.mark.parametrize(
    "value", ["", "UNKNOWN", "INVALID", 0, 1, 1.0, True, None, b"FLOAT32", ["FLOAT32"], {}, "\ud800"]
)
def test_anything_else_is_refused_with_the_allowed_names(kind: type[Constant], value: object) -> None:
    with pytest.raises(PydanticCustomError) as refusal:
        kind.parse(value)
    assert refusal.value.context is not None
    assert refusal.value.context["allowed"] == [member.value for member in kind]
    *others, last = (member.value for member in kind)
    told = f"{', '.join(others)} or {last}" if others else last
    assert refusal.value.message().endswith(f"{kind.prefix()}: {told}"), "for those who get nothing but text"


@pytest.mark.parametrize("kind", PREFIXES)
def test_prefix_is_not_enough_and_not_taken_twice_or_from_another_enumeration(kind: type[Constant]) -> None:
    member = next(iter(kind))
    wrong = [PREFIXES[kind], PREFIXES[kind] * 2 + member.value]
    wrong += [prefix + member.value for other, prefix in PREFIXES.items() if other is not kind]
    for name in wrong:
        with pytest.raises(PydanticCustomError):
            kind.parse(name)


@pytest.mark.parametrize("kind", PREFIXES)
def test_schema_lists_every_spelling(kind: type[Constant]) -> None:
    schema = TypeAdapter(kind).json_schema()
    assert schema["type"] == "string"
    assert sorted(schema["enum"]) == sorted(name for member in kind for name in (member.value, member.full_name))


@pytest.mark.parametrize(("name", "bits"), DATA_TYPES.items())
def test_width_of_an_element(name: str, bits: int) -> None:
    assert DataType(name).bits == bits
    assert DataType(name).bytes == max(bits // 8, 1)


def test_feature_levels_compare_as_their_values() -> None:
    by_value = sorted(FEATURE_LEVELS, key=FEATURE_LEVELS.__getitem__)
    assert sorted(FeatureLevel) == [FeatureLevel(name) for name in by_value]
    for a, value_a in FEATURE_LEVELS.items():
        for b, value_b in FEATURE_LEVELS.items():
            assert (FeatureLevel(a) <= FeatureLevel(b)) == (value_a <= value_b)


@pytest.mark.parametrize(("name", "value"), FEATURE_LEVELS.items())
def test_feature_level_name_tells_its_value(name: str, value: int) -> None:
    major, minor = map(int, FeatureLevel(name).value.split("_"))
    assert 0x1000 * major + 0x100 * minor == value


def test_newest_level() -> None:
    assert NEWEST is FeatureLevel.V6_4
