"""What lies between host memory and a GPU. Slots: how many there are, who waits for one, and which one comes first."""

import mmap
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from app.devices.cuda import pinned
from app.devices.cuda.pinned import SMALLEST_PINNED, PinnedMemory, Slots
from app.memory.addresses import address_of


class Given:
    """A slot without a GPU."""

    made = 0
    fails = False

    def __init__(self, size: int, allocate: Any) -> None:
        if Given.fails:
            raise MemoryError
        Given.made += 1
        self.number = Given.made
        self.emptied = 0

    def empty(self) -> None:
        self.emptied += 1


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "Slot", Given)
    monkeypatch.setattr(Given, "made", 0)


def slots_of(count: int) -> Any:
    return Slots(count, 256, lambda size: None)


def test_the_slot_used_last_comes_first() -> None:
    slots = slots_of(3)
    with slots.take() as one:
        with slots.take() as two, slots.take() as three:
            assert (one.number, two.number, three.number, slots.taken) == (1, 2, 3, 3)
        with slots.take() as again:
            assert again is two
    with slots.take() as again:
        assert again is one
    assert (slots.made, slots.taken, slots.pinned_bytes) == (3, 0, 768)


def test_one_is_made_only_where_none_is_free() -> None:
    slots = slots_of(3)
    for _ in range(5):
        with slots.take():
            pass
    assert slots.made == 1


def test_several_are_taken_as_far_as_they_are_free() -> None:
    slots = slots_of(4)
    with slots.take_some(3) as some:
        assert [each.number for each in some] == [1, 2, 3]
        with slots.take_some(3) as others:
            assert [each.number for each in others] == [4]
    assert slots.taken == 0
    with slots.take() as again:
        assert again is some[0]


def test_where_one_of_several_cannot_be_made_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(3)
    with slots.take():
        pass
    monkeypatch.setattr(Given, "fails", True)
    with pytest.raises(MemoryError), slots.take_some(2):
        pass
    assert (slots.made, slots.taken) == (1, 0)


def test_where_none_can_be_made_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one of those that were not made: there may be no other that anybody could give back."""
    go, refused = threading.Event(), []

    class Failing(Given):
        def __init__(self, size: int, allocate: Any) -> None:
            go.wait()
            raise MemoryError

    monkeypatch.setattr(pinned, "Slot", Failing)
    slots = slots_of(2)

    def take() -> None:
        with pytest.raises(MemoryError), slots.take():
            pass
        refused.append(True)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(5)]
    for each in threads:
        each.start()
    go.wait(0.1)  # until some make one, and others wait
    go.set()
    for each in threads:
        each.join(5)
    assert len(refused) == 5
    assert (slots.made, slots.taken) == (0, 0)


def test_who_finds_none_waits_for_one_that_is_given_back() -> None:
    slots = slots_of(1)
    taken, had = threading.Event(), []

    def wait() -> None:
        taken.wait()
        with slots.take() as slot:
            had.append(slot)

    thread = threading.Thread(target=wait)
    thread.start()
    with slots.take() as slot:
        taken.set()
        thread.join(0.1)
        assert not had
        assert slots._idle() is None
    thread.join(10)
    assert had == [slot]


def test_many_threads_share_few_slots() -> None:
    """No slot is had twice at a time, and nobody waits for ever."""
    slots, held = slots_of(3), set()

    def work(_: int) -> None:
        for _ in range(300):
            with slots.take() as slot:
                assert slot not in held
                held.add(slot)
                held.remove(slot)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12), timeout=60))
    assert slots.made <= 3
    assert slots.taken == 0


def test_only_idle_slots_are_emptied() -> None:
    slots = slots_of(3)
    with slots.take() as one, slots.take() as two, slots.take() as three:
        pass
    with slots.take() as held:
        assert held is one
        slots.empty_idle()
    assert (one.emptied, two.emptied, three.emptied) == (0, 1, 1)
    with slots.take() as first, slots.take() as second:
        assert (first, second) == (one, two)


def test_where_one_cannot_be_emptied_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: Given) -> None:
        raise RuntimeError("cudaErrorLaunchFailure")

    slots = slots_of(2)
    with slots.take(), slots.take():
        pass
    monkeypatch.setattr(Given, "empty", lost)
    with pytest.raises(RuntimeError):
        slots.empty_idle()
    assert slots.taken == 0
    with slots.take_some(2) as some:
        assert len(some) == 2


def test_what_cannot_be_made_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(1)
    monkeypatch.setattr(Given, "fails", True)
    with pytest.raises(MemoryError), slots.take():
        pass
    monkeypatch.setattr(Given, "fails", False)
    with slots.take() as slot:
        assert slot.number == 1


def test_what_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order memory comes and goes, to the byte."""
    monkeypatch.setattr(pinned, "_runtime", lambda: SimpleNamespace(hostRegister=nothing, hostUnregister=nothing))
    known, rng = PinnedMemory(40 * SMALLEST_PINNED), random.Random(0)
    held: list[mmap.mmap] = []
    for _ in range(300):
        if held and rng.random() < 0.45:
            gone = held.pop(rng.randrange(len(held)))
            known.unpin(gone)
            assert not known.holds(start_of(gone), 1)
        else:
            held.append(mmap.mmap(-1, SMALLEST_PINNED * rng.choice([1, 2, 3])))
            known.pin(held[-1])
        total = 0
        for memory in held:
            start, size = start_of(memory), len(memory)
            there = [known.holds(start + first, count) for first, count in ((0, size), (0, 1), (5, size - 5))]
            assert len({*there}) == 1
            total += size if there[0] else 0
            assert not known.holds(start, size + 1)
        assert known.used == total
    assert not known.holds(0, 1)
    assert not known.holds(1 << 62, 1)


def nothing(*_: object) -> None:
    """What CUDA's functions answer."""


def start_of(memory: mmap.mmap) -> int:
    return address_of(memoryview(memory))
