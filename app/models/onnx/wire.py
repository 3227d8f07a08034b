"""How an ONNX file is made up, by its bytes: what it will take is known before any of it is parsed.

A message of two bytes becomes an object of a hundred and more, and protobuf makes all of them in one call, during which
no other thread runs. So there is a limit for what is no tensor's data, as there is for documents.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from app.codecs.structure import PARSED
from app.memory.accounts import LimitExceeded
from app.memory.buffers import Buffer

_COPIES = 3
"""Of a file, while it is imported: its message, and the arrays that are made of it."""

_UNPACKED = 16
"""Bytes that a byte of packed integers may come to, which are a list for a while."""

_SMALL = 1 << 10
"""Bytes of a message that is not looked into: all of it counts as structure."""

_PAUSE = 1 << 12
"""Fields between two pauses."""

_DATA, _INTEGERS = "data", "integers"
"""Fields whose bytes become as many, and those that are varints one after the other."""

_TENSOR: Mapping[int, str] = {4: _DATA, 5: _INTEGERS, 7: _INTEGERS, 9: _DATA, 10: _DATA, 11: _INTEGERS, 12: _DATA}
_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "Model": {6: _DATA, 7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 10: _DATA, 15: "SparseTensor"},
    "Function": {7: "Node", 8: _DATA},
    "Node": {5: "Attribute", 6: _DATA, 9: _DATA},
    "Attribute": {4: _DATA, 5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": _TENSOR,
}
"""By the numbers of onnx.proto: tensors' data, documentation and other plain bytes, and the messages where they may be.
All else is structure."""

VARINT, _FIXED64, LENGTH, _FIXED32 = 0, 1, 2, 5
"""Of protobuf's wire types; the others have no bytes of their own."""


def parsed_bytes(data: bytes | Buffer, most: int, pause: Callable[[], None]) -> int:
    """Memory that the model in `data` may take with what is made of its tensors, whose structure may have `most` bytes.

    What is no protobuf is counted up to where that shows. Raises LimitExceeded, and what `pause` does.
    """
    structure = integers = 0
    for number, part in enumerate(_parts(memoryview(data))):
        structure += part.structure
        integers += part.integers
        if structure > most:
            raise LimitExceeded("max_graph_structure_bytes", "Bytes of the model that are no tensor data", None, most)
        if number % _PAUSE == 0:
            pause()
    return _COPIES * len(data) + PARSED * structure + _UNPACKED * integers


class _Part(NamedTuple):
    """Bytes of a field by what they are; those of messages that are looked into are told field by field."""

    structure: int
    integers: int = 0


def _parts(data: memoryview) -> Iterator[_Part]:
    open_: list[tuple[int, str]] = [(len(data), "Model")]
    at = 0
    try:
        while open_:
            end, message = open_[-1]
            if at >= end:
                open_.pop()
                continue
            begin = at
            tag, at = varint(data, at)
            kind = tag & 7
            if kind != LENGTH:
                at = behind(data, at, kind)
                yield _Part(at - begin)
                continue
            length, at = varint(data, at)
            if at + length > end:
                return  # as the parser will say
            what = _MESSAGES[message].get(tag >> 3, "")
            if what in _MESSAGES and length > _SMALL:
                open_.append((at + length, what))
                yield _Part(at - begin)
                continue
            head, at = at - begin, at + length
            if what in (_DATA, _INTEGERS):
                yield _Part(head, length if what == _INTEGERS else 0)
            else:
                yield _Part(head + length)
    except IndexError:  # it ends within a field
        return


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = data[at]
    at += 1
    if value < 1 << 7:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        each = data[at]
        at += 1
        value |= (each & 0x7F) << shift
        if each < 1 << 7:
            return value, at
    raise IndexError(at)  # no varint is longer


def behind(data: memoryview, at: int, kind: int) -> int:
    if kind == VARINT:
        return varint(data, at)[1]
    return at + {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
