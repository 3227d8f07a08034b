"""Quotients that are rounded and saturated, as products by inverses: where a scale is the same for many elements, loops
find its inverse once and need not divide for each.

Of two float32 the quotient is a whole number and a half, or at least 2^-26 away from any: so the product, which errs by
2^-35 or less as long as nothing is saturated, rounds as the quotient does once it is a multiple of 2^-30.
"""

from app.formula.values import Operation, Value, rint

MULTIPLES = 1.5 * 2.0 ** (52 - 30)
"""What is added to this in float64 is rounded to multiples of 2^-30, up to 2^21. What is larger stays so."""

_SATURATED = ("int8", "uint8", "int16", "uint16")


def by_inverse(node: Operation) -> Value | None:
    """The same as `node`, if that is a quotient of two float32 in float64, rounded, perhaps moved, and saturated to 16
    bits or fewer."""
    if node.name != "saturate" or node.type not in _SATURATED:
        return None
    (moved,) = node.arguments
    rounded, *zero = moved.operands() if isinstance(moved, Operation) and moved.name == "add" else (moved,)
    match rounded:
        case Operation(
            name="rint",
            arguments=(Operation(type="float64", name="divide", arguments=(a, b)),),
        ) if _is_widened(a) and _is_widened(b):
            product = a * (1.0 / b)
            made = rint((product + MULTIPLES) - MULTIPLES)
            return node.with_operands((made + zero[0] if zero else made,))
    return None


def _is_widened(value: Value) -> bool:
    match value:
        case Operation(type="float64", name="cast", arguments=(Value(type="float32"),)):
            return True
    return False
