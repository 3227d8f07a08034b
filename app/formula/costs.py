"""What operations cost processors."""

from app.formula.values import Operation, Value, parts

CHEAP = frozenset(
    [
        *("add", "subtract", "multiply", "divide", "multiply_add", "negative", "absolute", "copysign", "sqrt"),
        *("maximum", "minimum", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "where"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
        *("cast", "saturate", "through_float16", "floor", "ceil", "trunc", "rint"),
    ]
)
"""Operations of a few instructions. All others are functions, of tens of them."""

FUNCTION = 16
"""How many cheap operations one of the others is, about."""


def operations(root: Value) -> int:
    """How many cheap ones an element of `root` takes, about."""
    found = [node.name for node in parts(root) if isinstance(node, Operation)]
    return sum(1 if name in CHEAP else FUNCTION for name in found)
