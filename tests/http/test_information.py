"""What the service tells of itself: health, capabilities, operators, feature support."""

import json
from typing import Any

import httpx
import msgpack
import pytest

from app import __version__
from app.contract.constants import NEWEST, DataType, FeatureLevel
from app.operators.catalog import OPERATORS
from tests.conftest import ServerFactory
from tests.http.refusals import error_at, refusal_of
from tests.messages import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU, output_of
from tests.operators.facts import FAMILIES, takes

NAMES = [HARD_SIGMOID, CELU, PARAMETERIZED_RELU, CONSTANT_POW]
LEVELS = ["1_0", "2_0", "2_1", "3_0", "3_1", "4_0", "4_1", "5_0", "5_1", "5_2", "6_0", "6_1", "6_2", "6_3", "6_4"]


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_health(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.json()["status"]) == (200, "ready")
    assert response.json()["detail"] == client.get("/v1/capabilities").json()["device_troubles"]
    assert response.headers["cache-control"] == "no-store"
    assert "retry-after" not in response.headers


def test_a_service_without_gpu_says_why_in_its_log_too(start_server: ServerFactory) -> None:
    server = start_server("--gpus", "none")
    assert "NumPy runs all dispatches: the setting gpus is none" in server.log.read_text()
    facts = httpx.get(f"{server.url}/v1/capabilities").json()
    assert facts["device_troubles"] == ["the setting gpus is none"]
    assert [device["name"] for device in facts["devices"]] == ["numpy"]
    ready = httpx.get(f"{server.url}/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "detail": ["the setting gpus is none"]})


def test_capabilities(client: httpx.Client) -> None:
    told = client.get("/v1/capabilities").json()
    assert told["version"] == __version__
    assert told["state"] == "ready"
    assert told["feature_levels"] == [f"DML_FEATURE_LEVEL_{level}" for level in LEVELS]
    assert told["operators"] == list(OPERATORS)
    assert set(NAMES) <= set(told["operators"])
    (device,) = told["devices"]
    assert (device["name"], device["kind"]) == ("numpy", "cpu")
    assert "NumPy" in device["description"]
    assert 0 < device["memory_available_bytes"] <= device["memory_total_bytes"]
    assert device["data_types"] == [data_type.value for data_type in DataType]
    assert told["limits"]["max_tensor_bytes"] == 256 << 20


def test_list_of_operators(client: httpx.Client) -> None:
    summaries = client.get("/v1/operators").json()
    assert [summary["Type"] for summary in summaries] == list(OPERATORS)
    by_name = {summary["Type"]: summary for summary in summaries}
    assert by_name[CELU] == {
        "Type": CELU,
        "family": "ACTIVATION",
        "summary": "Continuously differentiable exponential linear unit.",
        "formula": "f(x) = max(0, x) + min(0, Alpha * (exp(x / Alpha) - 1))",
        "introduced": "DML_FEATURE_LEVEL_3_0",
        "in_place": ["InputTensor"],
    }


def listed(client: httpx.Client, **query: str) -> list[str]:
    return [summary["Type"] for summary in client.get("/v1/operators", params=query).json()]


@pytest.mark.parametrize("level", FeatureLevel)
def test_operators_of_a_level(client: httpx.Client, level: FeatureLevel) -> None:
    expected = [name for name in OPERATORS if takes(name, level)]
    assert listed(client, feature_level=level.value) == listed(client, feature_level=level.full_name) == expected


@pytest.mark.parametrize("data_type", DataType)
def test_operators_of_a_data_type(client: httpx.Client, data_type: DataType) -> None:
    for query in (data_type.value, data_type.full_name):
        assert listed(client, data_type=query) == [name for name in OPERATORS if takes(name, NEWEST, data_type)]
    for level in ("1_0", "5_0", "5_1"):
        expected = [name for name in OPERATORS if takes(name, FeatureLevel(level), data_type)]
        assert listed(client, data_type=data_type, feature_level=level) == expected
        assert listed(client, data_type=data_type, feature_level=level, family="ACTIVATION") == [
            name for name in expected if "_ACTIVATION_" in name
        ]


def test_operators_of_a_family(client: httpx.Client) -> None:
    by_family = {family: listed(client, family=family) for family in FAMILIES}
    assert sorted(name for names in by_family.values() for name in names) == sorted(OPERATORS)
    for family in ("ACTIVATION", "ELEMENT_WISE"):
        assert by_family[family] == [name for name in OPERATORS if name.startswith(f"DML_OPERATOR_{family}_")]
    assert by_family["TRAINING"] == ["DML_OPERATOR_ADAM_OPTIMIZER"]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("family", "CELU", FAMILIES),
        ("family", "activation", FAMILIES),
        ("family", "", FAMILIES),
        ("data_type", "FLOAT31", list(DataType)),
        ("data_type", "DML_TENSOR_DATA_TYPE_", list(DataType)),
        ("feature_level", "6_5", LEVELS),
        ("feature_level", "null", LEVELS),
        ("feature_level", "\xff" * 3000, LEVELS),
        ("level", "6_4", ["data_type", "family", "feature_level"]),
    ],
)
def test_unknown_filters_of_operators(client: httpx.Client, name: str, value: str, allowed: list[str]) -> None:
    error = error_at(f"/{name}", client.get("/v1/operators", params={name: value}))
    assert error["allowed"] == allowed
    assert name in error["message"]


