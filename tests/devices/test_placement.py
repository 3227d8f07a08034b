"""Which device runs a dispatch, and what happens without a GPU or with one that fails."""

import asyncio
import ctypes
import importlib.util
import mmap
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from app.contract.validation import validate
from app.devices import placement
from app.devices.binaries import Binaries
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda import pinned as cuda_staging
from app.devices.cuda.compiler import KernelCache
from app.devices.cuda.pinned import SMALLEST_PINNED, PinnedMemory
from app.devices.device import DeviceFailed, DeviceInfo, ExecutionRecord, own_bytes
from app.devices.estimates import Pace, Work, hard_sigmoid, square_product
from app.devices.placement import AHEAD, FallbackDevice, Placement, find_gpus, try_gpus
from app.engine.dispatch import DispatchRequest
from app.engine.prepared import Outcome, Prepared
from app.engine.service import Service
from app.formula.structures import Structures
from app.graphs.schedule import InitializedGraph
from app.http.server.limit import ConnectionLimit
from app.http.telemetry.metrics import Metrics
from app.memory.accounts import LimitExceeded, MemoryAccount
from app.memory.buffers import Buffer, BufferPool
from app.memory.neighbours import Neighbour, Neighbours
from app.operators.compiled import CompiledOperator
from app.settings import Settings, Unusable
from app.steps import at_once
from tests.gpu import first_gpu
from tests.graphs.documents import graph, into, node, out, tensor
from tests.graphs.random_graphs import Drawn, initialized
from tests.operators import coordinate_operators
from tests.operators.coordinate_operators import CumulativeSum, Slice1
from tests.operators.descriptors import CELU, compiled, descriptor

SMALL, LARGE = 1 << 10, 1 << 17


class FakeGpu:
    """Computes with NumPy and says it is a GPU; fails as often as it is told to."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self, numpy_device: NumpyDevice, ordinal: int = 0) -> None:
        self.name = f"cuda:{ordinal}"
        self.ordinal = ordinal
        self.numpy = numpy_device
        self.load = 0
        self.out_of_service: str | None = None
        self.short_until = 0.0
        self.failures: list[DeviceFailed] = []
        self.ran = self.freed = 0
        self.held: list[weakref.ref[Buffer]] = []
        """What dispatches that failed were to write."""
        self.is_brief = False
        self.slots = SimpleNamespace(pinned_bytes=0)
        self.pool_bytes = 0
        self.cache = KernelCache(Binaries(None))

    def info(self) -> DeviceInfo:
        return DeviceInfo(self.name, "cuda", "a fake", 1, 1, [], out_of_service=self.out_of_service)

    def prepare(self, operator: CompiledOperator) -> "FakeKernel":
        return FakeKernel(self, operator)

    def free_memory(self) -> None:
        self.freed += 1

    def close(self) -> None:
        pass


class FakeKernel:
    def __init__(self, gpu: FakeGpu, operator: CompiledOperator) -> None:
        self.gpu = gpu
        self.kernel = gpu.numpy.prepare(operator)
        self.runs_inline = gpu.is_brief

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if self.gpu.failures:
            for output in outputs:
                output[: len(output) // 2] = bytes(len(output) // 2)
            self.gpu.held += map(weakref.ref, outputs)
            raise self.gpu.failures.pop(0)
        self.gpu.ran += 1
        self.kernel.dispatch(inputs, outputs, cancelled)
        return ExecutionRecord(self.gpu.name, "cuda")


@pytest.fixture
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


@pytest.fixture
def gpus(numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two of them, which every service and placement then finds."""
    found = [FakeGpu(numpy_device, ordinal) for ordinal in range(2)]
    monkeypatch.setattr(placement, "find_gpus", lambda *_: (found, []))
    monkeypatch.setattr(placement, "compile_ahead", lambda gpus: None)
    return found


def place(numpy_device: NumpyDevice, **settings: Any) -> Placement:
    made = Placement(Settings(**settings), numpy_device)
    made.open()
    return made


def celu(elements: int) -> CompiledOperator:
    return compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [elements]}))


def run(device: Any, elements: int, *, in_place: bool = False) -> ExecutionRecord:
    x = np.random.default_rng(0).standard_normal(elements, np.float32)
    expected = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    output = x if in_place else np.empty_like(x)
    ran = device.prepare(celu(elements)).dispatch([x.view(np.uint8).data], [output.view(np.uint8).data], lambda: False)
    assert np.allclose(output, expected, atol=1e-6)
    assert isinstance(ran, ExecutionRecord)
    return ran


