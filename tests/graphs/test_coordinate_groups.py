"""Operators that move elements, in one kernel with what is before and after them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.formula.structures import Structures
from app.graphs.coordinate_groups import MOST_PROGRAMS
from app.graphs.fusion import fuse
from app.graphs.members import PlannedKernel
from app.programs.dispatchable import Dispatchable
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.graphs.documents import Document, X, add, between, graph, into, node, out, relu, resolved, tensor
from tests.graphs.random_graphs import Drawn, dispatched, initialized, one_by_one

IMAGE, INDICES = (1, 4, 4, 6), (1, 1, 1, 5)


def sliced(sizes: tuple[int, ...], offset: int, step: int, data_type: str = "FLOAT32") -> Document:
    """Every `step`th element from `offset` on, along the last dimension."""
    *outer, last = sizes
    counts = [*outer, 1 + (last - 1 - offset) // step]
    first, steps = [0] * len(outer), [1] * len(outer)
    desc = tensor(data_type, sizes)
    return node("SLICE", InputTensor=desc, Offsets=[*first, offset], Sizes=counts, Strides=[*steps, step])


def absolute(sizes: tuple[int, ...], **members: Any) -> Document:
    return node("ELEMENT_WISE_ABS", InputTensor=tensor(sizes=sizes, **members))


def between_formulas(mover: Document, before: tuple[int, ...], after: tuple[int, ...], *, more: int = 0) -> Document:
    """An operator, its inputs beside the first one the graph's own, after NEGATE and before ABS and NEGATE."""
    nodes = [node("ELEMENT_WISE_NEGATE", InputTensor=tensor(sizes=before)), mover, absolute(after)]
    nodes.append(node("ELEMENT_WISE_NEGATE", InputTensor=tensor(sizes=after)))
    others = [into(f"x{n}", 1, n) for n in range(1, more + 1)]
    return graph(nodes, [into("x0", 0), *others], [out(3, "y")], [between(0, 1), between(1, 2), between(2, 3)])


def on_image(kind: str, after: tuple[int, ...], sizes: tuple[int, ...] = IMAGE, **members: Any) -> Document:
    return between_formulas(node(kind, InputTensor=tensor(sizes=sizes), **members), sizes, after)


def padded(mode: str) -> Document:
    pads: Document = {
        "StartPadding": [0, 0, 1, 2],
        "EndPadding": [0, 0, 1, 0],
        "PaddingMode": mode,
        "PaddingValue": 0.3,
    }
    return on_image("PADDING", (1, 4, 6, 8), **pads)


def gathered(sizes: tuple[int, ...] = IMAGE) -> Document:
    indices = tensor("INT32", INDICES)
    members: Document = {"InputTensor": tensor(sizes=sizes), "IndicesTensor": indices, "Axis": 2, "IndexDimensions": 1}
    return node("GATHER", **members)


def padded_integers(data_type: str, value: int) -> Document:
    """With a number that is moved as bits, and computed with as what it is."""
    nodes = [node("ELEMENT_WISE_NEGATE", InputTensor=tensor(data_type, sizes)) for sizes in ((2, 3), (3, 5))]
    if data_type.startswith("UINT"):
        for each in nodes:
            each["Desc"]["Type"] = "ELEMENT_WISE_BIT_NOT"
    pads: Document = {
        "StartPadding": [1, 0],
        "EndPadding": [0, 2],
        "PaddingMode": "CONSTANT",
        "PaddingValueDataType": data_type,
    }
    nodes.insert(1, node("PADDING1", InputTensor=tensor(data_type), PaddingValue=value, **pads))
    return graph(nodes, [into("x0", 0)], [out(2, "y")], [between(0, 1), between(1, 2)])


UP: Document = {"ScaleSize": {"Width": 2, "Height": 2}}

