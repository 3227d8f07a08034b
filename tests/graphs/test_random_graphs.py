"""Graphs give what their operators give one by one: to the last bit where formulas are exact, else nearly so."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Device
from app.formula.structures import Structures
from app.memory.arrays import Array
from tests.gpu import first_gpu
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


@settings(max_examples=25)
@given(graphs)
def test_others_nearly_so(device: NumpyDevice, drawn: tuple[random.Random, int]) -> None:
    rng, nodes = drawn
    check(Drawer(rng, exact=False).draw(nodes), device, device, exact=False)


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [True, False])
def test_on_a_gpu(exact: bool) -> None:
    gpu = first_gpu()
    with ThreadPoolExecutor(2) as helpers:
        alone = NumpyDevice(helpers, 2)
        for seed in range(150):
            rng = random.Random(seed)
            check(Drawer(rng, exact=exact).draw(rng.randint(1, 14)), gpu, alone, exact=exact)
