"""What the format does not permit is refused, before anything runs, with a pointer into the model."""

import json
from pathlib import PurePosixPath
from typing import Any
from unittest import mock

import httpx
import pytest

from app.engine.service import Service
from app.engine.workers import Ticket
from app.memory.accounts import LimitExceeded, MemoryShare
from app.models.dxdispatch.files import SentFiles
from app.models.dxdispatch.model import run_model
from app.settings import MIB, Settings
from tests.http.load import metric, wait_until
from tests.models.dxdispatch.models import (
    Json,
    add,
    changed,
    floats,
    lines,
    post,
    problem,
    shown,
    tensor,
    unary,
    zipped,
)

DESC = "/dispatchables/add/desc"
BINDINGS = "/commands/0/bindings"


@pytest.mark.parametrize("name", ["resources", "dispatchables", "commands"])
@pytest.mark.parametrize("value", [..., None, 1, "x"])
def test_the_root_has_three_parts(client: httpx.Client, name: str, value: Any) -> None:
    kind = "an array" if name == "commands" else "an object"
    assert problem(client, changed(add(), f"/{name}", value)) == {f"/{name}": f"Expected {kind} named '{name}'."}


RESOURCES: list[tuple[Json, str]] = [
    ({"initialValuesDataType": "FLOAT32"}, "/initialValues"),
    (floats() | {"initialValues": "later"}, "/initialValues"),
    (floats() | {"initialValues": 3}, "/initialValues"),
    (floats() | {"initialValues": True}, "/initialValues"),
    (floats() | {"initialValues": None}, "/initialValues"),
    (floats(), "/initialValues"),
    (floats() | {"initialValues": {}}, "/initialValues"),
    (floats(1) | {"initialValuesDataType": "FLOAT8"}, "/initialValuesDataType"),
    (floats(1) | {"initialValuesDataType": "INT4"}, "/initialValuesDataType"),
    (floats(1) | {"initialValuesDataType": None}, "/initialValuesDataType"),
    (floats("NaN?"), "/initialValues/0"),
    (floats(0, True), "/initialValues/1"),
    (floats(0, None), "/initialValues/1"),
    (floats((1 << 53) + 1), "/initialValues/0"),
    (floats(10**400), "/initialValues/0"),
    ({"initialValuesDataType": "INT8", "initialValues": [127, 128]}, "/initialValues/1"),
    ({"initialValuesDataType": "UINT64", "initialValues": [-1]}, "/initialValues/0"),
    ({"initialValuesDataType": "INT32", "initialValues": [1.0]}, "/initialValues/0"),
    ({"initialValuesDataType": "INT32", "initialValues": ["nan"]}, "/initialValues/0"),
    ({"initialValues": [1, 2]}, "/initialValues/0"),
    ({"initialValues": [{"type": "UINT32"}]}, "/initialValues/0"),
    ({"initialValues": [{"type": "FLOAT16", "value": 1}]}, "/initialValues/0/type"),
    ({"initialValues": [{"type": "FLOAT31", "value": 1}]}, "/initialValues/0/type"),
    ({"initialValues": [{"type": "UINT8", "value": 256}]}, "/initialValues/0/value"),
    ({"initialValues": {"value": 1, "valueCount": 1}}, "/initialValuesDataType"),
    (floats() | {"initialValues": {"value": 1}}, "/initialValues/valueCount"),
    (floats() | {"initialValues": {"valueCount": 1}}, "/initialValues"),
    (floats() | {"initialValues": {"value": 1, "valueCount": 0}}, "/initialValues"),
    (floats() | {"initialValues": {"value": 1, "valueCount": -1}}, "/initialValues/valueCount"),
    (floats() | {"initialValues": {"value": 1, "valueCount": 1 << 32}}, "/initialValues/valueCount"),
    (floats() | {"initialValues": {"value": 1, "valueCount": 1, "valueStart": 1}}, "/initialValues"),
    (floats() | {"initialValues": {"value": 1, "valueCount": 1, "sourcePath": "x"}}, "/initialValues"),
    (floats() | {"initialValues": {"valueStart": 1, "valueCount": 1}}, "/initialValues/valueDelta"),
    ({"initialValues": {"valueStart": 1, "valueDelta": 1, "valueCount": 1}}, "/initialValuesDataType"),
    (floats() | {"initialValues": {"sourcePath": "missing.dat"}}, "/initialValues/sourcePath"),
    (floats() | {"initialValues": {"sourcePath": None}}, "/initialValues/sourcePath"),
    (floats() | {"initialValues": {"sourcePath": ""}}, "/initialValues/sourcePath"),
    (floats(1, sizeInBytes=3), "/sizeInBytes"),
    (floats(1, sizeInBytes=None), "/sizeInBytes"),
    (floats(1, sizeInBytes=-4), "/sizeInBytes"),
    (floats(1, sizeInBytes=8, initialValuesOffsetInBytes=5), "/initialValuesOffsetInBytes"),
]


