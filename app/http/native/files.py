"""POST /v1/operators/{Type}/dispatch: tensors as files, all else of the request in the query."""

from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from app.codecs.codec import Decoder
from app.codecs.npy import Npy
from app.codecs.npz import Npz
from app.codecs.safetensors import Safetensors
from app.codecs.structure import Unreadable
from app.codecs.tensor_files import FileCodec
from app.contract.violations import ContractError
from app.http.core.bodies import prefers_minimal
from app.http.core.documents import CODECS
from app.http.core.exchange import Reply, Request
from app.http.core.media_types import media_type, unsupported
from app.http.core.routes import Given, router
from app.http.native import openapi
from app.http.native.accepted import FORMATS, accepted_for_files, wanted_form
from app.http.native.attributes import first_input, in_query, read_attributes
from app.http.native.dispatch import answer_in
from app.http.native.requests import Reader
from app.operators.catalog import find_operator, no_operator

_ALIASES = {
    "application/npy": Npy.media_type,
    "application/npz": Npz.media_type,
    "application/zip": Npz.media_type,
    "application/safetensors": Safetensors.media_type,
}
_MOST_FIELDS = 256
_LONGEST_QUERY = 1 << 10
"""Bytes of a query that is remembered."""


def routes(reader: Reader) -> list[BaseRoute]:
    """That of dispatches of one operator on files, as `reader` reads dispatches."""
    max_bytes = reader.service.settings.max_body_bytes
    v1 = router("native", "/v1")

    @v1.post("/operators/{Type}/dispatch", **openapi.files())
    async def answer(request: Request, path: Given) -> Reply:
        """Execute one operator on tensors that are files, its attributes in the query: the outputs come in a file,
        too."""
        headers = request.headers
        accept = accepted_for_files(headers.get(b"accept", b""))
        kind = _format_of(headers.get(b"content-type", b""))
        make = _remembered_codec if len(request.query) <= _LONGEST_QUERY else _codec
        codec = make(kind, path["Type"], request.query, max_bytes)
        wanted = wanted_form(accept, kind, prefers_minimal(headers.get(b"prefer", b"")))
        try:
            return await answer_in(wanted, codec, reader, request)
        except ContractError as error:
            operator = find_operator(path["Type"])
            assert operator is not None, "its dispatch has been read"
            raise in_query(operator, error) from None

    return v1.routes


@lru_cache
def _format_of(content_type: bytes) -> str:
    """Raises HTTPException 415."""
    kind = media_type(content_type)
    kind = _ALIASES.get(kind, kind)
    if kind not in FORMATS:
        documents = " and ".join(CODECS)
        raise unsupported(content_type, f"send {' or '.join(FORMATS)} here, and {documents} to /v1/dispatch")
    return kind


def _codec(kind: str, name: str, query: bytes, max_bytes: int) -> Decoder:
    """Raises ContractError, Unreadable, HTTPException 404."""
    operator = find_operator(name)
    if operator is None:
        raise HTTPException(404, no_operator(name))
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Unreadable(f"The query is not UTF-8, or has more than {_MOST_FIELDS} fields.") from None
    document = read_attributes(operator, pairs)
    key = f"{kind} {operator.name()}?{query.decode()}"
    return FileCodec(FORMATS[kind], key, document, first_input(operator), max_bytes)


_remembered_codec = lru_cache(256)(_codec)