def test_a_filter_is_given_once(client: httpx.Client) -> None:
    error = error_at("/family", client.get("/v1/operators?family=ACTIVATION&data_type=INT8&family=ACTIVATION"))
    assert error["message"] == "family is given 2 times; give it once."
    assert (error["given"], error["allowed"]) == (2, [1])


@pytest.mark.parametrize("name", NAMES)
def test_operators_are_described(client: httpx.Client, name: str) -> None:
    described = client.get(f"/v1/operators/{name}").json()
    assert described == client.get(f"/v1/operators/{name.removeprefix('DML_OPERATOR_')}").json()
    assert described["Type"] == name
    assert described["struct"] == f"DML_{name.removeprefix('DML_OPERATOR_')}_OPERATOR_DESC"
    assert {field["kind"] for field in described["fields"]} <= {"input_tensor", "output_tensor", "attribute"}
    assert all(field["description"] for field in described["fields"])
    assert [row["feature_level"] for row in described["support"]] == sorted(
        (row["feature_level"] for row in described["support"]), reverse=True
    )
    assert described["support"][-1]["feature_level"] == described["introduced"]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_an_operator_works(client: httpx.Client, name: str) -> None:
    example = client.get(f"/v1/operators/{name}").json()["example"]
    assert example["operator"]["Type"] == name
    output_of(client.post("/v1/dispatch", json=example))


def test_fields_and_support_of_an_operator(client: httpx.Client) -> None:
    described = client.get("/v1/operators/ELEMENT_WISE_CONSTANT_POW").json()
    fields = {field["name"]: field for field in described["fields"]}
    assert {name: (field["type"], field["required"], field["default"]) for name, field in fields.items()} == {
        "InputTensor": ("DML_TENSOR_DESC", True, None),
        "OutputTensor": ("DML_TENSOR_DESC", False, None),
        "ScaleBias": ("DML_SCALE_BIAS", False, None),
        "Exponent": ("FLOAT", True, None),
    }
    tensor = {"data_types": ["FLOAT32", "FLOAT16"], "dimension_counts": [4]}
    assert described["support"][-1] == {
        "feature_level": "DML_FEATURE_LEVEL_1_0",
        "tensors": {"InputTensor": tensor, "OutputTensor": tensor},
    }


