"""Files that are read again when they change."""

import os
import stat
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

SECONDS = 1.0
"""How often to look."""

_Stamp: TypeAlias = tuple[int, int, int, int] | None


class Looking(Protocol):
    """Who looks whether something has changed."""

    def look(self) -> None:
        """To be called every SECONDS. Raises nothing."""


class Watched:
    """Calls `read` when one of `files` has changed, and then has stayed as it is from one `look` to the next.

    A file that is being written is so not read by halves, and two that belong together are read together. Only regular
    files are looked at: a pipe has nothing to tell twice. For one thread at a time.
    """

    def __init__(self, files: Sequence[str], read: Callable[[], None]) -> None:
        """`files` were read a moment ago. `read` raises nothing."""
        self._files = files
        self._read = read
        self._known = self._seen = self._stamps()

    def look(self) -> None:
        """To be called every SECONDS."""
        stamps = self._stamps()
        if stamps == self._known:
            return
        if stamps == self._seen:
            self.read()
        self._seen = stamps

    def read(self) -> None:
        """Read them now, changed or not."""
        self._known = self._stamps()  # before they are read: what is written meanwhile is another change
        self._read()

    def _stamps(self) -> list[_Stamp]:
        return [*map(_stamp, self._files)]


def _stamp(file: str) -> _Stamp:
    """What differs when the file was written, or is another one: a secret is replaced by a link to a new folder."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
