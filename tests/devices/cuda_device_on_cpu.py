"""The CUDA device without a GPU: its memory is the host's, NumPy stands in for CuPy, and kernels of formulas that go by
coordinates are built for the CPU."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from app.devices.cpu.llvm.copying import Copying
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.cuda.ready import Ready
from app.devices.device import ExecutionRecord
from app.formula.structures import Structures
from app.memory.arrays import Array
from tests.devices.cuda_on_cpu import BuiltKernels

CHUNK = 1 << 12
"""Bytes of a slot, so that tensors take several."""


class CudaError(RuntimeError):
    """What CuPy raises."""

    __module__ = "cupy_backends.cuda.api.runtime"
    status = 1


class OutOfMemory(MemoryError):
    __module__ = "cupy.cuda.memory"


class Memory:
    """Of the device, filled with what nobody may see."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(max(size, 1), 0xA5, np.uint8)
        self.ptr = self.bytes.ctypes.data


class Pool:
    """Counts what is taken. A slot's keeps, as CuPy's do, what nobody uses any more."""

    def __init__(self, allocator: Callable[[int], Memory] = Memory) -> None:
        self._allocator = allocator
        self._kept: list[Memory] = []
        self.taken = 0
        self.left: int | None = None
        """Bytes that may still be taken."""

    def malloc(self, size: int) -> Memory:
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise OutOfMemory
        self.taken += 1
        self._kept.append(self._allocator(size))
        return self._kept[-1]

    def total_bytes(self) -> int:
        return sum(len(each.bytes) for each in self._kept)

    def free_all_blocks(self) -> None:
        self._kept.clear()


class Cupy:
    """NumPy by the name of CuPy."""

    def __init__(self, log: list[str]) -> None:
        @contextmanager
        def using_allocator(malloc: Callable[..., Any]) -> Iterator[None]:
            log.append("allocator")
            yield
            log.append("allocator left")

        self.cuda = SimpleNamespace(
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemory),
            runtime=SimpleNamespace(CUDARuntimeError=CudaError, deviceSynchronize=lambda: None, getDevice=lambda: 0),
            driver=SimpleNamespace(CUDADriverError=CudaError),
            using_allocator=using_allocator,
            MemoryPool=Pool,
            get_elapsed_time=lambda begun, ended: 1e3 * (ended - begun),
            UnownedMemory=lambda address, size, owner, ordinal: (address, size),
            MemoryPointer=lambda memory, offset: memory,
        )

    @staticmethod
    def ndarray(sizes: Any, dtype: Any, memory: tuple[int, int], strides: Any) -> Any:
        address, size = memory
        held: Any = (ctypes.c_char * size).from_address(address)
        return np.ndarray(sizes, dtype, held, 0, strides)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class Stream:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __enter__(self) -> None:
        self._log.append("stream")

    def __exit__(self, *error: object) -> None:
        self._log.append("stream left")

    def record(self) -> float:
        self._log.append("event")
        return time.perf_counter()

    def synchronize(self) -> None:
        self._log.append("synchronized")


class Slots:
    def __init__(self, log: list[str]) -> None:
        self.size = CHUNK
        self.taken = 0
        memory = np.zeros(CHUNK, np.uint8)
        self._slot = SimpleNamespace(host=memory.data, host_address=memory.ctypes.data, stream=Stream(log))
        self._memory = Memory(CHUNK)
        self._slot.address = self._memory.ptr
        self._slot.scratch, self._slot.generation = Pool(), 0
        self._slot.empty = self._empty

    def _empty(self) -> None:
        self._slot.generation += 1
        self._slot.scratch.free_all_blocks()

    def empty_idle(self) -> None:
        if not self.taken:
            self._empty()

    @contextmanager
    def take(self) -> Iterator[Any]:
        assert not self.taken, "who holds one does not take another"
        self.taken += 1
        try:
            yield self._slot
        finally:
            self.taken -= 1

    @contextmanager
    def take_some(self, most: int) -> Iterator[list[Any]]:
        with self.take() as slot:
            yield [slot]


class CudaDeviceOnCpu(CudaDevice):
    """What of the device is not its own is replaced; `log` has what was done on the stream."""

    def __init__(self, kernels: BuiltKernels) -> None:
        self.log: list[str] = []
        self.kernels_built = kernels
        self._cupy: Any = Cupy(self.log)
        self.ordinal, self.name = 0, "cuda:0"
        self.ran = ExecutionRecord(self.name, "cuda")
        self.out_of_service = None
        self.short_until = 0.0
        self.structures = Structures()
        self.pool: Any = Pool()
        self.ready = Ready(1 << 24)
        self.most_kept = 1 << 20
        self.slots: Any = Slots(self.log)
        self.pinned = PinnedMemory(0)
        self.copying = Copying(None)
        self.uses_host_addresses = True
        self.shared_of_few = 1 << 10
        self.clustered = self.load = self.long_dispatches = 0
        self._lock, self._capturing, self._holding = threading.Lock(), threading.Lock(), threading.local()
        self._firsts, self._called = {}, set()
        self._kept, self._tensors, self._uploading = WeakKeyDictionary(), WeakValueDictionary(), threading.Lock()
        self._sources: list[str] = []
        self.ahead: set[str] = set()
        """What was compiled before it was wanted."""
        self.shared: dict[bytes, Array] = {}
        """What handles lead to."""
        self.opened: list[int] = []
        """Addresses of that which is open."""

    def use(self) -> None:
        pass

    def function(self, source: str) -> int:
        assert source in self.ahead or not self.slots.taken, "who holds a slot keeps others waiting"
        self._sources.append(source)
        return len(self._sources) - 1

    def compile_ahead(self, sources: Iterable[str]) -> None:
        assert not self.slots.taken, "who holds a slot keeps others waiting"
        self.ahead.update(sources)

    def has_function(self, source: str) -> bool:
        return source in self._sources

    def launch(self, function: int, blocks: int, threads: int, stream: Any, table: int, shared: int) -> None:
        assert isinstance(stream, Stream)
        self.log.append("kernel of few blocks" if shared else "kernel")
        self.kernels_built.find(self._sources[function]).launch(blocks, table)

    def to_device(self, target: int, source: int, size: int, stream: Any) -> None:
        self.log.append("in")
        ctypes.memmove(target, source, size)

    def to_host(self, target: int, source: int, size: int, stream: Any) -> None:
        self.log.append("out")
        ctypes.memmove(target, source, size)

    def within(self, target: int, source: int, size: int, stream: Any) -> None:
        self.log.append("within")
        ctypes.memmove(target, source, size)

    def open_shared(self, handle: bytes) -> int:
        if handle not in self.shared:
            raise CudaError("cudaErrorInvalidValue: invalid argument")
        address: int = self.shared[handle].ctypes.data
        self.opened.append(address)
        return address

    def close_shared(self, address: int) -> None:
        self.opened.remove(address)

    def bytes_from(self, address: int) -> int:
        return next(each.nbytes for each in self.shared.values() if each.ctypes.data == address)

    def clear(self, target: int, size: int, stream: Any) -> None:
        self.log.append("clear")
        ctypes.memset(target, 0, size)

    def captured(self, queue: Callable[[Any], None], stream: Any) -> Any:
        self.log.append("captured")
        return SimpleNamespace(launch=queue)
