"""Which GPU is current to a thread, where there are several: CUDA as it is to threads, without a GPU."""

import mmap
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from app.devices.binaries import Binaries
from app.devices.cuda.compiler import KernelCache
from app.devices.cuda.context import Context
from app.devices.cuda.pinned import SMALLEST_PINNED, PinnedMemory
from app.devices.cuda.shared import NotShared, SharedMemory
from app.devices.device import DeviceFailed
from app.operators import written
from tests.devices.cuda_device_on_cpu import CudaError

T = TypeVar("T")


class Runtime:
    """CUDA's, by its names: what needs a context makes one on the thread's GPU, the first one unless it has set any."""

    CUDARuntimeError = CudaError

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self.started: set[int] = set()
        """GPUs on which there is a context."""
        self.lost: set[int] = set()
        self.tells_of_the_last = False
        """Whether a thread's next call fails for what became of the GPU that it was on, as CUDA's may."""
        self.closed: list[tuple[int, int]] = []
        """Addresses, and the GPUs that were current."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        calls: dict[str, Callable[..., Any]] = {
            "getDevice": lambda: self.current,
            "deviceSynchronize": self._start,
            "setDevice": self._set,
            "hostRegister": self._start,
            "hostUnregister": self._start,
            "ipcOpenMemHandle": lambda handle: 4096,
            "ipcCloseMemHandle": lambda address: self.closed.append((address, self.current)),
            "pointerGetAttributes": lambda address: SimpleNamespace(device=-1),
            "getDeviceProperties": lambda ordinal: {"major": 9, "minor": 0, "name": b"a stand-in"},
            "deviceGetAttribute": lambda attribute, ordinal: 1,
            "memGetInfo": lambda: (1 << 30, 1 << 30),
            "driverGetVersion": lambda: 13000,
            "runtimeGetVersion": lambda: 13000,
        }
        return calls[name]

    @property
    def current(self) -> int:
        ordinal: int = getattr(self._of_thread, "ordinal", 0)
        return ordinal

    def _set(self, ordinal: int) -> None:
        if self.tells_of_the_last:
            self._start()
        self._of_thread.ordinal = ordinal
        self._start()

    def _start(self, *_: object) -> None:
        if self.current in self.lost:
            raise CudaError("cudaErrorLaunchFailure")
        self.started.add(self.current)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()

    class MemoryPool:
        """CuPy's, which has one for each GPU and knows the current one's."""

        def __init__(self) -> None:
            self._totals: dict[int, int] = defaultdict(int)

        def malloc(self, size: int) -> None:
            self._totals[runtime.current] += size

        def total_bytes(self) -> int:
            return self._totals[runtime.current]

    cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=CudaError, launchKernel=None),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        MemoryPool=MemoryPool,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, __version__="0"))
    monkeypatch.setattr(written, "LOADERS", {})
    return runtime


def gpus_of(*ordinals: int, pinned: PinnedMemory | None = None) -> list[Context]:
    known = pinned or PinnedMemory(0)
    return [Context(ordinal, KernelCache(Binaries(None)), 1 << 20, known) for ordinal in ordinals]


def by_new_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def test_memory_is_pinned_by_any_thread_without_a_gpu_that_is_not_used(runtime: Runtime) -> None:
    """Nothing is taken of what others may use: half a GB is as soon as CUDA starts there."""
    pinned = PinnedMemory(1 << 30)
    gpus_of(1, pinned=pinned)
    memory = mmap.mmap(-1, SMALLEST_PINNED)
    by_new_thread(lambda: pinned.pin(memory))
    assert pinned.used == SMALLEST_PINNED
    by_new_thread(lambda: pinned.unpin(memory))
    assert pinned.used == 0
    assert runtime.started == {1}


def test_to_pin_memory_leaves_a_thread_on_its_gpu(runtime: Runtime) -> None:
    """It may be in the midst of a dispatch."""
    pinned = PinnedMemory(1 << 30)
    for gpu in gpus_of(1, 2, pinned=pinned):
        gpu.use()
        memory = mmap.mmap(-1, SMALLEST_PINNED)
        pinned.pin(memory)
        pinned.unpin(memory)
        assert runtime.current == gpu.ordinal


@pytest.mark.parametrize("other", [0, 1])
def test_a_region_that_goes_leaves_a_thread_on_its_gpu(runtime: Runtime, other: int) -> None:
    """The garbage collector may let go of it in the midst of a dispatch."""
    gpus = gpus_of(0, 1)
    region = SharedMemory(bytes(64), gpus[1 - other])
    gpus[other].use()
    del region
    assert runtime.closed == [(4096, 1 - other)]
    assert runtime.current == other


def test_a_region_that_goes_starts_no_gpu_that_is_not_used(runtime: Runtime) -> None:
    (gpu,) = gpus_of(1)
    regions = [SharedMemory(bytes(64), gpu)]
    by_new_thread(regions.clear)
    assert runtime.closed == [(4096, 1)]
    assert runtime.started == {1}


def test_a_region_on_a_gpu_that_is_lost_is_refused(runtime: Runtime) -> None:
    """Also where no dispatch has found that out."""
    (gpu,) = gpus_of(0)
    runtime.lost.add(0)
    with pytest.raises(NotShared, match="cudaErrorLaunchFailure"):
        SharedMemory(bytes(64), gpu)


def test_a_gpu_is_not_lost_with_another_one(runtime: Runtime) -> None:
    """Though a thread comes from that one, and hears of it first."""
    gpus = gpus_of(0, 1)

    def fails(gpu: Context) -> str:
        with pytest.raises(DeviceFailed) as raised, gpu.at_work(0):
            pytest.fail("it should have been told")
        return raised.value.cause

    gpus[1].use()
    runtime.lost.add(1)
    runtime.tells_of_the_last = True
    assert fails(gpus[0]) == "error"
    assert gpus[0].out_of_service is None
    assert [fails(gpus[1]) for _ in range(2)] == ["lost", "lost"]
    assert gpus[1].out_of_service == "cudaErrorLaunchFailure, until this process is started again"


def test_each_pool_s_bytes_are_its_gpu_s(runtime: Runtime) -> None:
    """Whatever the GPU of the thread that asks, which keeps it."""
    gpus = gpus_of(0, 1)
    for gpu in gpus:
        gpu.use()
        gpu.pool.malloc(100 << gpu.ordinal)
    for gpu in gpus:
        gpu.use()
        assert [each.pool_bytes for each in gpus] == [100, 200]
        assert runtime.current == gpu.ordinal
    assert by_new_thread(lambda: [each.pool_bytes for each in gpus]) == [100, 200]
    runtime.lost.add(1)
    assert [each.pool_bytes for each in gpus] == [100, 0]
