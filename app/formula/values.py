"""Symbolic values: what an operator's formula is made of.

A formula is written as ordinary arithmetic on `Value`s and becomes a graph of `Operation`s over `Input`s, `Parameter`s
and `Constant`s, and, where an operator reduces, `Reduction`s. The graph knows types but no sizes: it says what happens
to one element. A device lowers it by a table with one row for each operation name, so that the mathematics stands in
one place; what each operation means, to the last bit where that is defined, is said here at the function that makes it.

For all of them: types are those of NumPy by name. A FLOAT16 element is loaded as float32 and rounded when it is stored.
Floats follow IEEE 754, to nearest even, with subnormals; which NaN comes out of a NaN is left open. Transcendental
functions are as exact as float32 needs them, 2 ULP or so, of float64 arguments too: no result is stored as FLOAT64.
Integers wrap around (two's complement). A bool is true or false, and 1 or 0 when it is cast or stored.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from app.contract.constants import DataType

FLOAT32, FLOAT64, BOOL, INT8, INT64 = "float32", "float64", "bool", "int8", "int64"

IN_FLOAT32 = ("int8", "uint8", "int16", "uint16")
"""Integers of few enough bits for it."""

INFINITY = math.inf

# FLOAT16 is computed in float32 and rounded once, when it is stored: at least as exact as any device in float16.
_COMPUTE = {DataType.FLOAT16: FLOAT32}

Number: TypeAlias = int | float


def compute_type(data_type: DataType) -> str:
    """The type, by its NumPy name, in which elements of `data_type` are computed."""
    return _COMPUTE.get(data_type, data_type.value.lower())


def stored_whole(type_: str) -> DataType:
    """The type that stores a value of the type called `type_` as it is."""
    return DataType(type_.upper())


def is_float(type_: str) -> bool:
    """Whether values of the type called `type_` are floats."""
    return type_.startswith("float")


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One element, or a scalar that is the same for all, of a type given by its NumPy name."""

    type: str

    def operands(self) -> tuple["Value", ...]:
        """What it is made of directly."""
        return ()

    def with_operands(self, operands: tuple["Value", ...]) -> "Value":
        """The same made of these, which are as many as `operands` gives."""
        return self

    def __add__(self, other: "Value | Number") -> "Value":
        return _arithmetic("add", self, other)

    def __radd__(self, other: Number) -> "Value":
        return _arithmetic("add", other, self)

    def __sub__(self, other: "Value | Number") -> "Value":
        return _arithmetic("subtract", self, other)

    def __rsub__(self, other: Number) -> "Value":
        return _arithmetic("subtract", other, self)

    def __mul__(self, other: "Value | Number") -> "Value":
        return _arithmetic("multiply", self, other)

    def __rmul__(self, other: Number) -> "Value":
        return _arithmetic("multiply", other, self)

    def __truediv__(self, other: "Value | Number") -> "Value":
        """Of floats: x / 0 is an infinity, 0 / 0 NaN. Integers have `quotient`."""
        return _arithmetic("divide", self, other)

    def __rtruediv__(self, other: Number) -> "Value":
        return _arithmetic("divide", other, self)

    def __neg__(self) -> "Value":
        """With the other sign, of zeros and NaN too; the least integer is its own negative."""
        return Operation(self.type, "negative", (self,))

    # Comparisons: false where either is NaN.

    def __gt__(self, other: "Value | Number") -> "Value":
        return _comparison("greater", self, other)

    def __ge__(self, other: "Value | Number") -> "Value":
        return _comparison("greater_equal", self, other)

    def __lt__(self, other: "Value | Number") -> "Value":
        return _comparison("less", self, other)

    def __le__(self, other: "Value | Number") -> "Value":
        return _comparison("less_equal", self, other)

    # Of integers bit by bit; of bools, and, or, exclusive or, not.

    def __and__(self, other: "Value | Number") -> "Value":
        return _arithmetic("bitwise_and", self, other)

    def __or__(self, other: "Value | Number") -> "Value":
        return _arithmetic("bitwise_or", self, other)

    def __xor__(self, other: "Value | Number") -> "Value":
        return _arithmetic("bitwise_xor", self, other)

    def __invert__(self) -> "Value":
        return Operation(self.type, "invert", (self,))

    def __lshift__(self, other: "Value | Number") -> "Value":
        """Of unsigned integers: zeros enter on the right; 0 for counts at or above the width."""
        return _arithmetic("left_shift", self, other)

    def __rshift__(self, other: "Value | Number") -> "Value":
        """Zeros, or of signed integers copies of the sign, enter on the left; so they do beyond the width."""
        return _arithmetic("right_shift", self, other)


