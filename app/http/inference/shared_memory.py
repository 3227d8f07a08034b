"""Triton's shared memory extensions: tensors in POSIX shared memory, or on a GPU, that a client on the same machine has
made.

What is on a GPU is used where it is. The system's regions are read and written through their file, not mapped: when a
client truncates an object, a read of it comes back short, where an access to mapped memory would end the process.
"""

import base64
import os
import re
import resource
import stat
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from starlette.exceptions import HTTPException

from app.contract.validation import abbreviate, in_words
from app.contract.violations import ContractError, refused
from app.devices.cuda.shared import NotShared, SharedMemory
from app.devices.device import OnDevice
from app.devices.placement import Placement
from app.http.inference import documents
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

FOLDER = Path("/dev/shm")  # noqa: S108 - no temporary file: shm_open works on it
"""Where shm_open has its objects."""

MAX_REGIONS = 1024
"""Each of the system's holds a file open, so there may be fewer where a process may have few."""

HANDLE_BYTES = 64
"""Of a cudaIpcMemHandle_t."""

_KEY = re.compile(r"/?(?!sem\.)[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}")
_NAME = re.compile(r"[^\x00-\x1f/]{1,256}")


def most_regions() -> int:
    """How many regions this process may have: an eighth of the files that it may open, at most MAX_REGIONS."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_REGIONS if files == resource.RLIM_INFINITY else min(MAX_REGIONS, files // 8)


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
        check_span(self, start, size)
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
        check_span(self, start, data.nbytes)
        if os.fstat(self.file).st_size < self.offset + start + data.nbytes:
            raise self._shrunk()
        done = 0
        try:
            while done < data.nbytes:
                done += os.pwrite(self.file, data[done:], self.offset + start + done)
        except OSError as error:  # as where the system has no memory for what the client has not written to
            raise refused(
                ("shared_memory_region",), f"Region {in_words(self.name)} cannot be written: {error.strerror}."
            ) from None

    def described(self) -> documents.SharedMemoryRegion:
        """What clients are told of it."""
        return documents.SharedMemoryRegion(name=self.name, key=self.key, offset=self.offset, byte_size=self.byte_size)

    def _shrunk(self) -> ContractError:
        return refused(
            ("shared_memory_region",),
            f"Region {in_words(self.name)} was registered with {self.byte_size} bytes at offset {self.offset} of "
            f"{self.key}, which has become smaller since; register it again.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class CudaRegion:
    """The first `byte_size` bytes of `memory`, which stays open as long as the region is used."""

    name: str
    device_id: int
    byte_size: int
    memory: SharedMemory

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self.memory.device.name

    def span(self, start: int, size: int) -> OnDevice:
        """`size` bytes from `start` on, where they are. Raises ContractError."""
        check_span(self, start, size)
        return OnDevice(self.memory.address + start, size, self.memory)

    def described(self) -> documents.CudaSharedMemoryRegion:
        """What clients are told of it."""
        return documents.CudaSharedMemoryRegion(name=self.name, device_id=self.device_id, byte_size=self.byte_size)


AnyRegion: TypeAlias = Region | CudaRegion
Asked: TypeAlias = documents.SharedMemoryRegisterRequest | documents.CudaSharedMemoryRegisterRequest


class Regions:
    """The registered regions. Those on GPUs share their names with the system's."""

    def __init__(self, placement: Placement) -> None:
        self.most = most_regions()
        self._placement = placement
        self._regions: dict[str, AnyRegion] = {}
        self._lock = threading.Lock()

    @property
    def has_gpus(self) -> bool:
        """Whether there may be regions on GPUs."""
        return bool(self._placement.gpus)

    def register(self, name: str, asked: Asked) -> None:
        """Open what is asked for under a name. Raises ContractError, HTTPException 409."""
        if not _NAME.fullmatch(name):
            raise refused(("name",), "A region's name has 1 to 256 characters and no control characters.", name)
        with self._lock:
            if name in self._regions:
                raise HTTPException(409, f"There is a region {in_words(name)} already; unregister it first.")
            if len(self._regions) >= self.most:
                raise refused(("name",), f"There are {self.most} regions, the most there may be.", name, self.most)
            if isinstance(asked, documents.SharedMemoryRegisterRequest):
                self._regions[name] = _opened(name, asked)
            else:
                self._regions[name] = self._opened_cuda(name, asked)

    def _opened_cuda(self, name: str, asked: documents.CudaSharedMemoryRegisterRequest) -> CudaRegion:
        raw_handle, device_id, byte_size = asked.raw_handle.b64, asked.device_id, asked.byte_size
        gpu = self._placement.gpu(f"cuda:{device_id}")
        if gpu is None:
            ordinals = [each.ordinal for each in self._placement.gpus]
            there = f"device_id is {' or '.join(map(str, ordinals))}" if ordinals else "it has no GPU"
            raise refused(("device_id",), f"The service does not use GPU {device_id}; {there}.", device_id, ordinals)
        try:
            handle = base64.b64decode(raw_handle, validate=True)
        except ValueError:
            handle = b""
        if len(handle) != HANDLE_BYTES:
            raise refused(
                ("raw_handle", "b64"),
                f"b64 of raw_handle is no base64 of {HANDLE_BYTES} bytes, which a cudaIpcMemHandle_t has.",
                abbreviate(raw_handle),
            )
        try:
            memory = SharedMemory(handle, gpu)
        except NotShared as error:
            raise refused(("raw_handle",), f"raw_handle leads to no memory of another process: {error}.") from None
        if byte_size > memory.size:
            raise refused(
                ("byte_size",),
                f"raw_handle leads to {memory.size} bytes on {gpu.name}; byte_size is {byte_size}.",
                byte_size,
                memory.size,
            )
        return CudaRegion(name, device_id, byte_size, memory)

    def find(self, name: str) -> AnyRegion:
        """The region of this name. Raises ContractError."""
        try:
            return self._regions[name]
        except KeyError:
            raise refused(
                ("shared_memory_region",), f"There is no region {in_words(name)}; register it before its use.", name
            ) from None

    def found(self, names: Iterable[str]) -> dict[str, AnyRegion]:
        """Those of these names. Raises ContractError."""
        return {name: self.find(name) for name in names}

    def of(self, kind: type[AnyRegion]) -> list[AnyRegion]:
        """Those of one kind."""
        return [region for region in list(self._regions.values()) if isinstance(region, kind)]

    def unregister(self, kind: type[AnyRegion], name: str | None = None) -> None:
        """Forget a region of one kind, or all. What is being executed goes on with it."""
        with self._lock:
            for region in self.of(kind):
                if name in (None, region.name):
                    del self._regions[region.name]


