"""Graphs that a cluster keeps: replicas and a keeper in one process, which call each other as across machines."""

import asyncio
import math
import pickle
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import pytest

from app.devices.device import Cancelled
from app.engine import cluster_entries
from app.engine.cluster_entries import ClusterEntries, Keeper, KeeperSilent
from app.engine.dispatch import GraphCapability
from app.engine.graph_entries import Record, Use
from app.engine.inference_counts import LAST, NUMBERS
from app.memory.accounts import MemoryAccount
from tests.engine.clock import Clock

T = TypeVar("T")
HEARTBEAT = 0.02
SECONDS = 30.0
"""Longer than any machine is busy: the lease of replicas that are not to be taken for gone, and how long to wait for
what must happen."""
CAPABILITY: Any = {"graph": "0"}
ID = "0123456789abcdef" * 2


def record(id_: str = ID, capability: GraphCapability = CAPABILITY) -> Record:
    return Record(id_, None, "auto", 1.0, 100, capability)


class Remote:
    """A keeper in a thread of its own, and the way there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_reached = True
        self.asked = 0
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.keeper = Keeper()

    def __call__(self, method: str, *arguments: object, seconds: float) -> Any:
        self.asked += 1
        if not self.is_reached:
            raise KeeperSilent
        arguments = pickle.loads(pickle.dumps(arguments))
        future = asyncio.run_coroutine_threadsafe(getattr(self.keeper, method)(*arguments), self.loop)
        try:
            return pickle.loads(pickle.dumps(future.result(seconds)))
        except NotInTime as error:
            raise KeeperSilent from error

    def end(self) -> None:
        def stop() -> None:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)

        self.loop.call_soon_threadsafe(stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setattr(cluster_entries, "HEARTBEAT_SECONDS", HEARTBEAT)
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", SECONDS)
    made = Remote()
    yield made
    made.end()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cluster_entries, "monotonic", lambda: made.now)
    return made


Replicas = Callable[[], ClusterEntries]


@pytest.fixture
def replica(remote: Remote) -> Iterator[Replicas]:
    """Makes replicas; they end with the test."""
    with ExitStack() as stack:

        def make() -> ClusterEntries:
            made = ClusterEntries(remote, SECONDS)
            stack.callback(made.close)
            return made

        yield make


def add(entries: ClusterEntries, id_: str = ID, document: bytes = b"sent") -> None:
    with entries.adding():
        entries.add(record(id_), [document[:2], memoryview(document)[2:]])


def read(entries: ClusterEntries, id_: str = ID) -> bytes:
    entry = entries.find(id_)
    assert entry
    with MemoryAccount(1 << 20, 0).open() as memory:
        return bytes(entries.read(entry, memory))


def vanish(entries: ClusterEntries) -> None:
    """It ends without a word."""
    entries._closed.set()
    entries._thread.join()


def check_calm(asked: Callable[[], int]) -> None:
    """That no more is asked than once a heartbeat by each of two."""
    before, start = asked(), time.monotonic()
    time.sleep(5 * HEARTBEAT)
    assert asked() - before <= 2 * ((time.monotonic() - start) / HEARTBEAT + 2)


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_all_replicas_show_what_is_kept_when_it_is_kept(replica: Replicas) -> None:
    first, second = replica(), replica()
    for number in range(20):
        id_ = f"{number:032x}"
        start = time.monotonic()
        add(first, id_)
        shown = second.find(id_)
        assert shown
        assert shown.idle_seconds <= time.monotonic() - start, "nobody takes it for idle"
        assert shown.record == record(id_)
        assert second.find(id_) is shown
        assert first.all().keys() == second.all().keys() == {id_}
        assert second.remove(id_)
        assert first.find(id_) is None
        assert not first.remove(id_)


def test_they_are_in_the_order_of_their_ids(replica: Replicas) -> None:
    only = replica()
    for digit in "f0a":
        add(only, digit * 32)
    assert [*only.all()] == ["0" * 32, "a" * 32, "f" * 32]


def test_a_replica_that_comes_later_shows_it_at_once(replica: Replicas) -> None:
    add(replica())
    with mock.patch.object(ClusterEntries, "_keep_listening"):
        assert replica().all().keys() == {ID}


def test_without_news_nobody_asks_more_than_once_a_heartbeat(remote: Remote, replica: Replicas) -> None:
    for _ in range(2):
        replica()
    check_calm(lambda: remote.asked)


def test_what_was_sent_is_read_by_those_that_did_not_get_it(replica: Replicas) -> None:
    first, second = replica(), replica()
    add(first)
    assert read(second) == b"sent"
    before = second.find(ID)
    assert before
    first.remove(ID)
    with MemoryAccount(1 << 20, 0).open() as memory, pytest.raises(FileNotFoundError):
        second.read(before, memory)
    add(first, document=b"sent again")
    assert second.find(ID) is not before
    assert read(second) == b"sent again"
    with MemoryAccount(1 << 20, 0).open() as memory, pytest.raises(FileNotFoundError):
        second.read(before, memory)


def test_what_is_added_once_more_is_another_and_all_others_stay_what_they_are(replica: Replicas) -> None:
    first, second = replica(), replica()
    add(first)
    add(first, "f" * 32)
    before, beside = second.find(ID), second.find("f" * 32)
    add(first, document=b"other")
    assert second.find(ID) is not before
    assert second.find("f" * 32) is beside
    assert read(second) == b"other"


def test_only_one_adds_at_a_time(replica: Replicas) -> None:
    inside = most = 0

    def enter(entries: ClusterEntries) -> None:
        nonlocal inside, most
        with entries.adding():
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(enter, each) for each in [replica(), replica()] for _ in range(3)]:
            done.result()
    assert most == 1


def test_threads_of_a_replica_take_turns(replica: Replicas) -> None:
    """By themselves, since what one holds is the replica's."""
    only, asked = replica(), []
    call = only._call

    def note(method: str, *arguments: object, seconds: float) -> Any:
        if method != "poll":
            asked.append(method)
        assert method != "acquire" or seconds > arguments[-1], "or it would get what nobody takes"  # type: ignore[operator]
        return call(method, *arguments, seconds=seconds)

    def enter() -> None:
        with only.adding():
            time.sleep(0.02)

    with mock.patch.object(only, "_call", note), ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(enter) for _ in range(3)]:
            done.result()
    assert asked == ["acquire", "release"] * 3


