"""Graphs that are kept, by the store itself: tests/graphs/test_graph_store.py asks for the same over HTTP."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import orjson
import pytest

from app.codecs.msgpack import MsgpackCodec
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.device import Cancelled
from app.engine import graph_entries, graph_store
from app.engine.graph_documents import GivenGraph, GraphKeepRequest
from app.engine.graph_entries import Entry, SharedEntries
from app.engine.graph_store import DESCRIBED, GraphConflict, KeptGraph, StoreFull, UnknownGraph
from app.engine.graphs import CompiledGraph
from app.engine.service import Service
from app.http.core.graphs import kept_graph
from app.memory.accounts import LimitExceeded
from app.settings import Settings
from tests.engine.clock import Clock
from tests.graphs.documents import OWNED, add, between, graph, into, node, out, relu, tensor

CODEC = MsgpackCodec()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(graph_entries, "monotonic", lambda: made.now)
    monkeypatch.setattr("app.engine.graph_store.time.time", lambda: made.now)
    return made


@pytest.fixture
def service(clock: Clock) -> Iterator[Service]:
    made = service_with()
    yield made
    made.close()


def service_with(folder: Path | None = None, worker: int = 0, threads: int = 1, **settings: Any) -> Service:
    entries = SharedEntries(folder, 2, worker) if folder else None
    return Service(Settings(threads=threads, llvm=False, gpus="none", **settings), entries)


def relus(size: int = 1) -> dict[str, Any]:
    """A graph that differs by `size` from others."""
    return graph([relu(desc=tensor(sizes=(1, size)))], [into(0, 0)], [out(0)])


def sums() -> dict[str, Any]:
    """Of its input x, which is repeated, with a constant and a tensor that it owns."""
    one = tensor(sizes=(1, 3))
    return graph(
        [
            add("one", a=one, b=one),
            {"Type": "CONSTANT", "Name": "constant", "Data": np.array([1, 2, 3], np.float32).tobytes()},
            add("two", a=one, b=OWNED | one),
        ],
        [into("x", "one", "ATensor"), into("own", "two", "BTensor")],
        [out("two", "y", "OutputTensor")],
        [between("constant", "one", "BTensor", "Data"), between("one", "two", "ATensor", "OutputTensor")],
    )


X = np.array([100, 200, 300], np.float32)
OWN = np.array([0.1, 0.2, 0.3], np.float32)
SUMS: list[float] = (X + np.array([1, 2, 3], np.float32) + OWN).tolist()


def sent(document: dict[str, Any], **members: Any) -> memoryview:
    return memoryview(bytearray(msgpack.packb({"graph": document} | members)))


def keep_sent(service: Service, body: memoryview) -> tuple[KeptGraph, bool]:
    with service.memory.open() as memory:
        request = validate(GraphKeepRequest, CODEC.decode(body, len(body), service.settings.max_depth, memory))
        return service.graphs.keep(request, CODEC, body, memory, lambda: False)


def keep(service: Service, document: dict[str, Any], **members: Any) -> tuple[KeptGraph, bool]:
    return keep_sent(service, sent(document, **members))


def load(service: Service, id_: str) -> KeptGraph:
    with service.memory.open() as memory:
        return service.graphs.load(id_, memory, lambda: False)


def id_of(kept: KeptGraph) -> str:
    return kept.entry.record.id


def ids(service: Service) -> list[str]:
    return [summary["id"] for summary in service.graphs.summaries()]


def result(service: Service, kept: KeptGraph) -> list[float]:
    """Of `sums` for X."""
    x = memoryview(X.tobytes())
    with service.memory.open() as memory:
        (output,) = service.execute_here(kept.prepared[kept.device], {"x": x}, memory).outputs.values()
        found: list[float] = np.frombuffer(output, np.float32).tolist()
        return found


def test_they_are_counted_and_listed_the_oldest_first(service: Service, clock: Clock) -> None:
    kept = []
    for size in (3, 1, 2):
        clock.now += 1
        one, is_new = keep(service, relus(size), name=f"relu{size}", device="numpy")
        assert is_new
        kept.append(one)
    store = service.graphs
    assert store.count == 3
    assert store.entries() == [each.entry for each in kept]
    assert store.memory_bytes == sum(each.entry.record.memory_bytes for each in kept) > 0
    first, *_ = store.summaries()
    kept[0].entry.count()
    (again, *_) = store.summaries()
    assert (first["dispatches"], again["dispatches"]) == (0, 1)
    assert again == {
        "id": id_of(kept[0]),
        "name": "relu3",
        "device": "numpy",
        "created": 1001.0,
        "dispatches": 1,
        "memory_bytes": kept[0].entry.record.memory_bytes,
        "capability": kept[0].compiled.subject.capability,
    }
    store.drop(id_of(kept[1]))
    assert ids(service) == [id_of(kept[0]), id_of(kept[2])]
    assert id_of(kept[1]) not in store._graphs, "what it keeps is given back"


def test_one_that_is_known_is_kept_once(service: Service, clock: Clock) -> None:
    kept, is_new = keep(service, relus())
    clock.now += 5
    again, is_new_again = keep(service, relus())
    assert (is_new, is_new_again, again, service.graphs.count) == (True, False, kept, 1)
    assert kept.entry.idle_seconds == 0, "somebody wants it"


def test_large_tensors_are_copied_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time somebody looks whether the copy is still wanted."""
    monkeypatch.setattr(graph_store, "_COPIED", 3)
    looked: list[bool] = []
    memory: Any = SimpleNamespace(ensure_open=lambda: looked.append(True))
    for data in (b"", b"abc", b"abcdefgh"):
        looked.clear()
        assert bytes(graph_store._copy(memoryview(data), memory)) == data
        assert len(looked) == math.ceil(len(data) / 3)