@dataclass(frozen=True, eq=False, slots=True)
class Input(Value):
    """An element of the input tensor `name`, stored as `stored` and converted to `type` on loading."""

    name: str
    stored: DataType


@dataclass(frozen=True, eq=False, slots=True)
class Parameter(Value):
    """An attribute, or what `derive` makes of it on the host: an argument of kernels, which serve all its numbers.

    Its number is one of its type, without being rounded.
    """

    name: str
    derive: Callable[[Number], Number] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Constant(Value):
    """A number that belongs to the formula."""

    value: Number


@dataclass(frozen=True, eq=False, slots=True)
class Operation(Value):
    """The operation `name` of `arguments`, rounded once to `type`."""

    name: str
    arguments: tuple[Value, ...] = field(default=())

    def operands(self) -> tuple[Value, ...]:
        return self.arguments

    def with_operands(self, operands: tuple[Value, ...]) -> "Operation":
        return Operation(self.type, self.name, operands)


@dataclass(frozen=True, eq=False, slots=True)
class Reduction(Value):
    """One value of all the `argument`s of a group: of the elements that differ only along the operator's axes.

    By `name`: `maximum`, NaN if any is NaN; `sum`, in any order, with no more than one rounding to `type`;
    `first_maximum`, the Position (an int64) of the first NaN, else of the first of the largest.
    """

    name: str
    argument: Value

    def operands(self) -> tuple[Value, ...]:
        return (self.argument,)

    def with_operands(self, operands: tuple[Value, ...]) -> "Reduction":
        return Reduction(self.type, self.name, *operands)


@dataclass(frozen=True, eq=False, slots=True)
class Position(Value):
    """Where an element is in its group, an int64 from 0, row-major along the operator's axes."""


def parts(value: Value) -> Iterator[Value]:
    """`value` and everything that it is made of, each once, arguments before what is made of them."""
    seen = {value}
    # A stack of our own, each with the operands that are still to come: values within values would be handed up through
    # as many generators.
    inside = [(value, iter(value.operands()))]
    while inside:
        node, operands = inside[-1]
        for operand in operands:
            if operand not in seen:
                seen.add(operand)
                inside.append((operand, iter(operand.operands())))
                break
        else:
            inside.pop()
            yield node


def replaced(root: Value, known: Mapping[Value, Value]) -> Value:
    """`root` with others in the place of what is `known`. What has nothing of that in it stays the same node."""
    made = dict(known)
    for node in parts(root):
        if node not in made:
            operands = node.operands()
            others = tuple(made[each] for each in operands)
            is_same = all(a is b for a, b in zip(operands, others, strict=True))
            made[node] = node if is_same else node.with_operands(others)
    return made[root]


# Arithmetic


def maximum(a: Value | Number, b: Value | Number) -> Value:
    """The larger of both; NaN if either is NaN; either one of two zeros."""
    return _arithmetic("maximum", a, b)


def minimum(a: Value | Number, b: Value | Number) -> Value:
    """The smaller of both; NaN if either is NaN; either one of two zeros."""
    return _arithmetic("minimum", a, b)


def absolute(x: Value) -> Value:
    """Without the sign; the least integer stays as it is."""
    return Operation(x.type, "absolute", (x,))


def copysign(magnitude: Value | Number, sign: Value | Number) -> Value:
    """A float's `magnitude` with the sign bit of `sign`, which may be a zero or NaN."""
    return _arithmetic("copysign", magnitude, sign)


def multiply_add(a: Value | Number, b: Value | Number, c: Value | Number) -> Value:
    """a * b + c, of float32 rounded once: exact also where product and sum cancel."""
    a, b = _alike(a, b)
    b, c = _alike(b, c)
    a, c = _alike(a, c)
    return Operation(a.type, "multiply_add", (a, b, c))


def quotient(a: Value | Number, b: Value | Number) -> Value:
    """Of integers, truncated toward zero. a / 0 is 0; the least integer over -1 wraps around to itself."""
    return _arithmetic("quotient", a, b)


def remainder_of_truncation(a: Value | Number, b: Value | Number) -> Value:
    """a - b * trunc(a / b), exactly, with the sign of `a`: C's fmod. By 0: of integers 0, of floats NaN."""
    return _arithmetic("fmod", a, b)


def remainder_of_floor(a: Value | Number, b: Value | Number) -> Value:
    """a - b * floor(a / b) with the sign of `b`: Python's %. By 0: of integers 0, of floats NaN.

    Of floats `remainder_of_truncation`, plus b where that is not 0 and its sign is not that of b; a zero has b's sign.
    """
    return _arithmetic("remainder", a, b)


