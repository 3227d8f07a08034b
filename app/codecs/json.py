"""application/json, with tensor data as base64 (RFC 4648, section 4: padded, canonical, no white space).

A large body is nearly all base64, so its long strings are cut out before parsing: the parser sees a small document, and
tensor data are decoded straight from the body's bytes.
"""

import json
import secrets
from typing import Any

import orjson
import pybase64

from app.codecs.structure import Unreadable, object_of, too_deep, too_long
from app.contract.validation import brief
from app.contract.violations import ContractError, Path, Violation
from app.execution.device import Buffer
from app.limits import MemoryShare

SMALL = 1 << 16
"""A body of at most so many bytes is parsed as it is."""
LONG = 1 << 12
"""Strings of at least so many bytes are cut out of larger ones."""

_MARK = secrets.token_hex(16)  # stands for a string that was cut out; no client knows it
_NUL = b'"\x00"'  # cannot be in what orjson makes, since it escapes NUL

# The characters that may stand before "=" and "==", where 2 and 4 bits of the last one are not data but must be 0.
_CANONICAL = {1: b"AEIMQUYcgkosw048", 2: b"AQgw"}


class JsonCodec:
    """Implements `Codec`."""

    media_type = "application/json"

    def decode(self, body: bytearray, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> object:
        pieces: list[Buffer] = [memoryview(body)]
        strings: list[Buffer | str] = []
        try:
            if len(body) > min(SMALL, max_structure_bytes):
                pieces, strings = _cut(body, max_structure_bytes, memory)
            text = b"".join(pieces).decode()
            document = json.loads(text, object_pairs_hook=object_of, parse_constant=_no_constants)
            return _restore(document, strings, max_depth)
        except RecursionError:
            raise too_deep(max_depth) from None
        except UnicodeDecodeError:
            raise Unreadable("The body is not UTF-8, which JSON must be.") from None
        except json.JSONDecodeError as error:
            raise Unreadable(f"The body is not JSON: {error}.") from None
        except ValueError:  # from int(), which takes sys.int_info.default_max_str_digits
            raise Unreadable("The body has an integer of thousands of digits.") from None

    def binary(self, value: object, path: Path, memory: MemoryShare) -> Buffer:
        if not isinstance(value, str | memoryview):
            raise _not_base64(value, path, "must be a string of base64")
        memory.take(len(value) * 3 // 4)
        try:
            data = pybase64.b64decode_as_bytearray(value, validate=True)
        except ValueError:
            raise _not_base64(value, path, "is not base64 (RFC 4648, section 4: padded, without white space)") from None
        if not _is_canonical(value):
            raise _not_base64(value, path, "is not canonical base64: the unused bits of its last character are not 0")
        return memoryview(data)

    def encode(self, document: Any, memory: MemoryShare) -> list[bytes | Buffer]:
        buffers: list[Buffer] = []

        def note(value: object) -> orjson.Fragment:
            assert isinstance(value, memoryview)
            buffers.append(value)
            return orjson.Fragment(_NUL)

        text = orjson.dumps(document, default=note)
        first, *rest = text.split(_NUL)
        pieces: list[bytes | Buffer] = [first]
        for buffer, piece in zip(buffers, rest, strict=True):
            memory.take((buffer.nbytes + 2) // 3 * 4)
            pieces += [b'"', pybase64.b64encode(buffer), b'"', piece]
        return pieces


def _cut(body: bytearray, max_structure_bytes: int, memory: MemoryShare) -> tuple[list[Buffer], list[Buffer | str]]:
    """`body` in pieces, a mark in place of each long string; and those strings, as views, or as text if escaped."""
    view = memoryview(body)
    pieces: list[Buffer] = []
    strings: list[Buffer | str] = []
    start = position = cut = 0
    while (opening := body.find(b'"', position)) >= 0:
        closing = _closing_quote(body, opening)
        if closing - opening > LONG:
            pieces += [view[start : opening + 1], memoryview(f"{_MARK}{len(strings)}".encode())]
            escaped = body.find(b"\\", opening, closing) >= 0
            strings.append(_unescape(view[opening : closing + 1], memory) if escaped else view[opening + 1 : closing])
            cut += closing - opening
            start = closing
        position = closing + 1
        if position - cut > max_structure_bytes:
            break
    pieces.append(view[start:])
    if len(body) - cut > max_structure_bytes:
        raise too_long(max_structure_bytes)
    return pieces, strings


def _unescape(string: Buffer, memory: MemoryShare) -> str:
    """A string as it stands in JSON, as text."""
    memory.take(9 * string.nbytes)  # the bytes once, and text of up to 4 bytes a character before and after
    text: str = json.loads(bytes(string).decode())
    _refuse_surrogates(text)
    return text


def _closing_quote(body: bytearray, opening: int) -> int:
    closing = opening
    while (closing := body.find(b'"', closing + 1)) >= 0:
        escapes = closing
        while body[escapes - 1] == ord("\\"):
            escapes -= 1
        if (closing - escapes) % 2 == 0:
            return closing
    raise Unreadable("The body is not JSON: a string in it has no end.")


def _restore(value: Any, strings: list[Buffer | str], depth: int) -> Any:
    """`value` with the long strings in place of their marks. Raises RecursionError if it nests deeper than `depth`."""
    if isinstance(value, str):
        if value.startswith(_MARK):
            return strings[int(value.removeprefix(_MARK))]
        if not value.isascii():
            _refuse_surrogates(value)
        return value
    if isinstance(value, dict | list):
        if depth == 0:
            raise RecursionError
        if isinstance(value, list):
            return [_restore(each, strings, depth - 1) for each in value]
        return {_name(name): _restore(each, strings, depth - 1) for name, each in value.items()}
    return value


def _name(name: str) -> str:
    if name.startswith(_MARK):
        raise Unreadable(f"The body has a name of more than {LONG} characters.")
    _refuse_surrogates(name)
    return name


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable(f"The string {text[:40]!a} holds half of a surrogate pair.") from None


def _no_constants(name: str) -> None:
    raise Unreadable(f"The body is not JSON: {name} is no JSON number.")


def _is_canonical(text: str | Buffer) -> bool:
    last = text[-3:].encode() if isinstance(text, str) else bytes(text[-3:])
    padding = last.count(b"=")
    return padding == 0 or last[-padding - 1] in _CANONICAL[padding]


def _not_base64(value: object, path: Path, why: str) -> ContractError:
    shown = f"{len(value)} characters" if isinstance(value, memoryview) else brief(value)
    return ContractError([Violation(path, f"Data of {path[-1]} {why}.", shown, "base64 text")], hresult=None)
