"""Clients that ask and compare until they are told to stop, and what becomes of it."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from tests.fuzz.connection import Connection
from tests.fuzz.exchanges import Exchange, Exchanges
from tests.fuzz.payload import Wrong


class Tally:
    """What was answered right, and what was not. For any thread."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def right(self, *labels: str) -> None:
        with self._lock:
            self.counted.update(labels)

    def wrong(self, failure: str) -> None:
        with self._lock:
            self.failures.append(failure)

    def missing(self, least: dict[str, int]) -> dict[str, int]:
        """What was counted less often than it has to be, and how often."""
        with self._lock:
            return {label: self.counted[label] for label, times in least.items() if self.counted[label] < times}


@dataclass
class Client:
    """What one thread does: episodes, each with random numbers and connections of its own."""

    behaviour: str
    number: int
    """Among those of the same behaviour."""
    peers: int
    """How many these are."""
    seed: str
    port: int
    exchanges: Exchanges
    tally: Tally
    episode: int = 0
    rng: random.Random = field(default_factory=random.Random)
    _owners: Iterator[str] = field(default_factory=lambda: iter(()))

    def run(self, act: Callable[["Client"], None], is_over: Callable[[], bool]) -> None:
        """One episode after another. A wrong answer ends one."""
        while not is_over():
            name = f"{self.behaviour} {self.number}, episode {self.episode}"
            self.rng = random.Random(f"{self.seed} {name}")
            self._owners = (f"{name}, request {each}" for each in count(1))
            try:
                act(self)
            except Wrong as wrong:
                told = str(wrong)
                self.tally.wrong(told if told.startswith(name) else f"{name}: {told}")
            except Exception as error:
                self.tally.wrong(f"{name}: {error!r}")
                raise
            self.episode += 1

    @contextmanager
    def connected(self, receive_buffer: int | None = None) -> Iterator[Connection]:
        connection = Connection(self.port, receive_buffer)
        try:
            yield connection
        finally:
            connection.close()

    def owner(self) -> str:
        """Of the next request."""
        return next(self._owners)

    def some(self) -> Exchange:
        return self.exchanges.some(self.rng, self.owner())

    def check(self, connection: Connection, exchange: Exchange, *labels: str, at_once: int | None = None) -> None:
        """The next answer is that of `exchange`, which is read in pieces of so many bytes. Raises Wrong."""
        try:
            answer = connection.receive(at_once) if at_once else connection.receive()
        except Wrong as wrong:
            raise Wrong(f"{exchange}: {wrong}") from None
        exchange.verify(answer)
        self.tally.right(self.behaviour, *exchange.labels, *labels)
