"""The NumPy device against plain NumPy: any layout, in place, in blocks, on several threads, and cancelled."""

import gc
import math
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partialmethod
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.coordinates import CallKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import jobs
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.numpy.lowering import Calls
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import BLOCK_ELEMENTS, Threads
from app.devices.device import Cancelled
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from app.operators.operator import Role
from tests.operators.descriptors import ALIKE, CELU, PARAMETERIZED_RELU, compiled, descriptor, output_of

SECONDS = 30
GUARD = 64
"""Bytes before and after a buffer that nobody may touch; odd counts make the buffer unaligned."""


@pytest.fixture(scope="module", params=["numpy", "llvm"], autouse=True)
def compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test once with NumPy's calls, and once with loops, compiled also for a single element."""
    chosen = Compiler() if request.param == "llvm" else None
    made = partialmethod(NumpyDevice.__init__, compiler=chosen, least=1)
    with mock.patch.object(NumpyDevice, "__init__", made):
        yield


@pytest.fixture(scope="module")
def helpers() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def never() -> bool:
    return False


@contextmanager
def blocks_of(elements: int) -> Iterator[None]:
    """Tensors are cut into blocks of so many."""
    with (
        mock.patch.object(Calls, "block", return_value=elements),
        mock.patch.object(jobs, "largest_block", return_value=elements),
        mock.patch.object(jobs, "WORTH_A_THREAD", 1),
        mock.patch.object(jobs, "UNTIL_LOOKED", 1),
    ):
        yield


def run(
    helpers: Executor,
    operator: CompiledOperator,
    inputs: dict[str, Buffer],
    output: Buffer,
    *,
    block: int = BLOCK_ELEMENTS,
    threads: int = 1,
) -> None:
    with blocks_of(block):
        NumpyDevice(helpers, threads).prepare(operator).dispatch(list(inputs.values()), [output], never)


class Guarded:
    """A tensor's buffer of random bytes within random bytes."""

    def __init__(self, desc: TensorDesc, rng: np.random.Generator, length: int, offset: int = GUARD) -> None:
        self.memory = bytearray(rng.bytes(offset + length + GUARD))
        self.before = bytes(self.memory)
        self.desc = desc
        self.buffer = memoryview(self.memory)[offset : offset + length]
        self._span = slice(offset, offset + length)

    @property
    def elements(self) -> Array:
        return view(self.buffer, self.desc)

    def touched(self) -> set[int]:
        """Where in the buffer, in bytes, something else stands now. Fails if it is outside of the buffer."""
        now, before = (np.frombuffer(bytes(each), np.uint8) for each in (self.memory, self.before))
        places = np.flatnonzero(now != before) - self._span.start
        assert np.all((places >= 0) & (places < self._span.stop - self._span.start)), "written outside of the buffer"
        return set(places.tolist())

    def owned(self) -> set[int]:
        """The bytes that elements lie in."""
        dtype = numpy_type(self.desc.DataType)
        marks = np.zeros(self.buffer.nbytes, bool)
        strides = [stride * dtype.itemsize for stride in self.desc.strides] + [1]
        np.lib.stride_tricks.as_strided(marks, (*self.desc.Sizes, dtype.itemsize), strides)[...] = True
        return set(np.flatnonzero(marks).tolist())


def view(buffer: Buffer, desc: TensorDesc) -> Array:
    """The elements of a tensor, one by one, by the rule of offsets."""
    flat = np.frombuffer(buffer, np.uint8)
    dtype = numpy_type(desc.DataType)
    places = np.zeros(desc.Sizes, int)
    for axis, stride in enumerate(desc.strides):
        shape = [1] * desc.rank
        shape[axis] = desc.Sizes[axis]
        places = places + np.arange(desc.Sizes[axis]).reshape(shape) * stride
    chosen: Array = flat[places[..., np.newaxis] * dtype.itemsize + np.arange(dtype.itemsize)]
    return chosen.view(dtype)[..., 0]


