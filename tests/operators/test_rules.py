"""What binds the fields of a descriptor together: sizes, data types, attributes, implied outputs."""

import math
import struct
from typing import Any

import numpy as np
import pytest

from app.contract.constants import Constant, DataType
from app.contract.scalars import FLOAT_MAX
from app.contract.tensors import TensorDesc
from app.contract.violations import ContractError, Hresult
from app.operators.catalog import OPERATORS
from app.operators.operator import Operator, Role
from tests.contract.refusals import check_wording
from tests.operators.descriptors import (
    ALIKE,
    CELU,
    CONSTANT_POW,
    HARD_SIGMOID,
    PARAMETERIZED_RELU,
    compiled,
    descriptor,
    output_name_of,
    output_of,
    refusals,
)

every_operator = pytest.mark.parametrize("kind", OPERATORS)
alike = pytest.mark.parametrize("kind", ALIKE)
every_other_tensor = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ALIKE for name in OPERATORS[kind].tensor_names()[1:]]
)
every_float = pytest.mark.parametrize(
    ("kind", "name"), [(HARD_SIGMOID, "Alpha"), (HARD_SIGMOID, "Beta"), (CELU, "Alpha"), (CONSTANT_POW, "Exponent")]
)
DESC: dict[str, Any] = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}


def output_field(kind: str) -> str:
    (name,) = OPERATORS[kind].tensor_names(Role.OUTPUT)
    return name


def the_refusal(document: dict[str, Any]) -> Any:
    (refusal,) = refusals(document)
    check_wording(refusal)
    return refusal


# Sizes and data types


@every_other_tensor
@pytest.mark.parametrize("sizes", [[1, 1, 1, 3], [1, 1, 2, 1], [2, 3], [1, 1, 1, 2, 3], [1, 1, 3, 2], [6], [1]])
def test_sizes_are_equal_without_broadcasting(kind: str, name: str, sizes: list[int]) -> None:
    refusal = the_refusal(descriptor(kind, **{name: DESC | {"Sizes": sizes}}))
    assert (refusal.pointer, refusal.given, refusal.allowed) == (f"/{name}/Sizes", sizes, DESC["Sizes"])
    assert "stride 0" in refusal.message


@every_other_tensor
def test_data_types_are_equal(kind: str, name: str) -> None:
    refusal = the_refusal(descriptor(kind, **{name: DESC | {"DataType": "FLOAT16"}}))
    assert (refusal.pointer, refusal.given, refusal.allowed) == (f"/{name}/DataType", "FLOAT16", "FLOAT32")


@alike
def test_output_may_not_overlap_itself_nor_be_owned(kind: str) -> None:
    name = output_field(kind)
    found = refusals(descriptor(kind, **{name: DESC | {"Strides": [0, 0, 0, 1], "Flags": "OWNED_BY_DML"}}))
    assert {refusal.pointer for refusal in found} == {f"/{name}/Strides", f"/{name}/Flags"}


@alike
def test_inputs_may_repeat_and_be_owned(kind: str) -> None:
    desc = DESC | {"Strides": [0, 0, 0, 0], "Flags": ["OWNED_BY_DML"], "GuaranteedBaseOffsetAlignment": 256}
    assert refusals(descriptor(kind, desc)) == []


@alike
def test_tensor_rules_point_into_the_operator(kind: str) -> None:
    broken = DESC | {"DimensionCount": 2, "TotalTensorSizeInBytes": 4}
    for name in OPERATORS[kind].tensor_names():
        pointers = {refusal.pointer for refusal in refusals(descriptor(kind, **{name: broken}))}
        assert pointers == {f"/{name}/DimensionCount", f"/{name}/TotalTensorSizeInBytes"}


@alike
def test_everything_wrong_is_told_at_once(kind: str) -> None:
    names = OPERATORS[kind].tensor_names()
    broken = {"DataType": "UINT4", "Sizes": [9], "TotalTensorSizeInBytes": 4}
    found = refusals(descriptor(kind, **{names[-1]: broken}))
    assert sorted({refusal.pointer.partition("/")[2] for refusal in found}) == [
        f"{names[-1]}/{member}" for member in ("DataType", "Sizes", "TotalTensorSizeInBytes")
    ]
    for refusal in found:
        check_wording(refusal)


@every_operator
def test_a_judgement_has_directmls_hresult(kind: str) -> None:
    with pytest.raises(ContractError) as refusal:
        compiled(descriptor(kind, {"DataType": "UINT4", "Sizes": [1]}))
    assert refusal.value.hresult is Hresult.E_INVALIDARG


