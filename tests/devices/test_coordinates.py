"""Formulas that go by coordinates, computed by NumPy and by loops, and calls, against plain NumPy."""

import os
import tracemalloc
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

from app.contract.constants import NEWEST, DataType
from app.contract.scalars import Float, Scalar, Uint
from app.contract.tensors import TensorDesc
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.numpy import coordinates as evaluation
from app.devices.device import Cancelled
from app.formula import coordinates as c
from app.formula.coordinates import Operand, coordinates
from app.formula.structures import Structures
from app.formula.values import INT64, Parameter, Value, cast, converted, maximum, quotient, remainder_of_floor
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator
from app.operators.fusion import OptionalFusedActivation
from app.operators.operator import InputTensorDesc, OutputTensorDesc
from app.operators.parameters import TensorParameters, bare
from app.operators.structure import sizes_of
from app.programs.program import Map, Program
from tests.operators.arrays import bytes_of, desc_of, laid_out, run
from tests.operators.coordinate_operators import (
    AveragePooling,
    CumulativeSum,
    Gather,
    Join,
    Reduce,
    Slice1,
    Unjudged,
    compiled,
)

TYPES = [each for each in DataType if each.bits >= 8]
EXHAUSTIVE = os.environ.get("DMLSERVE_EXHAUSTIVE") == "1"
COMPILER = Compiler()
STRUCTURES = Structures()


@pytest.fixture(scope="module")
def helpers() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture(params=["NumPy", "LLVM"])
def compiler(request: pytest.FixtureRequest) -> Compiler | None:
    """Each test once with each of both ways to compute."""
    return COMPILER if request.param == "LLVM" else None


