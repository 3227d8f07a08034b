"""Requests that a person can type: numbers, inputs that tell what they are, and short answers."""

import copy
import json
import math
from base64 import b64encode
from typing import Any

import httpx
import numpy as np
import pytest

from tests.graphs.documents import relu
from tests.graphs.requests import biased, keep
from tests.http.refusals import error_at, refusal_of
from tests.messages import CELU, answer_of, as_json, output_of, post_msgpack, request

X = [[-4, -2, 0], [1, 2, 4]]
JSON = {"content-type": "application/json"}


def dispatch(client: httpx.Client, operator: dict[str, Any], inputs: dict[str, Any], **members: Any) -> httpx.Response:
    return client.post("/v1/dispatch", json={"operator": operator, "inputs": inputs, **members})


def output(response: httpx.Response, name: str = "OutputTensor") -> Any:
    assert response.status_code == 200, response.text
    return response.json()["outputs"][name]


def absolute(data_type: str | None = None, **members: Any) -> dict[str, Any]:
    desc = ({"DataType": data_type} if data_type else {}) | members
    return {"Type": "ELEMENT_WISE_ABS"} | ({"InputTensor": desc} if desc else {})


@pytest.mark.parametrize("values", [[-1], [1, -2], [[1, 2], [-3, 4]], [[[[-1.5]], [[2.5]]]], [[-1] * 300] * 200])
def test_numbers_tell_sizes_and_are_answered_by_numbers(client: httpx.Client, values: list[Any]) -> None:
    made = output(dispatch(client, absolute(), {"InputTensor": values}))
    assert made["DataType"] == "FLOAT32"
    assert made["Sizes"] == list(np.shape(values))
    assert made["data"] == np.abs(values).tolist()


def test_flat_numbers_are_of_the_sizes_that_the_descriptor_says(client: httpx.Client) -> None:
    made = output(dispatch(client, absolute("INT8", Sizes=[2, 3]), {"InputTensor": [1, 2, 3, -4, 5, -128]}))
    assert (made["DataType"], made["data"]) == ("INT8", [[1, 2, 3], [4, 5, -128]])


