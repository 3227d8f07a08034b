"""Fields, defaults and permissions of each operator against the documented structure."""

from typing import Any

import pytest

from app.engine.capabilities import describe, summarize
from app.operators.catalog import OPERATORS, find_operator
from app.operators.operator import PREFIX, Role
from tests.contract.refusals import check_wording
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.facts import FACTS, OperatorFacts

of_each_operator = pytest.mark.parametrize("facts", FACTS, ids=str)
C_TYPES = {
    "tensor_desc": "DML_TENSOR_DESC",
    "tensor_desc_array": "DML_TENSOR_DESC[]",
    "float": "FLOAT",
    "scale_bias": "DML_SCALE_BIAS",
    "float_array": "FLOAT[]",
    "int": "INT",
    "int_array": "INT[]",
    "bool": "BOOL",
    "size_2d": "DML_SIZE_2D",
    "operator_desc_array": "DML_OPERATOR_DESC[]",
    "uint": "UINT",
    "uint_array": "UINT[]",
    "scalar_union": "DML_SCALAR_UNION",
    "operator_desc": "DML_OPERATOR_DESC",
    "rounding_mode": "DML_ROUNDING_MODE",
    "is_infinity_mode": "DML_IS_INFINITY_MODE",
    "tensor_data_type": "DML_TENSOR_DATA_TYPE",
    "matrix_transform": "DML_MATRIX_TRANSFORM",
    "reduce_function": "DML_REDUCE_FUNCTION",
    "convolution_mode": "DML_CONVOLUTION_MODE",
    "convolution_direction": "DML_CONVOLUTION_DIRECTION",
    "padding_mode": "DML_PADDING_MODE",
    "interpolation_mode": "DML_INTERPOLATION_MODE",
    "recurrent_network_direction": "DML_RECURRENT_NETWORK_DIRECTION",
    "axis_direction": "DML_AXIS_DIRECTION",
    "depth_space_order": "DML_DEPTH_SPACE_ORDER",
    "random_generator_type": "DML_RANDOM_GENERATOR_TYPE",
    "multihead_attention_mask_type": "DML_MULTIHEAD_ATTENTION_MASK_TYPE",
    "quantization_type": "DML_QUANTIZATION_TYPE",
}
COUNTS = {
    *("AxisCount", "DimensionCount", "InputCount", "OutputCount", "ActivationDescCount", "RepeatsCount", "ScaleCount"),
    *("ChannelCount", "QuantizationTensorCount"),
}
"""Attributes that are the length of an array."""


NEEDED_IN_EXAMPLES = {
    ("DML_OPERATOR_ROI_ALIGN_GRAD", "OutputGradientTensor"),
    *(
        (f"DML_OPERATOR_{kind}", f"{part}Tensor")
        for kind in ("MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1")
        for part in ("Query", "Key", "Value")
    ),
}
"""Optional tensors of which an operator needs one, where the example has no other."""


def is_optional(field: dict[str, Any]) -> bool:
    """Whether null will do: what may be null in DirectML, outputs that are implied, and counts of an array."""
    is_implied = field["kind"] == "output_tensor" and not field["stated"]
    return bool(field["optional"]) or is_implied or field["name"] in COUNTS


def test_every_operator_has_facts() -> None:
    assert {facts.operator for facts in FACTS} == set(OPERATORS)


@of_each_operator
def test_fields_are_those_of_the_structure_in_its_order(facts: OperatorFacts) -> None:
    names = [field["name"] for field in facts.fields]
    operator = OPERATORS[facts.operator]
    assert list(operator.model_fields) == ["Type", *names]
    assert operator.tensor_names() == facts.names("input_tensor", "output_tensor")
    assert operator.tensor_names(Role.INPUT) == facts.names("input_tensor")
    assert operator.tensor_names(Role.OUTPUT) == facts.names("output_tensor")
    assert operator.attribute_names() == facts.names("attribute")


@of_each_operator
def test_description_tells_the_documented_facts(facts: OperatorFacts) -> None:
    described = describe(OPERATORS[facts.operator])
    assert described["struct"] == facts.struct
    assert described["introduced"] == facts.introduced.full_name
    assert described["in_place"] == facts.in_place_inputs
    told = [(field["name"], field["kind"], field["type"]) for field in described["fields"]]
    assert told == [(field["name"], field["kind"], C_TYPES[field["type"]]) for field in facts.fields]
    for field, documented in zip(described["fields"], facts.fields, strict=True):
        assert field["required"] == (not is_optional(documented) and field["name"] not in facts.typical_defaults)
        assert field["default"] == facts.typical_defaults.get(field["name"])
        assert field["description"]
    assert {row["feature_level"]: row["tensors"] for row in described["support"]} == {
        level.full_name: {
            name: {"data_types": tensor.data_types, "dimension_counts": list(tensor.dimension_counts)}
            for name, tensor in tensors.items()
        }
        for level, tensors in facts.support.items()
    }
    assert summarize(OPERATORS[facts.operator]).items() <= described.items()


@of_each_operator
def test_name_is_taken_with_and_without_prefix(facts: OperatorFacts) -> None:
    short = facts.operator.removeprefix(PREFIX)
    for name in (facts.operator, short):
        document = descriptor(facts.operator, Type=name)
        assert refusals(document) == []
        assert compiled(document).operator.name() == facts.operator
        assert find_operator(name) is OPERATORS[facts.operator]
    assert OPERATORS[facts.operator].short_name() == short
    family = OPERATORS[facts.operator].family()
    for prefix in ("ACTIVATION", "ELEMENT_WISE"):
        assert (family == prefix) == short.startswith(f"{prefix}_")


@pytest.mark.parametrize("name", ["", PREFIX, "CELU", "ACTIVATION_celu", PREFIX * 2 + "ACTIVATION_CELU", "__init__"])
def test_other_names_find_no_operator(name: str) -> None:
    assert find_operator(name) is None


@of_each_operator
def test_typical_defaults_are_taken(facts: OperatorFacts) -> None:
    without, given = (
        compiled(descriptor(facts.operator)),
        compiled(descriptor(facts.operator, **facts.typical_defaults)),
    )
    for name in facts.typical_defaults:
        assert getattr(without.operator, name) == pytest.approx(facts.typical_defaults[name])
        # A default and the same number in a request are one and the same value: both are FLOAT.
        assert getattr(without.operator, name) == getattr(given.operator, name)


@of_each_operator
def test_required_fields(facts: OperatorFacts) -> None:
    whole: dict[str, Any] = descriptor(facts.operator)
    for field in facts.fields:
        name = field["name"]
        rest = {other: value for other, value in whole.items() if other != name}
        needed = not is_optional(field) and name not in facts.typical_defaults
        needed |= (facts.operator, name) in NEEDED_IN_EXAMPLES
        # Null is for what may be left out, whether DirectML has it as optional or it has a default here.
        for found in (refusals(rest), refusals(rest | {name: None})):
            assert [each.pointer for each in found] == ([f"/{name}"] if needed else [])
            for each in found:
                check_wording(each)


@of_each_operator
def test_fields_of_other_operators_are_refused(facts: OperatorFacts) -> None:
    own = {field["name"] for field in facts.fields}
    for name in {field["name"] for other in FACTS for field in other.fields} - own | {"inputTensor", "Dimensions"}:
        (refusal,) = refusals(descriptor(facts.operator, **{name: 1.0}))
        check_wording(refusal)
        assert refusal.pointer == f"/{name}"
        assert refusal.allowed == sorted(own | {"Type"})
