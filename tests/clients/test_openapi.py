"""What the OpenAPI document says: all of it, in a valid form, and nothing that is not so."""

import base64
import json
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from app.engine.graph_documents import EXAMPLE, example_id
from app.http.core.openapi import DATA
from app.http.native.accepted import FORMATS
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.codecs.test_tensor_files import npy
from tests.conftest import ServerFactory, running_server
from tests.inference.wire import error_of
from tests.messages import problem_of

Json = dict[str, Any]

OPERATION_IDS = {
    ("get", "/v2/models/{name}/config"): "getModelConfig",
    ("get", "/v2/models/{name}/versions/{version}/config"): "getModelVersionConfig",
    ("post", "/v1/operators/{Type}/dispatch"): "dispatchFiles",
    ("post", "/v1/dispatch"): "dispatch",
    ("post", "/v1/dxdispatch"): "runDxDispatch",
    ("get", "/v1/capabilities"): "getCapabilities",
    ("get", "/v1/operators"): "listOperators",
    ("get", "/v1/operators/{Type}"): "getOperator",
    ("post", "/v1/feature-support"): "checkFeatureSupport",
    ("post", "/v1/graphs"): "keepGraph",
    ("post", "/v2/repository/models/{name}/load"): "loadModel",
    ("post", "/v2/repository/models/{name}/unload"): "unloadModel",
    ("get", "/v1/graphs"): "listGraphs",
    ("get", "/v1/graphs/{id}"): "getGraph",
    ("delete", "/v1/graphs/{id}"): "dropGraph",
    ("post", "/v1/graphs/{id}/dispatch"): "dispatchGraph",
    ("post", "/v1/graphs/{id}/times"): "timeGraph",
    ("get", "/health/live"): "live",
    ("get", "/health/ready"): "ready",
    ("get", "/metrics"): "getMetrics",
    ("get", "/v2"): "getServerMetadata",
    ("get", "/v2/health/live"): "getServerLive",
    ("get", "/v2/health/ready"): "getServerReady",
    ("get", "/v2/models/stats"): "getStatistics",
    ("get", "/v2/models/{name}"): "getModelMetadata",
    ("get", "/v2/models/{name}/versions/{version}"): "getModelVersionMetadata",
    ("get", "/v2/models/{name}/ready"): "getModelReady",
    ("get", "/v2/models/{name}/versions/{version}/ready"): "getModelVersionReady",
    ("get", "/v2/models/{name}/stats"): "getModelStatistics",
    ("get", "/v2/models/{name}/versions/{version}/stats"): "getModelVersionStatistics",
    ("post", "/v2/models/{name}/infer"): "modelInfer",
    ("post", "/v2/models/{name}/versions/{version}/infer"): "modelVersionInfer",
    ("post", "/v2/repository/index"): "getRepositoryIndex",
    ("get", "/v2/systemsharedmemory/status"): "getSharedMemoryStatus",
    ("get", "/v2/systemsharedmemory/region/{region}/status"): "getSharedMemoryRegion",
    ("post", "/v2/systemsharedmemory/region/{region}/register"): "registerSharedMemory",
    ("post", "/v2/systemsharedmemory/region/{region}/unregister"): "unregisterSharedMemory",
    ("post", "/v2/systemsharedmemory/unregister"): "unregisterAllSharedMemory",
    ("get", "/v2/cudasharedmemory/status"): "getCudaSharedMemoryStatus",
    ("get", "/v2/cudasharedmemory/region/{region}/status"): "getCudaSharedMemoryRegion",
    ("post", "/v2/cudasharedmemory/region/{region}/register"): "registerCudaSharedMemory",
    ("post", "/v2/cudasharedmemory/region/{region}/unregister"): "unregisterCudaSharedMemory",
    ("post", "/v2/cudasharedmemory/unregister"): "unregisterAllCudaSharedMemory",
}
"""Generated clients name their functions by these: a change breaks the code that calls them."""

JSON, MSGPACK, PROBLEM, TEXT = "application/json", "application/msgpack", "application/problem+json", "text/plain"
BINARY = "application/octet-stream"
OPEN = {"live", "ready", "getServerLive", "getServerReady"}  # need no API key
READINESS = {"ready", "getServerReady", "getModelReady", "getModelVersionReady"}  # 503 is an answer
LIVE = {*OPEN, *READINESS, "getMetrics"}  # are of this moment, so nobody is told that they are the same still
SILENT = {
    *("registerSharedMemory", "unregisterSharedMemory", "unregisterAllSharedMemory"),
    *("registerCudaSharedMemory", "unregisterCudaSharedMemory", "unregisterAllCudaSharedMemory"),
    *("loadModel", "unloadModel"),
}
INFER = {"modelInfer", "modelVersionInfer"}

