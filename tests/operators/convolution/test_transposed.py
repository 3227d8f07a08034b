"""Transposed CONVOLUTION by compiled loops: against what it says in float64, and alone and in graphs the same bits."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.devices.cpu import transposed, transposed_calls
from app.devices.cpu.coordinates import CallKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.transposed import TransposedKernel
from app.devices.cpu.transposed_phases import PhaseCalls
from app.devices.device import Cancelled
from app.devices.schedules import initialize
from app.formula.structures import Structures
from app.graphs.graph import Constant, Source
from app.graphs.schedule import schedule
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from tests.graphs.documents import Document, between, constant, graph, into, node, out, resolved, tensor


@pytest.fixture(scope="module")
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(4) as helpers:
        yield NumpyDevice(helpers, 3, Compiler())


def never() -> bool:
    return False


def by_itself(*_: Any) -> None:
    raise AssertionError("Python made the calls")


def expected(x: Array, w: Array, bias: Array | None, document: Document, sizes: list[int]) -> Array:
    """Each element, at each place of the filter, added to what it meets."""
    groups, rank = document["GroupCount"], x.ndim - 2
    made = np.zeros((x.shape[0], groups * w.shape[1], *sizes))
    x, w = x.astype(float), w.astype(float)
    if document["Mode"] == "CONVOLUTION":
        w = np.flip(w, tuple(range(2, w.ndim)))
    depth = x.shape[1] // groups
    for group in range(groups):
        some, own = slice(group * depth, (group + 1) * depth), slice(group * w.shape[1], (group + 1) * w.shape[1])
        for at in np.ndindex(*x.shape[2:]):
            for k in np.ndindex(*w.shape[2:]):
                met = [
                    at[axis] * document["Strides"][axis]
                    + k[axis] * document["Dilations"][axis]
                    - document["StartPadding"][axis]
                    for axis in range(rank)
                ]
                if all(0 <= place < size for place, size in zip(met, sizes, strict=True)):
                    made[(slice(None), own, *met)] += x[(slice(None), some, *at)] @ w[(some, slice(None), *k)]
    return made if bias is None else made + bias


def members_of(rng: np.random.Generator, rank: int, extent: list[int], *, is_dense: bool) -> Document:
    def some(most: int, least: int) -> list[int]:
        return [int(each) for each in rng.integers(least, most + 1, rank)]

    return {
        "Mode": str(rng.choice(["CONVOLUTION", "CROSS_CORRELATION"])),
        "Direction": "BACKWARD",
        "Strides": extent if is_dense else some(5, 1),
        "Dilations": [1] * rank if is_dense else some(3, 1),
        "StartPadding": [0] * rank if is_dense else some(6, 0),
        "EndPadding": [0] * rank if is_dense else some(6, 0),
        "OutputPadding": [0] * rank,
        "GroupCount": int(rng.integers(1, 4)),
        "FusedActivation": {"Type": "ACTIVATION_LEAKY_RELU", "Alpha": 0.25} if rng.random() < 0.5 else None,
    }


@pytest.mark.parametrize("seed", range(40))
def test_transposed_convolutions_alone_and_in_graphs(
    device: NumpyDevice, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one to three dimensions, some channels after the others in every third one, with strides and paddings that
    reach beyond the filter."""
    monkeypatch.setattr(CallKernel, "dispatch", by_itself)
    if seed % 3 == 0:
        monkeypatch.setattr(transposed_calls, "MOST_AT_ONCE", 1 << 12)
    rng = np.random.default_rng(seed)
    while True:
        rank = int(rng.integers(1, 4))
        extent = [int(each) for each in rng.integers(1, 5 if rank < 3 else 3, rank)]
        members = members_of(rng, rank, extent, is_dense=seed % 2 == 0)
        sizes = [int(each) for each in rng.integers(1, 20 if rank == 2 else 9 if rank == 3 else 99, rank)]
        results = [
            (size - 1) * stride + (k - 1) * dilation + 1 - start - end
            for size, k, stride, dilation, start, end in zip(
                sizes,
                extent,
                *(members[name] for name in ("Strides", "Dilations", "StartPadding", "EndPadding")),
                strict=True,
            )
        ]
        if min(results) > 0:
            break
    groups = members["GroupCount"]
    depth, each, batch = int(rng.integers(1, 40)), int(rng.integers(1, 20)), int(rng.integers(1, 3))
    x = rng.standard_normal((batch, groups * depth, *sizes), np.float32)
    w = rng.standard_normal((groups * depth, each, *extent), np.float32)
    bias = rng.standard_normal((1, groups * each, *[1] * rank), np.float32) if rng.random() < 0.5 else None
    given = {"InputTensor": x, "FilterTensor": w} | ({"BiasTensor": bias} if bias is not None else {})
    members |= {name: tensor(sizes=array.shape) for name, array in given.items()}
    shape = (batch, groups * each, *results)
    right = expected(x, w, bias, members, results)
    if members["FusedActivation"]:
        right = np.where(right < 0, right * 0.25, right)

    kind = OPERATORS["DML_OPERATOR_CONVOLUTION"]
    document: dict[str, Any] = {"Type": "CONVOLUTION", **members, "OutputTensor": tensor(sizes=shape)}
    alone = device.prepare(compile_operator(kind.model_validate(document), NEWEST))
    result = np.full(shape, np.nan, np.float32)
    if isinstance(alone, CallKernel):  # too little to compute
        return
    assert isinstance(alone, TransposedKernel)
    alone.dispatch(
        [memoryview(each.tobytes()) for each in given.values()], [result.reshape(-1).view(np.uint8).data], never
    )
    np.testing.assert_allclose(result, right, 1e-4, 1e-4)

    nodes = [node("CONVOLUTION", **members), node("ACTIVATION_RELU", InputTensor=tensor(sizes=shape))]
    constants = {number + 1: array for number, array in enumerate(given.values()) if number}
    edges = [between(0, 1), *(between(number, 0, number - 1) for number in constants)]
    nodes += [constant() for _ in constants]
    data = {index: array.tobytes() for index, array in constants.items()}
    plan = schedule(resolved(graph(nodes, [into(0, 0)], [out(1)], edges), data=data), Structures())
    kept: dict[Source, Buffer] = {Constant(index): memoryview(each) for index, each in data.items()}
    of = initialize(plan, kept, lambda size: memoryview(bytearray(size)), device.prepare, never)
    monkeypatch.setattr(TransposedKernel, "dispatch", by_itself)
    in_graph = np.full(shape, np.nan, np.float32)
    scratch = memoryview(bytearray(b"\xff" * plan.scratch_bytes))
    outputs = [in_graph.reshape(-1).view(np.uint8).data, *([scratch] if plan.scratch_bytes else [])]
    device.prepare(of).dispatch([memoryview(x.tobytes())], outputs, never)
    np.testing.assert_array_equal(in_graph, np.maximum(result, 0))


