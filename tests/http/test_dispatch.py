"""POST /v1/dispatch: what is computed, how it is laid out, what ran it."""

import base64
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from app.memory.buffers import SMALLEST
from tests.http.refusals import error_at, refusal_of
from tests.messages import (
    CELU,
    CONSTANT_POW,
    HARD_SIGMOID,
    PARAMETERIZED_RELU,
    Array,
    answer_of,
    as_json,
    output_of,
    post_json,
    post_msgpack,
    request,
)

Post = Callable[[httpx.Client, dict[str, Any]], httpx.Response]
both_encodings = pytest.mark.parametrize("post", [post_json, post_msgpack])

X = np.array([[[[-4, -2, 0], [1, 2, 4]]]], np.float32)
SLOPE = np.array([[[[0.5, 0.25, 3], [4, 5, 6]]]], np.float32)

README = {
    "operator": {
        "Type": "DML_OPERATOR_ACTIVATION_HARD_SIGMOID",
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]},
        "Alpha": 0.2,
        "Beta": 0.5,
    },
    "inputs": {"InputTensor": "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA"},
}


def test_the_request_of_the_readme(client: httpx.Client) -> None:
    answer = client.post("/v1/dispatch", json=README).json()
    assert answer.keys() == {"outputs", "execution", "capability"}
    assert answer["outputs"] == {
        "OutputTensor": {
            "DataType": "FLOAT32",
            "Sizes": [1, 1, 2, 3],
            "Strides": None,
            "TotalTensorSizeInBytes": 24,
            "data": "AAAAAMzMzD0AAAA/MzMzP2ZmZj8AAIA/",
        }
    }


def test_the_answer_tells_what_ran_it(client: httpx.Client) -> None:
    execution = client.post("/v1/dispatch", json=README).json()["execution"]
    assert execution.pop("queue_seconds") >= 0
    assert execution.pop("compute_seconds") > 0
    assert execution == {"device": "numpy", "kind": "cpu", "fallback_reason": None, "in_place": False}


def test_the_answer_tells_what_the_operator_is_capable_of(client: httpx.Client) -> None:
    message = request(PARAMETERIZED_RELU, {"InputTensor": X, "SlopeTensor": SLOPE}, feature_level="5_0")
    floats = {"data_types": ["FLOAT32", "FLOAT16"], "dimension_counts": list(range(1, 9))}
    assert post_json(client, message).json()["capability"] == {
        "operator": PARAMETERIZED_RELU,
        "feature_level": "DML_FEATURE_LEVEL_5_0",
        "introduced": "DML_FEATURE_LEVEL_1_0",
        "in_place": ["InputTensor"],
        "tensors": dict.fromkeys(["InputTensor", "SlopeTensor", "OutputTensor"], floats),
    }


DISPATCHES: list[tuple[str, dict[str, Array], dict[str, Any], Any]] = [
    (HARD_SIGMOID, {"InputTensor": X}, {"Alpha": 0.25, "Beta": 0.125}, np.clip(0.25 * X + 0.125, 0, 1)),
    (CELU, {"InputTensor": X}, {"Alpha": 2.0}, np.where(X > 0, X, 2 * np.expm1(X / 2.0))),
    (PARAMETERIZED_RELU, {"InputTensor": X, "SlopeTensor": SLOPE}, {}, np.where(X >= 0, X, X * SLOPE)),
    (CONSTANT_POW, {"InputTensor": X}, {"Exponent": 3.0}, X**3),
    (
        CONSTANT_POW,
        {"InputTensor": X},
        {"Exponent": 2.0, "ScaleBias": {"Scale": 0.5, "Bias": 1.0}},
        (0.5 * X + 1) ** 2,
    ),
]


@both_encodings
@pytest.mark.parametrize(("kind", "inputs", "attributes", "expected"), DISPATCHES)
def test_operators(
    client: httpx.Client, post: Post, kind: str, inputs: dict[str, Array], attributes: dict[str, Any], expected: Array
) -> None:
    output = output_of(post(client, request(kind, inputs, attributes)))
    assert output.dtype == np.float32
    assert output.shape == (1, 1, 2, 3)
    np.testing.assert_allclose(output, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "defaults"), [(HARD_SIGMOID, {"Alpha": 0.2, "Beta": 0.5}), (CELU, {"Alpha": 1.0})], ids=["sigmoid", "celu"]
)
def test_attributes_have_the_documented_defaults(client: httpx.Client, kind: str, defaults: dict[str, float]) -> None:
    stated, left_out = (
        output_of(post_json(client, request(kind, {"InputTensor": X}, given))) for given in (defaults, {})
    )
    np.testing.assert_array_equal(left_out, stated)


