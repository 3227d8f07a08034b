"""Loops on several threads: blocks of any layout, bit for bit as on one, and threads that neither burn nor linger."""

import ctypes
import gc
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import jobs, kernels, tables
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.jobs import WORTH_A_THREAD, Cut
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.team_source import TASK_WORDS
from app.devices.cpu.llvm.vectors import WIDE
from app.devices.cpu.llvm.waiting import lot
from app.devices.cpu.rows import SHORT
from app.devices.device import Cancelled
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator
from tests.devices.test_numpy_device import never
from tests.forked import forked
from tests.messages import CELU, CONSTANT_POW, PARAMETERIZED_RELU
from tests.operators.descriptors import compiled, descriptor, output_of

COMPILER = Compiler()
HELPERS = ThreadPoolExecutor(1)
SOFTMAX, HARDMAX = "DML_OPERATOR_ACTIVATION_SOFTMAX", "DML_OPERATOR_ACTIVATION_HARDMAX"
SECONDS = 30.0


def device(threads: int) -> NumpyDevice:
    return NumpyDevice(HELPERS, threads, COMPILER, least=1)


@pytest.fixture
def small_blocks() -> Iterator[None]:
    """What a few elements are worth."""
    with (
        mock.patch.object(jobs, "WORTH_A_THREAD", 64),
        mock.patch.object(jobs, "WORTH_WAKING", 1),
        mock.patch.object(jobs, "ALIGNED", 4),
        mock.patch.object(jobs, "UNTIL_LOOKED", 1 << 12),
    ):
        yield


def dispatched(threads: int, operator: CompiledOperator, inputs: list[Array], *, cancelled: Any = never) -> bytes:
    output = bytearray(b"\xee" * output_of(operator).total_bytes)
    buffers = [memoryview(each.tobytes()) for each in inputs]
    device(threads).prepare(operator).dispatch(buffers, [memoryview(output)], cancelled)
    return bytes(output)


@pytest.mark.parametrize("elements", [1, 5, 16, 17, 63, 64, 65, 127, 1000, 4097])
def test_of_one_dimension(small_blocks: None, elements: int) -> None:
    x = np.random.default_rng(elements).standard_normal(elements, np.float32)
    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [elements]}))
    alone = dispatched(1, operator, [x])
    assert all(dispatched(threads, operator, [x]) == alone for threads in (2, 5))


def test_of_no_number(small_blocks: None) -> None:
    """A logarithm of numbers below 0 is the same NaN, whether it is found in a vector or by itself."""
    operator = compiled(descriptor("DML_OPERATOR_ELEMENT_WISE_LOG", {"DataType": "FLOAT32", "Sizes": [333]}))
    x = np.random.default_rng(3).standard_normal(333, np.float32)
    alone = dispatched(1, operator, [x])
    assert all(dispatched(threads, operator, [x]) == alone for threads in (2, 5))
    (made,) = {bits for bits, number in zip(np.frombuffer(alone, np.uint32), x, strict=True) if number < 0}
    assert np.isnan(made.view(np.float32))


