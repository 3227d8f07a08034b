"""Dispatches read, in any representation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from app.codecs.codec import Body, Decoder, Span
from app.codecs.numbers import Numbers
from app.codecs.request_cache import RequestCache
from app.contract.kinds import Kind
from app.contract.tensors import element_name, path_of
from app.contract.validation import abbreviate, in_words, meant_by, validate
from app.contract.violations import ContractError, refused
from app.devices.device import ExecutionRecord
from app.engine.dispatch import DispatchRequest, GraphDispatchRequest
from app.engine.graph_documents import GivenGraph, hold_parts
from app.engine.inputs import Given
from app.engine.prepared import Prepared
from app.engine.service import Service
from app.http.core.documents import TooHeavy, read_document
from app.http.native.inputs import check_light, described, limit_numbers, undescribed
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.operators.operator import Role
from app.settings import Settings
from app.steps import in_step

_NOTHING = memoryview(b"")

_SUBJECTS = ("operator", "graph")
"""What is dispatched: one of them."""


@dataclass(eq=False, slots=True)
class Dispatch:
    """What all documents have in common that differ in tensor data only: the request, and the form of its answers."""

    prepared: Prepared
    inputs: Sequence[Given]
    numbers: bool = False
    """Whether representations that have numbers for tensor data are to answer with them."""
    answers: dict[Hashable, tuple[ExecutionRecord, list[bytes]]] = field(default_factory=dict)
    """By form, where the last dispatch ran and what is around the outputs' data and the times of such."""

    def data(self, codec: Decoder, body: Body, memory: MemoryShare) -> dict[str, Buffer]:
        """The tensors' data in `body`. Raises ContractError, with `body` as it was."""
        data: dict[str, Buffer] = {}
        descs = self.prepared.work.inputs
        try:
            for name, path, value in self.inputs:
                desc = descs.get(name)  # if there is no such input, binding says so
                data[name] = codec.binary(body, value, path, memory, desc) if desc else _NOTHING
        except ContractError:
            for (_, _, value), each in zip(self.inputs, data.values(), strict=False):
                codec.put_back(body, value, each)
            raise
        return data


def dispatch_of(
    service: Service, prepared: Prepared, inputs: Sequence[Given], form: Literal["numbers", "base64"] | None
) -> Dispatch:
    """A dispatch on `inputs` that is answered in `form`, or in that of its inputs. Raises LimitExceeded."""
    numbers = False
    for each in inputs:
        numbers = numbers or isinstance(each.value, Numbers)
    if numbers:
        given = {name: value for name, _, value in inputs}
        limit_numbers(given, prepared.work.inputs, service.settings.max_numbers)
    return Dispatch(prepared, inputs, numbers if form is None else form == "numbers")


