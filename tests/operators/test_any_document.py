"""Whatever a client sends in the place of a descriptor is judged: taken, or refused with a reason that can be sent."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.validation import validate
from app.contract.violations import ContractError
from app.engine.dispatch import DispatchRequest
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from tests.operators.descriptors import CONSTANT_POW, PARAMETERIZED_RELU, descriptor

DESC = {
    "DataType": "FLOAT32",
    "Sizes": [1, 1, 2, 3],
    "Strides": [6, 6, 3, 1],
    "Flags": ["NONE"],
    "DimensionCount": 4,
    "TotalTensorSizeInBytes": 24,
    "GuaranteedBaseOffsetAlignment": 16,
}
REQUESTS: list[dict[str, Any]] = [
    {"operator": descriptor(PARAMETERIZED_RELU, DESC), "inputs": {"InputTensor": "", "SlopeTensor": ""}},
    {
        "operator": descriptor(CONSTANT_POW, DESC, OutputTensor=DESC, ScaleBias={"Scale": 2, "Bias": 1}),
        "inputs": {"InputTensor": ""},
        "feature_level": "6_4",
        "in_place": "InputTensor",
        "device": "numpy",
    },
]
NAMES = [
    "Type",
    "InputTensor",
    "Sizes",
    "Alpha",
    "ScaleBias",
    "Scale",
    "inputs",
    "DML_OPERATOR_ACTIVATION_CELU",
    "root",
    "",
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**32, 2**64, 10**400])
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(["FLOAT16", "6_4", "\ud800", "x" * 200, *OPERATORS, *NAMES])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=4),
    max_leaves=12,
)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in `document` with each of its keys."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from places(document[key])


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """A good request with one to three places changed, left out or added."""
    document = copy.deepcopy(draw(st.sampled_from(REQUESTS)))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(document)) or [({}, "")]))
        match draw(st.sampled_from(["change", "leave out", "add"])):
            case "change":
                container[key] = draw(values)
            case "leave out" if key in container or isinstance(container, list):
                del container[key]
            case _ if isinstance(container, dict):
                container[draw(st.sampled_from(NAMES) | st.text())] = draw(values)
    return document


def judge(document: Any) -> None:
    request = validate(DispatchRequest, document)
    compile_operator(request.operator, request.feature_level)


def check(document: Any) -> None:
    try:
        judge(document)
    except ContractError as error:
        violations = error.violations
    else:
        return
    assert violations
    for violation in violations:
        assert violation.message.endswith((".", "?"))  # a suggestion is a question
        assert len(violation.message) < 1000
        json.dumps([violation.message, violation.given, violation.allowed], allow_nan=False).encode()
        assert isinstance(violation.pointer, str)


@pytest.mark.parametrize("request_document", REQUESTS)
def test_the_starting_points_are_good(request_document: dict[str, Any]) -> None:
    judge(request_document)


@given(documents())
def test_a_changed_request_is_judged(document: Any) -> None:
    check(document)


@given(values)
def test_anything_is_judged(document: Any) -> None:
    check(document)


@given(values)
def test_any_operator_is_judged(operator: Any) -> None:
    check({"operator": operator, "inputs": {}})


@given(st.sampled_from(list(OPERATORS)), st.dictionaries(st.sampled_from(NAMES) | st.text(), values, max_size=4))
def test_any_fields_of_an_operator_are_judged(kind: str, fields: dict[str, Any]) -> None:
    check({"operator": fields | {"Type": kind}, "inputs": {}})


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"operator": None}, "/operator"),
        ({"operator": []}, "/operator"),
        ({"operator": {}}, "/operator/Type"),
        ({"operator": {"Type": None}}, "/operator/Type"),
        ({"operator": {"Type": 5}}, "/operator/Type"),
        ({"operator": {"Type": ["ACTIVATION_CELU"]}}, "/operator/Type"),
        ({"operator": {"Type": "CELU"}}, "/operator/Type"),
        ({"operator": {"Type": "ACTIVATION_CELU"}}, "/operator/InputTensor"),
        ({"operator": {"Type": "ACTIVATION_CELU", "InputTensor": {"Sizes": [1]}}}, "/operator/InputTensor/DataType"),
        ({"operator": {"Type": "ACTIVATION_CELU", "InputTensor": DESC, "a/b~c": 1}}, "/operator/a~1b~0c"),
        # a field that is called like the tag by which the operator was chosen
        (
            {"operator": {"Type": "ACTIVATION_CELU", "ACTIVATION_CELU": 1, "InputTensor": DESC}},
            "/operator/ACTIVATION_CELU",
        ),
        ({"inputs": None}, "/inputs"),
        ({"inputs": [1]}, "/inputs"),
        ({"feature_level": "7_0"}, "/feature_level"),
        ({"feature_level": 6.4}, "/feature_level"),
        ({"in_place": True}, "/in_place"),
        ({"in_place": ["InputTensor"]}, "/in_place"),
        ({"device": 5}, "/device"),
        ({"devices": "numpy"}, "/devices"),
    ],
)
def test_pointer_leads_to_the_field(change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(ContractError) as refusal:
        judge(REQUESTS[0] | change)
    assert [violation.pointer for violation in refusal.value.violations] == [pointer]
