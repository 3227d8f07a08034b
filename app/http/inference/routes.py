"""The protocol but for inference: metadata, readiness, repository index, statistics."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app import __version__
from app.engine.graph_entries import Entry
from app.engine.inference_counts import Counted
from app.engine.service import Service, State
from app.http.core.media_types import JSON
from app.http.inference import documents, openapi
from app.http.inference.bodies import read_json
from app.http.inference.endpoints import InferEndpoint
from app.http.inference.file_models import FileModel
from app.http.inference.model import PLATFORM, VERSION
from app.http.inference.models import Known, Models
from app.http.inference.statistics import Batches, document
from app.http.telemetry.metrics import Metrics
from app.http.telemetry.operations import answer_probe
from app.models.repository.config import VersionPolicy
from app.models.repository.model import LoadedModel
from app.models.repository.repository import Failed, NotReady, UnknownModel

router = APIRouter(prefix="/v2", tags=["inference"])

Answer = TypeVar("Answer", bound=Callable[[Request], Coroutine[Any, Any, Response]])

MODEL, VERSIONED = "/models/{name}", "/models/{name}/versions/{version}"


@router.get("", **openapi.answer("getServerMetadata", "Describe the server", documents.ServerMetadata))
async def server(request: Request) -> Response:
    """Name, version and extensions of this service."""
    extensions = ["binary_tensor_data", "statistics", "model_configuration", "model_repository"]
    if _service(request).settings.shared_memory:
        extensions.append("system_shared_memory")
        extensions += ["cuda_shared_memory"] if _endpoint(request).regions.has_gpus else []
    return _json(documents.ServerMetadata(name=PLATFORM, version=__version__, extensions=extensions))


@router.get("/health/live", **openapi.health("getServerLive", "Tell whether the server answers", documents.ServerLive))
async def live(request: Request) -> Response:
    """200 as long as the process answers at all."""
    return answer_probe(documents.ServerLive(live=True), 200)


@router.get(
    "/health/ready", **openapi.health("getServerReady", "Tell whether inferences are taken", documents.ServerReady, 503)
)
async def ready(request: Request) -> Response:
    """200 when inferences are taken; 503 while starting or draining."""
    is_ready = _service(request).state is State.READY
    return answer_probe(documents.ServerReady(ready=is_ready), 200 if is_ready else 503)


@router.get("/models/stats", **openapi.answer("getStatistics", "Statistics of all models", documents.Statistics))
async def all_statistics(request: Request) -> Response:
    """What the inferences of this protocol took, model by model, since the start."""
    return _statistics(request, list(_models(request).all()))


def _get(suffix: str, described: openapi.Versions) -> Callable[[Answer], Answer]:
    """What decorates the answer to GET of something about a model, or about a version of it."""
    plain, versioned = described

    def add(answer: Answer) -> Answer:
        router.get(f"{VERSIONED}{suffix}", **versioned)(answer)
        return router.get(f"{MODEL}{suffix}", **plain)(answer)

    return add


@_get("", openapi.of_model("getModel{}Metadata", "Describe a {}model", documents.ModelMetadata))
async def model(request: Request) -> Response:
    """Inputs, outputs and attributes of a model, which is an operator, a kept graph or from a file."""
    name, version = _asked(request)
    found = await _models(request).find(name, version)
    return _json(found.metadata(name))


@_get("/config", openapi.of_model("getModel{}Config", "Configuration of a {}model", documents.ModelConfig))
async def config(request: Request) -> Response:
    """A model's configuration as Triton has it: its tensors, and whether requests are run together."""
    name, version = _asked(request)
    found = await _models(request).find(name, version)
    described = found.metadata(name)
    if isinstance(found, FileModel):
        return _json(documents.config(described, found.loaded.policy, *(found.loaded.batching or ())))
    return _json(documents.config(described, VersionPolicy(latest=1)))


