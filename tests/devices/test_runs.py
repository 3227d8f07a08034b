"""Graphs on the CPU whose kernels are calls of compiled functions: what several threads and dispatches do to them."""

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu import recurrent_calls, runs
from app.devices.cpu.convolution import ConvolutionKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import coordinate_loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler, Function
from app.devices.cpu.products import ProductKernel
from app.devices.cpu.recurrent import RecurrentKernel
from app.devices.cpu.rows import NumpyRowKernel
from app.devices.cpu.runs import Run
from app.devices.device import Cancelled, Kernel, own_bytes
from app.devices.schedules import ScheduleKernel, initialize
from app.formula.structures import Structures
from app.graphs.graph import Constant, Source
from app.graphs.schedule import InitializedGraph, schedule
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.catalog import OPERATORS
from app.operators.operator import Role
from tests.graphs.documents import Document, between, constant, graph, into, node, out, resolved, tensor

ROWS, DEPTH = 96, 384
"""Enough work that another thread is woken for it."""

RANDOM = np.random.default_rng(18)
WEIGHTS = RANDOM.standard_normal((4, DEPTH, DEPTH), np.float32) / 20


@pytest.fixture(scope="module")
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(4) as helpers:
        yield NumpyDevice(helpers, 3, Compiler())


def never() -> bool:
    return False


def made(device: NumpyDevice, document: Document, constants: dict[int, Array]) -> InitializedGraph:
    data = {index: array.tobytes() for index, array in constants.items()}
    plan = schedule(resolved(document, data=data), Structures())
    sources: dict[Source, Buffer] = {Constant(index): memoryview(each) for index, each in data.items()}
    return initialize(plan, sources, lambda size: memoryview(bytearray(size)), device.prepare, never)


def test_what_kernels_take_beside_the_tensors_is_asked_for(device: NumpyDevice) -> None:
    """As a graph is made ready, and as its steps are timed: of several what one takes at most."""
    desc, size = tensor(sizes=(1, 1, 300, 300)), 4 * 300 * 300
    ways: Document = {"Axis": 2, "AxisDirection": "INCREASING", "HasExclusiveSum": False}
    scan = node("CUMULATIVE_SUMMATION", InputTensor=desc, **ways)
    add = node("ELEMENT_WISE_ADD", ATensor=desc, BTensor=desc)
    nodes = [constant(), scan, scan, add, scan, scan]
    edges = [between(0, 1), between(1, 2), between(2, 3), between(3, 4), between(4, 5)]
    plan = schedule(resolved(graph(nodes, [into(0, 3, 1)], [out(5)], edges), data={0: bytes(size)}), Structures())
    asked: list[int] = []

    def take(size: int) -> Buffer:
        asked.append(size)
        return memoryview(bytearray(size))

    own = {own_bytes(device.prepare(step.dispatchable)) for step in plan.first}
    assert own == {size}, "a copy of the output, if it lies over the input"
    made = initialize(plan, {Constant(0): memoryview(bytes(size))}, take, device.prepare, never)
    assert len(plan.first) == 2
    assert asked == [size] * 3, "two results, and what each of the kernels takes"
    asked.clear()
    device.step_seconds(made, take, never)
    assert asked == [size, size, plan.scratch_bytes, size], "input, output, what is between them, and the same"


def network(device: NumpyDevice) -> InitializedGraph:
    """Products and softmaxes by turns."""
    desc, weights = tensor(sizes=(1, 1, ROWS, DEPTH)), tensor(sizes=(1, 1, DEPTH, DEPTH))
    nodes: list[Document] = []
    edges: list[Document] = []
    constants: dict[int, Array] = {}
    last = -1
    for layer in WEIGHTS:
        constants[len(nodes)] = layer
        at = len(nodes)
        nodes.append(constant())
        nodes.append(node("GEMM", ATensor=desc, BTensor=weights, TransA="NONE", TransB="NONE", Alpha=1, Beta=1))
        nodes.append(node("ACTIVATION_SOFTMAX1", InputTensor=desc, Axes=[3]))
        edges += [between(at, at + 1, 1), between(at + 1, at + 2)]
        if last >= 0:
            edges.append(between(last, at + 1))
        last = at + 2
    return made(device, graph(nodes, [into(0, 1)], [out(last)], edges), constants)


