"""POST /v1/operators/{Type}/dispatch: tensors as files, attributes in the query."""

import io
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from app.engine.graph_documents import EXAMPLE, EXAMPLE_DATA
from app.http.native.attributes import read_attributes
from app.operators.catalog import find_operator
from tests.codecs.test_tensor_files import npy, npz
from tests.http.refusals import error_at, refusal_of
from tests.messages import Array

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)
Y = np.array([[-1.7293295, -1.2642411, 0], [1, 2, 4]], np.float32)
NPY, NPZ, SAFETENSORS, RAW = (
    "application/x-npy",
    "application/x-npz",
    "application/x-safetensors",
    "application/octet-stream",
)


def post(client: httpx.Client, path: str, body: bytes, kind: str = NPY, **headers: str) -> httpx.Response:
    return client.post(f"/v1/operators/{path}", content=body, headers={"content-type": kind} | headers)


def loaded(response: httpx.Response) -> Any:
    """What is in a file that was answered."""
    assert response.status_code == 200, response.text
    kind = response.headers["content-type"]
    assert response.headers["content-length"] == str(len(response.content))
    if kind == SAFETENSORS:
        return safetensors.numpy.load(response.content)
    made = np.load(io.BytesIO(response.content))
    return made if kind == NPY else dict(made)


@pytest.mark.parametrize(
    "path", ["ACTIVATION_CELU/dispatch?Alpha=2", "DML_OPERATOR_ACTIVATION_CELU/dispatch?Alpha=2.0"]
)
def test_one_tensor(client: httpx.Client, path: str) -> None:
    for x in (X, np.asfortranarray(X)):
        for _ in range(3):  # it is remembered
            np.testing.assert_allclose(loaded(post(client, path, npy(x))), Y, rtol=1e-6)
    other = loaded(post(client, "ACTIVATION_CELU/dispatch", npy(X)))  # of the same body, but for the query
    assert not np.allclose(other, Y)


def test_a_spoilt_safetensors_file_is_told_as_nothing_else(client: httpx.Client) -> None:
    """The file begins with the length of its header, 128 here, as a map in MessagePack does, or 123, as JSON."""
    for length in (128, 123):
        header = b'{"InputTensor":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(length)
        body = length.to_bytes(8, "little") + header + b"12345"
        refused = post(client, "ACTIVATION_RELU/dispatch", body, SAFETENSORS)
        assert refusal_of(refused, 400)["detail"] == "The safetensors file goes on for 1 bytes behind its tensors."


def test_a_large_one_is_its_own_answer(client: httpx.Client) -> None:
    x = np.random.default_rng(1).normal(size=(1 << 20, 3)).astype(np.float32)
    for kind, body in ((NPY, npy(x)), (NPZ, npz(InputTensor=x)), (NPZ, npz(True, InputTensor=x))):
        np.testing.assert_array_equal(loaded(post(client, "ACTIVATION_RELU/dispatch", body, kind)), np.maximum(x, 0))


@pytest.mark.parametrize("compressed", [False, True])
def test_several_tensors(client: httpx.Client, compressed: bool) -> None:
    for kind, body in (
        (NPZ, npz(compressed, ATensor=X, BTensor=Y)),
        (SAFETENSORS, safetensors.numpy.save({"ATensor": X, "BTensor": Y})),
    ):
        made = loaded(post(client, "ELEMENT_WISE_SUBTRACT/dispatch", body, kind))
        np.testing.assert_array_equal(made["OutputTensor"] if kind == SAFETENSORS else made, X - Y)


def test_several_outputs(client: httpx.Client) -> None:
    path = "TOP_K/dispatch?Axis=1&K=2"
    for kind, body in (
        (NPY, npy(X)),
        (NPZ, npz(InputTensor=X)),
        (SAFETENSORS, safetensors.numpy.save({"InputTensor": X})),
        (RAW, X.tobytes()),
    ):
        query = "&DataType=FLOAT32&Sizes=2,3" if kind == RAW else ""
        made = loaded(post(client, path + query, body, kind))
        np.testing.assert_array_equal(made["OutputValueTensor"], [[0, -2], [4, 2]])
        np.testing.assert_array_equal(made["OutputIndexTensor"], [[2, 1], [2, 1]])
    for accept in (NPY, RAW):
        refusal_of(post(client, path, npy(X), accept=accept), 406)


