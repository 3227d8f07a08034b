"""In which form a client wants its dispatch to be answered."""

import contextlib
from dataclasses import dataclass
from functools import lru_cache

from starlette.exceptions import HTTPException

from app.codecs.codec import Encoded
from app.codecs.json import JsonCodec
from app.codecs.npy import Npy
from app.codecs.npz import Npz
from app.codecs.raw import Raw
from app.codecs.safetensors import Safetensors
from app.codecs.tensor_files import TensorFormat
from app.engine.prepared import Outcome
from app.http.core.answers import Fields
from app.http.core.bodies import codec_of_answer, prefers_minimal
from app.http.core.documents import CODECS
from app.http.core.headers import Headers
from app.http.core.media_types import preferred
from app.http.native.answers import AnswerForm, DocumentForm, FileForm
from app.http.native.requests import Dispatch
from app.memory.accounts import MemoryShare

FORMATS: dict[str, TensorFormat] = {each.media_type: each for each in (Npy(), Npz(), Safetensors(), Raw())}
"""By media type."""

_ONE_OF = {Npz.media_type: Npy.media_type}
"""What one tensor is answered in where several came."""

_OF_ONE = (Npy.media_type, Raw.media_type)
"""Formats of one tensor alone."""


@dataclass(frozen=True, slots=True)
class AcceptedForm:
    """Implements `AnswerForm`: what Accept prefers, which depends on how many outputs there are."""

    accept: tuple[str, ...]
    given: str
    minimal: bool

    def _form(self, dispatch: Dispatch) -> AnswerForm:
        """Raises HTTPException 406."""
        several = len(dispatch.prepared.work.outputs) > 1
        return _form_of_outputs(self.accept, self.given, self.minimal, several=several)

    def takes_long(self, dispatch: Dispatch) -> bool:
        return self._form(dispatch).takes_long(dispatch)

    def fields(self, dispatch: Dispatch) -> Fields:
        return self._form(dispatch).fields(dispatch)

    def write(self, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare) -> Encoded:
        return self._form(dispatch).write(dispatch, outcome, memory)


@lru_cache
def _form_of_outputs(accept: tuple[str, ...], given: str, minimal: bool, *, several: bool) -> AnswerForm:
    of_its_kind = {Npy.media_type: Npz.media_type, Raw.media_type: Npz.media_type} if several else _ONE_OF
    first = of_its_kind.get(given, given)
    others = [each for each in (*FORMATS, *CODECS) if not (several and each in _OF_ONE)]
    chosen = preferred(accept, list(dict.fromkeys([first, *others])))
    return FileForm(FORMATS[chosen]) if chosen in FORMATS else DocumentForm(CODECS[chosen], minimal)


@lru_cache
def accepted_for_files(accept: bytes | None) -> tuple[str, ...]:
    """What `AcceptedForm` needs to know of Accept. Raises HTTPException 406 where nothing that there is suits it."""
    lines = () if accept is None else (accept.decode("latin-1"),)
    preferred(lines, [*FORMATS, *CODECS])  # which of them depends on the outputs
    return lines


def form_of_answer(headers: Headers) -> AnswerForm:
    """What a client that sends a document is answered in: a document, or a file if Accept likes that best.

    Raises HTTPException 406.
    """
    return _form_of_answer(headers.get(b"accept"), headers.get(b"prefer"))


@lru_cache
def _form_of_answer(accept: bytes | None, prefer: bytes | None) -> AnswerForm:
    minimal = prefers_minimal(prefer)
    if accept is not None:
        lines = (accept.decode("latin-1"),)
        with contextlib.suppress(HTTPException):  # there may be another name for a document
            if preferred(lines, [*CODECS, *FORMATS]) in FORMATS:
                return AcceptedForm(lines, JsonCodec.media_type, minimal)
    return DocumentForm(codec_of_answer({} if accept is None else {b"accept": accept}), minimal)