def test_numbers_in_a_buffer_with_strides_are_flat(client: httpx.Client) -> None:
    x = {"Sizes": [2, 3], "Strides": [0, 1], "DataType": "FLOAT32"}
    y = x | {"Strides": [4, 1]}
    made = output(dispatch(client, absolute() | {"InputTensor": x, "OutputTensor": y}, {"InputTensor": [-1, 2, -3]}))
    assert made["data"] == [1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("least", [-(2**63), -(2**53) - 1])
def test_integers_of_64_bits_are_exact(client: httpx.Client, least: int) -> None:
    values = [least, 2**63 - 1, 2**53 + 1]
    text = json.dumps({"operator": {"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": {"DataType": "INT64"}}})
    body = f'{text[:-1]}, "inputs": {{"InputTensor": {json.dumps(values)}}}}}'
    assert output(client.post("/v1/dispatch", content=body, headers=JSON))["data"] == values


def test_what_is_no_number_is_a_string_both_ways(client: httpx.Client) -> None:
    values = [["NaN", "Infinity"], ["-Infinity", 1.5]]
    made = output(dispatch(client, {"Type": "ELEMENT_WISE_IDENTITY"}, {"InputTensor": values}))
    assert made["data"] == values
    refused: list[Any] = [
        ["nan"],
        ["NaN", "1"],
        [1, None],
        [True],
        [{}],
        [1, "N" * 1000],
        [[1, "NaN"], "NaN"],
        ["-NaN"],
        ["+Infinity"],
    ]
    for wrong in refused:
        refusal_of(dispatch(client, {"Type": "ELEMENT_WISE_IDENTITY"}, {"InputTensor": wrong}), 422)
    whole = dispatch(client, absolute("INT32"), {"InputTensor": [1, "NaN"]})
    assert "takes whole numbers" in error_at("/inputs/InputTensor", whole)["message"]


def test_infinities_in_descriptors_are_strings_both_ways(client: httpx.Client) -> None:
    padding: dict[str, Any] = {"Type": "PADDING1", "StartPadding": [1], "EndPadding": [0], "PaddingMode": "CONSTANT"}
    padding |= {"InputTensor": {"Sizes": [1]}, "PaddingValueDataType": "FLOAT32", "PaddingValue": "-Infinity"}
    for value in ("-Infinity", {"Float32": "-Infinity"}):
        answer = dispatch(client, padding | {"PaddingValue": value}, {"InputTensor": [1]})
        assert output(answer)["data"] == ["-Infinity", 1]
    padding["InputTensor"]["DataType"] = "FLOAT32"
    graph = {
        "Nodes": [{"Type": "OPERATOR", "Desc": padding}],
        "InputEdges": [{"GraphInputIndex": 0, "ToNodeIndex": 0, "ToNodeInputIndex": 0}],
        "OutputEdges": [{"FromNodeIndex": 0, "FromNodeOutputIndex": 0, "GraphOutputIndex": 0}],
    }
    kept = client.post("/v1/graphs", json={"graph": graph}).json()["id"]
    assert client.get(f"/v1/graphs/{kept}").json()["graph"]["Nodes"][0]["Desc"] == padding
    query = (
        "StartPadding=1&EndPadding=0&PaddingMode=CONSTANT&PaddingValueDataType=FLOAT32&PaddingValue=-Infinity&Sizes=1"
    )
    answer = client.post(
        f"/v1/operators/PADDING1/dispatch?{query}&DataType=FLOAT32",
        content=np.ones(1, np.float32).tobytes(),
        headers={"content-type": "application/octet-stream"},
    )
    np.testing.assert_array_equal(np.frombuffer(answer.content, np.float32), [-np.inf, 1])
    body = json.dumps({"operator": padding | {"PaddingValue": -math.inf}, "inputs": {"InputTensor": [1]}})
    problem = refusal_of(client.post("/v1/dispatch", content=body, headers=JSON), 400)
    assert (
        'as a string, "-Infinity", it may stand for one in tensor data, and for an attribute that may be infinite'
        in problem["detail"]
    )


@pytest.mark.parametrize(
    ("data_type", "values", "given", "message"),
    [
        ("FLOAT32", ["nan"], "nan", 'hold "nan"; they must be numbers, "NaN", "Infinity" or "-Infinity". Did you mean'),
        ("FLOAT32", [1, None], None, "hold null; they must be numbers, "),
        ("FLOAT32", [1, 1e39], 1e39, "hold 1e+39, which is no FLOAT32; that is -3.4028"),
        ("INT64", [1, 2.5], 2.5, "hold 2.5; INT64 takes whole numbers."),
        ("INT64", [0, 2**63], "an integer of 64 bits", f"hold {2**63}, which is no INT64; that is {-(2**63)} to"),
        ("INT8", [1, -129], -129, "hold -129, which is no INT8; that is -128 to 127."),
        ("FLOAT32", 5, 5, "are 5; give base64 or numbers in lists."),
    ],
)
def test_the_wrong_element_is_told(
    client: httpx.Client, data_type: str, values: object, given: object, message: str
) -> None:
    operator: Any = {"Type": "ELEMENT_WISE_IDENTITY"}
    if data_type != "FLOAT32":
        operator["InputTensor"] = {"DataType": data_type}
    error = error_at("/inputs/InputTensor", dispatch(client, operator, {"InputTensor": values}))
    assert error["message"].startswith(f"Data of InputTensor {message}")
    assert error["given"] == given
    assert error["allowed"]


def test_a_number_by_itself_is_told_to_be_in_a_list(client: httpx.Client) -> None:
    operator = {"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": {"DataType": "FLOAT32", "Sizes": [1]}}
    error = error_at("/inputs/InputTensor", dispatch(client, operator, {"InputTensor": 5}))
    assert error["message"] == "Data of InputTensor must be a string of base64, or numbers in lists."
    assert error["allowed"] == ["base64 text", "numbers in lists"]


def test_messagepack_takes_no_numbers(client: httpx.Client) -> None:
    refused = post_msgpack(client, {"operator": {"Type": "ELEMENT_WISE_IDENTITY"}, "inputs": {"InputTensor": [1, 2]}})
    error = refusal_of(refused, 422)
    assert error["detail"] == "Data of InputTensor are [1, 2]; give binary."
    assert error["errors"][0]["allowed"] == ["binary"]


def test_nested_numbers_of_a_tensor_with_strides(client: httpx.Client) -> None:
    operator = {
        "Type": "ELEMENT_WISE_IDENTITY",
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [2, 2], "Strides": [1, 2]},
    }
    error = error_at("/inputs/InputTensor", dispatch(client, operator, {"InputTensor": [[1, 2], [3, 4]]}))
    assert "of a tensor with strides its buffer's 4 are given, in one list" in error["message"]


