"""Limits in force: what one request may ask for, and an account of the memory that all of them hold together."""

import threading

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
    """Bytes promised to requests, at most `limit` at one time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
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
        wanted, limit = self.held + amount, self._account.limit
        if wanted > limit:  # there is no use in trying again
            raise LimitExceeded("max_memory_bytes", "Bytes of the request's body, tensors and answer", wanted, limit)
        self._account.move(amount)
        self.held += amount

    def give(self, amount: int) -> None:
        """Hold `amount` fewer bytes."""
        self.take(-amount)

    def __enter__(self) -> "MemoryShare":
        return self

    def __exit__(self, *_: object) -> None:
        self._account.move(-self.held)
        self.held = 0