def slope_formula(x: Array, slope: Array) -> Array:
    """PARAMETERIZED_RELU in plain NumPy; exact in every type but for one rounding."""
    wide = np.float32 if x.dtype == np.float16 else x.dtype
    with np.errstate(all="ignore"):
        return np.where(x >= 0, x, x.astype(wide) * slope.astype(wide)).astype(x.dtype)


def same(actual: Array, expected: Array) -> bool:
    return bool(np.all((actual == expected) | ((actual != actual) & (expected != expected))))


@st.composite
def layouts(draw: st.DrawFn, sizes: list[int], *, output: bool) -> list[int] | None:
    """Strides: null, or any order of the dimensions with any padding, and on inputs repetition."""
    if draw(st.integers(0, 4)) == 0:
        return None
    strides, step = [0] * len(sizes), draw(st.integers(1, 2))
    for axis in draw(st.permutations(range(len(sizes)))):
        strides[axis] = step
        step = step * sizes[axis] + draw(st.sampled_from([0, 0, 1, 3]))
    if not output:
        for axis in draw(st.sets(st.integers(0, len(sizes) - 1))):
            strides[axis] = draw(st.integers(0, 3))
    return strides


DATA_TYPES = ["FLOAT32", "FLOAT16", "INT32", "INT16", "INT8"]


