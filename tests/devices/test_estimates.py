"""Whether a GPU is done first: what a dispatch is, and how quick both kinds of device are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from app.devices import estimates
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.estimates import (
    FEW,
    FEW_ROWS,
    LAUNCH,
    LEAST,
    MANY,
    MANY_ROWS,
    SOME,
    Pace,
    Work,
    gelu,
    hard_sigmoid,
    measure,
    square_product,
)
from app.formula.costs import FUNCTION
from app.formula.structures import Structures
from app.memory.buffers import BufferPool
from app.operators.compiled import CompiledOperator
from tests.graphs.documents import between, graph, into, node, out, tensor
from tests.graphs.random_graphs import Drawn, initialized
from tests.operators.descriptors import compiled

PACE = Pace(start=100.0, product=107.0, bus=2.0, memory=1.0, operation=3.0, multiplication=5.0)
FLAT = {"Strides": [1, 1], "Dilations": [1, 1], "StartPadding": [0, 0], "EndPadding": [0, 0], "GroupCount": 1}


def floats(*sizes: int) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": list(sizes)}


def uint8(*sizes: int) -> dict[str, Any]:
    return {"DataType": "UINT8", "Sizes": list(sizes)}


CONVOLUTION: dict[str, Any] = {
    "Type": "CONVOLUTION",
    "InputTensor": floats(2, 4, 9, 9),
    "Mode": "CROSS_CORRELATION",
    "OutputPadding": [0, 0],
    **FLAT,
}


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(moved=0, passed=100, operations=0, multiplications=0, kernels=1), False),
        (Work(moved=0, passed=101, operations=0, multiplications=0, kernels=1), True),
        (Work(moved=50, passed=200, operations=0, multiplications=0, kernels=1), False),
        (Work(moved=50, passed=200, operations=66, multiplications=0, kernels=1), False),  # while memory is waited for
        (Work(moved=50, passed=200, operations=67, multiplications=0, kernels=1), True),
        (Work(moved=50, passed=200, operations=66, multiplications=1, kernels=1), False),
        (Work(moved=50, passed=200, operations=66, multiplications=2, kernels=1), True),
        (Work(moved=0, passed=105, operations=0, multiplications=0, kernels=1 + int(4 / LAUNCH)), True),
        (Work(moved=0, passed=105, operations=0, multiplications=0, kernels=1 + int(6 / LAUNCH)), False),
    ],
)
def test_the_gpu_is_favoured_where_it_is_done_first(work: Work, expected: bool) -> None:
    assert PACE.favours_gpu(work) is expected


def test_an_operator_by_position_is_what_its_formula_is() -> None:
    for operator, operations in ((hard_sigmoid(10), 4), (gelu(10), 18)):
        made = Work.of(operator)
        assert (made.moved, made.passed, made.multiplications, made.kernels) == (80, 80, 0, 1)
        assert operations / 2 <= made.operations / 10 <= operations * 2


@pytest.mark.parametrize(
    ("document", "multiplications"),
    [
        (
            {
                "Type": "GEMM",
                "ATensor": floats(2, 3, 7, 5),
                "BTensor": floats(2, 3, 11, 7),
                "TransA": "TRANSPOSE",
                "TransB": "TRANSPOSE",
                "Alpha": 1,
                "Beta": 0,
            },
            2 * 3 * 5 * 7 * 11,
        ),
        (
            {"Type": "MATRIX_MULTIPLY_INTEGER", "ATensor": uint8(1, 2, 3, 5), "BTensor": uint8(1, 2, 5, 7)},
            2 * 3 * 5 * 7,
        ),
        (CONVOLUTION | {"FilterTensor": floats(6, 4, 3, 2), "Direction": "FORWARD"}, 2 * 6 * 7 * 8 * 4 * 3 * 2),
        (CONVOLUTION | {"FilterTensor": floats(4, 6, 3, 2), "Direction": "BACKWARD"}, 2 * 4 * 9 * 9 * 6 * 3 * 2),
        (
            {
                "Type": "CONVOLUTION_INTEGER",
                "InputTensor": uint8(2, 4, 9, 9),
                "FilterTensor": uint8(6, 4, 3, 2),
                "OutputTensor": {"DataType": "INT32", "Sizes": [2, 6, 7, 8]},
                **FLAT,
            },
            2 * 6 * 7 * 8 * 4 * 3 * 2,
        ),
        (
            {
                "Type": "MULTIHEAD_ATTENTION",
                "QueryTensor": floats(2, 3, 2 * 8),
                "KeyTensor": floats(2, 5, 2 * 8),
                "ValueTensor": floats(2, 5, 2 * 6),
                "Scale": 1,
                "HeadCount": 2,
                "MaskType": "NONE",
                "MaskFilterValue": 0,
                "OutputTensor": floats(2, 3, 2 * 6),
            },
            2 * 2 * 3 * 5 * (8 + 6),
        ),
        (
            {
                "Type": "GRU",
                "InputTensor": floats(1, 7, 2, 5),
                "WeightTensor": floats(1, 2, 9, 5),
                "RecurrenceTensor": floats(1, 2, 9, 3),
                "OutputSingleTensor": floats(1, 2, 2, 3),
                "ActivationDescs": 2 * [{"Type": "ACTIVATION_SIGMOID"}, {"Type": "ACTIVATION_TANH"}],
                "Direction": "BIDIRECTIONAL",
                "LinearBeforeReset": False,
            },
            2 * 7 * 2 * 9 * (5 + 3),
        ),
    ],
    ids=["products", "of integers", "forward", "backward", "convolved integers", "attention", "recurrent"],
)
def test_products_are_what_they_multiply(document: dict[str, Any], multiplications: int) -> None:
    """And something for each element besides."""
    made = Work.of(operator := compiled(document))
    assert made.multiplications == multiplications
    assert made.operations == FUNCTION * operator.elements if operator.call else made.operations > 0


def test_of_a_graph_what_is_between_its_kernels_is_not_moved() -> None:
    desc = tensor(sizes=(64, 64))
    product: dict[str, Any] = {
        "ATensor": desc,
        "BTensor": desc,
        "TransA": "NONE",
        "TransB": "NONE",
        "Alpha": 1,
        "Beta": 0,
    }
    document = graph(
        [node("GEMM", **product), node("GEMM", **product)],
        [into("x", 0), into("w", 0, 1), into("v", 1, 1)],
        [out(1, "y")],
        [between(0, 1)],
    )
    size = 4 * 64 * 64
    drawn = Drawn(document, dict.fromkeys("xwv", bytes(size)))
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, Compiler())
        made = Work.of(initialized(drawn.graph(), drawn, device, Structures()))
    assert (made.moved, made.passed, made.multiplications, made.kernels) == (4 * size, 6 * size, 2 * 64**3, 2)


class Timed:
    """A device whose dispatches take so long, by the clock of `estimates`, in turn."""

    def __init__(self, clock: list[float], takes: Callable[[CompiledOperator], list[float]]) -> None:
        self._clock = clock
        self._takes = takes

    def prepare(self, operator: CompiledOperator) -> Any:
        times = iter(self._takes(operator))

        def dispatch(*_: object) -> None:
            self._clock[0] += next(times)

        return SimpleNamespace(dispatch=dispatch)


def test_the_pace_is_that_of_the_best_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(estimates, "perf_counter", lambda: clock[0])
    of_cpu = {hard_sigmoid(MANY).name: 8.0 * MANY, gelu(SOME).name: 30.0, square_product(2).name: 2.0 * MANY_ROWS**3}
    of_gpu = {FEW: 4.0, MANY: 4.0 + 24.0 * (MANY - FEW), FEW_ROWS * FEW_ROWS: 7.0}
    cpu: Any = Timed(clock, lambda each: [9 * of_cpu[each.name], *[of_cpu[each.name]] * 3, 2 * of_cpu[each.name]])
    gpu: Any = Timed(clock, lambda each: [9 * of_gpu[each.elements], *[of_gpu[each.elements]] * 4])
    pace = measure(cpu, gpu, BufferPool(0))
    assert (pace.start, pace.product, pace.bus, pace.memory, pace.multiplication) == (4.0, 7.0, 3.0, 1.0, 2.0)
    assert pace.operation == 30.0 / Work.of(gelu(SOME)).operations


def test_it_is_measured_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quiet moment may be the last one."""
    clock = [0.0]
    monkeypatch.setattr(estimates, "perf_counter", lambda: clock[0])
    times = [0.03125] * LEAST, [0.0078125] * 11 + [0.015625], [0.0078125] * 12 + [0.00390625, 0.0078125]
    for given, best in zip(times, (0.03125, 0.0078125, 0.00390625), strict=True):

        def takes(_: CompiledOperator, given: list[float] = given) -> list[float]:
            return given

        device: Any = Timed(clock, takes)
        assert measure(device, device, BufferPool(0)).start == best