@pytest.mark.parametrize("sizes", [[2, 40, 30], [7, 3, 5, 11], [1, 300], [300, 1], [3, 1, 129]])
def test_of_any_layout(small_blocks: None, sizes: list[int]) -> None:
    """A slope of its own for each row, and gaps in the output, whose bytes stay as they are."""
    rng = np.random.default_rng(4)
    x, slope = (rng.standard_normal(sizes, np.float32) for _ in range(2))
    slope = slope[..., :1]
    steps = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
    desc = {"DataType": "FLOAT32", "Sizes": sizes}
    strides = [*[step // sizes[-1] for step in steps[:-1]], 0]
    made = descriptor(
        PARAMETERIZED_RELU,
        desc,
        SlopeTensor=desc | {"Strides": strides},
        OutputTensor=desc | {"Strides": [step * 3 for step in steps]},
    )
    expected = np.where(x >= 0, x, x * slope)
    for threads in (1, 2, 5):
        output = np.frombuffer(dispatched(threads, compiled(made), [x, slope]), np.float32)
        assert (output[::3].reshape(sizes) == expected).all()
        assert set(np.delete(output, np.s_[::3]).tobytes()) <= {0xEE}


@pytest.mark.parametrize("kind", [SOFTMAX, HARDMAX])
@pytest.mark.parametrize("sizes", [[1, 50], [3, 7], [64, 33], [1, 1, 40, 16], [200, 1]])
def test_of_rows(small_blocks: None, kind: str, sizes: list[int]) -> None:
    """What threads keep of a row, they keep apart."""
    x = np.random.default_rng(3).standard_normal(sizes, np.float32)
    operator = compiled(descriptor(kind, {"DataType": "FLOAT32", "Sizes": sizes}))
    alone = dispatched(1, operator, [x])
    for _ in range(5):
        assert all(dispatched(threads, operator, [x]) == alone for threads in (2, 5))


@pytest.mark.parametrize("kind", [SOFTMAX, HARDMAX])
@pytest.mark.parametrize("sizes", [[1, 48], [1, 1, 1, 1000], [3, 48]])
def test_rows_as_without_loops(kind: str, sizes: list[int]) -> None:
    """One group by itself, too: its length is no block's."""
    operator = compiled(descriptor(kind, {"DataType": "FLOAT32", "Sizes": sizes}))
    x = np.random.default_rng(7).standard_normal(sizes, np.float32)
    results = []
    for one in (device(2), NumpyDevice(HELPERS, 2)):
        output = bytearray(output_of(operator).total_bytes)
        one.prepare(operator).dispatch([memoryview(x.tobytes())], [memoryview(output)], never)
        results.append(np.frombuffer(output, np.float32))
    looped, plain = results
    np.testing.assert_allclose(looped, plain, rtol=1e-6)


def test_blocks_are_all_there_is() -> None:
    for sizes in ([1], [1 << 24], [(1 << 24) + 1], [3, 1 << 20], [1 << 20, 3], [5, 7, 100_003]):
        for threads in (1, 2, 16):
            cut = Cut(sizes, 20, threads)
            assert cut.step * (cut.counts[-1] - 1) < cut.size <= cut.step * cut.counts[-1]
            assert cut.counts[:-1] == sizes[: cut.axis]
            assert cut.helpers < min(threads, cut.blocks)


@pytest.mark.parametrize(
    ("sizes", "threads", "axis", "step", "counts", "helpers", "wakes", "at_once"),
    [
        ([1, 1024], 1, 0, 1, [1], 0, False, 3276),
        ([3, 1024], 2, 0, 3, [1], 0, False, 1092),
        ([WORTH_A_THREAD // 10 + 1], 8, 0, 6 << 10, [9], 1, False, 1152),
        ([(1 << 24) + 5], 3, 0, 1365 << 10, [13], 2, True, 7),
        ([3, 1_000_003], 3, 1, 250_000, [3, 5], 2, True, 50),
        ([5, 7, 100_003], 2, 1, 4, [5, 2], 1, True, 19),
        ([1 << 26], 1, 0, 3276 << 10, [21], 0, True, 1),
    ],
)
def test_how_much_a_block_is(
    sizes: list[int],
    threads: int,
    axis: int,
    step: int,
    counts: list[int],
    helpers: int,
    wakes: bool,
    at_once: int,
) -> None:
    """As few dimensions are cut as will do, at whole pieces where it is one, and as few blocks as keep all at work."""
    cut = Cut(sizes, 20, threads)
    assert (cut.axis, cut.step, cut.counts, cut.size) == (axis, step, counts, sizes[axis])
    assert (cut.blocks, cut.helpers, cut.wakes) == (math.prod(counts), helpers, wakes)
    assert cut.at_once == at_once


@pytest.mark.parametrize("elements", [1, 1023, 1025, 1600, 5000, WORTH_A_THREAD // 20])
def test_what_one_thread_does_is_one_block(elements: int) -> None:
    """Or each small dispatch would have a job made for it, of two blocks."""
    assert Cut([elements], 20, 2).blocks == 1


@pytest.mark.parametrize("sizes", [[1000], [3, 130], [200, 100]])
def test_lanes_are_not_cut(sizes: list[int]) -> None:
    """A block has so many as are computed at once, but the last one, and none of these is left out."""
    cut = Cut(sizes, 1 << 16, 4, 64)
    assert cut.axis < len(sizes) - 1 or cut.step % 64 == 0
    assert cut.counts[-1] == -(-cut.size // cut.step)


def test_many_at_once(small_blocks: None) -> None:
    """Threads that all want the same helpers have those that are free, or none."""
    shared, wrong = device(3), []
    rng = np.random.default_rng(8)

    def client(number: int) -> None:
        x = rng.standard_normal(1000 + number, np.float32)
        kernel = shared.prepare(compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]})))
        expected = dispatched(1, compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]})), [x])
        for _ in range(200):
            output = bytearray(x.nbytes)
            kernel.dispatch([x.view(np.uint8).data], [memoryview(output)], never)
            if output != expected:
                wrong.append(number)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(SECONDS)
        assert not each.is_alive()
    assert wrong == []


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancelled_between_blocks(small_blocks: None, after: int) -> None:
    calls = threading.Semaphore(after)
    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [10_000]}))
    with pytest.raises(Cancelled):
        dispatched(2, operator, [np.ones(10_000, np.float32)], cancelled=lambda: not calls.acquire(blocking=False))


