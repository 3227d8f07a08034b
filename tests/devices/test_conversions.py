"""Conversions of FLOAT16 by loops: NumPy's bits, and what is left to NumPy."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu import conversions
from app.devices.cpu.conversions import LEAST, Conversions
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import LoopCode
from app.formula.structures import Structures
from app.memory.arrays import Array
from app.operators.looks import copied, looking
from tests.operators.calls import compiled

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.fixture(scope="module")
def made() -> Conversions:
    return Conversions(LoopCode(Compiler(), Structures()))


def agree(found: Array, wanted: Array) -> None:
    """A NaN may have any bits."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    there = ~np.isnan(wanted)
    assert found[there].tobytes() == wanted[there].tobytes()


def test_every_half_is_widened(made: Conversions) -> None:
    agree(made.packed(EVERY), EVERY.astype(np.float32))


def test_floats_are_rounded_once_to_the_nearest_even_one(made: Conversions) -> None:
    """Halves, what is half way between two, and just beside that; what is too large, and too small."""
    halves = EVERY[np.isfinite(EVERY)].astype(np.float32)
    with np.errstate(over="ignore"):
        ties = (halves + np.nextafter(EVERY[np.isfinite(EVERY)], np.float16(np.inf)).astype(np.float32)) / 2
    beside = [np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1)]
    x = np.concatenate(
        [halves, ties, *beside, np.array([np.nan, np.inf, -np.inf, 65519.996, 65520, 1e38, 1e-38], np.float32)]
    )
    target = np.empty(x.shape, np.float16)
    made.store(x, target)
    with np.errstate(over="ignore"):
        agree(target, x.astype(np.float16))


@pytest.mark.parametrize("size", [LEAST, LEAST + 1, 1000, 1023, 1025])
def test_of_any_size_and_in_pieces(made: Conversions, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "PIECE", 100)
    x = np.random.default_rng(size).standard_normal(size).astype(np.float16)
    memory = np.full(size + 2, 7, np.float32)
    assert made.copied(x, memory[1:-1])
    assert memory[1:-1].tobytes() == x.astype(np.float32).tobytes()
    assert memory[[0, -1]].tolist() == [7, 7]


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_what_lies_one_after_the_other_in_another_order(made: Conversions, order: Sequence[int]) -> None:
    x = np.random.default_rng(1).standard_normal((20, 6, 30)).astype(np.float16).transpose(order)
    target = np.empty_like(x, np.float32)
    assert made.copied(x, target)
    np.testing.assert_array_equal(target, x)


def test_what_is_left_to_numpy(made: Conversions) -> None:
    """Few elements, gaps between them, another order in the target, and other types."""
    half, rows = np.ones(2 * LEAST, np.float16), np.ones((LEAST, 3), np.float16)
    for x, target in (
        (half[: LEAST - 1], np.empty(LEAST - 1, np.float32)),
        (half[::2], np.empty(LEAST, np.float32)),
        (half[:LEAST], np.empty(2 * LEAST, np.float32)[::2]),
        (rows, np.empty((LEAST, 3), np.float32, "F")),
        (half, np.empty(2 * LEAST, np.float64)),
        (half, np.empty(2 * LEAST, np.int32)),
        (half.view(np.int16), np.empty(2 * LEAST, np.float32)),
    ):
        assert not made.copied(x, target)
        made.store(x, target)
        np.testing.assert_array_equal(target, x)
        np.testing.assert_array_equal(made.packed(x), x)


@pytest.fixture
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 2, Compiler())


def packed(*sizes: int) -> dict[str, Any]:
    return {"DataType": "FLOAT16", "Sizes": [*sizes]}


GEMM: dict[str, Any] = {
    "Type": "GEMM",
    "TransA": "NONE",
    "TransB": "NONE",
    "Alpha": 1,
    "Beta": 0,
    "ATensor": packed(1, 1, 4, 128),
    "BTensor": packed(1, 1, 128, 4),
}
CONVOLUTION: dict[str, Any] = {
    "Type": "CONVOLUTION",
    "Mode": "CROSS_CORRELATION",
    "Direction": "FORWARD",
    "DimensionCount": 2,
    "InputTensor": packed(1, 8, 8, 8),
    "FilterTensor": packed(8, 8, 1, 1),
    "Strides": [1, 1],
    "Dilations": [1, 1],
    "StartPadding": [0, 0],
    "EndPadding": [0, 0],
    "OutputPadding": [0, 0],
    "GroupCount": 1,
}


@pytest.mark.parametrize("document", [GEMM, CONVOLUTION], ids=["GEMM", "CONVOLUTION"])
def test_loops_are_compiled_by_a_worker(device: NumpyDevice, document: dict[str, Any]) -> None:
    """Whose first dispatch it is, whatever it converts; from then on the event loop may do it."""
    operator = compiled(document)
    kernel = device.prepare(operator)
    assert not kernel.runs_inline
    inputs = [memoryview(bytes(desc.data_bytes)) for desc in operator.inputs.values()]
    (output,) = operator.outputs.values()
    kernel.dispatch(inputs, [memoryview(bytearray(output.data_bytes))], lambda: False)
    assert kernel.runs_inline


def test_only_within_a_dispatch_are_loops_at_hand(device: NumpyDevice) -> None:
    x, target = np.ones(LEAST, np.float16), np.empty(LEAST, np.float32)
    assert not copied(x, target)
    with looking(lambda: None, device._threads):
        assert copied(x, target)
