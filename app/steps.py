"""Work in steps. What serves several requests takes one step of each of them before the next step of any.

The code and the data of one request are more than a processor's first caches hold, so that a step takes two to three
times as long as right after the same step of another request (tests/benchmarks/http.md).
"""

import threading
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class _Here(threading.local):
    has_others = False
    """Whether what this thread runs is to let others come as far: to stop and go on takes a while."""


here = _Here()


@types.coroutine
def in_step() -> Generator[None, None, None]:
    """Let others come as far, if there are any."""
    if here.has_others:
        yield


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, which waits for nothing but `in_step`."""
    before, here.has_others = here.has_others, False
    try:
        work.send(None)
    except StopIteration as done:
        made: T = done.value
        return made
    finally:
        here.has_others = before
    raise AssertionError("it waits for something")
