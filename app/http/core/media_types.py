"""Which representation a client sends and which it wants (RFC 9110, 8.3 and 12.5.1)."""

import re
from collections.abc import Sequence

from starlette.exceptions import HTTPException

JSON, MSGPACK, OCTETS = "application/json", "application/msgpack", "application/octet-stream"


def media_type(content_type: bytes) -> str:
    """The type and subtype of a Content-Type, without parameters."""
    return content_type.decode("latin-1").partition(";")[0].strip().lower()


def unsupported(content_type: bytes, advice: str) -> HTTPException:
    """Status 415 for a body that came with this Content-Type, or none. `advice` says what to send."""
    given = f"is {content_type[:100].decode('latin-1')}" if content_type else "is missing"
    return HTTPException(415, f"Content-Type {given}; {advice}.")


def preferred(accept: str, offered: Sequence[str]) -> str:
    """The one of `offered` that Accept likes best, the first of equals. Raises HTTPException 406."""
    ranges = _ranges(accept)
    if not ranges:
        return offered[0]
    qualities = [_quality(each, ranges) for each in offered]
    best = max(qualities)
    if best <= 0:
        raise HTTPException(406, f"Accept is {accept[:100]}; this resource is {' or '.join(offered)}.")
    return offered[qualities.index(best)]


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the line names gzip, and not as what the client does without, or likes less than what is as it is."""
    qualities = dict(_ranges(accept_encoding))
    return qualities.get("gzip", 0.0) > 0 and qualities["gzip"] >= qualities.get("identity", 0.0)


_ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_PARAMETER = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*"?)+')
"""Up to a comma or semicolon that is not quoted (RFC 9110, 5.6.4)."""


def _ranges(line: str) -> list[tuple[str, float]]:
    """The names in a list, and how much each is liked. Empty elements are none (RFC 9110, 5.6.1)."""
    return [_range(element) for element in _ELEMENT.findall(line) if element.strip()]


def _range(element: str) -> tuple[str, float]:
    name, *parameters = [each.strip().lower() for each in _PARAMETER.findall(element)] or [""]
    quality = 1.0
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                quality = float(parameter[2:])
            except ValueError:
                quality = 0.0
    return name, quality if 0 <= quality <= 1 else 0.0


def _quality(offered: str, ranges: Sequence[tuple[str, float]]) -> float:
    """By the most specific range that covers it."""
    kind = offered.partition("/")[0]
    for wanted in (offered, f"{kind}/*", "*/*"):
        qualities = [quality for name, quality in ranges if name == wanted]
        if qualities:
            return max(qualities)
    return 0.0
