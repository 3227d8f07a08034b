"""Messages in protobuf's text format, as a config.pbtxt is written. What its fields are is not asked here."""

import re
from collections.abc import Iterator
from typing import Any

Message = dict[str, list[Any]]
"""Fields by name, each a list: a text, as numbers and constants are as well, or a message."""

_BLANK = re.compile(r"\s*+(?:\#[^\n]*+\s*+)*+")
_QUOTED = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_WORD = r"[+\w./]+(?:(?<=[eE])-\w+)?"
_TOKEN = re.compile(rf"{_BLANK.pattern}({_QUOTED}|{_WORD}|[-{{}}\[\]:,;<>]|$)")
_SIGNS = frozenset("-{}[]:,;<>")
_MINUS = "-"
_QUOTES = ('"', "'")
_ENDS = {"{": "}", "<": ">"}

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,21}|[1-9][0-9]{0,19})")

_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?"} | {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"
}  # fmt: skip

_DEEPEST = 16


class NoText(Exception):
    """This is no text of protobuf. The text says why, after a colon."""


def parse(text: str) -> Message:
    """Raises NoText."""
    return _Reader(text).message(None, 0)


def integer(value: object) -> int | None:
    """A value as a number; None if it is none of 64 bits. As in C, one that begins with 0x is hexadecimal, and one that
    begins with 0 octal."""
    if not (isinstance(value, str) and _INTEGER.fullmatch(value)):
        return None
    digits = value.removeprefix("-")
    base = 16 if digits[1:2] in ("x", "X") else 8 if digits[0] == "0" else 10
    number = int(value, base)
    return number if -(1 << 63) <= number < 1 << 63 else None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._rest = _tokens(text)
        self._ahead = next(self._rest, None)

    def message(self, end: str | None, depth: int) -> Message:
        """Up to `end`, which is left there, or to the end of all."""
        if depth > _DEEPEST:
            raise NoText("it is nested too deep")
        found: Message = {}
        while self._next() != end:
            field = self._take()
            if not _FIELD.fullmatch(field):
                raise self._misplaced(field, "a field")
            found.setdefault(field, []).extend(self._values(depth))
            if self._next() in (",", ";"):
                self._take()
        return found

    def _values(self, depth: int) -> list[Any]:
        """Of a field. Between it and a message, or several, there may be no colon."""
        has_colon = self._next() == ":"
        if has_colon:
            self._take()
        values = self._listed(depth) if self._next() == "[" else [self._value(depth)]
        if not has_colon and not all(isinstance(each, dict) for each in values):
            raise self._misplaced(values[0], "a colon")
        return values

    def _listed(self, depth: int) -> list[Any]:
        self._take()
        values: list[Any] = []
        while self._next() != "]":
            if values and self._next() != ",":
                raise self._misplaced(self._take(), "a comma")
            if values:
                self._take()
            values.append(self._value(depth))
        self._take()
        return values

    def _value(self, depth: int) -> Any:
        token = self._take()
        if token in _ENDS:
            message = self.message(_ENDS[token], depth + 1)
            self._take()
            return message
        if token.startswith(_QUOTES):
            parts = [token]
            while (self._next() or "").startswith(_QUOTES):  # which are one text
                parts.append(self._take())
            return _unescaped(parts)
        sign = ""
        if token == _MINUS:  # after which there may be blanks
            sign, token = token, self._take()
        if token in _SIGNS or token.startswith(_QUOTES):
            raise self._misplaced(token, "a value")
        return sign + token

    def _next(self) -> str | None:
        return self._ahead[0] if self._ahead else None

    def _take(self) -> str:
        if self._ahead is None:
            raise NoText("it ends within a message")
        token, self._position = self._ahead
        self._ahead = next(self._rest, None)
        return token

    def _misplaced(self, token: str, expected: str) -> NoText:
        """`token` was taken just now."""
        return NoText(f"{token[:40]} in line {_line(self._text, self._position)} stands where {expected} should")


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """With where each ends."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            blank = _BLANK.match(text, position)  # of which there may be lines
            raise NoText(f"line {_line(text, blank.end() if blank else position)} cannot be read")
        position = match.end()
        if match[1]:
            yield match[1], position


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _unescaped(parts: list[str]) -> str:
    """Escapes are of bytes, several of which may be one character. Raises NoText."""
    try:
        return b"".join(_ESCAPE.sub(_escaped, part[1:-1].encode()) for part in parts).decode()
    except ValueError:  # of a byte or character that there is not, or bytes that are none
        raise NoText(f"{parts[0][:40]} is no text in UTF-8") from None


def _escaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, *units, plain = match.groups()
    if plain is not None:
        if plain not in _ESCAPED:
            raise NoText(f"{match[0].decode(errors='replace')} in a text stands for nothing")
        return _ESCAPED[plain]
    number = int(octal, 8) if octal else int(hexadecimal or units[0] or units[1], 16)
    return chr(number).encode() if any(units) else bytes([number])