@pytest.mark.parametrize(
    ("desc", "hresult"),
    [
        # What its structures can hold, DirectML refuses itself,
        ({"DataType": "FLOAT32", "Sizes": [2, 0]}, Hresult.E_INVALIDARG),
        ({"DataType": "FLOAT32", "Sizes": []}, Hresult.E_INVALIDARG),
        ({"DataType": "FLOAT32", "Sizes": [1] * 9}, Hresult.E_INVALIDARG),
        ({"DataType": "UNKNOWN", "Sizes": [1]}, Hresult.E_INVALIDARG),
        ({"DataType": "DML_TENSOR_DATA_TYPE_UNKNOWN", "Sizes": [0]}, Hresult.E_INVALIDARG),
        (None, Hresult.E_INVALIDARG),
        # and what they cannot hold never comes to it.
        ({"DataType": "FLOAT32", "Sizes": [-1]}, None),
        ({"DataType": "FLOAT32", "Sizes": [2**32]}, None),
        ({"DataType": "FLOAT32", "Sizes": ["0"]}, None),
        ({"Sizes": [0]}, None),
        ({"DataType": "FLOAT31", "Sizes": [1]}, None),
        (1, None),
    ],
)
def test_what_is_refused_before_a_judgement_has_an_hresult_if_directml_could_be_asked(
    desc: Any, hresult: Hresult | None
) -> None:
    with pytest.raises(ContractError) as refusal:
        compiled(descriptor(CELU, InputTensor=desc))
    assert refusal.value.hresult is hresult


# Implied output


@alike
@pytest.mark.parametrize(
    "desc",
    [
        DESC,
        {"DataType": "FLOAT16", "Sizes": [5]},
        {"DataType": "FLOAT32", "Sizes": [4, 3], "Strides": [0, 1]},
        {
            "DataType": "FLOAT32",
            "Sizes": [4, 3],
            "Strides": [8, 2],
            "TotalTensorSizeInBytes": 1024,
            "Flags": "OWNED_BY_DML",
        },
    ],
)
@pytest.mark.parametrize("null", [False, True])
def test_left_out_output_is_packed_with_sizes_and_type_of_the_input(
    kind: str, desc: dict[str, Any], null: bool
) -> None:
    made = compiled(descriptor(kind, desc, **({output_field(kind): None} if null else {})))
    assert output_of(made) == TensorDesc.model_validate({"DataType": desc["DataType"], "Sizes": desc["Sizes"]})
    assert output_name_of(made) == output_field(kind)
    assert list(made.inputs) == OPERATORS[kind].tensor_names(Role.INPUT)


@alike
def test_given_output_is_kept(kind: str) -> None:
    output = DESC | {"Strides": [64, 64, 1, 2], "TotalTensorSizeInBytes": 64}
    assert output_of(compiled(descriptor(kind, **{output_field(kind): output}))) == TensorDesc.model_validate(output)


# FLOAT attributes


@every_float
@pytest.mark.parametrize(
    "value", [0.1, 1 / 3, 1, -3, 2**24 + 1, FLOAT_MAX, -FLOAT_MAX, 1e-45, 1e-38, 3.4028235677973362e38]
)
def test_attributes_are_rounded_to_float(kind: str, name: str, value: float) -> None:
    held = getattr(compiled(descriptor(kind, **{name: value})).operator, name)
    assert held == float(np.float32(value))
    assert type(held) is float


