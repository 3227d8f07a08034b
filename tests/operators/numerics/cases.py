"""Operators with attributes, how exact their results must be, and where they are hard."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from app.memory.arrays import Array
from app.operators.operator import PREFIX
from tests.operators.descriptors import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU
from tests.operators.numerics import reference
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import neighbours

E, A = PREFIX + "ELEMENT_WISE_", PREFIX + "ACTIVATION_"

# Bounds of the project, in ULP. FLOAT16 computes in FLOAT32, so one rounding is all that can differ.
PIECEWISE_LINEAR, TRANSCENDENTAL, FLOAT16_BOUND = 2, 4, 1


@dataclass(frozen=True)
class Case:
    """`exact(x, ...)` is the result for inputs and in long double; `corners` are inputs around which to look."""

    kind: str
    attributes: dict[str, Any]
    exact: Callable[..., Array]
    bound: int
    corners: tuple[float, ...] = ()
    largest: Callable[..., Array] | None = None
    """The largest term of a sum that may cancel: 1.2e-7 of it is within the bound as well."""

    def __str__(self) -> str:
        attributes = {name: value for name, value in self.attributes.items() if name != "ScaleBias"}
        attributes |= self.attributes.get("ScaleBias", {})
        name = self.kind.removeprefix(PREFIX).removeprefix("ACTIVATION_")
        told = (
            f"{name}={value:.6g}" if isinstance(value, int | float) else str(value)
            for name, value in attributes.items()
        )
        return " ".join([name, *told])


def _hard_sigmoid(alpha: float, beta: float) -> Case:
    return Case(
        HARD_SIGMOID,
        {"Alpha": alpha, "Beta": beta},
        lambda x: reference.hard_sigmoid(x, alpha, beta),
        PIECEWISE_LINEAR,
        (-beta / alpha, (1 - beta) / alpha, 1 / alpha) if alpha else (),
        lambda x: np.minimum(np.maximum(np.abs(wide(alpha) * x), abs(wide(beta))), 2),
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
MILD_EXPONENTS = (1.7, 0.4545, 1.25, -1.25, 1.2499, -1.2499, 2.99, -2.99)
LARGE_EXPONENTS = (63.7, -63.5, 100, -100, 1e5, 16777215, 16777216, -16777215, 8388607.5, 1e10, -1e10, 3e38, -3e38)
TINY_EXPONENTS = (1e-3, -1e-3, 1e-10, 1e-45)
CONSTANT_POWS = [_constant_pow(each) for each in (*SMALL_EXPONENTS, *MILD_EXPONENTS, *LARGE_EXPONENTS, *TINY_EXPONENTS)]
# A rounding of the scaled base, to 48 bits or more, grows by the exponent: beyond about 2^24 it would show in FLOAT32.
SCALED_CONSTANT_POWS = [
    _scaled_constant_pow(exponent, scale, bias)
    for exponent in (*SMALL_EXPONENTS, 100, -100, 1e5, 16777215, 1e-3)
    for scale, bias in [(1, 0), (2, 10), (-0.5, 1), (1e-3, 0.999), (-3e38, 1), (1e-38, 1e-45), (0, -2)]
]
PARAMETERIZED_RELUS = [Case(PARAMETERIZED_RELU, {}, reference.parameterized_relu, PIECEWISE_LINEAR, (0,))]


def _line(alpha: float, beta: float, kind: str = "LINEAR") -> Case:
    return Case(
        f"{A}LINEAR",
        {"Alpha": alpha, "Beta": beta},
        lambda x: wide(alpha) * x + wide(beta),
        PIECEWISE_LINEAR,
        (-beta / alpha,),
        lambda x: np.maximum(np.abs(wide(alpha) * x), abs(wide(beta))),
    )


def _hard_swish(alpha: float, beta: float) -> Case:
    return Case(
        f"{A}HARD_SWISH",
        {"Alpha": alpha, "Beta": beta},
        lambda x: x * reference.hard_sigmoid(x, alpha, beta),
        PIECEWISE_LINEAR,
        (-beta / alpha, (1 - beta) / alpha),
        lambda x: np.abs(x) * np.minimum(np.maximum(np.abs(wide(alpha) * x), abs(wide(beta))), 2),
    )


def _activation(
    kind: str, exact: Callable[..., Array], *corners: float, bound: int = TRANSCENDENTAL, **values: float
) -> Case:
    return Case(A + kind, values, lambda x: exact(x, *map(wide, values.values())), bound, corners)


def _element_wise(
    kind: str, exact: Callable[..., Array], *corners: float, bound: int = TRANSCENDENTAL, **attributes: Any
) -> Case:
    return Case(E + kind, attributes, exact, bound, corners)


def _scaled(kind: str, exact: Callable[..., Array], scale: float, bias: float, bound: int = TRANSCENDENTAL) -> Case:
    attributes = {"ScaleBias": {"Scale": scale, "Bias": bias}}
    return Case(E + kind, attributes, lambda x: exact(_g(x, scale, bias)), bound, (-bias / scale,))


def _g(x: Array, scale: float, bias: float) -> Array:
    """Rounded to float64, as operators have it, since a sine of a large number depends on that."""
    return np.asarray((wide(scale) * x + wide(bias)).astype(np.float64), np.longdouble)


def _shrink(x: Array, bias: Any, threshold: Any) -> Array:
    return np.where(x > threshold, x - bias, np.where(x < -threshold, x + bias, np.where(np.isnan(x), 0, 0 * x)))


def _elu(x: Array, alpha: Any) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _limited(x: Array, exact: Array) -> Array:
    """Limits where an infinity is multiplied with 0."""
    return np.where(np.isinf(x) & np.isnan(exact), 0 * np.sign(x), exact)


EXP_ENDS = (88.72284, -87.33654, -103.97208, -1e-4)
ACTIVATIONS = [
    _activation("RELU", lambda x: np.maximum(x, 0), bound=0),
    *[
        _activation("LEAKY_RELU", lambda x, a: np.where(x >= 0, x, a * x), bound=2, Alpha=a)
        for a in (0.01, 1, 0, -2, 3)
    ],
    *[
        _activation("THRESHOLDED_RELU", lambda x, a: np.where(x > a, x, 0), a, bound=0, Alpha=a)
        for a in (1, -1, 0, 0.1)
    ],
    *[
        _activation("SHRINK", _shrink, t, t + b, bound=2, Bias=b, Threshold=t)
        for b, t in [(0, 0.5), (1, 1), (0.1, 0.3), (-2, -1)]
    ],
    *[_activation("ELU", _elu, *EXP_ENDS, Alpha=a) for a in (1, 0.5, -1, 3, 1e-3, 1e10, 0)],
    *[
        _activation("SCALED_ELU", lambda x, a, g: g * _elu(x, a), *EXP_ENDS, Alpha=a, Gamma=g)
        for a, g in [(1.6732, 1.0507), (1, 1), (-0.5, 1.5), (1e-30, 1e20), (100, 3)]
    ],
    _activation("SIGMOID", reference.sigmoid, *EXP_ENDS, 17, -17),
    _activation("TANH", np.tanh, 9, 1e-4, 0.5),
    *[
        _activation("SCALED_TANH", lambda x, a, b: a * np.tanh(b * x), 1 / b, 9 / b, Alpha=a, Beta=b)
        for a, b in [(1, 0.5), (1.7159, 2 / 3), (-1, 3), (1e3, 1e-3), (1e20, 1e-30)]
    ],
    _activation("SOFTSIGN", lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x)))),
    *[
        _activation("SOFTPLUS", lambda x, s: reference.softplus(s * x) / s, *(e / s for e in EXP_ENDS), Steepness=s)
        for s in (1, 2, 1.7, 10, 0.1, -1, 1e-3)
    ],
    *[
        _activation(
            "PARAMETRIC_SOFTPLUS",
            lambda x, a, b: a * reference.softplus(b * x),
            *(e / b for e in EXP_ENDS),
            Alpha=a,
            Beta=b,
        )
        for a, b in [(1, 1), (0.5, 2), (-2, 0.3), (100, -1.7), (1e-3, 30)]
    ],
    *[
        _activation(
            "SWISH",
            lambda x, s: _limited(x, x * reference.sigmoid(s * x)),
            *(e / s for e in EXP_ENDS),
            SigmoidInputScale=s,
        )
        for s in (1, 1.702, -1, 0.1, 10)
    ],
    _activation("GELU", lambda x: _limited(x, x * reference.normal_cdf(x)), -12.9, -13.2, -14, -5, 5, 1e-4),
    *[_line(*each) for each in [(1, 0), (0.5, 1), (-3, 0.1), (1e20, -1e20), (1 / 3, 1e-3)]],
    *[_hard_swish(*each) for each in [(1 / 6, 0.5), (1, 0), (-0.5, 0.25), (3, 3)]],
]
ROUNDINGS: dict[str, Callable[..., Array]] = {
    "HALVES_TO_NEAREST_EVEN": np.rint,
    "TOWARD_ZERO": np.trunc,
    "TOWARD_INFINITY": reference.round_half_away,
}
FUNCTIONS: dict[str, tuple[Callable[..., Array], tuple[float, ...], int]] = {
    "ABS": (np.abs, (), 0),
    "RECIP": (lambda x: 1 / x, (1e38, 3e-39), 1),
    "SQRT": (np.sqrt, (), 1),
    "EXP": (np.exp, EXP_ENDS, 4),
    "LOG": (np.log, (1, 0.5, 2), 4),
    "ERF": (reference.erf, (1, 3.9, 1e-4, 0.5), 4),
    "SIN": (np.sin, (3.1415927, 6.2831855, 1.5707964, 1e5), 4),
    "COS": (np.cos, (1.5707964, 4.712389, 3.1415927, 1e5), 4),
    "TAN": (np.tan, (1.5707964, 3.1415927, 0.7853982), 4),
    "ASIN": (np.arcsin, (1, 0.5, 1e-4), 4),
    "ACOS": (np.arccos, (1, 0.5, -1, 1e-4), 4),
    "ATAN": (np.arctan, (1, 1e-4, 1e8), 4),
    "SINH": (np.sinh, (89.4, 1e-4, 1, 0.5), 4),
    "COSH": (np.cosh, (89.4, 1e-4, 1), 4),
    "TANH": (np.tanh, (9, 1e-4, 0.5), 4),
    "ASINH": (np.arcsinh, (1, 1e-4, 1e19), 4),
    "ACOSH": (np.arccosh, (1, 2, 1e19), 4),
    "ATANH": (np.arctanh, (1, 0.5, 1e-4), 4),
    "FLOOR": (np.floor, (1, 8388608), 0),
    "CEIL": (np.ceil, (1, 8388608), 0),
    "IDENTITY": (lambda x: x, (), 0),
}
ELEMENT_WISES = [
    _element_wise(kind, exact, *corners, bound=bound) for kind, (exact, corners, bound) in FUNCTIONS.items()
] + [
    _element_wise("NEGATE", np.negative, bound=0),
    _element_wise("SIGN", lambda x: np.where(np.isnan(x), 0, np.sign(x)), bound=0),
    *[
        _element_wise("ROUND", exact, 0.5, 1.5, 2.5, 8388607.5, 0.49999997, bound=0, RoundingMode=mode)
        for mode, exact in ROUNDINGS.items()
    ],
    *[
        _element_wise(
            "CLIP",
            lambda x, least=least, most=most: np.maximum(wide(least), np.minimum(x, wide(most))),
            *(least, most),
            bound=0,
            Min=least,
            Max=most,
        )
        for least, most in [(-1, 1), (0, 6), (2, -2), (-0.5, 3e38)]
    ],
    _element_wise("THRESHOLD", lambda x: np.maximum(x, wide(0.25)), 0.25, bound=0, Min=0.25),
]
"""Functions of one input, without ScaleBias."""
SCALED = [
    _scaled(kind, FUNCTIONS[kind][0], scale, bias, max(FUNCTIONS[kind][2], 1))
    for kind in FUNCTIONS
    for scale, bias in [(2, -1.5), (-1 / 3, 0.9999)]
]
UNARY: list[Case] = [
    *HARD_SIGMOIDS,
    *CELUS,
    *CONSTANT_POWS,
    *SCALED_CONSTANT_POWS,
    *ACTIVATIONS,
    *ELEMENT_WISES,
    *SCALED,
]


def _grad(kind: str, zero: Callable[[Array], Array], **attributes: Any) -> Case:
    return Case(kind, attributes, lambda x, g: np.where(zero(x), 0, g), 0)


PAIRS: dict[str, tuple[Callable[..., Array], int]] = {
    "ADD": (np.add, 0),
    "ADD1": (np.add, 0),
    "SUBTRACT": (np.subtract, 0),
    "MULTIPLY": (np.multiply, 0),
    "DIVIDE": (np.divide, 0),
    "MAX": (np.maximum, 0),
    "MIN": (np.minimum, 0),
    "MEAN": (lambda a, b: (a + b) / 2, 1),
    "DIFFERENCE_SQUARE": (lambda a, b: (a - b) * (a - b), 2),
    "ATAN_YX": (np.arctan2, 4),
    "POW": (lambda x, e: np.power(x.astype(np.float64), e.astype(np.float64)), 4),
    "MODULUS_TRUNCATE": (np.fmod, 0),
    "MODULUS_FLOOR": (reference.modulus_floor, 1),
}
BINARY: list[Case] = [
    *PARAMETERIZED_RELUS,
    *[Case(E + kind, {}, exact, bound) for kind, (exact, bound) in PAIRS.items()],
    _grad(A + "RELU_GRAD", lambda x: ~(x > 0)),
    _grad(E + "CLIP_GRAD", lambda x: (x <= -1) | (x >= 2), Min=-1, Max=2),
]
"""Functions of two inputs."""


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
