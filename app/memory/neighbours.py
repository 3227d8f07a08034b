"""Several processes on one device: what one keeps for later, another one may need now."""

import mmap
import time
from collections.abc import Callable

MOST_DEVICES = 64
_WORD = 8
_LOOK_SECONDS = 0.01


class Neighbours:
    """Memory in which `count` processes, forked later, ask each other to give device memory back."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._words = memoryview(mmap.mmap(-1, MOST_DEVICES * (1 + count) * _WORD)).cast("Q")

    def member(self, number: int) -> "Neighbour":
        """For the process of this number."""
        width = 1 + self._count
        rows = [self._words[device * width :][:width] for device in range(MOST_DEVICES)]
        return Neighbour(rows, number)


class Neighbour:
    """One of several processes. Safe to use from several threads."""

    def __init__(self, rows: "list[memoryview[int]]", number: int) -> None:
        # Of each device: how often was asked for memory, and up to which time each process has given what it keeps.
        self._rows = rows
        self.number = number
        self._own = 1 + number

    def ask(self, device: int, seconds: float, cancelled: Callable[[], bool]) -> None:
        """Ask the others to give back what they keep of a device's memory. Returns when they have, after `seconds` at
        the latest: one may just be starting."""
        row = self._rows[device]
        # Should two ask at once, both may make the same number of it: whoever answers then answers both.
        asked = row[0] = row[0] + 1
        row[self._own] = asked
        end = time.monotonic() + seconds
        while min(row[1:]) < asked and time.monotonic() < end and not cancelled():
            time.sleep(_LOOK_SECONDS)

    def answer(self, device: int, free: Callable[[], None]) -> None:
        """If somebody asked since the last time, call `free`, which gives back what this process keeps."""
        row = self._rows[device]
        asked = row[0]
        if row[self._own] < asked:
            free()
            row[self._own] = asked
