"""Inference: tensors in every form in and out, attributes, ids, versions, what is the same as in a dispatch."""

import base64
import itertools
import json
from typing import Any

import httpx
import numpy as np
import pytest

from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX, Role
from tests import messages
from tests.inference.wire import CELU, LENGTH, RELU, X, behind, body, datatype, error_of, listed, post, split
from tests.messages import Array

SLOPE = np.array([[0.5, 0.25, 1], [1, 1, 1]], np.float32)
RESULT = np.where(X >= 0, X, SLOPE * X)


def array_of(answer: dict[str, Any], data: bytes) -> Array:
    """The one output of an answer."""
    (output,) = answer["outputs"]
    dtype = np.dtype(output["datatype"].lower().replace("fp", "float"))
    if "data" in output:
        assert data == b""
        return np.array(output["data"], dtype).reshape(output["shape"])
    assert output["parameters"] == {"binary_data_size": len(data)}
    return np.frombuffer(data, dtype).reshape(output["shape"])


@pytest.mark.parametrize("wanted", ["binary_data", "binary_data_output", "numbers"])
@pytest.mark.parametrize("forms", list(itertools.product(["flat", "nested", "binary"], repeat=2)), ids="-".join)
def test_any_mixture_of_forms(client: httpx.Client, forms: tuple[str, str], wanted: str) -> None:
    tensors = {"InputTensor": X, "SlopeTensor": SLOPE}
    inputs = [
        behind(name, array) if form == "binary" else listed(name, array, form == "nested")
        for form, (name, array) in zip(forms, tensors.items(), strict=True)
    ]
    data = [array.tobytes() for form, array in zip(forms, tensors.values(), strict=True) if form == "binary"]
    document: dict[str, Any] = {"inputs": inputs}
    if wanted == "binary_data":
        document["outputs"] = [{"name": "OutputTensor", "parameters": {"binary_data": True}}]
    elif wanted == "binary_data_output":
        document["parameters"] = {"binary_data_output": True}
    answer, found = split(post(client, RELU, document, *data))
    assert (found != b"") == (wanted != "numbers")
    np.testing.assert_array_equal(array_of(answer, found), RESULT)
    assert answer["outputs"][0]["name"] == "OutputTensor"
    assert answer["model_name"] == "activation_parameterized_relu"
    assert answer["model_version"] == "1"
    assert answer["parameters"] == {"device": "numpy", "feature_level": "DML_FEATURE_LEVEL_6_4"}


def test_inputs_are_told_apart_by_name(client: httpx.Client) -> None:
    document = {"inputs": [behind("SlopeTensor", SLOPE), behind("InputTensor", X)]}
    answer, found = split(post(client, RELU, document, SLOPE.tobytes(), X.tobytes()))
    np.testing.assert_array_equal(array_of(answer, found), RESULT)


def test_what_is_said_of_one_output_goes_before_what_is_said_of_all(client: httpx.Client) -> None:
    outputs = [{"name": "OutputTensor", "parameters": {"binary_data": False}}]
    document = {"inputs": [listed("InputTensor", X)], "outputs": outputs, "parameters": {"binary_data_output": True}}
    answer, found = split(post(client, CELU, document))
    assert found == b""
    assert len(answer["outputs"][0]["data"]) == X.size


@pytest.mark.parametrize("names", [["OutputIndexTensor"], ["OutputIndexTensor", "OutputValueTensor"], []])
def test_what_is_answered_is_what_was_asked_for_in_its_order(client: httpx.Client, names: list[str]) -> None:
    asked = {"outputs": [{"name": name} for name in names], "parameters": {"Axis": 1, "K": 1}}
    answer, _ = split(post(client, "/v2/models/top_k/infer", {"inputs": [listed("InputTensor", X)], **asked}))
    told = [output["name"] for output in answer["outputs"]]
    assert told == (names or ["OutputValueTensor", "OutputIndexTensor"])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
