"""Requests that the service sends itself before it listens, over a connection as its clients have them.

So theirs find code that has run before, and memory that was used: the first of a small model's takes less than twice as
long as the later ones.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable

from app.http.core.exchange import Handler, Reply, Request

log = logging.getLogger("app.http")

SECONDS = 5.0
"""For all of them. A service that is slow is not to start later for it."""


async def rehearse(connect: Callable[[], asyncio.BaseProtocol], requests: Iterable[bytes]) -> None:
    """Send `requests`, each an HTTP/1.1 request, to what `connect` makes, and read the answers, whatever they are."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(sock=theirs)
            try:
                await loop.connect_accepted_socket(connect, ours)
                for request in requests:
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


def rehearsing(handler: Handler) -> Handler:
    """What answers requests with `handler` without counting them."""

    async def handle(request: Request) -> Reply:
        request.is_rehearsal = True
        return await handler(request)

    return handle
