"""Graphs that are kept, /v1/graphs: sent once, dispatched many times."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from starlette.routing import BaseRoute

from app.codecs.codec import Body, Decoder, Encoded
from app.codecs.request_cache import RequestCache
from app.contract.validation import validate
from app.engine.graph_documents import (
    GraphDescription,
    GraphExecuteRequest,
    GraphKeepRequest,
    GraphSummary,
    GraphTimesQuery,
    OnnxKeepRequest,
    hold_parts,
)
from app.engine.graph_store import KeptGraph
from app.engine.inputs import given_inputs
from app.engine.service import DeadlineExceeded, Service
from app.engine.workers import Ticket
from app.http.core.answers import answered, content_type
from app.http.core.bodies import codec_of_answer, codec_of_request, compressed, no_data, read_plain_body
from app.http.core.documents import read_document
from app.http.core.exchange import Reply, Request, nothing
from app.http.core.graphs import MOST, MOST_BYTES, kept_graph, prepared_for
from app.http.core.media_types import OCTETS
from app.http.core.queries import read_query, refuse_query
from app.http.core.routes import Given, router
from app.http.native import openapi
from app.http.native.dispatch import answer_dispatch
from app.http.native.inputs import check_light
from app.http.native.onnx_graphs import is_onnx, keep_onnx, of_document, of_query
from app.http.native.requests import Dispatch, Reader, dispatch_of
from app.http.native.routes import json_answer
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.steps import in_step


def keep(
    service: Service,
    codec: Decoder,
    body: Body,
    memory: MemoryShare,
    cancelled: Callable[[], bool],
    document: object,
) -> tuple[KeptGraph, bool]:
    """What `document`, in `body`, asks for, kept, and whether it is new. For a worker."""
    if isinstance(document, dict) and "onnx" in document:
        asked = validate(OnnxKeepRequest, document)
        data = codec.binary(body, asked.onnx, ("onnx",), memory)
        return keep_onnx(service, data, of_document(asked), memory, cancelled)
    hold_parts(document, service.settings.max_graph_nodes, memory)
    request = validate(GraphKeepRequest, document)
    service.check_device(request.device)
    return service.graphs.keep(request, codec, body, memory, cancelled)


class GraphReader(Reader):
    """Reads dispatches of one graph."""

    def __init__(self, service: Service, kept: KeptGraph) -> None:
        super().__init__(service, RequestCache(MOST, MOST_BYTES))
        self._entry = kept.entry
        self._device = kept.device
        self._graph = kept.compiled
        self._prepared = kept.prepared

    async def judge(
        self, codec: Decoder, body: Body, memory: MemoryShare, cancelled: Callable[[], bool] | None
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        settings = self.service.settings

        def judge(document: object) -> GraphExecuteRequest:
            if cancelled is None:
                check_light(document)
            return validate(GraphExecuteRequest, document)

        request = read_document(codec, body, settings, memory, judge, only_light=cancelled is None)
        await in_step()
        device = self._device if request.device is None else request.device
        prepared = prepared_for(self.service, self._graph, self._prepared, device, only_light=cancelled is None)
        given = list(given_inputs(request.inputs, self._graph.inputs, self._graph.is_idle))
        dispatch = dispatch_of(self.service, prepared, given, request.data)
        data = dispatch.data(codec, body, memory)
        self.remember(dispatch, codec, body)
        return dispatch, data

    def done(self) -> None:
        self._entry.count()


def routes(service: Service) -> list[BaseRoute]:
    """Those of the graphs that `service` keeps."""
    kept_graphs, readers = router("native", "/v1/graphs"), WeakKeyDictionary[KeptGraph, GraphReader]()

    @kept_graphs.post("", **openapi.keep())
    async def keep(request: Request, _: Given) -> Reply:
        """Have a graph compiled, initialized and kept: 201 for a new one, 200 for one that is there already."""
        return await _answer_keep(service, request)

    def reader_of(kept: KeptGraph) -> GraphReader:
        reader = readers.get(kept)
        if reader is None:
            reader = readers[kept] = GraphReader(service, kept)
        return reader

    async def loaded(request: Request, id_: str) -> Reply:
        """The answer of a graph that another process took."""
        return await answer_dispatch(reader_of(await kept_graph(service, id_)), request)

    @kept_graphs.post("/{id}/dispatch", **openapi.graph_dispatch())
    def dispatch(request: Request, path: Given) -> Coroutine[Any, Any, Reply]:
        """Execute a graph that is kept: tensors in, the results and where they were computed out."""
        kept = service.graphs.find(path["id"])
        return answer_dispatch(reader_of(kept), request) if kept else loaded(request, path["id"])

    @kept_graphs.get("", **openapi.answer("listGraphs", "List kept graphs", list[GraphSummary]))
    async def graphs(request: Request, _: Given) -> Reply:
        """The graphs that are kept, the oldest first."""
        return json_answer(request, service.graphs.summaries())

    @kept_graphs.get(
        "/{id}",
        **openapi.answer(
            "getGraph", "Describe a kept graph", GraphDescription, 404, 503, 504, parameters=[openapi.GRAPH_ID]
        ),
    )
    async def graph(request: Request, path: Given) -> Reply:
        """A graph that is kept: its descriptor, which nodes were fused into which kernel, what it keeps."""
        kept = await kept_graph(service, path["id"])
        return json_answer(request, kept.described_whole())

    @kept_graphs.post("/{id}/times", **openapi.graph_times())
    async def times(request: Request, path: Given) -> Reply:
        """Run a graph that is kept on zeros, and tell how long each of its kernels takes."""
        asked = read_query(request.query, GraphTimesQuery)
        kept = await kept_graph(service, path["id"])
        device = kept.device if asked.device is None else asked.device
        service.check_device(device)
        with service.memory.open() as memory:
            found = await service.run(
                lambda ticket: service.graph_times(kept.compiled, device, memory, ticket.cancelled),
                memory,
                request.body.hung_up,
                request.stages,
            )
        return json_answer(request, found)

    @kept_graphs.delete("/{id}", **openapi.graph_deletion())
    async def drop(_: Request, path: Given) -> Reply:
        """Drop a graph. Dispatches that run finish."""
        await asyncio.to_thread(service.graphs.drop, path["id"])
        return Reply(204, [], Encoded(0, ()))

    return kept_graphs.routes


async def _answer_keep(service: Service, request: Request) -> Reply:
    headers = request.headers
    wanted, kind = codec_of_answer(headers.get(b"accept", b"")), headers.get(b"content-type", b"")
    given = None if is_onnx(kind) else codec_of_request(kind, f", or {OCTETS} for an ONNX model")
    if given is not None:
        refuse_query(request.query, "what is sent is a document, and has such fields itself")
    with service.memory.open() as memory:
        body = await read_plain_body(service, request, memory, given.data_start if given else no_data)

        def work(ticket: Ticket[None]) -> tuple[KeptGraph, bool]:
            if given is None:
                asked = of_query(request.query)
                return keep_onnx(service, memoryview(body), asked, memory, ticket.cancelled)
            judge = partial(keep, service, given, body, memory, ticket.cancelled)
            return read_document(given, body, service.settings, memory, judge, limit="max_graph_structure_bytes")

        try:
            kept, is_new = await service.run(work, memory, request.body.hung_up, request.stages)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error} The graph may be kept by now; to send it again does no harm.") from None
        document = wanted.encode_value(kept.described())
        content, coding = await compressed(service, request, Encoded(len(document), (document,)), memory)
    status = 201 if is_new else 200
    location = (b"location", f"/v1/graphs/{kept.entry.record.id}".encode())
    return answered(content, [content_type(wanted.media_type), location, *coding], nothing, status)
