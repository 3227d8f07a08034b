"""Kernels of compiled calls by themselves: as many threads as the work is worth, which may be ended together."""

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu import runs
from app.devices.cpu.alone import MOST_CALLS, CallsKernel
from app.devices.cpu.arrays import ArrayKernel
from app.devices.cpu.calls import Of
from app.devices.cpu.coordinates import CallKernel, CoordinateKernel
from app.devices.cpu.copies import CopiesKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.team import Team
from app.devices.device import Cancelled, Kernel, own_bytes
from app.formula.coordinates import coordinates
from app.formula.values import INT64, absolute, cast
from app.memory.addresses import LINE
from app.memory.arrays import Array
from tests.devices.test_coordinates import of_expression, operand
from tests.operators.arrays import desc_of
from tests.operators.calls import compiled
from tests.operators.conftest import compiler

RNG = np.random.default_rng(20)


def joined(rows: int) -> tuple[dict[str, Any], list[Array], Array]:
    """Two matrices of so many rows of a KiB, and both beside each other."""
    given = [RNG.standard_normal((rows, 256), np.float32) for _ in range(2)]
    output = np.zeros((rows, 512), np.float32)
    descs = {"InputTensors": list(map(desc_of, given)), "OutputTensor": desc_of(output)}
    return {"Type": "DML_OPERATOR_JOIN", "Axis": 1, **descs}, given, output


@pytest.mark.parametrize(
    ("rows", "helpers", "wakes"), [(8, None, False), (600, 1, False), (4096, 1, True)], ids=["little", "some", "much"]
)
def test_copies_are_shared_if_they_are_worth_it(
    device: NumpyDevice, rows: int, helpers: int | None, wakes: bool
) -> None:
    """Few are NumPy's; some are shared with who is awake, and many with who sleeps, too."""
    document, given, output = joined(rows)
    kernel = device.prepare(compiled(document))
    assert isinstance(kernel, ArrayKernel if helpers is None else CopiesKernel)
    with mock.patch.object(Team, "sharing", autospec=True, side_effect=Team.sharing) as ran:
        kernel.dispatch([each.data.cast("B") for each in given], [output.data.cast("B")], lambda: False)
    np.testing.assert_array_equal(output, np.concatenate(given, 1))
    asked = [(call.args[3], call.kwargs["wakes"]) for call in ran.call_args_list]
    assert asked == ([] if helpers is None else [(helpers, wakes)])


def test_one_thread_copies_by_slices() -> None:
    document, given, output = joined(600)
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler()).prepare(compiled(document))
    assert isinstance(kernel, ArrayKernel)
    kernel.dispatch([each.data.cast("B") for each in given], [output.data.cast("B")], lambda: False)
    np.testing.assert_array_equal(output, np.concatenate(given, 1))


def test_rows_that_are_copied_are_less_work_than_elements_looked_up_one_by_one(device: NumpyDevice) -> None:
    x, (i, j) = RNG.standard_normal((64, 512)).astype(np.float16), coordinates(2)
    of = operand(x)
    works = []
    for row, column in ((63 - i * i, j), (i, 511 - j * j), (63 - i * i, 511 - j * j)):
        operator = of_expression(of[[row, column]], [64, 512], DataType.FLOAT16, x)
        kernel = device.prepare(operator)
        assert isinstance(kernel, CoordinateKernel)
        calls = kernel.calls()
        assert calls
        works.append(sum(call.work for stage in calls.stages for call in stage) / x.size)
    rows, columns, both = works
    assert rows < 8
    assert rows < columns <= both


def test_elements_of_rows_of_one_are_as_much_work_as_rows(device: NumpyDevice) -> None:
    x, (i, _) = RNG.standard_normal((1 << 14, 1)).astype(np.float32), coordinates(2)
    work = {}
    for sizes in ([1 << 14, 1], [1, 1 << 14]):
        at = [i * i - 7 * i + 3, i * 0]
        kernel = device.prepare(of_expression(absolute(operand(x)[at]), sizes, DataType.FLOAT32, x))
        assert isinstance(kernel, CoordinateKernel)
        calls = kernel.calls()
        assert calls
        work[sizes[1]] = sum(call.work for stage in calls.stages for call in stage)
    assert work[1] > work[1 << 14]


