"""Constraints of single operators, beyond support tables, sizes and types: what each page says of its own fields."""

from typing import Any

import pytest

from app.contract.constants import DataType, FeatureLevel
from app.contract.tensors import TensorDesc, in_fields, members, path_of
from app.contract.violations import ContractError, Hresult
from app.operators.activation.exponential_units import ActivationCelu
from app.operators.catalog import OPERATORS
from app.operators.fusion import FUSABLE
from app.operators.operator import PREFIX, Role
from tests.contract.refusals import check_wording
from tests.operators.descriptors import compiled, descriptor, output_of, refusals
from tests.operators.facts import FACTS

E, A = PREFIX + "ELEMENT_WISE_", PREFIX + "ACTIVATION_"
NEWEST = FeatureLevel.V6_4


def desc(data_type: str = "FLOAT32", *sizes: int, **members: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes or (1, 1, 2, 3))} | members


def pointers(document: dict[str, Any], level: FeatureLevel = NEWEST) -> list[str]:
    found = refusals(document, level)
    for each in found:
        check_wording(each)
    return [each.pointer for each in found]


# Types and sizes that go together


@pytest.mark.parametrize("facts", FACTS, ids=str)
def test_groups_of_types_are_the_documented_ones(facts: Any) -> None:
    groups = OPERATORS[facts.operator].same_types
    tensors = facts.names("input_tensor", "output_tensor")
    stated = [tensors] if groups is None else groups
    assert {frozenset(group) for group in stated} == {frozenset(group) for group in facts.same_types}


@pytest.mark.parametrize("facts", FACTS, ids=str)
def test_types_of_one_group_are_equal_and_others_are_free(facts: Any) -> None:
    """Wherever two tensors have a type in common besides the one they have."""
    row = facts.at(NEWEST)
    here = descriptor(facts.operator)
    for name, made in in_fields(compiled(here).outputs).items():
        each = made if isinstance(made, list) else [made]
        spelled = [desc(output.DataType.value, *output.Sizes) for output in each]
        here[name] = spelled if isinstance(made, list) else spelled[0]
    for group in facts.same_types:
        for name in group[1:]:
            types = [each.value for each in row[name].data_types]
            for other in types:
                first, odd = here.get(group[0]), here.get(name)
                if first is None or odd is None:
                    continue  # optional tensors that the example leaves out
                first = first[0] if isinstance(first, list) else first
                if other != first["DataType"]:
                    changed = {"DataType": other}
                    found = pointers(
                        here | {name: [each | changed for each in odd] if isinstance(odd, list) else odd | changed}
                    )
                    assert any(each.endswith("/DataType") for each in found), (name, other)


@pytest.mark.parametrize("kind", [kind for kind, operator in OPERATORS.items() if operator.same_ranks])
def test_tensors_of_one_group_have_equally_many_dimensions(kind: str) -> None:
    document = descriptor(kind)
    if kind == "DML_OPERATOR_ROI_ALIGN_GRAD":
        document["OutputROIGradientTensor"] = document["ROITensor"]  # which the example leaves out
    tensors = compiled(document).operator.tensors() | compiled(document).outputs
    judged = 0
    for group in OPERATORS[kind].same_ranks:
        for name in members(group, tensors)[1:]:
            sizes = tensors[name].Sizes
            field, *place = path_of(name)
            odd: Any = desc(tensors[name].DataType.value, 1, *sizes)
            if place:
                odd = [odd if index == place[0] else each for index, each in enumerate(document[str(field)])]
            told = refusals(document | {str(field): odd})
            assert ("/".join(map(str, ("", field, *place, "Sizes"))), len(sizes) + 1, len(sizes)) in [
                (each.pointer, each.given, each.allowed) for each in told if "equally many" in each.message
            ]
            judged += 1
    assert judged


