"""What is negated, of which GPUs' compilers make something else: in two minima or maxima, and where it is 1 or 0."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Device
from app.formula.structures import Structures
from app.memory.arrays import Array
from tests.gpu import first_gpu
from tests.graphs.documents import Document, between, graph, into, node, out, tensor
from tests.graphs.random_graphs import Drawn, dispatched, initialized

COUNT = 257

CHOICES: dict[str, Callable[[Array, Array], Array]] = {"MIN": np.minimum, "MAX": np.maximum}
SIGNS: dict[str, Callable[[Array], Array]] = {"NEGATE": np.negative, "ABS": np.abs}


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "gpu":
        yield first_gpu()
        return
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2, Compiler(), least=1)


def choice(kind: str, desc: Document) -> Document:
    return node(f"ELEMENT_WISE_{kind}", ATensor=desc, BTensor=desc)


@pytest.mark.parametrize("data_type", ["INT8", "INT16", "INT32", "INT64"])
def test_two_choices_of_what_is_negated(device: Device, data_type: str) -> None:
    desc = tensor(data_type, (COUNT,))
    rng = np.random.default_rng(3)
    x, y, z = (rng.integers(-60, 60, COUNT).astype(data_type.lower()) for _ in range(3))
    for sign, first, second in itertools.product(SIGNS, CHOICES, CHOICES):
        nodes = [node(f"ELEMENT_WISE_{sign}", InputTensor=desc), choice(first, desc), choice(second, desc)]
        once = graph(
            nodes, [into("x", 0), into("y", 1, 1), into("z", 2, 1)], [out(2, "out")], [between(0, 1), between(1, 2)]
        )
        # What is negated by -1 - x + 1 is enough for the first, but not for both of what is chosen here.
        add = node("ELEMENT_WISE_ADD", ATensor=desc, BTensor=desc)
        nodes = [nodes[0], add, choice(first, desc), node("ELEMENT_WISE_NEGATE", InputTensor=desc)]
        both = graph(
            [*nodes, choice(second, desc), choice(second, desc)],
            [into("x", 0), into("y", 1, 1), into("z", 2, 1), into("y", 5, 1)],
            [out(5, "out")],
            [between(0, 1), between(1, 2), between(2, 3), between(3, 4), between(0, 4, 1), between(4, 5)],
        )
        a, choose, choose_then = SIGNS[sign](x), CHOICES[first], CHOICES[second]
        results = choose_then(choose(a, y), z), choose_then(choose_then(-choose(a + y, z), a), y)
        for document, expected in zip((once, both), results, strict=True):
            given, structures = Drawn(document, {"x": x.tobytes(), "y": y.tobytes(), "z": z.tobytes()}), Structures()
            made = initialized(given.graph(structures), given, device, structures)
            actual = dispatched(made, given, device)["out"]
            np.testing.assert_array_equal(actual, expected, err_msg=f"{sign} {first} {second}")


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_a_negated_zero_of_what_is_1_or_0(device: Device, data_type: str) -> None:
    desc = tensor(data_type, (COUNT,))
    nodes = [node("ELEMENT_WISE_SIGN", InputTensor=desc), node("ELEMENT_WISE_NEGATE", InputTensor=desc)]
    document = graph(nodes, [into("x", 0)], [out(1, "out")], [between(0, 1)])
    x = np.resize([2, 0, -3, -0.0, np.nan], COUNT).astype(data_type.lower())
    given, structures = Drawn(document, {"x": x.tobytes()}), Structures()
    made = initialized(given.graph(structures), given, device, structures)
    actual = dispatched(made, given, device)["out"]
    expected = np.resize([-1, -0.0, 1, -0.0, -0.0], COUNT)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
