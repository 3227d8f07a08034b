"""Formulas evaluated one operation after the other on whole arrays: what any lowering must amount to."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from app.formula.uniform import evaluator
from app.formula.values import FLOAT32, Constant, Input, Operation, Parameter, Value, integer_range
from app.memory.arrays import Array
from tests.formula.spelled import SPELLED


def _in_float64(function: Callable[..., Any]) -> Callable[..., Array]:
    """`function` of the arguments in float64, rounded to their type: far more exact than it need be of float32."""

    def rounded(*arguments: Array) -> Array:
        return np.asarray(function(*(np.float64(each) for each in arguments))).astype(arguments[0].dtype)

    return rounded


def _one_by_one(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's floats, of arrays."""
    return lambda x: np.asarray(np.frompyfunc(function, 1, 1)(x)).astype(x.dtype)


def _quotient(a: Array, b: Array) -> Array:
    """Of Python's integers, of which the lowest bits are taken."""

    def exact(a: int, b: int) -> int:
        return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    made, bits = np.asarray(np.frompyfunc(exact, 2, 1)(a, b)), np.dtype(f"u{a.itemsize}")
    return np.asarray(made & np.iinfo(bits).max).astype(bits).astype(a.dtype)


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Of float32 in float64, which holds the product; how exact that is, the tests of numerics tell."""
    if a.dtype != FLOAT32:
        return np.asarray(a * b + c)
    return _in_float64(lambda a, b, c: a * b + c)(a, b, c)


def _saturate(x: Array, type_: str) -> Array:
    least, most = integer_range(type_)
    return np.asarray(np.frompyfunc(lambda x: 0 if x != x else int(min(max(x, least), most)), 1, 1)(x)).astype(type_)


MEANINGS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        *("add", "subtract", "multiply", "divide", "negative", "absolute", "copysign", "maximum", "minimum"),
        *("greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "where"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
        *("floor", "ceil", "trunc", "rint", "fmod", "remainder"),
    )
} | {
    name: _in_float64(getattr(np, name))
    for name in (
        *("exp", "expm1", "log", "log1p", "sqrt", "power", "tanh", "sinh", "cosh", "arcsinh", "arccosh", "arctanh"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2"),
    )
}
MEANINGS |= {
    "multiply_add": _multiply_add,
    "exp_of_difference": _in_float64(lambda a, b: np.exp(a - b)),
    "exp_of_product": _in_float64(lambda a, b: np.exp(a * b)),
    "expm1_of_negative": MEANINGS["expm1"],
    "scaled_expm1": _in_float64(lambda x, scale: scale * np.expm1(x / scale)),
    "log1p_of_fraction": MEANINGS["log1p"],
    "erf": _one_by_one(math.erf),
    "normal_cdf": _one_by_one(lambda x: math.erfc(-x / math.sqrt(2)) / 2),
    "quotient": _quotient,
    "bit_count": np.bitwise_count,
    "through_float16": lambda x: x.astype(np.float16).astype(np.float32),
}
"""What each operation of `app/formula/values.py` says, by its name, but for those of TO_TYPE."""

TO_TYPE: dict[str, Callable[[Array, str], Array]] = {"cast": lambda x, type_: x.astype(type_), "saturate": _saturate}
"""Those that depend on the type that they make."""


def evaluate(value: Value, inputs: Mapping[str, Array]) -> Array:
    """What `value` is for `inputs`, in the type of `value`. Its parameters are called by their numbers."""
    done: dict[Value, Array] = {}

    def result(node: Value) -> Array:
        if node not in done:
            match node:
                case Input():
                    done[node] = inputs[node.name].astype(node.type)
                case Constant():
                    done[node] = np.asarray(node.value, node.type)
                case Parameter():
                    done[node] = np.asarray(evaluator(node)(SPELLED), node.type)
                case Operation(name="cast" | "saturate"):
                    done[node] = TO_TYPE[node.name](result(node.arguments[0]), node.type)
                case Operation():
                    made = np.asarray(MEANINGS[node.name](*map(result, node.arguments)))
                    assert made.dtype == node.type, f"{node.name} makes {made.dtype}, the formula says {node.type}"
                    done[node] = made
        return done[node]

    with np.errstate(all="ignore"):
        return result(value)