def test_an_attribute_without_a_default_is_required(client: httpx.Client) -> None:
    error = error_at("/operator/Exponent", post_json(client, request(CONSTANT_POW, {"InputTensor": X})))
    assert error["message"] == "Exponent is missing; it is required here."


@pytest.mark.parametrize(
    ("subject", "hresult"),
    [
        ({"operator": {"Type": "DML_OPERATOR_INVALID"}}, "0x80070057"),
        ({"graph": {"Nodes": [{"Type": "INVALID"}], "OutputEdges": []}}, "0x80070057"),
        ({"operator": {"Type": "DML_OPERATOR_NEW"}}, None),
        ({"operator": {"Type": None}}, None),
    ],
)
def test_what_stands_for_no_operator_and_no_node_has_directmls_hresult(
    client: httpx.Client, subject: dict[str, Any], hresult: str | None
) -> None:
    problem = refusal_of(client.post("/v1/dispatch", json=subject | {"inputs": {}}), 422)
    assert ("INVALID" in problem["detail"], problem.get("hresult")) == (hresult is not None, hresult)
    assert "None" not in problem["detail"]


@both_encodings
def test_null_is_what_is_left_out(client: httpx.Client, post: Post) -> None:
    gemm = {"Type": "GEMM", "TransA": "NONE", "TransB": "NONE", "Alpha": 1, "Beta": 1, "FusedActivation": None}
    matrix = {"DataType": "FLOAT32", "Sizes": [1, 1]}
    two = np.array([2], np.float32).tobytes()
    document: dict[str, Any] = {
        "operator": gemm | {"ATensor": matrix, "BTensor": matrix, "CTensor": None, "OutputTensor": None},
        "inputs": {"ATensor": two, "BTensor": two, "CTensor": None},
        "graph": None,
    } | dict.fromkeys(("feature_level", "in_place", "device", "data"))
    assert output_of(post(client, document)).tolist() == [[4]]
    document["operator"]["CTensor"] = matrix  # then it is one of the inputs
    error_at("/inputs/CTensor", post(client, document))


@both_encodings
def test_null_is_what_is_left_out_of_what_has_a_default(client: httpx.Client, post: Post) -> None:
    left_out = {"Flags": None, "GuaranteedBaseOffsetAlignment": None, "Strides": None}
    tensor = {"DataType": "FLOAT32", "Sizes": [1]} | left_out
    document = {
        "operator": {"Type": "ACTIVATION_CELU", "InputTensor": tensor, "OutputTensor": tensor, "Alpha": None},
        "inputs": {"InputTensor": np.array([-1], np.float32).tobytes()},
    }
    np.testing.assert_allclose(output_of(post(client, document)), np.expm1([-1]), rtol=1e-6)


@both_encodings
@pytest.mark.parametrize("name", ["operator", "inputs"])
def test_null_is_not_taken_for_what_is_missing(client: httpx.Client, post: Post, name: str) -> None:
    document = request(CELU, {"InputTensor": X}) | {name: None}
    error = error_at(f"/{name}", post(client, document))
    assert error["message"] == f"{name} is null; it must be an object."


@pytest.mark.parametrize("data", ["AACAPw==", [1], {"data": "AACAPw=="}], ids=["base64", "numbers", "an object"])
def test_null_attributes_are_told_as_such_whatever_data_there_are(client: httpx.Client, data: object) -> None:
    tensor = {"DataType": "FLOAT32", "Sizes": [1]}
    operator = {"Type": "LP_NORMALIZATION", "InputTensor": tensor, "Axis": None, "P": 2}
    error = error_at(
        "/operator/Axis", client.post("/v1/dispatch", json={"operator": operator, "inputs": {"InputTensor": data}})
    )
    assert error["message"] == "Axis is null; it must be an integer."


@both_encodings
def test_null_data_are_told_as_such(client: httpx.Client, post: Post) -> None:
    document = request(CELU, {"InputTensor": X}) | {"inputs": {"InputTensor": None}}
    error = error_at("/inputs/InputTensor", post(client, document))
    assert error["message"].startswith("Data of InputTensor are null; they must be ")