class Reader(ABC):
    """Reads dispatches. One that differs from an earlier one in its tensor data only is judged no second time."""

    def __init__(self, service: Service, known: RequestCache[Dispatch]) -> None:
        self.service = service
        self._known = known

    def done(self) -> None:  # noqa: B027 - most have nothing to do
        """One that it read was dispatched."""

    async def read(
        self, codec: Decoder, body: Body, memory: MemoryShare, cancelled: Callable[[], bool]
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """The request in `body`, and its tensors' data, for a worker: graphs are compiled.

        Raises ContractError, Unreadable, LimitExceeded, MemoryExhausted, Cancelled.
        """
        return self.find(codec, body, memory) or await self.judge(codec, body, memory, cancelled)

    def find(self, codec: Decoder, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]] | None:
        """The same, if one like it was read before. Raises LimitExceeded."""
        known = self._known.find(codec, body)
        if known is None:
            return None
        try:
            return known, known.data(codec, body, memory)
        except ContractError:  # what looked like tensor data is not; the whole document tells what it is
            return None

    @abstractmethod
    async def judge(
        self, codec: Decoder, body: Body, memory: MemoryShare, cancelled: Callable[[], bool] | None
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """The same as `read`, of what `find` does not find. Without `cancelled` only of what takes no time: raises
        TooHeavy for anything else."""

    def remember(self, dispatch: Dispatch, codec: Decoder, body: Body, made_bytes: int = 0) -> None:
        """Have `find` find those like it, for which so much was made."""
        spans = [value for _, _, value in dispatch.inputs if isinstance(value, Span)]
        if len(spans) == len(dispatch.inputs):
            self._known.add(codec, body, spans, dispatch, made_bytes)


class DispatchReader(Reader):
    """Reads dispatches that say what to execute: an operator or a graph."""

    def __init__(self, service: Service) -> None:
        known: RequestCache[Dispatch] = RequestCache()
        super().__init__(service, known)
        self.cache = known.made
        """What was made of the last requests."""

    async def judge(
        self, codec: Decoder, body: Body, memory: MemoryShare, cancelled: Callable[[], bool] | None
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        settings = self.service.settings
        only_light = cancelled is None
        judge = partial(_dispatch_request, settings, codec, memory, only_light)
        request = read_document(codec, body, settings, memory, judge, only_light=only_light)
        if isinstance(request, GraphDispatchRequest):
            if cancelled is None:
                raise TooHeavy
            return self._graph(request, codec, body, memory, cancelled)
        await in_step()
        prepared = await self.service.prepare(request)
        await in_step()
        dispatch = dispatch_of(self.service, prepared, _each(request), request.data)
        data = dispatch.data(codec, body, memory)
        self.remember(dispatch, codec, body, prepared.kept_bytes)
        return dispatch, data

    def _graph(
        self,
        request: GraphDispatchRequest,
        codec: Decoder,
        body: Body,
        memory: MemoryShare,
        cancelled: Callable[[], bool],
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """A graph, compiled, and the data of the inputs that are bound at execution."""
        given = GivenGraph(request.graph, request.feature_level, request.inputs, to_keep=False)
        graph = given.read(codec, body, memory)
        compiled = self.service.compile(graph, memory, cancelled)
        bound = [each for each in given.inputs if not compiled.is_known(each.name)]
        prepared = self.service.prepare_graph(compiled, request.device)
        dispatch = dispatch_of(self.service, prepared, bound, request.data)
        if not compiled.memory_bytes:  # else it has tensors that lie in this request's memory
            self.remember(dispatch, codec, body, prepared.kept_bytes)
        return dispatch, {each.name: graph.inputs[each.name] for each in bound}


def _each(request: DispatchRequest) -> list[Given]:
    """The data of each tensor, those of arrays one by one. Raises ContractError where a list is missing."""
    operator = request.operator
    arrays, found = type(operator).array_names(), []
    for name, value in request.inputs.items():
        path = ("inputs", name)
        if name not in arrays:
            if path_of(name) != (name,):
                message = f"inputs has no {in_words(name)}; the data of an array's tensors are a list."
                raise refused(path, message, abbreviate(name), operator.tensor_names(Role.INPUT))
            found.append(Given(name, path, value))
        elif isinstance(value, list):
            found += [Given(element_name(name, place), (*path, place), each) for place, each in enumerate(value)]
        else:
            raise refused(path, f"Data of {name} must be a list, with those of each of its tensors.", value, "a list")
    return found


def _dispatch_request(
    settings: Settings, codec: Decoder, memory: MemoryShare, only_light: bool, document: object
) -> DispatchRequest | GraphDispatchRequest:
    if isinstance(document, dict) and not any(name in document for name in _SUBJECTS):
        message = "operator is missing, and so is graph; one of them says what to execute."
        message += meant_by(document, _SUBJECTS)
        raise refused(("operator",), message, None, _SUBJECTS, kind=Kind.FIELD_MISSING)
    if isinstance(document, dict) and "graph" in document:
        if "operator" in document:  # one of them may be null
            document = {name: each for name, each in document.items() if each is not None or name not in _SUBJECTS}
        if "graph" in document:
            if only_light:
                check_light(document)
            hold_parts(document, settings.max_graph_nodes, memory)
            return validate(GraphDispatchRequest, document)
    try:
        return validate(DispatchRequest, described(document, codec, memory, only_light=only_light))
    except ContractError as error:
        raise undescribed(document, error) from None
