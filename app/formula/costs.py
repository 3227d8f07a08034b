"""What operations cost processors."""

CHEAP = frozenset(
    [
        *("add", "subtract", "multiply", "divide", "multiply_add", "negative", "absolute", "copysign", "sqrt"),
        *("maximum", "minimum", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "where"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
        *("cast", "saturate", "through_float16", "floor", "ceil", "trunc", "rint"),
    ]
)
"""Operations of a few instructions. All others are functions, of tens of them."""
