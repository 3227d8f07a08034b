"""Compiled loops of formulas that go by coordinates: bit for bit what NumPy's evaluation gives, at every threshold."""

import functools
import re
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu import device as cpu_device
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.device import COMPILED, COMPILED_ROWS, NumpyDevice
from app.devices.cpu.llvm import tabled
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.coordinate_loops import WATCH, CoordinateLoops, Watch
from app.devices.cpu.llvm.coordinates import ROWS, TABLE, nest
from app.devices.cpu.llvm.row_loops import DIVIDED, SHORT
from app.devices.cpu.llvm.runs import LARGE, SMALL, STEEP
from app.devices.cpu.llvm.totals import PIECE, STRIP
from app.formula import coordinates as c
from app.formula.coordinates import coordinates
from app.formula.structures import Questions, Structures
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    INT64,
    Constant,
    Operation,
    Parameter,
    Value,
    absolute,
    cast,
    equal,
    exp,
    expm1,
    floor,
    is_float,
    maximum,
    minimum,
    not_equal,
    quotient,
    remainder_of_floor,
    remainder_of_truncation,
    saturate,
    sqrt,
    where,
    widen,
)
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator
from tests.devices.test_coordinates import TYPES, elements, of_expression, operand
from tests.devices.test_llvm import COMPILER, assembly_of
from tests.operators.arrays import run

P, Q = (Parameter(INT64, name) for name in "pq")


@pytest.fixture(scope="module")
def devices() -> Iterator[list[NumpyDevice]]:
    """One that computes with NumPy, and one with loops."""
    with ThreadPoolExecutor(2) as helpers:
        structures = Structures()
        yield [NumpyDevice(helpers, 2, compiler, 0, structures) for compiler in (None, COMPILER)]


def both(devices: list[NumpyDevice], operator: CompiledOperator, x: Array) -> tuple[Array, Array]:
    """What NumPy gives and what loops give, which do compute, copies too."""
    with (
        mock.patch.object(CoordinateLoops, "frame", autospec=True, side_effect=CoordinateLoops.frame) as framed,
        mock.patch.object(cpu_device, "copies_kernel", return_value=None),
    ):
        expected, made = (run(device, operator, {"X": x})["Y"] for device in devices)
    assert framed.call_count
    return expected, made


def alike(devices: list[NumpyDevice], operator: CompiledOperator, x: Array) -> None:
    np.testing.assert_array_equal(*both(devices, operator, x))


# Random formulas

NUMBERS = [0, 1, 2, 3, 7, 16, 40, -1, -2, -5]
FAR = [1 << 40, STEEP, -STEEP, LARGE, -LARGE, (1 << 63) - 1, -(1 << 63)]


