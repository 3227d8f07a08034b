"""Limits in force: what one request may ask for, and an account of the memory that all of them hold together."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from app.contract.violations import Path
from app.memory.buffers import Buffer, BufferPool, Pinning

_TURN = 1e-5
"""Seconds, which the system makes some more of."""


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


class RequestOver(Exception):
    """Nobody waits any more for what a worker makes of a request."""


class MemoryAccount:
    """Bytes promised to requests, at most `limit` at one time, and the pool that their buffers come from.

    Buffers that the pool keeps for later are within the limit too: they go as soon as requests need their place. What
    is in memory before it is anybody's may be more than the limit: then nothing is promised until it is less.
    """

    def __init__(self, limit: int, most_idle_bytes: int = 0, pinning: Pinning | None = None) -> None:
        self.limit = limit
        self.pool = BufferPool(most_idle_bytes, pinning)
        self.used = 0
        self._lock = threading.Lock()

    def open(self) -> "MemoryShare":
        """An empty share, for one request."""
        return MemoryShare(self)

    def move(self, amount: int, *, is_there: bool = False) -> None:
        """Promise `amount` bytes, or take them back. Raises MemoryExhausted, unless the memory `is_there` already."""
        pool = self.pool
        with self._lock:
            used = self.used + amount
            room = self.limit - used
            if room < 0:
                if amount > 0 and not is_there:
                    raise MemoryExhausted(amount, self.free)
                room = 0
            self.used = used
            pool.room = room
        pool.settle()

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return max(0, self.limit - self.used)


class MemoryShare:
    """What one request holds of an account, given back on leaving the `with` block.

    While it is lent to a worker it is that thread's alone. What a worker still has in hands when the request is over is
    given back when the worker is done with it.
    """

    __slots__ = ("_account", "_is_lent", "_is_open", "_lock", "held")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.held = 0
        self._is_open = True
        self._is_lent = False
        self._lock: threading.Lock | None = None  # from when on a worker may have it

    @property
    def pool(self) -> BufferPool:
        """Where buffers come from for memory that was taken."""
        return self._account.pool

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self._account.free

    def take(self, amount: int) -> None:
        """Hold `amount` more bytes. Raises MemoryExhausted, LimitExceeded, RequestOver, holding no more than before."""
        held = self.held + amount
        if held > self._account.limit or not self._is_open:
            self.check(amount)
        self._account.move(amount)
        self.held = held

    def hold(self, amount: int) -> None:
        """Hold `amount` bytes in place of what is held. Raises like `take`."""
        if amount > self.held:
            self.take(amount - self.held)
        else:
            self.give(self.held - amount)

    def check(self, amount: int) -> None:
        """Raise LimitExceeded if `amount` more bytes could not be held even if there were no other requests."""
        if not self._is_open:
            raise RequestOver
        wanted, limit = self.held + amount, self._account.limit
        if wanted > limit:
            raise LimitExceeded("max_memory_bytes", "Bytes of the request's body, tensors and answer", wanted, limit)

    def ensure_open(self) -> None:
        """Raise RequestOver if the request is. What takes long asks again and again.

        In a worker this lets another thread, the event loop's say, have its turn. Python sees to that only where one
        thread holds the interpreter's lock for 5 ms on end; one that lets go of it for an instant now and then, as
        NumPy does, has it back before another one wakes up, and so may keep it for a tenth of a second.
        """
        if not self._is_open:
            raise RequestOver
        if self._is_lent:
            time.sleep(_TURN)

    def give(self, amount: int) -> None:
        """Hold `amount` fewer bytes."""
        if amount:
            self._account.move(-amount)
            self.held -= amount

    def pass_on(self, amount: int, to: "MemoryShare") -> None:
        """Have `to` hold `amount` bytes of these. Raises RequestOver if it is given back already."""
        if not to._is_open:
            raise RequestOver
        self.held -= amount
        to.held += amount

    @contextmanager
    def passing(self, amount: int) -> Iterator[None]:
        """Hold `amount` more bytes within the `with` block. Raises like `take`."""
        self.take(amount)
        try:
            yield
        finally:
            self.give(amount)

    def used_buffer(self, size: int) -> Buffer | None:
        """A buffer of memory that was used before, held, if there is any. Raises like `take`."""
        self.take(size)
        found = self.pool.take_used(size)
        if found is None:
            self.give(size)
        return found

    def buffer(self, size: int) -> Buffer:
        """A buffer of `size` bytes, held. Its contents are arbitrary. Raises like `take`."""
        self.take(size)
        return self._account.pool.take(size)

    def lent(self) -> AbstractContextManager[None]:
        """For a worker to enter, around all that it does for the request. Entering raises RequestOver."""
        if self._lock is None:
            self._lock = threading.Lock()
        return self._lent(self._lock)

    @contextmanager
    def _lent(self, lock: threading.Lock) -> Iterator[None]:
        with lock:
            self.ensure_open()
            self._is_lent = True
        try:
            yield
        finally:
            with lock:
                self._is_lent = False
                if not self._is_open:
                    self._give_all()

    def __enter__(self) -> "MemoryShare":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The request is over: give back all of it."""
        if self._lock is None:
            self._is_open = False
            self._give_all()
            return
        with self._lock:
            self._is_open = False
            if not self._is_lent:
                self._give_all()

    def _give_all(self) -> None:
        self._account.move(-self.held)
        self.held = 0
