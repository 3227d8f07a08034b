"""Kernels that stay loaded on a GPU: those that are used, and those that somebody holds."""

import itertools
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from app.devices.binaries import Binaries
from app.devices.cuda import compiler, context
from app.devices.cuda.compiler import KernelCache
from app.devices.cuda.context import Context
from app.devices.schedules import initialize
from app.formula.structures import Structures
from app.graphs.schedule import schedule
from tests.devices.test_numpy_device import never
from tests.gpu import assert_recorded, first_gpu
from tests.graphs.documents import add, between, graph, into, node, out, resolved, tensor
from tests.operators.arrays import bytes_of
from tests.operators.descriptors import compiled


class Module:
    def __init__(self, source: str) -> None:
        self.source = source


class Function:
    """CuPy's, which has its module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.source = module.source


class Gpu(Context):
    """What loads functions."""

    def __init__(self) -> None:
        self._functions: OrderedDict[str, Any] = OrderedDict()
        self._written: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._holding, self._lock, self._capturing = threading.local(), threading.Lock(), threading.Lock()
        self._cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=self.wait)))
        self.cache: Any = SimpleNamespace(binary=lambda source, *_: source.encode())
        self.facts: Any = SimpleNamespace(architecture=90)
        self.shared_of_few = 0
        self.loaded: WeakSet[Function] = WeakSet()
        self.modules: WeakSet[Module] = WeakSet()
        self.waited: list[set[str]] = []
        """What was loaded when it was waited for."""

    def wait(self) -> None:
        self.waited.append(self.sources)

    def _module(self, binary: bytes) -> Any:
        made = Module(binary.decode())
        self.modules.add(made)
        return made

    def _found(self, module: Any, name: str, shared_bytes: int) -> Any:
        made = Function(module)
        self.loaded.add(made)
        return made

    @property
    def sources(self) -> set[str]:
        return {each.source for each in self.loaded}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "KEPT", 3)


@pytest.mark.usefixtures("few")
def test_the_least_recently_used_are_let_go() -> None:
    gpu = Gpu()
    for source in "abc":
        gpu.function(source)
    gpu.function("a")
    gpu.function("d")
    assert gpu.sources == set("cad")
    assert not gpu.has_function("b")
    for number in range(100):
        gpu.function(str(number))
    assert len(gpu.loaded) == 3


@pytest.mark.usefixtures("few")
def test_what_is_held_stays() -> None:
    gpu = Gpu()
    held = [gpu.function(source) for source in "abcdef"]
    for number in range(20):
        gpu.function(str(number))
    assert gpu.sources >= set("abcdef")
    assert [gpu.function(source) for source in "abcdef"] == held, "none is loaded twice"
    del held
    for number in range(20):
        gpu.function(f"again {number}")
    assert len(gpu.loaded) == 3


@pytest.mark.usefixtures("few")
def test_what_a_thread_gets_is_held_for_it() -> None:
    gpu = Gpu()
    with gpu.holding() as functions:
        gpu.function("a")
        other = threading.Thread(target=gpu.function, args=("another thread's",))
        other.start()
        other.join()
    gpu.function("b")
    assert [each.source for each in functions] == ["a"]
    for number in range(20):
        gpu.function(str(number))
    assert gpu.has_function("a")


@pytest.mark.usefixtures("few")
def test_modules_that_nobody_holds_are_let_go_when_all_that_is_queued_has_run() -> None:
    gpu = Gpu()
    for source in "abc":
        gpu.written(source, "kernel", 0)
    gpu.written("a", "kernel", 0)
    assert not gpu.waited
    gpu.written("d", "kernel", 0)
    assert gpu.waited == [set("abcd")]
    assert gpu.sources == set("acd")
    for number in range(100):
        gpu.written(str(number), "kernel", 0)
    assert len(gpu.modules) == 3


@pytest.mark.usefixtures("few")
def test_a_module_stays_for_any_of_its_kernels() -> None:
    gpu = Gpu()
    gpu.written("a", "first", 0)
    with gpu.holding() as functions:
        second = gpu.written("a", "second", 0)
    assert len(gpu.modules) == 1
    for number in range(20):
        gpu.written(str(number), "kernel", 0)
    assert functions == [second]
    assert gpu.written("a", "second", 0) is second
    del second, functions
    for number in range(20):
        gpu.written(f"again {number}", "kernel", 0)
    assert len(gpu.modules) == 3


@pytest.mark.usefixtures("few")
def test_modules_stay_while_a_graph_is_recorded() -> None:
    gpu = Gpu()
    with gpu._capturing:
        for number in range(20):
            gpu.written(str(number), "kernel", 0)
    assert len(gpu.modules) == 20
    for number in range(20):
        gpu.written(f"more {number}", "kernel", 0)
    assert len(gpu.modules) == 3
    assert not gpu._capturing.locked()


def test_binaries_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "KEPT", 3)
    made: list[str] = []

    def compile_source(source: str, *_: Any) -> bytes:
        made.append(source)
        return source.encode()

    cache = KernelCache(Binaries(None), compile_source)
    for source in "abcadaeb":
        assert cache.binary(source, 90) == source.encode()
    assert made == [*"abcdeb"]
    assert len(cache) == 3


@pytest.mark.gpu
def test_a_recorded_graph_keeps_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them one that is made while an operator's call is recorded."""
    gpu = first_gpu()
    monkeypatch.setattr(context, "KEPT", 1)
    x, weights = tensor("FLOAT32", (1, 4, 3, 8)), tensor("FLOAT32", (1, 1, 8, 8))
    made = tensor("FLOAT32", (4, 1, 3, 8))
    rnn = node(
        "RNN",
        InputTensor=x,
        WeightTensor=weights,
        RecurrenceTensor=weights,
        OutputSequenceTensor=made,
        ActivationDescs=[{"Type": "ACTIVATION_TANH"}],
        Direction="FORWARD",
    )
    document = graph(
        [rnn, add(a=made, b=made)],
        [into(0, 0), into(1, 0, 1), into(2, 0, 2)],
        [out(1)],
        [between(0, 1), between(0, 1, 1)],
    )
    planned = schedule(resolved(document), Structures())
    kernel = gpu.prepare(initialize(planned, {}, lambda size: memoryview(bytearray(size)), gpu.prepare, never))
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(size).astype(np.float32) / 4 for size in (96, 64, 64)]
    buffers = [each.view(np.uint8).data for each in inputs]

    def run() -> bytes:
        output = memoryview(bytearray(4 * 96))
        kernel.dispatch(buffers, [output], lambda: False)
        return bytes(output)

    first = run()
    for _ in range(3):
        assert run() == first
    assert_recorded(kernel, gpu)
    for count in range(5, 40):
        desc = tensor("FLOAT32", (count, 3), Strides=[count % 7 + 3, 1])
        kinds = ("COS", "SIN", "TAN", "EXP", "LOG", "SQRT", "ABS", "NEGATE", "FLOOR", "CEIL", "ERF", "SIGN")
        other = gpu.prepare(compiled({"Type": f"ELEMENT_WISE_{kinds[count % len(kinds)]}", "InputTensor": desc}))
        size = 4 * ((count - 1) * (count % 7 + 3) + 3)
        other.dispatch([memoryview(bytearray(size))], [memoryview(bytearray(4 * 3 * count))], lambda: False)
        del other
    assert run() == first


@pytest.mark.gpu
def test_calls_go_on_without_the_modules_that_were_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """By several threads, some of which queue what others let go."""
    gpu, rng = first_gpu(), np.random.default_rng(4)
    monkeypatch.setattr(context, "KEPT", 1)
    cases = []
    for size, axis in itertools.product((7, 300, 5000), (0, 1)):
        document = {
            "Type": "CUMULATIVE_SUMMATION",
            "Axis": axis,
            "AxisDirection": "INCREASING",
            "HasExclusiveSum": False,
        }
        for dtype in (np.int32, np.uint32, np.int64):
            x = rng.integers(0, 9, (size, 5), dtype)
            desc = {"DataType": x.dtype.name.upper(), "Sizes": list(x.shape)}
            cases.append((gpu.prepare(compiled(document | {"InputTensor": desc})), x, np.cumsum(x, axis, dtype)))

    def run(number: int) -> None:
        kernel, x, expected = cases[number % len(cases)]
        made = np.zeros_like(x)
        kernel.dispatch([bytes_of(x)], [bytes_of(made)], never)
        np.testing.assert_array_equal(made, expected)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(run, range(20 * len(cases))))
