"""Functions of float32 by few formulas for all numbers, for processors whose registers hold no tables; see `chosen.py`.
Others take those of `pieces.py`."""

import math

from app.devices.cpu.llvm.math.primitives import FORMATS, by_steps, four_to_the, fused, nearest, signed, two_to_the
from app.formula.values import FLOAT32, Value, absolute, maximum, minimum, where

TANH_IS_1, ERF_IS_1 = 9.1, 3.97
"""From where on they are 1 in float32, by these formulas too."""

TANH = (-0.33333321776158714, 0.13332394111276608, -0.053729938159109744, 0.019456062842651126)
"""(tanh(f) / f - 1) / f^2 by powers of f^2, up to ln(2) / 2: 5e-10."""

BASE = 0.875
"""How fast the number near a tanh goes to 1: of numbers of few digits the one that leaves the least errors."""

ERF_IS_FAR = 0.84375

ERF = (0.1283791607939109, -0.37612576404888226, 0.11282775584063019, -0.026805103161149015, 0.005055620798929185,
       -0.0006342909513341821)  # fmt: skip
"""erf(x) / x - 1 by powers of x^2, up to ERF_IS_FAR: 6e-9."""

LOG2_OF_ERFC = (-0.00015550911317694838, -1.6274253490236485, -0.9183465062251372, -0.15075555070095445,
                0.03246470982766699, -0.0044916284695942915, 0.00029312182651163645)  # fmt: skip
"""log2(1 - erf(x)) by powers of x, from ERF_IS_FAR to 4: of 1 - erf(x) 2e-9."""

EXP2 = (0.6931471805599453, 0.24022647535346317, 0.05550362098636762, 0.009618527507182248, 0.0013390251506164399,
        0.00015321039986469288)  # fmt: skip
"""(2^f - 1) / f by powers of f, from -1/2 to 1/2: 3e-9."""


def tanh(x: Value) -> Value:
    """With x = n ln 2 + f and t = tanh(f), (s - 1 + (s + 1) t) / (s + 1 + (s - 1) t) for s = 4^n. What it is more than
    a number near it, whose distance from 1 is 1, 9/16, 1/8 and then 0, and from -1 the `opposite`, is such a quotient
    too. It is small, and so are its errors. All that is made of n is exact where it counts, and f is for an n of up to
    2."""
    size = minimum(absolute(x), TANH_IS_1)
    half = nearest(size, 0.5 / math.log(2), 0.5)
    f = fused(half, -2 * math.log(2), size)
    square = f * f
    t = fused(f * square, by_steps(TANH, square), f)
    scale = four_to_the(half)
    distance = maximum(fused(half, -BASE, 1), 0)
    opposite = 2 - distance
    above = fused(fused(scale, distance, opposite), t, fused(scale, distance, -opposite))
    return signed((1 - distance) + above / fused(scale - 1, t, scale + 1), x)


def erf(x: Value) -> Value:
    """By its series, or what is left of 1."""
    size = minimum(absolute(x), ERF_IS_1)
    near = fused(size, by_steps(ERF, size * size), size)
    exponent = by_steps(LOG2_OF_ERFC, size)
    n = (exponent + FORMATS[FLOAT32].rounder) - FORMATS[FLOAT32].rounder
    f = exponent - n
    far = fused(-fused(f, by_steps(EXP2, f), 1), two_to_the(n), 1)
    return signed(where(size >= ERF_IS_FAR, far, near), x)
