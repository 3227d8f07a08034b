"""application/msgpack, with tensor data as bin.

The decoder is our own for one reason: libraries copy each bin, while here it stays a view into the body, so that a
kernel can read tensors from where the socket put them, and write a result in place.
Source of the format: the MessagePack specification.
"""

import secrets
import struct
from collections.abc import Callable
from typing import Any

from msgpack import Packer, packb

from app.codecs.codec import Body, Encoded, Hole, Piece, Span
from app.codecs.structure import PARSED, Unreadable, too_deep, too_long, twice
from app.contract.tensors import TensorDesc, tensor_name
from app.contract.validation import abbreviate
from app.contract.violations import Path, refused
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

_BEGINNING = 1 << 14
"""Bytes of a body among which its first tensor data begin, or it is no ordinary one."""

_GRANTED = 1 << 9
"""Bytes of structure that nearly all documents have less of."""

_COPIED = 1 << 14
"""Bytes of a body that is copied to be read."""

_LONGEST = (1 << 32) - 1
"""Bytes of a bin."""

_MARK = secrets.token_bytes(16)  # stands for a hole; nothing that is answered knows it
_PACKED_MARK: bytes = packb(_MARK)

_pack = Packer().pack
"""For all threads: of lists and scalars it makes bytes without a turn of another one. `packb` makes a packer each time,
which takes longer than to pack."""

_BIN, _NUMBER = struct.Struct(">BI"), struct.Struct(">Bd")

_FORMS = {code: struct.Struct(f">{form}") for code, form in enumerate("fdBHIQbhiq", 0xCA)}
"""How a number lies behind its code."""

_NUMBERS = {code: form.unpack_from for code, form in _FORMS.items()}
_NUMBER_SIZES = tuple(_FORMS[code].size if code in _FORMS else 0 for code in range(256))
"""By a value's first byte, how many follow if it is a number behind a code, else 0."""

_NAME_SIZES = tuple(code & 0x1F if 0xA0 <= code <= 0xBF else -1 for code in range(256))
"""By a string's first byte, how long it is if that tells."""

_WORDS = {0xC0: None, 0xC2: False, 0xC3: True}


