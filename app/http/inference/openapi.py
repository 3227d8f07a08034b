"""What the protocol's routes say of themselves in the OpenAPI document."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from app.http.core import openapi as core
from app.http.core.headers import JSON_LENGTH
from app.http.core.media_types import OCTETS
from app.http.core.openapi import BYTES, ON_CONDITION, TEXT, Json, answering, json_of, parameter
from app.http.inference import documents

Versions: TypeAlias = tuple[Json, Json]
"""Of an operation on a model, and of the same on one of its versions."""

_PARAMETERS = {
    "name": parameter(
        "name",
        "A model: an operator's name, such as DML_OPERATOR_ACTIVATION_CELU or activation_celu, a kept graph's id or "
        "name, or the name of a model from a file.",
        "path",
        example="activation_celu",
    ),
    "version": parameter("version", "The model's version: 1 unless it is from a file.", "path", example="1"),
    "region": parameter("region", "Name of a region of shared memory.", "path", example="input0"),
}
_LENGTH = parameter(
    JSON_LENGTH,
    "Bytes of the JSON at the beginning of the body. Absent: all of it is JSON.",
    schema={"type": "integer", "minimum": 0},
)
_ENCODING = parameter(
    "Content-Encoding",
    "How the body is compressed, if it is.",
    schema=TEXT | {"enum": ["identity", "gzip", "deflate", "zstd"]},
)
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


_ERROR = json_of(documents.InferenceError)
_operation = partial(core.operation, error=_ERROR)
health = partial(core.health, error=_ERROR)
"""Of a GET that probes send."""


def infer() -> Versions:
    """Of the inference routes."""
    text = f"{JSON_LENGTH} bytes of JSON, then each tensor's binary data, little-endian."
    binary = {OCTETS: {"schema": BYTES | {"description": text}}}
    body = json_of(documents.InferRequest, example=_EXAMPLE) | binary
    answers = json_of(documents.InferResponse, example=_ANSWERED) | binary
    return _versions(
        "model{}Infer",
        "Execute a {}model",
        answers,
        *(401, 404, 413, 415, 503, 504),
        body=body,
        parameters=[_LENGTH, _ENCODING],
        headers=[JSON_LENGTH],
    )


def answer(operation_id: str, summary: str, kind: Any, *path: str, may_lack: bool = False) -> Json:
    """Of a GET that answers with `kind`; `path` are the path's parameters. `may_lack`: it may be switched off."""
    statuses = (401, 404) if path or may_lack else (401,)
    return _operation(operation_id, summary, json_of(kind), *statuses, *ON_CONDITION, parameters=_path(path))


def of_model(operation_id: str, summary: str, kind: Any) -> Versions:
    """Of what is told of a model, which may have to be loaded first. In both texts {} stands for what makes it one of
    a version."""
    return _versions(operation_id, summary, json_of(kind), 401, 404, *ON_CONDITION, 503, 504)


def model_ready() -> Versions:
    """Of a model's readiness."""
    answers, statuses = json_of(documents.ModelReady), (401, 404, 412, 503, 504)
    plain, versioned = _versions("getModel{}Ready", "Tell whether a {}model is ready", answers, *statuses)
    return answering(plain, 503, answers), answering(versioned, 503, answers)


def _versions(
    operation_id: str, summary: str, answers: Json, *statuses: int, parameters: Sequence[Json] = (), **more: Any
) -> Versions:
    def make(version: str, in_words: str, *path: str) -> Json:
        called, told, found = operation_id.format(version), summary.format(in_words), [*_path(path), *parameters]
        return _operation(called, told, answers, *statuses, parameters=found, **more)

    return make("", "", "name"), make("Version", "version of a ", "name", "version")


def post(
    operation_id: str,
    summary: str,
    asked: Any,
    kind: Any,
    *statuses: int,
    path: Sequence[str] = (),
    example: Any = None,
) -> Json:
    """Of a POST that asks with a document, or with nothing, and answers with `kind`, or with nothing."""
    body = json_of(asked, **({"example": example} if example else {})) if asked else None
    statuses = (401, *((404,) if path else ()), *((413, 415, 503) if asked else ()), *statuses)
    answers = json_of(kind) if kind else None
    made = _operation(operation_id, summary, answers, *statuses, body=body, parameters=_path(path))
    if example is not None:  # a default that goes without saying
        made["openapi_extra"]["requestBody"]["required"] = False
    return made


def moved(operation_id: str, summary: str, *statuses: int) -> Json:
    """Of a POST that has a model loaded or unloaded, which may be answered `statuses` as well."""
    asked = documents.RepositoryLoadRequest
    return post(operation_id, summary, asked, None, 400, *statuses, 503, 504, 507, path=["name"], example={})


def _path(names: Sequence[str]) -> list[Json]:
    return [_PARAMETERS[name] for name in names]
