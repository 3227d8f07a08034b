"""The CUDA device on a real GPU against NumPy: layouts, chunks, alignment, cancellation, failures, many at once."""

import gc
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.tensors import TensorDesc
from app.contract.validation import validate
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.device import Cancelled, DeviceFailed
from app.devices.placement import FallbackDevice
from app.engine.capabilities import example
from app.memory.addresses import address_of
from app.memory.arrays import numpy_type
from app.memory.buffers import BufferPool
from app.operators.catalog import OPERATORS
from tests.devices.test_cuda_lowering import compile_at, data_for, samples
from tests.devices.test_numpy_device import DATA_TYPES, GUARD, layouts, never, same, slope_formula
from tests.devices.test_numpy_device import Guarded as GuardedTensor
from tests.gpu import first_gpu
from tests.operators.descriptors import (
    CELU,
    CONSTANT_POW,
    HARD_SIGMOID,
    PARAMETERIZED_RELU,
    compiled,
    descriptor,
    output_name_of,
    output_of,
)

pytestmark = pytest.mark.gpu


def reducing() -> list[str]:
    """Operators that reduce one tensor to another."""
    made = {name: validate(kind, example(kind)["operator"]) for name, kind in OPERATORS.items()}
    return [name for name, each in made.items() if each.axes() and len(each.tensor_names()) == 2]


@pytest.fixture
def gpu() -> CudaDevice:
    return first_gpu()


@pytest.fixture
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2)


@settings(max_examples=400)
@given(st.data())
def test_any_layout(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=8).filter(lambda each: np.prod(each) < 20000))
    kind = data.draw(st.sampled_from(DATA_TYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tensors = {}
    for name in ("InputTensor", "SlopeTensor", "OutputTensor"):
        strides = data.draw(layouts(sizes, output=name == "OutputTensor"))
        desc = TensorDesc.model_validate({"DataType": kind, "Sizes": sizes, "Strides": strides})
        tensors[name] = GuardedTensor(desc, rng, desc.total_bytes, data.draw(st.sampled_from([GUARD, 61])))
    operator = compiled(
        {"Type": PARAMETERIZED_RELU} | {name: each.desc.model_dump(mode="json") for name, each in tensors.items()}
    )
    expected = slope_formula(tensors["InputTensor"].elements, tensors["SlopeTensor"].elements)
    inputs = [tensors[name].buffer for name in ("InputTensor", "SlopeTensor")]
    ran = first_gpu().prepare(operator).dispatch(inputs, [tensors["OutputTensor"].buffer], never)
    assert ran.kind == "cuda"
    assert same(tensors["OutputTensor"].elements, expected)
    assert tensors["OutputTensor"].touched() <= tensors["OutputTensor"].owned()


@pytest.mark.parametrize("kind", DATA_TYPES)
def test_every_length_around_vectors_tiles_and_chunks(gpu: CudaDevice, kind: str) -> None:
    rng = np.random.default_rng(1)
    dtype = np.dtype(kind.lower())
    lengths = [*range(1, 36), *range(250, 260), *range(4090, 4100), *(n << 18 for n in (1, 2, 5)), (1 << 20) + 7]
    for length in lengths:
        x, slope = (rng.integers(-100, 100, length).astype(dtype) for _ in range(2))
        output = np.full(length + 16, 77, dtype)
        operator = compiled(descriptor(PARAMETERIZED_RELU, {"DataType": kind, "Sizes": [length]}))
        place = output.view(np.uint8).data[: length * dtype.itemsize]
        gpu.prepare(operator).dispatch([x.view(np.uint8).data, slope.view(np.uint8).data], [place], never)
        assert same(output[:length], slope_formula(x, slope)), length
        assert (output[length:] == 77).all()


def test_a_slope_for_each_channel_is_read_once_for_a_vector(gpu: CudaDevice) -> None:
    sizes, strides = [3, 16, 8, 8], [0, 1, 0, 0]
    operator = compiled(
        {
            "Type": PARAMETERIZED_RELU,
            "InputTensor": {"DataType": "FLOAT32", "Sizes": sizes},
            "SlopeTensor": {"DataType": "FLOAT32", "Sizes": sizes, "Strides": strides},
        }
    )
    rng = np.random.default_rng(2)
    x, slope = rng.standard_normal(sizes, np.float32), rng.standard_normal(16, np.float32)
    output = np.empty_like(x)
    gpu.prepare(operator).dispatch(
        [memoryview(x.tobytes()), memoryview(slope.tobytes())], [output.data.cast("B")], never
    )
    assert np.array_equal(output, np.where(x >= 0, x, x * slope.reshape(1, 16, 1, 1)))


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_resident_tensors_need_no_alignment(gpu: CudaDevice, offset: int) -> None:
    import cupy

    gpu.use()
    x = np.random.default_rng(3).standard_normal(1003, np.float32)
    memory, out = cupy.empty(8192, cupy.uint8), cupy.zeros(8192, cupy.uint8)
    place = memory[offset : offset + x.nbytes]
    place.set(x.view(np.uint8))
    operator = compiled(descriptor(HARD_SIGMOID, {"DataType": "FLOAT32", "Sizes": [1003]}))
    stream = cupy.cuda.Stream()
    gpu.kernels(operator)[0].bind([place.data.ptr, out.data.ptr + offset])(stream)
    stream.synchronize()
    result = out.get()[offset : offset + x.nbytes].view(np.float32)
    assert np.allclose(result, np.clip(0.2 * x + 0.5, 0, 1), atol=1e-6)


def test_pinned_buffers_are_used_as_they_are(gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "pinned", PinnedMemory(64 << 20))
    count = 3_000_001
    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [count]}))
    pool = BufferPool(0, gpu.pinned)
    source, target = pool.take(4 * count), pool.take(4 * count)
    assert all(gpu.pinned.holds(address_of(each), 4 * count) for each in (source, target))
    x = np.frombuffer(source, np.float32)
    x[:] = np.random.default_rng(4).standard_normal(count, np.float32)
    gpu.prepare(operator).dispatch([source], [target], never)
    result = np.frombuffer(target, np.float32)
    assert np.allclose(result, np.where(x > 0, x, np.expm1(np.minimum(x, 0))), atol=1e-6)
    more = pool.take(64 << 20)
    assert not gpu.pinned.holds(address_of(more), 1)
    del x, result, source, target
    pool.settle()
    assert gpu.pinned.used == 0


