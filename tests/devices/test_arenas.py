"""What is kept of dispatches on a GPU for the next ones: how much, for how long, and that all of it is given back."""

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.devices.cuda import schedules
from app.devices.cuda.context import Context
from app.devices.cuda.ready import READY, Ready
from app.devices.cuda.schedules import CudaScheduleKernel
from app.devices.device import DeviceFailed
from app.devices.placement import FallbackDevice
from app.graphs.graph import GraphInput
from app.graphs.schedule import InitializedGraph, Place, Room, Schedule, Step
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.linear_algebra.products import Gemm
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu, CudaError, Memory, OutOfMemory
from tests.devices.cuda_on_cpu import BuiltKernels
from tests.devices.test_numpy_device import never
from tests.gpu import first_gpu
from tests.operators.arrays import bytes_of, desc_of
from tests.operators.coordinate_operators import CumulativeSum, compiled


@dataclass(eq=False)
class Thing:
    bytes: int
    gone: ClassVar[list[int]] = []

    def __del__(self) -> None:
        self.gone.append(self.bytes)


class Owner:
    pass


@pytest.fixture
def gone() -> Iterator[list[int]]:
    """Bytes of all things that are gone."""
    Thing.gone.clear()
    yield Thing.gone
    Thing.gone.clear()


def test_what_was_put_last_is_taken_first() -> None:
    ready: Ready[Thing] = Ready(100)
    one, other = ready.number(ready), ready.number(ready)
    first, second = Thing(1), Thing(2)
    assert ready.newest(one) is ready.take(one) is None
    ready.put(one, first)
    ready.put(one, second)
    assert ready.newest(other) is ready.take(other) is None
    assert ready.newest(one) is second
    assert ready.take(one) is second
    assert ready.take(one) is first
    assert ready.take(one) is None


def test_each_place_has_its_own() -> None:
    ready: Ready[Thing] = Ready(100)
    number = ready.number(ready)
    first, second, third = Thing(1), Thing(2), Thing(3)
    ready.put(number, first, 8)
    ready.put(number, second, 9)
    ready.put(number, third, 8)
    assert ready.take(number) is None
    assert ready.take(number, 9) is second
    assert ready.take(number, 9) is None
    assert ready.take(number, 8) is third
    assert ready.take(number, 8) is first


def test_no_more_is_kept_than_can_be_under_way(gone: list[int]) -> None:
    ready: Ready[Thing] = Ready(1000)
    number = ready.number(ready)
    for size in range(1, READY + 3):
        ready.put(number, Thing(size))
    assert gone == [1, 2]


def test_beyond_the_limit_that_goes_which_nobody_wanted_for_longest(gone: list[int]) -> None:
    ready: Ready[Thing] = Ready(100)
    one, two, three = (ready.number(ready) for _ in range(3))
    ready.put(one, Thing(40))
    ready.put(two, Thing(35))
    taken = ready.take(one)
    assert taken is not None
    ready.put(one, taken)
    del taken
    ready.put(three, Thing(25))
    assert gone == []
    ready.put(three, Thing(1))
    assert gone == [35]
    ready.put(two, Thing(34))
    assert gone == [35]
    ready.put(two, Thing(101))
    assert sorted(gone) == [1, 25, 34, 35, 40, 101]
    ready.put(one, Thing(100))
    assert len(gone) == 6


def test_what_is_taken_does_not_count(gone: list[int]) -> None:
    ready: Ready[Thing] = Ready(100)
    number = ready.number(ready)
    ready.put(number, Thing(90))
    taken = ready.take(number)
    ready.put(number, Thing(80))
    assert gone == []
    del taken
    assert gone == [90]


def test_with_its_owner_a_thing_goes(gone: list[int]) -> None:
    """At the next `put`: a garbage collector that calls in the midst of one changes nothing."""
    ready: Ready[Thing] = Ready(100)
    owner, stays = Owner(), ready.number(ready)
    ready.put(ready.number(owner), Thing(60))
    del owner
    gc.collect()
    ready.put(stays, Thing(100))
    assert gone == [60]
    ready.put(stays, Thing(1))
    assert 100 in gone


def test_all_can_be_let_go_of(gone: list[int]) -> None:
    ready: Ready[Thing] = Ready(100)
    number = ready.number(ready)
    ready.put(number, Thing(60))
    ready.clear()
    assert gone == [60]
    ready.put(number, Thing(100))
    assert ready.newest(number)


# Dispatches, with NumPy in the place of CuPy


class Queues(CumulativeSum):
    """A call that need not wait, and takes memory for itself."""

    only_queues = True

    def call(self, xp: Any, inputs: Any) -> Any:
        return super().call(xp, inputs)


@pytest.fixture
def on_cpu(tmp_path: Path) -> CudaDeviceOnCpu:
    return CudaDeviceOnCpu(BuiltKernels(tmp_path))


