"""Dispatches as documents: requests read, answers written, each in any representation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from app.codecs.codec import Body, Codec, Encoded, Hole, Piece, Span
from app.codecs.request_cache import RequestCache
from app.contract.constants import DataType
from app.contract.tensors import element_name, in_fields, path_of
from app.contract.validation import abbreviate, validate
from app.contract.violations import ContractError, refused
from app.devices.device import ExecutionRecord
from app.engine.dispatch import DispatchRequest, GraphDispatchRequest, GraphFacts
from app.engine.graph_documents import Given, GivenGraph, hold_parts
from app.engine.prepared import Outcome, Prepared, response
from app.engine.service import Service
from app.http.core.documents import CODECS, TooHeavy, read_document
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.operators.compiled import Judged

_LAYOUT = (Hole("Sizes"), Hole("Strides"), Hole("TotalTensorSizeInBytes"), Hole("data"))
_TIMES = (Hole("queue_seconds"), Hole("compute_seconds"))
"""What differs from answer to answer: of each output, and of all that is done."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What all documents have in common that differ in tensor data only: the request, and the form of its answers."""

    prepared: Prepared
    inputs: Sequence[Given]
    answers: dict[str, tuple[ExecutionRecord, list[bytes]]] = field(default_factory=dict)
    """By representation, where the last dispatch ran and what is around the outputs' data and the times of such."""

    def data(self, codec: Codec, body: Body, memory: MemoryShare) -> dict[str, Buffer]:
        """The tensors' data in `body`. Raises ContractError, with `body` as it was."""
        data: dict[str, Buffer] = {}
        try:
            for name, path, value in self.inputs:
                data[name] = codec.binary(body, value, path, memory)
        except ContractError:
            for (_, _, value), each in zip(self.inputs, data.values(), strict=False):
                codec.put_back(body, value, each)
            raise
        return data

    def write(self, codec: Codec, outcome: Outcome) -> Encoded:
        """The answer."""
        ran, form = self.answers.get(codec.media_type, (None, []))
        if ran is not outcome.ran and ran != outcome.ran:
            form = self._form(codec, outcome.ran)
            self.answers[codec.media_type] = outcome.ran, form
        parts: list[Iterable[Piece]] = []
        length = place = 0
        for output in outcome.outputs.values():
            data = codec.encode_data(output)
            parts += ((form[place],), data.pieces)
            length += len(form[place]) + data.length
            place += 1
        after_output, after_queue, end = form[place:]
        queue, compute = codec.encode_number(outcome.queue_seconds), codec.encode_number(outcome.compute_seconds)
        rest = b"".join((after_output, queue, after_queue, compute, end))
        return Encoded(length + len(rest), chain(*parts, (rest,)))

    def _form(self, codec: Codec, ran: ExecutionRecord) -> list[bytes]:
        """What `write` puts between the outputs' data and the times."""
        work, in_place = self.prepared.work, self.prepared.in_place is not None
        types = tuple([(name, desc.DataType) for name, desc in work.outputs.items()])
        pattern = iter(_pattern(codec.media_type, work.subject, types, ran, in_place))
        form: list[bytes] = []
        for desc in work.outputs.values():
            pieces: list[bytes] = []
            for value in (desc.Sizes, desc.Strides, desc.total_bytes):
                pieces += (next(pattern), *_plain(codec.encode(value)))
            form.append(b"".join((*pieces, next(pattern))))
        return [*form, *pattern]


@lru_cache(1024)
def _pattern(
    media_type: str,
    subject: Judged | GraphFacts,
    types: tuple[tuple[str, DataType], ...],
    ran: ExecutionRecord,
    in_place: bool,
) -> list[bytes]:
    """What answers have in common that differ in their outputs' layouts and data, and in times: nearly all of it."""
    outputs: dict[str, Any] = in_fields(
        {name: {"DataType": data_type} | {hole.name: hole for hole in _LAYOUT} for name, data_type in types}
    )
    pieces = CODECS[media_type].encode(response(subject, outputs, ran, in_place, *_TIMES))
    assert [piece for piece in pieces if isinstance(piece, Hole)] == [*_LAYOUT * len(types), *_TIMES]
    return _plain(pieces)


def _plain(pieces: Iterable[Piece | Hole]) -> list[bytes]:
    """Those that are no holes."""
    return [bytes(piece) for piece in pieces if not isinstance(piece, Hole)]


