"""What an inference refuses: the field, what was given, what is allowed; the protocol's form, the native words."""

import json
from typing import Any

import httpx
import numpy as np
import pytest

from app.contract.constants import DataType
from tests.conftest import ServerFactory
from tests.http.load import wait_for
from tests.inference.wire import CELU, LENGTH, RELU, X, behind, body, error_of, listed, post, tensor
from tests.messages import problem_of

INPUT = listed("InputTensor", X)


def with_input(**members: Any) -> dict[str, Any]:
    """A request whose one input has other members; None leaves one out."""
    changed = {name: value for name, value in (INPUT | members).items() if value is not None}
    return {"inputs": [changed]}


def test_a_misspelt_model(client: httpx.Client) -> None:
    for name in ("activation_celuu", "DML_OPERATOR_ACTIVATION_CELUU"):
        refused = post(client, f"/v2/models/{name}/infer", {"inputs": [INPUT]})
        assert error_of(refused, 404).endswith("Did you mean activation_celu?")
    for given in ("FLOAT32", "fp32", "FP31", "float"):
        assert error_of(post(client, CELU, with_input(datatype=given))).endswith("INT64. Did you mean FP32?")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "The document is []; it must be an object."),
        ({}, "inputs is missing; it is required here."),
        ({"inputs": {}}, "inputs is an empty object; it must be an array."),
        ({"inputs": [INPUT], "input": 1}, "input is not a field here; known are id, inputs, model_name,"),
        ({"inputs": [INPUT], "id": 7}, "id is 7; it must be a string."),
        ({"inputs": [INPUT], "id": "x" * 1025}, "id has 1025 characters; allowed are <= 1024."),
        ({"inputs": [INPUT], "model_name": "other"}, "model_name is other but the path says activation_celu."),
        ({"inputs": [INPUT], "model_version": "2"}, "model_version is 2 but the path says 1."),
        ({"inputs": []}, "InputTensor is missing; it is required here."),
        ({"inputs": [INPUT, INPUT]}, "InputTensor stands twice among the inputs; give each tensor once."),
        (with_input(name="X"), "DML_OPERATOR_ACTIVATION_CELU has no input X; inputs are InputTensor."),
        (
            with_input(name="InputTensr"),
            "DML_OPERATOR_ACTIVATION_CELU has no input InputTensr; inputs are InputTensor. Did you mean InputTensor?",
        ),
        (with_input(name=None), "inputs[0]: name is missing; it is required here."),
        (with_input(datatype="BYTES"), "datatype of InputTensor is BYTES; it must be one of BOOL, FP32, FP16, UINT32,"),
        (with_input(datatype="BF16"), "datatype of InputTensor is BF16; it must be one of"),
        (with_input(datatype=1), "inputs[0]: datatype is 1; it must be a string."),
        (
            with_input(datatype="INT32"),
            "InputTensor of DML_OPERATOR_ACTIVATION_CELU is INT32; at feature level 6_4 its",
        ),
        (with_input(shape=[3, 3]), "Data of InputTensor are 6 values; shape [3, 3] takes 9, in one list or in lists"),
        (with_input(shape=[2, 0]), "InputTensor: Sizes[1] is 0; it must be >= 1."),
        (with_input(shape=[2, -3]), "inputs[0]: shape[1] is -3; it must be >= 0."),
        (with_input(shape=[2, 1.5]), "inputs[0]: shape[1] is 1.5; it must be an integer."),
        (with_input(shape=[]), "InputTensor: Sizes has 0 entries; allowed are >= 1."),
        (with_input(shape=[1] * 9), "InputTensor: Sizes has 9 entries; allowed are <= 8."),
        (with_input(data=None), "InputTensor has no data; give one of data, binary_data_size, shared_memory_region."),
        (with_input(parameters={"binary_data_size": 24}), "InputTensor has data and binary_data_size; give one of"),
        (
            with_input(parameters={"binary": 24}),
            "inputs[0].parameters: binary is not a field here; known are binary_data_size, shared_",
        ),
        (with_input(data="AAAA"), "Data of InputTensor must be an array of numbers."),
        (with_input(data=[1, 2, 3, 4, 5, "6"]), "Data of InputTensor must be an array of numbers."),
        (with_input(data=[1, 2, 3, 4, 5, None]), "Data of InputTensor hold null; they must be numbers."),
        (with_input(data=[1, 2, 3, 4, 5, True]), "Data of InputTensor hold true; they must be numbers."),
        (with_input(data=[1, 2, 3, 4, 5]), "Data of InputTensor are 5 values; shape [2, 3] takes 6, in one list"),
        (with_input(data=[]), "Data of InputTensor are 0 values; shape [2, 3] takes 6"),
        (with_input(data=[[1, 2], [3, 4], [5, 6]]), "Data of InputTensor are 6 values in other lists; shape [2, 3]"),
        (with_input(data=[[1, 2, 3, 4, 5, 6]]), "Data of InputTensor are 6 values in other lists; shape [2, 3]"),
        (with_input(data=[[1, 2, 3], [4, 5]]), "Data of InputTensor are 5 values; shape [2, 3] takes 6"),
        (with_input(data=[1, 2, 3, 4, 5, 1e39]), "Data of InputTensor hold 1e+39, which is no FP32; that is -3.4028"),
        (with_input(datatype="FP16"), "Data of InputTensor are numbers, but FP16 is taken as binary only"),
    ],
)
def test_what_is_wrong_is_said(client: httpx.Client, document: Any, said: str) -> None:
    assert error_of(client.post(CELU, json=document)).startswith(said)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"Gamma": 1},
            "Gamma is no parameter of DML_OPERATOR_ACTIVATION_CELU; known are Alpha, OutputTensor.DataType, ",
        ),
        ({"sequence_id": 1}, "sequence_id is no parameter of DML_OPERATOR_ACTIVATION_CELU; known are"),
        ({"priority": 1}, "priority is no parameter of"),
        ({"InputTensor": {}}, "InputTensor is no parameter of"),
        ({"InputTensor.Strides": [1]}, "InputTensor.Strides is no parameter of"),
        ({"OutputTensor": {}}, "OutputTensor is no parameter of"),
        ({"OutputTensor.Strides": [1]}, "OutputTensor.Strides is no parameter of"),
        ({"Type": "x"}, "Type is no parameter of"),
        ({"Alpha": "1"}, 'Alpha is "1"; it must be a number.'),
        ({"Alpha": 0}, "Alpha is 0 but the formula divides by it; give any other number."),
        ({"Alpha": 1, "Alpha.Scale": 1}, "Alpha.Scale is given twice, dotted and not."),
        ({"Alpha.Scale": 1, "Alpha": 1}, "Alpha is given twice, dotted and not."),
        ({"Alpha": 1, "Alpha.Scale.x": 1}, "Alpha.Scale.x is given twice, dotted and not."),
        ({"Alpha" + ".a" * 50: 1}, "Alpha is an object with a; it must be a number."),
        ({"feature_level": "9_0"}, 'feature_level is "9_0"; it must be the name of a DML constant'),
        (
            {"feature_level": "1_0"},
            "DML_OPERATOR_ACTIVATION_CELU does not exist at feature level 1_0; it was introduced",
        ),
        ({"in_place": "SlopeTensor"}, "in_place is SlopeTensor but OutputTensor of"),
        ({"device": "gpu9"}, "There is no device gpu9; give auto or numpy."),
        ({"binary_data_output": 1}, "binary_data_output is 1; it must be true or false."),
        ({"OutputTensor.DataType": "INT8"}, "OutputTensor of DML_OPERATOR_ACTIVATION_CELU is INT8; at feature level"),
        (
            {"OutputTensor.DataType": ["FP32"]},
            'OutputTensor: DataType is ["FP32"]; it must be the name of a DML constant',
        ),
        (
            {"OutputTensor.DataType": {}},
            "OutputTensor: DataType is an empty object; it must be the name of a DML constant",
        ),
        (
            {"OutputTensor.Sizes": [3, 2]},
            "OutputTensor has Sizes [3, 2] but InputTensor has [2, 3]; they must be equal",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_parameters(client: httpx.Client, parameters: dict[str, Any], said: str) -> None:
    assert error_of(post(client, CELU, {"inputs": [INPUT], "parameters": parameters})).startswith(said)


@pytest.mark.parametrize("place", ["9" * 5000, "00", "\u0663", ""])
def test_tensors_of_an_array_have_places(client: httpx.Client, place: str) -> None:
    document = {"inputs": [INPUT], "parameters": {"Axis": 0, f"OutputTensors[{place}].Sizes": [2, 3]}}
    assert "known are OutputCount, Axis, OutputTensors[0].DataType, OutputTensors[0].Sizes, " in error_of(
        client.post("/v2/models/split/infer", json=document)
    )
    document = {"inputs": [INPUT | {"name": f"InputTensors[{place}]"}], "parameters": {"Axis": 0}}
    assert "DML_OPERATOR_JOIN has no input InputTensors[" in error_of(
        client.post("/v2/models/join/infer", json=document)
    )


def test_tensors_of_an_array_are_given_from_0_on(client: httpx.Client) -> None:
    for given, missing in (((1,), 0), ((0, 2), 1), ((2, 0), 1), ((1, 2), 0)):
        inputs = [INPUT | {"name": f"InputTensors[{place}]"} for place in given]
        answer = client.post("/v2/models/join/infer", json={"inputs": inputs, "parameters": {"Axis": 0}})
        assert f"InputTensors[{missing}] is missing; the tensors of an array are given from 0 on." in error_of(answer)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([{"name": "Y"}], "DML_OPERATOR_ACTIVATION_CELU has no output Y; outputs are OutputTensor."),
        (
            [{"name": "InputTensor"}],
            "DML_OPERATOR_ACTIVATION_CELU has no output InputTensor; outputs are OutputTensor.",
        ),
        ([{"name": "OutputTensor"}] * 2, "OutputTensor stands twice among the outputs; give each tensor once."),
        (
            [{"name": "OutputTensor", "parameters": {"classification": 3}}],
            "outputs[0].parameters: classification is not a field here; known are binary_data, shared_memory_",
        ),
        (
            [{"name": "OutputTensor", "data": [1, 2]}],
            "outputs[0]: data is not a field here; known are name, parameters.",
        ),
        (
            [{"name": "OutputTensor", "parameters": {"binary_data": 1}}],
            "outputs[0].parameters: binary_data is 1; it must be true or false.",
        ),
    ],
)
def test_outputs(client: httpx.Client, outputs: list[Any], said: str) -> None:
    assert error_of(post(client, CELU, {"inputs": [INPUT], "outputs": outputs})).startswith(said)


