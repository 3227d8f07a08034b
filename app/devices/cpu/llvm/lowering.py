"""From a formula to LLVM's assembly: the function `element`, which computes one element from one of each input.

The graph is the one that those for NumPy and CUDA walk, and FUNCTIONS here has rows for the same
names. Attributes are arguments, so that compiled code serves all their values. Operations without a row, and without
an expansion in `math/functions.py`, are those that would be computed an element at a time: NumPy is as quick at these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.llvm import scaling
from app.devices.cpu.llvm.math.functions import EXPANSIONS, FOR_HALF
from app.formula.expansions import Ask
from app.formula.precision import inverse_of, is_for_half, is_smooth, narrowed, operations
from app.formula.values import (
    BOOL,
    FLOAT32,
    FLOAT64,
    Constant,
    Input,
    Number,
    Operation,
    Parameter,
    Value,
    integer_range,
    is_float,
    stored_whole,
)

Writer: TypeAlias = "Callable[[Lowering, Operation, Sequence[str]], str]"
"""Gives LLVM's expression of an operation from the names of its arguments."""


@dataclass(frozen=True, slots=True)
class Element:
    """A function called `name`, of one stored element of each input that it reads and of the attributes."""

    name: str
    declarations: frozenset[str]
    body: tuple[str, ...]
    inputs: dict[str, str]
    output: str
    """LLVM's types of the stored elements, of the inputs by their names."""
    parameters: tuple[Value, ...]
    """Attributes, and other values that are the same for all elements."""
    kept: "tuple[Element, ...]" = ()
    """What is computed of many elements before, and read under their names."""

    @property
    def definition(self) -> list[str]:
        """Its source, without the declarations."""
        arguments = [f"{kind} %x{number}" for number, kind in enumerate(self.inputs.values())]
        arguments += [f"{llvm_type(value.type)} %p{number}" for number, value in enumerate(self.parameters)]
        head = f"define internal {self.output} @{self.name}({', '.join(arguments)}) alwaysinline {{"
        return [head, *self.body, "}"]


def lower(ask: Ask, expression: Value, stored: DataType) -> Element:
    """The function of an output whose elements are `expression`, stored as `stored`.

    Raises LookupError if NumPy is to compute it.
    """
    # Float64 alone costs little, and rounds right to float16; not so what is made of many operations.
    half = not operations(expression).isdisjoint(FOR_HALF) and is_for_half(ask, expression, stored)
    lowering = Lowering(ask, is_smooth(expression, stored), half)
    return lowering.element(narrowed(expression) if half else expression, stored, "element")


def lower_part(ask: Ask, expression: Value, stored: DataType, name: str) -> Element:
    """The same of a part of a formula, which may go on to magnify what is lost. It keeps nothing."""
    return Lowering(ask, False, False, keeps=False).element(expression, stored, name)


def llvm_type(type_: str) -> str:
    """By NumPy name."""
    match type_:
        case "bool":
            return "i1"
        case "float16":
            return "half"
        case "float32":
            return "float"
        case "float64":
            return "double"
    return "i" + type_.lstrip("uint")