def test_arrays_of_tensors(client: httpx.Client) -> None:
    names = {"InputTensors[1]": Y, "InputTensors[0]": X}
    made = loaded(post(client, "JOIN/dispatch?Axis=0", npz(**names), NPZ))
    np.testing.assert_array_equal(made, np.concatenate([X, Y]))
    np.testing.assert_array_equal(loaded(post(client, "JOIN/dispatch?Axis=0", npy(X))), X)
    missing = post(client, "JOIN/dispatch?Axis=0", npz(**{"InputTensors[1]": Y}), NPZ)
    assert "InputTensors[0] is missing" in error_at("/inputs/InputTensors", missing)["message"]
    bare = post(client, "JOIN/dispatch?Axis=0&Sizes=2,3&DataType=FLOAT32", X.tobytes(), RAW)
    assert error_at("/Sizes", bare)["message"] == "Sizes is of no single tensor here; send a file that has it."


def test_an_attribute_that_is_called_as_a_member_of_tensors(client: httpx.Client) -> None:
    query = "SLICE/dispatch?Offsets=1&Strides=1&DataType=FLOAT32&Sizes=2"
    made = post(client, f"{query}&InputTensor.Sizes=3", X.tobytes()[:12], RAW)
    assert made.content == X.tobytes()[4:12]
    missing = error_at("/InputTensor/Sizes", post(client, query, X.tobytes()[:12], RAW))["message"]
    assert missing.startswith("InputTensor.Sizes is missing;")
    assert "Sizes by itself is an attribute of DML_OPERATOR_SLICE" in missing
    twice = error_at("/Sizes", post(client, f"{query}&Sizes=3", X.tobytes()[:12], RAW))["message"]
    assert twice == "Sizes is given twice; give it once, and the tensor's as InputTensor.Sizes."
    others = post(client, "ACTIVATION_RELU/dispatch?Sizes=2&Sizes=2", X.tobytes(), RAW)
    assert error_at("/Sizes", others)["message"] == "Sizes is given twice; give it once."
    attribute = post(client, "ACTIVATION_CELU/dispatch?Alpha=1&Alpha=1", npy(X))
    assert error_at("/Alpha", attribute)["message"] == "Alpha is given twice; give it once."


@pytest.mark.parametrize(
    ("query", "pointer", "given", "begins"),
    [
        ("ACTIVATION_CELU/dispatch?Alpha=x", "/Alpha", "x", 'Alpha is "x";'),
        ("ACTIVATION_CELU/dispatch?DataType=FLOAT32", "/InputTensor/Sizes", None, "Sizes is missing; it is required"),
        ("ACTIVATION_CELU/dispatch?Alfa=1", "/Alfa", "1", "Alfa is not a field here; known are Alpha, InputTensor, "),
        ("ACTIVATION_CELU/dispatch?feature_level=5", "/feature_level", "5", 'feature_level is "5";'),
        ("REDUCE/dispatch?Function=5&Axes=0", "/Function", "5", "Function is "),
        (
            "CUMULATIVE_SUMMATION/dispatch?Axis=0&HasExclusiveSum=maybe",
            "/HasExclusiveSum",
            "maybe",
            "HasExclusiveSum is ",
        ),
        (
            "SLICE/dispatch?Offsets=0,0&Sizes=1,1&Strides=1,1&InputTensor.Sizes=",
            "/InputTensor/Sizes",
            0,
            "Sizes has 0 entries;",
        ),
    ],
)
def test_what_does_not_fit_in_the_query(
    client: httpx.Client, query: str, pointer: str, given: Any, begins: str
) -> None:
    error = error_at(pointer, post(client, query, X.tobytes(), RAW))
    assert error["given"] == given
    assert error["message"].startswith(begins)
    assert "by itself" not in error["message"]


def test_a_minus_0_in_the_query_has_its_sign(client: httpx.Client) -> None:
    x = np.array([1, -0.0], np.float32)
    for given, sign in (("-0", True), ("-0.0", True), ("0", False)):
        query = f"ELEMENT_WISE_IDENTITY/dispatch?ScaleBias.Scale=1&ScaleBias.Bias={given}"
        assert np.signbit(loaded(post(client, query, npy(x)))[1]) == sign