@given(st.data())
def test_any_layout(helpers: Executor, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    kind = data.draw(st.sampled_from(DATA_TYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tensors = {}
    for name in ("InputTensor", "SlopeTensor", "OutputTensor"):
        strides = data.draw(layouts(sizes, output=name == "OutputTensor"))
        desc = TensorDesc.model_validate({"DataType": kind, "Sizes": sizes, "Strides": strides})
        length = data.draw(st.sampled_from([desc.data_bytes, desc.total_bytes, desc.total_bytes + 8]))
        tensors[name] = Guarded(desc, rng, length, data.draw(st.sampled_from([GUARD, 61])))
    operator = compiled(
        {"Type": PARAMETERIZED_RELU} | {name: each.desc.model_dump(mode="json") for name, each in tensors.items()}
    )
    x, slope, output = tensors.values()
    expected = slope_formula(x.elements, slope.elements)
    inputs = {"InputTensor": x.buffer.toreadonly(), "SlopeTensor": slope.buffer.toreadonly()}
    block, threads = data.draw(st.sampled_from([1, 2, 3, 7, 64, 1 << 16])), data.draw(st.sampled_from([1, 3]))
    run(helpers, operator, inputs, output.buffer, block=block, threads=threads)
    assert same(output.elements, expected)
    assert output.touched() <= output.owned()
    assert x.touched() == slope.touched() == set()


@given(st.data())
def test_in_place_equals_out_of_place(helpers: Executor, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in ALIKE if OPERATORS[kind].in_place]))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    desc = TensorDesc.model_validate(
        {
            "DataType": data.draw(st.sampled_from(DATA_TYPES if kind == PARAMETERIZED_RELU else DATA_TYPES[:2])),
            "Sizes": sizes,
            "Strides": data.draw(layouts(sizes, output=True)),
        }
    )
    document = desc.model_dump(mode="json")
    attributes = {} if "Exponent" not in OPERATORS[kind].model_fields else {"Exponent": data.draw(EXPONENTS)}
    taken, (output,) = OPERATORS[kind].in_place[0], OPERATORS[kind].tensor_names(Role.OUTPUT)
    operator = compiled(descriptor(kind, document, **{output: document}, **attributes))
    operator.check_in_place(taken)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tensors = {name: Guarded(desc, rng, desc.total_bytes) for name in operator.inputs}
    inputs = {name: each.buffer for name, each in tensors.items()}
    block, threads = data.draw(st.sampled_from([1, 3, 64, 1 << 16])), data.draw(st.sampled_from([1, 3]))

    apart = Guarded(desc, rng, desc.total_bytes)
    run(helpers, operator, inputs, apart.buffer, block=block, threads=threads)
    x = tensors[taken]
    run(helpers, operator, inputs, x.buffer, block=block, threads=threads)
    assert same(x.elements, apart.elements)
    assert x.touched() <= x.owned()
    assert all(not each.touched() for name, each in tensors.items() if name != taken)


EXPONENTS = st.sampled_from([0, 1, 2, 3, -1, -2, 0.5, 2.5])


def big_tensors(data_type: str, elements: int) -> tuple[dict[str, Any], dict[str, Buffer], Array]:
    """A descriptor, its inputs, and the result by plain NumPy."""
    rng = np.random.default_rng(11)
    dtype = numpy_type(DataType(data_type))
    x, slope = (rng.integers(-100, 100, elements).astype(dtype) for _ in range(2))
    desc = {"DataType": data_type, "Sizes": [elements]}
    inputs = {"InputTensor": memoryview(x.tobytes()), "SlopeTensor": memoryview(slope.tobytes())}
    return descriptor(PARAMETERIZED_RELU, desc), inputs, slope_formula(x, slope)


@pytest.mark.parametrize("elements", [1, 65535, 65536, 65537, 1_000_003])
@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_threads_make_no_difference(helpers: Executor, elements: int, threads: int) -> None:
    document, inputs, expected = big_tensors("FLOAT32", elements)
    output = bytearray(4 * elements)
    run(helpers, compiled(document), inputs, memoryview(output), threads=threads)
    assert bytes(output) == expected.tobytes()


def test_one_device_for_many_threads(helpers: Executor) -> None:
    """Dispatches of different types and sizes at once, each with scratch of its own."""
    device = NumpyDevice(helpers, 2)
    wrong = []

    def client(number: int) -> None:
        data_type = DATA_TYPES[number % len(DATA_TYPES)]
        for elements in (1000 * number + 1, 70_000 + number, 3):
            document, inputs, expected = big_tensors(data_type, elements)
            output = bytearray(expected.nbytes)
            device.prepare(compiled(document)).dispatch(list(inputs.values()), [memoryview(output)], never)
            if bytes(output) != expected.tobytes():
                wrong.append((number, elements))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(10)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(SECONDS)
    assert wrong == []


@pytest.mark.parametrize("name", ["InputTensor", "SlopeTensor", "OutputTensor"])
@pytest.mark.parametrize("strides", [None, [0, 1], [1, 7], [20, 2]])
def test_a_buffer_that_is_too_short_is_not_left(helpers: Executor, name: str, strides: list[int] | None) -> None:
    """Whoever calls the device has checked the lengths; if not, it raises instead of reading or writing beyond."""
    sizes = [7, 5]
    desc = TensorDesc.model_validate({"DataType": "FLOAT32", "Sizes": sizes, "Strides": strides})
    packed = TensorDesc.model_validate({"DataType": "FLOAT32", "Sizes": sizes})
    if name == "OutputTensor" and desc.overlaps_itself:
        return
    rng = np.random.default_rng(12)
    operator = compiled(
        descriptor(PARAMETERIZED_RELU, packed.model_dump(mode="json"), **{name: desc.model_dump(mode="json")})
    )
    descs = operator.inputs | {"OutputTensor": output_of(operator)}
    tensors = {each: Guarded(descs[each], rng, descs[each].data_bytes - (each == name)) for each in descs}
    inputs = {each: tensors[each].buffer for each in operator.inputs}
    with pytest.raises((TypeError, ValueError)):
        run(helpers, operator, inputs, tensors["OutputTensor"].buffer)
    assert all(tensor.touched() == set() for tensor in tensors.values())


# Helpers


def test_works_alone_when_the_helpers_are_busy() -> None:
    with ThreadPoolExecutor(1) as executor:
        release = threading.Event()
        executor.submit(release.wait, SECONDS)
        document, inputs, expected = big_tensors("INT16", 300_000)
        output = bytearray(600_000)
        run(executor, compiled(document), inputs, memoryview(output), threads=8)
        assert bytes(output) == expected.tobytes()
        release.set()


def test_helpers_in_the_queue_keep_no_tensors() -> None:
    with ThreadPoolExecutor(1) as executor:
        release = threading.Event()
        executor.submit(release.wait, SECONDS)
        output = np.empty(1 << 20, np.float32)
        held = weakref.ref(output)
        data = memoryview(bytes(output.nbytes))
        operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [1 << 20]}))
        run(executor, operator, {"InputTensor": data}, output.view(np.uint8).data, threads=8)
        del output
        gc.collect()
        assert held() is None
        release.set()