ONE_KERNEL: dict[str, Document] = {
    "slice": between_formulas(sliced(IMAGE, 1, 2), IMAGE, (1, 4, 4, 3)),
    "slice backwards": on_image(
        "SLICE1",
        IMAGE,
        InputWindowOffsets=[0, 0, 0, 0],
        InputWindowSizes=list(IMAGE),
        InputWindowStrides=[1, -1, 1, -1],
    ),
    "tile": on_image("TILE", (1, 4, 8, 12), Repeats=[1, 1, 2, 2]),
    "padding": padded("CONSTANT"),
    "padding of the edge": padded("EDGE"),
    "padding, mirrored": padded("REFLECTION"),
    "padding by less than 0": padded_integers("INT32", -3),
    "padding by more than 0": padded_integers("INT16", 1 << 14),
    "padding by a highest bit": padded_integers("UINT8", 200),
    "a slice's gradient": between_formulas(
        node(
            "SLICE_GRAD",
            InputGradientTensor=tensor(sizes=(2, 2)),
            OutputGradientTensor=tensor(sizes=(3, 4)),
            InputWindowOffsets=[1, 0],
            InputWindowSizes=[2, 4],
            InputWindowStrides=[1, 2],
        ),
        (2, 2),
        (3, 4),
    ),
    "space to depth": on_image("SPACE_TO_DEPTH", (1, 16, 2, 3), BlockSize=2),
    "depth to space": on_image("DEPTH_TO_SPACE", (1, 1, 8, 12), BlockSize=2),
    "upsample": on_image("UPSAMPLE_2D", (1, 2, 8, 6), (1, 2, 4, 3), InterpolationMode="NEAREST_NEIGHBOR", **UP),
    "join": between_formulas(
        node("JOIN", InputTensors=[tensor(sizes=(4, 2)), tensor(sizes=(4, 3))], Axis=1), (4, 2), (4, 5), more=1
    ),
    "gather": between_formulas(gathered(), IMAGE, (1, 4, 5, 6), more=1),
    "gather of a slice, with indices beyond it": graph(
        [sliced((1, 4, 4, 8), 1, 1), gathered((1, 4, 4, 7)), sliced((1, 4, 5, 7), 2, 2)],
        [into("x0", 0), into("x1", 1, 1)],
        [out(2, "y")],
        [between(0, 1), between(1, 2)],
    ),
    "reshaped on the way": graph(
        [sliced((4, 8), 1, 1), absolute((2, 14)), sliced((14, 2), 1, 1), absolute((7, 2), Strides=[1, 7])],
        [into("x0", 0)],
        [out(3, "y")],
        [between(0, 1), between(1, 2), between(2, 3)],
    ),
    "broadcast": graph(
        [
            relu(desc=tensor(sizes=(3,))),
            add(a=tensor(sizes=(4, 3)), b=tensor(sizes=(4, 3), Strides=[0, 1])),
            sliced((4, 3), 1, 1),
        ],
        [into("x0", 0), into("x1", 1)],
        [out(2, "y")],
        [between(0, 1, 1), between(1, 2)],
    ),
    "read twice, close to the limit": graph(
        [
            add(a=tensor(sizes=(4, 6)), b=tensor(sizes=(4, 6))),
            sliced((4, 6), 1, 2),
            add(a=tensor(sizes=(4, 3)), b=tensor(sizes=(4, 3))),
            node(
                "PADDING",
                InputTensor=tensor(sizes=(4, 3)),
                StartPadding=[1, 0],
                EndPadding=[0, 1],
                PaddingMode="CONSTANT",
                PaddingValue=-3,
            ),
            add(a=tensor(sizes=(5, 4)), b=tensor(sizes=(5, 4))),
        ],
        [into("x0", 0), into("x1", 0, 1)],
        [out(4, "y")],
        [between(0, 1), between(1, 2), between(1, 2, 1), between(2, 3), between(3, 4), between(3, 4, 1)],
    ),
    "halves": graph(
        [
            relu(desc=tensor("FLOAT16", (2, 4))),
            sliced((2, 4), 1, 1, "FLOAT16"),
            sliced((2, 3), 0, 2, "FLOAT16"),
            relu(desc=tensor("FLOAT16", (2, 2))),
        ],
        [into("x0", 0)],
        [out(3, "y")],
        [between(0, 1), between(1, 2), between(2, 3)],
    ),
    "what a reduction gives": graph(
        [node("REDUCE", Function="SUM", InputTensor=tensor(sizes=(4, 6)), Axes=[1]), absolute((4, 1))],
        [into("x0", 0)],
        [out(1, "y")],
        [between(0, 1)],
    ),
    "what pooling gives": graph(
        [
            node(
                "MAX_POOLING",
                InputTensor=tensor(sizes=(1, 1, 4, 4)),
                WindowSize=[2, 2],
                Strides=[2, 2],
                StartPadding=[0, 0],
                EndPadding=[0, 0],
            ),
            absolute((1, 1, 2, 2)),
        ],
        [into("x0", 0)],
        [out(1, "y")],
        [between(0, 1)],
    ),
}
"""Graphs, all nodes of each of which are one kernel."""