@_get("/ready", openapi.model_ready())
async def model_ready(request: Request) -> Response:
    """200 when inferences with this model are taken; 503 while starting or draining."""
    name, version = _asked(request)
    models = _models(request)
    try:
        await models.known(name, version)
        is_ready = _service(request).state is State.READY
    except HTTPException as error:
        if error.status_code != 503:
            raise
        is_ready = False
    if is_ready:
        await models.find(name, version)
    return answer_probe(documents.ModelReady(name=name, ready=is_ready), 200 if is_ready else 503)


@_get("/stats", openapi.of_model("getModel{}Statistics", "Statistics of a {}model", documents.Statistics))
async def statistics(request: Request) -> Response:
    """What the inferences of this protocol with a model took since the start: with each of its versions, if none is
    named."""
    name, version = _asked(request)
    models = _models(request)
    found = await models.known(name, version)
    every = models.repository.ready(name) if version is None and isinstance(found, LoadedModel) else [found]
    return _statistics(request, [(name, each) for each in every])


@router.post(
    "/repository/index",
    **openapi.post(
        "getRepositoryIndex",
        "List models and their states",
        documents.RepositoryIndexRequest,
        list[documents.RepositoryModel],
        example={"ready": True},
    ),
)
async def index(request: Request) -> Response:
    """All models."""
    asked = await read_json(request, documents.RepositoryIndexRequest, default=documents.RepositoryIndexRequest())
    state = _service(request).state
    models = _models(request)
    why = "" if state is State.READY else f"the service is {state}"
    reasons = [(name, _version(known), why) for name, known in models.all()]
    reasons += [
        (name, version, each.reason) for name, version, each in models.repository.all() if isinstance(each, Failed)
    ]
    listed = [
        documents.RepositoryModel(name=name, version=version, state="UNAVAILABLE" if reason else "READY", reason=reason)
        for name, version, reason in reasons
        if not (reason and asked.ready)
    ]
    return _json(listed)


@router.post("/repository/models/{name}/load", **openapi.moved("loadModel", "Load a model"))
async def load(request: Request) -> Response:
    """Read a model from the folder, again if it is loaded already."""
    await _read_moved(request)
    try:
        await _models(request).repository.load(request.path_params["name"])
    except UnknownModel as error:
        raise HTTPException(404, str(error)) from None
    except NotReady as error:
        raise HTTPException(400, str(error)) from None
    return Response()


@router.post("/repository/models/{name}/unload", **openapi.moved("unloadModel", "Unload a model"))
async def unload(request: Request) -> Response:
    """Let go of a model from the folder, until it is loaded again. Inferences that run finish."""
    await _read_moved(request)
    try:
        await _models(request).repository.unload(request.path_params["name"])
    except UnknownModel as error:
        raise HTTPException(404, str(error)) from None
    return Response()


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _models(request: Request) -> Models:
    return _endpoint(request).models


def _endpoint(request: Request) -> InferEndpoint:
    endpoint: InferEndpoint = request.app.state.inference
    return endpoint


def _asked(request: Request) -> tuple[str, str | None]:
    """A model's name, and its version if that is asked for."""
    path = request.path_params
    return path["name"], path.get("version")


def _version(known: Known) -> str:
    return known.version if isinstance(known, LoadedModel) else VERSION


async def _read_moved(request: Request) -> None:
    """The body of a request to load or unload, which says nothing that makes a difference."""
    none = documents.RepositoryLoadRequest()
    await read_json(request, documents.RepositoryLoadRequest, default=none)


def _statistics(request: Request, asked: list[tuple[str, Known]]) -> Response:
    collected: Metrics = request.app.state.metrics
    series, batches = collected.inferences_of_all()

    def counted(known: Known) -> Counted:
        if isinstance(known, Entry):
            return known.inferences
        label = known.called if isinstance(known, LoadedModel) else known.name()
        return Counted.by(series.get((label,), ()))

    def together(known: Known) -> Batches:
        called = known.called if isinstance(known, LoadedModel) else None
        return {int(size): numbers for (label, size), numbers in batches.items() if label == called}

    listed = [document(counted(known), name, _version(known), together(known)) for name, known in asked]
    return _json(documents.Statistics(model_stats=listed))


def _json(document: Any) -> Response:
    return Response(orjson.dumps(document), media_type=JSON)
