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
    Value,
    expm1_of_negative,
    parts,
)

SMOOTH = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
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
    """The graph with float32 in place of float64, and nothing that is there for float32's last digits."""
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
            elif node.name == "scaled_expm1":
                x, scale = arguments
                result = scale * expm1_of_negative(x / scale)
            else:
                result = Operation(FLOAT32 if node.type == FLOAT64 else node.type, node.name, arguments)
        elif isinstance(node, Constant) and node.type == FLOAT64:
            result = Constant(FLOAT32, node.value)
        done[node] = result
    return done[node]
