"""Tensors that lie in other ways than packed, where loops are for packed ones, or take what lies together: the same
bits, and nothing is written beside the elements."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array, numpy_type
from tests.operators.arrays import desc_of, laid_out, run
from tests.operators.calls import compiled
from tests.operators.conftest import compiler

WINDOW = {"WindowSize": [3, 3], "Strides": [2, 2], "StartPadding": [1, 1], "EndPadding": [1, 1], "Dilations": [1, 1]}
PLANES, MADE = (2, 3, 16, 20), (2, 3, 8, 10)
OPERATORS: list[tuple[dict[str, Any], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = [
    ({"Type": "MAX_POOLING2", **WINDOW}, {"InputTensor": PLANES}, {"OutputTensor": MADE}),
    (
        {"Type": "MAX_POOLING_GRAD", **WINDOW},
        {"InputTensor": PLANES, "InputGradientTensor": MADE},
        {"OutputGradientTensor": PLANES},
    ),
    (
        {
            "Type": "AVERAGE_POOLING_GRAD",
            **{k: v for k, v in WINDOW.items() if k != "Dilations"},
            "IncludePadding": True,
        },
        {"InputGradientTensor": MADE},
        {"OutputGradientTensor": PLANES},
    ),
    (
        {"Type": "CUMULATIVE_SUMMATION", "Axis": 3, "AxisDirection": "INCREASING", "HasExclusiveSum": False},
        {"InputTensor": PLANES},
        {"OutputTensor": PLANES},
    ),
]
ELEMENT_WISE: list[dict[str, Any]] = [{"Type": f"ELEMENT_WISE_{each}"} for each in ("LOG", "SIN", "FLOOR", "EXP")]
RNG = np.random.default_rng(3)


def drawn(sizes: tuple[int, ...], data_type: DataType) -> Array:
    return np.abs(RNG.standard_normal(sizes)).astype(numpy_type(data_type))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("data_type", [DataType.FLOAT32, DataType.FLOAT16])
@pytest.mark.parametrize(
    ("document", "given", "made"), OPERATORS, ids=[str(document["Type"]) for document, _, _ in OPERATORS]
)
def test_what_loops_make_of_packed_tensors_they_make_of_others(
    document: dict[str, Any],
    given: dict[str, tuple[int, ...]],
    made: dict[str, tuple[int, ...]],
    data_type: DataType,
    threads: int,
) -> None:
    inputs = {name: drawn(sizes, data_type) for name, sizes in given.items()}
    outputs = {name: np.zeros(sizes, numpy_type(data_type)) for name, sizes in made.items()}
    with ThreadPoolExecutor(2) as helpers:
        device = NumpyDevice(helpers, threads, compiler(), least=1)
        described = {name: desc_of(each) for name, each in (inputs | outputs).items()}
        wanted = run(device, compiled(document | described), inputs)
        for _ in range(6):
            apart = {name: laid_out(RNG, each) for name, each in inputs.items()}
            described = {name: desc_of(each) for name, each in apart.items()}
            described |= {name: desc_of(laid_out(RNG, each)) for name, each in outputs.items()}
            operator = compiled(document | described)
            assert isinstance(device.prepare(operator), CallsKernel)
            found = run(device, operator, apart)
            assert all(found[name].tobytes() == each.tobytes() for name, each in wanted.items())


ONE = (1, 1, 1, 1)
BYTES: list[tuple[dict[str, Any], dict[str, tuple[int, ...]], tuple[int, ...]]] = [
    (
        {**{k: v for k, v in WINDOW.items() if k != "WindowSize"}, "Type": "CONVOLUTION_INTEGER", "GroupCount": 1},
        {"InputTensor": PLANES, "InputZeroPointTensor": ONE, "FilterTensor": (6, 3, 3, 3)},
        (2, 6, 8, 10),
    ),
    (
        {**{k: v for k, v in WINDOW.items() if k != "WindowSize"}, "Type": "CONVOLUTION_INTEGER", "GroupCount": 3},
        {"InputTensor": PLANES, "InputZeroPointTensor": ONE, "FilterTensor": (6, 1, 3, 3)},
        (2, 6, 8, 10),
    ),
    ({"Type": "MATRIX_MULTIPLY_INTEGER"}, {"ATensor": (2, 3, 9, 20), "BTensor": (2, 3, 20, 11)}, (2, 3, 9, 11)),
]


@pytest.mark.parametrize(("document", "given", "made"), BYTES)
def test_so_are_bytes_that_are_multiplied(
    document: dict[str, Any], given: dict[str, tuple[int, ...]], made: tuple[int, ...]
) -> None:
    """Images have their channels last as often as not."""
    inputs = {name: RNG.integers(0, 256, sizes).astype(np.uint8) for name, sizes in given.items()}
    output = np.zeros(made, np.int32)
    with ThreadPoolExecutor(2) as helpers:
        device = NumpyDevice(helpers, 2, compiler(), least=1)
        described = {name: desc_of(each) for name, each in (inputs | {"OutputTensor": output}).items()}
        wanted = run(device, compiled(document | described), inputs)["OutputTensor"]
        for _ in range(6):
            apart = {name: laid_out(RNG, each) for name, each in inputs.items()}
            described = {name: desc_of(each) for name, each in apart.items()}
            described["OutputTensor"] = desc_of(laid_out(RNG, output))
            operator = compiled(document | described)
            assert isinstance(device.prepare(operator), CallsKernel)
            assert run(device, operator, apart)["OutputTensor"].tobytes() == wanted.tobytes()


def test_copies_of_what_is_repeated_are_not_made() -> None:
    """One element may be all of a tensor that would not go into memory."""
    x = np.broadcast_to(np.float32(1), (1, 1, 1 << 12, 1 << 12))
    document = {"Type": "MAX_POOLING", "WindowSize": [2, 2], "Strides": [2, 2], "InputTensor": desc_of(x)}
    document |= {"StartPadding": [0, 0], "EndPadding": [0, 0]}
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler(), least=1).prepare(compiled(document))
    assert not isinstance(kernel, CallsKernel)


@pytest.mark.parametrize("data_type", [DataType.FLOAT32, DataType.FLOAT16])
@pytest.mark.parametrize("document", ELEMENT_WISE, ids=[str(each["Type"]) for each in ELEMENT_WISE])
@pytest.mark.parametrize("size", [37, 1023, 1025, 2100])
def test_what_is_spaced_is_computed_as_what_lies_together(
    document: dict[str, Any], data_type: DataType, size: int
) -> None:
    """In pieces, of which the last one is shorter."""
    x = drawn((3, size), data_type)
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, compiler(), least=1)
        wanted = run(device, compiled(document | {"InputTensor": desc_of(x)}), {"InputTensor": x})["OutputTensor"]
        spaced = np.zeros((3, 3 * size), x.dtype)[:, ::3]
        spaced[...] = x
        for given, made in ((spaced, x), (x, spaced), (spaced, spaced)):
            operator = compiled(document | {"InputTensor": desc_of(given), "OutputTensor": desc_of(made)})
            kernel: Any = device.prepare(operator)
            is_light = document["Type"] == "ELEMENT_WISE_FLOOR" and data_type is DataType.FLOAT32
            assert is_light or "alloca" in kernel._call.codes.plain.source
            assert run(device, operator, {"InputTensor": given})["OutputTensor"].tobytes() == wanted.tobytes()
