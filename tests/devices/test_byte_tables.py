"""Kernels of graphs that are functions of one byte: what is looked up is what would be computed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu import byte_tables
from app.devices.cpu.byte_tables import LEAST, MOST, _place, byte_table_kernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import LoopCode
from app.devices.schedules import initialize
from app.formula.structures import Structures
from app.formula.values import FLOAT32, Input, Value, cast, exp, parts, replaced, saturate, widen
from app.graphs.graph import Constant, Source
from app.graphs.schedule import schedule
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable
from tests.graphs.documents import Document, between, constant, graph, into, node, out, resolved, tensor

COMPILER = Compiler()
RANDOM = np.random.default_rng(30)
TYPES: dict[str, Any] = {"UINT8": np.uint8, "INT8": np.int8, "FLOAT32": np.float32, "FLOAT16": np.float16}


@pytest.fixture(scope="module", params=[1, 3], ids=["one thread", "threads"])
def device(request: pytest.FixtureRequest) -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(4) as helpers:
        yield NumpyDevice(helpers, request.param, COMPILER)


@pytest.fixture
def tables() -> Iterator[mock.Mock]:
    """What makes tables, watched."""
    with mock.patch.object(byte_tables, "_table", wraps=byte_tables._table) as made:
        yield made


def never() -> bool:
    return False


def dispatched(device: NumpyDevice, document: Document, data: dict[int, Array], x: list[Array], y: Array) -> Array:
    """The graph's output over inputs, `y` if it is given in that way."""
    constants = {index: array.tobytes() for index, array in data.items()}
    plan = schedule(resolved(document, data=constants), Structures())
    sources: dict[Source, Buffer] = {Constant(index): memoryview(each) for index, each in constants.items()}
    made = initialize(plan, sources, lambda size: memoryview(bytearray(size)), device.prepare, never)
    device.prepare(made).dispatch([each.view(np.uint8).data for each in x], [y.view(np.uint8).data], never)
    return y


class Silu:
    """x * sigmoid(x) of a tensor that is quantized to `byte` and restored, as `made`; `x` itself may be the byte."""

    def __init__(self, made: str, byte: str, sizes: tuple[int, ...], given: str = "FLOAT32", **made_with: Any) -> None:
        one = [0] * len(sizes)
        whole, scale, zero = tensor(sizes=sizes), tensor(sizes=sizes, Strides=one), tensor(byte, sizes, Strides=one)
        nodes, data = [constant(), constant()], {0: np.array([0.043], np.float32), 1: np.array([7], TYPES[byte])}
        edges: list[Document] = []

        def add(after: tuple[int, ...], kind: str, scales: tuple[int, ...] = (), **members: Any) -> int:
            nodes.append(node(kind, **members))
            edges.extend(
                between(each, len(nodes) - 1, place) for place, each in enumerate((*after, *scales)) if each >= 0
            )
            return len(nodes) - 1

        scales = {"ScaleTensor": scale, "ZeroPointTensor": zero}
        first = -1
        if given == "FLOAT32":
            quantize = {"InputTensor": whole, "OutputTensor": tensor(byte, sizes), **scales}
            first = add((-1,), "ELEMENT_WISE_QUANTIZE_LINEAR", (0, 1), **quantize)
        restored = {"InputTensor": tensor(byte, sizes), "OutputTensor": whole, **scales}
        x = add((first,), "ELEMENT_WISE_DEQUANTIZE_LINEAR", (0, 1), **restored)
        gate = add((x,), "ACTIVATION_SIGMOID", InputTensor=whole, OutputTensor=whole)
        last = add((x, gate), "ELEMENT_WISE_MULTIPLY", ATensor=whole, BTensor=whole, OutputTensor=whole)
        target = tensor(made, sizes, **made_with)
        if made in ("UINT8", "INT8"):
            number = len(nodes)
            nodes.append(constant())
            data[number] = np.array([3], TYPES[made])
            zero = tensor(made, sizes, Strides=one)
            again = {"InputTensor": whole, "ScaleTensor": scale, "ZeroPointTensor": zero, "OutputTensor": target}
            last = add((last,), "ELEMENT_WISE_QUANTIZE_LINEAR", (0, number), **again)
        elif made == "FLOAT16":
            last = add((last,), "CAST", InputTensor=whole, OutputTensor=target)
        self.document = graph(nodes, [into(0, 2)], [out(last)], edges)
        self.data = data


