"""Operations of float64 in C++ without float64: a row for each that formulas of elements are made of.

What a graph makes too long to be there twice, and what is computed by rows or coordinates, keeps float64: the last bits
of an operator may differ in it.
"""

from collections.abc import Sequence

import numpy as np

from app.devices.cuda.c_types import C_TYPES, convert, literal
from app.devices.cuda.reals import REALS
from app.devices.cuda.writing import Writing
from app.formula.values import FLOAT32, FLOAT64, Constant, Number, Operation, Value, integer_range, parts

_FUNCTIONS = {
    "add": "plus",
    "subtract": "minus",
    "multiply": "times",
    "divide": "over",
    "multiply_add": "times_plus",
    "exp": "exp_of",
    "expm1": "expm1_of",
    "expm1_of_negative": "expm1_of_negative_real",
    "log": "log_of",
    "log1p": "log1p_of",
    "log1p_of_fraction": "log1p_of",
    "sqrt": "sqrt_of",
    "tanh": "tanh_of",
    "erf": "erf_of",
    "arctan": "atan_of",
    "arcsinh": "asinh_of",
    "arccosh": "acosh_of",
    "arctanh": "atanh_of",
    "arcsin": "asin_of",
    "arccos": "acos_of",
    "sinh": "sinh_of",
    "cosh": "cosh_of",
    "floor": "floor_of",
    "ceil": "ceil_of",
}
"""By the operation's name, functions whose results may be far."""

_OF_NEAR = {
    "negative": "negated({})",
    "absolute": "magnitude({})",
    "maximum": "larger_of({}, {})",
    "minimum": "smaller_of({}, {})",
    "greater": "is_less({1}, {0})",
    "less": "is_less({}, {})",
    "greater_equal": "is_equal({0}, {1}) | is_less({1}, {0})",
    "less_equal": "is_equal({0}, {1}) | is_less({0}, {1})",
    "equal": "is_equal({}, {})",
    "not_equal": "!is_equal({}, {})",
    "where": "chosen({}, {}, {})",
}
"""The same of what is as near as its arguments."""

_ANGLES = {"sin": "sine", "cos": "cosine", "tan": "tangent"}
"""Of a product and something: what a sum has lost of its angle is as much as the angle."""

_INTEGERS = ("int8", "uint8", "int16", "uint16")
_EXACT = (*_INTEGERS, "bool", FLOAT32)
"""Types whose numbers are float32's."""


def are_reals(root: Value) -> bool:
    """Whether all that is float64 in `root` has a row here."""
    return all(_has_row(node) for node in parts(root) if of_reals(node))


def of_reals(node: Value) -> bool:
    """Whether `node` is float64, or made of it directly."""
    return node.type == FLOAT64 or any(each.type == FLOAT64 for each in node.operands())


def _has_row(node: Value) -> bool:
    match node:
        case Constant():
            return True
        case Operation(name="cast", arguments=(x,)):
            return x.type in _EXACT or (x.type == FLOAT64 and node.type == FLOAT32)
        case Operation(name="saturate"):
            return node.type in _EXACT
        case Operation(name="through_float16"):
            return True
        case Operation(name="sin" | "cos" | "tan", arguments=(Operation(name="multiply_add", arguments=sum_),)):
            return all(_is_of(each, (FLOAT32,)) for each in sum_)
        case Operation(name="power", arguments=(base, exponent)):
            # A power of whole numbers that becomes one has all digits in float64 alone.
            return _is_of(exponent, _EXACT) and not _is_of(base, _INTEGERS)
        case Operation():
            return node.name in _FUNCTIONS or node.name in _OF_NEAR
    return False


def _is_of(value: Value, types: Sequence[str]) -> bool:
    """Whether a float64 was of one of these types."""
    match value:
        case Operation(name="cast", arguments=(x,)):
            return x.type in types
    return False


def constant_of(number: Number) -> str:
    """A number as two floats, of which the second may be none."""
    high = np.float32(number)
    low = np.float32(number - float(high)) if np.isfinite(high) else np.float32(0)
    return f"real<NEAR>({', '.join(literal(each) for each in ((high, low) if low else (high,)))})"


def real_of(writing: Writing, node: Operation) -> str:
    """The expression of `node`, which is made of float64 or makes it."""
    match node:
        case Operation(name="cast", type="float32", arguments=(x,)):
            return narrowed_of(writing, x)
        case Operation(name="sin" | "cos" | "tan", arguments=(Operation() as angle,)):
            writing.function("angles_of_sums")
            return f"{_ANGLES[node.name]}_of_sum({', '.join(map(writing.write, angle.arguments))}, far)"
    arguments = [writing.write(argument) for argument in node.arguments]
    match node:
        case Operation(name="cast", arguments=(x,)):
            return f"real<NEAR>({convert(arguments[0], x.type, FLOAT32)})"
        case Operation(name="through_float16"):
            return f"float_of_half({half_of(writing, arguments[0])})"
        case Operation(name="saturate"):
            ends = integer_range(node.type)
            return f"({C_TYPES[node.type]}){writing.function('saturated')}<{ends[0]}, {ends[1]}>({arguments[0]})"
        case Operation(name="multiply", arguments=(a, b)) if writing.is_one(a) or writing.is_one(b):
            return arguments[1 if writing.is_one(a) else 0]
        case Operation(name="divide", arguments=(_, b)) if writing.is_one(b):
            return arguments[0]
        case Operation(name="power", arguments=(base, _)):
            name = writing.function("power_of_one" if _is_of(base, (FLOAT32,)) else "power_of_result")
            return f"{name}({', '.join(arguments)}, far)"
    if node.name in _OF_NEAR:
        return _OF_NEAR[node.name].format(*arguments)
    name = _FUNCTIONS[node.name]
    return f"{writing.function(name) if name in REALS else name}({', '.join([*arguments, 'far'])})"


def narrowed_of(writing: Writing, node: Value) -> str:
    """The expression of the float64 `node` in float32."""
    match node:
        case Operation(name="add" | "subtract" | "multiply" | "divide" | "multiply_add") if not _has_one(writing, node):
            arguments = [writing.write(each) for each in node.arguments]
            return f"narrowed_{_FUNCTIONS[node.name]}({', '.join([*arguments, 'far'])})"
    return f"narrowed({writing.write(node)})"


def _has_one(writing: Writing, node: Operation) -> bool:
    """Whether it is one of its arguments."""
    return node.name in ("multiply", "divide") and any(map(writing.is_one, node.arguments))


def half_of(writing: Writing, value: str) -> str:
    """What is stored of it in float16."""
    return f"{writing.function('half_of')}({value})"
