"""What functions of floats are made of in loops compiled with LLVM: polynomials, and what is on the bits of a float.

They are formulas over the operations of `app/formula/values.py` and some that LLVM's lowering has besides: `fused` is
a * b + c rounded once, `kept` says what to compute first, `truncated` converts what fits, `picked` looks up, `chosen`
has two formulas, and `signed`, `scaled`, `two_to_the`, `exponent_of` and others are on the bits of a float.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.formula.values import FLOAT32, FLOAT64, Constant, Operation, Value, where

LOG2_E = 1 / math.log(2)


@dataclass(frozen=True, slots=True)
class Format:
    """What depends on the width of a float. A whole number plus `rounder` has it in its lowest bits."""

    rounder: float
    scale: float
    """What exponents are changed by to be far from their ends."""
    exponents: float
    """Results of exp lie between 2^-exponents, which is 0, and 2^exponents, which is infinite."""
    least_normal: float
    digits: int
    ln_2: tuple[float, float]
    """ln 2 in two parts, the first one rounded to the format."""
    expm1: tuple[float, ...]
    """(exp(f) - 1 - f) / f^2 by powers of f, up to ln(2) / 2: of float32 7e-8, of float64 5e-13."""


FORMATS = {
    FLOAT32: Format(
        rounder=1.5 * 2**23,
        scale=100,
        exponents=151,
        least_normal=2.0**-126,
        digits=24,
        ln_2=(0.693147182464599609375, -1.904654299957767e-09),
        expm1=(0.5, 0.16666576666119928, 0.04166655421298415, 0.008363232883682618, 0.0013926250831497611),
    ),
    FLOAT64: Format(
        rounder=1.5 * 2**52,
        scale=600,
        exponents=1076,
        least_normal=2.0**-1022,
        digits=53,
        ln_2=(0.6931471805599453, 2.3190468138462996e-17),
        expm1=(0.4999999999995475, 0.16666666666662555, 0.04166666678698556, 0.008333333344268395,
               0.0013888838910996056, 0.00019841224418291943, 2.4868002978056962e-05, 2.7617685465165067e-06),
    ),
}  # fmt: skip


EXP = (0.49999993433464435, 0.16666520402233326, 0.04166839051757366, 0.008368744903842337, 0.0013814553642266096)
"""((exp(f) - 1) / f - 1) / f by powers of f, up to ln(2) / 2: of exp(f) 3e-9."""


def fused(a: Value, b: Value | float, c: Value | float) -> Value:
    b, c = (each if isinstance(each, Value) else Constant(a.type, each) for each in (b, c))
    return Operation(a.type, "fused", (a, b, c))


def kept(x: Value) -> Value:
    """`x`, which is computed of many elements before all that is made of it.

    A processor looks ahead for what it can compute meanwhile, but not farther than one long chain of operations. Cut in
    two, it finds several of them.
    """
    return Operation(x.type, "kept", (x,))


@dataclass(frozen=True, eq=False, slots=True)
class Picked(Operation):
    """A number from a `table` of 16, by four bits of a float32."""

    table: tuple[float, ...] = ()

    def with_operands(self, operands: tuple[Value, ...]) -> "Picked":
        return Picked(self.type, self.name, operands, self.table)


def picked(y: Value, table: tuple[float, ...]) -> Value:
    """For a `y` from 1 to below 16 the table's number 4 e + m, for y = 2^e (1 + m / 4 + ...)."""
    first = 4  # of 1, whose exponent ends with 11
    return Picked(FLOAT32, "picked", (y,), (*table[first:], *table[:first]))


def picked_at(raised: Value, table: tuple[float, ...]) -> Value:
    """The table's number n modulo 16, for a whole number n in the lowest bits of `raised`."""
    return Picked(FLOAT32, "picked_at", (raised,), table)


def picked_within(m: Value, table: tuple[float, ...]) -> Value:
    """For an `m` from 1 to below 2 the table's number of the sixteenth of these that it is in."""
    return Picked(FLOAT32, "picked_within", (m,), table)


def exponent_and_significand(x: Value) -> tuple[Value, Value]:
    """n and m of a float32 2^n m, for an m from 1 to below 2. Of 0 n is -infinity, of infinity infinity, and m is 1; of
    NaN and what is below 0 m is NaN."""
    return Operation(FLOAT32, "exponent", (x,)), Operation(FLOAT32, "significand", (x,))


CHOSEN = {
    "tanh": 31,
    "erf": 34,
    "sin": 22,
    "cos": 24,
    "tan": 27,
    "gated_by_normal": 47,
    "log": 36,
    "is_near": 4,
    "arcsin": 27,
    "arccos": 30,
}
"""The functions that `chosen.py` has, and how many instructions each is without tables; what takes bits for others is
none."""


@dataclass(frozen=True, eq=False, slots=True)
class Chosen(Operation):
    """The `function` of a float32 that is called so in `CHOSEN`."""

    function: str = ""

    def with_operands(self, operands: tuple[Value, ...]) -> "Chosen":
        return Chosen(self.type, self.name, operands, self.function)