@pytest.mark.parametrize(
    ("pointer", "value", "allowed"),
    [
        ("/resources", 1, ["an object"]),
        ("/dispatchables", [], ["an object"]),
        ("/commands", "x", ["an array"]),
        ("/commands/0/dispatchable", "sub", ["add"]),
    ],
)
def test_what_was_given_and_what_is_allowed(client: httpx.Client, pointer: str, value: Any, allowed: list[str]) -> None:
    (error,) = post(client, changed(add(), pointer, value)).json()["errors"]
    assert (error["pointer"], error["given"], error["allowed"]) == (pointer, value, allowed)


def test_types_of_initial_values(client: httpx.Client) -> None:
    """Those whose numbers JSON has, and that are bytes by themselves."""
    resource = {"initialValues": [{"type": "FLOAT16", "value": 1}]}
    (error,) = post(client, shown(x=resource)).json()["errors"]
    assert error["given"] == "FLOAT16"
    widths = [f"{letter}INT{bits}" for bits in (64, 32, 16, 8) for letter in ("", "U")]
    assert set(error["allowed"]) == {"FLOAT64", "FLOAT32", *widths}


@pytest.mark.parametrize(("resource", "pointer"), RESOURCES)
def test_resources(client: httpx.Client, resource: Json, pointer: str) -> None:
    assert list(problem(client, shown(x=resource))) == [f"/resources/x{pointer}"]


