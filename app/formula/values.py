"""Symbolic values: what an operator's formula is made of.

A formula is written as ordinary arithmetic on `Value`s and becomes a graph of `Operation`s over `Input`s, `Parameter`s
and `Constant`s. The graph knows types but no sizes: it says what happens to one element. A device lowers it by a table
with one row for each operation name (`app/execution/numpy_lowering.py`), so the mathematics stands in one place.
"""

from dataclasses import dataclass, field

from app.contract.constants import DataType

FLOAT32, FLOAT64, BOOL = "float32", "float64", "bool"

# FLOAT16 is computed in float32 and rounded once, when it is stored: at least as exact as any device in float16.
_COMPUTE = {DataType.FLOAT16: FLOAT32}


def compute_type(data_type: DataType) -> str:
    """The type, by its NumPy name, in which elements of `data_type` are computed."""
    return _COMPUTE.get(data_type, data_type.value.lower())


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One element, or a scalar that is the same for all, of a type given by its NumPy name."""

    type: str

    def __add__(self, other: "Value | float") -> "Value":
        return _arithmetic("add", self, other)

    def __radd__(self, other: float) -> "Value":
        return _arithmetic("add", other, self)

    def __sub__(self, other: "Value | float") -> "Value":
        return _arithmetic("subtract", self, other)

    def __rsub__(self, other: float) -> "Value":
        return _arithmetic("subtract", other, self)

    def __mul__(self, other: "Value | float") -> "Value":
        return _arithmetic("multiply", self, other)

    def __rmul__(self, other: float) -> "Value":
        return _arithmetic("multiply", other, self)

    def __truediv__(self, other: "Value | float") -> "Value":
        return _arithmetic("divide", self, other)

    def __rtruediv__(self, other: float) -> "Value":
        return _arithmetic("divide", other, self)

    def __ge__(self, other: "Value | float") -> "Value":
        return _comparison("greater_equal", self, other)


@dataclass(frozen=True, eq=False, slots=True)
class Input(Value):
    """An element of the input tensor `name`, stored as `stored` and converted to `type` on loading."""

    name: str
    stored: DataType


@dataclass(frozen=True, eq=False, slots=True)
class Parameter(Value):
    """An attribute: an argument of the kernel, so that kernels are shared by all values of it."""

    name: str
    value: float


@dataclass(frozen=True, eq=False, slots=True)
class Constant(Value):
    """A number that belongs to the formula."""

    value: float


@dataclass(frozen=True, eq=False, slots=True)
class Operation(Value):
    """The operation `name` of `arguments`, rounded once to `type`."""

    name: str
    arguments: tuple[Value, ...] = field(default=())


def maximum(a: Value | float, b: Value | float) -> Value:
    """The larger of both; NaN if either is NaN."""
    return _arithmetic("maximum", a, b)


def minimum(a: Value | float, b: Value | float) -> Value:
    """The smaller of both; NaN if either is NaN."""
    return _arithmetic("minimum", a, b)


def equal(a: Value | float, b: Value | float) -> Value:
    """Whether both are the same number; false if either is NaN."""
    return _comparison("equal", a, b)


def where(condition: Value, a: Value | float, b: Value | float) -> Value:
    """`a` where `condition` holds, else `b`."""
    a, b = _alike(a, b)
    return Operation(a.type, "where", (condition, a, b))


def expm1(x: Value) -> Value:
    """exp(x) - 1 without cancellation near 0."""
    return Operation(x.type, "expm1", (x,))


def expm1_of_negative(x: Value) -> Value:
    """The same for an `x` that is never positive."""
    return Operation(x.type, "expm1_of_negative", (x,))


def sqrt(x: Value) -> Value:
    """The square root by IEEE 754: NaN below 0, -0 of -0."""
    return Operation(x.type, "sqrt", (x,))


def multiply_add(a: Value | float, b: Value | float, c: Value | float) -> Value:
    """a * b + c, rounded once: exact also where product and sum cancel."""
    a, b = _alike(a, b)
    b, c = _alike(b, c)
    return Operation(a.type, "multiply_add", (a, b, c))


def power(base: Value, exponent: Value | float) -> Value:
    """IEEE 754's pow: NaN for a negative base unless the exponent is a whole number; 1 for exponent 0."""
    return _arithmetic("power", base, exponent)


def widen(x: Value) -> Value:
    """`x` as float64, for formulas that would magnify the rounding of float32 steps."""
    return x if x.type == FLOAT64 else Operation(FLOAT64, "cast", (x,))


def _arithmetic(name: str, a: Value | float, b: Value | float) -> Operation:
    a, b = _alike(a, b)
    return Operation(a.type, name, (a, b))


def _comparison(name: str, a: Value | float, b: Value | float) -> Operation:
    return Operation(BOOL, name, _alike(a, b))


def _alike(a: Value | float, b: Value | float) -> tuple[Value, Value]:
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
