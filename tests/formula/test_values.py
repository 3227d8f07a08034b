"""Symbolic values: arithmetic makes operations of the right name, order and type."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.formula import values
from app.formula.uniform import evaluator
from app.formula.values import (
    BOOL,
    FLOAT32,
    FLOAT64,
    Constant,
    Input,
    Operation,
    Parameter,
    Value,
    compute_type,
    parts,
    widen,
)

X = Input(FLOAT32, "X", DataType.FLOAT32)
Y = Input(FLOAT32, "Y", DataType.FLOAT16)
WIDE = Operation(FLOAT64, "cast", (X,))
WHOLE = Input("int32", "N", DataType.INT32)
ALPHA = Parameter(FLOAT32, "Alpha")


@pytest.mark.parametrize(
    ("made", "name", "type_", "arguments"),
    [
        (X + Y, "add", FLOAT32, (X, Y)),
        (X + 1, "add", FLOAT32, (X, 1)),
        (1 + X, "add", FLOAT32, (1, X)),
        (X - Y, "subtract", FLOAT32, (X, Y)),
        (X - 1, "subtract", FLOAT32, (X, 1)),
        (1 - X, "subtract", FLOAT32, (1, X)),
        (X * ALPHA, "multiply", FLOAT32, (X, ALPHA)),
        (2 * X, "multiply", FLOAT32, (2, X)),
        (X / Y, "divide", FLOAT32, (X, Y)),
        (1 / X, "divide", FLOAT32, (1, X)),
        (X / 3, "divide", FLOAT32, (X, 3)),
        (X >= 0, "greater_equal", BOOL, (X, 0)),
        (X >= Y, "greater_equal", BOOL, (X, Y)),
        (WHOLE * WHOLE, "multiply", "int32", (WHOLE, WHOLE)),
        (WHOLE >= 0, "greater_equal", BOOL, (WHOLE, 0)),
        (X > Y, "greater", BOOL, (X, Y)),
        (X < 1, "less", BOOL, (X, 1)),
        (X <= Y, "less_equal", BOOL, (X, Y)),
        (values.not_equal(WHOLE, 0), "not_equal", BOOL, (WHOLE, 0)),
        (values.is_nan(X), "not_equal", BOOL, (X, X)),
        (-X, "negative", FLOAT32, (X,)),
        (WHOLE & 7, "bitwise_and", "int32", (WHOLE, 7)),
        (WHOLE | WHOLE, "bitwise_or", "int32", (WHOLE, WHOLE)),
        (WHOLE ^ 1, "bitwise_xor", "int32", (WHOLE, 1)),
        (~WHOLE, "invert", "int32", (WHOLE,)),
        (WHOLE << 3, "left_shift", "int32", (WHOLE, 3)),
        (WHOLE >> WHOLE, "right_shift", "int32", (WHOLE, WHOLE)),
        (values.quotient(WHOLE, 3), "quotient", "int32", (WHOLE, 3)),
        (values.bit_count(WHOLE), "bit_count", "uint8", (WHOLE,)),
        (values.saturate(WIDE, "int8"), "saturate", "int8", (WIDE,)),
        (values.cast(WHOLE, FLOAT64), "cast", FLOAT64, (WHOLE,)),
        (values.erf(X), "erf", FLOAT32, (X,)),
        (values.maximum(0, X), "maximum", FLOAT32, (0, X)),
        (values.minimum(X, 1), "minimum", FLOAT32, (X, 1)),
        (values.equal(X, -1), "equal", BOOL, (X, -1)),
        (values.expm1(X), "expm1", FLOAT32, (X,)),
        (values.sqrt(WIDE), "sqrt", FLOAT64, (WIDE,)),
        (values.power(X, ALPHA), "power", FLOAT32, (X, ALPHA)),
        (values.multiply_add(ALPHA, X, 1), "multiply_add", FLOAT32, (ALPHA, X, 1)),
    ],
)
def test_arithmetic_makes_operations(made: Value, name: str, type_: str, arguments: tuple[object, ...]) -> None:
    assert isinstance(made, Operation)
    assert (made.name, made.type) == (name, type_)
    assert len(made.arguments) == len(arguments)
    for argument, meant in zip(made.arguments, arguments, strict=True):
        if isinstance(meant, Value):
            assert argument is meant
        else:  # a number takes the other's type
            assert isinstance(argument, Constant)
            assert (argument.value, argument.type) == (meant, next(a.type for a in arguments if isinstance(a, Value)))


@pytest.mark.parametrize("combine", [lambda a, b: a + b, lambda a, b: a * b, values.maximum, values.power])
def test_float32_widens_to_float64(combine: Callable[[Value, Value], Operation]) -> None:
    for a, b in [(X, WIDE), (WIDE, X)]:
        made = combine(a, b)
        assert made.type == FLOAT64
        assert [argument.type for argument in made.arguments] == [FLOAT64, FLOAT64]


def test_alternatives_are_of_one_type() -> None:
    condition = X >= 0
    made = values.where(condition, X, 0)
    assert isinstance(made, Operation)
    assert made.arguments[:2] == (condition, X)
    assert made.type == FLOAT32
    assert values.where(condition, WIDE, X).type == FLOAT64


@pytest.mark.parametrize("other", [WHOLE, X >= 0])
def test_other_types_do_not_mix(other: Value) -> None:
    with pytest.raises(TypeError, match="do not mix"):
        X + other
    with pytest.raises(TypeError, match="do not mix"):
        values.where(X >= 0, other, X)


@pytest.mark.parametrize("combine", [values.maximum, values.minimum, values.equal, values.power])
def test_a_formula_is_symbolic(combine: Callable[[float, float], Value]) -> None:
    with pytest.raises(TypeError, match="symbolic"):
        combine(1, 2)


def test_floats_become_integers_by_saturation_alone() -> None:
    with pytest.raises(TypeError, match="saturate"):
        values.cast(X, "int32")
    with pytest.raises(TypeError, match="floats"):
        values.exp(WHOLE)
    assert values.cast(X, FLOAT32) is X


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (1.9, DataType.INT8, 1),
        (-1.9, DataType.INT8, -1),
        (-1.9, DataType.UINT8, 0),
        (300.0, DataType.UINT8, 255),
        (1e30, DataType.INT64, 2**63 - 1),
        (-1e30, DataType.INT64, -(2**63)),
        (2147483645.0, DataType.INT32, 2147483645),
        (0.1, DataType.FLOAT16, 0.0999755859375),
        (1e5, DataType.FLOAT16, float("inf")),
        (-65520.0, DataType.FLOAT16, float("-inf")),
        (0.1, DataType.FLOAT32, 0.10000000149011612),
    ],
)
def test_attributes_become_numbers_of_the_tensors_type(value: float, data_type: DataType, expected: float) -> None:
    made = values.converted(Parameter(FLOAT32, "Min"), data_type)
    assert (made.type, made.name, evaluator(made)({"Min": value})) == (compute_type(data_type), "Min", expected)


def test_parts_come_before_what_is_made_of_them() -> None:
    total = values.sum_of(X * 2)
    whole = X / total
    order = list(values.parts(whole))
    assert order[-1] is whole
    assert len(order) == len(set(order)) == 5
    assert order.index(X) < order.index(total) < order.index(whole)


def test_widening_happens_once() -> None:
    assert widen(widen(X)) is not X
    assert widen(WIDE) is WIDE
    assert widen(X).type == FLOAT64


def test_values_are_themselves_alone() -> None:
    """A node is a place in a graph: equal ones at two places stay two."""
    assert Constant(FLOAT32, 1) != Constant(FLOAT32, 1)
    assert X + 1 != X + 1


@pytest.mark.parametrize("data_type", [data_type for data_type in DataType if data_type.bits >= 8])
def test_compute_type(data_type: DataType) -> None:
    made: Any = np.dtype(compute_type(data_type))
    assert made == ("float32" if data_type is DataType.FLOAT16 else data_type.value.lower())


def test_parts_come_once_each_and_after_theirs() -> None:
    both = X + ALPHA
    made = (both * both) - (Y + both)
    product, total = made.operands()
    assert list(parts(made)) == [X, ALPHA, both, product, Y, total, made]


def test_parts_of_what_is_deeper_than_functions_may_call_themselves() -> None:
    chain: Value = X
    for _ in range(5000):
        chain = -chain
    found = list(parts(chain))
    assert len(found) == 5001
    assert (found[0], found[-1]) == (X, chain)


@pytest.mark.parametrize("type_", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_integers_are_computed_as_by_numpy(type_: str) -> None:
    """By Python's, which have no ends: they wrap around at those of the type."""
    least, most = values.integer_range(type_)
    numbers = [least, least + 1, 0, 1, 2, 3, most // 2, most - 1, most]
    a, b = Parameter(type_, "a"), Parameter(type_, "b")
    dtype = np.dtype(type_).type
    arithmetic = ("add", "subtract", "multiply", "maximum", "minimum", "negative")
    comparisons = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")
    for name in (*arithmetic, *comparisons):
        count, made = 1 if name == "negative" else 2, BOOL if name in comparisons else type_
        compute = evaluator(Operation(made, name, (a, b)[:count]))
        for x, y in itertools.product(numbers, numbers):
            with np.errstate(all="ignore"):
                right = getattr(np, name)(*[dtype(x), dtype(y)][:count]).item()
            found = compute({"a": x, "b": y})
            assert (found, type(found)) == (right, type(right)), (name, x, y)
    for to in ("int8", "uint8", "int32", "uint32", "int64", "uint64", BOOL):
        compute = evaluator(Operation(to, "cast", (a,)))
        assert [compute({"a": x}) for x in numbers] == np.array(numbers, type_).astype(to).tolist()
