"""Sigmoids, and what they gate, for loops compiled with LLVM; see `functions.py`.

exp(-|x|) is subnormal where the sigmoid of a negative x is, and its product with x still counts. So both terms of the
quotient are multiplied by a power of two there, and only the quotient is rounded. What is found is in the formula by
itself, so that an operator computes the same in a graph.
"""

from app.devices.cpu.llvm.math.primitives import EXP, FORMATS, LOG2_E, by_steps, chosen, fused, power_of
from app.formula.functions import FLOAT_MAX, NORMAL_EXP
from app.formula.values import FLOAT32, Constant, Operation, Value, absolute, maximum, minimum, where

RAISED = 64
"""The power of two: exp(FARTHEST) times it is a normal number."""

FARTHEST = -120.0
"""The sigmoid of this, times this too, is less than half of the least float32."""


def gated(node: Value) -> Value | None:
    """What is computed in the place of `node`, if that is a sigmoid of float32, or a number times its own, or times its
    area of the normal distribution."""
    match node:
        case Operation(type="float32", name="divide"):
            x = _of_sigmoid(node, of=None)
            return _sigmoid(x) if x else None
        case Operation(
            type="float32",
            name="multiply",
            arguments=(
                Operation(
                    name="multiply",
                    arguments=(Operation(name="maximum", arguments=(x, Constant(value=least))), Operation() as share),
                ),
                Operation(
                    name="exp",
                    arguments=(
                        Operation(
                            name="minimum",
                            arguments=(Operation(name="add", arguments=(y, Constant(value=end))), Constant(value=0)),
                        ),
                    ),
                ),
            ),
        ) if x is y and (least, end) == (-FLOAT_MAX, NORMAL_EXP) and _of_sigmoid(share, of=-NORMAL_EXP) is x:
            return _times_own(x)
        case Operation(
            type="float32",
            name="cast",
            arguments=(
                Operation(
                    type="float64",
                    name="multiply",
                    arguments=(
                        Operation(
                            name="cast",
                            arguments=(Operation(name="maximum", arguments=(x, Constant(value=least))),),
                        ),
                        Operation(name="normal_cdf", arguments=(Operation(name="cast", arguments=(y,)),)),
                    ),
                ),
            ),
        ) if x is y and x.type == FLOAT32 and least == -FLOAT_MAX:
            return chosen("gated_by_normal", x)
    return None


def _of_sigmoid(node: Operation, of: float | None) -> Value | None:
    """x, if the node is 1 / (1 + exp(-x)) without overflow, by the exponential of -|x|, or of what this is at least."""
    match node:
        case Operation(
            name="divide",
            arguments=(
                Operation(name="where", arguments=(Operation(name="less") as less, decay, Constant(value=1))),
                Operation(name="add", arguments=(Constant(value=1), also)),
            ),
        ) if also is decay and isinstance(less.arguments[1], Constant) and less.arguments[1].value == 0:
            x = less.arguments[0]
            match decay, of:
                case Operation(name="exp", arguments=(exponent,)), None:
                    return x if _is_decay(exponent, x) else None
                case Operation(
                    name="exp", arguments=(Operation(name="maximum", arguments=(exponent, Constant(value=least))),)
                ), float():
                    return x if least == of and _is_decay(exponent, x) else None
    return None


def _is_decay(exponent: Value, x: Value) -> bool:
    """Whether it is -|x|."""
    match exponent:
        case Operation(name="negative", arguments=(Operation(name="absolute", arguments=(y,)),)):
            return y is x
    return False


def _sigmoid(x: Value) -> Value:
    decay = _raised_exp(maximum(-absolute(x), FARTHEST), Constant(FLOAT32, RAISED))
    one = 2.0**RAISED
    return where(x < 0, decay, one) / (decay + one)


def _times_own(x: Value) -> Value:
    """Where x is positive, which may be large, nothing is multiplied by a power of two."""
    is_negative = x < 0
    limited = maximum(x, FARTHEST)
    exponent = where(is_negative, limited, -minimum(x, NORMAL_EXP))
    decay = _raised_exp(exponent, where(is_negative, Constant(FLOAT32, RAISED), 0))
    one = where(is_negative, Constant(FLOAT32, 2.0**RAISED), 1)
    return limited * where(is_negative, decay, 1) / (decay + one)


def _raised_exp(x: Value, n: Value) -> Value:
    """2^n exp(x), which is a normal number."""
    form = FORMATS[FLOAT32]
    high, low = form.ln_2
    rounder = form.rounder + n
    raised = fused(x, LOG2_E, rounder)
    whole = raised - rounder
    f = fused(whole, -low, fused(whole, -high, x))
    return fused(f, fused(f, by_steps(EXP, f), 1), 1) * power_of(raised)
