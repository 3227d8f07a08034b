"""Symbolic values: arithmetic makes operations of the right name, order and type."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.formula import values
from app.formula.values import BOOL, FLOAT32, FLOAT64, Constant, Input, Operation, Parameter, Value, compute_type, widen

X = Input(FLOAT32, "X", DataType.FLOAT32)
Y = Input(FLOAT32, "Y", DataType.FLOAT16)
WIDE = Operation(FLOAT64, "cast", (X,))
WHOLE = Input("int32", "N", DataType.INT32)
ALPHA = Parameter(FLOAT32, "Alpha", 0.5)


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
