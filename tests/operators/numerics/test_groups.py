"""SOFTMAX, LOG_SOFTMAX, HARDMAX and their forms over axes, in whole groups and in parts of long ones."""

import itertools
import math
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.devices.cpu import rows
from app.devices.device import Cancelled, Device
from app.memory.arrays import Array
from app.operators.operator import PREFIX
from tests.operators.descriptors import compiled, output_of
from tests.operators.numerics.evaluation import evaluate
from tests.operators.numerics.ulp import check

A = PREFIX + "ACTIVATION_"
INF, NAN = math.inf, math.nan
floats = pytest.mark.parametrize("dtype", ["float32", "float16"])


def exact(name: str, x: Array, axes: tuple[int, ...]) -> Array:
    """In long double; what is beside the first maximum is summed by itself."""
    wide = x.astype(np.longdouble)
    shifted = wide - wide.max(axis=axes, keepdims=True)
    exponentials = np.exp(shifted)
    if name.startswith("SOFTMAX"):
        return np.asarray(exponentials / exponentials.sum(axis=axes, keepdims=True))
    ties = (shifted == 0).sum(axis=axes, keepdims=True)
    others = np.where(shifted == 0, 0, exponentials).sum(axis=axes, keepdims=True)
    return np.asarray(shifted - np.log1p(others + (ties - 1)))


def hardmax(x: Array, axes: tuple[int, ...]) -> Array:
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    order = [*rest, *sorted(axes)]
    rows = x.transpose(order).reshape(math.prod(x.shape[axis] for axis in rest), -1)
    hot: Array = (np.arange(rows.shape[1]) == rows.argmax(1)[:, None]).astype(x.dtype)
    return hot.reshape([x.shape[axis] for axis in order]).transpose(np.argsort(order))


def check_softmax(device: Device, name: str, x: Array, axes: tuple[int, ...], bound: int = 4) -> None:
    attributes = {"Axes": list(axes)} if name.endswith("1") else {}
    actual = evaluate(device, A + name, attributes, x)
    expected = exact(name, x, axes)
    check(actual.ravel(), expected.ravel(), 1 if x.dtype == np.float16 else bound, x.ravel())


SHAPES = [(7,), (5, 9), (2, 3, 4, 5), (1, 1, 3, 1000), (4, 1, 6), (33, 2, 65)]


