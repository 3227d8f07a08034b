"""Kernels of formulas that go by coordinates, and calls, against NumPy: built for the CPU, and on a GPU."""

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.tensors import MAX_TENSORS, TensorDesc
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.compiler import compile_source, nvrtc_version
from app.devices.cuda.coordinates import FEW, LONG, Coordinates, division
from app.devices.cuda.device import CudaDevice
from app.devices.device import Cancelled, DeviceFailed
from app.formula import coordinates as c
from app.formula.coordinates import coordinates
from app.formula.values import Value, cast, quotient, remainder_of_floor
from app.graphs.schedule import InitializedGraph, Place, Room, Schedule, Step
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator
from app.operators.operator import Operator
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu, CudaError, OutOfMemory
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels, coordinate_source
from tests.devices.test_coordinates import (
    OF_INTEGERS,
    POSITIONS,
    TYPES,
    Careless,
    Enlarge,
    N,
    buffer_of,
    desc_of,
    elements,
    laid_out,
    of_expression,
    operand,
    run,
)
from tests.gpu import first_gpu
from tests.operators.coordinate_operators import (
    AveragePooling,
    CumulativeSum,
    Gather,
    Join,
    Reduce,
    Slice1,
    compiled,
)

EXHAUSTIVE = os.environ.get("DMLSERVE_EXHAUSTIVE") == "1"

INEXACT = ("LOG_SUM", "LOG_SUM_EXP", "L2", "MULTIPLY")
"""Reductions whose last bit may differ: by functions that are approximate, or by the order of products."""