def test_who_ends_is_not_heard_of_afterwards(remote: Remote) -> None:
    only, asked = ClusterEntries(remote, SECONDS), []
    call = only._call

    def slowly(method: str, *arguments: object, seconds: float) -> Any:
        time.sleep(0.02)
        told = call(method, *arguments, seconds=seconds)
        asked.append(method)
        return told

    with mock.patch.object(only, "_call", slowly):
        wait_until(lambda: "poll" in asked)
        only.close()
        time.sleep(0.05)
    assert asked.index("leave") == len(asked) - 1
    remote.is_reached = False
    only.close()  # which nobody hears


def test_who_waits_in_vain_for_others_says_so(replica: Replicas) -> None:
    holding, impatient = replica(), replica()
    brief = mock.patch.object(impatient, "_wait_seconds", 0.05)
    with brief, holding.adding(), pytest.raises(KeeperSilent), impatient.adding():
        pass


def test_who_is_not_waited_for_any_more_asks_nothing(remote: Remote, replica: Replicas) -> None:
    """Threads of a replica ask one after another: those whose clients were refused meanwhile are done at once."""
    other = ClusterEntries(remote, SECONDS / 100)
    with replica().adding():
        for is_cancelled, error in ((False, KeeperSilent), (True, Cancelled)):
            begun = time.monotonic()
            with pytest.raises(error), other.adding(partial(bool, is_cancelled)):
                raise AssertionError("another replica has the lock")
            assert (time.monotonic() - begun < SECONDS / 100) is is_cancelled
    other.close()


def test_what_was_kept_is_not_told_to_have_failed(replica: Replicas) -> None:
    """Though it is removed at once by who saw it, or not shown here, where the keeper is not heard again."""
    first, second = replica(), replica()
    with first.adding(), mock.patch.object(first, "find", return_value=None):
        entry = first.add(record(), [b"sent"])
    assert entry.record == record()
    assert read(second) == b"sent"


def test_who_was_taken_for_gone_shows_what_is_kept_before_it_adds(remote: Remote, replica: Replicas) -> None:
    """Or it would not see a name that is taken, nor that there is no room."""
    first, second = replica(), replica()
    vanish(first)
    del remote.keeper._replicas[first._name]
    add(second)
    assert first.find(ID) is None, "nobody waited for it"
    shown: list[bool] = []

    def add_another() -> None:
        with first.adding():
            shown.append(first.find(ID) is not None)
            shown.append(first.add(record("f" * 32), [b""]) is first.find("f" * 32))

    adding = threading.Thread(target=add_another)
    adding.start()
    wait_until(lambda: remote.keeper._lock is not None)
    first._closed.clear()
    first._thread = threading.Thread(target=first._keep_listening)
    first._thread.start()
    adding.join(SECONDS)
    assert shown == [True, True]


