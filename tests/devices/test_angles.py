"""SIN, COS and TAN as loops compute them: of any float32, however large, next to the true one."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice, NumpyKernel
from app.devices.cpu.llvm.chosen import HOLD_TABLES
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Loop
from app.devices.cpu.llvm.math import angles, sixteenths
from app.devices.cpu.llvm.nests import GUESSED
from app.memory.arrays import Array
from tests.devices.test_llvm import dispatch, operator_of
from tests.operators.numerics.ulp import errors

COMPILER = Compiler()
NEAR = sixteenths.NEAR if COMPILER.registers in HOLD_TABLES else angles.NEAR
FUNCTIONS = {"SIN": np.sin, "COS": np.cos, "TAN": np.tan}
PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)


def computed(kind: str, x: Array, **members: Any) -> Array:
    operator = operator_of(f"DML_OPERATOR_ELEMENT_WISE_{kind}", x.size, **members)
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, COMPILER, least=1)
        kernel = device.prepare(operator)
        assert isinstance(kernel, NumpyKernel)
        assert isinstance(kernel._form.routine, Loop)
        return dispatch(device, operator, [x])


def rest(x: np.float32) -> np.longdouble:
    """Of a turn, in radians."""
    getcontext().prec = 100
    angle = Decimal(float(x))
    left = angle - 2 * PI * (angle / (2 * PI)).to_integral_value()
    high = np.longdouble(float(left))
    return high + np.longdouble(float(left - Decimal(float(left))))


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_every_magnitude(kind: str) -> None:
    """Next to multiples of a quarter of a turn, too, where most digits cancel."""
    rng = np.random.default_rng(4)
    quarters = (np.arange(1, 1 << 13, dtype=np.longdouble) * np.longdouble("1.57079632679489661923132169")) * 4099
    some = rng.standard_normal(1 << 12) * 10.0 ** rng.uniform(-40, 38, 1 << 12)
    x = np.concatenate([quarters, rng.standard_normal(1 << 14) * 4, some]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0))])
    x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[kind](np.array([rest(each) for each in x]))
    assert np.abs(x).max() > 1e37
    small = np.abs(x) < 1e-30  # whose own digits are what is left
    exact[small] = FUNCTIONS[kind](x[small].astype(np.longdouble))
    assert errors(computed(kind, x), exact, None).max() <= 1


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_large_ones_change_nothing_about_those_beside_them(kind: str) -> None:
    """These are computed again by the way that any number has."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(4 * GUESSED) * 10.0 ** rng.uniform(-3, np.log10(NEAR) - 0.7, 4 * GUESSED)).astype(
        np.float32
    )
    assert np.abs(x).max() < NEAR
    beside = x.copy()
    beside[7::GUESSED] = [np.inf, 1e30, np.nan, NEAR]
    made, again = computed(kind, x), computed(kind, beside)
    same = beside == x
    np.testing.assert_array_equal(made[same].view(np.uint32), again[same].view(np.uint32))
    assert np.isnan(again[7::GUESSED]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("size", [GUESSED, 3 * GUESSED + 5])
def test_results_that_lie_apart(kind: str, size: int) -> None:
    """Pieces of them are made one after the other, and belong at every other place."""
    x = np.random.default_rng(6).standard_normal(size).astype(np.float32)
    made = computed(kind, x, OutputTensor={"DataType": "FLOAT32", "Sizes": [size], "Strides": [2]})
    np.testing.assert_array_equal(made[::2], computed(kind, x))


@pytest.mark.parametrize("kind", ["SIN", "TAN"])
def test_the_sign_of_zero(kind: str) -> None:
    x = np.array([-0.0, 0.0, -1e-45, 1e30], np.float32)
    for given in (x, x[:3]):
        np.testing.assert_array_equal(np.signbit(computed(kind, given)[:3]), [True, False, True])