@floats
@pytest.mark.parametrize("name", ["SOFTMAX1", "LOG_SOFTMAX1", "HARDMAX1"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_choice_of_axes(device: Device, dtype: str, name: str, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(1).standard_normal(shape) * 5).astype(dtype)
    for count in range(1, len(shape) + 1):
        for axes in itertools.permutations(range(len(shape)), count) if count < 3 else [tuple(range(count))]:
            if name == "HARDMAX1":
                ties = np.round(x)
                np.testing.assert_array_equal(
                    evaluate(device, A + name, {"Axes": list(axes)}, ties), hardmax(ties, axes)
                )
            else:
                check_softmax(device, name, x, axes)


SHORT_AND_LONG = [
    (2, 2048),
    (2, 2049),
    (70, 2),
    (70, 8),
    (70, 17),
    (70, 32),
    (70, 40),
    (3, 4097),
    (2, 8200),
    (2, 16388),
]

SIDE_BY_SIDE = [(64, 7, 16), (64, 7, 15), (2, 9, 600), (2, 65, 513), (1, 130, 1024), (1, 257, 1025), (3, 5, 7, 400)]


@floats
@pytest.mark.parametrize("name", ["SOFTMAX1", "LOG_SOFTMAX1", "HARDMAX1"])
@pytest.mark.parametrize("shape", SIDE_BY_SIDE, ids=str)
def test_many_groups_side_by_side(device: Device, dtype: str, name: str, shape: tuple[int, ...]) -> None:
    """A GPU has some for each warp, whose lanes have neighbouring groups."""
    x, axes = (np.random.default_rng(7).standard_normal(shape) * 5).astype(dtype), tuple(range(1, len(shape) - 1))
    if name == "HARDMAX1":
        np.testing.assert_array_equal(evaluate(device, A + name, {"Axes": list(axes)}, x), hardmax(x, axes))
    else:
        check_softmax(device, name, x, axes)


@floats
@pytest.mark.parametrize("name", ["SOFTMAX", "LOG_SOFTMAX", "HARDMAX"])
@pytest.mark.parametrize(
    "shape",
    [(7,), (5, 9), (1, 1, 3, 1000), (300, 700), (2, 1), (3, 128), (2, 129), (5, 1024), (3, 1032), *SHORT_AND_LONG],
    ids=str,
)
def test_rows(device: Device, dtype: str, name: str, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(2).standard_normal(shape) * 5).astype(dtype)
    last = (len(shape) - 1,)
    if name == "HARDMAX":
        np.testing.assert_array_equal(evaluate(device, A + name, {}, np.round(x)), hardmax(np.round(x), last))
    else:
        check_softmax(device, name, x, last)
        np.testing.assert_array_equal(
            evaluate(device, A + name, {}, x), evaluate(device, f"{A}{name}1", {"Axes": list(last)}, x)
        )


@floats
@pytest.mark.parametrize("name", ["SOFTMAX1", "LOG_SOFTMAX1"])
@pytest.mark.parametrize("spread", [1e-3, 1, 30, 100, 1e4])
def test_all_magnitudes(device: Device, dtype: str, name: str, spread: float) -> None:
    """Also where all but one share is next to nothing, and where exponentials alone would overflow."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((200, 50)) * spread + rng.choice([0, 1e3, -1e3], (200, 1))).astype(dtype)
    check_softmax(device, name, x, (1,))
    check_softmax(device, name, np.ascontiguousarray(x.T), (0,))


@pytest.mark.parametrize("name", ["SOFTMAX1", "LOG_SOFTMAX1"])
def test_the_ends_of_the_range(device: Device, name: str) -> None:
    big = 3.4028234663852886e38
    x = np.array(
        [[big, -big, 0, big], [-big, -big, -big, -big], [1e-45, 0, -1e-45, 0], [0, -87, -100, -104]], np.float32
    )
    with np.errstate(over="ignore"):
        check_softmax(device, name, x, (1,))


@floats
@pytest.mark.parametrize("name", ["SOFTMAX1", "LOG_SOFTMAX1"])
def test_special_values(device: Device, dtype: str, name: str) -> None:
    x = np.array([[1, NAN, 2], [INF, 1, 2], [-INF, -INF, -INF], [-INF, 0, -INF]], dtype)
    actual = evaluate(device, A + name, {"Axes": [1]}, x)
    assert np.isnan(actual[:3]).all()
    assert actual[3].tolist() == ([0, 1, 0] if name == "SOFTMAX1" else [-INF, 0, -INF])


@floats
def test_hardmax_of_special_values(device: Device, dtype: str) -> None:
    x = np.array([[1, NAN, NAN], [INF, 1, INF], [-INF, -INF, -INF], [-0.0, 0.0, -1], [-1, NAN, INF]], dtype)
    assert evaluate(device, A + "HARDMAX1", {"Axes": [1]}, x).argmax(1).tolist() == [1, 0, 0, 0, 1]
    assert evaluate(device, A + "HARDMAX1", {"Axes": [1]}, x).sum() == 5
    assert np.argwhere(evaluate(device, A + "HARDMAX1", {"Axes": [0, 1]}, x)).tolist() == [[0, 1]]
    assert np.argwhere(evaluate(device, A + "HARDMAX1", {"Axes": [1, 0]}, x[1:])).tolist() == [[3, 1]]


LAYOUTS: list[tuple[list[int] | None, list[int] | None]] = [
    (None, [1, 6, 48]),
    ([60, 12, 2], None),
    ([1, 6, 48], [1, 6, 48]),
    ([0, 8, 1], [100, 10, 1]),
    ([40, 0, 1], None),
    ([1, 60, 7], [64, 1, 8]),
]


@pytest.mark.parametrize("name", ["SOFTMAX1", "LOG_SOFTMAX1", "HARDMAX1"])
@pytest.mark.parametrize(("of_input", "of_output"), LAYOUTS)
@pytest.mark.parametrize("block", [4, 1 << 16])
def test_any_layout(
    device: Device, name: str, of_input: list[int] | None, of_output: list[int] | None, block: int
) -> None:
    """In whole groups, and in parts of groups longer than a block."""
    sizes = [6, 8, 5]
    for axes in ([2], [0], [1, 2], [2, 0], [0, 1, 2]):
        descs = [{"DataType": "FLOAT32", "Sizes": sizes, "Strides": strides} for strides in (of_input, of_output)]
        with mock.patch.object(rows, "BLOCK_ELEMENTS", block), mock.patch.object(rows, "LONGEST_ROW", block):
            operator = compiled({"Type": A + name, "InputTensor": descs[0], "OutputTensor": descs[1], "Axes": axes})
            kernel = device.prepare(operator)
            desc = operator.inputs["InputTensor"]
            data = np.round(np.random.default_rng(4).standard_normal(desc.reach) * 3).astype(np.float32)
            output = np.full(output_of(operator).reach, 77, np.float32)
            kernel.dispatch([data.view(np.uint8).data], [output.view(np.uint8).data], lambda: False)
        x, actual = (
            np.lib.stride_tricks.as_strided(buffer, sizes, [4 * step for step in layout.strides])
            for buffer, layout in ((data, desc), (output, output_of(operator)))
        )
        if name == "HARDMAX1":
            np.testing.assert_array_equal(actual, hardmax(x, tuple(axes)))
        else:
            check(actual.ravel(), exact(name, x, tuple(axes)).ravel(), 4, x.ravel())
        assert np.count_nonzero(output == 77) == output.size - x.size, "gaps are left alone"


longest = pytest.mark.parametrize("longest", [1 << 16, rows.LONGEST_ROW], ids=["in parts", "whole"])


@floats
@longest
@pytest.mark.parametrize("name", ["SOFTMAX", "LOG_SOFTMAX"])
def test_a_long_row(device: Device, dtype: str, name: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_ROW", longest)
    x = (np.random.default_rng(5).standard_normal((2, 200_001)) * 3).astype(dtype)
    check_softmax(device, name, x, (1,))


@longest
def test_the_first_maximum_of_a_long_row(device: Device, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_ROW", longest)
    x = np.random.default_rng(6).integers(0, 100, (3, 150_000)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(device, A + "HARDMAX", {}, x), hardmax(x, (1,)))
    x[0, 140_000] = NAN
    assert evaluate(device, A + "HARDMAX", {}, x)[0].argmax() == 140_000


@pytest.mark.parametrize("sizes", [[4, 1000], [1, 200_000]])
def test_a_cancelled_dispatch_stops(device: Device, sizes: list[int]) -> None:
    desc: dict[str, Any] = {"DataType": "FLOAT32", "Sizes": sizes}
    kernel = device.prepare(compiled({"Type": A + "SOFTMAX", "InputTensor": desc}))
    data, output = (np.zeros(sizes, np.float32).reshape(-1).view(np.uint8).data for _ in range(2))
    with pytest.raises(Cancelled):
        kernel.dispatch([data], [output], lambda: True)