def test_who_does_not_hear_again_adds_nothing(
    remote: Remote, replica: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replica(), replica()
    vanish(first)
    del remote.keeper._replicas[first._name]
    add(second)
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 0.05)
    with pytest.raises(KeeperSilent), first.adding():
        pass
    assert remote.keeper._lock is None


def test_who_dies_holds_up_nobody_for_long(replica: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by what it locked nor by what it does not show."""
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 1)
    dead, alive = replica(), replica()
    holding = dead.adding()
    holding.__enter__()
    vanish(dead)
    start = time.monotonic()
    add(alive)
    assert time.monotonic() - start < SECONDS
    with pytest.raises(KeeperSilent):  # which it does not have any more
        dead.add(record("f" * 32), [b""])
    holding.__exit__(None, None, None)
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 2 * SECONDS)
    start = time.monotonic()
    assert alive.remove(ID)
    assert time.monotonic() - start < SECONDS


def test_what_could_not_be_given_back_is_later(remote: Remote, replica: Replicas) -> None:
    first, second = replica(), replica()
    with first.adding():
        remote.is_reached = False
    remote.is_reached = True
    wait_until(lambda: not second._is_silent)
    add(second)


def test_uses_are_those_of_all(remote: Remote, replica: Replicas) -> None:
    first, second = replica(), replica()
    add(first)
    entries = [each.all()[ID] for each in (first, second)]
    entries[0].infer(5, (0, 0, 0, 0))
    for _ in range(2):
        entries[1].infer(7, (0, 0, 0, 0))
    for entry in entries:
        wait_until(lambda entry=entry: entry.dispatches == 3)  # type: ignore[misc]
        assert entry.inferences.parts["success"] == (3, 19)
    time.sleep(0.2)
    used = time.monotonic()
    entries[1].count()
    wait_until(lambda: entries[0].dispatches == 4)
    idle = entries[0].idle_seconds
    assert idle < 0.1 + time.monotonic() - used, "since another one used it"
    second.close()
    third, fourth = replica(), replica()
    third.close()
    for entry in (entries[0], fourth.all()[ID]):
        wait_until(lambda entry=entry: entry.dispatches == 4)  # type: ignore[misc]
    of_those_there = {first._name, fourth._name}
    assert remote.keeper._graphs[ID].uses.keys() - of_those_there == {""}, "however many have left"


def test_uses_together() -> None:
    one, other = ([float(factor)] * NUMBERS for factor in (99, 77))
    both = Use.of_all([Use(1, 5.0, tuple(one)), Use(2, 3.0, tuple(other))])
    assert both == Use(3, 3.0, tuple(99.0 if place == LAST else 176.0 for place in range(NUMBERS)))
    assert Use.of_all([]) == Use(0, math.inf, (0.0,) * NUMBERS)


def test_without_the_keeper_what_is_known_is_served_on(
    remote: Remote, replica: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = replica(), replica()
    add(first)
    remote.is_reached = False
    assert second.find(ID)
    with pytest.raises(KeeperSilent, match=r"^The keeper of the cluster's graphs did not answer in time; ask again\.$"):
        second.remove(ID)
    with pytest.raises(KeeperSilent), second.adding():
        pass
    with pytest.raises(KeeperSilent):
        read(second)
    wait_until(lambda: len(caplog.messages) >= 2)
    time.sleep(3 * HEARTBEAT)
    assert ["does not answer" in each for each in caplog.messages] == [True, True], "each says it once"
    check_calm(lambda: remote.asked)
    remote.is_reached = True
    wait_until(lambda: len(caplog.messages) >= 4)
    assert ["answers again" in each for each in caplog.messages[2:]] == [True, True]
    wait_until(lambda: not (first._is_silent or second._is_silent))
    add(first, "f" * 32)
    assert second.find("f" * 32)


def test_who_was_cut_off_shows_what_it_knew_until_it_hears_of_the_keeper_again(
    replica: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others do not wait for it: what they dropped is dropped, and what has its id now is another."""
    first, second = replica(), replica()
    add(first)
    add(first, "f" * 32)
    before = second.find("f" * 32)
    with mock.patch.object(second, "_call", side_effect=KeeperSilent):
        wait_until(lambda: second._is_silent)
        monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 0.05)  # so it is gone
        for id_ in (ID, "f" * 32):
            assert first.remove(id_)
        monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", SECONDS)
        add(first, "f" * 32, b"again")
        assert second.all().keys() == {ID, "f" * 32}
        assert second.find("f" * 32) is before
    wait_until(lambda: second.find(ID) is None)
    assert second.find("f" * 32) is not before
    assert read(second, "f" * 32) == b"again"


