"""Which graphs are kept, and what each worker tells of its use of them."""

import errno
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.codecs.codec import Piece
from app.devices.device import Cancelled
from app.engine import graph_entries, inference_counts
from app.engine.graph_entries import NUMBERS_BYTES, Entry, LocalEntries, Record, SharedEntries, Use
from app.engine.inference_counts import LAST, NUMBERS, PARTS
from app.memory.accounts import MemoryAccount
from tests.engine.clock import Clock
from tests.forked import forked

CAPABILITY: Any = {"graph": "0", "nodes": 3}
ID, OTHER = "0123456789abcdef" * 2, "f" * 32
NOTHING = (0.0,) * NUMBERS


def record(id_: str = ID) -> Record:
    return Record(id_, "name", "auto", 1.5, 100, CAPABILITY)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(graph_entries, "monotonic", lambda: made.now)
    monkeypatch.setattr(inference_counts, "time", lambda: made.now)
    return made


@pytest.fixture
def workers() -> list[Entry]:
    """One entry, as each of three workers has it."""
    numbers = memoryview(bytearray(3 * NUMBERS_BYTES))
    return [Entry(record(), numbers, worker) for worker in range(3)]


def test_each_worker_tells_of_its_own_use(clock: Clock, workers: list[Entry]) -> None:
    first, second, third = workers
    first.count()
    first.count()
    clock.now += 2
    second.use()
    third.count()
    clock.now += 1
    assert [entry.own for entry in workers] == [Use(2, 3, NOTHING), Use(0, 1, NOTHING), Use(1, 1, NOTHING)]
    assert {entry.dispatches for entry in workers} == {3}
    assert {entry.idle_seconds for entry in workers} == {1}
    first.use()
    assert {entry.idle_seconds for entry in workers} == {0}


def test_inferences_of_all_workers_are_counted_together(clock: Clock, workers: list[Entry]) -> None:
    first, second, third = workers
    first.infer(50, (1, 2, 3, 4))
    clock.now += 2
    third.infer(70, (10, 20, 30, 40))
    clock.now -= 1
    second.infer(500, (100, 200, 300, 400))
    clock.now += 9
    second.infer(1000, None)
    took = {"success": 620, "fail": 1000, "queue": 111, "compute_input": 222, "compute_infer": 333}
    took["compute_output"] = 444
    counted = first.inferences
    assert counted == third.inferences
    assert counted.parts == {part: (1 if part == "fail" else 3, took[part]) for part in PARTS}
    assert counted.last == 1_002_000, "that succeeded"
    assert first.dispatches == 3, "those that succeeded"
    assert [each.idle_seconds for each in (first.own, second.own, third.own)] == [10, 9, 8]


def test_the_use_of_several_together() -> None:
    parts = [tuple(float(number * place) for place in range(len(NOTHING))) for number in (3, 1)]
    together = Use.of_all([Use(2, 9.0, parts[0]), Use(3, 4.0, parts[1])])
    assert (together.dispatches, together.idle_seconds) == (5, 4.0)
    assert together.inferences == tuple((3.0 if place == LAST else 4.0) * place for place in range(NUMBERS))
    assert Use.of_all([]) == Use(0, math.inf, NOTHING)


def test_what_a_worker_of_another_machine_told_is_written_for_it(clock: Clock, workers: list[Entry]) -> None:
    parts = tuple(map(float, range(1, 1 + len(NOTHING))))
    workers[0].tell(2, Use(7, 3.0, parts))
    assert workers[2].own == Use(7, 3.0, parts)
    assert (workers[0].dispatches, workers[0].idle_seconds) == (7, 3.0)
    assert workers[0].own.inferences == workers[1].own.inferences == NOTHING


@pytest.fixture(params=["local", "shared"])
def entries(request: pytest.FixtureRequest, tmp_path: Path) -> LocalEntries | SharedEntries:
    return LocalEntries() if request.param == "local" else SharedEntries(tmp_path, 2, 1)


def test_those_that_are_kept(entries: LocalEntries | SharedEntries, clock: Clock) -> None:
    assert (entries.find(ID), dict(entries.all()), entries.remove(ID)) == (None, {}, False)
    other, one = entries.add(record(OTHER), []), entries.add(record(), [])
    assert (one.record, one.dispatches, one.idle_seconds) == (record(), 0, 0), "it is not idle from its first moment"
    before = entries.all()
    assert list(before.items()) == [(ID, one), (OTHER, other)]
    assert entries.find(ID) is one
    assert entries.remove(ID)
    assert not entries.remove(ID)
    assert (list(before), list(entries.all()), entries.find(ID)) == ([ID, OTHER], [OTHER], None)
    assert entries.add(record(), []) is not one


def test_one_is_added_at_a_time(entries: LocalEntries | SharedEntries, tmp_path: Path) -> None:
    entered = threading.Event()
    others = SharedEntries(tmp_path, 2, 0) if isinstance(entries, SharedEntries) else entries

    def add() -> None:
        with others.adding():
            entered.set()

    thread = threading.Thread(target=add)
    with entries.adding():
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(10)
    thread.join()


def test_one_process_reads_nothing_again() -> None:
    entries = LocalEntries()
    entry = entries.add(record(), [b"sent"])
    with MemoryAccount(100).open() as memory, pytest.raises(FileNotFoundError, match=ID):
        entries.read(entry, memory)


