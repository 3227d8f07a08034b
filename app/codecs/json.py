"""application/json, with tensor data as base64 (RFC 4648, section 4: padded, canonical, no white space).

A body is nearly all base64, so its long strings are cut out before parsing: the parser sees a small document, and
tensor data are decoded straight from the body's bytes, large ones to where they are. Arrays of numbers that are the
data of an input are cut out as well.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pybase64

from app.codecs.base64 import (
    BLOCK,
    Slashed,
    blocks,
    decode_base64,
    encode_base64,
    judged,
    put_back,
    without_backslashes,
)
from app.codecs.codec import Body, Encoded, Hole, Piece, Span
from app.codecs.json_cutting import Array, cut_out
from app.codecs.json_slices import decode
from app.codecs.number_text import integer
from app.codecs.number_writing import write_nested
from app.codecs.numbers import Numbers
from app.codecs.structure import PARSED, Unreadable, characters, object_of, too_deep, too_long
from app.contract.scalars import INFINITIES
from app.contract.tensors import TensorDesc, tensor_name
from app.contract.validation import abbreviate
from app.contract.violations import ContractError, Path, refused
from app.memory.accounts import MemoryShare
from app.memory.buffers import ALIGNMENT, SMALLEST, Buffer

_NUL = b'"\x00"'  # cannot be in what orjson makes, since it escapes NUL


class JsonCodec:
    """Implements `Codec`."""

    numbers = True
    views = False
    media_type = key = "application/json"
    expands = False

    def data_start(self, beginning: bytes, length: int) -> int:
        return 0  # they will lie elsewhere

    def decode(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> Any:
        try:
            pieces, strings = cut_out(body, max_structure_bytes, memory)
            structure = len(body) - sum(span.stop - span.start for span in strings.values())
            memory.take(PARSED * structure)
            text = b"".join(pieces).decode()
            if text.startswith("\ufeff"):
                raise json.JSONDecodeError("a byte order mark comes first; leave it out", text, 0)
            decoder = _SIGNED_DECODER if "-0" in text else _DECODER
            document = decode(text, decoder, max_depth, memory)
            data = None
            found = 0
            if isinstance(document, dict) and isinstance(inputs := document.get("inputs"), dict):
                del document["inputs"]
                data = {name: _input(value, strings, body, memory) for name, value in inputs.items()}
                found = sum(map(_count, data.values()))
            has_escapes = "\\" in text
            for node in _constant_nodes(document):
                node["Data"] = _data(node["Data"], strings, body, memory)
                found += _count(node["Data"])
            if found == len(strings) and not has_escapes and text.count("[") + text.count("{") <= max_depth:
                # Nothing is left to restore, no surrogate is half, and nothing nests deeper than there are brackets.
                if data is not None:
                    document["inputs"] = data
                return document
            left = max_structure_bytes - structure

            def texts(text: str) -> Any:
                """What `text` stands for, which is no tensor data: a string, or an array of numbers."""
                nonlocal left
                span = strings.get(text)
                if span is None:
                    return characters(text) if has_escapes else text
                size = span.stop - span.start
                left -= size
                if left < 0:
                    raise too_long(max_structure_bytes)
                memory.take(PARSED * size)
                if isinstance(span, Array):
                    return decode(str(body[span.start : span.stop], "utf-8"), _DECODER, max_depth, memory)
                return _unescape(body, span)

            document = _restore(document, texts, max_depth)
            return document if data is None else document | {"inputs": _restore(data, texts, max_depth - 1)}
        except RecursionError:
            raise too_deep(max_depth) from None
        except UnicodeDecodeError:
            raise Unreadable("The body is not UTF-8, which JSON must be.") from None
        except json.JSONDecodeError as error:
            raise Unreadable(f"The body is not JSON: {error}.") from None
        except ValueError:  # from int(), which takes sys.int_info.default_max_str_digits
            raise Unreadable("The body has an integer of thousands of digits.") from None

    def binary(
        self, body: Body, value: object, path: Path, memory: MemoryShare, desc: TensorDesc | None = None
    ) -> Buffer:
        if isinstance(value, Numbers) and desc is not None:
            return value.read(path, desc, memory)
        if isinstance(value, Span):
            text = memoryview(body)[value.start : value.stop]
        elif isinstance(value, Slashed):
            text = without_backslashes(memoryview(body)[value.start : value.stop], memory)
        elif isinstance(value, str):
            text = memoryview(value.encode())
        else:
            told = "are null; they " if value is None else ""
            numbers = ["numbers in lists"] if desc else []
            allowed = ", or ".join(["a string of base64", *numbers])
            raise _not_base64(value, path, f"{told}must be {allowed}", *numbers)
        try:
            canonical, size = judged(text)
            if size < SMALLEST:
                memory.take(size)
                data = memoryview(pybase64.b64decode_as_bytearray(text, validate=True))
            elif isinstance(value, Span | Slashed) and canonical and not text.readonly:
                data = text[-value.start % ALIGNMENT :][:size]
                decode_base64(text, data, memory)
            else:
                data = memory.buffer(size)
                decode_base64(text, data, memory)
        except ValueError:
            raise _not_base64(value, path, "is not base64 (RFC 4648, section 4: padded, without white space)") from None
        if not canonical:
            raise _not_base64(value, path, "is not canonical base64: the unused bits of its last character are not 0")
        return data

    def put_back(self, body: Body, value: object, data: Buffer) -> None:
        if isinstance(value, Span):
            put_back(memoryview(body)[value.start : value.stop], data)

    def encode(self, document: Any) -> list[Piece | Hole]:
        holes: list[Hole] = []

        def note(value: object) -> orjson.Fragment:
            assert isinstance(value, Hole)
            holes.append(value)
            return orjson.Fragment(_NUL)

        first, *rest = orjson.dumps(document, note, orjson.OPT_PASSTHROUGH_DATACLASS).split(_NUL)
        return [first, *(each for pair in zip(holes, rest, strict=True) for each in pair)]

    def encode_value(self, value: Any) -> bytes:
        return orjson.dumps(value)

    def encode_data(self, data: Buffer) -> Encoded:
        pieces = encode_base64(data) if data.nbytes > BLOCK else (b'"', pybase64.b64encode(data), b'"')
        return Encoded(2 + (data.nbytes + 2) // 3 * 4, pieces)

    def encode_numbers(self, data: Buffer, desc: TensorDesc, memory: MemoryShare) -> Encoded:
        pieces = list(write_nested(data, desc, memory))
        return Encoded(sum(map(len, pieces)), pieces)

    def encode_number(self, number: float) -> bytes:
        return orjson.dumps(number)


def _unescape(body: Body, span: Span) -> str:
    """The string at `span`."""
    text = str(body[span.start : span.stop], "utf-8")
    if text.isprintable() and "\\" not in text:
        return text  # names of operators and types, which need no parser
    return characters(_DECODER.decode(f'"{text}"'))


def _constant_nodes(document: object) -> Iterator[dict[str, Any]]:
    """The nodes of a graph that have data."""
    graph = document.get("graph") if isinstance(document, dict) else None
    nodes = graph.get("Nodes") if isinstance(graph, dict) else None
    if isinstance(nodes, list):
        yield from (node for node in nodes if isinstance(node, dict) and "Data" in node)


def _input(value: object, strings: dict[str, Span], body: Body, memory: MemoryShare) -> object:
    """An input with its tensor data as what they are: by themselves, with their descriptor, or a list of these."""
    if isinstance(value, list):
        return [_input(each, strings, body, memory) if isinstance(each, dict | str) else each for each in value]
    if isinstance(value, dict) and "data" in value:
        return value | {"data": _data(value["data"], strings, body, memory)}
    return _data(value, strings, body, memory)


def _count(value: object) -> int:
    """Tensor data in what `_input` gave."""
    if isinstance(value, list):
        return sum(map(_count, value))
    if isinstance(value, dict):
        return _count(value.get("data"))
    return isinstance(value, Span | Slashed | Numbers)


def _data(value: object, strings: dict[str, Span], body: Body, memory: MemoryShare) -> object:
    """Tensor data, if `value` is the mark of such a string or array; else `value`."""
    span = strings.get(value) if isinstance(value, str) else None
    if span is None:
        return value
    if isinstance(span, Array):
        return Numbers(memoryview(body)[span.start : span.stop])
    is_slashed = False
    for start, stop in blocks(memoryview(body)[: span.stop], span.start):
        memory.ensure_open()
        block = bytes(body[start:stop])
        if b"\\" in block:
            characters = np.frombuffer(block, np.uint8)
            if ((characters[:-1] == ord("\\")) & (characters[1:] != ord("/"))).any():
                return value  # structure, and its length is limited
            is_slashed = True
    return Slashed(span.start, span.stop) if is_slashed else span


def _restore(value: Any, texts: Callable[[str], Any], depth: int) -> Any:
    """`value` with the strings that were cut out. Raises RecursionError if it nests deeper than `depth`."""
    kind = type(value)
    if kind is str:
        found = texts(value)
        return found if type(found) is str else _restore(found, texts, depth)  # an array, which nests as others do
    if kind is dict or kind is list:
        if depth == 0:
            raise RecursionError
        if kind is list:
            return [each if type(each) is int else _restore(each, texts, depth - 1) for each in value]
        return object_of([(texts(name), _restore(each, texts, depth - 1)) for name, each in value.items()])
    return value


def _no_constants(name: str) -> None:
    places = "tensor data, and for an attribute that may be infinite" if name in INFINITIES else "tensor data"
    raise Unreadable(
        f'The body is not JSON: {name} is no JSON number; as a string, "{name}", it may stand for one in {places}.'
    )


_DECODER = json.JSONDecoder(object_pairs_hook=object_of, parse_constant=_no_constants)
_SIGNED_DECODER = json.JSONDecoder(object_pairs_hook=object_of, parse_constant=_no_constants, parse_int=integer)
"""The same, which takes twice as long for integers."""


def _not_base64(value: object, path: Path, why: str, *others: str) -> ContractError:
    if isinstance(value, Span | Slashed):
        shown: object = f"{value.stop - value.start} characters"
    else:
        shown = abbreviate(value, inner=isinstance(value, list))
    return refused(path, f"Data of {tensor_name(path)} {why}.", shown, ["base64 text", *others])