CHANGES: list[tuple[str, Any, str]] = [
    ("/dispatchables/add", None, "/dispatchables/add"),
    ("/dispatchables/add/type", ..., "/dispatchables/add/type"),
    ("/dispatchables/add/type", None, "/dispatchables/add/type"),
    ("/dispatchables/add/type", "DML_OPERATOR_MADE_UP", "/dispatchables/add/type"),
    ("/dispatchables/add/type", "dml_operator_element_wise_add", "/dispatchables/add/type"),
    ("/dispatchables/add/type", "HLSL", "/dispatchables/add/type"),
    ("/dispatchables/add/dmlCompileType", "dmlCompileOp", "/dispatchables/add/dmlCompileType"),
    ("/dispatchables/add/dmlCompileType", None, "/dispatchables/add/dmlCompileType"),
    ("/dispatchables/add/executionFlags", "FAST", "/dispatchables/add/executionFlags"),
    ("/dispatchables/add/executionFlags", ["NONE", 1], "/dispatchables/add/executionFlags/1"),
    (DESC, [], DESC),
    (f"{DESC}/ATensor", ..., f"{DESC}/ATensor"),
    (f"{DESC}/ATensor", None, f"{DESC}/ATensor"),
    (f"{DESC}/ATensor", 3, f"{DESC}/ATensor"),
    (f"{DESC}/OutputTensor", ..., f"{DESC}/OutputTensor"),
    (f"{DESC}/ATensor/Sizes", ..., f"{DESC}/ATensor/Sizes"),
    (f"{DESC}/ATensor/DataType", "FLOAT31", f"{DESC}/ATensor/DataType"),
    (f"{DESC}/ATensor/DimensionCount", 2, f"{DESC}/ATensor/DimensionCount"),
    (f"{DESC}/ATensor/Strides", None, f"{DESC}/ATensor/Strides"),
    (f"{DESC}/ATensor/Flags", "MINE", f"{DESC}/ATensor/Flags"),
    (f"{DESC}/ATensor", {"Type": "TEXTURE", "Desc": tensor(3)}, f"{DESC}/ATensor/Type"),
    (f"{DESC}/ATensor", {"Type": "BUFFER", "Desc": tensor(0)}, f"{DESC}/ATensor/Desc/Sizes/0"),
    (f"{DESC}/ATensor", {"Type": "BUFFER"}, f"{DESC}/ATensor/Desc"),
    ("/commands/0", 1, "/commands/0"),
    ("/commands/0/type", ..., "/commands/0/type"),
    ("/commands/0/type", "wait", "/commands/0/type"),
    ("/commands/0/dispatchable", ..., "/commands/0/dispatchable"),
    ("/commands/0/dispatchable", "sub", "/commands/0/dispatchable"),
    ("/commands/0/bindings", ..., "/commands/0/bindings"),
    ("/commands/0/bindings", [], "/commands/0/bindings"),
    ("/commands/0/threadGroupCount", [1, 1], "/commands/0/threadGroupCount"),
    ("/commands/0/threadGroupCount", [1, 1, -1], "/commands/0/threadGroupCount/2"),
    ("/commands/1/resource", ..., "/commands/1/resource"),
    ("/commands/1/resource", "C", "/commands/1/resource"),
    ("/commands/1/verbose", 1, "/commands/1/verbose"),
    ("/commands/1", {"type": "writeFile", "resource": "Out"}, "/commands/1/targetPath"),
    ("/commands/1", {"type": "writeFile", "targetPath": "x"}, "/commands/1/resource"),
    (
        "/commands/1",
        {"type": "writeFile", "resource": "Out", "targetPath": "x", "dimensions": [1.5]},
        "/commands/1/dimensions/0",
    ),
    (f"{BINDINGS}/ATensor", "C", f"{BINDINGS}/ATensor"),
    (f"{BINDINGS}/ATensor", 7, f"{BINDINGS}/ATensor"),
    (f"{BINDINGS}/ATensor", ["A", "B"], f"{BINDINGS}/ATensor"),
    (f"{BINDINGS}/ATensor", [], f"{BINDINGS}/ATensor"),
    (f"{BINDINGS}/ATensor", ["A", "C"], f"{BINDINGS}/ATensor/1"),
    (f"{BINDINGS}/ATensor", [{"name": "C"}], f"{BINDINGS}/ATensor/0/name"),
    (f"{BINDINGS}/ATensor", {"name": "C"}, f"{BINDINGS}/ATensor/name"),
    (f"{BINDINGS}/ATensor", {"elementCount": 1}, f"{BINDINGS}/ATensor/name"),
    (f"{BINDINGS}/ATensor", {"name": "A", "elementOffset": -1}, f"{BINDINGS}/ATensor/elementOffset"),
    (f"{BINDINGS}/ATensor", {"name": "A", "elementOffset": 1}, f"{BINDINGS}/ATensor"),
    (f"{BINDINGS}/ATensor", {"name": "A", "elementOffset": 4}, f"{BINDINGS}/ATensor"),
    (f"{BINDINGS}/ATensor", {"name": "A", "counter": "C", "counterOffsetBytes": 0}, f"{BINDINGS}/ATensor/counter"),
    (f"{BINDINGS}/ATensor", {"name": "A", "counter": "B"}, f"{BINDINGS}/ATensor/counterOffsetBytes"),
    (f"{BINDINGS}/ATensor", {"name": "A", "shape": [1.5]}, f"{BINDINGS}/ATensor/shape/0"),
    (f"{BINDINGS}/ATensor", ..., "/commands/0/bindings"),
    ("/resources/A/initialValues", [1, 2], f"{BINDINGS}/ATensor"),
    ("/resources/A/initialValues", "deferred", f"{BINDINGS}/ATensor"),
    (f"{DESC}/ATensor/Flags", "OWNED_BY_DML", "/dispatchables/add"),
    ("/dispatchables/add/bindings", {"ATensor": "A"}, "/dispatchables/add/bindings/ATensor"),
    ("/dispatchables/add/bindings", {"ATensor": "C"}, "/dispatchables/add/bindings/ATensor"),
]


@pytest.mark.parametrize(("place", "value", "pointer"), CHANGES)
def test_dispatchables_commands_and_bindings(client: httpx.Client, place: str, value: Any, pointer: str) -> None:
    assert list(problem(client, changed(add(), place, value))) == [pointer]