def test_what_is_wrong_with_a_graph_is_told_before_its_numbers(client: httpx.Client) -> None:
    """Numbers are read as their reader's descriptor says, of which there is none where names do not fit."""
    node = {
        "Type": "OPERATOR",
        "Name": "relu",
        "Desc": {"Type": "ACTIVATION_RELU", "InputTensor": {"DataType": "FLOAT32", "Sizes": [1]}},
    }
    edge = {"GraphInput": "x", "ToNode": "relu", "ToNodeInput": "InputTensor"}
    out = {"FromNode": "relu", "FromNodeOutput": "OutputTensor", "GraphOutput": "y"}

    def told(edge: dict[str, str], name: str) -> dict[str, Any]:
        graph = {"Nodes": [node], "InputEdges": [edge], "OutputEdges": [out]}
        problem: dict[str, Any] = refusal_of(
            client.post("/v1/dispatch", json={"graph": graph, "inputs": {name: [1]}}), 422
        )
        return problem

    assert "rellu" in told(edge | {"ToNode": "rellu"}, "x")["detail"]
    assert "InputTensr" in told(edge | {"ToNodeInput": "InputTensr"}, "x")["detail"]
    assert told(edge, "xx")["errors"][0]["pointer"] == "/inputs/xx"


def test_4_bits(client: httpx.Client) -> None:
    operator = {
        "Type": "DEQUANTIZE",
        "InputTensor": {"DataType": "INT4", "Sizes": [3]},
        "QuantizationType": "SCALE",
        "QuantizationTensors": [{"DataType": "FLOAT32", "Sizes": [1]}],
    }
    inputs = {"InputTensor": [-8, 7, 1], "QuantizationTensors": [[0.5]]}
    assert output(dispatch(client, operator, inputs))["data"] == [-4, 3.5, 0.5]
    error_at("/inputs/InputTensor", dispatch(client, operator, inputs | {"InputTensor": [8, 0, 0]}))
    strided = operator | {"InputTensor": {"DataType": "INT4", "Sizes": [3], "Strides": [2]}}
    inputs["InputTensor"] = [-8, 0, 7, 0, 1]  # five, the last of which has half a byte to itself
    assert output(dispatch(client, strided, inputs))["data"] == [-4, 3.5, 0.5]
    quantize = {"Type": "QUANTIZE", "OutputTensor": strided["InputTensor"], "InputTensor": {"Sizes": [3]}}
    inputs["InputTensor"] = [-4, 3.5, 0.5]
    assert output(dispatch(client, operator | quantize, inputs))["data"] == [-8, 0, 7, 0, 1]


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([[1, 2], [3]], "InputTensor[1]"),
        ([[1, 2], [3, 4, 5]], "InputTensor[1]"),
        ([[1], [2], [3, 4]], "InputTensor[2]"),
        ([1, [2]], "InputTensor[1]"),
        ([[1, 2], 3], "InputTensor[1]"),
        ([[[1], [2]], [[3], [4, 5]]], "InputTensor[1][1]"),
        ([[1] * 100] * 900 + [[1] * 99] + [[1] * 100] * 9, "InputTensor[900]"),
    ],
)
def test_ragged_lists_are_refused_with_their_place(client: httpx.Client, values: list[Any], place: str) -> None:
    error = error_at("/inputs/InputTensor", dispatch(client, absolute(), {"InputTensor": values}))
    assert error["given"] == place
    assert f"ragged: {place} is" in error["message"]