def computed(kernel: Kernel, of: InitializedGraph, x: Array, cancelled: Callable[[], bool] = never) -> Array:
    plan = of.schedule
    result = np.zeros(next(iter(plan.outputs.values())).Sizes, np.float32)
    scratch = [memoryview(bytearray(b"\xff" * plan.scratch_bytes))] if plan.scratch_bytes else []
    kernel.dispatch([memoryview(x.tobytes())], [result.reshape(-1).view(np.uint8).data, *scratch], cancelled)
    return result


def expected(x: Array) -> Array:
    for layer in WEIGHTS.astype(np.float64):
        product = x @ layer
        exponentials = np.exp(product - product.max(-1, keepdims=True))
        x = exponentials / exponentials.sum(-1, keepdims=True)
    return x


def inputs(count: int) -> list[Array]:
    return [*RANDOM.standard_normal((count, 1, 1, ROWS, DEPTH), np.float32)]


def by_itself(*_: Any) -> None:
    raise AssertionError("a step was dispatched by itself")


def test_python_is_in_none_of_the_steps(device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    of = network(device)
    kernel = device.prepare(of)

    for kind in (ProductKernel, NumpyRowKernel):
        monkeypatch.setattr(kind, "dispatch", by_itself)
    (x,) = inputs(1)
    np.testing.assert_allclose(computed(kernel, of, x), expected(x), 1e-4, 1e-7)


@pytest.mark.parametrize(
    ("sizes", "axes", "others"),
    [
        ((3, 7, 9, 150), [1], [2, 1]),
        ((3, 7, 150, 9), [0, 3], [3]),
        ((150, 7, 33, 20), [3], [1]),
        ((1, 1, 100, 150), [2], [3]),
        ((2, 9, 1, 30), [0, 1], [1]),
        ((1, 1, 5, 10), [2, 3], [3]),  # one group
        ((1, 1, 5, 60), [2, 3], [3]),
    ],
)
def test_groups_side_by_side_are_calls_too(
    sizes: tuple[int, ...], axes: list[int], others: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they lie, in pieces that have some left over."""
    monkeypatch.setattr(NumpyRowKernel, "dispatch", by_itself)
    desc = tensor(sizes=sizes)
    nodes = [node("ACTIVATION_SOFTMAX1", InputTensor=desc, Axes=each) for each in (axes, others)]
    x = RANDOM.standard_normal(sizes, np.float32)
    y = x.astype(np.float64)
    for each in (axes, others):
        exponentials = np.exp(y - y.max(tuple(each), keepdims=True))
        y = exponentials / exponentials.sum(tuple(each), keepdims=True)
    with ThreadPoolExecutor(4) as helpers:
        device = NumpyDevice(helpers, 3, Compiler(), 1)
        of = made(device, graph(nodes, [into(0, 0)], [out(1)], [between(0, 1)]), {})
        np.testing.assert_allclose(computed(device.prepare(of), of, x), y, 1e-6, 1e-9)


@pytest.mark.parametrize(("channels", "filters", "groups"), [(16, 40, 1), (24, 24, 24), (5, 1, 1)])
def test_convolutions_are_calls_too(
    device: NumpyDevice, channels: int, filters: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several items each, in pieces."""
    monkeypatch.setattr(ConvolutionKernel, "dispatch", by_itself)
    x = RANDOM.standard_normal((2, channels, 20, 40), np.float32)
    weights = RANDOM.standard_normal((filters, channels // groups, 3, 3), np.float32)
    bias = RANDOM.standard_normal((1, filters, 1, 1), np.float32)
    shapes = {"InputTensor": x.shape, "FilterTensor": weights.shape, "BiasTensor": bias.shape}
    members: Document = {
        **{name: [1, 1] for name in ("Strides", "Dilations", "StartPadding", "EndPadding")},
        "OutputPadding": [0, 0],
        "Mode": "CROSS_CORRELATION",
        "Direction": "FORWARD",
        "GroupCount": groups,
        **{name: tensor(sizes=shape) for name, shape in shapes.items()},
    }
    target = tensor(sizes=(2, filters, 20, 40))
    nodes = [node("CONVOLUTION", **members), node("ACTIVATION_RELU", InputTensor=target), constant(), constant()]
    edges = [between(0, 1), between(2, 0, 1), between(3, 0, 2)]
    of = made(device, graph(nodes, [into(0, 0)], [out(1)], edges), {2: weights, 3: bias})
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]).astype(np.float64).reshape(2, groups, -1, 22, 42)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (3, 4))
    split = weights.reshape(groups, filters // groups, -1, 3, 3)
    wanted = np.einsum("ngcyxkl,gfckl->ngfyx", windows, split).reshape(2, filters, 20, 40) + bias
    kernel = device.prepare(of)
    for _ in range(2):
        np.testing.assert_allclose(computed(kernel, of, x), np.maximum(wanted, 0), 1e-4, 1e-4)


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
@pytest.mark.parametrize("steps", [1, 9])
def test_recurrent_networks_are_calls_too(
    device: NumpyDevice, kind: str, gates: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what they can be given and without, the same bits as by themselves."""
    monkeypatch.setattr(recurrent_calls, "AT_A_TIME", 1 << 12)
    width, size, batch = 21, 19, 2
    state = (1, 2, batch, size)
    needed = {
        "InputTensor": (1, steps, batch, width),
        "WeightTensor": (1, 2, gates * size, width),
        "RecurrenceTensor": (1, 2, gates * size, size),
    }
    optional: dict[str, tuple[int, ...]] = {"BiasTensor": (1, 1, 2, 2 * gates * size), "HiddenInitTensor": state}
    optional |= {"CellMemInitTensor": state, "PeepholeTensor": (1, 1, 2, 3 * size)} if kind == "LSTM" else {}
    functions = {"RNN": ["TANH"], "LSTM": ["SIGMOID", "TANH", "TANH"], "GRU": ["SIGMOID", "TANH"]}[kind]
    of_kinds: dict[str, Document] = {
        "RNN": {},
        "LSTM": {"UseClipThreshold": False, "ClipThreshold": 0.0, "CoupleInputForget": False},
        "GRU": {"LinearBeforeReset": True},
    }
    for given in (needed, needed | optional):
        arrays = {name: RANDOM.standard_normal(shape, np.float32) / 4 for name, shape in given.items()}
        members: Document = {name: tensor(sizes=shape) for name, shape in given.items()}
        document = node(
            kind,
            **members,
            OutputSequenceTensor=tensor(sizes=(steps, 2, batch, size)),
            ActivationDescs=[{"Type": f"ACTIVATION_{name}"} for name in functions * 2],
            Direction="BIDIRECTIONAL",
            **of_kinds[kind],
        )
        order = list(OPERATORS[f"DML_OPERATOR_{kind}"].tensor_names(Role.INPUT))
        edges = [into(number, 0, order.index(name)) for number, name in enumerate(given)]
        relu = node("ACTIVATION_RELU", InputTensor=tensor(sizes=(steps, 2, batch, size)))
        of = made(device, graph([document, relu], edges, [out(1)], [between(0, 1)]), {})
        step = of.schedule.steps[0]
        alone = device.prepare(step.dispatchable)
        data = [memoryview(arrays[name].tobytes()) for name in step.dispatchable.inputs]
        right = np.zeros((steps, 2, batch, size), np.float32)
        alone.dispatch(data, [right.reshape(-1).view(np.uint8).data], never)
        with monkeypatch.context() as patch:
            patch.setattr(RecurrentKernel, "dispatch", by_itself)
            kernel = device.prepare(of)
            inputs = [memoryview(array.tobytes()) for array in arrays.values()]
            for _ in range(2):
                result = np.zeros_like(right)
                scratch = memoryview(bytearray(b"\xff" * of.schedule.scratch_bytes))
                kernel.dispatch(inputs, [result.reshape(-1).view(np.uint8).data, scratch], never)
                np.testing.assert_array_equal(result, np.maximum(right, 0))


def test_dispatches_at_the_same_time_share_nothing(device: NumpyDevice) -> None:
    of = network(device)
    kernel = device.prepare(of)
    given = inputs(6)
    alone = [computed(kernel, of, x) for x in given]
    start = threading.Barrier(len(given))

    def many(x: Array) -> list[Array]:
        start.wait()
        return [computed(kernel, of, x) for _ in range(6)]

    with ThreadPoolExecutor(len(given)) as threads:
        for one, results in zip(alone, threads.map(many, given), strict=True):
            for result in results:
                np.testing.assert_array_equal(result, one)


def test_threads_change_no_bit(device: NumpyDevice) -> None:
    (x,) = inputs(1)
    results = []
    for threads in (1, 2, 3):
        with ThreadPoolExecutor(threads) as helpers:
            on = NumpyDevice(helpers, threads, Compiler())
            of = network(on)
            results.append(computed(on.prepare(of), of, x))
    np.testing.assert_array_equal(results[1:], [results[0]] * 2)


def test_one_that_is_cancelled_is_left_and_the_next_one_is_right(device: NumpyDevice) -> None:
    of = network(device)
    kernel = device.prepare(of)
    (x,) = inputs(1)
    before = computed(kernel, of, x)
    for looks in range(2):
        left = [False] * looks
        with pytest.raises(Cancelled):
            computed(kernel, of, x, lambda left=left: not left or left.pop())  # type: ignore[misc]
        np.testing.assert_array_equal(computed(kernel, of, x), before)


def test_what_is_cancelled_keeps_no_tensors(device: NumpyDevice) -> None:
    """Not even until garbage is collected."""
    of = network(device)
    kernel = device.prepare(of)
    given = memoryview(inputs(1)[0].tobytes())
    there = weakref.ref(given)
    scratch = [memoryview(bytearray(of.schedule.scratch_bytes))] if of.schedule.scratch_bytes else []
    gc.disable()
    try:
        with contextlib.suppress(Cancelled):
            kernel.dispatch([given], [memoryview(bytearray(given.nbytes)), *scratch], lambda: True)
        del given
        assert there() is None
    finally:
        gc.enable()


def test_helpers_ask_whether_to_go_on(device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of a loop; what one of them is told ends the others, too."""
    monkeypatch.setattr(coordinate_loops, "BETWEEN_LOOKS", 1 << 12)
    members: Document = {"CrossChannel": False, "LocalSize": 33}
    desc = tensor(sizes=(1, 1, 64, 64))
    nodes = [node("LOCAL_RESPONSE_NORMALIZATION", InputTensor=desc, OutputTensor=desc, **members)]
    nodes.append(node("ACTIVATION_SOFTMAX1", InputTensor=desc, Axes=[3]))
    of = made(device, graph(nodes, [into(0, 0)], [out(1)], [between(0, 1)]), {})
    kernel = device.prepare(of)
    x = np.zeros((1, 1, 64, 64), np.float32)
    asked: set[int] = set()

    def cancelled() -> bool:
        asked.add(threading.get_ident())
        return len(asked) > 1

    def until_one_comes() -> None:
        for _ in range(1000):
            computed(kernel, of, x, cancelled)

    with pytest.raises(Cancelled):
        until_one_comes()
    np.testing.assert_array_equal(computed(kernel, of, x), np.full_like(x, 1 / 64))


def test_buffers_that_end_early_are_refused(device: NumpyDevice) -> None:
    of = network(device)
    kernel = device.prepare(of)
    (x,) = inputs(1)
    computed(kernel, of, x)
    with pytest.raises(ValueError, match="a buffer ends before its tensor"):
        computed(kernel, of, x[..., :-1, :])


def strided(sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> Document:
    return tensor(sizes=sizes, Strides=list(strides)) if strides else tensor(sizes=sizes)


PRODUCTS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "one row": (1, 70, 300, {}),
    "two rows, few columns": (2, 9, 3, {"c": None}),
    "rows that fill no tile": (31, 17, 45, {"c": (0, 0, 0, 1)}),
    "a number for each row": (13, 33, 40, {"c": (0, 0, 1, 0)}),
    "scaled": (12, 8, 33, {"c": None, "Alpha": 0.5, "Beta": -2.0}),
    "both transposed": (7, 20, 18, {"TransA": "TRANSPOSE", "TransB": "TRANSPOSE"}),
    "one column": (5, 64, 1, {"c": (0, 0, 1, 0)}),
    "matrices": (12, 32, 12, {"batch": (2, 3)}),
    "matrices, one addend": (5, 6, 40, {"batch": (2, 3), "c": (0, 0, 40, 1)}),
    "many columns on several threads": (24, 128, 400, {"c": None}),
}


CASES = [
    (name, is_known)
    for name, (*_, members) in PRODUCTS.items()
    for is_known in (True, False)
    if not (is_known and "batch" in members) and (is_known or "TransB" not in members)
]
"""Several matrices are not packed, and columns apart from one another are a BLAS'."""


@pytest.mark.parametrize(("name", "is_known"), CASES)
def test_products(device: NumpyDevice, name: str, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64; nothing is written behind the results."""
    rows, depth, columns, stated = PRODUCTS[name]
    members: dict[str, Any] = {**stated}
    batch = members.pop("batch", (1, 1))
    has_c, c_strides = "c" in members, members.pop("c", None)
    members = {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 1.0, **members}
    of_a = (depth, rows) if members["TransA"] == "TRANSPOSE" else (rows, depth)
    of_b = (columns, depth) if members["TransB"] == "TRANSPOSE" else (depth, columns)
    a = RANDOM.standard_normal((*batch, *of_a), np.float32)
    b = RANDOM.standard_normal((*batch, *of_b), np.float32)
    target = tensor(sizes=(*batch, rows, columns))
    tensors: Document = {"ATensor": tensor(sizes=a.shape), "BTensor": tensor(sizes=b.shape)}
    c = RANDOM.standard_normal((*batch, rows, columns), np.float32)
    if has_c:
        tensors["CTensor"] = strided((*batch, rows, columns), c_strides)
    nodes = [node("GEMM", **tensors, **members), node("ACTIVATION_RELU", InputTensor=target), constant()]
    given = {"a": a}
    edges, constants = [into("a", 0)], {2: b}
    inner = [between(0, 1), between(2, 0, 1)]
    if not is_known:
        given["b"], edges = b, [*edges, into("b", 0, 1)]
        nodes, inner, constants = nodes[:2], inner[:1], {}
    if has_c:
        given["c"], edges = c, [*edges, into("c", 0, 2)]
    of = made(device, graph(nodes, edges, [out(1, "y")], inner), constants)
    monkeypatch.setattr(ProductKernel, "dispatch", by_itself)
    size = 4 * rows * columns * batch[0] * batch[1]
    result = memoryview(bytearray(b"\x07" * (size + 512)))
    scratch = [memoryview(bytearray(of.schedule.scratch_bytes))] if of.schedule.scratch_bytes else []
    device.prepare(of).dispatch([memoryview(given[n].tobytes()) for n in of.schedule.inputs], [result, *scratch], never)
    wide_a, wide_b = (
        x.astype(np.float64).swapaxes(-1, -2) if members[f"Trans{side}"] == "TRANSPOSE" else x.astype(np.float64)
        for x, side in ((a, "A"), (b, "B"))
    )
    wanted: Array = float(members["Alpha"]) * (wide_a @ wide_b)
    if has_c:
        steps = [4 * step for step in c_strides] if c_strides else None
        wanted = wanted + float(members["Beta"]) * np.ndarray(c.shape, np.float32, c.tobytes(), 0, steps)
    made_of = np.frombuffer(result, np.float32, size // 4).reshape(wanted.shape)
    np.testing.assert_allclose(made_of, np.maximum(wanted, 0), 1e-4, 1e-4)
    assert bytes(result[size:]) == b"\x07" * 512


def test_tables_that_are_kept_are_within_a_bound(device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what one takes is told."""
    for most in range(3):
        kernel = device.prepare(network(device))
        assert isinstance(kernel, ScheduleKernel)
        monkeypatch.setattr(runs, "READY_BYTES", most * own_bytes(kernel))
        made = device.prepare(network(device))
        assert isinstance(made, ScheduleKernel)
        run = made._all
        assert isinstance(run, Run)
        tables = [run._taken() for _ in range(3)]
        assert {each._held.nbytes for each in tables} == {own_bytes(made)}
        run._ready.extend(tables)
        assert len(run._ready) == most


def test_code_lives_as_long_as_a_table_has_its_address(device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatches that begin at once may each find functions of their own, if the compiler has dropped some between."""
    kernel = device.prepare(network(device))
    assert isinstance(kernel, ScheduleKernel)
    run = kernel._all
    assert isinstance(run, Run)
    made: list[weakref.ref[Any]] = []
    tables = []

    def compiled(code: Code) -> Function:
        function = code._compiler._compile(code.source)
        made.append(weakref.ref(function))
        if len(made) == 1:  # another dispatch begins, and has its table before this one
            tables.append(run._taken())
        return function

    monkeypatch.setattr(Code, "function", compiled)
    tables.append(run._taken())
    gc.collect()
    there = {function.address for each in made if (function := each())}
    for table in tables:
        first = table._layout.first_call
        called = {int(each) for each in table._words[first : first + 2 * len(run._codes) : 2]}
        assert {int(table._words[0]), *called} <= there


def test_a_graph_has_one_kernel_whatever_name_it_is_asked_for_by(device: NumpyDevice) -> None:
    """So its matrices are packed once."""
    of = network(device)
    kernel = device.prepare(of)
    assert device.prepare(of) is kernel
    assert sum(device.packed(of).values()) == len(WEIGHTS) * 4 * DEPTH * DEPTH
    gone = weakref.ref(kernel)
    del of, kernel
    gc.collect()
    assert gone() is None