@pytest.fixture(params=["whole", "pieces", "pieces on threads"], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many there are: each test once with everything at a time, which one thread computes, and with blocks and
    totals in small pieces, by one thread and by several."""
    if request.param != "whole":
        monkeypatch.setattr(evaluation, "MOST", 64)
        monkeypatch.setattr(evaluation, "LEAST_BLOCK", 7)
        monkeypatch.setattr("app.devices.cpu.coordinates.SMALL_WORK", 0)
        monkeypatch.setattr("app.devices.cpu.calls.WORTH_A_CALL", 1)
        monkeypatch.setattr("app.devices.cpu.coordinates.UNEVEN", 1)
        monkeypatch.setattr("app.devices.cpu.runs.WORTH_A_THREAD", 1)
        monkeypatch.setattr("app.devices.cpu.runs.WORTH_WAKING", 1)
        monkeypatch.setattr("app.devices.cpu.llvm.coordinate_loops.BETWEEN_LOOKS", 1)
    return 3 if request.param == "pieces on threads" else 1


@pytest.fixture
def device(threads: int, helpers: Executor, compiler: Compiler | None) -> NumpyDevice:
    return NumpyDevice(helpers, threads, compiler, least=0, structures=STRUCTURES)


def elements(rng: np.random.Generator, sizes: list[int], data_type: DataType) -> Array:
    dtype = numpy_type(data_type)
    if dtype.kind == "f":
        return (rng.integers(-40, 40, sizes) / 8).astype(dtype)
    return rng.integers(max(np.iinfo(dtype).min, -90), 90, sizes).astype(dtype)


@pytest.mark.parametrize("data_type", TYPES)
def test_slices(device: NumpyDevice, data_type: DataType) -> None:
    rng = np.random.default_rng(1)
    for _ in range(12):
        sizes = [int(each) for each in rng.integers(2, 9, rng.integers(1, 5))]
        x = laid_out(rng, elements(rng, sizes, data_type))
        offsets = [int(rng.integers(0, size)) for size in sizes]
        windows = [int(rng.integers(1, size - offset + 1)) for size, offset in zip(sizes, offsets, strict=True)]
        strides = [int(rng.choice([-2, -1, 1, 2, 3])) for _ in sizes]
        cut = x[tuple(slice(o, o + w) for o, w in zip(offsets, windows, strict=True))][
            tuple(slice(None, None, step) for step in strides)
        ]
        out = laid_out(rng, np.zeros_like(cut))
        operator = compiled(
            Slice1,
            {
                "InputTensor": desc_of(x),
                "OutputTensor": desc_of(out),
                "InputWindowOffsets": offsets,
                "InputWindowSizes": windows,
                "InputWindowStrides": strides,
            },
            STRUCTURES,
        )
        np.testing.assert_array_equal(run(device, operator, {"InputTensor": x})["OutputTensor"], cut)


@pytest.mark.parametrize("index_type", ["INT64", "INT32", "UINT32", "INT8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gathers_read_nothing_outside(device: NumpyDevice, axis: int, index_type: str) -> None:
    """Whatever the indices are: the tensor is followed by what would be seen."""
    rng = np.random.default_rng(2)
    dtype = numpy_type(DataType(index_type))
    x = rng.integers(1, 100, (5, 6)).astype(np.float32)
    limits = np.iinfo(dtype)
    indices = np.array([0, 2, -1, -3, 4, 5, 6, -5, -6, -7, 77, limits.max, limits.min, limits.max - 1]).astype(dtype)
    out = np.zeros((14, 6) if axis == 0 else (5, 14), np.float32)
    members = {"InputTensor": desc_of(x), "IndicesTensor": desc_of(indices), "OutputTensor": desc_of(out), "Axis": axis}
    inputs = {"InputTensor": x, "IndicesTensor": indices}
    size = x.shape[axis]
    places = [int(each) + size * (each < 0) for each in indices]
    nearest = x.take(np.clip(places, 0, size - 1), axis)
    np.testing.assert_array_equal(run(device, compiled(Gather, members, STRUCTURES), inputs)["OutputTensor"], nearest)
    outside = np.array([not 0 <= each < size for each in places])
    expected = np.where(outside[:, None] if axis == 0 else outside, -1.5, nearest)
    members["Beyond"] = -1.5
    np.testing.assert_array_equal(run(device, compiled(Gather, members, STRUCTURES), inputs)["OutputTensor"], expected)


def expected_reduction(function: str, x: Array, axes: tuple[int, ...], *, last: bool) -> Array:
    """In float64, or the integers' own type."""
    if function.startswith("ARG"):
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        flat = x.transpose(*rest, *axes).reshape(*[x.shape[axis] for axis in rest], -1)
        of = np.argmax if function == "ARGMAX" else np.argmin
        place = flat.shape[-1] - 1 - of(flat[..., ::-1], axis=-1) if last else of(flat, axis=-1)
        return np.expand_dims(place, axes)
    dtype = np.float64 if x.dtype.kind == "f" else x.dtype
    y = x.astype(dtype)
    options: dict[str, Any] = {"axis": axes, "keepdims": True}
    with np.errstate(all="ignore"):
        functions: dict[str, Any] = {
            "AVERAGE": lambda: y.mean(**options),
            "L1": lambda: np.abs(y).sum(dtype=dtype, **options),
            "L2": lambda: np.sqrt((y * y).sum(**options)),
            "LOG_SUM": lambda: np.log(y.sum(**options)),
            "LOG_SUM_EXP": lambda: np.log(np.exp(y).sum(**options)),
            "MAX": lambda: y.max(**options),
            "MIN": lambda: y.min(**options),
            "MULTIPLY": lambda: y.prod(dtype=dtype, **options),
            "SUM": lambda: y.sum(dtype=dtype, **options),
            "SUM_SQUARE": lambda: (y * y).sum(dtype=dtype, **options),
        }
        made: Array = functions[function]()
        return made


OF_INTEGERS = ("ARGMAX", "ARGMIN", "L1", "MAX", "MIN", "MULTIPLY", "SUM", "SUM_SQUARE")


@pytest.mark.parametrize(
    ("function", "last"), [*((each, False) for each in Reduce.FUNCTIONS), ("ARGMAX", True), ("ARGMIN", True)]
)
def test_reductions(device: NumpyDevice, compiler: Compiler | None, function: str, last: bool) -> None:
    """Loops are compiled for every third type, in turns, unless all is asked for."""
    rng = np.random.default_rng(3)
    turn = Reduce.FUNCTIONS.index(function) + last
    for place, data_type in enumerate(TYPES):
        if not data_type.startswith("FLOAT") and function not in OF_INTEGERS:
            continue
        if compiler and not EXHAUSTIVE and (place + turn) % 3:
            continue
        sizes = [int(each) for each in rng.integers(1, 8, rng.integers(1, 5))]
        axes = [int(each) for each in np.flatnonzero(rng.integers(0, 2, len(sizes)))] or [0]
        x = elements(rng, sizes, data_type)
        if data_type.startswith("FLOAT") and rng.random() < 0.5:
            x.reshape(-1)[rng.integers(0, x.size, 2)] = np.nan
        expected = expected_reduction(function, x, tuple(axes), last=last)
        stored = np.uint32 if function.startswith("ARG") else x.dtype
        x = laid_out(rng, x)
        out = laid_out(rng, np.zeros(expected.shape, stored))
        members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(out), "Function": function, "Axes": axes}
        operator = compiled(Reduce, members | {"Last": last}, STRUCTURES)
        made = run(device, operator, {"InputTensor": x})["OutputTensor"]
        with np.errstate(all="ignore"):
            if stored == np.float16:
                np.testing.assert_allclose(made, expected.astype(np.float16), 2e-3, 1e-3)
            elif data_type.startswith("FLOAT") and not function.startswith("ARG"):
                np.testing.assert_allclose(made, expected.astype(stored), 1e-6)
            else:
                np.testing.assert_array_equal(made, expected.astype(stored))