def test_a_cancelled_dispatch_stops(gpu: CudaDevice) -> None:
    x = np.ones(1 << 22, np.float32)
    operator = compiled(descriptor(HARD_SIGMOID, {"DataType": "FLOAT32", "Sizes": [x.size]}))
    with pytest.raises(Cancelled):
        gpu.prepare(operator).dispatch([x.view(np.uint8).data], [np.empty_like(x).view(np.uint8).data], lambda: True)
    assert gpu.load == 0
    assert gpu.slots.taken == 0


def transposed(count: int) -> dict[str, Any]:
    """A layout that takes whole tensors on the device."""
    desc = {"DataType": "FLOAT32", "Sizes": [count, count]}
    return {"Type": HARD_SIGMOID, "InputTensor": desc, "OutputTensor": desc | {"Strides": [1, count]}}


def test_without_memory_numpy_answers_and_says_why(gpu: CudaDevice, numpy_device: NumpyDevice) -> None:
    x = np.random.default_rng(5).standard_normal((512, 512), np.float32)
    output = np.empty_like(x)
    kernel = FallbackDevice([gpu], numpy_device).prepare(compiled(transposed(512)))
    gpu.free_memory()
    gpu.pool.set_limit(size=1 << 19)
    try:
        ran = kernel.dispatch([x.view(np.uint8).data], [output.view(np.uint8).data], never)
    finally:
        gpu.pool.set_limit(size=0)
    assert (ran.device, ran.failed, ran.cause) == ("numpy", gpu.name, "memory")
    assert ran.fallback_reason == f"{gpu.name} has no memory left for this dispatch"
    assert np.allclose(output.T, np.clip(0.2 * x + 0.5, 0, 1), atol=1e-6)
    ran = kernel.dispatch([x.view(np.uint8).data], [output.view(np.uint8).data], never)
    assert (ran.device, ran.fallback_reason) == (gpu.name, None)


