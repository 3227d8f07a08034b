"""What operates the service: health, readiness, metrics."""

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from app.engine.service import Service, State
from app.http.core import openapi
from app.http.core.media_types import JSON
from app.http.core.problems import RETRY_AFTER_SECONDS
from app.http.telemetry.metrics import Metrics

router = APIRouter(tags=["operations"])


class Health(TypedDict):
    """State of the service: starting, ready or draining. `detail` says what is amiss with its GPUs."""

    status: State
    detail: list[str]


@router.get("/health/live", **openapi.health("live", "Tell whether the process answers", Health))
async def live(request: Request) -> Response:
    """200 as long as the process answers at all."""
    service: Service = request.app.state.service
    return _health(service, 200)


@router.get("/health/ready", **openapi.health("ready", "Tell whether dispatches are taken", Health, 503))
async def ready(request: Request) -> Response:
    """200 when dispatches are taken; 503 while starting or draining."""
    service: Service = request.app.state.service
    return _health(service, 200 if service.state is State.READY else 503)


@router.get("/metrics", **openapi.metrics())
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format, or in OpenMetrics' with exemplars."""
    collected: Metrics = request.app.state.metrics
    headers = {"cache-control": "no-store"}
    if "application/openmetrics-text" in request.headers.get("accept", ""):
        text, kind = collected.render(with_exemplars=True), collected.media_type_with_exemplars
    else:
        text, kind = collected.render(), collected.media_type
    return Response(text, headers=headers, media_type=kind)


def _health(service: Service, status: int) -> Response:
    return answer_probe(Health(status=service.state, detail=service.placement.troubles()), status)


def answer_probe(document: Any, status: int) -> Response:
    """`document` with 200, or 503 for not now."""
    headers = {"cache-control": "no-store"} | ({"retry-after": str(RETRY_AFTER_SECONDS)} if status != 200 else {})
    return Response(orjson.dumps(document), status, headers, JSON)