class MsgpackCodec:
    """Implements `Codec`."""

    numbers = False
    views = True
    media_type = key = "application/msgpack"
    expands = False

    def data_start(self, beginning: bytes, length: int) -> int:
        place = -1
        while (place := beginning.find(b"\xc6", place + 1, _BEGINNING)) >= 0:  # bin with a length of 4 bytes
            data = place + 5
            if length // 4 <= int.from_bytes(beginning[place + 1 : data], "big") <= length - data:
                return data
        return 0

    def decode(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> Any:
        return _Reader(body, max_structure_bytes, memory).document(max_depth)

    def binary(
        self, body: Body, value: object, path: Path, memory: MemoryShare, desc: TensorDesc | None = None
    ) -> Buffer:
        if not isinstance(value, Span):
            told = "are null; they " if value is None else ""
            message = f"Data of {tensor_name(path)} {told}must be binary (MessagePack's bin)."
            raise refused(path, message, abbreviate(value, inner=isinstance(value, list)), "bin")
        return memoryview(body)[value.start : value.stop]

    def put_back(self, body: Body, value: object, data: Buffer) -> None:
        """They are where they were."""

    def encode(self, document: Any) -> list[Piece | Hole]:
        holes: list[Hole] = []

        def note(value: object) -> bytes:
            assert isinstance(value, Hole)
            holes.append(value)
            return _MARK

        first, *rest = packb(document, default=note).split(_PACKED_MARK)
        return [first, *(each for pair in zip(holes, rest, strict=True) for each in pair)]

    def encode_value(self, value: Any) -> bytes:
        made: bytes = _pack(value)
        return made

    def encode_data(self, data: Buffer) -> Encoded:
        if data.nbytes > _LONGEST:
            message = f"A tensor of {data.nbytes} bytes is too long for MessagePack's bin; ask for safetensors."
            raise refused(("Accept",), message, data.nbytes, _LONGEST)
        return Encoded(5 + data.nbytes, (_BIN.pack(0xC6, data.nbytes), data))

    def encode_numbers(self, data: Buffer, desc: TensorDesc, memory: MemoryShare) -> Encoded:
        return self.encode_data(data)

    def encode_number(self, number: float) -> bytes:
        return _NUMBER.pack(0xCB, number)


class _Reader:
    """Reads the value that is `body`, whose structure (all but bin) is at most `max_structure_bytes` long.

    A document has some thirty values, so that a call for each, or a slice too many, costs as much as judging it, and
    `min` as much as to read a number. What is cut off is found behind a value: a slice that goes beyond the end is only
    shorter.
    """

    __slots__ = ("_bin_bytes", "_body", "_granted", "_max_structure_bytes", "_memory", "_open")

    def __init__(self, body: Body, max_structure_bytes: int, memory: MemoryShare) -> None:
        # Bytes are indexed and cut in half the time, which is more than it takes to copy a small body.
        self._body = body if len(body) > _COPIED else bytes(body)
        self._bin_bytes = 0
        self._max_structure_bytes = max_structure_bytes
        self._memory = memory
        self._granted = 0  # bytes of structure for whose values memory was taken
        self._open = 0  # where they end, or the body does: one comparison tells whether a value may end there

    def document(self, max_depth: int) -> Any:
        """The value, in which arrays and maps nest at most `max_depth` deep.

        Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver.
        """
        body = self._body
        text: Callable[[Any], str] = bytes.decode if isinstance(body, bytes) else _text  # half of what `str` takes
        position = opened = begin = 0
        made: Any
        into: Any = []  # the array or map that is being read, of which `left` values are missing
        left, is_map, name = 1, False, ""
        around: list[tuple[Any, int, bool, str]] = []
        try:
            while True:
                if is_map:
                    size = _NAME_SIZES[body[position]]
                    if size < 0:
                        name, position = self._name(position)
                    else:
                        begin = position + 1
                        position = begin + size
                        name = text(body[begin:position])
                    if name in into:
                        raise twice(name)
                code = body[position]
                begin = position + 1
                if code <= 0x7F:
                    made, position = code, begin
                elif code <= 0x9F or 0xDC <= code <= 0xDF:
                    opens_map = code <= 0x8F or code >= 0xDE
                    if code <= 0x9F:
                        count, position = code & 0x0F, begin
                    else:
                        position = begin + (4 if code & 1 else 2)
                        count = int.from_bytes(body[begin:position], "big")
                    if len(around) == max_depth:
                        raise too_deep(max_depth)
                    end = position + (2 * count if opens_map else count)
                    if end > opened:
                        opened = self._extend(position, end, is_announced=True)
                    if opens_map:
                        made = {}
                    else:  # of numbers, if it is Sizes: as many as there are follow each other
                        made = []
                        while count:
                            code = body[position]
                            if code <= 0x7F:
                                made.append(code)
                                position += 1
                            elif size := _NUMBER_SIZES[code]:
                                begin = position + 1
                                made += _NUMBERS[code](body, begin)
                                position = begin + size
                            else:
                                break
                            count -= 1
                    if count:
                        around.append((into, left, is_map, name))
                        into, left, is_map = made, count, opens_map
                        continue
                elif code <= 0xBF:
                    position = begin + (code & 0x1F)
                    made = text(body[begin:position])
                elif size := _NUMBER_SIZES[code]:
                    (made,) = _NUMBERS[code](body, begin)
                    position = begin + size
                elif code == 0xD9:
                    position = begin + 1 + body[begin]
                    begin += 1
                    made = text(body[begin:position])
                else:
                    made, position = self._scalar(code, begin)
                    opened = self._open
                if position > opened:
                    opened = self._extend(begin, position)
                while True:
                    if is_map:
                        into[name] = made
                    else:
                        into.append(made)
                    left -= 1
                    if left:
                        break
                    if not around:
                        if position < len(body):
                            raise Unreadable(f"The body goes on for {len(body) - position} bytes after its document.")
                        return made
                    made = into
                    into, left, is_map, name = around.pop()
        except UnicodeDecodeError:
            raise self._no_text(begin, position) from None
        except (IndexError, struct.error):  # there is no byte where a value should begin, or go on
            raise self._ends_within(min(position, len(body))) from None

    def _name(self, start: int) -> tuple[str, int]:
        """The map key from `start` on, of which its first byte does not tell how long it is, and where it ends."""
        code = self._body[start]
        if not 0xD9 <= code <= 0xDB:
            raise _no_name(start)
        name, end = self._scalar(code, start + 1)
        assert isinstance(name, str), "it begins as a string does"
        return name, end

    def _scalar(self, code: int, start: int) -> tuple[Any, int]:
        """What the bytes from `start` on are, behind the byte `code`, which is no number's, and where they end."""
        body = self._body
        if 0xD9 <= code <= 0xDB:
            begin = self._pass(start, 1 << (code - 0xD9))
            end = self._pass(begin, int.from_bytes(body[start:begin], "big"))
            try:
                return str(body[begin:end], "utf-8"), end
            except UnicodeDecodeError:
                raise self._no_text(begin, end) from None
        if 0xC4 <= code <= 0xC6:
            begin = self._pass(start, 1 << (code - 0xC4))
            size = int.from_bytes(body[start:begin], "big")
            self._bin_bytes += size
            self._open += size
            if self._open > len(body):
                self._open = len(body)
            end = begin + size
            return Span(begin, end), end
        if code >= 0xE0 or code in _WORDS:
            return _WORDS[code] if code in _WORDS else code - 0x100, self._pass(start, 0)
        raise Unreadable(
            f"The body is not MessagePack as used here: byte 0x{code:02x} at offset {start - 1} begins an extension "
            "type or nothing at all."
        )

    def _pass(self, start: int, count: int) -> int:
        """Where the `count` bytes from `start` on end."""
        end = start + count
        if end > self._open:
            self._extend(start, end)
        return end

    def _extend(self, start: int, end: int, *, is_announced: bool = False) -> int:
        """Take memory for the structure up to `end`, and for some more: up to where. The bytes from `start` on are
        needed, each for a value at least if that many are announced."""
        length = len(self._body)
        if end > length:
            if is_announced and start <= length:
                raise Unreadable(
                    f"The body ends after {length} bytes, but an array or map at offset {start} announces "
                    f"{end - start} values."
                )
            raise self._ends_within(min(start, length))
        structure = end - self._bin_bytes
        if structure > self._granted:
            if structure > self._max_structure_bytes:
                raise too_long(self._max_structure_bytes)
            granted = 2 * self._granted or _GRANTED
            if granted < structure:
                granted = structure
            if granted > self._max_structure_bytes:
                granted = self._max_structure_bytes
            self._memory.take(PARSED * (granted - self._granted))
            self._granted = granted
        opened = self._granted + self._bin_bytes
        if opened > length:
            opened = length
        self._open = opened
        return opened

    def _ends_within(self, start: int) -> Unreadable:
        return Unreadable(f"The body ends after {len(self._body)} bytes, within a value that begins at offset {start}.")

    def _no_text(self, start: int, end: int) -> Unreadable:
        """Why the bytes there are no text: a character may be cut off with the body."""
        return (
            self._ends_within(start)
            if end > len(self._body)
            else Unreadable(f"The string at offset {start} is not UTF-8.")
        )


def _text(data: Buffer) -> str:
    return str(data, "utf-8")


def _no_name(offset: int) -> Unreadable:
    return Unreadable(f"The map key at offset {offset} is not a string.")