@pytest.mark.parametrize("kind", OPERATORS)
def test_left_out_output(kind: str) -> None:
    """Its type is one that the table has at that level, and the request with it spelled out is the same."""
    operator = OPERATORS[kind]
    made = compiled(descriptor(kind))
    for name, output in made.outputs.items():
        assert output.DataType in operator.support.rows[-1].of(name.partition("[")[0]).data_types
        if "[" not in name:
            spelled = descriptor(kind, **{name: desc(output.DataType.value, *output.Sizes)})
            assert compiled(spelled).outputs == made.outputs
    if operator.family() not in ("ACTIVATION", "ELEMENT_WISE"):
        return
    (name,) = operator.tensor_names(Role.OUTPUT)
    for row in operator.support.rows:
        tensors = {
            each: desc(row.of(each).data_types[0].value, *[1] * row.ranks[0])
            for each in operator.tensor_names(Role.INPUT)
        }
        if "MinMaxDataType" in operator.attribute_names():
            tensors["MinMaxDataType"] = tensors["InputTensor"]["DataType"]
        if kind == E + "QUANTIZE_LINEAR":
            tensors["ScaleTensor"] = tensors["InputTensor"]
        made = compiled(descriptor(kind, **tensors), row.level)
        assert output_of(made).DataType in row.of(name).data_types
        assert output_of(made) == TensorDesc(DataType=output_of(made).DataType, Sizes=[1] * row.ranks[0])
        spelled = descriptor(kind, **tensors | {name: desc(output_of(made).DataType.value, *[1] * row.ranks[0])})
        assert output_of(compiled(spelled, row.level)) == output_of(made)


@pytest.mark.parametrize(
    ("kind", "tensors", "implied"),
    [
        (E + "LOGICAL_EQUALS", {}, "UINT8"),
        (E + "IS_NAN", {"InputTensor": desc("FLOAT16")}, "UINT8"),
        (E + "IS_INFINITY", {}, "UINT8"),
        (E + "BIT_COUNT", {"InputTensor": desc("UINT64")}, "UINT8"),
        (E + "IF", {"ConditionTensor": desc("UINT8"), "ATensor": desc("INT64"), "BTensor": desc("INT64")}, "INT64"),
        (E + "POW", {"InputTensor": desc("INT8"), "ExponentTensor": desc("FLOAT16")}, "INT8"),
        (E + "QUANTIZE_LINEAR", {"ZeroPointTensor": desc("INT8")}, "INT8"),
        (E + "QUANTIZE_LINEAR", {"ZeroPointTensor": None}, "UINT8"),
        (E + "DEQUANTIZE_LINEAR", {"ScaleTensor": desc("FLOAT16")}, "FLOAT16"),
        (E + "QUANTIZED_LINEAR_ADD", {"OutputZeroPointTensor": desc("UINT8", 1, 1, 1, 1)}, "UINT8"),
        (E + "QUANTIZED_LINEAR_ADD", {"OutputZeroPointTensor": None}, "INT8"),
    ],
)
def test_type_of_a_left_out_output(kind: str, tensors: dict[str, Any], implied: str) -> None:
    assert output_of(compiled(descriptor(kind, **tensors))).DataType == implied


def test_at_1_0_the_only_boolean_is_uint32() -> None:
    assert output_of(compiled(descriptor(E + "LOGICAL_EQUALS"), FeatureLevel.V1_0)).DataType is DataType.UINT32


@pytest.mark.parametrize("output", ["UINT8", "UINT32"])
def test_outputs_of_comparisons_are_independent_of_the_inputs(output: str) -> None:
    for data_type in ("INT64", "FLOAT16", "UINT8"):
        assert pointers(descriptor(E + "LOGICAL_LESS_THAN", desc(data_type), OutputTensor=desc(output))) == []
    assert pointers(descriptor(E + "LOGICAL_LESS_THAN", OutputTensor=desc("FLOAT32"))) == ["/OutputTensor/DataType"]


def test_inputs_of_comparisons_are_of_one_type() -> None:
    assert pointers(descriptor(E + "LOGICAL_EQUALS", BTensor=desc("FLOAT16"))) == ["/BTensor/DataType"]


def test_exponent_of_another_type_from_3_0_on() -> None:
    mixed = descriptor(E + "POW", ExponentTensor=desc("FLOAT16"))
    assert pointers(mixed, FeatureLevel.V3_0) == []
    assert pointers(mixed, FeatureLevel.V2_1) == ["/ExponentTensor/DataType"]
    assert pointers(descriptor(E + "POW"), FeatureLevel.V2_1) == []


# Quantization


