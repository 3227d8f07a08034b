"""A GPU and what belongs to it: its streams, memory, loaded kernels, and what becomes of its errors."""

import ctypes
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

import numpy as np

from app.devices.cpu.llvm.copying import Copying
from app.devices.cpu.llvm.team import Team
from app.devices.cuda.compiler import WRITTEN, CompilationError, KernelCache
from app.devices.cuda.grids import KERNEL
from app.devices.cuda.pinned import ALIGNMENT, PinnedMemory, Slots
from app.devices.cuda.ready import Ready
from app.devices.device import DeviceFailed, ExecutionRecord
from app.formula.structures import Structures
from app.operators import written

log = logging.getLogger("app.execution")

_CUPY = ("cupy", "cupy_backends")

SLOTS = 8
"""Of a GPU: so many dispatches are under way at a time, each in up to three of them."""

READY_SHARE = 16
"""How much of a GPU's memory may wait for the next dispatches, as a divisor. It is given back when memory is short."""

KEPT, _AT_A_TIME = 1 << 11, 4
"""Kernels of formulas, and as many written in CUDA C++, that stay loaded, as many as there are structures, and how many
of those beyond are looked at when one comes: graphs, and sizes, can make any number of them, each of which takes memory
of the GPU."""


def _references() -> int:
    """To what nobody has but one variable of a function's: how many are counted differs by Python's version."""
    alone = object()
    return getrefcount(alone)


_REFERENCES = _references()

_HOST_ADDRESSES, _SHARED_BYTES = 91, 81
"""cudaDevAttrCanUseHostPointerForRegisteredMem and cudaDevAttrMaxSharedMemoryPerMultiprocessor."""

_MULTIPROCESSORS, _CLUSTERS = 16, 90
"""cudaDevAttrMultiProcessorCount, and the architecture from which on there are clusters of blocks."""

_MOST_SHARED, _SHARED_UNASKED = 8, 48 << 10
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, and what it is if not set."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change about a GPU and its software."""

    description: str
    compute_capability: str
    architecture: int
    driver_version: str
    runtime_version: str