def test_the_least_that_a_gpu_is_done_first_with() -> None:
    pace = Pace(start=33e-6, product=1e-4, bus=12e-12, memory=13e-12, operation=5e-12, multiplication=1e-11)
    for of, expected in ((hard_sigmoid, 1 << 22), (square_product, 256)):
        assert pace.least(of) == expected
        assert not pace.favours_gpu(Work.of(of(expected // 2)))
    nothing = Pace(start=0.0, product=0.0, bus=0.0, memory=1.0, operation=1.0, multiplication=1.0)
    assert nothing.least(hard_sigmoid) == 1
    slow = Pace(start=33e-6, product=1e-4, bus=14e-12, memory=13e-12, operation=1e-13, multiplication=1e-11)
    assert slow.least(hard_sigmoid) is None
    never = Pace(start=33e-6, product=1e-4, bus=14e-12, memory=13e-12, operation=0.0, multiplication=0.0)
    assert never.least(square_product) is None


def test_it_is_looked_for_up_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Work.of(hard_sigmoid(8)).passed
    pace = Pace(start=passed - 1, product=0.0, bus=0.0, memory=1.0, operation=0.0, multiplication=0.0)
    for most, expected in ((8, 8), (7, None)):
        monkeypatch.setattr(estimates, "MOST", most)
        assert pace.least(hard_sigmoid) == expected


def test_a_bus_takes_no_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the smaller dispatches have been disturbed."""
    clock = [0.0]
    monkeypatch.setattr(estimates, "perf_counter", lambda: clock[0])
    device: Any = Timed(clock, lambda each: [1.0 if each.elements == FEW else 0.5] * LEAST)
    assert measure(device, device, BufferPool(0)).bus == 0
