"""Content codings gzip and deflate, of requests and answers (RFC 9110, 8.4.1)."""

import zlib
from collections.abc import Iterable, Iterator

from starlette.exceptions import HTTPException

from app.codecs.codec import Body, Encoded, Piece
from app.codecs.structure import Unreadable
from app.limits import LimitExceeded, MemoryShare

_WINDOW = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_PIECE = 1 << 20
_QUICKEST = 1


def coding_of_request(header: bytes) -> bytes:
    """From Content-Encoding; empty for none. Raises HTTPException 415."""
    coding = header.strip().lower()
    if coding in (b"", b"identity"):
        return b""
    if coding not in _WINDOW:
        given = header[:100].decode("latin-1")
        raise HTTPException(415, f"Content-Encoding is {given}; send gzip, deflate or the body as it is.")
    return coding


def coding_of_answer(header: bytes) -> bytes:
    """From Accept-Encoding; empty for none.

    A client that names one coding wants it, as Triton's do. A list of all that it could read, which HTTP libraries send
    of their own accord, is no such wish: the quickest answer to it is the plain one.
    """
    coding = header.strip().lower()
    return coding if coding in _WINDOW else b""


def decompress(body: Body, coding: bytes, most: int, memory: MemoryShare) -> Body:
    """`body` decompressed, in steps, so that what is over a limit is noticed before it takes memory.

    Raises Unreadable, LimitExceeded, MemoryExhausted.
    """
    engine = zlib.decompressobj(_WINDOW[coding])
    result = bytearray()
    view = memoryview(body)
    position = 0
    rest: bytes | memoryview = b""
    while not engine.eof:
        if not rest:
            rest = view[position : position + _PIECE]
            position += len(rest)
        try:
            piece = engine.decompress(rest, _PIECE)
        except zlib.error as error:
            raise Unreadable(f"The body is not {coding.decode()}: {error}.") from None
        if len(result) + len(piece) > most:
            raise LimitExceeded("max_body_bytes", "Bytes of the decompressed body", None, most)
        if not piece and not rest and not engine.eof:
            raise Unreadable(f"The body ends before its {coding.decode()} data do.")
        memory.take(len(piece))
        result += piece
        rest = engine.unconsumed_tail
    trailing = len(engine.unused_data) + len(body) - position
    if trailing:
        raise Unreadable(f"The body goes on for {trailing} bytes after its {coding.decode()} data.")
    memory.give(len(body))
    return memoryview(result)


def compress(pieces: Iterable[Piece], coding: bytes, memory: MemoryShare) -> Encoded:
    """`pieces` compressed, at the level that costs least time."""

    def compressed() -> Iterator[bytes]:
        engine = zlib.compressobj(_QUICKEST, zlib.DEFLATED, _WINDOW[coding])
        for piece in pieces:
            yield engine.compress(piece)
        yield engine.flush()

    result: list[Piece] = []
    for piece in compressed():
        memory.take(len(piece))
        result.append(piece)
    return Encoded(sum(map(len, result)), result)
