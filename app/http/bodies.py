"""Request bodies in, answers out."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache

from starlette.exceptions import HTTPException
from starlette.types import Receive, Send

from app.codecs.codec import Body, Codec, Piece
from app.codecs.structure import Unreadable
from app.http.media_types import media_type, preferred
from app.limits import LimitExceeded, MemoryShare
from app.messages import CODECS
from app.service import Abandoned
from app.settings import Settings

Headers = Mapping[bytes, bytes]
"""Header fields by lower-case name."""

_ALIASES = {"application/x-msgpack": "application/msgpack", "application/vnd.msgpack": "application/msgpack"}

JOINED = 1 << 16
"""Answers of at most so many bytes are joined into one piece: a copy costs less than a second write."""


def fields(raw: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Header fields by name; those that come several times are joined (RFC 9110, 5.3)."""
    headers = dict(raw)
    if len(headers) < len(raw):
        headers = {name: b", ".join(value for other, value in raw if other == name) for name in headers}
    return headers


def codec_of_request(headers: Headers) -> Codec:
    """By Content-Type. Raises HTTPException 415."""
    coding = headers.get(b"content-encoding", b"identity")
    if coding.lower() != b"identity":
        raise HTTPException(415, f"Content-Encoding is {coding[:100].decode('latin-1')}; send the body as it is.")
    return _codec_of_request(headers.get(b"content-type", b""))


@lru_cache
def _codec_of_request(header: bytes) -> Codec:
    text = header.decode("latin-1")
    kind = media_type(text)
    codec = CODECS.get(_ALIASES.get(kind, kind))
    if codec is None:
        given = f"is {text[:100]}" if text else "is missing"
        raise HTTPException(415, f"Content-Type {given}; send {' or '.join(CODECS)}.")
    return codec


def codec_of_answer(headers: Headers) -> Codec:
    """By Accept. Raises HTTPException 406."""
    return _codec_of_answer(headers.get(b"accept"))


@lru_cache
def _codec_of_answer(header: bytes | None) -> Codec:
    kind = preferred([] if header is None else [header.decode("latin-1")], [*CODECS, *_ALIASES])
    return CODECS[_ALIASES.get(kind, kind)]


async def read_body(headers: Headers, receive: Receive, settings: Settings, memory: MemoryShare) -> Body:
    """The whole body. Raises LimitExceeded before anything is read that is announced to be too large."""
    announced = int(headers.get(b"content-length", b"0"))
    most = settings.max_body_bytes
    if announced > most:
        raise LimitExceeded("max_body_bytes", "Bytes of the body", announced, most)
    memory.take(announced)
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _read(receive, announced, most, memory)
    except TimeoutError:
        raise HTTPException(
            408, f"The body was not complete within body_seconds, {settings.body_seconds:g}; send it again."
        ) from None
    if not body:
        raise Unreadable("The body is empty; send a document.")
    return body


async def _read(receive: Receive, announced: int, most: int, memory: MemoryShare) -> Body:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Abandoned
        piece: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if len(body) + len(piece) > announced:  # chunked: no length was announced
            if len(body) + len(piece) > most:
                raise LimitExceeded("max_body_bytes", "Bytes of the body", None, most)
            memory.take(len(body) + len(piece) - announced)
            announced = len(body) + len(piece)
        if not more and not body:
            return piece  # whole, the usual case of a small body
        body += piece
        if not more:
            return body


async def send_pieces(
    send: Send, pieces: Sequence[Piece], content_type: str, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Answer 200 with `pieces`, one after another, large ones without a copy; `more` are further header fields."""
    length = sum(map(len, pieces))
    headers = [(b"content-length", b"%d" % length), (b"content-type", content_type.encode()), *more]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if length > JOINED:
        *pieces, last = pieces
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    else:
        last = b"".join(pieces)
    await send({"type": "http.response.body", "body": last, "more_body": False})
