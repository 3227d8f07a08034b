"""A line in the log for each request."""

import asyncio
from typing import Any

from app import logs

_SECONDS = 0.01
"""Lines are made and written together so often. A system call for each, and what `logging` does on the way to it, cost
more than a small dispatch itself; and to make one after another is quicker than each between two dispatches."""


class AccessLog:
    """Collects lines, in the form of the other logs: JSON, or text for people. For one event loop."""

    def __init__(self, as_json: bool) -> None:
        self._line = logs.json_line if as_json else logs.text_line
        self._requests: list[tuple[int, str, dict[str, Any]]] = []

    def add(self, message: str, facts: dict[str, Any]) -> None:
        """Note a request: `facts` are for JSON only."""
        if not self._requests:
            asyncio.get_running_loop().call_later(_SECONDS, self.flush)
        self._requests.append((logs.milliseconds(), message, facts))

    def flush(self) -> None:
        """Hand over what there is."""
        requests, self._requests = self._requests, []
        logs.write(b"".join([self._line("app.request", *request) for request in requests]))