def helpers_of(before: set[threading.Thread]) -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("team")} - before


def test_helpers_neither_burn_nor_linger(small_blocks: None) -> None:
    before = set(threading.enumerate())
    shared = device(3)
    x = np.ones(10_000, np.float32)
    kernel = shared.prepare(compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]})))
    assert not helpers_of(before)
    assert not kernel.runs_inline  # the event loop would start them
    for _ in range(100):
        kernel.dispatch([x.view(np.uint8).data], [memoryview(bytearray(x.nbytes))], never)
    assert len(helpers_of(before)) == 2
    assert kernel.runs_inline
    time.sleep(0.1)
    started, burnt = time.perf_counter(), time.process_time()
    time.sleep(0.3)
    assert time.process_time() - burnt < 0.1 * (time.perf_counter() - started)
    del kernel, shared
    gc.collect()
    ends = time.monotonic() + SECONDS
    while helpers_of(before):
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_who_waits_for_others_in_a_table_sleeps() -> None:
    """And is woken when they are done: of two calls, one takes its time, and then comes another stage."""
    done: list[tuple[int, int]] = []
    other = threading.Event()

    def call(number: int) -> None:
        if number == 1:
            other.wait(30)
            time.sleep(0.3)
        if number == 2:
            other.set()
        done.append((number, threading.get_ident()))

    function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(call)
    called = ctypes.cast(function, ctypes.c_void_p).value or 0
    walk, team = COMPILER.function(tables.source()), Team(COMPILER, 2)
    words = np.zeros(tables.HEAD_WORDS + 2 * tables.STAGE_WORDS + 8, np.int64)
    first = tables.HEAD_WORDS
    calls = first + 2 * tables.STAGE_WORDS
    start = words.ctypes.data
    words[[0, tables.FIRST, tables.END]] = walk.address, start + 8 * first, start + 8 * calls
    words[[first, first + 3]] = 2, start + 8 * calls
    words[[first + tables.STAGE_WORDS, first + tables.STAGE_WORDS + 3]] = 2, start + 8 * (calls + 4)
    words[calls:] = called, 1, called, 2, called, 3, called, 4
    lot(COMPILER, start + 8 * tables.LOT)
    other.set()
    team.sharing(walk, words, 0, wakes=True)(start)
    assert [number for number, _ in done] == [1, 2, 3, 4]
    other.clear()
    words[[first + 1, first + 2, first + tables.STAGE_WORDS + 1, first + tables.STAGE_WORDS + 2]] = 0
    done.clear()
    burnt = time.process_time()
    team.sharing(walk, words, 1, wakes=True)(start)
    assert time.process_time() - burnt < 0.15  # of which starting the team takes some
    assert [number for number, _ in done[:2]] == [2, 1]
    assert sorted(number for number, _ in done[2:]) == [3, 4]
    assert len({thread for _, thread in done}) == 2


