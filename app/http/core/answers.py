"""Answers, from documents to what is sent."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from app.codecs.codec import Codec, Encoded, Piece
from app.codecs.json import JsonCodec
from app.http.core.exchange import JOINED, Reply, nothing

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Header fields that several answers have."""


_JSON = JsonCodec()


def content_type(media_type: str) -> tuple[bytes, bytes]:
    """The header field that says so."""
    return b"content-type", media_type.encode()


def answered(content: Encoded, fields: Fields, sent: Callable[[], None], status: int = 200) -> Reply:
    """`status` with `content`, about which `fields` say all but its length. Raises as `Reply` does."""
    return Reply(status, [(b"content-length", b"%d" % content.length), *fields], content, sent)


def told(document: Any, fields: Fields = (), status: int = 200, codec: Codec = _JSON) -> Reply:
    """`status` with `document`, which has no tensor data."""
    return whole(codec.encode_value(document), codec.media_type, fields, status)


def whole(content: bytes, media_type: str, fields: Fields = (), status: int = 200) -> Reply:
    """The same of what is written already."""
    return answered(Encoded(len(content), (content,)), [content_type(media_type), *fields], nothing, status)


def grouped(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """`pieces`, those that follow each other together: a large one with the small ones around it, which are joined.

    What is sent by itself costs a system call, and the end of an answer by itself a turn of the event loop as well.
    """
    group: list[Piece] = []
    small: list[Piece] = []
    size, has_large = 0, False
    for piece in pieces:
        is_large = len(piece) > JOINED
        if (is_large and has_large) or size + len(piece) > JOINED:
            group += _joined(small)
            small, size = [], 0
            if has_large or not is_large:
                yield group
                group, has_large = [], False
        if is_large:
            group.append(piece)
            has_large = True
        else:
            small.append(piece)
            size += len(piece)
    group += _joined(small)
    if group:
        yield group


def _joined(pieces: list[Piece]) -> list[Piece]:
    return [b"".join(pieces)] if pieces else []
