"""JSON as RapidJSON reads it for DxDispatch: with comments and trailing commas, and nothing after the root looked at.

Comments and such commas become blanks of the same length, so that the parser's messages name the right line; the rest
is the strict parser's. Nothing is searched at length in one call, during which no other thread runs.
"""

import json
import math
import re
from collections.abc import Iterator

from app.codecs.codec import Body
from app.codecs.json_slices import raw_decode
from app.codecs.structure import IN_STRING, PARSED, SEARCHED, Unreadable, object_of, string_end, too_deep
from app.memory.accounts import LimitExceeded, MemoryShare
from app.settings import Settings

_INSIDE = re.compile(IN_STRING, re.DOTALL)
_STRING = rf'"{IN_STRING}("?)'
"""One that is searched in one call, or the beginning of one, without its end."""

_COMMENT = re.compile(rf"{_STRING}|/[/*]", re.DOTALL)
_BRACKET = re.compile(rf"{_STRING}|[\[{{\]}}]", re.DOTALL)
_ENDS = {"//": "\n", "/*": "*/"}
_NO_VALUE = ("[", "{", ",", ":")
"""What stands before a comma that is no trailing one, however the array or object goes on. The parser refuses it."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read(body: Body, settings: Settings, memory: MemoryShare) -> object:
    """The document in `body`, for which memory is taken from `memory`.

    Raises Unreadable, LimitExceeded, RequestOver.
    """
    if len(body) > settings.max_graph_structure_bytes:
        most = settings.max_graph_structure_bytes
        raise LimitExceeded("max_graph_structure_bytes", "Bytes of the model's JSON", len(body), most)
    memory.take(PARSED * len(body))
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError:
        raise Unreadable("The model is not UTF-8, which JSON must be.") from None
    if text.startswith("\ufeff"):
        raise Unreadable("The model is not JSON: a byte order mark comes first; leave it out.")
    text = "".join(_without_comments(text, memory))
    text = "".join(_without_commas(text, settings.max_depth, memory))
    try:
        start = len(text) - len(text.lstrip(" \t\r\n"))
        document, _ = raw_decode(text, start, _DECODER, settings.max_depth, memory)
        if _SURROGATE.search(text):
            _check_texts(document)
    except json.JSONDecodeError as error:
        raise Unreadable(f"The model is not JSON: {error}.") from None
    except UnicodeEncodeError:
        raise Unreadable("The model has half of a surrogate pair in a string.") from None
    except RecursionError:
        raise too_deep(settings.max_depth) from None
    except ValueError:  # from int(), which takes sys.int_info.default_max_str_digits
        raise Unreadable("The model has an integer of thousands of digits.") from None
    return document


def _without_comments(text: str, memory: MemoryShare) -> Iterator[str]:
    """`text` in pieces, with blanks in the place of comments, and line feeds where there were some. One that does not
    end goes on to the end of the text; the parser refuses it."""
    done = 0
    while found := next(_outside(_COMMENT, text, done, memory), None):
        yield text[done : found.start()]
        end = text.find(_ENDS[found[0]], found.end())
        done = len(text) if end < 0 else end + len(_ENDS[found[0]])
        for begin in range(found.start(), done, SEARCHED):
            yield "\n".join(" " * len(line) for line in text[begin : min(begin + SEARCHED, done)].split("\n"))
    yield text[done:]


def _without_commas(text: str, max_depth: int, memory: MemoryShare) -> Iterator[str]:
    """`text` in pieces, with a blank for each comma after a value and before the end of its array or object. Raises
    LimitExceeded if it nests deeper than `max_depth`, up to where its root ends."""
    depth = done = begin = 0
    for found in _outside(_BRACKET, text, 0, memory):
        end = found.start()
        if found[0] in "[{":
            depth += 1
            if depth > max_depth:
                raise too_deep(max_depth)
        else:
            comma = _trailing_comma(text, begin, end)
            if comma >= 0:
                yield text[done:comma]
                yield " "
                done = comma + 1
            depth -= 1
            if depth == 0:
                break
        begin = end + 1
    yield text[done:]


def _trailing_comma(text: str, begin: int, end: int) -> int:
    """Where the comma is that is last before the bracket at `end`, behind a value, or -1. The bracket before ends at
    `begin`."""
    if end == begin or not (text[end - 1] == "," or text[end - 1].isspace()):
        return -1
    between = text[begin:end].rstrip()
    if not between.endswith(","):
        return -1
    before = between[:-1].rstrip()[-1:] or text[max(begin - 1, 0) : begin]
    return -1 if before in _NO_VALUE else begin + len(between) - 1


def _outside(wanted: "re.Pattern[str]", text: str, start: int, memory: MemoryShare) -> Iterator["re.Match[str]"]:
    """What is `wanted` from `start` on, of one or two characters, and in no string, which it matches too. Raises
    RequestOver."""
    while start < len(text):
        memory.ensure_open()
        stop = start + SEARCHED
        end = start
        for found in wanted.finditer(text, start, stop):
            end = found.end()
            if found.lastindex is None:
                yield found
            elif not found[1]:
                start = string_end(_INSIDE, text, end, len(text), memory)
                start += text.startswith('"', start)
                break
        else:
            start = max(end, stop - 1)  # the first of two characters may be the last one here


def _check_texts(document: object) -> None:
    """Raise UnicodeEncodeError for half of a surrogate pair in any string."""
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            each.encode()
        elif isinstance(each, dict):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Unreadable(f"The number {text[:80]} is beyond the range of double precision.")
    return value


def _constant(name: str) -> float:
    raise Unreadable(f'{name} is no JSON number; in initial values of floats the string "{name}" may stand for it.')


_DECODER = json.JSONDecoder(object_pairs_hook=object_of, parse_float=_number, parse_constant=_constant)
