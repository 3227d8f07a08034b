"""Operations of formulas in C++: FUNCTIONS has a row for the same names as that of NumPy's lowering."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES, convert, literal
from app.devices.cuda.functions import LIBRARY
from app.devices.cuda.writing import Writing
from app.formula.expansions import EXPANSIONS
from app.formula.precision import MODERATE, NEAR_FOR_HALF, inverse_of
from app.formula.values import BOOL, FLOAT32, FLOAT64, Constant, Input, Number, Operation, Value

_NEAR = 16.0
"""Exponents up to this have quick powers."""

Writer: TypeAlias = Callable[[Writing, Operation, Sequence[str]], str]
"""Gives the C++ expression of an operation from those of its arguments."""


def _is_float(node: Value) -> bool:
    return node.type in (FLOAT32, FLOAT64)


def _binary(sign: str) -> Writer:
    """Floats as C++ has them; integers wrap around, which only unsigned ones may do in C++."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        a, b = arguments
        if _is_float(node):
            if sign == "*" and node.arguments:  # a formula says so of Alpha, which is mostly 1
                if writing.is_one(node.arguments[0]):
                    return b
                if writing.is_one(node.arguments[1]):
                    return a
            return f"{a} {sign} {b}"
        wide = "unsigned long long" if np.dtype(node.type).itemsize == 8 else "unsigned"
        return f"({C_TYPES[node.type]})(({wide}){a} {sign} ({wide}){b})"

    return write


def _compare(sign: str) -> Writer:
    return lambda lowering, node, arguments: f"{arguments[0]} {sign} {arguments[1]}"


def _call(name: str) -> Writer:
    """A function of CUDA's own, which has an f at its end for float32."""
    return lambda lowering, node, arguments: f"{name}{'f' if node.type == FLOAT32 else ''}({', '.join(arguments)})"


def _extreme(sign: str) -> Writer:
    """The larger or the smaller; NaN if either is. One comparison will do where one of both is known to be a number."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        for number, other in ((0, 1), (1, 0)):
            if isinstance(node.arguments[number], Constant):  # no formula has a NaN in it
                return f"{arguments[number]} {sign} {arguments[other]} ? {arguments[number]} : {arguments[other]}"
        a, b = arguments
        if not _is_float(node):
            return f"{a} {sign} {b} ? {a} : {b}"
        # Not `||`, of whose branches NVRTC makes twice as many with each of a chain: 25 of them took it a minute.
        return f"({a} {sign} {b}) | ({a} != {a}) ? {a} : {b}"

    return write


def _divide(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments
    divisor = node.arguments[1]
    if writing.is_one(divisor):
        return a
    if writing.half or (writing.smooth and node.type == FLOAT64):
        inverse = inverse_of(writing.ask, divisor)
        if inverse is not None:
            return f"{a} * {writing.argument(node, inverse)}"
    if node.type == FLOAT64 and writing.is_uniform(divisor) and writing.ask(is_power_of_2, divisor):
        return f"{a} * {writing.argument(node, 1 / divisor)}"
    if writing.half and isinstance(node.arguments[0], Constant) and node.arguments[0].value == 1:
        return f"reciprocal_approx({b})"
    if _is_float(node):
        return f"{a} / {b}"
    raise TypeError("integers have a quotient")


def is_power_of_2(number: Number) -> bool:
    """By which to divide is to multiply with an inverse that is exact."""
    return 1 <= number <= MODERATE and math.frexp(number)[0] == 0.5


def _sqrt(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return f"sqrt_approx({arguments[0]})" if writing.half else _call("sqrt")(writing, node, arguments)


def _flags(values: Sequence[bool]) -> str:
    return ", ".join("true" if value else "false" for value in values)


def _class_for_half(exponent: Number) -> tuple[bool, ...] | None:
    """Of an ordinary exponent, whether it is whole, and whether it is odd."""
    if not 1 / MODERATE <= abs(exponent) <= NEAR_FOR_HALF:
        return None
    whole = exponent == math.trunc(exponent)
    return whole, whole and exponent % 2 == 1


def _class_near(exponent: Number) -> tuple[bool, ...] | None:
    """The same of one that is near, and whether it has few digits."""
    if not 1 / MODERATE <= abs(exponent) <= _NEAR:
        return None
    return *(_class_for_half(exponent) or ()), (math.frexp(exponent)[0] * 2**16).is_integer()


def _power(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    exponent = node.arguments[1]
    if node.type == FLOAT32 and writing.smooth and writing.is_uniform(exponent):
        classes = writing.ask(_class_for_half if writing.half else _class_near, exponent)
        if classes is not None:
            if writing.half:
                return f"{writing.function('power_half')}<{_flags(classes)}>({', '.join(arguments)})"
            if not writing.looks_again:
                return f"{writing.function('power_near')}<{_flags(classes)}>({', '.join(arguments)})"
            near = f"{writing.function('power_near')}<{_flags(classes)}>({', '.join(arguments)}, far)"
            return f"NEAR ? {near} : {writing.function('power_far')}({', '.join(arguments)})"
    if not _is_float(node):
        return f"({C_TYPES[node.type]}){writing.function('power_of_integers')}({', '.join(arguments)})"
    if node.type == FLOAT64:
        return f"{writing.function('power_wide')}({', '.join(arguments)})"
    if writing.is_uniform(exponent):
        return f"{writing.function('power_far')}({', '.join(arguments)})"
    return writing.call("power_of_each", arguments)


def _multiply_add(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    if node.type == FLOAT32:
        return _call("fma")(writing, node, arguments)
    a, b, c = arguments  # of others the product is rounded, too, as elsewhere
    product = writing.declare(node.type, _binary("*")(writing, Operation(node.type, "multiply"), [a, b]))
    return _binary("+")(writing, node, [product, c])


def _expm1_of_negative(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    if node.type == FLOAT64:
        if not writing.smooth:
            return f"expm1({arguments[0]})"
        return f"{writing.function('expm1_of_negative_for_float')}({arguments[0]})"
    name = writing.function("expm1_of_negative_half" if writing.half else "expm1_of_negative")
    return f"{name}({arguments[0]})"


def _scaled_expm1(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """As NumPy has it."""
    return writing.write(EXPANSIONS[node.name](writing.ask, *node.arguments))


def _exp_of(name: str, sign: str) -> Writer:
    """exp of a product or a difference, exact also where float32 has no more digits for what is in between."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        if node.type == FLOAT32:
            name_for_half = f"{name}_half"
            named = name_for_half if writing.half and name_for_half in LIBRARY else name
            return f"{writing.function(named)}({', '.join(arguments)})"
        return f"exp({arguments[0]} {sign} {arguments[1]})"

    return write


