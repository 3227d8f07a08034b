"""Quotients of integers, and remainders, for loops compiled with LLVM; see `functions.py`."""

from collections.abc import Iterator

from app.contract.constants import DataType
from app.devices.cpu.llvm.math.primitives import divided, fused, left_over, truncated
from app.formula.expansions import Expansion, plain
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    INT64,
    Input,
    Operation,
    Value,
    absolute,
    cast,
    copysign,
    equal,
    floor,
    is_float,
    minimum,
    parts,
    trunc,
    where,
    widen,
)

MORE_THAN_ANY = 2.0**200
"""What serves as an infinite divisor: more than any finite float32."""

UINT64 = "uint64"

QUOTIENTS = 6
"""As many as make up the digits that a quotient of two float32 may have."""

BESIDE = 2.0**-27
"""An eighth of what a quotient of two float32 that is not whole is away from the next whole number at least."""

NEAR, INFINITE = 2.0**23, float("inf")
"""Quotients of float32 below the first are rounded to a whole number only from right below it."""


def _is_long(value: Value) -> bool:
    """Whether no float has all digits of such integers."""
    return value.type in (INT64, UINT64)


def _of_integers(type_: str) -> str:
    """The float in which a quotient of such integers of up to 32 bits is farther from whole numbers than it is rounded,
    unless it is one of them."""
    return FLOAT64 if type_.endswith("int32") else FLOAT32


def _as_floats(a: Value, b: Value) -> tuple[Value, Value]:
    """Both, with 1 in the place of a divisor of 0, which leaves nothing."""
    type_ = _of_integers(a.type)
    return cast(a, type_), cast(where(equal(b, 0), 1, b), type_)


def _quotient(a: Value, b: Value) -> Value:
    """The least integer over -1, for which 32 bits have no place, is its own negative."""
    if _is_long(a):
        return divided(a, b)
    dividend, divisor = _as_floats(a, b)
    if a.type == "int32":
        divisor = where(equal(b, -1), 1, divisor)
        result = where(equal(b, -1), -a, truncated(dividend / divisor, a.type))
    else:
        result = truncated(dividend / divisor, a.type)
    return where(equal(b, 0), 0, result)


def _fmod(a: Value, b: Value) -> Value:
    """C's, exactly, of floats that float64 has room for, and of integers."""
    if _is_long(a):
        return left_over(a, b)
    if not is_float(a.type):
        rest, divisor = _as_floats(a, b)
        return truncated(fused(-trunc(rest / divisor), divisor, rest), a.type)
    rest, divisor = absolute(widen(a)), minimum(absolute(widen(b)), MORE_THAN_ANY)
    return copysign(cast((_rest_of_near if _are_halves(a, b) else _rest)(rest, divisor), a.type), a)


def _fmod_of_near(a: Value, b: Value) -> Value:
    """The same of float32 that are not `far`, or of others."""
    if a.type != FLOAT32 or _are_halves(a, b):
        return _fmod(a, b)
    return copysign(_rest_of_near(absolute(a), absolute(b)), a)


def _are_halves(a: Value, b: Value) -> bool:
    return all(isinstance(each, Input) and each.stored is DataType.FLOAT16 for each in (a, b))


def _rest_of_near(rest: Value, divisor: Value) -> Value:
    """Of a quotient that is rounded up to a whole number only from right below it, as that of two float16, which has 40
    digits, is in float64. What is left is exact then, and below 0."""
    rest = fused(-trunc(rest / divisor), divisor, rest)
    return where(rest < 0, rest + divisor, rest)


def _rest(rest: Value, divisor: Value) -> Value:
    """The quotient of two float32 may have 277 digits.

    By way of the reciprocal it is less than two units of its 53 digits off. So is what is left of the divisor, of 24
    digits or fewer, for which there is room in float64; its quotient has 51 digits fewer. The last one has 22, and is
    whole or farther from whole numbers than BESIDE, which is more than it may be off: rounded down it is right.
    """
    inverse = 1 / divisor
    for _ in range(QUOTIENTS - 1):
        rest = fused(-trunc(rest * inverse), divisor, rest)
    return fused(-floor(fused(rest, inverse, BESIDE)), divisor, rest)


EXPANSIONS: dict[str, Expansion] = {"quotient": plain(_quotient), "fmod": plain(_fmod)}

OF_NEAR: dict[str, Expansion] = {"fmod": plain(_fmod_of_near)}
"""Of what is not `far`, in a third of the time."""


def far(root: Value) -> Iterator[Value]:
    """Of each quotient in a formula that may be, whether it is too large for `OF_NEAR`, or no number, or one by
    infinity."""
    for node in parts(root):
        if isinstance(node, Operation) and node.name in ("fmod", "remainder") and node.type == FLOAT32:
            size, divisor = map(absolute, node.arguments)
            if not _are_halves(*node.arguments):
                yield ~((size / divisor < NEAR) & (divisor < INFINITE))
