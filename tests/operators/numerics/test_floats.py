"""Results in FLOAT32 and FLOAT16 against exact ones: all float16 values, special and random float32 bit patterns.

NUMERICS_RANDOM_BITS=20 has 2^20 random bit patterns instead of 2^15 for each case.
"""

import os
from collections.abc import Mapping

import numpy as np
import pytest

from app.devices.device import Device
from app.memory.arrays import Array
from app.operators.operator import PREFIX
from tests.operators.numerics.cases import (
    BINARY,
    CONSTANT_POWS,
    FLOAT16_BOUND,
    PARAMETERIZED_RELUS,
    SCALED,
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

RANDOM = 1 << int(os.environ.get("NUMERICS_RANDOM_BITS", "15"))
SWISHES = [case for case in UNARY if case.kind.endswith("ACTIVATION_SWISH")]
SIGNED_ZEROS = [*CONSTANT_POWS, *SCALED_CONSTANT_POWS, *PARAMETERIZED_RELUS, *SWISHES]
"""Whose results of 0 have a sign that matters."""
EXPONENTIAL_UNITS = {f"{PREFIX}ACTIVATION_{kind}" for kind in ("ELU", "CELU", "SCALED_ELU")}

unary = pytest.mark.parametrize("case", UNARY, ids=str)
binary = pytest.mark.parametrize("case", BINARY, ids=str)


def check_case(devices: Mapping[str, Device], case: Case, bound: int, *inputs: Array) -> None:
    with np.errstate(all="ignore"):
        exact = case.exact(*map(wide, inputs))
        largest = case.largest(*map(wide, inputs)) if case.largest else None
    for name, device in devices.items():
        actual = evaluate(device, case.kind, case.attributes, *inputs)
        check(actual, exact, bound, *inputs, largest=largest, on=name)
        if case in SIGNED_ZEROS:
            zero = actual == 0
            expected = rounded(exact[zero], actual.dtype)
            assert np.array_equal(np.signbit(actual[zero]), np.signbit(expected)), name


@unary
def test_all_float16_values(devices: Mapping[str, Device], case: Case) -> None:
    check_case(devices, case, min(case.bound, FLOAT16_BOUND), all_float16())


@pytest.mark.parametrize("case", [case for case in UNARY if case.kind in EXPONENTIAL_UNITS], ids=str)
def test_exponential_units_of_float16(devices: Mapping[str, Device], case: Case) -> None:
    """As their notes say: 0.1 ULP more than what rounding takes."""
    x = all_float16()
    with np.errstate(all="ignore"):
        exact = case.exact(wide(x))
        held = np.abs(exact) <= np.finfo(np.float16).max
        units = np.spacing(np.abs(rounded(exact, np.float16)[held])).astype(np.longdouble)
    for name, device in devices.items():
        actual = evaluate(device, case.kind, case.attributes, x).astype(np.longdouble)
        assert np.max(np.abs(actual[held] - exact[held]) / units) <= 0.6, name


@unary
def test_float32_values(devices: Mapping[str, Device], case: Case) -> None:
    """Special values, what lies around corners, random bit patterns, and ordinary numbers."""
    slow = case in SCALED_CONSTANT_POWS  # powers in long double take long
    count = min(RANDOM, 1 << 12) if slow else RANDOM
    inputs = [float32_inputs(case), random_float32(count), ordinary_float32(count >> 1)]
    check_case(devices, case, case.bound, np.concatenate(inputs))


@binary
def test_float16_pairs(devices: Mapping[str, Device], case: Case) -> None:
    x = all_float16()
    others = [0.0, -0.0, 1, 0.25, 1 / 3, 6e-8, -1e-3, 65504, np.inf, -np.inf, np.nan]
    if case.kind.endswith("_POW"):
        x = np.where(np.isnan(x), np.float16("nan"), x)  # a signaling NaN to the power of 0 may be NaN
    for other in others:
        check_case(
            devices, case, min(case.bound, FLOAT16_BOUND), x[:: len(others)], np.full_like(x[:: len(others)], other)
        )
    a, b = (np.random.default_rng(seed).choice(x, RANDOM) for seed in (2, 3))
    check_case(devices, case, min(case.bound, FLOAT16_BOUND), a, b)


@binary
def test_float32_pairs(devices: Mapping[str, Device], case: Case) -> None:
    special = (each.ravel() for each in np.meshgrid(special_float32()[::19], special_float32()[::17]))
    check_case(devices, case, case.bound, *special)
    check_case(devices, case, case.bound, random_float32(RANDOM), random_float32(RANDOM, seed=4))
    check_case(devices, case, case.bound, ordinary_float32(RANDOM), ordinary_float32(RANDOM, seed=5))


def test_every_float_operator_is_covered() -> None:
    """Those with functions of floats; comparisons, choices, conversions and reductions have tests of their own."""
    assert len({case.kind for case in [*UNARY, *BINARY]}) == 61


def test_scaled_cases_are_of_all_functions() -> None:
    assert len({case.kind for case in SCALED}) == 21
