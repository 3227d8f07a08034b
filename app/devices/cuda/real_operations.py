"""Operations of float64 in C++ without float64: a row for each that formulas of elements are made of.

What a graph makes too long to be there twice keeps float64: the last bits of an operator may differ in it.
"""

from collections.abc import Sequence

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES, convert, literal
from app.devices.cuda.operations import is_power_of_2
from app.devices.cuda.reals import REALS
from app.devices.cuda.writing import Writing
from app.formula.coordinates import Element, Total
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    IN_FLOAT32,
    INT64,
    Constant,
    Input,
    Number,
    Operation,
    Parameter,
    Reduction,
    Value,
    cast,
    integer_range,
    parts,
    widen,
)

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

_EXACT = (*IN_FLOAT32, "bool", FLOAT32)
"""Types whose numbers are float32's."""


def multiplied(root: Value) -> frozenset[Value]:
    """The differences of float64 in `root` that are multiplied, and nothing else."""
    found, others = set[Value](), set[Value]()
    for node in parts(root):
        for each in node.operands():
            match node, each:
                case Operation(name="multiply"), Operation(type="float64", name="subtract"):
                    found.add(each)
                case _:
                    others.add(each)
    return frozenset(found - others - {root})


def are_reals(root: Value) -> bool:
    """Whether all that is float64 in `root` has a row here."""
    return all(_has_row(node) for node in parts(root) if of_reals(node))


def of_reals(node: Value) -> bool:
    """Whether `node` is float64, or made of it directly."""
    return node.type == FLOAT64 or any(each.type == FLOAT64 for each in node.operands())


def _has_row(node: Value) -> bool:
    match node:
        case Constant() | Parameter():
            return True
        case Total() | Reduction():
            return node.name in ("sum", "product")
        case Operation(name="cast", type="float64", arguments=(Value(type="int64" | "int32") as x,)):
            return not any(isinstance(each, Element | Input) for each in parts(x))
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
            return _is_of(exponent, _EXACT) and not _is_of(base, IN_FLOAT32)
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


def is_of_host(writing: Writing, node: Value) -> bool:
    """Whether a float64 is the same for all elements, and known before in two floats."""
    if node.type != FLOAT64 or not writing.is_uniform(node):
        return False
    match node:
        case Parameter():
            return True
        case Operation(name="cast", arguments=(x,)):
            return x.type in (INT64, "int32") and bool(writing.ask(_is_near, node))
        case Operation(name="add" | "subtract" | "multiply" | "divide", arguments=arguments):
            return all(isinstance(each, Constant) or is_of_host(writing, each) for each in arguments) and bool(
                writing.ask(_is_near, node)
            )
    return False


def uniform_of(writing: Writing, node: Value) -> str:
    """Its expression."""
    if node not in writing.of_host:
        high = cast(node, FLOAT32)
        given = [writing.argument(high, high)]
        if not writing.ask(_is_float, node):
            low = cast(node - widen(high), FLOAT32)
            given.append(writing.argument(low, low))
        writing.of_host[node] = f"real<NEAR>({', '.join(given)})"
    return writing.of_host[node]


def _is_near(number: Number) -> bool:
    return number == 0 or 2.0**-60 <= abs(number) <= 2.0**60


def _is_float(number: Number) -> bool:
    return bool(number == np.float32(number))


def real_of(writing: Writing, node: Operation) -> str:
    """The expression of `node`, which is made of float64 or makes it."""
    scaled = _by_inverse(writing, node)
    if scaled:
        return scaled
    match node:
        case Operation(name="cast", type="float32", arguments=(x,)):
            return narrowed_of(writing, x)
        case Operation(name="sin" | "cos" | "tan", arguments=(Operation() as angle,)):
            writing.function("angles_of_sums")
            return f"{_ANGLES[node.name]}_of_sum({', '.join(map(writing.write, angle.arguments))}, far)"
    arguments = [writing.write(argument) for argument in node.arguments]
    match node:
        case Operation(name="cast", arguments=(x,)):
            if x.type not in _EXACT:
                return f"real_of_integer<NEAR>({arguments[0]}, far)"
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
    if node in writing.multiplied:
        writing.function("real_sums")
        return f"apart({', '.join(arguments)})"
    if node.name in _OF_NEAR:
        return _OF_NEAR[node.name].format(*arguments)
    name = _FUNCTIONS[node.name]
    return f"{writing.function(name) if name in REALS else name}({', '.join([*arguments, 'far'])})"


