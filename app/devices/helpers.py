"""Work that idle threads help with."""

from collections.abc import Callable
from concurrent.futures import Executor, wait


def run_with(helpers: Executor, count: int, work: Callable[[], None]) -> None:
    """Run `work` on this thread and, as far as they are idle, on `count` of `helpers`, until there is no more to do.

    Raises what `work` raises, when no thread is in it any more.
    """
    asked = [helpers.submit(work) for _ in range(count)]
    try:
        work()
    finally:
        # A helper that has not started would find nothing left to do. One that has is in its last piece.
        started = [helper for helper in asked if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()
