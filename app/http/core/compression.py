"""Content codings gzip, deflate and zstd, of requests and answers (RFC 9110, 8.4.1, and RFC 8878)."""

import sys
import zlib
from collections.abc import Iterable
from typing import Protocol

from starlette.exceptions import HTTPException

from app.codecs.codec import Body, Encoded, Piece
from app.codecs.structure import Unreadable
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_WINDOW = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_ZSTD = b"zstd"
_CODINGS = (*_WINDOW, _ZSTD)
_PIECE = 1 << 18
"""Bytes that are taken or made at a time."""

_FIRST = 1 << 10
"""Bytes that are taken first, then twice as many each time: zlib copies what is left of them behind a gzip member."""

_FURTHER = {b"gzip": 1 << 10, b"deflate": 0, _ZSTD: 1 << 14}
"""Bytes that a gzip member or zstd frame behind the first one counts for besides its own: what is made while one is
begun. There is nothing behind deflate's data."""

_GZIP_MAGIC = b"\x1f\x8b"

_ASKED = 1 << 14
"""Bytes after which it is asked whether to go on: those taken and made, and a sixteenth of what parts count for."""

_GROWTH = 4
"""How many times as large the next buffer is, where the size of what is decompressed is not known."""

_PENDING = 1 << 18
"""Bytes that zlib holds back at most, and its state."""

_QUICKEST = 1

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = b"\x2a\x4d\x18"
"""Behind its first byte, 0x50 to 0x5f, how a frame begins that decompressors skip."""

_ZSTD_HEADER = 18
"""Bytes that a frame's header has at most."""

_LARGEST_WINDOW = 23
"""Logarithm of the bytes that zstd may have to look back on: what RFC 9659 lets senders ask for."""

_ZSTD_PENDING = 1 << 21
"""Bytes that zstd holds while it compresses at the level `_QUICKEST`, and what it has not given back."""

_ZSTD_BLOCKS = 1 << 19
"""Bytes that zstd holds while it decompresses, besides its window: blocks on their way in and out, and its tables."""


def coding_of_request(header: bytes) -> bytes:
    """From Content-Encoding; empty for none. Raises HTTPException 415."""
    coding = _stated(header)
    if coding in (b"", b"identity"):
        return b""
    if coding == b"x-gzip":  # which is the same (RFC 9110, 8.4.1.3)
        return b"gzip"
    if coding not in _CODINGS:
        given, known = header[:100].decode("latin-1"), b", ".join(_CODINGS).decode()
        message = f"Content-Encoding is {given}; send {known} or the body as it is."
        raise HTTPException(415, message, {"Accept-Encoding": known})
    return coding


def coding_of_answer(header: bytes) -> bytes:
    """From Accept-Encoding; empty for none.

    A client that names one coding wants it, as Triton's do. A list of all that it could read, which HTTP libraries send
    of their own accord, is no such wish: the quickest answer to it is the plain one.
    """
    coding = _stated(header)
    return coding if coding in _CODINGS else b""


def _stated(header: bytes) -> bytes:
    """Its one coding: empty elements are none (RFC 9110, 5.6.1)."""
    return header.strip(b" \t,").lower()


