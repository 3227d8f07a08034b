"""Requests made up from the OpenAPI document, valid ones and invalid ones, with every check that schemathesis has.

The requests are the same in each run and try a few operators. With SCHEMATHESIS_EXAMPLES=1000 there are so many for
each test, of all operators, and others each time.
"""

import base64
import functools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis
import msgpack
import pytest
import schemathesis
from requests import Session
from schemathesis import BaseSchema, Case, Config, DeserializationContext, Response, SerializationContext

from app.contract.constants import NEWEST, DataType, FeatureLevel
from app.contract.tensors import TensorDesc
from app.engine.service import Service
from app.http.server.limit import ConnectionLimit
from app.main import create_app
from app.operators.catalog import OPERATORS, find_operator
from app.operators.operator import Operator, Role
from app.settings import Settings
from tests.conftest import RunningServer

JSON, MSGPACK = "application/json", "application/msgpack"
DISPATCH = "/v1/dispatch"
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "0"))

pytestmark = pytest.mark.timeout(0 if EXAMPLES else 120)


@functools.cache
def document_of_the_service() -> str:
    """Made when tests are collected, by each process that does; it takes seconds."""
    service = Service(Settings())
    made = json.dumps(create_app(service.settings, service, ConnectionLimit()).openapi())
    service.close()
    return made


def document(operators: Sequence[type[Operator]]) -> dict[str, Any]:
    """The service's document with these operators only, changed where schemathesis cannot follow."""
    made: dict[str, Any] = json.loads(document_of_the_service())
    schemas: dict[str, Any] = made["components"]["schemas"]
    schemas["AnyOperator"]["oneOf"] = [{"$ref": f"#/components/schemas/{operator.__name__}"} for operator in operators]
    for path in made["paths"].values():
        for operation in path.values():
            for body in (operation.get("requestBody", {}), *operation["responses"].values()):
                packed = body.get("content", {}).get(MSGPACK)
                if packed:  # it knows strings of bytes only, while `pack` and `unpack` below know what is in them
                    packed["schema"] = packed["schema"]["contentSchema"]
    del made["paths"]["/v1/graphs"]["post"]["requestBody"]["content"][MSGPACK]  # it cannot negate binary in a choice
    del made["paths"]["/v1/dxdispatch"]["post"]["requestBody"]["content"]["application/octet-stream"]  # any but a zip
    for content in made["paths"][DISPATCH]["post"]["requestBody"]["content"].values():
        union = schemas["AnyDispatchRequest"] if "$ref" in content["schema"] else content["schema"]
        content["schema"] = union["oneOf"][0]  # an operator, for the same reason
        content.get("examples", {}).pop("GRAPH", None)
    for schema in schemas.values():
        for holder in (schema, *schema.get("properties", {}).values()):
            holder.pop("discriminator", None)  # it takes the last of a form's names for the only one
    return made


def load(
    operators: Sequence[type[Operator]],
    all_of_them: Sequence[type[Operator]],
    max_examples: int,
    mode: str,
    **more: Any,
) -> BaseSchema:
    """The service's schema with a few operators, or with all of them where there are to be many examples."""
    generation = {
        "mode": mode,
        "max-examples": EXAMPLES or max_examples,
        "deterministic": not EXAMPLES,
        "database": "none",
    }
    config = Config.from_dict({"generation": generation} | more)
    return schemathesis.openapi.from_dict(document(operators if not EXAMPLES else all_of_them), config=config)


# That sizes, strides and lengths of data must fit, and be within limits, cannot be said in a schema.
TOLERANT = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 413, 422]}}}
TOLERANT_OF_IDS = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 404, 413, 422]}}}
CLIP1, ADD1 = OPERATORS["DML_OPERATOR_ELEMENT_WISE_CLIP1"], OPERATORS["DML_OPERATOR_ELEMENT_WISE_ADD1"]
PLAIN = [operator for operator in OPERATORS.values() if operator.rules is Operator.rules]
"""Those that ask for nothing that neither a schema nor a support table says."""

# Nor what a file has in it.
TOLERANT_OF_FILES = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 413, 422]}}}