def drawn(document: Document) -> Drawn:
    """With its data."""
    rng = np.random.default_rng(3)
    data = {}
    for edge in document["InputEdges"]:
        desc = document["Nodes"][edge["ToNodeIndex"]]["Desc"]
        tensors = [each for value in desc.values() for each in (value if isinstance(value, list) else [value])]
        read = [each for each in tensors if isinstance(each, dict) and "Sizes" in each][edge["ToNodeInputIndex"]]
        made = rng.standard_normal(read["Sizes"]) * 4
        data[edge["GraphInput"]] = made.astype(read["DataType"].lower()).tobytes()
    return Drawn(document, data)


def parts(document: Document, structures: Structures | None = None) -> list[PlannedKernel]:
    return fuse(resolved(document, structures=structures), structures or Structures()).parts


def kernels(document: Document) -> list[tuple[int, ...]]:
    """The nodes of each."""
    return [part.nodes for part in parts(document)]


@pytest.fixture(scope="module", params=["loops", "calls", "CUDA"])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    if request.param == "CUDA":
        if COMPILER is None:
            pytest.skip("there is no C++ compiler")
        made: list[Dispatchable] = [part.dispatchable for each in ONE_KERNEL.values() for part in parts(each)]
        yield CudaDeviceOnCpu(BuiltKernels(Path(tmp_path_factory.mktemp("kernels")), made))  # type: ignore[arg-type]
        return
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2, Compiler() if request.param == "loops" else None, least=1)


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel_gives_what_operators_give(name: str, device: NumpyDevice | CudaDeviceOnCpu) -> None:
    given, structures = drawn(ONE_KERNEL[name]), Structures()
    judged = given.graph(structures)
    (part,) = fuse(judged, structures).parts
    assert part.nodes == tuple(range(len(judged.nodes)))
    with ThreadPoolExecutor(2) as helpers:
        alone = NumpyDevice(helpers, 2)
        expected = one_by_one(judged, given, alone)["y"]
        actual = dispatched(initialized(judged, given, alone, structures), given, device)["y"]
    assert actual.tobytes() == expected.tobytes()


def test_graphs_alike_have_the_same_program() -> None:
    structures = Structures()
    every = [between_formulas(sliced((2, size), 1, 1), (2, size), (2, size - 1)) for size in (4, 9)]
    one, other = (parts(each, structures)[0].dispatchable.program for each in every)
    assert one is other


def test_each_part_of_a_split_is_a_kernel_with_what_reads_it() -> None:
    outputs = [tensor(sizes=(2, 1)), tensor(sizes=(2, 2)), tensor(sizes=(2, 3))]
    split = node("SPLIT", InputTensor=tensor(sizes=(2, 6)), OutputTensors=outputs, Axis=1)
    document = graph(
        [split, absolute((2, 1)), absolute((2, 2))],
        [into("x0", 0)],
        [out(1, "y"), out(2, "z"), out(0, "rest", 2)],
        [between(0, 1, 0, 0), between(0, 2, 0, 1)],
    )
    assert sorted(kernels(document)) == [(0,), (0, 1), (0, 2)]


def test_what_costs_much_is_not_computed_again() -> None:
    def tiled(before: str, times: int) -> list[tuple[int, ...]]:
        first = node(before, InputTensor=tensor(sizes=(2, 3)))
        nodes = [first, node("TILE", InputTensor=tensor(sizes=(2, 3)), Repeats=[1, times])]
        return kernels(graph(nodes, [into(0, 0)], [out(1)], [between(0, 1)]))

    assert tiled("ACTIVATION_TANH", 1) == [(0, 1)]
    assert tiled("ACTIVATION_TANH", 2) == [(0,), (1,)]
    assert tiled("ACTIVATION_RELU", 4) == [(0, 1)]
    assert tiled("ACTIVATION_RELU", 5) == [(0,), (1,)]


def test_totals_are_of_what_is_in_memory() -> None:
    total = node("REDUCE", Function="SUM", InputTensor=tensor(sizes=(4, 6)), Axes=[1])
    document = graph([absolute((4, 6)), total], [into(0, 0)], [out(1)], [between(0, 1)])
    assert kernels(document) == [(0,), (1,)]
    # And each is done once: not for each element of a row that it is repeated along.
    document = graph([total, absolute((4, 2), Strides=[1, 0])], [into(0, 0)], [out(1)], [between(0, 1)])
    assert kernels(document) == [(0,), (1,)]