@pytest.mark.parametrize(
    ("activation", "pointer"),
    [
        (3, ""),
        ([], ""),
        ({}, "/Type"),
        ({"Type": "DML_OPERATOR_MADE_UP"}, "/Type"),
        ({"Type": "DML_OPERATOR_MADE_UP", "Desc": {}}, "/Type"),
        ({"Type": 3, "Desc": {}}, "/Type"),
        ({"Type": "DML_OPERATOR_ACTIVATION_ELU", "Desc": {}}, "/Desc/Alpha"),
    ],
)
def test_fused_activations(client: httpx.Client, activation: Any, pointer: str) -> None:
    model = changed(add(), "/dispatchables/add/type", "DML_OPERATOR_ELEMENT_WISE_ADD1")
    told = problem(client, changed(model, f"{DESC}/FusedActivation", activation))
    assert list(told) == [f"{DESC}/FusedActivation{pointer}"]


def test_the_type_of_random_numbers_is_told_as_the_structure_calls_it(client: httpx.Client) -> None:
    state = {"DataType": "UINT32", "Sizes": [1, 1, 1, 6]}
    desc = {"InputStateTensor": state, "OutputTensor": state | {"Sizes": [1, 1, 1, 2]}, "Type": "MADE_UP"}
    model = changed(add(), "/dispatchables/add", {"type": "DML_OPERATOR_RANDOM_GENERATOR", "desc": desc})
    assert f"{DESC}/Type" in problem(client, model)


@pytest.mark.parametrize("spelt", ["hlsl", "HLSL"])
def test_shaders_are_refused_by_name(client: httpx.Client, spelt: str) -> None:
    """Whatever else is wrong with the model: nothing of it could be run without Direct3D."""
    shader = {"type": spelt, "sourcePath": "a.hlsl", "compiler": "dxc", "compilerArgs": []}
    told = problem(client, changed(changed(add(), "/dispatchables/add", shader), "/commands/1/resource", "none"))
    assert list(told) == ["/dispatchables/add/type"]
    assert "add is an HLSL shader, which needs Direct3D" in told["/dispatchables/add/type"]


def test_numbers_of_entries_and_kinds_of_bindings_are_told(client: httpx.Client) -> None:
    for groups in ([1, 1], [1, 1, 1, 1]):
        told = problem(client, changed(add(), "/commands/0/threadGroupCount", groups))
        assert "must have 3 entries" in told["/commands/0/threadGroupCount"]
    nameless = changed(add(), "/resources/", {"initialValuesDataType": "FLOAT32", "initialValues": [1, 2, 3]})
    for model in (add(), nameless):
        told = problem(client, changed(model, f"{BINDINGS}/ATensor", 7))
        assert told == {f"{BINDINGS}/ATensor": "A binding must be the name of a resource, or an object with one."}


def test_what_is_owned_is_bound_at_initialization_and_only_there(client: httpx.Client) -> None:
    model = changed(add(), f"{DESC}/ATensor/Flags", ["DML_TENSOR_FLAG_OWNED_BY_DML"])
    model = changed(model, "/dispatchables/add/bindings", {"ATensor": "A"})
    assert list(problem(client, model)) == [f"{BINDINGS}/ATensor"]
    assert lines(client, changed(model, f"{BINDINGS}/ATensor")) == ["Resource 'Out': 6, 10, -2"]


@pytest.mark.parametrize(
    ("operator", "desc", "field"),
    [
        ("ACTIVATION_ELU", {}, "Alpha"),
        ("ACTIVATION_ELU", {"Alpha": "1"}, "Alpha"),
        ("ACTIVATION_ELU", {"Alpha": None}, "Alpha"),
        ("ELEMENT_WISE_IDENTITY", {"ScaleBias": {"Scale": 1}}, "ScaleBias/Bias"),
        ("ELEMENT_WISE_IDENTITY", {"ScaleBias": None}, "ScaleBias"),
        ("ELEMENT_WISE_CLIP1", {"MinMaxDataType": "FLOAT32", "Min": {"UInt8": 1}, "Max": 2}, "Min"),
        ("ELEMENT_WISE_CLIP1", {"MinMaxDataType": "FLOAT32", "Min": "-Infinity", "Max": 2}, "Min"),
        ("ELEMENT_WISE_ROUND", {"RoundingMode": "UP"}, "RoundingMode"),
        ("ACTIVATION_SOFTMAX1", {"Axes": [0]}, "AxisCount"),
        ("ACTIVATION_SOFTMAX1", {"AxisCount": 2, "Axes": [0]}, "AxisCount"),
        ("CUMULATIVE_SUMMATION", {"Axis": 0, "AxisDirection": "INCREASING", "HasExclusiveSum": 1}, "HasExclusiveSum"),
    ],
)
def test_attributes_are_what_the_structure_has(client: httpx.Client, operator: str, desc: Json, field: str) -> None:
    assert list(problem(client, unary(operator, "FLOAT32", 1, 2, **desc))) == [f"/dispatchables/op/desc/{field}"]


