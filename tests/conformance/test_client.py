"""The client itself: every form of a case reaches the service as it stands."""

import base64
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

from tests.conformance.client import Case, HttpClient, data_of, message
from tests.conftest import RunningServer
from tests.messages import Array


@pytest.fixture(params=["json", "msgpack"])
def conformance_client(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[HttpClient]:
    encoding: Literal["json", "msgpack"] = request.param
    client = HttpClient(server.url, encoding)
    with client.http:
        yield client


def tensor(array: Array, **members: Any) -> dict[str, Any]:
    described = {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape), "Strides": None}
    return described | {"data_b64": base64.b64encode(array.tobytes()).decode()} | members


def case(operator: str, attributes: dict[str, Any], tensors: dict[str, Any]) -> Case:
    return {
        "operator": operator,
        "attributes": attributes,
        "feature_level": None,
        "tensors": tensors,
        "output": {"name": "OutputTensor", "DataType": "FLOAT32", "Sizes": [2, 3], "data_b64": "not sent"},
    }


X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)


def test_outputs_have_shape_and_type(conformance_client: HttpClient) -> None:
    slope = tensor(np.array([0.5, 2, 3], np.float32), Sizes=[2, 3], Strides=[0, 1])
    stated = case("ACTIVATION_PARAMETERIZED_RELU", {}, {"InputTensor": tensor(X), "SlopeTensor": slope})
    status, outputs, _ = conformance_client.execute(stated)
    assert status == 200
    assert outputs
    np.testing.assert_array_equal(outputs["OutputTensor"], np.array([[-2, -4, 0], [1, 2, 4]], np.float32), strict=True)


def test_output_through_its_strides(conformance_client: HttpClient) -> None:
    stated = case("ELEMENT_WISE_CONSTANT_POW", {"ScaleBias": {"Scale": 2, "Bias": 1}, "Exponent": 1}, {})
    stated["tensors"]["InputTensor"] = tensor(X)
    stated["output"]["Strides"] = [1, 4]
    _, outputs, _ = conformance_client.execute(stated)
    assert outputs
    np.testing.assert_array_equal(outputs["OutputTensor"], 2 * X + 1)


def test_the_type_of_a_generator(conformance_client: HttpClient) -> None:
    state = tensor(np.array([0, 0, 0, 0, 0xFFFFFFFF, 7], np.uint32))
    stated = case("RANDOM_GENERATOR", {"Type": "DML_RANDOM_GENERATOR_TYPE_PHILOX_4X32_10"}, {"InputStateTensor": state})
    stated["output"] = {"name": "OutputTensor", "DataType": "UINT32", "Sizes": [2, 3]}
    status, outputs, _ = conformance_client.execute(stated)
    assert status == 200
    assert outputs
    assert list(outputs) == ["OutputTensor"]


def test_tensor_arrays(conformance_client: HttpClient) -> None:
    stated = case("JOIN", {"Axis": 1}, {"InputTensors": [tensor(X), tensor(X[:, :2])]})
    stated["output"]["Sizes"] = [2, 5]
    _, outputs, _ = conformance_client.execute(stated)
    assert outputs
    np.testing.assert_array_equal(outputs["OutputTensor"], np.hstack([X, X[:, :2]]))


@pytest.mark.parametrize(
    ("data_type", "expected"), [("UINT4", [[0, 0, 0], [1, 2, 4]]), ("INT4", [[-4, -2, 0], [1, 2, 4]])]
)
def test_elements_of_four_bits(
    data_type: Literal["UINT4", "INT4"], expected: list[list[int]], conformance_client: HttpClient
) -> None:
    scale = tensor(np.ones((1, 1), np.float32))
    stated = case("QUANTIZE", {"QuantizationType": "SCALE"}, {"InputTensor": tensor(X), "QuantizationTensors": [scale]})
    stated["output"]["DataType"] = data_type
    _, outputs, _ = conformance_client.execute(stated)
    assert outputs
    dtype = np.uint8 if data_type == "UINT4" else np.int8
    np.testing.assert_array_equal(outputs["OutputTensor"], np.array(expected, dtype), strict=True)


