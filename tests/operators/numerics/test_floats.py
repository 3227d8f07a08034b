"""Results in FLOAT32 and FLOAT16 against exact ones: all float16 values, special and random float32 bit patterns."""

import numpy as np
import pytest

from app.execution.device import Device
from app.execution.numpy_lowering import Array
from tests.operators.numerics.cases import (
    CELUS,
    CONSTANT_POWS,
    FLOAT16_BOUND,
    HARD_SIGMOIDS,
    PARAMETERIZED_RELUS,
    SCALED_CONSTANT_POWS,
    UNARY,
    Case,
    all_float16,
    float32_inputs,
    ordinary_float32,
    random_float32,
    special_float32,
)
from tests.operators.numerics.evaluation import evaluate
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import check, rounded

RANDOM = 1 << 20


def check_case(device: Device, case: Case, bound: int, *inputs: Array) -> None:
    """Results within the bound, and zeros of the right sign where the function has one."""
    actual = evaluate(device, case.kind, case.attributes, *inputs)
    with np.errstate(all="ignore"):
        exact = case.exact(*map(wide, inputs))
    check(actual, exact, bound, *inputs, absolute=case.absolute if actual.dtype == np.float32 else 0)
    if case in CONSTANT_POWS + SCALED_CONSTANT_POWS + PARAMETERIZED_RELUS:
        zero = actual == 0
        assert np.array_equal(np.signbit(actual[zero]), np.signbit(rounded(exact, actual.dtype)[zero]))


@pytest.mark.parametrize("case", UNARY, ids=str)
def test_all_float16_values(device: Device, case: Case) -> None:
    check_case(device, case, FLOAT16_BOUND, all_float16())


@pytest.mark.parametrize("case", UNARY, ids=str)
def test_special_float32_values(device: Device, case: Case) -> None:
    check_case(device, case, case.bound, float32_inputs(case))


@pytest.mark.parametrize("case", HARD_SIGMOIDS + CELUS + CONSTANT_POWS, ids=str)
def test_random_float32_bit_patterns(device: Device, case: Case) -> None:
    check_case(device, case, case.bound, random_float32(RANDOM))


@pytest.mark.parametrize("case", HARD_SIGMOIDS[:4] + CELUS[:4] + CONSTANT_POWS[:18], ids=str)
def test_ordinary_float32_values(device: Device, case: Case) -> None:
    check_case(device, case, case.bound, ordinary_float32(RANDOM >> 2))


@pytest.mark.parametrize("case", SCALED_CONSTANT_POWS, ids=str)
def test_scaled_float32_values(device: Device, case: Case) -> None:
    check_case(device, case, case.bound, np.concatenate([random_float32(1 << 14), ordinary_float32(1 << 14)]))


@pytest.mark.parametrize("case", SCALED_CONSTANT_POWS[8::31], ids=str)
def test_random_scaled_float32_bit_patterns(device: Device, case: Case) -> None:
    check_case(device, case, case.bound, random_float32(RANDOM))


# Two inputs


@pytest.mark.parametrize("case", PARAMETERIZED_RELUS, ids=str)
class TestSlopes:
    """PARAMETERIZED_RELU: pairs of values."""

    @pytest.mark.parametrize("slope", [0.0, -0.0, 1, -1, 0.25, 1 / 3, 6e-8, -1e-3, 65504, np.inf, -np.inf, np.nan])
    def test_all_float16_values(self, device: Device, case: Case, slope: float) -> None:
        x = all_float16()
        check_case(device, case, FLOAT16_BOUND, x, np.full_like(x, slope))

    def test_random_float16_pairs(self, device: Device, case: Case) -> None:
        x, slope = (np.random.default_rng(seed).choice(all_float16(), RANDOM) for seed in (2, 3))
        check_case(device, case, FLOAT16_BOUND, x, slope)

    def test_special_float32_pairs(self, device: Device, case: Case) -> None:
        x, slope = (each.ravel() for each in np.meshgrid(special_float32()[::9], special_float32()[::7]))
        check_case(device, case, case.bound, x, slope)

    def test_random_float32_pairs(self, device: Device, case: Case) -> None:
        check_case(device, case, case.bound, random_float32(RANDOM), random_float32(RANDOM, seed=4))

    def test_ordinary_float32_pairs(self, device: Device, case: Case) -> None:
        check_case(device, case, case.bound, ordinary_float32(RANDOM), ordinary_float32(RANDOM, seed=5))