def power(base: Value | Number, exponent: Value | Number) -> Value:
    """IEEE 754's pow: NaN for a negative base unless the exponent is a whole number; 1 for exponent 0.

    Of integers, whose exponent must not be negative, the product of that many bases, which wraps around; 0^0 is 1.
    """
    return _arithmetic("power", base, exponent)


# Comparison and choice


def equal(a: Value | Number, b: Value | Number) -> Value:
    """Whether both are the same number; false if either is NaN."""
    return _comparison("equal", a, b)


def not_equal(a: Value | Number, b: Value | Number) -> Value:
    """Whether they are not the same number; true if either is NaN."""
    return _comparison("not_equal", a, b)


def is_nan(x: Value) -> Value:
    return not_equal(x, x)


def where(condition: Value, a: Value | Number, b: Value | Number) -> Value:
    """`a` where `condition` holds, else `b`."""
    a, b = _alike(a, b)
    return Operation(a.type, "where", (condition, a, b))


# Functions of floats


def exp(x: Value) -> Value:
    return _of_float("exp", x)


def exp_of_difference(a: Value, b: Value) -> Value:
    """exp(a - b) of float32 where that is at most 1, as exact as exp although it would magnify the difference's
    rounding by up to 88; 0 where a is -inf and b is not."""
    return _arithmetic("exp_of_difference", a, b)


def exp_of_product(a: Value, b: Value) -> Value:
    """exp(a * b) of float32 where that is at most 1, in the same way."""
    return _arithmetic("exp_of_product", a, b)


def expm1(x: Value) -> Value:
    """exp(x) - 1 without cancellation near 0."""
    return _of_float("expm1", x)


def expm1_of_negative(x: Value) -> Value:
    """The same for an `x` that is never positive."""
    return _of_float("expm1_of_negative", x)


def scaled_expm1(x: Value, scale: Value) -> Value:
    """scale * (exp(x / scale) - 1) of float32 where x / scale is never positive, as exact where that is subnormal."""
    return _arithmetic("scaled_expm1", x, scale)


def log(x: Value) -> Value:
    """The natural logarithm: NaN below 0, -inf of both zeros."""
    return _of_float("log", x)


def log1p(x: Value) -> Value:
    """log(1 + x) without cancellation near 0: NaN below -1, -inf at -1."""
    return _of_float("log1p", x)


def log1p_of_fraction(x: Value) -> Value:
    """The same for an `x` from 0 to 1, or NaN."""
    return _of_float("log1p_of_fraction", x)


def sqrt(x: Value) -> Value:
    """The square root by IEEE 754: NaN below 0, -0 of -0."""
    return _of_float("sqrt", x)


def tanh(x: Value) -> Value:
    return _of_float("tanh", x)


def erf(x: Value) -> Value:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return _of_float("erf", x)


def normal_cdf(x: Value) -> Value:
    """erfc(-x / sqrt(2)) / 2: the normal distribution's area left of `x`, down to the least subnormal."""
    return _of_float("normal_cdf", x)


def sin(x: Value) -> Value:
    """Of radians; NaN of infinities. So are `cos` and `tan`."""
    return _of_float("sin", x)


def cos(x: Value) -> Value:
    return _of_float("cos", x)


def tan(x: Value) -> Value:
    return _of_float("tan", x)


def arcsin(x: Value) -> Value:
    """NaN beyond -1 and 1."""
    return _of_float("arcsin", x)


def arccos(x: Value) -> Value:
    """From 0 to pi; NaN beyond -1 and 1."""
    return _of_float("arccos", x)


def arctan(x: Value) -> Value:
    return _of_float("arctan", x)


