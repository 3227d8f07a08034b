"""How a connection sends a large answer, as fast as its client takes it."""

import asyncio
import logging
from collections.abc import Callable, Iterator

from app.codecs.codec import Piece
from app.http.server.transfers import LENT, Sending, Transfers, split
from app.http.server.watches import FarewellWatch, SendWatch

log = logging.getLogger("app.http")

AT_ONCE = 1 << 22
"""Bytes of an answer that are made and handed over before the event loop goes on."""

ENCRYPTED = 1 << 18
"""The same that TLS gets at one time. OpenSSL grows its buffer for what it gets, copying what is there each time, and
keeps it for as long as the connection lasts."""


class Sender:
    """Hands one answer after another to the transport, or to a thread, and waits for clients that do not read."""

    __slots__ = (
        "_farewell",
        "_groups",
        "_is_closing",
        "_is_entered",
        "_is_paused",
        "_lent",
        "_loop",
        "_most",
        "_path",
        "_sent",
        "_transfers",
        "_transport",
        "_unsent",
        "_watch",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        transfers: Transfers,
        sent: Callable[[], None],
    ) -> None:
        """`sent` is called when all of an answer is handed over. A client that takes next to nothing for `seconds` is
        cut off."""
        self._transport = transport
        self._loop = loop
        self._transfers = transfers
        encrypts = transport.get_extra_info("sslcontext") is not None
        self._most = ENCRYPTED if encrypts else AT_ONCE
        self._farewell = FarewellWatch(transport, loop) if encrypts else None
        self._sent = sent
        self._watch = SendWatch(transport, loop, seconds)
        self._groups: Iterator[list[Piece]] | None = None  # of the answer that is being sent
        self._unsent = 0  # bytes of it
        self._path = ""
        self._lent: Sending | None = None
        self._is_paused = False
        self._is_closing = False
        self._is_entered = False  # with `transfers`

    def is_free(self) -> bool:
        """Whether the client keeps up and there is no answer being sent."""
        return not self._is_paused and self._groups is None

    def send(self, groups: Iterator[list[Piece]], size: int, path: str) -> None:
        """Begin to send an answer, of about `size` bytes, to a request for `path`."""
        self._groups = _sliced(groups, self._most)
        self._unsent, self._path = size, path
        if size >= LENT:
            self._is_entered = True
            self._transfers.enter()
        self.go_on()

    def cut(self) -> None:
        """Send no more of it."""
        self._end()
        if self._lent is not None:
            self._lent.is_over = True

    def close(self) -> None:
        """All is handed over. Little enough of it may wait that nobody was told to pause, and yet for ever."""
        self._is_closing = True
        self._watch.start()
        if self._farewell:
            self._farewell.start()

    def stop(self) -> None:
        """The connection is over."""
        self.cut()
        self._watch.stop()
        if self._farewell:
            self._farewell.stop()
        self._is_paused = False
        del self._sent

    def pause(self) -> None:
        """The client does not keep up."""
        self._is_paused = True
        self._watch.start()

    def resume(self) -> None:
        """It has taken nearly all; `go_on` is called in a turn of its own."""
        self._is_paused = False
        if not self._is_closing:
            self._watch.stop()

    def go_on(self) -> None:
        """Hand over more of the answer, as long as the client keeps up."""
        groups, handed_over = self._groups, 0
        if groups is None or self._lent is not None:
            return
        try:
            while not self._is_paused:
                if self._lends():
                    self._lend(groups)
                    return
                if handed_over >= AT_ONCE:
                    self._loop.call_soon(self.go_on)
                    return
                group = next(groups, None)
                if group is None:
                    self._end()
                    self._sent()
                    return
                handed_over += self._write(group)
        except Exception as error:
            self._fail(error)

    def _end(self) -> None:
        self._groups = None
        if self._is_entered:
            self._is_entered = False
            self._transfers.leave()

    def _write(self, group: list[Piece]) -> int:
        """Hand it to the transport; its bytes."""
        size = sum(map(len, group))
        self._unsent -= size
        for piece in group:
            self._transport.write(piece)
        return size

    def _lends(self) -> bool:
        return self._transfers.worth(self._unsent) and not self._transport.get_write_buffer_size()

    def _lend(self, groups: Iterator[list[Piece]]) -> None:
        lent = self._lent = Sending(groups)
        self._transfers.submit(lent, self._transport, self._loop, lambda: self._return(lent))

    def _return(self, lent: Sending) -> None:
        self._lent = None
        if self._groups is None:
            return
        if lent.error is not None:
            self._fail(lent.error)
            return
        self._unsent -= lent.sent
        self._write(lent.rest)  # the client paused, or has gone: that is for the transport to find out
        self.go_on()

    def _fail(self, error: Exception) -> None:
        log.error("Exception in making the answer to %s", self._path, exc_info=error)
        self._transport.abort()  # cut short, it can at least be told from a whole one


def _sliced(groups: Iterator[list[Piece]], most: int) -> Iterator[list[Piece]]:
    """The same in groups of at most so many bytes."""
    for group in groups:
        rest = group
        while rest:
            part, rest = split(rest, most)
            yield part