def test_lists_of_structures_in_the_query(client: httpx.Client) -> None:
    sizes = [f"OutputTensors[{place}].Sizes=1,3&OutputTensors[{place}].DataType=FLOAT32" for place in range(2)]
    made = loaded(post(client, f"SPLIT/dispatch?Axis=0&{sizes[1]}&{sizes[0]}", npy(X)))
    for place in range(2):
        np.testing.assert_array_equal(made[f"OutputTensors[{place}]"], X[place : place + 1])
    x = np.array([[[[0.5]]], [[[2]]]], np.float32)
    tensors = {"InputTensor": x[:1], "WeightTensor": x[:1], "RecurrenceTensor": x[:1]}
    query = "ActivationDescs[0].Type=ACTIVATION_LINEAR&ActivationDescs[0].Alpha=8&ActivationDescs[0].Beta=1"
    query += "&Direction=FORWARD&OutputSingleTensor.DataType=FLOAT32&OutputSingleTensor.Sizes=1,1,1,1"
    assert loaded(post(client, f"RNN/dispatch?{query}", npz(**tensors), NPZ)).item() == 3
    for wrong, pointer in (
        (sizes[1], "/OutputTensors[0]"),
        (f"{sizes[0]}&{sizes[0]}", "/OutputTensors[0].Sizes"),
        (f"OutputTensors=1&{sizes[0]}", "/OutputTensors[0].Sizes"),
        (f"OutputTensors.Sizes=1&{sizes[0]}", "/OutputTensors[1]"),
        ("OutputTensors[0].Size=1", "/OutputTensors/0/Size"),
        (f"Axis[0]=1&{sizes[0]}", "/Axis[0]"),
    ):
        error_at(pointer, post(client, f"SPLIT/dispatch?Axis=0&{wrong}", npy(X)))


def test_bare_elements(client: httpx.Client) -> None:
    query = "Alpha=2&Sizes=2,3&DataType=FLOAT32"
    made = post(client, f"ACTIVATION_CELU/dispatch?{query}", X.tobytes(), RAW)
    assert (made.headers["tensor-datatype"], made.headers["tensor-sizes"]) == ("FLOAT32", "2,3")
    np.testing.assert_allclose(np.frombuffer(made.content, np.float32).reshape(2, 3), Y, rtol=1e-6)
    turned = post(
        client, "ACTIVATION_RELU/dispatch?Sizes=3,2&DataType=FLOAT32&Strides=1,3", X.tobytes(), RAW, accept=NPY
    )
    np.testing.assert_array_equal(loaded(turned), np.maximum(X.T, 0))
    whole = f"ACTIVATION_CELU/dispatch?{query}&Strides=null&Flags=NONE&TotalTensorSizeInBytes=24"
    assert post(client, whole, X.tobytes(), RAW).content == made.content
    pointers = [
        each["pointer"]
        for each in refusal_of(post(client, "ACTIVATION_CELU/dispatch", X.tobytes(), RAW), 422)["errors"]
    ]
    assert pointers == ["/InputTensor/DataType", "/InputTensor/Sizes"]
    error_at("/inputs/InputTensor", post(client, f"ACTIVATION_CELU/dispatch?{query}", X.tobytes()[:-1], RAW))
    for _ in range(3):  # it is remembered, as what it is
        loaded(post(client, f"ACTIVATION_CELU/dispatch?{query}", npy(X)))
    error_at("/inputs/InputTensor", post(client, f"ACTIVATION_CELU/dispatch?{query}", npy(X), RAW))


@pytest.mark.parametrize("prefix", ["application/", "Application/X-"])
def test_other_names_of_formats(client: httpx.Client, prefix: str) -> None:
    for name, body in (
        ("npy", npy(X)),
        ("npz", npz(InputTensor=X)),
        ("safetensors", safetensors.numpy.save({"InputTensor": X})),
    ):
        made = post(client, "ACTIVATION_CELU/dispatch?Alpha=2", body, f"{prefix}{name}; charset=utf-8")
        assert made.headers["content-type"] == {"npy": NPY, "npz": NPY, "safetensors": SAFETENSORS}[name]
    assert loaded(post(client, "ACTIVATION_RELU/dispatch", npz(InputTensor=X), "application/zip")).shape == X.shape


def test_accept_says_otherwise(client: httpx.Client) -> None:
    for accept in (NPY, NPZ, SAFETENSORS):
        made = loaded(post(client, "ACTIVATION_CELU/dispatch?Alpha=2", npy(X), accept=accept))
        np.testing.assert_allclose(made if accept == NPY else made["OutputTensor"], Y, rtol=1e-6)
    answer = post(client, "ACTIVATION_CELU/dispatch", npy(X), accept="application/json", prefer="return=minimal")
    assert answer.json().keys() == {"outputs", "execution"}
    refusal_of(post(client, "ACTIVATION_CELU/dispatch", npy(X), accept="text/html"), 406)
    refusal_of(post(client, "ACTIVATION_CELU/dispatch", b"not looked at", accept="text/html"), 406)


