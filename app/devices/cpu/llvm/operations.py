"""Operations of formulas as LLVM's instructions.

Operations without a row, and without an expansion in `math/functions.py`, are those that would be computed an element
at a time: NumPy is as quick at these.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.contract.constants import DataType
from app.devices.cpu.llvm import roots, vectors
from app.devices.cpu.llvm.math.primitives import FORMATS, Chosen, Picked
from app.devices.cpu.llvm.types import bits_of, conversion, literal, llvm_type
from app.devices.cpu.llvm.writing import Writing
from app.formula.values import BOOL, FLOAT32, FLOAT64, Input, Operation, Value, integer_range, is_float

Writer: TypeAlias = Callable[[Writing, Operation, Sequence[str]], str]
"""Gives LLVM's expression of an operation from the names of its arguments."""


DIGITS = 53
"""Of a float64, in bits."""


def _binary(of_floats: str, of_integers: str) -> Writer:
    """Integers wrap around."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        name = of_floats if is_float(node.type) else of_integers
        return f"{name} {llvm_type(node.type)} {', '.join(arguments)}"

    return write


def _divide(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    inverse = writing.inverse(node.arguments[1])
    if inverse is not None:
        return f"fmul {llvm_type(node.type)} {arguments[0]}, {inverse}"
    return f"fdiv {llvm_type(node.type)} {', '.join(arguments)}"


def _compare(of_floats: str, of_integers: str) -> Writer:
    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
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

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        type_ = node.type
        if not is_float(type_):
            first = writing.emit(f"icmp {_by_sign(of_integers, type_)} {llvm_type(type_)} {', '.join(arguments)}")
            return _select(first, type_, *arguments)
        for number, other in ((0, 1), (1, 0)):
            if writing.is_ordinary(node.arguments[number]):
                a, b = arguments[number], arguments[other]
                first = writing.emit(f"fcmp {of_floats} {llvm_type(type_)} {a}, {b}")
                return _select(first, type_, a, b)
        a, b = arguments
        first = writing.emit(f"fcmp {of_floats} {llvm_type(type_)} {a}, {b}")
        chosen = writing.emit(_select(first, type_, a, b))
        unordered = writing.emit(f"fcmp uno {llvm_type(type_)} {a}, {a}")
        return _select(unordered, type_, a, chosen)

    return write


def _where(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return _select(arguments[0], node.type, *arguments[1:])


def _intrinsic(name: str) -> Writer:
    """A function of floats that is an instruction of the processor's."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        return writing.call(f"{name}.f{bits_of(node.type)}", llvm_type(node.type), *arguments)

    return write