@pytest.mark.parametrize("on", ["the caller", "a helper"])
def test_all_threads_end_when_one_is_told_to(device: NumpyDevice, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of loops that look themselves. Then the kernel does as before."""
    monkeypatch.setattr("app.devices.cpu.llvm.coordinate_loops.BETWEEN_LOOKS", 1 << 12)
    x, (i, j) = RNG.integers(0, 1 << 9, (1 << 9, 1 << 12)).astype(np.int32), coordinates(2)
    operator = of_expression(operand(x)[[cast(operand(x)[[i, j]], INT64), j]], list(x.shape), DataType.INT32, x)
    kernel = device.prepare(operator)
    assert isinstance(kernel, CoordinateKernel)
    output = np.zeros_like(x)
    me = threading.get_ident()

    def dispatch(ends: bool) -> None:
        kernel.dispatch(
            [x.data.cast("B")],
            [output.data.cast("B")],
            lambda: ends and (threading.get_ident() == me) is (on == "the caller"),
        )

    def until_one_comes() -> None:
        for _ in range(1000):
            dispatch(True)

    with pytest.raises(Cancelled):
        until_one_comes()
    dispatch(False)
    np.testing.assert_array_equal(output, np.take_along_axis(x, x, 0))


def test_stages_of_more_work_than_there_is_between_looks_are_several_walks(
    device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of which the dispatch may end."""
    monkeypatch.setattr(runs, "BETWEEN_LOOKS", 1 << 20)
    document, given, output = joined(4096)
    kernel = device.prepare(compiled(document))
    assert isinstance(kernel, CallsKernel)
    looks = 0

    def cancelled() -> bool:
        nonlocal looks
        looks += 1
        return looks > 2

    with pytest.raises(Cancelled):
        kernel.dispatch([each.data.cast("B") for each in given], [output.data.cast("B")], cancelled)
    assert looks == 3
    kernel.dispatch([each.data.cast("B") for each in given], [output.data.cast("B")], lambda: False)
    np.testing.assert_array_equal(output, np.concatenate(given, 1))


IMAGE, POOLED = {"DataType": "FLOAT32", "Sizes": [1, 64, 112, 112]}, {"DataType": "FLOAT32", "Sizes": [1, 64, 55, 55]}
WINDOWS = {"WindowSize": [3, 3], "Strides": [2, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]}
GRADIENTS = {"InputGradientTensor": POOLED, "OutputGradientTensor": IMAGE, **WINDOWS}


@pytest.mark.parametrize(
    "document",
    [
        {"Type": "AVERAGE_POOLING", "InputTensor": IMAGE, "OutputTensor": POOLED, "IncludePadding": False, **WINDOWS},
        {"Type": "MAX_POOLING", "InputTensor": IMAGE, "OutputTensor": POOLED, **WINDOWS},
        {"Type": "AVERAGE_POOLING_GRAD", "IncludePadding": False, **GRADIENTS},
        {"Type": "MAX_POOLING_GRAD", "InputTensor": IMAGE, "Dilations": [1, 1], **GRADIENTS},
    ],
    ids=lambda document: document["Type"],
)
def test_what_takes_longer_than_to_hand_it_over_is_shared(device: NumpyDevice, document: dict[str, Any]) -> None:
    """And what one thread writes again and again is not beside what another one does."""
    kernel = device.prepare(compiled(document))
    assert isinstance(kernel, CallsKernel)
    (stage,) = kernel.calls().stages
    (walk,) = runs.walks(range(1), [[call.work for call in stage]], Team(compiler(), 2))
    assert walk.helpers == 1
    own = [sorted(each.offset for each in call.pointers if each.of is Of.OWN) for call in stage]
    for before, after in pairwise(each for each in own if each):
        assert after[0] - before[-1] >= 5 * LINE  # at least one of its own, and four between


@pytest.mark.parametrize(("rows", "threads"), [(256, 1), (4096, 2)], ids=["in the cache", "beyond it"])
def test_what_one_thread_scatters_into_is_its_own(device: NumpyDevice, rows: int, threads: int) -> None:
    """What another one has written would come out of that one's cache."""
    given = np.zeros((1, 1, rows, 512), np.float32)
    sizes = {"DataType": "FLOAT32", "Sizes": [1, 1, rows, 1024]}
    document = {
        "Type": "MAX_UNPOOLING",
        "InputTensor": desc_of(given),
        "IndicesTensor": {"DataType": "UINT32", "Sizes": list(given.shape)},
        "OutputTensor": sizes,
    }
    kernel = device.prepare(compiled(document))
    assert isinstance(kernel, CallsKernel)
    cleared, *others = kernel.calls().stages
    assert others
    assert all(len(stage) == 1 for stage in others)
    assert (len(cleared) > 1) is (threads > 1)


RECURRENT: dict[str, Any] = {"Direction": "FORWARD", "ActivationDescs": [{"Type": "ACTIVATION_TANH"}]}
BACKWARD: dict[str, Any] = {
    **{name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")},
    "Strides": [1, 1],
    "Dilations": [1, 1],
    "GroupCount": 1,
    "Mode": "CONVOLUTION",
    "Direction": "BACKWARD",
}
TAKING: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "RNN": (RECURRENT, {"Input": (1, 9999, 1, 8), "Weight": (1, 1, 8, 8), "Recurrence": (1, 1, 8, 8)}, (9999, 1, 1, 8)),
    "CONVOLUTION": (BACKWARD, {"Input": (1, 8, 99, 99), "Filter": (8, 40, 9, 9)}, (1, 40, 107, 107)),
}


@pytest.mark.parametrize("dtype", ["FLOAT32", "FLOAT16"])
@pytest.mark.parametrize("kind", TAKING)
def test_what_a_kernel_takes_beside_its_buffers_is_told(device: NumpyDevice, kind: str, dtype: str) -> None:
    attributes, given, sizes = TAKING[kind]
    output = "OutputTensor" if kind == "CONVOLUTION" else "OutputSequenceTensor"
    tensors = {f"{name}Tensor": {"DataType": dtype, "Sizes": list(each)} for name, each in given.items()}
    operator = compiled({"Type": kind, **attributes, **tensors, output: {"DataType": dtype, "Sizes": list(sizes)}})
    kernel = device.prepare(operator)
    assert not isinstance(kernel, CallKernel)
    inputs, outputs = (
        [memoryview(bytearray(desc.data_bytes)) for desc in descs.values()]
        for descs in (operator.inputs, operator.outputs)
    )
    kernel.dispatch(inputs, outputs, lambda: False)  # what is compiled is kept
    least = sum(each.nbytes for each in outputs)
    assert least < taken_by(kernel, inputs, outputs) < own_bytes(kernel) + (16 << 10)
    assert own_bytes(kernel) < 12 * least


def test_a_copy_of_an_output_that_lies_over_an_input_is_told(device: NumpyDevice) -> None:
    desc = {"DataType": "FLOAT32", "Sizes": [1, 1, 64, 1 << 10]}
    document = {"Type": "CUMULATIVE_SUMMATION", "InputTensor": desc, "Axis": 3, "HasExclusiveSum": False}
    kernel = device.prepare(compiled(document | {"AxisDirection": "INCREASING"}))
    assert isinstance(kernel, CallsKernel)
    memory = memoryview(bytearray(1 << 18))
    kernel.dispatch([memory], [memory], lambda: False)
    assert memory.nbytes <= taken_by(kernel, [memory], [memory]) < own_bytes(kernel) + (16 << 10)


@pytest.mark.parametrize(("channels", "is_of_calls"), [(MOST_CALLS, True), (MOST_CALLS + 1, False)])
def test_calls_are_no_more_than_there_is_memory_for(device: NumpyDevice, channels: int, *, is_of_calls: bool) -> None:
    """Each channel would have one of its own, for windows that are mostly padding."""
    far, desc = 1 << 12, {"DataType": "FLOAT32", "Sizes": [1, channels, 1, 4]}
    windows = {"WindowSize": [2 * far + 1] * 2, "StartPadding": [far] * 2, "EndPadding": [far] * 2, "Strides": [1, 1]}
    kernel = device.prepare(compiled({"Type": "MAX_POOLING", "InputTensor": desc, "OutputTensor": desc, **windows}))
    assert isinstance(kernel, CallsKernel) == is_of_calls
    if not is_of_calls:
        x = RNG.standard_normal((1, channels, 1, 4), np.float32)
        made = np.zeros_like(x)
        kernel.dispatch([x.data.cast("B")], [made.data.cast("B")], lambda: False)
        np.testing.assert_array_equal(made, np.broadcast_to(x.max(-1, keepdims=True), x.shape))


@pytest.mark.parametrize(("size", "is_of_calls"), [(256, True), (1024, False)])
def test_a_call_that_cannot_be_cut_is_not_long(device: NumpyDevice, size: int, *, is_of_calls: bool) -> None:
    """Nobody could end it: a single channel of such filters takes 40 s."""
    sizes = {"InputTensor": 2 * size, "FilterTensor": size, "OutputTensor": size + 1}
    types = {"InputTensor": "UINT8", "FilterTensor": "UINT8", "OutputTensor": "INT32"}
    tensors = {name: {"DataType": types[name], "Sizes": [1, 1, side, side]} for name, side in sizes.items()}
    steps = {name: [1, 1] for name in ("Strides", "Dilations")} | {
        name: [0, 0] for name in ("StartPadding", "EndPadding")
    }
    kernel = device.prepare(compiled({"Type": "CONVOLUTION_INTEGER", "GroupCount": 1, **steps, **tensors}))
    assert isinstance(kernel, CallsKernel) == is_of_calls


def taken_by(kernel: Kernel, inputs: list[memoryview], outputs: list[memoryview]) -> int:
    tracemalloc.start()
    try:
        kernel.dispatch(inputs, outputs, lambda: False)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
