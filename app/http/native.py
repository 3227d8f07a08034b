"""The native API, /v1/...: dispatch, capabilities, operators, feature support."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.capabilities import (
    Capabilities,
    FeatureSupportQuery,
    MaxSupportedFeatureLevel,
    OperatorDescription,
    OperatorSummary,
    TensorDataTypeSupport,
    check_feature_support,
    describe,
    summarize,
)
from app.codecs.documents import read_dispatch, read_document
from app.codecs.json import JsonCodec
from app.contract.validation import validate
from app.http import openapi
from app.http.bodies import PiecesResponse, codec_of_answer, codec_of_request, read_body
from app.http.media_types import preferred
from app.operators.catalog import OPERATORS, find_operator
from app.service import Service

OFFLOADED = 1 << 20
"""Documents of at least so many bytes are decoded and encoded in a thread; the event loop goes on meanwhile."""

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["native"])


@router.post("/dispatch", **openapi.dispatch())
async def dispatch(request: Request) -> Response:
    """Execute one operator: a descriptor and tensors in, the result and what the device is capable of out."""
    service: Service = request.app.state.service
    wanted = codec_of_answer(request)
    given = codec_of_request(request)
    with ExitStack() as resources:
        memory = resources.enter_context(service.memory.open())
        body = await read_body(request, service.settings, memory)
        size = len(body)
        stated, data = await _aside(size, lambda: read_dispatch(given, body, service.settings, memory))
        request.state.operator = stated.operator.name()
        hang_up = asyncio.ensure_future(_hang_up(request))
        try:
            answer = await service.dispatch(stated, data, memory, hang_up)
        finally:
            hang_up.cancel()
        request.state.execution = answer["execution"]
        size = sum(output["TotalTensorSizeInBytes"] for output in answer["outputs"].values())
        pieces = await _aside(size, lambda: wanted.encode(answer, memory))
        return PiecesResponse(pieces, wanted.media_type, resources.pop_all())


@router.get("/capabilities", **openapi.answer("getCapabilities", Capabilities))
async def capabilities(request: Request) -> Response:
    """Version, devices, feature levels, operators and the limits in force."""
    service: Service = request.app.state.service
    return _json(request, service.capabilities())


@router.get("/operators", **openapi.answer("listOperators", list[OperatorSummary]))
async def operators(request: Request) -> Response:
    """All operators, shortly."""
    return _json(request, [summarize(operator) for operator in OPERATORS.values()])


@router.get("/operators/{Type}", **openapi.answer("getOperator", OperatorDescription, openapi.OPERATOR_NAME, 404))
async def operator(request: Request) -> Response:
    """Everything known of an operator, by its name with or without DML_OPERATOR_."""
    name = request.path_params["Type"]
    found = find_operator(name)
    if found is None:
        raise HTTPException(404, f"There is no operator {name[:80]}; GET /v1/operators lists them.")
    return _json(request, describe(found))


@router.post("/feature-support", **openapi.feature_support(TensorDataTypeSupport | MaxSupportedFeatureLevel))
async def feature_support(request: Request) -> Response:
    """DirectML's CheckFeatureSupport: is a data type supported, which of some feature levels is the highest."""
    service: Service = request.app.state.service
    wanted = codec_of_answer(request)
    given = codec_of_request(request)
    with service.memory.open() as memory:
        body = await read_body(request, service.settings, memory)
        query = validate(FeatureSupportQuery, read_document(given, body, service.settings, memory))
    return Response(b"".join(wanted.encode(check_feature_support(query), memory)), media_type=wanted.media_type)


async def _aside(size: int, work: Callable[[], T]) -> T:
    """`work` done here if it concerns few bytes, in a thread if many."""
    return work() if size < OFFLOADED else await asyncio.to_thread(work)


async def _hang_up(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(request: Request, document: Any) -> Response:
    preferred(request.headers.getlist("accept"), [JsonCodec.media_type])
    return Response(orjson.dumps(document), media_type=JsonCodec.media_type)
