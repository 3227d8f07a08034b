"""What takes long looks between its pieces whether to go on, and has them done by the threads that are at hand:
operators that are calls on whole arrays, and graphs of many nodes on their way to devices."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Sharing(Protocol):
    """Threads that do pieces of work together: `most` at a time."""

    most: int

    def share(self, count: int, work: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        """Call `work` with each number below `count`. Raises what `work` raises."""

    def copied(self, x: Any, target: Any) -> bool:
        """Write `x` to `target`, an array of the same shape, if they are quicker at it than the library; whether they
        have."""


class _Looks(threading.local):
    """What each thread does to look, and who helps it."""

    ensure: Callable[[], None] | None = None
    threads: Sharing | None = None


_looks = _Looks()


@contextmanager
def looking(ensure: Callable[[], None], threads: Sharing | None = None) -> Iterator[None]:
    """Within the `with` block `look`, on this thread, is `ensure`, which raises to end what is done, and `shared` has
    these threads."""
    before, _looks.ensure, _looks.threads = (_looks.ensure, _looks.threads), ensure, threads
    try:
        yield
    finally:
        _looks.ensure, _looks.threads = before


def look() -> None:
    """Raises what the `ensure` of `looking` does; to be called between pieces of some milliseconds."""
    if _looks.ensure is not None:
        _looks.ensure()


def at_hand() -> int:
    """How many threads `shared` has."""
    return _looks.threads.most if _looks.threads else 1


def shared(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with each number below `count`, on the threads at hand, with a look before each."""
    threads, ensure = _looks.threads, _looks.ensure
    if threads is None:
        for turn in range(count):
            look()
            work(turn)
        return

    def looked(turn: int) -> None:
        if ensure is not None:
            ensure()
        work(turn)

    threads.share(count, looked, lambda: False)


def copied(x: Any, target: Any) -> bool:
    """Write `x` to `target`, an array of the same shape and another type, if the threads at hand are quicker at it than
    the library; whether they have."""
    return _looks.threads is not None and _looks.threads.copied(x, target)
