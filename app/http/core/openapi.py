"""The OpenAPI document: what the routes say of themselves, and the schemas of everything they mention.

Routes read and write documents themselves, for the sake of tensor data, so FastAPI cannot see their models; the
functions here state them, once, and `install` adds their schemas to the document.
"""

import asyncio
from collections.abc import Container, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias, get_args, get_origin

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from starlette.routing import BaseRoute

from app.http.core.answers import told
from app.http.core.exchange import Reply, Request
from app.http.core.headers import JSON_LENGTH, REQUEST_ID
from app.http.core.media_types import JSON, MSGPACK
from app.http.core.problems import MEDIA_TYPE, ProblemDetails
from app.http.core.routes import Given, Route, pages
from app.operators.catalog import OperatorDesc
from app.operators.fusion import FusedActivation

Json: TypeAlias = dict[str, Any]
"""An object of the document, or what a route's decorator is given."""

TEXT = {"type": "string"}
BYTES = TEXT | {"format": "binary"}
BIN = BYTES | {"description": "MessagePack's bin."}
DATA = {"description": "MessagePack's bin, or what JSON has in place of a text."}

_STATUSES = {
    304: ("NotModified", "What If-None-Match names is what is here still (RFC 9110, 13.1.2)."),
    400: ("BadRequest", "The request cannot be read."),
    401: ("Unauthorized", "An API key is required."),
    403: ("Forbidden", "The API key is not for this method and path."),
    404: ("NotFound", "There is no such thing."),
    406: ("NotAcceptable", "Accept names no representation that this resource has."),
    408: ("RequestTimeout", "The request did not arrive in time."),
    409: ("Conflict", "There is such a thing already, or another request undid this one."),
    412: ("PreconditionFailed", "What is here is not what If-Match names, or is what If-None-Match does."),
    413: ("ContentTooLarge", "The request is over a limit."),
    414: ("TargetTooLong", "The request's target is over the limit of its header."),
    415: ("UnsupportedMediaType", "Content-Type or Content-Encoding names no representation that can be read."),
    422: ("UnprocessableContent", "The request is against the contract."),
    429: ("TooManyRequests", "The API key's limits are used up; try again after Retry-After seconds."),
    431: ("HeaderTooLarge", "The request's header is over a limit."),
    500: ("InternalError", "The service failed."),
    503: ("Unavailable", "The service is busy, starting or draining; try again after Retry-After seconds."),
    504: ("DeadlineExceeded", "The deadline passed."),
    507: ("InsufficientStorage", "There is no room for it beside what is kept."),
}
"""What answers with no other content than a refusal are called among the document's components, and what they mean."""

_ANY = (400, 408, 414, 431, 500)
API = (401, 406, 422)
WITH_BODY = (413, 415, 503)
ON_CONDITION = (304, 412)
"""What a GET whose answer has an entity tag may be answered."""

_HEADERS = {
    REQUEST_ID: "Id of the request, as sent or made.",
    JSON_LENGTH: "Bytes of the JSON at the beginning of a body that goes on with binary data.",
    "WWW-Authenticate": "How to send an API key (RFC 6750).",
    "ETag": "Entity tag of what is answered, for If-None-Match and If-Match.",
    "Retry-After": "Seconds to wait before the request is sent again.",
    "Location": "Path of what was made.",
    "Preference-Applied": "What was asked for by Prefer and done.",
    "Tensor-DataType": "Data type of the output that is the body, if that is application/octet-stream.",
    "Tensor-Sizes": "Its sizes, separated by commas.",
}
_INTEGER_HEADERS = (JSON_LENGTH, "Retry-After")
_HEADERS_OF = {
    304: "ETag",
    401: "WWW-Authenticate",
    403: "WWW-Authenticate",
    429: "Retry-After",
    503: "Retry-After",
}
_WITH_KEY = (403, 429)
"""What a valid key may be answered, wherever a key is asked for."""

_schemas: dict[str, Any] = {}
_unions: dict[str, Json] = {}
_responses: dict[str, Json] = {}
_SCHEMAS = "#/components/schemas/"
_CHOICES = {
    "AnyOperator": (OperatorDesc, "The descriptor of an operator, which Type names."),
    "AnyActivation": (FusedActivation, "The descriptor of an activation without its tensors, which Type names."),
}


