"""A line on standard error for each request."""

import asyncio
import sys
from typing import Any

from app import logs

_SECONDS = 0.01
"""Lines are written together so often. A system call for each, and what `logging` does on the way to it, cost more than
a small dispatch itself."""


class AccessLog:
    """Collects lines, in the form of the other logs: JSON, or text for people. For one event loop."""

    def __init__(self, as_json: bool) -> None:
        self._line = logs.json_line if as_json else logs.text_line
        self._lines: list[bytes] = []

    def add(self, message: str, facts: dict[str, Any]) -> None:
        """Note a request: `facts` are for JSON only."""
        if not self._lines:
            asyncio.get_running_loop().call_later(_SECONDS, self.flush)
        self._lines.append(self._line("app.request", message, facts))

    def flush(self) -> None:
        """Write what there is."""
        lines, self._lines = self._lines, []
        sys.stderr.buffer.write(b"".join(lines))
        sys.stderr.buffer.flush()
