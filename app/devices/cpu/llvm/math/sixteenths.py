"""Sine and cosine of float32 by sixteenths of a turn, for processors whose registers hold what they are there; see
`chosen.py`. Others take the formulas of `angles.py`.

An angle is some sixteenths and a rest, in two float32 of which the second one has what the first has no place for. So
is what a function is at so many sixteenths; with its slope there, and sine and cosine of the rest, that is all.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app.devices.cpu.llvm.math.primitives import FORMATS, by_steps, fused, picked_at, signed
from app.formula.values import FLOAT32, Value, absolute

PER_RADIAN = 2.5464789867401123
SIXTEENTH = (0.39269909262657166, -1.0927847071684482e-08, -4.2878112750147047e-16)
"""Of a turn in radians, in three parts. What an angle of less than 2^20 is beyond the nearest multiple of the first one
is a float32."""

NEAR = 2.0**18
"""Sixteenths of what is nearer are counted in float32, but for a few hundredths of one."""

SIN = (-0.16666662693023682, 0.008325040340423584)
COS = (-0.4999997019767761, 0.041608620434999466)
TAN = (0.3333333730697632, 0.13331128656864166, 0.05536675080657005)
"""(sin(r) / r - 1) / r^2, (cos(r) - 1) / r^2 and (tan(r) / r - 1) / r^2 by powers of r^2, up to 0.2045: of sin(r) / r,
cos(r) and tan(r) / r 3e-9."""

ROOT = 0.7071067690849304, 1.2101617485882343e-08
LARGE = 0.9238795042037964, 2.830748968563057e-08
SMALL = 0.3826834261417389, 6.2233507236442165e-09
"""The sines of 2, 3 and 1 sixteenths of a turn, in two parts."""

_QUARTER = ((0.0, 0.0), SMALL, ROOT, LARGE, (1.0, 0.0), LARGE, ROOT, SMALL)
_SINES = (*_QUARTER, *((-high, -low) for high, low in _QUARTER))
_COSINES = (*_SINES[4:], *_SINES[:4])

UP, ALONG = 0.7897745370864868, 1.906684398651123
"""Whose quotient is the tangent of a sixteenth but for 2^-48 of it: of all pairs of float32 the next."""

_UP = (0.0, UP, 1.0, ALONG, 1.0, ALONG, 1.0, UP) * 2
_ALONG = (1.0, ALONG, 1.0, UP, 0.0, -UP, -1.0, -ALONG) * 2
"""Of each sixteenth, and of half a turn more."""


class _Rest(NamedTuple):
    """What an angle is beyond the sixteenths that are in the lowest bits of `raised`."""

    raised: Value
    high: Value
    low: Value
    """What `high` has no place for."""
    square: Value

    @classmethod
    def of(cls, x: Value) -> "_Rest":
        rounder = FORMATS[FLOAT32].rounder
        raised = fused(x, PER_RADIAN, rounder)
        count = raised - rounder
        first, second, third = SIXTEENTH
        beyond = fused(count, -first, x)  # exact, as is what the next difference loses
        high = beyond - count * second
        low = fused(count, -third, fused(count, -second, beyond - high))
        return cls(raised, high, low, high * high)

    def odd(self, coefficients: Sequence[float]) -> Value:
        """An odd function of it, less `high`."""
        return fused(self.high * self.square, by_steps(coefficients, self.square), self.low)

    def sine_from(self, sines: Sequence[tuple[float, float]], slopes: Sequence[tuple[float, float]]) -> Value:
        """What it is there, and, in one sum from the least on, what it is beyond."""
        (there, there_low), (slope, slope_low) = map(self._two, (sines, slopes))
        more = fused(slope_low, self.high, there_low)
        more = fused(there, self.square * by_steps(COS, self.square), more)
        return there + fused(slope, self.high, fused(slope, self.odd(SIN), more))

    def _two(self, numbers: Sequence[tuple[float, float]]) -> list[Value]:
        return [picked_at(self.raised, each) for each in zip(*numbers, strict=True)]


def sin(x: Value) -> Value:
    """Of the angle's size, lest that of -0 be 0."""
    return signed(_Rest.of(absolute(x)).sine_from(_SINES, _COSINES), x)


def cos(x: Value) -> Value:
    return _Rest.of(x).sine_from(_COSINES, [(-high, -low) for high, low in _SINES])


def tan(x: Value) -> Value:
    """(up + along t) / (along - up t), for the tangent t of the rest. What dividend and divisor have no place for is
    made up for in the quotient."""
    rest = _Rest.of(absolute(x))
    up, along = (picked_at(rest.raised, each) for each in (_UP, _ALONG))
    low = rest.odd(TAN)
    dividend, more = _in_two(up, along, rest.high, along * low)
    divisor, less = _in_two(along, -up, rest.high, -(up * low))
    inverse = 1 / divisor
    quotient = dividend * inverse
    left = fused(-quotient, less, fused(-quotient, divisor, dividend) + more)
    return signed(fused(left, inverse, quotient), x)


def _in_two(there: Value, slope: Value, x: Value, small: Value) -> tuple[Value, Value]:
    """there + slope x + small, and what that has no place for; beyond what is there it is at most half as large, or
    there is 0."""
    total = there + fused(slope, x, small)
    return total, fused(slope, x, there - total) + small
