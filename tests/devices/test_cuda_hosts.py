"""Kernels over the host's memory, which they read and write where it is: built for the CPU, and on a GPU."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda import kernels
from app.devices.cuda.kernels import BROUGHT_BYTES, FIRST_BYTES, CudaKernel
from app.devices.cuda.small import SMALL_BYTES
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from tests.devices.coordinate_cases import Case
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.devices.test_cuda_splits import differing
from tests.gpu import first_gpu
from tests.operators.arrays import desc_of
from tests.operators.descriptors import HARD_SIGMOID, compiled

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


def far(count: int, dtype: type, every: int) -> Array:
    """Where quick ways of a power do not lead, from one element to the next but `every` number of them."""
    x: Array = np.random.default_rng(count).uniform(0.5, 2, count).astype(dtype)
    x[::every] *= -1
    x[1::7] = [np.inf, 0, np.nan, -np.inf, -0.0][count % 5]
    return x


def cases() -> Iterator[Case]:
    """Tiles with elements that are computed one by one, all of which, some or one, and the last one with a part of a
    vector; of one dimension and two, of one input and of two that are as wide or not."""
    for dtype in (np.float32, np.float16):
        for count in (1, 3, 4, 5, 8, 9, 1000, 1023, 1024, 1025, 2048, 4099):
            for every in (1, 2, 5000):
                x = far(count, dtype, every)
                out = {"OutputTensor": desc_of(x)}
                power = {"Type": "ELEMENT_WISE_CONSTANT_POW", "InputTensor": desc_of(x), "Exponent": 10.7} | out
                yield Case(f"{dtype.__name__} {count} {every}", compiled(power), {"InputTensor": x}, exact=False)
    for sizes in ([3, 8], [5, 64], [40, 100]):
        x = far(sizes[0] * sizes[1], np.float32, 3).reshape(sizes)
        y = np.broadcast_to(np.array(-3.5, np.float32), sizes)
        for other, strides in ((x, None), (y, [0, 0]), (np.broadcast_to(x[:1], sizes), [0, 1])):
            desc = desc_of(x) if strides is None else desc_of(x) | {"Strides": strides}
            powers = {"Type": "ELEMENT_WISE_POW", "InputTensor": desc_of(x), "ExponentTensor": desc}
            operator = compiled(powers | {"OutputTensor": desc_of(x)})
            given = {"InputTensor": x, "ExponentTensor": other}
            yield Case(f"{sizes} {strides}", operator, given, exact=False)


@needs_compiler
def test_elements_one_by_one(tmp_path: Path, numpy_device: NumpyDevice) -> None:
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    assert differing(device, numpy_device, [*cases()]) == []
    of_vectors = [source for source in device.kernels_built.sources if "struct __align__" in source]
    assert len(of_vectors) >= 4
    built = [source[source.index("__global__") :] for source in of_vectors]
    alone = [line for kernel in built for line in kernel.splitlines() if re.search(r"\bin0\[|\bout\[", line)]
    assert alone
    assert all("else" in line or "*in" in line for line in alone), "a bus brings one element as slowly as many"


@pytest.mark.gpu
def test_elements_one_by_one_on_a_gpu(numpy_device: NumpyDevice) -> None:
    assert differing(first_gpu(), numpy_device, [*cases()]) == []


def identity(sizes: list[int], strides: list[int], out: list[int] | None = None) -> CompiledOperator:
    desc: dict[str, Any] = {"DataType": "FLOAT32", "Sizes": sizes}
    output = desc | ({"Strides": out} if out else {})
    document = {"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": desc | {"Strides": strides}, "OutputTensor": output}
    return compiled(document)


@pytest.mark.parametrize(
    ("operator", "suits"),
    [
        (identity([64], [1]), True),
        (identity([64], [2]), True),
        (identity([64], [BROUGHT_BYTES // 4]), False),
        (identity([4, 64], [0, 1]), True),
        (identity([64, 16], [1, 64]), False),  # too narrow for tiles
        (identity([200, 200], [1, 200]), True),  # turned in tiles
        (identity([64], [1], [16]), False),
        (compiled({"Type": "REDUCE", "Function": "SUM", "Axes": [0]} | {
            "InputTensor": {"DataType": "FLOAT32", "Sizes": [8]}, "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1]}
        }), False),
    ],
)  # fmt: skip
def test_what_suits_the_hosts_memory(operator: CompiledOperator, suits: bool, tmp_path: Path) -> None:
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    assert CudaKernel(operator, "OutputTensor", device).suits_host == suits


@needs_compiler
def test_what_does_not_is_copied(tmp_path: Path, numpy_device: NumpyDevice) -> None:
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    for strides, log in ((1, ["kernel"]), (9, ["in", "kernel", "out"])):
        x = np.arange(64 * strides, dtype=np.float32)[::strides]
        device.log.clear()
        operator = identity([64], [strides])
        assert differing(device, numpy_device, [Case("", operator, {"InputTensor": x})]) == []
        assert [each for each in device.log if each in ("in", "kernel", "out")] == log


@needs_compiler
@pytest.mark.parametrize("is_long", [False, True])
def test_few_blocks_share_the_way_to_the_host(is_long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they compute for longer than tensors are on their way."""
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    x = np.ones(SMALL_BYTES // 4, np.float32)
    operator = compiled({"Type": "ELEMENT_WISE_ABS", "InputTensor": desc_of(x), "OutputTensor": desc_of(x)})
    kernel = CudaKernel(operator, "OutputTensor", device)
    launch = kernel.launch()
    launch._is_long = is_long
    monkeypatch.setattr(kernel, "launch", lambda: launch)
    device.log.clear()
    kernel.dispatch([x.view(np.uint8).data], [np.empty(x.nbytes, np.uint8).data], lambda: False)
    assert {each for each in device.log if "kernel" in each} == {"kernel" if is_long else "kernel of few blocks"}


@needs_compiler
def test_tensors_of_one_kernel_lie_here_and_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned or not, aligned or not, apart or in place: as others did before, or as none did."""
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    rng, count = np.random.default_rng(5), 5000
    memory = [np.zeros(4 * count + 64, np.uint8) for _ in range(4)]
    known = [range(each.ctypes.data, each.ctypes.data + each.nbytes) for each in memory[:2]]
    monkeypatch.setattr(device.pinned, "holds", lambda address, _: any(address in each for each in known))
    desc = {"DataType": "FLOAT32", "Sizes": [count]}
    kernel = CudaKernel(
        compiled({"Type": "ELEMENT_WISE_ABS", "InputTensor": desc, "OutputTensor": desc}), "OutputTensor", device
    )
    bound = set()
    for _ in range(60):
        first, second = rng.integers(0, 4, 2)
        offset = rng.choice([0, 4])
        source, target = (memory[n][-memory[n].ctypes.data % 16 + offset :][: 4 * count] for n in (first, second))
        x = rng.standard_normal(count).astype(np.float32)
        source[:] = x.view(np.uint8)
        kernel.dispatch([source.data], [target.data], lambda: False)
        np.testing.assert_array_equal(target.view(np.float32), np.abs(x))
        bound |= {*kernel._chunks}
    assert len(bound) == 7, "each of three for either one, but for those that differ in where the tensor begins"


@needs_compiler
def test_it_runs_inline_while_it_is_quick_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    x = np.ones(SMALL_BYTES // 4, np.float32)
    operator = compiled({"Type": "ELEMENT_WISE_ABS", "InputTensor": desc_of(x), "OutputTensor": desc_of(x)})
    kernel = device.prepare(operator)
    assert isinstance(kernel, CudaKernel)
    waited_for: list[int] = []
    launch = device.launch

    def noting(*arguments: Any) -> None:
        waited_for.append(device.long_dispatches)
        launch(*arguments)

    monkeypatch.setattr(device, "launch", noting)

    def dispatch(brief: float) -> None:
        monkeypatch.setattr(kernels, "BRIEF_SECONDS", brief)
        kernel.dispatch([x.view(np.uint8).data], [np.empty(x.nbytes, np.uint8).data], lambda: False)

    assert not kernel.runs_inline, "it may have to be compiled"
    dispatch(60.0)
    assert kernel.runs_inline
    dispatch(60.0)
    assert [*dict.fromkeys(waited_for)] == [1, 0], "by others, the first one only"
    device.long_dispatches = 1
    assert not kernel.runs_inline
    device.long_dispatches = 0
    dispatch(0.0)
    assert not kernel.runs_inline


@needs_compiler
def test_a_first_dispatch_runs_inline_if_it_is_small_and_its_kernel_there(tmp_path: Path) -> None:
    """Else every one of sizes that differ would be handed to another thread."""
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path))

    def kernel(count: int) -> Any:
        stated = {"Type": HARD_SIGMOID, "InputTensor": {"DataType": "FLOAT32", "Sizes": [count]}}
        judged = validate(OPERATORS[HARD_SIGMOID], stated)
        return device.prepare(compile_operator(judged, NEWEST, device.structures))

    first = kernel(5000)
    assert not first.runs_inline
    x = np.ones(5000, np.float32).view(np.uint8)
    first.dispatch([x.data], [x.copy().data], lambda: False)
    assert [kernel(FIRST_BYTES // 8 + more).runs_inline for more in (-4, 0, 4)] == [True, True, False]