def test_counts_of_arrays_are_required(client: httpx.Client) -> None:
    desc: Json = {"Axis": 0, "InputTensors": [tensor(1), tensor(2)], "OutputTensor": tensor(3)}
    model = changed(add(), "/dispatchables/add", {"type": "JOIN", "desc": desc})
    model = changed(model, BINDINGS, {"InputTensors": ["A", "B"], "OutputTensor": "Out"})
    assert list(problem(client, model)) == [f"{DESC}/InputCount"]
    desc["InputCount"] = 2
    assert lines(client, model) == ["Resource 'Out': 1, 5, 8"]
    model = changed(model, f"{BINDINGS}/InputTensors", ["A"])
    assert problem(client, model) == {
        f"{BINDINGS}/InputTensors": "Bind point 'InputTensors' requires 2 resources, but 1 were bound."
    }


def test_what_the_descriptor_leaves_out_is_not_bound(client: httpx.Client) -> None:
    matrix = tensor(1, 1, 3, 1)
    desc: Json = {"ATensor": matrix, "BTensor": tensor(1, 1, 1, 1), "OutputTensor": matrix}
    desc |= {"TransA": "NONE", "TransB": "NONE", "Alpha": 1, "Beta": 1}
    model = changed(add(), "/dispatchables/add", {"type": "GEMM", "desc": desc})
    assert lines(client, model) == ["Resource 'Out': 5, 10, 15"]
    assert list(problem(client, changed(model, f"{BINDINGS}/CTensor", "B"))) == [f"{BINDINGS}/CTensor"]


def test_offsets_are_as_descriptors_guarantee(client: httpx.Client) -> None:
    for compile_type in ("DmlCompileOp", "DmlCompileGraph"):
        model = changed(add(), "/resources/A", floats(*range(16)))
        model["dispatchables"]["add"]["dmlCompileType"] = compile_type
        model = changed(model, f"{DESC}/ATensor/GuaranteedBaseOffsetAlignment", 32)
        fine = changed(model, f"{BINDINGS}/ATensor", {"name": "A", "elementOffset": 8})
        assert lines(client, fine) == ["Resource 'Out': 13, 17, 5"]
        off = changed(model, f"{BINDINGS}/ATensor", {"name": "A", "elementOffset": 4})
        told = problem(client, off)
        assert list(told) == [f"{BINDINGS}/ATensor"]
        assert "offsets are multiples of 32" in told[f"{BINDINGS}/ATensor"]


def test_scalars_are_numbers(client: httpx.Client) -> None:
    """DxDispatch takes no words for infinities, as `/v1/dispatch` does."""
    desc: Json = {"OutputTensor": tensor(3), "ValueDataType": "FLOAT32", "Value": {"Float32": 7}}
    model = changed(add(), "/dispatchables/add", {"type": "FILL_VALUE_CONSTANT", "desc": desc})
    model = changed(model, BINDINGS, {"OutputTensor": "Out"})
    assert lines(client, model) == ["Resource 'Out': 7, 7, 7"]
    for value, member in (("Infinity", ""), ({"Float32": "-Infinity"}, "/Float32")):
        assert list(problem(client, changed(model, f"{DESC}/Value", value))) == [f"{DESC}/Value{member}"]


