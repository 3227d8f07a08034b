"""JSON decoded in slices: Python's decoder makes millions of values in one call, during which no other thread runs.

What fits into a slice is decoded by one call. Of an array or object that does not, as many members are taken together
as do, one by one where such a part would end within a member; a member that is too long by itself is taken apart in
the same way. A string or number is never taken apart: the decoder is quick where there is only one.
"""

import json
import re
from typing import Any

from app.codecs.structure import SEARCHED, twice
from app.memory.accounts import MemoryShare

SLICE = SEARCHED
"""Characters that are decoded in one call."""

_CUT = 2
"""Characters of a number that may be missing from its slice though it is a number without them, as 1 of 1.5 is."""

_BLANKS = re.compile(r"[ \t\n\r]*+")


def raw_decode(
    text: str, start: int, decoder: json.JSONDecoder, max_depth: int, memory: MemoryShare
) -> tuple[Any, int]:
    """The value at `start`, and where it ends: what `decoder.raw_decode` gives, whose object_pairs_hook is `object_of`.

    Raises what it raises, RequestOver, and RecursionError where arrays and objects that have to be taken apart nest
    deeper than `max_depth`.
    """
    return _Slices(text, decoder, memory).value(start, max_depth)


def decode(text: str, decoder: json.JSONDecoder, max_depth: int, memory: MemoryShare) -> Any:
    """All of `text`, as by `decoder.decode`. Raises what `raw_decode` does."""
    value, end = raw_decode(text, _behind_blanks(text, 0), decoder, max_depth, memory)
    end = _behind_blanks(text, end)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


class _Slices:
    def __init__(self, text: str, decoder: json.JSONDecoder, memory: MemoryShare) -> None:
        self._text = text
        self._decoder = decoder
        self._memory = memory

    def value(self, start: int, depth: int) -> tuple[Any, int]:
        """The value at `start`, and where it ends, in which others may nest `depth` deep."""
        text = self._text
        found = self._within(self._slice(start), start, start)
        if found:
            return found
        opening = text[start]
        if opening not in "[{":
            return self._decoder.raw_decode(text, start)
        if depth == 0:
            raise RecursionError
        return self._members(start + 1, depth - 1, opening)

    def _slice(self, start: int) -> str:
        self._memory.ensure_open()
        return self._text[start : start + SLICE]

    def _within(self, piece: str, begin: int, start: int) -> tuple[Any, int] | None:
        """The value at `start`, if all of it is in `piece`, which begins at `begin`. What is no JSON there may be cut
        off, unless the text ends there: then the decoder says what is wrong."""
        is_last = begin + len(piece) == len(self._text)
        try:
            made, end = self._decoder.raw_decode(piece, start - begin)
        except json.JSONDecodeError as error:
            if is_last:
                raise json.JSONDecodeError(error.msg, self._text, begin + error.pos) from None
            return None
        except ValueError:  # an integer of too many digits, as far as it is there: it may be no integer
            return None
        return (made, begin + end) if is_last or end + _CUT < len(piece) else None

    def _members(self, start: int, depth: int, opening: str) -> tuple[Any, int]:
        """Those of the array or object whose first one begins at `start`, and where it ends."""
        text, closing = self._text, "]" if opening == "[" else "}"
        made: Any = [] if opening == "[" else {}
        start = _behind_blanks(text, start)
        if text[start : start + 1] == closing:
            return made, start + 1
        while True:
            piece = self._slice(start)
            cut = piece.rfind(",")
            try:
                many, end = self._decoder.raw_decode(f"{opening}{piece[:cut]}{closing}") if cut > 0 else (None, 0)
            except ValueError:
                many = None
            if many:
                _add(made, many)
                if end < cut + 2:
                    return made, start + end - 1
                start = self._behind_comma(start + cut, opening, closing)
                continue
            begin = start
            while start - begin <= len(piece) // 2:
                one, start = self._member(piece, begin, start, depth, opening)
                _add(made, one)
                start = _behind_blanks(text, start)
                follows = text[start : start + 1]
                if follows == closing:
                    return made, start + 1
                if follows != ",":
                    raise json.JSONDecodeError("Expecting ',' delimiter", text, start)
                start = self._behind_comma(start, opening, closing)

    def _behind_comma(self, comma: int, opening: str, closing: str) -> int:
        """Where the next member begins. If there is none, raises what the decoder does, of which Pythons differ."""
        start = _behind_blanks(self._text, comma + 1)
        if self._text[start : start + 1] == closing:
            before = "[0" if opening == "[" else '{"":0'
            try:
                self._decoder.raw_decode(before + self._text[comma : start + 1])
            except json.JSONDecodeError as error:
                raise json.JSONDecodeError(error.msg, self._text, comma + error.pos - len(before)) from None
        return start

    def _member(self, piece: str, begin: int, start: int, depth: int, opening: str) -> tuple[Any, int]:
        """The one at `start`, by itself, and where it ends."""
        text, name = self._text, ""
        if opening == "{":
            if text[start : start + 1] != '"':
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, start)
            name, start = self._within(piece, begin, start) or self._decoder.raw_decode(text, start)
            start = _behind_blanks(text, start)
            if text[start : start + 1] != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", text, start)
            start = _behind_blanks(text, start + 1)
        found = self._within(piece, begin, start) if start < begin + len(piece) else None
        value, end = found or self.value(start, depth)
        return ([value] if opening == "[" else {name: value}), end


def _add(made: Any, more: Any) -> None:
    """More members of an array or object. Raises Unreadable for a name that is there already."""
    if isinstance(made, list):
        made += more
        return
    if not made.keys().isdisjoint(more):
        raise twice(next(name for name in more if name in made))
    made |= more


def _behind_blanks(text: str, start: int) -> int:
    found = _BLANKS.match(text, start)
    return found.end() if found else start
