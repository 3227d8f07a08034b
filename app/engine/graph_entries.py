"""Which graphs are kept: in one process, or in several that share a folder."""

import fcntl
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import BinaryIO, NamedTuple, Protocol

import orjson

from app.codecs.codec import Piece
from app.devices.device import Cancelled
from app.engine.dispatch import GraphCapability
from app.engine.graph_documents import GRAPH_ID
from app.engine.inference_counts import NUMBERS, Counted, Took, count, together
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

_WORDS = 2 + NUMBERS
"""What a worker tells of its use of a graph: how many dispatches, when the last use was, and what it counts of
inferences."""

NUMBERS_BYTES = 8 * _WORDS
"""Bytes of these."""

_LENGTH = struct.Struct("<Q")

_AGAIN_SECONDS = 0.001


def never() -> bool:
    """For those who wait however long it takes."""
    return False


class Record(NamedTuple):
    """What all workers know of a kept graph. `created` is Unix time in seconds."""

    id: str
    name: str | None
    device: str
    created: float
    memory_bytes: int
    capability: GraphCapability


class Use(NamedTuple):
    """What one worker, or several together, tell of their use of a graph."""

    dispatches: int
    idle_seconds: float
    inferences: tuple[float, ...]
    """What is counted of them (inference_counts.py)."""

    @classmethod
    def of_all(cls, uses: Iterable["Use"]) -> "Use":
        """Of those that `uses` are of, together."""
        each = list(uses)
        idle_seconds = min((use.idle_seconds for use in each), default=math.inf)
        return cls(sum(use.dispatches for use in each), idle_seconds, together(use.inferences for use in each))


class Entry:
    """A graph that is kept, from when it was sent until it is dropped. Each worker writes its own numbers only."""

    def __init__(self, record: Record, numbers: Buffer, worker: int) -> None:
        self.record = record
        self._counts = numbers.cast("Q")
        self._times = numbers.cast("d")  # of the clock that all processes share
        self._place = _WORDS * worker

    def use(self) -> None:
        """Note that somebody wants it now."""
        self._times[self._place + 1] = monotonic()

    def count(self) -> None:
        """Note that it was dispatched. For one thread."""
        self._counts[self._place] += 1
        self.use()

    def infer(self, ns: int, took: Took | None) -> None:
        """Count an inference of so many nanoseconds, which failed if its parts `took` None. For one thread."""
        count(self._times[self._place + 2 :], ns, took)
        if took is not None:
            self.count()

    @property
    def own(self) -> Use:
        """What this worker has to tell of it."""
        start, end = self._place, self._place + _WORDS
        return Use(self._counts[start], monotonic() - self._times[start + 1], tuple(self._times[start + 2 : end]))

    def tell(self, worker: int, use: Use) -> None:
        """Write the numbers of a worker of another machine, which cannot do it itself."""
        start = _WORDS * worker
        self._counts[start] = use.dispatches
        self._times[start + 1] = monotonic() - use.idle_seconds
        for place, number in enumerate(use.inferences, start + 2):
            self._times[place] = number

    @property
    def inferences(self) -> Counted:
        """Those of all workers."""
        return Counted.by(self._times[start + 2 : start + _WORDS] for start in range(0, len(self._times), _WORDS))

    @property
    def dispatches(self) -> int:
        """By all workers."""
        return sum(self._counts[::_WORDS])

    @property
    def idle_seconds(self) -> float:
        """Since the last use by any worker."""
        return monotonic() - max(self._times[1::_WORDS])


class Entries(Protocol):
    """The graphs that are kept, by id. `all` and `find` are quick enough for an event loop."""

    def all(self) -> Mapping[str, Entry]:
        """As of now, in the order of their ids."""

    def find(self, id_: str) -> Entry | None:
        """The same object as long as the graph is kept, and another one if it is kept again."""

    def adding(self, cancelled: Callable[[], bool] = never) -> AbstractContextManager[object]:
        """While nobody else, in any process, adds one. Entering raises OSError if nobody can be told of it, and
        Cancelled where that waits for another process and `cancelled()` turns true."""

    def add(self, record: Record, request: Iterable[Piece]) -> Entry:
        """Add one that is not there, within `adding`. `request` is what was sent, for other workers. Raises OSError."""

    def remove(self, id_: str) -> bool:
        """Whether it was there."""

    def read(self, entry: Entry, memory: MemoryShare) -> Buffer:
        """What `add` was given as `request`, charged to `memory`. Raises FileNotFoundError if it was removed."""


