"""ONNX models as dispatchables: sizes, what is left out, what is deferred, and what is refused."""

import json
from typing import Any

import httpx
import numpy as np
import onnx
import pytest

from tests.models.documents import model, unsupported
from tests.models.dxdispatch.models import Json, changed, floats, post, problem, zipped

DISPATCH = "/commands/0"
BINDINGS = f"{DISPATCH}/bindings"
SOURCE = "/dispatchables/net/sourcePath"

TABLE = "m (float[n,3] x) => (float[n,3] y, int64[2] sizes, float total) {{ y = Add(x, x) sizes = Shape(x) {} }}"
NET = model(TABLE.format("total = ReduceSum<keepdims=0>(x)"))


def net(bindings: Json, *prints: str, **more: Any) -> Json:
    """Binds, dispatches and prints."""
    return {
        "resources": {
            "X": floats(1, 2, 3, 4, 5, 6),
            "Y": floats(*[9] * 8),
            "Later": {"initialValues": "deferred"},
            "Other": {"initialValues": "deferred"},
        },
        "dispatchables": {"net": {"type": "ONNX", "sourcePath": "net.onnx", **more}},
        "commands": [
            {"type": "dispatch", "dispatchable": "net", "bindings": bindings},
            *({"type": "print", "resource": each} for each in prints),
        ],
    }


def sent(told: Json, made: onnx.ModelProto = NET) -> bytes:
    return zipped({"model.json": json.dumps(told), "net.onnx": made.SerializeToString()})


def printed(client: httpx.Client, told: Json, made: onnx.ModelProto = NET) -> list[str]:
    response = post(client, sent(told, made))
    assert response.status_code == 200, response.text
    return [each.partition(": ")[2] for each in response.json()["lines"]]


X = {"name": "X", "shape": [2, 3]}


def test_shapes_and_deferred_outputs(client: httpx.Client) -> None:
    """What is behind an output in its resource stays; a deferred one has the output's type and sizes, also written."""
    bound = {"x": X, "y": {"name": "Y", "shape": [2, 3]}, "sizes": "Later", "total": "Other", "nothing": "X"}
    told = net(bound, "Y", "Later", "Other")
    told["commands"].append({"type": "writeFile", "resource": "Other", "targetPath": "o.npy"})
    assert printed(client, told)[:3] == ["2, 4, 6, 8, 10, 12, 9, 9", "2, 3", "21"]


def test_a_scalar_has_one_element(client: httpx.Client) -> None:
    made = model("m (float x, float[1] v) => (float y, float[1] w) { y = Neg(x) w = Neg(v) }")
    one = {"name": "X", "shape": [1]}
    told = net({"x": one, "v": one, "y": {"name": "Y", "shape": [1]}, "w": "Later"}, "Y", "Later")
    assert printed(client, told, made) == ["-1, 9, 9, 9, 9, 9, 9, 9", "-1"]
    for name in ("x", "v"):
        wrong = net({"x": one, "v": one} | {name: {"name": "X", "shape": [1, 1]}})
        assert list(problem(client, sent(wrong, made))) == [f"{BINDINGS}/{name}/shape"]


def test_models_are_not_initialized(client: httpx.Client) -> None:
    """What would be bound then is not looked at."""
    told = changed(net({"x": X, "y": "Later"}, "Later"), "/dispatchables/net/bindings", {"x": "Nobody"})
    assert printed(client, told) == ["2, 4, 6, 8, 10, 12"]


def test_what_is_deferred_may_be_bound_again(client: httpx.Client) -> None:
    told = net({"x": X, "y": "Later"}, "Later")
    again = {"x": {"name": "Later", "shape": [2, 3]}, "y": "Later"}
    told["commands"][1:1] = [{"type": "dispatch", "dispatchable": "net", "bindings": again}] * 6
    assert printed(client, told) == [", ".join(str(each << 7) for each in range(1, 7))]


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        ({}, "1, 3"),
        ({"freeDimensionNameOverrides": {"n": 2, "other": 7}}, "2, 3"),
        ({"freeDimensionDenotationOverrides": {"DATA_BATCH": 2}}, "2, 3"),
    ],
)
def test_free_dimensions(client: httpx.Client, more: Json, sizes: str) -> None:
    made = onnx.ModelProto()
    made.CopyFrom(NET)
    made.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    assert printed(client, net({"sizes": "Later"}, "Later", **more), made) == [sizes]
    assert printed(client, net({}, **more), made) == []
    if more:  # then sizes of outputs are known as well
        assert printed(client, net({"x": "X", "y": "Y"}, "Y", **more), made) == ["2, 4, 6, 8, 10, 12, 9, 9"]


