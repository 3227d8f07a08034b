"""What is told by GET: by HEAD without it, by OPTIONS how else, again only where it changed, and compressed."""

import asyncio
import gzip
from functools import lru_cache
from hashlib import sha256

from app.codecs.codec import Encoded
from app.http.core.exchange import Handler, Reply, Request
from app.http.core.media_types import accepts_gzip

LEAST = 1 << 10
"""Bytes of a document that is worth to be compressed."""

QUICK = 1 << 16
"""Bytes that are compressed in the event loop: more of them take milliseconds."""

_REMEMBERED = 1 << 20
"""Bytes of a document whose compressed form is remembered, of as many documents as follows."""

_DOCUMENTS = 32


def telling(handler: Handler) -> Handler:
    """Middleware around what answers GET.

    What says nothing else of itself gets an entity tag (RFC 9110, 8.8.3) and may be kept, to be asked for each time
    whether it is still the same.
    """

    async def handle(request: Request) -> Reply:
        asked = request.method
        if asked == "OPTIONS":
            return _options(await handler(request))
        if asked == "HEAD":
            request.method = "GET"  # the connection sends no more than the header
        try:
            reply = await handler(request)
        finally:
            request.method = asked
        return await _told(request, reply) if asked in ("GET", "HEAD") else reply

    return handle


def is_known(tag: str, if_none_match: str) -> bool:
    """Whether a client that sends `if_none_match` has what is tagged `tag` (RFC 9110, 13.1.2)."""
    known = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag in known or "*" in known


def tag_of(content: bytes) -> str:
    """The entity tag of `content`."""
    return f'"{sha256(content).hexdigest()[:32]}"'


def _options(reply: Reply) -> Reply:
    """What a method that nobody has is refused with tells which ones there are."""
    allowed = [(name, value) for name, value in reply.headers if name == b"allow"]
    return Reply(204, allowed, Encoded(0, ())) if reply.status == 405 and allowed else reply


async def _told(request: Request, reply: Reply) -> Reply:
    """`reply` to a GET, in the form that the client has use for."""
    headers = dict(reply.headers)
    if reply.status != 200 or b"etag" in headers:
        return reply
    content = b"".join(reply.pieces)
    added = [] if b"vary" in headers else [(b"vary", b"accept, accept-encoding")]
    packed = content
    if len(content) >= LEAST and accepts_gzip(request.headers.get(b"accept-encoding", b"").decode("latin-1")):
        packed = _packed(content) if len(content) < QUICK else await asyncio.to_thread(_packed, content)
        added.append((b"content-encoding", b"gzip"))
    if headers.get(b"cache-control") != b"no-store":
        tag = tag_of(packed)
        added += [(b"etag", tag.encode()), (b"cache-control", b"no-cache")]
        if is_known(tag, request.headers.get(b"if-none-match", b"").decode("latin-1")):
            own = [each for each in reply.headers if not each[0].startswith(b"content-")]
            return Reply(304, [*own, *(each for each in added if each[0] != b"content-encoding")], Encoded(0, ()))
    kept = [each for each in reply.headers if each[0] != b"content-length"]
    length = (b"content-length", b"%d" % len(packed))
    return Reply(200, [*kept, length, *added], Encoded(len(packed), (packed,)))


def _packed(content: bytes) -> bytes:
    return _remembered(content) if len(content) <= _REMEMBERED else gzip.compress(content, 1, mtime=0)


@lru_cache(_DOCUMENTS)
def _remembered(content: bytes) -> bytes:
    return gzip.compress(content, 6, mtime=0)