def pooled(x: Array, weight: Array | None, window: int, padding: int, count: int) -> tuple[list[float], list[int]]:
    means, counts = [], []
    for place in range(count):
        part = x[max(place - padding, 0) : max(place - padding + window, 0)].astype(np.float64)
        weights = 1 if weight is None else weight[: len(part)]
        means.append(float((part * weights).sum()) / len(part) if len(part) else np.nan)
        counts.append(len(part))
    return means, counts


@pytest.mark.parametrize("weighted", [False, True])
def test_counts_may_depend_on_coordinates_and_be_0(device: NumpyDevice, weighted: bool) -> None:
    rng = np.random.default_rng(4)
    x, out, counts = rng.integers(0, 9, 20).astype(np.float32), np.zeros(40, np.float32), np.zeros(40, np.int64)
    weight = rng.integers(0, 9, 7).astype(np.float32)
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(out), "WindowSize": 7, "StartPadding": 12}
    inputs = {"InputTensor": x}
    if weighted:
        members["WeightTensor"], inputs["WeightTensor"] = desc_of(weight), weight
    expected, there = pooled(x, weight if weighted else None, 7, 12, 40)
    assert 0 in there
    assert 3 in there
    made = run(device, compiled(AveragePooling, members), inputs)
    assert list(made) == ["OutputTensor"]  # the other one is not there, and not computed
    np.testing.assert_allclose(made["OutputTensor"], expected, 1e-6)
    made = run(device, compiled(AveragePooling, members | {"OutputCountTensor": desc_of(counts)}), inputs)
    np.testing.assert_array_equal(made["OutputCountTensor"], there)
    np.testing.assert_allclose(made["OutputTensor"], expected, 1e-6)


def of_expression(
    expression: Value, sizes: list[int], stored: DataType, x: Array | None = None, **numbers: int
) -> CompiledOperator:
    """An operator whose only output is `expression`, of the tensor X and of these numbers."""
    inputs = (
        {} if x is None else {"X": TensorDesc.model_validate(desc_of(x) | {"DataType": DataType(x.dtype.name.upper())})}
    )
    program = Program(
        {name: desc.DataType for name, desc in inputs.items()}, {"Y": Map(expression, stored, by_coordinates=True)}
    )
    outputs = {"Y": TensorDesc(DataType=stored, Sizes=sizes)}
    return CompiledOperator(inputs, outputs, program, dict(sizes_of(inputs)) | numbers, bare(Slice1), NEWEST)


def operand(x: Array) -> Operand:
    data_type = DataType(x.dtype.name.upper())
    sizes = [Parameter(INT64, c.size_name("X", axis)) for axis in range(x.ndim)]
    return Operand("X", data_type, sizes, data_type)


N = Parameter(INT64, "n")


