"""How a connection sends a large answer, as fast as its client takes it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field

from app.codecs.codec import Piece
from app.http.server.transfers import LENT, Sending, Transfers, split
from app.http.server.watches import FAREWELL_SECONDS, SendWatch, Watch, has_all

log = logging.getLogger("app.http")

AT_ONCE = 1 << 22
"""Bytes of an answer that are made and handed over before the event loop goes on."""

ENCRYPTED = 1 << 18
"""The same that TLS gets at one time. OpenSSL grows its buffer for what it gets, copying what is there each time, and
keeps it for as long as the connection lasts."""


@dataclass(eq=False, repr=False, slots=True)
class Sender:
    """Hands one answer after another to the transport, or to a thread, and waits for clients that do not read."""

    _transport: asyncio.Transport
    _loop: asyncio.AbstractEventLoop
    seconds: InitVar[float]
    """In which a client that takes next to nothing is cut off."""
    _transfers: Transfers
    _sent: Callable[[], None]
    """Called when all of an answer is handed over."""
    _most: int = AT_ONCE
    _farewell: Watch | None = None
    _watch: SendWatch = field(init=False)
    _groups: Iterator[list[Piece]] | None = None
    """Of the answer that is being sent."""
    _unsent: int = 0
    """Bytes of it."""
    _path: str = ""
    _lent: Sending | None = None
    _is_paused: bool = False
    _is_closing: bool = False

    def __post_init__(self, seconds: float) -> None:
        self._watch = SendWatch(self._transport, self._loop, seconds)
        if self._transport.get_extra_info("sslcontext") is not None:
            self._most = ENCRYPTED
            self._farewell = Watch(self._transport, self._loop, FAREWELL_SECONDS, has_all)

    def is_free(self) -> bool:
        """Whether the client keeps up and there is no answer being sent."""
        return not self._is_paused and self._groups is None

    def send(self, groups: Iterator[list[Piece]], size: int, path: str) -> None:
        """Begin to send an answer, of about `size` bytes, to a request for `path`."""
        self._groups = _sliced(groups, self._most)
        self._unsent, self._path = size, path
        if size >= LENT:
            self._transfers.enter(self)
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
                if self._transport.is_closing():  # the client has gone: TLS would log a warning for each piece
                    return
                if self._lends() and self._lend(groups):
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
        self._transfers.leave(self)

    def _write(self, group: list[Piece]) -> int:
        """Hand it to the transport; its bytes."""
        size = sum(map(len, group))
        self._unsent -= size
        for piece in group:
            self._transport.write(piece)
        return size

    def _lends(self) -> bool:
        return self._transfers.worth(self._unsent) and not self._transport.get_write_buffer_size()

    def _lend(self, groups: Iterator[list[Piece]]) -> bool:
        """Whether a thread has it."""
        lent = Sending(groups)
        if not self._transfers.submit(lent, self._transport, self._loop, lambda: self._return(lent)):
            return False
        self._lent = lent
        return True

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