def test_pooled_memory_is_freed_before_giving_up(gpu: CudaDevice, numpy_device: NumpyDevice) -> None:
    x = np.zeros((512, 512), np.float32)
    kernel = FallbackDevice([gpu], numpy_device).prepare(compiled(transposed(512)))
    gpu.free_memory()
    gpu.pool.set_limit(size=(1 << 21) + (1 << 18))
    try:
        hoarded = gpu.pool.malloc(1 << 19)  # back in the pool, but as a block of no use
        del hoarded
        ran = kernel.dispatch([x.view(np.uint8).data], [np.empty_like(x).view(np.uint8).data], never)
    finally:
        gpu.pool.set_limit(size=0)
    assert ran.device == gpu.name


LOST = """
    import asyncio, sys
    import cupy, numpy as np
    from app.devices.cuda.compiler import compile_source
    from app.engine.service import Service
    from app.settings import Settings
    from app.contract.validation import validate
    from app.engine.dispatch import DispatchRequest
    from app.steps import at_once

    service = Service(Settings(kernel_cache="none", crossover_elements=1, compile_ahead=False, gpus=sys.argv[2]))
    service.open()
    x = np.linspace(-3, 3, 1 << 20, dtype=np.float32)
    request = validate(DispatchRequest, {
        "operator": {"Type": "ACTIVATION_HARD_SIGMOID", "InputTensor": {"DataType": "FLOAT32", "Sizes": [x.size]}},
        "inputs": {"InputTensor": b""}, "device": sys.argv[1]})

    def answer():
        with service.memory.open() as memory:
            data = {"InputTensor": x.view(np.uint8).data}
            outcome = asyncio.run(service.execute(at_once(service.prepare(request)), data, memory))
            output = np.frombuffer(outcome.outputs["OutputTensor"], np.float32)
            assert np.allclose(output, np.clip(0.2 * x + 0.5, 0, 1), atol=1e-6)
            return outcome.ran

    before = answer()
    assert before.kind == "cuda" and before.fallback_reason is None, before
    gpu = service.placement.gpus[0]
    gpu.use()
    module = cupy.cuda.function.Module()
    module.load(compile_source('extern "C" __global__ void fault(int* p) { *p = 1; }', gpu.facts.architecture))
    stream = cupy.cuda.Stream(non_blocking=True)
    module.get_function("fault")((1,), (1,), (np.uint64(16),), stream=stream)
    for _ in range(3):
        ran = answer()
        assert ran.device == "numpy" and ran.cause == "lost", ran
        assert "is out of service" in ran.fallback_reason, ran
    assert service.placement.troubles() and service.capabilities()["devices"][1].out_of_service
    assert service.state == "ready"
    print("survived:", ran.fallback_reason, flush=True)
    import os; os._exit(0)  # CUDA's own clean-up does not survive it
"""