@pytest.mark.parametrize(
    "wanted",
    [
        {"outputs": [{"name": "OutputTensor", "parameters": {"binary_data": False}}]},
        {"parameters": {"binary_data_output": False}},
    ],
    ids=["one", "all"],
)
def test_float16_is_never_numbers(client: httpx.Client, wanted: dict[str, Any]) -> None:
    x = X.astype(np.float16)
    said = error_of(post(client, CELU, {"inputs": [behind("InputTensor", x)]} | wanted, x.tobytes()))
    assert said == "OutputTensor is FP16, which is given as binary only; ask for binary_data."


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_json_has_no_number_for_is_not_written_as_one(client: httpx.Client, number: float) -> None:
    x = np.full(40_000, 1, np.float32)
    x[-1] = number
    document = {"inputs": [behind("InputTensor", x), behind("SlopeTensor", x)]}
    said = error_of(post(client, RELU, document, x.tobytes(), x.tobytes()))
    assert said == "OutputTensor holds infinity or NaN, which JSON has no number for; ask for binary_data."


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([-129, 0], "Data of InputTensor hold -129, which is no INT8; that is -128 to 127."),
        ([0, 128], "Data of InputTensor hold 128, which is no INT8; that is -128 to 127."),
        ([0, 10**30], "Data of InputTensor hold 1e+30, which is no INT8; that is -128 to 127."),
        ([0, 1.5], "Data of InputTensor hold 1.5; INT8 takes whole numbers."),
        ([0, 1e2], "Data of InputTensor hold 100.0; INT8 takes whole numbers."),
    ],
)
def test_integers_that_are_none(client: httpx.Client, data: list[Any], said: str) -> None:
    x = np.zeros(2, np.int8)
    document = {"inputs": [tensor("InputTensor", x, data=data), listed("SlopeTensor", x)]}
    assert error_of(post(client, RELU, document)) == said


