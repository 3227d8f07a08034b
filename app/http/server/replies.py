"""Answers as bytes of HTTP/1.1."""

from collections.abc import Iterable

from app.http.core.exchange import Reply
from app.http.core.problems import PHRASES, Problem

CLOSE = (b"connection", b"close")
"""The field after whose answer the connection is closed."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS = {status: b"HTTP/1.1 %d %b" % (status, phrase.encode()) for status, phrase in PHRASES.items()}


def head_of(reply: Reply, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The status line of `reply`, with all header `fields`, its own among them."""
    return b"\r\n".join([_STATUS[reply.status], *map(b": ".join, fields), b"", b""])


def failure() -> Reply:
    """A problem, after which the connection is closed."""
    detail = "The server failed to answer the request; report it if it happens again."
    return Problem(500, detail, headers={"connection": "close"}).at("/")