DISPATCHES = {"dispatch", "dispatchGraph"}

LOADING = {"getGraph", "getModelMetadata", "getModelVersionMetadata", "getModelReady", "getModelVersionReady"}
LOADING |= {"getModelStatistics", "getModelVersionStatistics", "loadModel", "unloadModel"}
LOADING |= {"getModelConfig", "getModelVersionConfig"}
"""They may be of a graph that another worker has."""

PARAMETERS = {"id": example_id(), "Type": "ACTIVATION_CELU", "name": "activation_celu", "version": "1", "region": "r"}
"""What paths are tried with."""

every_operation = pytest.mark.parametrize(("method", "path"), OPERATION_IDS, ids=OPERATION_IDS.values())


def filled(path: str) -> str:
    """`path` with values for its parameters."""
    for name, value in PARAMETERS.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def found(document: Json, method: str, path: str) -> Json:
    """An operation, with its answers in the place of what refers to them."""
    operation: Json = document["paths"][path][method]
    answers = operation["responses"].items()
    stated = {status: resolved(document, each["$ref"]) if "$ref" in each else each for status, each in answers}
    return operation | {"responses": stated}


def resolved(document: Json, reference: str) -> Any:
    """What a $ref of the document leads to."""
    assert reference.startswith("#/")
    part: Any = document
    for name in reference[2:].split("/"):
        part = part[name.replace("~1", "/").replace("~0", "~")]
    return part


def everything(part: Any) -> Iterator[Json]:
    """Every object of a document."""
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from everything(each)


def test_it_says_under_which_license(document: Json) -> None:
    assert document["info"]["license"] == {"name": "MIT", "identifier": "MIT"}


