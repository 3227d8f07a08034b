"""What takes long looks between its pieces whether to go on: operators that are calls on whole arrays, and graphs of
many nodes on their way to devices."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Looks(threading.local):
    """What each thread does to look."""

    ensure: Callable[[], None] | None = None


_looks = _Looks()


@contextmanager
def looking(ensure: Callable[[], None]) -> Iterator[None]:
    """Within the `with` block `look`, on this thread, is `ensure`, which raises to end what is done."""
    before, _looks.ensure = _looks.ensure, ensure
    try:
        yield
    finally:
        _looks.ensure = before


def look() -> None:
    """Raises what the `ensure` of `looking` does; to be called between pieces of some milliseconds."""
    if _looks.ensure is not None:
        _looks.ensure()