def test_little_wakes_nobody_but_in_a_burst() -> None:
    """Or each small dispatch would cost a thread's way to the processor and back."""
    x = np.ones(1 << 17, np.float32)
    cut = Cut([x.size], 30, 2)
    assert (cut.helpers, cut.wakes) == (1, False)
    kernel = device(2).prepare(compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]})))
    output = memoryview(bytearray(x.nbytes))

    def switches() -> int:
        """How often threads of this process other than this one gave up the processor."""
        total = 0
        for each in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{each}/status") as file:
                if int(each) != threading.get_native_id():
                    total += sum(int(line.split()[1]) for line in file if line.startswith("voluntary"))
        return total

    kernel.dispatch([x.view(np.uint8).data], [output], never)
    time.sleep(0.05)
    before = switches()
    for _ in range(50):
        kernel.dispatch([x.view(np.uint8).data], [output], never)
        time.sleep(0.002)
    assert switches() - before < 10
    ends = time.monotonic() + SECONDS
    while switches() - before < 10:
        for _ in range(100):  # one after the other: a helper is woken, and sleeps when they end
            kernel.dispatch([x.view(np.uint8).data], [output], never)
        time.sleep(0.01)
        assert time.monotonic() < ends


def test_python_between_two_dispatches_ends_no_burst() -> None:
    """It takes up to 60 us where what is moved has taken its place in the cache."""
    team = Team(COMPILER, 2)
    function = COMPILER.function("define void @kernel(ptr %task) {\n  ret void\n}")
    task = (ctypes.c_uint64 * TASK_WORDS)(function.address)

    def is_burst(nanoseconds: int) -> bool:
        """Whether a task is of a burst that comes so long after another."""
        team.sharing(function, task, 1, wakes=False)(ctypes.addressof(task))
        ended = time.perf_counter_ns()
        while time.perf_counter_ns() - ended < nanoseconds:
            pass
        team.sharing(function, task, 1, wakes=False)(ctypes.addressof(task))
        return bool(task[1])

    assert any(is_burst(70_000) for _ in range(1000))  # unless another process had the processor meanwhile
    assert not any(is_burst(1_000_000) for _ in range(10))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other processor")
def test_who_sleeps_is_woken_on_another_processor(small_blocks: None) -> None:
    """The system puts a thread where the one is that wakes it, where it takes the others' to be away."""
    before = set(threading.enumerate())
    shared = device(2)
    x = np.ones(10_000, np.float32)
    kernel = shared.prepare(compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]})))
    processors = os.sched_getaffinity(0)
    kernel.dispatch([x.view(np.uint8).data], [memoryview(bytearray(x.nbytes))], never)  # the helper is started
    try:
        for here in sorted(processors)[:2] * 2:
            os.sched_setaffinity(0, {here})
            ends = time.monotonic() + SECONDS
            helpers: set[threading.Thread] = set()
            while not helpers or os.sched_getaffinity(helpers.pop().native_id or 0) != processors - {here}:
                assert time.monotonic() < ends
                kernel.dispatch([x.view(np.uint8).data], [memoryview(bytearray(x.nbytes))], never)
                time.sleep(0.01)  # until the helper sleeps
                helpers = helpers_of(before)
    finally:
        os.sched_setaffinity(0, processors)


def test_a_forked_process_has_helpers_of_its_own(small_blocks: None) -> None:
    shared = device(2)
    x = np.ones(10_000, np.float32)
    kernel = shared.prepare(compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [x.size]})))

    done = mmap.mmap(-1, 2)

    def once(place: int) -> None:
        output = bytearray(x.nbytes)
        kernel.dispatch([x.view(np.uint8).data], [memoryview(output)], never)
        done[place] = output == x.tobytes()

    once(0)
    os.waitpid(forked(lambda: once(1)), 0)
    assert done[:] == b"\1\1"


