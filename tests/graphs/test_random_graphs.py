"""Graphs give what their operators give one by one: to the last bit where formulas are exact, else nearly so."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Device
from app.formula.structures import Structures
from app.graphs.graph import NodeOutput, Source
from app.graphs.schedule import ALIGNMENT, Place, Room, Step, schedule
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from tests.gpu import first_gpu
from tests.graphs.documents import add, between, constant, into, node, out, tensor
from tests.graphs.random_graphs import Drawer, Drawn, dispatched, initialized, one_by_one

SHARED = Structures()
"""Kept from graph to graph, as a service does."""

graphs = st.tuples(st.randoms(use_true_random=False), st.integers(1, 14))


@pytest.fixture(scope="module", params=["loops", "calls"])
def device(request: pytest.FixtureRequest) -> Iterator[NumpyDevice]:
    """NumPy, with everything compiled, or nothing."""
    with ThreadPoolExecutor(2) as helpers:
        compiler = Compiler() if request.param == "loops" else None
        yield NumpyDevice(helpers, 2, compiler, least=1, structures=Structures())


def results(drawn: Drawn, device: Device, alone: Device) -> tuple[dict[str, Array], dict[str, Array]]:
    """What operators give one by one, and the graph."""
    graph = drawn.graph(SHARED)
    made = initialized(graph, drawn, alone, SHARED)
    return one_by_one(graph, drawn, alone), dispatched(made, drawn, device)


def check(drawn: Drawn, device: Device, alone: Device, *, exact: bool) -> None:
    expected, actual = results(drawn, device, alone)
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        if exact:
            np.testing.assert_array_equal(actual[name], array, err_msg=str(drawn.document))
        else:
            # A difference in the last place grows with each operator that follows.
            near = 1e-4 if array.dtype == np.float32 else 3e-2
            given, wanted = (np.clip(each.astype(np.float64), -1e30, 1e30) for each in (actual[name], array))
            np.testing.assert_allclose(given, wanted, rtol=near, atol=near, err_msg=str(drawn.document))


INTEGERS = ("INT8", "INT16", "INT32", "INT32", "INT64")


@settings(max_examples=40)
@given(graphs)
def test_integers(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    rng, nodes = drawn
    check(Drawer(rng, exact=True, moving=0.1, types=INTEGERS).draw(nodes), device, device, exact=True)


@settings(max_examples=40)
@given(graphs)
def test_exact_formulas_to_the_last_bit(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    rng, nodes = drawn
    check(Drawer(rng, exact=True).draw(nodes), device, device, exact=True)


@settings(max_examples=60)
@given(graphs)
def test_what_moves_elements_to_the_last_bit(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    rng, nodes = drawn
    check(Drawer(rng, exact=True, moving=0.4).draw(nodes), device, device, exact=True)


@settings(max_examples=60)
@given(graphs)
def test_what_has_gaps_to_the_last_bit(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    """And is read whole or in part, in any dimensions."""
    rng, nodes = drawn
    check(Drawer(rng, exact=True, moving=0.2, gaps=0.5).draw(nodes), device, device, exact=True)


@settings(max_examples=25)
@given(graphs)
def test_others_nearly_so(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    rng, nodes = drawn
    check(Drawer(rng, exact=False).draw(nodes), device, device, exact=False)


@settings(max_examples=40)
@given(graphs)
def test_what_was_computed_before_is_not_computed_again(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    """Nor written to, and whatever of it is known the rest is the same."""
    rng, nodes = drawn
    made = Drawer(rng, exact=True, moving=0.2).draw(nodes)
    graph = made.graph(SHARED)
    whole = initialized(graph, made, device, SHARED)
    kept: dict[Source, Buffer] = {
        source: memoryview(bytes(data))  # to which nothing can be written
        for source, data in zip(whole.schedule.kept, whole.kept, strict=True)
        if isinstance(source, NodeOutput) and data
    }
    known = {source: data for source, data in kept.items() if rng.random() < 0.6}
    again = initialized(graph, made, device, SHARED, known)
    assert [*map(bytes, again.kept)] == [*map(bytes, whole.kept)]
    if known.keys() == kept.keys():
        sources = zip(whole.schedule.kept, again.kept, strict=True)
        assert all(data is kept[source] for source, data in sources if source in kept)


def test_what_is_known_of_several_outputs_is_not_written_to(device: NumpyDevice) -> None:
    """Where a kernel has to make another one of them again."""
    x, index = tensor(sizes=(1, 1, 1, 6)), tensor("UINT32", (1, 1, 1, 4))
    four = tensor(sizes=(1, 1, 1, 4))
    firsts = {"OutputValueTensor": four, "OutputIndexTensor": index, "Axis": 3, "K": 4, "AxisDirection": "DECREASING"}
    document = {
        "Nodes": [
            constant("c"),
            node("TOP_K1", "firsts", InputTensor=x, **firsts),
            add("values", four, four),
            add("places", index, index),
        ],
        "InputEdges": [into("a", "values", "ATensor"), into("b", "places", "ATensor")],
        "IntermediateEdges": [
            between("c", "firsts", "InputTensor", "Data"),
            between("firsts", "values", "BTensor", "OutputValueTensor"),
            between("firsts", "places", "BTensor", "OutputIndexTensor"),
        ],
        "OutputEdges": [out("values", "y", "OutputTensor"), out("places", "z", "OutputTensor")],
    }
    data = np.array([3, 1, 4, 1, 5, 9], np.float32).tobytes()
    drawn = Drawn(document, {"a": bytes(16), "b": bytes(16)}, {0: data})
    graph = drawn.graph(SHARED)
    whole = initialized(graph, drawn, device, SHARED)
    for at, source in enumerate(whole.schedule.kept):
        if not whole.kept[at]:
            continue
        known: dict[Source, Buffer] = {source: memoryview(bytes(whole.kept[at]))}
        again = initialized(graph, drawn, device, SHARED, known)
        assert [*map(bytes, again.kept)] == [*map(bytes, whole.kept)]
    made = dispatched(whole, drawn, device)
    assert made["y"].tolist() == [9, 5, 4, 3]
    assert made["z"].tolist() == [5, 4, 2, 0]


def most_needed(steps: Sequence[Step]) -> int:
    """Bytes that are in use at once in scratch, at the most; no two tensors of these overlap."""
    written: dict[int, int] = {}  # by where it begins: what lies there now, as a number of `lives`
    lives: list[tuple[int, int, Place]] = []  # from which step to which
    for number, step in enumerate(steps):
        for place in step.reads:
            if place.room is Room.SCRATCH:
                first, _, whole = lives[written[place.offset]]
                lives[written[place.offset]] = first, number, whole
        for place in step.writes:
            if place.room is Room.SCRATCH:
                written[place.offset] = len(lives)
                lives.append((number, number, place))
    most = 0
    for number in range(len(steps)):
        alive = sorted(
            (each.offset, -(-each.size // ALIGNMENT)) for first, last, each in lives if first <= number <= last
        )
        for (offset, units), (after, _) in pairwise(alive):
            assert offset + units * ALIGNMENT <= after
        most = max(most, ALIGNMENT * sum(units for _, units in alive))
    return most


def test_scratch_is_near_the_least_that_the_steps_need() -> None:
    several = 0
    for seed in range(150):
        rng = random.Random(seed)
        planned = schedule(Drawer(rng, exact=False, moving=0.3).draw(rng.randint(10, 40)).graph(SHARED), SHARED)
        least = most_needed(planned.steps)
        assert least <= planned.scratch_bytes <= 1.1 * least, seed
        several += least > 2 * ALIGNMENT
    assert several > 50, "graphs that need little tell nothing"


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [True, False])
def test_on_a_gpu(exact: bool) -> None:
    gpu = first_gpu()
    with ThreadPoolExecutor(2) as helpers:
        alone = NumpyDevice(helpers, 2)
        for seed in range(150):
            rng = random.Random(seed)
            check(Drawer(rng, exact=exact).draw(rng.randint(1, 14)), gpu, alone, exact=exact)


@pytest.mark.gpu
def test_integers_on_a_gpu() -> None:
    gpu = first_gpu()
    with ThreadPoolExecutor(2) as helpers:
        alone = NumpyDevice(helpers, 2)
        for seed in range(60):
            rng = random.Random(seed)
            drawer = Drawer(rng, exact=True, moving=0.1, types=INTEGERS)
            check(drawer.draw(rng.randint(1, 30)), gpu, alone, exact=True)
