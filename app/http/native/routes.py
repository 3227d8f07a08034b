"""The native API, /v1/..., but for dispatch and graphs: capabilities, operators, feature support."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

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
from app.http.core.answers import told
from app.http.core.bodies import codec_of_answer, codec_of_request, read_judged
from app.http.core.exchange import Reply, Request
from app.http.core.media_types import preferred
from app.http.core.openapi import query
from app.http.core.queries import read_query
from app.http.core.routes import Given, router
from app.http.native import openapi
from app.operators.catalog import find_operator, no_operator


def routes(service: Service) -> list[BaseRoute]:
    """Those of `service`."""
    v1 = router("native", "/v1")

    @v1.get("/capabilities", **openapi.answer("getCapabilities", "Tell what the service is capable of", Capabilities))
    async def capabilities(request: Request, _: Given) -> Reply:
        """Version, devices, feature levels, operators and the limits in force."""
        return json_answer(request, service.capabilities())

    @v1.get(
        "/operators",
        **openapi.answer("listOperators", "List operators", list[OperatorSummary], parameters=query(OperatorFilter)),
    )
    async def operators(request: Request, _: Given) -> Reply:
        """All operators, or some, shortly."""
        chosen = select(read_query(request.query, OperatorFilter))
        return json_answer(request, [summarize(operator) for operator in chosen])

    @v1.get(
        "/operators/{Type}",
        **openapi.answer(
            "getOperator", "Describe an operator", OperatorDescription, 404, parameters=[openapi.OPERATOR_NAME]
        ),
    )
    async def operator(request: Request, path: Given) -> Reply:
        """Everything known of an operator, by its name with or without DML_OPERATOR_."""
        name = path["Type"]
        found = find_operator(name)
        if found is None:
            raise HTTPException(404, no_operator(name))
        return json_answer(request, describe(found))

    @v1.post("/feature-support", **openapi.feature_support())
    async def feature_support(request: Request, _: Given) -> Reply:
        """DirectML's CheckFeatureSupport: is a data type supported, which of some feature levels is the highest."""
        wanted = codec_of_answer(request.headers.get(b"accept", b""))
        given = codec_of_request(request.headers.get(b"content-type", b""))
        asked = await read_judged(service, request, given, feature_query)
        return told(check_feature_support(asked), codec=wanted)

    return v1.routes


def json_answer(request: Request, document: Any) -> Reply:
    """`document` in JSON, which Accept must permit. Raises HTTPException 406."""
    preferred(request.headers.get(b"accept", b"").decode("latin-1"), [JsonCodec.media_type])
    return told(document)
