"""What documents of every representation have to obey."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.codecs.codec import Body
from app.memory.accounts import LimitExceeded, MemoryShare

PARSED = 100
"""Bytes of memory that a byte of structure may come to, parsed and judged (tests/codecs/test_structure.py)."""

SEARCHED = 1 << 18
"""Bytes of a body that are searched in one call, during which no other thread runs."""

# Groups are atomic, and not repeated possessively: Python before 3.11.5 goes on behind what was matched in vain.
IN_STRING = rf'(?>[^"\\]++|\\.){{0,{SEARCHED >> 3}}}'
"""What goes on in a JSON string: as much as is searched in one call where each character is escaped."""


class Unreadable(Exception):
    """The body is not a document of its media type."""


def characters(text: str) -> str:
    """`text`, a string of a document in JSON. Raises Unreadable if there is half of a character in it, which no answer
    could repeat."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable(f"The string {text[:40]!a} holds half of a surrogate pair.") from None
    return text


def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A dict of `pairs`. Raises Unreadable if a name comes twice: a client might mean the other one."""
    result = dict(pairs)
    if len(result) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise twice(name)
    return result


def twice(name: str) -> Unreadable:
    return Unreadable(f"The name {name[:80]!a} stands twice in one object; give it once.")


def too_deep(max_depth: int) -> LimitExceeded:
    return LimitExceeded("max_depth", "Nesting of arrays and objects in the body", None, max_depth)


def too_long(max_structure_bytes: int, limit: str = "max_structure_bytes") -> LimitExceeded:
    return LimitExceeded(limit, "Bytes of the body that are not tensor data", None, max_structure_bytes)


def string_end(inside: re.Pattern[Any], text: Any, start: int, stop: int, memory: MemoryShare) -> int:
    """Where the string ends that goes on at `start`, at its closing quote; where there is none before `stop`, that or
    the backslash before it. `inside` is IN_STRING for `text`. Raises RequestOver."""
    while True:
        memory.ensure_open()
        found = inside.match(text, start, stop)
        assert found, "it matches nothing at all"
        if found.end() == start:
            return start
        start = found.end()


class Search:
    """Finds bytes in a body that may be too large to be searched in one call."""

    def __init__(self, body: Body, memory: MemoryShare) -> None:
        self._body = memoryview(body)
        self._memory = memory
        self._start, self._block = 0, b""

    def find(self, wanted: Sequence[bytes], start: int) -> int:
        """Where the first of the `wanted` bytes is from `start` on, or -1. Raises RequestOver."""
        while start < len(self._body):
            within = start - self._start
            if not 0 <= within < len(self._block):
                self._memory.ensure_open()
                self._start, self._block = start, bytes(self._body[start : start + SEARCHED])
                within = 0
            end = len(self._block)
            for byte in wanted:
                found = self._block.find(byte, within, end)
                end = found if found >= 0 else end
            if end < len(self._block):
                return self._start + end
            start = self._start + end
        return -1
