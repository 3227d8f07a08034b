"""Compiled code on disk, so that no other process, now or later, compiles it again."""

import hashlib
import logging
import os
import re
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

log = logging.getLogger("app.execution")

MOST_BYTES = 64 << 20
"""Of all files: of the least recently used ones a quarter goes when there are more. Clients' graphs make any number of
kernels, and in a container the folder may be a small one in memory."""

REST_SECONDS = 60.0
"""How long nothing is written after something could not be: a disk that is full may have room again."""

_OURS = re.compile(r"[0-9a-f]{64}\.(cubin|o)($|\.)")
"""What is removed, if anything is: a folder may have other files."""


class Binaries:
    """Files under `folder`, each by a key, which is a hash with an ending; none are kept where there is no folder.

    Safe to use from several threads and processes. A file is written beside its place and renamed, so that another
    process sees all of it or nothing. It is believed only if the hash at its head fits, and if it belongs to this user,
    or to root: what is in it is executed. A folder that cannot be written costs time and now and then a line in the
    log, no more; what is in it is read.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._bytes: int | None = None
        """Of all files, about: what other processes write is counted when these are too many here."""
        self._lock = threading.Lock()
        self._rests_until = 0.0

    def read(self, key: str) -> bytes | None:
        """What is kept by that key, if anything is."""
        if self._folder is None:
            return None
        try:
            with open(self._folder / key, "rb", opener=_opened) as file:
                if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
                    return None
                stored = file.read()
                with suppress(OSError):  # as of root's
                    os.utime(file.fileno())
        except OSError:
            return None
        head, binary = stored[:32], stored[32:]
        return binary if head == _head(key, binary) else None

    def write(self, key: str, binary: bytes) -> None:
        """Keep it, if there is room on the disk."""
        folder = self._folder
        if folder is None or monotonic() < self._rests_until:
            return
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(folder, 32 + len(binary))
            handle, name = tempfile.mkstemp(prefix=f"{key}.", dir=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_head(key, binary) + binary)
                os.replace(name, folder / key)
            except OSError:  # as of a disk that is full, which is not to stay so
                os.unlink(name)
                raise
        except OSError as error:
            log.warning("compiled kernels are not kept: %s: %s", folder, error.strerror)
            self._rests_until = monotonic() + REST_SECONDS

    def _make_room(self, folder: Path, more: int) -> None:
        with self._lock:
            if self._bytes is None or self._bytes + more > MOST_BYTES:
                self._bytes = _cleared(folder, MOST_BYTES - more)
            self._bytes += more


def _opened(name: str, flags: int) -> int:
    """What is there itself, not what it links to, and without waiting for somebody to write to a pipe."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _head(key: str, binary: bytes) -> bytes:
    """A hash of both, so that a file is not believed under another one's name either."""
    return hashlib.sha256(key.encode() + binary).digest()


def _cleared(folder: Path, most: int) -> int:
    """How many bytes files have when, if they had more than `most`, the least recently used are gone."""
    files = []
    for each in os.scandir(folder):
        try:
            known = each.stat(follow_symlinks=False)
        except FileNotFoundError:  # another process has removed it
            continue
        if _OURS.match(each.name) and each.is_file(follow_symlinks=False):
            files.append((known.st_mtime_ns, known.st_size, each.path))
    total = sum(size for _, size, _ in files)
    if total > most:
        for _, size, path in sorted(files):
            if total <= most * 3 // 4:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
    return total


def cache_folder(setting: str) -> Path | None:
    """Where binaries are kept: `setting`, by default where XDG has caches; nowhere if it is `none`, or for a user
    without a home, as one of a container may be."""
    if setting:
        return None if setting == "none" else Path(setting)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~").expanduser() / ".cache")
    except RuntimeError:
        return None
    return caches / "dmlserve" / "kernels"
