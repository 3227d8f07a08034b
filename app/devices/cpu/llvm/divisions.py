"""Divisions of integers as instructions, for coordinates; with processors' own division, no divisor is a trap."""

from collections.abc import Sequence

from app.devices.cpu.llvm.operations import Writer
from app.devices.cpu.llvm.types import llvm_type
from app.devices.cpu.llvm.writing import Writing
from app.formula.values import Operation, is_float


def _divisor(writing: Writing, node: Operation, b: str) -> tuple[str, str]:
    """Whether `b` is 0, and `b` or 1 in the place of 0, and of -1, by which the least integer cannot be divided."""
    if is_float(node.type):
        raise LookupError("remainders of floats are computed by NumPy")
    type_ = llvm_type(node.type)
    none = writing.emit(f"icmp eq {type_} {b}, 0")
    special = none
    if node.type.startswith("int"):
        special = writing.emit(f"or i1 {none}, {writing.emit(f'icmp eq {type_} {b}, -1')}")
    return none, writing.emit(f"select i1 {special}, {type_} 1, {type_} {b}")


def _quotient(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments
    type_, signed = llvm_type(node.type), node.type.startswith("int")
    none, divisor = _divisor(writing, node, b)
    made = writing.emit(f"{'s' if signed else 'u'}div {type_} {a}, {divisor}")
    if signed:
        minus = writing.emit(f"icmp eq {type_} {b}, -1")
        negative = writing.emit(f"sub {type_} 0, {a}")
        made = writing.emit(f"select i1 {minus}, {type_} {negative}, {type_} {made}")
    return f"select i1 {none}, {type_} 0, {type_} {made}"


def _fmod(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    a, b = arguments
    _, divisor = _divisor(writing, node, b)
    return f"{'s' if node.type.startswith('int') else 'u'}rem {llvm_type(node.type)} {a}, {divisor}"


def _remainder(writing: Writing, node: Operation, arguments: Sequence[str]) -> str:
    rest = _fmod(writing, node, arguments)
    if not node.type.startswith("int"):
        return rest
    type_, rest = llvm_type(node.type), writing.emit(rest)
    some = writing.emit(f"icmp ne {type_} {rest}, 0")
    differ = writing.emit(f"icmp slt {type_} {writing.emit(f'xor {type_} {rest}, {arguments[1]}')}, 0")
    moved = writing.emit(f"add {type_} {rest}, {arguments[1]}")
    return f"select i1 {writing.emit(f'and i1 {some}, {differ}')}, {type_} {moved}, {type_} {rest}"


DIVISIONS: dict[str, Writer] = {"quotient": _quotient, "fmod": _fmod, "remainder": _remainder}
"""One row for each operation; by 0 all of them give 0."""
