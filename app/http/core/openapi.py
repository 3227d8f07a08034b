"""The OpenAPI document: what the routes say of themselves, and the schemas of everything they mention.

Routes read and write documents themselves, for the sake of tensor data, so FastAPI cannot see their models; the
functions here state them, once, and `install` adds their schemas to the document.
"""

from collections.abc import Container, Sequence
from typing import Any, TypeAlias, get_args, get_origin

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from starlette.responses import Response

from app.engine.capabilities import FeatureSupportQuery, example
from app.engine.dispatch import DispatchRequest, DispatchResponse, GraphDispatchRequest
from app.engine.graph_documents import (
    EXAMPLE,
    EXAMPLE_DATA,
    GraphExecuteRequest,
    GraphKeepRequest,
    KeptGraphDescription,
    OnnxKeepRequest,
    OnnxQuery,
    example_id,
)
from app.http.core.problems import MEDIA_TYPE, ProblemDetails
from app.models.dxdispatch.answer import EXAMPLE as MODEL
from app.models.dxdispatch.answer import ModelRun
from app.models.dxdispatch.document import ModelFile
from app.operators.catalog import OPERATORS

Json: TypeAlias = dict[str, Any]

JSON, MSGPACK, OCTETS = "application/json", "application/msgpack", "application/octet-stream"
BIN = {"type": "string", "format": "binary", "description": "MessagePack's bin."}

_REFUSALS = {
    400: "The request cannot be read.",
    401: "An API key is required.",
    403: "The API key is not for this method and path.",
    404: "There is no such thing.",
    406: "Accept names no representation that this resource has.",
    408: "The request did not arrive in time.",
    409: "There is such a thing already.",
    413: "The request is over a limit.",
    415: "Content-Type names no representation that can be read.",
    422: "The request is against the contract.",
    429: "The API key's limits are used up; try again after Retry-After seconds.",
    431: "The request's header is over a limit.",
    500: "The service failed.",
    503: "The service is busy, starting or draining; try again after Retry-After seconds.",
    504: "The deadline passed.",
    507: "There is no room for it beside what is kept.",
}
_ANY = (400, 408, 431, 500)
_API = (401, 406)
_WITH_BODY = (413, 415, 422, 503)
_HEADERS = {
    "X-Request-ID": "Id of the request, as sent or made.",
    "Inference-Header-Content-Length": "Bytes of the JSON at the beginning of a body that goes on with binary data.",
    "WWW-Authenticate": "How to send an API key (RFC 6750).",
    "Retry-After": "Seconds to wait before the request is sent again.",
    "Location": "Path of what was made.",
    "Preference-Applied": "What was asked for by Prefer and done.",
    "Tensor-DataType": "Data type of the output that is the body, if that is application/octet-stream.",
    "Tensor-Sizes": "Its sizes, separated by commas.",
}
_TEXT_HEADERS = (
    "X-Request-ID",
    "WWW-Authenticate",
    "Location",
    "Preference-Applied",
    "Tensor-DataType",
    "Tensor-Sizes",
)
_HEADERS_OF = {401: "WWW-Authenticate", 403: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}
_WITH_KEY = (403, 429)
"""What a valid key may be answered, wherever a key is asked for."""

_schemas: dict[str, TypeAdapter[Any]] = {}
_unions: dict[str, Json] = {}
_SCHEMAS = "#/components/schemas/"

OPERATOR_NAME = {
    "name": "Type",
    "in": "path",
    "required": True,
    "description": "An operator's name, with or without DML_OPERATOR_.",
    "schema": {"type": "string"},
    "example": "DML_OPERATOR_ACTIVATION_CELU",
}
GRAPH_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id of a kept graph, as POST /v1/graphs gave it.",
    "schema": {"type": "string"},
    "example": example_id(),
}
_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "required": False,
    "description": "Id of the request, for the log and the answer; made here if absent or not of 1 to 128 characters.",
    "schema": {"type": "string"},
}


_PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "return=minimal leaves the capability out of an answer that is a document.",
    "schema": {"type": "string"},
}


def query(model: type[BaseModel]) -> list[Json]:
    """Query parameters: the fields of `model`, none of which is required."""
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": info.description,
            "schema": _parameter_schema(info),
        }
        for name, info in model.model_fields.items()
    ]


