"""Graphs that are kept, each compiled and initialized once, to be dispatched many times."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

import numpy as np
import orjson

from app.codecs.codec import Body, Decoder, Hole, Piece
from app.codecs.msgpack import MsgpackCodec
from app.contract.names import one_of
from app.contract.validation import in_words, validate
from app.contract.violations import ContractError, Hresult, Violation
from app.devices.device import Cancelled
from app.engine.graph_documents import (
    GRAPH_ID,
    GivenGraph,
    GraphDescription,
    GraphKeepRequest,
    GraphSummary,
    KeptGraphDescription,
    kernels,
    layouts,
    with_nodes,
)
from app.engine.graph_entries import Entries, Entry, Record
from app.engine.graphs import CompiledGraph, GraphCompiler, GraphRequest
from app.engine.prepared import Prepared
from app.graphs.descriptor import ConstantNode
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer
from app.settings import Settings

DESCRIBED = 24
"""Bytes that a byte of a graph's descriptor may come to, with its kernels (tests/graphs/test_graph_store.py)."""

_COPIED = 1 << 22
"""Bytes that are copied at a time, while no other thread runs."""

_FILED = MsgpackCodec()
"""How what was sent is handed to other workers."""

_HAND_OVER = "hand the graph to other workers"


class UnknownGraph(Exception):
    """No graph of this id is kept."""

    def __init__(self, id_: str, named: str | None = None) -> None:
        """`named` is the id of the graph whose name was given in place of an id, if it was."""
        if named:
            super().__init__(f"{id_} is a graph's name; here it goes by its id, {named}.")
        else:
            super().__init__(f"No graph {id_[:80]} is kept; send it again to POST /v1/graphs.")


