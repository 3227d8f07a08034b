"""What the native API's routes say of themselves in the OpenAPI document."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from app.engine.capabilities import FeatureSupportQuery, MaxSupportedFeatureLevel, TensorDataTypeSupport, example
from app.engine.dispatch import DispatchRequest, DispatchResponse, GraphDispatchRequest
from app.engine.graph_documents import (
    EXAMPLE,
    EXAMPLE_DATA,
    GraphExecuteRequest,
    GraphKeepRequest,
    GraphTimes,
    GraphTimesQuery,
    KeptGraphDescription,
    OnnxKeepRequest,
    OnnxQuery,
    example_id,
)
from app.http.core.media_types import JSON, MSGPACK, OCTETS
from app.http.core.openapi import (
    API,
    BYTES,
    ON_CONDITION,
    TEXT,
    WITH_BODY,
    Json,
    json_of,
    msgpack,
    operation,
    parameter,
    query,
    ref,
    union,
)
from app.http.native.accepted import FORMATS
from app.models.dxdispatch.answer import EXAMPLE as MODEL
from app.models.dxdispatch.answer import ModelRun
from app.models.dxdispatch.document import ModelFile
from app.operators.catalog import OPERATORS

OPERATOR_NAME = parameter(
    "Type", "An operator's name, with or without DML_OPERATOR_.", "path", example="DML_OPERATOR_ACTIVATION_CELU"
)
GRAPH_ID = parameter("id", "The id of a kept graph, as POST /v1/graphs gave it.", "path", example=example_id())
_PREFER = parameter("Prefer", "return=minimal leaves the capability out of an answer that is a document.")
_PREFERRED = "Preference-Applied"

_FILES = {each: {"schema": BYTES} for each in FORMATS}
"""Bodies that are tensors, and answers."""

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


def dispatch() -> Json:
    """Of POST /v1/dispatch."""
    examples = {operator.short_name(): {"value": example(operator)} for operator in OPERATORS.values()}
    examples["GRAPH"] = {"value": EXAMPLE | EXAMPLE_DATA}
    body = {
        JSON: {"schema": union("AnyDispatchRequest", DispatchRequest, GraphDispatchRequest), "examples": examples},
        MSGPACK: msgpack(DispatchRequest, GraphDispatchRequest, suffix="Msgpack"),
    }
    answers = _dispatched(DISPATCHED) | _FILES
    return operation(
        "dispatch",
        "Execute one operator or a graph",
        answers,
        *(*API, *WITH_BODY, 504),
        body=body,
        parameters=[_PREFER],
        headers=[_PREFERRED],
    )


def dxdispatch(asked: type[BaseModel]) -> Json:
    """Of POST /v1/dxdispatch, whose query is `asked`."""
    text = "A zip of a model and the files that it names; application/zip is taken as well."
    of_zip = BYTES | {"contentMediaType": "application/zip", "description": text}
    body = json_of(ModelFile, example=MODEL) | {OCTETS: {"schema": of_zip}}
    answers = json_of(ModelRun) | {MSGPACK: msgpack(ModelRun, suffix="Msgpack")}
    return operation(
        "runDxDispatch", "Run a DxDispatch model", answers, *API, *WITH_BODY, 504, body=body, parameters=query(asked)
    )


def keep() -> Json:
    """Of POST /v1/graphs."""
    body = {
        JSON: {"schema": union("AnyGraphKeepRequest", GraphKeepRequest, OnnxKeepRequest), "example": EXAMPLE},
        MSGPACK: msgpack(GraphKeepRequest, OnnxKeepRequest, suffix="Msgpack"),
        OCTETS: {"schema": BYTES | {"description": "An ONNX model."}},
    }
    answers = json_of(KeptGraphDescription) | {MSGPACK: msgpack(KeptGraphDescription)}
    statuses, parameters = (*API, *WITH_BODY, 409, 504, 507), query(OnnxQuery)
    made = operation(
        "keepGraph", "Keep a graph", answers, *statuses, body=body, parameters=parameters, headers=["Location"]
    )
    responses = made["openapi_extra"]["responses"]
    responses["201"] = responses["200"] | {"description": "The graph is kept."}
    responses["200"] = responses["200"] | {"description": "The graph is kept already."}
    return made


def graph_dispatch() -> Json:
    """Of POST /v1/graphs/{id}/dispatch."""
    in_msgpack = {MSGPACK: msgpack(GraphExecuteRequest, suffix="Msgpack")}
    body = json_of(GraphExecuteRequest, example=EXAMPLE_DATA) | in_msgpack
    answers = _dispatched(GRAPH_DISPATCHED) | _FILES
    return operation(
        "dispatchGraph",
        "Execute a kept graph",
        answers,
        *(*API, *WITH_BODY, 404, 504),
        body=body,
        parameters=[GRAPH_ID, _PREFER],
        headers=[_PREFERRED],
    )


def files() -> Json:
    """Of POST /v1/operators/{Type}/dispatch."""
    parameters = [
        OPERATOR_NAME,
        parameter(
            "attributes",
            "Attributes by name, those of structures dotted (ScaleBias.Scale), lists with commas; feature_level, "
            "device and in_place; of a tensor that comes without, DataType and Sizes.",
            "query",
            {"type": "object", "additionalProperties": TEXT},
            style="form",
            explode=True,
            example={"Alpha": "2"},
        ),
        _PREFER,
    ]
    return operation(
        "dispatchFiles",
        "Execute one operator on tensor files",
        _FILES | _dispatched(),
        *(*API, *WITH_BODY, 404, 504),
        body=_FILES,
        parameters=parameters,
        headers=["Tensor-DataType", "Tensor-Sizes", _PREFERRED],
    )


def _dispatched(answered: Json | None = None) -> Json:
    """The answers to a dispatch that are documents, such as `answered`."""
    shown = {"example": answered} if answered else {}
    return json_of(DispatchResponse, **shown) | {MSGPACK: msgpack(DispatchResponse, suffix="Msgpack")}


def graph_deletion() -> Json:
    """Of DELETE /v1/graphs/{id}."""
    made = operation("dropGraph", "Drop a kept graph", None, 401, 404, 412, 422, 504, parameters=[GRAPH_ID])
    responses = made["openapi_extra"]["responses"]
    responses["204"] = responses.pop("200") | {"description": "Done."}
    return made


def feature_support() -> Json:
    """Of POST /v1/feature-support."""
    kinds = TensorDataTypeSupport, MaxSupportedFeatureLevel
    asked = {"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["1_0", "5_0"]}
    body = json_of(FeatureSupportQuery, example=asked) | {MSGPACK: msgpack(FeatureSupportQuery)}
    shown = {"schema": {"oneOf": [ref(each) for each in kinds]}}
    answered = {"MaxSupportedFeatureLevel": "DML_FEATURE_LEVEL_5_0"}
    answers = {JSON: shown | {"example": answered}, MSGPACK: msgpack(*kinds)}
    return operation(
        "checkFeatureSupport", "Ask for a data type or a feature level", answers, *API, *WITH_BODY, body=body
    )


def graph_times() -> Json:
    """Of POST /v1/graphs/{id}/times, which has no body."""
    parameters = [GRAPH_ID, *query(GraphTimesQuery)]
    statuses = (*API, 404, 413, 503, 504)
    return operation("timeGraph", "Measure a kept graph", json_of(GraphTimes), *statuses, parameters=parameters)


def answer(operation_id: str, summary: str, kind: Any, *statuses: int, parameters: Sequence[Json] = ()) -> Json:
    """Of a GET that answers with `kind` in JSON."""
    return operation(operation_id, summary, json_of(kind), *API, *ON_CONDITION, *statuses, parameters=parameters)