@pytest.mark.parametrize("kind", [E + "QUANTIZE_LINEAR", E + "DEQUANTIZE_LINEAR"])
def test_zero_point_may_be_null_from_6_2_on(kind: str) -> None:
    for null in (descriptor(kind, ZeroPointTensor=None), {**descriptor(kind)}):
        null.pop("ZeroPointTensor")
        assert pointers(null, FeatureLevel.V6_2) == []
        assert pointers(null, FeatureLevel.V6_1) == ["/ZeroPointTensor"]
    assert pointers(descriptor(kind), FeatureLevel.V6_1) == []


def test_zero_points_of_the_sum_may_always_be_null() -> None:
    null = dict.fromkeys(["AZeroPointTensor", "BZeroPointTensor", "OutputZeroPointTensor"])
    assert pointers(descriptor(E + "QUANTIZED_LINEAR_ADD", **null), FeatureLevel.V4_0) == []


@pytest.mark.parametrize(
    ("given", "scale", "fits"),
    [
        ("INT32", "FLOAT32", True),
        ("INT32", "FLOAT16", False),
        ("FLOAT32", "FLOAT32", True),
        ("FLOAT32", "FLOAT16", False),
        ("FLOAT16", "FLOAT16", True),
        ("FLOAT16", "FLOAT32", False),
    ],
)
def test_scale_is_of_the_inputs_type_or_float32(given: str, scale: str, fits: bool) -> None:
    document = descriptor(E + "QUANTIZE_LINEAR", InputTensor=desc(given), ScaleTensor=desc(scale))
    assert pointers(document) == ([] if fits else ["/ScaleTensor/DataType"])


def test_a_scale_for_each_channel_has_strides_of_0() -> None:
    scale = desc("FLOAT32", 2, 3, 4, Strides=[0, 1, 0])
    tensors = {"InputTensor": desc("FLOAT32", 2, 3, 4), "ScaleTensor": scale, "ZeroPointTensor": None}
    assert pointers(descriptor(E + "QUANTIZE_LINEAR", **tensors)) == []
    tensors["ScaleTensor"] = desc("FLOAT32", 1, 3, 1)
    assert pointers(descriptor(E + "QUANTIZE_LINEAR", **tensors)) == ["/ScaleTensor/Sizes"]


@pytest.mark.parametrize("name", OPERATORS[E + "QUANTIZED_LINEAR_ADD"].one_element)
@pytest.mark.parametrize("sizes", [[1, 1, 2, 3], [1], [1, 1, 1, 1, 1], [1, 1, 1, 3]])
def test_scales_and_zero_points_of_the_sum_have_one_element(name: str, sizes: list[int]) -> None:
    data_type = descriptor(E + "QUANTIZED_LINEAR_ADD")[name]["DataType"]
    assert pointers(descriptor(E + "QUANTIZED_LINEAR_ADD", **{name: desc(data_type, *sizes)})) == [f"/{name}/Sizes"]


def test_types_of_the_sum() -> None:
    document = descriptor(E + "QUANTIZED_LINEAR_ADD", ATensor=desc("UINT8"), AZeroPointTensor=desc("UINT8", 1, 1, 1, 1))
    assert pointers(document) == []
    wrong = descriptor(E + "QUANTIZED_LINEAR_ADD", AZeroPointTensor=desc("UINT8", 1, 1, 1, 1))
    assert pointers(wrong) == ["/AZeroPointTensor/DataType"]


# Bounds


def clip1(data_type: str, least: Any, most: Any) -> dict[str, Any]:
    return descriptor(E + "CLIP1", desc(data_type), MinMaxDataType=data_type, Min=least, Max=most)


@pytest.mark.parametrize("kind", [E + "CLIP1", E + "CLIP_GRAD1"])
def test_bounds_are_of_the_outputs_type(kind: str) -> None:
    for data_type in ("FLOAT16", "INT8", "UINT64"):
        assert pointers(descriptor(kind, MinMaxDataType=data_type)) == ["/MinMaxDataType"]
        assert pointers(descriptor(kind, desc(data_type), MinMaxDataType=f"DML_TENSOR_DATA_TYPE_{data_type}")) == []


