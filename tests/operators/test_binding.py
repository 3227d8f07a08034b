"""Data for the inputs of a compiled operator: all of them, no others, of the right length."""

from typing import Any

import pytest

from app.contract.tensors import path_of
from app.contract.violations import ContractError, Hresult, Violation
from app.engine.dispatch import bind
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from app.operators.operator import Role
from tests.contract.refusals import check_wording
from tests.operators.descriptors import ALIKE, CELU, CONSTANT_POW, PARAMETERIZED_RELU, compiled, descriptor

every_operator = pytest.mark.parametrize("kind", OPERATORS)


def refusals(operator: CompiledOperator, lengths: dict[str, int]) -> list[Violation]:
    data = {name: memoryview(bytes(length)) for name, length in lengths.items()}
    try:
        bound = bind(operator, data)
    except ContractError as error:
        refusal = error
    else:
        assert bound == {name: data[name] for name in operator.inputs}
        return []
    assert refusal.hresult is Hresult.DXGI_ERROR_DEVICE_REMOVED
    for violation in refusal.violations:
        check_wording(violation)
    return list(refusal.violations)


def lengths(kind: str, length: int) -> dict[str, int]:
    return dict.fromkeys(OPERATORS[kind].tensor_names(Role.INPUT), length)


def pointer(name: str) -> str:
    """Where the data of the tensor called `name` are."""
    return "/" + "/".join(map(str, path_of(name)))


def fitting(operator: CompiledOperator) -> dict[str, int]:
    return {name: desc.data_bytes for name, desc in operator.inputs.items()}


@every_operator
def test_bound_in_the_order_of_the_bind_points(kind: str) -> None:
    operator = compiled(descriptor(kind))
    data = {name: memoryview(bytes(length)) for name, length in reversed(fitting(operator).items())}
    assert list(bind(operator, data)) == list(operator.operator.tensors(Role.INPUT))


@every_operator
def test_every_input_is_bound(kind: str) -> None:
    operator = compiled(descriptor(kind))
    for missing in operator.inputs:
        given = fitting(operator)
        del given[missing]
        (refusal,) = refusals(operator, given)
        assert (refusal.pointer, refusal.given, refusal.allowed) == (pointer(missing), None, missing)
    assert [refusal.pointer for refusal in refusals(operator, {})] == [pointer(name) for name in operator.inputs]


@every_operator
@pytest.mark.parametrize("name", ["OutputTensor", "inputTensor", "a/b~c"])
def test_nothing_else_is_bound(kind: str, name: str) -> None:
    operator = compiled(descriptor(kind))
    (refusal,) = refusals(operator, fitting(operator) | {name: 24})
    assert refusal.pointer == "/" + name.replace("~", "~0").replace("/", "~1")
    assert (refusal.given, refusal.allowed) == (name, list(operator.inputs))
    assert f"; inputs are {', '.join(operator.inputs) or 'none'}." in refusal.message


@pytest.mark.parametrize("name", ["", "Alpha", "Type"])
def test_other_names_are_no_inputs(name: str) -> None:
    (refusal,) = refusals(compiled(descriptor(CELU)), {"InputTensor": 24, name: 24})
    assert refusal.pointer == f"/{name}"


def test_an_optional_input_is_bound_if_it_is_described() -> None:
    kind = "DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR"
    with_zero, without = compiled(descriptor(kind)), compiled(descriptor(kind, ZeroPointTensor=None))
    assert list(with_zero.inputs) == ["InputTensor", "ScaleTensor", "ZeroPointTensor"]
    assert list(without.inputs) == ["InputTensor", "ScaleTensor"]
    assert refusals(without, fitting(without)) == []
    (refusal,) = refusals(with_zero, fitting(without))
    assert refusal.pointer == "/ZeroPointTensor"
    (refusal,) = refusals(without, fitting(with_zero))
    assert "has no input ZeroPointTensor in this descriptor" in refusal.message


def test_unary_operators_have_no_slope() -> None:
    (refusal,) = refusals(compiled(descriptor(CELU)), {"InputTensor": 24, "SlopeTensor": 24})
    assert refusal.pointer == "/SlopeTensor"


@pytest.mark.parametrize(
    ("desc", "allowed"),
    [
        pytest.param({"DataType": "FLOAT32", "Sizes": [2, 3]}, {24}, id="packed"),
        pytest.param({"DataType": "FLOAT16", "Sizes": [5]}, {10, 12}, id="rounded up to 4 or not"),
        pytest.param(
            {"DataType": "FLOAT16", "Sizes": [5], "TotalTensorSizeInBytes": 12}, {10, 12}, id="the least stated"
        ),
        pytest.param({"DataType": "FLOAT32", "Sizes": [2, 3], "TotalTensorSizeInBytes": 64}, {24, 64}, id="longer"),
        pytest.param(
            {"DataType": "FLOAT16", "Sizes": [5], "TotalTensorSizeInBytes": 64}, {10, 12, 64}, id="longer, rounded"
        ),
        pytest.param({"DataType": "FLOAT32", "Sizes": [3, 2, 5], "Strides": [0, 0, 1]}, {20}, id="broadcast"),
        pytest.param({"DataType": "FLOAT32", "Sizes": [2, 2], "Strides": [4, 1]}, {24}, id="gaps"),
        pytest.param({"DataType": "FLOAT32", "Sizes": [1000], "Strides": [0]}, {4}, id="one element"),
    ],
)
@pytest.mark.parametrize("kind", ALIKE[::6])
def test_length_of_data(kind: str, desc: dict[str, Any], allowed: set[int]) -> None:
    operator = compiled(descriptor(kind, desc))
    accepted = {length for length in range(130) if not refusals(operator, lengths(kind, length))}
    assert accepted == allowed
    refused = refusals(operator, lengths(kind, 7))
    assert [each.pointer for each in refused] == [f"/{name}" for name in operator.inputs]
    assert all((each.given, each.allowed) == (7, sorted(allowed)) for each in refused)


@pytest.mark.parametrize(("length", "fits"), [(2, False), (3, True), (4, True), (5, False)])
def test_length_of_integers(length: int, fits: bool) -> None:
    operator = compiled(descriptor(PARAMETERIZED_RELU, {"DataType": "INT8", "Sizes": [3]}))
    assert (not refusals(operator, lengths(PARAMETERIZED_RELU, length))) == fits


def test_each_input_has_a_length_of_its_own() -> None:
    slope = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [0, 0]}
    operator = compiled(descriptor(PARAMETERIZED_RELU, {"DataType": "FLOAT32", "Sizes": [2, 3]}, SlopeTensor=slope))
    assert refusals(operator, {"InputTensor": 24, "SlopeTensor": 4}) == []
    (refusal,) = refusals(operator, {"InputTensor": 24, "SlopeTensor": 24})
    assert refusal.pointer == "/SlopeTensor"
    assert "strides [0, 0]" in refusal.message


def test_all_that_is_wrong_is_told_at_once() -> None:
    operator = compiled(descriptor(PARAMETERIZED_RELU))
    found = refusals(operator, {"InputTensor": 23, "Slope": 24})
    assert [each.pointer for each in found] == ["/Slope", "/InputTensor", "/SlopeTensor"]


def test_length_counts_bytes_not_items() -> None:
    operator = compiled(descriptor(CONSTANT_POW, {"DataType": "FLOAT32", "Sizes": [6]}))
    words = memoryview(bytes(24)).cast("I")
    assert bind(operator, {"InputTensor": words}) == {"InputTensor": words}
