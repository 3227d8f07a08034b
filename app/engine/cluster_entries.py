"""Graphs that the replicas of a cluster keep together, on however many machines.

One process knows them all: the keeper. Each replica has a mirror of what the keeper knows, which a thread keeps true,
so that to find a graph is to look into a dictionary. Who adds or removes one waits until all mirrors show it: a client
never sees which replica it met. Descriptors and data stay with the keeper until a replica is asked for the graph.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Condition, Event, Lock, Thread
from time import monotonic, time_ns
from typing import Any, NamedTuple, Protocol

from app.codecs.codec import Piece
from app.devices.device import Cancelled
from app.engine.graph_entries import NUMBERS_BYTES, Entry, Record, Use, never
from app.engine.service import DeadlineExceeded
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

log = logging.getLogger("app")

HEARTBEAT_SECONDS = 0.25
"""So often at least a replica and the keeper hear of each other."""

LEASE_SECONDS = 5.0
"""A replica of which the keeper has not heard for so long is gone: nobody waits for it, and what it locked is free. One
that gets no processor for a moment is not."""


_LEFT = ""
"""What all replicas that ended are called."""


class KeeperSilent(DeadlineExceeded):
    """The keeper did not answer in time. What it was asked for may be done nevertheless."""

    def __init__(self) -> None:
        super().__init__("The keeper of the cluster's graphs did not answer in time; ask again.")


class Told(NamedTuple):
    """What the keeper tells a replica."""

    version: int
    graphs: dict[str, tuple[int, Record]] | None
    """All that are kept, each with the version that it came with; None if that is known."""
    uses: dict[str, Use]
    """Those of all other replicas."""


class _Kept:
    """A graph, as the keeper knows it."""

    def __init__(self, version: int, record: Record, document: Any) -> None:
        self.version = version
        self.record = record
        self.document = document
        self.uses: dict[str, tuple[float, Use]] = {}
        """By replica: when it told, and what. Those that left are one, without a name."""

    def used_by(self, replicas: Iterable[str]) -> Use:
        """As of now."""
        now = monotonic()
        uses = [self.uses[name] for name in replicas if name in self.uses]
        return Use.of_all(use._replace(idle_seconds=use.idle_seconds + now - told) for told, use in uses)

    def leave(self, replica: str) -> None:
        if replica in self.uses:
            self.uses[_LEFT] = monotonic(), self.used_by([_LEFT, replica])
            del self.uses[replica]


class _Replica:
    """A replica, as the keeper knows it."""

    def __init__(self) -> None:
        self.version = -1
        self.heard = monotonic()
        self.is_listening = False

    @property
    def is_gone(self) -> bool:
        return not self.is_listening and monotonic() - self.heard > LEASE_SECONDS


class Keeper:
    """All graphs of a cluster. For one event loop; it ends with its process, and the graphs with it."""

    def __init__(self) -> None:
        self._version = time_ns()  # greater than all of a keeper before this one
        self._graphs: dict[str, _Kept] = {}
        self._replicas: dict[str, _Replica] = {}
        self._lock: tuple[str, str] | None = None
        self._changed = asyncio.Event()

    async def poll(self, name: str, version: int, uses: Mapping[str, Use]) -> Told:
        """Tell the keeper that replica `name` shows `version`, and how it used graphs; hear of the next one soon."""
        replica = self._replicas.setdefault(name, _Replica())
        replica.version, replica.is_listening = version, True
        for id_, use in uses.items():
            if id_ in self._graphs:
                self._graphs[id_].uses[name] = monotonic(), use
        self._notify()
        try:
            end = monotonic() + HEARTBEAT_SECONDS
            while version == self._version and (left := end - monotonic()) > 0:
                await self._wait(left)
        finally:
            replica.heard, replica.is_listening = monotonic(), False
        graphs = None
        if version != self._version:
            graphs = {id_: (kept.version, kept.record) for id_, kept in self._graphs.items()}
        uses_of_others = {id_: kept.used_by(kept.uses.keys() - {name}) for id_, kept in self._graphs.items()}
        return Told(self._version, graphs, uses_of_others)

    async def leave(self, name: str) -> None:
        """The replica ends. What it used stays counted."""
        self._replicas.pop(name, None)
        for kept in self._graphs.values():
            kept.leave(name)
        self._notify()

    async def acquire(self, name: str, token: str, seconds: float) -> int | None:
        """If within `seconds` the lock is the replica's, under `token`: the present version, which it is to show before
        it adds. The lock is nobody's again when that replica is gone."""
        end = monotonic() + seconds
        while self._is_held():
            if (left := end - monotonic()) <= 0:
                return None
            await self._wait(left)  # each poll ends it, and so does that of who asks
        self._lock = name, token
        return self._version

    async def release(self, token: str) -> None:
        """Give the lock back, if it is held under `token`."""
        if self._lock and self._lock[1] == token:
            self._lock = None
            self._notify()

    async def add(self, token: str, record: Record, document: Any) -> bool:
        """Whether the graph is kept now and all replicas that are there show it: not if the lock was lost."""
        if not (self._lock and self._lock[1] == token):
            return False
        self._version += 1
        self._graphs[record.id] = _Kept(self._version, record, document)
        await self._shown()
        return True

    async def remove(self, id_: str) -> bool:
        """Whether it was there. No replica shows it any more."""
        was_there = self._graphs.pop(id_, None) is not None
        if was_there:
            self._version += 1
            await self._shown()
        return was_there

    async def document(self, id_: str, version: int) -> Any:
        """What was added with the graph that came with `version`; None if that is not kept any more."""
        kept = self._graphs.get(id_)
        return kept.document if kept and kept.version == version else None

    async def alone(self, seconds: float) -> None:
        """Wait until there was no replica for so long."""
        since = monotonic()
        while monotonic() - since < seconds:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self._there():
                since = monotonic()

    async def _shown(self) -> None:
        """Wait until all replicas that are there show the present version, or a later one.

        One that does not although it is there is broken, and nobody waits for it longer than for one that is gone.
        """
        version = self._version
        self._notify()
        end = monotonic() + LEASE_SECONDS
        while any(replica.version < version for replica in self._there()) and monotonic() < end:
            await self._wait(HEARTBEAT_SECONDS)

    def _there(self) -> Collection[_Replica]:
        for name, replica in [*self._replicas.items()]:
            if replica.is_gone:
                del self._replicas[name]
        return self._replicas.values()

    def _is_held(self) -> bool:
        self._there()
        return self._lock is not None and self._lock[0] in self._replicas

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, seconds: float) -> None:
        """Until something has changed, but no longer."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


class KeeperCall(Protocol):
    """How a replica reaches the keeper."""

    def __call__(self, method: str, *arguments: object, seconds: float) -> Any:
        """What the keeper's `method` returns. From any thread. Raises KeeperSilent if that takes too long."""


