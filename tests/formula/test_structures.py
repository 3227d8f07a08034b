"""The cache of what is built: found by questions, bounded, safe for several threads."""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.constants import DataType
from app.formula.structures import Questions, Structures
from app.formula.uniform import Uniformity, evaluator, is_uniform
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Input,
    Operation,
    Parameter,
    Value,
    absolute,
    equal,
    maximum,
    scaled_expm1,
    trunc,
    where,
    widen,
)
from tests.formula.interpreter import evaluate
from tests.formula.spelled import SPELLED, number

A, B = Parameter(FLOAT32, "A"), Parameter(FLOAT32, "B")


def built(questions: Questions) -> list[Any]:
    """Another object each time, with the answers that it depends on: B matters only where A is negative."""
    negative = questions.ask(lambda a: a < 0, A)
    return [negative, questions.ask(lambda b: min(int(b), 3), B) if negative else None]


def test_numbers_with_the_same_answers_share_what_is_built() -> None:
    structures = Structures()
    first = structures.find("key", {"A": 1.0, "B": 0.0}, built)
    assert structures.find("key", {"A": 7.5, "B": 3.0}, built) is first == [False, None]
    negative = structures.find("key", {"A": -1.0, "B": 3.0}, built)
    assert negative == [True, 3]
    assert structures.find("key", {"A": -8.0, "B": 9.0}, built) is negative
    assert structures.find("key", {"A": -8.0, "B": 2.0}, built) == [True, 2]
    assert structures.find("other key", {"A": 1.0, "B": 0.0}, built) is not first
    assert (structures.hits, structures.misses) == (2, 4)


def test_questions_may_be_of_what_is_computed() -> None:
    def of_inverse(questions: Questions) -> list[Any]:
        return [questions.ask(lambda inverse: inverse < 1e-37, 1 / widen(A))]

    structures = Structures()
    assert structures.find("key", {"A": 1e38}, of_inverse) == [True]
    assert structures.find("key", {"A": 2.0}, of_inverse) == [False]
    assert structures.find("key", {"A": 3e38}, of_inverse) == [True]
    assert structures.hits == 1


def test_what_cannot_be_built_is_not_kept() -> None:
    structures = Structures()

    def refuse(questions: Questions) -> list[Any]:
        raise LookupError(questions.ask(lambda a: a, A))

    for _ in range(2):
        with pytest.raises(LookupError, match="4"):
            structures.find("key", {"A": 4}, refuse)
    assert structures.size == 0


def counting(calls: list[Hashable], key: Hashable) -> Callable[[Questions], Hashable]:
    def build(questions: Questions) -> Hashable:
        calls.append(key)
        return (key, questions.ask(lambda a: a, A))

    return build


def test_the_least_recently_used_go() -> None:
    structures = Structures(most=6)  # three structures, each behind a question
    calls: list[Hashable] = []
    for key in "abc":
        structures.find(key, {"A": 1.0}, counting(calls, key))
    structures.find("a", {"A": 1.0}, counting(calls, "a"))
    structures.find("d", {"A": 1.0}, counting(calls, "d"))
    assert structures.size == 6
    for key in "acd":
        assert structures.find(key, {"A": 1.0}, counting(calls, key)) == (key, 1.0)
    assert calls == ["a", "b", "c", "d"]
    structures.find("b", {"A": 1.0}, counting(calls, "b"))
    assert calls[-1] == "b"
    assert structures.size == 6


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=60), st.integers(1, 9))
def test_what_is_found_is_what_would_be_built(wanted: list[tuple[str, int]], most: int) -> None:
    """However little is kept."""
    structures = Structures(most)
    for key, value in wanted:
        assert structures.find(key, {"A": value}, counting([], key)) == (key, value)
        assert structures.size <= most
    assert structures.hits + structures.misses == len(wanted)


def test_threads_that_build_at_once_share() -> None:
    structures, together = Structures(), Barrier(4, timeout=10)

    def build(questions: Questions) -> list[Any]:
        together.wait()
        return [questions.ask(lambda a: a > 0, A)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda a: structures.find("key", {"A": a}, build), [1.0, 2.0, 3.0, 4.0]))
    assert len({id(each) for each in found}) == 1
    assert (structures.size, structures.misses) == (2, 4)


# Values that are the same for all elements


@pytest.mark.parametrize(
    "value",
    [
        number(0.1) * number(3.0),
        1 / widen(number(3.0)),
        widen(number(0.1)) + 0.1,
        -absolute(number(-2.5)),
        where(number(2.0) > 1, number(3.0), 0),
        where(equal(trunc(number(2.5)), number(2.5)) & (number(1.0) >= 0), number(3.0), 7),
        maximum(number(-1.0), -3) / 0,
    ],
)
def test_scalars_are_what_arrays_would_be(value: Value) -> None:
    """With one rounding for each operation."""
    assert is_uniform(value)
    expected = evaluate(value, {})
    made = evaluator(value)(SPELLED)
    assert type(made) is type(expected.item())
    assert made == expected.item()


def test_what_is_asked_while_numbers_are_computed_would_be_in_no_key() -> None:
    with pytest.raises(LookupError, match="in no key"):
        evaluator(scaled_expm1(number(-1.0), number(2.0)))


def test_elements_are_not_the_same_for_all() -> None:
    x = Input(FLOAT64, "X", DataType.FLOAT64)
    assert not is_uniform(x * 2)
    with pytest.raises(TypeError, match="is not the same for all elements"):
        evaluator(x)


def test_each_of_many_values_is_looked_at_once() -> None:
    """Else to ask of each part of a formula takes as long as its square."""
    looks: list[Operation] = []

    class Watched(Operation):
        def operands(self) -> tuple[Value, ...]:
            looks.append(self)
            return self.arguments

    chain: list[Value] = [Parameter(FLOAT32, "A")]
    for _ in range(50):
        chain.append(Watched(FLOAT32, "add", (chain[-1], chain[-1])))
    of_elements = Watched(FLOAT32, "add", (chain[-1], Input(FLOAT32, "X", DataType.FLOAT32)))
    uniformity = Uniformity()
    assert [uniformity(each) for each in chain] == [True] * 51
    assert not uniformity(of_elements)
    assert len(looks) == 51