def arctan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi; at the origin, as in C, 0 or pi by the sign of x, signed as y."""
    return _arithmetic("arctan2", y, x)


def sinh(x: Value) -> Value:
    return _of_float("sinh", x)


def cosh(x: Value) -> Value:
    return _of_float("cosh", x)


def arcsinh(x: Value) -> Value:
    return _of_float("arcsinh", x)


def arccosh(x: Value) -> Value:
    """NaN below 1."""
    return _of_float("arccosh", x)


def arctanh(x: Value) -> Value:
    """Infinities at -1 and 1, NaN beyond."""
    return _of_float("arctanh", x)


def floor(x: Value) -> Value:
    """The next whole number down. This and its like keep the sign of zero, infinities and NaN."""
    return _of_float("floor", x)


def ceil(x: Value) -> Value:
    """The next whole number up."""
    return _of_float("ceil", x)


def trunc(x: Value) -> Value:
    """The next whole number toward zero."""
    return _of_float("trunc", x)


def rint(x: Value) -> Value:
    """The nearest whole number, of two the even one."""
    return _of_float("rint", x)


# Conversion


def cast(x: Value, type_: str) -> Value:
    """`x` as another type: of floats and to floats rounded to nearest even, between integers the lowest bits."""
    if is_float(x.type) and not is_float(type_):
        raise TypeError(f"{x.type} is converted to {type_} by `saturate`")
    return x if x.type == type_ else Operation(type_, "cast", (x,))


def as_stored(x: Value, data_type: DataType) -> Value:
    """What is read of an element of `data_type` that `x` was written to: rounded once, as stores round."""
    if data_type is DataType.FLOAT16:
        match x:
            case Operation(type="float32", name="cast", arguments=(Value(type="float64") as exact,)):
                x = exact  # what is stored is rounded once
        return Operation(FLOAT32, "through_float16", (x,))
    return cast(x, compute_type(data_type))


def widen(x: Value) -> Value:
    """`x` as float64, for formulas that would magnify the rounding of float32 steps; exact but of 64-bit integers."""
    return cast(x, FLOAT64)


def saturate(x: Value, type_: str) -> Value:
    """The float `x` truncated toward zero to an integer type, or the nearest end of its range; 0 of NaN."""
    holds = x.type == FLOAT32 and type_ in IN_FLOAT32
    return Operation(type_, "saturate", (x if holds else widen(x),))


def bit_count(x: Value) -> Value:
    """How many bits of an integer are 1, as uint8."""
    return Operation("uint8", "bit_count", (x,))


@cache
def integer_range(type_: str) -> tuple[int, int]:
    """The least and the largest number of the integer type called `type_`."""
    bits = int(type_.lstrip("uint"))
    return (0, (1 << bits) - 1) if type_.startswith("u") else (-1 << (bits - 1), (1 << (bits - 1)) - 1)


def converted(parameter: Parameter, data_type: DataType) -> Parameter:
    """A FLOAT attribute as a tensor of `data_type` holds it: a float rounded to nearest even, an integer truncated
    toward zero, or the nearest end of its range.

    Source: the remarks on Min and Max of DML_ELEMENT_WISE_CLIP_OPERATOR_DESC, which do not name the ends.
    """
    type_ = compute_type(data_type)
    if is_float(type_):
        return derived(parameter, type_, lambda number: rounded(number, data_type))
    least, most = integer_range(type_)
    return derived(parameter, type_, lambda number: int(min(max(number, least), most)))


def derived(parameter: Parameter, type_: str, derive: Callable[[Number], Number]) -> Parameter:
    """What `derive`, a function of nothing but its argument, makes of an attribute, as a parameter of `type_`."""
    before = parameter.derive
    if before is None:
        return Parameter(type_, parameter.name, derive)
    return Parameter(type_, parameter.name, lambda number: derive(before(number)))


def rounded(value: float, data_type: DataType) -> float:
    """`value` as a number of the float type `data_type`: to nearest even, or an infinity beyond its range."""
    form = {DataType.FLOAT16: "<e", DataType.FLOAT32: "<f", DataType.FLOAT64: "<d"}[data_type]
    try:
        (result,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(result)


# Reduction


def maximum_of(x: Value) -> Value:
    """Of a group (`Reduction`)."""
    return Reduction(x.type, "maximum", x)


def sum_of(x: Value) -> Value:
    """Of a group (`Reduction`)."""
    return Reduction(x.type, "sum", x)


def first_maximum_of(x: Value) -> Value:
    """The Position of a group's first maximum (`Reduction`)."""
    return Reduction(INT64, "first_maximum", x)


def _of_float(name: str, x: Value) -> Operation:
    if not is_float(x.type):
        raise TypeError(f"{name} is a function of floats, not of {x.type}")
    return Operation(x.type, name, (x,))


def _arithmetic(name: str, a: Value | Number, b: Value | Number) -> Operation:
    a, b = _alike(a, b)
    return Operation(a.type, name, (a, b))


def _comparison(name: str, a: Value | Number, b: Value | Number) -> Operation:
    return Operation(BOOL, name, _alike(a, b))


def _alike(a: Value | Number, b: Value | Number) -> tuple[Value, Value]:
    """Both as values of one type: a number takes the other's type, float32 widens to float64."""
    if not isinstance(a, Value):
        if not isinstance(b, Value):
            raise TypeError("a formula needs at least one symbolic value")
        return Constant(b.type, a), b
    if not isinstance(b, Value):
        return a, Constant(a.type, b)
    if a.type != b.type:
        if {a.type, b.type} != {FLOAT32, FLOAT64}:
            raise TypeError(f"{a.type} and {b.type} do not mix; cast one of them")
        return widen(a), widen(b)
    return a, b
