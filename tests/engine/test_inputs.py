"""What inputs say of themselves beside their data."""

from typing import Any

import pytest

from app.contract.tensors import TensorDesc
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.engine.inputs import apart, given_inputs

DESC = {"DataType": "FLOAT32", "Sizes": [2, 3]}
DATA = "AAAA"


def made(value: object, **members: Any) -> list[tuple[str, object]]:
    """The data of an input and where they are, where the graph has `members` besides."""
    given = given_inputs({"a": value}, {"a": validate(TensorDesc, DESC | members)}, lambda _: False)
    return [("/".join(map(str, each.path)), each.value) for each in given]


@pytest.mark.parametrize("value", [DATA, [1, 2], {"data": DATA}, DESC | {"data": DATA}, DESC | {"data": {"x": 1}}])
def test_data_are_alone_or_beside_their_descriptor(value: Any) -> None:
    data = value["data"] if isinstance(value, dict) else value
    stated = {name: value[name] for name in DESC if name in value} if isinstance(value, dict) else {}
    assert apart(value, ("inputs", "a")) == (stated, data)
    assert made(value) == [("inputs/a", data)]


def test_of_an_input_that_nobody_has_nothing_is_compared() -> None:
    given = given_inputs({"b": {"DataType": "INT8", "data": DATA}}, {}, lambda _: False)
    assert [each.name for each in given] == ["b"]


def test_null_is_left_out_where_nothing_is_bound() -> None:
    inputs = {"a": None, "b": None, "c": DATA, "d": {"data": None}}
    given = given_inputs(inputs, {}, lambda name: name != "b")
    assert [(each.name, each.value) for each in given] == [("b", None), ("c", DATA)]


@pytest.mark.parametrize(
    ("value", "members", "pointer", "message"),
    [
        (DESC, {}, "/inputs/a/data", "a has no data, which stand beside its descriptor."),
        (DESC | {"Sizes": [6], "data": DATA}, {}, "/inputs/a", "a is FLOAT32 [6]; it must be FLOAT32 [2, 3]."),
        (DESC | {"DataType": "INT32", "data": DATA}, {}, "/inputs/a", "a is INT32 [2, 3]; it must be FLOAT32 [2, 3]."),
        (
            DESC | {"Strides": [3, 1], "data": DATA},
            {"Strides": [1, 2]},
            "/inputs/a",
            "a is of 24 bytes with strides [3, 1]; it must be of 24 bytes with strides [1, 2].",
        ),
    ],
)
def test_what_is_said_otherwise_is_refused(value: object, members: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(ContractError) as refusal:
        made(value, **members)
    (violation,) = refusal.value.violations
    assert (violation.pointer, violation.message) == (pointer, message)