BROKEN = [
    "[1,2,3,4,5,]",
    "[,1,2,3,4,5]",
    "[1,,2,3,4,5]",
    "[1 2,3,4,5,6,7]",
    "[1,2,3,4,5,+6]",
    "[1,2,3,4,5,.5]",
    "[1,2,3,4,5,1e999]",
    "[1,2,3,4,5,0x1]",
    "[1,2,3,4,5,--1]",
    "[[1,2,3][4,5,6]]",
    "[[1,2,3],[4,5],6]",
    "[1,2,3,4,5,6]]",
    "[1,2,3,4,5,6],7",
    "[1[,2,3],[4,5,6]]",
    "[[1,2,3],[4,5,6]7]",
    "[1,2,3,4,5,01]",
    "[1,2,3,4,5,Infinity]",
    "[1,2,3,4,5,6",
]


@pytest.mark.parametrize("text", BROKEN)
def test_numbers_that_are_not_json(client: httpx.Client, text: str) -> None:
    document = json.dumps({"inputs": [tensor("InputTensor", X, data="here")]}).replace('"here"', text)
    assert error_of(client.post(CELU, content=document))


@pytest.mark.parametrize(
    ("content", "headers", "said"),
    [
        (b"", {}, "The body is empty; send a document."),
        (b"{", {}, "The body is not JSON"),
        (b"\xff", {}, "The body is not UTF-8"),
        (
            b'{"id":"a","id":"b","inputs":[{"name":"InputTensor","shape":[1],"datatype":"FP32","data":[1]}]}',
            {},
            "The name 'id' stands twice in one object",
        ),
        (b'{"inputs":[],"inputs":[]}', {}, "The name 'inputs' stands twice in one object"),
        (b"{}", {LENGTH: "3"}, "Inference-Header-Content-Length is 3 but the body has 2 bytes."),
        (b'{"inputs":[{"parameters":{"binary_data_size":4}}]}abcd', {}, f"{LENGTH} is missing; it tells how many"),
        (b"{}", {LENGTH: "-1"}, "Inference-Header-Content-Length is -1; give the bytes of the JSON."),
        (b"{}", {LENGTH: "1" * 30}, "Inference-Header-Content-Length is 1111"),
        (b" " * (1 << 20), {LENGTH: "1" * 5000}, "Inference-Header-Content-Length is 1111"),
        (b"{}", {LENGTH: "0"}, "The body is not JSON"),
        (b"[" * 5000 + b"]" * 5000, {}, "Nesting of arrays and objects in the body: more, where max_depth allows 32."),
    ],
)
def test_unreadable(client: httpx.Client, content: bytes, headers: dict[str, str], said: str) -> None:
    response = client.post(CELU, content=content, headers=headers)
    assert error_of(response, response.status_code).startswith(said)
    assert response.status_code in (400, 413)


