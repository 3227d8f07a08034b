"""The logarithm of float32 in sixteen pieces, for processors whose registers hold tables; see `chosen.py`. Others take
that of `powers.py`.

x is 2^n m, and m times a number of few digits, which is near 1 / m, is 1 + f: f is exact, or nearly so. What the
logarithm of that number has before its last digits is a multiple of 2^-16, as is that of 2, so that n of the one less
the other is exact, and 0 next to 1 on both of its sides.
"""

from app.devices.cpu.llvm.math.primitives import by_steps, exponent_and_significand, fused, picked_within
from app.formula.values import Value

INVERSES = (1.0, 0.921875, 0.875, 0.828125, 0.78125, 0.75, 0.71875, 0.6875, 0.65625, 0.625, 0.609375, 0.578125,
            0.5625, 0.546875, 0.53125, 0.5)  # fmt: skip
FIRST = (0.0, 0.0813446044921875, 0.1335296630859375, 0.1885986328125, 0.246856689453125, 0.287689208984375,
         0.3302459716796875, 0.37469482421875, 0.4212188720703125, 0.470001220703125, 0.4953155517578125,
         0.5479583740234375, 0.5753631591796875, 0.6035308837890625, 0.6325225830078125, 0.693145751953125)  # fmt: skip
LAST = (0.0, 1.0349617696192581e-06, 1.72953855326341e-06, -7.463004749297397e-06, 3.388478489796398e-06,
        -7.136532531148987e-06, -4.284809165255865e-06, -1.3747772982242168e-06, -5.406994205259252e-06,
        2.408542513876455e-06, 5.885472091904376e-06, 6.796692105126567e-06, 9.857238865151885e-07,
        4.13808129451354e-06, -2.426430256718959e-08, 1.428606765330187e-06)  # fmt: skip
"""Minus their logarithms, in two parts. The last ones are those of 2."""

LOG1P = (-0.5, 0.3333333730697632, -0.2500121295452118, 0.2000514268875122, -0.15626156330108643)
"""(log(1 + f) - f) / f^2 by powers of f, from -0.0333 to 0.0625: of log(1 + f) 3e-10."""


def log(x: Value) -> Value:
    """What it is of 0, infinity and what is no positive number comes of its parts."""
    n, m = exponent_and_significand(x)
    f = fused(m, picked_within(m, INVERSES), -1)
    first = fused(n, FIRST[-1], picked_within(m, FIRST))
    last = fused(n, LAST[-1], picked_within(m, LAST))
    return first + (f + fused(f * f, by_steps(LOG1P, f), last))
