"""Content codings gzip and deflate, of requests and answers (RFC 9110, 8.4.1)."""

import zlib
from collections.abc import Iterable

from starlette.exceptions import HTTPException

from app.codecs.codec import Body, Encoded, Piece
from app.codecs.structure import Unreadable
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer

_WINDOW = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_PIECE = 1 << 18
"""Bytes that are taken or made at a time."""

_GROWTH = 4
"""How many times as large the next buffer is, where the size of what is decompressed is not known."""

_PENDING = 1 << 18
"""Bytes that zlib holds back at most, and its state."""

_QUICKEST = 1


def coding_of_request(header: bytes) -> bytes:
    """From Content-Encoding; empty for none. Raises HTTPException 415."""
    if not header:
        return b""
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
    if not header:
        return b""
    coding = header.strip().lower()
    return coding if coding in _WINDOW else b""


def decompress(body: Body, coding: bytes, most: int, memory: MemoryShare) -> Body:
    """`body` decompressed, in steps, so that what is over a limit is noticed before it takes memory.

    Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver.
    """
    engine = zlib.decompressobj(_WINDOW[coding])
    result = memory.buffer(min(_GROWTH * len(body), most))
    filled = 0
    view = memoryview(body)
    position = 0
    rest: bytes | memoryview = b""
    with memory.passing(
        min(3 * _PIECE, 2 * most)
    ):  # a piece, perhaps twice while it grows, and what is left of its text
        while not engine.eof:
            memory.ensure_open()
            if not rest:
                rest = view[position : position + _PIECE]
                position += len(rest)
            try:
                piece = engine.decompress(rest, _PIECE)
            except zlib.error as error:
                raise Unreadable(f"The body is not {coding.decode()}: {error}.") from None
            end = filled + len(piece)
            if end > most:
                raise LimitExceeded("max_body_bytes", "Bytes of the decompressed body", None, most)
            if not piece and not rest and not engine.eof:
                raise Unreadable(f"The body ends before its {coding.decode()} data do.")
            if end > len(result):
                result = _larger(result, filled, min(max(_GROWTH * len(result), end), most), memory)
            result[filled:end] = piece
            filled = end
            rest = engine.unconsumed_tail
    trailing = len(engine.unused_data) + len(body) - position
    if trailing:
        raise Unreadable(f"The body goes on for {trailing} bytes after its {coding.decode()} data.")
    return result[:filled]


def _larger(buffer: Buffer, filled: int, size: int, memory: MemoryShare) -> Buffer:
    """A buffer of `size` bytes in place of `buffer`, with the bytes that it is `filled` with."""
    larger = memory.buffer(size)
    for start in range(0, filled, _PIECE):
        stop = min(start + _PIECE, filled)
        larger[start:stop] = buffer[start:stop]
    memory.give(len(buffer))
    return larger


def compress(pieces: Iterable[Piece], coding: bytes, memory: MemoryShare) -> Encoded:
    """`pieces` compressed, at the level that costs least time. Raises LimitExceeded, MemoryExhausted, RequestOver."""
    engine = zlib.compressobj(_QUICKEST, zlib.DEFLATED, _WINDOW[coding])
    result: list[Piece] = []
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            memory.ensure_open()
            block = memoryview(piece)[start : start + _PIECE]
            with memory.passing(len(block) + _PENDING):
                made = engine.compress(block)
                memory.take(len(made))
            result.append(made)
    memory.take(_PENDING)
    result.append(engine.flush())
    return Encoded(sum(map(len, result)), result)
