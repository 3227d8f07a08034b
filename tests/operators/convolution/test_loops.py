"""CONVOLUTION by LLVM's loops: exactly the sums of integers, whichever loop it is; pieces; memory of others."""

import itertools
import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.devices.cpu import convolution, convolution_job, convolution_loops
from app.devices.cpu.alone import make_calls
from app.devices.cpu.calls import Of
from app.devices.cpu.convolution import ConvolutionKernel
from app.devices.cpu.convolution_loops import ItemWork, Space
from app.devices.cpu.llvm import channelwise
from app.devices.cpu.llvm.channelwise import Rows
from app.devices.cpu.llvm.panels import Tile
from app.devices.cpu.llvm.team import Team
from app.devices.device import Cancelled
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.convolution.windows import Windows
from tests import subnormal_operands
from tests.operators import calls, conftest
from tests.operators.arrays import desc_of
from tests.operators.calls import run
from tests.operators.fences import fenced

pytestmark = pytest.mark.usefixtures("loops")

LOOPS = ("_panels", "_channelwise", "_dots")


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each loop is."""
    count: Counter[str] = Counter()
    for name in LOOPS:
        known: Callable[..., Any] = getattr(convolution_loops, name)

        def counted(*arguments: Any, name: str = name, known: Callable[..., Any] = known) -> Any:
            count[name] += 1
            return known(*arguments)

        monkeypatch.setattr(convolution_loops, name, counted)
    return count


def document_of(rank: int, **members: Any) -> dict[str, Any]:
    return {
        "Type": "DML_OPERATOR_CONVOLUTION",
        "Mode": "CROSS_CORRELATION",
        "Direction": "FORWARD",
        "Strides": [1] * rank,
        "Dilations": [1] * rank,
        "StartPadding": [0] * rank,
        "EndPadding": [0] * rank,
        "OutputPadding": [0] * rank,
        "GroupCount": 1,
        "FusedActivation": {"Type": "ACTIVATION_RELU"},
    } | members


def expected(document: dict[str, Any], x: Array, w: Array, bias: Array) -> Array:
    """The sums in float64, tap after tap."""
    groups, along = document["GroupCount"], range(x.ndim - 2)
    padding = zip(document["StartPadding"], document["EndPadding"], strict=True)
    padded = np.pad(x.astype(float), [(0, 0), (0, 0), *padding])
    steps = document["Strides"]
    reach = [(w.shape[2 + axis] - 1) * document["Dilations"][axis] for axis in along]
    sizes = [(padded.shape[2 + axis] - reach[axis] - 1) // steps[axis] + 1 for axis in along]
    filters = w.astype(float).reshape(groups, -1, *w.shape[1:])
    made = np.zeros((x.shape[0], groups, filters.shape[1], math.prod(sizes)))
    for tap in itertools.product(*map(range, w.shape[2:])):
        first = [k * step for k, step in zip(tap, document["Dilations"], strict=True)]
        there: tuple[Any, ...] = tuple(
            slice(first[axis], first[axis] + (sizes[axis] - 1) * steps[axis] + 1, steps[axis]) for axis in along
        )
        met = padded[(slice(None), slice(None), *there)].reshape(x.shape[0], groups, w.shape[1], -1)
        of_tap: tuple[Any, ...] = (slice(None), slice(None), slice(None), *tap)
        made += np.einsum("gok,bgkp->bgop", filters[of_tap], met)
    made = made.reshape(x.shape[0], w.shape[0], *sizes) + bias.astype(float)
    results: Array = np.maximum(made, 0)
    return results


def integers(rng: np.random.Generator, *sizes: int) -> Array:
    """So small that float32 has all of their sums."""
    return rng.integers(-4, 5, sizes).astype(np.float32)


def cases() -> Iterator[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]]:
    """Descriptors with the sizes of input and filters: around widths of vectors and tiles, and at random."""
    for places in (1, 2, 5, 6, 7, 12, 13, 15, 16, 17, 31, 32, 33, 65):
        for outputs, depth in ((1, 3), (9, 17), (8, 40)):
            yield document_of(1), (2, depth, places), (outputs, depth, 1)
    for width in (1, 7, 15, 16, 17, 33):
        for stride in (1, 2, 3):
            padded = document_of(2, StartPadding=[1, 2], EndPadding=[2, 1], Strides=[1, stride])
            yield padded, (1, 3, 9, width), (9, 3, 3, 3)
            yield padded | {"GroupCount": 3}, (1, 3, 9, width), (6, 1, 3, 3)
    for height in (5, 17, 65):  # columns, and columns with something beside them
        for pad in (0, 1):
            column = document_of(2, StartPadding=[2, pad], EndPadding=[1, 0], Strides=[2, 1])
            yield column, (2, 3, height, 1), (9, 3, 5, 1)
    rng = np.random.default_rng(18)

    def some(rank: int, least: int, most: int) -> list[int]:
        return [int(each) for each in rng.integers(least, most + 1, rank)]

    for turn in range(36):
        rank = 1 + turn % 3
        groups, depth, each = some(3, 1, 4)
        document = document_of(
            rank,
            Strides=some(rank, 1, 3),
            Dilations=some(rank, 1, 3),
            StartPadding=some(rank, 0, 4),
            EndPadding=some(rank, 0, 4),
            GroupCount=groups,
        )
        extents = some(rank, 1, 4)
        reach = [(k - 1) * step + 1 for k, step in zip(extents, document["Dilations"], strict=True)]
        sizes = [size + more for size, more in zip(reach, some(rank, 0, (40, 12, 6)[rank - 1]), strict=True)]
        yield document, (1 + turn % 2, groups * depth, *sizes), (groups * each, depth, *extents)


def test_sums_of_integers_are_exact(chosen: Counter[str]) -> None:
    rng = np.random.default_rng(0)
    for document, sizes, filters in cases():
        x, w, bias = (
            integers(rng, *sizes),
            integers(rng, *filters),
            integers(rng, 1, filters[0], *[1] * (len(sizes) - 2)),
        )
        made = run(document, {"InputTensor": x, "FilterTensor": w, "BiasTensor": bias})["OutputTensor"]
        np.testing.assert_array_equal(made, expected(document, x, w, bias), str((document, sizes, filters)))
    assert all(chosen[name] > 10 for name in LOOPS), chosen


def test_vectors_are_along_what_goes_on() -> None:
    """A column is a row, whose positions lie beside each other as well."""
    row = Windows([1, 9], [1, 5], [1, 5], [3, 1], [1, 2], [0, 2])
    column = Windows([9, 1], [5, 1], [5, 1], [1, 3], [2, 1], [2, 0])
    assert Space.of(column) == Space.of(row)
    assert Space.of(column).positions[-1] == 5


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_pieces_are_everything_once(threads: int) -> None:
    rng = np.random.default_rng(threads)
    for _ in range(300):
        groups, outputs, places, depth = (int(each) for each in rng.integers(1, 70, 4))
        row, one = (1, 1, places), (1, 1, 1)
        work = ItemWork(Space(row, row, one, one, one, (0, 0, 0)), groups, depth, outputs, 1, threads, 100)
        tile = Tile(int(rng.integers(1, 9)), int(rng.integers(1, 3)), 16)
        count = np.zeros((groups, outputs, places), int)
        for of_groups, channels, some in convolution_loops._cut(work, tile):
            assert min(map(len, (of_groups, channels, some))) > 0
            count[of_groups.start : of_groups.stop, channels.start : channels.stop, some.start : some.stop] += 1
        assert (count == 1).all()


def test_long_filters_are_cut_into_pieces_and_their_panels_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy would take minutes for 360 milliards of products, without asking whether to go on."""
    document = document_of(2, FusedActivation=None)
    arrays = [np.broadcast_to(np.float32(1), each) for each in ((1, 1, 1, 1_000_000), (4, 1, 1, 900_000))]
    packed = [{"DataType": "FLOAT32", "Sizes": list(each.shape)} for each in arrays]
    output = {"DataType": "FLOAT32", "Sizes": [1, 4, 1, 100_001]}
    model = OPERATORS["DML_OPERATOR_CONVOLUTION"].model_validate(
        document | dict(zip(("InputTensor", "FilterTensor", "OutputTensor"), [*packed, output], strict=True))
    )
    kernel = calls.DEVICE.prepare(compile_operator(model, NEWEST))
    assert isinstance(kernel, ConvolutionKernel)
    assert kernel._loop.pieces > 200
    scratch = convolution_job._Scratch()
    monkeypatch.setattr(convolution_job, "_scratch", scratch)
    monkeypatch.setattr(convolution_job, "MOST_KEPT", 1 << 10)
    x, w, bias = (np.ones(each, np.float32) for each in ((1, 2, 90), (9, 2, 40), (1, 9, 1)))
    made = run(document_of(1), {"InputTensor": x, "FilterTensor": w, "BiasTensor": bias})["OutputTensor"]
    assert (made == 81).all()
    assert not scratch._held.size


