"""When the stages of one request began and ended, for its trace. A request without one is timed by nobody."""

import threading
from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stage(NamedTuple):
    """Times are nanoseconds since 1970."""

    name: str
    begun: int
    ended: int


class Stages:
    """Those of one request. Several threads may add to them."""

    __slots__ = ("begun", "done")

    def __init__(self) -> None:
        self.begun = time_ns()
        self.done: list[Stage] = []

    def add(self, name: str, begun: int) -> None:
        """One that ends now."""
        self.done.append(Stage(name, begun, time_ns()))


class _Current(threading.local):
    stages: Stages | None = None


_current = _Current()


def recorded(stages: Stages | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns; what it calls by `staged` in this thread is added to `stages`, if there are any."""
    if stages is None:
        return work(*args, **kwargs)
    before, _current.stages = _current.stages, stages
    try:
        return work(*args, **kwargs)
    finally:
        _current.stages = before


def inherited(work: Callable[[], T]) -> Callable[[], T]:
    """`work` for another thread, recorded with the same request as this one's."""
    stages = _current.stages
    return work if stages is None else partial(recorded, stages, work)


def staged(name: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns, which is a stage of the request that this thread works for, if that is recorded."""
    stages = _current.stages
    if stages is None:
        return work(*args, **kwargs)
    begun = time_ns()
    try:
        return work(*args, **kwargs)
    finally:
        stages.add(name, begun)