def test_an_end_of_line_behind_the_path_leads_nowhere_else(client: httpx.Client) -> None:
    """Routes' patterns take it for the path's end, so that it once was answered with nothing, and 200."""
    answer = client.post("/v1/dispatch%0A", json=as_json(request(CELU, {"InputTensor": X})))
    assert answer_of(answer)["capability"]["operator"] == CELU


@pytest.mark.parametrize("kind", [HARD_SIGMOID, CELU])
def test_names_do_without_their_prefixes(client: httpx.Client, kind: str) -> None:
    short = request(kind.removeprefix("DML_OPERATOR_"), {"InputTensor": X})
    full = request(
        kind, {"InputTensor": X}, {"InputTensor": {"DataType": "DML_TENSOR_DATA_TYPE_FLOAT32", "Sizes": [1, 1, 2, 3]}}
    )
    answers = [answer_of(post_json(client, message)) for message in (short, full)]
    assert answers[0]["outputs"] == answers[1]["outputs"]
    assert [answer["capability"]["operator"] for answer in answers] == [kind, kind]


class TestFeatureLevel:
    @pytest.mark.parametrize(
        ("stated", "judged"),
        [({}, "6_4"), ({"feature_level": "3_0"}, "3_0"), ({"feature_level": "DML_FEATURE_LEVEL_4_1"}, "4_1")],
    )
    def test_judges_the_request(self, client: httpx.Client, stated: dict[str, Any], judged: str) -> None:
        answer = answer_of(post_json(client, request(CELU, {"InputTensor": X}, **stated)))
        assert answer["capability"]["feature_level"] == f"DML_FEATURE_LEVEL_{judged}"

    @pytest.mark.parametrize(
        ("level", "next_level", "message", "pointer"),
        [
            ("2_1", "3_0", request(CELU, {"InputTensor": X}), "/operator/Type"),
            ("2_0", "3_0", request(HARD_SIGMOID, {"InputTensor": X[0]}), "/operator/InputTensor/Sizes"),
            (
                "5_0",
                "5_1",
                request(PARAMETERIZED_RELU, dict.fromkeys(["InputTensor", "SlopeTensor"], X.astype(np.int8))),
                "/operator/InputTensor/DataType",
            ),
        ],
        ids=["operator", "dimensions", "data type"],
    )
    @pytest.mark.parametrize("prefix", ["", "DML_FEATURE_LEVEL_"])
    def test_refuses_what_came_later(
        self, client: httpx.Client, prefix: str, level: str, next_level: str, message: dict[str, Any], pointer: str
    ) -> None:
        refused = post_json(client, message | {"feature_level": prefix + level})
        assert error_at(pointer, refused)["allowed"]
        assert refused.json()["hresult"] == "0x80070057"
        output_of(post_json(client, message | {"feature_level": prefix + next_level}))

    @pytest.mark.parametrize("level", ["7_0", "DML_FEATURE_LEVEL_0_9", "", "3.0"])
    def test_must_be_known(self, client: httpx.Client, level: str) -> None:
        refused = post_json(client, request(CELU, {"InputTensor": X}, feature_level=level))
        error = error_at("/feature_level", refused)
        assert error["given"] == level
        assert "6_4" in error["allowed"]


def columns_first(array: Array, **members: Any) -> dict[str, Any]:
    """A descriptor that walks a packed 2-D array along its columns."""
    rows, columns = array.shape
    return {"DataType": array.dtype.name.upper(), "Sizes": [columns, rows], "Strides": [1, columns]} | members


