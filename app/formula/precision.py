"""How few digits a formula may be computed with, for the type that its results are stored as.

Formulas say float64 where float32 would lose digits of a float32 result. A result that is stored with fewer digits, or
computed with far more than are stored, may take quicker ways.
"""

from app.contract.constants import DataType
from app.formula.expansions import Ask
from app.formula.uniform import is_uniform
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Input,
    Number,
    Operation,
    Parameter,
    Reduction,
    Value,
    cast,
    expm1_of_negative,
    is_float,
    parts,
    widen,
)

SMOOTH = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "negative",
        "absolute",
        "maximum",
        "minimum",
        "greater_equal",
        "equal",
        "where",
        "exp",
        "expm1",
        "expm1_of_negative",
        "scaled_expm1",
        "tanh",
        "sqrt",
        "power",
        "cast",
        "multiply_add",
    ]
)
"""Operations that a slightly different argument gives a slightly different result. A formula of these alone may take
reciprocals and, for FLOAT16, approximate functions and float32 instead of float64; one with `floor` in it may not."""

NEAR_FOR_HALF = 64.0
"""Exponents up to this have powers that float32 has digits for."""

MODERATE = 2.0**60
"""Attributes between its inverse and this leave float32 its digits and its range for FLOAT16 elements."""

_LEAST_INVERSE, _LARGEST_INVERSE = 1e-37, 1e300


def operations(root: Value) -> set[str]:
    """The names of those in the graph."""
    return {node.name for node in parts(root) if isinstance(node, Operation)}


def is_smooth(root: Value, stored: DataType) -> bool:
    """Whether `root` may take reciprocals, stored as `stored`."""
    return stored in (DataType.FLOAT16, DataType.FLOAT32) and operations(root) <= SMOOTH


def is_for_half(ask: Ask, root: Value, stored: DataType) -> bool:
    """Whether float32 will do for all of `root`, and for what it is stored as even less than that."""
    if stored is not DataType.FLOAT16 or not is_smooth(root, stored):
        return False
    return all(_is_moderate(ask, node) for node in parts(root))


def narrowed(root: Value) -> Value:
    """The graph with float32 in place of float64, and nothing that is there for float32's last digits; but for sums
    and means of what is not squares, and what is between these and others."""
    return _narrowed(root, {})


def inverse_of(ask: Ask, divisor: Value) -> Value | None:
    """What to multiply by instead of dividing, where far more digits are left than are stored: a product is several
    times as quick. None if the divisor is not the same for all elements, or has no ordinary inverse."""
    if not is_uniform(divisor):
        return None
    inverse = 1 / divisor
    return inverse if ask(_is_ordinary_inverse, inverse) else None


def _is_ordinary_inverse(number: Number) -> bool:
    return _LEAST_INVERSE < abs(number) < _LARGEST_INVERSE


def _is_moderate_number(number: Number) -> bool:
    return number == 0 or 1 / MODERATE <= abs(number) <= MODERATE


def is_square(node: Value) -> bool:
    """Whether it is something times itself."""
    match node:
        case Operation(name="multiply", arguments=(a, b)):
            return a is b
    return False


def _is_sum(node: Value) -> bool:
    """Whether it is a sum, in float64, from which others that are about as large may be subtracted."""
    return isinstance(node, Reduction) and node.name == "sum" and node.type == FLOAT64


def _is_moderate(ask: Ask, node: Value) -> bool:
    """Whether `node`, if it is an input, an attribute or a power, is of a size that float32 has digits for."""
    match node:
        case Input():
            return node.type == FLOAT32
        case Parameter():
            return bool(ask(_is_moderate_number, node))
        case Operation(name="power", arguments=(_, exponent)):
            return is_uniform(exponent) and bool(ask(lambda number: abs(number) <= NEAR_FOR_HALF, exponent))
    return True


def _narrowed(node: Value, done: dict[Value, Value]) -> Value:
    if node not in done:
        result = node
        if isinstance(node, Operation):
            arguments = tuple(_narrowed(argument, done) for argument in node.arguments)
            if node.name == "cast" and arguments[0].type == FLOAT32 and node.type in (FLOAT32, FLOAT64):
                result = arguments[0]
            elif node.name == "divide" and _is_sum(arguments[0]):  # a mean
                result = node.with_operands((arguments[0], node.arguments[1]))
            elif node.name in ("add", "subtract") and any(each.type == FLOAT64 for each in arguments):
                result = cast(node.with_operands(tuple(map(widen, arguments))), FLOAT32)
            elif node.name == "scaled_expm1":
                x, scale = arguments
                result = scale * expm1_of_negative(x / scale)
            else:
                arguments = tuple(cast(each, FLOAT32) if each.type == FLOAT64 else each for each in arguments)
                result = Operation(FLOAT32 if node.type == FLOAT64 else node.type, node.name, arguments)
        elif isinstance(node, Reduction):
            argument = cast(_narrowed(node.argument, done), FLOAT32) if is_float(node.type) else node.argument
            is_narrow = node.type == FLOAT64 and is_square(argument)
            result = Reduction(FLOAT32 if is_narrow else node.type, node.name, argument)
        elif isinstance(node, Constant) and node.type == FLOAT64:
            result = Constant(FLOAT32, node.value)
        done[node] = result
    return done[node]