def gpu_of(regions: Iterable[AnyRegion]) -> str | None:
    """The GPU that regions are on, as far as there are such. Raises ContractError for several."""
    found: CudaRegion | None = None
    for region in regions:
        if isinstance(region, CudaRegion):
            if found and found.device != region.device:
                raise refused(
                    ("shared_memory_region",),
                    f"Region {in_words(found.name)} is on {found.device} and region {in_words(region.name)} on "
                    f"{region.device}; one dispatch takes regions of one GPU.",
                    region.device,
                    found.device,
                )
            found = region
    return found.device if found else None


def check_span(region: AnyRegion, start: int, size: int) -> None:
    """Whether `size` bytes from `start` on are all in `region`. Raises ContractError."""
    if start + size > region.byte_size:
        raise refused(
            ("shared_memory_region",),
            f"Region {in_words(region.name)} has {region.byte_size} bytes; {size} at offset {start} are not all in it.",
            start + size,
            region.byte_size,
        )


def _opened(name: str, asked: documents.SharedMemoryRegisterRequest) -> Region:
    key, offset, byte_size = asked.key, asked.offset, asked.byte_size
    if not _KEY.fullmatch(key):
        raise refused(
            ("key",),
            f"key {in_words(key)} is no name of a shared memory object: letters, digits, _ . - after at most one /, "
            "and no semaphore's.",
            key,
        )
    path = FOLDER / key.removeprefix("/")
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
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
