"""From a formula to CUDA C++: the function `element`, which computes one element from one of each input.

The graph is the one that NumPy's lowering walks, and FUNCTIONS here has a row for the same names. What depends on
attributes only is computed once, on the host, and given to the kernel as an argument, so that a kernel serves all
values of an attribute; only what chooses code becomes part of the source: types, and the class of an exponent.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.functions import library
from app.devices.cuda.shortcuts import Shortcut, in_float32, in_integers
from app.formula.expansions import EXPANSIONS, Ask
from app.formula.precision import MODERATE, NEAR_FOR_HALF, inverse_of, is_for_half, is_smooth, narrowed
from app.formula.uniform import is_uniform, typed
from app.formula.values import BOOL, FLOAT32, FLOAT64, Constant, Input, Number, Operation, Parameter, Value

C_TYPES = {
    "bool": "bool",
    "float16": "half_bits",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
}
"""By NumPy name. float16 is only ever stored: elements are converted on loading and on storing."""

_NEAR = 16.0
"""Exponents up to this have quick powers."""

HAVE_FAR = frozenset({"power_near", "power_of_each", "normal_cdf_times", "rounded_sum"})
"""Functions whose quick way does not lead everywhere."""

Writer: TypeAlias = "Callable[[Lowering, Operation, Sequence[str]], str]"
"""Gives the C++ expression of an operation from those of its arguments."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`source` defines `element<NEAR>`, a function of one stored element of each input, then of `arguments`.

    Its last parameter becomes true where NEAR must be false: quick ways do not lead everywhere. If `far` is false, this
    does not happen.
    """

    source: str
    far: bool
    inputs: tuple[str, ...]
    output: str
    parameters: tuple[str, ...]
    arguments: tuple[Value, ...]
    """C types of the stored elements and of the arguments, and what the arguments are."""


def lower(ask: Ask, expression: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> Arithmetic:
    """The arithmetic of an output whose elements are `expression`, stored as `stored`, over the inputs by name."""
    return Lowering(ask, expression, inputs, stored).arithmetic()


class Lowering:
    """Writes the nodes of one formula as declarations of C++; as `exact` as they say, or as the stored type needs."""

    looks_again: ClassVar[bool] = True
    """Whether what is written is a template over NEAR, that elements are computed with a second time if it was too far.
    If not, functions look themselves."""

    def __init__(
        self,
        ask: Ask,
        root: Value,
        inputs: Sequence[tuple[str, DataType]],
        stored: DataType,
        *,
        exact: bool = False,
    ) -> None:
        self.ask = ask
        self.stored = stored
        self.inputs = inputs
        self.smooth = not exact and is_smooth(root, stored)
        self.half = not exact and is_for_half(ask, root, stored)
        self._root = narrowed(root) if self.half else root
        self._lines: list[str] = []
        self._written: dict[Value, str] = {}
        self._arguments: dict[Value, tuple[str, Value]] = {}
        self._functions: set[str] = set()

    def arithmetic(self) -> Arithmetic:
        result = self.result()
        types = tuple(C_TYPES[stored.value.lower()] for _, stored in self.inputs)
        output = C_TYPES[self.stored.value.lower()]
        parameters = tuple(C_TYPES[value.type] for _, value in self._arguments.values())
        declared = [f"{kind} x{number}" for number, kind in enumerate(types)]
        declared += [f"{kind} {name}" for kind, (name, _) in zip(parameters, self._arguments.values(), strict=True)]
        body = "".join(f"    {line}\n" for line in [*self._lines, f"return {result};"])
        return Arithmetic(
            source=(
                f"{library(self._functions)}\ntemplate <bool NEAR>\n"
                f"DEVICE {output} element({', '.join([*declared, 'bool& far'])})\n{{\n{body}}}\n"
            ),
            far=bool(self._functions & HAVE_FAR),
            inputs=types,
            output=output,
            parameters=parameters,
            arguments=tuple(value for _, value in self._arguments.values()),
        )

    def function(self, name: str) -> str:
        """`name`, which the source then defines."""
        self._functions.add(name)
        return name

    def write(self, node: Value) -> str:
        """The C++ expression of `node`: a name or a literal, so that it may stand several times."""
        if node not in self._written:
            self._written[node] = self._write(node)
        return self._written[node]

    def argument(self, key: Value, value: Value) -> str:
        """The name of the kernel's argument for `key`."""
        return self._arguments.setdefault(key, (f"p{len(self._arguments)}", value))[0]

    def is_one(self, node: Value) -> bool:
        """Whether `node` is 1 for all elements."""
        if isinstance(node, Constant):
            return node.type != BOOL and node.value == 1
        return self.is_uniform(node) and node.type != BOOL and bool(self.ask(lambda number: number == 1, node))

    def is_uniform(self, node: Value) -> bool:
        """Whether `node` is the same for all elements."""
        return is_uniform(node)

    def _write(self, node: Value) -> str:
        if isinstance(node, Constant):
            return literal(typed(node.type, node.value))
        if isinstance(node, Parameter) or (self.is_uniform(node) and node.type != BOOL):
            return self.argument(node, node)
        if isinstance(node, Input):
            number = [name for name, _ in self.inputs].index(node.name)
            return self.declare(node.type, convert(f"x{number}", node.stored.value.lower(), node.type))
        assert isinstance(node, Operation)
        shortcut = in_integers(node)
        if shortcut:
            return self.declare(node.type, self._taken(shortcut))
        if node.name in ("cast", "through_float16") and node.type == FLOAT32:
            rounded = self._rounded(node.arguments[0])
            if rounded:
                return rounded if node.name == "cast" else self.declare(FLOAT32, _through_half(rounded, FLOAT32))
        arguments = [self.write(argument) for argument in node.arguments]
        return self.declare(node.type, FUNCTIONS[node.name](self, node, arguments))

    def _rounded(self, node: Value) -> str | None:
        """The float64 `node` in float32, where that needs no float64."""
        shortcut = in_float32(node)
        return self.declare(FLOAT32, self._taken(shortcut)) if shortcut else None

    def _taken(self, shortcut: Shortcut) -> str:
        template = [str(each) for each in shortcut.template]
        arguments = [self.write(each) if each else "0" for each in shortcut.arguments]
        return self.call(shortcut.function, arguments, template, far=shortcut.far)

    def call(self, name: str, arguments: Sequence[str], template: Sequence[str] = (), *, far: bool = True) -> str:
        """A call of a function that may have led too `far`."""
        if far and self.looks_again:
            template, arguments = ["NEAR", *template], [*arguments, "far"]
        types = f"<{', '.join(template)}>" if template else ""
        return f"{self.function(name)}{types}({', '.join(arguments)})"

    def declare(self, kind: str, expression: str) -> str:
        """The name of a variable with this value."""
        name = f"v{len(self._lines)}"
        self._lines.append(f"{C_TYPES[kind]} {name} = {expression};")
        return name

    def result(self) -> str:
        """What is stored."""
        rounded = self._rounded(self._root)
        value, kind = (rounded, FLOAT32) if rounded else (self.write(self._root), self._root.type)
        return convert(value, kind, self.stored.value.lower())