SMALL: Document = {
    "Mode": "CROSS_CORRELATION",
    "Direction": "BACKWARD",
    "Strides": [2, 2],
    "Dilations": [1, 1],
    **{name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")},
    "GroupCount": 1,
}


def small(x: Array, w: Array) -> dict[str, Any]:
    sizes = [2 * (size - 1) + k for size, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    tensors = {"InputTensor": x.shape, "FilterTensor": w.shape, "OutputTensor": (len(x), w.shape[1], *sizes)}
    return {"Type": "CONVOLUTION", **SMALL, **{name: tensor(sizes=each) for name, each in tensors.items()}}


@pytest.mark.parametrize("items", [2, 3, 5, 8])
def test_some_items_come_after_the_others(device: NumpyDevice, items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more than have calls of their own, which need not be a multiple."""
    monkeypatch.setattr(transposed, "MOST_ITEMS", 2)
    rng = np.random.default_rng(items)
    x, w = rng.standard_normal((items, 5, 4, 3), np.float32), rng.standard_normal((5, 6, 3, 2), np.float32)
    document = small(x, w)
    kernel = device.prepare(compile_operator(OPERATORS["DML_OPERATOR_CONVOLUTION"].model_validate(document), NEWEST))
    assert isinstance(kernel, TransposedKernel)
    assert max(len(own.calls.stages) for own in kernel._own.values()) == 2 * 2
    result = np.full(document["OutputTensor"]["Sizes"], np.nan, np.float32)
    given = [memoryview(each.tobytes()) for each in (x, w)]
    kernel.dispatch(given, [result.reshape(-1).view(np.uint8).data], never)
    np.testing.assert_allclose(result, expected(x, w, None, document, list(result.shape[2:])), 1e-4, 1e-4)
    with pytest.raises(Cancelled):
        kernel.dispatch(given, [result.reshape(-1).view(np.uint8).data], lambda: True)


def test_filters_that_meet_one_element_are_a_product(device: NumpyDevice) -> None:
    """Of matrices, if it is not a small one."""
    most = transposed.MOST_OF_ONE
    for width, height, outputs, kind in (
        (1, 1, 8, TransposedKernel),
        (1, 1, 16, CallKernel),
        (2, 1, 16, TransposedKernel),
    ):
        document = small(np.zeros((most >> 9, 32, height, width)), np.zeros((32, outputs, 1, 1)))
        judged = OPERATORS["DML_OPERATOR_CONVOLUTION"].model_validate(document)
        assert type(device.prepare(compile_operator(judged, NEWEST))) is kind


CHANNELWISE: list[tuple[list[int], list[int], list[int], list[int], list[int], int, bool]] = [
    ([9, 40], [4, 4], [2, 2], [1, 1], [1, 1], 1, True),
    ([9, 40], [4, 4], [2, 2], [1, 1], [0, 2], 2, True),
    ([9, 40], [4, 4], [2, 2], [1, 1], [1, 1], 3, False),  # filters for which channels are not copied
    ([17, 33], [3, 3], [1, 1], [2, 1], [1, 2], 1, True),
    ([7, 18], [5, 4], [3, 1], [1, 3], [2, 0], 1, True),
    ([8, 17], [3, 5], [2, 2], [3, 1], [0, 2], 1, True),
    ([8, 17], [4, 4], [2, 2], [2, 1], [0, 1], 1, False),  # which leave a phase without any
    ([8, 17], [3, 3], [2, 2], [1, 1], [1, 1], 1, True),
    ([8, 17], [2, 3], [2, 2], [1, 1], [0, 0], 1, False),  # less than two to a phase
    ([8, 17], [3, 3], [2, 2], [1, 1], [2, 2], 1, False),  # which begin behind the input's first element
    ([5, 9], [2, 16], [1, 8], [1, 1], [0, 4], 1, True),
    ([5, 9], [2, 18], [1, 9], [1, 1], [0, 4], 1, False),  # more than are stored side by side
    ([4, 5, 6], [3, 4, 4], [1, 2, 2], [1, 1, 1], [1, 1, 1], 1, True),
    ([50], [6], [2], [1], [2], 2, True),
]
"""Sizes, filters, strides, dilations, paddings, channels of the output for each of the input, and whether it is made in
phases."""


@pytest.mark.parametrize(("sizes", "extent", "strides", "dilations", "padding", "outputs", "in_phases"), CHANNELWISE)
@pytest.mark.parametrize("mode", ["CONVOLUTION", "CROSS_CORRELATION"])
def test_one_channel_to_a_group(
    device: NumpyDevice,
    sizes: list[int],
    extent: list[int],
    strides: list[int],
    dilations: list[int],
    padding: list[int],
    outputs: int,
    in_phases: bool,
    mode: str,
) -> None:
    rng = np.random.default_rng(len(sizes) + outputs)
    channels, batch = 5, 2
    document: Document = {
        "Type": "CONVOLUTION",
        "Mode": mode,
        "Direction": "BACKWARD",
        "Strides": strides,
        "Dilations": dilations,
        "StartPadding": padding,
        "EndPadding": padding[::-1],
        "OutputPadding": [0] * len(sizes),
        "GroupCount": channels,
        "FusedActivation": {"Type": "ACTIVATION_LEAKY_RELU", "Alpha": 0.25},
    }
    x = rng.standard_normal((batch, channels, *sizes), np.float32)
    w = rng.standard_normal((channels, outputs, *extent), np.float32)
    bias = rng.standard_normal((1, channels * outputs, *[1] * len(sizes)), np.float32)
    results = [
        (size - 1) * stride + (k - 1) * dilation + 1 - start - end
        for size, k, stride, dilation, start, end in zip(
            sizes, extent, strides, dilations, padding, padding[::-1], strict=True
        )
    ]
    given = {"InputTensor": x, "FilterTensor": w, "BiasTensor": bias}
    shape = (batch, channels * outputs, *results)
    document |= {name: tensor(sizes=each.shape) for name, each in given.items()} | {"OutputTensor": tensor(sizes=shape)}
    operator = compile_operator(OPERATORS["DML_OPERATOR_CONVOLUTION"].model_validate(document), NEWEST)
    buffers = [memoryview(each.tobytes()) for each in given.values()]
    right = expected(x, w, bias, document, results)
    for known in (None, {"FilterTensor": buffers[1]}):
        kernel = device._kernel(operator, known)
        assert isinstance(kernel, TransposedKernel)
        assert all(isinstance(own, PhaseCalls) == in_phases for own in kernel._own.values())
        result = np.full(shape, np.nan, np.float32)
        kernel.dispatch(buffers, [result.reshape(-1).view(np.uint8).data], never)
        np.testing.assert_allclose(result, np.where(right < 0, right * 0.25, right), 1e-5, 1e-5)
        assert kernel.runs_inline, "it is small, and compiled"