def cumulative_sum(x: Array, kind: type[CumulativeSum] = Queues) -> CompiledOperator:
    return compiled(kind, {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": 0})


def dispatch(kernel: Any, x: Array) -> Array:
    made = np.zeros_like(x)
    kernel.dispatch([bytes_of(x)], [bytes_of(made)], lambda: False)
    return made


@pytest.mark.parametrize("count", [4, 2000], ids=["small", "large"])
@pytest.mark.parametrize("kind", [Queues, CumulativeSum])
def test_a_single_call_is_recorded_if_it_only_queues(
    on_cpu: CudaDeviceOnCpu, count: int, kind: type[CumulativeSum]
) -> None:
    """When it is dispatched for the third time, over memory that stays."""
    kernel = on_cpu.prepare(cumulative_sum(np.ones(count, np.float32), kind))
    rng = np.random.default_rng(3)
    for turn in range(5):
        x = rng.integers(-9, 9, count).astype(np.float32)
        np.testing.assert_array_equal(dispatch(kernel, x), np.cumsum(x))
        assert on_cpu.log.count("captured") == (kind is Queues and turn >= 2)
    assert on_cpu.pool.taken == 1


def test_what_is_large_keeps_nothing(on_cpu: CudaDeviceOnCpu) -> None:
    on_cpu.most_kept = 1 << 14
    kernel = on_cpu.prepare(cumulative_sum(np.ones(5000, np.float32)))
    for _ in range(3):
        dispatch(kernel, np.ones(5000, np.float32))
    assert on_cpu.pool.taken == 3
    assert "captured" not in on_cpu.log


def test_a_call_runs_inline_once_it_is_recorded_and_while_it_is_quick(
    on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "BRIEF_SECONDS", 5.0)
    x = np.ones(4, np.float32)
    kernel = on_cpu.prepare(cumulative_sum(x))
    for _ in range(3):
        assert not kernel.runs_inline
        dispatch(kernel, x)
    assert kernel.runs_inline
    on_cpu.long_dispatches = 1
    assert not kernel.runs_inline
    on_cpu.long_dispatches = 0
    monkeypatch.setattr(schedules, "BRIEF_SECONDS", 0.0)
    dispatch(kernel, x)
    assert not kernel.runs_inline


def test_with_the_kernel_its_arenas_go(on_cpu: CudaDeviceOnCpu) -> None:
    x = np.ones(2000, np.float32)
    kernel = on_cpu.prepare(cumulative_sum(x))
    for _ in range(3):
        dispatch(kernel, x)
    assert isinstance(kernel, CudaScheduleKernel)
    arena = weakref.ref(on_cpu.ready.newest(kernel._number))
    del kernel
    dispatch(on_cpu.prepare(cumulative_sum(x)), x)
    assert arena() is None


def test_when_memory_is_short_what_waits_goes(on_cpu: CudaDeviceOnCpu) -> None:
    x = np.ones(2000, np.float32)
    kernel = on_cpu.prepare(cumulative_sum(x))
    for _ in range(3):
        dispatch(kernel, x)
    assert on_cpu.pool.taken == 1
    on_cpu.free_memory()
    np.testing.assert_array_equal(dispatch(kernel, x), np.cumsum(x))
    assert on_cpu.pool.taken == 2
    assert on_cpu.log.count("captured") == 1


class Limited:
    """A pool of so many bytes, which are free as soon as nobody holds them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: weakref.WeakSet[Memory] = weakref.WeakSet()

    @property
    def used(self) -> int:
        return sum(len(each.bytes) for each in self._held)

    def malloc(self, size: int) -> Memory:
        if self.used + size > self._limit:
            raise OutOfMemory
        made = Memory(size)
        self._held.add(made)
        return made

    def free_all_blocks(self) -> None:
        """Nothing is kept."""


@dataclass
class Idle:
    memory: Memory
    bytes: int = 2000


class Greedy(CumulativeSum):
    """Takes memory of the GPU's, bit by bit."""

    pool: ClassVar[Any] = None

    def call(self, xp: Any, inputs: Any) -> Any:
        taken = [self.pool.malloc(4000)]
        taken.append(self.pool.malloc(4000))
        return super().call(xp, inputs)


@pytest.mark.parametrize("is_resident", [False, True])
def test_what_had_too_little_memory_holds_none_when_it_is_tried_again(
    on_cpu: CudaDeviceOnCpu, is_resident: bool
) -> None:
    """All that others have given back is there for it, and what it had taken itself. No garbage need be collected."""
    x = np.arange(500, dtype=np.float32)
    work = cumulative_sum(x, Greedy)
    on_cpu.pool = Greedy.pool = Limited(13_999)
    on_cpu.ready.put(on_cpu.ready.number(on_cpu), Idle(on_cpu.pool.malloc(2000)))
    nobody: Any = None
    kernel = on_cpu.resident(work) if is_resident else FallbackDevice([on_cpu], nobody).prepare(work)
    gc.disable()
    try:
        np.testing.assert_array_equal(dispatch(kernel, x), np.cumsum(x))
    finally:
        gc.enable()


def sums_of(kept: Array, count: int) -> InitializedGraph:
    """A graph that has `kept`, and adds up so many of its elements."""
    work = cumulative_sum(kept[:count], CumulativeSum)
    (name,), size = work.inputs, 4 * count
    step = Step((0,), work, (Place(Room.KEPT, 0, 0, size),), (Place(Room.OUTPUT, 0, 0, size),))
    schedule = Schedule({}, {}, dict(work.outputs), {}, (), (step,), (GraphInput(name),), (kept.nbytes,), 0)
    return InitializedGraph(schedule, (bytes_of(kept),))


def test_graphs_of_the_same_weights_have_them_once(on_cpu: CudaDeviceOnCpu) -> None:
    """As a model's have, for inputs of different sizes: in the same memory, not in memory that looks like it."""
    weights, pool = np.arange(1500, dtype=np.float32), Limited(1 << 20)
    on_cpu.pool, on_cpu.most_kept = pool, 0  # nothing else is kept
    kernels: list[Any] = [on_cpu.prepare(sums_of(weights, count)) for count in (10, 1000, 1500)]
    outputs = [np.zeros(count, np.float32) for count in (10, 1000, 1500)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda kernel: kernel._kept.upload(), kernels))
    for kernel, made in zip(kernels, outputs, strict=True):
        kernel.dispatch([], [bytes_of(made)], never)
        np.testing.assert_array_equal(made, np.cumsum(weights[: made.size]))
    assert pool.used == weights.nbytes
    others = on_cpu.prepare(sums_of(weights.copy(), 10))
    others.dispatch([], [bytes_of(outputs[0])], never)
    assert pool.used == 2 * weights.nbytes
    del kernels, kernel
    assert pool.used == weights.nbytes
    del others
    assert pool.used == 0


def test_weights_that_found_no_memory_are_brought_by_the_next_dispatch(on_cpu: CudaDeviceOnCpu) -> None:
    weights, made = np.arange(1500, dtype=np.float32), np.zeros(10, np.float32)
    on_cpu.pool = Limited(weights.nbytes - 1)
    kernel = on_cpu.prepare(sums_of(weights, 10))
    with pytest.raises(DeviceFailed, match="no memory left"):
        kernel.dispatch([], [bytes_of(made)], never)
    on_cpu.pool = Limited(1 << 20)
    kernel.dispatch([], [bytes_of(made)], never)
    np.testing.assert_array_equal(made, np.cumsum(weights[:10]))


def test_a_failed_dispatch_is_no_garbage(on_cpu: CudaDeviceOnCpu) -> None:
    """It would hold its tensors, and memory on the GPU, until that is collected."""
    x = np.ones(2000, np.float32)
    kernel = on_cpu.prepare(cumulative_sum(x))
    on_cpu.pool = Limited(0)
    given = bytes_of(x.copy())
    seen = weakref.ref(given)
    gc.disable()
    try:
        with pytest.raises(DeviceFailed) as raised:
            kernel.dispatch([given], [bytes_of(np.zeros_like(x))], lambda: False)
        del raised, given
        assert seen() is None
    finally:
        gc.enable()


def test_over_new_scratch_work_is_recorded_anew(on_cpu: CudaDeviceOnCpu) -> None:
    """A graph goes on using what it was captured with, which somebody else may have by now."""
    x = np.ones(2000, np.float32)
    kernel = on_cpu.prepare(cumulative_sum(x))
    for _ in range(3):
        dispatch(kernel, x)
    with on_cpu.slots.take() as slot:
        slot.empty()
    for _ in range(2):
        np.testing.assert_array_equal(dispatch(kernel, x), np.cumsum(x))
    assert on_cpu.log.count("captured") == 2


def test_what_takes_much_scratch_is_not_recorded(on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    captured = on_cpu.captured

    def greedy(queue: Any, stream: Any) -> Any:
        on_cpu.slots._slot.scratch.malloc(taken[-1])
        return captured(queue, stream)

    monkeypatch.setattr(on_cpu, "captured", greedy)
    on_cpu.most_kept = 1 << 16
    for size, times in ((1 << 16, 1), ((1 << 16) + 1, 1)):
        taken.append(size)
        on_cpu.slots.empty_idle()
        on_cpu.log.clear()
        x = np.ones(2000 + size % 7, np.float32)
        kernel = on_cpu.prepare(cumulative_sum(x))
        for _ in range(4):
            np.testing.assert_array_equal(dispatch(kernel, x), np.cumsum(x))
        assert on_cpu.log.count("captured") == times
        assert isinstance(kernel, CudaScheduleKernel)
        ready = on_cpu.ready.newest(kernel._number)
        assert ready is not None
        assert bool(ready.work._graphs) == (size == 1 << 16)


def test_what_failed_is_not_used_again(on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(2000, np.float32)
    kernel = on_cpu.prepare(cumulative_sum(x))
    dispatch(kernel, x)

    def fail(*_: object) -> None:
        raise OutOfMemory

    with monkeypatch.context() as patch:
        patch.setattr(Queues, "call", fail)
        with pytest.raises(DeviceFailed):
            dispatch(kernel, x)
    assert isinstance(kernel, CudaScheduleKernel)
    assert on_cpu.ready.newest(kernel._number) is None
    np.testing.assert_array_equal(dispatch(kernel, x), np.cumsum(x))
    assert on_cpu.pool.taken == 2


def test_an_error_while_a_graph_is_captured_is_none_of_the_gpus(on_cpu: CudaDeviceOnCpu) -> None:
    """CUDA refuses to wait for a GPU one of whose streams is capturing."""
    stream = SimpleNamespace(is_capturing=False)
    stream.begin_capture = lambda: setattr(stream, "is_capturing", True)
    stream.end_capture = lambda: setattr(stream, "is_capturing", False)

    def wait_for_all() -> None:
        if stream.is_capturing:
            raise CudaError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")

    on_cpu._cupy.cuda.runtime.deviceSynchronize = wait_for_all
    with ThreadPoolExecutor(1) as others:

        def queue(_: Any) -> None:
            judged.append(others.submit(on_cpu.failure, CudaError("cudaErrorInvalidValue: invalid argument")))
            wait(judged, 0.1)

        judged: list[Future[DeviceFailed | None]] = []
        Context.captured(on_cpu, queue, stream)
        failure = judged[0].result(10)
    assert failure is not None
    assert (failure.cause, on_cpu.out_of_service) == ("error", None)


def test_a_gpu_that_is_lost_before_it_gives_memory_back_fails_as_others_do(
    on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise CudaError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    monkeypatch.setattr(on_cpu, "use", lost)
    on_cpu._cupy.cuda.runtime.deviceSynchronize = lost
    for _ in range(2):
        with pytest.raises(DeviceFailed, match=r"cuda:0 is out of service: .*illegal") as raised:
            on_cpu.free_memory()
        assert raised.value.cause == "lost"
    assert on_cpu.load == 0


# On a GPU


def gemm(rows: int, columns: int) -> CompiledOperator:
    a, b = ({"DataType": "FLOAT32", "Sizes": [1, 1, *sizes]} for sizes in ((rows, 64), (64, columns)))
    members = {"ATensor": a, "BTensor": b, "TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0}
    return compile_operator(Gemm.model_validate({"Type": "GEMM", **members}), NEWEST)


def multiplied(rows: int, columns: int, turns: int) -> None:
    kernel, rng = first_gpu().prepare(gemm(rows, columns)), np.random.default_rng(rows * columns)
    for _ in range(turns):
        a, b = (rng.standard_normal(sizes, np.float32) for sizes in ((rows, 64), (64, columns)))
        made = np.zeros((rows, columns), np.float32)
        kernel.dispatch([bytes_of(a), bytes_of(b)], [bytes_of(made)], lambda: False)
        np.testing.assert_allclose(made, a @ b, 1e-4, 1e-4)


@pytest.mark.gpu
def test_many_products_from_many_threads_leave_no_memory_behind() -> None:
    """Of sizes of their own, recorded or not, small and large."""
    gpu = first_gpu()
    used = []
    for round_ in range(3):
        with ThreadPoolExecutor(12) as threads:
            list(threads.map(multiplied, range(1, 2000, 50), range(2000 + round_, 0, -50), [1, 2, 3, 5] * 10))
        gc.collect()
        gpu.free_memory()
        used.append(gpu.pool.used_bytes())
    assert used == [0, 0, 0]


@pytest.mark.gpu
def test_one_product_from_many_threads() -> None:
    """Recorded over memory of each thread's own."""
    gpu = first_gpu()
    kernel = gpu.prepare(gemm(300, 200))

    def work(number: int) -> bool:
        rng = np.random.default_rng(number)
        a, b = (rng.standard_normal(sizes, np.float32) for sizes in ((300, 64), (64, 200)))
        made = np.zeros((300, 200), np.float32)
        kernel.dispatch([bytes_of(a), bytes_of(b)], [bytes_of(made)], lambda: False)
        return np.allclose(made, a @ b, 1e-4, 1e-4)

    with ThreadPoolExecutor(12) as threads:
        assert all(threads.map(work, range(300)))
    assert gpu.load == gpu.slots.taken == 0
