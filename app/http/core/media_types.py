"""Which representation a client sends and which it wants (RFC 9110, 8.3 and 12.5.1)."""

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
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    if not ranges:  # empty elements are none (RFC 9110, 5.6.1)
        return offered[0]
    qualities = [_quality(each, ranges) for each in offered]
    best = max(qualities)
    if best <= 0:
        raise HTTPException(406, f"Accept is {accept[:100]}; this resource is {' or '.join(offered)}.")
    return offered[qualities.index(best)]


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the line names gzip, and not as what the client does without."""
    return any(name == "gzip" and quality > 0 for name, quality in map(_range, accept_encoding.split(",")))


def _range(part: str) -> tuple[str, float]:
    name, *parameters = [each.strip().lower() for each in part.split(";")]
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
