"""What was built once for all requests that differ in numbers only: formulas, and what devices make of them.

Whoever builds is given no numbers, but may ask `Questions` of them. Building is deterministic but for the answers, so
the questions form a tree: its root is the key, a question has one branch for each answer, and at the end is what was
built. To find it for other numbers is to ask these the questions on the way, and so nothing that is built can depend
on a number without its key knowing.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from app.formula.uniform import Evaluate, Numbers, evaluator
from app.formula.values import Value

T = TypeVar("T")

MOST = 2048
"""Structures, and questions on the way to them, that are kept. The largest have some 10 KB of source."""


@dataclass(frozen=True, eq=False, slots=True)
class Question:
    """`test` of what the `subjects` are for a request. Each question is a place in the tree, equal to itself alone."""

    test: Callable[..., Hashable]
    subjects: tuple[Evaluate, ...]

    def answer(self, numbers: Numbers) -> Hashable:
        return self.test(*[subject(numbers) for subject in self.subjects])


class Questions:
    """Answers from one request's numbers, and remembers what was asked."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.asked: list[tuple[Question, Hashable]] = []

    def ask(self, test: Callable[..., Any], *subjects: Value) -> Any:
        """What `test`, a function of nothing but its arguments, says of the numbers of `subjects`, which are uniform.

        Answers are hashable, and few: there will be one structure for each.
        """
        question = Question(test, tuple(map(evaluator, subjects)))
        answer = question.answer(self._numbers)
        self.asked.append((question, answer))
        return answer


@dataclass(frozen=True, slots=True)
class _Built:
    value: Any


class Structures:
    """At most `most` structures and questions, the least recently used of which are dropped.

    Safe to use from several threads. `hits` and `misses` count how often something was found, and built.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.hits = self.misses = 0
        self._entries: OrderedDict[Hashable, Question | _Built] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """How many structures and questions are kept."""
        return len(self._entries)

    def find(self, key: Hashable, numbers: Numbers, build: Callable[[Questions], T]) -> T:
        """What `build` makes for `key` and for the answers that `numbers` give, built now or before.

        Threads that build the same at once all get what the first of them put here. Raises what `build` does.
        """
        found: T | None = self.known(key, numbers)
        if found is not None:
            return found
        with self._lock:
            self.misses += 1
        questions = Questions(numbers)
        return self._put(key, questions, build(questions))

    def known(self, key: Hashable, numbers: Numbers) -> Any:
        """What was built for these before, or None."""
        with self._lock:
            known = self._known(key, numbers)
            if known is None:
                return None
            self.hits += 1
        return known.value

    def _known(self, key: Hashable, numbers: Numbers) -> _Built | None:
        place, entry = key, self._entries.get(key)
        while entry is not None:
            self._entries.move_to_end(place)
            if isinstance(entry, _Built):
                return entry
            place = (entry, entry.answer(numbers))
            entry = self._entries.get(place)
        return None

    def _put(self, key: Hashable, questions: Questions, value: T) -> T:
        with self._lock:
            place: Hashable = key
            for question, answer in questions.asked:
                known = self._entries.setdefault(place, question)
                self._entries.move_to_end(place)
                place = (known, answer)
            entry = self._entries.setdefault(place, _Built(value))
            self._entries.move_to_end(place)
            while len(self._entries) > self.most:
                self._entries.popitem(last=False)
            assert isinstance(entry, _Built), "what is built depends on answers alone"
            kept: T = entry.value
            return kept
