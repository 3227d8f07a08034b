"""When a connection reads, and who does."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from app.http.server.exchange import Exchange
from app.http.server.moving import PROBE
from app.http.server.transfers import LENT, Receiving, Transfers
from app.memory.buffers import Buffer

_NONE = -1
"""The descriptor of a connection that only its transport reads from, or nobody any more."""


@dataclass(eq=False, repr=False, slots=True)
class Reader:
    """Reads nothing while nobody wants it. Of a large body whose client is quick it has a thread receive the rest."""

    _transport: asyncio.Transport
    _loop: asyncio.AbstractEventLoop
    _transfers: Transfers
    _ended: Callable[[Exchange], None]
    """Called when the body of an exchange has come that was received into its buffers."""
    is_held: bool = False
    """Whether nobody wants more to be read."""
    _lent: Receiving | None = None
    _descriptor: int = _NONE

    def __post_init__(self) -> None:
        encrypts = self._transport.get_extra_info("sslcontext") is not None
        connected = None if encrypts else self._transport.get_extra_info("socket")
        if connected is not None:
            self._descriptor = connected.fileno()

    @property
    def is_paused(self) -> bool:
        """Whether the event loop does not read."""
        return self.is_held or self._lent is not None

    def want(self) -> None:
        """Read on."""
        if self.is_held and not self._transport.is_closing():
            self.is_held = False
            if self._lent is None:
                self._transport.resume_reading()

    def hold(self) -> None:
        """Read no more for now."""
        if self._lent is not None:
            self._lent.is_over = True
        if not self.is_held and not self._transport.is_closing():
            self.is_held = True
            if self._lent is None:
                self._transport.pause_reading()

    def stop(self) -> None:
        """The connection is over."""
        if self._lent is not None:
            self._lent.is_over = True
        self._transfers.leave(self)
        self._descriptor = _NONE  # it may soon be another connection's
        del self._ended

    def buffer(self, exchange: Exchange) -> Buffer | None:
        """Where the next bytes of its body belong; None if nobody waits for them."""
        target = exchange.target()
        if target is None:
            return None
        if exchange.left >= LENT:
            self._transfers.enter(self)
        return target[:PROBE] if self._transfers.worth(len(target)) else target

    def receive(self, exchange: Exchange) -> None:
        """Take what has come of its body already: to be told so by the event loop takes longer than to read it. What
        becomes of a connection that is broken, or has no more, its transport finds out."""
        while self._descriptor != _NONE and not self.is_paused and (target := self.buffer(exchange)) is not None:
            try:
                count = os.readv(self._descriptor, (target,))
            except OSError:
                return
            if count:
                self.filled(exchange, count)
            if count < len(target):
                return

    def filled(self, exchange: Exchange, count: int) -> None:
        """So many bytes have come there, or of what nobody waits for."""
        exchange.filled(count)
        if exchange.left == 0:
            self._transfers.leave(self)
            self._ended(exchange)
        elif count >= PROBE and (target := exchange.target()) is not None and self._transfers.worth(len(target)):
            self._lend(exchange, target)

    def _lend(self, exchange: Exchange, target: Buffer) -> None:
        lent = Receiving(target)
        if not self._transfers.submit(lent, self._transport, self._loop, lambda: self._return(exchange, lent)):
            return
        if not self.is_held:
            self._transport.pause_reading()
        exchange.is_lent = True
        self._lent = lent

    def _return(self, exchange: Exchange, lent: Receiving) -> None:
        self._lent = None
        exchange.is_lent = False
        if self._transport.is_closing():
            return
        if not self.is_held:
            self._transport.resume_reading()
        if lent.count:
            self.filled(exchange, lent.count)
