"""Tensor data as base64 (RFC 4648, section 4: padded, canonical, no white space), decoded to where it is."""

from collections.abc import Iterator
from dataclasses import dataclass

import pybase64

from app.codecs.codec import Piece
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

BLOCK = 3 << 16
"""Bytes of tensor data that are decoded or encoded at a time: their text is still in the cache when it is copied."""

# The characters that may stand before "=" and "==", where 2 and 4 bits of the last one are not data but must be 0.
_CANONICAL = {1: b"AEIMQUYcgkosw048", 2: b"AQgw"}


@dataclass(frozen=True, slots=True)
class Slashed:
    """Tensor data in `body[start:stop]`, with each slash escaped, as PHP writes it, and nothing else."""

    start: int
    stop: int


def judged(text: Buffer) -> tuple[bool, int]:
    """Whether `text`, if it is base64, is canonical, and of how many bytes. Raises ValueError if its length is none of
    base64."""
    if len(text) % 4:
        raise ValueError
    last = bytes(text[-3:])
    padding = last.count(b"=")
    return padding not in _CANONICAL or last[-padding - 1] in _CANONICAL[padding], len(text) // 4 * 3 - padding


def decode_base64(text: Buffer, data: Buffer, memory: MemoryShare) -> None:
    """`data` may begin where `text` does, or some bytes later. Raises ValueError, with `text` as it was."""
    for start in range(0, len(data), BLOCK):
        memory.ensure_open()
        try:
            # Assignment raises ValueError if a block is shorter for having its padding in the middle.
            data[start : start + BLOCK] = pybase64.b64decode(text[start // 3 * 4 :][: BLOCK // 3 * 4], validate=True)
        except ValueError:
            put_back(text, data[:start])
            raise


def put_back(text: Buffer, data: Buffer) -> None:
    """Undo `decode_base64`. The last block is the first: each one's text is beyond the data of those before."""
    if text.readonly:
        return  # they are elsewhere
    for start in reversed(range(0, len(data), BLOCK)):
        block = pybase64.b64encode(data[start : start + BLOCK])
        text[start // 3 * 4 :][: len(block)] = block


def encode_base64(data: Buffer) -> Iterator[Piece]:
    """In quotes."""
    yield b'"'
    for start in range(0, len(data), BLOCK):
        yield pybase64.b64encode(data[start : start + BLOCK])
    yield b'"'


def blocks(text: Buffer, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where blocks of `text` begin and end, none of them between a backslash and a slash."""
    while start < len(text):
        stop = min(start + BLOCK, len(text))
        if stop < len(text) and text[stop - 1] == ord("\\"):
            stop += 1
        yield start, stop
        start = stop


def without_backslashes(text: Buffer, memory: MemoryShare) -> Buffer:
    """`text` with its slashes plain, where it is, if it can be written to."""
    result = memory.buffer(len(text)) if text.readonly else text
    filled = 0
    for start, stop in blocks(text):
        memory.ensure_open()
        block = bytes(text[start:stop]).translate(None, b"\\")
        result[filled : filled + len(block)] = block
        filled += len(block)
    return result[:filled]