@pytest.mark.parametrize(
    "name", ["NONE", "activation_celu", "DML_OPERATOR_", "DML_OPERATOR_DML_OPERATOR_X", "%ff", "x" * 5000]
)
def test_unknown_operators(client: httpx.Client, name: str) -> None:
    response = client.get(f"/v1/operators/{name}")
    assert "GET /v1/operators lists them" in refusal_of(response, 404)["detail"]
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/dispatch/x",
        "/static",
        "/static/nothing.js",
        "/static/index.html",
        "/v3",
        "/health",
        "/favicon.ico",
        "//",
        "/v1//dispatch",
    ],
)
def test_unknown_paths(client: httpx.Client, path: str) -> None:
    refusal_of(client.get(httpx.URL(str(client.base_url)).copy_with(raw_path=path.encode())), 404)


def test_a_path_that_is_almost_one(client: httpx.Client) -> None:
    said = "There is nothing at /v1/dispatch/. Did you mean /v1/dispatch?"
    assert refusal_of(client.post("/v1/dispatch/", json={}), 404)["detail"] == said
    assert client.post("/v2/repository/indx").json() == {
        "error": "There is nothing at /v2/repository/indx. Did you mean /v2/repository/index?"
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/dispatch"),
        ("GET", "/v1/graphs"),
        ("POST", "/v1/graphs"),
        ("POST", "/v1/graphs/0123/dispatch"),
        ("GET", "/v1/capabilities"),
        ("POST", "/v1/feature-support"),
        ("GET", "/v1/operators/ACTIVATION_CELU"),
    ],
)
def test_a_query_that_nobody_reads_is_refused(client: httpx.Client, method: str, path: str) -> None:
    """Who sends `device` in it believes that it is heeded."""
    body: dict[str, object] | None = {} if method == "POST" else None
    error = error_at("/device", client.request(method, f"{path}?device=cuda:0", json=body))
    assert error["given"] == "cuda:0"
    assert error["type"] == "/errors#field-unknown"
    assert error["message"].startswith("device is not a field of the query; ")


@pytest.mark.parametrize("path", ["/", "/health/ready", "/metrics", "/v2", "/openapi.json"])
def test_elsewhere_a_query_may_hold_what_it_likes(client: httpx.Client, path: str) -> None:
    assert client.get(f"{path}?utm_source=x").status_code == 200


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/dispatch", "OPTIONS, POST"),
        ("/v1/graphs", "GET, HEAD, OPTIONS, POST"),
        ("/v1/graphs/0123", "DELETE, GET, HEAD, OPTIONS"),
        ("/v1/graphs/0123/dispatch", "OPTIONS, POST"),
        ("/v1/feature-support", "OPTIONS, POST"),
        ("/v1/capabilities", "GET, HEAD, OPTIONS"),
        ("/v1/operators", "GET, HEAD, OPTIONS"),
        ("/v1/operators/ACTIVATION_CELU", "GET, HEAD, OPTIONS"),
        ("/health/live", "GET, HEAD, OPTIONS"),
        ("/health/ready", "GET, HEAD, OPTIONS"),
        ("/metrics", "GET, HEAD, OPTIONS"),
    ],
)
def test_methods(client: httpx.Client, path: str, allowed: str) -> None:
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"} - set(allowed.split(", ")):
        response = client.request(method, path)
        assert refusal_of(response, 405)["detail"].endswith(f"allowed are {response.headers['allow']}.")
        assert response.headers["allow"] == allowed
    options = client.options(path)
    assert (options.status_code, options.headers["allow"]) == (204, allowed)
    response = client.head(path)
    assert response.status_code == client.get(path).status_code
    assert response.content == b""


def test_options_of_the_server_itself(client: httpx.Client) -> None:
    """RFC 9110, 9.3.7: a ping."""
    response = client.options("/", extensions={"target": b"*"})
    assert (response.status_code, response.content) == (204, b"")
    refusal_of(client.get("/", extensions={"target": b"*"}), 404)