@pytest.mark.parametrize(("kind", "output"), [("CLIP1", "OutputTensor"), ("CLIP_GRAD1", "OutputGradientTensor")])
@pytest.mark.parametrize("is_stated", [True, False])
def test_bounds_of_another_type_are_told_beside_a_tensor_that_is_there(kind: str, output: str, is_stated: bool) -> None:
    document = descriptor(E + kind, MinMaxDataType="INT8")
    document |= {output: desc("FLOAT32") if is_stated else None}
    (found,) = refusals(document, NEWEST)
    assert f"but {output if is_stated else 'InputTensor'} is FLOAT32" in found.message


@pytest.mark.parametrize(
    ("data_type", "bound"),
    [
        *[("FLOAT32", each) for each in (0, -1.5, 3e38, {"Float32": 1.5}, 16777217, float("-inf"))],
        *[
            ("FLOAT16", each)
            for each in (0, -1.5, 65504, 1e30, {"UInt16": 0x7C00}, {"UInt16": 0xBC00, "Float32": None})
        ],
        *[("INT64", each) for each in (-(2**63), 2**63 - 1, {"Int64": -(2**63)})],
        *[("UINT64", each) for each in (0, 2**64 - 1, {"UInt64": 2**64 - 1})],
        *[("INT8", each) for each in (-128, 127, {"Int8": 5})],
        *[("UINT16", each) for each in (0, 65535, {"UInt16": 5})],
    ],
)
def test_bounds_that_the_type_holds(data_type: str, bound: Any) -> None:
    assert pointers(clip1(data_type, bound, bound)) == []


@pytest.mark.parametrize(
    ("data_type", "bound"),
    [
        *[("FLOAT32", each) for each in (3.5e38, 10**39, float("nan"), {"UInt32": 1}, {})],
        *[("FLOAT16", each) for each in ({"Float32": 1.0}, {"UInt16": 0x7E00})],
        *[("INT8", each) for each in (-129, 128, 1.5, 1.0, {"Int16": 1}, {"Int8": 1, "Int16": 1})],
        *[("UINT64", each) for each in (-1, 2**64, 0.5, {"Int64": 1})],
        *[("INT64", each) for each in (-(2**63) - 1, 2**63, 1e3)],
    ],
)
def test_bounds_that_the_type_does_not_hold(data_type: str, bound: Any) -> None:
    for kind in ("CLIP1", "CLIP_GRAD1"):
        document = descriptor(E + kind, desc(data_type), MinMaxDataType=data_type, Min=bound, Max=bound)
        assert pointers(document) == ["/Min", "/Max"]


@pytest.mark.parametrize(
    ("bound", "pointer"),
    [
        ("1", "/Min"),
        (None, "/Min"),
        (True, "/Min"),
        ([1], "/Min"),
        ({"Int8": 128}, "/Min/Int8"),
        ({"Int8": 1.5}, "/Min/Int8"),
        ({"UInt8": -1}, "/Min/UInt8"),
        ({"int8": 1}, "/Min/int8"),
        ({"Float32": float("nan")}, "/Min/Float32"),
    ],
)
def test_what_is_no_bound(bound: Any, pointer: str) -> None:
    assert pointers(clip1("INT8", bound, 1)) == [pointer]


@pytest.mark.parametrize("kind", [E + "CLIP", E + "CLIP1", E + "CLIP_GRAD", E + "CLIP_GRAD1"])
def test_crossed_bounds_are_taken(kind: str) -> None:
    assert pointers(descriptor(kind, Min=1, Max=-1)) == []


# Attributes with rules


def test_steepness_below_1_from_6_4_on() -> None:
    for steepness in (0.5, -1, 1e-45):
        assert pointers(descriptor(A + "SOFTPLUS", Steepness=steepness), FeatureLevel.V6_4) == []
        assert pointers(descriptor(A + "SOFTPLUS", Steepness=steepness), FeatureLevel.V6_3) == ["/Steepness"]
    assert pointers(descriptor(A + "SOFTPLUS", Steepness=1), FeatureLevel.V1_0) == []
    for level in FeatureLevel:
        (refusal,) = refusals(descriptor(A + "SOFTPLUS", Steepness=0), level)
        assert (refusal.pointer, refusal.given) == ("/Steepness", 0)


