"""Parts of formulas in float64 for which kernels have a function of float32 and of integers that has no float64.

Formulas say float64 where float32 would lose digits. These say it so often, or where it costs so much, that it is worth
a function of their own. What is found is in the formula by itself, so that an operator computes the same in a graph.
"""

from dataclasses import dataclass

import numpy as np

from app.formula.expansions import Ask
from app.formula.functions import FLOAT_MAX, NORMAL_EXP
from app.formula.precision import MODERATE
from app.formula.uniform import is_uniform
from app.formula.values import FLOAT32, Constant, Number, Operation, Value

_BYTES = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A call of `function` in `functions.py`, `template` being the ends of an integer's range, after whether bytes that
    it is made of are signed. None is 0."""

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
            finite, x = _cast_of(factor, FLOAT32), _cast_of(argument, FLOAT32)
            match finite:
                case Operation(name="maximum", arguments=(y, Constant(value=least))) if x and y is x:
                    return Shortcut("gelu", (x,)) if least == -FLOAT_MAX else None
    scaled = _scaled_softplus(node)
    if scaled:
        return Shortcut("scaled_softplus", scaled)
    steep = _steep_softplus(node)
    return Shortcut("steep_softplus", steep, far=False) if steep else None


_IN_HALF = {
    "arcsin": "asin_half",
    "arccos": "acos_half",
    "arctan": "atan_half",
    "arctan2": "atan2_half",
    "arcsinh": "asinh_half",
    "arccosh": "acosh_half",
    "arctanh": "atanh_half",
    "log": "log_half",
    "sin": "sine_half",
    "cos": "cosine_half",
    "tan": "tangent_half",
    "sinh": "sinh_half",
    "erf": "erf_half",
}


def in_half(ask: Ask, root: Value) -> Shortcut | None:
    """What computes the whole formula `root` for results of float16, if there is something."""
    normal = in_float32(root)
    if normal and normal.function == "gelu":
        return Shortcut("gelu_half", normal.arguments, far=False)
    if normal and ask(_is_moderate, normal.arguments[0]):
        return Shortcut(f"{normal.function}_half", normal.arguments, far=False)
    swish = _swish(root)
    if swish and (swish[0] is None or ask(_is_moderate, swish[0])):
        return (
            Shortcut("swish_half", swish, far=False) if swish[0] else Shortcut("plain_swish_half", swish[1:], far=False)
        )
    match root:
        case Operation(name="floor" | "ceil", arguments=(Operation(name="multiply_add", arguments=sum_),)):
            a, x, b = (_cast_of(each, FLOAT32) for each in sum_)
            return Shortcut("floor_of_sum", (a, x, b), (int(root.name == "ceil"),)) if a and x and b else None
        case Operation(type="float32", arguments=arguments) if root.name in _IN_HALF:
            return Shortcut(_IN_HALF[root.name], arguments, far=False)
        case Operation(type="float32", name="power", arguments=(x, exponent)) if not is_uniform(exponent):
            return Shortcut("power_of_halves", (x, exponent), far=False)
        case Operation(type="float32", name="divide"):
            argument = _of_sigmoid(root)
            return Shortcut("sigmoid_half", (argument,), far=False) if argument else None
        case Operation(
            type="float32", name="add", arguments=(positive, Operation(name="log1p_of_fraction", arguments=(inner,)))
        ):
            match inner:
                case Operation(name="exp", arguments=(exponent,)):
                    argument = _beyond(exponent)
                    if argument and _positive_part(positive) is argument:
                        return Shortcut("softplus_half", (argument,), far=False)
    return None


def _scaled_softplus(root: Value) -> tuple[Value, Value, Value] | None:
    """alpha, beta and x, of alpha * ln(1 + exp(beta * x))."""
    match root:
        case Operation(type="float64", name="multiply", arguments=(factor, Operation(name="add", arguments=(a, b)))):
            alpha, logarithm, scaled = _cast_of(factor, FLOAT32), _cast_of(b, FLOAT32), _positive_part(a)
        case _:
            return None
    match logarithm, scaled:
        case (
            Operation(name="log1p_of_fraction", arguments=(Operation(name="exp_of_product", arguments=(_, exponent)),)),
            Operation(name="multiply", arguments=(slope, wide)),
        ):
            beta, argument = _cast_of(slope, FLOAT32), _beyond(exponent)
            if alpha and beta and argument and _cast_of(wide, FLOAT32) is argument:
                return alpha, beta, argument
    return None


def _steep_softplus(root: Value) -> tuple[Value, Value] | None:
    """The steepness s and x, of ln(1 + exp(s * x)) / s, which has its straight part by itself."""
    match root:
        case Operation(type="float64", name="add", arguments=(straight, Operation(name="divide", arguments=(a, b)))):
            line, logarithm, steepness = _cast_of(straight, FLOAT32), _cast_of(a, FLOAT32), _cast_of(b, FLOAT32)
        case _:
            return None
    match line, logarithm:
        case (
            Operation(name="maximum" | "minimum", arguments=(x, Constant(value=0))),
            Operation(
                name="log1p_of_fraction",
                arguments=(Operation(name="exp_of_product", arguments=(Operation(arguments=(slope,)), exponent)),),
            ),
        ) if steepness and slope is steepness and _beyond(exponent) is x:
            return steepness, x
    return None


def _swish(root: Value) -> tuple[Value | None, Value] | None:
    """The scale, unless that is 1, and x, of x / (1 + exp(-scale * x))."""
    match root:
        case Operation(name="multiply", arguments=(Operation(name="multiply") as inner, Operation(name="exp") as rest)):
            match rest:
                case Operation(arguments=(Operation(name="minimum", arguments=(Operation(arguments=(x, end)), _)),)):
                    gated = _gated(inner)
                    is_rest = isinstance(end, Constant) and end.value == NORMAL_EXP
                    return (None, x) if gated and is_rest and gated == (x, x) else None
        case Operation(type="float64", name="multiply"):
            gated = _gated(root)
            match gated:
                case (x, Operation(name="multiply", arguments=(scale, wide))) if _cast_of(wide, FLOAT32) is x:
                    factor = _cast_of(scale, FLOAT32)
                    return (factor, x) if factor else None
    return None


def _of_sigmoid(root: Operation) -> Value | None:
    """x, of 1 / (1 + exp(-x)) without overflow."""
    match root.arguments:
        case (
            Operation(name="where", arguments=(Operation(name="less", arguments=(x, Constant(value=0))), decay, _)),
            Operation(name="add", arguments=(Constant(value=1), also)),
        ) if also is decay and isinstance(decay, Operation) and decay.name == "exp":
            return x if _beyond(decay.arguments[0]) is x else None
    return None


def _gated(root: Operation) -> tuple[Value, Value] | None:
    """x and z, of x, which has an end, times the sigmoid of z."""
    limited, share = root.arguments
    limited = _cast_of(limited, FLOAT32) or limited
    match limited, share:
        case (
            Operation(name="maximum" | "minimum", arguments=(x, Constant(value=end))),
            Operation(
                name="divide",
                arguments=(
                    Operation(name="where", arguments=(Operation(name="less", arguments=(z, _)), decay, _)),
                    sum_,
                ),
            ),
        ) if abs(end) == FLOAT_MAX and isinstance(sum_, Operation) and decay in sum_.arguments:
            return x, z
    return None


def _beyond(value: Value) -> Value | None:
    """x, of -|x|."""
    match value:
        case Operation(name="negative", arguments=(Operation(name="absolute", arguments=(x,)),)):
            return x
    return None


def _positive_part(value: Value) -> Value | None:
    """x, of what is larger of it and 0."""
    match value:
        case Operation(name="maximum", arguments=(Constant(value=0), x) | (x, Constant(value=0))):
            return x
    return None


def _is_moderate(number: Number) -> bool:
    return 1 / MODERATE <= abs(number) <= MODERATE


def in_integers(node: Operation) -> Shortcut | None:
    """What computes the integer `node` that formulas make of float64, if there is something."""
    match node:
        case Operation(type="int8" | "uint8", name="saturate", arguments=(rounded,)):
            return _rounded(rounded, node.type)
    return None


def _rounded(rounded: Value, type_: str) -> Shortcut | None:
    """The integer next to a quotient of two restored bytes' sum, to which a zero may have been added."""
    zero: Value | None = None
    match rounded:
        case Operation(name="add", arguments=(whole, offset)):
            rounded, zero = whole, _cast_of(offset, *_BYTES)
            if zero is None:
                return None
    match rounded:
        case Operation(name="rint", arguments=(Operation(name="divide", arguments=(sum_, divisor)),)):
            pass
        case _:
            return None
    match sum_:
        case Operation(name="add", arguments=(first, second)):
            a, b, scale = _restored(first), _restored(second), _cast_of(divisor, FLOAT32)
            if a and b and scale:
                ends, signed = np.iinfo(type_), [int(each[0].type == "int8") for each in (a, b)]
                return Shortcut("rounded_sum", (*a, *b, scale, zero), (*signed, ends.min, ends.max))
    return None


def _restored(value: Value) -> tuple[Value, Value | None, Value] | None:
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