class ClusterEntries:
    """Implements `Entries` for a replica of a cluster. The numbers of all others are those of worker 1.

    To add and to remove waits for all replicas, some milliseconds, and for at most LEASE_SECONDS if one has just died.
    How others used a graph is known as of HEARTBEAT_SECONDS ago.
    """

    def __init__(self, call: KeeperCall, wait_seconds: float) -> None:
        """To reach the keeper by `call`, and wait so long for it. Raises KeeperSilent."""
        self._call = call
        self._wait_seconds = wait_seconds
        self._name = uuid.uuid4().hex
        self._version = -1
        self._heard = Condition()
        self._is_silent = False
        self._entries: dict[str, tuple[int, Entry]] = {}
        self._lock = Lock()
        self._token = ""
        self._to_release: list[str] = []
        self._closed = Event()
        self._listen(wait_seconds)
        self._thread = Thread(target=self._keep_listening, name="cluster-graphs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """This replica ends."""
        self._closed.set()
        self._thread.join(LEASE_SECONDS)
        with suppress(KeeperSilent):
            self._call("leave", self._name, seconds=LEASE_SECONDS)

    def all(self) -> Mapping[str, Entry]:
        return {id_: entry for id_, (_, entry) in sorted(self._entries.items())}

    def find(self, id_: str) -> Entry | None:
        known = self._entries.get(id_)
        return known[1] if known else None

    @contextmanager
    def adding(self, cancelled: Callable[[], bool] = never) -> Iterator[None]:
        with self._lock:
            if cancelled():  # while other threads had it: each would ask on for as long, and keep a worker
                raise Cancelled
            token = uuid.uuid4().hex
            try:
                # A little longer than it waits, or it would hold what nobody takes.
                wait = self._wait_seconds
                version = self._ask("acquire", self._name, token, wait, seconds=wait + LEASE_SECONDS)
                if version is None or not self._shows(version):
                    raise KeeperSilent
                self._token = token
                yield
            finally:
                try:
                    self._ask("release", token, seconds=wait)
                except KeeperSilent:
                    self._to_release.append(token)  # else it stays this replica's, which goes on

    def add(self, record: Record, request: Iterable[Piece]) -> Entry:
        document = b"".join(request)
        if not self._ask("add", self._token, record, document, seconds=self._wait_seconds + LEASE_SECONDS):
            raise KeeperSilent
        # One that is not shown here was kept all the same: who saw it has removed it, or the keeper is not heard again.
        return self.find(record.id) or _entry(record)

    def remove(self, id_: str) -> bool:
        return bool(self._ask("remove", id_, seconds=2 * LEASE_SECONDS))

    def read(self, entry: Entry, memory: MemoryShare) -> Buffer:
        known = self._entries.get(entry.record.id)
        document: Buffer | None = None
        if known and known[1] is entry:
            document = self._ask("document", entry.record.id, known[0], seconds=self._wait_seconds)
        if document is None:
            raise FileNotFoundError(entry.record.id)
        buffer = memory.buffer(len(document))
        buffer[:] = document
        return buffer

    def _ask(self, method: str, *arguments: object, seconds: float) -> Any:
        """As `_call`, but of a keeper that is not heard nothing is asked: a worker would wait in vain."""
        if self._is_silent:
            raise KeeperSilent
        return self._call(method, *arguments, seconds=seconds)

    def _shows(self, version: int) -> bool:
        """Whether this replica soon shows `version`, or a later one.

        It does so at once, unless it was taken for gone and others did not wait for it.
        """
        with self._heard:
            return self._heard.wait_for(lambda: self._version >= version, LEASE_SECONDS)

    def _keep_listening(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen(LEASE_SECONDS)
            except KeeperSilent:
                if not self._is_silent:
                    log.warning("The keeper of the cluster's graphs does not answer; those known here are served on")
                self._is_silent = True
                self._closed.wait(HEARTBEAT_SECONDS)
            except Exception:
                log.exception("What the keeper of the cluster's graphs tells cannot be used")
                self._closed.wait(HEARTBEAT_SECONDS)

    def _listen(self, seconds: float) -> None:
        """Once, for `seconds` at most; it takes HEARTBEAT_SECONDS if there is no news. Raises KeeperSilent."""
        uses = {id_: entry.own for id_, (_, entry) in self._entries.items()}
        told: Told = self._call("poll", self._name, self._version, uses, seconds=seconds)
        if self._is_silent:
            log.warning("The keeper of the cluster's graphs answers again")
        self._is_silent = False  # before anybody sees what it told, and asks it
        if told.graphs is not None:
            known = self._entries
            self._entries = {
                id_: known[id_] if id_ in known and known[id_][0] == version else (version, _entry(record))
                for id_, (version, record) in told.graphs.items()
            }
        for id_, use in told.uses.items():
            self._entries[id_][1].tell(1, use)
        with self._heard:
            self._version = told.version
            self._heard.notify_all()
        while self._to_release:
            self._call("release", self._to_release[0], seconds=seconds)
            del self._to_release[0]


def _entry(record: Record) -> Entry:
    entry = Entry(record, memoryview(bytearray(2 * NUMBERS_BYTES)), 0)
    entry.use()  # before anybody could take it for idle
    return entry