class GraphConflict(Exception):
    """A graph cannot be kept as it is asked for, since one is kept already."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        super().__init__(violation.message)


class StoreFull(Exception):
    """There is no room for one more graph beside those that are kept, or for what other workers are told."""


@contextmanager
def room_to(share: str) -> Iterator[None]:
    """While something is shared with other workers: raises StoreFull for OSError, with what there is no room for."""
    try:
        yield
    except OSError as error:
        raise StoreFull(f"There is no room to {share}: {error.strerror}.") from None


class KeptGraph:
    """A graph that is kept, compiled in this process. Who dispatches it may go on after it is dropped."""

    def __init__(self, entry: Entry, compiled: CompiledGraph, descriptor: bytes) -> None:
        self.entry = entry
        self.compiled = compiled
        self.prepared: dict[str, Prepared] = {}
        """By the device that is asked for."""
        self._descriptor = descriptor

    @property
    def device(self) -> str:
        """Where it is dispatched if the dispatch does not say."""
        return self.entry.record.device

    def described(self) -> KeptGraphDescription:
        """What there is to know of it, but for its descriptor."""
        return KeptGraphDescription(
            **summarize(self.entry),
            inputs=layouts(self.compiled.inputs),
            outputs=layouts(self.compiled.outputs),
            scratch_bytes=self.compiled.scratch_bytes,
            kernels=kernels(self.compiled.runnable.schedule),
        )

    def described_whole(self) -> GraphDescription:
        """The same with its descriptor, which is JSON already."""
        descriptor: Any = orjson.Fragment(self._descriptor)
        return GraphDescription(**self.described(), graph=descriptor)


class GraphStore:
    """The graphs that are kept, within `max_graphs` and `max_graph_bytes`: what has no room is refused.

    Of `entries`, those of all workers, this process has compiled the ones that it was asked for. `find` and
    `called` are for the event loop's thread, all that changes something for others: it may wait for other processes.
    """

    def __init__(
        self,
        settings: Settings,
        compiler: GraphCompiler,
        prepare: Callable[[CompiledGraph, str], Prepared],
        entries: Entries,
    ) -> None:
        self._settings = settings
        self._compiler = compiler
        self._prepare = prepare
        self._entries = entries
        self.is_model: Callable[[str], bool] = lambda _: False
        """Whether a model from a file is called so. Set by who serves both."""
        self.loading: dict[str, asyncio.Task[KeptGraph]] = {}
        """Those that workers are loading for who waits, by id. For the event loop's thread."""
        self._graphs: dict[str, KeptGraph] = {}
        self._named: dict[str, str] = {}
        self._lock = Lock()

    @property
    def count(self) -> int:
        """How many graphs are kept, by all workers."""
        return len(self._entries.all())

    @property
    def memory_bytes(self) -> int:
        """What these count for within `max_graph_bytes`."""
        return sum(entry.record.memory_bytes for entry in self._entries.all().values())

    def summaries(self) -> list[GraphSummary]:
        """All of them, the oldest first."""
        return [summarize(entry) for entry in self.entries()]

    def entries(self) -> list[Entry]:
        """Those of all of them, the oldest first."""
        entries = sorted(self._entries.all().values(), key=lambda each: each.record.created)
        return [entry for entry in entries if not self._is_idle(entry)]

    def called(self, id_or_name: str) -> Entry:
        """That of the graph with this id or name, which is not in use for that. Raises UnknownGraph."""
        if GRAPH_ID.fullmatch(id_or_name):
            return self._entry(id_or_name)
        id_ = self._named.get(id_or_name)
        known = self._entries.find(id_) if id_ else None
        if known and known.record.name == id_or_name and not self._is_idle(known):
            return known
        found = {entry.record.name: entry for entry in self.entries() if entry.record.name}
        self._named = {name: entry.record.id for name, entry in found.items()}
        if id_or_name not in found:
            raise UnknownGraph(id_or_name)
        return found[id_or_name]

    def find(self, id_: str) -> KeptGraph | None:
        """The graph, or None if it must be loaded first. It is in use from now on. Raises UnknownGraph."""
        kept = self._graphs.get(id_)
        if kept and self._entries.find(id_) is kept.entry and not self._is_idle(kept.entry):
            kept.entry.use()
            return kept
        self._entry(id_).use()
        return None

    def load(self, id_: str, memory: MemoryShare, cancelled: Callable[[], bool]) -> KeptGraph:
        """The graph, compiled here if another worker took it.

        Raises UnknownGraph, LimitExceeded, MemoryExhausted, Cancelled.
        """
        with self._lock:  # whoever adds it is done then
            kept = self.find(id_)
        if kept:
            return kept
        entry = self._entry(id_)
        try:
            body = self._entries.read(entry, memory)
        except FileNotFoundError:
            raise UnknownGraph(id_) from None
        document = _FILED.decode(body, len(body), self._settings.max_depth, memory)
        request = validate(GraphKeepRequest, document)
        graph = self._read(request, _FILED, body, memory)
        compiled = self._compiled(graph, memory, cancelled)
        assert compiled.subject.id == id_, "it is the same in every process"
        kept = KeptGraph(entry, compiled.with_own_tensors(lambda each: _copy(each, memory)), _descriptor(graph))
        kept.prepared[kept.device] = self._prepare(kept.compiled, kept.device)
        with self._lock:
            self._graphs[id_] = kept
        return kept

    def keep(
        self, request: GraphKeepRequest, codec: Decoder, body: Body, memory: MemoryShare, cancelled: Callable[[], bool]
    ) -> tuple[KeptGraph, bool]:
        """The graph of `request`, whose data are in `body`, and whether it is new. What it keeps is copied.

        Raises ContractError, LimitExceeded, MemoryExhausted, GraphConflict, StoreFull, Cancelled.
        """
        return self.keep_read(request, self._read(request, codec, body, memory), memory, cancelled)

    def keep_read(
        self, request: GraphKeepRequest, graph: GraphRequest, memory: MemoryShare, cancelled: Callable[[], bool]
    ) -> tuple[KeptGraph, bool]:
        """The same where `graph` is what was read of `request`, or what its data are from somewhere else."""
        compiled = self._compiled(graph, memory, cancelled)
        id_ = compiled.subject.id
        descriptor = _descriptor(graph)
        record = Record(
            id_,
            request.name,
            request.device,
            time.time(),
            compiled.memory_bytes + DESCRIBED * len(descriptor),
            compiled.subject.capability,
        )
        with ExitStack() as adding:
            with room_to(_HAND_OVER):
                adding.enter_context(self._entries.adding(cancelled))
            if cancelled():  # while it waited, which others may make long
                raise Cancelled
            adding.enter_context(self._lock)  # not before: who loads a graph waits for no other process
            self._drop_idle()
            known = self._entries.find(id_)
            if known:
                _check_same(request, known.record)
                known.use()
                kept = self._graphs.get(id_)
                if kept and kept.entry is known:
                    return kept, False
            else:
                self._check(record)
            own = compiled.with_own_tensors(lambda each: _copy(each, memory))
            prepared = self._prepare(own, request.device)
            with room_to(_HAND_OVER):
                entry = known or self._entries.add(record, _filed(request, graph))
            kept = self._graphs[id_] = KeptGraph(entry, own, descriptor)
            kept.prepared[request.device] = prepared
            return kept, known is None

    def drop(self, id_: str) -> None:
        """Raises UnknownGraph."""
        self._entry(id_)
        self._graphs.pop(id_, None)
        if not self._entries.remove(id_):
            raise UnknownGraph(id_)

    def tend(self) -> None:
        """Drop what is idle, and what other workers dropped."""
        self._drop_idle()
        with self._lock:  # or one that is kept again meanwhile would go with the one before
            for id_, kept in list(self._graphs.items()):
                if self._entries.find(id_) is not kept.entry:
                    self._graphs.pop(id_, None)

    def _entry(self, id_: str) -> Entry:
        if not GRAPH_ID.fullmatch(id_):
            raise UnknownGraph(id_, next((each.record.id for each in self.entries() if each.record.name == id_), None))
        entry = self._entries.find(id_)
        if entry is None or self._is_idle(entry):
            raise UnknownGraph(id_)
        return entry

    def _is_idle(self, entry: Entry) -> bool:
        most = self._settings.graph_seconds
        return 0 < most <= entry.idle_seconds

    def _drop_idle(self) -> None:
        if self._settings.graph_seconds:
            for id_, entry in self._entries.all().items():
                if self._is_idle(entry):
                    self._graphs.pop(id_, None)
                    self._entries.remove(id_)

    @staticmethod
    def _read(request: GraphKeepRequest, codec: Decoder, body: Body, memory: MemoryShare) -> GraphRequest:
        return GivenGraph(request.graph, request.feature_level, request.inputs, to_keep=True).read(codec, body, memory)

    def _compiled(self, graph: GraphRequest, memory: MemoryShare, cancelled: Callable[[], bool]) -> CompiledGraph:
        compiled = self._compiler.compile(graph, memory.buffer, cancelled)
        memory.take(compiled.packed_bytes)
        owned = compiled.runnable.schedule.owned
        violations = [
            Violation(
                ("inputs", name),
                f"{in_words(name)} is not OWNED_BY_DML"
                + (": bind it in each dispatch." if name in compiled.inputs else ", nor an input of the graph."),
                name,
                one_of(owned),
            )
            for name in graph.inputs
            if name not in owned
        ]
        if violations:
            raise ContractError(violations, Hresult.E_INVALIDARG)
        return compiled

    def _check(self, record: Record) -> None:
        """Raises GraphConflict, LimitExceeded, StoreFull."""
        most, most_bytes = self._settings.max_graphs, self._settings.max_graph_bytes
        if record.memory_bytes > most_bytes:
            raise LimitExceeded(
                "max_graph_bytes", "Bytes of this graph to keep", record.memory_bytes, most_bytes, ("graph",)
            )
        others = [entry.record for entry in self._entries.all().values()]
        for other in others:
            if record.name is not None and other.name == record.name:
                message = f"The graph {other.id} has the name {record.name}; drop it first, or give another name."
                raise GraphConflict(Violation(("name",), message, record.name, None))
        if record.name is not None and self.is_model(record.name):
            message = f"A model from a file has the name {record.name}; give another name."
            raise GraphConflict(Violation(("name",), message, record.name, None))
        used = sum(other.memory_bytes for other in others)
        for limit, what, in_use, wanted, allowed in (
            ("max_graphs", "Graphs", len(others), 1, most),
            ("max_graph_bytes", "Bytes of graphs", used, record.memory_bytes, most_bytes),
        ):
            if in_use + wanted > allowed:
                raise StoreFull(
                    f"{what}: {in_use} in use and {wanted} more wanted, where {limit} allows {allowed}; "
                    "DELETE /v1/graphs/{id} drops a graph."
                )