@pytest.mark.parametrize("device", ["auto", "the GPU"])
def test_a_lost_context_takes_the_gpu_out_of_service(device: str) -> None:
    gpu = first_gpu()
    command = [sys.executable, "-c", textwrap.dedent(LOST), "auto" if device == "auto" else gpu.name, str(gpu.ordinal)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "survived" in done.stdout


def test_every_operator_computes_what_numpy_does(gpu: CudaDevice, numpy_device: NumpyDevice) -> None:
    """To within what approximations may differ; the tests of numerics tell more."""
    rng = np.random.default_rng(8)
    wrong = []
    for sample in samples():
        operator = compile_at(sample, 1 << 12)
        buffers = [rng.permutation(array).view(np.uint8).data for array in data_for(operator, rng, 1 << 12)]
        dtype = numpy_type(operator.stored_types[output_name_of(operator)])
        actual, expected = np.empty(1 << 12, dtype), np.empty(1 << 12, dtype)
        numpy_device.prepare(operator).dispatch(buffers, [expected.view(np.uint8).data], never)
        gpu.prepare(operator).dispatch(buffers, [actual.view(np.uint8).data], never)
        tolerance = 2e-3 if dtype.itemsize == 2 else 3e-6
        with np.errstate(all="ignore"):
            near = np.isclose(actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=1e-6)
        if dtype.kind != "f":
            near = actual == expected
        near |= (actual != actual) & (expected != expected)
        if not near.all():
            worst = int((~near).argmax())
            wrong.append((operator.operator.name(), dtype.name, int((~near).sum()), actual[worst], expected[worst]))
    assert not wrong


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
@pytest.mark.parametrize("operator", reducing(), ids=lambda each: each.removeprefix("DML_OPERATOR_ACTIVATION_"))
@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ([1, 1, 1, 1], None),
        ([2, 3, 4, 5], None),
        ([7, 1, 3, 129], None),
        ([3, 2, 5, 128], [1, 3, 6, 30]),
        ([4, 1, 1, 100_003], None),
        ([3000, 1, 1, 10], None),
    ],
)
def test_operators_that_reduce(
    gpu: CudaDevice,
    numpy_device: NumpyDevice,
    operator: str,
    data_type: str,
    sizes: list[int],
    strides: list[int] | None,
) -> None:
    axes: dict[str, Any] = {"AxisCount": 2, "Axes": [1, 3]} if operator.endswith("1") else {}
    if not axes:  # these take matrices
        sizes, strides = [1, 1, int(np.prod(sizes[:-1])), sizes[-1]], None
    desc: dict[str, Any] = {"DataType": data_type, "Sizes": sizes, "Strides": strides}
    compiled_operator = compiled(descriptor(operator, desc, OutputTensor=desc, **axes))
    rng = np.random.default_rng(9)
    dtype = np.dtype(data_type.lower())
    for special in ([], [np.nan], [np.inf], [-np.inf, -np.inf, 3, 3, 3]):
        x = (rng.standard_normal(output_of(compiled_operator).reach) * 4).astype(dtype)
        x[: len(special)] = special[: x.size]
        actual, expected = np.zeros_like(x), np.zeros_like(x)
        for device, output in ((gpu, actual), (numpy_device, expected)):
            device.prepare(compiled_operator).dispatch([x.view(np.uint8).data], [output.view(np.uint8).data], never)
        tolerance = 2e-3 if dtype.itemsize == 2 else 3e-6
        with np.errstate(all="ignore"):
            near = np.isclose(actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=1e-7)
        near |= np.isnan(actual) & np.isnan(expected)
        assert near.all(), (special, actual[~near][:3], expected[~near][:3])


# Many at once


