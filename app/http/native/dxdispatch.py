"""POST /v1/dxdispatch: Microsoft's DxDispatch models, run as they are."""

import asyncio
from collections.abc import Callable
from pathlib import PurePosixPath

from pydantic import Field
from starlette.routing import BaseRoute

from app.codecs.codec import Body, Codec, Encoded
from app.contract.members import Document
from app.contract.validation import abbreviate, in_words
from app.contract.violations import refused
from app.engine.prepared import Outcome, Prepared
from app.engine.service import Service
from app.engine.workers import Ticket
from app.http.core.answers import answered, content_type
from app.http.core.bodies import codec_of_answer, compressed, read_plain_body
from app.http.core.exchange import Reply, Request
from app.http.core.media_types import JSON, OCTETS, media_type, unsupported
from app.http.core.queries import read_query
from app.http.core.routes import Given, router
from app.http.native import openapi
from app.memory.accounts import MemoryShare
from app.models.dxdispatch.answer import encoded
from app.models.dxdispatch.archive import members
from app.models.dxdispatch.files import SentFiles, within
from app.models.dxdispatch.model import Result, run_model

_ZIPS = (OCTETS, "application/zip", "application/x-zip-compressed")

_AT_ONCE = 256
"""Dispatches that are counted before the event loop goes on."""

Dispatched = Callable[[Prepared, Outcome], None]


class ModelQuery(Document):
    """Which model to run."""

    model: str | None = Field(
        None, description="Of a zip, the model's path in it; may be left out if it has one .json file, or a model.json."
    )


def routes(service: Service, dispatched: Dispatched) -> list[BaseRoute]:
    """That of models, to be run by `service`. `dispatched` is told of each dispatch that ran."""
    v1 = router("native", "/v1")

    @v1.post("/dxdispatch", **openapi.dxdispatch(ModelQuery))
    async def answer(request: Request, _: Given) -> Reply:
        """Run a model of Microsoft's DxDispatch: a JSON file, or a zip of one and the files that it names. Answers what
        it prints, and the files that it writes."""
        headers = request.headers
        wanted = codec_of_answer(headers.get(b"accept", b""))
        is_zip = _is_zip(headers.get(b"content-type", b""))
        name = read_query(request.query, ModelQuery).model
        memory = service.memory.open()
        try:
            body = await read_plain_body(service, request, memory)

            def work(ticket: Ticket[None]) -> tuple[Result, Encoded]:
                return _run(service, ticket, body, is_zip, name, wanted, memory)

            result, found = await service.run(work, memory, request.body.hung_up, request.stages)
            for number, each in enumerate(result.dispatched):
                dispatched(*each)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
            content, coding = await compressed(service, request, found, memory)
            return answered(content, [content_type(wanted.media_type), *coding], memory.close)
        except BaseException:
            memory.close()
            raise

    return v1.routes


def _run(
    service: Service,
    ticket: Ticket[None],
    body: Body,
    is_zip: bool,
    name: str | None,
    wanted: Codec,
    memory: MemoryShare,
) -> tuple[Result, Encoded]:
    """All that takes long. Raises what `run_model` does."""
    if not is_zip:
        if name is not None:
            raise refused(("model",), "model names a file in a zip; the body is the model itself.", abbreviate(name))
        files = SentFiles({}, memory, PurePosixPath())
        model = body
    else:
        found = members(body, memory)
        path = _model_in(list(found), name)
        settings = service.settings
        most, limit = settings.max_graph_structure_bytes, "max_graph_structure_bytes"
        model = found[str(path)].read(most, limit, memory)
        files = SentFiles(found, memory, path.parent)
    result = run_model(service, ticket, model, files, memory)
    return result, encoded(result, files.written, wanted)


def _model_in(names: list[str], name: str | None) -> PurePosixPath:
    """Which of the files `names` is the model. Raises ContractError."""
    if name is not None:
        try:
            path = within(name)
        except ValueError as error:
            raise refused(("model",), f"{error}.", abbreviate(name)) from None
        if str(path) not in names:
            raise refused(("model",), f"The zip has no file {in_words(name)}.", abbreviate(name), names[:8])
        return path
    models = [PurePosixPath(each) for each in names if each.lower().endswith(".json")]
    chosen = [each for each in models if each.name == "model.json"] or models
    if len(chosen) != 1:
        raise refused(
            ("model",),
            f"The zip has {len(models)} .json files; the query's model says which one is the model.",
            len(models),
            [str(each) for each in models[:8]],
        )
    return chosen[0]


def _is_zip(content_type: bytes) -> bool:
    """Raises HTTPException 415."""
    kind = media_type(content_type)
    if kind not in (JSON, *_ZIPS):
        raise unsupported(content_type, f"send {JSON}, or {' or '.join(_ZIPS[:2])} for a zip")
    return kind != JSON