@pytest.mark.parametrize(
    ("kind", "data_type", "attributes"),
    [
        (CELU, "FLOAT32", {}),
        (CELU, "FLOAT16", {}),
        (CONSTANT_POW, "FLOAT32", {"Exponent": 100.3}),  # of which something is kept
        ("DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT", "UINT8", {}),
        (SOFTMAX, "FLOAT32", {}),
        (SOFTMAX, "FLOAT16", {}),
        (HARDMAX, "FLOAT32", {}),  # whose elements know where they are
        (HARDMAX, "FLOAT16", {}),
        ("DML_OPERATOR_ELEMENT_WISE_SIN", "FLOAT32", {}),  # of which some are computed twice
    ],
)
@pytest.mark.parametrize(
    "sizes", [[1, 15], [1, 127], [1, 128], [1, 129], [3, 256], [1, 511], [1, 513], [2, 1025], [2, 5000], [33, 100]]
)
def test_past_the_cache(
    small_blocks: None, kind: str, data_type: str, attributes: dict[str, float], sizes: list[int]
) -> None:
    """The same bytes wherever lines of the cache begin, and none beside them."""
    with np.errstate(invalid="ignore"):  # ARM tells of numbers below 0 that are made unsigned
        x = np.random.default_rng(5).standard_normal(sizes).astype(data_type.lower())
    operator = compiled(descriptor(kind, {"DataType": data_type, "Sizes": sizes}, **attributes))
    size = x.nbytes
    expected = dispatched(1, operator, [x])[:size]
    with mock.patch.multiple(kernels, STREAMED=1, SHORT_ROW=1), mock.patch.object(jobs, "UNTIL_LOOKED", 1 << 20):
        for threads in (1, 3):
            kernel = device(threads).prepare(operator)
            streamed = kernel._call.codes.streaming  # type: ignore[attr-defined]
            for offset in (0, x.itemsize, 60, 63, 64):
                memory = bytearray(b"\xee" * (size + 192))
                start = -address_of(memoryview(memory)) % 64 + offset
                output = memoryview(memory)[start : start + size]
                kernel.dispatch([memoryview(x.tobytes())], [output], never)
                assert output == expected
                assert set(memory[:start] + memory[start + size :]) == {0xEE}
            if kind in (SOFTMAX, HARDMAX) and sizes[-1] < SHORT:
                assert streamed is None
            else:
                assert streamed.is_compiled
            if kind in (SOFTMAX, HARDMAX):
                continue
            output[:] = x.tobytes()
            kernel.dispatch([output], [output], never)
            assert output == expected