def test_pieces_are_no_more_than_there_is_memory_for() -> None:
    side = (1, 1 << 12, 1 << 12)
    space = Space(side, side, (1, 1 << 9, 1 << 9), (1, 1, 1), (1, 1, 1), (0, 0, 0))
    work = ItemWork(space, 1, 1, 1, 1, 2, 1 << 19)
    assert work.products == 1 << 42
    made = convolution_loops.loop_of(work, conftest.compiler(), None)
    assert made
    assert made.pieces == convolution_loops.MOST_FRAMES
    assert convolution_loops.loop_of(work._replace(outputs=2), conftest.compiler(), None) is None


def test_code_is_as_long_for_far_strides() -> None:
    """Of rows between those that filters meet nothing is written: a client chooses how many there are."""
    near, far = (channelwise.source(Rows(8, 1, 16, (2, 2, stride)), 1, None).splitlines() for stride in (2, 9000))
    assert len(far) == len(near)


def compiled_of(document: dict[str, Any], inputs: Sequence[Array], sizes: Sequence[int]) -> CompiledOperator:
    names = ("InputTensor", "FilterTensor", "BiasTensor")
    tensors = {name: desc_of(each) for name, each in zip(names, inputs, strict=True)}
    output = {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [*sizes]}}
    return compile_operator(OPERATORS["DML_OPERATOR_CONVOLUTION"].model_validate(document | tensors | output), NEWEST)


