"""Functions that several formulas share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.constants import DataType
from app.formula.functions import constant_power
from app.formula.values import FLOAT32, FLOAT64, Input, Operation, Value, widen
from tests.formula.interpreter import evaluate
from tests.formula.spelled import ask, number

X = Input(FLOAT32, "X", DataType.FLOAT32)
CHEAP = (0.0, -0.0, 0.5, 1.0, -1.0, 2.0, -2.0, 3.0)
BASES = np.array([0, -0.0, 1, -1, 2, -3, 0.1, 1e-40, -1e-45, 1e30, -3e38, np.inf, -np.inf, np.nan], np.float32)


def operations(value: Value) -> set[str]:
    """Names of all operations that `value` is made of."""
    if not isinstance(value, Operation):
        return set()
    return {value.name}.union(*map(operations, value.arguments))


@pytest.mark.parametrize("exponent", CHEAP)
@pytest.mark.parametrize("base", [X, widen(X)], ids=[FLOAT32, FLOAT64])
def test_cheap_exponents_need_no_power(base: Value, exponent: float) -> None:
    made = constant_power(ask, base, number(exponent))
    assert "power" not in operations(made)
    assert made.type == base.type


@pytest.mark.parametrize("exponent", [-0.5, 4.0, 1.0000001, 0.49999997, 1e-45, 3e38])
def test_other_exponents_are_powers(exponent: float) -> None:
    parameter = number(exponent)
    made = constant_power(ask, X, parameter)
    assert isinstance(made, Operation)
    assert (made.name, made.arguments) == ("power", (X, parameter))


@pytest.mark.parametrize("exponent", CHEAP)
@pytest.mark.parametrize("base", [X, widen(X)], ids=[FLOAT32, FLOAT64])
def test_cheap_exponents_are_powers_as_well(base: Value, exponent: float) -> None:
    made = constant_power(ask, base, number(exponent))
    with np.errstate(all="ignore"):
        actual = np.broadcast_to(evaluate(made, {"X": BASES}), BASES.shape).astype(np.float32)
        # an array of exponents, since NumPy takes the square root for a scalar 0.5
        expected = np.power(BASES.astype(np.float64), np.full(BASES.shape, exponent)).astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=3e-7, atol=3e-45)
    is_number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(actual[is_number]), np.signbit(expected[is_number]))


@given(st.floats(width=32), st.sampled_from(CHEAP))
def test_any_base(base: float, exponent: float) -> None:
    made = constant_power(ask, X, number(exponent))
    actual = float(evaluate(made, {"X": np.array([base], np.float32)}).ravel()[0])
    with np.errstate(all="ignore"):
        expected = np.power(np.array([base]), np.array([exponent])).astype(np.float32)
    np.testing.assert_allclose(actual, expected[0], rtol=3e-7, atol=3e-45)
