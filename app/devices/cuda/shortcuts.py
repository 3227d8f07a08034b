"""Parts of formulas in float64 for which kernels have a function of float32 and of integers that has no float64.

Formulas say float64 where float32 would lose digits. These say it so often, or where it costs so much, that it is worth
a function of their own. What is found is in the formula by itself, so that an operator computes the same in a graph.
"""

from dataclasses import dataclass

import numpy as np

from app.formula.values import FLOAT32, Operation, Value

_BYTES = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A call of `function` in `functions.py`, `template` being the ends of an integer's range. None is 0."""

    function: str
    arguments: tuple[Value | None, ...]
    template: tuple[int, ...] = ()
    far: bool = True
    """Whether it has a quick way that does not lead everywhere."""


def in_float32(node: Value) -> Shortcut | None:
    """What computes the float64 `node` rounded to float32, if there is something."""
    match node:
        case Operation(
            type="float64", name="multiply", arguments=(factor, Operation(name="normal_cdf", arguments=(argument,)))
        ):
            a, x = _cast_of(factor, FLOAT32), _cast_of(argument, FLOAT32)
            return Shortcut("normal_cdf_times", (a, x)) if a and x else None
    return None


def in_integers(node: Operation) -> Shortcut | None:
    """What computes the integer `node` that formulas make of float64, if there is something."""
    match node:
        case Operation(type="int8" | "uint8", name="saturate", arguments=(rounded,)):
            return _rounded(rounded, node.type)
    return None


def _rounded(rounded: Value, type_: str) -> Shortcut | None:
    """A quotient next to which is an integer, to which a zero may have been added."""
    zero: Value | None = None
    match rounded:
        case Operation(name="add", arguments=(whole, offset)):
            rounded, zero = whole, _cast_of(offset, *_BYTES)
            if zero is None:
                return None
    match rounded:
        case Operation(name="rint", arguments=(Operation(name="divide", arguments=(dividend, divisor)),)):
            scale, x = _cast_of(divisor, FLOAT32), _cast_of(dividend, FLOAT32)
        case _:
            return None
    ends = np.iinfo(type_)
    if scale and x:
        return Shortcut("rounded_quotient", (x, scale, zero), (ends.min, ends.max), far=False)
    match dividend:
        case Operation(name="add", arguments=(first, second)):
            a, b = _restored(first), _restored(second)
            if scale and a and b:
                return Shortcut("rounded_sum", (*a, *b, scale, zero), (ends.min, ends.max))
    return None


def _restored(value: Value) -> tuple[Value | None, ...] | None:
    """Of (x - zero) * scale, where x and zero are of 8 bits, these three."""
    match value:
        case Operation(name="multiply", arguments=(moved, factor)):
            scale, zero = _cast_of(factor, FLOAT32), None
            match moved:
                case Operation(name="subtract", arguments=(moved, subtrahend)):
                    zero = _cast_of(subtrahend, *_BYTES)
                    if zero is None:
                        return None
            x = _cast_of(moved, *_BYTES)
            return (x, zero, scale) if x and scale else None
    return None


def _cast_of(value: Value, *types: str) -> Value | None:
    """What a float64 was before, if that was of one of these types."""
    match value:
        case Operation(type="float64", name="cast", arguments=(x,)) if x.type in types:
            return x
    return None