def literal(value: np.generic) -> str:
    """`value` to the last bit."""
    number = value.item()
    match _name(value):
        case "float32":
            exact = math.isfinite(number)
            return f"{number.hex()}f" if exact else f"float_of_bits({hex(int(value.view(np.uint32)))}u)"
        case "float64":
            exact = math.isfinite(number)
            return number.hex() if exact else f"double_of_bits({hex(int(value.view(np.uint64)))}ull)"
        case "bool":
            return "true" if number else "false"
        case name:
            return f"(({C_TYPES[name]}){hex(number & (1 << 64) - 1)}ull)"


def _name(value: np.generic) -> str:
    name: str = value.dtype.name
    return name


def convert(value: str, given: str, wanted: str) -> str:
    """`value` of the NumPy type `given` as `wanted`, rounded once."""
    if given == wanted:
        return value
    if given == "float16":
        return convert(f"float_of_half({value})", "float32", wanted)
    if wanted == "float16":
        return f"half_of_double({value})" if given == "float64" else f"half_of_float({convert(value, given, FLOAT32)})"
    return f"({C_TYPES[wanted]}){value}"


# One row for each operation


def _is_float(node: Value) -> bool:
    return node.type in (FLOAT32, FLOAT64)


def _binary(sign: str) -> Writer:
    """Floats as C++ has them; integers wrap around, which only unsigned ones may do in C++."""

    def write(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
        a, b = arguments
        if _is_float(node):
            if sign == "*" and node.arguments:  # a formula says so of Alpha, which is mostly 1
                if lowering.is_one(node.arguments[0]):
                    return b
                if lowering.is_one(node.arguments[1]):
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

    def write(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
        for number, other in ((0, 1), (1, 0)):
            if isinstance(node.arguments[number], Constant):  # no formula has a NaN in it
                return f"{arguments[number]} {sign} {arguments[other]} ? {arguments[number]} : {arguments[other]}"
        a, b = arguments
        if not _is_float(node):
            return f"{a} {sign} {b} ? {a} : {b}"
        return f"{a} {sign} {b} || {a} != {a} ? {a} : {b}"

    return write


def _divide(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments
    divisor = node.arguments[1]
    if lowering.is_one(divisor):
        return a
    if lowering.half or (lowering.smooth and node.type == FLOAT64):
        inverse = inverse_of(lowering.ask, divisor)
        if inverse is not None:
            return f"{a} * {lowering.argument(node, inverse)}"
    if lowering.half and isinstance(node.arguments[0], Constant) and node.arguments[0].value == 1:
        return f"reciprocal_approx({b})"
    if _is_float(node):
        return f"{a} / {b}"
    raise TypeError("integers have a quotient")


def _sqrt(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    return f"sqrt_approx({arguments[0]})" if lowering.half else _call("sqrt")(lowering, node, arguments)


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


def _power(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    exponent = node.arguments[1]
    if node.type == FLOAT32 and lowering.smooth and is_uniform(exponent):
        classes = lowering.ask(_class_for_half if lowering.half else _class_near, exponent)
        if classes is not None:
            if lowering.half:
                return f"{lowering.function('power_half')}<{_flags(classes)}>({', '.join(arguments)})"
            near = f"{lowering.function('power_near')}<{_flags(classes)}>({', '.join(arguments)}, far)"
            return f"NEAR ? {near} : {lowering.function('power_far')}({', '.join(arguments)})"
    if not _is_float(node):
        return f"({C_TYPES[node.type]}){lowering.function('power_of_integers')}({', '.join(arguments)})"
    if node.type == FLOAT64:
        return f"{lowering.function('power_wide')}({', '.join(arguments)})"
    if is_uniform(exponent):
        return f"{lowering.function('power_far')}({', '.join(arguments)})"
    return lowering.call("power_of_each", arguments)


def _multiply_add(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    if node.type == FLOAT32:
        return _call("fma")(lowering, node, arguments)
    a, b, c = arguments  # of others the product is rounded, too, as elsewhere
    product = lowering.declare(node.type, _binary("*")(lowering, Operation(node.type, "multiply"), [a, b]))
    return _binary("+")(lowering, node, [product, c])


def _expm1_of_negative(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    if node.type == FLOAT64:
        if not lowering.smooth:
            return f"expm1({arguments[0]})"
        return f"{lowering.function('expm1_of_negative_for_float')}({arguments[0]})"
    name = lowering.function("expm1_of_negative_half" if lowering.half else "expm1_of_negative")
    return f"{name}({arguments[0]})"


def _scaled_expm1(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    """As NumPy has it."""
    return lowering.write(EXPANSIONS[node.name](lowering.ask, *node.arguments))


def _exp_of(name: str, sign: str) -> Writer:
    """exp of a product or a difference, exact also where float32 has no more digits for what is in between."""

    def write(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
        if node.type == FLOAT32:
            return f"{lowering.function(name)}({', '.join(arguments)})"
        return f"exp({arguments[0]} {sign} {arguments[1]})"

    return write


def _cast(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    return convert(arguments[0], node.arguments[0].type, node.type)


def _through_float16(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    return _through_half(arguments[0], node.arguments[0].type)


def _through_half(value: str, kind: str) -> str:
    return convert(convert(value, kind, "float16"), "float16", FLOAT32)


def _where(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
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


def _negative(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    (a,) = arguments
    return f"-{a}" if _is_float(node) else _wrapped(node, f"0u - {_unsigned(node, a)}")


def _absolute(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    (a,) = arguments
    if _is_float(node):
        return _call("fabs")(lowering, node, arguments)
    return f"{a} < 0 ? {_negative(lowering, node, arguments)} : {a}" if _signed(node) else a


def _bitwise(sign: str) -> Writer:
    return lambda lowering, node, arguments: _wrapped(node, f"{arguments[0]} {sign} {arguments[1]}")


def _invert(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    return f"!{arguments[0]}" if node.type == BOOL else _wrapped(node, f"~{arguments[0]}")


def _left_shift(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    a, b = (_unsigned(node, each) for each in arguments)
    return f"{b} >= {_width(node)}u ? ({C_TYPES[node.type]})0 : {_wrapped(node, f'({a}) << ({b})')}"


def _right_shift(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments[0], _unsigned(node, arguments[1])
    beyond = f"({a} < 0 ? -1 : 0)" if _signed(node) else "0"
    return f"({C_TYPES[node.type]})({b} >= {_width(node)}u ? {beyond} : {a} >> ({b}))"


def _quotient(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments
    kind = C_TYPES[node.type]
    wrap = f"{b} == -1 ? {_negative(lowering, node, [a])} : " if _signed(node) else ""
    return f"{b} == 0 ? ({kind})0 : {wrap}({kind})({a} / {b})"


def _fmod(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    if _is_float(node):
        return _call("fmod")(lowering, node, arguments)
    a, b = arguments
    kind = C_TYPES[node.type]
    wrap = f" || {b} == -1" if _signed(node) else ""
    return f"{b} == 0{wrap} ? ({kind})0 : ({kind})({a} % {b})"


def _remainder(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    rest = lowering.declare(node.type, _fmod(lowering, node, arguments))
    b = arguments[1]
    kind = C_TYPES[node.type]
    if _is_float(node):
        zero = _call("copysign")(lowering, node, [f"({kind})0", b])
        return f"{rest} == 0 ? {zero} : ({rest} < 0) != ({b} < 0) ? {rest} + {b} : {rest}"
    if not _signed(node):
        return rest
    return f"{rest} != 0 && ({rest} < 0) != ({b} < 0) ? ({kind})({rest} + {b}) : {rest}"


def _saturate(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
    (x,) = arguments
    kind = C_TYPES[node.type]
    least, most = np.iinfo(node.type).min, np.iinfo(node.type).max
    ends = [literal(np.dtype(node.type).type(each)) for each in (least, most)]
    # Beyond 2^53 the double next to `most` is above it, and what is not below that is not in range.
    below, above = float(least).hex(), float(most).hex()
    return f"{x} != {x} ? ({kind})0 : {x} <= {below} ? {ends[0]} : {x} >= {above} ? {ends[1]} : ({kind}){x}"


def _is_half(node: Value) -> bool:
    """Whether a float32 has the range of float16."""
    match node:
        case Input():
            return node.stored is DataType.FLOAT16
    return isinstance(node, Operation) and node.name == "through_float16"


def _angle(name: str, double: str) -> Writer:
    """CUDA's own take float64 for large angles."""

    def write(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
        if node.type == FLOAT64:
            return f"{double}({arguments[0]})"
        lowering.function("angles")
        return f"{name}<{'false' if _is_half(node.arguments[0]) else 'true'}>({arguments[0]})"

    return write


def _bit_count(lowering: "Lowering", node: Operation, arguments: Sequence[str]) -> str:
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
