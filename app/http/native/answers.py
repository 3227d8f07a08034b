"""Dispatches answered: as documents, whose form is known from earlier ones, and as files of tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

from app.codecs.codec import Codec, Encoded, Hole, Piece
from app.codecs.raw import Raw
from app.codecs.tensor_files import TensorFormat
from app.contract.constants import DataType
from app.contract.tensors import in_fields
from app.devices.device import ExecutionRecord
from app.engine.dispatch import GraphFacts
from app.engine.prepared import Outcome, response
from app.http.core.answers import Fields, content_type
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


class AnswerForm(Protocol):
    """How a client wants to be answered."""

    def takes_long(self, dispatch: Dispatch) -> bool:
        """Whether to write it is for a worker."""

    def fields(self, dispatch: Dispatch) -> Fields:
        """The answer's header fields that tell what it is."""

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Encoded:
        """The answer. Raises ContractError for what the form cannot hold, MemoryExhausted, LimitExceeded."""


class DocumentForm:
    """Implements `AnswerForm`: a document in a codec's representation, with `minimal` without the capability."""

    __slots__ = ("_fields", "_key", "codec", "minimal")

    def __init__(self, codec: Codec, minimal: bool = False) -> None:
        self.codec = codec
        self.minimal = minimal
        self._key = (codec.media_type, minimal)
        self._fields: Fields = (content_type(codec.media_type), *((_MINIMAL,) if minimal else ()))

    def takes_long(self, dispatch: Dispatch) -> bool:
        prepared = dispatch.prepared
        return dispatch.numbers and sum(prepared.output_bytes.values()) > _QUICK_BYTES

    def fields(self, dispatch: Dispatch) -> Fields:
        return self._fields

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Encoded:
        codec, key, ran = self.codec, self._key, outcome.ran
        known = dispatch.answers.get(key)
        if known is None or known[0] != ran:
            known = dispatch.answers[key] = ran, self._form(dispatch, ran)
        form = known[1]
        parts: list[Iterable[Piece]] = []
        length = place = 0
        for name, output in outcome.outputs.items():
            if dispatch.numbers:
                encoded = codec.encode_numbers(output, dispatch.prepared.work.outputs[name], memory)
            else:
                encoded = codec.encode_data(output)
            parts.append((form[place],))
            parts.append(encoded.pieces)
            length += len(form[place]) + encoded.length
            place += 1
        queue, compute = codec.encode_number(outcome.queue_seconds), codec.encode_number(outcome.compute_seconds)
        rest = b"".join((form[place], queue, form[place + 1], compute, form[place + 2]))
        parts.append((rest,))
        return Encoded(length + len(rest), chain.from_iterable(parts))

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

    def fields(self, dispatch: Dispatch) -> Fields:
        kind = content_type(self.format.media_type)
        if not isinstance(self.format, Raw):
            return (kind,)
        ((_, desc),) = dispatch.prepared.work.outputs.items()
        sizes = ",".join(map(str, desc.Sizes))
        return (kind, (b"tensor-datatype", desc.DataType.value.encode()), (b"tensor-sizes", sizes.encode()))

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Encoded:
        descs = dispatch.prepared.work.outputs
        return self.format.write({name: (descs[name], data) for name, data in outcome.outputs.items()})


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