def dispatch() -> dict[str, Any]:
    """Of POST /v1/dispatch."""
    examples = {operator.short_name(): {"value": example(operator)} for operator in OPERATORS.values()}
    examples["GRAPH"] = {"value": EXAMPLE | EXAMPLE_DATA}
    body = {
        JSON: {"schema": union("AnyDispatchRequest", DispatchRequest, GraphDispatchRequest), "examples": examples},
        MSGPACK: _msgpack(DispatchRequest, GraphDispatchRequest, suffix="Msgpack"),
    }
    answers = {JSON: {"schema": ref(DispatchResponse)}, MSGPACK: _msgpack(DispatchResponse, suffix="Msgpack")}
    return _preferring(operation("dispatch", answers, *_API, *_WITH_BODY, 504, body=body))


def dxdispatch(asked: type[BaseModel]) -> dict[str, Any]:
    """Of POST /v1/dxdispatch, whose query is `asked`."""
    body = {
        JSON: {"schema": ref(ModelFile), "example": MODEL},
        OCTETS: {
            "schema": {
                "type": "string",
                "format": "binary",
                "contentMediaType": "application/zip",
                "description": "A zip of a model and the files that it names; application/zip is taken as well.",
            }
        },
    }
    answers = {JSON: {"schema": ref(ModelRun)}, MSGPACK: _msgpack(ModelRun, suffix="Msgpack")}
    return operation("runDxDispatch", answers, *_API, *_WITH_BODY, 504, body=body, parameters=query(asked))


def keep() -> dict[str, Any]:
    """Of POST /v1/graphs."""
    body = {
        JSON: {"schema": union("AnyGraphKeepRequest", GraphKeepRequest, OnnxKeepRequest), "example": EXAMPLE},
        MSGPACK: _msgpack(GraphKeepRequest, OnnxKeepRequest, suffix="Msgpack"),
        OCTETS: {"schema": {"type": "string", "format": "binary", "description": "An ONNX model."}},
    }
    answers = {JSON: {"schema": ref(KeptGraphDescription)}, MSGPACK: _msgpack(KeptGraphDescription)}
    parameters = query(OnnxQuery)
    made = operation("keepGraph", answers, *_API, *_WITH_BODY, 409, 504, 507, body=body, parameters=parameters)
    responses = made["openapi_extra"]["responses"]
    responses["200"] = responses["200"] | {"description": "The graph is kept already."}
    responses["201"] = responses["200"] | {"description": "The graph is kept."}
    for status in ("200", "201"):
        headers = responses[status]["headers"]
        responses[status]["headers"] = headers | {"Location": {"$ref": "#/components/headers/Location"}}
    return made | {"status_code": 201}


def graph_dispatch() -> dict[str, Any]:
    """Of POST /v1/graphs/{id}/dispatch."""
    body = {
        JSON: {"schema": ref(GraphExecuteRequest), "example": EXAMPLE_DATA},
        MSGPACK: _msgpack(GraphExecuteRequest, suffix="Msgpack"),
    }
    answers = {JSON: {"schema": ref(DispatchResponse)}, MSGPACK: _msgpack(DispatchResponse, suffix="Msgpack")}
    made = operation("dispatchGraph", answers, *_API, *_WITH_BODY, 404, 504, body=body, parameters=[GRAPH_ID])
    return _preferring(made)


def files(media_types: Sequence[str]) -> dict[str, Any]:
    """Of POST /v1/operators/{Type}/dispatch."""
    binary = {"type": "string", "format": "binary"}
    of_type = {each: {"schema": binary} for each in media_types}
    answers = of_type | {JSON: {"schema": ref(DispatchResponse)}}
    answers[MSGPACK] = _msgpack(DispatchResponse, suffix="Msgpack")
    parameters = [
        OPERATOR_NAME,
        {
            "name": "attributes",
            "in": "query",
            "required": False,
            "description": "Attributes by name, those of structures dotted (ScaleBias.Scale), lists with commas; "
            "feature_level, device and in_place; of a tensor that comes without, DataType and Sizes.",
            "style": "form",
            "explode": True,
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            "example": {"Alpha": "2"},
        },
    ]
    made = operation("dispatchFiles", answers, *_API, *_WITH_BODY, 404, 504, body=of_type, parameters=parameters)
    headers = made["openapi_extra"]["responses"]["200"]["headers"]
    for name in ("Tensor-DataType", "Tensor-Sizes"):
        headers[name] = {"$ref": f"#/components/headers/{name}"}
    return _preferring(made)