# Cancellation


def cancelling(after: int) -> Any:
    """`cancelled` that turns true at a call, and counts the calls."""
    calls = threading.Semaphore(after)
    return mock.Mock(side_effect=lambda: not calls.acquire(blocking=False))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_stops_within_a_block_of_each_thread(helpers: Executor, threads: int, after: int) -> None:
    block, count = 16, 1000
    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [block * count]}))
    output = bytearray(b"\xff" * 4 * block * count)
    cancelled = cancelling(after)
    with blocks_of(block), pytest.raises(Cancelled):
        NumpyDevice(helpers, threads).prepare(operator).dispatch(
            [memoryview(bytes(len(output)))], [memoryview(output)], cancelled
        )
    written = np.frombuffer(output, np.float32).reshape(count, block)
    # Compiled loops are asked to stop for all threads at once, when each has done a block.
    assert np.count_nonzero(~np.isnan(written).all(axis=1)) in (after, after * threads)
    assert cancelled.call_count <= after + threads


FLOATS = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 4]}
ONE_BY_ONE: dict[str, Any] = {
    "Type": "DML_OPERATOR_CONVOLUTION",
    **{name: FLOATS | {"Sizes": [1, 1, 1, 4]} for name in ("InputTensor", "OutputTensor")},
    "FilterTensor": FLOATS | {"Sizes": [1, 1, 1, 1]},
    **{name: [1, 1] for name in ("Strides", "Dilations")},
    **{name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")},
    "Mode": "CROSS_CORRELATION",
    "Direction": "FORWARD",
    "GroupCount": 1,
}
TURNED_ROUND: dict[str, Any] = {
    "Type": "DML_OPERATOR_SLICE1",
    "InputTensor": FLOATS,
    "OutputTensor": FLOATS,
    "InputWindowOffsets": [0] * 4,
    "InputWindowSizes": FLOATS["Sizes"],
    "InputWindowStrides": [1, 1, 1, -1],
}


@pytest.mark.parametrize(
    "document", [descriptor(CELU, FLOATS), ONE_BY_ONE, TURNED_ROUND], ids=lambda each: each["Type"]
)
def test_the_smallest_is_not_begun_either(helpers: Executor, document: dict[str, Any]) -> None:
    operator = compiled(document)
    kernel = NumpyDevice(helpers, 1).prepare(operator)
    output = bytearray(b"\xff" * next(iter(operator.outputs.values())).data_bytes)
    given = [memoryview(bytes(each.data_bytes)) for each in operator.inputs.values()]
    with pytest.raises(Cancelled):
        kernel.dispatch(given, [memoryview(output)], lambda: True)
    assert set(output) == {0xFF}
    kernel.dispatch(given, [memoryview(output)], lambda: False)
    assert set(output) == {0}


def test_not_cancelled_after_the_last_block(helpers: Executor) -> None:
    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [64]}))
    output = bytearray(256)
    with blocks_of(16):
        NumpyDevice(helpers, 1).prepare(operator).dispatch(
            [memoryview(bytes(256))], [memoryview(output)], cancelling(4)
        )