@pytest.mark.parametrize(
    ("kind", "name", "constant"),
    [
        (E + "ROUND", "RoundingMode", "DML_ROUNDING_MODE_TOWARD_INFINITY"),
        (E + "IS_INFINITY", "InfinityMode", "DML_IS_INFINITY_MODE_NEGATIVE"),
    ],
)
def test_modes_are_constants(kind: str, name: str, constant: str) -> None:
    assert pointers(descriptor(kind, **{name: constant})) == []
    for wrong in (0, "UP", None, constant.lower(), "DML_" + constant):
        assert pointers(descriptor(kind, **{name: wrong})) == [f"/{name}"]


# Axes


ROWS = [A + "SOFTMAX", A + "LOG_SOFTMAX", A + "HARDMAX"]


@pytest.mark.parametrize("kind", ROWS)
def test_rows_are_of_a_matrix(kind: str) -> None:
    for sizes in ([3], [2, 3], [1, 2, 3], [1, 1, 1, 1, 1, 1, 2, 3], [1, 3], [2, 1]):
        assert pointers(descriptor(kind, desc("FLOAT32", *sizes))) == []
    for sizes in ([2, 1, 1], [2, 3, 4], [1, 2, 1, 3], [5, 1, 1, 1]):
        (refusal,) = refusals(descriptor(kind, desc("FLOAT32", *sizes)))
        check_wording(refusal)
        allowed = [1] * len(sizes[:-2]) + sizes[-2:]
        assert (refusal.pointer, refusal.given, refusal.allowed) == ("/InputTensor/Sizes", sizes, allowed)


@pytest.mark.parametrize("kind", [f"{kind}1" for kind in ROWS])
@pytest.mark.parametrize(
    ("members", "refused"),
    [
        ({"Axes": [0]}, []),
        ({"Axes": [3, 1]}, []),
        ({"Axes": [0, 1, 2, 3], "AxisCount": 4}, []),
        ({"Axes": [4]}, ["/Axes/0"]),
        ({"Axes": [0, 7]}, ["/Axes/1"]),
        ({"Axes": [1, 1]}, ["/Axes/1"]),
        ({"Axes": []}, ["/Axes"]),
        ({"Axes": [-1]}, ["/Axes/0"]),
        ({"Axes": [0.0]}, ["/Axes/0"]),
        ({"Axes": list(range(9))}, ["/Axes"]),
        ({"Axes": None}, ["/Axes"]),
        ({"Axes": 0}, ["/Axes"]),
        ({"Axes": [0], "AxisCount": 2}, ["/AxisCount"]),
        ({"Axes": [0], "AxisCount": 0}, ["/AxisCount"]),
    ],
)
def test_axes(kind: str, members: dict[str, Any], refused: list[str]) -> None:
    assert pointers(descriptor(kind, desc("FLOAT32", 2, 3, 4, 5), **members)) == refused


def test_axes_are_of_any_rank() -> None:
    assert pointers(descriptor(A + "SOFTMAX1", desc("FLOAT32", *[2] * 8), Axes=[7, 0])) == []
    assert pointers(descriptor(A + "SOFTMAX1", desc("FLOAT32", 2), Axes=[1])) == ["/Axes/0"]


# Fused activations


FUSED = [
    *("LINEAR", "SIGMOID", "HARD_SIGMOID", "TANH", "SCALED_TANH", "RELU", "LEAKY_RELU", "THRESHOLDED_RELU", "ELU"),
    *("CELU", "SCALED_ELU", "SOFTPLUS", "PARAMETRIC_SOFTPLUS", "SOFTSIGN", "IDENTITY", "SHRINK", "GELU"),
]
"""The documented list."""


def add1(fused: Any) -> dict[str, Any]:
    return descriptor(E + "ADD1", FusedActivation=fused)


def attributes(name: str) -> dict[str, Any]:
    return dict.fromkeys(OPERATORS[A + name].attribute_names(), 1.5)


def test_what_is_fusable_is_documented() -> None:
    assert [operator.short_name() for operator in FUSABLE] == [f"ACTIVATION_{name}" for name in FUSED]


