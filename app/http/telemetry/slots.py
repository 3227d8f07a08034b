"""Numbers of each worker, in memory that all share: they outlive the worker, and any other one can tell them.

Only one process at a time writes into a slot, and only whole numbers of 8 bytes at their natural alignment, which
processors store at once. So neither a reader nor whoever goes on after a SIGKILL finds half of one.
"""

import mmap
from collections.abc import Iterator
from threading import Lock
from time import time
from typing import TypeAlias

import orjson

from app.sink import Cells

Labels: TypeAlias = tuple[str, ...]
"""The values of a series' labels."""

SLOT_BYTES = 1 << 20
"""Room for some thousand series. The system has memory behind what is used only, usually a few pages."""

OVERFLOW = "overflow"
"""What each label is of the series where a family counts what has no room of its own."""

_RESERVED_BYTES = 1 << 13
"""Room for the overflow of each family, of which there are some twenty, most with fewer numbers than that."""

_WORD = 8
_LENGTH_BITS = 32


class Slot:
    """The series of one worker, to be written by it. Any of its threads may make them."""

    def __init__(self, memory: memoryview) -> None:
        self._lock = Lock()
        self._memory = memory
        self._words = memory.cast("Q")
        self._numbers: Cells = memory.cast("d")
        self._known: dict[tuple[str, Labels], Cells] = {}
        self._end = 0
        for name, labels, numbers, end in _series(memory):  # that a worker before this one made
            self._known[name, labels] = numbers
            self._end = end

    def find(self, name: str, labels: Labels, count: int) -> Cells:
        """The `count` numbers of a series, which is made if there is none."""
        with self._lock:
            return self._find(name, labels, count)

    def _find(self, name: str, labels: Labels, count: int) -> Cells:
        known = self._known.get((name, labels))
        if known is not None:
            return known
        text = orjson.dumps([name, *labels])
        begin = self._end + 1
        end = begin + _words(len(text)) + count
        is_overflow = all(label == OVERFLOW for label in labels)
        if end * _WORD > len(self._memory) - (0 if is_overflow else _RESERVED_BYTES):
            return self._find(name, (OVERFLOW,) * len(labels), count)
        # Zeros too: somebody who was killed right here may have left something.
        self._memory[begin * _WORD : end * _WORD] = text.ljust((end - begin) * _WORD, b"\0")
        self._words[self._end] = count << _LENGTH_BITS | len(text)
        self._end = end
        self._known[name, labels] = self._numbers[end - count : end]
        return self._known[name, labels]


class Slots:
    """One for each of `count` processes that are forked later."""

    def __init__(self, count: int, slot_bytes: int = SLOT_BYTES) -> None:
        memory = memoryview(mmap.mmap(-1, count * slot_bytes))  # forked processes share it
        self.start_time = time()
        """Unix time, in seconds."""
        self._memories = [memory[number * slot_bytes :][:slot_bytes] for number in range(count)]

    def own(self, number: int) -> Slot:
        """The slot for the process with this number, and for no other one at the same time."""
        return Slot(self._memories[number])

    def series(self) -> Iterator[tuple[str, Labels, Cells]]:
        """All series of all processes, to be read: family, labels, numbers."""
        for memory in self._memories:
            for name, labels, numbers, _ in _series(memory):
                yield name, labels, numbers


def _series(memory: memoryview) -> Iterator[tuple[str, Labels, Cells, int]]:
    """Family, labels, numbers, and the index of the word behind them.

    A series is a word with the lengths of what follows, the names as JSON, and the numbers. The word is written last,
    so that all series are whole, up to the first word that is 0.
    """
    words, all_numbers = memory.cast("Q"), memory.cast("d")
    at = 0
    while at < len(words) and (word := words[at]):
        count, length = word >> _LENGTH_BITS, word & ((1 << _LENGTH_BITS) - 1)
        begin = at + 1
        at = begin + _words(length) + count
        try:
            name, *labels = orjson.loads(memory[begin * _WORD :][:length])
        except orjson.JSONDecodeError:  # to other processors the word may appear before what it is about
            return
        yield name, tuple(labels), all_numbers[at - count : at], at


def _words(length: int) -> int:
    """How many it takes for so many bytes."""
    return -(-length // _WORD)