def test_outputs_overlap_nothing_but_what_the_operator_lets_them(client: httpx.Client) -> None:
    model = changed(add(), f"{BINDINGS}/OutputTensor", "A")
    assert lines(client, changed(model, "/commands/1/resource", "A")) == ["Resource 'A': 6, 10, -2"]
    model["resources"]["A"] = floats(*range(8))
    shifted = changed(model, f"{BINDINGS}/OutputTensor", {"name": "A", "elementOffset": 4})
    assert lines(client, shifted) == ["Resource 'A': 0, 1, 2, 3, 5, 9, -3, 7"]
    beside = changed(shifted, DESC, dict.fromkeys(("ATensor", "BTensor", "OutputTensor"), tensor(4)))
    beside["resources"]["B"] = floats(*range(4))
    assert lines(client, beside) == ["Resource 'A': 0, 1, 2, 3, 0, 2, 4, 6"]
    before = beside["commands"][0]["bindings"]
    before["ATensor"], before["OutputTensor"] = before["OutputTensor"], before["ATensor"]
    assert lines(client, beside) == ["Resource 'A': 4, 6, 8, 10, 4, 5, 6, 7"]
    six = {"ATensor": tensor(6), "BTensor": tensor(6), "OutputTensor": tensor(6)}
    shifted["resources"]["B"] = floats(*range(6))
    shifted["resources"]["A"] = floats(*range(10))
    assert list(problem(client, changed(shifted, DESC, six))) == [f"{BINDINGS}/OutputTensor"]
    split = {"Axis": 0, "InputTensor": tensor(2), "OutputCount": 2, "OutputTensors": [tensor(1), tensor(1)]}
    model = changed(add(), "/dispatchables/add", {"type": "SPLIT", "desc": split})
    model = changed(model, BINDINGS, {"InputTensor": "A", "OutputTensors": ["Out", "Out"]})
    assert list(problem(client, model)) == [f"{BINDINGS}/OutputTensors/1"]
    graph = changed(add(), f"{BINDINGS}/OutputTensor", "A")
    graph["dispatchables"]["add"]["dmlCompileType"] = "DmlCompileGraph"
    assert list(problem(client, graph)) == [f"{BINDINGS}/OutputTensor"]


def test_each_output_may_take_an_input_that_the_operator_lets_it(client: httpx.Client) -> None:
    inputs = ("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor")
    outputs = ("OutputParametersTensor", "OutputFirstMomentTensor", "OutputSecondMomentTensor")
    one = tensor(1, 1, 1, 1)
    desc: Json = dict.fromkeys([*inputs, "TrainingStepTensor", *outputs], one)
    desc |= {"LearningRate": 1, "Beta1": 0.5, "Beta2": 0.5, "Epsilon": 0}
    bindings = dict(zip([*inputs, "TrainingStepTensor"], "xmvgt", strict=True)) | dict(zip(outputs, "xmv", strict=True))
    model: Json = {
        "resources": {"x": floats(4), "m": floats(0), "v": floats(0), "g": floats(2), "t": floats(1)},
        "dispatchables": {"adam": {"type": "ADAM_OPTIMIZER", "desc": desc}},
        "commands": [{"type": "dispatch", "dispatchable": "adam", "bindings": bindings}]
        + [{"type": "print", "resource": name} for name in "xmv"],
    }
    assert lines(client, model) == ["Resource 'x': 3", "Resource 'm': 1", "Resource 'v': 2"]
    place = "/commands/0/bindings/OutputFirstMomentTensor"
    assert list(problem(client, changed(model, place, "x"))) == [place]  # two outputs
    assert list(problem(client, changed(model, place, "t"))) == [place]


def test_what_has_no_type_or_is_not_there_yet_is_not_printed(client: httpx.Client) -> None:
    typed: Json = {"initialValues": [{"type": "INT8", "value": 1}]}
    for told in ({}, {"initialValuesDataType": "UNKNOWN"}, {"initialValuesDataType": "DML_TENSOR_DATA_TYPE_UNKNOWN"}):
        assert list(problem(client, shown(x=typed | told))) == ["/commands/0/resource"]
    assert list(problem(client, shown(x=floats() | {"initialValues": "deferred"}))) == ["/commands/0/resource"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1,,]", '{"a": [,]}', '{"a": 1,, }', '{"a": NaN}', '{"a": 1e400}', '{"a": 1, "a": 2}'),
        *('"\\ud800"', "{/* }", "{'a': 1}", "\ufeff{}", '{"a": 01}', '{"a": "\n"}', "{,}", "/"),
    ],
)
def test_what_is_no_json_is_unreadable(client: httpx.Client, text: str) -> None:
    assert post(client, text).status_code == 400


def test_what_is_wrong_is_named(client: httpx.Client) -> None:
    assert "a byte order mark comes first" in post(client, "\ufeff{}").json()["detail"]
    typed = {"initialValues": [{"type": "UINT32", "value": 1}, {"type": "FLOAT16", "value": 1}]}
    said = problem(client, shown(x=typed))["/resources/x/initialValues/1/type"]
    assert said.startswith("type is FLOAT16; it must be one of FLOAT32, ")
    assert problem(client, changed(add(), "/commands/1", 5)) == {"/commands/1": "commands[1] must be an object."}
    assert problem(client, changed(add(), "/resources/A", 5)) == {"/resources/A": "A must be an object."}
    assert problem(client, changed(add(), DESC, 5)) == {DESC: "desc must be an object."}
    assert problem(client, "[]") == {"": "The model must be an object."}