def _root(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """Of float32 a function that the compiler defines, since it knows the processor."""
    if node.type != FLOAT32:
        return _intrinsic("sqrt")(writing, node, arguments)
    writing.declare(roots.ROOT_DECLARATION)
    return roots.root_call(*arguments)


def _guessed_inverse_of_root(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    writing.declare(roots.GUESS_DECLARATION)
    return roots.guess_call(*arguments)


def _copysign(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """The sign of a float64 that is cast to float32 is taken from its upper word. LLVM would take it from the float64
    itself and round that to a half where the result becomes one, by a function that is not there."""
    size, sign = arguments
    match node.arguments[1]:
        case Operation(type="float32", name="cast", arguments=(Value(type="float64") as exact,)):
            bits = writing.emit(f"bitcast double {writing.write(exact)} to i64")
            upper = writing.emit(f"trunc i64 {writing.emit(f'lshr i64 {bits}, 32')} to i32")
            sign = writing.emit(f"bitcast i32 {upper} to float")
    return _intrinsic("copysign")(writing, node, [size, sign])


def _to_whole(name: str) -> Writer:
    """A number that is whole, of the sign of the argument, which is said once more where that was a half: LLVM would
    go back to this type, for which processors have no instruction, and take the elements one by one."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        whole = _intrinsic(name)(writing, node, arguments)
        match node.arguments[0]:
            case Input(stored=DataType.FLOAT16):
                return _intrinsic("copysign")(writing, node, [writing.emit(whole), arguments[0]])
        return whole

    return write


def _multiply_add(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    if node.type == FLOAT32:
        return _intrinsic("fma")(writing, node, arguments)
    a, b, c = arguments  # of others the product is rounded, too, as elsewhere
    product = writing.emit(_binary("fmul", "mul")(writing, node, [a, b]))
    return _binary("fadd", "add")(writing, node, [product, c])


def _negative(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    type_ = llvm_type(node.type)
    return f"fneg {type_} {arguments[0]}" if is_float(node.type) else f"sub {type_} 0, {arguments[0]}"


def _absolute(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    if is_float(node.type):
        return _intrinsic("fabs")(writing, node, arguments)
    (a,) = arguments
    if not node.type.startswith("int"):
        return f"or {llvm_type(node.type)} {a}, 0"
    below = writing.emit(f"icmp slt {llvm_type(node.type)} {a}, 0")
    return _select(below, node.type, writing.emit(_negative(writing, node, arguments)), a)


def _invert(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    ones = "true" if node.type == BOOL else "-1"
    return f"xor {llvm_type(node.type)} {arguments[0]}, {ones}"


def _left_shift(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """What is shifted too far is poison, which `select` keeps out."""
    type_ = llvm_type(node.type)
    shifted = writing.emit(f"shl {type_} {', '.join(arguments)}")
    inside = writing.emit(f"icmp ult {type_} {arguments[1]}, {bits_of(node.type)}")
    return _select(inside, node.type, shifted, "0")


def _right_shift(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    type_ = llvm_type(node.type)
    a, b = arguments
    inside = writing.emit(f"icmp ult {type_} {b}, {bits_of(node.type)}")
    if node.type.startswith("int"):
        least = writing.emit(_select(inside, node.type, b, str(bits_of(node.type) - 1)))
        return f"ashr {type_} {a}, {least}"
    return _select(inside, node.type, writing.emit(f"lshr {type_} {a}, {b}"), "0")


def _bit_count(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    type_ = node.arguments[0].type
    ones = writing.emit(writing.call(f"ctpop.i{bits_of(type_)}", llvm_type(type_), arguments[0]))
    return conversion(ones, type_, node.type)


def _cast(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return conversion(arguments[0], node.arguments[0].type, node.type)


def _through_float16(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return conversion(writing.convert(arguments[0], node.arguments[0].type, "float16"), "float16", FLOAT32)


def _saturate(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """Within the range first, and numbers of fewer bits by way of 32: so processors convert many at a time."""
    (x,), given = arguments, node.arguments[0].type
    type_, bits, (lowest, highest) = llvm_type(given), bits_of(node.type), integer_range(node.type)
    least, most = (literal(given, each) for each in (lowest, highest & -1 << max(highest.bit_length() - DIGITS, 0)))
    if lowest:
        number = writing.emit(f"fcmp uno {type_} {x}, {x}")
        x = writing.emit(_select(number, given, literal(given, 0), x))
    beyond = writing.emit(f"fcmp ogt {type_} {x}, {most}")
    x = writing.emit(_select(beyond, given, most, x))
    # Where NaN is not, so that it becomes the least, if that is 0.
    above = writing.emit(f"fcmp ogt {type_} {x}, {least}")
    x = writing.emit(_select(above, given, x, least))
    if bits < 32:
        return f"trunc i32 {writing.emit(f'fptosi {type_} {x} to i32')} to i{bits}"
    whole = f"fpto{'s' if lowest else 'u'}i {type_} {x} to i{bits}"
    return _select(beyond, node.type, str(highest), writing.emit(whole)) if bits > DIGITS else whole


def _truncated(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """By way of 32 bits, as above."""
    bits, type_ = bits_of(node.type), llvm_type(node.arguments[0].type)
    if bits == 32:
        return f"fpto{'s' if node.type.startswith('int') else 'u'}i {type_} {arguments[0]} to i32"
    return f"trunc i32 {writing.emit(f'fptosi {type_} {arguments[0]} to i32')} to i{bits}"


# On the bits of a float: `type_` of as many bits, and how many of them are below the exponent


def _layout(node: Operation) -> tuple[str, int]:
    return ("i32", 23) if node.type == FLOAT32 else ("i64", 52)


_ONE = {FLOAT32: 0x3F800000, FLOAT64: 0x3FF0000000000000}
"""The bits of 1."""

_ROOT_OF_HALF = {FLOAT32: 0x3F3504F3, FLOAT64: 0x3FE6A09E667F3BCD}
"""The bits of sqrt(1/2)."""


def _bits_beyond(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    bits, start = (writing.emit(f"bitcast float {each} to i32") for each in arguments)
    return f"sub i32 {bits}, {start}"


def _scaled(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """A function that the compiler defines, since it knows the processor, as the next one."""
    writing.declare(vectors.scale_declaration(node.type))
    return vectors.scale_call(node.type, *arguments)


def _part_of(part: vectors.Part) -> Writer:
    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        writing.declare(vectors.part_declaration(part))
        return vectors.part_call(part, arguments[0])

    return write


def _signed(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    size, x = (writing.emit(f"bitcast float {each} to i32") for each in arguments)
    sign = writing.emit(f"and i32 {x}, {1 << 31}")
    return f"bitcast i32 {writing.emit(f'xor i32 {size}, {sign}')} to float"


def _picked(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """By the last two bits of the exponent and the two after these."""
    bits = writing.emit(f"bitcast float {arguments[0]} to i32")
    return _picked_by(writing, node, writing.emit(f"lshr i32 {bits}, {FORMATS[FLOAT32].digits - 3}"))


def _picked_within(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """By the first four bits after the exponent."""
    bits = writing.emit(f"bitcast float {arguments[0]} to i32")
    return _picked_by(writing, node, writing.emit(f"lshr i32 {bits}, {FORMATS[FLOAT32].digits - 5}"))


def _picked_at(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    return _picked_by(writing, node, writing.emit(f"bitcast float {arguments[0]} to i32"))


def _picked_by(writing: Writing, node: Operation, place: str) -> str:
    assert isinstance(node, Picked)
    writing.declare(vectors.pick_declaration(node.table))
    return vectors.pick_call(node.table, place)


def _chosen(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    assert isinstance(node, Chosen)
    writing.declare(f"declare float @chosen.{node.function}(float)")
    return f"call float @chosen.{node.function}(float {arguments[0]})"


def _called_power(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    """It is said to do nothing else, such as to set C's `errno`: nobody looks."""
    writing.declare("declare double @pow(double, double) nounwind willreturn memory(none)")
    return f"call double @pow(double {arguments[0]}, double {arguments[1]})"


def _power_of_two(times: int) -> Writer:
    """Of so many times a number that is in a float's lowest bits: they are put where the exponent is."""

    def write(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
        type_, below = _layout(node)
        bits = writing.emit(f"bitcast {llvm_type(node.type)} {arguments[0]} to {type_}")
        exponent = writing.emit(f"shl {type_} {bits}, {below + times.bit_length() - 1}")
        moved = writing.emit(f"add {type_} {exponent}, {_ONE[node.type]}")
        return f"bitcast {type_} {moved} to {llvm_type(node.type)}"

    return write


def _lifted(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    type_, below = _layout(node)
    x, raised = (writing.emit(f"bitcast {llvm_type(node.type)} {each} to {type_}") for each in arguments)
    moved = writing.emit(f"add {type_} {x}, {writing.emit(f'shl {type_} {raised}, {below}')}")
    return f"bitcast {type_} {moved} to {llvm_type(node.type)}"


def _exponent_bits(writing: Writing, node: Operation, argument: str) -> tuple[str, str]:
    """The bits of x, and these less those of sqrt(1/2): their exponent is that of x, without which it is within sqrt(2)
    of 1."""
    type_, _ = _layout(node)
    bits = writing.emit(f"bitcast {llvm_type(node.type)} {argument} to {type_}")
    return bits, writing.emit(f"sub {type_} {bits}, {_ROOT_OF_HALF[node.type]}")


def _exponent_of(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    type_, below = _layout(node)
    _, bits = _exponent_bits(writing, node, arguments[0])
    if type_ == "i64":  # the upper half will do, and is what there are instructions for
        high = writing.emit(f"lshr i64 {bits}, 32")
        bits, below = writing.emit(f"trunc i64 {high} to i32"), below - 32
    return f"sitofp i32 {writing.emit(f'ashr i32 {bits}, {below}')} to {llvm_type(node.type)}"


def _fraction_of(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    type_, below = _layout(node)
    bits, above = _exponent_bits(writing, node, arguments[0])
    scale = writing.emit(f"and {type_} {above}, {-1 << below}")
    fraction = writing.emit(f"sub {type_} {bits}, {scale}")
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
    "sqrt": _root,
    "floor": _to_whole("floor"),
    "ceil": _to_whole("ceil"),
    "trunc": _to_whole("trunc"),
    "rint": _to_whole("roundeven"),
    "fused": _intrinsic("fma"),
    "truncated": _truncated,
    "bits_beyond": _bits_beyond,
    "signed": _signed,
    "scaled": _scaled,
    "picked": _picked,
    "picked_at": _picked_at,
    "picked_within": _picked_within,
    "exponent": _part_of("exponent"),
    "significand": _part_of("significand"),
    "guessed_inverse_of_root": _guessed_inverse_of_root,
    "chosen": _chosen,
    "called_power": _called_power,
    "two_to_the": _power_of_two(1),
    "lifted": _lifted,
    "four_to_the": _power_of_two(2),
    "exponent_of": _exponent_of,
    "fraction_of": _fraction_of,
}
"""One row for each operation of `app/formula/values.py` that loops are good at, and for those of `math/`."""
