"""Request bodies, from a socket to where they are read."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from time import time_ns
from typing import Any, TypeAlias, TypeVar

from starlette.exceptions import HTTPException

from app.codecs.codec import Body, Codec, Decoder, Encoded
from app.codecs.structure import Unreadable
from app.engine.service import Service
from app.http.core.compression import coding_of_answer, coding_of_request, compress, decompress
from app.http.core.documents import CODECS, TooHeavy, read_document
from app.http.core.exchange import Incoming, RawHeaders, Request, in_task, resumed
from app.http.core.media_types import MSGPACK, media_type, preferred, unsupported
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer, beginning
from app.settings import Settings

T = TypeVar("T")

_toucher = ThreadPoolExecutor(1, thread_name_prefix="dmlserve-memory")

ALIASES = {"application/x-msgpack": MSGPACK, "application/vnd.msgpack": MSGPACK}
"""Other names of media types."""

FIRST, GROWTH = 1 << 20, 8
"""Bytes of a body's first buffer, if it needs as many, and for how many times what has come a buffer has room, or for
twice that."""

AT_ONCE = 64
"""A body may take memory for all of it at once, of what was used before, if that is no more than this part of what is
free: however many clients announce what they do not send, there is always some left."""

MOVED = 1 << 22
"""Bytes of a body that are moved to a larger buffer before the event loop goes on."""

OFFLOADED = 1 << 20
"""Bodies of at least so many bytes are read by a worker, as are smaller ones with much structure."""

Align: TypeAlias = Callable[[bytes, int], int]
"""Given the beginning of a body and its length, the offset at which its first large tensor data begin, or 0."""


def no_data(beginning: bytes, length: int) -> int:
    """Of a body without tensor data."""
    return 0


@lru_cache
def codec_of_request(header: bytes, also: str = "") -> Codec:
    """From Content-Type. `also` ends the advice where there is more to send. Raises HTTPException 415."""
    kind = media_type(header)
    codec = CODECS.get(ALIASES.get(kind, kind))
    if codec is None:
        raise unsupported(header, f"send {' or '.join(CODECS)}{also}")
    return codec


@lru_cache
def codec_of_answer(header: bytes) -> Codec:
    """From Accept. Raises HTTPException 406."""
    kind = preferred(header.decode("latin-1"), [*CODECS, *ALIASES])
    return CODECS[ALIASES.get(kind, kind)]


def prefers_minimal(header: bytes) -> bool:
    """Whether Prefer asks for return=minimal (RFC 7240): the first preference of a name counts."""
    preferences = (each.partition(b";")[0].strip().lower() for each in header.split(b","))
    returns = [
        value.strip(b' "')
        for name, _, value in (each.partition(b"=") for each in preferences)
        if name.strip() == b"return"
    ]
    return returns[:1] == [b"minimal"]


async def read_body(request: Request, settings: Settings, memory: MemoryShare, align: Align = no_data) -> Body:
    """The whole body; where `align` finds tensor data in it, these begin at a multiple of 64 bytes in memory.

    Raises LimitExceeded before anything is read that is announced to be too large, Unreadable, HTTPException 408,
    MemoryExhausted, Disconnected.
    """
    body = body_at_hand(request, settings, memory)
    if body is not None:
        return body
    most, announced = settings.max_body_bytes, request.body.announced
    _limit(announced, most)
    memory.check(announced)
    begun = time_ns()
    try:
        body = await _within(settings.body_seconds, _Reading(request.body, most, memory, align).whole())
    except TimeoutError:
        detail = f"The body was not complete within body_seconds, {settings.body_seconds:g}; send it again."
        raise HTTPException(408, detail, {"Connection": "close"}) from None  # RFC 9110, 15.5.9
    if request.stages is not None:
        request.stages.add("receive", begun)
    if not body:
        raise _empty()
    return body


async def start_touching() -> None:
    """Have the thread that provides memory: later there may be too many for one more, in the midst of a body."""
    await asyncio.get_running_loop().run_in_executor(_toucher, int)


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, which may take so many seconds from when it first waits: most need not. Raises
    TimeoutError."""
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        made: T = done.value
        return made
    await in_task()
    rest = resumed(work, waits_for)
    del waits_for  # it will have what is raised, which has this frame, and so the body's memory
    async with asyncio.timeout(seconds):
        return await rest


def body_at_hand(request: Request, settings: Settings, memory: MemoryShare) -> Body | None:
    """The same if it has come with the header, as small ones do, and there is nothing to wait for.

    Raises LimitExceeded, Unreadable, MemoryExhausted.
    """
    body: Body | None = request.body.whole()
    if body is None:
        return None
    _limit(len(body), settings.max_body_bytes)
    if not body:
        raise _empty()
    memory.take(len(body))
    return body


