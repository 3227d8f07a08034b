"""What is kept of a dispatch for the next one like it, within a limit for all."""

import itertools
import threading
import weakref
from collections import deque
from typing import Generic, Protocol, TypeVar


class Kept(Protocol):
    """Memory with what has been set up over it."""

    @property
    def bytes(self) -> int: ...


T = TypeVar("T", bound=Kept)

READY = 8
"""How much is kept for the next dispatches of one kernel: no more of them are under way on a GPU."""


class Ready(Generic[T]):
    """What dispatches have set up on a device, by what it is for, for the next ones. If all of it has more than `limit`
    bytes, that goes which nobody has wanted for longest. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._of: dict[int, list[tuple[T, int]]] = {}
        """By their owners' numbers, from the one on that nobody has wanted for longest. With each its bytes."""
        self._bytes = 0
        self._numbers = itertools.count()
        self._gone: deque[int] = deque()

    def number(self, owner: object) -> int:
        """What `owner` is called here. Once it is gone its things go."""
        number = next(self._numbers)
        # The garbage collector may call this while the thread holds the lock.
        weakref.finalize(owner, self._gone.append, number).atexit = False
        return number

    def newest(self, number: int) -> T | None:
        """The thing that the next dispatch will have."""
        newest = self._of.get(number, [])[-1:]  # a copy: another thread may take it meanwhile
        return newest[0][0] if newest else None

    def take(self, number: int) -> T | None:
        """One that nobody else uses until it is `put` back."""
        with self._lock:
            waiting = self._of.get(number)
            if not waiting:
                return None
            thing, size = waiting.pop()
            self._bytes -= size
        return thing

    def put(self, number: int, thing: T) -> None:
        """Keep one for the next dispatch."""
        dropped: list[tuple[T, int]] = []  # let go of without the lock
        size = thing.bytes
        with self._lock:
            while self._gone:
                dropped += self._of.pop(self._gone.popleft(), ())
            waiting = self._of.pop(number, [])
            self._of[number] = [*waiting, (thing, size)]
            if len(waiting) == READY:
                dropped.append(self._of[number].pop(0))
            self._bytes += size - sum(each for _, each in dropped)
            while self._bytes > self._limit:
                longest = next(iter(self._of))
                gone = self._of.pop(longest)
                self._bytes -= sum(each for _, each in gone)
                dropped += gone
        del dropped

    def clear(self) -> None:
        """Let go of all that wait."""
        with self._lock:
            dropped, self._of, self._bytes = self._of, {}, 0
        del dropped
