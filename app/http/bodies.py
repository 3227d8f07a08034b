"""Request bodies in, answers out."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.codecs.codec import Codec
from app.codecs.documents import CODECS
from app.codecs.structure import Unreadable
from app.execution.device import Buffer
from app.http.media_types import media_type, preferred
from app.limits import LimitExceeded, MemoryShare
from app.service import Abandoned
from app.settings import Settings

_ALIASES = {"application/x-msgpack": "application/msgpack", "application/vnd.msgpack": "application/msgpack"}

JOINED = 1 << 16
"""Answers of at most so many bytes are joined into one piece: a copy costs less than a second write."""


def codec_of_request(request: Request) -> Codec:
    """By Content-Type. Raises HTTPException 415."""
    header = request.headers.get("content-type", "")
    kind = media_type(header)
    codec = CODECS.get(_ALIASES.get(kind, kind))
    if codec is None:
        given = f"is {header[:100]}" if header else "is missing"
        raise HTTPException(415, f"Content-Type {given}; send {' or '.join(CODECS)}.")
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise HTTPException(415, f"Content-Encoding is {coding[:100]}; send the body as it is.")
    return codec


def codec_of_answer(request: Request) -> Codec:
    """By Accept. Raises HTTPException 406."""
    kind = preferred(request.headers.getlist("accept"), [*CODECS, *_ALIASES])
    return CODECS[_ALIASES.get(kind, kind)]


async def read_body(request: Request, settings: Settings, memory: MemoryShare) -> bytearray:
    """The whole body. Raises LimitExceeded before anything is read that is announced to be too large."""
    announced = int(request.headers.get("content-length", 0))
    most = settings.max_body_bytes
    if announced > most:
        raise LimitExceeded("max_body_bytes", "Bytes of the body", announced, most)
    memory.take(announced)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Abandoned
                piece: bytes = message.get("body", b"")
                if len(body) + len(piece) > announced:  # chunked: no length was announced
                    if len(body) + len(piece) > most:
                        raise LimitExceeded("max_body_bytes", "Bytes of the body", None, most)
                    memory.take(len(body) + len(piece) - announced)
                    announced = len(body) + len(piece)
                body += piece
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise HTTPException(
            408, f"The body was not complete within body_seconds, {settings.body_seconds:g}; send it again."
        ) from None
    if not body:
        raise Unreadable("The body is empty; send a document.")
    return body


class PiecesResponse(Response):
    """An answer in several pieces, none of them copied, that holds `resources` until it is sent."""

    def __init__(self, pieces: Sequence[bytes | Buffer], media_type: str, resources: ExitStack) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._resources = resources
        super().__init__(media_type=media_type)
        length = sum(len(piece) for piece in self._pieces)
        self.headers["content-length"] = str(length)
        if length <= JOINED:
            self._pieces = [b"".join(self._pieces)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._resources:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
