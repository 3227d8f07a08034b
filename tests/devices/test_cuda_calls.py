"""Calls of CuPy's functions, and graphs with calls or coordinates: with NumPy in the place of CuPy, and on a GPU."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from app.contract.constants import NEWEST, DataType
from app.contract.tensors import TensorDesc
from app.devices.cuda import resident
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.schedules import BRIEF_SECONDS, CudaScheduleKernel
from app.devices.device import Cancelled, DeviceFailed
from app.formula.coordinates import coordinates
from app.graphs.schedule import InitializedGraph, Place, Room, Schedule, Step
from app.memory.arrays import Array, numpy_type, together
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.linear_algebra.products import Gemm
from app.stages import Stages, recorded
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu, CudaError, OutOfMemory
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.devices.test_coordinates import TYPES, Careless, elements, of_expression, operand
from tests.gpu import assert_recorded, first_gpu
from tests.operators import descriptors
from tests.operators.arrays import bytes_of, desc_of, laid_out, run
from tests.operators.coordinate_operators import (
    CumulativeSum,
    compiled,
)

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@pytest.fixture
def on_cpu(tmp_path: Path) -> CudaDeviceOnCpu:
    return CudaDeviceOnCpu(BuiltKernels(tmp_path))


# Calls


def cumulative_sum(x: Array, axis: int = 0, out: Array | None = None) -> CompiledOperator:
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(x if out is None else out), "Axis": axis}
    return compiled(CumulativeSum, members)


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("sizes", [(3, 40, 50), (3, 4, 5)], ids=["large", "small"])
def test_calls(on_cpu: CudaDeviceOnCpu, data_type: DataType, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(8)
    x = laid_out(rng, elements(rng, list(sizes), data_type))
    out = laid_out(rng, np.zeros_like(x))
    made = run(on_cpu, cumulative_sum(x, 1, out), {"InputTensor": x})["OutputTensor"]
    np.testing.assert_array_equal(made, np.cumsum(x, 1, x.dtype))
    at = on_cpu.log.index("allocator")  # CuPy's functions are on the slot's stream, which is waited for
    waited = ["synchronized"] if len(x) * x[0].nbytes > 2048 else []
    assert on_cpu.log[at : at + 4] == ["allocator", "stream", "stream left", "allocator left"]
    assert on_cpu.log[at + 4 :][: len(waited)] == waited
    assert on_cpu.log[-2:] == ["out", "synchronized"]


@needs_compiler
def test_a_known_kernel_is_sought_once(on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """For other sizes and numbers, though the event loop asks whether it is there before it dispatches."""
    operator, sought = OPERATORS["DML_OPERATOR_TILE"], list[Any]()

    def known(key: Any, numbers: Any, quick: Any = on_cpu.structures.known) -> Any:
        sought.append(key)
        return quick(key, numbers)

    monkeypatch.setattr(on_cpu.structures, "known", known)
    for count in (2, 3):
        sought.clear()
        x = np.arange(count, dtype=np.float32)
        members = {"InputTensor": desc_of(x), "RepeatsCount": 1, "Repeats": [count]}
        work = compile_operator(operator.model_validate({"Type": "TILE"} | members), NEWEST, on_cpu.structures)
        kernel, out = on_cpu.prepare(work), bytearray(x.nbytes * count)
        assert kernel.runs_inline is (count == 3)
        kernel.dispatch([x.data.cast("B")], [memoryview(out)], lambda: False)
        assert np.frombuffer(out, np.float32).tolist() == [*x.tolist()] * count
    assert len(set(sought)) == len(sought) == 4  # its program, its outline, that with what sizes decide, the kernel


def test_others_wait_for_the_first_call_of_a_kind(on_cpu: CudaDeviceOnCpu) -> None:
    """Which compiles what all of them need, unless it fails."""
    under_way, may_end = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def call(number: int) -> None:
        with on_cpu.first_alone("a"):
            under_way[number].set()
            assert may_end[number].wait(20)
            if not number:
                raise Cancelled

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(call, 0)
        assert under_way[0].wait(20)
        with on_cpu.first_alone("b"):
            pass
        others = [threads.submit(call, number) for number in (1, 2)]
        assert not any(each.wait(0.05) for each in under_way[1:])
        may_end[0].set()
        assert isinstance(first.exception(), Cancelled)
        while not any(each.wait(0.01) for each in under_way[1:]):
            pass
        assert [each.wait(0.05) for each in under_way[1:]].count(True) == 1
        for each in may_end:
            each.set()
        for other in others:
            other.result()
        with on_cpu.first_alone("a"):
            threads.submit(call, 2).result(20)


@pytest.mark.parametrize("only_queues", [True, False])
def test_calls_that_a_graph_may_record_do_not_wait(
    on_cpu: CudaDeviceOnCpu, only_queues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CumulativeSum, "only_queues", only_queues)
    for data_type in (np.float32, np.int32):
        x = np.ones((2, 3), data_type)
        run(on_cpu, cumulative_sum(x), {"InputTensor": x})
    assert len(on_cpu._called) == (0 if only_queues else 2)


def test_arrays_are_cupys_over_the_devices_memory(on_cpu: CudaDeviceOnCpu) -> None:
    """In the strides of the tensor, 0 among them; CuPy's own classes, which need no GPU for that."""
    on_cpu._cupy = pytest.importorskip("cupy")
    array = on_cpu.array(4096, 80, [5, 4, 3], np.dtype(np.float32), [16, 4, 0])
    assert (array.data.ptr, array.data.device_id) == (4096, 0)
    assert (array.shape, array.strides, array.dtype) == ((5, 4, 3), (16, 4, 0), np.float32)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_calls_are_cancelled_before_and_after(on_cpu: CudaDeviceOnCpu, after: int) -> None:
    x, out = np.ones((40, 40), np.float32), np.zeros((40, 40), np.float32)
    looks = iter([False] * (after + after // 2) + [True])  # at each of the two parts of a tensor, and before the call
    with pytest.raises(Cancelled):
        on_cpu.prepare(cumulative_sum(x)).dispatch([bytes_of(x)], [bytes_of(out)], lambda: next(looks))
    assert on_cpu.log.count("allocator") == (after == 2)
    assert "out" not in on_cpu.log
    assert not out.any()
    assert on_cpu.load == on_cpu.slots.taken == 0


class Given(CumulativeSum):
    """Makes its output where it lies, along axis 0, and beside it along others."""

    makes_in: ClassVar[bool] = True

    def call(self, xp: Any, inputs: Any, into: Any = None) -> Any:
        if self.Axis:
            return {"OutputTensor": inputs["InputTensor"] + 1}
        into["OutputTensor"][...] = inputs["InputTensor"] + 1
        return into


@pytest.mark.parametrize("axis", [0, 1])
def test_what_a_call_makes_in_an_output_is_not_copied(
    on_cpu: CudaDeviceOnCpu, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    copied: list[Any] = []

    def copyto(target: Any, source: Any) -> None:
        copied.append(target.shape)
        np.copyto(target, source)

    monkeypatch.setattr(on_cpu._cupy, "copyto", copyto, raising=False)
    operator = compiled(Given, {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": axis})
    np.testing.assert_array_equal(run(on_cpu, operator, {"InputTensor": x})["OutputTensor"], x + 1)
    assert copied == ([(2, 3)] if axis else [])


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


@pytest.mark.parametrize(("axis", "made"), [(0, r"float64 \(2, 2\)"), (1, r"float32 \(2, 1\)")])
def test_what_a_call_makes_is_checked(on_cpu: CudaDeviceOnCpu, axis: int, made: str) -> None:
    x = np.ones((2, 2), np.float32)
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": axis}
    with pytest.raises(TypeError, match=rf"OutputTensor is float32 \[2, 2\], and was made as {made}"):
        run(on_cpu, compiled(Careless, members), {"InputTensor": x})


def test_what_would_keep_a_gpu_busy_for_long_is_not_begun(
    on_cpu: CudaDeviceOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of 2 x 3 and 3 x 4, which has 24."""
    a, b, out = np.ones((1, 1, 2, 3), np.float32), np.ones((1, 1, 3, 4), np.float32), np.ones((1, 1, 2, 4), np.float32)
    document = {"Type": "GEMM", "ATensor": desc_of(a), "BTensor": desc_of(b), "OutputTensor": desc_of(out)}
    plain = {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0}
    operator = descriptors.compiled(document | plain)
    monkeypatch.setattr(resident, "MOST_PRODUCTS", 24)
    np.testing.assert_array_equal(run(on_cpu, operator, {"ATensor": a, "BTensor": b})["OutputTensor"], 3 * out)
    monkeypatch.setattr(resident, "MOST_PRODUCTS", 23)
    with pytest.raises(DeviceFailed, match="cannot be stopped once it adds up 24 products"):
        run(on_cpu, operator, {"ATensor": a, "BTensor": b})


def test_without_memory_for_tensors_it_says_so(on_cpu: CudaDeviceOnCpu) -> None:
    x = np.ones(1000, np.float32)
    on_cpu.pool.left = 7000
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


@needs_compiler
@pytest.mark.parametrize("with_call", [False, True])
def test_the_kernels_of_a_graph_are_timed(on_cpu: CudaDeviceOnCpu, *, with_call: bool) -> None:
    """By events around each, over memory that was cleared, three times."""
    seconds = on_cpu.step_seconds(graph_of(5000, with_call=with_call), lambda: False)
    assert len(seconds) == 2
    assert all(0 < each < 5 for each in seconds)
    assert on_cpu.log[:4] == ["clear", "event", "clear", "kernel"]
    assert on_cpu.log.count("event") == 3 * 3
    with pytest.raises(Cancelled):
        on_cpu.step_seconds(graph_of(5000, with_call=with_call), lambda: True)


# On a GPU


@needs_compiler
@pytest.mark.parametrize(("count", "stages"), [(4, ["kernel"]), (2000, ["transfer", "kernel", "transfer"])])
def test_a_trace_has_transfers_and_kernels(on_cpu: CudaDeviceOnCpu, count: int, stages: list[str]) -> None:
    """Of what is small all copies are queued with the kernel, and waited for once."""
    x = np.ones(count, np.float32)
    for graph in (False, True):
        kernel = on_cpu.prepare(graph_of(count, with_call=True) if graph else cumulative_sum(x))
        found = Stages()
        recorded(found, kernel.dispatch, [bytes_of(x)], [bytes_of(np.zeros_like(x))], lambda: False)
        assert [each.name for each in found.done] == stages


def check_four_bits(device: CudaDevice, data_type: DataType, sizes: list[int], strides: list[int] | None) -> None:
    """Elements that lie two to a byte are restored, and quantized again to the same bytes."""
    rng = np.random.default_rng(4)
    least = -8 if data_type is DataType.INT4 else 0
    whole = rng.integers(least, least + 16, sizes).astype(numpy_type(data_type))
    scale = np.full([1] * len(sizes), 0.5, np.float32)
    packed = {"DataType": data_type.value, "Sizes": sizes, "Strides": strides}
    bytes_of_whole = together(whole, desc=TensorDesc.model_validate(packed))
    x = whole.astype(np.float32) / 2
    common = {"QuantizationType": "SCALE", "QuantizationTensors": [desc_of(scale)]}
    for kind, given, expected in (("DEQUANTIZE", bytes_of_whole, x), ("QUANTIZE", x, bytes_of_whole)):
        tensors = {"InputTensor": packed, "OutputTensor": desc_of(x)}
        if kind == "QUANTIZE":
            tensors = {"InputTensor": desc_of(x), "OutputTensor": packed}
        operator = descriptors.compiled({"Type": kind, **common, **tensors})
        made = np.zeros(expected.nbytes + 64, np.uint8)
        output = made.data[: operator.outputs["OutputTensor"].data_bytes]
        ran = device.prepare(operator).dispatch([bytes_of(given), bytes_of(scale)], [output], lambda: False)
        assert ran.kind == "cuda"
        assert made[: len(output)].tobytes() == expected.tobytes()
        assert not made[len(output) :].any()


@pytest.mark.parametrize("data_type", [DataType.UINT4, DataType.INT4])
@pytest.mark.parametrize(
    ("sizes", "strides"),
    [([5], None), ([40, 51], None), ([5], [2]), ([40, 51], [1, 41])],
    ids=["small", "large", "small with gaps", "turned"],
)
def test_elements_of_four_bits(
    on_cpu: CudaDeviceOnCpu, data_type: DataType, sizes: list[int], strides: list[int] | None
) -> None:
    check_four_bits(on_cpu, data_type, sizes, strides)


@pytest.mark.gpu
@pytest.mark.parametrize("data_type", [DataType.UINT4, DataType.INT4])
@pytest.mark.parametrize(
    ("sizes", "strides"),
    [([5], None), ([40, 51], None), ([1000, 999], None), ([5], [2]), ([1000, 999], [1, 1001])],
    ids=str,
)
def test_elements_of_four_bits_on_a_gpu(data_type: DataType, sizes: list[int], strides: list[int] | None) -> None:
    check_four_bits(first_gpu(), data_type, sizes, strides)


@pytest.mark.gpu
def test_the_kernels_of_a_graph_are_timed_on_a_gpu() -> None:
    times = [first_gpu().step_seconds(graph_of(count, with_call=False), lambda: False) for count in (100, 1 << 26)]
    assert all(1e-7 < each < 1 for seconds in times for each in seconds)
    assert sum(times[1]) > 3 * sum(times[0])


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
@pytest.mark.parametrize("data_type", [DataType.FLOAT16, DataType.FLOAT32])
@pytest.mark.parametrize("transform", ["NONE", "TRANSPOSE"])
def test_products_are_part_of_a_cuda_graph(data_type: DataType, transform: str) -> None:
    """Its third run is captured, and the following ones are of other inputs."""
    dtype = numpy_type(data_type)
    sizes = {"a": [2, 3, 20, 40], "b": [2, 3, 40, 30], "c": [2, 3, 20, 30]}
    if transform == "TRANSPOSE":
        sizes["b"] = [2, 3, 30, 40]
    desc = {name: {"DataType": data_type.value, "Sizes": each} for name, each in sizes.items()}
    members: dict[str, Any] = {
        "ATensor": desc["a"],
        "BTensor": desc["b"],
        "CTensor": desc["c"],
        "OutputTensor": desc["c"],
    }
    members |= {"TransA": "NONE", "TransB": transform, "Alpha": 0.5, "Beta": 2.0}
    operator = compile_operator(Gemm.model_validate({"Type": "GEMM", **members}), NEWEST)
    gpu = first_gpu()
    x = {name: np.zeros(each, dtype) for name, each in sizes.items()}
    places = [Place(Room.INPUT, number, 0, each.nbytes) for number, each in enumerate(x.values())]
    step = Step((0,), operator, tuple(places), (Place(Room.OUTPUT, 0, 0, x["c"].nbytes),))
    schedule = Schedule(
        dict(operator.inputs), {}, {"Y": operator.outputs["OutputTensor"]},
        {name: each.nbytes for name, each in x.items()}, (), (step,), (), (), 0,
    )  # fmt: skip
    kernel = gpu.prepare(InitializedGraph(schedule, ()))
    for turn in range(4):
        rng = np.random.default_rng(turn)
        for each in x.values():
            each[...] = rng.standard_normal(each.shape)
        made = np.zeros_like(x["c"])
        kernel.dispatch([bytes_of(each) for each in x.values()], [bytes_of(made)], lambda: False)
        a, b, c = (each.astype(np.float64) for each in x.values())
        b = b.swapaxes(-1, -2) if transform == "TRANSPOSE" else b
        np.testing.assert_allclose(made, a @ b / 2 + 2 * c, 1e-3 if dtype.itemsize == 2 else 1e-5, 1e-4)
    assert_recorded(kernel, gpu)
    assert isinstance(kernel, CudaScheduleKernel)
    assert kernel.runs_inline or kernel._took > BRIEF_SECONDS


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


@pytest.mark.gpu
def test_products_of_many_threads() -> None:
    """They have one handle of cuBLAS', which is told each one's stream and memory."""
    gpu = first_gpu()
    side = 300
    desc = {"DataType": "FLOAT32", "Sizes": [1, 1, side, side]}
    members = {"ATensor": desc, "BTensor": desc, "OutputTensor": desc, "Alpha": 1.0, "Beta": 0.0}
    members |= {"TransA": "NONE", "TransB": "NONE"}
    kernel = gpu.prepare(compile_operator(Gemm.model_validate({"Type": "GEMM", **members}), NEWEST))
    b = np.ones((side, side), np.float32)

    def work(number: int) -> bool:
        a, out = np.full((side, side), number, np.float32), np.zeros((side, side), np.float32)
        kernel.dispatch([x.view(np.uint8).data for x in (a, b)], [out.view(np.uint8).data], lambda: False)
        return bool((out == number * side).all())

    with ThreadPoolExecutor(12) as threads:
        assert all(threads.map(work, range(400)))
