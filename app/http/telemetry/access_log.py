"""A line in the log for each request."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from time import time_ns
from typing import Any, TypeAlias

from app import logs
from app.http.core.exchange import Request
from app.operators.operator import PREFIX

_SECONDS = 0.003
"""Lines are made together so often: to make one after another is quicker than each between two dispatches, as long as
the processor's caches still have what they tell. What `logging` does for each costs more than a small dispatch."""

_KINDS = 256
"""Of requests, of whose lines is remembered what they have in common: to write it takes longer than all else."""

_LONGEST = 512
"""Bytes of a path that are remembered. Clients make up longer ones."""

_Kind: TypeAlias = tuple[str, bytes, str, int, str, str | None, str | None]
"""Method, path as it came and decoded, status, name of the key, operator and device: what comes again and again."""

_Line: TypeAlias = tuple[int, _Kind, str, str | None, float, int, int, tuple[str | None, ...]]
"""When a request was answered, in nanoseconds since 1970, its kind, id and client, the seconds that it took, bytes that
were received and sent, and ids of its trace and its span, where there are traces."""


class AccessLog:
    """Collects lines, in the form of the other logs: JSON, or text for people. For one event loop."""

    def __init__(self, as_json: bool) -> None:
        self._told: Callable[[_Line], str] = _json_line if as_json else _text_line
        self._noted: list[_Line] = []

    def add(
        self,
        request: Request,
        status: int,
        seconds: float,
        received: int,
        sent: int,
        operator: str | None,
        device: str | None,
        trace: tuple[str | None, ...],
    ) -> None:
        """Note an answered request, as `_Line` has it."""
        if not self._noted:
            asyncio.get_running_loop().call_later(_SECONDS, self.flush)
        kind = request.method, request.raw_path, request.path, status, request.key, operator, device
        client = request.client[0] if request.client else None
        self._noted.append((time_ns(), kind, request.id, client, seconds, received, sent, trace))

    def flush(self) -> None:
        """Hand over what there is."""
        noted, self._noted = self._noted, []
        logs.write("".join(map(self._told, noted)).encode())


def _json_line(line: _Line) -> str:
    """All that is known."""
    nanoseconds, kind, request_id, client, seconds, received, sent, trace = line
    form = _json_form(kind) if len(kind[1]) <= _LONGEST else _json_form.__wrapped__(kind)
    to_time, to_id, to_client, to_seconds, to_received, to_sent, end = form
    time, shown = logs.utc(nanoseconds // 1_000_000), _client(client)
    # By itself: to look for what is to be escaped takes as long as to write all numbers.
    name = f'"{request_id}"' if request_id.isalnum() else encode_basestring_ascii(request_id)
    ids = f',"trace_id":{_quoted(trace[0])},"span_id":{_quoted(trace[1])}' if trace else ""
    return (
        f'{to_time}"{time}"{to_id}{name}{to_client}{shown}{to_seconds}{seconds:.6f}'
        f"{to_received}{received}{to_sent}{sent}{end}{ids}}}\n"
    )


@lru_cache(_KINDS)
def _json_form(kind: _Kind) -> list[str]:
    """What is between the values of a line that differ, before the ids of its trace."""
    method, _, path, status, key, operator, device = kind
    facts: dict[str, Any] = {"request_id": logs.HOLE, "client": logs.HOLE, "key": key or None}
    facts |= {"method": method, "path": path, "status": status}
    facts |= dict.fromkeys(("seconds", "request_bytes", "response_bytes"), logs.HOLE)
    facts |= {"operator": operator, "device": device}
    return logs.json_form("app.request", _message(kind), facts)


@lru_cache(_KINDS)
def _client(address: str | None) -> str:
    return _quoted(address)


def _quoted(text: str | None) -> str:
    """As JSON has it."""
    return "null" if text is None else encode_basestring_ascii(text)


def _text_line(line: _Line) -> str:
    """What people look for: `POST /v1/dispatch 200 in 0.41 ms, ACTIVATION_CELU on numpy, id 1f0e`. Nothing of it has a
    blank or an end of line."""
    nanoseconds, kind, request_id, _, seconds, *_ = line
    *_, operator, device = kind
    told = f"{_message(kind)} in {seconds * 1000:.2f} ms"
    if operator:
        told += f", {operator.removeprefix(PREFIX)} on {device}"
    return logs.text_line("app.request", nanoseconds // 1_000_000, f"{told}, id {request_id}")


def _message(kind: _Kind) -> str:
    method, raw_path, _, status, *_ = kind
    # The path is percent-encoded, so that it stays on its line in the text format.
    return f"{method} {raw_path.decode(errors='backslashreplace')} {status}"