def narrowed_of(writing: Writing, node: Value) -> str:
    """The expression of the float64 `node` in float32."""
    scaled = _by_inverse(writing, node)
    if scaled:
        return f"narrowed_{scaled}"
    match node:
        case Operation(name="subtract", arguments=(a, b)) if writing.half:
            return f"minus_half({writing.write(a)}, {writing.write(b)})"
        case Operation(name="add", arguments=(Operation(name="multiply", arguments=(a, b)), c)) if all(
            _is_of(each, (FLOAT32,)) for each in (a, b, c)
        ):
            return f"narrowed_times_plus({', '.join(map(writing.write, (a, b, c)))}, far)"
        case Operation(name="add", arguments=(Operation(name="multiply", arguments=(a, b)), c)) if writing.of_terms:
            writing.function("real_sums")
            return f"narrowed_terms({', '.join(map(writing.write, (a, b, c)))}, far)"
        case Operation(name="add" | "subtract" | "multiply" | "divide" | "multiply_add") if not _has_one(writing, node):
            arguments = [writing.write(each) for each in node.arguments]
            return f"narrowed_{_FUNCTIONS[node.name]}({', '.join([*arguments, 'far'])})"
    return f"narrowed({writing.write(node)})"


def _has_one(writing: Writing, node: Operation) -> bool:
    """Whether it is one of its arguments."""
    return node.name in ("multiply", "divide") and any(map(writing.is_one, node.arguments))


def _by_inverse(writing: Writing, node: Value) -> str:
    """The product that stands for a quotient by a power of 2, if `node` is one."""
    match node:
        case Operation(type="float64", name="divide", arguments=(a, b)) if is_of_host(writing, b):
            if writing.ask(is_power_of_2, b) and not writing.is_one(b):
                inverse = cast(1 / b, FLOAT32)
                return f"times({writing.write(a)}, real<NEAR>({writing.argument(inverse, inverse)}), far)"
    return ""


def stored_half_of(writing: Writing, node: Value) -> str:
    """What is stored of a float64 in float16."""
    match node:
        case Operation(name="add", arguments=(Operation(name="multiply", arguments=(a, b)) as product, c)) if (
            not _has_one(writing, product)
        ):
            writing.function("half_of")
            return f"half_of_sum({', '.join(map(writing.write, (a, b, c)))}, far)"
    return half_of(writing, writing.write(node))


def half_of(writing: Writing, value: str) -> str:
    """The same of an expression."""
    return f"{writing.function('half_of')}({value})"


def real_term(writing: Writing, node: Value) -> str:
    """The expression of a float, to be added or multiplied."""
    value = writing.write(node)
    return value if node.type == FLOAT64 else f"real<NEAR>({value})"


def float_of_halves(node: Value) -> Value | None:
    """The float32 that a float is exactly, if it is a float16, its magnitude, or a product of two such."""
    match node:
        case Operation(name="multiply", arguments=(a, b)):
            x = _half_of(a)
            y = x if a is b else _half_of(b)
            return Operation(FLOAT32, "multiply", (x, y)) if x and y else None
    return _half_of(node)


def _half_of(node: Value) -> Value | None:
    match node:
        case Element() | Input():
            return node if node.stored is DataType.FLOAT16 else None
        case Operation(name="cast", arguments=(x,)) if x.type == FLOAT32:
            return _half_of(x)
        case Operation(name="absolute", arguments=(x,)):
            made = _half_of(x)
            return made and Operation(FLOAT32, "absolute", (made,))
    return None


def added(writing: Writing, made: str, term: Value, *, alone: bool, turn: str = "", held: str = "") -> str:
    """The line that adds `term` to the sum `made`. If that is all it is there for, it may be lost in it. Of float16,
    where the sum has no more digits, two at a time, the first `held` until then, if it is known which `turn` it is."""
    exact = float_of_halves(term)
    if exact:
        value = writing.write(exact)
        if turn:
            return f"if ({turn} % 2 == 0) {held} = {value}; else add_to({made}, real<NEAR>({held} + {value}));"
        return f"add_to({made}, real<NEAR>({value}));"
    match term:
        case Operation(type="float64", name="multiply", arguments=(a, b)) if alone and not _has_one(writing, term):
            if a is b:
                return f"add_square_to({made}, {writing.write(a)}, few);"
            return f"add_product_to({made}, {writing.write(a)}, {writing.write(b)}, few);"
        case Operation(type="float64", name="exp", arguments=(x,)) if alone:
            return f"add_to({made}, {writing.function('exp_of')}({writing.write(x)}, few));"
    return f"add_to({made}, {real_term(writing, term)});"