class Context:
    """The GPU number `ordinal`, with threads, streams and pinned memory of its own.

    `staging_bytes` is how much pinned memory dispatches are moved through, as much again being taken on the device;
    buffers that lie in `pinned` are moved as they are. Sources of kernels are kept in `structures`.
    Dispatches raise DeviceFailed; once the GPU has failed for good, `out_of_service` says why.
    """

    def __init__(
        self,
        ordinal: int,
        cache: KernelCache,
        staging_bytes: int,
        pinned: PinnedMemory,
        structures: Structures | None = None,
        team: Team | None = None,
    ) -> None:
        """A `team` copies what does not lie in pinned memory."""
        import cupy  # noqa: PLC0415 - only with a GPU extra

        self._cupy = cupy
        self._launch_kernel = cupy.cuda.driver.launchKernel
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.ran = ExecutionRecord(self.name, "cuda")
        """What a dispatch on it tells."""
        self.out_of_service: str | None = None
        self.short_until = 0.0
        """By the monotonic clock: memory may be short until then."""
        self.cache = cache
        self.structures = structures or Structures()
        self.use()
        self.facts = _facts(cupy, ordinal)
        self.pool: Any = cupy.cuda.MemoryPool()
        share: int = cupy.cuda.runtime.memGetInfo()[1] // READY_SHARE
        self.ready: Ready[Any] = Ready(share)
        self.most_kept = share // SLOTS
        """Bytes that are kept for one dispatch at most, and for what the recordings of a slot compute in."""
        self.slots = Slots(SLOTS, staging_bytes // SLOTS // ALIGNMENT * ALIGNMENT, self.pool.malloc)
        self.pinned = pinned
        self.copying = Copying(team)
        self.uses_host_addresses = bool(cupy.cuda.runtime.deviceGetAttribute(_HOST_ADDRESSES, ordinal))
        """Whether kernels get at the buffers in `pinned` by their addresses."""
        self.shared_of_few: int = cupy.cuda.runtime.deviceGetAttribute(_SHARED_BYTES, ordinal) // 3
        """Bytes of shared memory, asked for by each block, with which two of them have a multiprocessor."""
        multiprocessors: int = cupy.cuda.runtime.deviceGetAttribute(_MULTIPROCESSORS, ordinal)
        self.clustered = multiprocessors if self.facts.architecture >= _CLUSTERS else 0
        """Multiprocessors whose blocks may be in clusters."""
        self.load = 0
        """Bytes that dispatches under way read and write."""
        self.long_dispatches = 0
        """How many of them may keep others waiting for longer than it takes to hand these to another thread."""
        self._functions: OrderedDict[str, Any] = OrderedDict()
        self._holding = threading.local()
        self._written: OrderedDict[tuple[str, str], Any] = OrderedDict()
        """By the source of their module, and by their names."""
        self._firsts: dict[object, threading.Lock] = {}
        self._called: set[object] = set()
        self._lock = threading.Lock()
        self._capturing = threading.Lock()
        """While a stream records a graph nobody waits for the whole GPU: CUDA refuses that, and gives the graph up."""
        written.LOADERS[ordinal] = self.written
        pinned.gpus.append(ordinal)

    def use(self) -> None:
        """Make this the GPU of the calling thread."""
        self._cupy.cuda.runtime.setDevice(self.ordinal)

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Make this the GPU of the calling thread in this: one that may be in the midst of a dispatch on another."""
        runtime = self._cupy.cuda.runtime
        before = runtime.getDevice()
        self.use()
        try:
            yield
        finally:
            if before in self.pinned.gpus:  # else the thread had none yet, and to name CUDA's first one would start it
                with suppress(*self.errors):  # of one that is lost
                    runtime.setDevice(before)

    def bus_id(self) -> str:
        """Where the GPU is on the PCI bus."""
        return str(self._cupy.cuda.runtime.deviceGetPCIBusId(self.ordinal))

    @property
    def pool_bytes(self) -> int:
        """Bytes of the GPU's memory that the pool of whole dispatches has; 0 once it is lost."""
        with suppress(*self.errors), self.meanwhile():  # CuPy's pools tell of the current GPU
            return int(self.pool.total_bytes())
        return 0

    def function(self, source: str) -> Any:
        """The kernel that `source` defines, loaded on this GPU: a function of CuPy's, to be held while it may run."""
        found = self._functions.get(source)
        if found is None:
            binary = self.cache.binary(source, self.facts.architecture)
            with self._lock:
                found = self._functions.get(source)
                if found is None:
                    found = self._functions[source] = self._found(self._module(binary), KERNEL, self.shared_of_few)
                    self._beyond(self._functions)
        else:
            with suppress(KeyError):  # it has been let go since
                self._functions.move_to_end(source)
        self._hold(found)
        return found

    def _hold(self, function: Any) -> None:
        held: list[Any] | None = getattr(self._holding, "functions", None)
        if held is not None:
            held.append(function)

    @contextmanager
    def holding(self) -> Iterator[list[Any]]:
        """All functions that this thread gets in this."""
        held: list[Any] = []
        self._holding.functions = held
        try:
            yield held
        finally:
            self._holding.functions = None

    def _beyond(self, functions: OrderedDict[Any, Any]) -> list[Any]:
        """Kernels beyond KEPT that nobody holds, a few at a time, which are not to be had any more. They are unloaded
        where this is asked, which is where the GPU is this thread's."""
        gone = []
        for _ in range(min(len(functions) - KEPT, _AT_A_TIME)):
            key, function = functions.popitem(last=False)
            if getrefcount(function) == _REFERENCES:
                gone.append(function)
            else:
                functions[key] = function
        return gone

    def written(self, source: str, name: str, shared_bytes: int) -> Any:
        """The kernel `name` of `source`, which is written in CUDA C++, loaded on this GPU: a function of CuPy's, to be
        held until it is queued. Blocks may be given up to `shared_bytes` of shared memory."""
        found = self._written.get((source, name))
        if found is None:
            binary = self.cache.binary(source, self.facts.architecture, WRITTEN)
            with self._lock:
                found = self._written.get((source, name))
                if found is None:
                    others = [each.module for (of, _), each in [*self._written.items()] if of == source]
                    module = others[0] if others else self._module(binary)
                    found = self._written[source, name] = self._found(module, name, shared_bytes)
                    self._let_written_go()
        else:
            with suppress(KeyError):
                self._written.move_to_end((source, name))
        self._hold(found)
        return found

    def _let_written_go(self) -> None:
        """Unload some, unless a graph is recorded. Who got one before may have queued it, and holds it no more."""
        if self._capturing.acquire(blocking=False):
            try:
                gone = self._beyond(self._written)
                if gone:
                    self._cupy.cuda.runtime.deviceSynchronize()
            finally:
                self._capturing.release()

    def _module(self, binary: bytes) -> Any:
        module = self._cupy.cuda.function.Module()
        module.load(binary)
        return module

    def _found(self, module: Any, name: str, shared_bytes: int) -> Any:
        found = module.get_function(name)
        if shared_bytes > _SHARED_UNASKED:
            self._cupy.cuda.driver.funcSetAttribute(found.ptr, _MOST_SHARED, shared_bytes)
        return found

    def compile_ahead(self, sources: Iterable[str]) -> None:
        """Have the binaries of kernels that are not loaded yet, so that `function` need not wait for one after the
        other. Raises CompilationError."""
        self.cache.fill((each for each in sources if not self.has_function(each)), self.facts.architecture)

    def has_function(self, source: str) -> bool:
        """Whether that kernel is loaded already."""
        return source in self._functions

    def launch(self, function: Any, blocks: int, threads: int, stream: Any, table: int, shared: int) -> None:
        """Queue a kernel of so many blocks of so many threads. `table` is the address of the addresses of its
        arguments; each block is given `shared` bytes of shared memory beside what it has."""
        self._launch_kernel(function.ptr, blocks, 1, 1, threads, 1, 1, shared, stream.ptr, table, 0)

    def to_device(self, target: int, source: int, size: int, stream: Any) -> None:
        """Queue a copy from pinned memory."""
        self._cupy.cuda.runtime.memcpyAsync(target, source, size, 1, stream.ptr)

    def to_host(self, target: int, source: int, size: int, stream: Any) -> None:
        """Queue a copy to pinned memory."""
        self._cupy.cuda.runtime.memcpyAsync(target, source, size, 2, stream.ptr)

    def clear(self, target: int, size: int, stream: Any) -> None:
        """Queue setting bytes to 0."""
        self._cupy.cuda.runtime.memsetAsync(target, 0, size, stream.ptr)

    def within(self, target: int, source: int, size: int, stream: Any) -> None:
        """Queue a copy from the device to the device."""
        self._cupy.cuda.runtime.memcpyAsync(target, source, size, 3, stream.ptr)

    def open_shared(self, handle: bytes) -> int:
        """The address of memory that another process has on this GPU, by its CUDA IPC handle. To be closed as often as
        it was opened. Raises one of `errors`."""
        address: int = self._cupy.cuda.runtime.ipcOpenMemHandle(handle)
        return address

    def close_shared(self, address: int) -> None:
        self._cupy.cuda.runtime.ipcCloseMemHandle(address)

    def bytes_from(self, address: int) -> int:
        """How many bytes there are from an address on, in the allocation on this GPU that it is in; 0 if it is in
        another GPU's."""
        if self._cupy.cuda.runtime.pointerGetAttributes(address).device != self.ordinal:
            return 0
        start, size = ctypes.c_uint64(), ctypes.c_size_t()
        driver = ctypes.CDLL("libcuda.so.1")
        failed = driver.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address))
        return 0 if failed else start.value + size.value - address

    def seconds_between(self, begun: Any, ended: Any) -> float:
        """Of two events of CuPy's, which the GPU has come by."""
        return float(self._cupy.cuda.get_elapsed_time(begun, ended)) / 1e3

    def captured(self, queue: Callable[[Any], None], stream: Any) -> Any:
        """What `queue` queues on `stream`, as one CUDA graph, which can be launched again and again; None if a library
        that it calls cannot be captured."""
        with self._capturing:
            stream.begin_capture()
            try:
                queue(stream)
            except Exception as error:
                log.info("%s captures no CUDA graph: %s", self.name, error)
                with suppress(Exception):  # of what is no graph
                    stream.end_capture()
                return None
            return stream.end_capture()

    @contextmanager
    def functions_on(self, stream: Any, pool: Any) -> Iterator[Any]:
        """CuPy, whose functions, in this, queue what they do on `stream`, in memory of `pool`."""
        with self._cupy.cuda.using_allocator(pool.malloc), stream:
            yield self._cupy

    @contextmanager
    def first_alone(self, kind: object) -> Iterator[None]:
        """Until one call of a `kind` has gone well in this, the next waits for it: CuPy's functions compile kernels
        when they are first called, dozens for some operators, and would on each thread that calls them meanwhile."""
        with ExitStack() as alone:
            if kind not in self._called:
                with self._lock:
                    first = self._firsts.setdefault(kind, threading.Lock())
                alone.enter_context(first)
                if kind in self._called:
                    alone.close()
            yield
            self._called.add(kind)

    def array(self, address: int, size: int, sizes: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int]) -> Any:
        """The elements, `strides` bytes apart, that lie in `size` bytes at this address on the device, which stay its
        owner's."""
        cuda = self._cupy.cuda
        memory = cuda.MemoryPointer(cuda.UnownedMemory(address, size, self, self.ordinal), 0)
        return self._cupy.ndarray(tuple(sizes), dtype, memory, tuple(strides))

    def at_work(self, size: int, *, is_brief: bool = False) -> "_AtWork":
        """Dispatches run in this: it counts their bytes, and tells errors of the GPU as DeviceFailed. One that
        `is_brief`, some 10 us, is not counted among the long ones."""
        return _AtWork(self, size, is_brief)

    def begin(self, size: int, *, is_brief: bool) -> None:
        """Count a dispatch until its `end`. Raises DeviceFailed if there is no GPU any more."""
        if self.out_of_service is not None:
            raise DeviceFailed("lost", f"{self.name} is out of service: {self.out_of_service}")
        with self._lock:
            self.load += size
            self.long_dispatches += not is_brief

    def end(self, size: int, *, is_brief: bool) -> None:
        with self._lock:
            self.load -= size
            self.long_dispatches -= not is_brief

    def failure(self, error: BaseException) -> DeviceFailed | None:
        """What `error` is for who wants a dispatch, if it is the GPU's or its kernel's."""
        if isinstance(error, CompilationError):
            log.error("a kernel for %s was refused: %s", self.name, error)
            return DeviceFailed("error", f"{self.name} has no kernel for this operator")
        # CuPy has a class for each of CUDA's libraries, and loads these only where they are used.
        if not isinstance(error, Exception) or type(error).__module__.partition(".")[0] not in _CUPY:
            return None
        return self._judge(error)

    def free_memory(self) -> None:
        """Give back what no dispatch uses. Raises DeviceFailed."""
        with self.at_work(0, is_brief=True):
            self.ready.clear()
            self.slots.empty_idle()
            self.pool.free_all_blocks()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What CuPy raises of the GPU."""
        cuda = self._cupy.cuda
        return (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError)

    def _judge(self, error: Exception) -> DeviceFailed:
        """What became of the GPU. Memory may come back; a context that does not answer any more never does."""
        is_memory = isinstance(error, self._cupy.cuda.memory.OutOfMemoryError) or "ALLOC_FAILED" in str(error)
        if is_memory or (isinstance(error, self.errors) and getattr(error, "status", None) == 2):
            return DeviceFailed("memory", f"{self.name} has no memory left for this dispatch")
        # By a thread that was on no other GPU: to one that was, CUDA may tell what became of that one.
        with self._capturing, ThreadPoolExecutor(1) as thread:
            lost = thread.submit(self._wait).exception()
        if isinstance(lost, self.errors):
            with self._lock:
                first = self.out_of_service is None
                self.out_of_service = self.out_of_service or f"{lost}, until this process is started again"
            if first:
                log.error("%s is taken out of service: %s", self.name, self.out_of_service)
            return DeviceFailed("lost", f"{self.name} is out of service: {self.out_of_service}")
        log.error("a dispatch on %s failed: %s", self.name, error)
        return DeviceFailed("error", f"{self.name} could not run this dispatch")

    def _wait(self) -> None:
        """Until it has done all that it was given."""
        self.use()
        self._cupy.cuda.runtime.deviceSynchronize()


class _AtWork:
    """A context of its own, since one of `contextlib` takes a microsecond, of each small dispatch."""

    __slots__ = ("_device", "_is_brief", "_size")

    def __init__(self, device: Context, size: int, is_brief: bool) -> None:
        self._device = device
        self._size = size
        self._is_brief = is_brief

    def __enter__(self) -> None:
        device = self._device
        device.begin(self._size, is_brief=self._is_brief)
        try:
            device.use()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        device = self._device
        try:
            failure = None if error is None else device.failure(error)
        finally:
            device.end(self._size, is_brief=self._is_brief)
        try:
            if failure:
                raise failure from error
        finally:
            del failure, error  # or what it has passed, with tensors in it, would be garbage that is to be collected


def _facts(cupy: Any, ordinal: int) -> Facts:
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(ordinal)
    major, minor = properties["major"], properties["minor"]
    name = properties["name"].decode()
    driver, library = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    return Facts(
        description=f"{name}, CuPy {cupy.__version__}",
        compute_capability=f"{major}.{minor}",
        architecture=10 * major + minor,
        driver_version=_dotted(driver),
        runtime_version=_dotted(library),
    )


def _dotted(version: int) -> str:
    """CUDA's numbers: 13000 is 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}"
