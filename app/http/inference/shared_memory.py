"""Triton's system shared memory extension: tensors in POSIX shared memory that a client on the same machine has made.

Regions are read and written through their file, not mapped: when a client truncates an object, a read of it comes back
short, where an access to mapped memory would end the process.
"""

import os
import re
import resource
import stat
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from app.contract.validation import abbreviate
from app.contract.violations import ContractError, refused
from app.http.inference import documents
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

FOLDER = Path("/dev/shm")  # noqa: S108 - no temporary file: shm_open works on it
"""Where shm_open has its objects."""

MAX_REGIONS = 1024
"""Each holds a file open, so there may be fewer where a process may have few."""

_KEY = re.compile(r"/?(?!sem\.)[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}")
_NAME = re.compile(r"[^\x00-\x1f/]{1,256}")


def most_regions() -> int:
    """How many regions this process may have: an eighth of the files that it may open, at most MAX_REGIONS."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_REGIONS if files == resource.RLIM_INFINITY else min(MAX_REGIONS, files // 8)


class AlreadyRegistered(Exception):
    """There is a region of this name."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Region:
    """`byte_size` bytes from `offset` on of the object `key`, which stays open as long as the region is used."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int

    def read(self, start: int, size: int, memory: MemoryShare) -> Buffer:
        """A copy of `size` bytes from `start` on. Raises ContractError, MemoryExhausted, LimitExceeded."""
        self._check(start, size)
        copy = memory.buffer(size)
        done = 0
        while done < size:
            count = os.preadv(self.file, [copy[done:]], self.offset + start + done)
            if count == 0:
                raise self._shrunk()
            done += count
        return copy

    def write(self, start: int, data: Buffer) -> None:
        """Put `data` at `start`. Raises ContractError."""
        self._check(start, data.nbytes)
        if os.fstat(self.file).st_size < self.offset + start + data.nbytes:
            raise self._shrunk()
        done = 0
        while done < data.nbytes:
            done += os.pwrite(self.file, data[done:], self.offset + start + done)

    def _check(self, start: int, size: int) -> None:
        if start + size > self.byte_size:
            raise refused(
                ("shared_memory_region",),
                f"Region {abbreviate(self.name)} has {self.byte_size} bytes; {size} at offset {start} are not all "
                "in it.",
                start + size,
                self.byte_size,
            )

    def _shrunk(self) -> ContractError:
        return refused(
            ("shared_memory_region",),
            f"Region {abbreviate(self.name)} was registered with {self.byte_size} bytes at offset {self.offset} of "
            f"{self.key}, which has become smaller since; register it again.",
        )


class Regions:
    """The registered regions."""

    def __init__(self) -> None:
        self.most = most_regions()
        self._regions: dict[str, Region] = {}
        self._lock = threading.Lock()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the object `key` under a name. Raises ContractError, AlreadyRegistered."""
        if not _NAME.fullmatch(name):
            raise refused(("name",), "A region's name has 1 to 256 characters and no control characters.", name)
        if not _KEY.fullmatch(key):
            raise refused(
                ("key",),
                f"key {abbreviate(key)} is no name of a shared memory object: letters, digits, _ . - after at most one "
                "/, and no semaphore's.",
                key,
            )
        with self._lock:
            if name in self._regions:
                raise AlreadyRegistered(f"There is a region {abbreviate(name)} already; unregister it first.")
            if len(self._regions) >= self.most:
                raise refused(("name",), f"There are {self.most} regions, the most there may be.", name, self.most)
            self._regions[name] = _opened(name, key, offset, byte_size)

    def find(self, name: str) -> Region:
        """The region of this name. Raises ContractError."""
        try:
            return self._regions[name]
        except KeyError:
            raise refused(
                ("shared_memory_region",), f"There is no region {abbreviate(name)}; register it before its use.", name
            ) from None

    def names(self) -> list[str]:
        return list(self._regions)

    def documents(self, name: str | None = None) -> list[documents.SharedMemoryRegion]:
        """What is registered, of all regions or of one."""
        return [
            documents.SharedMemoryRegion(
                name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
            )
            for region in list(self._regions.values())
            if name in (None, region.name)
        ]

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all. What is being executed goes on with it."""
        with self._lock:
            if name is None:
                self._regions.clear()
            else:
                self._regions.pop(name, None)


def _opened(name: str, key: str, offset: int, byte_size: int) -> Region:
    path = FOLDER / key.removeprefix("/")
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise refused(("key",), f"Shared memory {key} cannot be opened: {error.strerror}.", key) from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise refused(("key",), f"{key} is no shared memory object.", key)
        if offset + byte_size > found.st_size:
            raise refused(
                ("byte_size",),
                f"{key} has {found.st_size} bytes; {byte_size} at offset {offset} are not all in it.",
                offset + byte_size,
                found.st_size,
            )
    except ContractError:
        os.close(file)
        raise
    region = Region(name, key, offset, byte_size, file)
    weakref.finalize(region, os.close, file)  # also after an execution that still uses it
    return region