def _preferring(made: dict[str, Any]) -> dict[str, Any]:
    """`made`, an operation, with what Prefer may ask of it."""
    extra = made["openapi_extra"]
    extra["parameters"] = [*extra["parameters"], _PREFER]
    extra["responses"]["200"]["headers"]["Preference-Applied"] = {"$ref": "#/components/headers/Preference-Applied"}
    return made


def deletion(operation_id: str, *statuses: int, parameters: Sequence[Json]) -> dict[str, Any]:
    """Of a DELETE."""
    made = operation(operation_id, {}, 401, *statuses, parameters=parameters)
    responses = made["openapi_extra"]["responses"]
    responses["204"] = {"description": "Done.", "headers": responses.pop("200")["headers"]}
    return made | {"status_code": 204}


def feature_support(kind: Any) -> dict[str, Any]:
    """Of POST /v1/feature-support, which answers with `kind`."""
    asked = {"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0", "5_0"]}
    body = {JSON: {"schema": ref(FeatureSupportQuery), "example": asked}, MSGPACK: _msgpack(FeatureSupportQuery)}
    answers = {JSON: {"schema": {"oneOf": [ref(each) for each in get_args(kind)]}}, MSGPACK: _msgpack(*get_args(kind))}
    return operation("checkFeatureSupport", answers, *_API, *_WITH_BODY, body=body)


def answer(operation_id: str, kind: Any, *statuses: int, parameters: Sequence[Json] = ()) -> dict[str, Any]:
    """Of a GET that answers with `kind` in JSON."""
    schema = {"type": "array", "items": ref(*get_args(kind))} if get_origin(kind) is list else ref(kind)
    return operation(operation_id, {JSON: {"schema": schema}}, *_API, *statuses, parameters=parameters)


def health(operation_id: str, kind: Any, *statuses: int) -> dict[str, Any]:
    """Of a GET that probes send, which have no key; it answers with `kind` whatever the status."""
    answers = {JSON: {"schema": ref(kind)}}
    made = operation(operation_id, answers, *statuses)
    for status in statuses:
        made["openapi_extra"]["responses"][str(status)]["content"] = answers
    made["openapi_extra"]["security"] = []
    return made


def metrics() -> dict[str, Any]:
    """Of GET /metrics."""
    text = {"schema": {"type": "string"}}
    return operation("getMetrics", {"text/plain": text, "application/openmetrics-text": text}, 401)


def install(app: FastAPI) -> None:
    """Have `app` answer with the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            components = made.setdefault("components", {})
            components["schemas"] = _definitions()
            components["headers"] = {
                name: {"description": text, "schema": {"type": "string" if name in _TEXT_HEADERS else "integer"}}
                for name, text in _HEADERS.items()
            }
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, where keys are set."}
            }
            made["security"] = [{}, {"bearer": []}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def operation(
    operation_id: str,
    answers: dict[str, Any],
    *statuses: int,
    body: dict[str, Any] | None = None,
    parameters: Sequence[Json] = (),
    error: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments for a route's decorator. `error` is the form of a refusal, if not a problem."""
    problem = {MEDIA_TYPE: {"schema": ref(ProblemDetails)}}
    responses = {"200": {"description": "Success.", "headers": _headers(200), "content": answers}}
    for status in sorted({*_ANY, *statuses, *(_WITH_KEY if 401 in statuses else ())}):
        responses[str(status)] = {
            "description": _REFUSALS[status],
            "headers": _headers(status),
            # What is no HTTP, or too much of a header, is refused before the path is known.
            "content": problem if status == 431 else (error or problem) | (problem if status in _ANY else {}),
        }
    extra: dict[str, Any] = {"responses": responses, "parameters": [_REQUEST_ID, *parameters]}
    if body:
        extra["requestBody"] = {"required": True, "content": body}
    # Any other response class would have FastAPI add its media type.
    return {"operation_id": operation_id, "openapi_extra": extra, "response_class": Response}


