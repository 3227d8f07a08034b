"""Which input's buffer an output may take."""

from typing import Any

import pytest

from app.contract.violations import ContractError, Hresult, Violation
from app.operators.catalog import OPERATORS
from app.operators.operator import Role
from tests.contract.refusals import check_wording
from tests.operators.descriptors import ALIKE, CELU, PARAMETERIZED_RELU, compiled, descriptor
from tests.operators.facts import FACTS, OperatorFacts

every_operator = pytest.mark.parametrize("kind", OPERATORS)
in_place = pytest.mark.parametrize("kind", [kind for kind in ALIKE if OPERATORS[kind].in_place])
DESC: dict[str, Any] = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}


def refusal(document: dict[str, Any], name: str) -> Violation | None:
    """Why the output may not take the buffer of the input `name`, or None if it may."""
    try:
        compiled(document).check_in_place(name)
    except ContractError as error:
        refused = error
    else:
        return None
    assert refused.hresult is Hresult.DXGI_ERROR_DEVICE_REMOVED
    (violation,) = refused.violations
    check_wording(violation)
    assert (violation.pointer, violation.given) == ("/in_place", name)
    return violation


@pytest.mark.parametrize("facts", FACTS, ids=str)
def test_inputs_that_the_documentation_permits(facts: OperatorFacts) -> None:
    document = descriptor(facts.operator)
    permitted = [
        name for name in facts.names("input_tensor", "output_tensor", "attribute") if not refusal(document, name)
    ]
    assert permitted == facts.in_place_inputs


@every_operator
@pytest.mark.parametrize("name", ["OutputTensor", "inputtensor"])
def test_names_of_no_input(kind: str, name: str) -> None:
    refused = refusal(descriptor(kind), name)
    assert refused is not None
    assert refused.allowed == list(OPERATORS[kind].in_place)


def test_slope_is_not_aliased() -> None:
    refused = refusal(descriptor(PARAMETERIZED_RELU), "SlopeTensor")
    assert refused is not None
    assert refused.allowed == ["InputTensor"]
    assert "InputTensor" in refused.message


@in_place
def test_owned_tensor_is_not_bound_at_execution(kind: str) -> None:
    refused = refusal(descriptor(kind, DESC | {"Flags": "OWNED_BY_DML"}), OPERATORS[kind].in_place[0])
    assert refused is not None
    assert "OWNED_BY_DML" in refused.message


@in_place
@pytest.mark.parametrize(
    ("of_input", "of_output", "permitted"),
    [
        pytest.param({}, None, True, id="implied"),
        pytest.param({}, {}, True, id="both packed"),
        pytest.param({}, {"Strides": [6, 6, 3, 1]}, True, id="packed by strides"),
        pytest.param({"Strides": [9, 9, 3, 1]}, {"Strides": [0, 1, 3, 1]}, True, id="steps along size 1"),
        pytest.param({"Strides": [0, 0, 8, 2]}, {"Strides": [0, 0, 8, 2]}, True, id="alike with gaps"),
        pytest.param({"Strides": [0, 0, 1, 2]}, {"Strides": [0, 0, 1, 2]}, True, id="alike transposed"),
        pytest.param({"TotalTensorSizeInBytes": 64}, {"TotalTensorSizeInBytes": 64}, True, id="alike in size"),
        pytest.param({"TotalTensorSizeInBytes": 24}, {}, True, id="the least stated"),
        pytest.param({"GuaranteedBaseOffsetAlignment": 64}, {}, True, id="alignment is a hint"),
        pytest.param({"Strides": [0, 0, 0, 1]}, None, False, id="broadcast input"),
        pytest.param({"Strides": [0, 0, 4, 1]}, None, False, id="gaps in the input"),
        pytest.param({}, {"Strides": [0, 0, 4, 1]}, False, id="gaps in the output"),
        pytest.param({}, {"Strides": [0, 0, 1, 2]}, False, id="transposed"),
        pytest.param({"TotalTensorSizeInBytes": 64}, {}, False, id="a longer input"),
        pytest.param({}, {"TotalTensorSizeInBytes": 64}, False, id="a longer output"),
    ],
)
def test_ranges_must_be_identical(
    kind: str, of_input: dict[str, Any], of_output: dict[str, Any] | None, permitted: bool
) -> None:
    outputs = dict.fromkeys(OPERATORS[kind].tensor_names(Role.OUTPUT), None if of_output is None else DESC | of_output)
    refused = refusal(descriptor(kind, DESC | of_input, **outputs), OPERATORS[kind].in_place[0])
    assert (refused is None) == permitted


def test_slope_may_lie_as_it_likes() -> None:
    slope = DESC | {"Strides": [0, 0, 0, 0], "Flags": "OWNED_BY_DML"}
    assert refusal(descriptor(PARAMETERIZED_RELU, SlopeTensor=slope), "InputTensor") is None


def test_integers_run_in_place_as_well() -> None:
    assert refusal(descriptor(PARAMETERIZED_RELU, {"DataType": "INT8", "Sizes": [7]}), "InputTensor") is None


def test_permission_does_not_depend_on_the_level() -> None:
    for level in ("3_0", "6_4"):
        compiled(descriptor(CELU), level=OPERATORS[CELU].support.introduced.parse(level)).check_in_place("InputTensor")