def test_what_it_keeps_is_its_own(service: Service) -> None:
    body = sent(sums(), inputs={"own": OWN.tobytes()})
    kept, _ = keep_sent(service, body)
    assert result(service, kept) == SUMS
    body[:] = bytes(len(body))
    assert result(service, kept) == SUMS
    found = service.graphs.find(id_of(kept))
    assert found is kept
    assert service.memory.used == 0


def test_one_is_called_by_its_id_or_its_name(service: Service, clock: Clock) -> None:
    store = service.graphs
    kept, _ = keep(service, relus(1), name="mine")
    other, _ = keep(service, relus(2))
    clock.now += 5
    for _ in range(2):
        assert store.called("mine") is store.called(id_of(kept)) is kept.entry
        assert store.called(id_of(other)) is other.entry
    assert kept.entry.idle_seconds == 5, "it is not in use for that"
    with pytest.raises(UnknownGraph, match=r"No graph yours is kept; send it again to POST /v1/graphs\."):
        store.called("yours")
    store.drop(id_of(kept))
    for name in ("mine", id_of(kept)):
        with pytest.raises(UnknownGraph):
            store.called(name)
    again, _ = keep(service, relus(3), name="mine")
    assert store.called("mine") is again.entry
    store.drop(id_of(again))
    keep(service, relus(3), name="yours")
    with pytest.raises(UnknownGraph):
        store.called("mine")


def test_one_that_is_not_kept(service: Service) -> None:
    store, unknown = service.graphs, "0" * 32
    for act in (store.find, store.called, store.drop):
        for id_ in (unknown, "../" + unknown, unknown + "\n"):
            with pytest.raises(UnknownGraph):
                act(id_)
    with pytest.raises(UnknownGraph):
        load(service, unknown)
    assert len(str(UnknownGraph("x" * 1000))) < 150


def test_who_asks_for_it_uses_it(service: Service, clock: Clock) -> None:
    kept, _ = keep(service, relus())
    clock.now += 5
    assert service.graphs.find(id_of(kept)) is kept
    assert kept.entry.idle_seconds == 0


