"""POST /v2/models/{name}/infer, the path that tensors take."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns, time_ns
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

import numpy as np
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from app.codecs.codec import Body
from app.codecs.structure import Unreadable
from app.contract.violations import ContractError
from app.devices.device import DeviceFailed
from app.engine.inference_counts import Took
from app.engine.prepared import Outcome, Prepared
from app.engine.resident import execute_resident
from app.engine.service import Service
from app.engine.workers import Ticket
from app.http.core.answers import answered, content_type
from app.http.core.bodies import body_at_hand, compressed, read_plain_body
from app.http.core.documents import TooHeavy
from app.http.core.exchange import Reply, Request
from app.http.core.graphs import MOST, MOST_BYTES
from app.http.core.headers import JSON_LENGTH, Headers
from app.http.core.media_types import JSON, OCTETS
from app.http.core.routes import Given, router
from app.http.inference import openapi
from app.http.inference.answers import Answer
from app.http.inference.file_models import FileModel, NotCompiled
from app.http.inference.graph_models import GraphModel
from app.http.inference.model import Model
from app.http.inference.models import Models
from app.http.inference.operator_models import OperatorModel
from app.http.inference.rehearsal import MOST_REHEARSED, TIMES, rehearsals, request_of
from app.http.inference.requests import Inference, InferenceReader, Parts
from app.http.inference.shared_memory import Regions
from app.http.telemetry.metrics import Metrics
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer, beginning
from app.models.repository.batcher import Batcher
from app.models.repository.model import CacheKey, LoadedModel, SizesOfAll
from app.models.repository.repository import Repository
from app.stages import recorded, staged
from app.steps import at_once, in_step

OFFLOADED = 1 << 18
"""Bytes of JSON, or of tensors copied or put as numbers, from which on a worker does it."""

_MOST_TRIES = 4
"""How often a model is compiled for a request, or found again, if others take its place before it is used."""

_LENGTH = JSON_LENGTH.lower().encode()

_ANNOUNCED, _BEGINNING = b'"binary_data_size"', 4096
"""What JSON says that has binary data behind it, and in how many of its bytes that is looked for."""

_JSON, _BINARY = content_type(JSON), content_type(OCTETS)

PATH, VERSIONED = "/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"


@dataclass(slots=True)
class _Exchange:
    """One inference, from its body to its answer, step by step, in the event loop or in a worker."""

    service: Service
    reader: InferenceReader
    name: str
    version: str | None
    """As it was asked for."""
    model: Model
    request: Request
    memory: MemoryShare
    inference: Inference = field(init=False)
    """Of one that was read."""
    parts: Parts = field(init=False)

    def find(self, body: Body, *, only_light: bool = False) -> bool:
        """Whether one like it was read before, so that this is read now; else it is for `judge`. Raises TooHeavy if it
        should be light and is not."""
        size = _json_bytes(self.request.headers, body)
        if only_light and size >= OFFLOADED:
            raise TooHeavy
        found, self.parts = self.reader.find(self.name, body, size, self.memory, only_light=only_light)
        if found is None:
            return False
        self.inference = found
        self.request.prepared = found.prepared
        return True

    async def judge(self, *, only_light: bool = False) -> None:
        """Read what was not found. Raises TooHeavy if it should be light and is not."""
        stages = self.request.stages
        judging = self.reader.judge(self.name, self.model, self.parts, only_light=only_light)
        self.inference = await judging if stages is None else recorded(stages, at_once, judging)
        self.request.prepared = self.inference.prepared

    def read(self, body: Body) -> None:
        """Both, by a worker."""
        if not self.find(body):
            at_once(self.judge())

    @property
    def is_resident(self) -> bool:
        """Whether tensors of it are on a GPU already."""
        return self.inference.kernel is not None

    @property
    def is_light(self) -> bool:
        """Whether, when it is read, its data are read and its answer is written in a moment."""
        return self.inference.copied_bytes < OFFLOADED

    def data(self) -> dict[str, Buffer]:
        """Of one that is not resident."""
        return cast("dict[str, Buffer]", self.inference.data(self.parts, self.memory))

    def execute(self, ticket: Ticket[None]) -> tuple[Outcome, int]:
        """The outcome, by a worker, and when the data were there, in nanoseconds."""
        inference, memory = self.inference, self.memory
        if inference.kernel is None:
            data = self.data()
            read = perf_counter_ns()
            return self.service.execute_in(ticket, inference.prepared, data, memory), read
        tensors = inference.data(self.parts, memory)
        places = inference.form.places(self.parts.regions)
        read = perf_counter_ns()
        try:
            return execute_resident(ticket, inference.prepared, inference.kernel, tensors, places, memory), read
        except DeviceFailed as failure:
            raise HTTPException(503, f"{failure.reason}.") from None

    def write(self, outcome: Outcome) -> Answer:
        form, id_, regions = self.inference.form, self.parts.id, self.parts.regions
        stages = self.request.stages
        if stages is None:
            return form.write(id_, outcome, regions, self.memory)
        return recorded(stages, staged, "encode", form.write, id_, outcome, regions, self.memory)


_HERE: Ticket[None] = Ticket()
"""Of what is done here and now: it has waited for nothing, and nobody cancels it."""


_Done: TypeAlias = tuple[Outcome, Answer, int, int]
"""What came of it, and nanoseconds that it took to read the inputs and to write the output."""


class InferEndpoint:
    """Answers the inferences of a service."""

    def __init__(self, service: Service, metrics: Metrics, repository: Repository) -> None:
        self.regions = Regions(service.placement)
        self.models = Models(service, repository)
        self._service = service
        self.metrics = metrics
        self._counts = metrics.inferences
        self._batcher = Batcher(
            service,
            repository,
            lambda model, executed: metrics.batches.observe(
                model.called, executed.rows, executed.input_ns, executed.infer_ns, executed.output_ns
            ),
        )
        self._reader = InferenceReader(service, self.regions)
        self._readers: WeakKeyDictionary[GraphModel | CacheKey, InferenceReader] = WeakKeyDictionary()
        service.caches["inferences"] = self._reader.cache
        repository.rehearse = self.rehearse

    async def __call__(self, request: Request, path: Given) -> Reply:
        name, version = path["name"], path.get("version")
        model = self.models.operator(name, version) or await self.models.find(name, version)
        started = perf_counter_ns()
        service, headers = self._service, request.headers
        memory = service.memory.open()

        try:
            body = None if b"content-encoding" in headers else body_at_hand(request, service.settings, memory)
            if body is None:
                body = await read_plain_body(service, request, memory, partial(_data_start, headers))
            exchange = _Exchange(service, self.reader_of(model), name, version, model, request, memory)
            try:
                done = await self._tried(exchange, body)
            except NotCompiled as missing:
                done = await self._compiled(exchange, body, missing.model, missing.sizes)
            outcome, answer, input_ns, output_ns = done
            request.outcome = outcome
            if isinstance(exchange.model, FileModel):
                self.models.repository.use(exchange.inference.prepared.work)
            content, fields = answer.content, [_JSON]
            if answer.json_bytes is not None:
                fields = [_BINARY, (_LENGTH, b"%d" % answer.json_bytes)]
            if b"accept-encoding" in headers:
                content, coding = await compressed(service, request, content, memory)
                fields += coding
            took = outcome.queue_seconds * 1e9, input_ns, outcome.compute_seconds * 1e9, output_ns
            return answered(content, fields, partial(self._over, request, model, memory, started, took))
        except BaseException:
            self._over(request, model, memory, started, None)
            raise

    def _over(self, request: Request, model: Model, memory: MemoryShare, started: int, took: Took | None) -> None:
        memory.close()
        if not request.is_rehearsal:
            model.observe(self._counts, perf_counter_ns() - started, took)

    def rehearse(self, model: LoadedModel, sizes: SizesOfAll, ticket: Ticket[None]) -> None:
        """Infer on zeros, so that the first request finds all loops compiled, and nothing that is done for the first
        time. It takes as long as that takes, and so is for a worker. Nothing of it is counted, but the series in which
        requests will be are there from now on.

        Raises LimitExceeded, MemoryExhausted, Cancelled.
        """
        asked = FileModel(self._service, self.models.repository, model)
        reader = self.reader_of(asked)
        for text, zeros in rehearsals(model.ports, sizes, self._service.settings.max_numbers):
            with self._service.memory.open() as memory:
                shift = beginning(len(text) if zeros else 0)  # as `read_body` has it, in memory for it
                body = memory.buffer(shift + len(text) + zeros)[shift:]
                np.frombuffer(body, np.uint8)[:] = 0
                body[: len(text)] = text
                for _ in range(TIMES):
                    found, parts = reader.find(model.name, body, len(text), memory)
                    inference = found or at_once(reader.judge(model.name, asked, parts))
                data = cast("dict[str, Buffer]", inference.data(parts, memory))
                outcome = self._service.execute_in(ticket, inference.prepared, data, memory)
                with suppress(ContractError):  # JSON has no NaN, and zeros may lead to it: no fault of a model
                    inference.form.write(parts.id, outcome, parts.regions, memory)
            self._expect(model, inference.prepared, outcome)

    def _expect(self, model: LoadedModel, prepared: Prepared, outcome: Outcome) -> None:
        """Have metrics show all that dispatches with this model will be counted in, which were like this one."""
        metrics = self.metrics
        for route in (PATH, VERSIONED):
            metrics.expect_requests(route, "POST")
        metrics.expect_dispatches(prepared.name, outcome.ran.device)
        metrics.inferences.expect(model.called)
        if model.batching:
            metrics.batches.expect(model.called, (0, 1, *model.batching.sizes))

    def expected(self) -> Iterator[bytes]:
        """What clients will ask of the models that are compiled, in HTTP."""
        repository = self.models.repository
        for model, sizes in repository.compiled_sizes():
            path = f"/v2/models/{model.name}"
            if model.version != repository.versions(model.name)[-1]:  # the newest one goes without saying
                path += f"/versions/{model.version}"
            for each in rehearsals(model.ports, sizes, self._service.settings.max_numbers):
                if len(each.text) + each.zeros <= MOST_REHEARSED:
                    yield request_of(each, f"{path}/infer")

    def reader_of(self, model: OperatorModel | GraphModel | FileModel) -> InferenceReader:
        """That of all operators, or the model's own, which goes with it."""
        if isinstance(model, OperatorModel):
            return self._reader
        key = model.loaded.cache_key if isinstance(model, FileModel) else model
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = InferenceReader(
                self._service, self.regions, MOST, MOST_BYTES, is_of_model=True
            )
        return reader

    async def _compiled(self, exchange: _Exchange, body: Body, model: LoadedModel, sizes: SizesOfAll) -> _Done:
        """The same as `_tried`, when `model` is compiled for these sizes, which it was not."""
        for _ in range(_MOST_TRIES):
            if not model.is_closed:
                await self.models.repository.compiled(model, sizes)
                why = "more sizes of inputs are asked for at once than max_model_graphs allows"
            else:  # what would be compiled of it nobody keeps: it was loaded again while the request came, or unloaded
                found = await self.models.find(exchange.name, exchange.version)
                exchange.model, exchange.reader = found, self.reader_of(found)
                why = "it was loaded again, or unloaded, while the request came"
            try:
                return await self._tried(exchange, body)
            except NotCompiled as missing:
                model, sizes = missing.model, missing.sizes
        raise HTTPException(503, f"Model {model.called} is not compiled for this request: {why}; send it again.")

    async def _tried(self, exchange: _Exchange, body: Body) -> _Done:
        """All that does not take long here, else all of it in one visit to a worker. Raises NotCompiled."""
        arrived = perf_counter_ns()
        try:
            if not exchange.find(body, only_light=True):
                await in_step()
                await exchange.judge(only_light=True)
            is_read = True
        except TooHeavy:
            is_read = False
        is_batched = isinstance(exchange.model, FileModel) and exchange.model.loaded.batching
        if is_batched and not exchange.request.is_rehearsal and not (is_read and exchange.is_resident):
            return await self._together(exchange, body, arrived, is_read)
        if not is_read or exchange.is_resident or not exchange.is_light:
            return await self._whole(exchange, body, arrived, is_read)
        service, memory, request = self._service, exchange.memory, exchange.request
        data = exchange.data()
        read = perf_counter_ns()
        prepared = exchange.inference.prepared
        await in_step()
        if prepared.kernel.runs_inline:
            outcome = service.execute_here(prepared, data, memory, request.stages)
            await in_step()
        else:
            outcome = await service.execute(prepared, data, memory, request.body.hung_up, request.stages)
        executed = perf_counter_ns()
        return outcome, exchange.write(outcome), read - arrived, perf_counter_ns() - executed

    async def _whole(self, exchange: _Exchange, body: Body, arrived: int, is_read: bool) -> _Done:
        """By a worker, or here if all is on a GPU. Raises NotCompiled."""
        service, memory, request = self._service, exchange.memory, exchange.request
        looked_at = perf_counter_ns()

        def work(ticket: Ticket[None]) -> _Done:
            began = perf_counter_ns()
            if not is_read:
                exchange.read(body)
            outcome, read = exchange.execute(ticket)
            executed = perf_counter_ns()
            answer = exchange.write(outcome)
            return outcome, answer, looked_at - arrived + read - began, perf_counter_ns() - executed

        if is_read and exchange.inference.runs_inline:
            service.check_inline()
            done = work(_HERE)
        else:
            done = await service.run(work, memory, request.body.hung_up, request.stages)
        if not request.is_rehearsal:
            self._batcher.count_alone(exchange.inference.prepared, done[0])
        return done

    async def _together(self, exchange: _Exchange, body: Body, arrived: int, is_read: bool) -> _Done:
        """The same for a model whose requests are run together: what takes long before and after that is by itself, in
        a worker. Those whose tensors are on a GPU are run alone. Raises NotCompiled."""
        service, memory, hang_up = self._service, exchange.memory, exchange.request.body.hung_up
        stages = exchange.request.stages

        def work(_: Ticket[None]) -> dict[str, Buffer]:
            if not is_read:
                exchange.read(body)
            return {} if exchange.is_resident else exchange.data()

        is_light = is_read and exchange.is_light
        data = exchange.data() if is_light else await service.run(work, memory, hang_up, stages)
        if exchange.is_resident:
            return await self._whole(exchange, body, arrived, True)
        read = perf_counter_ns()
        admitted: Ticket[None] = Ticket()
        waited = time_ns()
        outcome = await self._batcher.execute(exchange.inference.prepared, data, memory, hang_up)
        if stages is not None:
            stages.add("batch", waited)
        executed = perf_counter_ns()
        if is_light:
            answer = exchange.write(outcome)
        else:
            answer = await service.run(lambda _: exchange.write(outcome), memory, hang_up, stages, admitted)
        return outcome, answer, read - arrived, perf_counter_ns() - executed