def mixed_dispatches(gpu: CudaDevice, numpy_device: NumpyDevice, count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Kernels on both devices, with inputs, of all operators, types, sizes from 1 to 16 Mi and layouts."""
    rng = np.random.default_rng(seed)
    kinds = [HARD_SIGMOID, CELU, PARAMETERIZED_RELU, CONSTANT_POW]
    prepared: list[tuple[Any, ...]] = []
    for _ in range(min(count, 160)):
        kind = kinds[rng.integers(4)]
        types = DATA_TYPES if kind == PARAMETERIZED_RELU else DATA_TYPES[:2]
        data_type = types[rng.integers(len(types))]
        size = int(2 ** rng.uniform(0, 24 if rng.random() < 0.05 else 18))
        sizes = [size] if rng.random() < 0.5 else [max(size // 64, 1), int(rng.integers(1, 65))]
        desc: dict[str, Any] = {"DataType": data_type, "Sizes": sizes}
        if len(sizes) == 2 and rng.random() < 0.7:
            desc["Strides"] = [1, sizes[0] + 1] if rng.random() < 0.5 else [sizes[1] + 3, 1]
        attributes = {"Alpha": float(rng.uniform(0.5, 2))} if kind == CELU else {}
        attributes |= {"Exponent": float(rng.choice([0.5, 2, 3, 2.5, -1, 7.3]))} if kind == CONSTANT_POW else {}
        operator = compiled(descriptor(kind, desc, **attributes))
        dtype = np.dtype(data_type.lower())
        arrays = []
        for tensor in operator.inputs.values():
            values = rng.uniform(0.1, 8, tensor.reach) if kind == CONSTANT_POW else rng.uniform(-8, 8, tensor.reach)
            arrays.append(values.astype(dtype))
        buffers = [array.view(np.uint8).data for array in arrays]
        expected = np.zeros(output_of(operator).reach, dtype)
        numpy_device.prepare(operator).dispatch(buffers, [expected.view(np.uint8).data], never)
        prepared.append((FallbackDevice([gpu], numpy_device).prepare(operator), buffers, expected, operator))
    for _ in range(count):
        yield prepared[rng.integers(len(prepared))]


@pytest.mark.timeout(400)
def test_ten_thousand_mixed_dispatches(gpu: CudaDevice, numpy_device: NumpyDevice) -> None:
    import cupy

    gpu.use()
    jobs = list(mixed_dispatches(gpu, numpy_device, 10_000, seed=6))

    def run(job: tuple[Any, ...], number: int) -> str:
        kernel, buffers, expected, operator = job
        output = np.zeros_like(expected)
        patience = number % 7 if number % 5 == 0 else 1 << 30
        looks = iter(range(1 << 31))
        try:
            ran = kernel.dispatch(buffers, [output.view(np.uint8).data], lambda: next(looks) >= patience)
        except Cancelled:
            return "cancelled"
        with np.errstate(all="ignore"):
            apart = np.abs(output.astype(np.float64) - expected)
            close = apart <= np.abs(expected.astype(np.float64)) * (2e-3 if output.itemsize == 2 else 1e-6) + 1e-6
        close |= (output == expected) | (np.isnan(expected) & np.isnan(output))
        assert close.all(), (operator.operator, number)
        assert ran.device == gpu.name, ran
        return "done"

    for number in range(200):  # kernels are loaded, slots made, the pool filled
        run(jobs[number], 1)
    gpu.free_memory()
    gc.collect()
    free, pinned = cupy.cuda.runtime.memGetInfo()[0], gpu.slots.pinned_bytes
    with ThreadPoolExecutor(32) as clients:
        outcomes = list(clients.map(run, jobs, range(len(jobs))))
    assert outcomes.count("done") > 7000
    assert outcomes.count("cancelled") > 100
    gpu.free_memory()
    gc.collect()
    gpu.use()
    kernels_and_slots = 512 << 20
    assert gpu.load == 0
    assert gpu.slots.taken == 0
    assert gpu.pool.used_bytes() == 0
    assert gpu.slots.pinned_bytes <= gpu.slots.count * gpu.slots.size
    time.sleep(0.1)
    assert free - cupy.cuda.runtime.memGetInfo()[0] < kernels_and_slots
    assert gpu.slots.pinned_bytes >= pinned


@pytest.mark.parametrize(("elements", "fails_at"), [(1 << 21, 2), (1 << 12, 0), (1 << 16, 0)])
def test_a_failed_dispatch_in_place_leaves_the_input_to_numpy(
    gpu: CudaDevice, numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch, elements: int, fails_at: int
) -> None:
    x = np.random.default_rng(7).standard_normal(elements, np.float32)
    expected = np.where(x >= 0, x, np.expm1(np.minimum(x, 0)))
    kernel = FallbackDevice([gpu], numpy_device).prepare(
        compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]}))
    )
    launches = iter(range(1 << 30))
    launch = gpu.launch

    def failing(*arguments: Any) -> None:
        launch(*arguments)
        if next(launches) == fails_at:
            raise DeviceFailed("error", "as the test wants it")

    monkeypatch.setattr(gpu, "launch", failing)
    buffer = x.view(np.uint8).data
    ran = kernel.dispatch([buffer], [buffer], never)
    assert (ran.device, ran.cause) == ("numpy", "error")
    assert np.allclose(x, expected, atol=1e-6)
