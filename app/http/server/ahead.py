"""What connections hold of requests whose turn has not come, on the account of all requests' memory."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.http.server.exchange import Exchange
from app.http.server.scratch import READ
from app.memory.accounts import MemoryAccount
from app.memory.buffers import Buffer


@dataclass(eq=False, repr=False, slots=True)
class Ahead:
    """Those that one connection was sent while earlier ones, or the client, keep them from being begun.

    They are charged for when they are there, and so may overdraw the account: by one read of READ bytes, and by the
    little that connections read where it has no room for another. What a request has in its turn it takes itself.
    """

    _memory: MemoryAccount
    _most_used: int = field(init=False)
    held: int = 0
    """Bytes that are charged."""

    def __post_init__(self) -> None:
        self._most_used = self._memory.limit - READ

    def has_room(self) -> bool:
        """Whether the account has room for what one more read brings."""
        return self._memory.used <= self._most_used

    def count(self, queue: Iterable[Exchange], further: Buffer | None) -> None:
        """Charge for these and nothing else: those of `queue` that were not begun, and what is not even requests."""
        held = 0 if further is None else sys.getsizeof(further.obj)  # however little of that is left
        for exchange in queue:
            if not exchange.is_started:
                exchange.charged = exchange.waiting_bytes()
                held += exchange.charged
        if held != self.held:
            self._memory.move(held - self.held, is_there=True)
            self.held = held

    def begin(self, exchange: Exchange) -> None:
        """It has its turn. To count all others again for each would take a thirtieth of a small request."""
        self._memory.move(-exchange.charged)
        self.held -= exchange.charged