def test_who_sees_what_a_keeper_tells_again_may_ask_it(remote: Remote, replica: Replicas) -> None:
    only, silent = replica(), []

    class Heard(threading.Condition):
        def __enter__(self) -> bool:
            silent.append(only._is_silent)
            return super().__enter__()

    remote.is_reached = False
    wait_until(lambda: only._is_silent)
    only._heard = Heard()  # behind which all that it tells is there
    remote.is_reached = True
    wait_until(lambda: bool(silent))
    assert not silent[0]


def test_of_a_keeper_that_is_not_heard_nothing_is_asked(replica: Replicas) -> None:
    """A worker would wait for the answer, and nothing else would be computed."""
    only, asked = replica(), []
    add(only)

    def is_silent(method: str, *_: object, seconds: float) -> Any:
        asked.append((method, seconds))
        raise KeeperSilent

    with mock.patch.object(only, "_call", is_silent):
        wait_until(lambda: only._is_silent)
        with pytest.raises(KeeperSilent), only.adding():
            pass
        with pytest.raises(KeeperSilent):
            only.remove(ID)
        with pytest.raises(KeeperSilent):
            read(only)
        wait_until(lambda: len(asked) > 1)
        only._closed.set()
        only._thread.join()
    assert set(asked) == {("poll", cluster_entries.LEASE_SECONDS)}


def test_a_keeper_that_tells_nonsense_is_asked_again(replica: Replicas, caplog: pytest.LogCaptureFixture) -> None:
    first, second = replica(), replica()
    with mock.patch.object(second, "_call", return_value=None) as call:
        wait_until(lambda: bool(caplog.messages))
        check_calm(lambda: call.call_count)
    assert "cannot be used" in caplog.messages[0]
    add(first)
    wait_until(lambda: second.find(ID) is not None)


def test_a_keeper_that_was_started_again_begins_anew(remote: Remote, replica: Replicas) -> None:
    first, second = replica(), replica()
    add(first)
    before, remote.keeper = remote.keeper, Keeper()
    assert remote.keeper._version > before._version, "or who knows as much of it would not ask"
    wait_until(lambda: not first.all() and not second.all())
    add(second)
    wait_until(lambda: first.find(ID) is not None)
    assert read(first) == b"sent"


def test_a_keeper_that_nobody_needs_says_so(remote: Remote, replica: Replicas) -> None:
    only = replica()
    ended = threading.Thread(target=lambda: remote("alone", 0.1, seconds=2 * SECONDS))
    ended.start()
    time.sleep(0.3)
    assert ended.is_alive()
    only.close()
    ended.join(SECONDS)
    assert not ended.is_alive()


