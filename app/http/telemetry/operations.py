"""What operates the service: health, readiness, metrics."""

from typing import Any

from starlette.routing import BaseRoute
from typing_extensions import TypedDict

from app.engine.service import Service, State
from app.http.core import openapi
from app.http.core.answers import told, whole
from app.http.core.exchange import Reply, Request
from app.http.core.problems import RETRY_AFTER_SECONDS
from app.http.core.routes import Given, router
from app.http.telemetry.metrics import Metrics

_NOT_KEPT = (b"cache-control", b"no-store")


class Health(TypedDict):
    """State of the service: starting, ready or draining. `detail` says what is amiss with its GPUs."""

    status: State
    detail: list[str]


def routes(service: Service, collected: Metrics) -> list[BaseRoute]:
    """Those of `service`."""
    operations = router("operations")

    @operations.get("/health/live", **openapi.health("live", "Tell whether the process answers", Health))
    async def live(_: Request, __: Given) -> Reply:
        """200 as long as the process answers at all."""
        return health(200)

    @operations.get("/health/ready", **openapi.health("ready", "Tell whether dispatches are taken", Health, 503))
    async def ready(_: Request, __: Given) -> Reply:
        """200 when dispatches are taken; 503 while starting or draining."""
        return health(200 if service.state is State.READY else 503)

    @operations.get("/metrics", **openapi.metrics())
    async def metrics(request: Request, _: Given) -> Reply:
        """Counters, gauges and histograms in Prometheus' text format, or in OpenMetrics' with exemplars."""
        if b"application/openmetrics-text" in request.headers.get(b"accept", b""):
            text, kind = collected.render(with_exemplars=True), collected.media_type_with_exemplars
        else:
            text, kind = collected.render(), collected.media_type
        return whole(text, kind, [_NOT_KEPT])

    def health(status: int) -> Reply:
        return answer_probe(Health(status=service.state, detail=service.placement.troubles()), status)

    return operations.routes


def answer_probe(document: Any, status: int) -> Reply:
    """`document` with 200, or 503 for not now."""
    again = [] if status == 200 else [(b"retry-after", b"%d" % RETRY_AFTER_SECONDS)]
    return told(document, [_NOT_KEPT, *again], status)