def _cast(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return convert(arguments[0], node.arguments[0].type, node.type)


def _through_float16(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return through_half(arguments[0], node.arguments[0].type)


def through_half(value: str, kind: str) -> str:
    """`value` of a type, rounded to float16."""
    return convert(convert(value, kind, "float16"), "float16", FLOAT32)


def _where(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return "{} ? {} : {}".format(*arguments)


def _width(node: Value) -> int:
    """Of an integer, in bits."""
    return 8 * np.dtype(node.type).itemsize


def _signed(node: Value) -> bool:
    return node.type.startswith("int")


def _wrapped(node: Value, expression: str) -> str:
    """`expression` over unsigned numbers, as the integer type of `node`."""
    return f"({C_TYPES[node.type]})({expression})"


def _unsigned(node: Value, value: str) -> str:
    return f"({'unsigned long long' if _width(node) == 64 else 'unsigned'}){value}"


def _negative(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    (a,) = arguments
    if _is_float(node):
        return f"opposite({a})" if node.type == FLOAT32 else f"-{a}"
    return _wrapped(node, f"0u - {_unsigned(node, a)}" if _width(node) == 64 else f"zero_minus({a})")


def _absolute(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    (a,) = arguments
    if _is_float(node):
        return _call("fabs")(writing, node, arguments)
    return f"{a} < 0 ? {_negative(writing, node, arguments)} : {a}" if _signed(node) else a


def _bitwise(sign: str) -> Writer:
    return lambda lowering, node, arguments: _wrapped(node, f"{arguments[0]} {sign} {arguments[1]}")


def _invert(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return f"!{arguments[0]}" if node.type == BOOL else _wrapped(node, f"~{arguments[0]}")


def _left_shift(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    a, b = (_unsigned(node, each) for each in arguments)
    return f"{b} >= {_width(node)}u ? ({C_TYPES[node.type]})0 : {_wrapped(node, f'({a}) << ({b})')}"


def _right_shift(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments[0], _unsigned(node, arguments[1])
    beyond = f"({a} < 0 ? -1 : 0)" if _signed(node) else "0"
    return f"({C_TYPES[node.type]})({b} >= {_width(node)}u ? {beyond} : {a} >> ({b}))"


def _quotient(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments
    kind, divisor = C_TYPES[node.type], node.arguments[1]
    shift = writing.ask(_shift_of, divisor) if writing.is_uniform(divisor) else None
    if shift is not None:
        return f"{a} / {1 << shift}"
    wrap = f"{b} == -1 ? {_negative(writing, node, [a])} : " if _signed(node) else ""
    return f"{b} == 0 ? ({kind})0 : {wrap}({kind})({a} / {b})"


def _shift_of(number: Number) -> int | None:
    """Of a divisor that is a small power of 2, which is much quicker than others, its exponent."""
    return {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5}.get(int(number))


def _fmod(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    if _is_float(node):
        return _call("fmod")(writing, node, arguments)
    a, b = arguments
    kind = C_TYPES[node.type]
    wrap = f" || {b} == -1" if _signed(node) else ""
    return f"{b} == 0{wrap} ? ({kind})0 : ({kind})({a} % {b})"


def _remainder(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    rest = writing.declare(node.type, _fmod(writing, node, arguments))
    b = arguments[1]
    kind = C_TYPES[node.type]
    if _is_float(node):
        zero = _call("copysign")(writing, node, [f"({kind})0", b])
        return f"{rest} == 0 ? {zero} : ({rest} < 0) != ({b} < 0) ? {rest} + {b} : {rest}"
    if not _signed(node):
        return rest
    return f"{rest} != 0 && ({rest} < 0) != ({b} < 0) ? ({kind})({rest} + {b}) : {rest}"


def _saturate(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    (x,) = arguments
    kind = C_TYPES[node.type]
    least, most = np.iinfo(node.type).min, np.iinfo(node.type).max
    ends = [literal(np.dtype(node.type).type(each)) for each in (least, most)]
    # Beyond 2^53 the double next to `most` is above it, and what is not below that is not in range.
    below, above = (literal(np.dtype(node.arguments[0].type).type(each)) for each in (least, most))
    return f"{x} != {x} ? ({kind})0 : {x} <= {below} ? {ends[0]} : {x} >= {above} ? {ends[1]} : ({kind}){x}"


def _is_half(node: Value) -> bool:
    """Whether a float32 has the range of float16."""
    match node:
        case Input():
            return node.stored is DataType.FLOAT16
    return isinstance(node, Operation) and node.name == "through_float16"


def _angle(name: str, double: str) -> Writer:
    """CUDA's own take float64 for large angles."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        if node.type == FLOAT64:
            return f"{double}({arguments[0]})"
        writing.function("angles")
        return f"{name}<{'false' if _is_half(node.arguments[0]) else 'true'}>({arguments[0]})"

    return write


def _bit_count(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    argument = node.arguments[0]
    mask = hex((1 << _width(argument)) - 1)
    return f"(unsigned char)ones_of((unsigned long long){arguments[0]} & {mask}ull)"


FUNCTIONS: dict[str, Writer] = {
    "add": _binary("+"),
    "subtract": _binary("-"),
    "multiply": _binary("*"),
    "divide": _divide,
    "negative": _negative,
    "absolute": _absolute,
    "copysign": _call("copysign"),
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "multiply_add": _multiply_add,
    "quotient": _quotient,
    "fmod": _fmod,
    "remainder": _remainder,
    "greater": _compare(">"),
    "greater_equal": _compare(">="),
    "less": _compare("<"),
    "less_equal": _compare("<="),
    "equal": _compare("=="),
    "not_equal": _compare("!="),
    "where": _where,
    "bitwise_and": _bitwise("&"),
    "bitwise_or": _bitwise("|"),
    "bitwise_xor": _bitwise("^"),
    "invert": _invert,
    "left_shift": _left_shift,
    "right_shift": _right_shift,
    "bit_count": _bit_count,
    "cast": _cast,
    "through_float16": _through_float16,
    "saturate": _saturate,
    "power": _power,
    "sqrt": _sqrt,
    "exp_of_product": _exp_of("exp_of_product", "*"),
    "exp_of_difference": _exp_of("exp_of_difference", "-"),
    "expm1_of_negative": _expm1_of_negative,
    "scaled_expm1": _scaled_expm1,
    "log1p_of_fraction": _call("log1p"),
    "normal_cdf": _call("normcdf"),
    "sin": _angle("sine_of", "sin"),
    "cos": _angle("cosine_of", "cos"),
    "tan": _angle("tangent_of", "tan"),
    "arcsin": _call("asin"),
    "arccos": _call("acos"),
    "arctan": _call("atan"),
    "arctan2": _call("atan2"),
    "arcsinh": _call("asinh"),
    "arccosh": _call("acosh"),
    "arctanh": _call("atanh"),
} | {
    name: _call(name)
    for name in [
        "exp",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "erf",
        "sinh",
        "cosh",
        "floor",
        "ceil",
        "trunc",
        "rint",
    ]
}
"""One row for each operation of `app/formula/values.py`."""
