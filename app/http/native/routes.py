"""The native API, /v1/..., but for dispatch and graphs: capabilities, operators, feature support."""

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.codecs.json import JsonCodec
from app.engine.capabilities import (
    Capabilities,
    OperatorDescription,
    OperatorFilter,
    OperatorSummary,
    check_feature_support,
    describe,
    feature_query,
    select,
    summarize,
)
from app.engine.service import Service
from app.http.core.asgi import request_of
from app.http.core.bodies import codec_of_answer, codec_of_request, read_judged
from app.http.core.media_types import preferred
from app.http.core.openapi import query
from app.http.core.queries import read_query
from app.http.native import openapi
from app.operators.catalog import find_operator, no_operator

router = APIRouter(prefix="/v1", tags=["native"])


@router.get("/capabilities", **openapi.answer("getCapabilities", "Tell what the service is capable of", Capabilities))
async def capabilities(request: Request) -> Response:
    """Version, devices, feature levels, operators and the limits in force."""
    service: Service = request.app.state.service
    return json_answer(request, service.capabilities())


@router.get(
    "/operators",
    **openapi.answer("listOperators", "List operators", list[OperatorSummary], 422, parameters=query(OperatorFilter)),
)
async def operators(request: Request) -> Response:
    """All operators, or some, shortly."""
    chosen = select(read_query(request.query_params, OperatorFilter))
    return json_answer(request, [summarize(operator) for operator in chosen])


@router.get(
    "/operators/{Type}",
    **openapi.answer(
        "getOperator", "Describe an operator", OperatorDescription, 404, parameters=[openapi.OPERATOR_NAME]
    ),
)
async def operator(request: Request) -> Response:
    """Everything known of an operator, by its name with or without DML_OPERATOR_."""
    name = request.path_params["Type"]
    found = find_operator(name)
    if found is None:
        raise HTTPException(404, no_operator(name))
    return json_answer(request, describe(found))


@router.post("/feature-support", **openapi.feature_support())
async def feature_support(request: Request) -> Response:
    """DirectML's CheckFeatureSupport: is a data type supported, which of some feature levels is the highest."""
    service: Service = request.app.state.service
    asked = request_of(request.scope, request.receive)
    wanted = codec_of_answer(asked.headers.get(b"accept", b""))
    given = codec_of_request(asked.headers.get(b"content-type", b""))
    query = await read_judged(service, asked, given, feature_query)
    pieces = wanted.encode(check_feature_support(query))
    return Response(pieces[0], media_type=wanted.media_type)


def json_answer(request: Request, document: Any) -> Response:
    """`document` in JSON, which Accept must permit. Raises HTTPException 406."""
    preferred(", ".join(request.headers.getlist("accept")), [JsonCodec.media_type])
    return Response(orjson.dumps(document), media_type=JsonCodec.media_type)