class LocalEntries:
    """Implements `Entries` for the only process there is, which never asks for what was sent."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._lock = Lock()

    def all(self) -> Mapping[str, Entry]:
        return dict(sorted(self._entries.copy().items()))

    def find(self, id_: str) -> Entry | None:
        return self._entries.get(id_)

    def adding(self, cancelled: Callable[[], bool] = never) -> AbstractContextManager[object]:
        return self._lock

    def add(self, record: Record, request: Iterable[Piece]) -> Entry:
        entry = Entry(record, memoryview(bytearray(NUMBERS_BYTES)), 0)
        entry.use()  # before anybody could take it for idle
        self._entries[record.id] = entry
        return entry

    def remove(self, id_: str) -> bool:
        return self._entries.pop(id_, None) is not None

    def read(self, entry: Entry, memory: MemoryShare) -> Buffer:
        raise FileNotFoundError(entry.record.id)


class SharedEntries:
    """Implements `Entries` for worker number `worker` of `workers`: a graph is a file in `folder`, named by its id.

    A file begins with the numbers of the workers, which all of them map. Then come the record and what was sent. It is
    written beside and renamed, so that it is whole as soon as it is there. As long as it is mapped no other file gets
    its inode number, by which a graph that was dropped and sent again is told from the one before.
    """

    def __init__(self, folder: Path, workers: int, worker: int) -> None:
        self._folder = folder
        self._numbers_bytes = workers * NUMBERS_BYTES
        self._worker = worker
        self._known: dict[str, tuple[tuple[int, int], Entry]] = {}
        self._lock = Lock()

    def all(self) -> Mapping[str, Entry]:
        ids = sorted(name for name in _names(self._folder) if GRAPH_ID.fullmatch(name))
        for id_ in self._known.keys() - set(ids):
            self._known.pop(id_, None)
        found = {id_: self.find(id_) for id_ in ids}
        return {id_: entry for id_, entry in found.items() if entry}

    def find(self, id_: str) -> Entry | None:
        try:
            status = os.stat(f"{self._folder}/{id_}")
        except FileNotFoundError:
            self._known.pop(id_, None)
            return None
        known = self._known.get(id_)
        if known and known[0] == _mark(status):
            return known[1]
        with self._lock:  # so that two threads do not make two
            return self._map(id_)

    @contextmanager
    def adding(self, cancelled: Callable[[], bool] = never) -> Iterator[None]:
        with (self._folder / "lock").open("ab") as file:
            while not _is_locked(file):  # until it is closed, or this process gone
                if cancelled():  # a worker that was stopped would keep this thread, and others here, for as long
                    raise Cancelled
                sleep(_AGAIN_SECONDS)
            yield

    def add(self, record: Record, request: Iterable[Piece]) -> Entry:
        numbers, described = bytearray(self._numbers_bytes), orjson.dumps([*record])
        Entry(record, memoryview(numbers), self._worker).use()
        beside = self._folder / "new"  # as for any other: whoever is killed leaves it to the next one
        try:
            with beside.open("w+b") as file:
                file.write(numbers)
                file.write(_LENGTH.pack(len(described)))
                file.write(described)
                for piece in request:
                    file.write(piece)
                file.flush()
                mark, entry = self._mapped(file, record)
            with self._lock:  # whoever sees it here meets this entry
                beside.rename(self._folder / record.id)
                self._known[record.id] = mark, entry
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        return entry  # which another worker may have removed by now

    def remove(self, id_: str) -> bool:
        self._known.pop(id_, None)
        try:
            os.unlink(self._folder / id_)
        except FileNotFoundError:
            return False
        return True

    def read(self, entry: Entry, memory: MemoryShare) -> Buffer:
        with (self._folder / entry.record.id).open("rb") as file:
            file.seek(self._numbers_bytes)
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            start = file.seek(length, os.SEEK_CUR)
            buffer = memory.buffer(os.fstat(file.fileno()).st_size - start)
            file.readinto(buffer)
            return buffer

    def _map(self, id_: str) -> Entry | None:
        try:
            with (self._folder / id_).open("r+b") as file:
                known = self._known.get(id_)
                if known and known[0] == _mark(os.fstat(file.fileno())):
                    return known[1]
                file.seek(self._numbers_bytes)
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                made = self._known[id_] = self._mapped(file, Record(*orjson.loads(file.read(length))))
        except FileNotFoundError:
            return None
        return made[1]

    def _mapped(self, file: BinaryIO, record: Record) -> tuple[tuple[int, int], Entry]:
        numbers = memoryview(mmap.mmap(file.fileno(), self._numbers_bytes))
        return _mark(os.fstat(file.fileno())), Entry(record, numbers, self._worker)


def _is_locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mark(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from all others that are there."""
    return status.st_dev, status.st_ino


def _names(folder: Path) -> list[str]:
    """In `folder`, which somebody may have removed, and with it all that was kept."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