@pytest.mark.parametrize("difference", [-4, -1, 1, 8])
def test_binary_data_that_are_too_few_or_too_many(client: httpx.Client, difference: int) -> None:
    content, headers = body({"inputs": [behind("InputTensor", X)]}, bytes(X.nbytes + difference))
    said = error_of(client.post(CELU, content=content, headers=headers))
    assert said == f"Behind the JSON are {24 + difference} bytes; binary_data_size of the inputs asks for 24."


def test_a_binary_size_that_does_not_fit_the_shape(client: httpx.Client) -> None:
    document = {"inputs": [tensor("InputTensor", X, parameters={"binary_data_size": 20})]}
    said = error_of(post(client, CELU, document, bytes(20)))
    assert said == "Data for InputTensor are 20 bytes; FLOAT32 [2, 3] is 24 bytes."


def test_the_words_are_the_native_ones(client: httpx.Client) -> None:
    desc = {"DataType": "FLOAT32", "Sizes": [2, 3]}
    dispatch = {
        "operator": {
            "Type": "ACTIVATION_PARAMETERIZED_RELU",
            "InputTensor": desc,
            "SlopeTensor": desc | {"DataType": "INT32"},
        },
        "inputs": {"InputTensor": "", "SlopeTensor": ""},
    }
    native = problem_of(client.post("/v1/dispatch", json=dispatch), 422)["detail"]
    document = {"inputs": [INPUT, tensor("SlopeTensor", X.astype(np.int32), data=[1, 2, 3, 4, 5, 6])]}
    assert error_of(post(client, RELU, document)) == native