class TestInPlace:
    @both_encodings
    def test_gives_the_same_result(self, client: httpx.Client, post: Post) -> None:
        message = request(CELU, {"InputTensor": X})
        expected = output_of(post(client, message))
        response = post(client, message | {"in_place": "InputTensor"})
        assert answer_of(response)["execution"]["in_place"] is True
        np.testing.assert_array_equal(output_of(response), expected)

    @both_encodings
    def test_works_on_equal_strides(self, client: httpx.Client, post: Post) -> None:
        flat = X.reshape(2, 3)
        desc = columns_first(flat)
        message = request(
            CONSTANT_POW, {"InputTensor": flat}, {"Exponent": 2.0, "InputTensor": desc, "OutputTensor": desc}
        )
        response = post(client, message | {"in_place": "InputTensor"})
        np.testing.assert_array_equal(output_of(response), flat.T**2)

    @both_encodings
    def test_keeps_what_lies_between_the_elements(self, client: httpx.Client, post: Post) -> None:
        data = np.arange(5, dtype=np.float32)
        desc = {"DataType": "FLOAT32", "Sizes": [3], "Strides": [2]}
        message = request(
            CONSTANT_POW, {"InputTensor": data}, {"Exponent": 2.0, "InputTensor": desc, "OutputTensor": desc}
        )
        answer = answer_of(post(client, message | {"in_place": "InputTensor"}))
        assert np.frombuffer(answer["outputs"]["OutputTensor"]["data"], np.float32).tolist() == [0, 1, 4, 3, 16]

    @pytest.mark.parametrize(
        ("name", "operator", "allowed"),
        [
            ("SlopeTensor", {}, ["InputTensor"]),
            ("OutputTensor", {}, ["InputTensor"]),
            ("NoTensor", {}, ["InputTensor"]),
            ("", {}, ["InputTensor"]),
            ("InputTensor", {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [1, 2]}}, None),
            ("InputTensor", {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [4, 1]}}, None),
            (
                "InputTensor",
                {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3], "TotalTensorSizeInBytes": 32}},
                None,
            ),
            ("InputTensor", {"InputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3], "Flags": ["OWNED_BY_DML"]}}, None),
        ],
        ids=["other input", "output", "unknown", "empty", "order", "gaps", "buffer", "owned"],
    )
    def test_refused(
        self, client: httpx.Client, name: str, operator: dict[str, Any], allowed: list[str] | None
    ) -> None:
        x = X.reshape(2, 3)
        message = request(PARAMETERIZED_RELU, {"InputTensor": x, "SlopeTensor": x}, operator)
        output_of(post_json(client, message))
        refused = post_json(client, message | {"in_place": name})
        error = error_at("/in_place", refused)
        assert (error["given"], error["allowed"]) == (name, allowed or [])
        assert refused.json()["hresult"] == "0x887A0005"

    def test_of_another_width_is_against_the_contract_anyway(self, client: httpx.Client) -> None:
        output = {"DataType": "FLOAT16", "Sizes": list(X.shape)}
        message = request(CELU, {"InputTensor": X}, {"OutputTensor": output}, in_place="InputTensor")
        assert error_at("/operator/OutputTensor/DataType", post_json(client, message))["allowed"] == ["FLOAT32"]


class TestDevice:
    @pytest.mark.parametrize("device", ["auto", "numpy"])
    def test_named(self, client: httpx.Client, device: str) -> None:
        answer = answer_of(post_json(client, request(CELU, {"InputTensor": X}, device=device)))
        assert answer["execution"]["device"] == "numpy"

    @pytest.mark.parametrize("device", ["cuda:9", "", "NumPy"])
    def test_unknown(self, client: httpx.Client, device: str) -> None:
        error = error_at("/device", post_json(client, request(CELU, {"InputTensor": X}, device=device)))
        assert (error["given"], error["allowed"]) == (device, ["auto", "numpy"])