class TestIdle:
    @pytest.fixture
    def service(self, clock: Clock) -> Iterator[Service]:
        made = service_with(graph_seconds=10, max_graphs=2)
        yield made
        made.close()

    def test_what_is_idle_is_none(self, service: Service, clock: Clock) -> None:
        store = service.graphs
        kept, _ = keep(service, relus(1), name="mine")
        clock.now += 9
        assert store.called("mine") is kept.entry
        used, _ = keep(service, relus(2), name="used")
        clock.now += 1
        for act in (store.find, store.called, store.drop):
            with pytest.raises(UnknownGraph):
                act(id_of(kept))
        with pytest.raises(UnknownGraph):
            load(service, id_of(kept))
        with pytest.raises(UnknownGraph):
            store.called("mine")
        assert (ids(service), store.count) == ([id_of(used)], 2)
        store.tend()
        assert store.count == 1
        assert list(store._graphs) == [id_of(used)]

    def test_it_makes_room(self, service: Service, clock: Clock) -> None:
        for size in (1, 2):
            keep(service, relus(size))
        clock.now += 9.5
        with pytest.raises(StoreFull):
            keep(service, relus(3))
        clock.now += 0.5
        kept, is_new = keep(service, relus(1))
        assert is_new, "the one before was idle"
        assert ids(service) == [id_of(kept)] == list(service.graphs._graphs)

    def test_it_may_be_for_less_than_a_second(self, clock: Clock) -> None:
        service = service_with(graph_seconds=0.5)
        kept, _ = keep(service, relus())
        clock.now += 0.49
        assert service.graphs.called(id_of(kept)) is kept.entry
        clock.now += 0.5
        service.graphs.tend()
        assert service.graphs.count == 0
        service.close()

    def test_it_stays_if_nothing_is_said_of_that(self, clock: Clock) -> None:
        service = service_with(graph_seconds=0)
        kept, _ = keep(service, relus())
        clock.now += 1e9
        service.graphs.tend()
        assert service.graphs.find(id_of(kept)) is kept
        service.close()


def test_one_that_is_kept_again_while_the_one_before_is_let_go_of_stays(service: Service) -> None:
    kept, _ = keep(service, relus())
    id_, store = id_of(kept), service.graphs
    store._entries.remove(id_)  # as another process does
    find, again = store._entries.find, threading.Thread(target=lambda: keep(service, relus()))

    def find_slowly(wanted: str) -> Entry | None:
        if threading.current_thread() is not again and not again.ident:
            entry = find(wanted)
            again.start()
            again.join(0.3)
            return entry
        return find(wanted)

    store._entries.find = find_slowly  # type: ignore[method-assign, assignment]
    store.tend()
    again.join()
    assert store.find(id_)


def test_one_that_nobody_waits_for_any_more_is_not_kept(service: Service) -> None:
    """Its client was told so while others added theirs."""
    body, given_up = sent(relus()), False

    @contextmanager
    def adding(_: Callable[[], bool]) -> Iterator[None]:
        nonlocal given_up
        given_up = True
        yield

    service.graphs._entries.adding = adding  # type: ignore[method-assign, assignment]
    with service.memory.open() as memory:
        request = validate(GraphKeepRequest, CODEC.decode(body, len(body), service.settings.max_depth, memory))
        with pytest.raises(Cancelled):
            service.graphs.keep(request, CODEC, body, memory, lambda: given_up)
    assert service.graphs.count == 0


