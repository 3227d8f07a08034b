"""Operators with attributes, how exact their results must be, and where they are hard."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from app.execution.numpy_lowering import Array
from app.operators.operator import PREFIX
from tests.operators.descriptors import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU
from tests.operators.numerics import reference
from tests.operators.numerics.ulp import neighbours

# Bounds of the project, in ULP. FLOAT16 computes in FLOAT32, so one rounding is all that can differ.
PIECEWISE_LINEAR, TRANSCENDENTAL, FLOAT16_BOUND = 2, 4, 1
CANCELLING_SUM = 1.2e-7
"""Where a multiply-add in float32 cancels, what it may be off, absolutely."""


@dataclass(frozen=True)
class Case:
    """`exact(x, ...)` is the result for inputs and in long double; `corners` are inputs around which to look."""

    kind: str
    attributes: dict[str, Any]
    exact: Callable[..., Array]
    bound: int
    corners: tuple[float, ...] = ()
    absolute: float = 0

    def __str__(self) -> str:
        attributes = {name: value for name, value in self.attributes.items() if name != "ScaleBias"}
        attributes |= self.attributes.get("ScaleBias", {})
        name = self.kind.removeprefix(PREFIX).removeprefix("ACTIVATION_").removeprefix("ELEMENT_WISE_")
        return " ".join([name, *(f"{name}={value:.6g}" for name, value in attributes.items())])


def _hard_sigmoid(alpha: float, beta: float) -> Case:
    return Case(
        HARD_SIGMOID,
        {"Alpha": alpha, "Beta": beta},
        lambda x: reference.hard_sigmoid(x, alpha, beta),
        PIECEWISE_LINEAR,
        (-beta / alpha, (1 - beta) / alpha, 1 / alpha) if alpha else (),
        CANCELLING_SUM,
    )


def _celu(alpha: float) -> Case:
    # the root, where exp(x / Alpha) is 0.5, loses half its digits to -1, vanishes beside 1, and reaches 0 or infinity
    corners = tuple(part * alpha for part in (-np.log(2), -1e-4, -6e-8, -17.4, -88, -104, -700, -745))
    return Case(CELU, {"Alpha": alpha}, lambda x: reference.celu(x, alpha), TRANSCENDENTAL, corners)


def _constant_pow(exponent: float) -> Case:
    edges = []  # the bases at which the power overflows, becomes subnormal and becomes 0
    if abs(exponent) > 0.1:
        with np.errstate(all="ignore"):
            edges = [float(np.power(limit, 1 / exponent)) for limit in (3.4028236e38, 1.1754944e-38, 1.4e-45, 7e-46)]
    corners = (1.0, -1.0, *edges, *(-edge for edge in edges))
    return Case(
        CONSTANT_POW, {"Exponent": exponent}, lambda x: reference.constant_pow(x, exponent), TRANSCENDENTAL, corners
    )


def _scaled_constant_pow(exponent: float, scale: float, bias: float) -> Case:
    return Case(
        CONSTANT_POW,
        {"Exponent": exponent, "ScaleBias": {"Scale": scale, "Bias": bias}},
        lambda x: reference.scaled_constant_pow(x, exponent, scale, bias),
        TRANSCENDENTAL,
        (-bias / scale, (1 - bias) / scale, (-1 - bias) / scale) if scale else (),
    )


HARD_SIGMOIDS = [
    _hard_sigmoid(alpha, beta)
    for alpha, beta in [
        (0.2, 0.5),
        (1 / 6, 0.5),
        (1, 0),
        (-1, 0.5),
        (1 / 3, -1 / 3),
        (1, -1),
        (-0.7, 0.3),
        (3e30, 1),
        (-3e38, 3e38),
        (1e-40, 0.25),
        (1e-45, -1e-45),
        (0, 0.25),
        (0, 2),
        (0, -1),
    ]
]
CELUS = [
    _celu(alpha)
    for alpha in (1, 0.1, 0.5, 0.7, 1e-3, 1e-30, 1e-45, 1.7, 3, 100, 3e38, -1, -0.1, -1e-3, -1e-30, -1e-45, -3, -3e38)
]
SMALL_EXPONENTS = (0, 0.5, -0.5, 1, -1, 2, -2, 3, -3, 2.5, -2.5, 1 / 3, -1 / 3, 4, -4, 5, 10.7, -10.7)
LARGE_EXPONENTS = (100, -100, 1e5, 16777215, 16777216, -16777215, 8388607.5, 1e10, -1e10, 3e38, -3e38)
TINY_EXPONENTS = (1e-3, -1e-3, 1e-10, 1e-45)
CONSTANT_POWS = [_constant_pow(each) for each in (*SMALL_EXPONENTS, *LARGE_EXPONENTS, *TINY_EXPONENTS)]
# A rounding in double of the scaled base grows by the exponent: beyond about 2^30 it would show in FLOAT32.
SCALED_CONSTANT_POWS = [
    _scaled_constant_pow(exponent, scale, bias)
    for exponent in (*SMALL_EXPONENTS, 100, -100, 1e5, 16777215, 1e-3)
    for scale, bias in [(1, 0), (2, 10), (-0.5, 1), (1e-3, 0.999), (-3e38, 1), (1e-38, 1e-45), (0, -2)]
]
PARAMETERIZED_RELUS = [Case(PARAMETERIZED_RELU, {}, reference.parameterized_relu, PIECEWISE_LINEAR, (0,))]
UNARY = [*HARD_SIGMOIDS, *CELUS, *CONSTANT_POWS, *SCALED_CONSTANT_POWS]


@cache
def all_float16() -> Array:
    """Every bit pattern."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@cache
def random_float32(count: int, seed: int = 0) -> Array:
    """Random bit patterns: all exponents alike, some NaNs, infinities and subnormals among them."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32).view(np.float32)


@cache
def ordinary_float32(count: int, seed: int = 1) -> Array:
    """What tensors hold: numbers around 0, of magnitudes from a thousandth to thousands."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(count) * 10 ** rng.uniform(-3, 3, count)).astype(np.float32)


@cache
def special_float32() -> Array:
    """Zeros, infinities, NaNs of either kind, the ends of subnormals and of normals, powers of 2 with neighbours."""
    bits = [0x00000001, 0x00000002, 0x00400000, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    named = np.array(bits, np.uint32).view(np.float32)
    powers = np.exp2(np.arange(-149, 128)).astype(np.float32)
    positive = np.concatenate([np.array([0, np.inf], np.float32), named, neighbours(powers, 2)])
    return np.concatenate([positive, -positive])


def float32_inputs(case: Case) -> Array:
    """Special values, and what lies around the corners of `case`."""
    with np.errstate(over="ignore"):
        corners = np.array(case.corners, np.float32)
    return np.concatenate([special_float32(), neighbours(corners, 64), neighbours(-corners, 8)])
