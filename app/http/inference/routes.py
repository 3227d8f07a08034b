"""The protocol but for inference: metadata, readiness, repository index, statistics."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute

from app import __version__
from app.engine.graph_entries import Entry
from app.engine.inference_counts import Counted
from app.engine.service import Service, State
from app.http.core.answers import told
from app.http.core.exchange import Reply, Request
from app.http.core.routes import Given, router
from app.http.inference import documents, openapi
from app.http.inference.bodies import read_json
from app.http.inference.endpoints import InferEndpoint
from app.http.inference.file_models import FileModel
from app.http.inference.model import PLATFORM, VERSION
from app.http.inference.models import Known
from app.http.inference.statistics import Batches, document
from app.http.telemetry.metrics import Metrics
from app.http.telemetry.operations import answer_probe
from app.models.repository.config import VersionPolicy
from app.models.repository.model import LoadedModel
from app.models.repository.repository import Failed, NotReady, Overtaken, UnknownModel

Answer = TypeVar("Answer", bound=Callable[[Request, Given], Coroutine[Any, Any, Reply]])

MODEL, VERSIONED = "/models/{name}", "/models/{name}/versions/{version}"


def routes(service: Service, endpoint: InferEndpoint) -> list[BaseRoute]:
    """Those of `service`, whose inferences `endpoint` answers."""
    v2 = router("inference", "/v2")
    models, metrics = endpoint.models, endpoint.metrics

    @v2.get("", **openapi.answer("getServerMetadata", "Describe the server", documents.ServerMetadata))
    async def server(_: Request, __: Given) -> Reply:
        """Name, version and extensions of this service."""
        extensions = ["binary_tensor_data", "statistics", "model_configuration", "model_repository"]
        if service.settings.shared_memory:
            extensions.append("system_shared_memory")
            extensions += ["cuda_shared_memory"] if endpoint.regions.has_gpus else []
        return told(documents.ServerMetadata(name=PLATFORM, version=__version__, extensions=extensions))

    @v2.get("/health/live", **openapi.health("getServerLive", "Tell whether the server answers", documents.ServerLive))
    async def live(_: Request, __: Given) -> Reply:
        """200 as long as the process answers at all."""
        return answer_probe(documents.ServerLive(live=True), 200)

    @v2.get(
        "/health/ready",
        **openapi.health("getServerReady", "Tell whether inferences are taken", documents.ServerReady, 503),
    )
    async def ready(_: Request, __: Given) -> Reply:
        """200 when inferences are taken; 503 while starting or draining."""
        is_ready = service.state is State.READY
        return answer_probe(documents.ServerReady(ready=is_ready), 200 if is_ready else 503)

    @v2.get("/models/stats", **openapi.answer("getStatistics", "Statistics of all models", documents.Statistics))
    async def all_statistics(_: Request, __: Given) -> Reply:
        """What the inferences of this protocol took, model by model, since the start."""
        return _statistics(metrics, list(models.all()))

    @_get(v2, "", openapi.of_model("getModel{}Metadata", "Describe a {}model", documents.ModelMetadata))
    async def model(_: Request, path: Given) -> Reply:
        """Inputs, outputs and attributes of a model, which is an operator, a kept graph or from a file."""
        found = await models.find(path["name"], path.get("version"))
        return told(found.metadata(path["name"]))

    @_get(v2, "/config", openapi.of_model("getModel{}Config", "Configuration of a {}model", documents.ModelConfig))
    async def config(_: Request, path: Given) -> Reply:
        """A model's configuration as Triton has it: its tensors, and whether requests are run together."""
        found = await models.find(path["name"], path.get("version"))
        described = found.metadata(path["name"])
        if isinstance(found, FileModel):
            return told(documents.config(described, found.loaded.policy, *(found.loaded.batching or ())))
        return told(documents.config(described, VersionPolicy(latest=1)))

    @_get(v2, "/ready", openapi.model_ready())
    async def model_ready(_: Request, path: Given) -> Reply:
        """200 when inferences with this model are taken; 503 while starting or draining."""
        name, version = path["name"], path.get("version")
        try:
            await models.known(name, version)
            is_ready = service.state is State.READY
        except HTTPException as error:
            if error.status_code != 503:
                raise
            is_ready = False
        if is_ready:
            await models.find(name, version)
        return answer_probe(documents.ModelReady(name=name, ready=is_ready), 200 if is_ready else 503)

    @_get(v2, "/stats", openapi.of_model("getModel{}Statistics", "Statistics of a {}model", documents.Statistics))
    async def statistics(_: Request, path: Given) -> Reply:
        """What the inferences of this protocol with a model took since the start: with each of its versions, if none is
        named."""
        name, version = path["name"], path.get("version")
        found = await models.known(name, version)
        every = models.repository.ready(name) if version is None and isinstance(found, LoadedModel) else [found]
        return _statistics(metrics, [(name, each) for each in every])

    @v2.post(
        "/repository/index",
        **openapi.post(
            "getRepositoryIndex",
            "List models and their states",
            documents.RepositoryIndexRequest,
            list[documents.RepositoryModel],
            example={"ready": True},
        ),
    )
    async def index(request: Request, _: Given) -> Reply:
        """All models."""
        every = documents.RepositoryIndexRequest()
        asked = await read_json(service, request, documents.RepositoryIndexRequest, default=every)
        why = "" if service.state is State.READY else f"the service is {service.state}"
        reasons = [(name, _version(known), why) for name, known in models.all()]
        reasons += [
            (name, version, each.reason) for name, version, each in models.repository.all() if isinstance(each, Failed)
        ]
        listed = [
            documents.RepositoryModel(
                name=name, version=version, state="UNAVAILABLE" if reason else "READY", reason=reason
            )
            for name, version, reason in reasons
            if not (reason and asked.ready)
        ]
        return told(listed)

    async def moved(request: Request, path: Given, move: Callable[[str], Coroutine[Any, Any, None]]) -> Reply:
        """The body says nothing that makes a difference."""
        none = documents.RepositoryLoadRequest()
        await read_json(service, request, documents.RepositoryLoadRequest, default=none)
        try:
            await move(path["name"])
        except UnknownModel as error:
            raise HTTPException(404, str(error)) from None
        except NotReady as error:
            raise HTTPException(400, str(error)) from None
        except Overtaken as error:
            raise HTTPException(409, str(error)) from None
        return Reply.of(Response())

    @v2.post("/repository/models/{name}/load", **openapi.moved("loadModel", "Load a model", 409))
    async def load(request: Request, path: Given) -> Reply:
        """Read a model from the folder, again if it is loaded already."""
        return await moved(request, path, models.repository.load)

    @v2.post("/repository/models/{name}/unload", **openapi.moved("unloadModel", "Unload a model"))
    async def unload(request: Request, path: Given) -> Reply:
        """Let go of a model from the folder, until it is loaded again. Inferences that run finish."""
        return await moved(request, path, models.repository.unload)

    return v2.routes


def _get(v2: APIRouter, suffix: str, described: openapi.Versions) -> Callable[[Answer], Answer]:
    """What decorates the answer to GET of something about a model, or about a version of it."""
    plain, versioned = described

    def add(answer: Answer) -> Answer:
        v2.get(f"{VERSIONED}{suffix}", **versioned)(answer)
        return v2.get(f"{MODEL}{suffix}", **plain)(answer)

    return add


def _version(known: Known) -> str:
    return known.version if isinstance(known, LoadedModel) else VERSION


def _statistics(metrics: Metrics, asked: list[tuple[str, Known]]) -> Reply:
    series, batches = metrics.inferences_of_all()

    def counted(known: Known) -> Counted:
        if isinstance(known, Entry):
            return known.inferences
        label = known.called if isinstance(known, LoadedModel) else known.name()
        return Counted.by(series.get((label,), ()))

    def together(known: Known) -> Batches:
        called = known.called if isinstance(known, LoadedModel) else None
        return {int(size): numbers for (label, size), numbers in batches.items() if label == called}

    listed = [document(counted(known), name, _version(known), together(known)) for name, known in asked]
    return told(documents.Statistics(model_stats=listed))