def parameter(name: str, description: str | None, place: str = "header", schema: Json = TEXT, **more: Any) -> Json:
    """A parameter of an operation, which only a path needs."""
    stated = {"name": name, "in": place, "required": place == "path", "description": description, "schema": schema}
    return stated | more


_REQUEST_ID = parameter(
    REQUEST_ID, "Id of the request, for the log and the answer; made here if absent or not of 1 to 128 characters."
)


def query(model: type[BaseModel]) -> list[Json]:
    """Query parameters: the fields of `model`, none of which is required."""
    return [
        parameter(name, info.description, "query", _parameter_schema(info)) for name, info in model.model_fields.items()
    ]


def health(operation_id: str, summary: str, kind: Any, *statuses: int, error: Json | None = None) -> Json:
    """Of a GET that probes send, which have no key; it answers with `kind` whatever the status."""
    made = operation(operation_id, summary, json_of(kind), 412, *statuses, error=error)
    for status in statuses:
        answering(made, status, json_of(kind))
    made["openapi_extra"]["security"] = []
    return made


def metrics() -> Json:
    """Of GET /metrics."""
    kinds = {each: {"schema": TEXT} for each in ("text/plain", "application/openmetrics-text")}
    return operation("getMetrics", "Metrics for Prometheus", kinds, 401, 412)


def install(app: FastAPI) -> None:
    """Have `app` know the whole document."""

    @cache
    def document() -> Json:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
            license_info=app.license_info,
        )
        for route in app.routes:
            if isinstance(route, Route) and route.include_in_schema:
                for method in route.methods or ():
                    # As they are stated: FastAPI leaves null out, which examples have.
                    stated = (route.openapi_extra or {})["responses"]
                    made["paths"][route.path_format][method.lower()]["responses"] = stated
        made["components"] = {
            "schemas": _definitions(),
            "responses": dict(sorted(_responses.items())),
            "headers": {
                name: {"description": text, "schema": {"type": "integer" if name in _INTEGER_HEADERS else "string"}}
                for name, text in _HEADERS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, where keys are set."}
            },
        }
        return made | {"security": [{}, {"bearer": []}]}

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def routes(app: FastAPI) -> list[BaseRoute]:
    """That of the document of `app`. It would take the event loop 0.3 s to make it, when it is first asked for."""
    documents, making = pages(), asyncio.Lock()

    @documents.get("/openapi.json")
    async def answer(_: Request, __: Given) -> Reply:
        async with making:
            return told(await asyncio.to_thread(app.openapi))

    return documents.routes


def operation(
    operation_id: str,
    summary: str,
    answers: Json | None,
    *statuses: int,
    body: Json | None = None,
    parameters: Sequence[Json] = (),
    headers: Sequence[str] = (),
    error: Json | None = None,
) -> Json:
    """Arguments for a route's decorator. `headers` are those of success, without content if `answers` are None. `error`
    is the form of a refusal, if not a problem."""
    etag = ["ETag"] if 304 in statuses else []
    responses: Json = {"200": _answer(200, "Success.", answers, *headers, *etag)}
    responses |= {
        str(status): _refusal(status, error)
        for status in sorted({*_ANY, *statuses, *(_WITH_KEY if 401 in statuses else ())})
    }
    extra: Json = {"responses": responses, "parameters": [_REQUEST_ID, *parameters]}
    if body:
        extra["requestBody"] = {"required": True, "content": body}
    return {"operation_id": operation_id, "summary": summary, "openapi_extra": extra}


def answering(made: Json, status: int, content: Json) -> Json:
    """`made`, an operation, whose answer with `status` is no refusal but `content`."""
    made["openapi_extra"]["responses"][str(status)] = _answer(status, _STATUSES[status][1], content)
    return made


def _refusal(status: int, error: Json | None) -> dict[str, str]:
    """A reference to the answer with `status`, which is added to the document. One that has the form `error` is called
    by that form, too."""
    problem = {MEDIA_TYPE: {"schema": ref(ProblemDetails)}}
    name, description = _STATUSES[status]
    content = problem
    if status == 304:
        content = {}
    elif error:
        name, content = f"Inference{name}", error | (problem if status in _ANY else {})
    _responses[name] = _answer(status, description, content)
    return {"$ref": f"#/components/responses/{name}"}


