"""Reductions of few rows, to few columns and of short rows, which loops take in parts or in another order: beside NumPy
in float64."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from app.devices.cpu import simpler
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.split_totals import LEAST, NARROW, PART, WIDTH
from app.devices.device import Kernel
from app.devices.schedules import initialize
from app.formula.structures import Structures
from app.graphs.schedule import schedule
from app.memory.arrays import Array, numpy_type
from tests.graphs.documents import graph, into, node, out, resolved, tensor
from tests.operators.arrays import desc_of
from tests.operators.calls import compiled

RNG = np.random.default_rng(28)


@pytest.fixture(scope="module")
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2, Compiler())


def reduced(device: NumpyDevice, x: Array, axes: list[int], function: str) -> tuple[Kernel, Array]:
    operator = compiled({"Type": "REDUCE", "Function": function, "Axes": axes, "InputTensor": desc_of(x)})
    kernel = device.prepare(operator)
    (desc,) = operator.outputs.values()
    output: Array = np.zeros(desc.Sizes, numpy_type(desc.DataType))
    kernel.dispatch([x.reshape(-1).view(np.uint8).data], [output.reshape(-1).view(np.uint8).data], lambda: False)
    return kernel, output


FUNCTIONS: dict[str, Any] = {
    "SUM": lambda x, axes: x.sum(axes, x.dtype, keepdims=True),
    "AVERAGE": lambda x, axes: x.mean(axes, keepdims=True),
    "L2": lambda x, axes: np.sqrt((x * x).sum(axes, keepdims=True)),
    "MULTIPLY": lambda x, axes: x.prod(axes, x.dtype, keepdims=True),
    "MAX": lambda x, axes: x.max(axes, keepdims=True),
    "MIN": lambda x, axes: x.min(axes, keepdims=True),
}

BOUND = -(-LEAST // 3)
"""Rows from which on 3 columns are made in parts."""

SIZES: list[tuple[list[int], list[int], bool]] = [
    *(([1, rows, 3], [1], rows >= BOUND) for rows in (BOUND * 60 - 1, BOUND * 60, BOUND * 60 + 1)),
    *(([200, rows, 3], [1], rows >= BOUND) for rows in (BOUND - 1, BOUND, BOUND + 1)),
    *(([NARROW * columns, columns], [0], columns <= WIDTH // 2) for columns in (WIDTH // 2, WIDTH // 2 + 1)),
    *(([rows, 100], [0], rows >= NARROW * 100) for rows in (NARROW * 100 - 1, NARROW * 100)),
    *(([count], [0], count >= 2 * PART) for count in (2 * PART - 1, 2 * PART, 2 * PART + 1, 5 * PART - 7)),
    *(([rows, count], [1], count >= 2 * PART) for rows in (2, 33) for count in (2 * PART - 1, 2 * PART)),
    *(([3001, count], [1], False) for count in (6, simpler.SHORT - 1, simpler.SHORT, simpler.SHORT + 1)),
    *(([601, 5, columns], [1], False) for columns in (7, simpler.SHORT - 1, simpler.SHORT)),
]


@pytest.mark.parametrize(("sizes", "axes", "in_parts"), SIZES)
def test_sums_are_those_of_float64(device: NumpyDevice, sizes: list[int], axes: list[int], in_parts: bool) -> None:
    x = RNG.standard_normal(sizes, np.float32) * 3 + 1
    for function in ("SUM", "AVERAGE", "L2", "MAX"):
        kernel, found = reduced(device, x, axes, function)
        assert isinstance(kernel, CallsKernel if in_parts else CoordinateKernel)
        expected = FUNCTIONS[function](x.astype(np.float64), tuple(axes)).astype(np.float32)
        np.testing.assert_array_max_ulp(found, expected, 0 if function == "MAX" else 1)


@pytest.mark.parametrize("sizes", [[20_000, 3], [70_001], [2 * PART + 5], [5000, 4], [40, 512, 2]])
@pytest.mark.parametrize("type_", ["float16", "int8", "uint32", "int64"])
def test_types(device: NumpyDevice, sizes: list[int], type_: str) -> None:
    x = RNG.integers(0 if type_[0] == "u" else -3, 4, sizes).astype(type_)
    axis = len(sizes) // 2 if len(sizes) != 2 else int(sizes[1] == 4)
    for function in ("MAX", "MIN") if type_ == "int8" else ("SUM", "MULTIPLY", "MAX", "MIN"):
        wide = x.astype(np.float64) if type_ == "float16" else x
        _, found = reduced(device, x, [axis], function)
        np.testing.assert_array_equal(found, FUNCTIONS[function](wide, (axis,)).astype(type_))


@pytest.mark.parametrize("count", [2, 3, simpler.SHORT - 1, simpler.SHORT, simpler.SHORT + 1])
def test_short_rows_of_float16_lie_in_vectors(device: NumpyDevice, count: int) -> None:
    """Along the rows, of which elements lie apart."""
    x = (RNG.standard_normal([20_011, count]) * 2.0 ** RNG.integers(-8, 8, [20_011, 1])).astype(np.float16)
    for function in ("SUM", "MAX"):
        kernel, found = reduced(device, x, [1], function)
        assert isinstance(kernel, CoordinateKernel)
        expected = FUNCTIONS[function](x.astype(np.float64), (1,)).astype(np.float16)
        np.testing.assert_array_equal(found, expected)
        if count >= simpler.SHORT:
            continue
        assert kernel._loops
        assert kernel._inputs[0].desc.Sizes == [count, 20_011]
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
        )
        made = str(Compiler().optimized(kernel._loops.code.source, machine, Compiler().registers))
        assert "insertelement <8 x half>" in made


@pytest.mark.parametrize("of_one", [[3 * PART + 5], [LEAST, 2], [5000, 24]])
def test_a_row_is_the_same_alone_and_with_others(device: NumpyDevice, of_one: list[int]) -> None:
    """Of terms so far apart that each order has another sum."""
    x = (RNG.standard_normal([70, *of_one]) * 10.0 ** RNG.integers(-18, 18, [70, *of_one])).astype(np.float32)
    _, together = reduced(device, x, [1], "SUM")
    for count in (1, 16, 17):
        _, found = reduced(device, np.ascontiguousarray(x[:count]), [1], "SUM")
        np.testing.assert_array_equal(found, together[:count])


def test_totals_of_parts_take_an_eighth_of_the_memory(device: NumpyDevice) -> None:
    for sizes in ([300, LEAST // 8, 8], [5, LEAST, 2], [3, 5 * PART]):
        x: Array = np.ones(sizes, np.float32)
        kernel, found = reduced(device, x, [1], "SUM")
        assert isinstance(kernel, CallsKernel)
        assert kernel.own_bytes <= x.nbytes // 8 + 4096
        np.testing.assert_array_equal(found, sizes[1])


@pytest.mark.parametrize("type_", [np.float32, np.float16])
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_of_all_floats(device: NumpyDevice, axis: int, type_: Any) -> None:
    """Each beside each other, in vectors and what is left of them, and all NaNs beyond both infinities."""
    whole: Any = np.uint32 if type_ is np.float32 else np.uint16
    bits = np.finfo(type_).bits
    nans: Array = np.array([1, 0x7F], whole) | whole(np.array(np.inf, type_).view(whole))
    tiny: Any = np.finfo(type_).smallest_subnormal
    ordinary: Array = np.array(
        [-np.inf, np.finfo(type_).min, -1, -tiny, -0.0, 0.0, tiny, 1, np.finfo(type_).max, np.inf], type_
    )
    values = np.concatenate([ordinary, nans.view(type_), (nans | whole(1 << bits - 1)).view(type_)])
    pairs: Array = np.array([(a, b) for a in values for b in values], type_)
    for count in (2, 33, 170):
        x = np.repeat(pairs[:, :1], count, 1)
        places = RNG.integers(0, count, len(pairs))
        x[np.arange(len(pairs)), places] = pairs[:, 1]
        x = np.tile(x, (1 + (1 << 15) // x.size, 1))
        x = x if axis else np.ascontiguousarray(x.T)
        for function in ("MAX", "MIN"):
            _, found = reduced(device, x, [axis], function)
            expected = FUNCTIONS[function](x, (axis,))
            np.testing.assert_array_equal(found, expected)
            negative = np.signbit(x)
            is_negative = (negative.all if function == "MAX" else negative.any)(axis, keepdims=True)
            zeros = (x == 0).all(axis, keepdims=True)
            np.testing.assert_array_equal(np.signbit(found)[zeros], is_negative[zeros])


@pytest.mark.parametrize("sizes", [[4096, 5], [2 * PART + 3, 1], [3, 4096, 2]])
def test_in_a_graph(device: NumpyDevice, sizes: list[int]) -> None:
    """Two of them, as calls of one table, with the bits that each has by itself."""
    x = RNG.standard_normal(sizes, np.float32)
    axis = len(sizes) - 2
    left = tuple(1 if place == axis else size for place, size in enumerate(sizes))
    desc, functions = tensor(sizes=tuple(sizes)), ("SUM", "MAX")
    nodes = [
        node("REDUCE", Function=each, Axes=[axis], InputTensor=desc, OutputTensor=tensor(sizes=left))
        for each in functions
    ]
    plan = schedule(resolved(graph(nodes, [into(0, 0), into(0, 1)], [out(0), out(1, 1)], []), data={}), Structures())
    of = initialize(plan, {}, lambda size: memoryview(bytearray(size)), device.prepare, lambda: False)
    made: list[Array] = [np.zeros(left, np.float32) for _ in functions]
    outputs = [each.reshape(-1).view(np.uint8).data for each in made]
    if plan.scratch_bytes:
        outputs.append(memoryview(bytearray(plan.scratch_bytes)))
    device.prepare(of).dispatch([x.reshape(-1).view(np.uint8).data], outputs, lambda: False)
    for function, found in zip(functions, made, strict=True):
        kernel, alone = reduced(device, x, [axis], function)
        assert isinstance(kernel, CallsKernel)
        np.testing.assert_array_equal(found, alone)
