"""ASIN, ACOS and ATAN as loops compute them, beside float64, whose own errors are a millionth of theirs."""

from collections.abc import Callable

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.lowering import lower
from app.formula.values import FLOAT32, Input, Value, arccos, arcsin, arctan
from app.memory.arrays import Array, numpy_type
from tests.devices.test_llvm import COMPILER
from tests.formula.spelled import ask

FUNCTIONS: dict[str, tuple[Callable[[Value], Value], Callable[[Array], Array]]] = {
    "ASIN": (arcsin, np.arcsin),
    "ACOS": (arccos, np.arccos),
    "ATAN": (arctan, np.arctan),
}


def by_loops(function: Callable[[Value], Value], x: Array, stored: DataType) -> Array:
    element = lower(ask, function(Input(FLOAT32, "X", stored)), stored)
    source = nests.elements(element, list(element.inputs), 1, ["packed", "packed"])
    y = np.empty_like(x, numpy_type(stored))
    COMPILER.function(source)(np.array([x.size, x.ctypes.data, x.itemsize, y.ctypes.data, y.itemsize]).ctypes.data)
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float32_in_509_is_next_to_what_is_exact(name: str) -> None:
    function, exactly = FUNCTIONS[name]
    x = np.arange(0, 1 << 32, 509, dtype=np.uint32).view(np.float32)
    ends = [0, -0.0, 1, -1, np.nextafter(np.float32(1), np.float32(0)), 0.54, 0.5403023, np.inf, -np.inf, np.nan]
    x = np.concatenate([x, np.array(ends, np.float32)])
    made = by_loops(function, x, DataType.FLOAT32)
    with np.errstate(all="ignore"):
        exact = exactly(x.astype(np.float64))
        off = np.abs(made - exact) / np.spacing(np.abs(exact).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(made), np.isnan(exact))
    np.testing.assert_array_equal(np.signbit(made[~np.isnan(made)]), np.signbit(exact[~np.isnan(made)]))
    assert np.nanmax(off) < 1.3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float16_is_rounded_right(name: str) -> None:
    function, exactly = FUNCTIONS[name]
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        exact = exactly(x.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(by_loops(function, x, DataType.FLOAT16), exact)
