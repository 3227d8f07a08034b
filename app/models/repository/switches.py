"""Which models are to be loaded, as clients have said: in one process, or in several that share a folder."""

import os
from pathlib import Path
from typing import NamedTuple, Protocol


class Switch(NamedTuple):
    """What was last said of a model. `generation` is another one each time, and 0 as long as nothing was."""

    generation: int
    is_loaded: bool


UNTOUCHED = Switch(0, True)


class Switches(Protocol):
    """Of models, by name. For event loops."""

    def get(self, name: str) -> Switch:
        """As of now."""

    def set(self, name: str, *, is_loaded: bool) -> None:
        """Have a model loaded, again if it is already, or not. Raises OSError if nobody can be told of it."""


class LocalSwitches:
    """Implements `Switches` for the only process there is."""

    def __init__(self) -> None:
        self._switches: dict[str, Switch] = {}

    def get(self, name: str) -> Switch:
        return self._switches.get(name, UNTOUCHED)

    def set(self, name: str, *, is_loaded: bool) -> None:
        self._switches[name] = Switch(self.get(name).generation + 1, is_loaded)


class SharedSwitches:
    """Implements `Switches` for several processes: a file of `folder` is a model's, called as it is, and holds what was
    said, a byte each time.

    When it was written goes into the generation, too: if somebody removes the folder, all begins anew, and what is said
    then is not to be taken for what was said before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Switch] = {}

    def get(self, name: str) -> Switch:
        if not _is_plain(name):
            return UNTOUCHED
        try:
            status = os.stat(self._folder / name)
            known, generation = self._known.get(name, UNTOUCHED), status.st_mtime_ns + status.st_size
            if generation != known.generation:  # what is said meanwhile is read now, and once more
                is_loaded = (self._folder / name).read_bytes().endswith(b"+")
                known = self._known[name] = Switch(generation, is_loaded)
        except (OSError, ValueError):
            return UNTOUCHED
        return known

    def set(self, name: str, *, is_loaded: bool) -> None:
        self._folder.mkdir(exist_ok=True)
        # What is appended by several processes at once comes one after the other.
        file = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, b"+" if is_loaded else b"-")
        finally:
            os.close(file)


def _is_plain(name: str) -> bool:
    return "/" not in name and "\0" not in name and len(name) <= 128 and name not in ("", ".", "..")
