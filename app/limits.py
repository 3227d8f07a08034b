"""Limits in force: what one request may ask for, and an account of the memory that all of them hold together."""

import threading

from app.buffers import Buffer, BufferPool, Pinning
from app.contract.violations import Path


class LimitExceeded(Exception):
    """A request asks for more than the setting `limit` permits."""

    def __init__(self, limit: str, what: str, given: int | None, allowed: int, path: Path = ()) -> None:
        self.limit = limit
        self.given = given
        self.allowed = allowed
        self.path = path
        size = "more" if given is None else str(given)
        super().__init__(f"{what}: {size}, where {limit} allows {allowed}.")


class MemoryExhausted(Exception):
    """Other requests hold the memory that this one needs."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(
            f"Requests in progress hold the memory this one needs: {wanted} bytes wanted, {available} of "
            "max_memory_bytes free."
        )


class MemoryAccount:
    """Bytes promised to requests, at most `limit` at one time, and the pool that their buffers come from."""

    def __init__(self, limit: int, most_idle_bytes: int = 0, pinning: Pinning | None = None) -> None:
        self.limit = limit
        self.pool = BufferPool(most_idle_bytes, pinning)
        self.used = 0
        self._lock = threading.Lock()

    def open(self) -> "MemoryShare":
        """An empty share, for one request."""
        return MemoryShare(self)

    def move(self, amount: int) -> None:
        with self._lock:
            if amount > 0 and self.used + amount > self.limit:
                raise MemoryExhausted(amount, self.limit - self.used)
            self.used += amount


class MemoryShare:
    """What one request holds of an account, given back on leaving the `with` block."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.held = 0

    def take(self, amount: int) -> None:
        """Hold `amount` more bytes. Raises MemoryExhausted or LimitExceeded, holding no more than before."""
        self.check(amount)
        self._account.move(amount)
        self.held += amount

    def check(self, amount: int) -> None:
        """Raise LimitExceeded if `amount` more bytes could not be held even if there were no other requests."""
        wanted, limit = self.held + amount, self._account.limit
        if wanted > limit:
            raise LimitExceeded("max_memory_bytes", "Bytes of the request's body, tensors and answer", wanted, limit)

    def give(self, amount: int) -> None:
        """Hold `amount` fewer bytes."""
        self.take(-amount)

    def buffer(self, size: int) -> Buffer:
        """A buffer of `size` bytes, held. Its contents are arbitrary. Raises like `take`."""
        self.take(size)
        return self._account.pool.take(size)

    def larger(self, buffer: Buffer, size: int) -> Buffer:
        """A buffer of `size` bytes, held in place of `buffer`, whose contents are still to be copied."""
        self.take(size - len(buffer))
        return self._account.pool.take(size)

    def __enter__(self) -> "MemoryShare":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back all of it."""
        self._account.move(-self.held)
        self.held = 0
        self._account.pool.settle()
