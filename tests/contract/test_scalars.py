"""Numbers as the fields of structures hold them: what is the least and the most of each."""

import math
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from app.contract.constants import DataType
from app.contract.scalars import (
    DOUBLE_MAX,
    FLOAT_MAX,
    Bool,
    Bound,
    Float,
    FloatOrInfinity,
    Int,
    Scalar,
    ScalarUnion,
    Size2D,
    Uint,
    Uint64,
    scalar_value,
)
from app.contract.validation import validate
from app.contract.violations import ContractError


class Fields(BaseModel):
    """One of each."""

    model_config = ConfigDict(extra="forbid", strict=True)

    uint: Uint = 0
    uint64: Uint64 = 0
    int_: Int = 0
    bool_: Bool = False
    float_: Float = 0
    bound: Bound = 0
    element: FloatOrInfinity = 0
    size: Size2D | None = None
    union: ScalarUnion | None = None
    scalar: Scalar = 0


def taken(name: str, value: object) -> Any:
    return getattr(validate(Fields, {name: value}), name)


def refused(name: str, value: object) -> str:
    """Where what is wrong is, as a pointer."""
    with pytest.raises(ContractError) as refusal:
        validate(Fields, {name: value})
    (violation,) = refusal.value.violations
    return violation.pointer


INTEGERS = {
    data_type: (-(2 ** (data_type.bits - 1)), 2 ** (data_type.bits - 1) - 1)
    if data_type.value.startswith("I")
    else (0, 2**data_type.bits - 1)
    for data_type in DataType
    if data_type.value.startswith(("INT", "UINT")) and data_type.bits >= 8
}
MEMBERS = {data_type.value.replace("INT", "Int"): bounds for data_type, bounds in INTEGERS.items()}


@pytest.mark.parametrize(
    ("name", "least", "most"), [("uint", 0, 2**32 - 1), ("uint64", 0, 2**64 - 1), ("int_", -(2**31), 2**31 - 1)]
)
def test_whole_numbers(name: str, least: int, most: int) -> None:
    assert [taken(name, value) for value in (least, most)] == [least, most]
    for value in (least - 1, most + 1, 1.0, True, "1"):
        assert refused(name, value) == f"/{name}"


@pytest.mark.parametrize("member", MEMBERS)
def test_members_of_a_union(member: str) -> None:
    least, most = MEMBERS[member]
    for value in (least, most):
        assert getattr(taken("union", {member: value}), member) == value
    for value in (least - 1, most + 1):
        assert refused("union", {member: value}) == f"/union/{member}"


def test_bools_are_true_and_false_or_1_and_0() -> None:
    assert [taken("bool_", value) for value in (True, False, 1, 0)] == [True, False, True, False]
    for value in (2, -1, 1.0, "true"):
        assert refused("bool_", value) == "/bool_"


ROUNDED_TO_MAX = math.nextafter(FLOAT_MAX + 2.0**103, 0)
"""The largest number whose nearest float32 is finite: the half of a step more is rounded to an even number, 2**128."""


@pytest.mark.parametrize("sign", [1, -1])
def test_floats_are_rounded_and_finite(sign: int) -> None:
    assert taken("float_", sign * 0.1) == sign * 0.10000000149011612
    assert taken("float_", sign * ROUNDED_TO_MAX) == sign * FLOAT_MAX
    for value in (FLOAT_MAX + 2.0**103, 10**400, math.inf, math.nan):
        assert refused("float_", sign * value) == "/float_"


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_are_in_the_same_range_or_infinite_and_not_rounded(sign: int) -> None:
    for value in (16777217.0, 0.1, ROUNDED_TO_MAX, math.inf):
        assert taken("bound", sign * value) == sign * value
    for value in (FLOAT_MAX + 2.0**103, math.nan):
        assert refused("bound", sign * value) == "/bound"
        assert refused("element", sign * value) == "/element"
    assert taken("element", sign * 0.1) == sign * 0.10000000149011612
    assert taken("element", sign * math.inf) == sign * math.inf


def test_sizes_are_not_0() -> None:
    assert str(taken("size", {"Width": 1, "Height": 2**32 - 1})) == "Width 1 and Height 4294967295"
    for name in ("Width", "Height"):
        for value in (0, 2**32):
            assert refused("size", {"Width": 1, "Height": 1} | {name: value}) == f"/size/{name}"


def test_a_scalar_is_a_number_or_in_its_member() -> None:
    assert [taken("scalar", value) for value in (1, 0.5, {"Int8": 1})] == [1, 0.5, ScalarUnion(Int8=1)]
    for value in (True, "1", None, [1]):
        assert refused("scalar", value) == "/scalar"