@pytest.mark.parametrize("values", [[], [[]], [[], []], [[[]]]])
def test_lists_that_hold_nothing(client: httpx.Client, values: list[Any]) -> None:
    error = error_at("/inputs/InputTensor", dispatch(client, absolute(), {"InputTensor": values}))
    assert error["message"] == "Data of InputTensor are an empty list; a tensor has at least one element."
    assert (error["given"], error["allowed"]) == (0, [">= 1"])


def test_lists_that_nest_too_deep(client: httpx.Client) -> None:
    error_at("/inputs/InputTensor", dispatch(client, absolute(), {"InputTensor": [[[[[[[[[1]]]]]]]]]}))


def test_numbers_are_limited_in_number(client: httpx.Client) -> None:
    most = client.get("/v1/capabilities").json()["limits"]["max_numbers"]
    less, more = (
        b'{"operator": {"Type": "ELEMENT_WISE_ABS"}, "inputs": {"InputTensor": [%b1]}}' % (b"1," * before)
        for before in (most - 1, most)
    )
    assert client.post("/v1/dispatch", content=less, headers=JSON).status_code == 200
    refused = refusal_of(client.post("/v1/dispatch", content=more, headers=JSON), 413)
    assert "max_numbers" in refused["detail"]


@pytest.mark.parametrize("space", ["", " " * 100])
@pytest.mark.parametrize("first", ["operator", "inputs"])
def test_arrays_of_tensors(client: httpx.Client, first: str, space: str) -> None:
    parts = {
        "operator": '"operator": {"Type": "JOIN", "Axis": 1}',
        "inputs": f'"inputs": {{"InputTensors":{space}[[[1], [2]],{space}[[3, 4], [5, 6]]]}}',
    }
    body = f"{{{parts.pop(first)}, {parts.popitem()[1]}}}"
    made = output(client.post("/v1/dispatch", content=body, headers=JSON))
    assert made["data"] == [[1, 3, 4], [2, 5, 6]]


@pytest.mark.parametrize("values", [[[1], 2, [3]], [1, [2]], [[1], [2], 3], [1, 2]])
def test_an_array_of_tensors_holds_nothing_else(client: httpx.Client, values: list[Any]) -> None:
    error_at("/inputs/InputTensors", dispatch(client, {"Type": "JOIN", "Axis": 0}, {"InputTensors": values}))


def test_an_array_of_tensors_holds_no_null(client: httpx.Client) -> None:
    error = error_at(
        "/inputs/InputTensors/1", dispatch(client, {"Type": "JOIN", "Axis": 0}, {"InputTensors": ["AACAPw==", None]})
    )
    assert error["message"].startswith("Data of InputTensors[1] are null; give")


def test_what_is_null_in_a_descriptor_is_told_by_numbers(client: httpx.Client) -> None:
    operator = {"Type": "ELEMENT_WISE_ABS", "InputTensor": {"DataType": None, "Sizes": None}}
    assert output(dispatch(client, operator, {"InputTensor": [[-1, 2]]}))["data"] == [[1, 2]]