class TestLayout:
    """Strides and sizes of the buffers, in and out."""

    @both_encodings
    def test_input_by_columns(self, client: httpx.Client, post: Post) -> None:
        flat = X.reshape(2, 3)
        message = request(CONSTANT_POW, {"InputTensor": flat}, {"Exponent": 1.0, "InputTensor": columns_first(flat)})
        response = post(client, message)
        assert answer_of(response)["outputs"]["OutputTensor"]["Strides"] is None
        np.testing.assert_array_equal(output_of(response), flat.T)

    @both_encodings
    def test_output_by_columns(self, client: httpx.Client, post: Post) -> None:
        output = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [1, 2]}
        message = request(CONSTANT_POW, {"InputTensor": X.reshape(2, 3)}, {"Exponent": 1.0, "OutputTensor": output})
        answered = answer_of(post(client, message))["outputs"]["OutputTensor"]
        assert answered["Strides"] == [1, 2]
        assert np.frombuffer(answered["data"], np.float32).tolist() == X.reshape(2, 3).T.ravel().tolist()

    @both_encodings
    def test_stride_0_repeats_an_input(self, client: httpx.Client, post: Post) -> None:
        row = np.array([2, 3, 4], np.float32)
        slope = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3], "Strides": [0, 0, 0, 1]}
        message = request(PARAMETERIZED_RELU, {"InputTensor": -abs(X), "SlopeTensor": row}, {"SlopeTensor": slope})
        np.testing.assert_array_equal(output_of(post(client, message)), -abs(X) * row)

    @both_encodings
    def test_gaps_of_an_output_hold_zeros(self, client: httpx.Client, post: Post) -> None:
        """They show nothing of those whose memory it was before, which is used again if it is large enough."""
        ones, size = np.ones((64, 64), np.float32), 63 * 480 + 63 * 2 + 1
        assert 4 * size > SMALLEST
        output = {"DataType": "FLOAT32", "Sizes": [64, 64], "Strides": [480, 2]}
        message = request(CELU, {"InputTensor": ones}, {"OutputTensor": output})
        for _ in range(3):
            output_of(post(client, request(CELU, {"InputTensor": np.ones(size, np.float32)})))
            response = post(client, message)
            np.testing.assert_array_equal(output_of(response), ones)
            data = np.frombuffer(answer_of(response)["outputs"]["OutputTensor"]["data"], np.float32)
            assert data.size == size
            assert np.count_nonzero(data) == 64 * 64

    def test_the_output_has_the_size_that_is_asked_for(self, client: httpx.Client) -> None:
        output = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3], "TotalTensorSizeInBytes": 64}
        answered = answer_of(post_json(client, request(CELU, {"InputTensor": X}, {"OutputTensor": output})))
        assert answered["outputs"]["OutputTensor"]["TotalTensorSizeInBytes"] == 64
        assert len(answered["outputs"]["OutputTensor"]["data"]) in (24, 64)

    @both_encodings
    @pytest.mark.parametrize("total", [None, 0, 8, 16])
    def test_data_have_a_length_that_the_layout_allows(
        self, client: httpx.Client, post: Post, total: int | None
    ) -> None:
        data = np.array([1, 2, 3], np.float16).tobytes()
        desc = {"DataType": "FLOAT16", "Sizes": [3], "TotalTensorSizeInBytes": total}
        message = {"operator": {"Type": CONSTANT_POW, "InputTensor": desc, "Exponent": 2}}
        accepted = {6, 8, total or 8}
        for size in range(18):
            response = post(client, message | {"inputs": {"InputTensor": data.ljust(size, b"\0")[:size]}})
            if size in accepted:
                assert output_of(response).tolist() == [1, 4, 9]
            else:
                error = error_at("/inputs/InputTensor", response)
                assert (error["given"], error["allowed"]) == (size, sorted(accepted))
                assert response.json()["hresult"] == "0x887A0005"

    @pytest.mark.parametrize(
        ("desc", "field"),
        [
            ({"Sizes": [2, 3], "Strides": [0, 1]}, "Strides"),
            ({"Sizes": [2, 3], "Strides": [2, 1]}, "Strides"),
            ({"Sizes": [2, 3], "Strides": [1]}, "Strides"),
            ({"Sizes": [3, 2]}, "Sizes"),
            ({"Sizes": [2, 3], "DimensionCount": 3}, "DimensionCount"),
            ({"Sizes": [2, 3], "TotalTensorSizeInBytes": 20}, "TotalTensorSizeInBytes"),
            ({"Sizes": [2, 3], "Flags": "OWNED_BY_DML"}, "Flags"),
        ],
        ids=["repeating", "overlapping", "too few strides", "other sizes", "dimension count", "too small", "flags"],
    )
    def test_refused_outputs(self, client: httpx.Client, desc: dict[str, Any], field: str) -> None:
        output = {"DataType": "FLOAT32"} | desc
        refused = post_json(client, request(CELU, {"InputTensor": X.reshape(2, 3)}, {"OutputTensor": output}))
        error_at(f"/operator/OutputTensor/{field}", refused)
        assert refused.json()["hresult"] == "0x80070057"


