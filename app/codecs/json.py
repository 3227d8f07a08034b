"""application/json, with tensor data as base64 (RFC 4648, section 4: padded, canonical, no white space).

A body is nearly all base64, so its long strings are cut out before parsing: the parser sees a small document, and
tensor data are decoded straight from the body's bytes, large ones to where they are. Arrays of numbers that are the
data of an input are cut out as well.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import orjson
import pybase64

from app.codecs.codec import Body, Encoded, Hole, Piece, Span
from app.codecs.json_slices import decode
from app.codecs.number_writing import write_nested
from app.codecs.numbers import Numbers
from app.codecs.structure import (
    IN_STRING,
    PARSED,
    SEARCHED,
    Search,
    Unreadable,
    object_of,
    string_end,
    too_deep,
    too_long,
)
from app.contract.scalars import INFINITIES
from app.contract.tensors import TensorDesc, tensor_name
from app.contract.validation import abbreviate
from app.contract.violations import ContractError, Path, refused
from app.memory.accounts import MemoryShare
from app.memory.buffers import ALIGNMENT, SMALLEST, Buffer

LONG = 24
"""Strings among the inputs of at least so many bytes are cut out."""

NAMES = 64
"""Strings elsewhere that are cut out are as long: names of operators are shorter, and need not be put back."""

BLOCK = 3 << 16
"""Bytes of tensor data that are decoded or encoded at a time: their text is still in the cache when it is copied."""

_TENSORS = 256
"""More than any operator has."""

_QUOTE = (b'"',)
_QUOTE_CODE, _ARRAY_CODE, _OBJECT_CODE = b'"[{'
_INPUTS = re.compile(rb'"inputs"\s*+:\s*+\{')
_NAMED, _NAMED_DATA = re.compile(rb":\s*+\Z"), re.compile(rb'"data"\s*+:\s*+\Z')
_NEAR = 64
"""Bytes before an array in which its name ends. One that is further away is read as anything else is."""
# Groups are atomic, and not repeated possessively: Python before 3.11.5 goes on behind what was matched in vain.
_NUMBERS = re.compile(rb'[-+.0-9eE\s,\[\]]*+(?>"(?:NaN|-?Infinity)"[-+.0-9eE\s,\[\]]*+)*')
_LONGEST_SPECIAL = len('"-Infinity"')
_ESCAPED = re.compile(IN_STRING.encode(), re.DOTALL)

_MARK = secrets.token_hex(16)  # stands for a string that was cut out; no client knows it
_NUL = b'"\x00"'  # cannot be in what orjson makes, since it escapes NUL

# The characters that may stand before "=" and "==", where 2 and 4 bits of the last one are not data but must be 0.
_CANONICAL = {1: b"AEIMQUYcgkosw048", 2: b"AQgw"}


@dataclass(frozen=True, slots=True)
class Slashed:
    """Tensor data in `body[start:stop]`, with each slash escaped, as PHP writes it, and nothing else."""

    start: int
    stop: int


class Array(Span):
    """An array of numbers in the wire's form: `body[start:stop]`."""


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
            pieces, strings = _cut(body, max_structure_bytes, memory)
            structure = len(body) - sum(span.stop - span.start for span in strings.values())
            memory.take(PARSED * structure)
            text = b"".join(pieces).decode()
            if text.startswith("\ufeff"):
                raise json.JSONDecodeError("a byte order mark comes first; leave it out", text, 0)
            document = decode(text, _DECODER, max_depth, memory)
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
                    return _checked(text) if has_escapes else text
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
            text = _without_backslashes(memoryview(body)[value.start : value.stop], memory)
        elif isinstance(value, str):
            text = memoryview(value.encode())
        else:
            told = "are null; they " if value is None else ""
            raise _not_base64(value, path, f"{told}must be a string of base64" + (", or numbers" if desc else ""))
        try:
            canonical, size = _judged(text)
            if size < SMALLEST:
                memory.take(size)
                data = memoryview(pybase64.b64decode_as_bytearray(text, validate=True))
            elif isinstance(value, Span | Slashed) and canonical and not text.readonly:
                data = text[-value.start % ALIGNMENT :][:size]
                _decode_base64(text, data, memory)
            else:
                data = memory.buffer(size)
                _decode_base64(text, data, memory)
        except ValueError:
            raise _not_base64(value, path, "is not base64 (RFC 4648, section 4: padded, without white space)") from None
        if not canonical:
            raise _not_base64(value, path, "is not canonical base64: the unused bits of its last character are not 0")
        return data

    def put_back(self, body: Body, value: object, data: Buffer) -> None:
        if isinstance(value, Span):
            _put_back(memoryview(body)[value.start : value.stop], data)

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
        pieces = _encode_base64(data) if data.nbytes > BLOCK else (b'"', pybase64.b64encode(data), b'"')
        return Encoded(2 + (data.nbytes + 2) // 3 * 4, pieces)

    def encode_numbers(self, data: Buffer, desc: TensorDesc, memory: MemoryShare) -> Encoded:
        pieces = list(write_nested(data, desc, memory))
        return Encoded(sum(map(len, pieces)), pieces)

    def encode_number(self, number: float) -> bytes:
        return orjson.dumps(number)


def _decode_base64(text: Buffer, data: Buffer, memory: MemoryShare) -> None:
    """`data` may begin where `text` does, or some bytes later. Raises ValueError, with `text` as it was."""
    for start in range(0, len(data), BLOCK):
        memory.ensure_open()
        try:
            # Assignment raises ValueError if a block is shorter for having its padding in the middle.
            data[start : start + BLOCK] = pybase64.b64decode(text[start // 3 * 4 :][: BLOCK // 3 * 4], validate=True)
        except ValueError:
            _put_back(text, data[:start])
            raise


def _put_back(text: Buffer, data: Buffer) -> None:
    """Undo `_decode_base64`. The last block is the first: each one's text is beyond the data of those before."""
    if text.readonly:
        return  # they are elsewhere
    for start in reversed(range(0, len(data), BLOCK)):
        block = pybase64.b64encode(data[start : start + BLOCK])
        text[start // 3 * 4 :][: len(block)] = block


def _encode_base64(data: Buffer) -> Iterator[Piece]:
    yield b'"'
    for start in range(0, len(data), BLOCK):
        yield pybase64.b64encode(data[start : start + BLOCK])
    yield b'"'


def _cut(body: Body, max_structure_bytes: int, memory: MemoryShare) -> tuple[list[Buffer], dict[str, Span]]:
    """`body` in pieces, a mark in place of each long string and of each array of numbers that is an input's, and where
    these are, by mark.

    A string with an escape right before a quote is no tensor data, whatever its length, and is left where it is.
    """
    view, search = memoryview(body), Search(body, memory)
    before, inside = _short_strings(NAMES), _short_strings(LONG, among_inputs=True)
    pieces: list[Buffer] = []
    strings: dict[str, Span] = {}
    many = max_structure_bytes // LONG + _TENSORS  # a mark takes more memory than what is counted of what it stands for
    start = position = cut = 0
    depth = braces = 0  # of objects, from the one on that is called "inputs"
    while True:
        most = min(len(body), max_structure_bytes + cut)  # what is beyond is tensor data, or the structure too long
        stop = min(position + SEARCHED, most)
        passed = (inside if depth else before).match(view, position, stop)
        opening = passed.end() if passed else stop
        if opening >= most:
            break
        if opening >= stop:
            memory.ensure_open()
            position = opening
            continue
        first = view[opening]
        if first != _QUOTE_CODE:  # among inputs
            position = opening + 1
            if first == _ARRAY_CODE:
                is_data = len(strings) < many and _is_data(view, opening, depth)
                stop = _after_numbers(view, opening, memory) if is_data else 0
                if stop:
                    pieces += [view[start:opening], _marked(strings, Array(opening, stop), b'"%b"')]
                    cut += stop - opening
                    start = position = stop
            else:
                depth += 1 if first == _OBJECT_CODE else -1
                braces += 1
                if braces > _TENSORS:
                    depth = 0  # more than any request has: what follows is read as it is
            continue
        if not braces and (found := _INPUTS.match(view, opening, most)):
            position, depth, braces = found.end(), 1, 1
            continue
        closing = search.find(_QUOTE, opening + 1)
        if closing > 0 and view[closing - 1] == ord("\\"):
            closing = string_end(_ESCAPED, view, opening + 1, most, memory)
            if closing == most:
                if most < len(body):
                    raise too_long(max_structure_bytes)
                closing = -1
        elif closing - opening > (LONG if depth else NAMES):
            if len(strings) >= many:
                raise too_long(max_structure_bytes)  # those that are no tensor data are by themselves
            pieces += [view[start : opening + 1], _marked(strings, Span(opening + 1, closing), b"%b")]
            cut += closing - opening - 1
            start = closing
        if closing < 0:
            raise Unreadable("The body is not JSON: a string in it has no end.")
        position = closing + 1
    if len(body) - cut > max_structure_bytes:
        raise too_long(max_structure_bytes)
    pieces.append(view[start:])
    return pieces, strings


def _marked(strings: dict[str, Span], span: Span, form: bytes) -> Buffer:
    """What stands for the text at `span`, by which `strings` has it from now on."""
    mark = f"{_MARK}{len(strings)}"
    strings[mark] = span
    return memoryview(form % mark.encode())


def _is_data(text: Buffer, opening: int, depth: int) -> bool:
    """Whether the array there is an input's data: the value of a name among the inputs, or of "data" in one of them."""
    name = _NAMED if depth == 1 else _NAMED_DATA
    return name.search(text, max(opening - _NEAR, 0), opening) is not None


def _after_numbers(text: Buffer, start: int, memory: MemoryShare) -> int:
    """Where the array of numbers ends that begins at `start`, or 0 if other things are in it."""
    position, last, opened = start, 0, 0
    while position < len(text):
        memory.ensure_open()
        most = min(position + SEARCHED, len(text))
        found = _NUMBERS.match(text, position, most)
        stop = found.end() if found else position
        block = bytes(text[position:stop])
        opened += block.count(b"[") - block.count(b"]")
        if (closing := block.rfind(b"]")) >= 0:
            last = position + closing + 1
        if stop == position or most - stop > _LONGEST_SPECIAL:
            break
        position = stop
    return 0 if opened else last


@cache
def _short_strings(long: int, *, among_inputs: bool = False) -> "re.Pattern[bytes]":
    """All before a string that has `long` bytes or escapes, and before what has to be looked at: the name of the
    inputs, and among these brackets and braces."""
    if among_inputs:
        return re.compile(rb'[^"\[{}]*+(?>"[^"\\]{0,%d}+"[^"\[{}]*+)*' % (long - 1))
    return re.compile(rb'[^"]*+(?>"(?!inputs")[^"\\]{0,%d}+"[^"]*+)*' % (long - 1))


def _unescape(body: Body, span: Span) -> str:
    """The string at `span`."""
    text = str(body[span.start : span.stop], "utf-8")
    if text.isprintable() and "\\" not in text:
        return text  # names of operators and types, which need no parser
    return _checked(_DECODER.decode(f'"{text}"'))


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable(f"The string {text[:40]!a} holds half of a surrogate pair.") from None
    return text


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
    for start, stop in _blocks(memoryview(body)[: span.stop], span.start):
        memory.ensure_open()
        block = bytes(body[start:stop])
        if b"\\" in block:
            characters = np.frombuffer(block, np.uint8)
            if ((characters[:-1] == ord("\\")) & (characters[1:] != ord("/"))).any():
                return value  # structure, and its length is limited
            is_slashed = True
    return Slashed(span.start, span.stop) if is_slashed else span


def _blocks(text: Buffer, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where blocks of `text` begin and end, none of them between a backslash and a slash."""
    while start < len(text):
        stop = min(start + BLOCK, len(text))
        if stop < len(text) and text[stop - 1] == ord("\\"):
            stop += 1
        yield start, stop
        start = stop


def _without_backslashes(text: Buffer, memory: MemoryShare) -> Buffer:
    """`text` with its slashes plain, where it is, if it can be written to."""
    result = memory.buffer(len(text)) if text.readonly else text
    filled = 0
    for start, stop in _blocks(text):
        memory.ensure_open()
        block = bytes(text[start:stop]).translate(None, b"\\")
        result[filled : filled + len(block)] = block
        filled += len(block)
    return result[:filled]


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
    places = "tensor data, and for a bound or an element" if name in INFINITIES else "tensor data"
    raise Unreadable(
        f'The body is not JSON: {name} is no JSON number; as a string, "{name}", it may stand for one in {places}.'
    )


_DECODER = json.JSONDecoder(object_pairs_hook=object_of, parse_constant=_no_constants)


def _judged(text: Buffer) -> tuple[bool, int]:
    """Whether `text`, if it is base64, is canonical, and of how many bytes. Raises ValueError if its length is none of
    base64."""
    if len(text) % 4:
        raise ValueError
    last = bytes(text[-3:])
    padding = last.count(b"=")
    return padding not in _CANONICAL or last[-padding - 1] in _CANONICAL[padding], len(text) // 4 * 3 - padding


def _not_base64(value: object, path: Path, why: str) -> ContractError:
    if isinstance(value, Span | Slashed):
        shown: object = f"{value.stop - value.start} characters"
    elif isinstance(value, Numbers):
        shown = f"numbers in {len(value.text)} characters"
    else:
        shown = abbreviate(value, inner=isinstance(value, list))
    return refused(path, f"Data of {tensor_name(path)} {why}.", shown, "base64 text")