# The choice


def test_auto_takes_a_gpu_from_the_crossover_on(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    placed = place(numpy_device, crossover_elements=LARGE, pinned_bytes=1 << 20)
    assert placed.pinned.limit == 1 << 20
    assert placed.choose("auto", celu(LARGE - 1)) is numpy_device
    chosen = placed.choose("auto", celu(LARGE))
    assert chosen is not None
    assert run(chosen, LARGE).device == "cuda:0"


def test_a_gpu_s_kernel_is_prepared_once(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []

    def prepare(gpu: FakeGpu, operator: CompiledOperator) -> FakeKernel:
        prepared.append(gpu.name)
        return FakeKernel(gpu, operator)

    monkeypatch.setattr(FakeGpu, "prepare", prepare)
    kernel = FallbackDevice(gpus, numpy_device).prepare(celu(1))
    x = memoryview(bytearray(4))
    for _ in range(2):
        kernel.dispatch([x], [x], lambda: False)
        assert not kernel.runs_inline
    gpus[0].load = 1
    kernel.dispatch([x], [x], lambda: False)
    assert prepared == ["cuda:0", "cuda:1"]


def test_a_name_forces(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    placed = place(numpy_device, crossover_elements=LARGE)
    for name in ("numpy", "cuda:0", "cuda:1"):
        for elements in (SMALL, LARGE):
            chosen = placed.choose(name, celu(elements))
            assert chosen is not None
            assert run(chosen, elements).device == name
    assert placed.choose("cuda:2", celu(1)) is None


def test_gpus_by_their_names(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    """In whose memory a client's region is."""
    placed = place(numpy_device, crossover_elements=LARGE)
    assert [placed.gpu(name) for name in ("cuda:0", "cuda:1", "cuda:2", "numpy")] == [*gpus, None, None]


def test_auto_takes_the_gpu_with_the_least_load(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    placed = place(numpy_device, crossover_elements=1)
    chosen = placed.choose("auto", celu(SMALL))
    gpus[0].load = 100
    assert run(chosen, SMALL).device == "cuda:1"
    gpus[1].load = 101
    assert run(chosen, SMALL).device == "cuda:0"


def test_processes_begin_with_different_gpus(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    """Each knows of its own work only: all would take the first one, and leave the others idle."""
    neighbours = Neighbours(3)
    devices = [FallbackDevice(gpus, numpy_device, neighbours.member(number)) for number in range(3)]
    assert [each.least_loaded().name for each in devices] == ["cuda:0", "cuda:1", "cuda:0"]
    gpus[1].load = 1
    assert [each.least_loaded().name for each in devices] == ["cuda:0"] * 3
    gpus[0].load = 2
    assert [each.least_loaded().name for each in devices] == ["cuda:1"] * 3
    gpus[1].out_of_service = "it fell off the bus"
    assert [each.least_loaded().name for each in devices] == ["cuda:0"] * 3


def test_auto_leaves_out_what_is_out_of_service(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    placed = place(numpy_device, crossover_elements=1)
    chosen = placed.choose("auto", celu(SMALL))
    gpus[0].out_of_service = "it fell off the bus"
    gpus[1].load = 100
    assert run(chosen, SMALL).device == "cuda:1"
    assert placed.troubles() == ["cuda:0 is out of service: it fell off the bus"]


def test_if_all_are_out_of_service_the_one_with_the_least_load_says_so(
    gpus: list[Any], numpy_device: NumpyDevice
) -> None:
    for gpu, load in zip(gpus, (2, 1), strict=True):
        gpu.out_of_service, gpu.load = "it fell off the bus", load
    assert FallbackDevice(gpus, numpy_device).least_loaded() is gpus[1]


def test_several_are_called_auto(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    assert FallbackDevice(gpus, numpy_device).name == "auto"
    assert FallbackDevice(gpus[1:], numpy_device).name == "cuda:1"


def test_without_gpus_auto_is_numpy(numpy_device: NumpyDevice) -> None:
    placed = place(numpy_device, gpus="none", crossover_elements=1)
    assert placed.choose("auto", celu(LARGE)) is numpy_device
    assert list(placed.devices) == ["numpy"]
    assert placed.troubles() == ["the setting gpus is none"]
    assert placed.pinned.limit == 0, "nobody would read it"


def test_auto_takes_a_gpu_where_it_is_done_first(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of few elements, too, if they are products of many."""
    pace = Pace(start=33e-6, product=1e-4, bus=14e-12, memory=13e-12, operation=1e-13, multiplication=1e-11)
    monkeypatch.setattr(placement, "measure", lambda *_: pace)
    caplog.set_level("INFO", "app.execution")
    placed = place(numpy_device)
    assert placed.choose("auto", hard_sigmoid(1 << 24)) is numpy_device
    assert placed.choose("auto", square_product(128)) is numpy_device
    chosen = placed.choose("auto", square_product(256))
    assert isinstance(chosen, FallbackDevice)
    told = "auto takes a GPU from no elements of a HARD_SIGMOID, no of a GELU, 256 rows of a GEMM on"
    assert told in caplog.messages


def a_product(numpy_device: NumpyDevice) -> InitializedGraph:
    """A graph of one product of matrices of 256 rows."""
    desc = tensor(sizes=(256, 256))
    product = node("GEMM", ATensor=desc, BTensor=desc, TransA="NONE", TransB="NONE", Alpha=1, Beta=0)
    drawn = Drawn(graph([product], [into("x", 0), into("w", 0, 1)], [out(0, "y")]), dict.fromkeys("xw", bytes(1 << 18)))
    return initialized(drawn.graph(), drawn, numpy_device, Structures())


def test_a_graph_is_looked_at_once(gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    made = a_product(numpy_device)
    looked: list[Any] = []

    def work_of(work: Any) -> Work:
        looked.append(work)
        return of(work)

    of, pace = (
        Work.of,
        Pace(start=33e-6, product=1e-4, bus=14e-12, memory=13e-12, operation=1e-13, multiplication=1e-11),
    )
    monkeypatch.setattr(placement, "measure", lambda *_: pace)
    monkeypatch.setattr(placement, "Work", SimpleNamespace(of=work_of))
    placed = place(numpy_device)
    for _ in range(3):
        assert isinstance(placed.choose("auto", made), FallbackDevice)
    assert looked == [made]


def test_nothing_is_measured_where_the_elements_are_set(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "measure", lambda *_: pytest.fail("measured"))
    assert place(numpy_device, crossover_elements=77).pace is None


@pytest.mark.parametrize("ahead", [True, False])
def test_kernels_are_compiled_at_the_start_if_the_setting_says_so(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(placement, "compile_ahead", made.append)
    place(numpy_device, crossover_elements=1, compile_ahead=ahead)
    assert made == ([gpus] if ahead else [])


def test_nothing_is_compiled_or_measured_without_gpus(
    numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compile_ahead", "measure"):
        monkeypatch.setattr(placement, name, lambda *_: pytest.fail("there is none"))
    assert place(numpy_device, gpus="none").pace is None


def test_auto_is_numpy_where_the_gpu_fails_while_it_is_measured(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> Pace:
        raise DeviceFailed("lost", "cuda:0 fell off the bus")

    monkeypatch.setattr(placement, "measure", failing)
    assert place(numpy_device).choose("auto", square_product(4096)) is numpy_device
    assert caplog.messages == ["at the start: cuda:0 fell off the bus"] * 2, "of each of both"


def test_one_of_several_gpus_that_fails_at_the_start_is_not_measured(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` goes by another one's pace, and not to NumPy with all there is."""
    pace = Pace(start=33e-6, product=1e-4, bus=14e-12, memory=13e-12, operation=1e-13, multiplication=1e-11)

    def failing(*_: object) -> None:
        raise DeviceFailed("memory", "cuda:0 has no memory left")

    def measure(cpu: Any, gpu: Any, pool: BufferPool) -> Pace:
        if gpu is gpus[0]:
            failing()
        return pace

    monkeypatch.setattr(placement, "measure", measure)
    monkeypatch.setattr(placement, "compile_ahead", failing)
    assert isinstance(place(numpy_device).choose("auto", square_product(256)), FallbackDevice)


def test_what_is_wanted_first_is_compiled_on_all_gpus() -> None:
    launched: list[tuple[str, str]] = []

    class Gpu:
        def __init__(self, name: str, failure: DeviceFailed | None = None) -> None:
            self.name = name
            self.failure = failure

        def at_work(self, amount: int) -> AbstractContextManager[None]:
            return nullcontext()

        def kernels(self, operator: CompiledOperator) -> list[Any]:
            return [SimpleNamespace(launch=lambda: self.launch(operator.name))]

        def launch(self, name: str) -> None:
            if self.failure:
                raise self.failure
            launched.append((self.name, name))

    two: Any = [Gpu("cuda:0"), Gpu("cuda:1")]
    placement.compile_ahead(two)
    assert {*launched} == {(name, operator) for name in ("cuda:0", "cuda:1") for operator in AHEAD}
    broken: Any = [two[0], Gpu("cuda:1", DeviceFailed("lost", "it fell off the bus"))]
    with pytest.raises(DeviceFailed, match="it fell off the bus"):
        placement.compile_ahead(broken)


# What GPUs have no kernels for


def by_coordinates() -> CompiledOperator:
    """The elements of a tensor backwards."""
    desc = {"DataType": "FLOAT32", "Sizes": [LARGE]}
    window = {"InputWindowOffsets": [0], "InputWindowSizes": [LARGE], "InputWindowStrides": [-1]}
    return coordinate_operators.compiled(Slice1, {"InputTensor": desc, "OutputTensor": desc} | window)


def by_call() -> CompiledOperator:
    desc = {"DataType": "FLOAT32", "Sizes": [LARGE]}
    return coordinate_operators.compiled(CumulativeSum, {"InputTensor": desc, "OutputTensor": desc, "Axis": 0})


@pytest.mark.parametrize("made", [by_coordinates, by_call])
def test_gpus_run_what_is_not_made_by_position(
    gpus: list[Any], numpy_device: NumpyDevice, made: Callable[[], CompiledOperator]
) -> None:
    """And NumPy where they fail."""
    placed = place(numpy_device, crossover_elements=1)
    operator = made()
    x = np.arange(LARGE, dtype=np.float32) % 7
    expected = x[::-1] if made is by_coordinates else np.cumsum(x)
    for name, failure in (("auto", None), ("cuda:0", None), ("cuda:0", DeviceFailed("error", "as it happens"))):
        gpus[0].failures = [failure] if failure else []
        output = np.zeros_like(x)
        chosen = placed.choose(name, operator)
        assert chosen is not None
        ran = chosen.prepare(operator).dispatch([x.view(np.uint8).data], [output.view(np.uint8).data], lambda: False)
        by_numpy = ExecutionRecord("numpy", "cpu", "as it happens", "cuda:0", "error")
        assert ran == (by_numpy if failure else ExecutionRecord("cuda:0", "cuda"))
        np.testing.assert_array_equal(output, expected)


# Failures


def failing(gpu: FakeGpu, *causes: Any) -> None:
    gpu.failures = [DeviceFailed(cause, f"{gpu.name} fails: {cause}") for cause in causes]


@pytest.mark.parametrize("in_place", [False, True])
def test_without_memory_it_is_tried_again_with_what_the_pool_had(
    gpus: list[Any], numpy_device: NumpyDevice, in_place: bool
) -> None:
    device = FallbackDevice(gpus[:1], numpy_device)
    assert run(device, SMALL, in_place=in_place) == ExecutionRecord("cuda:0", "cuda")
    assert gpus[0].freed == 0
    failing(gpus[0], "memory")
    assert run(device, SMALL, in_place=in_place) == ExecutionRecord("cuda:0", "cuda")
    assert (gpus[0].freed, gpus[0].ran) == (1, 2)


def test_without_memory_it_is_tried_again_with_what_other_processes_had(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before all have given it, but one that does not answer is not waited for for ever."""
    neighbours = Neighbours(3)
    others = [neighbours.member(number) for number in (1, 2)]
    device = FallbackDevice(gpus[:1], numpy_device, neighbours.member(0))
    given: list[int] = []

    def dispatch(*answering: Neighbour) -> ExecutionRecord:
        failing(gpus[0], "memory")
        asked = ThreadPoolExecutor(1)
        with asked:
            ran = asked.submit(run, device, SMALL)
            while not ran.done():
                for each in answering:
                    each.answer(0, lambda: given.append(gpus[0].ran))
                    each.answer(1, lambda: given.append(-1))
        return ran.result()

    assert dispatch(*others) == ExecutionRecord("cuda:0", "cuda")
    assert given == [0, 0], "each was asked once, for this GPU, before it was tried again"
    monkeypatch.setattr(placement, "NEIGHBOURS_SECONDS", 0.05)
    assert dispatch(others[0]) == ExecutionRecord("cuda:0", "cuda")
    assert len(given) == 3


def test_an_event_loop_waits_for_no_memory(
    gpus: list[Any], numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes are asked, but not waited for, and what comes next is for workers, for a while."""
    monkeypatch.setattr(placement, "NEIGHBOURS_SECONDS", 600.0)
    neighbours = Neighbours(2)
    gpus[0].is_brief = True
    device = FallbackDevice(gpus[:1], numpy_device, neighbours.member(0))
    kernel = device.prepare(celu(SMALL))
    assert kernel.runs_inline
    failing(gpus[0], "memory", "memory")

    async def in_event_loop() -> ExecutionRecord:
        return run(device, SMALL)

    ran = asyncio.run(in_event_loop())
    assert (ran.device, ran.cause) == ("numpy", "memory")
    given: list[int] = []
    neighbours.member(1).answer(0, lambda: given.append(0))
    assert given == [0]
    assert not kernel.runs_inline
    monkeypatch.setattr(placement, "monotonic", lambda: gpus[0].short_until)
    assert kernel.runs_inline


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_other_processes_ask_for_is_given_where_there_is_something(
    gpus: list[Any], numpy_device: NumpyDevice, is_lost: bool
) -> None:
    """What is lost cannot be asked, but nobody is kept waiting."""
    neighbours = Neighbours(2)
    placed = Placement(Settings(), numpy_device, None, neighbours.member(1))
    gpus[1].out_of_service = "it fell off the bus" if is_lost else None
    placed.tend()
    assert gpus[1].freed == 0, "nobody has asked"
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(neighbours.member(0).ask, 1, 600.0, lambda: False)
        while not asked.done():
            placed.tend()
    assert (gpus[0].freed, gpus[1].freed) == (0, 0 if is_lost else 1)
    Placement(Settings(), numpy_device).tend()  # by itself, it has nobody to give anything to


def test_what_numpy_takes_in_a_gpus_place_is_held(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    """A GPU has memory of its own, so that nobody held any for the dispatch before."""
    operator = compiled(
        {"Type": "CUMULATIVE_SUMMATION", "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, SMALL]}, "Axis": 1}
        | {"AxisDirection": "INCREASING", "HasExclusiveSum": False}
    )
    least = own_bytes(numpy_device.prepare(operator))
    assert least > 4 * SMALL
    x, made = (memoryview(bytearray(4 * SMALL)) for _ in range(2))
    for limit in (least, least - 1):
        placed, memory = place(numpy_device), MemoryAccount(limit)
        placed.charge(memory)
        failing(gpus[0], "error")
        kernel = placed.devices["cuda:0"].prepare(operator)
        if limit == least:
            assert kernel.dispatch([x], [made], lambda: False).device == "numpy"
        else:
            with pytest.raises(LimitExceeded, match="max_memory_bytes"):
                kernel.dispatch([x], [made], lambda: False)
        assert memory.used == 0


@pytest.mark.parametrize("causes", [("memory", "memory"), ("lost",), ("error",), ("memory", "lost")])
@pytest.mark.parametrize("in_place", [False, True])
def test_numpy_answers_what_a_gpu_cannot(
    gpus: list[Any], numpy_device: NumpyDevice, causes: tuple[Any, ...], in_place: bool
) -> None:
    """Also in place, where half of the input is overwritten already."""
    failing(gpus[0], *causes)
    ran = run(FallbackDevice(gpus[:1], numpy_device), SMALL, in_place=in_place)
    assert ran == ExecutionRecord("numpy", "cpu", f"cuda:0 fails: {causes[-1]}", "cuda:0", causes[-1])
    assert gpus[0].ran == 0


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("causes", [("memory", "memory"), ("lost",)])
def test_another_gpu_answers_what_one_cannot(
    gpus: list[Any], numpy_device: NumpyDevice, causes: tuple[Any, ...], in_place: bool
) -> None:
    """Where one is full and has nothing to do, all that comes one after the other would else be NumPy's."""
    failing(gpus[0], *causes)

    def prepare(operator: CompiledOperator) -> FakeKernel:
        assert not in_place or not any(each() for each in gpus[0].held), "one copy is held at a time"
        return FakeKernel(gpus[1], operator)

    gpus[1].prepare = prepare
    ran = run(FallbackDevice(gpus, numpy_device), SMALL, in_place=in_place)
    assert ran == ExecutionRecord("cuda:1", "cuda", f"cuda:0 fails: {causes[-1]}", "cuda:0", causes[-1])


def test_numpy_answers_what_no_gpu_can(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    """No other one is asked for what it has no kernel for either, or for what is to be the first one's."""
    device = FallbackDevice(gpus, numpy_device)
    for gpu in gpus:
        failing(gpu, "memory", "memory")
    by_numpy = ExecutionRecord("numpy", "cpu", "cuda:0 fails: memory", "cuda:0", "memory")
    assert run(device, SMALL) == by_numpy
    failing(gpus[0], "error")
    assert run(device, SMALL).device == "numpy"
    failing(gpus[0], "lost")
    assert run(FallbackDevice(gpus[:1], numpy_device), SMALL).device == "numpy"
    assert gpus[1].ran == 0


def test_what_a_gpu_cannot_time_numpy_does(gpus: list[Any], numpy_device: NumpyDevice) -> None:
    placed = place(numpy_device, crossover_elements=1)
    made = a_product(numpy_device)

    def times(_: object, __: object) -> list[float]:
        if gpus[0].failures:
            raise gpus[0].failures.pop()
        return [0.5]

    gpus[0].step_seconds = times
    gpus[0].ran = ExecutionRecord("cuda:0", "cuda")
    take = BufferPool(0).take
    assert placed.step_seconds("cuda:0", made, take, lambda: False) == (gpus[0].ran, [0.5])
    failing(gpus[0], "lost")
    ran, seconds = placed.step_seconds("cuda:0", made, take, lambda: False)
    assert ran == ExecutionRecord("numpy", "cpu", "cuda:0 fails: lost")
    assert len(seconds) == 1
    ran, _ = placed.step_seconds("numpy", made, take, lambda: False)
    assert ran == ExecutionRecord("numpy", "cpu")


def service_of(**settings: Any) -> Service:
    service = Service(Settings(threads=1, crossover_elements=1, **settings))
    service.open()
    return service


def dispatch(service: Service, device: str = "auto", elements: int = SMALL) -> tuple[Prepared, Outcome]:
    x = np.random.default_rng(1).standard_normal(elements, np.float32)
    document = {
        "operator": {"Type": CELU, "InputTensor": {"DataType": "FLOAT32", "Sizes": [elements]}},
        "inputs": {"InputTensor": b""},
        "device": device,
    }
    prepared = at_once(service.prepare(validate(DispatchRequest, document)))
    with service.memory.open() as memory:
        data = {"InputTensor": x.view(np.uint8).data}
        outcome = asyncio.run(service.execute(prepared, data, memory))
        assert np.allclose(
            np.frombuffer(outcome.outputs["OutputTensor"], np.float32), np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        )
    return prepared, outcome


def test_an_answer_names_the_device_that_ran_it_and_why(gpus: list[Any]) -> None:
    service = service_of()
    metrics = Metrics(service, ConnectionLimit())
    for causes in ((), ("lost",), ("memory", "memory")):
        failing(gpus[0], *causes)
        prepared, outcome = dispatch(service, "cuda:0")
        metrics.dispatched(prepared, outcome)
        execution = prepared.answer(outcome.ran, outcome.outputs, 0, 0)["execution"]
        assert execution["device"] == ("numpy" if causes else "cuda:0")
        assert execution["kind"] == ("cpu" if causes else "cuda")
        assert execution["fallback_reason"] == (f"cuda:0 fails: {causes[-1]}" if causes else None)
    text = metrics.render().decode()
    assert 'dmlserve_fallbacks_total{cause="lost",device="cuda:0"} 1.0' in text
    assert 'dmlserve_fallbacks_total{cause="memory",device="cuda:0"} 1.0' in text
    assert 'device="numpy",operator="DML_OPERATOR_ACTIVATION_CELU"} 2.0' in text
    service.close()


def test_capabilities_list_gpus_and_their_troubles(gpus: list[Any]) -> None:
    service = service_of()
    gpus[1].out_of_service = "lost"
    facts = service.capabilities()
    assert [each.name for each in facts["devices"]] == ["numpy", "cuda:0", "cuda:1"]
    assert facts["device_troubles"] == ["cuda:1 is out of service: lost"]
    service.close()


@pytest.mark.parametrize("is_brief", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_only_brief_work_on_a_gpu_is_waited_for_in_the_event_loop(
    gpus: list[Any], *, is_brief: bool, lost: bool
) -> None:
    service = service_of()
    threads: list[str] = []
    gpus[0].free_memory = lambda: threads.append(threading.current_thread().name)
    gpus[0].is_brief, gpus[0].out_of_service = is_brief, "lost" if lost else None
    failing(gpus[0], "memory")
    dispatch(service, "cuda:0", elements=1)
    assert threads
    assert threads[0].startswith("dmlserve-worker") == (lost or not is_brief)
    service.close()


# What is missing


def reasons(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[str]:
    gpus, problems = find_gpus(Settings(**settings), PinnedMemory(0))
    assert gpus == []
    return problems


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert reasons(monkeypatch) == ["CuPy is not installed; the extras cuda12 and cuda13 bring it"]


@pytest.fixture
def with_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)


@pytest.fixture
def with_driver(with_cupy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)


@pytest.mark.usefixtures("with_cupy")
def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", cannot)
    assert reasons(monkeypatch) == ["there is no NVIDIA driver (libcuda.so.1 cannot be loaded)"]


@pytest.mark.usefixtures("with_driver")
def test_with_a_cupy_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(name: str) -> None:
        raise ImportError("\n  libcudart.so.13: cannot open\nand much more")

    monkeypatch.setattr(importlib, "import_module", cannot)
    assert reasons(monkeypatch) == ["CuPy cannot be loaded: libcudart.so.13: cannot open"]


@pytest.mark.usefixtures("with_driver")
def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> None:
        raise RuntimeError("libnvrtc.so is not there")

    monkeypatch.setattr(importlib, "import_module", lambda name: None)
    monkeypatch.setattr(placement, "nvrtc_version", cannot)
    assert reasons(monkeypatch) == ["NVRTC cannot be loaded: libnvrtc.so is not there"]


class CudaError(Exception):
    pass


def cupy_with(monkeypatch: pytest.MonkeyPatch, count: Callable[[], int]) -> None:
    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CudaError)
    monkeypatch.setattr(placement, "_missing", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))


def test_with_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> int:
        raise CudaError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")

    cupy_with(monkeypatch, cannot)
    (reason,) = reasons(monkeypatch)
    assert reason.startswith("CUDA does not start: cudaErrorInsufficientDriver")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_with(monkeypatch, lambda: 0)
    assert reasons(monkeypatch) == ["there is no GPU"]
    assert reasons(monkeypatch, gpus="1") == ["there is no GPU", "there is no cuda:1, only 0 GPUs"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gpus": "0,3"}, "The setting gpus is 0,3, but cuda:0 does not start: no; there is no cuda:3, only 2 GPUs."),
        ({"gpus": "1,3"}, "The setting gpus is 1,3, but there is no cuda:3, only 2 GPUs."),
        ({"gpus": "1"}, None),
        ({"require_gpu": True}, None),
        ({"require_gpu": True, "gpus": "none"}, "A GPU is required, but the setting gpus is none."),
        ({}, None),
    ],
)
def test_gpus_that_are_named_or_required_are_there_or_nothing_starts(
    settings: dict[str, Any], sentence: str | None, monkeypatch: pytest.MonkeyPatch, numpy_device: NumpyDevice
) -> None:
    cupy_with(monkeypatch, lambda: 2)

    def device(ordinal: int, *_: object) -> FakeGpu:
        if ordinal == 0:
            raise CudaError("no")
        return FakeGpu(numpy_device, ordinal)

    monkeypatch.setattr(placement, "CudaDevice", device)
    for start in (try_gpus, lambda settings: Placement(settings, numpy_device)):
        if sentence:
            with pytest.raises(Unusable, match=f"^{re.escape(sentence)}$"):
                start(Settings(**settings))
        else:
            start(Settings(**settings))


def test_a_gpu_that_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_with(monkeypatch, lambda: 2)

    def device(ordinal: int, *_: object) -> str:
        if ordinal == 0:
            raise CudaError("no memory left")
        return "cuda:1"

    monkeypatch.setattr(placement, "CudaDevice", device)
    found: Any = find_gpus(Settings(), PinnedMemory(0))
    assert found == (["cuda:1"], ["cuda:0 does not start: no memory left"])
    found = find_gpus(Settings(gpus="2,1"), PinnedMemory(0))
    assert found == (["cuda:1"], ["there is no cuda:2, only 2 GPUs"])
    found = find_gpus(Settings(gpus="1,01,1"), PinnedMemory(0))
    assert found == (["cuda:1"], []), "each is one device, however often it is named"
    cupy_with(monkeypatch, lambda: 1)
    assert reasons(monkeypatch, gpus="1") == ["there is no cuda:1, only 1 GPU"]


# Pinned buffers


class Registry:
    """Stands in for CUDA's."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def hostRegister(self, address: int, size: int, flags: int) -> None:  # noqa: N802 - CUDA's names
        self.held[address] = size

    def hostUnregister(self, address: int) -> None:  # noqa: N802
        del self.held[address]


def test_buffers_of_bodies_are_pinned_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setattr(cuda_staging, "_runtime", lambda: registry)
    size = SMALLEST_PINNED
    pinned = PinnedMemory(2 * size)
    pool = BufferPool(1 << 30, pinned)
    buffers = [pool.take(size) for _ in range(3)]
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in buffers]
    assert [pinned.holds(address, size) for address in addresses] == [True, True, False]
    assert pinned.used == 2 * size
    assert not pinned.holds(addresses[0] - 1, 2)
    del buffers
    assert set(registry.held) == set(addresses[:2])  # idle, and as good as ever


def test_a_buffer_that_is_dropped_is_let_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setattr(cuda_staging, "_runtime", lambda: registry)
    pinned = PinnedMemory(1 << 30)
    pool = BufferPool(0, pinned)
    pool.take(SMALLEST_PINNED)
    pool.settle()
    assert registry.held == {}
    assert pinned.used == 0


def test_a_buffer_is_let_go_although_its_pool_went_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a GPU would read old pages where new memory comes to lie."""
    registry = Registry()
    monkeypatch.setattr(cuda_staging, "_runtime", lambda: registry)
    pinned = PinnedMemory(1 << 30)
    pool = BufferPool(SMALLEST_PINNED, pinned)
    lent = [pool.take(SMALLEST_PINNED) for _ in range(3)]
    lent.pop()
    del pool
    assert len(registry.held) == 2
    lent.clear()
    assert registry.held == {}
    assert pinned.used == 0


@pytest.mark.gpu
def test_memory_that_comes_and_goes_around_the_start() -> None:
    """Of every size that is kept, pinned or neither, with data of its own each time."""
    gpu = first_gpu().name
    service = Service(Settings(kernel_cache="none", compile_ahead=False, idle_buffer_bytes=8 << 20))
    service.open()
    rng = np.random.default_rng(0)
    sizes = [1000, 98_304, 98_400, 100_000, 200_000, 262_144, 262_200, 1 << 20, 1 << 22]

    async def check(elements: int, device: str) -> None:
        x = rng.standard_normal(elements).astype(np.float32)
        operator = {"Type": CELU, "InputTensor": {"DataType": "FLOAT32", "Sizes": [elements]}, "Alpha": 1}
        with service.memory.open() as memory:
            data = memory.buffer(x.nbytes)
            data[:] = x.tobytes()
            message = {"operator": operator, "inputs": {"InputTensor": data}, "device": device}
            stated = validate(DispatchRequest, message)
            outcome = await service.execute(await service.prepare(stated), stated.inputs, memory)
            found = np.frombuffer(outcome.outputs["OutputTensor"], np.float32)
            assert np.array_equal(found[x > 0], x[x > 0]), (elements, device)
            assert outcome.ran.device == device

    for _ in range(3):
        for elements in sizes:
            for device in (gpu, "numpy"):
                asyncio.run(check(elements, device))
    service.close()


def test_memory_that_cannot_be_pinned_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise RuntimeError("cudaErrorMemoryAllocation")

    monkeypatch.setattr(cuda_staging, "_runtime", lambda: SimpleNamespace(hostRegister=cannot))
    pinned = PinnedMemory(1 << 30)
    pinned.pin(mmap.mmap(-1, SMALLEST_PINNED))
    assert pinned.used == 0
