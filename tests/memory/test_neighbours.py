"""Processes that ask each other for memory: here threads, for they share it in the same way."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.memory.neighbours import Neighbours

FOR_EVER = 60.0
ONE, OTHER = 62, 63


def never() -> bool:
    return False


def fail() -> None:
    pytest.fail("nobody asked for that")


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_who_asks_waits_until_all_have_given_what_they_keep(asking: ThreadPoolExecutor, order: tuple[int, int]) -> None:
    neighbours = Neighbours(3)
    members = [neighbours.member(number) for number in range(3)]
    second = members[1]
    given: list[bool] = []
    asked = asking.submit(second.ask, OTHER, FOR_EVER, never)

    def free() -> None:
        time.sleep(0.05)
        given.append(asked.done())

    for member in (members[number] for number in order):
        assert not asked.done()
        while not given:
            member.answer(ONE, fail)
            member.answer(OTHER, free)
        assert given == [False], "it is told when it is given"
        given.clear()
        member.answer(OTHER, fail)
    asked.result(10)
    second.answer(OTHER, fail)  # by itself


def test_nobody_is_asked_twice_or_forgotten(asking: ThreadPoolExecutor) -> None:
    neighbours = Neighbours(2)
    one, other = neighbours.member(0), neighbours.member(1)
    for turn in range(1, 4):
        given: list[int] = []
        asked = asking.submit(one.ask, ONE, FOR_EVER, never)
        while not asked.done():
            other.answer(ONE, lambda given=given, turn=turn: given.append(turn))  # type: ignore[misc]
        assert given == [turn]


def test_who_does_not_answer_keeps_nobody_from_being_asked_again() -> None:
    neighbours = Neighbours(3)
    given: list[int] = []
    for turn in range(3):
        neighbours.member(1).ask(ONE, 0, never)  # which the first does not hear
        neighbours.member(2).answer(ONE, lambda turn=turn: given.append(turn))  # type: ignore[misc]
    assert given == [0, 1, 2]


def test_who_is_not_answered_waits_no_longer_than_it_said() -> None:
    neighbours = Neighbours(2)
    began = time.monotonic()
    neighbours.member(0).ask(ONE, 0.05, never)
    assert 0.05 <= time.monotonic() - began < 10


def test_who_is_not_wanted_any_more_waits_no_longer() -> None:
    began = time.monotonic()
    Neighbours(2).member(0).ask(ONE, FOR_EVER, lambda: True)
    assert time.monotonic() - began < 10
