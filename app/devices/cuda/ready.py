"""What is kept of a dispatch for the next one like it, within a limit for all."""

import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Kept(Protocol):
    """Memory with what has been set up over it."""

    @property
    def bytes(self) -> int: ...


T = TypeVar("T", bound=Kept)

READY = 8
"""How much is kept for the next dispatches of one kernel: no more of them are under way on a GPU."""


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting(Generic[T]):
    thing: T
    place: int
    bytes: int


class Ready(Generic[T]):
    """What dispatches have set up on a device, by what it is for, for the next ones. If all of it has more than `limit`
    bytes, that goes which nobody has wanted for longest. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._of: dict[int, list[_Waiting[T]]] = {}
        """By their owners' numbers, from the one on that nobody has wanted for longest."""
        self._bytes = 0
        self._numbers = itertools.count()
        self._gone: deque[int] = deque()

    def number(self, owner: object) -> int:
        """What `owner` is called here. Once it is gone what waits for it goes, with the next `put`."""
        number = next(self._numbers)
        # The garbage collector may call this while the thread holds the lock.
        weakref.finalize(owner, self._gone.append, number).atexit = False
        return number

    def newest(self, number: int) -> T | None:
        """What was put last."""
        newest = self._of.get(number, [])[-1:]  # a copy: another thread may take it meanwhile
        return newest[0].thing if newest else None

    def take(self, number: int, place: int = 0) -> T | None:
        """What was put last for this place. Nobody else uses it until it is put back."""
        with self._lock:
            waiting = self._of.get(number, [])
            for each in reversed(waiting):
                if each.place == place:
                    waiting.remove(each)
                    self._bytes -= each.bytes
                    return each.thing
        return None

    def put(self, number: int, thing: T, place: int = 0) -> None:
        """Keep it for the next dispatch."""
        each = _Waiting(thing, place, thing.bytes)
        dropped: list[_Waiting[T]] = []  # let go of without the lock
        with self._lock:
            while self._gone:
                dropped += self._of.pop(self._gone.popleft(), ())
            self._of[number] = [*self._of.pop(number, ()), each]
            if len(self._of[number]) > READY:
                dropped.append(self._of[number].pop(0))
            self._bytes += each.bytes - sum(gone.bytes for gone in dropped)
            while self._bytes > self._limit:
                beyond = self._of.pop(next(iter(self._of)))
                self._bytes -= sum(gone.bytes for gone in beyond)
                dropped += beyond
        del dropped

    def clear(self) -> None:
        """Let go of all that waits."""
        with self._lock:
            dropped, self._of, self._bytes = self._of, {}, 0
        del dropped