def test_what_is_small_or_heavy_or_not_packed_stays_in_the_cache() -> None:
    """All that is read counts, too."""
    desc = {"DataType": "FLOAT32", "Sizes": [kernels.STREAMED // 8192, 1024]}
    short = desc | {"Sizes": [kernels.STREAMED // 1024, kernels.SHORT_ROW // 4 - 1]}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
        (CELU, desc, {}, True),
        (CELU, desc | {"Sizes": [kernels.STREAMED // 8192 - 1, 1024]}, {}, False),
        (CELU, desc, {"OutputTensor": desc | {"Strides": [2048, 2]}}, False),
        (SOFTMAX, desc, {}, True),
        (SOFTMAX, short, {}, False),
        ("DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN", desc, {}, True),
    ]
    for kind, tensor, more, streams in cases:
        made = device(3).prepare(compiled(descriptor(kind, tensor, **more)))
        assert bool(made._call.codes.streaming) is streams  # type: ignore[attr-defined]
    with mock.patch.object(kernels, "HEAVY", 15):
        made = device(3).prepare(compiled(descriptor(CELU, desc)))
    assert made._call.codes.streaming is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [CELU, SOFTMAX])
@pytest.mark.parametrize(("sizes", "helped"), [([1, 1], False), ([1024, 4], True)])
def test_what_is_ready_has_nothing_to_compile_and_nobody_to_start(
    small_blocks: None, kind: str, sizes: list[int], helped: bool
) -> None:
    compiler = Compiler()
    operator = compiled(descriptor(kind, {"DataType": "FLOAT32", "Sizes": sizes}))
    size = output_of(operator).total_bytes
    x, output = memoryview(bytes(size)), memoryview(bytearray(size))
    for is_compiled in (False, True):
        kernel = NumpyDevice(HELPERS, 2, compiler, least=1).prepare(operator)
        assert kernel._call.is_ready is (is_compiled and not helped)  # type: ignore[attr-defined]
        kernel._call.codes.plain.function()  # type: ignore[attr-defined]
        by_itself = kind is CELU and not helped  # for which blocks, which others are cut into, need no code
        assert kernel._call.is_ready is (by_itself or (is_compiled and not helped))  # type: ignore[attr-defined]
        kernel.dispatch([x], [output], never)
        assert kernel._call.is_ready  # type: ignore[attr-defined]


@pytest.mark.parametrize("most", [0, 1])
def test_where_no_more_threads_can_be_started_there_are_fewer(small_blocks: None, most: int) -> None:
    """They are asked for once, not again for each dispatch."""
    operator = compiled(descriptor(CELU, {"DataType": "FLOAT32", "Sizes": [4097]}))
    x = np.random.default_rng(2).standard_normal(4097, np.float32)
    alone, left, start, started = dispatched(1, operator, [x]), [None] * most, threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        started.append(thread)
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    kernel = device(4).prepare(operator)
    output = memoryview(bytearray(len(alone)))
    with mock.patch.object(threading.Thread, "start", limited):
        for _ in range(3):
            kernel.dispatch([memoryview(x.tobytes())], [output], never)
            assert output == alone
    assert len(started) == most + 1


def test_two_codes_are_compiled_when_both_are() -> None:
    code: Any = lambda is_compiled: SimpleNamespace(is_compiled=is_compiled)  # noqa: E731
    for plain, streaming, are in (
        (False, None, False),
        (True, None, True),
        (True, False, False),
        (False, True, False),
        (True, True, True),
    ):
        codes = kernels.Codes(code(plain), None if streaming is None else code(streaming))
        assert codes.are_compiled is are


def test_code_in_halves_is_the_same_without_wide_registers() -> None:
    compiler = Compiler()
    plain = Code(compiler, "source")
    assert plain.in_halves() is plain
    assert Code(compiler, f"some{WIDE} source").in_halves().source == "some source"


def test_halves_of_registers_are_computed_by_some_processors() -> None:
    for features, computes_whole in (
        ({"avx512f": True}, True),
        ({"avx512f": True, "sse4a": True}, False),
        ({"avx2": True}, False),
    ):
        compiler = Compiler()
        compiler._features = features
        assert compiler.computes_whole is computes_whole


@pytest.mark.parametrize("kind", [SOFTMAX, HARDMAX, "DML_OPERATOR_ACTIVATION_LOG_SOFTMAX"])
@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf, -np.inf])
def test_rows_with_a_number_that_is_none(kind: str, odd: float) -> None:
    """Wherever in its row: among those that are taken many at a time, and those that are left over."""
    x = np.random.default_rng(9).standard_normal((75, 75), np.float32)
    np.fill_diagonal(x, odd)
    x[3] = odd
    operator = compiled(descriptor(kind, {"DataType": "FLOAT32", "Sizes": [75, 75]}))
    actual = np.frombuffer(dispatched(2, operator, [x]), np.float32)
    output = np.empty(x.size, np.float32)
    NumpyDevice(HELPERS, 1).prepare(operator).dispatch([x.view(np.uint8).data], [output.view(np.uint8).data], never)
    np.testing.assert_allclose(actual, output, 1e-6)