@pytest.mark.parametrize("data_type", INTEGERS)
def test_scalars_of_integer_types(data_type: DataType) -> None:
    least, most = INTEGERS[data_type]
    assert [scalar_value(value, data_type) for value in (least, most)] == [least, most]
    for value in (least - 1, most + 1, 1.0):
        with pytest.raises(ValueError, match=f"an integer from {least} to {most}, since it is {data_type}"):
            scalar_value(value, data_type)


@pytest.mark.parametrize("sign", [1, -1])
def test_scalars_of_float_types(sign: int) -> None:
    assert scalar_value(sign * DOUBLE_MAX, DataType.FLOAT64) == sign * DOUBLE_MAX
    assert scalar_value(sign * ROUNDED_TO_MAX, DataType.FLOAT32) == sign * FLOAT_MAX
    assert type(scalar_value(sign, DataType.FLOAT64)) is type(scalar_value(sign, DataType.FLOAT32)) is float
    for data_type in (DataType.FLOAT64, DataType.FLOAT32, DataType.FLOAT16):
        assert scalar_value(sign * math.inf, data_type) == sign * math.inf
    assert scalar_value(sign * 0.1, DataType.FLOAT16) == sign * 0.1, "rounded once, as it becomes an element"
    for value in (10**400, math.nan):
        with pytest.raises(ValueError, match="within the range of FLOAT64"):
            scalar_value(sign * value, DataType.FLOAT64)
    for data_type in (DataType.FLOAT32, DataType.FLOAT16):
        with pytest.raises(ValueError, match=r"within the range of FLOAT \(float32\), or an infinity"):
            scalar_value(sign * 10**400, data_type)
    for nan in (math.nan, ScalarUnion(UInt16=0x7E00)):
        with pytest.raises(ValueError, match="must be a number, which NaN is not"):
            scalar_value(nan, DataType.FLOAT16)


@pytest.mark.parametrize("sign", [1, -1])
def test_unions_hold_infinities_but_not_nan(sign: int) -> None:
    infinity = sign * math.inf
    for member, data_type in (("Float32", DataType.FLOAT32), ("Float64", DataType.FLOAT64)):
        assert scalar_value(taken("scalar", {member: infinity}), data_type) == infinity
        assert refused("scalar", {member: math.nan}) == f"/scalar/{member}"
    bits = ScalarUnion(UInt16=0x7C00 if sign > 0 else 0xFC00)
    assert scalar_value(bits, DataType.FLOAT16) == infinity
    assert refused("scalar", {"Float32": sign * (FLOAT_MAX + 2.0**103)}) == "/scalar/Float32"


@pytest.mark.parametrize(("text", "infinity"), [("Infinity", math.inf), ("-Infinity", -math.inf)])
def test_infinities_are_words_where_there_are_no_numbers_for_them(text: str, infinity: float) -> None:
    assert taken("scalar", text) == infinity
    for member in ("Float32", "Float64"):
        assert getattr(taken("scalar", {member: text}), member) == infinity
    document: dict[str, Any] = {"scalar": text, "union": {"Float64": text}}
    for given in (document, {"scalar": infinity, "union": {"Float64": infinity}}):
        assert validate(Fields, given).model_dump(exclude_unset=True) == document
    for other in (text.lower(), f"+{text}", text.replace("inity", ""), "NaN", "1"):
        told = f'is "{other}"; it must be a number, "Infinity" or "-Infinity".'
        for at, wrong in (("scalar", other), ("scalar/Float32", {"Float32": other}), ("bound", other)):
            with pytest.raises(ContractError) as raised:
                taken(at.partition("/")[0], wrong)
            (violation,) = raised.value.violations
            assert (violation.pointer, violation.message) == (f"/{at}", f"{at.rpartition('/')[2]} {told}")
            assert violation.allowed == 'a number, "Infinity" or "-Infinity"'
    assert refused("scalar", {"UInt16": text}) == "/scalar/UInt16"
    assert taken("bound", text) == taken("element", text) == infinity
    assert refused("float_", text) == "/float_"


def test_a_union_holds_the_member_of_its_type_alone() -> None:
    assert ScalarUnion(UInt16=0xBC00).value(DataType.FLOAT16) == -1
    assert ScalarUnion(UInt16=0xBC00).value(DataType.UINT16) == 0xBC00
    assert ScalarUnion(Int32=0).value(DataType.INT32) == 0
    for union, told in (
        (ScalarUnion(), "has no member"),
        (ScalarUnion(Int8=1), "has Int8"),
        (ScalarUnion(Int32=1, Int8=1), "has Int32 and Int8"),
    ):
        with pytest.raises(ValueError, match=f"{told}; a number of INT32 is given as Int32 alone"):
            union.value(DataType.INT32)