def _answer(status: int, description: str, content: Json | None, *headers: str) -> Json:
    """What is said of an answer with `status`, with `headers` beside those that belong to it."""
    names = [REQUEST_ID, *headers, *([_HEADERS_OF[status]] if status in _HEADERS_OF else [])]
    referred = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return {"description": description, "headers": referred} | ({} if content is None else {"content": content})


def ref(kind: Any) -> dict[str, str]:
    """A reference to the schema of `kind`, which is added to the document."""
    _schemas[kind.__name__] = kind
    return {"$ref": _SCHEMAS + kind.__name__}


def json_of(kind: Any, **more: Any) -> Json:
    """A body in JSON that is a `kind`, or a list of such."""
    schema = {"type": "array", "items": ref(*get_args(kind))} if get_origin(kind) is list else ref(kind)
    return {JSON: {"schema": schema, **more}}


def union(name: str, *kinds: Any) -> dict[str, str]:
    """A reference to the schema of one of `kinds`, which is added to the document as `name`.

    Without a name of its own generators call a body after its operation, and DispatchRequest is another schema.
    """
    _unions[name] = {"description": "One of these.", "oneOf": [ref(kind) for kind in kinds]}
    return {"$ref": _SCHEMAS + name}


def _parameter_schema(info: FieldInfo) -> Json:
    """Of a constant or of one of some texts; null is said by leaving the parameter out."""
    (kind,) = [each for each in get_args(info.annotation) or (info.annotation,) if each is not type(None)]
    is_named = isinstance(kind, type) and kind is not str
    schema = ref(kind) if is_named else TypeAdapter(kind).json_schema()
    return schema if info.default is None else schema | {"default": info.default}


def msgpack(*kinds: Any, suffix: str = "") -> Json:
    """A body in MessagePack: bytes to generators, and what is in them to readers."""
    contents = [{"$ref": ref(kind)["$ref"] + suffix} for kind in kinds]
    schema = BYTES | {
        "contentMediaType": MSGPACK,
        "contentSchema": contents[0] if len(contents) == 1 else {"oneOf": contents},
        "description": "MessagePack of the same structure as in JSON; tensor data are bin.",
    }
    return {"schema": schema}


def _definitions() -> Json:
    _, schemas = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(kind)) for name, kind in _schemas.items()],
        ref_template=f"{_SCHEMAS}{{model}}",
    )
    definitions: Json = schemas["$defs"]
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
    _name_choices(definitions)
    return dict(sorted((definitions | _msgpack_forms(definitions) | _unions).items()))


def _objects(part: Any) -> Iterator[Json]:
    """All objects in `part`, each before those in it, which may be others by then."""
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _objects(each)


def _widen(definitions: Any) -> None:
    """Say that integers have 64 bits, where generators would take 32, which sizes and times do not fit."""
    for part in _objects(definitions):
        if part.get("type") == "integer":
            part["format"] = "int64"


def _exclude(definitions: Any) -> None:
    """Say that objects exclude each other: of any of several some generators make one that has all fields.

    Not of an object and a list of such, of which openapi-generator makes TypeScript that does not compile.
    """
    for part in _objects(definitions):
        if all("$ref" in each for each in part.get("anyOf", [{}])):
            part["oneOf"] = part.pop("anyOf")


def _name_choices(definitions: Json) -> None:
    """Name the choices that are too long to be stated wherever they may be made."""
    named = {
        name: {"description": description, **TypeAdapter(kind).json_schema(ref_template=f"{_SCHEMAS}{{model}}")}
        for name, (kind, description) in _CHOICES.items()
    }
    for schema in named.values():
        del schema["$defs"]

    for part in _objects(definitions):
        for name, schema in named.items():
            if part.get("oneOf") == schema["oneOf"]:
                del part["oneOf"], part["discriminator"]
                part["$ref"] = _SCHEMAS + name
    definitions |= named


def _msgpack_forms(definitions: Json) -> Json:
    """Copies of the schemas that hold tensor data, in which those are binary."""
    forms: Json = {}
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
    if any(each.get("contentEncoding") == "base64" for each in schema.get("oneOf", ())):
        return DATA  # of a choice with binary data Go's generator makes what does not compile
    return {
        key: f"{value}Msgpack"
        if isinstance(value, str) and value.startswith(_SCHEMAS) and f"{value.removeprefix(_SCHEMAS)}Msgpack" in forms
        else _in_msgpack(value, forms)
        for key, value in schema.items()
    }
