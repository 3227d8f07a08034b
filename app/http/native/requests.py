"""Dispatches as documents: requests read, answers written, each in any representation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from app.codecs.codec import Body, Codec, Encoded, Hole, Piece, Span
from app.codecs.request_cache import RequestCache
from app.contract.constants import FeatureLevel
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.device import Ran
from app.engine.capabilities import capability
from app.engine.dispatch import DispatchRequest
from app.engine.service import Outcome, Prepared, Service
from app.http.core.documents import CODECS, read_document
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.operators.operator import Operator

_TIMES = (Hole("queue_seconds"), Hole("compute_seconds"))
"""Numbers of `Outcome` that differ from answer to answer, in the order in which `Prepared.answer` takes them."""

_CAPABILITY = Hole("capability")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What all documents have in common that differ in tensor data only: the request, and the form of its answers."""

    prepared: Prepared
    inputs: Mapping[str, object]
    answers: dict[str, tuple[Ran, list[bytes]]] = field(default_factory=dict)
    """By representation, where the last dispatch ran and what is around the outputs' data and the times of such."""

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

    def _form(self, codec: Codec, ran: Ran) -> list[bytes]:
        """What `write` puts between the outputs and the times."""
        compiled = self.prepared.compiled
        data = {name: Hole(name) for name in compiled.outputs}
        pieces = codec.encode({**self.prepared.answer(ran, data, *_TIMES), _CAPABILITY.name: _CAPABILITY})
        assert [piece for piece in pieces if isinstance(piece, Hole)] == [*data.values(), *_TIMES, _CAPABILITY]
        *form, last, end = [bytes(piece) for piece in pieces if not isinstance(piece, Hole)]
        return [*form, last + _capability(codec.media_type, type(compiled.operator), compiled.level) + end]


@cache
def _capability(media_type: str, operator: type[Operator], level: FeatureLevel) -> bytes:
    """The largest part of an answer, and the same in many."""
    (piece,) = CODECS[media_type].encode(capability(operator, level))
    assert not isinstance(piece, Hole)
    return bytes(piece)


class DispatchReader:
    """Reads dispatches. One that differs from an earlier one in its tensor data only is judged no second time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cache: RequestCache[Dispatch] = RequestCache()

    def read(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]]:
        """The request in `body`, and its tensors' data. Raises ContractError, Unreadable, LimitExceeded."""
        return self.find(codec, body, memory) or self.judge(codec, body, memory)

    def find(self, codec: Codec, body: Body, memory: MemoryShare) -> tuple[Dispatch, dict[str, Buffer]] | None:
        """The same, if one like it was read before. Raises LimitExceeded."""
        known = self._cache.find(codec, body)
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
            self._cache.add(codec, body, spans, dispatch)
        return dispatch, data


def _dispatch_request(document: object) -> DispatchRequest:
    return validate(DispatchRequest, document)