@pytest.mark.parametrize("nested", [False, True])
def test_integers(client: httpx.Client, dtype: str, nested: bool) -> None:
    info = np.iinfo(dtype)
    x = np.array([[info.min, -3], [7, info.max]], dtype)
    slope = np.array([[1, 2], [3, 4]], dtype)
    document = {"inputs": [listed("InputTensor", x, nested), listed("SlopeTensor", slope, nested)]}
    answer, found = split(post(client, RELU, document))
    assert answer["outputs"][0]["datatype"] == datatype(x)
    np.testing.assert_array_equal(array_of(answer, found), np.where(x >= 0, x, x * slope))


def test_float16_is_binary_without_asking(client: httpx.Client) -> None:
    x = X.astype(np.float16)
    answer, found = split(post(client, CELU, {"inputs": [behind("InputTensor", x)]}, x.tobytes()))
    assert answer["outputs"][0]["datatype"] == "FP16"
    expected = messages.output_of(messages.post_msgpack(client, messages.request(messages.CELU, {"InputTensor": x})))
    np.testing.assert_array_equal(array_of(answer, found), expected)


def test_numbers_keep_their_last_bit(client: httpx.Client) -> None:
    """Both ways: every float32 goes through JSON and back unchanged."""
    generator = np.random.default_rng(6)
    x = np.abs(generator.integers(0, 1 << 32, 50_000, np.uint32).view(np.float32))
    x = x[np.isfinite(x)]
    x[:3] = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal, 0
    answer, found = split(post(client, CELU, {"inputs": [listed("InputTensor", x)]}))
    np.testing.assert_array_equal(array_of(answer, found), x)


@pytest.mark.parametrize("name", ["activation_celu", "ACTIVATION_CELU", PREFIX + "ACTIVATION_CELU"])
@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_names_and_versions(client: httpx.Client, name: str, version: str) -> None:
    document = {"model_name": name, "inputs": [listed("InputTensor", X)]}
    answer, _ = split(post(client, f"/v2/models/{name}{version}/infer", document))
    assert (answer["model_name"], answer["model_version"]) == (name, "1")


@pytest.mark.parametrize(
    "request_id", ["1", "", "a b", 'quote"', "back\\slash", "\u00e9\u4e16", "x" * 1000, "{,}", "\t"]
)
@pytest.mark.parametrize("first", [True, False])
def test_the_id_comes_back(client: httpx.Client, request_id: str, first: bool) -> None:
    document: dict[str, Any] = {"inputs": [listed("InputTensor", X)]}
    document = {"id": request_id} | document if first else document | {"id": request_id}
    for ensure_ascii in (True, False):
        content = json.dumps(document, ensure_ascii=ensure_ascii).encode()
        answer, _ = split(client.post(CELU, content=content))
        assert answer["id"] == request_id


def test_without_id_there_is_none(client: httpx.Client) -> None:
    split(post(client, CELU, {"id": "other", "inputs": [listed("InputTensor", X)]}))
    answer, _ = split(post(client, CELU, {"inputs": [listed("InputTensor", X)]}))
    assert "id" not in answer


def test_what_is_null_is_left_out(client: httpx.Client) -> None:
    """As clients have it that write all fields of their models, MLServer's types among them."""
    given = listed("InputTensor", X) | {"parameters": None}
    outputs = [{"name": "OutputTensor", "parameters": None}]
    for asked in (None, outputs):
        document = {"id": None, "parameters": None, "inputs": [given], "outputs": asked}
        answer, found = split(post(client, CELU, document))
        assert answer == split(post(client, CELU, {"inputs": [listed("InputTensor", X)]}))[0]
        assert found == b""


def test_requests_alike_but_for_their_data_are_not_mixed_up(client: httpx.Client) -> None:
    """The second of each pair differs from the first in one thing only, and is answered by what it says."""
    for alpha in (1, 2):
        for factor in (1, 3):
            for form in ("numbers", "binary"):
                x = X * factor
                inputs = [behind("InputTensor", x) if form == "binary" else listed("InputTensor", x)]
                document = {"id": f"{alpha}{factor}", "inputs": inputs, "parameters": {"Alpha": alpha}}
                answer, found = split(post(client, CELU, document, *([x.tobytes()] if form == "binary" else [])))
                expected = np.where(x > 0, x, alpha * np.expm1(np.float64(x) / alpha))
                np.testing.assert_allclose(array_of(answer, found), expected, rtol=1e-6)
                assert answer["id"] == f"{alpha}{factor}"