def test_limits(client: httpx.Client) -> None:
    """A few bytes that ask for much get nothing."""
    many = {"value": 1, "valueCount": (1 << 32) - 1}
    assert list(problem(client, shown(x=floats() | {"initialValues": many}), 413)) == ["/resources/x/initialValues"]
    assert list(problem(client, shown(x=floats(1, sizeInBytes=1 << 60)), 413)) == ["/resources/x"]
    for kind in ("DmlCompileOp", "DmlCompileGraph"):
        large = changed(add(), DESC, dict.fromkeys(("ATensor", "BTensor", "OutputTensor"), tensor(1 << 30)))
        (pointer,) = problem(client, changed(large, "/dispatchables/add/dmlCompileType", kind), 413)
        assert pointer == f"{DESC}/ATensor"
    many["valueCount"] = 3 << 20
    assert list(problem(client, shown(x=floats() | {"initialValues": many}), 413)) == ["/commands/0/resource"]
    assert "max_depth" in problem(client, "[" * 40 + "]" * 40, 413)[""]
    assert "max_graph_structure_bytes" in problem(client, json.dumps({"x": "y" * (4 << 20)}), 413)[""]


@pytest.mark.parametrize(
    "resource",
    [
        {"initialValuesDataType": "FLOAT32", "initialValues": {"value": 0, "valueCount": 1 << 26}},
        {"initialValuesDataType": "UINT8", "initialValues": {"valueStart": 0, "valueDelta": 1, "valueCount": 1 << 28}},
        floats(1, sizeInBytes=1 << 28),
    ],
)
def test_resources_that_are_too_much_together_are_refused_before_one_is_filled(resource: Json) -> None:
    service = Service(Settings(gpus="none", llvm=False, max_memory_bytes=1 << 30))
    model = json.dumps(shown(**{f"x{number}": resource for number in range(5)}))
    with (
        service.memory.open() as memory,
        mock.patch.object(MemoryShare, "buffer", side_effect=AssertionError("one is filled")),
        pytest.raises(LimitExceeded, match="max_memory_bytes"),
    ):
        run_model(service, Ticket(), model.encode(), SentFiles({}, memory, PurePosixPath()), memory)


def test_results_are_held_no_longer_than_until_they_are_copied() -> None:
    service = Service(Settings(gpus="none", llvm=False))
    model = add()
    model["commands"][:1] *= 3
    held, execute = [], service.execute_in
    with service.memory.open() as memory:

        def noted(*given: Any) -> Any:
            held.append(memory.held)
            return execute(*given)

        with mock.patch.object(service, "execute_in", noted):
            run_model(service, Ticket(), json.dumps(model).encode(), SentFiles({}, memory, PurePosixPath()), memory)
    assert held == held[:1] * 3


def test_a_model_that_is_refused_holds_no_memory(client: httpx.Client) -> None:
    before = metric(client, "memory_bytes")
    assert post(client, "[" + " " * MIB).status_code == 400
    problem(client, changed(add(), "/commands/0/dispatchable", "sub"))
    problem(client, zipped({"a.json": "{}", "b.json": " " * MIB}))
    wait_until(lambda: metric(client, "memory_bytes") <= before)


def test_what_directml_refuses_has_its_code(client: httpx.Client) -> None:
    other = changed(add(), f"{DESC}/OutputTensor/Sizes", [4])
    assert post(client, other).json()["hresult"] == "0x80070057"
    assert "hresult" not in post(client, changed(add(), "/commands/1/verbose", 1)).json()


def test_only_a_zip_has_several_files(client: httpx.Client) -> None:
    assert list(problem(client, add(), model="a.json")) == ["/model"]
    two = zipped({"a.json": "{}", "b.json": json.dumps(add())})
    assert list(problem(client, two)) == ["/model"]
    assert list(problem(client, two, model="c.json")) == ["/model"]
    assert list(problem(client, two, model="../b.json")) == ["/model"]
    assert post(client, two, model="b.json").json()["lines"] == ["Resource 'Out': 6, 10, -2"]
    assert list(problem(client, two, other="b.json")) == ["/other"]
    headers = {"content-type": "text/plain"}
    assert client.post("/v1/dxdispatch", content=b"{}", headers=headers).status_code == 415