def bytes_of(type_: str) -> int:
    """Of an element in memory, by LLVM's name of its type."""
    return {"half": 2, "float": 4, "double": 8}.get(type_) or -(-int(type_.removeprefix("i")) // 8)


class Lowering:
    """Writes the nodes of one formula as instructions. `smooth` and `half` are what `precision.py` says of it.

    A formula of which something is kept, or that is kept, `is_long`: it has more numbers than the processor registers,
    and LLVM finds arguments sooner again than its own constants.
    """

    def __init__(self, ask: Ask, smooth: bool, half: bool, *, keeps: bool = True, is_long: bool = False) -> None:
        self._ask = ask
        self._smooth = smooth
        self._half = half
        self._keeps = keeps
        self._is_long = is_long
        self._expansions = FOR_HALF if half else EXPANSIONS
        self._inputs: dict[str, tuple[str, str]] = {}
        self._lines: list[str] = []
        self._declarations: set[str] = set()
        self._written: dict[Value, str] = {}
        self._parameters: list[Value] = []
        self._kept: list[Element] = []

    def element(self, root: Value, stored: DataType, name: str) -> Element:
        """All of it."""
        while isinstance(root, Operation) and root.name in self._expansions:
            root = self._expansions[root.name](self._ask, *root.arguments)
        match root:
            # Of two roundings LLVM makes one in places, from double to half, for which processors have no instruction.
            case Operation(type="float32", name="cast", arguments=(Value(type="float64") as exact,)):
                if stored is DataType.FLOAT16:
                    root = exact
        result = self.convert(self.write(root), root.type, stored.value.lower())
        output = llvm_type(stored.value.lower())
        return Element(
            name,
            frozenset(self._declarations),
            (*self._lines, f"ret {output} {result}"),
            {name: kind for name, (kind, _) in self._inputs.items()},
            output,
            tuple(self._parameters),
            tuple(self._kept),
        )

    def write(self, node: Value) -> str:
        """The name of the value of `node`, or its literal."""
        if node not in self._written:
            self._written[node] = self._write(node)
        return self._written[node]

    def emit(self, expression: str) -> str:
        """The name of what the instruction `expression` gives."""
        name = f"%v{len(self._lines)}"
        self._lines.append(f"{name} = {expression}")
        return name

    def call(self, name: str, type_: str, *arguments: str, result: str | None = None) -> str:
        """A call of an intrinsic function of LLVM whose arguments, and result unless `result` says, are of one type."""
        declaration, expression = intrinsic(name, type_, arguments, result)
        self.declare(declaration)
        return expression

    def declare(self, declaration: str) -> None:
        """Say so in the module, once."""
        self._declarations.add(declaration)

    def inverse(self, divisor: Value) -> str | None:
        """The name of what to multiply by instead of dividing, where that will do."""
        if self._half or (self._smooth and divisor.type == FLOAT64):
            inverse = inverse_of(self._ask, divisor)
            if inverse is not None:
                return self._parameter(inverse)
        return None

    def is_ordinary(self, value: Value) -> bool:
        """Whether it is known to be neither NaN nor 0, of which there are two, or belongs to the formula."""
        if isinstance(value, Parameter):
            return bool(self._ask(_is_ordinary, value))
        return isinstance(value, Constant)  # no formula has a NaN in it

    def _parameter(self, value: Value) -> str:
        self._parameters.append(value)
        return f"%p{len(self._parameters) - 1}"

    def _write(self, node: Value) -> str:
        match node:
            case Constant() if self._is_long and is_float(node.type):
                return self._parameter(node)
            case Constant():
                return literal(node.type, node.value)
            case Parameter():
                return self._parameter(node)
            case Input():
                stored = node.stored.value.lower()
                return self.convert(self._input(node.name, stored), stored, node.type)
            case Operation(name="kept", arguments=(argument,)):
                return self._keep(argument) if self._keeps else self.write(argument)
            case Operation(name=name) if name in self._expansions:
                return self.write(self._expansions[name](self._ask, *node.arguments))
            case Operation():
                arguments = [self.write(argument) for argument in node.arguments]
                return self.emit(FUNCTIONS[node.name](self, node, arguments))
        raise TypeError(f"{node} is no value of one element")

    def _input(self, name: str, stored: str) -> str:
        """The name of the argument that is an element of the NumPy type `stored` of an input."""
        return self._inputs.setdefault(name, (llvm_type(stored), f"%x{len(self._inputs)}"))[1]

    def _keep(self, node: Value) -> str:
        self._is_long = True
        lowering = Lowering(self._ask, self._smooth, self._half, keeps=False, is_long=True)
        element = lowering.element(node, stored_whole(node.type), f"kept{len(self._kept)}")
        self._kept.append(element)
        return self._input(element.name, node.type)

    def convert(self, value: str, given: str, wanted: str) -> str:
        """`value` of the NumPy type `given` as `wanted`, rounded once."""
        if given == wanted:
            return value
        if wanted == "float16" and given == FLOAT64:
            return self.convert(self._rounded_to_odd(value), FLOAT32, wanted)
        if "float16" in (given, wanted) and FLOAT32 not in (given, wanted):
            return self.convert(self.convert(value, given, FLOAT32), FLOAT32, wanted)
        return self.emit(_conversion(value, given, wanted))

    def _rounded_to_odd(self, value: str) -> str:
        """A double as the float next to it, or of two the one with an odd last bit: it rounds to a half alike."""
        near = self.emit(f"fptrunc double {value} to float")
        back = self.emit(f"fpext float {near} to double")
        sizes = [self.emit(self.call("fabs.f64", "double", each)) for each in (back, value)]
        bits = self.emit(f"bitcast float {near} to i32")
        odd = self.emit(f"trunc i32 {bits} to i1")
        exact = self.emit(f"fcmp ueq double {back}, {value}")
        keep = self.emit(f"or i1 {odd}, {exact}")
        beyond = self.emit(f"fcmp ogt double {sizes[0]}, {sizes[1]}")
        step = self.emit(f"select i1 {beyond}, i32 -1, i32 1")
        moved = self.emit(f"add i32 {bits}, {step}")
        chosen = self.emit(f"select i1 {keep}, i32 {bits}, i32 {moved}")
        return self.emit(f"bitcast i32 {chosen} to float")


def _is_ordinary(number: Number) -> bool:
    return number < 0 or number > 0


def literal(type_: str, value: int | float) -> str:
    """A number of the NumPy type, to the last bit."""
    if type_ == BOOL:
        return "true" if value else "false"
    if not is_float(type_):
        return str(int(value))
    with np.errstate(over="ignore"):
        rounded = np.float64(np.dtype(type_).type(value))
    return f"0x{int(rounded.view(np.uint64)):016X}"


def intrinsic(name: str, type_: str, arguments: Sequence[str], result: str | None = None) -> tuple[str, str]:
    """The declaration and a call of a function of LLVM's own, with arguments of one type."""
    head = f"{result or type_} @llvm.{name}"
    given = ", ".join(f"{type_} {argument}" for argument in arguments)
    return f"declare {head}({', '.join([type_] * len(arguments))})", f"call {head}({given})"


def _conversion(value: str, given: str, wanted: str) -> str:
    """The instruction; between floats and to floats it rounds to nearest even."""
    signed = given.startswith("int")
    if wanted == BOOL:
        return f"icmp ne {llvm_type(given)} {value}, 0"
    if is_float(given):
        name = "fpext" if _bits(wanted) > _bits(given) else "fptrunc"
    elif is_float(wanted):
        name = "sitofp" if signed else "uitofp"
    elif _bits(given) == _bits(wanted):
        name = "bitcast"
    elif _bits(given) > _bits(wanted):
        name = "trunc"
    else:
        name = "sext" if signed else "zext"
    return f"{name} {llvm_type(given)} {value} to {llvm_type(wanted)}"


def _bits(type_: str) -> int:
    return 1 if type_ == BOOL else 8 * np.dtype(type_).itemsize


# One row for each operation


def _binary(of_floats: str, of_integers: str) -> Writer:
    """Integers wrap around."""

    def write(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
        name = of_floats if is_float(node.type) else of_integers
        return f"{name} {llvm_type(node.type)} {', '.join(arguments)}"

    return write


def _divide(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    inverse = lowering.inverse(node.arguments[1])
    if inverse is not None:
        return f"fmul {llvm_type(node.type)} {arguments[0]}, {inverse}"
    return f"fdiv {llvm_type(node.type)} {', '.join(arguments)}"


def _compare(of_floats: str, of_integers: str) -> Writer:
    def write(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
        type_ = node.arguments[0].type
        if is_float(type_):
            return f"fcmp {of_floats} {llvm_type(type_)} {', '.join(arguments)}"
        return f"icmp {_by_sign(of_integers, type_)} {llvm_type(type_)} {', '.join(arguments)}"

    return write


def _by_sign(predicate: str, type_: str) -> str:
    """Of integers, but for equality."""
    if predicate in ("eq", "ne"):
        return predicate
    return ("s" if type_.startswith("int") else "u") + predicate


def _select(condition: str, type_: str, a: str, b: str) -> str:
    return f"select i1 {condition}, {llvm_type(type_)} {a}, {llvm_type(type_)} {b}"


def _extreme(of_floats: str, of_integers: str) -> Writer:
    """The larger or the smaller; NaN if either is. One comparison will do where one of both is known to be a number."""

    def write(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
        type_ = node.type
        if not is_float(type_):
            first = lowering.emit(f"icmp {_by_sign(of_integers, type_)} {llvm_type(type_)} {', '.join(arguments)}")
            return _select(first, type_, *arguments)
        for number, other in ((0, 1), (1, 0)):
            if lowering.is_ordinary(node.arguments[number]):
                a, b = arguments[number], arguments[other]
                first = lowering.emit(f"fcmp {of_floats} {llvm_type(type_)} {a}, {b}")
                return _select(first, type_, a, b)
        a, b = arguments
        first = lowering.emit(f"fcmp {of_floats} {llvm_type(type_)} {a}, {b}")
        chosen = lowering.emit(_select(first, type_, a, b))
        unordered = lowering.emit(f"fcmp uno {llvm_type(type_)} {a}, {a}")
        return _select(unordered, type_, a, chosen)

    return write


def _where(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    return _select(arguments[0], node.type, *arguments[1:])


def _intrinsic(name: str) -> Writer:
    """A function of floats that is an instruction of the processor's."""

    def write(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
        return lowering.call(f"{name}.f{_bits(node.type)}", llvm_type(node.type), *arguments)

    return write


def _copysign(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    """The sign of a float64 that is cast to float32 is taken from its upper word. LLVM would take it from the float64
    itself and round that to a half where the result becomes one, by a function that is not there."""
    size, sign = arguments
    match node.arguments[1]:
        case Operation(type="float32", name="cast", arguments=(Value(type="float64") as exact,)):
            bits = lowering.emit(f"bitcast double {lowering.write(exact)} to i64")
            upper = lowering.emit(f"trunc i64 {lowering.emit(f'lshr i64 {bits}, 32')} to i32")
            sign = lowering.emit(f"bitcast i32 {upper} to float")
    return _intrinsic("copysign")(lowering, node, [size, sign])


def _to_whole(name: str) -> Writer:
    """A number that is whole, of the sign of the argument, which is said once more where that was a half: LLVM would
    go back to this type, for which processors have no instruction, and take the elements one by one."""

    def write(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
        whole = _intrinsic(name)(lowering, node, arguments)
        match node.arguments[0]:
            case Input(stored=DataType.FLOAT16):
                return _intrinsic("copysign")(lowering, node, [lowering.emit(whole), arguments[0]])
        return whole

    return write


def _multiply_add(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    if node.type == FLOAT32:
        return _intrinsic("fma")(lowering, node, arguments)
    a, b, c = arguments  # of others the product is rounded, too, as elsewhere
    product = lowering.emit(_binary("fmul", "mul")(lowering, node, [a, b]))
    return _binary("fadd", "add")(lowering, node, [product, c])


def _negative(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    type_ = llvm_type(node.type)
    return f"fneg {type_} {arguments[0]}" if is_float(node.type) else f"sub {type_} 0, {arguments[0]}"


def _absolute(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    if is_float(node.type):
        return _intrinsic("fabs")(lowering, node, arguments)
    (a,) = arguments
    if not node.type.startswith("int"):
        return f"or {llvm_type(node.type)} {a}, 0"
    below = lowering.emit(f"icmp slt {llvm_type(node.type)} {a}, 0")
    return _select(below, node.type, lowering.emit(_negative(lowering, node, arguments)), a)


def _invert(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    ones = "true" if node.type == BOOL else "-1"
    return f"xor {llvm_type(node.type)} {arguments[0]}, {ones}"


def _left_shift(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    """What is shifted too far is poison, which `select` keeps out."""
    type_ = llvm_type(node.type)
    shifted = lowering.emit(f"shl {type_} {', '.join(arguments)}")
    inside = lowering.emit(f"icmp ult {type_} {arguments[1]}, {_bits(node.type)}")
    return _select(inside, node.type, shifted, "0")


def _right_shift(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    type_ = llvm_type(node.type)
    a, b = arguments
    inside = lowering.emit(f"icmp ult {type_} {b}, {_bits(node.type)}")
    if node.type.startswith("int"):
        least = lowering.emit(_select(inside, node.type, b, str(_bits(node.type) - 1)))
        return f"ashr {type_} {a}, {least}"
    return _select(inside, node.type, lowering.emit(f"lshr {type_} {a}, {b}"), "0")


def _bit_count(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    type_ = node.arguments[0].type
    ones = lowering.emit(lowering.call(f"ctpop.i{_bits(type_)}", llvm_type(type_), arguments[0]))
    return _conversion(ones, type_, node.type)


def _cast(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    return _conversion(arguments[0], node.arguments[0].type, node.type)


def _through_float16(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    return _conversion(lowering.convert(arguments[0], node.arguments[0].type, "float16"), "float16", FLOAT32)


def _saturate(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    """By way of 32 bits for those that fit: processors convert to these many at a time."""
    (x,) = arguments
    bits = _bits(node.type)
    if bits >= 32:
        sign = "s" if node.type.startswith("int") else "u"
        return lowering.call(f"fpto{sign}i.sat.i{bits}.f64", "double", x, result=f"i{bits}")
    least, most = (literal(FLOAT64, each) for each in integer_range(node.type))
    if integer_range(node.type)[0]:
        number = lowering.emit(f"fcmp uno double {x}, {x}")
        x = lowering.emit(_select(number, FLOAT64, literal(FLOAT64, 0), x))
    beyond = lowering.emit(f"fcmp ogt double {x}, {most}")
    x = lowering.emit(_select(beyond, FLOAT64, most, x))
    above = lowering.emit(
        f"fcmp ogt double {x}, {least}"
    )  # where NaN is not, so that it becomes the least, if that is 0
    x = lowering.emit(_select(above, FLOAT64, x, least))
    whole = lowering.emit(f"fptosi double {x} to i32")
    return f"trunc i32 {whole} to i{bits}"


def _truncated(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    """By way of 32 bits, as above."""
    bits, type_ = _bits(node.type), llvm_type(node.arguments[0].type)
    if bits == 32:
        return f"fpto{'s' if node.type.startswith('int') else 'u'}i {type_} {arguments[0]} to i32"
    return f"trunc i32 {lowering.emit(f'fptosi {type_} {arguments[0]} to i32')} to i{bits}"


# On the bits of a float: `type_` of as many bits, and how many of them are below the exponent


def _layout(node: Operation) -> tuple[str, int]:
    return ("i32", 23) if node.type == FLOAT32 else ("i64", 52)


_ONE = {FLOAT32: 0x3F800000, FLOAT64: 0x3FF0000000000000}
"""The bits of 1."""

_ROOT_OF_HALF = {FLOAT32: 0x3F3504F3, FLOAT64: 0x3FE6A09E667F3BCD}
"""The bits of sqrt(1/2)."""


def _scaled(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    """A function that the compiler defines, since it knows the processor."""
    lowering.declare(scaling.declaration(node.type))
    return scaling.call(node.type, *arguments)


def _two_to_the(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    """Of a whole number plus the format's rounder: its lowest bits are put where the exponent is."""
    type_, below = _layout(node)
    bits = lowering.emit(f"bitcast {llvm_type(node.type)} {arguments[0]} to {type_}")
    exponent = lowering.emit(f"shl {type_} {bits}, {below}")
    moved = lowering.emit(f"add {type_} {exponent}, {_ONE[node.type]}")
    return f"bitcast {type_} {moved} to {llvm_type(node.type)}"


def _exponent_bits(lowering: Lowering, node: Operation, argument: str) -> tuple[str, str]:
    """The bits of x, and these less those of sqrt(1/2): their exponent is that of x, without which it is within sqrt(2)
    of 1."""
    type_, _ = _layout(node)
    bits = lowering.emit(f"bitcast {llvm_type(node.type)} {argument} to {type_}")
    return bits, lowering.emit(f"sub {type_} {bits}, {_ROOT_OF_HALF[node.type]}")


def _exponent_of(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    type_, below = _layout(node)
    _, bits = _exponent_bits(lowering, node, arguments[0])
    if type_ == "i64":  # the upper half will do, and is what there are instructions for
        high = lowering.emit(f"lshr i64 {bits}, 32")
        bits, below = lowering.emit(f"trunc i64 {high} to i32"), below - 32
    return f"sitofp i32 {lowering.emit(f'ashr i32 {bits}, {below}')} to {llvm_type(node.type)}"


def _fraction_of(lowering: Lowering, node: Operation, arguments: Sequence[str]) -> str:
    type_, below = _layout(node)
    bits, above = _exponent_bits(lowering, node, arguments[0])
    scale = lowering.emit(f"and {type_} {above}, {-1 << below}")
    fraction = lowering.emit(f"sub {type_} {bits}, {scale}")
    return f"bitcast {type_} {fraction} to {llvm_type(node.type)}"


FUNCTIONS: dict[str, Writer] = {
    "add": _binary("fadd", "add"),
    "subtract": _binary("fsub", "sub"),
    "multiply": _binary("fmul", "mul"),
    "divide": _divide,
    "multiply_add": _multiply_add,
    "negative": _negative,
    "absolute": _absolute,
    "copysign": _copysign,
    "maximum": _extreme("ogt", "gt"),
    "minimum": _extreme("olt", "lt"),
    "greater": _compare("ogt", "gt"),
    "greater_equal": _compare("oge", "ge"),
    "less": _compare("olt", "lt"),
    "less_equal": _compare("ole", "le"),
    "equal": _compare("oeq", "eq"),
    "not_equal": _compare("une", "ne"),
    "where": _where,
    "bitwise_and": _binary("", "and"),
    "bitwise_or": _binary("", "or"),
    "bitwise_xor": _binary("", "xor"),
    "invert": _invert,
    "left_shift": _left_shift,
    "right_shift": _right_shift,
    "bit_count": _bit_count,
    "cast": _cast,
    "through_float16": _through_float16,
    "saturate": _saturate,
    "sqrt": _intrinsic("sqrt"),
    "floor": _to_whole("floor"),
    "ceil": _to_whole("ceil"),
    "trunc": _to_whole("trunc"),
    "rint": _to_whole("roundeven"),
    "fused": _intrinsic("fma"),
    "truncated": _truncated,
    "scaled": _scaled,
    "two_to_the": _two_to_the,
    "exponent_of": _exponent_of,
    "fraction_of": _fraction_of,
}
"""One row for each operation of `app/formula/values.py` that loops are good at, and for those of `math/`."""
