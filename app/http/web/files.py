"""What browsers are sent to keep: whole, compressed where they take that, and not again while it stays the same."""

import gzip
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import Response

from app.http.core.kept import is_known, tag_of
from app.http.core.media_types import accepts_gzip


class KeptFile:
    """A file as bytes and its compressed form, each with an entity tag of its own (RFC 9110, 8.8.3)."""

    __slots__ = ("_headers", "_media_type", "_packed", "_tags", "content")

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str] | None = None, *, compressed: bool = True
    ) -> None:
        """`headers` are sent with it, beside those that this class knows of. What is made for one request is not
        worth to be `compressed`, which takes as long as some ten dispatches.
        """
        self.content = content
        packed = gzip.compress(content, mtime=0) if compressed else content
        # What grows by it, as small files do, is sent as it is.
        self._packed = packed if len(packed) < len(content) else None
        self._tags = tag_of(content), tag_of(packed)
        self._media_type = media_type
        self._headers = dict(headers or {})

    def answer(self, asked: Headers) -> Response:
        """The file, or word that the client has it already (RFC 9110, 13.1.2)."""
        packed = self._packed if accepts_gzip(asked.get("accept-encoding", "")) else None
        tag = self._tags[packed is not None]
        headers = self._headers | {
            "etag": tag,
            "cache-control": "no-cache",  # to be kept, and asked for each time whether it is still the same
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
        }
        if is_known(tag, asked.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        if packed is None:
            return Response(self.content, headers=headers, media_type=self._media_type)
        return Response(packed, headers=headers | {"content-encoding": "gzip"}, media_type=self._media_type)
