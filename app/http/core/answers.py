"""Answers, from documents to what is sent."""

from collections.abc import Callable, Iterable, Iterator

from app.codecs.codec import Encoded, Piece
from app.http.core.exchange import RawHeaders, Reply

JOINED = 1 << 16
"""So many bytes are rather copied once more than handed over in a call of their own."""


def answered(content: Encoded, content_type: str, sent: Callable[[], None], more: RawHeaders | None = None) -> Reply:
    """200 with `content`. `more` are further header fields."""
    headers = [(b"content-length", b"%d" % content.length), (b"content-type", content_type.encode()), *(more or ())]
    return Reply(200, headers, content, sent)


def merged(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """`pieces`, small ones that follow each other together: each that is sent costs a system call."""
    small: list[Piece] = []
    size = 0
    for piece in pieces:
        if small and size + len(piece) > JOINED:
            yield b"".join(small)
            small, size = [], 0
        if len(piece) > JOINED:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)