# That names are an operator's, and that the body has the length and the coding that its header says, neither.
TOLERANT_OF_INFERENCE = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 413]}}}
INFERENCE = [
    "/v2/models/{name}/infer",
    "/v2/models/{name}/versions/{version}/infer",
    "/v2/systemsharedmemory/region/{region}/register",
    "/v2/cudasharedmemory/region/{region}/register",
]
schema = load(
    [CLIP1, ADD1],  # with all kinds of fields
    list(OPERATORS.values()),
    20,
    "all",
    operations=[{"include-path": path} | TOLERANT for path in (DISPATCH, "/v1/dxdispatch", "/v1/feature-support")]
    + [{"include-path": "/v1/graphs/{id}/dispatch"} | TOLERANT_OF_IDS]
    + [{"include-path": path} | TOLERANT_OF_FILES for path in ("/v1/graphs", "/v1/operators/{Type}/dispatch")]
    + [{"include-path": path} | TOLERANT_OF_INFERENCE for path in INFERENCE]
    + [{"include-path": "/v2/repository/index", "checks": {"negative_data_rejection": {"enabled": False}}}],  # null
)
valid = load(
    PLAIN[:: -(-len(PLAIN) // 4)],
    PLAIN,
    200,
    "positive",
    phases={"coverage": {"enabled": False}, "examples": {"enabled": False}},
    checks={"negative_data_rejection": {"enabled": False}},  # bytes, which are valid in MessagePack, are not to it
).include(path=DISPATCH)


@schemathesis.serializer("application/x-npy", "application/x-npz", "application/x-safetensors")
def as_it_is(context: SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else b""


@schemathesis.serializer(MSGPACK)
def pack(context: SerializationContext, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        packed: bytes = msgpack.packb(_bytes(value))
    except (OverflowError, ValueError):
        hypothesis.reject()  # an integer of more than 64 bits, half a surrogate pair: MessagePack cannot say it
    return packed


def _bytes(value: Any) -> Any:
    """`value` with bytes where schemathesis has strings that stand for them."""
    if isinstance(value, dict):
        return {name: _bytes(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_bytes(each) for each in value]
    return getattr(value, "data", value) if isinstance(value, str) else value


@schemathesis.deserializer(MSGPACK)
def unpack(context: DeserializationContext, response: Response) -> Any:
    def text(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: text(each) for name, each in value.items()}
        if isinstance(value, list):
            return [text(each) for each in value]
        return "bin" if isinstance(value, bytes) else value

    return text(msgpack.unpackb(response.content))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """One connection for all requests."""
    with Session() as opened:
        opened.trust_env = False  # looking for proxies takes longer than a request
        yield opened


@schema.parametrize()
def test_every_answer_is_as_the_document_says(case: Case[Any], server: RunningServer, session: Session) -> None:
    if case.media_type == MSGPACK:
        case.headers["Accept"] = MSGPACK
    case.call_and_validate(base_url=server.url, session=session)


@pytest.fixture(scope="module")
def executed() -> Iterator[Counter[tuple[str, str]]]:
    """Operators and media types that were answered with a result. At the end: all of them were."""
    counted: Counter[tuple[str, str]] = Counter()
    yield counted
    forms = valid.raw_schema["components"]["schemas"]["AnyOperator"]["oneOf"]
    assert {name for name, _ in counted} == {form["$ref"].rpartition("/")[2] for form in forms}
    assert all(counted[name, kind] for name, _ in counted for kind in (JSON, MSGPACK)), counted


@valid.parametrize()
def test_what_is_valid_is_executed(
    case: Case[Any], server: RunningServer, session: Session, executed: Counter[tuple[str, str]]
) -> None:
    body: Any = case.body
    operator = find_operator(body["operator"]["Type"])
    assert operator
    assert case.media_type
    case.body = mended(body, operator, binary=case.media_type == MSGPACK)
    case.headers["Accept"] = case.media_type
    response = case.call_and_validate(base_url=server.url, session=session)
    assert response.status_code == 200, response.text
    executed[operator.__name__, case.media_type] += 1


def mended(body: dict[str, Any], operator: type[Operator], binary: bool) -> dict[str, Any]:
    """`body`, which the document permits, with as few changes as make its parts fit each other."""
    stated = body["operator"]
    level = max(FeatureLevel.parse(body.get("feature_level", NEWEST)), operator.support.introduced)
    first, *_ = inputs = operator.tensor_names(Role.INPUT)
    row = operator.support.at(level)
    assert row
    ranks = row.of(first).ranks
    sizes = [int(size) % 4 + 1 for size in stated[first]["Sizes"]][-ranks[-1] :]
    sizes = [1] * (ranks[0] - len(sizes)) + sizes
    in_place = first if body.get("in_place") is not None and first in operator.in_place else None
    types: dict[str, str] = {}
    groups = [operator.tensor_names()] if operator.same_types is None else operator.same_types
    for group in [*groups, *([name] for name in operator.tensor_names())]:
        allowed = row.of(group[0]).data_types
        chosen = allowed[sum(sizes) % len(allowed)].full_name
        types = dict.fromkeys(group, chosen) | types
    if (
        in_place
        and DataType.parse(types[operator.tensor_names(Role.OUTPUT)[0]]).bits != DataType.parse(types[first]).bits
    ):
        in_place = None
    descs = {
        name: {"DataType": types[name], "Sizes": [1] * len(sizes) if name in operator.one_element else sizes}
        | ({} if in_place else _mended_members(stated[name], sizes, name in inputs))
        for name in operator.tensor_names()
        if stated.get(name) is not None
    }
    data = {name: bytes(TensorDesc.model_validate(descs[name]).data_bytes) for name in inputs if name in descs}
    return body | {
        "operator": {name: value for name, value in stated.items() if name not in operator.tensor_names()} | descs,
        "inputs": data if binary else {name: base64.b64encode(each).decode() for name, each in data.items()},
        "feature_level": level.full_name,
        "in_place": in_place,
        "device": "auto",
    }


def _mended_members(desc: dict[str, Any], sizes: list[int], is_input: bool) -> dict[str, Any]:
    """What a descriptor has beside type and sizes."""
    strides = desc.get("Strides") if is_input else None
    return {
        "Strides": [int(stride) % 5 for stride in strides * 8][: len(sizes)] if strides else None,
        "Flags": desc.get("Flags", []) if is_input else "NONE",
        "DimensionCount": len(sizes) if desc.get("DimensionCount") is not None else None,
        "TotalTensorSizeInBytes": 1 << 20 if desc.get("TotalTensorSizeInBytes") else None,
        "GuaranteedBaseOffsetAlignment": 64 if desc.get("GuaranteedBaseOffsetAlignment") else 0,
    }