class Reader(ABC):
    """Reads dispatches. One that differs from an earlier one in its tensor data only is judged no second time."""

    def __init__(self, service: Service, known: RequestCache[Dispatch]) -> None:
        self.service = service
        self._known = known

    def read(
        self, codec: Codec, body: Body, memory: MemoryShare, cancelled: Callable[[], bool]
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """The request in `body`, and its tensors' data, for a worker: graphs are compiled.

        Raises ContractError, Unreadable, LimitExceeded, MemoryExhausted, Cancelled.
        """
        return self.find(codec, body, memory) or self.judge(codec, body, memory, cancelled)

    def find(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]] | None:
        """The same, if one like it was read before. Raises LimitExceeded."""
        known = self._known.find(codec, body)
        if known is None:
            return None
        try:
            return known, known.data(codec, body, memory)
        except ContractError:  # what looked like tensor data is not; the whole document tells what it is
            return None

    def judge_light(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]]:
        """The same as `read`, of what `find` does not find and takes no time. Raises TooHeavy for anything else."""
        return self.judge(codec, body, memory, None)

    @abstractmethod
    def judge(
        self, codec: Codec, body: Body, memory: MemoryShare, cancelled: Callable[[], bool] | None
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """The same as `read`, of what `find` does not find. Without `cancelled` as `judge_light`."""

    def remember(self, dispatch: Dispatch, codec: Codec, body: Body) -> None:
        """Have `find` find those like it."""
        spans = [value for _, _, value in dispatch.inputs if isinstance(value, Span)]
        if len(spans) == len(dispatch.inputs):
            self._known.add(codec, body, spans, dispatch)


class DispatchReader(Reader):
    """Reads dispatches that say what to execute: an operator or a graph."""

    def __init__(self, service: Service) -> None:
        known: RequestCache[Dispatch] = RequestCache()
        super().__init__(service, known)
        self.cache = known.made
        """What was made of the last requests."""

    def judge(
        self, codec: Codec, body: Body, memory: MemoryShare, cancelled: Callable[[], bool] | None
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        settings = self.service.settings
        judge = partial(_dispatch_request, settings.max_graph_nodes, memory)
        request = read_document(codec, body, settings, memory, judge, only_light=cancelled is None)
        if isinstance(request, GraphDispatchRequest):
            if cancelled is None:
                raise TooHeavy
            return self._graph(request, codec, body, memory, cancelled)
        dispatch = Dispatch(self.service.prepare(request), list(_each(request)))
        data = dispatch.data(codec, body, memory)
        self.remember(dispatch, codec, body)
        return dispatch, data

    def _graph(
        self,
        request: GraphDispatchRequest,
        codec: Codec,
        body: Body,
        memory: MemoryShare,
        cancelled: Callable[[], bool],
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """A graph, compiled, and the data of the inputs that are bound at execution."""
        given = GivenGraph(request.graph, request.feature_level, request.inputs)
        graph = given.read(codec, body, memory)
        compiled = self.service.compile(graph, memory, cancelled)
        bound = [each for each in given.inputs if not compiled.is_known(each.name)]
        dispatch = Dispatch(self.service.prepare_graph(compiled, request.device), bound)
        if not compiled.memory_bytes:  # else it has tensors that lie in this request's memory
            self.remember(dispatch, codec, body)
        return dispatch, {each.name: graph.inputs[each.name] for each in bound}


def _each(request: DispatchRequest) -> Iterator[Given]:
    """The data of each tensor, those of arrays one by one. Raises ContractError where a list is missing."""
    arrays = request.operator.array_names()
    for name, value in request.inputs.items():
        path = ("inputs", name)
        if name not in arrays:
            if path_of(name) != (name,):
                raise refused(
                    path, f"inputs has no {abbreviate(name)}; the data of an array's tensors are a list.", field
                )
            yield Given(name, path, value)
        elif isinstance(value, list):
            for place, each in enumerate(value):
                yield Given(element_name(name, place), (*path, place), each)
        else:
            raise refused(path, f"Data of {name} must be a list, with those of each of its tensors.", None, "a list")


def _dispatch_request(max_nodes: int, memory: MemoryShare, document: object) -> DispatchRequest | GraphDispatchRequest:
    if isinstance(document, dict) and "graph" in document:
        hold_parts(document, max_nodes, memory)
        return validate(GraphDispatchRequest, document)
    return validate(DispatchRequest, document)
