"""What libraries and compiled loops make of random descriptors, and what the formula does, is the same within the
accuracy that operators state: sizes at each threshold of the code and next to it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu import convolution_loops, products
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.products import _Loops
from app.devices.schedules import initialize
from app.formula.structures import Structures
from app.graphs.graph import Constant, Source
from app.graphs.schedule import schedule
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.graphs.documents import Document, between, constant, graph, into, node, out, resolved, tensor
from tests.operators import arrays
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import compiled, run
from tests.operators.convolution.test_floats import ConvolutionByCoordinates
from tests.operators.descriptors import refusals
from tests.operators.numerics.samples import Exact, off_by
from tests.operators.recurrent.test_networks import GATES, expected, request

WIDTH = Compiler().vector_floats
ACTIVATIONS: list[dict[str, Any] | None] = [
    None,
    {"Type": "ACTIVATION_RELU"},
    {"Type": "ACTIVATION_LEAKY_RELU", "Alpha": 0.25},
    {"Type": "ACTIVATION_SIGMOID"},
    {"Type": "ACTIVATION_CELU", "Alpha": 0.5},
]
"""None is steeper than 1, so an error of a sum is none larger in what they make of it."""


def activated(fused: dict[str, Any] | None, x: Array) -> Array:
    made: Array = x
    match fused and fused["Type"]:
        case "ACTIVATION_RELU":
            made = np.maximum(x, 0)
        case "ACTIVATION_LEAKY_RELU":
            made = np.where(x < 0, x / 4, x)
        case "ACTIVATION_SIGMOID":
            made = 1 / (1 + np.exp(-x))
    return made


def is_held(kind: str, made: Array, right: Array, size: Array, terms: int, fused: dict[str, Any] | None) -> None:
    """`made` is `right` within the bound, of a sum of magnitudes `size`; a fused activation adds 4 units."""
    bound = OPERATORS[PREFIX + kind].accuracy.bound(terms) + (4 if fused else 0)
    found = off_by(made, Exact(right, np.maximum(size, np.abs(right)), terms))
    assert found <= bound, (found, bound, made.shape, terms, fused)


# GEMM


def drawn_product(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Array | None]]:
    """Sizes at a tile's and a vector's, one less and one more."""
    rows = int(rng.choice([1, 2, 5, 6, 7, 11, 12, 13, 25]))
    columns = int(rng.choice([1, 3, *(WIDTH * times + more for times in (1, 2, 4, 8) for more in (-1, 0, 1))]))
    depth = int(rng.choice([1, 2, WIDTH, WIDTH + 1, 100]))
    batch = [(1, 1), (2, 1), (2, 3)][rng.integers(3)]
    trans = [str(each) for each in rng.choice(["NONE", "TRANSPOSE"], 2)]
    dtype = str(rng.choice(["float32", "float32", "float16"]))

    def matrix(rows: int, columns: int, how: str) -> Array:
        sizes = (columns, rows) if how == "TRANSPOSE" else (rows, columns)
        return laid_out(rng, rng.standard_normal((*batch, *sizes)).astype(dtype))

    c = matrix(rows, columns, "NONE") if rng.random() < 0.6 else None
    if c is not None and rng.random() < 0.5:
        c = np.broadcast_to(c[..., :1, :], c.shape) if rng.random() < 0.5 else np.broadcast_to(c[..., :1], c.shape)
    document = {
        "Type": "GEMM",
        "TransA": trans[0],
        "TransB": trans[1],
        "Alpha": float(rng.choice([1, 0.5, -1.25])),
        "Beta": float(rng.choice([1, 0.75, 0])),
        "FusedActivation": ACTIVATIONS[int(rng.choice([0, 0, 1, 2, 3]))],
    }
    a, b = matrix(rows, depth, trans[0]), matrix(depth, columns, trans[1])
    return document, {"ATensor": a, "BTensor": b, "CTensor": c}


def is_product(document: dict[str, Any], inputs: dict[str, Array | None], made: Array) -> None:
    a, b, c = (None if each is None else each.astype(float) for each in inputs.values())
    assert a is not None
    assert b is not None
    a = a.swapaxes(-1, -2) if document["TransA"] == "TRANSPOSE" else a
    b = b.swapaxes(-1, -2) if document["TransB"] == "TRANSPOSE" else b
    right, size = document["Alpha"] * (a @ b), abs(document["Alpha"]) * (abs(a) @ abs(b))
    if c is not None:
        right, size = right + document["Beta"] * c, size + abs(document["Beta"] * c)
    fused = document.get("FusedActivation")
    is_held("GEMM", made, activated(fused, right), size, a.shape[-1], fused)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("seed", range(4))
def test_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(12):
        document, inputs = drawn_product(rng)
        is_product(document, inputs, run(document, inputs)["OutputTensor"])


@pytest.fixture(scope="module")
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2, Compiler())


def in_graph(device: NumpyDevice, document: dict[str, Any], inputs: dict[str, Array | None], *, known: bool) -> Array:
    """What of the product is positive, in a graph, with its second operand known or not."""
    given = {name: np.ascontiguousarray(each) for name, each in inputs.items() if each is not None}
    a, b = given["ATensor"], given["BTensor"]
    rows = a.shape[-1 if document["TransA"] == "TRANSPOSE" else -2]
    columns = b.shape[-2 if document["TransB"] == "TRANSPOSE" else -1]
    sizes = (*a.shape[:-2], rows, columns)
    members = {name: each for name, each in document.items() if name not in ("Type", "FusedActivation")}
    tensors: Document = {name: desc_of(each) for name, each in given.items()}
    gemm = node("GEMM", **tensors, **members)
    nodes: list[Document] = [gemm, node("ACTIVATION_RELU", InputTensor=tensor(sizes=sizes))]
    places = {name: place for place, name in enumerate(["ATensor", "BTensor", "CTensor"]) if name in given}
    edges = [into(name, 0, places[name]) for name in given if not (known and name == "BTensor")]
    inner, data = [between(0, 1)], {}
    if known:
        nodes.append(constant())
        inner.append(between(2, 0, 1))
        data[2] = b.tobytes()
    plan = schedule(resolved(graph(nodes, edges, [out(1, "y")], inner), data=data), Structures())
    sources: dict[Source, Buffer] = {Constant(index): memoryview(each) for index, each in data.items()}
    of = initialize(plan, sources, lambda size: memoryview(bytearray(size)), device.prepare, lambda: False)
    result = np.zeros(sizes, np.float32)
    scratch = [memoryview(bytearray(plan.scratch_bytes))] if plan.scratch_bytes else []
    buffers = [memoryview(given[name].tobytes()) for name in plan.inputs]
    device.prepare(of).dispatch(buffers, [result.reshape(-1).view(np.uint8).data, *scratch], lambda: False)
    return result


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of loops, where the sizes of `drawn_product` are."""
    monkeypatch.setattr(products, "MOST_READ", 4 * 100 * 8)
    monkeypatch.setattr(products, "MOST_NEAR", 4 * 100 * 2 * WIDTH)
    monkeypatch.setattr(products, "MOST_OWN", 4 * 100 * 4 * WIDTH)
    monkeypatch.setattr(products, "MOST_PACKED", 4 * 100 * 4 * WIDTH)


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("seed", range(3))
def test_products_by_loops(device: NumpyDevice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of graphs, where it is worth few products: read as they lie, turned first, and by BLAS, activated."""
    monkeypatch.setattr(products, "LEAST_ALONE", 1)
    rng = np.random.default_rng(seed)
    taken = set()
    for _ in range(64):
        document, inputs = drawn_product(rng)
        given = {name: each for name, each in inputs.items() if each is not None}
        operator = compiled(document | {name: desc_of(each) for name, each in given.items()})
        kernel = device.prepare(operator)
        stages = len(kernel.calls().stages) if isinstance(kernel, CallsKernel) else 0
        taken.add((stages, document["FusedActivation"] is not None))
        is_product(document, inputs, arrays.run(device, operator, given)["OutputTensor"])
    assert len(taken) == 6


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("known", [True, False], ids=["known", "given"])
@pytest.mark.parametrize("seed", range(2))
def test_products_in_graphs(device: NumpyDevice, seed: int, *, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, read as they lie, and by BLAS beyond the bounds of either."""
    taken: list[_Loops | None] = []
    own = _Loops.of

    def counted(*arguments: Any) -> _Loops | None:
        taken.append(own(*arguments))
        return taken[-1]

    monkeypatch.setattr(_Loops, "of", counted)
    rng = np.random.default_rng(seed)
    for _ in range(40):
        document, inputs = drawn_product(rng)
        if inputs["ATensor"] is None or inputs["ATensor"].dtype == np.float16:
            continue
        made = in_graph(device, document, inputs, known=known)
        is_product(document | {"FusedActivation": {"Type": "ACTIVATION_RELU"}}, inputs, made)
    assert {each is None for each in taken} == {True, False}


# CONVOLUTION


def drawn_convolution(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Array | None]]:
    """Filters of as many elements, groups of as many filters and results of as many places as loops are chosen by."""
    kernel = [(1, 1), (3, 3), (5, 5), (2, 13), (1, 7)][rng.integers(5)]
    groups = int(rng.choice([1, 1, 2, 5]))
    each = int(rng.choice([1, 2, 3, 7, 8, 9]))
    depth = int(rng.choice([1, 3, 8, 513 // (kernel[0] * kernel[1]) + 1])) if groups == 1 else int(rng.choice([1, 4]))
    dilations = [int(one) for one in rng.integers(1, 3, 2)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    padding = [[int(one) for one in rng.integers(0, 3, 2)] for _ in range(2)]
    strides = [int(one) for one in rng.integers(1, 4, 2)]
    along = int(rng.choice([1, 2, WIDTH - 1, WIDTH, WIDTH + 1]))
    sizes = [
        max((count - 1) * stride + whole - before - after, 1)
        for count, stride, whole, before, after in zip((3, along), strides, reach, *padding, strict=True)
    ]
    dtype = str(rng.choice(["float32", "float32", "float16"]))
    batch = int(rng.integers(1, 3))
    document = {
        "Type": "CONVOLUTION",
        "Mode": str(rng.choice(["CONVOLUTION", "CROSS_CORRELATION"])),
        "Direction": "FORWARD",
        "Strides": strides,
        "Dilations": dilations,
        "StartPadding": padding[0],
        "EndPadding": padding[1],
        "OutputPadding": [0, 0],
        "GroupCount": groups,
        "FusedActivation": ACTIVATIONS[rng.integers(len(ACTIVATIONS))],
    }
    x = rng.standard_normal((batch, groups * depth, *sizes)).astype(dtype)
    w = rng.standard_normal((groups * each, depth, *kernel)).astype(dtype)
    bias = rng.standard_normal((1, groups * each, 1, 1)).astype(dtype) if rng.random() < 0.5 else None
    return document, {"InputTensor": laid_out(rng, x), "FilterTensor": laid_out(rng, w), "BiasTensor": bias}


@pytest.mark.usefixtures("on_each_device")
def test_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the formula by coordinates, in float64; its magnitudes are what it makes of those of the operands."""
    rng = np.random.default_rng(17)
    judged = 0
    for turn in range(10):
        monkeypatch.setattr(convolution_loops, "MOST_COPIED", 1 << (8 if turn % 4 else 19))
        document, inputs = drawn_convolution(rng)
        descs = {name: desc_of(each) for name, each in inputs.items() if each is not None}
        if refusals(document | {"Type": f"{PREFIX}CONVOLUTION"} | descs):
            continue
        judged += 1
        made = run(document, inputs)["OutputTensor"]
        wide = {name: None if each is None else abs(each).astype(np.float32) for name, each in inputs.items()}
        size = run(document | {"FusedActivation": None}, wide, ConvolutionByCoordinates)["OutputTensor"]
        single = {name: None if each is None else each.astype(np.float32) for name, each in inputs.items()}
        right = run(document, single, ConvolutionByCoordinates)["OutputTensor"]
        w = inputs["FilterTensor"]
        assert w is not None
        own = right.astype(float), 1.01 * size.astype(float)  # the judge rounds as well
        is_held("CONVOLUTION", made, *own, w[0].size, document["FusedActivation"])
    assert judged > 5


# RNN, LSTM and GRU


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("kind", GATES)
def test_networks(kind: str) -> None:
    """As many sequences, states and steps as the loop takes at once, one less and one more."""
    rng = np.random.default_rng(len(kind))
    for turn in range(6):
        dtype = "float16" if turn % 4 == 3 else "float32"
        direction = str(rng.choice(["FORWARD", "BACKWARD", "BIDIRECTIONAL"]))
        document, tensors, functions = request(rng, kind, dtype, direction)
        steps, batch = int(rng.choice([1, 7, 9])), (7, 8, 9)[turn % 3]
        width, hidden = (int(each) for each in rng.choice([1, WIDTH - 1, WIDTH, WIDTH + 1], 2))
        many, gates = 2 if direction == "BIDIRECTIONAL" else 1, GATES[kind]
        sizes = {
            "InputTensor": (1, steps, batch, width),
            "WeightTensor": (1, many, gates * hidden, width),
            "RecurrenceTensor": (1, many, gates * hidden, hidden),
            "BiasTensor": (1, 1, many, 2 * gates * hidden),
            "HiddenInitTensor": (1, many, batch, hidden),
            "CellMemInitTensor": (1, many, batch, hidden),
            "PeepholeTensor": (1, 1, many, 3 * hidden),
        }
        for name in tensors:
            if name in sizes and tensors[name] is not None:
                made = rng.standard_normal(sizes[name]) / (2 * (width + hidden) ** 0.5)
                tensors[name] = laid_out(rng, made.astype(dtype))
            elif tensors[name] is not None:
                tensors[name] = rng.integers(0, steps + 2, (1, 1, 1, batch)).astype(np.uint32)
        right = expected(kind, tensors, functions, document)
        document |= {name: desc_of(np.zeros(each.shape, dtype)) for name, each in right.items()}
        for name, each in run(document, tensors).items():
            is_held(kind, each, right[name], np.ones(each.shape), steps * (width + hidden), None)