def chosen(function: str, x: Value) -> Value:
    """By the formula that is quicker on the processor that it is compiled for."""
    return Chosen(FLOAT32, "chosen", (x,), function)


def guessed_inverse_of_root(x: Value) -> Value:
    """1 / sqrt(x) of a float32, with AVX-512 within 2^-14 of it, as the processor looks it up. Of 0 it is infinite."""
    return Operation(FLOAT32, "guessed_inverse_of_root", (x,))


def called_power(base: Value, exponent: Value) -> Value:
    """C's pow, which is exact as NumPy's is, and takes as long. Where both are the same for all elements, as a base and
    how often something was done mostly are, it is called once, before the loop."""
    return Operation(FLOAT64, "called_power", (base, exponent))


def truncated(x: Value, type_: str) -> Value:
    """A float as an integer of up to 32 bits, in whose range it is; one bit more is cut off of those of up to 16."""
    return Operation(type_, "truncated", (x,))


def divided(a: Value, b: Value) -> Value:
    """The quotient of integers as the processor divides them, one by one."""
    return Operation(a.type, "divided", (a, b))


def left_over(a: Value, b: Value) -> Value:
    """The remainder of that."""
    return Operation(a.type, "left_over", (a, b))


def bits_beyond(x: Value, start: float) -> Value:
    """The bits of a float32 less those of `start`, as an int32: from there on to the next power of two how many last
    digits it is more."""
    return Operation("int32", "bits_beyond", (x, Constant(FLOAT32, start)))


def polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """The sum of coefficients[i] * x^i, added up in pairs (G. Estrin), which need not wait for each other."""
    terms: list[Value | float] = list(coefficients)
    while len(terms) > 1:
        pairs = [fused(x, high, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[2 * len(pairs) :]]
        x = x * x
    (result,) = terms
    assert isinstance(result, Value)
    return result


def by_steps(coefficients: Sequence[float], x: Value) -> Value:
    """The same, one after the other (W. Horner): no operation more than there are coefficients, where a processor finds
    other elements to compute meanwhile."""
    result: Value | float
    *lower, result = coefficients
    for each in reversed(lower):
        result = fused(x, result, each)
    assert isinstance(result, Value)
    return result


def nearest(x: Value, factor: float, step: float = 1) -> Value:
    """The multiple of `step`, a power of two, next to x * factor, for which it must be less than the 2^21st."""
    rounder = FORMATS[x.type].rounder * step
    return fused(x, factor, rounder) - rounder


def signed(size: Value, x: Value) -> Value:
    """`copysign` of a float32 that is not negative, and whose sign need not be cleared."""
    return Operation(FLOAT32, "signed", (size, x))


def scaled(x: Value, n: Value) -> Value:
    """x * 2^n with one rounding, for an `x` near 1 and a whole number `n` of up to half more than the format's largest
    exponent."""
    return Operation(x.type, "scaled", (x, n))


def two_to_the(n: Value) -> Value:
    """2^n of a whole number for which there is an exponent."""
    return power_of(_raised(n))


def power_of(raised: Value) -> Value:
    """2^n of an n, for which there is an exponent, in the lowest bits of `raised`."""
    return Operation(raised.type, "two_to_the", (raised,))


def lifted(x: Value, raised: Value) -> Value:
    """x * 2^n for an `x` near 1 and such an n, of which the product is a normal number. Of NaN it is anything."""
    return Operation(x.type, "lifted", (x, raised))


def four_to_the(half: Value) -> Value:
    """4^n for half of such an n."""
    return Operation(half.type, "four_to_the", (_raised(half, 0.5),))


def _raised(n: Value, step: float = 1) -> Value:
    """A multiple of `step` plus so much that its lowest bits are how many these are."""
    rounder = FORMATS[n.type].rounder * step
    match n:
        case Operation(name="subtract", arguments=(raised, Constant(value=value))) if value == rounder:
            return raised  # `nearest` has it
    return n + rounder


def reduced(x: Value) -> tuple[Value, Value]:
    """The whole number n next to x / ln 2, and x - n ln 2."""
    n = nearest(x, LOG2_E)
    high, low = FORMATS[x.type].ln_2
    return n, fused(n, -low, fused(n, -high, x))


def fraction(x: Value) -> tuple[Value, Value]:
    """For a positive number k and m, within sqrt(2) of 1, so that x = 2^k m."""
    form = FORMATS[x.type]
    subnormal = x < form.least_normal
    normal = where(subnormal, x * 2.0**form.digits, x)
    k, m = fraction_of_normal(normal)
    return k - where(subnormal, Constant(x.type, form.digits), 0), m


def fraction_of_normal(x: Value) -> tuple[Value, Value]:
    """The same unless `x` is subnormal. Of what is less than any normal number k is at most -126, of infinity it is
    128, and m is within sqrt(2) of 1 all the same."""
    return Operation(x.type, "exponent_of", (x,)), Operation(x.type, "fraction_of", (x,))
