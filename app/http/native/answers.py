"""Dispatches answered: as documents, whose form is known from earlier ones, and as files of tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

from app.codecs.codec import Codec, Encoded, Hole, Piece
from app.codecs.raw import Raw
from app.codecs.tensor_files import TensorFormat
from app.contract.constants import DataType
from app.contract.tensors import in_fields
from app.devices.device import ExecutionRecord
from app.engine.dispatch import GraphFacts
from app.engine.prepared import Outcome, response
from app.http.core.documents import CODECS
from app.http.native.requests import Dispatch
from app.memory.accounts import MemoryShare
from app.operators.compiled import Judged

_LAYOUT = (Hole("Sizes"), Hole("Strides"), Hole("TotalTensorSizeInBytes"), Hole("data"))
_TIMES = (Hole("queue_seconds"), Hole("compute_seconds"))
"""What differs from answer to answer: of each output, and of all that is done."""

_QUICK_BYTES = 1 << 14
"""Bytes of outputs that are written as numbers in a moment."""

_QUICK_FILE_BYTES = 1 << 20
"""Bytes whose checksum is found in a moment."""

_MINIMAL = (b"preference-applied", b"return=minimal")


class Answer(NamedTuple):
    """What is sent, and with which header fields."""

    content: Encoded
    media_type: str
    headers: list[tuple[bytes, bytes]]


class AnswerForm(Protocol):
    """How a client wants to be answered."""

    def takes_long(self, dispatch: Dispatch) -> bool:
        """Whether to write it is for a worker."""

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Answer:
        """The answer. Raises ContractError for what the form cannot hold, MemoryExhausted, LimitExceeded."""


@dataclass(frozen=True, slots=True)
class DocumentForm:
    """Implements `AnswerForm`: a document in a codec's representation, with `minimal` without the capability."""

    codec: Codec
    minimal: bool = False

    def takes_long(self, dispatch: Dispatch) -> bool:
        prepared = dispatch.prepared
        return self.codec.numbers and dispatch.numbers and sum(prepared.output_bytes.values()) > _QUICK_BYTES

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Answer:
        codec, key = self.codec, (self.codec.media_type, self.minimal)
        known = dispatch.answers.get(key)
        if known is None or (known[0] is not outcome.ran and known[0] != outcome.ran):
            known = dispatch.answers[key] = outcome.ran, self._form(dispatch, outcome.ran)
        form = known[1]
        parts: list[Iterable[Piece]] = []
        length = place = 0
        outputs = dispatch.prepared.work.outputs
        for name, output in outcome.outputs.items():
            data = (
                codec.encode_numbers(output, outputs[name], memory) if dispatch.numbers else codec.encode_data(output)
            )
            parts += ((form[place],), data.pieces)
            length += len(form[place]) + data.length
            place += 1
        after_output, after_queue, end = form[place:]
        queue, compute = codec.encode_number(outcome.queue_seconds), codec.encode_number(outcome.compute_seconds)
        rest = b"".join((after_output, queue, after_queue, compute, end))
        content = Encoded(length + len(rest), chain(*parts, (rest,)))
        return Answer(content, codec.media_type, [_MINIMAL] if self.minimal else [])

    def _form(self, dispatch: Dispatch, ran: ExecutionRecord) -> list[bytes]:
        """What `write` puts between the outputs' data and the times."""
        work, in_place = dispatch.prepared.work, dispatch.prepared.in_place is not None
        encode, outputs = self.codec.encode_value, work.outputs
        types = tuple([(name, desc.DataType) for name, desc in outputs.items()])
        pattern = _pattern(self.codec.media_type, self.minimal, work.subject, types, ran, in_place)
        form, place = [], 0
        for desc in outputs.values():
            sizes, strides, total, data = pattern[place : place + len(_LAYOUT)]
            values = (encode(desc.Sizes), encode(desc.Strides), encode(desc.total_bytes))
            form.append(b"".join((sizes, values[0], strides, values[1], total, values[2], data)))
            place += len(_LAYOUT)
        return form + pattern[place:]


@dataclass(frozen=True, slots=True)
class FileForm:
    """Implements `AnswerForm`: a file with the outputs by name, or one output alone."""

    format: TensorFormat

    def takes_long(self, dispatch: Dispatch) -> bool:
        return self.format.expands and sum(dispatch.prepared.output_bytes.values()) > _QUICK_FILE_BYTES

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Answer:
        descs = dispatch.prepared.work.outputs
        headers: list[tuple[bytes, bytes]] = []
        if isinstance(self.format, Raw):
            ((_, desc),) = descs.items()
            headers = [
                (b"tensor-datatype", desc.DataType.value.encode()),
                (b"tensor-sizes", ",".join(map(str, desc.Sizes)).encode()),
            ]
        content = self.format.write({name: (descs[name], data) for name, data in outcome.outputs.items()})
        return Answer(content, self.format.media_type, headers)


@lru_cache(1024)
def _pattern(
    media_type: str,
    minimal: bool,
    subject: Judged | GraphFacts,
    types: tuple[tuple[str, DataType], ...],
    ran: ExecutionRecord,
    in_place: bool,
) -> list[bytes]:
    """What answers have in common that differ in their outputs' layouts and data, and in times: nearly all of it."""
    outputs: dict[str, Any] = in_fields(
        {name: {"DataType": data_type} | {hole.name: hole for hole in _LAYOUT} for name, data_type in types}
    )
    document = response(subject, outputs, ran, in_place, *_TIMES)
    if minimal:
        del document["capability"]
    pieces = CODECS[media_type].encode(document)
    assert [piece for piece in pieces if isinstance(piece, Hole)] == [*_LAYOUT * len(types), *_TIMES]
    return [bytes(piece) for piece in pieces if not isinstance(piece, Hole)]