@every_float
@pytest.mark.parametrize(
    ("value", "told", "allowed"),
    [
        (math.nan, "nan", f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        (math.inf, "inf", f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        (-math.inf, "-inf", f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        (3.5e38, 3.5e38, f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        (3.4028235677973366e38, 3.4028235677973366e38, f"-{FLOAT_MAX} to {FLOAT_MAX}"),  # halfway to the next power
        (-1e300, -1e300, f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        (10**39, "an integer of 130 bits", f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        ("1", "1", "a number"),
        ("nan", "nan", "a number"),
        (True, True, "a number"),
        ([1.0], [1.0], "a number"),
        ({}, "an empty object", "a number"),
    ],
)
def test_attributes_are_finite_floats(kind: str, name: str, value: Any, told: object, allowed: str) -> None:
    refusal = the_refusal(descriptor(kind, **{name: value}))
    assert (refusal.pointer, refusal.given, refusal.allowed) == (f"/{name}", told, allowed)


@every_float
def test_integers_beyond_any_float_are_refused(kind: str, name: str) -> None:
    refusal = the_refusal(descriptor(kind, **{name: 10**400}))
    assert (refusal.pointer, refusal.given) == (f"/{name}", "an integer of 1329 bits")


def test_float_max_is_the_greatest_float() -> None:
    assert struct.pack("<f", FLOAT_MAX) == b"\xff\xff\x7f\x7f"


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0, 1e-46, -7e-46])
def test_celu_refuses_alpha_0(alpha: float) -> None:
    refusal = the_refusal(descriptor(CELU, Alpha=alpha))
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/Alpha", 0, "not 0")


@pytest.mark.parametrize("alpha", [1e-45, -1e-45, 8e-46, -FLOAT_MAX, FLOAT_MAX])
def test_celu_takes_any_other_alpha(alpha: float) -> None:
    assert refusals(descriptor(CELU, Alpha=alpha)) == []


@pytest.mark.parametrize("name", ["Alpha", "Beta"])
def test_hard_sigmoid_takes_0(name: str) -> None:
    assert refusals(descriptor(HARD_SIGMOID, **{name: 0})) == []


# ScaleBias


def scale_bias(value: Any) -> dict[str, Any]:
    return descriptor(CONSTANT_POW, ScaleBias=value)


@pytest.mark.parametrize(
    "value", [None, {"Scale": 2, "Bias": -0.5}, {"Scale": 0, "Bias": 0}, {"Scale": FLOAT_MAX, "Bias": 1e-45}]
)
def test_scale_bias_is_optional(value: Any) -> None:
    assert refusals(scale_bias(value)) == []


@pytest.mark.parametrize(
    ("value", "pointer", "allowed"),
    [
        ({}, "/ScaleBias/Scale", "a value"),
        ({"Scale": 1}, "/ScaleBias/Bias", "a value"),
        ({"Bias": 1}, "/ScaleBias/Scale", "a value"),
        ({"Scale": None, "Bias": 1}, "/ScaleBias/Scale", "a number"),
        ({"Scale": 1, "Bias": "1"}, "/ScaleBias/Bias", "a number"),
        ({"Scale": math.inf, "Bias": 1}, "/ScaleBias/Scale", f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        ({"Scale": 1, "Bias": 1e39}, "/ScaleBias/Bias", f"-{FLOAT_MAX} to {FLOAT_MAX}"),
        ({"Scale": 1, "Bias": 1, "Offset": 0}, "/ScaleBias/Offset", ["Bias", "Scale"]),
        (1, "/ScaleBias", "an object"),
        ([1, 0], "/ScaleBias", "an object"),
        (False, "/ScaleBias", "an object"),
    ],
)
def test_scale_bias_is_whole(value: Any, pointer: str, allowed: object) -> None:
    found = refusals(scale_bias(value))
    for refusal in found:
        check_wording(refusal)
    assert (found[0].pointer, found[0].allowed) == (pointer, allowed)
    assert len(found) == (2 if value == {} else 1)


@pytest.mark.parametrize("kind", [HARD_SIGMOID, CELU, PARAMETERIZED_RELU])
def test_activations_have_no_scale_bias(kind: str) -> None:
    assert the_refusal(descriptor(kind, ScaleBias={"Scale": 1, "Bias": 0})).pointer == "/ScaleBias"


@pytest.mark.parametrize("value", [0, 1, "name", [], {"DataType": "FLOAT32"}, True])
@every_operator
def test_a_tensor_is_a_descriptor(kind: str, value: Any) -> None:
    for name in OPERATORS[kind].tensor_names():
        pointers = {refusal.pointer for refusal in refusals(descriptor(kind, **{name: value}))}
        if name in OPERATORS[kind].array_names():
            expected = {f"/{name}"}
        else:
            expected = {f"/{name}/Sizes" if isinstance(value, dict) else f"/{name}"}
        assert pointers == expected


@every_operator
def test_type_must_be_that_of_the_operator(kind: str) -> None:
    document = descriptor(kind)
    for other in OPERATORS:
        if other != kind:
            with pytest.raises(ValueError, match="Input should be"):
                OPERATORS[kind].model_validate(document | {"Type": other})


def test_operators_are_whole() -> None:
    """Each class says all that is made from it."""
    for operator in OPERATORS.values():
        assert issubclass(operator, Operator)
        assert operator.summary().endswith(".")
        assert operator.formula_text.startswith("f(") or operator.same_sizes is not None
        assert set(operator.in_place) <= set(operator.tensor_names(Role.INPUT))
        assert operator.tensor_names(Role.OUTPUT)
        assert all(note.endswith(".") for note in operator.notes)
        groups = (*(operator.same_types or ()), *(operator.same_sizes or ()), *operator.same_ranks)
        assert {name for group in groups for name in group} <= set(operator.tensor_names())
        assert {*operator.counts, *(name for names in operator.counts.values() for name in names)} <= set(
            operator.model_fields
        )
        assert {*operator.sizes_from, *operator.example} <= set(operator.model_fields)
        assert set(operator.one_element) <= set(operator.tensor_names())
        assert not operator.one_element or operator.same_sizes is None, "it is no exception from anything"
        for row in operator.support.rows:
            assert {*row.tensors, *row.tensor_ranks} <= set(operator.tensor_names())
            assert set(row.data_types) <= set(DataType)


@pytest.mark.parametrize(
    "kind", [kind for kind in OPERATORS if any(len(of) > 2 for of in OPERATORS[kind].counts.values())]
)
def test_of_arrays_that_are_not_equally_long_the_one_that_differs_is_told(kind: str) -> None:
    document = descriptor(kind)
    (names,) = OPERATORS[kind].counts.values()
    for name in names:
        for other in (document[name][:-1], [*document[name], 1]):
            assert {each.pointer for each in refusals(document | {name: other})} == {f"/{name}"}


def test_of_arrays_that_are_not_equally_long_the_count_tells_which_is_right() -> None:
    document = descriptor("DML_OPERATOR_SLICE1") | {"InputWindowStrides": [1] * 5}
    others = ["/InputWindowOffsets", "/InputWindowSizes"]
    for count, wrong in ((4, ["/InputWindowStrides"]), (5, others), (3, ["/DimensionCount", "/InputWindowStrides"])):
        found = refusals(document | {"DimensionCount": count})
        assert [each.pointer for each in found][: len(wrong)] == wrong


@pytest.mark.parametrize("kind", [kind for kind in OPERATORS if "DimensionCount" in OPERATORS[kind].counts])
def test_arrays_that_are_equally_long_are_of_a_tensors_dimensions(kind: str) -> None:
    document = descriptor(kind)
    names = [each for each in OPERATORS[kind].counts["DimensionCount"] if document.get(each)]
    for arrays in ({each: document[each][:-1] for each in names}, {each: [*document[each], 1] for each in names}):
        found = refusals(document | arrays)
        for violation in found:
            check_wording(violation)
        told = {each.pointer for each in found}
        assert told
        assert told <= {f"/{each}" for each in names} or kind.endswith("FOLD")  # which tells the tensor


def whole_example(kind: str) -> dict[str, Any]:
    """An operator's example, its outputs stated as they follow from the rest, and nothing wrong with it."""
    document = descriptor(kind)
    made = compiled(document).outputs
    there = [name for name in made if name in OPERATORS[kind].model_fields]
    document |= {name: {"DataType": made[name].DataType, "Sizes": made[name].Sizes} for name in there}
    assert refusals(document) == []
    return document


def check_named(name: str, document: dict[str, Any]) -> None:
    """What is wrong, if anything is, names a field wherever it is told: that may as well be what is wrong."""
    found = refusals(document)
    assert not found or any(name in each.message for each in found), document[name]


@every_operator
def test_an_input_that_does_not_fit_is_named(kind: str) -> None:
    document = whole_example(kind)
    for name in OPERATORS[kind].tensor_names(Role.INPUT):
        given: Any = document.get(name)
        if isinstance(given, dict):
            for data_type in DataType:
                check_named(name, document | {name: given | {"DataType": data_type}})
            for axis, size in enumerate(given["Sizes"]):
                for other in {size + 1, max(size - 1, 1)}:
                    changed = [*given["Sizes"][:axis], other, *given["Sizes"][axis + 1 :]]
                    check_named(name, document | {name: given | {"Sizes": changed}})


@every_operator
def test_an_attribute_that_does_not_fit_is_named(kind: str) -> None:
    document = whole_example(kind)
    for name in OPERATORS[kind].attribute_names():
        given = document.get(name)
        constants = OPERATORS[kind].model_fields[name].annotation
        if isinstance(constants, type) and issubclass(constants, Constant):
            for constant in constants:
                check_named(name, document | {name: constant})
        numbers = given if isinstance(given, list) else [given]
        for place, number in enumerate(numbers):
            if type(number) in (int, float):
                for other in (number + 1, number - 1, number + 1000):
                    changed = [*numbers[:place], other, *numbers[place + 1 :]]
                    check_named(name, document | {name: changed if isinstance(given, list) else other})
