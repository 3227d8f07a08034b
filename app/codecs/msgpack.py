"""application/msgpack, with tensor data as bin.

The decoder is our own for one reason: libraries copy each bin, while here it stays a view into the body, so that a
kernel can read tensors from where the socket put them, and write a result in place.
Source of the format: the MessagePack specification.
"""

import struct
from typing import Any

from msgpack import Packer

from app.codecs.codec import Body, Encoded, Hole, Piece, Span
from app.codecs.structure import PARSED, Unreadable, object_of, too_deep, too_long
from app.contract.validation import brief
from app.contract.violations import Path, refused
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

_BEGINNING = 1 << 14
"""Bytes of a body among which its first tensor data begin, or it is no ordinary one."""

_GRANTED = 1 << 9
"""Bytes of structure that nearly all documents have less of."""

_BIN, _FLOAT64 = struct.Struct(">BI"), struct.Struct(">Bd")


class MsgpackCodec:
    """Implements `Codec`."""

    views = True
    media_type = "application/msgpack"

    def data_start(self, beginning: bytes, length: int) -> int:
        place = -1
        while (place := beginning.find(b"\xc6", place + 1, _BEGINNING)) >= 0:  # bin with a length of 4 bytes
            data = place + 5
            if length // 4 <= int.from_bytes(beginning[place + 1 : data], "big") <= length - data:
                return data
        return 0

    def decode(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> Any:
        reader = _Reader(body, max_structure_bytes, max_depth, memory)
        document = reader.value(max_depth)
        if reader.position < len(body):
            raise Unreadable(f"The body goes on for {len(body) - reader.position} bytes after its document.")
        return document

    def binary(self, body: Body, value: object, path: Path, memory: MemoryShare) -> Buffer:
        if not isinstance(value, Span):
            message = f"Data of {path[-1]} must be binary (MessagePack's bin)."
            raise refused(path, message, brief(value), "bin")
        return memoryview(body)[value.start : value.stop]

    def put_back(self, body: Body, value: object, data: Buffer) -> None:
        """They are where they were."""

    def encode(self, document: Any) -> list[Piece | Hole]:
        pieces: list[Piece | Hole] = []
        packer = Packer(autoreset=False)
        _pack(document, packer, pieces)
        pieces.append(packer.bytes())
        return pieces

    def encode_data(self, data: Buffer) -> Encoded:
        return Encoded(5 + data.nbytes, (_BIN.pack(0xC6, data.nbytes), data))

    def encode_number(self, number: float) -> bytes:
        return _FLOAT64.pack(0xCB, number)


def _pack(value: Any, packer: Packer, pieces: list[Piece | Hole]) -> None:
    """Append `value` to `packer`; holes go to `pieces`, after what was packed before them."""
    if isinstance(value, dict):
        packer.pack_map_header(len(value))
        for name, each in value.items():
            packer.pack(name)
            _pack(each, packer, pieces)
    elif isinstance(value, list):
        packer.pack_array_header(len(value))
        for each in value:
            _pack(each, packer, pieces)
    elif isinstance(value, Hole):
        pieces += [packer.bytes(), value]
        packer.reset()
    else:
        packer.pack(value)


class _Reader:
    """Reads values from `body`, whose structure (all but bin) is at most `max_structure_bytes` long."""

    def __init__(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> None:
        self.position = 0
        self._body = body
        self._view = memoryview(body)
        self._bin_bytes = 0
        self._max_structure_bytes = max_structure_bytes
        self._max_depth = max_depth
        self._memory = memory
        self._granted = 0  # bytes of structure for whose values memory was taken

    def value(self, depth: int) -> Any:
        """The value at `position`, in which arrays and maps may nest `depth` deep."""
        (code,) = self._take(1)
        if code <= 0x7F:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code <= 0x8F:
            return self._map(code & 0x0F, depth)
        if code <= 0x9F:
            return self._array(code & 0x0F, depth)
        if code <= 0xBF:
            return self._text(code & 0x1F)
        match code:
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return code == 0xC3
            case 0xC4 | 0xC5 | 0xC6:
                return self._bin(self._unsigned(1 << (code - 0xC4)))
            case 0xCA | 0xCB:
                (number,) = struct.unpack(">f" if code == 0xCA else ">d", self._take(4 if code == 0xCA else 8))
                return number
            case 0xCC | 0xCD | 0xCE | 0xCF:
                return self._unsigned(1 << (code - 0xCC))
            case 0xD0 | 0xD1 | 0xD2 | 0xD3:
                return int.from_bytes(self._take(1 << (code - 0xD0)), "big", signed=True)
            case 0xD9 | 0xDA | 0xDB:
                return self._text(self._unsigned(1 << (code - 0xD9)))
            case 0xDC | 0xDD:
                return self._array(self._unsigned(2 << (code - 0xDC)), depth)
            case 0xDE | 0xDF:
                return self._map(self._unsigned(2 << (code - 0xDE)), depth)
        raise Unreadable(
            f"The body is not MessagePack as used here: byte 0x{code:02x} at offset {self.position - 1} begins an "
            "extension type or nothing at all."
        )

    def _take(self, count: int) -> Buffer:
        end = self.position + count
        if end > len(self._body):
            raise Unreadable(
                f"The body ends after {len(self._body)} bytes, within a value that begins at offset {self.position}."
            )
        taken = self._view[self.position : end]
        self.position = end
        if end - self._bin_bytes > self._granted:
            self._grant(end - self._bin_bytes)
        return taken

    def _grant(self, structure: int) -> None:
        """Take memory for what `structure` bytes and some more come to."""
        if structure > self._max_structure_bytes:
            raise too_long(self._max_structure_bytes)
        granted = min(max(2 * self._granted, structure, _GRANTED), self._max_structure_bytes)
        self._memory.take(PARSED * (granted - self._granted))
        self._granted = granted

    def _unsigned(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _bin(self, length: int) -> Span:
        self._bin_bytes += length
        self._take(length)
        return Span(self.position - length, self.position)

    def _text(self, length: int) -> str:
        start = self.position
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            raise Unreadable(f"The string at offset {start} is not UTF-8.") from None

    def _array(self, count: int, depth: int) -> list[Any]:
        self._enter(count, depth)
        return [self.value(depth - 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[str, object]:
        self._enter(2 * count, depth)
        return object_of([(self._name(), self.value(depth - 1)) for _ in range(count)])

    def _name(self) -> str:
        start = self.position
        name = self.value(1)  # deep enough to tell an array from a string
        if not isinstance(name, str):
            raise Unreadable(f"The map key at offset {start} is not a string.")
        return name

    def _enter(self, least: int, depth: int) -> None:
        """Before an array or a map of which at least `least` bytes must follow."""
        if depth == 0:
            raise too_deep(self._max_depth)
        if least > len(self._body) - self.position:
            raise Unreadable(
                f"The body ends after {len(self._body)} bytes, but an array or map at offset {self.position} announces "
                f"{least} values."
            )