def test_totals_inside_totals_and_in_their_counts(device: NumpyDevice) -> None:
    """Of an element at (i): over j below (i + the sum of k below i), with another total of j and i inside."""
    x = np.random.default_rng(5).integers(-99, 99, 30).astype(np.int32)
    (i,) = coordinates(1)
    of = operand(x)
    count = i + c.sum_over([i], lambda k: k)

    def inner(j: Value) -> Value:
        return c.maximum_over([2, remainder_of_floor(j, 3)], lambda a, b: of[[i + j * 2 + a * 5 - b]])

    made = run(device, of_expression(c.sum_over([count], inner), [9], DataType.INT32, x), {"X": x})["Y"]

    def at(place: int) -> int:
        return int(x[min(max(place, 0), 29)])

    with np.errstate(all="ignore"):
        expected = [
            np.array(
                [
                    max([at(i + j * 2 + a * 5 - b) for a in range(2) for b in range(j % 3)], default=-(2**31))
                    for j in range(i + sum(range(i)))
                ],
                np.int32,
            ).sum(dtype=np.int32)
            for i in range(9)
        ]
    np.testing.assert_array_equal(made, expected)


POSITIONS = ["first_maximum", "last_maximum", "first_minimum", "last_minimum"]


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_positions_among_uneven_counts(device: NumpyDevice, name: Any, dtype: Any) -> None:
    """Ties, NaN, and the value that stands for nothing among them."""
    rng = np.random.default_rng(6)
    values = [-np.inf, np.inf, np.nan, 1, 2, 2] if dtype is np.float32 else [-128, 127, 1]
    for _ in range(8):
        x = rng.choice(values, (12, 4, 3), p=None).astype(dtype)
        if rng.random() < 0.5:
            x[...] = np.where(np.isnan(x), dtype(values[0]), x) if dtype is np.float32 else x
        i, _ = coordinates(2)
        of = operand(x)
        counts = [remainder_of_floor(i, 5), quotient(i, 4)]
        expression = c.position_over(name, counts, lambda a, b, of=of, i=i: of[[i, a, b]])
        made = run(device, of_expression(expression, [12, 2], DataType.INT64, x), {"X": x})["Y"]
        for place in range(12):
            flat = x[place, : place % 5, : place // 4].reshape(-1)
            function = np.argmax if name.endswith("maximum") else np.argmin
            expected = 0
            if flat.size:
                expected = int(function(flat))
                if name.startswith("last"):
                    expected = flat.size - 1 - int(function(flat[::-1]))
            assert made[place].tolist() == [expected] * 2


@pytest.mark.parametrize("data_type", TYPES)
def test_totals_of_nothing(device: NumpyDevice, compiler: Compiler | None, data_type: DataType) -> None:
    """Loops that find positions are compiled for one of them with each type, in turns, unless all is asked for."""
    x = np.ones(3, numpy_type(data_type))
    of = operand(x)
    limits = np.iinfo(x.dtype) if x.dtype.kind != "f" else None
    for over, expected in (
        (c.sum_over, 0),
        (c.product_over, 1),
        (c.maximum_over, limits.min if limits else -np.inf),
        (c.minimum_over, limits.max if limits else np.inf),
    ):
        expression = over([3, N], lambda a, b: of[[a + b]])
        for count in (0, -5):
            made = run(device, of_expression(expression, [2], data_type, x, n=count), {"X": x})["Y"]
            assert made.tolist() == [expected] * 2
    turn = TYPES.index(data_type) % len(POSITIONS)
    for name in POSITIONS if EXHAUSTIVE or not compiler else POSITIONS[turn : turn + 1]:
        expression = c.position_over(name, [N], lambda a: of[[a]])  # type: ignore[arg-type]
        assert run(device, of_expression(expression, [1], DataType.INT64, x, n=0), {"X": x})["Y"].tolist() == [0]


@pytest.mark.parametrize("name", ["sum", *POSITIONS])
def test_terms_come_to_totals_of_strips_several_at_a_time(device: NumpyDevice, name: Any) -> None:
    """As many as there are, whether a whole number of times or not."""
    x = np.random.default_rng(7).integers(-3, 4, (11, 37)).astype(np.float32)
    of = operand(x)
    (j,) = coordinates(1)
    if name == "sum":
        expression = c.sum_over([N], lambda i: of[[i, j]])
    else:
        expression = c.position_over(name, [N], lambda i: of[[i, j]])
    made_as = DataType.FLOAT32 if name == "sum" else DataType.INT64
    for count in (-5, *range(12)):
        made = run(device, of_expression(expression, [37], made_as, x, n=count), {"X": x})["Y"]
        rows = x[: max(count, 0)]
        if name == "sum":
            expected = rows.sum(0)
        elif not rows.size:
            expected = np.zeros(37)
        else:
            rows = rows if name.endswith("maximum") else -rows
            expected = rows.argmax(0) if name.startswith("first") else len(rows) - 1 - rows[::-1].argmax(0)
        np.testing.assert_array_equal(made, expected)


def test_sums_are_rounded_once_and_integers_wrap(device: NumpyDevice) -> None:
    x = np.full(200, 1, np.float32)
    x[0] = 2**24
    of = operand(x)
    expression = c.sum_over([of.sizes[0]], lambda i: of[[i]])
    assert run(device, of_expression(expression, [1], DataType.FLOAT32, x), {"X": x})["Y"] == np.float32(2**24 + 199)
    y = np.full(200, 100, np.int8)
    other = operand(y)
    expression = c.sum_over([200], lambda i: other[[i]])
    assert run(device, of_expression(expression, [1], DataType.INT8, y), {"X": y})["Y"] == np.int8(20000 - 78 * 256)
    expression = c.product_over([7], lambda i: cast(i * 0 + 10**4, "int64"))
    assert run(device, of_expression(expression, [1], DataType.INT64), {})["Y"] == (10**28 + 2**63) % 2**64 - 2**63


def test_memory_of_large_totals_is_bounded(helpers: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^22 values for each of 64 elements would take 2 GiB."""
    monkeypatch.setattr(evaluation, "MOST", 1 << 17)
    (i,) = coordinates(1)
    expression = c.sum_over([N], lambda j: maximum(i, j))
    kernel = NumpyDevice(helpers, 1).prepare(of_expression(expression, [4], DataType.INT64, n=1 << 22))
    output = np.zeros(4, np.int64)
    tracemalloc.start()
    try:
        kernel.dispatch([], [output.view(np.uint8).data], lambda: False)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert not kernel.runs_inline
    many = (1 << 22) * ((1 << 22) - 1) // 2
    assert output.tolist() == [many + i * (i + 1) // 2 for i in range(4)]


def test_cancellation_inside_a_total_and_between_blocks(
    helpers: Executor, compiler: Compiler | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops ask in between, so that their blocks may be large."""
    monkeypatch.setattr("app.devices.cpu.llvm.coordinate_loops.BETWEEN_LOOKS", 1 << 16)
    (i,) = coordinates(1)
    x = np.zeros(4, np.int64)
    endless = c.sum_over([N], lambda j: remainder_of_floor(i + j * j, 7))
    empty = c.sum_over([N, i * 0], lambda j, k: j + k)
    beside = c.sum_over([N, i * 0], lambda j, k: operand(x)[[i + j * k]])
    for expression, elements in ((endless, 1), (empty, 1), (beside, 3), (i + N, 1 << 20)):
        looks = 0

        def cancelled() -> bool:
            nonlocal looks
            looks += 1
            return looks > 3

        if expression in (empty, beside) and compiler is None:
            continue  # NumPy takes no steps where there is nothing
        operator = of_expression(expression, [elements], DataType.INT64, x, n=1 << 50)
        with pytest.raises(Cancelled):
            NumpyDevice(helpers, threads, compiler).prepare(operator).dispatch(
                [bytes_of(x)], [memoryview(bytearray(8 * elements))], cancelled
            )
        assert looks <= 3 + threads


def test_an_output_may_take_the_memory_of_an_input(device: NumpyDevice) -> None:
    """Elements at other places are read all the same as they were."""
    x = np.arange(1000, dtype=np.int32)
    of = operand(x)
    (i,) = coordinates(1)
    operator = of_expression(of[[of.sizes[0] - 1 - i]], [1000], DataType.INT32, x)
    buffer = x.view(np.uint8).data
    device.prepare(operator).dispatch([buffer], [buffer], lambda: False)
    np.testing.assert_array_equal(x, np.arange(999, -1, -1))


def test_a_buffer_that_is_too_short_is_refused(device: NumpyDevice) -> None:
    x = np.arange(100, dtype=np.int32)
    operator = of_expression(operand(x)[coordinates(1)], [100], DataType.INT32, x)
    for lengths in ((400, 399), (399, 400)):
        buffers = [memoryview(bytearray(each)) for each in lengths]
        with pytest.raises((ValueError, TypeError)):
            device.prepare(operator).dispatch(buffers[:1], buffers[1:], lambda: False)


def test_bad_formulas_are_refused() -> None:
    of = operand(np.zeros((2, 2), np.float32))
    with pytest.raises(TypeError, match="2 dimensions"):
        of[coordinates(1)]
    with pytest.raises(TypeError, match="int64"):
        of[[of[[0, 0]], 0]]
    with pytest.raises(TypeError, match="int64"):
        c.sum_over([of[[0, 0]]], lambda i: i)
    with pytest.raises(TypeError, match="bools"):
        c.maximum_over([2], lambda i: i > 0)


def test_arrays_of_tensors(device: NumpyDevice) -> None:
    rng = np.random.default_rng(9)
    for axis in (0, 1, 2):
        for count in (1, 2, 4):
            sizes = [[3, 4, 5] for _ in range(count)]
            for each in sizes:
                each[axis] = int(rng.integers(1, 6))
            tensors = [laid_out(rng, elements(rng, each, DataType.INT32)) for each in sizes]
            joined = np.concatenate(tensors, axis)
            members = {
                "InputTensors": [desc_of(each) for each in tensors],
                "OutputTensor": desc_of(joined),
                "Axis": axis,
            }
            inputs = {f"InputTensors[{place}]": each for place, each in enumerate(tensors)}
            made = run(device, compiled(Join, members, STRUCTURES), inputs)["OutputTensor"]
            np.testing.assert_array_equal(made, joined)


# Calls


@pytest.mark.parametrize("data_type", TYPES)
def test_calls(device: NumpyDevice, data_type: DataType) -> None:
    rng = np.random.default_rng(8)
    for axis in (0, 1, 2):
        x = elements(rng, [3, 4, 5], data_type)
        if data_type.startswith("FLOAT"):
            x[1] = [[np.inf], [-np.inf], [np.nan], [0]]  # of which no warning comes
        x = laid_out(rng, x)
        out = laid_out(rng, np.zeros_like(x))
        members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(out), "Axis": axis}
        made = run(device, compiled(CumulativeSum, members), {"InputTensor": x})["OutputTensor"]
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(made, np.cumsum(x, axis, x.dtype))


class Careless(CumulativeSum):
    """Makes what it should not."""

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x = inputs["InputTensor"]
        if self.Axis == 0:
            return {"OutputTensor": x.astype(np.float64)}
        if self.Axis == 1:
            return {"OutputTensor": x[:, :1]}
        x[...] = 0
        return {"OutputTensor": x}


@pytest.mark.parametrize(
    ("axis", "error", "why"),
    [
        (0, TypeError, r"OutputTensor is float32 \[2, 2\], and was made as float64 \(2, 2\)"),
        (1, TypeError, r"OutputTensor is float32 \[2, 2\], and was made as float32 \(2, 1\)"),
        (2, ValueError, "read-only"),
    ],
)
def test_what_a_call_makes_is_checked_and_inputs_are_not_written(
    device: NumpyDevice, axis: int, error: type[Exception], why: str
) -> None:
    x = np.ones((2, 2), np.float32)
    members = {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": axis}
    with pytest.raises(error, match=why):
        run(device, compiled(Careless, members), {"InputTensor": x})
    assert (x == 1).all()


@pytest.mark.parametrize("after", [0, 1])
def test_calls_are_cancelled_before_and_after(device: NumpyDevice, after: int) -> None:
    x, out = np.ones((40, 40), np.float32), np.zeros((40, 40), np.float32)
    kernel = device.prepare(compiled(CumulativeSum, {"InputTensor": desc_of(x), "OutputTensor": desc_of(x), "Axis": 0}))
    looks = iter([False] * after + [True])
    with pytest.raises(Cancelled):
        kernel.dispatch([x.view(np.uint8).reshape(-1).data], [out.view(np.uint8).reshape(-1).data], lambda: next(looks))
    assert not out.any()
    assert not kernel.runs_inline


# Keys


def test_one_formula_serves_all_sizes_and_numbers(device: NumpyDevice) -> None:
    """Not so of other axes, ranks, and optional tensors and attributes."""
    structures = Structures()
    programs = set()

    def reduce(sizes: list[int], axes: list[int]) -> None:
        out = [1 if axis in axes else size for axis, size in enumerate(sizes)]
        members = {"InputTensor": {"DataType": "FLOAT32", "Sizes": sizes}, "Function": "SUM", "Axes": axes}
        members["OutputTensor"] = {"DataType": "FLOAT32", "Sizes": out}
        programs.add(compiled(Reduce, members, structures).program)

    for size in range(1, 9):
        reduce([size, 3, 2 * size], [1])
    assert len(programs) == 1
    reduce([3, 3, 3], [2])
    reduce([3, 3, 3], [1, 2])
    reduce([3, 3], [1])
    assert len(programs) == 4
    assert structures.misses == 4
    programs.clear()
    x = {"DataType": "FLOAT32", "Sizes": [4, 4]}
    for beyond in ({}, {"Beyond": 1.0}, {"Beyond": 2.0}):
        members = {"InputTensor": x, "IndicesTensor": {"DataType": "INT32", "Sizes": [4]}, "OutputTensor": x, "Axis": 0}
        programs.add(compiled(Gather, members | beyond, structures).program)
    assert len(programs) == 2
    programs.clear()
    for offset in range(5):
        members = {"InputTensor": x, "OutputTensor": x, "InputWindowOffsets": [offset, 0], "InputWindowSizes": [9, 9]}
        operator = compiled(Slice1, members | {"InputWindowStrides": [-1, 1]}, structures)
        assert operator.numbers["InputWindowOffsets[0]"] == offset
        assert operator.numbers["InputTensor.Sizes[1]"] == 4
        programs.add(operator.program)
    assert len(programs) == 1
    assert not operator.program.is_by_position


def test_a_reduction_is_as_large_as_what_it_reduces() -> None:
    """By which devices are chosen, and threads."""
    x, out = {"DataType": "FLOAT32", "Sizes": [40, 50]}, {"DataType": "FLOAT32", "Sizes": [40, 1]}
    members = {"InputTensor": x, "OutputTensor": out, "Function": "SUM", "Axes": [1]}
    assert compiled(Reduce, members).elements == 2000


class Size(BaseModel):
    Width: Uint
    Height: Uint


class Enlarge(Unjudged):
    """Structures, arrays of floats, scalars and fused activations."""

    Type: Literal["DML_OPERATOR_TEST_ENLARGE"] = "DML_OPERATOR_TEST_ENLARGE"
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    ScaleSize: Size
    Bias: list[Float]
    Start: Scalar = 0
    FusedActivation: OptionalFusedActivation = None

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        i, j = coordinates(2)
        row, column = quotient(i, p["ScaleSize.Height"]), quotient(j, p["ScaleSize.Width"])
        y = x[[row, column]] * p.Bias[0] + p.Bias[1] + converted(p.Start, x.data_type)
        return self.FusedActivation.formula(p.below("FusedActivation."), y) if self.FusedActivation else y


def test_attributes_of_all_kinds(device: NumpyDevice) -> None:
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    structures = Structures()
    programs = set()
    for width, height, slope in ((1, 2, 0.5), (3, 1, 0.25)):
        y = x.repeat(height, 0).repeat(width, 1) * 2 + 3 - 1
        members = {
            "InputTensor": desc_of(x),
            "OutputTensor": desc_of(y),
            "ScaleSize": {"Width": width, "Height": height},
            "Bias": [2.0, 3.0],
            "Start": -1,
            "FusedActivation": {"Type": "DML_OPERATOR_ACTIVATION_LEAKY_RELU", "Alpha": slope},
        }
        operator = compiled(Enlarge, members, structures)
        programs.add(operator.program)
        made = run(device, operator, {"InputTensor": x})["OutputTensor"]
        np.testing.assert_array_equal(made, np.where(y < 0, y * np.float32(slope), y))
    assert len(programs) == 1


class Misspelled(Reduce):
    def formula(self, p: TensorParameters, x: Operand) -> Value:
        if self.Last:
            return x[[each + self.InputTensor.Sizes[0] for each in coordinates(x.rank)]]
        return x[[each + p.Offset for each in coordinates(x.rank)]]


@pytest.mark.parametrize("last", [False, True])
def test_a_formula_sees_ranks_but_neither_sizes_nor_what_there_is_not(last: bool) -> None:
    x = {"DataType": "FLOAT32", "Sizes": [4, 4]}
    with pytest.raises((KeyError, AttributeError)):
        compiled(Misspelled, {"InputTensor": x, "OutputTensor": x, "Function": "SUM", "Axes": [0], "Last": last})