def whole_numbers(leaves: list[Value]) -> st.SearchStrategy[Value]:
    """Expressions of int64 over `leaves`."""
    base = st.sampled_from(leaves) | st.sampled_from(NUMBERS).map(lambda number: Constant(INT64, number))

    def larger(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
        binary: list[Any] = [
            lambda a, b: a + b,
            lambda a, b: a - b,
            lambda a, b: a * b,
            maximum,
            minimum,
            quotient,
            remainder_of_floor,
            remainder_of_truncation,
        ]
        of_two = st.builds(lambda function, a, b: function(a, b), st.sampled_from(binary), inner, inner)
        chosen = st.builds(where, conditions(inner), inner, inner)
        return of_two | chosen | inner.map(absolute) | inner.map(lambda a: -a)

    return st.recursive(base, larger, max_leaves=5)


def conditions(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    comparisons: list[Any] = [
        lambda a, b: a < b,
        lambda a, b: a <= b,
        lambda a, b: a > b,
        lambda a, b: a >= b,
        equal,
        not_equal,
    ]
    one = st.builds(lambda compare, a, b: compare(a, b), st.sampled_from(comparisons), inner, inner)
    joins: list[Any] = [lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a ^ b, lambda a, b: ~a]
    return one | st.builds(lambda join, a, b: join(a, b), st.sampled_from(joins), one, one)


X = np.random.default_rng(1).integers(-99, 99, (37, 41)).astype(np.int32)
SHAPES = [(3, SHORT - 1), (2, SHORT), (2, 45), (4, 1), (1, STRIP + 3)]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_formulas(devices: list[NumpyDevice], data: st.DataObject) -> None:
    at, x = coordinates(2), operand(X)
    within = whole_numbers([*at, P, Q])
    places = [data.draw(within) for _ in range(4)]
    formula = where(data.draw(conditions(within)), x[places[:2]], x[places[2:]])
    if data.draw(st.booleans()):
        count = data.draw(st.sampled_from([Constant(INT64, 5), P, x.sizes[0], remainder_of_floor(at[1] - P, 20)]))
        over: Any = data.draw(st.sampled_from([c.sum_over, c.maximum_over, c.product_over]))
        index = data.draw(st.integers(0, 1))

        def body(j: Value) -> Value:
            moved = [*at]
            moved[index] = data.draw(st.sampled_from([j, moved[index] + j, moved[index] * P + j - Q]))
            return x[moved] + formula

        formula = over([count], body)
    for _ in range(3):
        numbers = {name: data.draw(st.sampled_from([*NUMBERS, *FAR])) for name in "pq"}
        numbers["p"] = min(numbers["p"], 60)  # it may be a count
        shape = list(data.draw(st.sampled_from(SHAPES)))
        alike(devices, of_expression(formula, shape, DataType.INT32, X, **numbers), X)


# Thresholds

AROUND = sorted({each + by for each in (1, SHORT, DIVIDED, PIECE, STRIP) for by in (-1, 0, 1)} - {0})


@pytest.mark.parametrize("size", AROUND)
def test_rows_of_every_length(devices: list[NumpyDevice], size: int) -> None:
    """Moved by every distance that leaves something short before or after."""
    (i,) = coordinates(1)
    x = np.arange(size, dtype=np.int16)
    of = operand(x)
    padded = where((i - P >= 0) & (i - P < of.sizes[0]), of[[i - P]], -7)
    for by in (0, 1, SHORT - 1, SHORT, SHORT + 1):
        operator = of_expression(padded, [size + 2 * by], DataType.INT16, x, p=by)
        expected, made = both(devices, operator, x)
        np.testing.assert_array_equal(made, np.pad(x, by, constant_values=-7))
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("size", AROUND)
@pytest.mark.parametrize("along", ["row", "column"])
def test_totals_of_every_length(devices: list[NumpyDevice], size: int, along: str) -> None:
    rng = np.random.default_rng(size)
    x = rng.integers(-50, 50, (size, 5) if along == "column" else (5, size)).astype(np.float32)
    x.reshape(-1)[rng.integers(0, x.size, 1 + x.size // 90)] = np.nan
    of, (i, j) = operand(x), coordinates(2)
    sizes = [1, 5] if along == "column" else [5, 1]
    count = of.sizes[0 if along == "column" else 1]

    def element(k: Value) -> Value:
        return of[[k, j]] if along == "column" else of[[i, k]]

    for over in (c.sum_over, c.maximum_over, c.minimum_over):
        alike(devices, of_expression(over([count], element), sizes, DataType.FLOAT32, x), x)
    for name in ("first_maximum", "last_minimum"):
        alike(devices, of_expression(c.position_over(name, [count], element), sizes, DataType.INT64, x), x)


@pytest.mark.parametrize("size", [1, SHORT + 1, PIECE, PIECE + 1, 3 * PIECE + 2])
@pytest.mark.parametrize("data_type", [DataType.FLOAT32, DataType.INT8])
def test_positions_among_all_of_several_dimensions(devices: list[NumpyDevice], size: int, data_type: DataType) -> None:
    """Of few values, so that most are there often, of both zeros, and of NaN somewhere or everywhere."""
    rng = np.random.default_rng(size)
    x = rng.integers(-2, 2, (4, 3, size)).astype(numpy_type(data_type))
    if data_type is DataType.FLOAT32:
        x[0] = rng.choice([-0.0, 0.0], x[0].shape)
        x[1].reshape(-1)[rng.integers(0, x[1].size, 2)] = np.nan
        x[2] = np.nan
    of, i = operand(x), coordinates(1)[0]
    for name in ("first_maximum", "last_maximum", "first_minimum", "last_minimum"):
        found = c.position_over(name, of.sizes[1:], lambda j, k: of[[i, j, k]])
        alike(devices, of_expression(found, [4], DataType.INT64, x), x)
        none = c.position_over(name, [of.sizes[1], P], lambda j, k: of[[i, j, k]])
        alike(devices, of_expression(none, [4], DataType.INT64, x, p=0), x)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("size", [1, TABLE - 1, TABLE, TABLE + 1, 2 * TABLE + 3])
def test_what_is_the_same_for_all_rows(devices: list[NumpyDevice], size: int, rows: int) -> None:
    """Places and weights that take floats to compute, of whole rows and of parts of them."""
    x = np.random.default_rng(size).standard_normal((rows, 50)).astype(np.float32)
    of, (i, j) = operand(x), coordinates(2)
    at = cast(j - 5, FLOAT64) * 0.37
    below = floor(at)
    share, place = cast(at - below, FLOAT32), saturate(below, INT64)
    mixed = where(share > 0.5, of[[i, place]] * (1 - share) + of[[i, place + 1]] * share, of[[place, i]])
    nested = c.sum_over([P], lambda k: of[[i, place + k]] * share)
    for formula in (mixed, nested):
        for work in (1 << 4, 1 << 30):
            with mock.patch("app.devices.cpu.calls.WORTH_A_CALL", work):
                alike(devices, of_expression(formula, [rows, size], DataType.FLOAT32, x, p=3), x)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS])
@pytest.mark.parametrize("divisor", [1, 2, SHORT - 1, SHORT, 40, -3, 0])
@pytest.mark.parametrize("size", [1, SHORT, 2 * TABLE + 3])
def test_places_by_division(devices: list[NumpyDevice], size: int, divisor: int, rows: int) -> None:
    """Of runs that are short, from a table of whole rows and of parts of them where there are many, and of others."""
    x = np.random.default_rng(size).integers(-99, 99, (rows, 50)).astype(np.float32)
    of, (i, j) = operand(x), coordinates(2)
    at, rest = quotient(j + Q, P), remainder_of_floor(j - Q, P)
    for formula in (
        of[[i, at]],
        of[[i, rest]],
        where(of[[i, at]] > 0, of[[i, rest]] * 2, of[[i, 3 - at]]) + of[[i, j]],
    ):
        operator = of_expression(formula, [rows, size], DataType.FLOAT32, x, p=divisor, q=5)
        alike(devices, operator, x)
        operator.outputs["Y"] = TensorDesc(DataType=DataType.FLOAT32, Sizes=[rows, size], Strides=[2 * size, 2])
        alike(devices, operator, x)


def test_places_by_division_are_looked_up() -> None:
    """LLVM has no vectors of these, and divides for each element of each row. Inverses will do for some."""
    of, (i, j) = operand(np.zeros((3, 50), np.float32)), coordinates(2)
    for place, tables in ((quotient(j, P), 1), (remainder_of_floor(j - Q, P), 1), (remainder_of_floor(j, P), 0)):
        source = nest(Questions({}).ask, of[[i, place]], DataType.FLOAT32, 2).source
        assert source.count(f"i64 {TABLE}, align 64") == tables


def test_tables_take_little_of_a_stack(devices: list[NumpyDevice]) -> None:
    x = np.arange(3, dtype=np.float32)
    i, j = coordinates(2)
    formula = functools.reduce(
        lambda a, k: a + cast(i, FLOAT64) * sqrt(cast(j + k, FLOAT64)), range(30), widen(operand(x)[[i]])
    )
    operator = of_expression(cast(formula, FLOAT32), [3, 5], DataType.FLOAT32, x)
    alike(devices, operator, x)
    source = nest(Questions({}).ask, cast(formula, FLOAT32), DataType.FLOAT32, 2).source
    assert source.count(f"i64 {TABLE}, align 64") == tabled.MOST


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("size", [1, SHORT, 100, 101])
def test_rows_of_one_and_the_same_but_for_an_element(devices: list[NumpyDevice], size: int, step: int) -> None:
    x = np.array([0, size - 1, -1, size, size // 2, -(1 << 63), (1 << 63) - 1], np.int64)
    of, (i, j) = operand(x), coordinates(2)
    for formula in (where(equal(j, of[[i]]), of[[i]], P), where(equal(of[[i]] - Q, j), Q, P)):
        for rows in (1, len(x)):
            operator = of_expression(formula, [rows, size], DataType.INT64, x, p=-7, q=step)
            for work in (1 << 4, 1 << 30):
                with mock.patch("app.devices.cpu.calls.WORTH_A_CALL", work):
                    alike(devices, operator, x)


@pytest.mark.parametrize("step", [-3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("data_type", TYPES)
def test_steps(devices: list[NumpyDevice], data_type: DataType, step: int) -> None:
    """Of all sizes of elements, forwards and backwards, within the tensor and beyond."""
    x = elements(np.random.default_rng(3), [100], data_type)
    (i,) = coordinates(1)
    of = operand(x)
    for begin in (0, 50, 99):
        alike(devices, of_expression(of[[i * P + Q]], [49], data_type, x, p=step, q=begin), x)


def test_all_that_is_rounded_is_near(devices: list[NumpyDevice]) -> None:
    x = np.random.default_rng(4).standard_normal((6, 70)).astype(np.float32)
    of, (i, j) = operand(x), coordinates(2)
    for value in (
        c.sum_over([of.sizes[1]], lambda k: exp(of[[i, k]])),
        c.sum_over([of.sizes[0]], lambda k: of[[k, j]] * of[[i, k]]),
        c.product_over([of.sizes[0]], lambda k: of[[k, j]]),
        sqrt(absolute(of[[i, j]])) * cast(i * j, FLOAT32),
    ):
        expected, made = both(devices, of_expression(value, [6, 70], DataType.FLOAT32, x), x)
        np.testing.assert_allclose(made, expected, 3e-6)


def test_divisors_may_be_anything(devices: list[NumpyDevice]) -> None:
    """A processor would end the process."""
    (i,) = coordinates(1)
    for type_ in ("int64", "int8", "uint32"):
        dividend, divisor = cast(i + Q, type_), cast(P - i, type_)
        for function in (quotient, remainder_of_floor, remainder_of_truncation):
            formula = cast(function(dividend, divisor), INT64) * 3 + function(i + Q, P)
            for p, q in ((2, 0), (0, 5), (-1, -(1 << 63)), (-1, -128), (1, -3), (-7, -20)):
                alike(
                    devices,
                    of_expression(formula, [40], DataType.INT64, np.zeros(1, np.int8), p=p, q=q),
                    np.zeros(1, np.int8),
                )


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 15, 16, 17, 63, 64, 65, SMALL - 1, SMALL, SMALL + 1, 1 << 40])
def test_divisions_where_runs_are_short(devices: list[NumpyDevice], divisor: int) -> None:
    (i,) = coordinates(1)
    x = np.zeros(1, np.int8)
    formula = quotient(i + Q, P) * 7 + remainder_of_floor(i + Q, P) + remainder_of_truncation(i + Q, P) * 3
    for before in (0, 1, 30, divisor - 1, 5 * divisor - 20, -40, LARGE - 50, (1 << 63) - 50):
        alike(devices, of_expression(formula, [150], DataType.INT64, x, p=divisor, q=before), x)


# What is computed by whom


def test_what_loops_are_no_good_at_is_left_to_numpy() -> None:
    x = np.linspace(-3, 3, 5000, dtype=np.float32)
    of, (i,) = operand(x), coordinates(1)
    before = COMPILER.kernels
    for value in (expm1(of[[i]]), remainder_of_floor(of[[i]], 0.7)):
        operator = of_expression(value, [5000], DataType.FLOAT32, x)
        with ThreadPoolExecutor(1) as helpers:
            expected, made = (run(NumpyDevice(helpers, 1, each), operator, {"X": x})["Y"] for each in (None, COMPILER))
        np.testing.assert_array_equal(made, expected)
    assert COMPILER.kernels == before


@pytest.mark.parametrize("deep", [True, False])
def test_large_formulas_are_left_to_numpy(devices: list[NumpyDevice], deep: bool) -> None:
    """The largest that are compiled are compiled in a time that a request may take."""
    x = np.arange(90, dtype=np.int32)
    of, (i,) = operand(x), coordinates(1)

    def formula(size: int) -> Value:
        if deep:
            first: Value = of[[i]]
            return functools.reduce(lambda a, k: where(i < k, a, of[[i - k]]), range(size), first)
        values: list[Value] = [of[[i - k]] for k in range(size)]
        while len(values) > 1:
            values = [*values[2:], maximum(*values[:2])]
        return values[0]

    alike(devices, of_expression(formula(40), [100], DataType.INT32, x), x)
    large = of_expression(formula(150), [100], DataType.INT32, x)
    before = COMPILER.kernels
    expected, made = (run(device, large, {"X": x})["Y"] for device in devices)
    np.testing.assert_array_equal(made, expected)
    assert COMPILER.kernels == before


@pytest.mark.parametrize(("terms", "size"), [(1, COMPILED * COMPILED_ROWS), (64, COMPILED * COMPILED_ROWS // 64)])
def test_little_work_is_left_to_numpy_and_nothing_is_compiled_on_the_event_loop(terms: int, size: int) -> None:
    """Work is that of the terms of totals, too."""
    (i,) = coordinates(1)
    formula = c.sum_over([P], lambda k: i * k)
    compiler = Compiler()
    before = compiler.kernels
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, compiler)
        run(device, of_expression(formula, [size - 1], DataType.INT64, p=terms), {})
        assert compiler.kernels == before
        operator = of_expression(formula, [size], DataType.INT64, p=terms)
        assert not device.prepare(operator).runs_inline
        run(device, operator, {})
        assert compiler.kernels == before + 2  # the loop, and what goes through tables of calls
        assert device.prepare(operator).runs_inline
        large = of_expression(formula, [1 << 24], DataType.INT64, p=terms)
        assert not device.prepare(large).runs_inline


def test_one_loop_serves_all_sizes_strides_and_numbers(devices: list[NumpyDevice]) -> None:
    before = 0
    i, j = coordinates(2)
    rng = np.random.default_rng(8)
    formula: Value | None = None
    for size in range(4, 60, 5):
        x = rng.integers(0, 99, (size, size)).astype(np.uint8)
        formula = formula or operand(x)[[j - P, i * Q]]
        operator = of_expression(formula, [size, size], DataType.UINT8, x, p=size // 3, q=size % 3)
        alike(devices, operator, x)
        before = before or COMPILER.kernels
    assert COMPILER.kernels == before


def test_dispatches_only_write_addresses(devices: list[NumpyDevice]) -> None:
    """Of other buffers, and of such as overlap; what ends early is not read."""
    x = np.arange(1200, dtype=np.int32).reshape(30, 40)
    i, j = coordinates(2)
    operator = of_expression(absolute(operand(x)[[29 - i, 39 - j]]), [30, 40], DataType.INT32, x)
    kernel = devices[1].prepare(operator)
    with mock.patch.object(CoordinateLoops, "frame", autospec=True, side_effect=CoordinateLoops.frame) as framed:
        for number in range(3):
            memory = np.zeros(2400, np.int32)
            given, made = memory[:1200], memory[100 * number : 100 * number + 1200]
            given[:] = x.reshape(-1) + number
            kernel.dispatch([given.data.cast("B")], [made.data.cast("B")], lambda: False)
            np.testing.assert_array_equal(made, x.reshape(-1)[::-1] + number)
    assert isinstance(kernel, CoordinateKernel)
    made_of = kernel.calls()
    assert made_of
    assert framed.call_count == sum(map(len, made_of.stages))
    for given, made in ((x[:-1], x.copy()), (x, x[:-1].copy())):
        with pytest.raises(ValueError, match="ends before"):
            kernel.dispatch([given.data.cast("B")], [made.data.cast("B")], lambda: False)


def test_errors_of_what_is_called_meanwhile_come_out() -> None:
    """Once: the next call of this thread is not disturbed."""
    compiler = Compiler()
    loops = CoordinateLoops(Questions({}).ask, c.sum_over([P], lambda k: k * k), DataType.INT64, 1, compiler)
    output = np.zeros(1, np.int64)

    def check() -> None:
        raise KeyboardInterrupt

    def frame(p: int) -> "array[int]":
        numbers, target, _ = loops.frame(loops.arguments({"p": p}), [range(1)], output.strides, {})
        numbers[target] = output.ctypes.data
        return numbers

    def run(numbers: "array[int]", check: Callable[[], None]) -> None:
        watch = Watch(check)
        numbers[WATCH] = id(watch)
        loops.code(numbers)
        watch.end()

    with mock.patch("app.devices.cpu.llvm.coordinate_loops.BETWEEN_LOOKS", 1000):
        with pytest.raises(KeyboardInterrupt):
            run(frame(1 << 50), check)
        run(frame(1000), lambda: None)
    assert output.tolist() == [sum(k * k for k in range(1000))]


# What loops become


@pytest.mark.parametrize(
    ("triple", "processor"), [("x86_64-unknown-linux-gnu", "x86-64-v3"), ("aarch64-unknown-linux-gnu", "generic")]
)
@pytest.mark.parametrize("data_type", TYPES)
def test_no_loop_calls_a_function(data_type: DataType, triple: str, processor: str) -> None:
    """But for those that every process has, and the one in its frame."""
    of, (i, j) = operand(np.zeros((2, 2), numpy_type(data_type))), coordinates(2)
    element = of[[i, j]]
    value = c.sum_over([of.sizes[0]], lambda k: of[[k, j]]) + c.maximum_over([of.sizes[1]], lambda k: of[[i, k]])
    if is_float(element.type):
        value = value / Operation(element.type, "cast", (c.position_over("last_maximum", [P], lambda k: of[[k, j]]),))
    made = nest(Questions({}).ask, value, data_type, 2)
    called = re.findall(r"^\s+(?:callq?|bl)\s+([^*\s].*)$", assembly_of(made.source, triple, processor), re.MULTILINE)
    assert {each.partition("@")[0] for each in called if not re.match(r"[%*]|\d*\(%", each)} <= {"memset", "memcpy"}


def test_nothing_is_logged_about_vectors_of_any_length(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """LLVM writes remarks on loops for which it could have used those."""
    told = mock.Mock(flatten=lambda: "+neon,+sve", get={"neon": True, "sve": True}.get)
    monkeypatch.setattr(COMPILER, "_features", told)
    of, (i, j) = operand(np.zeros((2, 2), np.float16)), coordinates(2)
    source = nest(Questions({}).ask, of[[i, j]], DataType.FLOAT16, 2).source
    assembly_of(source, "aarch64-unknown-linux-gnu", "neoverse-v1", COMPILER._features_for(source))
    assert capfd.readouterr().err == ""