class _Decompressor(Protocol):
    """What Python's own decompressors are."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Buffer | bytes, max_length: int, /) -> bytes: ...


class _Inflater:
    """Implements `_Decompressor` with zlib, which does not keep what it has not come to yet."""

    def __init__(self, coding: bytes) -> None:
        self._engine = zlib.decompressobj(_WINDOW[coding])

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def needs_input(self) -> bool:
        return not self._engine.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data

    def decompress(self, data: Buffer | bytes, max_length: int, /) -> bytes:
        return self._engine.decompress(self._engine.unconsumed_tail or data, max_length)


def decompress(body: Body, coding: bytes, most: int, memory: MemoryShare) -> Body:
    """`body` decompressed, in steps, so that what is over a limit is noticed before it takes memory.

    Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver.
    """
    view = memoryview(body)
    result = memory.buffer(min(_GROWTH * len(body), most))
    filled = 0
    position = 0
    further = 0
    next_asked = 0
    while True:  # gzip is as many members as a sender likes, and zstd as many frames, one behind the other
        engine, held = _decompressor(coding, view[position:])
        step = _FIRST
        # A piece, perhaps twice while it grows, and what is left of its text.
        with memory.passing(min(3 * _PIECE, 2 * most) + held):
            while not engine.eof:
                done = position + filled + further // 16
                if done >= next_asked:
                    memory.ensure_open()
                    next_asked = done + _ASKED
                rest = view[position : position + step] if engine.needs_input else view[:0]
                position += len(rest)
                try:
                    piece = engine.decompress(rest, _PIECE)
                except (zlib.error, zstd.ZstdError) as error:
                    raise Unreadable(f"The body is not {coding.decode()}: {error}.") from None
                end = filled + len(piece)
                if end + further > most:
                    what = f", and {_FURTHER[coding]} for each part of it behind the first" if further else ""
                    raise LimitExceeded("max_body_bytes", f"Bytes of the decompressed body{what}", None, most)
                if not piece and not engine.eof and engine.needs_input and position == len(view):
                    raise Unreadable(f"The body ends before its {coding.decode()} data do.")
                if end > len(result):
                    result = _larger(result, filled, min(max(_GROWTH * len(result), end), most), memory)
                result[filled:end] = piece
                filled = end
                step = min(2 * step, _PIECE)
        position -= len(engine.unused_data)
        if not _goes_on(coding, view[position:]):
            break
        further += _FURTHER[coding]
    if position < len(view):
        raise Unreadable(f"The body goes on for {len(view) - position} bytes after its {coding.decode()} data.")
    return result[:filled]


def _decompressor(coding: bytes, rest: Buffer) -> tuple[_Decompressor, int]:
    """What decompresses what `rest` begins with, and the bytes that it holds. Raises Unreadable."""
    if coding != _ZSTD:
        return _Inflater(coding), 0
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW}
    return zstd.ZstdDecompressor(options=options), _window(rest) + _ZSTD_BLOCKS


def _goes_on(coding: bytes, rest: Buffer) -> bool:
    """Whether `rest`, behind what is decompressed, begins as a further part of it does."""
    if coding == _ZSTD:
        return rest[:4] == _ZSTD_MAGIC or _is_skipped(rest)
    return coding == b"gzip" and rest[:2] == _GZIP_MAGIC


def _is_skipped(frame: Buffer) -> bool:
    """Whether it is one of zstd's frames that hold nothing of the content (RFC 8878, 3.1.2)."""
    return frame[1:4] == _ZSTD_SKIPPED and frame[0] & 0xF0 == 0x50


def _window(body: Buffer) -> int:
    """How many bytes whoever decompresses the zstd frame `body` has to look back on (RFC 8878, 3.1.1.1).

    Raises Unreadable if it is no such frame, and if these are more than any sender may ask for.
    """
    if _is_skipped(body):
        return 0
    header = bytes(body[:_ZSTD_HEADER])
    if not header.startswith(_ZSTD_MAGIC[: len(header)]):  # older formats, whose memory is unknown, among others
        raise Unreadable("The body is not zstd: it does not begin as its frames do.")
    try:
        size = zstd.get_frame_info(header).decompressed_size
    except zstd.ZstdError:  # it ends in the middle of this
        return 0
    is_all_looked_back_on = header[4] & 0x20
    exponent, eighths = divmod(header[5], 8)
    window = (size or 0) if is_all_looked_back_on else (1024 << exponent) + (128 << exponent) * eighths
    if window > 1 << _LARGEST_WINDOW:
        raise Unreadable(f"The body's zstd window is {window} bytes; send one of at most {1 << _LARGEST_WINDOW}.")
    return window


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
    engine: zstd.ZstdCompressor | zlib._Compress
    if coding == _ZSTD:
        engine, pending = zstd.ZstdCompressor(_QUICKEST), _ZSTD_PENDING
    else:
        engine, pending = zlib.compressobj(_QUICKEST, zlib.DEFLATED, _WINDOW[coding]), _PENDING
    result: list[Piece] = []
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            memory.ensure_open()
            block = memoryview(piece)[start : start + _PIECE]
            with memory.passing(len(block) + pending):
                made = engine.compress(block)
                memory.take(len(made))
            result.append(made)
    memory.take(_PENDING)
    result.append(engine.flush())
    return Encoded(sum(map(len, result)), result)
