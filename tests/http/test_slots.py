"""Numbers that outlive the process that wrote them."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.engine.inference_counts import PARTS
from app.http.telemetry import slots as slots_module
from app.http.telemetry.families import Counter, Histogram, together
from app.http.telemetry.inferences import InferenceCounts
from app.http.telemetry.metrics import Counts
from app.http.telemetry.slots import OVERFLOW, Labels, Slots
from tests.forked import forked

NAME = "family"


def numbers(slots: Slots, name: str = NAME) -> dict[Labels, list[list[float]]]:
    found: dict[Labels, list[list[float]]] = {}
    for family, labels, each in slots.series():
        if family == name:
            found.setdefault(labels, []).append([*each])
    return found


def in_another_process(work: Callable[[], None]) -> None:
    os.waitpid(forked(work), 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_the_next_process_goes_on() -> None:
    slots = Slots(2)

    def work() -> None:
        counter = Counter(slots.own(1), NAME, "", ["label"])
        for label in ("a", "b", "a"):
            counter.numbers[(label,)][0] += 1

    in_another_process(work)
    assert numbers(slots) == {("a",): [[2]], ("b",): [[1]]}
    in_another_process(work)
    assert numbers(slots) == {("a",): [[4]], ("b",): [[2]]}


def test_those_of_several_are_added_up() -> None:
    slots = Slots(3)
    for number in range(3):
        histogram = Histogram(slots.own(number), NAME, "", ["label"], [1.0, 2.0])
        histogram.observe(histogram.numbers[("a",)], 0.5)
        histogram.observe(histogram.numbers[("a",)], 1.5 + number)
    ((labels, found),) = numbers(slots).items()
    assert labels == ("a",)
    assert together(found) == [3, 1, 2, 3 * 0.5 + 1.5 + 2.5 + 3.5]


def test_a_series_that_was_not_finished_is_none() -> None:
    """Whoever is killed before it wrote the word has left a name and nothing else."""
    slots = Slots(1)
    slots.own(0).find("a rather long name of a family", ("x" * 100,), 4)
    slots._memories[0][:8] = bytes(8)
    assert numbers(slots) == {}
    assert [*slots.own(0).find(NAME, ("a",), 12)] == [0] * 12


def test_a_series_whose_name_is_not_to_be_seen_yet_is_none() -> None:
    slots = Slots(1)
    slot = slots.own(0)
    slot.find(NAME, ("a",), 1)
    slot.find(NAME, ("b",), 1)
    at = bytes(slots._memories[0]).index(b'["family","b"]')
    slots._memories[0][at : at + 14] = bytes(14)
    assert numbers(slots) == {("a",): [[0]]}


def test_several_threads_may_make_series(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(1)
    slot = slots.own(0)

    def slow(length: int, words: Callable[[int], int] = slots_module._words) -> int:
        time.sleep(0.001)
        return words(length)

    monkeypatch.setattr(slots_module, "_words", slow)
    with ThreadPoolExecutor(4) as pool:
        for each in range(40):
            pool.submit(slot.find, NAME, (str(each),), 1)
    assert len(numbers(slots)) == 40


def test_what_has_no_room_is_counted_together() -> None:
    slots = Slots(2, slot_bytes=1 << 14)
    counter = Counter(slots.own(0), NAME, "", ["one", "two"])
    for number in range(1000):
        counter.numbers[str(number), "x"][0] += 1
    found = numbers(slots)
    assert sum(count for ((count,),) in found.values()) == 1000
    assert found[OVERFLOW, OVERFLOW] == [[1000 - (len(found) - 1)]]
    assert 100 < len(found) < 1000
    again = Counter(slots.own(0), NAME, "", ["one", "two"])
    again.numbers["0", "x"][0] += 1
    again.numbers["999", "x"][0] += 1
    assert numbers(slots)["0", "x"] == [[2]]
    assert numbers(slots)[OVERFLOW, OVERFLOW] == [[1000 - (len(found) - 1) + 1]]


def test_a_series_may_take_all_the_room_there_is() -> None:
    slots = Slots(1, slot_bytes=1 << 14)
    words = (1 << 14) // 8 - 3  # but for its lengths and its name
    slots.own(0).find(NAME, (), words)[words - 1] = 7
    assert numbers(slots) == {(): [[*[0.0] * (words - 1), 7.0]]}


def test_every_family_has_room_for_what_has_none() -> None:
    slots = Slots(1, slot_bytes=1 << 14)
    slot = slots.own(0)
    for number in range(1000):
        slot.find(NAME, (str(number),), 1)
    for family in Counts(slot).all():
        family.numbers[("label",) * len(family.labels)][0] += 1
        assert family.name in {name for name, _, _ in slots.series()}


def test_all_parts_of_an_operators_inferences_are_one_series() -> None:
    slots = Slots(1)
    counts = InferenceCounts(slots.own(0))
    counts.observe("A", 7, (1, 2, 3, 4))
    counts.observe("A", 20, None)
    ((name, labels, numbers),) = slots.series()
    assert (name, labels) == (counts.name, ("A",))
    shown = {sample.labels["part"]: sample.value * 1e9 for sample in counts.metric({labels: [[*numbers]]}).samples}
    assert shown == dict(zip(PARTS, [7.0, 20.0, 1.0, 2.0, 3.0, 4.0], strict=True))