class TestBinding:
    """Which tensors are given."""

    @both_encodings
    def test_a_place_of_thousands_of_digits(self, client: httpx.Client, post: Post) -> None:
        name = f"InputTensors[{'9' * 5000}]"
        join = {"Type": "JOIN", "Axis": 0, "InputTensors": [{"DataType": "FLOAT32", "Sizes": [1]}]}
        error_at(f"/inputs/{name}", post(client, {"operator": join, "inputs": {name: b"1234"}}))

    @both_encodings
    def test_tensors_of_an_array_are_a_list(self, client: httpx.Client, post: Post) -> None:
        join = {"Type": "JOIN", "Axis": 0, "InputTensors": [{"DataType": "FLOAT32", "Sizes": [1]}]}
        alone, all_of_it = (
            error_at(f"/inputs/{name}", post(client, {"operator": join, "inputs": {name: b"1234"}}))
            for name in ("InputTensors[0]", "InputTensors")
        )
        assert (alone["given"], alone["allowed"]) == ("InputTensors[0]", ["InputTensors"])
        assert all_of_it["given"]
        assert all_of_it["allowed"] == ["a list"]

    def test_missing(self, client: httpx.Client) -> None:
        message = request(PARAMETERIZED_RELU, {"InputTensor": X, "SlopeTensor": SLOPE})
        del message["inputs"]["SlopeTensor"]
        refused = post_json(client, message)
        assert error_at("/inputs/SlopeTensor", refused)["given"] is None
        assert refused.json()["hresult"] == "0x887A0005"

    @pytest.mark.parametrize("name", ["OutputTensor", "SlopeTensor", "inputtensor", "a/b~c", ""])
    def test_surplus_or_unknown(self, client: httpx.Client, name: str) -> None:
        message = request(CELU, {"InputTensor": X})
        message["inputs"][name] = X.tobytes()
        pointer = "/inputs/" + name.replace("~", "~0").replace("/", "~1")
        error = error_at(pointer, post_json(client, message))
        assert (error["given"], error["allowed"]) == (name, ["InputTensor"])

    def test_everything_wrong_is_told_at_once(self, client: httpx.Client) -> None:
        message = request(PARAMETERIZED_RELU, {"InputTensor": X, "SlopeTensor": SLOPE})
        message["inputs"] = {"InputTensor": b"", "Other": b""}
        errors = refusal_of(post_json(client, message), 422)["errors"]
        assert {error["pointer"] for error in errors} == {
            "/inputs/InputTensor",
            "/inputs/SlopeTensor",
            "/inputs/Other",
        }


@pytest.mark.parametrize("size", [3 << 20, 9 << 20], ids=["at once", "aside"])
def test_data_like_earlier_ones_but_no_base64(client: httpx.Client, size: int) -> None:
    message = as_json(request(HARD_SIGMOID, {"InputTensor": np.ones(size // 4, np.float32)}))
    assert client.post("/v1/dispatch", json=message).status_code == 200
    text = message["inputs"]["InputTensor"]
    message["inputs"]["InputTensor"] = text[: size // 2] + "*" + text[size // 2 + 1 :]
    refused = error_at("/inputs/InputTensor", client.post("/v1/dispatch", json=message))
    assert refused["given"] == f"{len(text)} characters"


@pytest.mark.parametrize("size", [40_000, 3 << 18, 2 << 20], ids=["parsed whole", "cut", "aside"])
@both_encodings
def test_large_tensors(client: httpx.Client, post: Post, size: int) -> None:
    """Bodies and answers on each side of the sizes at which the service treats them in another way."""
    x = np.random.default_rng(size).standard_normal(size // 4, np.float32)
    np.testing.assert_array_equal(
        output_of(post(client, request(CONSTANT_POW, {"InputTensor": x}, {"Exponent": 1.0}))), x
    )


def test_base64_with_escaped_slashes(client: httpx.Client) -> None:
    """As PHP's json_encode writes it, in a body large enough to be cut."""
    x = np.full(30_000, -1, np.float32).view(np.uint32) | 0xFF
    text = base64.b64encode(x.tobytes()).decode()
    assert "/" in text
    operator = (
        f'{{"Type": "{CONSTANT_POW}", "InputTensor": {{"DataType": "FLOAT32", "Sizes": [30000]}}, "Exponent": 1}}'
    )
    escaped = text.replace("/", "\\/")
    body = f'{{"operator": {operator}, "inputs": {{"InputTensor": "{escaped}"}}}}'
    response = client.post("/v1/dispatch", content=body, headers={"content-type": "application/json"})
    assert output_of(response).tobytes() == x.tobytes()