@pytest.mark.parametrize("name", FUSED)
def test_fused_activations_have_their_attributes_and_no_tensors(name: str) -> None:
    whole = {"Type": f"ACTIVATION_{name}"} | attributes(name)
    assert pointers(add1(whole)) == []
    assert pointers(add1(whole | {"Type": A + name, "InputTensor": None, "OutputTensor": None})) == []
    for missing in attributes(name):
        rest = {each: value for each, value in whole.items() if each != missing}
        assert pointers(add1(rest)) == [f"/FusedActivation/{missing}"]
    assert pointers(add1(whole | {"InputTensor": desc()})) == ["/FusedActivation/InputTensor"]
    assert pointers(add1(whole | {"Gain": 1.0})) == ["/FusedActivation/Gain"]


@pytest.mark.parametrize("kind", OPERATORS)
def test_nothing_else_is_fused(kind: str) -> None:
    if kind.removeprefix(A) not in FUSED:
        assert pointers(add1({"Type": kind})) == ["/FusedActivation/Type"]


@pytest.mark.parametrize(
    ("fused", "given", "hresult"),
    [
        # What its structures can hold, DirectML refuses itself,
        ({"Type": "ACTIVATION_SOFTMAX"}, "ACTIVATION_SOFTMAX", Hresult.E_INVALIDARG),
        ({"Type": E + "CLIP", "Min": 0, "Max": 1}, E + "CLIP", Hresult.E_INVALIDARG),
        (
            {"Type": "ACTIVATION_RELU", "OutputTensor": desc()},
            "an object with DataType, Sizes",
            Hresult.E_INVALIDARG,
        ),
        # and what they cannot hold never comes to it.
        ({"Type": "ACTIVATION_SOFTMIN"}, "ACTIVATION_SOFTMIN", None),
        ({"Type": "ACTIVATION_RELU", "Input": desc()}, "an object with DataType, Sizes", None),
    ],
)
def test_what_cannot_be_fused_has_directmls_hresult(fused: Any, given: str, hresult: Hresult | None) -> None:
    with pytest.raises(ContractError) as refusal:
        compiled(add1(fused))
    (violation,) = refusal.value.violations
    check_wording(violation)
    assert (violation.given, refusal.value.hresult) == (given, hresult)
    assert ("known here" in violation.message) == ("SOFTMIN" in given)
    assert violation.options


@pytest.mark.parametrize(("name", "level"), [("CELU", "3_0"), ("GELU", "5_1"), ("ELU", "1_0"), ("SHRINK", "2_0")])
def test_an_activation_is_fused_at_levels_that_have_it(name: str, level: str) -> None:
    document = add1({"Type": f"ACTIVATION_{name}"} | attributes(name))
    for each in FeatureLevel:
        if each >= FeatureLevel.V2_0:
            assert pointers(document, each) == ([] if each >= level else ["/FusedActivation/Type"])


def test_rules_of_a_fused_activation_hold() -> None:
    assert pointers(add1({"Type": "ACTIVATION_CELU", "Alpha": 0})) == ["/FusedActivation/Alpha"]
    soft = add1({"Type": "ACTIVATION_SOFTPLUS", "Steepness": 0.5})
    assert pointers(soft, FeatureLevel.V6_3) == ["/FusedActivation/Steepness"]
    assert pointers(add1({"Type": "ACTIVATION_ELU", "Alpha": float("nan")})) == ["/FusedActivation/Alpha"]
    assert ActivationCelu.model_fields["Alpha"].default == 1  # which stays the default of the operator itself


@pytest.mark.parametrize("kind", [kind for kind, each in OPERATORS.items() if "FusedActivation" in each.model_fields])
def test_rules_of_activations_hold_wherever_they_are_fused(kind: str) -> None:
    never = {"Type": "ACTIVATION_SOFTPLUS", "Steepness": 0}
    assert pointers(descriptor(kind, FusedActivation=never)) == ["/FusedActivation/Steepness"]


@pytest.mark.parametrize("wrong", [1, "ACTIVATION_ELU", [], {}, {"Alpha": 1.0}, {"Type": None}, {"Type": "ELU"}])
def test_what_is_no_fused_activation(wrong: Any) -> None:
    (pointer,) = pointers(add1(wrong))
    assert pointer in ("/FusedActivation", "/FusedActivation/Type")


def test_scale_bias_is_on_26_operators() -> None:
    having = {facts.operator for facts in FACTS if "ScaleBias" in facts.names("attribute")}
    assert having == {kind for kind, operator in OPERATORS.items() if "ScaleBias" in operator.attribute_names()}
    assert len(having) == 26