def test_no_helper_works_on_after_cancellation(helpers: Executor) -> None:
    threads = 4
    together, here = threading.Barrier(threads, timeout=SECONDS), threading.current_thread()
    inside = set[threading.Thread]()

    def cancelled() -> bool:
        inside.add(threading.current_thread())
        if together.wait() and threading.current_thread() is not here:
            time.sleep(0.02 * len(inside))
        inside.discard(threading.current_thread())
        return True

    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [1 << 20]}))
    data = memoryview(bytes(4 << 20))
    with blocks_of(1 << 16), pytest.raises(Cancelled):
        NumpyDevice(helpers, threads, compiler=None).prepare(operator).dispatch(
            [data], [memoryview(bytearray(data))], cancelled
        )
    assert inside == set()


def test_an_error_in_a_helper_is_not_lost(helpers: Executor) -> None:
    here = threading.current_thread()
    failed = threading.Event()

    def cancelled() -> bool:
        if threading.current_thread() is here:
            assert failed.wait(SECONDS)
            return False
        failed.set()
        raise ZeroDivisionError

    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [1 << 18]}))
    data = memoryview(bytes(1 << 20))
    with blocks_of(1 << 16), pytest.raises(ZeroDivisionError):
        NumpyDevice(helpers, 2, compiler=None).prepare(operator).dispatch(
            [data], [memoryview(bytearray(data))], cancelled
        )


# Facts


def test_info(helpers: Executor) -> None:
    info = NumpyDevice(helpers, 3).info()
    assert (info.name, info.kind) == ("numpy", "cpu")
    assert "3 threads" in info.description
    assert np.__version__ in info.description
    assert info.memory_total_bytes is None or info.memory_total_bytes > 0
    assert set(info.data_types) == set(DataType)


def test_huge_broadcast_takes_no_memory_but_the_output(helpers: Executor) -> None:
    sizes = [64, 1000, 50]
    desc = {"DataType": "INT8", "Sizes": sizes, "Strides": [0, 0, 0]}
    operator = compiled(descriptor(PARAMETERIZED_RELU, desc))
    output = bytearray(math.prod(sizes))
    one = memoryview(b"\xfe")
    run(helpers, operator, {"InputTensor": one, "SlopeTensor": one}, memoryview(output), threads=2)
    assert bytes(output) == b"\x04" * len(output)


@pytest.mark.parametrize("kind", ["MULTIHEAD_ATTENTION", "RNN"])
def test_calls_make_outputs_where_they_are(helpers: Executor, kind: str) -> None:
    """And elsewhere first, where an output lies over an input."""
    sizes = [1, 3, 8]
    desc = {"DataType": "FLOAT32", "Sizes": sizes}
    document = descriptor(f"DML_OPERATOR_{kind}")
    if kind == "MULTIHEAD_ATTENTION":
        document |= dict.fromkeys(("QueryTensor", "KeyTensor", "ValueTensor"), desc)
        document |= {"HeadCount": 2, "MaskType": "NONE"}
    operator = compiled({name: each for name, each in document.items() if each is not None})
    kernel = CallKernel(operator, Threads(helpers, 1))
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(each.elements).astype(numpy_type(each.DataType)) for each in operator.inputs.values()]
    made: list[list[Array]] = []
    for turn in range(3):
        given = [each.copy() for each in inputs]
        outputs = [np.empty(each.elements, numpy_type(each.DataType)) for each in operator.outputs.values()]
        if turn == 2:
            outputs[0] = given[0][: outputs[0].size]
            assert outputs[0].size <= given[0].size
        with mock.patch.object(Tensor, "store", autospec=True, side_effect=Tensor.store) as store:
            before = CallKernel._into
            with mock.patch.object(CallKernel, "_into", (lambda *_: {}) if turn == 0 else before):
                reads, writes = ([each.view(np.uint8).data for each in arrays] for arrays in (given, outputs))
                kernel.dispatch(reads, writes, never)
        assert bool(store.call_count) == (turn != 1)
        made.append([each.copy() for each in outputs])
    for some in made[1:]:
        for expected, found in zip(made[0], some, strict=True):
            np.testing.assert_array_equal(found, expected)
