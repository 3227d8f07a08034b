"""Requests that the service sends itself before it listens, over a connection as its clients have them.

So theirs find code that has run before, and memory that was used. Once is not enough: Python's interpreter makes code
quicker that has run some ten times, and each worker has memory of its own.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

from app.http.core.exchange import Handler, Reply, Request

log = logging.getLogger("app.http")

SECONDS = 5.0
"""For all of them. A service that is slow is not to start later for it."""

TIMES, AGAIN_SECONDS = 16, 0.25
"""How often each is sent, if all of them have been within so long: what takes longer gains little by it."""


async def rehearse(connect: Callable[[], asyncio.BaseProtocol], requests: Callable[[], Iterable[bytes]]) -> None:
    """Send what `requests` makes, HTTP/1.1 requests, to what `connect` makes, and read the answers, whatever they are.

    They are made anew each time, since all of them together may be large.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(sock=theirs)
            try:
                await loop.connect_accepted_socket(connect, ours)
                for request in repeated(requests):
                    writer.write(request)
                    await writer.drain()
                    head = await reader.readuntil(b"\r\n\r\n")
                    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                    await reader.readexactly(int(fields[b"content-length"]))
                    log.debug("Rehearsed %s: %s", *(each.split(b"\r\n", 1)[0].decode() for each in (request, head)))
            finally:
                writer.close()  # at which the other end is closed, too
    except Exception as error:  # clients will still be served
        log.warning("The first requests will take longer than later ones: %s", error or type(error).__name__)


def repeated(requests: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """All of them once, and then again as long as there is time."""
    began = perf_counter()
    for again in range(TIMES):
        for request in requests():
            if again and perf_counter() - began > AGAIN_SECONDS:
                return
            yield request


def rehearsing(handler: Handler) -> Handler:
    """What answers requests with `handler` without counting them."""

    async def handle(request: Request) -> Reply:
        request.is_rehearsal = True
        return await handler(request)

    return handle