def test_it_is_valid_openapi(document: Json) -> None:
    assert document["openapi"].startswith("3.1.")
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_what_is_long_is_stated_once(document: Json) -> None:
    """Refusals and choices of many: generators make code of each place that states them."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                assert "$ref" in answer or status < "300" or operation["operationId"] in READINESS
    choices = [str(part["oneOf"]) for part in everything(document) if len(part.get("oneOf", ())) > 10]
    assert len(choices) == len(set(choices)) == 4  # operators, and three of activations


def test_operation_ids_are_stable(document: Json) -> None:
    ids = {
        (method, path): operation["operationId"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert ids == OPERATION_IDS


def test_every_reference_leads_somewhere(document: Json) -> None:
    references = [part["$ref"] for part in everything(document) if isinstance(part.get("$ref"), str)]
    for part in everything(document):
        if "propertyName" in part and "mapping" in part:
            references += part["mapping"].values()
    assert len(references) > 100
    for reference in references:
        assert isinstance(resolved(document, reference), dict), reference


def test_every_component_is_used_and_described(document: Json) -> None:
    used = {part["$ref"] for part in everything(document) if isinstance(part.get("$ref"), str)}
    for kind in ("schemas", "headers", "responses"):
        for name, component in document["components"][kind].items():
            assert f"#/components/{kind}/{name}" in used
            assert component["description"], name
            assert "title" not in component, "generators would name classes by it"


def test_what_generators_would_take_for_something_else(document: Json) -> None:
    """Integers for those of 32 bits, titles for names of classes, the type of Type for a schema of that name, and one
    of several objects for one that has all fields."""
    schemas = document["components"]["schemas"]
    assert {part["format"] for part in everything(schemas) if part.get("type") == "integer"} == {"int64"}
    fields = [(name, field) for name, schema in schemas.items() for field in schema.get("properties", {}).values()]
    titles = {name: field["title"] for name, field in fields if "title" in field}
    assert titles == {name: "OperatorType" for name in schemas if f"{name}Type" in schemas} != {}
    choices = [part["anyOf"] for part in everything(schemas) if "anyOf" in part]
    assert not any(all("$ref" in each for each in choice) for choice in choices)


def test_which_headers_are_numbers(document: Json) -> None:
    kinds = {name: header["schema"]["type"] for name, header in document["components"]["headers"].items()}
    numbers = ("Inference-Header-Content-Length", "Retry-After")
    assert kinds == dict.fromkeys(kinds, "string") | dict.fromkeys(numbers, "integer")


@every_operation
def test_every_operation_is_described(document: Json, method: str, path: str) -> None:
    operation = found(document, method, path)
    assert set(operation["tags"]) <= {tag["name"] for tag in document["tags"] if tag["description"]}
    assert len(operation["tags"]) == 1
    assert re.fullmatch(r"[A-Z][\w ]{7,44}", operation["summary"])
    summaries = [each["summary"] for operations in document["paths"].values() for each in operations.values()]
    assert summaries.count(operation["summary"]) == 1
    assert operation["description"].endswith(".")
    for parameter in operation["parameters"]:
        assert parameter["description"].endswith(".")
        assert parameter["schema"]


@every_operation
def test_every_answer_has_a_schema(document: Json, method: str, path: str) -> None:
    operation = found(document, method, path)
    name = operation["operationId"]
    several = {each: {JSON, MSGPACK} for each in (*DISPATCHES, "checkFeatureSupport", "keepGraph", "runDxDispatch")}
    several |= {each: {JSON, MSGPACK, *FORMATS} for each in DISPATCHES}
    several |= {"getMetrics": {TEXT, "application/openmetrics-text"}, "dispatchFiles": {JSON, MSGPACK, *FORMATS}}
    several |= {each: {JSON, BINARY} for each in INFER} | {each: set() for each in SILENT}
    for status, answer in operation["responses"].items():
        contents = answer.get("content", {})
        if status in ("204", "304"):
            assert not contents
        elif status in ("200", "201"):
            assert set(contents) == several.get(name, {JSON})
        elif name in READINESS and status == "503":
            assert contents == operation["responses"]["200"]["content"]
        else:
            forms = {PROBLEM: "ProblemDetails"}
            if path.startswith("/v2"):  # but what is no HTTP has no path yet
                early = forms if status in ("400", "408", "414", "431", "500") else {}
                forms = early | {JSON: "InferenceError"}
            expected = {kind: {"schema": {"$ref": f"#/components/schemas/{form}"}} for kind, form in forms.items()}
            assert contents == expected
        assert answer["description"].endswith(".")
        assert all(content["schema"] for content in contents.values())
        assert "X-Request-ID" in answer["headers"]
    assert [status for status, answer in operation["responses"].items() if "ETag" in answer["headers"]] == (
        ["200", "304"] if "304" in operation["responses"] else []
    )
    assert ("Retry-After" in operation["responses"].get("503", {}).get("headers", {})) == (
        "503" in operation["responses"]
    )


@every_operation
def test_every_refusal_is_listed(document: Json, method: str, path: str) -> None:
    operation = found(document, method, path)
    name = operation["operationId"]
    expected = {204 if name == "dropGraph" else 200, 400, 408, 414, 431, 500}
    if method in ("get", "delete"):
        expected |= {412}
    if method == "get" and name not in LIVE:
        expected |= {304}
    if name not in OPEN:
        expected |= {401, 403, 429}
    if path.startswith("/v1/") and method != "delete":
        expected |= {406}
    if "{" in path or "sharedmemory" in path:
        expected |= {404}
    if "requestBody" in operation:
        expected |= {413, 415, 503}
    if name == "timeGraph":
        expected |= {413, 503, 504}
    if path.startswith("/v1/"):
        expected |= {422}
    if name in (*DISPATCHES, *INFER, "runDxDispatch", "dispatchFiles", "dropGraph"):
        expected |= {504}
    if name in LOADING:
        expected |= {503, 504}
    if name == "keepGraph":
        expected |= {201, 409, 504, 507}
    if name in ("loadModel", "unloadModel"):
        expected |= {507}
    if name in READINESS:
        expected |= {503}
    if name in ("registerSharedMemory", "registerCudaSharedMemory", "loadModel"):
        expected |= {409}
    assert set(operation["responses"]) == {str(status) for status in expected}
    assert operation.get("security", document["security"]) == ([] if name in OPEN else [{}, {"bearer": []}])


@pytest.fixture(scope="module")
def strict_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service that refuses much."""
    log = tmp_path_factory.mktemp("strict") / "log"
    with (
        running_server(log, "--max-body-bytes", "1024", "--shared-memory", DMLSERVE_API_KEYS="secret") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        kept = client.post("/v1/graphs", json=EXAMPLE, headers={"authorization": "Bearer secret"})
        assert kept.json()["id"] == PARAMETERS["id"]
        yield client


@every_operation
def test_refusals_are_those_listed(document: Json, strict_client: httpx.Client, method: str, path: str) -> None:
    listed = found(document, method, path)["responses"]
    template, path = path, filled(path)
    key = {"authorization": "Bearer secret"}
    tried: list[tuple[int, dict[str, str], bytes]] = [(431, key | {"x-long": "x" * 40_000}, b"")]
    if "401" in listed:
        tried += [(401, {}, b""), (401, {"authorization": "Bearer other"}, b"")]
    else:
        assert strict_client.get(path).status_code == 200
    if "406" in listed:
        tried += [(406, key | {"accept": "image/png"}, b"")]
    json, wrong = key | {"content-type": JSON}, b"{}"
    if template == "/v1/operators/{Type}/dispatch":
        json, wrong = key | {"content-type": "application/x-npy"}, npy(np.zeros(1, ">f4"))
    if method == "get" and strict_client.get(path, headers=key).status_code == 200:
        tried += [(412, key | {"if-match": '"other"'}, b"")]
        same = strict_client.get(path, headers=key | {"if-none-match": "*"})
        assert (same.status_code == 304) == ("304" in listed)
        assert all(name in same.headers for name in listed[str(same.status_code)]["headers"])
    if "requestBody" in found(document, method, template):
        tried += [(400, json, b"{"), (413, json, b" " * 2000), (415, json | {"content-encoding": "br"}, b"{}")]
    if "415" in listed and "422" in listed:
        tried += [(415, key, b"{}"), (422, json, wrong)]
    for status, headers, content in tried:
        response = strict_client.request(method, path, headers=headers, content=content)
        if template.startswith("/v2"):
            error_of(response, status)
            assert JSON in listed[str(status)]["content"]
        else:
            problem_of(response, status)
            assert PROBLEM in listed[str(status)]["content"]
        assert all(name in response.headers for name in listed[str(status)]["headers"])


def test_filters_of_operators_are_as_described(document: Json, client: httpx.Client) -> None:
    operation = found(document, "get", "/v1/operators")
    filters = {each["name"]: each["schema"] for each in operation["parameters"] if each["in"] == "query"}
    assert filters.keys() == {"family", "data_type", "feature_level"}
    for name, schema in filters.items():
        stated = resolved(document, schema["$ref"]) if "$ref" in schema else schema
        for value in stated["enum"]:
            assert client.get("/v1/operators", params={name: value}).status_code == 200, (name, value)
        refused = problem_of(client.get("/v1/operators", params={name: "other"}), 422)
        assert set(refused["errors"][0]["allowed"]) <= set(stated["enum"])
    everything = client.get("/v1/operators").json()
    assert (
        client.get("/v1/operators", params={"feature_level": filters["feature_level"]["default"]}).json() == everything
    )


def test_what_a_draining_service_answers_is_listed(document: Json, start_server: ServerFactory) -> None:
    server = start_server("--drain-seconds", "30")
    with httpx.Client(base_url=server.url) as client:
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while (ready := client.get("/health/ready")).status_code == 200 and time.monotonic() < end:
            time.sleep(0.02)
    listed = found(document, "get", "/health/ready")["responses"]["503"]
    assert ready.headers["content-type"] in listed["content"]
    assert all(name in ready.headers for name in listed["headers"])
    assert ready.json()["status"] == "draining"


def test_dispatch_has_both_media_types(document: Json) -> None:
    operation = found(document, "post", "/v1/dispatch")
    for content, names in (
        (operation["requestBody"]["content"], ["DispatchRequest", "GraphDispatchRequest"]),
        (operation["responses"]["200"]["content"], ["DispatchResponse"]),
    ):
        assert content.keys() - FORMATS.keys() == {JSON, MSGPACK}
        for kind, suffix in ((JSON, ""), (MSGPACK, "Msgpack")):
            schema = content[kind]["schema"]
            if kind == MSGPACK:
                assert schema["contentMediaType"] == MSGPACK
                schema = schema["contentSchema"]
            elif len(names) > 1:  # which generators would give the name of another schema
                schema = resolved(document, schema["$ref"])
                assert schema.pop("description")
            forms = [{"$ref": f"#/components/schemas/{name}{suffix}"} for name in names]
            assert schema == (forms[0] if len(forms) == 1 else {"oneOf": forms})


def test_messagepack_differs_from_json_in_tensor_data_only(document: Json) -> None:
    schemas = document["components"]["schemas"]

    def without_data(part: Any) -> Any:
        if isinstance(part, list):
            return [without_data(each) for each in part]
        if not isinstance(part, dict):
            return part.removesuffix("Msgpack") if isinstance(part, str) else part
        choices = part.get("oneOf", [part])
        if any(each.get("contentEncoding") == "base64" or each.get("format") == "binary" for each in choices):
            return "data"
        if part == DATA:
            return "data"
        return {name: without_data(each) for name, each in part.items()}

    forms = {name for name in schemas if name.endswith("Msgpack")}
    graphs = (
        "GraphDispatchRequest",
        "GraphKeepRequest",
        "OnnxKeepRequest",
        "GraphExecuteRequest",
        "GraphDesc",
        "ConstantNode",
    )
    dispatches = ("DispatchRequest", "DispatchResponse", "OutputTensor")
    models = ("ModelRun", "PrintedResource", "WrittenFile")
    assert forms == {f"{name}Msgpack" for name in (*dispatches, *graphs, *models)}
    for form in forms:
        plain = schemas[form.removesuffix("Msgpack")]
        assert schemas[form] != plain
        assert without_data(schemas[form]) == without_data(plain)
    assert not any(part.get("contentEncoding") for form in forms for part in everything(schemas[form]))
    for part in (part for form in forms for part in everything(schemas[form]) if "discriminator" in part):
        assert set(part["discriminator"]["mapping"].values()) == {each["$ref"] for each in part["oneOf"]}


def test_every_operator_is_there_with_all_its_fields(document: Json) -> None:
    schemas = document["components"]["schemas"]
    choice = schemas["AnyOperator"]
    for form in ("DispatchRequest", "DispatchRequestMsgpack"):
        assert schemas[form]["properties"]["operator"]["$ref"] == "#/components/schemas/AnyOperator"
    assert schemas["OperatorNode"]["properties"]["Desc"]["$ref"] == "#/components/schemas/AnyOperator"
    mapping = choice["discriminator"]["mapping"]
    assert choice["oneOf"] == [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in OPERATORS.values()]
    other = {f"{prefix}SCATTER_ELEMENTS" for prefix in (PREFIX, "")}  # the one operator of two names
    assert mapping.keys() == OPERATORS.keys() | {name.removeprefix(PREFIX) for name in OPERATORS} | other
    for name, kind in OPERATORS.items():
        assert mapping[name] == mapping[name.removeprefix(PREFIX)] == f"#/components/schemas/{kind.__name__}"
        schema = schemas[kind.__name__]
        assert schema["description"] == kind.summary()
        assert schema["additionalProperties"] is False
        assert schema["properties"].keys() == kind.model_fields.keys()
        assert set(schema["required"]) == {field for field, info in kind.model_fields.items() if info.is_required()}
        assert schema["properties"]["Type"]["enum"][:2] == [name, name.removeprefix(PREFIX)]
        for field, info in kind.model_fields.items():
            stated = schema["properties"][field]
            if not info.is_required() and info.default is not None:
                assert stated["default"] == info.default
            assert stated.keys() & {"type", "$ref", "anyOf", "oneOf"}


def reached(document: Json, name: str) -> set[str]:
    """The schema called `name` and all that it mentions, at any depth."""
    found: set[str] = set()
    new = {name}
    while new:
        found |= new
        parts = [part for each in new for part in everything(document["components"]["schemas"][each])]
        new = {str(part["$ref"]).rpartition("/")[2] for part in parts if isinstance(part.get("$ref"), str)} - found
    return found


def test_every_field_of_a_request_is_described(document: Json) -> None:
    schemas = document["components"]["schemas"]
    queries = reached(document, "TensorDataTypeSupportQuery") | reached(document, "FeatureLevelsQuery")
    dispatches = {
        name
        for request in ("DispatchRequest", "GraphDispatchRequest", "GraphKeepRequest", "GraphExecuteRequest")
        for name in reached(document, request) | reached(document, f"{request}Msgpack")
    }
    assert {kind.__name__ for kind in OPERATORS.values()} | {"TensorDesc", "ScaleBias", "ScalarUnion"} < dispatches
    for name in queries | dispatches:
        assert schemas[name]["description"], name
        for field, stated in schemas[name].get("properties", {}).items():
            assert stated.get("description", "").endswith((".", "?")), f"{name}.{field}"


def test_fields_that_are_no_plain_numbers(document: Json) -> None:
    """Constants, numbers of a type that another field tells, lists, and activations within an operator."""
    schemas = document["components"]["schemas"]

    def stated(operator: str, field: str) -> Any:
        return schemas[operator]["properties"][field]

    assert stated("ElementWiseRound", "RoundingMode")["$ref"] == "#/components/schemas/RoundingMode"
    assert {"TOWARD_ZERO", "DML_ROUNDING_MODE_TOWARD_ZERO"} < set(schemas["RoundingMode"]["enum"])
    assert stated("ElementWiseClip1", "Min")["oneOf"] == [
        {"type": "number"},
        {"$ref": "#/components/schemas/ScalarUnion"},
    ]
    assert {"Float32", "Int64", "UInt8"} < schemas["ScalarUnion"]["properties"].keys()
    assert stated("ActivationSoftmax1", "Axes")["type"] == "array"
    fused, nothing = stated("ElementWiseAdd1", "FusedActivation")["anyOf"]
    assert nothing == {"type": "null"}
    assert stated("Lstm", "ActivationDescs")["items"] == fused == {"$ref": "#/components/schemas/AnyActivation"}
    fused = resolved(document, fused["$ref"])
    assert fused["discriminator"]["propertyName"] == "Type"
    assert len(fused["oneOf"]) > 10
    for name, reference in fused["discriminator"]["mapping"].items():
        schema = resolved(document, reference)
        assert name in schema["properties"]["Type"]["enum"]
        attributes = schemas[OPERATORS[PREFIX + name.removeprefix(PREFIX)].__name__]["properties"].keys()
        assert schema["properties"].keys() == attributes - {"InputTensor", "OutputTensor"}
        assert set(schema["required"]) == schema["properties"].keys()  # nothing is implied within another operator


def examples(document: Json) -> Iterator[tuple[str, Any]]:
    """Examples of request bodies, each with its path."""
    for path, operations in document["paths"].items():
        body = operations.get("post", {}).get("requestBody", {"content": {}})
        for content in body["content"].values():
            if "example" in content:
                yield filled(path), content["example"]
            for each in content.get("examples", {}).values():
                yield filled(path), each["value"]


def with_bytes(example: Json) -> Json:
    """`example` with its tensor data as MessagePack has them."""
    made: Json = json.loads(json.dumps(example))
    if inputs := made.get("inputs"):
        made["inputs"] = {
            name: [base64.b64decode(each) for each in data] if isinstance(data, list) else base64.b64decode(data)
            for name, data in inputs.items()
        }
    for node in made.get("graph", {"Nodes": []})["Nodes"]:
        if "Data" in node:
            node["Data"] = base64.b64decode(node["Data"])
    return made


def test_every_example_gives_200(document: Json, client: httpx.Client) -> None:
    tried = list(examples(document))
    assert {example["operator"]["Type"] for _, example in tried if "operator" in example} == OPERATORS.keys()
    assert len({path for path, _ in tried}) == 8
    client.delete(f"/v1/graphs/{PARAMETERS['id']}")
    for path, example in tried:
        response = client.post(path, json=example)
        assert response.status_code == (201 if path == "/v1/graphs" else 200), response.text
        if path.startswith(("/v2", "/v1/dxdispatch")):
            continue
        packed = msgpack.packb(with_bytes(example))
        response = client.post(path, content=packed, headers={"content-type": MSGPACK})
        assert response.status_code == 200, response.text


def test_example_answers_are_those_to_the_example_requests(document: Json, client: httpx.Client) -> None:
    def comparable(answer: Json) -> Json:
        execution, parameters = answer.get("execution", {}), answer.get("parameters", {})
        varying = {"execution": list(execution), "parameters": list(parameters)}  # which device, and how long it took
        return answer | varying

    client.post("/v1/graphs", json=EXAMPLE)
    tried = set()
    for template, operations in document["paths"].items():
        content = operations.get("post", {}).get("responses", {}).get("200", {}).get("content", {})
        answer = content.get(JSON, {}).get("example")
        if answer:
            tried.add(template)
            path, example = next(each for each in examples(document) if each[0] == filled(template))
            response = client.post(path, json=example).raise_for_status()
            assert comparable(response.json()) == comparable(answer)
    infer = {"/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"}
    assert tried == {"/v1/dispatch", "/v1/graphs/{id}/dispatch", "/v1/feature-support"} | infer


def test_examples_of_parameters_give_200(document: Json, client: httpx.Client) -> None:
    tried = 0
    client.post("/v1/graphs", json=EXAMPLE)
    for template, operations in document["paths"].items():
        path = template
        for parameter in operations.get("get", {}).get("parameters", []):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        if path != template and "sharedmemory" not in path:  # which is off
            tried += 1
            assert client.get(path).status_code == 200
    assert tried == 10