@pytest.mark.parametrize("missing", [{"DataType": "FLOAT32", "Sizes": [2, 3]}, None])
def test_tensors_without_data_are_judged(missing: Any, conformance_client: HttpClient) -> None:
    stated = case("JOIN", {"Axis": 2}, {"InputTensors": [tensor(X), missing]})
    status, _, body = conformance_client.execute(stated)
    assert status == 422
    assert ("Axis" if missing else "InputTensors/1") in body


def test_several_outputs(conformance_client: HttpClient) -> None:
    parts = [{"name": "OutputTensors", "DataType": "FLOAT32", "Sizes": [2, size]} for size in (1, 2)]
    stated = case("SPLIT", {"Axis": 1}, {"InputTensor": tensor(X)})
    del stated["output"]
    stated["outputs"] = [part | {"index": index, "data_b64": "not sent"} for index, part in enumerate(parts)]
    _, outputs, _ = conformance_client.execute(stated)
    assert outputs
    made = outputs["OutputTensors"]
    assert isinstance(made, list)
    for one, expected in zip(made, [X[:, :1], X[:, 1:]], strict=True):
        np.testing.assert_array_equal(one, expected, strict=True)


@pytest.mark.parametrize(
    ("attributes", "members", "field"),
    [
        ({"Alpha": 0}, {}, "Alpha"),
        ({"Alpha": math.nan}, {}, "Alpha"),
        ({"Alpha": -math.inf}, {}, "Alpha"),
        ({}, {"feature_level": "2_1"}, "Type"),
        ({}, {"tensors": {}}, "InputTensor"),
        ({}, {"tensors": {"InputTensor": tensor(X[:, :2], Sizes=[2, 3])}}, "InputTensor"),
        ({}, {"output": {"name": "OutputTensor", "DataType": "INT8", "Sizes": [2, 3]}}, "OutputTensor/DataType"),
        ({}, {"output": {"name": "ResultTensor", "DataType": "FLOAT32", "Sizes": [2, 3]}}, "ResultTensor"),
    ],
)
def test_refusals_name_the_field(
    attributes: dict[str, Any], members: dict[str, Any], field: str, conformance_client: HttpClient
) -> None:
    stated = case("ACTIVATION_CELU", attributes, {"InputTensor": tensor(X)}) | members
    status, outputs, body = conformance_client.execute(stated)
    assert (status, outputs) == (422, None)
    assert field in body


def test_lists_what_the_service_lists(conformance_client: HttpClient) -> None:
    assert "ACTIVATION_CELU" in conformance_client.operators()


def test_axes_bring_their_count() -> None:
    assert message(case("ACTIVATION_SOFTMAX1", {"Axes": [0, 2]}, {}), {})["operator"] == {
        "Type": "ACTIVATION_SOFTMAX1",
        "Axes": [0, 2],
        "AxisCount": 2,
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3]},
    }


def test_structures_are_stated_whole() -> None:
    fused = {"Type": "ACTIVATION_ELU", "Alpha": 0.5}
    operator = message(case("ELEMENT_WISE_ADD1", {"FusedActivation": fused}, {"ATensor": tensor(X)}), {})["operator"]
    assert operator["FusedActivation"] == fused
    assert operator["ATensor"] == {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": None}


def test_outputs_by_name_and_by_index() -> None:
    stated = case("TOP_K", {"Axis": 1, "K": 1}, {})
    described = {"DataType": "UINT32", "Sizes": [2, 1]}
    stated["outputs"] = [
        {"name": "OutputIndexTensor", "data_b64": "not sent", "compare": [[0, 1], [0, 1]]} | described,
        {"name": "OutputTensors", "index": 0} | described,
        {"name": "OutputTensors", "index": 1} | described,
    ]
    operator = message(stated, {})["operator"]
    assert operator["OutputIndexTensor"] == described
    assert operator["OutputTensors"] == [described] * 2


def test_data_of_arrays_are_lists() -> None:
    stated = case(
        "JOIN", {}, {"InputTensors": [{"data_b64": "AA=="}, {"data_b64": "AQ=="}], "X": {"data_b64": "Ag=="}, "Y": {}}
    )
    assert data_of(stated, base64.b64decode) == {"InputTensors": [b"\0", b"\1"], "X": b"\2"}