class TestFeatureSupport:
    def ask(self, client: httpx.Client, question: object) -> httpx.Response:
        return client.post("/v1/feature-support", json=question)

    @pytest.mark.parametrize("prefix", ["", "DML_FEATURE_"])
    @pytest.mark.parametrize("data_type", DataType)
    def test_data_types(self, client: httpx.Client, prefix: str, data_type: DataType) -> None:
        """Those that some operator takes, 4-bit ones for QUANTIZE and DEQUANTIZE alone."""
        supported = any(takes(name, NEWEST, data_type) for name in OPERATORS)
        for name in (data_type.value, data_type.full_name):
            question = {"Feature": f"{prefix}TENSOR_DATA_TYPE_SUPPORT", "DataType": name}
            assert self.ask(client, question).json() == {"IsSupported": supported}

    @pytest.mark.parametrize("prefix", ["", "DML_FEATURE_"])
    @pytest.mark.parametrize(
        ("levels", "highest"),
        [(["1_0"], "1_0"), (["1_0", "5_0", "2_1"], "5_0"), (["DML_FEATURE_LEVEL_6_4", "6_3"], "6_4"), (LEVELS, "6_4")],
    )
    def test_feature_levels(self, client: httpx.Client, prefix: str, levels: list[str], highest: str) -> None:
        question: dict[str, Any] = {"Feature": f"{prefix}FEATURE_LEVELS", "RequestedFeatureLevels": levels}
        answer = {"MaxSupportedFeatureLevel": f"DML_FEATURE_LEVEL_{highest}"}
        assert self.ask(client, question).json() == answer
        assert self.ask(client, question | {"RequestedFeatureLevelCount": len(levels)}).json() == answer

    @pytest.mark.parametrize(
        ("question", "pointer"),
        [
            ([], ""),
            ({}, "/Feature"),
            ({"Feature": "NONE"}, "/Feature"),
            ({"Feature": 1}, "/Feature"),
            ({"Feature": "TENSOR_DATA_TYPE_SUPPORT"}, "/DataType"),
            ({"Feature": "TENSOR_DATA_TYPE_SUPPORT", "DataType": "FLOAT31"}, "/DataType"),
            ({"Feature": "TENSOR_DATA_TYPE_SUPPORT", "DataType": "INT8", "More": 1}, "/More"),
            ({"Feature": "FEATURE_LEVELS"}, "/RequestedFeatureLevels"),
            ({"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": []}, "/RequestedFeatureLevels"),
            ({"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0"] * 65}, "/RequestedFeatureLevels"),
            ({"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": "1_0"}, "/RequestedFeatureLevels"),
            ({"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0", "9_9"]}, "/RequestedFeatureLevels/1"),
            (
                {"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0"], "RequestedFeatureLevelCount": 2},
                "/RequestedFeatureLevelCount",
            ),
        ],
        ids=json.dumps,
    )
    def test_refusals(self, client: httpx.Client, question: object, pointer: str) -> None:
        error_at(pointer, self.ask(client, question))

    def test_a_long_question_is_judged_too(self, client: httpx.Client) -> None:
        """By a worker."""
        question = {"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0"] * 9999}
        error_at("/RequestedFeatureLevels", self.ask(client, question))

    def test_a_feature_that_is_not_known_has_directmls_hresult(self, client: httpx.Client) -> None:
        answer = self.ask(client, {"Feature": "DML_FEATURE_QUANTUM"})
        assert refusal_of(answer, 422)["hresult"] == "0x887A0004"
        assert "hresult" not in refusal_of(self.ask(client, {}), 422)

    def test_msgpack(self, client: httpx.Client) -> None:
        question = msgpack.packb({"Feature": "TENSOR_DATA_TYPE_SUPPORT", "DataType": "FLOAT16"})
        headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
        response = client.post("/v1/feature-support", content=question, headers=headers)
        assert response.headers["content-type"] == "application/msgpack"
        assert msgpack.unpackb(response.content) == {"IsSupported": True}

    @pytest.mark.parametrize("body", ["", "{", "NaN", '{"Feature": "A", "Feature": "A"}'])
    def test_what_is_no_document(self, client: httpx.Client, body: str) -> None:
        headers = {"content-type": "application/json"}
        refusal_of(client.post("/v1/feature-support", content=body, headers=headers), 400)
