"""A line on standard error for each request."""

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from time import time_ns
from typing import Any

import orjson

_SECONDS = 0.01
"""Lines are written together so often. A system call for each, and what `logging` does on the way to it, cost more than
a small dispatch itself."""


class AccessLog:
    """Collects lines, in the form of the other logs: JSON, or text for people. For one event loop."""

    def __init__(self, as_json: bool) -> None:
        self._line: Callable[[str, dict[str, Any]], bytes] = _json_line if as_json else _text_line
        self._lines: list[bytes] = []

    def add(self, message: str, facts: dict[str, Any]) -> None:
        """Note a request: `facts` are for JSON only."""
        if not self._lines:
            asyncio.get_running_loop().call_later(_SECONDS, self.flush)
        self._lines.append(self._line(message, facts))

    def flush(self) -> None:
        """Write what there is."""
        lines, self._lines = self._lines, []
        sys.stderr.buffer.write(b"".join(lines))
        sys.stderr.buffer.flush()


def _json_line(message: str, facts: dict[str, Any]) -> bytes:
    named = {"time": _utc(_milliseconds()), "level": "INFO", "logger": "app.request", "message": message}
    return orjson.dumps(named | facts, option=orjson.OPT_APPEND_NEWLINE)


def _text_line(message: str, facts: dict[str, Any]) -> bytes:
    return f"{_local(_milliseconds())} INFO    app.request: {message}\n".encode()


def _milliseconds() -> int:
    return time_ns() // 1_000_000


@lru_cache(1)  # to write a time takes longer than all else in a line, and several requests share it
def _utc(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


@lru_cache(1)
def _local(milliseconds: int) -> str:
    time = datetime.fromtimestamp(milliseconds / 1000)
    return time.isoformat(" ", "milliseconds").replace(".", ",")  # as `logging` writes it