class TestConflicts:
    @pytest.mark.parametrize(
        ("first", "again", "field", "message"),
        [
            ({"name": "a"}, {"name": "b"}, "name", "is kept already, with the name a; drop it first to change that."),
            ({}, {"name": "b"}, "name", "is kept already, without a name; drop it first to change that."),
            ({"device": "numpy"}, {"device": "auto"}, "device", "is kept already, with the device numpy; drop it"),
        ],
    )
    def test_of_what_is_kept_with_what_is_asked_for(
        self, service: Service, first: dict[str, str], again: dict[str, str], field: str, message: str
    ) -> None:
        kept, _ = keep(service, relus(), **first)
        with pytest.raises(GraphConflict) as conflict:
            keep(service, relus(), **again)
        violation = conflict.value.violation
        assert message in violation.message == str(conflict.value)
        assert violation.message.startswith(f"The graph {id_of(kept)} is")
        assert (violation.path, violation.given, violation.allowed) == ((field,), again[field], first.get(field))

    def test_what_is_the_same_or_not_asked_for_is_none(self, service: Service) -> None:
        for fields in ({"name": "a", "device": "numpy"}, {"name": "a"}, {"device": "numpy"}, {}, {"name": None}):
            _, is_new = keep(service, relus(), **fields)
            assert is_new == (len(fields) == 2)

    def test_no_two_have_one_name(self, service: Service) -> None:
        kept, _ = keep(service, relus(1), name="mine")
        keep(service, relus(2))
        keep(service, relus(3))
        with pytest.raises(GraphConflict) as conflict:
            keep(service, relus(4), name="mine")
        violation = conflict.value.violation
        assert violation.message == f"The graph {id_of(kept)} has the name mine; drop it first, or give another name."
        assert (violation.path, violation.given, violation.allowed) == (("name",), "mine", None)
        assert service.graphs.count == 3


class TestBounds:
    def test_how_many(self, clock: Clock) -> None:
        service = service_with(max_graphs=2)
        for size in (1, 2):
            keep(service, relus(size))
        with pytest.raises(StoreFull) as refusal:
            keep(service, relus(3))
        assert str(refusal.value) == (
            "Graphs: 2 in use and 1 more wanted, where max_graphs allows 2; DELETE /v1/graphs/{id} drops a graph."
        )
        service.close()

    def test_how_large(self, clock: Clock) -> None:
        with_room = service_with()
        kept, _ = keep(with_room, relus())
        size = kept.entry.record.memory_bytes
        assert size >= DESCRIBED
        with_room.close()
        service = service_with(max_graph_bytes=2 * size)
        for each in (1, 2):
            keep(service, relus(each))
        with pytest.raises(StoreFull) as refusal:
            keep(service, relus(3))
        assert f"Bytes of graphs: {2 * size} in use and {size} more wanted, where max_graph_bytes" in str(refusal.value)
        service.close()
        service = service_with(max_graph_bytes=size)
        keep(service, relus())
        service.close()
        service = service_with(max_graph_bytes=size - 1)
        with pytest.raises(LimitExceeded, match=f"Bytes of this graph to keep: {size}, where max_graph_bytes") as over:
            keep(service, relus())
        assert over.value.path == ("graph",)
        assert service.memory.used == 0
        service.close()


def test_inputs_that_are_not_owned(service: Service) -> None:
    with pytest.raises(ContractError) as refusal:
        keep(service, sums(), inputs={"own": OWN.tobytes(), "x": bytes(12)})
    (violation,) = refusal.value.violations
    assert (violation.path, violation.given, violation.allowed) == (("inputs", "x"), "x", ["own"])
    assert violation.message == "x is not OWNED_BY_DML: bind it in each dispatch."
    assert service.graphs.count == 0
    with pytest.raises(ContractError, match="z is not OWNED_BY_DML, nor an input of the graph"):
        keep(service, sums(), inputs={"own": OWN.tobytes(), "z": bytes(4)})