SOME = [DataType.FLOAT32, DataType.FLOAT16, DataType.FLOAT64, DataType.INT8, DataType.UINT64]
"""Types that are computed differently."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    operator: CompiledOperator
    inputs: dict[str, Array]
    exact: bool = True


def case(name: str, kind: type[Operator], members: dict[str, Any], *, exact: bool = True, **inputs: Any) -> Case:
    """Of an operator, with arrays or lists of them as inputs, whose descriptors are among its members."""
    arrays: dict[str, Array] = {}
    for field, value in inputs.items():
        if isinstance(value, list):
            arrays |= {f"{field}[{place}]": each for place, each in enumerate(value)}
            members[field] = [desc_of(each) for each in value]
        else:
            arrays[field] = value
            members[field] = desc_of(value)
    return Case(name, compiled(kind, members), arrays, exact)


@cache
def cases() -> tuple[Case, ...]:
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    members: dict[str, Any]
    tensors: Any
    for data_type in TYPES:
        for rank in (1, 3, 5) if data_type is DataType.FLOAT32 else (3,):
            x = laid_out(rng, elements(rng, [int(each) for each in rng.integers(2, 7, rank)], data_type))
            offsets = [int(rng.integers(0, size)) for size in x.shape]
            windows = [int(rng.integers(1, size - offset + 1)) for size, offset in zip(x.shape, offsets, strict=True)]
            steps = [int(rng.choice([-2, -1, 1, 2, 3])) for _ in x.shape]
            sizes = [-(-window // abs(step)) for window, step in zip(windows, steps, strict=True)]
            members = {
                "InputWindowOffsets": offsets,
                "InputWindowSizes": windows,
                "InputWindowStrides": steps,
                "OutputTensor": desc_of(laid_out(rng, np.zeros(sizes, x.dtype))),
            }
            yield case(f"slice {data_type} {rank}", Slice1, members, InputTensor=x)
    for index_type in (np.int64, np.int32, np.uint32, np.int8):
        limits = np.iinfo(index_type)
        indices = np.array([0, 2, -1, -3, 4, 5, 6, -5, -6, -7, 77, limits.max, limits.min, limits.max - 1])
        x = rng.integers(1, 100, (5, 6)).astype(np.float32)
        for axis in (0, 1):
            for beyond in ({}, {"Beyond": -1.5}):
                members = {"Axis": axis, "OutputTensor": desc_of(np.zeros([(14, 6), (5, 14)][axis], np.float32))}
                tensors = {"InputTensor": x, "IndicesTensor": indices.astype(index_type)}
                yield case(f"gather {index_type.__name__} {axis} {beyond}", Gather, members | beyond, **tensors)
    yield from _reductions(rng)
    x, weight = rng.integers(0, 9, 20).astype(np.float32), rng.integers(0, 9, 7).astype(np.float32)
    members = {"OutputTensor": desc_of(np.zeros(40, np.float32)), "WindowSize": 7, "StartPadding": 12}
    members["OutputCountTensor"] = desc_of(np.zeros(40, np.int64))
    yield case("pooling", AveragePooling, dict(members), InputTensor=x)
    yield case("pooling with weights", AveragePooling, dict(members), InputTensor=x, WeightTensor=weight)
    for axis, count in ((0, 1), (1, 4), (2, 60)):
        tensors = [laid_out(rng, elements(rng, [3, 4, 5], DataType.INT32)) for _ in range(count)]
        out = np.concatenate(tensors, axis)
        yield case(f"join {count}", Join, {"OutputTensor": desc_of(out), "Axis": axis}, InputTensors=tensors)
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    attributes = {
        "ScaleSize": {"Width": 3, "Height": 2},
        "Bias": [2.0, 3.0],
        "Start": -1,
        "FusedActivation": {"Type": "DML_OPERATOR_ACTIVATION_LEAKY_RELU", "Alpha": 0.25},
        "OutputTensor": desc_of(np.zeros((4, 9), np.float32)),
    }
    yield case("attributes of all kinds", Enlarge, attributes, InputTensor=x)
    x = laid_out(rng, elements(rng, [130, 3, 130], DataType.INT16))
    members = {"OutputTensor": desc_of(np.zeros((130, 1, 130), x.dtype)), "Function": "SUM", "Axes": [1]}
    yield case("more than a few", Reduce, members, InputTensor=x)
    yield from _expressions(rng)


def _reductions(rng: np.random.Generator) -> Iterator[Case]:
    """By loops, and by a block for each element; of those the shorter ones leave threads without work."""
    layouts = [([3, 4, 5], [0, 2]), ([7, LONG], [1]), ([2, 30, 3, 20], [1, 3])]
    for data_type in SOME:
        for function in Reduce.FUNCTIONS:
            if not data_type.startswith("FLOAT") and function not in OF_INTEGERS:
                continue
            for sizes, axes in layouts if data_type in (DataType.FLOAT32, DataType.INT8) else layouts[1:2]:
                x = elements(rng, sizes, data_type)
                if data_type.startswith("FLOAT") and sizes[0] == 7:
                    x[0, 100] = x[0, 200] = np.nan
                    x[1] = -np.inf
                out = np.zeros([1 if axis in axes else size for axis, size in enumerate(sizes)], x.dtype)
                out = out.astype(np.uint32) if function.startswith("ARG") else out
                for last in (False, True) if function.startswith("ARG") else (False,):
                    members = {"OutputTensor": desc_of(laid_out(rng, out)), "Function": function, "Axes": axes}
                    yield case(
                        f"{function} {data_type} {sizes} {'last' if last else ''}",
                        Reduce,
                        members | {"Last": last},
                        exact=function not in INEXACT or not data_type.startswith("FLOAT"),
                        InputTensor=laid_out(rng, x),
                    )


def _expressions(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.integers(-99, 99, 30).astype(np.int32)
    (i,) = coordinates(1)
    of = operand(x)

    def inner(j: Value) -> Value:
        return c.maximum_over([2, remainder_of_floor(j, 3)], lambda a, b: of[[i + j * 2 + a * 5 - b]])

    nested = c.sum_over([i + c.sum_over([i], lambda k: k)], inner)
    yield Case("totals in totals and in their counts", of_expression(nested, [9], DataType.INT32, x), {"X": x})
    # By a block for each element: a total that threads share, of it one that they do not, and one that is short.
    long = c.sum_over([3, N], lambda a, b: c.maximum_over([a + 1, 2], lambda k, m: of[[b + k - m * i]]) - of[[a]])
    short = c.minimum_over([5], lambda a: of[[a * 3 + i]] + cast(long, "int32"))
    expression = short + long * c.product_over([i], lambda a: of[[a]])
    yield Case("shared and not", of_expression(expression, [11], DataType.INT32, x, n=LONG), {"X": x})
    for name in POSITIONS:
        for dtype, values in (
            (np.float32, [-np.inf, np.inf, np.nan, 1, 2, 2]),
            (np.int8, [-128, 127, 1]),
        ):
            y = rng.choice(np.array(values), (12, 4, 3)).astype(dtype)
            k, _ = coordinates(2)
            for counts in ([remainder_of_floor(k, 5), quotient(k, 4)], [LONG, 3]):
                z = operand(y)
                expression = c.position_over(
                    name,  # type: ignore[arg-type]
                    counts,
                    lambda a, b, k=k, z=z: z[[k, remainder_of_floor(a, 4), b]],
                )
                made = of_expression(expression, [12, 2], DataType.INT64, y)
                yield Case(f"{name} {dtype.__name__} {len(counts)}", made, {"X": y})
    for data_type in SOME:
        y = np.ones(3, numpy_type(data_type))
        z = operand(y)
        for over in (c.sum_over, c.product_over, c.maximum_over, c.minimum_over):
            expression = over([3, N], lambda a, b, z=z: z[[a + b]])
            for count in (0, -5, 2):
                made = of_expression(expression, [2], data_type, y, n=count)
                yield Case(f"{over.__name__} of {count} {data_type}", made, {"X": y})


def same(case: Case, made: dict[str, Array], expected: dict[str, Array]) -> bool:
    """Bit for bit, but for NaN and the sign of zeros, where the case is exact; else within what rounding may do."""
    for name, array in expected.items():
        tolerance = 0 if case.exact else 2e-3 if array.dtype.itemsize == 2 else 1e-6
        with np.errstate(all="ignore"):
            if not np.allclose(made[name], array, tolerance, tolerance, equal_nan=array.dtype.kind == "f"):
                return False
            if case.exact and array.dtype.kind != "f" and not np.array_equal(made[name], array):
                return False
    return True


@pytest.fixture(scope="module")
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


# Built for the CPU


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@needs_compiler
def test_kernels_compute_what_numpy_does(tmp_path: Path, numpy_device: NumpyDevice) -> None:
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, [each.operator for each in cases()]))
    assert differing(device, numpy_device) == []
    assert device.log.count("kernel") >= len(cases())
    assert device.load == 0


def differing(device: CudaDevice, numpy_device: NumpyDevice) -> list[str]:
    """The cases that `device` computes otherwise."""
    return [
        each.name
        for each in cases()
        if not same(each, run(device, each.operator, each.inputs), run(numpy_device, each.operator, each.inputs))
    ]


@pytest.fixture
def on_cpu(tmp_path: Path) -> CudaDeviceOnCpu:
    return CudaDeviceOnCpu(BuiltKernels(tmp_path))


@needs_compiler
def test_inputs_go_to_the_device_once_for_all_outputs(on_cpu: CudaDeviceOnCpu) -> None:
    (pooling,) = [each for each in cases() if each.name == "pooling"]
    made = run(on_cpu, pooling.operator, pooling.inputs)
    assert list(made) == ["OutputTensor", "OutputCountTensor"]
    moves = ["in", "synchronized"], ["out", "synchronized"]
    assert on_cpu.log == [*moves[0], "kernel", "kernel", "synchronized", *moves[1], *moves[1]]
    assert on_cpu.pool.taken == 3


@needs_compiler
def test_an_output_may_take_the_memory_of_an_input(on_cpu: CudaDeviceOnCpu) -> None:
    x = np.arange(3000, dtype=np.int32)
    of = operand(x)
    (i,) = coordinates(1)
    buffer = x.view(np.uint8).data
    on_cpu.prepare(of_expression(of[[of.sizes[0] - 1 - i]], [3000], DataType.INT32, x)).dispatch(
        [buffer], [buffer], lambda: False
    )
    np.testing.assert_array_equal(x, np.arange(2999, -1, -1))


def test_divisions_by_sizes_are_exact() -> None:
    rng = np.random.default_rng(2)
    most = (1 << 32) - 1
    ends = [1, 2, 3, 5, 7, 8, 641, most, most - 1, 1 << 31, (1 << 31) + 1, (1 << 31) - 1]
    for size in [*ends, *(int(2 ** rng.uniform(0, 32)) for _ in range(500))]:
        magic, shift = division(size)
        assert 0 <= magic <= most
        for n in [0, 1, most, size - 1, size, most // size * size, most // size * size - 1, *rng.integers(0, most, 20)]:
            assert ((int(n) * magic >> 32) + int(n)) >> shift == int(n) // size


def source_of(sizes: list[int], axes: list[int], function: str = "SUM") -> str:
    x = np.zeros(sizes, np.float32)
    out = np.zeros([1 if axis in axes else size for axis, size in enumerate(sizes)], np.float32)
    members = {"OutputTensor": desc_of(out), "Function": function, "Axes": axes}
    return coordinate_source(case("", Reduce, members, InputTensor=x).operator, "OutputTensor")[0]


def test_one_source_serves_all_sizes() -> None:
    """But not of other ranks and axes; few long totals are those of blocks."""
    short = {source_of([a, b, c], [1]) for a, b, c in ((2, 3, 4), (7, LONG - 1, 1), (1, 1, 1))}
    long = {source_of([a, b, c], [1]) for a, b, c in ((2, LONG, 4), (100, 5 * LONG, 100), (1, 10000, 1))}
    assert len(short) == len(long) == 1
    assert "reduced(" in min(long)
    assert "reduced(" not in min(short)
    assert {source_of([FEW - 1, LONG, 1], [1])} == long
    assert {source_of([FEW, LONG, 1], [1])} == short
    assert len({*short, *long, source_of([2, 3, 4], [2]), source_of([2, 3], [1])}) == 4


def test_what_no_inner_loop_changes_is_computed_outside() -> None:
    """The maximum that LOG_SUM_EXP subtracts is a loop of its own, not one in the loop of the sum."""
    text = source_of([3, 4], [1], "LOG_SUM_EXP")
    assert text.count("for (") == 2
    first, second = (at for at in range(len(text)) if text.startswith("for (", at))
    assert text[first:second].count("{") == text[first:second].count("}")


# Under NVRTC


def test_kernels_compile() -> None:
    """For Ampere and for Hopper; of each kind some, unless all is asked for."""
    try:
        nvrtc_version()
    except Exception as error:
        pytest.skip(f"there is no NVRTC: {error}")
    chosen = cases() if EXHAUSTIVE else {each.name.partition(" ")[0]: each for each in cases()}.values()
    sources = {coordinate_source(each.operator, name)[0] for each in chosen for name in each.operator.outputs}
    assert len(sources) > 20
    for source in sources:
        for architecture in (80, 90):
            assert compile_source(source, architecture).startswith(b"\x7fELF")


def test_as_many_tensors_as_there_may_be_compile() -> None:
    """With more arguments than the 4 KiB that CUDA had room for before 12.1."""
    try:
        nvrtc_version()
    except Exception as error:
        pytest.skip(f"there is no NVRTC: {error}")
    tensors = [np.zeros([1, 1], np.int8)] * MAX_TENSORS
    out = np.zeros([MAX_TENSORS, 1], np.int8)
    operator = case("", Join, {"OutputTensor": desc_of(out), "Axis": 0}, InputTensors=tensors).operator
    source, _, arguments = coordinate_source(operator, "OutputTensor")
    assert Coordinates.of(operator, "OutputTensor").shape.nbytes + 8 * (MAX_TENSORS + len(arguments)) > 4096
    assert compile_source(source, 80).startswith(b"\x7fELF")


# Calls


def cumulative_sum(x: Array, axis: int = 0, out: Array | None = None) -> CompiledOperator:
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(x if out is None else out), "Axis": axis}
    return compiled(CumulativeSum, members)


@pytest.mark.parametrize("data_type", TYPES)
def test_calls(on_cpu: CudaDeviceOnCpu, data_type: DataType) -> None:
    rng = np.random.default_rng(8)
    x = laid_out(rng, elements(rng, [3, 40, 50], data_type))
    out = laid_out(rng, np.zeros_like(x))
    made = run(on_cpu, cumulative_sum(x, 1, out), {"InputTensor": x})["OutputTensor"]
    np.testing.assert_array_equal(made, np.cumsum(x, 1, x.dtype))
    at = on_cpu.log.index("allocator")  # CuPy's functions are on the slot's stream, which is waited for
    assert on_cpu.log[at : at + 5] == ["allocator", "stream 77", "stream left", "allocator left", "synchronized"]
    assert on_cpu.log[-2:] == ["out", "synchronized"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_calls_are_cancelled_before_and_after(on_cpu: CudaDeviceOnCpu, after: int) -> None:
    x, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    looks = iter([False] * after + [True])
    with pytest.raises(Cancelled):
        on_cpu.prepare(cumulative_sum(x)).dispatch([buffer_of(x)], [buffer_of(out)], lambda: next(looks))
    assert on_cpu.log.count("allocator") == (after == 2)
    assert "out" not in on_cpu.log
    assert not out.any()
    assert on_cpu.load == on_cpu.slots.taken == 0


class Failing(CumulativeSum):
    """As CuPy's functions fail."""

    ERRORS: ClassVar[list[Exception]] = [
        OutOfMemory("of the pool"),
        CudaError("CUBLAS_STATUS_ALLOC_FAILED"),
        CudaError("cudaErrorInvalidValue"),
        NotImplementedError("CuPy lacks it"),
        ImportError("libcublas is not there"),
    ]

    def call(self, xp: Any, inputs: Any) -> Any:
        raise self.ERRORS[self.Axis]