def test_reductions_by_position_keep_their_kernels() -> None:
    softmax = node("ACTIVATION_SOFTMAX1", InputTensor=tensor(sizes=(4, 6)), Axes=[1])
    document = graph([softmax, sliced((4, 6), 1, 1)], [into(0, 0)], [out(1)], [between(0, 1)])
    assert kernels(document) == [(0,), (1,)]
    document = graph([sliced((4, 7), 1, 1), softmax, relu(desc=tensor(sizes=(4, 6)))], [into(0, 0)], [out(2)])
    document["IntermediateEdges"] = [between(0, 1), between(1, 2)]
    assert kernels(document) == [(0,), (1, 2)]
    # Also where only what is put into a reduction goes by coordinates.
    assert kernels(in_turn([sliced((4, 7), 1, 1), absolute((4, 6)), softmax])) == [(0,), (1, 2)]


def test_bits_are_moved_as_they_are() -> None:
    """Also those of NaN, which a float16 that is computed with would not keep."""
    two = graph(
        [sliced((2, 4), 1, 1, "FLOAT16"), sliced((2, 3), 1, 1, "FLOAT16")], [into(0, 0)], [out(1)], [between(0, 1)]
    )
    (part,) = parts(two)
    assert part.dispatchable.program.inputs == {"in0": DataType.UINT16}
    join = node("JOIN", InputTensors=[tensor("FLOAT16", (2, 3))] * 2, Axis=1)
    half = relu(desc=tensor("FLOAT16", (2, 3)))
    document = graph([half, join], [into("x", 0), into("y", 1, 1)], [out(1)], [between(0, 1)])
    assert kernels(document) == [(0,), (1,)]
    # Two of different types are bits to the one that joins them.
    whole = node("ELEMENT_WISE_NEGATE", InputTensor=tensor("INT32", (2, 3)))
    join = node("JOIN", InputTensors=[tensor("FLOAT32", (2, 3))] * 2, Axis=1)
    document = graph([relu(), whole, join], [into("x", 0), into("y", 1)], [out(2)], [between(0, 2), between(1, 2, 1)])
    assert kernels(document) == [(0,), (1,), (2,)]


def test_what_is_moved_by_halves_is_in_memory() -> None:
    """Before and after it, it is elements twice as wide."""
    two = tensor(sizes=(2,))
    assert kernels(in_turn([relu(desc=two), sliced((4,), 0, 1, "FLOAT16"), relu(desc=two)])) == [(0,), (1,), (2,)]


def in_turn(nodes: list[Document]) -> Document:
    last = len(nodes) - 1
    return graph(nodes, [into(0, 0)], [out(last)], [between(number, number + 1) for number in range(last)])


def test_kernels_are_not_too_large() -> None:
    sizes = [(2, 200 - number) for number in range(20)]
    found = kernels(in_turn([each for size in sizes for each in (sliced(size, 1, 1), absolute((2, size[1] - 1)))]))
    assert all(4 < len(nodes) < 20 for nodes in found)
    assert sum(map(len, found)) == 40


def test_a_graph_has_few_programs_that_move_elements() -> None:
    def fused(count: int, *, alike: bool) -> int:
        """In how many of so many branches a TILE is one kernel with the formulas after it."""
        nodes: list[Document] = []
        edges, outputs = [], []
        for number in range(count):
            first, formulas = len(nodes), 1 if alike else 1 + number
            nodes += [node("TILE", InputTensor=X, Repeats=[1, 1 + number])]
            nodes += [absolute((2, 3 + 3 * number))] * formulas
            edges += [between(each, each + 1) for each in range(first, len(nodes) - 1)]
            outputs.append(out(len(nodes) - 1, f"y{number}"))
        inputs = [into("x", each) for each, made in enumerate(nodes) if made["Desc"]["Type"] == "TILE"]
        made = kernels(graph(nodes, inputs, outputs, edges))
        return sum(len(each) > 1 and nodes[each[0]]["Desc"]["Type"] == "TILE" for each in made)

    assert fused(MOST_PROGRAMS + 3, alike=True) == MOST_PROGRAMS + 3
    assert fused(MOST_PROGRAMS + 3, alike=False) == MOST_PROGRAMS