@pytest.mark.parametrize(
    ("model", "document", "said"),
    [
        (
            "split",
            {
                "inputs": [INPUT],
                "parameters": {"Axis": 1, "OutputTensors[0].Sizes": [2, 1], "OutputTensors[1].Sizes": [2, 2]},
            },
            f"OutputTensors[0]: DataType is missing; it is required here: {DataType.names()}. "
            f"OutputTensors[1]: DataType is missing; it is required here: {DataType.names()}.",
        ),
        (
            "element_wise_identity",
            {"inputs": [INPUT], "parameters": {"ScaleBias.Scale": 2}},
            "ScaleBias: Bias is missing; it is required here.",
        ),
        ("activation_celu", {"inputs": [INPUT | {"shape": [0, 3]}]}, "InputTensor: Sizes[0] is 0; it must be >= 1."),
        ("activation_celu", {"inputs": [INPUT | {"shape": None}]}, "inputs[0]: shape is null; it must be an array."),
        (
            "activation_celu",
            {"inputs": [INPUT], "outputs": [{"name": "OutputTensor", "parameters": {"binary_data": 1}}]},
            "outputs[0].parameters: binary_data is 1; it must be true or false.",
        ),
        ("activation_celu", {"inputs": [INPUT], "parameters": {"Alpha": "x"}}, 'Alpha is "x"; it must be a number.'),
    ],
)
def test_there_are_no_pointers_so_words_say_where(
    client: httpx.Client, model: str, document: dict[str, Any], said: str
) -> None:
    assert error_of(post(client, f"/v2/models/{model}/infer", document)) == said


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/models/activation_celu/versions/2", 404),
        ("POST", "/v2/models/none/infer", 404),
        ("POST", "/v2/models/activation_celu/versions/0/infer", 404),
        ("GET", "/v2/nothing", 404),
        ("GET", CELU, 405),
        ("POST", "/v2", 405),
        ("POST", "/v2/repository/models/activation_celu/load", 404),
        ("GET", "/v2/systemsharedmemory/status", 404),
        ("GET", "/v2/cudasharedmemory/status", 404),
    ],
)
def test_paths(client: httpx.Client, method: str, path: str, status: int) -> None:
    assert error_of(client.request(method, path), status)


def test_models_cannot_be_loaded_where_there_is_no_folder_of_them(client: httpx.Client) -> None:
    told = error_of(client.post("/v2/repository/models/mine/load"), 404)
    assert told == "There is no folder of models; have the service started with --models."


def test_other_paths_keep_their_problems(client: httpx.Client) -> None:
    problem_of(client.get("/v1/nothing"), 404)
    problem_of(client.get("/v20"), 404)


def test_content_encoding(client: httpx.Client) -> None:
    response = client.post(CELU, content=b"{}", headers={"content-encoding": "br"})
    assert response.headers["accept-encoding"] == "gzip, deflate, zstd"
    assert error_of(response, 415) == "Content-Encoding is br; send gzip, deflate, zstd or the body as it is."


