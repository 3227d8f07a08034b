"""What is cut out of a body of JSON before it is parsed: long strings, and arrays of numbers that are inputs' data."""

import re
import secrets
from functools import cache

from app.codecs.codec import Body, Span
from app.codecs.structure import IN_STRING, SEARCHED, Search, Unreadable, string_end, too_long
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

LONG = 24
"""Strings among the inputs of at least so many bytes are cut out."""

NAMES = 64
"""Strings elsewhere that are cut out are as long: names of operators are shorter, and need not be put back."""

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


class Array(Span):
    """An array of numbers in the wire's form: `body[start:stop]`."""


def cut_out(body: Body, max_structure_bytes: int, memory: MemoryShare) -> tuple[list[Buffer], dict[str, Span]]:
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
    inputs, and among these braces, and brackets that a name may be before."""
    if among_inputs:
        return re.compile(rb'[^"\[{}]*+(?>(?>"[^"\\]{0,%d}+"|(?<![:\s])\[)[^"\[{}]*+)*' % (long - 1))
    return re.compile(rb'[^"]*+(?>"(?!inputs")[^"\\]{0,%d}+"[^"]*+)*' % (long - 1))
