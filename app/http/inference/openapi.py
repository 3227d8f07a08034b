"""What the protocol's routes say of themselves in the OpenAPI document."""

from typing import Any

from app.http.core import openapi as core
from app.http.core.headers import JSON_LENGTH
from app.http.core.openapi import BYTES, ON_CONDITION, answering, header, operation, ref
from app.http.inference import documents
from app.http.inference.answers import BINARY, JSON

_PARAMETERS: dict[str, dict[str, Any]] = {
    "name": {
        "description": "A model: an operator's name, such as DML_OPERATOR_ACTIVATION_CELU or activation_celu, a "
        "kept graph's id or name, or the name of a model from a file.",
        "example": "activation_celu",
    },
    "version": {"description": "The model's version: 1 unless it is from a file.", "example": "1"},
    "region": {"description": "Name of a region of shared memory.", "example": "input0"},
}
_LENGTH = {
    "name": JSON_LENGTH,
    "in": "header",
    "required": False,
    "description": "Bytes of the JSON at the beginning of the body. Absent: all of it is JSON.",
    "schema": {"type": "integer", "minimum": 0},
}
_ENCODING = {
    "name": "Content-Encoding",
    "in": "header",
    "required": False,
    "description": "How the body is compressed, if it is.",
    "schema": {"type": "string", "enum": ["identity", "gzip", "deflate", "zstd"]},
}
_ERROR = {JSON: {"schema": ref(documents.InferenceError)}}
_EXAMPLE = {
    "parameters": {"Alpha": 1.5},
    "inputs": [{"name": "InputTensor", "shape": [2, 3], "datatype": "FP32", "data": [-4, -2, 0, 1, 2, 4]}],
}
_ANSWERED = {
    "model_name": "activation_celu",
    "model_version": "1",
    "parameters": {"device": "numpy", "feature_level": "DML_FEATURE_LEVEL_6_4"},
    "outputs": [
        {
            "name": "OutputTensor",
            "datatype": "FP32",
            "shape": [2, 3],
            "data": [-1.3957748, -1.1046042, 0.0, 1.0, 2.0, 4.0],
        }
    ],
}


def infer(operation_id: str, summary: str, *path: str) -> dict[str, Any]:
    """Of the inference routes."""
    text = f"{JSON_LENGTH} bytes of JSON, then each tensor's binary data, little-endian."
    binary = {"schema": BYTES | {"description": text}}
    body = {JSON: {"schema": ref(documents.InferRequest), "example": _EXAMPLE}, BINARY: binary}
    answers = {JSON: {"schema": ref(documents.InferResponse), "example": _ANSWERED}, BINARY: binary}
    described = operation(
        operation_id,
        summary,
        answers,
        *(401, 404, 413, 415, 503, 504),
        body=body,
        parameters=[*_path("name", *path), _LENGTH, _ENCODING],
        error=_ERROR,
    )
    described["openapi_extra"]["responses"]["200"]["headers"][JSON_LENGTH] = header(JSON_LENGTH)
    return described


def answer(operation_id: str, summary: str, kind: Any, *path: str, may_lack: bool = False) -> dict[str, Any]:
    """Of a GET that answers with `kind`; `path` are the path's parameters. `may_lack`: it may be switched off."""
    statuses = (401, 404) if path or may_lack else (401,)
    return operation(
        operation_id, summary, _content(kind), *statuses, *ON_CONDITION, parameters=_path(*path), error=_ERROR
    )


def of_model(operation_id: str, summary: str, kind: Any, *path: str) -> dict[str, Any]:
    """Of what is told of a model, which may have to be loaded first."""
    statuses = (401, 404, *ON_CONDITION, 503, 504)
    return operation(operation_id, summary, _content(kind), *statuses, parameters=_path(*path), error=_ERROR)


def health(operation_id: str, summary: str, kind: Any, *statuses: int) -> dict[str, Any]:
    """Of a GET that probes send."""
    return core.health(operation_id, summary, kind, *statuses, error=_ERROR)


def ready(operation_id: str, summary: str, *path: str) -> dict[str, Any]:
    """Of a model's readiness."""
    described = operation(
        operation_id,
        summary,
        _content(documents.ModelReady),
        *(401, 404, 412, 503, 504),
        parameters=_path(*path),
        error=_ERROR,
    )
    return answering(described, 503, _content(documents.ModelReady))


def post(
    operation_id: str,
    summary: str,
    asked: Any,
    kind: Any,
    *statuses: int,
    path: tuple[str, ...] = (),
    example: Any = None,
) -> dict[str, Any]:
    """Of a POST that asks with a document, or with nothing, and answers with `kind`, or with nothing."""
    body = {JSON: {"schema": ref(asked)} | ({"example": example} if example else {})} if asked else None
    statuses = (401, *((404,) if path else ()), *((413, 415, 503) if asked else ()), *statuses)
    described = operation(
        operation_id,
        summary,
        _content(kind) if kind else {},
        *statuses,
        body=body,
        parameters=_path(*path),
        error=_ERROR,
    )
    if example is not None:  # a default that goes without saying
        described["openapi_extra"]["requestBody"]["required"] = False
    if not kind:
        del described["openapi_extra"]["responses"]["200"]["content"]
    return described


def moved(operation_id: str, summary: str) -> dict[str, Any]:
    """Of a POST that has a model loaded or unloaded."""
    asked = documents.RepositoryLoadRequest
    return post(operation_id, summary, asked, None, 400, 503, 504, 507, path=("name",), example={})


def _content(kind: Any) -> dict[str, Any]:
    listed = getattr(kind, "__args__", None)
    return {JSON: {"schema": {"type": "array", "items": ref(*listed)} if listed else ref(kind)}}


def _path(*names: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} | _PARAMETERS[name]
        for name in names
    ]
