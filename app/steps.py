"""Work in steps. What serves several requests takes one step of each of them before the next step of any.

The code and the data of one request are more than a processor's first caches hold, so that a step takes two to three
times as long as right after the same step of another request (tests/benchmarks/http.md).
"""

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def in_step() -> Generator[None, None, None]:
    """Let others come as far. In a task, that is a turn of its event loop."""
    yield


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, which waits for nothing but `in_step`, in a thread that serves nobody else."""
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        made: T = done.value
        return made