@pytest.mark.parametrize("number", range(len(Failing.ERRORS)))
def test_errors_of_calls_are_the_devices(on_cpu: CudaDeviceOnCpu, number: int) -> None:
    x = np.ones(4, np.float32)
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": number}
    with pytest.raises(DeviceFailed) as raised:
        run(on_cpu, compiled(Failing, members), {"InputTensor": x})
    assert raised.value.cause == ("memory" if number < 2 else "error")
    assert "cuda:0" in raised.value.reason
    assert on_cpu.log[-1] == "synchronized"
    assert on_cpu.load == on_cpu.slots.taken == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_what_a_call_makes_is_checked(on_cpu: CudaDeviceOnCpu, axis: int) -> None:
    x = np.ones((2, 2), np.float32)
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": axis}
    with pytest.raises(TypeError):
        run(on_cpu, compiled(Careless, members), {"InputTensor": x})


def test_without_memory_for_tensors_it_says_so(on_cpu: CudaDeviceOnCpu) -> None:
    x = np.ones(100, np.float32)
    on_cpu.pool.left = 700
    with pytest.raises(DeviceFailed) as raised:
        run(on_cpu, cumulative_sum(x), {"InputTensor": x})
    assert raised.value.cause == "memory"


# Graphs


def graph_of(count: int, *, with_call: bool) -> InitializedGraph:
    """The elements of a vector turned round, then twice again, or their sums; the scratch between has a clear."""
    x = np.zeros(count, np.float32)
    of = operand(x)
    (i,) = coordinates(1)
    turned = of_expression(of[[of.sizes[0] - 1 - i]], [count], DataType.FLOAT32, x)
    last = cumulative_sum(x) if with_call else turned
    size = x.nbytes
    places = {room: Place(room, 0, 0, size) for room in Room}
    steps = (
        Step((0,), turned, (places[Room.INPUT],), (places[Room.SCRATCH],), (places[Room.SCRATCH],)),
        Step((1,), last, (places[Room.SCRATCH],), (places[Room.OUTPUT],)),
    )
    desc = TensorDesc(DataType=DataType.FLOAT32, Sizes=[count])
    schedule = Schedule({"X": desc}, {}, {"Y": desc}, {"X": size}, (), steps, (), (), size)
    return InitializedGraph(schedule, ())