def test_attributes_and_structures(client: httpx.Client) -> None:
    path = "/v2/models/element_wise_constant_pow/infer"
    parameters = {"Exponent": 2, "ScaleBias.Scale": 0.5, "ScaleBias.Bias": 1}
    answer, found = split(post(client, path, {"inputs": [listed("InputTensor", X)], "parameters": parameters}))
    np.testing.assert_array_equal(array_of(answer, found), (X * 0.5 + 1) ** 2)
    whole = {"Exponent": 2, "ScaleBias": {"Scale": 0.5, "Bias": 1}}
    again, found = split(post(client, path, {"inputs": [listed("InputTensor", X)], "parameters": whole}))
    assert again == answer


def test_the_output_may_be_stated(client: httpx.Client) -> None:
    for name in ("FLOAT32", "DML_TENSOR_DATA_TYPE_FLOAT32", "FP32"):
        parameters = {"OutputTensor.DataType": name, "OutputTensor.Sizes": [2, 3]}
        answer, _ = split(post(client, CELU, {"inputs": [listed("InputTensor", X)], "parameters": parameters}))
        assert answer["outputs"][0]["datatype"] == "FP32"


def test_the_settings_of_a_dispatch(client: httpx.Client) -> None:
    parameters = {"feature_level": "3_0", "in_place": "InputTensor", "device": "numpy"}
    document = {"inputs": [behind("InputTensor", X)], "parameters": parameters}
    answer, _ = split(post(client, CELU, document, X.tobytes()))
    assert answer["parameters"]["feature_level"] == "DML_FEATURE_LEVEL_3_0"


def test_a_header_of_any_length_shifts_the_data_without_harm(client: httpx.Client) -> None:
    """Elements need not lie at a multiple of their size."""
    for padding in range(5):
        content, headers = body({"inputs": [behind("InputTensor", X)]})
        content = b" " * padding + content
        headers[LENGTH] = str(len(content))
        answer, found = split(client.post(CELU, content=content + X.tobytes(), headers=headers))
        assert array_of(answer, found)[1, 2] == 4


def test_a_header_may_say_that_all_is_json(client: httpx.Client) -> None:
    content, headers = body({"inputs": [listed("InputTensor", X)]})
    answer, _ = split(client.post(CELU, content=content, headers=headers))
    assert answer["outputs"][0]["shape"] == [2, 3]


def test_all_in_chunks(client: httpx.Client) -> None:
    content, headers = body({"inputs": [behind("InputTensor", X)]}, X.tobytes())
    answer, _ = split(client.post(CELU, content=iter([content[:9], content[9:]]), headers=headers))
    assert answer["outputs"][0]["shape"] == [2, 3]


def test_large_tensors_go_both_ways(client: httpx.Client) -> None:
    x = np.random.default_rng(7).random((3, 1 << 19), np.float32)
    for form in ("numbers", "binary"):
        inputs = [behind("InputTensor", x) if form == "binary" else listed("InputTensor", x, nested=True)]
        parameters = {"binary_data_output": form == "binary"}
        document = {"inputs": inputs, "parameters": parameters}
        answer, found = split(post(client, CELU, document, *([x.tobytes()] if form == "binary" else [])))
        np.testing.assert_array_equal(array_of(answer, found), x)