def product(size: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A graph that multiplies by a matrix that it owns, and this matrix."""
    gemm = {
        "ATensor": tensor(sizes=(1, size)),
        "BTensor": tensor(sizes=(size, size)) | {"Flags": OWNED["Flags"]},
        "TransA": "NONE",
        "TransB": "NONE",
        "Alpha": 1,
        "Beta": 0,
    }
    document = graph(
        [node("GEMM", "gemm", **gemm)],
        [into("x", "gemm", "ATensor"), into("w", "gemm", "BTensor")],
        [out("gemm", "y", "OutputTensor")],
    )
    return document, {"w": bytes(4 * size * size)}


def test_matrices_that_are_packed_are_charged_to_who_has_them_kept() -> None:
    size = 256
    document, inputs = product(size)
    held = []
    for llvm in (False, True):
        service = Service(Settings(threads=1, gpus="none", llvm=llvm))
        body = sent(document, inputs=inputs)
        with service.memory.open() as memory:
            request = validate(GraphKeepRequest, CODEC.decode(body, len(body), service.settings.max_depth, memory))
            kept, _ = service.graphs.keep(request, CODEC, body, memory, lambda: False)
            held.append(memory.held - kept.compiled.packed_bytes)
        service.close()
    assert kept.compiled.packed_bytes >= 4 * size * size
    assert held[0] == held[1]


def test_matrices_that_are_packed_are_charged_to_a_dispatch_of_the_graph_itself() -> None:
    size = 256
    document, inputs = product(size)
    service = Service(Settings(threads=1, gpus="none"))
    body = sent(document, inputs=inputs)
    with service.memory.open() as memory:
        request = validate(GraphKeepRequest, CODEC.decode(body, len(body), service.settings.max_depth, memory))
        given = GivenGraph(request.graph, request.feature_level, request.inputs, to_keep=True).read(CODEC, body, memory)
        before = memory.held
        compiled = service.compile(given, memory, lambda: False)
        assert memory.held - before >= compiled.packed_bytes >= 4 * size * size
    service.close()


def test_to_time_its_kernels_takes_matrices_of_their_own() -> None:
    """A known matrix is packed once more, which is charged to who asks."""
    size = 256
    document, inputs = product(size)
    service = Service(Settings(threads=1, gpus="none"))
    kept, _ = keep(service, document, inputs=inputs)
    packed = kept.compiled.packed_bytes
    assert packed >= 4 * size * size
    with service.memory.open() as memory:
        times = service.graph_times(kept.compiled, "numpy", memory, lambda: False)
        assert packed <= memory.held < 2 * packed
    assert [(len(kernel["nodes"]), kernel["seconds"] > 0) for kernel in times["kernels"]] == [(1, True)]
    assert (times["device"], times["kind"], times["fallback_reason"]) == ("numpy", "cpu", None)
    assert service.memory.used == 0
    service.close()


class TestSeveralProcesses:
    @pytest.fixture
    def two(self, clock: Clock, tmp_path: Path) -> Iterator[tuple[Service, Service]]:
        services = service_with(tmp_path, 0), service_with(tmp_path, 1)
        yield services
        for each in services:
            each.close()

    def test_what_one_has_taken_the_other_compiles(self, two: tuple[Service, Service], clock: Clock) -> None:
        first, second = two
        kept, _ = keep(first, sums(), inputs={"own": OWN.tobytes()}, device="numpy", name="mine")
        clock.now += 5
        assert ids(second) == [id_of(kept)]
        assert second.graphs.find(id_of(kept)) is None
        assert kept.entry.idle_seconds == 0, "somebody wants it"
        loaded = load(second, id_of(kept))
        assert loaded is load(second, id_of(kept)) is second.graphs.find(id_of(kept))
        assert (loaded.device, list(loaded.prepared)) == ("numpy", ["numpy"])
        assert result(second, loaded) == result(first, kept) == SUMS
        assert orjson.loads(orjson.dumps(loaded.described_whole())) == orjson.loads(
            orjson.dumps(kept.described_whole())
        )
        assert second.memory.used == 0

    def test_it_is_compiled_once_for_all_who_wait(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = service_with(tmp_path, 0), service_with(tmp_path, 1, threads=4)
        id_, compile_, compiled = (
            id_of(keep(first, sums(), inputs={"own": OWN.tobytes()})[0]),
            second.compiler.compile,
            [],
        )

        def slowly(*arguments: Any) -> CompiledGraph:
            compiled.append(id_)
            time.sleep(0.1)
            return compile_(*arguments)

        async def wanted() -> list[KeptGraph]:
            return await asyncio.gather(*(kept_graph(second, id_) for _ in range(4)))

        monkeypatch.setattr(second.compiler, "compile", slowly)
        assert len({*asyncio.run(wanted())}) == len(compiled) == 1
        assert asyncio.run(wanted())[0] is second.graphs.find(id_)
        assert (second.graphs.loading, second.memory.used) == ({}, 0)
        second.graphs.drop(id_)
        with pytest.raises(UnknownGraph):
            asyncio.run(kept_graph(second, id_))
        for each in (first, second):
            each.close()

    def test_who_waits_for_the_other_to_keep_one_keeps_nobody_from_those_that_there_are(
        self, two: tuple[Service, Service]
    ) -> None:
        first, second = two
        id_ = id_of(keep(first, relus())[0])
        body = sent(sums(), inputs={"own": OWN.tobytes()})

        def wait(stopped: threading.Event) -> None:
            with second.memory.open() as memory:
                request = validate(GraphKeepRequest, CODEC.decode(body, len(body), 32, memory))
                second.graphs.keep(request, CODEC, body, memory, stopped.is_set)

        ends = [threading.Event() for _ in range(3)]
        with ThreadPoolExecutor(4) as pool, first.graphs._entries.adding():
            try:
                waiting = [pool.submit(wait, stopped) for stopped in ends]
                time.sleep(0.2)  # in which they come to that
                assert id_of(pool.submit(load, second, id_).result(10)) == id_
                pool.submit(second.graphs.tend).result(10)
                for number in (1, 2, 0):  # whoever of them came first
                    ends[number].set()
                    with pytest.raises(Cancelled):
                        waiting[number].result(10)
            finally:
                for stopped in ends:
                    stopped.set()

    def test_what_is_sent_to_the_other_is_the_same(self, two: tuple[Service, Service]) -> None:
        first, second = two
        kept, _ = keep(first, relus())
        again, is_new = keep(second, relus())
        assert not is_new
        assert again.entry.record == kept.entry.record
        assert first.graphs.count == 1
        assert first.graphs.find(id_of(kept)) is kept

    def test_what_one_drops_the_other_has_not(self, two: tuple[Service, Service]) -> None:
        first, second = two
        id_ = id_of(keep(first, relus())[0])
        load(second, id_)
        other = id_of(keep(second, relus(2))[0])
        first.graphs.drop(id_)
        with pytest.raises(UnknownGraph):
            second.graphs.find(id_)
        assert id_ in second.graphs._graphs
        second.graphs.tend()
        assert list(second.graphs._graphs) == [other]

    def test_what_is_no_id_leads_to_no_file(self, two: tuple[Service, Service], tmp_path: Path) -> None:
        id_ = id_of(keep(two[0], relus())[0])
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / id_).write_bytes((tmp_path / id_).read_bytes())
        for name in (f"folder/{id_}", f"./{id_}"):
            for act in (two[1].graphs.find, two[1].graphs.called, two[1].graphs.drop):
                with pytest.raises(UnknownGraph):
                    act(name)

    def test_one_that_is_sent_again_is_compiled_again(self, two: tuple[Service, Service]) -> None:
        first, second = two
        id_ = id_of(keep(first, relus())[0])
        before = load(second, id_)
        first.graphs.drop(id_)
        keep(first, relus())
        assert second.graphs.find(id_) is None
        again = load(second, id_)
        assert again is not before
        assert again.entry is second.graphs.called(id_)
        first.graphs.drop(id_)
        keep(first, relus())
        once_more, is_new = keep(second, relus())
        assert not is_new
        assert once_more.entry is second.graphs.called(id_)

    def test_one_that_is_dropped_meanwhile(self, two: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = two
        id_ = id_of(keep(first, relus())[0])
        entries: Any = second.graphs._entries
        monkeypatch.setattr(entries, "remove", lambda _: False)
        with pytest.raises(UnknownGraph):
            second.graphs.drop(id_)
        read = entries.read

        def late(*given: Any) -> Any:
            first.graphs.drop(id_)
            return read(*given)

        monkeypatch.setattr(entries, "read", late)
        with pytest.raises(UnknownGraph):
            load(second, id_)
