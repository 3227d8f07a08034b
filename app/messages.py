"""Dispatches as documents: requests read, answers written, each in any representation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from app.buffers import Buffer
from app.codecs.codec import Body, Codec, Encoded, Hole, Span
from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.codecs.templates import Templates
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.dispatch import DispatchRequest
from app.execution.device import Ran
from app.limits import LimitExceeded, MemoryShare
from app.service import Outcome, Prepared, Service
from app.settings import Settings

T = TypeVar("T")

CODECS: dict[str, Codec] = {codec.media_type: codec for codec in (JsonCodec(), MsgpackCodec())}
"""By media type, the default first."""

_HOLES = ("output", "queue_seconds", "compute_seconds")
"""Fields of `Outcome` that differ from answer to answer, in the order in which `Prepared.answer` takes them."""


LIGHT = 1 << 13
"""Bytes of structure that are read and judged in so little time, whatever they are, that an event loop may do it."""


class TooHeavy(Exception):
    """A document's structure is of more than LIGHT bytes: it is for a worker to read."""


def read_document(
    codec: Codec,
    body: Body,
    settings: Settings,
    memory: MemoryShare,
    judge: Callable[[object], T],
    *,
    only_light: bool = False,
) -> T:
    """What `judge` makes of the document in `body`, for as long as which memory is taken for it.

    Raises Unreadable, LimitExceeded, what `judge` does, and TooHeavy for what is not light if it should be.
    """
    most = settings.max_structure_bytes
    held = memory.held
    try:
        document = codec.decode(body, min(most, LIGHT) if only_light else most, settings.max_depth, memory)
        return judge(document)
    except LimitExceeded as error:
        if only_light and error.limit == "max_structure_bytes" and most > LIGHT:
            raise TooHeavy from None
        raise
    finally:
        memory.give(memory.held - held)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What all documents have in common that differ in tensor data only: the request, and the form of its answers."""

    prepared: Prepared
    inputs: Mapping[str, object]
    answers: dict[tuple[str, Ran], list[bytes]] = field(default_factory=dict)
    """By representation and device, what is around the values of _HOLES."""

    def data(self, codec: Codec, body: Body, memory: MemoryShare) -> dict[str, Buffer]:
        """The tensors' data in `body`. Raises ContractError, with `body` as it was."""
        data: dict[str, Buffer] = {}
        try:
            for name, value in self.inputs.items():
                data[name] = codec.binary(body, value, ("inputs", name), memory)
        except ContractError:
            for name, each in data.items():
                codec.put_back(body, self.inputs[name], each)
            raise
        return data

    def write(self, codec: Codec, outcome: Outcome) -> Encoded:
        """The answer."""
        form = self.answers.get((codec.media_type, outcome.ran))
        if form is None:
            form = self.answers[codec.media_type, outcome.ran] = self._form(codec, outcome.ran)
        start, after_output, after_queue, end = form
        output = codec.encode_data(outcome.output)
        queue, compute = codec.encode_number(outcome.queue_seconds), codec.encode_number(outcome.compute_seconds)
        rest = b"".join((after_output, queue, after_queue, compute, end))
        return Encoded(len(start) + output.length + len(rest), chain((start,), output.pieces, (rest,)))

    def _form(self, codec: Codec, ran: Ran) -> list[bytes]:
        pieces = codec.encode(self.prepared.answer(ran, *map(Hole, _HOLES)))
        assert [piece.name for piece in pieces if isinstance(piece, Hole)] == list(_HOLES)
        return [bytes(piece) for piece in pieces if not isinstance(piece, Hole)]


class DispatchReader:
    """Reads dispatches. One that differs from an earlier one in its tensor data only is judged no second time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._templates: Templates[Dispatch] = Templates(most=256, most_bytes=1 << 14)

    def read(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]]:
        """The request in `body`, and its tensors' data. Raises ContractError, Unreadable, LimitExceeded."""
        return self.find(codec, body, memory) or self.judge(codec, body, memory)

    def find(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]] | None:
        """The same, if one like it was read before. Raises LimitExceeded."""
        known = self._templates.find(codec, body)
        if known is None:
            return None
        try:
            return known, known.data(codec, body, memory)
        except ContractError:  # what looked like tensor data is not; the whole document tells what it is
            return None

    def judge(
        self, codec: Codec, body: Body, memory: MemoryShare, *, only_light: bool = False
    ) -> tuple[Dispatch, dict[str, Buffer]]:
        """The same as `read`, of what `find` does not find. Raises TooHeavy for what is not light if it should be."""
        settings = self._service.settings
        request = read_document(codec, body, settings, memory, _dispatch_request, only_light=only_light)
        dispatch = Dispatch(self._service.prepare(request), request.inputs)
        data = dispatch.data(codec, body, memory)
        spans = [value for value in request.inputs.values() if isinstance(value, Span)]
        if len(spans) == len(request.inputs):
            self._templates.add(codec, body, spans, dispatch)
        return dispatch, data


def _dispatch_request(document: object) -> DispatchRequest:
    return validate(DispatchRequest, document)
