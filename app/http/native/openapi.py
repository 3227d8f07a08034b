"""What the native API's routes say of themselves in the OpenAPI document."""

from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

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
from app.http.core.openapi import (
    API,
    JSON,
    MSGPACK,
    OCTETS,
    ON_CONDITION,
    WITH_BODY,
    Json,
    header,
    msgpack,
    operation,
    query,
    ref,
    union,
)
from app.http.native.accepted import FORMATS
from app.models.dxdispatch.answer import EXAMPLE as MODEL
from app.models.dxdispatch.answer import ModelRun
from app.models.dxdispatch.document import ModelFile
from app.operators.catalog import OPERATORS

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
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "return=minimal leaves the capability out of an answer that is a document.",
    "schema": {"type": "string"},
}

_EXECUTION = {
    "device": "numpy",
    "kind": "cpu",
    "fallback_reason": None,
    "in_place": False,
    "queue_seconds": 0.0,
    "compute_seconds": 5.7e-05,
}
_TAKEN = {"data_types": ["FLOAT32", "FLOAT16"], "dimension_counts": [1, 2, 3, 4, 5, 6, 7, 8]}
DISPATCHED = {
    "outputs": {
        "OutputTensor": {
            "DataType": "FLOAT32",
            "Sizes": [1, 1, 2, 3],
            "Strides": None,
            "TotalTensorSizeInBytes": 24,
            "data": "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA",
        }
    },
    "execution": _EXECUTION,
    "capability": {
        "operator": "DML_OPERATOR_ACTIVATION_IDENTITY",
        "feature_level": "DML_FEATURE_LEVEL_6_4",
        "introduced": "DML_FEATURE_LEVEL_1_0",
        "in_place": ["InputTensor"],
        "tensors": {"InputTensor": _TAKEN, "OutputTensor": _TAKEN},
    },
}
"""The answer to the first example of a dispatch."""

GRAPH_DISPATCHED = {
    "outputs": {
        "y": {
            "DataType": "FLOAT32",
            "Sizes": [2, 3],
            "Strides": None,
            "TotalTensorSizeInBytes": 24,
            "data": "AAAAAAAAAAAAAEBAAAAAQAAAgEAAAOBA",
        }
    },
    "execution": _EXECUTION,
    "capability": {
        "graph": example_id(),
        "feature_level": "DML_FEATURE_LEVEL_6_4",
        "nodes": 3,
        "kernels": 1,
        "operators": ["DML_OPERATOR_ELEMENT_WISE_ADD", "DML_OPERATOR_ACTIVATION_RELU"],
    },
}
"""The same of a kept graph."""


def dispatch() -> dict[str, Any]:
    """Of POST /v1/dispatch."""
    examples = {operator.short_name(): {"value": example(operator)} for operator in OPERATORS.values()}
    examples["GRAPH"] = {"value": EXAMPLE | EXAMPLE_DATA}
    body = {
        JSON: {"schema": union("AnyDispatchRequest", DispatchRequest, GraphDispatchRequest), "examples": examples},
        MSGPACK: msgpack(DispatchRequest, GraphDispatchRequest, suffix="Msgpack"),
    }
    answers = _dispatched(DISPATCHED)
    return _preferring(
        operation("dispatch", "Execute one operator or a graph", answers, *API, *WITH_BODY, 504, body=body)
    )


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
    answers = {JSON: {"schema": ref(ModelRun)}, MSGPACK: msgpack(ModelRun, suffix="Msgpack")}
    return operation(
        "runDxDispatch", "Run a DxDispatch model", answers, *API, *WITH_BODY, 504, body=body, parameters=query(asked)
    )


def keep() -> dict[str, Any]:
    """Of POST /v1/graphs."""
    body = {
        JSON: {"schema": union("AnyGraphKeepRequest", GraphKeepRequest, OnnxKeepRequest), "example": EXAMPLE},
        MSGPACK: msgpack(GraphKeepRequest, OnnxKeepRequest, suffix="Msgpack"),
        OCTETS: {"schema": {"type": "string", "format": "binary", "description": "An ONNX model."}},
    }
    answers = {JSON: {"schema": ref(KeptGraphDescription)}, MSGPACK: msgpack(KeptGraphDescription)}
    parameters = query(OnnxQuery)
    made = operation(
        "keepGraph", "Keep a graph", answers, *API, *WITH_BODY, 409, 504, 507, body=body, parameters=parameters
    )
    responses = made["openapi_extra"]["responses"]
    responses["200"] = responses["200"] | {"description": "The graph is kept already."}
    responses["201"] = responses["200"] | {"description": "The graph is kept."}
    for status in ("200", "201"):
        headers = responses[status]["headers"]
        responses[status]["headers"] = headers | {"Location": header("Location")}
    return made | {"status_code": 201}