@pytest.mark.parametrize("made", TYPES)
@pytest.mark.parametrize("byte", ["UINT8", "INT8"])
def test_results_are_those_that_are_computed(device: NumpyDevice, tables: mock.Mock, made: str, byte: str) -> None:
    for count in (LEAST, LEAST + 1, 5003, 400_000):
        silu = Silu(made, byte, (1, count))
        x = (RANDOM.standard_normal(count) * 8).astype(np.float32)
        x[:4] = np.nan, np.inf, -np.inf, -0.0
        y = [np.zeros(count, TYPES[made]) for _ in range(2)]
        found = dispatched(device, silu.document, silu.data, [x], y[0])
        with mock.patch.object(byte_tables, "LEAST", MOST):
            computed = dispatched(device, silu.document, silu.data, [x], y[1])
        assert found.tobytes() == computed.tobytes()
        assert len(np.unique(found)) > 50
    assert tables.call_count == 4


@pytest.mark.parametrize("byte", ["UINT8", "INT8"])
def test_a_byte_of_the_graph_is_looked_up_as_it_is(device: NumpyDevice, tables: mock.Mock, byte: str) -> None:
    """In the memory that it lies in, too: where the graph is one kernel, an output may take the place of an input."""
    silu = Silu(byte, byte, (1, 4096), byte)
    x = RANDOM.permutation(np.arange(4096) % 256).astype(np.uint8).view(TYPES[byte])
    with mock.patch.object(byte_tables, "LEAST", MOST):
        computed = dispatched(device, silu.document, silu.data, [x], np.zeros_like(x))
    assert tables.call_count == 0
    assert np.array_equal(dispatched(device, silu.document, silu.data, [x], np.zeros_like(x)), computed)
    assert np.array_equal(dispatched(device, silu.document, silu.data, [x], x), computed)
    assert tables.call_count == 2


def test_tensors_with_gaps(device: NumpyDevice, tables: mock.Mock) -> None:
    """What lies between the elements of an output stays."""
    silu = Silu("UINT8", "UINT8", (3, 600), Strides=[1300, 2])
    x, y = RANDOM.standard_normal(1800, np.float32) * 6, np.full((2, 3 * 1300), 99, np.uint8)
    dispatched(device, silu.document, silu.data, [x], y[0])
    with mock.patch.object(byte_tables, "LEAST", MOST):
        dispatched(device, silu.document, silu.data, [x], y[1])
    assert np.array_equal(*y)
    assert (y[0].reshape(3, 650, 2)[:, :600, 1] == 99).all()
    assert tables.call_count == 1


