"""Convolutions with steps and paddings of any size: they are what they say, and take no memory for what is between."""

import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array
from tests.operators import calls
from tests.operators.calls import run
from tests.operators.conftest import compiler
from tests.operators.far_windows import FarWindows


@pytest.fixture(params=["numpy", "llvm"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where `run` computes, by loops also what is small."""
    with ThreadPoolExecutor(1) as helpers:
        if request.param == "llvm":
            monkeypatch.setattr(calls, "DEVICE", NumpyDevice(helpers, 2, compiler(), 1))
        yield


def members_of(windows: FarWindows) -> dict[str, Any]:
    return {
        "Strides": windows.strides,
        "Dilations": windows.dilations,
        "StartPadding": windows.starts,
        "EndPadding": windows.ends,
        "GroupCount": 1,
    }


def at(place: tuple[int, ...]) -> Any:
    """All items and channels there."""
    return slice(None), slice(None), *place


def forward(x: Array, w: Array, windows: FarWindows) -> Array:
    made: Array = np.zeros((len(x), len(w), *windows.positions), np.int64)
    for position, element, place in windows.meetings():
        made[at(position)] += x[at(place)].astype(int) @ w[at(element)].T.astype(int)
    return made


def backward(x: Array, w: Array, windows: FarWindows) -> Array:
    made: Array = np.zeros((len(x), w.shape[1], *windows.sizes), np.int64)
    for position, element, place in windows.meetings():
        made[at(place)] += x[at(position)].astype(int) @ w[at(element)].astype(int)
    return made


def checked(kind: str, x: Array, w: Array, members: dict[str, Any], expected: Array) -> None:
    tracemalloc.start()
    try:
        made = run({"Type": kind, **members}, InputTensor=x, FilterTensor=w)["OutputTensor"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(made, expected, str((kind, members)))
    assert peak < 8 << 20, (kind, members)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", ["CONVOLUTION", "CONVOLUTION_INTEGER"])
def test_forward(kind: str) -> None:
    rng = np.random.default_rng(1)
    dtype, least = (np.int8, {}) if kind == "CONVOLUTION_INTEGER" else (np.float32, {"Direction": "FORWARD"})
    for number in range(40):
        windows = FarWindows.drawn(rng, 1 + number % 2)
        depth, outputs = (int(rng.choice([1, 3, 17])) for _ in range(2))
        x = rng.integers(-5, 6, (2, depth, *windows.sizes)).astype(dtype)
        w = rng.integers(-5, 6, (outputs, depth, *windows.extents)).astype(dtype)
        members = members_of(windows) | least
        if least:
            members |= {"Mode": "CROSS_CORRELATION", "OutputPadding": [0] * len(windows.sizes)}
        checked(kind, x, w, members, forward(x, w, windows))


@pytest.mark.usefixtures("device")
def test_backward() -> None:
    rng, number = np.random.default_rng(2), 0
    while number < 40:
        windows = FarWindows.drawn(rng, 1 + number % 2)
        last = [(count - 1) * stride for count, stride in zip(windows.positions, windows.strides, strict=True)]
        reach = [1 + (k - 1) * dilation for k, dilation in zip(windows.extents, windows.dilations, strict=True)]
        outside = map(sum, zip(windows.starts, windows.ends, strict=True))
        if min(far + each - more for far, each, more in zip(last, reach, outside, strict=True)) < 1:
            continue  # no results, but for those that the sizes add
        number += 1
        depth, outputs = (int(rng.choice([1, 3, 17])) for _ in range(2))
        x = rng.integers(-5, 6, (2, depth, *windows.positions)).astype(np.float32)
        w = rng.integers(-5, 6, (depth, outputs, *windows.extents)).astype(np.float32)
        members = members_of(windows) | {"Mode": "CROSS_CORRELATION", "Direction": "BACKWARD"}
        members["OutputPadding"] = [0] * len(windows.sizes)
        members["OutputTensor"] = {"DataType": "FLOAT32", "Sizes": [2, outputs, *windows.sizes]}
        checked("CONVOLUTION", x, w, members, backward(x, w, windows))
