"""The OpenAPI document: what the routes say of themselves, and the schemas of everything they mention.

Routes read and write documents themselves, for the sake of tensor data, so FastAPI cannot see their models; the
functions here state them, once, and `install` adds their schemas to the document.
"""

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from app.capabilities import FeatureSupportQuery, example
from app.dispatch import BASE64, DispatchRequest, DispatchResponse
from app.http.problems import MEDIA_TYPE, ProblemDetails
from app.operators.catalog import OPERATORS

JSON, MSGPACK = "application/json", "application/msgpack"
BINARY = {"type": "string", "format": "binary", "description": "MessagePack's bin."}

_REFUSALS = {
    400: "The request cannot be read.",
    401: "An API key is required.",
    404: "There is no such thing.",
    406: "Accept names no representation that this resource has.",
    408: "The request did not arrive in time.",
    413: "The request is over a limit.",
    415: "Content-Type names no representation that can be read.",
    422: "The request is against the contract.",
    500: "The service failed.",
    503: "The service is busy, starting or draining; try again after Retry-After seconds.",
    504: "The deadline passed.",
}
_COMMON = (401, 406, 500)
_WITH_BODY = (400, 408, 413, 415, 422, 503)

_schemas: dict[str, TypeAdapter[Any]] = {}

OPERATOR_NAME = {
    "name": "Type",
    "in": "path",
    "required": True,
    "description": "An operator's name, with or without DML_OPERATOR_.",
    "schema": {"type": "string"},
    "example": "DML_OPERATOR_ACTIVATION_CELU",
}


def dispatch() -> dict[str, Any]:
    """Of POST /v1/dispatch."""
    examples = {operator.short_name(): {"value": example(operator)} for operator in OPERATORS.values()}
    body = {
        JSON: {"schema": _ref(DispatchRequest), "examples": examples},
        MSGPACK: {"schema": _ref_msgpack(DispatchRequest)},
    }
    answers = {JSON: {"schema": _ref(DispatchResponse)}, MSGPACK: {"schema": _ref_msgpack(DispatchResponse)}}
    return _operation("dispatch", {"content": answers}, *_WITH_BODY, 504, body=body)


def feature_support(kind: Any) -> dict[str, Any]:
    """Of POST /v1/feature-support, which answers with `kind`."""
    asked = {"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0", "5_0"]}
    body = {
        JSON: {"schema": _ref(FeatureSupportQuery), "example": asked},
        MSGPACK: {"schema": _ref(FeatureSupportQuery)},
    }
    schema = {"anyOf": [_ref(each) for each in kind.__args__]}
    content = {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}
    return _operation("checkFeatureSupport", {"content": content}, *_WITH_BODY, body=body)


def answer(operation_id: str, kind: Any, parameter: dict[str, Any] | None = None, *statuses: int) -> dict[str, Any]:
    """Of a GET that answers with `kind` in JSON."""
    item = kind.__args__[0] if getattr(kind, "__origin__", None) is list else None
    schema = {"type": "array", "items": _ref(item)} if item else _ref(kind)
    return _operation(operation_id, {"content": {JSON: {"schema": schema}}}, *statuses, parameter=parameter)


def metrics() -> dict[str, Any]:
    """Of GET /metrics."""
    return _operation("getMetrics", {"content": {"text/plain": {"schema": {"type": "string"}}}})


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
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, where keys are set."}
            }
            made["security"] = [{}, {"bearer": []}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def _operation(
    operation_id: str,
    success: dict[str, Any],
    *statuses: int,
    body: dict[str, Any] | None = None,
    parameter: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments for a route's decorator."""
    extra: dict[str, Any] = {}
    if body:
        extra["requestBody"] = {"required": True, "content": body}
    if parameter:
        extra["parameters"] = [parameter]
    problem = {MEDIA_TYPE: {"schema": _ref(ProblemDetails)}}
    responses: dict[int, Any] = {200: {"description": "Success.", **success}}
    responses |= {
        status: {"description": _REFUSALS[status], "content": problem} for status in sorted((*_COMMON, *statuses))
    }
    extra["responses"] = {str(status): response for status, response in responses.items()}
    return {"operation_id": operation_id, "openapi_extra": extra}


def _ref(kind: Any) -> dict[str, str]:
    _schemas[kind.__name__] = TypeAdapter(kind)
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _ref_msgpack(kind: Any) -> dict[str, str]:
    """The form of `kind` in which tensor data are binary."""
    return {"$ref": _ref(kind)["$ref"] + "Msgpack"}


def _definitions() -> dict[str, Any]:
    _, schemas = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in _schemas.items()],
        ref_template="#/components/schemas/{model}",
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return dict(sorted((definitions | _msgpack_forms(definitions)).items()))


def _msgpack_forms(definitions: dict[str, Any]) -> dict[str, Any]:
    """Copies of the schemas that hold tensor data, which are binary in MessagePack."""
    text = {name: json.dumps(schema) for name, schema in definitions.items()}
    base64 = json.dumps(BASE64)[1:-1]
    forms = {name for name in text if base64 in text[name]}
    while more := {
        name for name in text if name not in forms and any(f'schemas/{form}"' in text[name] for form in forms)
    }:
        forms |= more
    copies = {}
    for name in forms:
        form = text[name].replace(base64, json.dumps(BINARY)[1:-1])
        for other in forms:
            form = form.replace(f'schemas/{other}"', f'schemas/{other}Msgpack"')
        copies[f"{name}Msgpack"] = json.loads(form)
    return copies