def test_what_is_beside_the_byte(device: NumpyDevice, tables: mock.Mock) -> None:
    """A number for all elements may be, also ahead of it; neither numbers for each may, nor what all of a row make."""
    sizes, one = (64, 64), [0, 0]
    byte, whole, scale = tensor("UINT8", sizes), tensor(sizes=sizes), tensor(sizes=sizes, Strides=one)
    gate: Document = {"InputTensor": whole}
    to_power: Document = {"InputTensor": scale, "ExponentTensor": whole}
    x = RANDOM.integers(0, 256, sizes).astype(np.uint8)
    cases: list[tuple[str, Document, Document, int]] = [
        ("ELEMENT_WISE_POW", to_power, scale, 1),
        ("ACTIVATION_SIGMOID", gate, scale, 1),
        ("ACTIVATION_SIGMOID", gate, whole, 0),
        ("ACTIVATION_SOFTMAX", gate, scale, 0),
    ]
    for kind, of, scales, count in cases:
        zero = tensor("UINT8", sizes, Strides=one)
        restored: Document = {"InputTensor": byte, "ScaleTensor": scales, "ZeroPointTensor": zero}
        steps = RANDOM.random(x.size if scales is whole else 1, np.float32) / 20
        nodes = [constant(), constant(), node("ELEMENT_WISE_DEQUANTIZE_LINEAR", OutputTensor=whole, **restored)]
        nodes.append(node(kind, OutputTensor=whole, **of))
        edges = [between(0, 2, 1), between(1, 2, 2), between(2, 3, len(of) - 1)]
        edges += [between(0, 3)] if len(of) > 1 else []
        document = graph(nodes, [into(0, 2)], [out(3)], edges)
        data: dict[int, Array] = {0: steps, 1: np.array([7], np.uint8)}
        tables.reset_mock()
        found = dispatched(device, document, data, [x], np.zeros(sizes, np.float32))
        assert tables.call_count == count, kind
        with mock.patch.object(byte_tables, "LEAST", MOST):
            computed = dispatched(device, document, data, [x], np.zeros(sizes, np.float32))
        assert found.tobytes() == computed.tobytes(), kind


def test_numbers_that_a_dispatch_brings_are_in_no_table() -> None:
    silu = Silu("UINT8", "UINT8", (1, 2048))
    constants = {index: each.tobytes() for index, each in silu.data.items()}
    plan = schedule(resolved(silu.document, data=constants), Structures())
    kept = [memoryview(constants[each.node]) for each in plan.kept if isinstance(each, Constant)]
    (step,) = plan.steps
    _, *scales = step.dispatchable.inputs
    known = {name: kept[place.number] for name, place in zip(scales, step.reads[1:], strict=True)}
    loops = LoopCode(COMPILER, Structures())
    assert byte_table_kernel(step.dispatchable, loops, known, Structures())
    for name in scales:
        less = {other: each for other, each in known.items() if other != name}
        made = byte_table_kernel(step.dispatchable, loops, less, Structures())
        assert (made is None) == (name in of_the_rest(step.dispatchable)), name


def of_the_rest(compiled: Dispatchable) -> set[str]:
    """What a formula reads behind the byte."""
    (made,) = compiled.program.maps.values()
    place = _place(made.expression, set(compiled.inputs) - {"in0"})
    assert place
    return {each.name for each in parts(replaced(made.expression, {place: X})) if isinstance(each, Input)} - {"in0"}


X, Y = Input(FLOAT32, "in0", DataType.FLOAT32), Input(FLOAT32, "in1", DataType.FLOAT32)
BYTE = Input("int8", "in2", DataType.INT8)


def as_byte(x: Value) -> Value:
    return saturate(widen(x), "uint8")


def test_a_formula_is_cut_at_its_first_byte() -> None:
    first = as_byte(X + Y)
    second = as_byte(exp(cast(first, FLOAT32)))
    assert _place(exp(cast(second, FLOAT32)), ()) is first
    assert _place(cast(first, FLOAT32) * cast(second, FLOAT32), ()) is first
    assert _place(exp(cast(BYTE, FLOAT32)), ()) is BYTE
    assert _place(exp(cast(as_byte(cast(BYTE, FLOAT32) * Y), FLOAT32)), ["in1"]) is BYTE


def test_a_formula_is_not_cut_where_something_else_has_an_effect() -> None:
    byte = as_byte(X)
    restored = cast(byte, FLOAT32)
    assert _place(byte, ()) is None, "the last byte is the output itself"
    for formula in (restored + Y, restored + X, Y + restored, exp(restored) * as_byte_of(Y), X):
        assert _place(formula, ()) is None
    assert _place(restored + Y, ["in1"]) is byte
    joined = as_byte(restored + Y)
    assert _place(exp(cast(joined, FLOAT32)), ()) is joined


def as_byte_of(x: Value) -> Value:
    return cast(as_byte(x), FLOAT32)
