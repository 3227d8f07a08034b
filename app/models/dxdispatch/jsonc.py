"""JSON as RapidJSON reads it for DxDispatch: with comments and trailing commas, and nothing after the root looked at.

Comments and such commas become blanks of the same length, so that the parser's messages name the right line; the rest
is the strict parser's.
"""

import json
import math
import re

from app.codecs.codec import Body
from app.codecs.structure import PARSED, Unreadable, object_of, too_deep
from app.memory.accounts import LimitExceeded, MemoryShare
from app.settings import Settings

# One that does not end goes on to the end of the text, so that nothing is searched twice; the parser refuses it. Groups
# are atomic, and not repeated possessively: Python before 3.11.5 goes on behind what was matched in vain.
_STRING = r'"(?>[^"\\]++|\\.)*"?+'
_COMMENT = re.compile(rf"{_STRING}|(//[^\n]*+|/\*(?>[^*]++|\*(?!/))*(?:\*/)?+)", re.DOTALL)
_COMMA = re.compile(rf"{_STRING}|(?<![\[{{,:\s])(\s*+,)(?=\s*+[\]}}])", re.DOTALL)
"""A comma after a value and before the end of its array or object. The parser refuses others."""

_BRACKET = re.compile(rf"{_STRING}|([\[{{])|[\]}}]", re.DOTALL)


def read(body: Body, settings: Settings, memory: MemoryShare) -> object:
    """The document in `body`, for which memory is taken from `memory`. Raises Unreadable, LimitExceeded."""
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
    text = _COMMENT.sub(_blank, text)
    text = _COMMA.sub(_without_comma, text)
    _judge_depth(text, settings.max_depth)
    try:
        document, _ = _DECODER.raw_decode(text, len(text) - len(text.lstrip(" \t\r\n")))
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Unreadable(f"The model is not JSON: {error}.") from None
    except UnicodeEncodeError:
        raise Unreadable("The model has half of a surrogate pair in a string.") from None
    except RecursionError:
        raise too_deep(settings.max_depth) from None
    except ValueError:  # from int(), which takes sys.int_info.default_max_str_digits
        raise Unreadable("The model has an integer of thousands of digits.") from None
    return document


def _blank(found: re.Match[str]) -> str:
    """What stands in the place of a comment: blanks, and line feeds where there were some."""
    if found[1] is None:
        return found[0]
    return "\n".join(" " * len(line) for line in found[1].split("\n"))


def _without_comma(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"{found[1][:-1]} "


def _judge_depth(text: str, most: int) -> None:
    depth = 0
    for found in _BRACKET.finditer(text):
        if found[0][0] != '"':
            depth += 1 if found[1] else -1
            if depth > most:
                raise too_deep(most)
            if depth == 0:
                return  # the root ends here


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Unreadable(f"The number {text[:80]} is beyond the range of double precision.")
    return value


def _constant(name: str) -> float:
    raise Unreadable(f'{name} is no JSON number; in initial values of floats the string "{name}" may stand for it.')


_DECODER = json.JSONDecoder(object_pairs_hook=object_of, parse_float=_number, parse_constant=_constant)