def graph_dispatch() -> dict[str, Any]:
    """Of POST /v1/graphs/{id}/dispatch."""
    body = {
        JSON: {"schema": ref(GraphExecuteRequest), "example": EXAMPLE_DATA},
        MSGPACK: msgpack(GraphExecuteRequest, suffix="Msgpack"),
    }
    answers = _dispatched(GRAPH_DISPATCHED)
    made = operation(
        "dispatchGraph", "Execute a kept graph", answers, *API, *WITH_BODY, 404, 504, body=body, parameters=[GRAPH_ID]
    )
    return _preferring(made)


_FILES: Json = {each: {"schema": {"type": "string", "format": "binary"}} for each in FORMATS}


def files() -> dict[str, Any]:
    """Of POST /v1/operators/{Type}/dispatch."""
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
    made = operation(
        "dispatchFiles",
        "Execute one operator on tensor files",
        _FILES | _dispatched(),
        *API,
        *WITH_BODY,
        404,
        504,
        body=_FILES,
        parameters=parameters,
    )
    headers = made["openapi_extra"]["responses"]["200"]["headers"]
    for name in ("Tensor-DataType", "Tensor-Sizes"):
        headers[name] = header(name)
    return _preferring(made)


def _dispatched(answered: Json | None = None) -> Json:
    """The answers to a dispatch: documents, such as `answered`, and files."""
    shown: Json = {"schema": ref(DispatchResponse)} | ({"example": answered} if answered else {})
    return {JSON: shown, MSGPACK: msgpack(DispatchResponse, suffix="Msgpack")} | _FILES


def _preferring(made: dict[str, Any]) -> dict[str, Any]:
    """`made`, an operation, with what Prefer may ask of it."""
    extra = made["openapi_extra"]
    extra["parameters"] = [*extra["parameters"], _PREFER]
    extra["responses"]["200"]["headers"]["Preference-Applied"] = header("Preference-Applied")
    return made


def deletion(operation_id: str, summary: str, *statuses: int, parameters: Sequence[Json]) -> dict[str, Any]:
    """Of a DELETE."""
    made = operation(operation_id, summary, {}, 401, 412, *statuses, parameters=parameters)
    responses = made["openapi_extra"]["responses"]
    responses["204"] = {"description": "Done.", "headers": responses.pop("200")["headers"]}
    return made | {"status_code": 204}


def feature_support(kind: Any) -> dict[str, Any]:
    """Of POST /v1/feature-support, which answers with `kind`."""
    asked = {"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0", "5_0"]}
    body = {JSON: {"schema": ref(FeatureSupportQuery), "example": asked}, MSGPACK: msgpack(FeatureSupportQuery)}
    shown = {"schema": {"oneOf": [ref(each) for each in get_args(kind)]}}
    answered = {"MaxSupportedFeatureLevel": "DML_FEATURE_LEVEL_5_0"}
    answers = {JSON: shown | {"example": answered}, MSGPACK: msgpack(*get_args(kind))}
    return operation(
        "checkFeatureSupport", "Ask for a data type or a feature level", answers, *API, *WITH_BODY, body=body
    )


def measurement(operation_id: str, summary: str, kind: Any, parameters: Sequence[Json]) -> dict[str, Any]:
    """Of a POST without a body that runs a kept graph and answers with `kind`."""
    answers = {JSON: {"schema": ref(kind)}}
    return operation(operation_id, summary, answers, *API, 404, 413, 422, 503, 504, parameters=parameters)


def answer(
    operation_id: str, summary: str, kind: Any, *statuses: int, parameters: Sequence[Json] = ()
) -> dict[str, Any]:
    """Of a GET that answers with `kind` in JSON."""
    schema = {"type": "array", "items": ref(*get_args(kind))} if get_origin(kind) is list else ref(kind)
    statuses = (*API, *ON_CONDITION, *statuses)
    return operation(operation_id, summary, {JSON: {"schema": schema}}, *statuses, parameters=parameters)