DOCUMENT = {"operator": {"Type": "ACTIVATION_CELU", "Alpha": 2}, "inputs": {"InputTensor": X.tolist()}}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (NPY, NPY),
        (f"{NPY}, application/json;q=0.5, */*;q=0.1", NPY),
        (NPZ, NPZ),
        (SAFETENSORS, SAFETENSORS),
        (f"{NPY};q=0.5, application/json", "application/json"),
        (f"{NPY}, application/json", "application/json"),
        ("*/*", "application/json"),
        (f"{NPY};q=0.5, application/x-msgpack", "application/msgpack"),
    ],
)
def test_a_document_is_answered_by_a_file(client: httpx.Client, accept: str, kind: str) -> None:
    for _ in range(3):  # it is remembered
        response = client.post("/v1/dispatch", json=DOCUMENT, headers={"accept": accept})
        assert response.headers["content-type"] == kind
        if kind in (NPY, NPZ, SAFETENSORS):
            made = loaded(response)
            np.testing.assert_allclose(made if kind == NPY else made["OutputTensor"], Y, rtol=1e-6)
    bare = client.post("/v1/dispatch", json=DOCUMENT, headers={"accept": RAW})
    assert bare.headers["tensor-sizes"] == "2,3"
    np.testing.assert_allclose(np.frombuffer(bare.content, np.float32).reshape(2, 3), Y, rtol=1e-6)


def test_graphs_and_several_outputs_are_answered_by_a_file(client: httpx.Client) -> None:
    path = client.post("/v1/graphs", json=EXAMPLE).headers["location"]
    made = loaded(client.post(f"{path}/dispatch", json=EXAMPLE_DATA, headers={"accept": NPY}))
    np.testing.assert_array_equal(made, np.maximum(X + np.array([1, 2, 3], np.float32), 0))
    split = {"Type": "SPLIT", "Axis": 1, "OutputTensors": [{"DataType": "FLOAT32", "Sizes": [2, n]} for n in (1, 2)]}
    document = {"operator": split, "inputs": {"InputTensor": X.tolist()}}
    several = loaded(client.post("/v1/dispatch", json=document, headers={"accept": NPZ}))
    np.testing.assert_array_equal(several["OutputTensors[1]"], X[:, 1:])
    refusal_of(client.post("/v1/dispatch", json=document, headers={"accept": NPY}), 406)
    refusal_of(client.post("/v1/dispatch", json=document, headers={"accept": "image/png"}), 406)
    liked = {"accept": f"{NPY}, */*;q=0.1", "prefer": "return=minimal"}
    assert client.post("/v1/dispatch", json=document, headers=liked).json().keys() == {"outputs", "execution"}


@pytest.mark.parametrize(
    ("path", "x", "expected"),
    [
        ("ELEMENT_WISE_CONSTANT_POW/dispatch?Exponent=2&ScaleBias.Scale=0.5&ScaleBias.Bias=1", X, (X / 2 + 1) ** 2),
        ("ACTIVATION_LINEAR/dispatch?Alpha=-16384.0e0&Beta=17179869184", X, 17179869184 - 16384 * X),
        ("REDUCE/dispatch?Function=SUM&Axes=0,1", X, [[1]]),
        ("REDUCE/dispatch?Function=SUM&Axes=[1]", X, [[-6], [7]]),
        ("REDUCE/dispatch?Function=SUM&Axes=[0,+1]", X, [[1]]),
        ("CUMULATIVE_SUMMATION/dispatch?Axis=1&AxisDirection=INCREASING&HasExclusiveSum=true", X[:1], [[0, -4, -6]]),
        ("CAST/dispatch?OutputTensor.DataType=INT8&OutputTensor.Sizes=2,3", X, X),
        ("SLICE1/dispatch?InputWindowOffsets=0,1&InputWindowSizes=2,2&InputWindowStrides=1,-1", X, [[0, -2], [4, 2]]),
    ],
)
def test_attributes_are_what_the_descriptor_has_there(client: httpx.Client, path: str, x: Array, expected: Any) -> None:
    np.testing.assert_array_equal(loaded(post(client, path, npy(x))), expected)


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("Alpa=2", "/Alpa"),
        ("Alpha=two", "/Alpha"),
        ("Alpha=2&Alpha=3", "/Alpha"),
        ("Alpha.Beta=2&Alpha=1", "/Alpha"),
        ("Alpha=1e9999", "/Alpha"),
        ("Alpha=007", "/Alpha"),
        (f"Alpha={'1' * 5000}", "/Alpha"),
        (f"Alpha{'.a' * 9000}=1", "/Alpha"),
        ("Alpha=", "/Alpha"),
        ("feature_level=2_0", "/Type"),
        ("feature_level=9_9", "/feature_level"),
        ("device=none", "/device"),
        ("in_place=ATensor", "/in_place"),
        ("InputTensor.Sizes=3,2", "/inputs/InputTensor/Sizes"),
        ("InputTensor.Size=3,2", "/InputTensor/Size"),
        ("data=numbers", "/data"),
        ("inputs=1", "/inputs"),
    ],
)
def test_queries_that_are_refused(client: httpx.Client, query: str, pointer: str) -> None:
    error_at(pointer, post(client, f"ACTIVATION_CELU/dispatch?{query}", npy(X)))


