"""In which form a client wants its dispatch to be answered."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from app.codecs.json import JsonCodec
from app.codecs.npy import Npy
from app.codecs.npz import Npz
from app.codecs.raw import Raw
from app.codecs.safetensors import Safetensors
from app.codecs.tensor_files import TensorFormat
from app.http.core.bodies import ALIASES, prefers_minimal
from app.http.core.documents import CODECS
from app.http.core.media_types import preferred
from app.http.native.answers import AnswerForm, DocumentForm, FileForm
from app.http.native.requests import Dispatch

FORMATS: dict[str, TensorFormat] = {each.media_type: each for each in (Npy(), Npz(), Safetensors(), Raw())}
"""By media type."""

_OF_ONE = (Npy.media_type, Raw.media_type)
"""Formats of one tensor alone."""


Wanted: TypeAlias = Callable[[Dispatch], AnswerForm]
"""The form that a dispatch is answered in: that of files depends on how many outputs there are. Raises HTTPException
406."""


def wanted_form(accept: str, given: str, minimal: bool) -> Wanted:
    """What `accept` prefers, of a request whose body is of the kind `given`."""
    return lambda dispatch: _form_of_outputs(accept, given, minimal, several=len(dispatch.prepared.work.outputs) > 1)


@lru_cache
def _form_of_outputs(accept: str, given: str, minimal: bool, *, several: bool) -> AnswerForm:
    of_its_kind = dict.fromkeys(_OF_ONE, Npz.media_type) if several else {Npz.media_type: Npy.media_type}
    first = of_its_kind.get(given, given)
    others = [each for each in (*FORMATS, *CODECS) if not (several and each in _OF_ONE)]
    chosen = preferred(accept, list(dict.fromkeys([first, *others])))
    return FileForm(FORMATS[chosen]) if chosen in FORMATS else DocumentForm(CODECS[chosen], minimal)


@lru_cache
def accepted_for_files(accept: bytes) -> str:
    """What `wanted_form` needs to know of Accept. Raises HTTPException 406 where nothing that there is suits it."""
    wanted = accept.decode("latin-1")
    preferred(wanted, [*FORMATS, *CODECS])  # which of them depends on the outputs
    return wanted


@lru_cache
def form_of_answer(accept: bytes, prefer: bytes) -> Wanted:
    """Of a client that sends a document: a document, or a file if Accept likes that best.

    Raises HTTPException 406.
    """
    wanted, minimal = accept.decode("latin-1"), prefers_minimal(prefer)
    chosen = preferred(wanted, [*CODECS, *FORMATS, *ALIASES])
    if chosen in FORMATS:
        return wanted_form(wanted, JsonCodec.media_type, minimal)
    form = DocumentForm(CODECS[ALIASES.get(chosen, chosen)], minimal)
    return lambda _: form
