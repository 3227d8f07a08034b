"""CUDA kernels of formulas that go by coordinates against NumPy: built for the CPU, and on a GPU."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.tensors import MAX_TENSORS
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda import small as cuda_small
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.places import FEW, Coordinates, division
from app.devices.cuda.totals import LONG
from app.devices.device import Cancelled, DeviceFailed
from app.formula import coordinates as c
from app.formula.coordinates import coordinates
from app.formula.values import cast, widen
from tests.devices.coordinate_cases import case, cases, same
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels, coordinate_source
from tests.devices.test_coordinates import N, of_expression, operand
from tests.gpu import assert_compiles, first_gpu
from tests.operators.arrays import bytes_of, desc_of, run
from tests.operators.coordinate_operators import (
    Join,
    Reduce,
)
from tests.operators.descriptors import compiled

EXHAUSTIVE = os.environ.get("DMLSERVE_EXHAUSTIVE") == "1"


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
@pytest.mark.parametrize("small", [False, True])
def test_inputs_go_to_the_device_once_for_all_outputs(
    on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch, *, small: bool
) -> None:
    """All tensors together, and with one wait, if they are small."""
    if not small:
        monkeypatch.setattr(cuda_small, "SMALL_BYTES", 0)
    (pooling,) = [each for each in cases() if each.name == "pooling"]
    made = run(on_cpu, pooling.operator, pooling.inputs)
    assert list(made) == ["OutputTensor", "OutputCountTensor"]
    moves = ["in", "synchronized"], ["out", "synchronized"]
    whole = [*moves[0], "kernel", "kernel", "synchronized", *moves[1], *moves[1]]
    assert on_cpu.log == (["in", "kernel", "kernel", "out", "synchronized"] if small else whole)
    assert on_cpu.pool.taken == (0 if small else 1)


@needs_compiler
def test_small_kernels_are_waited_for_at_once_when_they_are_loaded_and_the_gpu_is_idle(
    on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pooling,) = [each for each in cases() if each.name == "pooling"]
    assert not on_cpu.prepare(pooling.operator).runs_inline
    kernel = on_cpu.prepare(pooling.operator)
    counted: list[int] = []

    def cancelled() -> bool:
        counted.append(on_cpu.long_dispatches)
        return False

    inputs = [bytes_of(pooling.inputs[name]) for name in pooling.operator.inputs]
    outputs = [memoryview(bytearray(desc.data_bytes)) for desc in pooling.operator.outputs.values()]
    for _ in range(2):
        kernel.dispatch(inputs, outputs, cancelled)
    assert counted == [1, 0], "what is still to be loaded takes long"
    assert kernel.runs_inline
    with monkeypatch.context() as patch:
        patch.setattr(on_cpu, "load", 1)  # of others that are small
        assert kernel.runs_inline
        patch.setattr(on_cpu, "long_dispatches", 1)
        assert not kernel.runs_inline
    assert on_cpu.prepare(pooling.operator).runs_inline
    monkeypatch.setattr(cuda_small, "BRIEF_VALUES", 10)  # and computes little
    assert not on_cpu.prepare(pooling.operator).runs_inline


def test_a_small_dispatch_is_cancelled_before_it_begins(on_cpu: CudaDeviceOnCpu) -> None:
    x = np.zeros(30, np.int32)
    of = operand(x)
    (i,) = coordinates(1)
    with pytest.raises(Cancelled):
        on_cpu.prepare(of_expression(of[[i]], [30], DataType.INT32, x)).dispatch(
            [bytes_of(x)], [bytes_of(x)], lambda: True
        )
    assert not on_cpu.log
    assert on_cpu.load == on_cpu.slots.taken == 0


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


@needs_compiler
def test_products_that_are_far_beyond_floats_stay_there(on_cpu: CudaDeviceOnCpu) -> None:
    """However many terms there are: their exponents add up to more than 32 bits hold."""
    of = operand(np.zeros(1, np.float32))
    inner = c.product_over([N], lambda place: widen(of[[place]]))
    expression = cast(c.product_over([N], lambda place: inner), "float32")
    for term, product in ((2.0**120, np.inf), (2.0**-120, 0)):
        x = np.full(1, term, np.float32)
        for count in (1, 5000):
            operator = of_expression(expression, [1], DataType.FLOAT32, x, n=count)
            (made,) = run(on_cpu, operator, {"X": x}).values()
            assert made == [term if count == 1 else product]


@pytest.mark.parametrize(
    ("counts", "elements_made", "too_much"),
    [
        ([N], 3, False),
        ([N, 1 << 9], 3, True),  # of a block's threads
        ([N, (1 << 7) - 1], 1, False),
        ([N, 1 << 7], 1, True),  # which a step beyond the last term would take back to the first
        ([N - coordinates(1)[0], 1 << 4], 3, False),
        ([N - coordinates(1)[0], 1 << 4, 2], 3, True),  # of one
        ([N], 1 << 16, False),
        ([N], (1 << 16) + 1, True),  # of all
    ],
)
def test_what_would_take_too_long_is_not_started(
    on_cpu: CudaDeviceOnCpu, counts: list[Any], elements_made: int, *, too_much: bool
) -> None:
    (i,) = coordinates(1)
    total = c.sum_over(counts, lambda *indices: indices[0] + i)
    operator = of_expression(total, [elements_made], DataType.INT64, n=1 << 24)
    (kernel,) = on_cpu.kernels(operator)
    if not too_much:
        kernel.launch()
        return
    with pytest.raises(DeviceFailed, match="cannot be stopped once it computes"):
        on_cpu.prepare(operator).dispatch([], [memoryview(bytearray(8 * elements_made))], lambda: False)
    assert "kernel" not in on_cpu.log
    assert on_cpu.load == on_cpu.slots.taken == 0


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
    """For Ampere or Hopper, as nothing is written for one of them; of each kind some, unless all is asked for."""
    chosen = cases() if EXHAUSTIVE else {each.name.partition(" ")[0]: each for each in cases()}.values()
    sources = {coordinate_source(each.operator, name)[0] for each in chosen for name in each.operator.outputs}
    assert len(sources) > 20
    for number, source in enumerate(sorted(sources)):
        assert_compiles(source, (80, 90)[number % 2])


def test_as_many_tensors_as_there_may_be_compile() -> None:
    """With more arguments than the 4 KiB that CUDA had room for before 12.1."""
    tensors = [np.zeros([1, 1], np.int8)] * MAX_TENSORS
    out = np.zeros([MAX_TENSORS, 1], np.int8)
    operator = case("", Join, {"OutputTensor": desc_of(out), "Axis": 0}, InputTensors=tensors).operator
    source, _, arguments = coordinate_source(operator, "OutputTensor")
    assert Coordinates.of(operator, "OutputTensor").shape.nbytes + 8 * (MAX_TENSORS + len(arguments)) > 4096
    assert_compiles(source, 80)


def test_terms_of_small_windows_are_read_side_by_side() -> None:
    """Of as many terms as a window has, each is read before it is known whether it is inside."""
    x = {"DataType": "FLOAT32", "Sizes": [1, 1, 64, 64]}
    ends = {"StartPadding": [1, 0], "EndPadding": [0, 1], "Strides": [2, 2]}
    loops = {}
    for size in (3, 5):
        document = {"Type": "MAX_POOLING", "InputTensor": x, "WindowSize": [size, 2], **ends}
        source, _, _ = coordinate_source(compiled(document), "OutputTensor")
        loops[size] = re.findall(r"#pragma unroll\s+for \(int \w+ = 0; \w+ < (\w+);", source)
    assert loops == {3: ["3", "2"], 5: ["5", "2"]}
    document = {"Type": "MAX_POOLING", "InputTensor": x, "WindowSize": [9, 2], **ends}
    source, _, _ = coordinate_source(compiled(document), "OutputTensor")
    assert "for (int" in source
    assert not re.search(r"#pragma unroll\s+for \(int", source)


# On a GPU


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_a_gpu_computes_what_numpy_does(numpy_device: NumpyDevice) -> None:
    assert differing(first_gpu(), numpy_device) == []