def _limit(size: int, most: int) -> None:
    if size > most:
        raise LimitExceeded("max_body_bytes", "Bytes of the body", size, most)


def _empty() -> Unreadable:
    return Unreadable("The body is empty; send a document.")


def read_plain_body(
    service: Service, request: Request, memory: MemoryShare, align: Align = no_data
) -> Coroutine[Any, Any, Body]:
    """The same as it was before the client compressed it, if it did: that a worker undoes, within the same limit.

    Raises HTTPException 415, too.
    """
    coding = coding_of_request(request.headers.get(b"content-encoding", b""))
    if coding:
        return _read_compressed(service, request, memory, coding)
    return read_body(request, service.settings, memory, align)


async def _read_compressed(service: Service, request: Request, memory: MemoryShare, coding: bytes) -> Body:
    body, most = await read_body(request, service.settings, memory), service.settings.max_body_bytes
    return await service.run(lambda _: decompress(body, coding, most, memory), memory, request.body.hung_up)


async def compressed(
    service: Service, request: Request, content: Encoded, memory: MemoryShare
) -> tuple[Encoded, RawHeaders]:
    """`content` as the client wishes it to be compressed, which a worker does, and the header fields that say so."""
    coding = coding_of_answer(request.headers.get(b"accept-encoding", b""))
    if not coding:
        return content, []
    content = await service.run(lambda _: compress(content.pieces, coding, memory), memory, request.body.hung_up)
    return content, [(b"content-encoding", coding)]


class _Reading:
    """A body on its way into one buffer, which grows with it.

    Memory is taken as the body arrives: a client that announces a large body and does not send it holds nobody up.
    """

    def __init__(self, incoming: Incoming, most: int, memory: MemoryShare, align: Align) -> None:
        self._incoming = incoming
        self._announced = incoming.announced
        self._most = most
        self._memory = memory
        self._align = align
        self._buffer: Buffer = memoryview(b"")
        self._length = 0

    async def whole(self) -> Body:
        piece = await self._incoming.read()
        shift = beginning(self._align(piece, self._announced))
        await self._append(piece, shift)
        if self._announced >= 0:
            while self._length < self._announced:
                await self._grow(self._length + 1, shift)
                await self._incoming.fill(self._buffer[shift + self._length : shift + self._announced])
                self._length = min(len(self._buffer) - shift, self._announced)
        else:
            while piece := await self._incoming.read():
                await self._append(piece, shift)
        return self._buffer[shift : shift + self._length]

    async def _append(self, piece: bytes, shift: int) -> None:
        end = self._length + len(piece)
        await self._grow(end, shift)
        self._buffer[shift + self._length : shift + end] = piece
        self._length = end

    async def _larger(self, least: int, shift: int) -> Buffer:
        """A buffer with room for `least` bytes, and for more, since they are coming."""
        memory, whole = self._memory, shift + self._announced
        if shift < whole <= memory.free // AT_ONCE and (used := memory.used_buffer(whole)):
            return used
        # Half of what is free is left to others, but a buffer that hardly grows would be copied again and again.
        size = shift + max(least + least // 2, min(max(FIRST, GROWTH * least), memory.free // 2))
        if 2 * size > whole > shift:
            size = whole  # at once rather than soon
        if least < FIRST // GROWTH:
            return memory.buffer(size)  # most of it may never be touched
        used = memory.used_buffer(size)
        if used is not None:
            return used
        memory.take(size)
        return await asyncio.get_running_loop().run_in_executor(_toucher, memory.pool.take_touched, size)

    async def _grow(self, least: int, shift: int) -> None:
        """Make room for `least` bytes, but for no more than were announced."""
        if least > self._most:  # chunked: no length was announced
            raise LimitExceeded("max_body_bytes", "Bytes of the body", None, self._most)
        if shift + least <= len(self._buffer):
            return
        old, self._buffer = self._buffer, await self._larger(least, shift)
        filled = min(len(old), shift + self._length)
        for start in range(0, filled, MOVED):
            if start:
                await asyncio.sleep(0)
            stop = min(start + MOVED, filled)
            self._buffer[start:stop] = old[start:stop]
        self._memory.give(len(old))


async def read_judged(service: Service, request: Request, codec: Decoder, judge: Callable[[object], T]) -> T:
    """What `judge` makes of the document that is the body, which has no tensor data."""
    with service.memory.open() as memory:
        body = await read_plain_body(service, request, memory)
        read = partial(read_document, codec, body, service.settings, memory, judge)
        if len(body) < OFFLOADED:
            try:
                return read(only_light=True)
            except TooHeavy:
                pass
        return await service.run(lambda _: read(), memory, request.body.hung_up)