def kernel_of(document: dict[str, Any], inputs: Sequence[Array], sizes: Sequence[int]) -> ConvolutionKernel:
    kernel = calls.DEVICE.prepare(compiled_of(document, inputs, sizes))
    assert isinstance(kernel, ConvolutionKernel)
    return kernel


SHAPES = [
    (document_of(1), (1, 5, 37), (9, 5, 1)),
    (document_of(2, StartPadding=[1, 1], EndPadding=[1, 1]), (1, 5, 9, 11), (9, 5, 3, 3)),
    (document_of(2, StartPadding=[1, 1], EndPadding=[1, 1], Strides=[2, 2]), (1, 5, 9, 11), (9, 5, 3, 3)),
    (document_of(2, Strides=[3, 3]), (1, 5, 9, 110), (9, 5, 3, 3)),
    (document_of(2, StartPadding=[1, 1], EndPadding=[1, 1], GroupCount=5), (1, 5, 9, 11), (5, 1, 3, 3)),
    (document_of(2, StartPadding=[2, 2], Strides=[2, 2], GroupCount=5), (1, 5, 9, 40), (5, 1, 5, 5)),
    (document_of(2, StartPadding=[3, 3], EndPadding=[3, 3], GroupCount=3), (1, 3, 9, 11), (3, 1, 7, 7)),
    (document_of(2, StartPadding=[3, 3], EndPadding=[3, 3], GroupCount=3), (1, 3, 9, 11), (3, 1, 7, 8)),
    (document_of(2), (1, 19, 3, 4), (9, 19, 3, 3)),
]
"""At least one for each loop, and of filters of as many elements as code is written for, and of more."""


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("at_the_end", [True, False])
def test_nothing_outside_of_the_tensors_is_touched(shape: int, *, at_the_end: bool) -> None:
    """What is before or behind them may not be read: a loop that does ends the process."""
    document, sizes, filters = SHAPES[shape]
    rng = np.random.default_rng(shape)
    given = [integers(rng, *sizes), integers(rng, *filters), integers(rng, 1, filters[0], *[1] * (len(sizes) - 2))]
    wanted = expected(document, given[0], given[1], given[2])
    kernel = kernel_of(document, given, wanted.shape)
    with fenced([*given, np.zeros(wanted.shape, np.float32)], at_the_end=at_the_end) as (*inputs, output):
        kernel.dispatch([each.data.cast("B") for each in inputs], [output.data.cast("B")], lambda: False)
        np.testing.assert_array_equal(output, wanted)