def check_graph(device: CudaDevice, *, with_call: bool) -> None:
    kernel = device.prepare(graph_of(5000, with_call=with_call))
    for turn in range(4):
        x = np.random.default_rng(turn).integers(-9, 9, 5000).astype(np.float32)
        y = np.zeros_like(x)
        ran = kernel.dispatch([x.view(np.uint8).data], [y.view(np.uint8).data], lambda: False)
        assert ran.device == device.name
        np.testing.assert_array_equal(y, np.cumsum(x[::-1]) if with_call else x)


@needs_compiler
@pytest.mark.parametrize("with_call", [False, True])
def test_graphs_run_wholly_on_the_device(on_cpu: CudaDeviceOnCpu, *, with_call: bool) -> None:
    """Those with calls, which take memory and wait, not as a CUDA graph."""
    check_graph(on_cpu, with_call=with_call)
    assert on_cpu.log.count("captured") == (not with_call)
    assert on_cpu.log.count("clear") == 4
    assert on_cpu.log.count("kernel") == (4 if with_call else 8)


# On a GPU


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_a_gpu_computes_what_numpy_does(numpy_device: NumpyDevice) -> None:
    assert differing(first_gpu(), numpy_device) == []


@pytest.mark.gpu
@pytest.mark.parametrize("with_call", [False, True])
def test_graphs_run_wholly_on_a_gpu(*, with_call: bool) -> None:
    check_graph(first_gpu(), with_call=with_call)


