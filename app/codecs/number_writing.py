"""Tensor data written as JSON numbers, in pieces."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from app.codecs.codec import Piece
from app.codecs.nesting import shape_in_json
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.contract.violations import refused
from app.memory.accounts import MemoryShare
from app.memory.arrays import Array, apart, numpy_type
from app.memory.buffers import Buffer

_WRITTEN = 1 << 15
"""Elements that are written at a time."""

_LONGEST = 26
"""Bytes of text that an element may come to, its comma included."""


def write_numbers(
    name: str, data: Buffer, data_type: DataType, memory: MemoryShare, *, has_booleans: bool = False
) -> Iterator[Piece]:
    """`data` as a JSON array, in pieces, of true and false if it `has_booleans`. Raises ContractError for what JSON has
    no number for."""
    elements = np.frombuffer(data, numpy_type(data_type))
    for piece, _ in _pieces(elements, memory, np.dtype(bool) if has_booleans else elements.dtype):
        if b"null" in piece:
            raise refused(
                ("outputs", name),
                f"{name} holds infinity or NaN, which JSON has no number for; ask for binary_data.",
            )
        yield piece


def write_nested(data: Buffer, desc: TensorDesc, memory: MemoryShare) -> Iterator[Piece]:
    """`data` as JSON arrays that nest as `shape_in_json` says, with strings for NaN and infinity, in pieces."""
    shape = shape_in_json(desc)
    if desc.DataType.bits >= 8:
        yield from _nested(np.frombuffer(data, numpy_type(desc.DataType)).reshape(shape), memory)
        return
    elements = math.prod(shape)
    with memory.passing(elements):  # they have a byte each
        yield from _nested(apart(np.frombuffer(data, np.uint8), desc.DataType, elements).reshape(shape), memory)


def _nested(array: Array, memory: MemoryShare) -> Iterator[Piece]:
    is_half = array.dtype.itemsize == 2 and array.dtype.kind == "f"
    written = np.dtype(np.float32) if is_half else array.dtype  # of which orjson's are the shortest that are the same
    for piece, part in _pieces(array, memory, written):
        yield _with_specials(piece, part) if b"null" in piece else piece


def _pieces(array: Array, memory: MemoryShare, written: np.dtype[Any]) -> Iterator[tuple[bytes, Array]]:
    """`array`, whose elements are `written` as of another type, as JSON arrays, in pieces, each with the elements that
    are in it. The memory of the text is taken."""
    inner = array[0].size
    if inner > _WRITTEN:
        for place, part in enumerate(array):
            yield b"," if place else b"[", part[:0]
            yield from _pieces(part, memory, written)
    else:
        rows = max(_WRITTEN // inner, 1)
        for start in range(0, len(array), rows):
            memory.ensure_open()
            part = array[start : start + rows]
            with memory.passing(_LONGEST * part.size):
                text = orjson.dumps(part.astype(written, copy=False), option=orjson.OPT_SERIALIZE_NUMPY)
                memory.take(len(text))
            yield (b"," if start else b"[") + text[1:-1], part
    yield b"]", array[:0]


def _with_specials(text: bytes, part: Array) -> bytes:
    """`text` of `part`, with strings for what is null in it."""
    values = part.reshape(-1)
    names = [
        b'"NaN"' if each != each else b'"Infinity"' if each > 0 else b'"-Infinity"'
        for each in values[~np.isfinite(values)].tolist()
    ]
    first, *others = text.split(b"null")
    return b"".join((first, *(each for pair in zip(names, others, strict=True) for each in pair)))