def test_an_input_that_is_not_known_is_told_with_the_rest(client: httpx.Client) -> None:
    """But for tensors that are missing, which it may be."""
    given = {"Input": [1]}
    alone = refusal_of(dispatch(client, {"Type": "ELEMENT_WISE_ABS"}, given), 422)
    assert [each["pointer"] for each in alone["errors"]] == ["/inputs/Input"]
    assert alone["hresult"] == "0x887A0005"
    both = refusal_of(dispatch(client, {"Type": "ELEMENT_WISE_ABS", "InputTensor": 5}, given), 422)
    assert [each["pointer"] for each in both["errors"]] == ["/inputs/Input", "/operator/InputTensor"]
    missing = refusal_of(dispatch(client, {"Type": "JOIN"}, given), 422)  # an attribute is no tensor
    assert [each["pointer"] for each in missing["errors"]] == ["/inputs/Input", "/operator/Axis"]
    none = error_at("/inputs/Input", dispatch(client, {"Type": "FILL_VALUE_SEQUENCE"}, given))
    assert none["message"].startswith("DML_OPERATOR_FILL_VALUE_SEQUENCE has no input Input; inputs are none.")


def test_numbers_beside_base64(client: httpx.Client) -> None:
    both = {"ATensor": [1], "BTensor": "AACAPw=="}
    missing = error_at("/operator/BTensor", dispatch(client, {"Type": "ELEMENT_WISE_ADD"}, both))
    assert missing["message"].startswith("BTensor is missing in the operator;")
    error_at("/operator/BTensor/DataType", dispatch(client, {"Type": "ELEMENT_WISE_ADD", "BTensor": {}}, both))
    descs = [{"DataType": "FLOAT32", "Sizes": [1]}, {"DataType": "FLOAT32", "Sizes": [2]}]
    operator = {"Type": "JOIN", "Axis": 0, "InputTensors": descs}
    for tensors in (["AACAPw==", [2, 3]], [[1], b64encode(np.array([2, 3], np.float32).tobytes()).decode()]):
        assert output(dispatch(client, operator, {"InputTensors": tensors}))["data"] == [1, 2, 3]


def test_numbers_tell_sizes_where_descriptors_of_an_array_do_not(client: httpx.Client) -> None:
    operator = {"Type": "JOIN", "Axis": 0, "InputTensors": [{"DataType": "INT16"}] * 2}
    made = output(dispatch(client, operator, {"InputTensors": [[1], [2, 3]]}))
    assert (made["DataType"], made["data"]) == ("INT16", [1, 2, 3])


def test_as_many_descriptors_as_there_are_tensors(client: httpx.Client) -> None:
    operator = {"Type": "JOIN", "Axis": 0, "InputTensors": [{"DataType": "FLOAT32", "Sizes": [1]}] * 2}
    error_at("/inputs/InputTensors/1", dispatch(client, operator, {"InputTensors": [[1]]}))
    error_at("/inputs/InputTensors/2", dispatch(client, operator, {"InputTensors": [[1], [2], [3]]}))


def test_types_agree_by_either_name(client: httpx.Client) -> None:
    given = {"DataType": "FLOAT32", "Sizes": [2], "data": [1, -2]}
    for name in ("FLOAT32", "DML_TENSOR_DATA_TYPE_FLOAT32"):
        for one, other in ((given, name), (given | {"DataType": name}, "FLOAT32")):
            assert output(dispatch(client, absolute(other), {"InputTensor": one}))["data"] == [1, 2]
    error_at("/inputs/InputTensor/DataType", dispatch(client, absolute("FLOAT16"), {"InputTensor": given}))


@pytest.mark.parametrize("text", ["5", "null", "true", "[]", '"graph operator"', '["graph", "operator"]'])
def test_what_is_no_object_is_no_dispatch(client: httpx.Client, text: str) -> None:
    for path in ("/v1/dispatch", f"/v1/graphs/{keep(client, biased())['id']}/dispatch"):
        refusal_of(client.post(path, content=text, headers=JSON), 422)


