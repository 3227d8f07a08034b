"""A line in the log for each request."""

import asyncio
from time import time_ns
from typing import Any

from app import logs
from app.operators.operator import PREFIX

_SECONDS = 0.003
"""Lines are made together so often: to make one after another is quicker than each between two dispatches, as long as
the processor's caches still have what they tell. What `logging` does for each costs more than a small dispatch."""


class AccessLog:
    """Collects lines, in the form of the other logs: JSON, or text for people. For one event loop."""

    def __init__(self, as_json: bool) -> None:
        self._line = logs.json_line if as_json else _text_line
        self._requests: list[tuple[int, bytes, dict[str, Any]]] = []

    def add(self, raw_path: bytes, facts: dict[str, Any]) -> None:
        """Note a request for `raw_path`: JSON has all `facts`, text those that people look for."""
        if not self._requests:
            asyncio.get_running_loop().call_later(_SECONDS, self.flush)
        self._requests.append((time_ns(), raw_path, facts))

    def flush(self) -> None:
        """Hand over what there is."""
        requests, self._requests = self._requests, []
        lines = []
        for nanoseconds, raw_path, facts in requests:
            # The path is percent-encoded, so that it stays on its line in the text format.
            message = f"{facts['method']} {raw_path.decode(errors='backslashreplace')} {facts['status']}"
            lines.append(self._line("app.request", nanoseconds // 1_000_000, message, facts))
        logs.write(b"".join(lines))


def _text_line(logger: str, milliseconds: int, message: str, facts: dict[str, Any]) -> bytes:
    """`POST /v1/dispatch 200 in 0.41 ms, ACTIVATION_CELU on numpy, id 1f0e`. No fact has a blank or an end of line."""
    told = f"{message} in {facts['seconds'] * 1000:.2f} ms"
    if facts["operator"]:
        told += f", {facts['operator'].removeprefix(PREFIX)} on {facts['device']}"
    return logs.text_line(logger, milliseconds, f"{told}, id {facts['request_id']}")