def _data_start(headers: Headers, _: bytes, length: int) -> int:
    """Where the binary data of a body of `length` bytes begin, as its header says; else 0."""
    stated = headers.get(_LENGTH, b"")
    if not stated.isdigit() or len(stated) > 18:
        return 0
    return min(int(stated), max(length, 0))


def _json_bytes(headers: Headers, body: Body) -> int:
    """How much of the body is JSON. Raises Unreadable."""
    stated = headers.get(_LENGTH)
    if stated is None:
        if body[-1:] != b"}" and _ANNOUNCED in bytes(body[:_BEGINNING]):
            raise Unreadable(f"{JSON_LENGTH} is missing; it tells how many bytes are JSON, before the binary data.")
        return len(body)
    if not stated.isdigit() or len(stated) > 18:
        shown = stated[:40].decode("latin-1")
        raise Unreadable(f"{JSON_LENGTH} is {shown}; give the bytes of the JSON.")
    size = int(stated)
    if size > len(body):
        raise Unreadable(f"{JSON_LENGTH} is {size} but the body has {len(body)} bytes.")
    return size


def routes(endpoint: InferEndpoint) -> list[BaseRoute]:
    """The routes to `endpoint`."""
    v2 = router("inference")
    text = (
        "Execute a model, an operator, a kept graph or one from a file: tensors in, results out, as numbers or binary."
    )
    for path, described in zip((PATH, VERSIONED), openapi.infer(), strict=True):
        v2.post(path, description=text, **described)(endpoint)
    return v2.routes
