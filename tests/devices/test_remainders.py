"""Remainders of float32 as loops compute them: quickly of ordinary quotients, and exactly of any."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.lowering import lower
from app.devices.cpu.llvm.math.remainders import NEAR
from app.devices.cpu.llvm.nests import GUESSED
from app.formula.values import FLOAT32, Input, remainder_of_floor, remainder_of_truncation
from app.memory.arrays import Array
from tests.devices.test_llvm import assembly_of, dispatch, operator_of
from tests.formula.spelled import ask
from tests.operators.numerics import reference

COMPILER = Compiler()
FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {"TRUNCATE": np.fmod, "FLOOR": reference.modulus_floor}
COUNT = 1 << 16


def computed(kind: str, a: Array, b: Array) -> Array:
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, COMPILER, least=1)
        return dispatch(device, operator_of(f"DML_OPERATOR_ELEMENT_WISE_MODULUS_{kind}", a.size), [a, b])


def near(seed: int) -> tuple[Array, Array]:
    """Quotients below NEAR, many of them a digit beside a whole number, and subnormal numbers."""
    rng = np.random.default_rng(seed)
    b = rng.integers(1, 0x7F000000, COUNT, np.uint32)
    b[: COUNT // 8] = rng.integers(1, 1 << 23, COUNT // 8, np.uint32)
    b = b.view(np.float32)
    wanted = rng.integers(0, int(NEAR), COUNT) >> rng.integers(0, 24, COUNT)
    with np.errstate(over="ignore"):
        a = np.minimum(b * wanted.astype(np.float32), np.finfo(np.float32).max)
    bits = a.view(np.uint32)
    bits[COUNT // 4 :] += rng.integers(0, 2, COUNT - COUNT // 4, np.uint32)
    a = np.where(np.isinf(a) | (a / b >= NEAR), b, a)
    a[::2] *= -1
    b[::3] *= -1
    return a, b


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_what_is_computed_quickly_is_exact(kind: str) -> None:
    for seed in range(4):
        a, b = near(seed)
        made, expected = computed(kind, a, b), FUNCTIONS[kind](a, b).astype(np.float32)
        np.testing.assert_array_equal(made.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_others_are_computed_again(kind: str) -> None:
    """With all beside them, of which nothing changes."""
    a, b = near(7)
    ends = [(1.0, np.inf), (-1.0, np.inf), (np.inf, 1.0), (1.0, 0.0), (np.nan, 1.0), (1.0, np.nan), (NEAR, 1.0)]
    ends += [(NEAR * 3 - 1, 3.0), (2.0**24 - 1, 3e-20), (3.4e38, 1e-45), (0.0, np.inf), (-0.0, np.inf), (-0.0, 0.0)]
    for number, (x, y) in enumerate(ends):
        a[number * GUESSED + 5], b[number * GUESSED + 5] = x, y
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[kind](a, b).astype(np.float32)
    made = computed(kind, a, b)
    known = ~np.isnan(expected)
    assert (np.isnan(made) == ~known).all()
    np.testing.assert_array_equal(made[known].view(np.uint32), expected[known].view(np.uint32))


def test_they_are_computed_many_at_a_time() -> None:
    """Quickly, for which LLVM has to see how doubts come together."""
    for function in (remainder_of_truncation, remainder_of_floor):
        a, b = (Input(FLOAT32, name, DataType.FLOAT32) for name in "AB")
        source = nests.elements(lower(ask, function(a, b), DataType.FLOAT32), ["A", "B"], 1, ["packed"] * 3)
        assert re.search(r"vdivps\s.*ymm", assembly_of(source, "x86_64-unknown-linux-gnu", "x86-64-v3"))


def test_there_is_a_quick_way_for_float32_only() -> None:
    a, b = (Input(FLOAT32, name, DataType.FLOAT32) for name in "AB")
    assert lower(ask, remainder_of_truncation(a, b), DataType.FLOAT32).quick
    a, b = (Input(FLOAT32, name, DataType.FLOAT16) for name in "AB")
    assert not lower(ask, remainder_of_truncation(a, b), DataType.FLOAT16).quick
    a, b = (Input("int32", name, DataType.INT32) for name in "AB")
    assert not lower(ask, remainder_of_truncation(a, b), DataType.INT32).quick
