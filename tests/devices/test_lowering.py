"""Programs and loops compute what their formula says, whatever its shape; programs take no scratch beyond need."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.constants import DataType
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.cpu.numpy.lowering import FUNCTIONS, Calls, lower
from app.formula.expansions import EXPANSIONS
from app.formula.structures import Structures
from app.formula.values import (
    BOOL,
    FLOAT32,
    FLOAT64,
    Constant,
    Input,
    Operation,
    Value,
    absolute,
    as_stored,
    bit_count,
    cast,
    equal,
    exp_of_difference,
    exp_of_product,
    expm1_of_negative,
    log1p_of_fraction,
    maximum,
    minimum,
    multiply_add,
    saturate,
    scaled_expm1,
    sqrt,
    where,
    widen,
)
from app.memory.arrays import Array, numpy_type
from tests.formula.interpreter import MEANINGS, TO_TYPE, evaluate
from tests.formula.spelled import SPELLED, ask, number
from tests.operators.numerics import ulp

X = Input(FLOAT32, "X", DataType.FLOAT32)
Y = Input(FLOAT32, "Y", DataType.FLOAT16)
Z = Input(FLOAT64, "Z", DataType.FLOAT64)
N = Input("int32", "N", DataType.INT32)
M = Input("int32", "M", DataType.INT32)
INPUTS: dict[str, Array] = {
    "X": np.array([0, -0.0, 1, -2.5, 3e38, 1e-40, -np.inf, np.nan], np.float32),
    "Y": np.array([1, 0.1, -7, 6e-8, 65504, np.inf, 2, -1], np.float16),
    "Z": np.array([3, 1e300, -1e-300, 0.1, -1, 5e-324, np.nan, 2], np.float64),
    "N": np.array([0, -1, 5, 2**31 - 1, -(2**31), 12345, -6, 7], np.int32),
    "M": np.array([3, 2**31 - 1, -5, 2, -1, 99999, 0, -(2**31)], np.int32),
}

LOOPS = LoopCode(Compiler(), Structures())


def run(routine: Calls | Loop, inputs: dict[str, Array], output: Array) -> Array:
    """One block, its registers full of what must not be read."""
    registers = [np.full(output.shape, np.nan if dtype.kind == "f" else 1, dtype) for dtype in routine.registers]
    arguments: Any = routine.arguments(SPELLED)
    with np.errstate(all="ignore"):
        routine.run(arguments, list(inputs.values()), output, registers)
    return output


def check(value: Value, stored: DataType) -> Calls:
    """Lower `value` and compare with direct evaluation, also with the output in the place of each input."""
    calls = lower(ask, value, list(INPUTS), stored)
    for each in (calls, Loop(ask, value, list(INPUTS), stored, LOOPS)):
        check_routine(each, value, stored)
    return calls


def check_routine(routine: Calls | Loop, value: Value, stored: DataType) -> None:
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(evaluate(value, INPUTS), (8,)).astype(numpy_type(stored))
    originals = {name: array.copy() for name, array in INPUTS.items()}
    actual = run(routine, originals, np.empty(8, numpy_type(stored)))
    np.testing.assert_array_equal(actual, expected)
    for name, array in originals.items():
        assert array.tobytes() == INPUTS[name].tobytes(), f"{name} was written"
    for name, array in INPUTS.items():
        if array.dtype == expected.dtype:
            copies = {each: array.copy() for each, array in INPUTS.items()}
            np.testing.assert_array_equal(run(routine, copies, copies[name]), expected)


@st.composite
def formulas(draw: st.DrawFn) -> Value:
    """Graphs in which any value may be read any number of times. All operations round alike wherever they run."""
    numbers: list[Value] = [X, Y, Z]
    conditions: list[Value] = [X >= 0]
    scalars = st.sampled_from([0.0, 1.0, -0.5, 3.0, 1e-3]).map(number)
    for _ in range(draw(st.integers(1, 12))):
        a, b, c = (draw(st.sampled_from(numbers) | scalars) for _ in range(3))
        if not (isinstance(a, Input | Operation)):
            a = draw(st.sampled_from(numbers))
        match draw(st.integers(0, 11)):
            case 0:
                made: Value = a + b
            case 1:
                made = a - b
            case 2:
                made = a * b
            case 3:
                made = b / a
            case 4:
                made = maximum(a, b)
            case 5:
                made = minimum(0, a)
            case 6:
                made = sqrt(a)
            case 7:
                made = where(draw(st.sampled_from(conditions)), a, b)
            case 8:
                made = multiply_add(a, b, c)
            case 9:
                made = widen(a)
            case 10:
                conditions.append(a >= b)
                continue
            case _:
                conditions.append(equal(a, b))
                continue
        numbers.append(made)
    return draw(st.sampled_from([numbers[-1], numbers[-1], draw(st.sampled_from(numbers)), conditions[-1]]))


@st.composite
def integer_formulas(draw: st.DrawFn) -> Value:
    """The same over integers, which wrap."""
    numbers: list[Value] = [N, M]
    for _ in range(draw(st.integers(1, 10))):
        a, b = (draw(st.sampled_from(numbers)) for _ in range(2))
        choices: list[Value] = [a + b, a - b, a * b, b * 3, maximum(a, b), minimum(a, -7), where(a >= b, b, a)]
        numbers.append(draw(st.sampled_from(choices)))
    return numbers[-1]


@given(formulas(), st.sampled_from([DataType.FLOAT32, DataType.FLOAT16, DataType.FLOAT64]))
def test_any_formula(value: Value, stored: DataType) -> None:
    program = check(value, stored)
    assert len(program.steps) <= 6 * len(operations(value)) + len(INPUTS) + 1
    assert len(program.registers) <= len(program.steps)


@given(integer_formulas())
def test_any_formula_of_integers(value: Value) -> None:
    check(value, DataType.INT32)


def operations(value: Value) -> set[Value]:
    """All distinct operations below and at `value`."""
    found: set[Value] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Operation) and node not in found:
            found.add(node)
            waiting += node.arguments
    return found


# Each operation by itself


def each_operation() -> dict[str, Value]:
    """One of every name, with arguments that it is for."""
    floats = "negative absolute exp expm1 log log1p sqrt tanh erf normal_cdf sin cos tan arcsin arccos arctan sinh cosh"
    floats += " arcsinh arccosh arctanh floor ceil trunc rint"
    pairs = "add subtract multiply divide maximum minimum copysign power arctan2 fmod remainder"
    comparisons = "greater greater_equal less less_equal equal not_equal"
    unsigned = cast(N, "uint32")
    return (
        {name: Operation(FLOAT32, name, (X,)) for name in floats.split()}
        | {name: Operation(FLOAT32, name, (X, Y)) for name in pairs.split()}
        | {name: Operation(BOOL, name, (X, Y)) for name in comparisons.split()}
        | {name: Operation("int32", name, (N, M)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "quotient")}
        | {
            "invert": ~N,
            "left_shift": unsigned << cast(M & 63, "uint32"),
            "right_shift": N >> (M & 63),
            "bit_count": bit_count(N),
            "where": where(X >= Y, X, Y),
            "multiply_add": multiply_add(X, Y, X),
            "exp_of_difference": exp_of_difference(minimum(X, 0), maximum(Y, 0)),
            "exp_of_product": exp_of_product(-absolute(X), absolute(Y)),
            "expm1_of_negative": expm1_of_negative(-absolute(X)),
            "scaled_expm1": scaled_expm1(-absolute(X), number(1.5)),
            "log1p_of_fraction": log1p_of_fraction(minimum(absolute(X), 1)),
            "cast": cast(N, "uint8"),
            "saturate": saturate(Z, "int8"),
            "through_float16": as_stored(Z, DataType.FLOAT16),
        }
    )


EACH = each_operation()


def test_every_operation_has_a_meaning_and_is_tried() -> None:
    of_numpy_alone = {"floor_divide", "clip"}
    assert {*MEANINGS, *TO_TYPE} == {*FUNCTIONS, *EXPANSIONS} - of_numpy_alone == set(EACH)


@pytest.mark.parametrize("name", EACH)
def test_an_operation_means_what_it_says(name: str) -> None:
    value = EACH[name]
    stored = DataType.UINT8 if value.type == BOOL else DataType(value.type.upper())
    with np.errstate(all="ignore"):
        expected = evaluate(value, INPUTS).astype(numpy_type(stored))
        actual = run(lower(ask, value, list(INPUTS), stored), INPUTS, np.empty(8, numpy_type(stored)))
    if value.type == FLOAT32:
        ulp.check(actual, expected, 3, INPUTS["X"])
    else:
        np.testing.assert_array_equal(actual, expected)


# What is not an operation


@pytest.mark.parametrize("stored", [DataType.FLOAT32, DataType.FLOAT16, DataType.FLOAT64])
@pytest.mark.parametrize("value", [X, Y, Z, Constant(FLOAT32, 2.5), number(-1.5), widen(X), X >= Y])
def test_formula_of_a_single_value(value: Value, stored: DataType) -> None:
    check(value, stored)


def test_a_copy_is_one_step() -> None:
    program = check(X, DataType.FLOAT32)
    assert len(program.steps) == 1
    assert program.registers == ()


def test_widened_scalars_are_scalars() -> None:
    program = check(widen(X) * widen(number(0.1)), DataType.FLOAT64)
    assert len(program.steps) == 2  # the input is widened, then multiplied
    (scalar,) = program.arguments(SPELLED)
    assert scalar.dtype == np.float64
    assert scalar == np.float32(0.1)


def test_conditions_are_stored_as_integers() -> None:
    check(X >= 0, DataType.UINT8)
    check(equal(N, M), DataType.UINT32)


# Registers


def test_a_chain_needs_one_register() -> None:
    value: Value = X
    for _ in range(20):
        value = (value + 1) * 0.5
    program = check(value, DataType.FLOAT32)
    assert program.registers == (np.dtype(FLOAT32),)
    assert len(program.steps) == 40


def test_a_value_stays_as_long_as_it_is_read() -> None:
    first = X + 1
    value: Value = first * 2
    for _ in range(5):
        value = value - 0.25
    program = check(value / first, DataType.FLOAT32)
    assert len(program.registers) == 2


def test_registers_of_another_type_are_not_taken() -> None:
    narrow = X * 2
    program = check(where(narrow >= 1, widen(narrow) * 3, Z), DataType.FLOAT64)
    assert sorted(dtype.name for dtype in program.registers) == sorted([FLOAT32, FLOAT64, BOOL])


def test_balanced_trees_need_registers_by_depth() -> None:
    def tree(depth: int) -> Value:
        return X * 0.5 if depth == 0 else tree(depth - 1) + tree(depth - 1)

    program = check(tree(6), DataType.FLOAT32)
    assert len(program.registers) <= 7


def test_a_square_reads_its_argument_twice() -> None:
    reciprocal = 1 / X
    program = check(reciprocal * reciprocal, DataType.FLOAT32)
    assert len(program.steps) == 2
    assert len(program.registers) == 1


def test_alternatives_may_be_the_place_of_the_result() -> None:
    a, b = X + 1, X - 1
    check(where(X >= 0, a, b), DataType.FLOAT32)
    check(where(a >= b, b, a) + 1, DataType.FLOAT32)
    check(where(a >= 0, a, a) + 1, DataType.FLOAT32)
    check(where(X >= 0, 1, X) * 2, DataType.FLOAT32)
    check(where(X >= 0, X, 1) * 2, DataType.FLOAT32)


# Expansions


@pytest.mark.parametrize("stored", [DataType.FLOAT32, DataType.FLOAT16])
def test_multiply_add_rounds_once(stored: DataType) -> None:
    check(multiply_add(X, 0.2, 0.5), stored)
    check(multiply_add(multiply_add(X, X, Y), 0.2, multiply_add(Y, Y, 1)), stored)


def test_multiply_add_of_float64() -> None:
    check(multiply_add(Z, widen(X), 2), DataType.FLOAT64)


@pytest.mark.parametrize("depth", [1, 2, 12])
def test_shared_values_are_computed_once_however_deep(depth: int) -> None:
    value: Value = X
    for _ in range(depth):
        value = multiply_add(value, 0.5, 1) + value
    program = check(value, DataType.FLOAT32)
    assert len(program.steps) == 5 * depth  # widen, multiply, add, narrow, add


def test_programs_say_their_inputs_in_the_order_given() -> None:
    made: Any = lower(ask, X + Y, ["Y", "X"], DataType.FLOAT32)
    assert made.inputs == ("Y", "X")
    output = run(made, {name: INPUTS[name] for name in ("Y", "X")}, np.empty(8, np.float32))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(output, INPUTS["X"] + INPUTS["Y"].astype(np.float32))
