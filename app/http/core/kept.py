"""What is told by GET: by HEAD without it, by OPTIONS how else, again only where it changed, and compressed.

DELETE that depends on an entity tag goes by what GET tells (RFC 9110, 13.2.2).
"""

import asyncio
import gzip
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any

from starlette.exceptions import HTTPException

from app.codecs.codec import Encoded
from app.codecs.request_cache import LastUsed
from app.http.core.compression import coding_of_answer
from app.http.core.exchange import JOINED, Handler, RawHeaders, Reply, Request, nothing
from app.http.core.media_types import accepts_gzip
from app.http.core.problems import INFERENCE_PATHS
from app.memory.accounts import MemoryAccount

LEAST = 1 << 10
"""Bytes of a document that is worth to be compressed."""

QUICK = 1 << 16
"""Bytes that are compressed in the event loop: more of them take milliseconds."""

_LONG = 1 << 21
"""Bytes of a document from which on it is compressed at the level that costs least time."""

_packed_before: LastUsed[str, bytes] = LastUsed(512, 1 << 22)
"""What was compressed last, by the entity tag of what it was."""

_CONDITIONS = frozenset((b"if-match", b"if-none-match"))


def telling(handler: Handler, memory: MemoryAccount) -> Handler:
    """Middleware around what answers GET.

    What says nothing else of itself gets an entity tag (RFC 9110, 8.8.3) and may be kept, to be asked for each time
    whether it is still the same. It depends on Accept and Accept-Encoding, unless it has said itself on what. As long
    as a long one is not sent it has its place in `memory`.
    """

    async def told(request: Request) -> Reply:
        asked = request.method
        request.method = "GET"  # of an answer to HEAD the connection sends no more than the header
        try:
            reply = await handler(request)
        finally:
            request.method = asked
        return await _told(request, reply, memory)

    async def drop(request: Request) -> Reply:
        if not _CONDITIONS.isdisjoint(request.headers) and (await told(request)).status == 304:
            raise HTTPException(412, "If-None-Match names what is here, so it stays.")
        return await handler(request)

    async def options(request: Request) -> Reply:
        """What the method, which nobody has, is refused with tells which ones there are."""
        allowed: RawHeaders = []
        if request.path != "*":  # which is the server itself, asked as a ping (RFC 9110, 9.3.7)
            try:
                return await handler(request)
            except HTTPException as error:
                if error.status_code != 405:
                    raise
                allowed = [(b"allow", (error.headers or {})["Allow"].encode())]
        return Reply(204, allowed, Encoded(0, ()))

    ways: dict[str, Handler] = {"GET": told, "HEAD": told, "DELETE": drop, "OPTIONS": options}

    def handle(request: Request) -> Coroutine[Any, Any, Reply]:
        return ways.get(request.method, handler)(request)

    return handle


def _is_known(tag: str, if_none_match: str) -> bool:
    """Whether a client that sends `if_none_match` has what is tagged `tag` (RFC 9110, 13.1.2)."""
    known = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag in known or "*" in known


def _check_match(tag: str | None, if_match: str | None) -> None:
    """Raise HTTPException 412 if a client that sends `if_match` means something else than what is tagged `tag`
    (RFC 9110, 13.1.1)."""
    if if_match is not None and if_match.strip() != "*" and tag not in [each.strip() for each in if_match.split(",")]:
        now = "has no entity tag" if tag is None else f"is {tag} now"
        raise HTTPException(412, f"If-Match is {if_match[:100]}, but what is here {now}.")


def _tag_of(content: bytes) -> str:
    """The entity tag of `content`."""
    return f'"{sha256(content).hexdigest()[:32]}"'


async def _told(request: Request, reply: Reply, memory: MemoryAccount) -> Reply:
    """`reply` to a GET, in the form that the client has use for. Raises HTTPException 412, LimitExceeded,
    MemoryExhausted."""
    if reply.status != 200:
        return reply
    headers = dict(reply.headers)
    content = b"".join(reply.pieces)
    added = [] if b"vary" in headers else [(b"vary", b"accept, accept-encoding")]
    packed = content
    if len(content) >= LEAST and _wants_gzip(request):
        packed = _packed(content) if len(content) < QUICK else await asyncio.to_thread(_packed, content)
        packed = min(packed, content, key=len)  # what grows by it, as pictures do, is sent as it is
    if packed is not content:
        added.append((b"content-encoding", b"gzip"))
    tag = _tag_of(packed) if headers.get(b"cache-control") != b"no-store" else None
    _check_match(tag, _field(request, b"if-match"))
    if tag is not None:
        added += [(b"etag", tag.encode()), (b"cache-control", b"no-cache")]
        if _is_known(tag, _field(request, b"if-none-match") or ""):
            own = [each for each in reply.headers if not each[0].startswith(b"content-")]
            return Reply(304, [*own, *(each for each in added if each[0] != b"content-encoding")], Encoded(0, ()))
    kept = [each for each in reply.headers if each[0] != b"content-length"]
    length = (b"content-length", b"%d" % len(packed))
    return Reply(200, [*kept, length, *added], Encoded(len(packed), (packed,)), _held(memory, len(packed)))


def _held(memory: MemoryAccount, size: int) -> Callable[[], None]:
    """What gives `size` bytes back, which are held from now on if an answer of so many may wait for its client."""
    if size <= JOINED:
        return nothing
    share = memory.open()
    share.take(size)
    return share.close


def _wants_gzip(request: Request) -> bool:
    """Where Triton's clients ask, only if nothing else is named: the one for asyncio names what its library could read,
    and reads it as it is."""
    accepted = request.headers.get(b"accept-encoding", b"")
    if request.path.startswith(INFERENCE_PATHS):
        return coding_of_answer(accepted) == b"gzip"
    return accepts_gzip(accepted.decode("latin-1"))


def _field(request: Request, name: bytes) -> str | None:
    value = request.headers.get(name)
    return None if value is None else value.decode("latin-1")


def _packed(content: bytes) -> bytes:
    tag = _tag_of(content)
    packed = _packed_before.find([tag])
    if packed is None:
        packed = gzip.compress(content, 6 if len(content) < _LONG else 1, mtime=0)
        _packed_before.add(tag, packed, len(packed))
    return packed