class Sort(CumulativeSum):
    def call(self, xp: Any, inputs: Any) -> Any:
        return {"OutputTensor": xp.sort(inputs["InputTensor"], axis=self.Axis)}


@pytest.mark.gpu
@pytest.mark.parametrize("data_type", TYPES)
def test_calls_on_a_gpu(data_type: DataType) -> None:
    gpu = first_gpu()
    rng = np.random.default_rng(9)
    for axis in (0, 1, 2):
        x = laid_out(rng, elements(rng, [3, 40, 500], data_type))
        out = laid_out(rng, np.zeros_like(x))
        members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(out), "Axis": axis}
        for kind in (CumulativeSum, Sort):
            made = run(gpu, compiled(kind, dict(members)), {"InputTensor": x})["OutputTensor"]
            if kind is Sort:
                np.testing.assert_array_equal(made, np.sort(x, axis))
            elif data_type is DataType.FLOAT16:  # whose partial sums are rounded in some order
                np.testing.assert_allclose(made, np.cumsum(x, axis, np.float32), 1e-1, 2)
            else:
                np.testing.assert_array_equal(made, np.cumsum(x, axis, x.dtype))
    assert gpu.load == gpu.slots.taken == 0


@pytest.mark.gpu
def test_calls_of_a_gpu_without_memory() -> None:
    gpu = first_gpu()
    x = np.ones(1 << 20, np.float32)
    gpu.free_memory()
    gpu.pool.set_limit(size=9 << 20)  # for the tensors, not for the result
    try:
        with pytest.raises(DeviceFailed) as raised:
            run(gpu, cumulative_sum(x), {"InputTensor": x})
    finally:
        gpu.pool.set_limit(size=0)
    assert raised.value.cause == "memory"
    np.testing.assert_array_equal(run(gpu, cumulative_sum(x), {"InputTensor": x})["OutputTensor"], np.cumsum(x))


@pytest.mark.gpu
def test_calls_on_a_gpu_from_many_threads() -> None:
    gpu = first_gpu()
    kernels = [(count, gpu.prepare(cumulative_sum(np.ones(count, np.int64)))) for count in (1000, 50_000, 400_000)]

    def work(number: int) -> bool:
        count, kernel = kernels[number % 3]
        x, out = np.full(count, number, np.int64), np.zeros(count, np.int64)
        kernel.dispatch([x.view(np.uint8).data], [out.view(np.uint8).data], lambda: False)
        return np.array_equal(out, np.cumsum(x))

    with ThreadPoolExecutor(12) as threads:
        assert all(threads.map(work, range(200)))
    gc.collect()
    gpu.free_memory()
    assert gpu.pool.used_bytes() == 0
