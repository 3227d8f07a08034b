"""Functions that have two formulas: both are as exact as that, wherever the tests run."""

import math
from array import array
from collections.abc import Callable

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.llvm import chosen, nests
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import SLOW, work_of
from app.devices.cpu.llvm.lowering import lower
from app.devices.cpu.llvm.math.primitives import CHOSEN
from app.devices.cpu.llvm.roots import ROOT_INSTRUCTIONS
from app.formula.functions import FLOAT_MAX
from app.formula.values import (
    FLOAT32,
    Input,
    Value,
    arccos,
    arcsin,
    cos,
    erf,
    log,
    maximum,
    normal_cdf,
    sin,
    sqrt,
    tan,
    tanh,
    widen,
)
from app.memory.arrays import Array
from tests.formula.spelled import ask
from tests.operators.numerics import reference
from tests.operators.numerics.ulp import check, neighbours

X = Input(FLOAT32, "X", DataType.FLOAT32)


def made_of_tables(monkeypatch: pytest.MonkeyPatch, holds: bool) -> Compiler:
    """One that makes functions of tables on any processor, or on none."""
    monkeypatch.setattr(chosen, "HOLD_TABLES", frozenset(["avx512", "avx2", ""] if holds else []))
    return Compiler()


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize(
    ("function", "exact", "most"),
    [
        (tanh, np.tanh, 1),
        (erf, reference.erf, 1),
        (sin, np.sin, 1),
        (cos, np.cos, 1),
        (tan, np.tan, 1),
        (log, np.log, 1),
        (arcsin, np.arcsin, 1),
        (arccos, np.arccos, 1),
        (lambda x: maximum(x, -FLOAT_MAX) * normal_cdf(widen(x)), lambda x: x * reference.normal_cdf(x), 2),
    ],
)
def test_both_formulas_of_a_function_are_right_to_a_unit(
    function: Callable[[Value], Value],
    exact: Callable[[Array], Array],
    most: int,
    tables: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the last place, or two, where their formulas change and next to that, and NaN of NaN."""
    ends = np.arange(1, 33) * math.pi / 16
    places = np.array([0, 1e-42, 1e-7, 0.54, 0.84375, 1, 3.97, 9.1, *np.arange(0.5, 13.5) * math.log(2), *ends, np.inf])
    places = places.astype(np.float32)
    rng = np.random.default_rng(3)
    x = np.concatenate([neighbours(places, 50), rng.uniform(0, 10, 30000), rng.uniform(0.3, 1.1, 30000)])
    x = np.concatenate([x, -x, [np.nan, -0.0]]).astype(np.float32)
    y = np.empty_like(x)
    source = nests.elements(lower(ask, function(X), DataType.FLOAT32), ["X"], 1, ["packed", "packed"])
    frame = array("q", [x.size, x.ctypes.data, 4, y.ctypes.data, 4])
    made_of_tables(monkeypatch, tables).function(source)(frame.buffer_info()[0])
    with np.errstate(all="ignore"):  # of sines of infinities, and logarithms of 0
        wanted = exact(x.astype(np.float64))
    check(y, wanted, most, x)
    of_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(y[of_number]), np.signbit(wanted[of_number]))


def test_formulas_are_chosen_by_registers() -> None:
    source = nests.elements(lower(ask, tanh(X), DataType.FLOAT32), ["X"], 1, ["packed", "packed"])
    assert "pick." in chosen.defined(source, "avx512")
    assert "fdiv" in chosen.defined(source, "avx2") == chosen.defined(source, "")
    assert chosen.defined("define void @kernel() {\nret void\n}", "avx2").startswith("define")


def test_work_is_that_of_the_functions_too() -> None:
    """Of which an element has nothing but the call."""
    for name, count in CHOSEN.items():
        assert sum("bitcast" not in line for line in chosen.element(name, False).body) == count
    made = lower(ask, tanh(tanh(X)), DataType.FLOAT32)
    assert made.instructions == len(made.body) + 2 * CHOSEN["tanh"]


def test_divisions_and_roots_are_more_work_than_other_instructions() -> None:
    made = lower(ask, sqrt(X) / (X + 1) + X, DataType.FLOAT32)
    assert made.instructions == len(made.body) + ROOT_INSTRUCTIONS - 1
    assert made.slow == 1
    assert work_of([made]) == 4 + 4 + made.instructions + SLOW
    assert lower(ask, sqrt(widen(X)), DataType.FLOAT32).slow == 1