def flat(fields: dict[str, Any]) -> dict[str, Any]:
    """What there is for each tensor, by its own name."""
    return {
        name: each
        for field, value in fields.items()
        for name, each in (
            [(f"{field}[{place}]", each) for place, each in enumerate(value)]
            if isinstance(value, list)
            else [(field, value)]
        )
    }


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_a_model_that_answers_as_a_dispatch_does(client: httpx.Client, name: str) -> None:
    """Its example, put as an inference; every number is the same."""
    example = client.get(f"/v1/operators/{name}").json()["example"]
    dispatched = messages.answer_of(client.post("/v1/dispatch", json=example))
    operator = OPERATORS[name]
    stated = example["operator"]
    metadata = client.get(f"/v2/models/{name}").json()
    datatypes = {"FLOAT16": "FP16", "FLOAT32": "FP32", "FLOAT64": "FP64"}
    assert [each["name"].partition("[")[0] for each in metadata["inputs"]] == operator.tensor_names(Role.INPUT)
    tensors = flat({each: stated[each] for each in operator.tensor_names(Role.INPUT) if stated.get(each)})
    data = [base64.b64decode(each) for each in flat(example["inputs"]).values()]
    if any(
        each["DataType"] not in {*datatypes, "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"}
        for each in tensors.values()
    ):
        pytest.skip("four-bit types are not in the protocol")
    inputs = [
        {
            "name": each,
            "shape": desc["Sizes"],
            "datatype": datatypes.get(desc["DataType"], desc["DataType"]),
            "parameters": {"binary_data_size": len(content)},
        }
        for (each, desc), content in zip(tensors.items(), data, strict=True)
    ]
    attributes = {each: stated[each] for each in operator.attribute_names() if stated.get(each) is not None}
    given = flat({each: stated[each] for each in operator.tensor_names(Role.OUTPUT) if stated.get(each)})
    for output, desc in given.items():
        for member in ("DataType", "Sizes"):
            attributes[f"{output}.{member}"] = desc[member]
    parameters = attributes | {"binary_data_output": True}
    answer, found = split(post(client, f"/v2/models/{name}/infer", {"inputs": inputs, "parameters": parameters}, *data))
    made = flat(dispatched["outputs"])
    assert {each["name"]: each["shape"] for each in answer["outputs"]} == {
        each: output["Sizes"] for each, output in made.items()
    }
    assert found == b"".join(output["data"] for output in made.values())


def test_an_optional_output_is_made_where_it_is_asked_for(client: httpx.Client) -> None:
    """Its type and sizes follow from the others, those that are required included."""
    state = np.array([[[[0, 0, 7, 3, 2, 1]]]], np.uint32)
    document: dict[str, Any] = {
        "inputs": [listed("InputStateTensor", state)],
        "parameters": {
            "GeneratorType": "PHILOX_4X32_10",
            "OutputTensor.DataType": "UINT32",
            "OutputTensor.Sizes": [1, 1, 1, 5],
        },
    }
    path = "/v2/models/random_generator/infer"
    alone, _ = split(post(client, path, document))
    outputs = [{"name": "OutputTensor"}, {"name": "OutputStateTensor"}]
    both, _ = split(post(client, path, document | {"outputs": outputs}))
    assert [each["name"] for each in alone["outputs"]] == ["OutputTensor"]
    numbers, after = both["outputs"]
    assert numbers == alone["outputs"][0]
    assert (after["datatype"], after["shape"]) == ("UINT32", [1, 1, 1, 6])
    assert after["data"] != state.ravel().tolist()
    document["parameters"]["OutputStateTensor.Sizes"] = [1, 1, 1, 6]
    assert split(post(client, path, document | {"outputs": outputs}))[0] == both


@pytest.mark.parametrize("kind", ["max_pooling1", "max_pooling2"])
def test_indices_of_maxima_are_32_bits_unless_asked_otherwise(client: httpx.Client, kind: str) -> None:
    document: dict[str, Any] = {
        "inputs": [listed("InputTensor", np.array([[[[1, 5, 2, 4]]]], np.float32))],
        "parameters": {"Strides": [1, 2], "WindowSize": [1, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]},
        "outputs": [{"name": "OutputIndicesTensor"}],
    }
    if kind == "max_pooling2":
        document["parameters"]["Dilations"] = [1, 1]
    for asked, expected in (({}, "UINT32"), ({"OutputIndicesTensor.DataType": "UINT64"}, "UINT64")):
        asking = document | {"parameters": document["parameters"] | asked}
        answer, _ = split(post(client, f"/v2/models/{kind}/infer", asking))
        (found,) = answer["outputs"]
        assert (found["datatype"], found["data"]) == (expected, [1, 3])


