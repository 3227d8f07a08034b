"""Graphs of operators that are kernels of their own: arrays of tensors, several outputs, calls, coordinates."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.device import Device
from app.formula.structures import Structures
from app.graphs.schedule import schedule
from tests.gpu import first_gpu
from tests.graphs.documents import Document, between, graph, into, node, out, refusals, relu, tensor
from tests.graphs.random_graphs import Drawn, dispatched, initialized, one_by_one

SQUARE = tensor(sizes=(1, 1, 4, 4))


def split(sizes: tuple[tuple[int, ...], ...], axis: int, whole: tuple[int, ...]) -> Document:
    outputs = [tensor(sizes=each) for each in sizes]
    return node("SPLIT", InputTensor=tensor(sizes=whole), OutputTensors=outputs, Axis=axis)


def join(sizes: tuple[tuple[int, ...], ...], axis: int) -> Document:
    return node("JOIN", InputTensors=[tensor(sizes=each) for each in sizes], Axis=axis)


def gemm() -> Document:
    attributes: Document = {"TransA": "NONE", "TransB": "TRANSPOSE", "Alpha": 0.5, "Beta": 0, "FusedActivation": None}
    return node("GEMM", ATensor=SQUARE, BTensor=SQUARE, **attributes)


def top(**members: Any) -> Document:
    """The two largest of each row; `members` are those of its input."""
    attributes: Document = {"Axis": 1, "K": 2, "AxisDirection": "DECREASING"}
    attributes |= {"OutputValueTensor": tensor(sizes=(2, 2)), "OutputIndexTensor": tensor("UINT32", (2, 2))}
    return node("TOP_K1", InputTensor=tensor(**members), **attributes)


def reduced() -> Document:
    made = tensor(sizes=(1, 1, 4, 1))
    return node("REDUCE", Function="SUM", InputTensor=SQUARE, OutputTensor=made, Axes=[3])


GRAPHS: dict[str, tuple[Document, int]] = {
    "split, join in other order": (
        graph(
            [split(((2, 1), (2, 2)), 1, (2, 3)), relu(desc=tensor(sizes=(2, 1))), join(((2, 2), (2, 1)), 1)],
            [into("x", 0)],
            [out(2, "y")],
            [between(0, 1), between(0, 2, "InputTensors[0]", "OutputTensors[1]"), between(1, 2, "InputTensors[1]")],
        ),
        6,
    ),
    "by index": (
        graph([join(((2, 3), (2, 3), (2, 3)), 0)], [into(0, 0, 0), into(0, 0, 1), into(1, 0, 2)], [out(0)]),
        6,
    ),
    "between formulas": (
        graph(
            [relu(desc=SQUARE), gemm(), reduced(), relu(desc=tensor(sizes=(1, 1, 4, 1)))],
            [into("x", 0), into("x", 1, 1)],
            [out(3, "y"), out(1, "product")],
            [between(0, 1), between(1, 2), between(2, 3)],
        ),
        16,
    ),
    "parts that nobody reads": (
        graph([split(((2, 1), (2, 1), (2, 1)), 1, (2, 3))], [into("x", 0)], [out(0, "y", "OutputTensors[1]")]),
        6,
    ),
    "a part that nobody reads, and one that a node does": (
        graph(
            [split(((1, 3), (1, 3)), 0, (2, 3)), relu(desc=tensor(sizes=(1, 3)))],
            [into("x", 0)],
            [out(1, "y")],
            [between(0, 1, 0, 1)],
        ),
        6,
    ),
    "values that nobody reads": (graph([top()], [into("x", 0)], [out(0, "y", "OutputIndexTensor")]), 6),
    "indices that nobody reads": (
        graph([top(), relu(desc=tensor(sizes=(2, 2)))], [into("x", 0)], [out(1, "y")], [between(0, 1)]),
        6,
    ),
    "values and indices that nobody reads of the same": (
        graph(
            [top(), top(), relu(desc=tensor(sizes=(2, 2)))],
            [into("x", 0), into("x", 1)],
            [out(2, "y"), out(1, "z", "OutputIndexTensor")],
            [between(0, 2)],
        ),
        6,
    ),
    "values that nobody reads, computed once": (
        graph([top(Flags="OWNED_BY_DML")], [into("x", 0)], [out(0, "y", "OutputIndexTensor")]),
        6,
    ),
}


@pytest.fixture(scope="module")
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2)


def check(name: str, device: Device, alone: Device) -> None:
    document, elements = GRAPHS[name]
    rng = np.random.default_rng(1)
    names = {edge.get("GraphInput", str(edge.get("GraphInputIndex"))) for edge in document["InputEdges"]}
    drawn = Drawn(document, {each: rng.standard_normal(elements).astype(np.float32).tobytes() for each in names})
    structures = Structures()
    judged = drawn.graph(structures)
    expected = one_by_one(judged, drawn, alone)
    actual = dispatched(initialized(judged, drawn, alone, structures), drawn, device)
    assert expected.keys() == actual.keys()
    for output, array in expected.items():
        np.testing.assert_allclose(actual[output], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_as_one_by_one(name: str, numpy_device: NumpyDevice) -> None:
    check(name, numpy_device, numpy_device)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GRAPHS)
def test_on_a_gpu(name: str, numpy_device: NumpyDevice) -> None:
    check(name, first_gpu(), numpy_device)


def test_a_call_is_a_kernel() -> None:
    made = schedule(Drawn(GRAPHS["between formulas"][0]).graph(), Structures())
    assert [step.nodes for step in made.steps] == [(0,), (1,), (2, 3)]


def test_each_tensor_of_an_array_has_an_edge() -> None:
    document = graph([join(((2, 3), (2, 3)), 0)], [into("x", 0, "InputTensors[0]")], [out(0)])
    (found,) = refusals(document)
    assert (found.pointer, found.given) == ("/Nodes/0", "InputTensors[1]")
    document = graph([join(((2, 3),), 0)], [into("x", 0, "InputTensors[0]"), into("x", 0, "InputTensors[1]")], [out(0)])
    (found,) = refusals(document)
    assert found.pointer == "/InputEdges/1/ToNodeInput"
    assert found.allowed == ["InputTensors[0]"]


def test_a_node_of_which_nothing_is_read_has_no_place() -> None:
    """Whereas of several outputs one that is read will do."""
    found = refusals(graph([top(), relu()], [into("x", 0), into("x", 1)], [out(1)]))
    assert [(each.pointer, each.given) for each in found] == [
        ("/Nodes/0", "OutputValueTensor"),
        ("/Nodes/0", "OutputIndexTensor"),
    ]