def test_an_operator_that_there_is_not_is_told_whatever_its_inputs_tell(client: httpx.Client) -> None:
    for told in ([1], {"Sizes": [1], "data": [1]}):
        assert "NO_SUCH" in error_at("/operator/Type", dispatch(client, {"Type": "NO_SUCH"}, {"x": told}))["message"]


@pytest.mark.parametrize("data", ["AAAAAA==", [1], {"Sizes": [1], "data": [1]}])
def test_what_is_no_descriptor_is_told_as_such_whatever_its_input_tells(client: httpx.Client, data: object) -> None:
    error = error_at("/operator/InputTensor", dispatch(client, absolute() | {"InputTensor": 5}, {"InputTensor": data}))
    assert (error["given"], "missing" in error["message"]) == (5, False)


class TestForm:
    def test_is_as_asked_for(self, client: httpx.Client) -> None:
        numbers = {"InputTensor": [1.0, -2.0]}
        text = output(dispatch(client, absolute(), numbers, data="base64"))["data"]
        assert text == "AACAPwAAAEA="
        desc = absolute("FLOAT32", Sizes=[2])
        assert output(dispatch(client, desc, {"InputTensor": text}))["data"] == text
        for _ in range(3):  # it is remembered
            assert output(dispatch(client, desc, {"InputTensor": text}, data="numbers"))["data"] == [1, 2]
        wrong = error_at("/data", dispatch(client, desc, {"InputTensor": text}, data="number"))
        assert wrong["message"].endswith("Did you mean numbers?")

    def test_an_output_is_an_input(self, client: httpx.Client) -> None:
        for data in ("numbers", "base64"):
            made = output(dispatch(client, absolute(), {"InputTensor": X}, data=data))
            again = output(dispatch(client, absolute(), {"InputTensor": made}))
            assert again == made
            joined = dispatch(client, {"Type": "JOIN", "Axis": 0}, {"InputTensors": [made, again]})
            assert output(joined)["Sizes"] == [4, 3]
        other = dispatch(client, absolute("FLOAT16"), {"InputTensor": made})
        assert error_at("/inputs/InputTensor/DataType", other)["allowed"] == ["FLOAT16"]
        error_at("/inputs/InputTensor/data", dispatch(client, absolute(), {"InputTensor": {"Sizes": [2]}}))

    def test_in_msgpack_too(self, client: httpx.Client) -> None:
        message = request(CELU, {"InputTensor": np.array(X, np.float32)})
        made = answer_of(post_msgpack(client, message))["outputs"]["OutputTensor"]
        again = {"operator": {"Type": CELU}, "inputs": {"InputTensor": made}}
        assert output_of(post_msgpack(client, again)).shape == (2, 3)
        numbers = {"operator": {"Type": CELU}, "inputs": {"InputTensor": X}}
        refusal_of(post_msgpack(client, numbers), 422)


RELU: dict[str, Any] = {
    "Nodes": [relu("relu")],
    "InputEdges": [{"GraphInput": "x", "ToNode": "relu", "ToNodeInput": "InputTensor"}],
    "OutputEdges": [{"FromNode": "relu", "FromNodeOutput": "OutputTensor", "GraphOutput": "y"}],
}