def test_a_tensor_of_any_number_of_dimensions_has_none_to_override(client: httpx.Client) -> None:
    made = onnx.ModelProto()
    made.CopyFrom(model("m (float[2,3] x) => (float[2,3] y) { y = Neg(x) }"))
    for each in (made.graph.input[0], made.graph.output[0]):
        each.type.tensor_type.ClearField("shape")
    told = net({"x": X, "y": "Later"}, "Later", freeDimensionNameOverrides={"n": 2})
    assert printed(client, told, made) == ["-1, -2, -3, -4, -5, -6"]


@pytest.mark.parametrize(
    ("bindings", "more", "pointer"),
    [
        ({"x": {"name": "X", "shape": [2, 4]}}, {}, f"{BINDINGS}/x/shape"),
        ({"x": {"name": "X", "shape": [6]}}, {}, f"{BINDINGS}/x/shape"),
        ({"x": {"name": "X", "shape": [0, 3]}}, {}, f"{BINDINGS}/x/shape"),
        ({"x": {"name": "X", "shape": [3, 3]}}, {}, f"{BINDINGS}/x"),
        ({"x": {"name": "X", "shape": [1 << 62, 3]}}, {}, BINDINGS),
        ({"x": X, "y": "Y"}, {}, f"{BINDINGS}/y"),
        ({"x": X, "y": {"name": "Y", "shape": [1, 3]}}, {}, f"{BINDINGS}/y/shape"),
        ({"x": X, "sizes": "Y", "y": {"name": "Y", "shape": [2, 3]}}, {}, f"{BINDINGS}/sizes"),
        ({"x": {"name": "X", "elementOffset": 4}}, {}, f"{BINDINGS}/x"),
        ({"x": {"name": "X", "counter": "X", "counterOffsetBytes": 0}}, {}, f"{BINDINGS}/x"),
        ({"x": ["X", "X"]}, {}, f"{BINDINGS}/x"),
        ({"x": "Later"}, {}, f"{BINDINGS}/x"),
        ({"x": X}, {"freeDimensionNameOverrides": {"n": 3}}, f"{BINDINGS}/x/shape"),
        ({}, {"freeDimensionNameOverrides": {"n": 0}}, "/dispatchables/net/freeDimensionNameOverrides/n"),
        ({}, {"sourcePath": "other.onnx"}, SOURCE),
        ({}, {"sourcePath": "model.json"}, SOURCE),
    ],
)
def test_what_is_refused(client: httpx.Client, bindings: Json, more: Json, pointer: str) -> None:
    response = post(client, sent(net(bindings, **more)), model="model.json")
    assert response.status_code in (413, 422), response.text
    assert pointer in [each["pointer"] for each in response.json()["errors"]], response.text


def test_a_binding_in_place_reads_before_it_writes(client: httpx.Client) -> None:
    assert printed(client, net({"x": X, "y": {"name": "X", "shape": [2, 3]}}, "X")) == ["2, 4, 6, 8, 10, 12"]


def test_nodes_without_an_operator_are_named(client: httpx.Client) -> None:
    found = post(client, sent(net({}), unsupported())).json()["errors"]
    assert {each["pointer"] for each in found} == {SOURCE}
    assert ["Det" in each["message"] and "opset 17" in each["message"] for each in found].count(True) == 1
    changed_ = changed(net({}), SOURCE)
    assert list(problem(client, json.dumps(changed_))) == [SOURCE]


def test_memory_is_given_back(client: httpx.Client) -> None:
    """However often and for however many sizes, a run holds what it needs for a few of them."""
    weight = np.ones((64, 1 << 14), np.float32)
    text = "m (float[n,64] x) => (float[n,16384] y) { h = Mul(w, w) y = MatMul(x, h) }"
    told = net({}, "Later")
    told["resources"]["X"] = floats(*[1] * 64 * 40)
    one = [
        {
            "type": "dispatch",
            "dispatchable": "net",
            "bindings": {"x": {"name": "X", "shape": [1 + each % 40, 64]}, "y": "Later"},
        }
        for each in range(39)
    ]
    told["commands"] = [*one, {"type": "writeFile", "resource": "Later", "targetPath": "y.npy"}]
    assert post(client, sent(told, model(text, w=weight))).status_code == 200