@subnormal_operands.noted
@pytest.mark.parametrize("shape", [*SHAPES, (document_of(2), (1, 9, 7, 7), (9, 9, 1, 1))])
def test_nothing_is_computed_of_what_memory_happens_to_hold(
    shape: tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    document, sizes, filters = shape
    rng = np.random.default_rng(7)
    given = [integers(rng, *sizes), integers(rng, *filters), integers(rng, 1, filters[0], *[1] * (len(sizes) - 2))]
    wanted = expected(document, given[0], given[1], given[2])
    monkeypatch.setattr(convolution, "WORTH_A_CALL", 1 << 40)  # so that all of it is computed by this thread
    kernel, output = kernel_of(document, given, wanted.shape), np.zeros(wanted.shape, np.float32)
    assert kernel._loop.pieces == 1
    monkeypatch.setattr(convolution_job, "_scratch", SimpleNamespace(memory=subnormal_operands.memory))
    buffers = [each.data.cast("B") for each in (*given, output)]
    kernel.dispatch(buffers[:3], buffers[3:], lambda: False)  # it is compiled meanwhile
    with subnormal_operands.unused():
        kernel.dispatch(buffers[:3], buffers[3:], lambda: False)
    np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("offset", [0, 4, 64])
def test_outputs_that_lie_over_inputs(offset: int) -> None:
    document, sizes, filters = SHAPES[1]
    rng = np.random.default_rng(offset)
    x, w, bias = integers(rng, *sizes), integers(rng, *filters), integers(rng, 1, filters[0], 1, 1)
    wanted = expected(document, x, w, bias)
    memory = np.zeros(offset // 4 + wanted.size + x.size, np.float32)
    memory[offset // 4 : offset // 4 + x.size] = x.reshape(-1)
    kernel = kernel_of(document, (x, w, bias), wanted.shape)
    given = [memory[offset // 4 :][: x.size], w, bias]
    output = memory[: wanted.size]
    kernel.dispatch([each.data.cast("B") for each in given], [output.data.cast("B")], lambda: False)
    np.testing.assert_array_equal(output.reshape(wanted.shape), wanted)


def test_buffers_that_are_too_short_are_not_used() -> None:
    document, sizes, filters = SHAPES[1]
    arrays = [np.ones(each, np.float32) for each in (sizes, filters, (1, 9, 1, 1), (1, 9, 9, 11))]
    kernel = kernel_of(document, arrays[:3], [1, 9, 9, 11])
    for place in range(4):
        *inputs, output = [each.data.cast("B")[: -4 if number == place else None] for number, each in enumerate(arrays)]
        with pytest.raises(ValueError, match="ends before its tensor"):
            kernel.dispatch(inputs, [output], lambda: False)


def test_calls_of_a_graph_pack_where_others_have_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one stage in memory apart, and all in no more than they may have."""
    document, sizes, filters = SHAPES[1]
    rng = np.random.default_rng(4)
    given = [integers(rng, 7, *sizes[1:]), integers(rng, *filters), integers(rng, 1, filters[0], 1, 1)]
    wanted = expected(document, *given)
    kernel = kernel_of(document, given, wanted.shape)
    monkeypatch.setattr(convolution, "MOST_OWN", 4 * kernel.own_bytes)
    made = kernel.calls()
    assert made
    assert len(made.stages) > 1
    assert made.own_bytes <= 4 * kernel.own_bytes
    for stage in made.stages:
        begins = sorted(each.offset for call in stage for each in call.pointers if each.of is Of.OWN)
        assert min(np.diff([*begins, made.own_bytes])) >= 4 * kernel._loop.scratch
    output = np.zeros(wanted.shape, np.float32)
    make_calls(made, given, [output], Team(conftest.compiler(), 2), lambda: False)
    np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("items", [convolution.MOST_CALLS, convolution.MOST_CALLS + 1])
def test_large_batches_of_a_graph_are_no_calls(items: int) -> None:
    """Which take 3 KiB for an item, whatever that has."""
    given = [np.ones(sizes, np.float32) for sizes in ((items, 1, 3, 3), (1, 1, 3, 3), (1, 1, 1, 1))]
    made = kernel_of(document_of(2), given, (items, 1, 1, 1)).calls()
    assert (made is None) == (items > convolution.MOST_CALLS)


def test_calls_of_a_graph_pack_elements_that_lie_apart() -> None:
    document, sizes, filters = SHAPES[1]
    rng = np.random.default_rng(5)
    turned = integers(rng, 2, *sizes[2:], sizes[1]).transpose(0, 3, 1, 2)
    given = [turned, integers(rng, *filters), integers(rng, 1, filters[0], 1, 1)]
    wanted = expected(document, *given)
    made = kernel_of(document, given, wanted.shape).calls()
    assert made
    assert made.own_bytes >= turned.nbytes
    output = np.zeros(wanted.shape, np.float32)
    make_calls(made, given, [output], Team(conftest.compiler(), 2), lambda: False)
    np.testing.assert_array_equal(output, wanted)


def test_it_is_cancelled_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_job, "MOST_OF_A_PIECE", 1)
    document, sizes, filters = SHAPES[1]
    arrays = [np.ones(each, np.float32) for each in (sizes, filters, (1, 9, 1, 1), (1, 9, 9, 11))]
    kernel = kernel_of(document, arrays[:3], [1, 9, 9, 11])
    *inputs, output = [each.data.cast("B") for each in arrays]
    asked = iter([False])
    with pytest.raises(Cancelled):
        kernel.dispatch(inputs, [output], lambda: next(asked, True))


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("is_copied", [False, True], ids=["direct", "copied"])
def test_what_a_dispatch_takes_is_told(shape: int, *, is_copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    document, sizes, filters = SHAPES[shape]
    given = [np.ones(each, np.float32) for each in ((2, *sizes[1:]), filters, (1, filters[0], *[1] * (len(sizes) - 2)))]
    wanted = expected(document, given[0], given[1], given[2])
    if is_copied:
        document |= {"Mode": "CONVOLUTION"}
        given[0] = np.asarray(np.repeat(given[0], 2, -1)[..., ::2])
    kernel = kernel_of(document, given, wanted.shape)
    output = np.zeros(wanted.size, np.float32)
    bytes_of = [np.ones(2 * each.size, np.float32).view(np.uint8).data for each in given]
    kernel.dispatch(bytes_of, [output.view(np.uint8).data], lambda: False)  # compiles
    monkeypatch.setattr(convolution_job, "_scratch", convolution_job._Scratch())
    tracemalloc.start()
    try:
        kernel.dispatch(bytes_of, [output.view(np.uint8).data], lambda: False)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < kernel.own_bytes + 16_000  # and Python's own
    assert kernel.own_bytes >= 4 * kernel._loop.scratch


KNOWN = [
    (document_of(1), (2, 5, 1), (16, 5, 1)),
    (document_of(1), (1, 40, 6), (33, 40, 1)),
    (document_of(1), (1, 17, 6), (128, 17, 1)),
    (document_of(1, FusedActivation=None), (1, 7, 24), (48, 7, 1)),
    (document_of(1), (3, 7, 32), (65, 7, 1)),
    (document_of(2, StartPadding=[1, 1], EndPadding=[1, 1]), (2, 3, 5, 6), (70, 3, 3, 3)),
    (document_of(2, StartPadding=[1, 2], EndPadding=[2, 1], Strides=[2, 2]), (1, 3, 9, 9), (40, 3, 3, 3)),
    (document_of(2, Strides=[3, 3], Dilations=[2, 1]), (1, 3, 15, 13), (40, 3, 3, 3)),
    (document_of(2), (2, 19, 7, 7), (65, 19, 1, 1)),
    (document_of(1), (1, 5, convolution_loops.MOST_POINTWISE), (48, 5, 1)),
    (document_of(1, StartPadding=[1], EndPadding=[2]), (1, 9, 20), (33, 9, 1)),
    (document_of(1, Strides=[2]), (1, 9, 39), (33, 9, 1)),
]


@pytest.mark.parametrize("number", range(len(KNOWN)))
def test_filters_that_are_known_are_packed_before(number: int) -> None:
    """They are read no more, nor is anything beside the tensors."""
    document, sizes, filters = KNOWN[number]
    rng = np.random.default_rng(number)
    x, w, bias = integers(rng, *sizes), integers(rng, *filters), integers(rng, 1, filters[0], *[1] * (len(sizes) - 2))
    wanted = expected(document, x, w, bias) if document["FusedActivation"] else None
    if wanted is None:
        wanted = expected(document, x, w, bias + 1000) - 1000
    for is_turned in (False, True):
        given = np.flip(w, tuple(range(2, w.ndim))).copy() if is_turned else w
        stated = document | {"Mode": "CONVOLUTION" if is_turned else "CROSS_CORRELATION"}
        compiled = compiled_of(stated, (x, given, bias), wanted.shape)
        kernel = calls.DEVICE._kernel(compiled, {"FilterTensor": given.data.cast("B")})
        assert isinstance(kernel, ConvolutionKernel)
        assert kernel._filters is not None
        told = convolution.filter_packing_of(compiled, conftest.compiler(), {"FilterTensor"})
        assert told
        assert told.nbytes == kernel._filters.nbytes
        nothing = np.zeros(w.shape, np.float32)
        with fenced([x, bias, np.zeros(wanted.shape, np.float32)], at_the_end=True) as (elements, biases, output):
            buffers = [each.data.cast("B") for each in (elements, nothing, biases)]
            kernel.dispatch(buffers, [output.data.cast("B")], lambda: False)
            np.testing.assert_array_equal(output, wanted)
            output[...] = -1
            found = kernel.calls()
            assert found
            make_calls(found, [elements, nothing, biases], [output], Team(conftest.compiler(), 2), lambda: False)
            np.testing.assert_array_equal(output, wanted)


def test_filters_are_not_packed_where_that_is_no_use() -> None:
    """For many positions, few filters and groups; by dispatches that are not of a graph they never are."""
    for sizes, filters, groups in (
        ((1, 40, convolution_loops.MOST_POINTWISE + 1), (33, 40, 1), 1),
        ((1, 40, convolution_loops.MOST_POSITIONS + 3), (33, 40, 3), 1),
        ((1, 40, 6), (1, 40, 1), 1),
        ((1, 40, 6), (32, 20, 1), 2),
    ):
        arrays = [np.ones(each, np.float32) for each in (sizes, filters, (1, filters[0], 1))]
        document = document_of(1, GroupCount=groups)
        compiled = compiled_of(document, arrays, (1, filters[0], sizes[2] - filters[2] + 1))
        assert not convolution.filter_packing_of(compiled, conftest.compiler(), {"FilterTensor"})
        for known in ({"FilterTensor": arrays[1].data.cast("B")}, {}, None):
            kernel = calls.DEVICE._kernel(compiled, known)
            assert isinstance(kernel, ConvolutionKernel)
            assert kernel._filters is None
    arrays = [np.ones(each, np.float32) for each in (*KNOWN[1][1:], (1, 33, 1))]
    compiled = compiled_of(KNOWN[1][0], arrays, (1, 33, 6))
    assert not convolution.filter_packing_of(compiled, conftest.compiler(), {"BiasTensor"})
    assert calls.DEVICE._kernel(compiled, {})._filters is None  # type: ignore[attr-defined]