def test_who_is_there_and_shows_nothing_holds_up_nobody_for_long(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for it are told, however impatient they are with the keeper."""
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 1.5)
    ended = threading.Event()

    def listen_in_vain() -> None:
        while not ended.is_set():
            remote("poll", "broken", -1, {}, seconds=SECONDS)

    broken = threading.Thread(target=listen_in_vain)
    broken.start()
    alive = ClusterEntries(remote, 1)
    start = time.monotonic()
    add(alive)
    assert 1 < time.monotonic() - start < SECONDS
    assert alive.remove(ID)
    ended.set()
    broken.join()
    alive.close()


def test_nobody_waits_longer_than_until_it_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """However rarely those who have no news hear of each other."""
    monkeypatch.setattr(cluster_entries, "HEARTBEAT_SECONDS", 60)
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 60)

    async def soon(awaited: Awaitable[T]) -> T:
        return await asyncio.wait_for(awaited, 10)

    async def begun(waits: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """That it waits is seen."""
        task = asyncio.create_task(waits)
        await asyncio.sleep(0.01)
        assert not task.done()
        return task

    async def keep() -> None:
        keeper = Keeper()
        version = (await soon(keeper.poll("one", -1, {}))).version
        await soon(keeper.poll("other", -1, {}))
        listening = [await begun(keeper.poll(name, version, {})) for name in ("one", "other")]
        assert await soon(keeper.acquire("one", "token", 60))
        adding = await begun(keeper.add("token", record(), b""))
        for each in listening:
            told = await soon(each)
            assert told.graphs
            assert told.graphs.keys() == {ID}
        version = told.version
        listening = [await begun(keeper.poll("one", version, {}))]
        assert not adding.done(), "the other does not show it"
        listening.append(asyncio.create_task(keeper.poll("other", version, {})))
        assert await soon(adding)
        removing = await begun(keeper.remove(ID))
        version = (await soon(listening[0])).version
        listening = [await begun(keeper.poll("one", version, {}))]
        await soon(keeper.leave("other"))
        assert await soon(removing)
        listening[0].cancel()

    asyncio.run(keep())


def test_only_who_has_the_lock_adds_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_entries, "HEARTBEAT_SECONDS", 60)
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 60)

    async def keep() -> None:
        keeper = Keeper()
        for name in ("one", "other"):
            await keeper.poll(name, -1, {})
        assert not await keeper.add("first", record(), b"")
        assert await keeper.acquire("one", "first", 0)
        assert not await keeper.add("wrong", record(), b"")
        await keeper.release("wrong")
        for seconds in (0, 0.01):
            assert not await asyncio.wait_for(keeper.acquire("other", "second", seconds), 10)
        waiting = asyncio.create_task(keeper.acquire("other", "second", 60))
        await asyncio.sleep(0)
        await keeper.release("first")
        assert await asyncio.wait_for(waiting, 10)
        await keeper.leave("other")
        assert await keeper.acquire("one", "third", 0), "who has left holds nothing"

    asyncio.run(keep())


def test_to_show_what_came_later_is_to_show_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_entries, "HEARTBEAT_SECONDS", 60)
    monkeypatch.setattr(cluster_entries, "LEASE_SECONDS", 60)

    async def keep() -> None:
        keeper, ids = Keeper(), ["0" * 32, "1" * 32]
        assert await keeper.acquire("gone", "token", 0)
        for id_ in ids:
            assert await keeper.add("token", record(id_), b"")
        version = (await keeper.poll("one", -1, {})).version
        listening = asyncio.create_task(keeper.poll("one", version, {}))
        await asyncio.sleep(0.01)
        both = asyncio.gather(*map(keeper.remove, ids))
        told = await asyncio.wait_for(listening, 10)
        assert (told.version, told.graphs) == (version + 2, {})
        again = asyncio.create_task(keeper.poll("one", told.version, {}))
        assert await asyncio.wait_for(both, 10) == [True, True]
        again.cancel()

    asyncio.run(keep())


def test_who_listens_is_there_and_who_is_not_heard_of_is_gone_later(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later than the last thing that was heard."""
    monkeypatch.setattr(cluster_entries, "HEARTBEAT_SECONDS", 60)

    async def keep() -> None:
        keeper = Keeper()
        version = (await keeper.poll("one", -1, {})).version
        assert await keeper.acquire("one", "first", 0)
        listening = asyncio.create_task(keeper.poll("one", version, {}))
        await asyncio.sleep(0)
        clock.now += 2 * cluster_entries.LEASE_SECONDS
        assert not await keeper.acquire("other", "second", 0)
        listening.cancel()
        await asyncio.wait([listening])
        clock.now += cluster_entries.LEASE_SECONDS
        assert not await keeper.acquire("other", "second", 0)
        clock.now += 0.01
        assert await keeper.acquire("other", "second", 0)

    asyncio.run(keep())


def test_uses_grow_old_and_stay_counted(clock: Clock) -> None:
    def use(dispatches: int, idle_seconds: float) -> Use:
        return Use(dispatches, idle_seconds, (0.0,) * NUMBERS)

    async def keep() -> None:
        keeper = Keeper()
        assert await keeper.acquire("gone", "token", 0)
        assert await keeper.add("token", record(), b"")
        await keeper.poll("one", -1, {ID: use(1, 5), "f" * 32: use(1, 1)})
        clock.now += 3
        assert (await keeper.poll("other", -1, {ID: use(2, 9)})).uses == {ID: use(1, 8)}
        await keeper.leave("one")
        clock.now += 2
        await keeper.leave("other")
        clock.now += 4
        assert (await keeper.poll("last", -1, {})).uses == {ID: use(3, 14)}

    asyncio.run(keep())


def test_documents_are_those_of_a_version() -> None:
    async def keep() -> None:
        keeper = Keeper()
        version = (await keeper.poll("one", -1, {})).version
        assert await keeper.acquire("one", "token", 0)
        await keeper.leave("one")  # nobody is to be waited for
        assert await keeper.add("token", record(), b"sent")
        assert await keeper.document(ID, version + 1) == b"sent"
        assert await keeper.document(ID, version) is None
        assert await keeper.document("f" * 32, version + 1) is None

    asyncio.run(keep())
