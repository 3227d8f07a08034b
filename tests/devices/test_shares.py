"""Shares of sums of exponentials, as loops compute them: exact wherever the elements of a group are."""

from array import array

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import LoopCode, RowLoops, Taken
from app.devices.cpu.llvm.math.shares import EXACT, in_shares
from app.formula.structures import Structures
from app.formula.values import FLOAT32, Input, Value, exp_of_difference, maximum_of, sum_of, where
from app.memory.arrays import Array
from app.operators.activation.softmax import log_softmax, softmax
from tests.formula.spelled import ask

LOOPS = LoopCode(Compiler(), Structures())
X = Input(FLOAT32, "X", DataType.FLOAT32)
ROWS = 32

WIDTHS = [1, 2, 15, 16, 63, 64, 65, 127, 1000, 1024, 4099]
"""Shorter and longer than what is added in pairs, with something left over and without."""

RANGES = [
    *((1.0, 0.0), (30.0, 0.0), (100.0, 0.0), (30.0, 1000.0), (5.0, -1e5), (1e-3, 5.0), (1e30, 0.0), (3.0, 1e30)),
    *((1.0, EXACT), (8.0, -EXACT), (8.0, 2 * EXACT), (100.0, EXACT - 100), (50.0, 3e6)),
]
"""How far elements are spread around what, where multiples of ln 2 are exact and where differences are."""


@pytest.fixture(params=["rows", "beside"])
def taken(request: pytest.FixtureRequest) -> Taken:
    """How loops take groups."""
    taken: Taken = request.param
    return taken


def by_loops(expression: Value, x: Array, taken: Taken) -> Array:
    loops = RowLoops(ask, expression, ["X"], DataType.FLOAT32, LOOPS, 1, taken)
    y = np.empty_like(x)
    kept = [np.empty(x.shape[1] * size, np.uint8) for size in loops.kept]
    arrays = [number for each in (x, y) for number in (each.ctypes.data, *each.strides)]
    frame = array("q", [*x.shape, *arrays, *(each.ctypes.data for each in kept)])
    LOOPS.of(loops, 2, ("strided" if taken == "beside" else "packed",) * 2)(frame)
    return y


def off(made: Array, exact: Array) -> float:
    """The largest error, in units in the last place of what is exact, or of the least number."""
    units = np.maximum(np.abs(exact) * 2.0**-23, 2.0**-149)
    return float((np.abs(made.astype(np.longdouble) - exact) / units).max())


def exactly(x: Array) -> tuple[Array, Array]:
    wide = x.astype(np.longdouble)
    difference = wide - wide.max(-1, keepdims=True)
    is_largest = difference == 0
    exponentials = np.exp(difference)
    others = np.where(is_largest, 0, exponentials).sum(-1, keepdims=True)
    ties = is_largest.sum(-1, keepdims=True)
    return exponentials / (others + ties), difference - np.log1p(others + (ties - 1))


@pytest.mark.parametrize("width", WIDTHS)
def test_shares_and_their_logarithms_are_exact_at_any_size(width: int, taken: Taken) -> None:
    rng = np.random.default_rng(width)
    for spread, middle in RANGES:
        x = (rng.standard_normal((ROWS, width)) * spread + middle).astype(np.float32)
        shares, logarithms = exactly(x)
        assert off(by_loops(softmax(X), x, taken), shares) < 1.9
        assert off(by_loops(log_softmax(X), x, taken), logarithms) < 1.9


def test_logarithms_of_large_shares_are_right_to_a_unit_and_a_half(taken: Taken) -> None:
    """Of which there is nothing but the logarithm of the sum."""
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((1 << 11, 64)) * 5).astype(np.float32)
    assert off(by_loops(log_softmax(X), x, taken), exactly(x)[1]) < 1.3


@pytest.mark.parametrize("bits", [0x7F800000, 0x7FC00000, 0x7F800001, 0xFFC00001, 0x7FC0FFFF])
@pytest.mark.parametrize("width", [1, 5, 1000])
def test_what_is_no_number_is_all_of_its_group(bits: int, width: int, taken: Taken) -> None:
    """Infinity, and NaN of any kind."""
    x = np.zeros((3, width), np.float32)
    x.view(np.uint32)[1, width // 2] = bits
    for expression in (softmax(X), log_softmax(X)):
        assert np.isnan(by_loops(expression, x, taken)).all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("width", [5, 1000])
def test_minus_infinity_has_no_share(width: int, taken: Taken) -> None:
    x = np.zeros((2, width), np.float32)
    x[:, 1] = -np.inf
    x[1] = -np.inf
    shares = by_loops(softmax(X), x, taken)
    assert shares[0, 1] == 0
    assert off(shares[:1, 2:], np.full((1, width - 2), 1 / np.longdouble(width - 1))) < 1
    assert np.isnan(shares[1]).all()


def test_only_what_shares_are_of_is_another() -> None:
    exponential = exp_of_difference(X, maximum_of(X))
    for expression in (
        exponential,
        sum_of(exponential),
        exponential / maximum_of(exponential),
        exp_of_difference(X, sum_of(X)) / sum_of(exponential),
        sum_of(where(X > 0, 1, exponential)),
    ):
        assert in_shares(expression) is expression
    for expression in (exponential / sum_of(exponential), 1 + sum_of(where(X > 0, 0, exponential))):
        assert in_shares(expression) is not expression