class TestGraph:
    def test_numbers_and_outputs(self, client: httpx.Client) -> None:
        graph = RELU
        once = client.post("/v1/dispatch", json={"graph": graph, "inputs": {"x": X}})
        made = output(once, "y")
        assert made["data"] == [[0, 0, 0], [1, 2, 4]]
        kept = client.post("/v1/graphs", json={"graph": graph}).json()["id"]
        path = f"/v1/graphs/{kept}/dispatch"
        for given in (X, [*X[0], *X[1]], made):
            answer = client.post(path, json={"inputs": {"x": given}})
            assert output(answer, "y")["data"] == made["data"]
        assert isinstance(output(client.post(path, json={"inputs": {"x": X}, "data": "base64"}), "y")["data"], str)
        for url, rest in ((path, {}), ("/v1/dispatch", {"graph": graph})):
            wrong = client.post(url, json={"inputs": {"x": made | {"Sizes": [3, 2]}}, **rest})
            assert error_at("/inputs/x", wrong)["allowed"] == ["FLOAT32 [2, 3]"]
            error_at("/inputs/x", client.post(url, json={"inputs": {"x": [1, 2]}, **rest}))

    @pytest.mark.parametrize(
        ("stated", "pointer"),
        [
            ({}, None),
            ({"Sizes": [2, 3]}, None),
            ({"Strides": None}, None),
            ({"Strides": [3, 1], "DataType": "DML_TENSOR_DATA_TYPE_FLOAT32"}, None),
            ({"TotalTensorSizeInBytes": 24}, None),
            ({"DataType": "INT32"}, ""),
            ({"Sizes": [3, 2]}, ""),
            ({"Strides": [1, 2]}, ""),
            ({"TotalTensorSizeInBytes": 28}, ""),
            ({"Strides": [1]}, "/Strides"),
            ({"Sizes": [0, 3]}, "/Sizes/0"),
            ({"DataType": "FLOAT"}, "/DataType"),
            ({"Size": [2, 3]}, "/Size"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("form", ["numbers", "base64"])
    def test_what_an_input_says_of_itself_is_what_its_reader_says(
        self, client: httpx.Client, stated: dict[str, Any], pointer: str | None, form: str
    ) -> None:
        """It may leave out what it likes, as beside an operator."""
        data = X if form == "numbers" else b64encode(np.array(X, np.float32).tobytes()).decode()
        kept = client.post("/v1/graphs", json={"graph": RELU}).json()["id"]
        for path, rest in ((f"/v1/graphs/{kept}/dispatch", {}), ("/v1/dispatch", {"graph": RELU})):
            answer = client.post(path, json={"inputs": {"x": stated | {"data": data}}, "data": "numbers", **rest})
            if pointer is None:
                assert output(answer, "y")["data"] == [[0, 0, 0], [1, 2, 4]]
            else:
                error_at(f"/inputs/x{pointer}", answer)

    @pytest.mark.parametrize("members", [{"Strides": [1]}, {"Strides": []}, {"TotalTensorSizeInBytes": 4}], ids=str)
    @pytest.mark.parametrize(
        "data", [X, {"data": X}, {"data": "AAAA", "DataType": "FLOAT32", "Sizes": [2, 3]}], ids=str
    )
    def test_a_reader_that_is_no_tensor_is_told(self, client: httpx.Client, members: Any, data: Any) -> None:
        graph = copy.deepcopy(RELU)
        graph["Nodes"][0]["Desc"]["InputTensor"] |= members
        refused = client.post("/v1/dispatch", json={"graph": graph, "inputs": {"x": data}})
        error_at(f"/graph/Nodes/0/Desc/InputTensor/{next(iter(members))}", refused)


class TestMinimal:
    @pytest.mark.parametrize(
        "prefer", ["return=minimal", 'wait=10, Return = "minimal"; x=1', "return=minimal, return=representation"]
    )
    def test_leaves_out_what_is_known(self, client: httpx.Client, prefer: str) -> None:
        message = as_json(request(CELU, {"InputTensor": np.arange(6, dtype=np.float32)}))
        for _ in range(3):  # one like the last two is known
            short = client.post("/v1/dispatch", json=message, headers={"prefer": prefer})
            assert short.headers["preference-applied"] == "return=minimal"
            assert short.json().keys() == {"outputs", "execution"}
            whole = client.post("/v1/dispatch", json=message)
            assert "preference-applied" not in whole.headers
            assert whole.json().keys() == {"outputs", "execution", "capability"}

    @pytest.mark.parametrize(
        "prefer", ["return=representation", "return=representation, return=minimal", "minimal", ""]
    )
    def test_only_where_asked_for(self, client: httpx.Client, prefer: str) -> None:
        message = {"operator": absolute(), "inputs": {"InputTensor": X}}
        answer = client.post("/v1/dispatch", json=message, headers={"prefer": prefer})
        assert "capability" in answer.json()
        assert "preference-applied" not in answer.headers


def test_numbers_elsewhere_are_what_they_were(client: httpx.Client) -> None:
    """What looks like data is cut out of the body, and put back where it is none."""
    x = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [3, 1]}
    body = {"inputs": {"InputTensor": x | {"data": X}}, "operator": {"Type": "ELEMENT_WISE_ABS"}}
    made = output(client.post("/v1/dispatch", json=body))
    assert made["data"] == np.abs(X).tolist()
    nowhere = {"operator": {"Type": "ELEMENT_WISE_ABS", "inputs": {"data": [1, 2]}}, "inputs": {"InputTensor": [1]}}
    error_at("/operator/inputs", client.post("/v1/dispatch", json=nowhere))
    assert math.isclose(output(dispatch(client, absolute(), {"InputTensor": [1e-45]}))["data"][0], 1e-45, rel_tol=0.5)


@pytest.mark.parametrize(
    ("operator", "x"),
    [
        ({"Type": "ELEMENT_WISE_IDENTITY", "ScaleBias": {"Scale": 1, "Bias": "-0"}}, "[-0]"),
        ({"Type": "ELEMENT_WISE_CLIP", "Min": "-0", "Max": "-0"}, "[1]"),
        ({"Type": "ELEMENT_WISE_CLIP1", "MinMaxDataType": "FLOAT32", "Min": "-0", "Max": {"Float32": "-0"}}, "[1]"),
        (
            {
                "Type": "PADDING",
                "PaddingMode": "CONSTANT",
                "PaddingValue": "-0",
                "StartPadding": [1],
                "EndPadding": ["-0"],
            },
            "[1]",
        ),
        (
            {
                "Type": "ACTIVATION_LINEAR",
                "Alpha": 1,
                "Beta": "-0",
                "InputTensor": {"DataType": "FLOAT32", "Sizes": [1]},
            },
            "[-0]",
        ),
    ],
)
def test_an_attribute_of_minus_0_has_its_sign_as_an_integer_too(
    client: httpx.Client, operator: dict[str, Any], x: str
) -> None:
    text = json.dumps({"operator": operator}).replace('"-0"', "-0")
    body = f'{text[:-1]}, "inputs": {{"InputTensor": {x}}}}}'
    made = output(client.post("/v1/dispatch", content=body, headers=JSON))["data"][0]
    assert (made, math.copysign(1, made)) == (0, -1)


def test_a_minus_0_is_0_for_integers(client: httpx.Client) -> None:
    body = """{"operator": {"Type": "CUMULATIVE_SUMMATION", "Axis": -0, "AxisDirection": "INCREASING",
                            "HasExclusiveSum": -0}, "inputs": {"InputTensor": [1, 2]}}"""
    assert output(client.post("/v1/dispatch", content=body, headers=JSON))["data"] == [1, 3]
    refused = client.post("/v1/dispatch", content=body.replace('Axis": -0', 'Axis": 0, "Axes": -0'), headers=JSON)
    assert error_at("/operator/Axes", refused)["given"] == 0


@pytest.mark.parametrize("name", ["", " ", "InputTensor "])
def test_a_name_that_one_would_not_see_is_quoted(client: httpx.Client, name: str) -> None:
    message = error_at(f"/inputs/{name}", dispatch(client, absolute(), {name: [1]}))["message"]
    assert f" has no input '{name}'; inputs are InputTensor." in message
    message = error_at(f"/operator/{name}", dispatch(client, absolute() | {name: 1}, {"InputTensor": [1]}))["message"]
    assert message.startswith(f"'{name}' is not a field here;")