@pytest.mark.parametrize(
    ("query", "pointer", "kind", "meant"),
    [
        ("Alfa=2", "/Alfa", "field-unknown", "Alpha"),
        ("Size=2,3", "/Size", "field-unknown", "Sizes"),
        ("devise=auto", "/devise", "field-unknown", "device"),
        ("Alpha=two", "/Alpha", "field-type", None),
        ("DataType=FLOAT31", "/InputTensor/DataType", "name", "FLOAT32"),
    ],
)
def test_errors_in_the_query_are_of_the_same_kinds_as_in_documents(
    client: httpx.Client, query: str, pointer: str, kind: str, meant: str | None
) -> None:
    error = error_at(
        pointer, post(client, f"ACTIVATION_CELU/dispatch?{query}", X.tobytes(), "application/octet-stream")
    )
    assert error["type"] == f"/errors#{kind}"
    assert meant is None or error["message"].endswith(f"Did you mean {meant}?")
    assert meant is None or meant in error["allowed"]


def test_other_refusals(client: httpx.Client) -> None:
    assert (
        "Did you mean ACTIVATION_CELU?" in refusal_of(post(client, "ACTIVATION_CELUU/dispatch", npy(X)), 404)["detail"]
    )
    assert (
        "/v1/dispatch" in refusal_of(post(client, "ACTIVATION_CELU/dispatch", b"{}", "application/json"), 415)["detail"]
    )
    told = refusal_of(client.post("/v1/operators/ACTIVATION_CELU/dispatch", content=npy(X)), 415)["detail"]
    assert told.startswith("Content-Type is missing; send ")
    refusal_of(post(client, "ACTIVATION_CELU/dispatch", npy(X), **{"content-encoding": "br"}), 415)
    refusal_of(post(client, "ACTIVATION_CELU/dispatch?Alpha=%ff", npy(X)), 400)
    refusal_of(post(client, "ACTIVATION_CELU/dispatch?" + "a=1&" * 300, npy(X)), 400)
    refusal_of(post(client, "ACTIVATION_CELU/dispatch", b""), 400)
    refusal_of(post(client, "ACTIVATION_CELU/dispatch", npy(X)[:-1]), 400)
    error_at("/inputs/InputTensor/descr", post(client, "ACTIVATION_CELU/dispatch", npy(X.astype(">f4"))))
    error_at("/Type", post(client, "FILL_VALUE_CONSTANT/dispatch", npy(X)))
    error_at("/Axes", post(client, "ACTIVATION_SOFTMAX1/dispatch?Axes=[]", npy(X)))
    error_at("/BTensor", post(client, "ELEMENT_WISE_ADD/dispatch", npy(X)))
    error_at("/inputs/More", post(client, "ELEMENT_WISE_ABS/dispatch", npz(InputTensor=X, More=X), NPZ))


def test_names_and_texts_of_a_query() -> None:
    """What is no place of a list is a name, what an operator has itself is not its input's, and not all words are."""
    pooling = find_operator("MAX_POOLING")
    assert pooling
    made = read_attributes(
        pooling, [("Strides", "2,3"), ("Sizes", "1,1,4,4"), ("Window[0]", "true"), ("device", "true")]
    )
    assert made.pop("device") == "true"
    assert made == {
        "operator": {
            "Type": pooling.name(),
            "Strides": [2, 3],
            "InputTensor": {"Sizes": [1, 1, 4, 4]},
            "Window[0]": "true",
        }
    }