def test_limits_and_keys_are_those_of_the_native_api(start_server: ServerFactory) -> None:
    server = start_server(
        "--max-tensor-bytes",
        "1024",
        "--max-body-bytes",
        "8192",
        "--max-structure-bytes",
        "2048",
        "--max-memory-bytes",
        "1048576",
        DMLSERVE_API_KEYS="secret",
    )
    with httpx.Client(base_url=server.url) as client:
        assert error_of(client.post(CELU, json={}), 401).startswith("An API key is required")
        assert client.post(CELU, json={}).headers["www-authenticate"]
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/health/ready").json() == {"ready": True}
        client.headers["authorization"] = "Bearer secret"
        x = np.zeros(257, np.float32)
        said = error_of(post(client, CELU, {"inputs": [behind("InputTensor", x)]}, x.tobytes()), 413)
        assert said == "Buffer of InputTensor in bytes: 1028, where max_tensor_bytes allows 1024."
        huge = {"inputs": [tensor("InputTensor", x, data=[0]) | {"shape": [1 << 20, 1 << 10]}]}
        assert "max_tensor_bytes" in error_of(post(client, CELU, huge), 413)
        assert "max_body_bytes" in error_of(client.post(CELU, content=bytes(9000)), 413)
        long_names = {"inputs": [INPUT], "parameters": {f"n{number}": 0 for number in range(400)}}
        assert "max_structure_bytes" in error_of(post(client, CELU, long_names), 413)
        numbers = {"inputs": [tensor("InputTensor", x[:256], data=[0.0625] * 256, shape=[256])]}
        assert len(json.dumps(numbers)) > 2048
        assert post(client, CELU, numbers).status_code == 200  # they are data, not structure
        metrics = client.get("/metrics").text
        assert 'dmlserve_dispatches_total{device="numpy",operator="DML_OPERATOR_ACTIVATION_CELU"} 1.0' in metrics
        assert 'route="/v2/models/{name}/infer"' in metrics
        assert "dmlserve_memory_bytes 0.0" in metrics


def test_numbers_beyond_their_limit(start_server: ServerFactory) -> None:
    """Of all inputs together, before any is read. Behind the JSON there may be more."""
    server = start_server("--max-numbers", "1000")
    x = np.zeros(600, np.float32)
    relu = "/v2/models/activation_parameterized_relu/infer"
    given = [tensor(name, x, data=[0.5] * 600, shape=[600]) for name in ("InputTensor", "SlopeTensor")]
    with httpx.Client(base_url=server.url) as client:
        said = error_of(post(client, relu, {"inputs": given}), 413)
        assert "1200, where max_numbers allows 1000." in said
        assert "binary data" in said
        as_many = [tensor(name, x[:500], data=[0.5] * 500) for name in ("InputTensor", "SlopeTensor")]
        assert post(client, relu, {"inputs": as_many}).status_code == 200
        assert post(client, relu, {"inputs": [given[0], behind("SlopeTensor", x)]}, x.tobytes()).status_code == 200


def test_far_more_numbers_than_the_shape_takes(client: httpx.Client) -> None:
    said = error_of(
        client.post(
            CELU,
            content=b'{"inputs":[{"name":"InputTensor","datatype":"FP32","shape":[3],"data":['
            + b"1," * (1 << 20)
            + b"1]}]}",
        )
    )
    assert "more than" in said
    assert "takes 3" in said


def test_a_full_queue_and_the_deadline(start_server: ServerFactory) -> None:
    server = start_server("--deadline-seconds", "0.01", "--threads", "1")
    x = np.zeros(1 << 23, np.float32)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        response = post(client, CELU, {"inputs": [behind("InputTensor", x)]}, x.tobytes())
        assert "deadline_seconds" in error_of(response, 504)
        wait_for(client, "memory_bytes", 0)  # as soon as the worker has noticed
