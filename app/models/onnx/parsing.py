"""ONNX files parsed piece by piece: protobuf makes millions of messages in one call, during which no other thread runs.

The fields of a message may be parsed one after the other, which protobuf calls merging, and so may packed numbers. A
field that is a message and too long for a piece is taken apart in the same way. Fields that ONNX does not have are left
out where they are as long.
Source: "Encoding" in protobuf's documentation.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from app.memory.buffers import Buffer
from app.models.onnx.wire import LENGTH, VARINT, behind, varint

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

PIECE = 1 << 18
"""Bytes that are parsed in one call."""

_DEEPEST = 100
"""How deep messages may nest, as for protobuf's own parser."""

_GROUPS = (3, 4)
_CONTINUED = 1 << 7
"""From this on, a byte of a varint is not the last."""

_FIXED = 8
"""Packed numbers of fixed size are cut at multiples of this."""

_FIXED_TYPES = (1, 2, 6, 7, 15, 16)
"""Of protobuf's field types: numbers of 32 and 64 bits."""


class Malformed(Exception):
    """This is no message of ONNX's. The text is a clause."""


Raw: TypeAlias = "list[tuple[TensorProto, memoryview]]"
"""Tensors without their data, and where these are."""


def parse(data: bytes | Buffer, raw: Raw) -> "ModelProto":
    """The model that `data` is, but for data of tensors that are too long for a piece, which `raw` gets: protobuf would
    copy them, and once more for each who reads them. Raises Malformed, and protobuf's DecodeError."""
    from onnx import ModelProto  # noqa: PLC0415 - an extra

    model = ModelProto()
    _Parser(raw).merge(model, memoryview(data), _DEEPEST)
    return model


class _Field(NamedTuple):
    """One of a message: where it, its length and its value begin, and where it ends."""

    number: int
    begin: int
    length: int
    value: int
    end: int


def _first_beyond(data: memoryview, at: int, most: int) -> _Field | None:
    """Of the message `data`, the first field from `at` on, where one begins, that ends beyond `most`, if there is one
    before what is no message any more, as the parser will say. Raises Malformed.

    Trees of ensembles have a field for each number, millions of them: those of few bytes are passed without a call.
    """
    try:
        while at < len(data):
            begin = at
            tag = data[at]
            if tag < _CONTINUED:
                at += 1
            else:
                tag, at = varint(data, at)
            length = value = at
            kind = tag & 7
            if kind == LENGTH:
                size, value = varint(data, at)
                at = value + size
            elif kind in _GROUPS:
                raise Malformed(f"field {tag >> 3} is a group, of which ONNX has none")
            elif kind == VARINT and data[at] < _CONTINUED:
                at += 1
            else:
                at = behind(data, at, kind)
            if at > most:
                return None if at > len(data) else _Field(tag >> 3, begin, length, value, at)
    except IndexError:
        pass
    return None


class _Parser:
    def __init__(self, raw: Raw) -> None:
        self._raw = raw

    def merge(self, message: Any, data: memoryview, deepest: int) -> None:
        """Parse `data` into `message`, in which others may nest so deep."""
        if not deepest:
            raise Malformed(f"messages nest deeper than {_DEEPEST}")
        start = at = 0
        while field := _first_beyond(data, at, start + PIECE):
            _parse(message, data[start : field.begin])
            start, at = field.begin, field.end
            if at - start > PIECE and self._take_apart(message, field, data, deepest):
                start = at
        _parse(message, data[start:])

    def _take_apart(self, message: Any, field: _Field, data: memoryview, deepest: int) -> bool:
        """Parse a long field into `message`, if it need not be in one piece."""
        if field.value == field.length:
            return False  # a number, which is short
        known = message.DESCRIPTOR.fields_by_number.get(field.number)
        if known is None:
            return True  # nobody will ask for it
        value = data[field.value : field.end]
        held = getattr(message, known.name)
        if known.message_type is not None:
            self.merge(held.add() if hasattr(held, "add") else held, value, deepest - 1)
        elif known.name == "raw_data":
            self._raw.append((message, value))
        elif known.type in (known.TYPE_STRING, known.TYPE_BYTES) or not hasattr(held, "extend"):
            return False
        else:
            for piece in _numbers(value, is_fixed=known.type in _FIXED_TYPES):
                _parse(message, b"".join((data[field.begin : field.length], _as_varint(len(piece)), piece)))
        return True


def _numbers(data: memoryview, *, is_fixed: bool) -> Iterator[memoryview]:
    """Packed numbers in pieces, none of which ends within one."""
    start = 0
    while start < len(data):
        stop = min(start + (PIECE - PIECE % _FIXED), len(data))
        while not is_fixed and stop < len(data) and data[stop - 1] >= _CONTINUED:
            stop += 1
        yield data[start:stop]
        start = stop


def _as_varint(value: int) -> bytes:
    made = bytearray()
    while value >= 1 << 7:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _parse(message: Any, data: bytes | Buffer) -> None:
    if len(data):
        message.MergeFromString(bytes(data))