def _headers(status: int) -> dict[str, Any]:
    names = ["X-Request-ID"] + ([_HEADERS_OF[status]] if status in _HEADERS_OF else [])
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def ref(kind: Any) -> dict[str, str]:
    """A reference to the schema of `kind`, which is added to the document."""
    _schemas[kind.__name__] = TypeAdapter(kind)
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def union(name: str, *kinds: Any) -> dict[str, str]:
    """A reference to the schema of one of `kinds`, which is added to the document as `name`.

    Without a name of its own generators call a body after its operation, and DispatchRequest is another schema.
    """
    _unions[name] = {"description": "One of these.", "oneOf": [ref(kind) for kind in kinds]}
    return {"$ref": f"#/components/schemas/{name}"}


def _parameter_schema(info: FieldInfo) -> Json:
    """Of a constant or of one of some texts; null is said by leaving the parameter out."""
    (kind,) = [each for each in get_args(info.annotation) or (info.annotation,) if each is not type(None)]
    is_named = isinstance(kind, type) and kind is not str
    schema = ref(kind) if is_named else TypeAdapter(kind).json_schema()
    return schema if info.default is None else schema | {"default": info.default}


def _msgpack(*kinds: Any, suffix: str = "") -> dict[str, Any]:
    """A body in MessagePack: bytes to generators, and what is in them to readers."""
    contents = [{"$ref": ref(kind)["$ref"] + suffix} for kind in kinds]
    schema = {
        "type": "string",
        "format": "binary",
        "contentMediaType": MSGPACK,
        "contentSchema": contents[0] if len(contents) == 1 else {"oneOf": contents},
        "description": "MessagePack of the same structure as in JSON; tensor data are bin.",
    }
    return {"schema": schema}


def _definitions() -> dict[str, Any]:
    _, schemas = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in _schemas.items()],
        ref_template="#/components/schemas/{model}",
    )
    definitions: dict[str, Any] = schemas["$defs"]
    for name, schema in definitions.items():
        schema.pop("title", None)  # generators name classes by titles, and the forms for MessagePack have the same
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
            if field.get("default", ...) is None:
                del field["default"]  # generators take a field with a default for one that is always there
        if f"{name}Type" in definitions:  # what generators call the type of Type, unless it has a title
            schema["properties"]["Type"]["title"] = "OperatorType"
    _widen(definitions)
    _exclude(definitions)
    return dict(sorted((definitions | _msgpack_forms(definitions) | _unions).items()))


def _widen(part: Any) -> None:
    """Say that integers have 64 bits, where generators would take 32, which sizes and times do not fit."""
    if isinstance(part, dict) and part.get("type") == "integer":
        part["format"] = "int64"
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _widen(each)


def _exclude(part: Any) -> None:
    """Say that objects exclude each other: of any of several some generators make one that has all fields.

    Not of an object and a list of such, of which openapi-generator makes TypeScript that does not compile.
    """
    if isinstance(part, dict) and all("$ref" in each for each in part.get("anyOf", [{}])):
        part["oneOf"] = part.pop("anyOf")
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _exclude(each)


def _msgpack_forms(definitions: dict[str, Any]) -> dict[str, Any]:
    """Copies of the schemas that hold tensor data, in which those are binary."""
    forms: dict[str, Any] = {}
    while True:
        made = {name: _in_msgpack(schema, forms) for name, schema in definitions.items()}
        changed = {f"{name}Msgpack": form for name, form in made.items() if form != definitions[name]}
        if changed.keys() == forms.keys():
            return changed
        forms = changed


def _in_msgpack(schema: Any, forms: Container[str]) -> Any:
    """`schema` with binary for base64, referring to `forms` where there are any."""
    if isinstance(schema, list):
        return [_in_msgpack(each, forms) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("contentEncoding") == "base64":
        return BIN
    return {
        key: f"{value}Msgpack"
        if isinstance(value, str) and value.startswith(_SCHEMAS) and f"{value.removeprefix(_SCHEMAS)}Msgpack" in forms
        else _in_msgpack(value, forms)
        for key, value in schema.items()
    }