def test_tensors_of_an_array_are_given_in_any_order(client: httpx.Client) -> None:
    tensors = [np.full((1, place % 3 + 1), place, np.float32) for place in range(12)]
    inputs = [listed(f"InputTensors[{place}]", each) for place, each in enumerate(tensors)]
    parameters = {"Axis": 1, "OutputTensor.DataType": "FP32", "OutputTensor.Sizes": [1, 24]}
    for given in (inputs, inputs[::-1]):
        answer, _ = split(post(client, "/v2/models/join/infer", {"inputs": given, "parameters": parameters}))
        np.testing.assert_array_equal(array_of(answer, b""), np.hstack(tensors))


@pytest.mark.parametrize(
    ("a", "b"),
    [([2], [1]), ([2, 3], [3]), ([2, 3], [2, 1]), ([2, 1], [1, 3]), ([1], [2, 2, 2]), ([3, 1, 2], [4, 1])],
)
@pytest.mark.parametrize("is_binary", [False, True])
def test_shapes_are_broadcast_as_numpy_does(client: httpx.Client, a: list[int], b: list[int], is_binary: bool) -> None:
    one = np.arange(np.prod(a), dtype=np.float32).reshape(a)
    other = 10 * np.arange(1, np.prod(b) + 1, dtype=np.float32).reshape(b)
    path = "/v2/models/element_wise_subtract/infer"
    if is_binary:
        inputs = [behind("ATensor", one), behind("BTensor", other)]
        answer, _ = split(post(client, path, {"inputs": inputs}, one.tobytes(), other.tobytes()))
    else:
        answer, _ = split(post(client, path, {"inputs": [listed("ATensor", one), listed("BTensor", other)]}))
    (made,) = answer["outputs"]
    assert made["shape"] == list((one - other).shape)
    assert made["data"] == (one - other).reshape(-1).tolist()


def test_only_what_must_be_of_equal_sizes_is_broadcast(client: httpx.Client) -> None:
    indices = np.array([[[[0, 2], [5, 7]]]], np.uint32)
    inputs = [listed("InputTensor", np.array([[[[3, 4]]]], np.float32)), listed("IndicesTensor", indices)]
    parameters = {"OutputTensor.DataType": "FP32", "OutputTensor.Sizes": [1, 1, 2, 4]}
    path = "/v2/models/max_unpooling/infer"
    answer, _ = split(post(client, path, {"inputs": inputs, "parameters": parameters}))
    np.testing.assert_array_equal(array_of(answer, b""), [[[[3, 0, 4, 0], [0, 3, 0, 4]]]])


def test_shapes_that_cannot_be_broadcast(client: httpx.Client) -> None:
    inputs = [listed("ATensor", np.ones(2, np.float32)), listed("BTensor", np.ones(3, np.float32))]
    error = error_of(post(client, "/v2/models/element_wise_add/infer", {"inputs": inputs}))
    assert error == "Shapes of ATensor [2] and BTensor [3] cannot be broadcast to one shape by NumPy's rules."


def test_an_output_of_other_sizes_than_what_is_broadcast_is_told_with_what_was_sent(client: httpx.Client) -> None:
    inputs = [listed("ATensor", np.ones((1, 2), np.float32)), listed("BTensor", np.ones((3, 1), np.float32))]
    path = "/v2/models/element_wise_add/infer"
    error = error_of(post(client, path, {"inputs": inputs, "parameters": {"OutputTensor.Sizes": [1, 2]}}))
    assert error == (
        "OutputTensor.Sizes is [1, 2] but ATensor [1, 2] and BTensor [3, 1] are broadcast to [3, 2]; "
        "they must be equal."
    )
    answer, _ = split(post(client, path, {"inputs": inputs, "parameters": {"OutputTensor.Sizes": [3, 2]}}))
    np.testing.assert_array_equal(array_of(answer, b""), np.full((3, 2), 2))