def summarize(entry: Entry) -> GraphSummary:
    record = entry.record
    return GraphSummary(
        id=record.id,
        name=record.name,
        device=record.device,
        created=record.created,
        dispatches=entry.dispatches,
        memory_bytes=record.memory_bytes,
        capability=record.capability,
    )


def _check_same(request: GraphKeepRequest, known: Record) -> None:
    """That nothing is asked for that the graph, which is kept already, does not have. Raises GraphConflict."""
    for field, has in (("name", known.name), ("device", known.device)):
        given = getattr(request, field)
        if field in request.model_fields_set and given != has:
            stated = f"is kept already, with the {field} {has}" if has else f"is kept already, without a {field}"
            message = f"The graph {known.id} {stated}; drop it first to change that."
            raise GraphConflict(Violation((field,), message, given, has))


def _descriptor(graph: GraphRequest) -> bytes:
    """JSON of what was sent, with the sizes of constants in place of their data."""
    sizes = {index: {"DataSize": data.nbytes} for index, data in graph.constants.items()}
    return orjson.dumps(with_nodes(graph.desc, sizes))


def _filed(request: GraphKeepRequest, graph: GraphRequest) -> Iterator[Piece]:
    """`request` in MessagePack, in pieces."""
    document = request.model_dump(exclude_unset=True, exclude={"graph", "inputs"})
    data: list[Buffer] = []

    def hole(buffer: Buffer) -> Hole:
        data.append(buffer)
        return Hole("data")

    nodes = enumerate(request.graph.Nodes)
    holes = {index: {"Data": hole(graph.constants[index])} for index, node in nodes if isinstance(node, ConstantNode)}
    document["graph"] = with_nodes(request.graph, holes)
    document["inputs"] = {name: hole(each) for name, each in graph.inputs.items()}
    ordered = iter(data)
    for piece in _FILED.encode(document):
        if isinstance(piece, Hole):
            yield from _FILED.encode_data(next(ordered)).pieces
        else:
            yield piece


def _copy(tensor: Buffer, memory: MemoryShare) -> Buffer:
    """Memory of its own with the same bytes. Raises RequestOver."""
    made = np.empty(tensor.nbytes, np.uint8).data  # where a bytearray would first be filled with zeros, in one call
    for start in range(0, tensor.nbytes, _COPIED):
        memory.ensure_open()
        made[start : start + _COPIED] = tensor[start : start + _COPIED]
    return made