class TestShared:
    @pytest.fixture
    def two(self, tmp_path: Path) -> tuple[SharedEntries, SharedEntries]:
        return SharedEntries(tmp_path, 2, 0), SharedEntries(tmp_path, 2, 1)

    def test_others_read_what_was_sent(self, two: tuple[SharedEntries, SharedEntries]) -> None:
        first, second = two
        first.add(record(), [b"what", memoryview(b" was "), b"", b"sent"])
        entry = second.find(ID)
        assert entry
        assert entry.record == record()
        account = MemoryAccount(100, 0)
        with account.open() as memory:
            assert bytes(second.read(entry, memory)) == b"what was sent"
            assert account.used == len(b"what was sent")
            first.remove(ID)
            with pytest.raises(FileNotFoundError):
                second.read(entry, memory)

    def test_they_write_their_numbers_into_the_same_file(self, two: tuple[SharedEntries, SharedEntries]) -> None:
        first, second = two
        one, other = first.add(record(), []), second.find(ID)
        assert other
        one.count()
        other.count()
        other.count()
        assert (one.own.dispatches, other.own.dispatches, one.dispatches, other.dispatches) == (1, 2, 3, 3)

    def test_only_what_is_named_by_an_id_is_one(self, two: tuple[SharedEntries, SharedEntries], tmp_path: Path) -> None:
        first, second = two
        with first.adding():
            first.add(record(), [])
        (tmp_path / "new").write_bytes(b"not whole")
        (tmp_path / ID.upper()).write_bytes(b"nothing of ours")
        assert list(second.all()) == [ID]

    def test_there_is_one_object_for_one_graph(self, two: tuple[SharedEntries, SharedEntries]) -> None:
        """Though two threads may ask for it at once, and both find that it is not known."""
        first, second = two
        first.add(record(), [])
        assert second._map(ID) is second._map(ID) is second.find(ID)
        assert second._map(OTHER) is None

    def test_however_many_threads_ask_at_once(
        self, two: tuple[SharedEntries, SharedEntries], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = two
        first.add(record(), [])
        together, map_ = threading.Barrier(3), mmap.mmap

        def slowly(*arguments: Any) -> mmap.mmap:
            time.sleep(0.05)
            return map_(*arguments)

        def find() -> Entry | None:
            together.wait()
            return second.find(ID)

        monkeypatch.setattr(mmap, "mmap", slowly)
        with ThreadPoolExecutor(3) as pool:
            assert len({done.result() for done in [pool.submit(find) for _ in range(3)]}) == 1

    def test_what_is_removed_while_all_are_looked_at_is_none_of_them(
        self, two: tuple[SharedEntries, SharedEntries], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        two[0].add(record(), [])
        monkeypatch.setattr(os, "listdir", lambda _: [OTHER, ID])
        assert list(two[1].all()) == [ID]

    @pytest.mark.parametrize("asked", [True, False])
    def test_what_others_removed_is_forgotten(self, two: tuple[SharedEntries, SharedEntries], asked: bool) -> None:
        first, second = two
        first.add(record(), [])
        first.add(record(OTHER), [])
        second.all()
        first.remove(ID)
        if asked:
            assert second.find(ID) is None
        else:
            assert list(second.all()) == [OTHER]
        assert list(second._known) == [OTHER], "it has a file mapped"
        assert second.remove(OTHER)
        assert list(second._known) == []

    def test_one_that_is_kept_again_is_another(self, two: tuple[SharedEntries, SharedEntries]) -> None:
        first, second = two
        first.add(record(), [])
        before = second.find(ID)
        first.remove(ID)
        again = first.add(record(), [])
        again.count()
        found = second.find(ID)
        assert found
        assert found is not before
        assert found.dispatches == 1

    def test_nothing_is_left_of_what_could_not_be_written(
        self, two: tuple[SharedEntries, SharedEntries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*begun: bytes) -> Iterator[Piece]:
            yield from begun
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(OSError, match="No space"):
            two[0].add(record(), failing(b"begun"))
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(Path, "open", lambda *_: next(failing()))
        with pytest.raises(OSError, match="No space"):
            two[0].add(record(), [])

    def test_it_is_whole_as_soon_as_it_is_there(self, two: tuple[SharedEntries, SharedEntries]) -> None:
        def looking() -> Iterator[Piece]:
            yield b"begun"
            assert dict(two[1].all()) == {}
            assert two[1].find(ID) is None

        two[0].add(record(), looking())
        assert list(two[1].all()) == [ID]

    def test_who_waits_for_a_worker_that_hangs_gives_up(self, two: tuple[SharedEntries, SharedEntries]) -> None:
        first, second = two
        asked: list[float] = []

        def cancelled() -> bool:
            asked.append(time.monotonic())
            return len(asked) > 5

        def wait() -> None:
            with pytest.raises(Cancelled), second.adding(cancelled):
                pass

        with first.adding():
            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join(10)
            assert len(asked) == 6
        with second.adding(cancelled):
            assert len(asked) == 6

    def test_what_another_worker_removes_at_once_was_added(
        self, two: tuple[SharedEntries, SharedEntries], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its client knows the id, which is the same each time."""
        first, second = two
        rename = Path.rename

        def rename_and_remove(beside: Path, place: Path) -> Path:
            made = rename(beside, place)
            assert second.remove(place.name)
            return made

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", rename_and_remove)
            entry = first.add(record(), [])
        entry.count()
        assert (entry.record, entry.dispatches, first.find(ID), dict(first.all())) == (record(), 1, None, {})
        assert list(first._known) == []
        again = first.add(record(), [])
        assert first.find(ID) is again is not entry

    def test_what_was_killed_while_it_added_leaves_nothing(
        self, two: tuple[SharedEntries, SharedEntries], tmp_path: Path
    ) -> None:
        def add() -> None:
            two[0].add(record(OTHER), iter(lambda: os._exit(0), None))

        os.waitpid(forked(add), 0)
        two[1].add(record(), [])
        assert [file.name for file in tmp_path.iterdir()] == [ID]
