"""Formulas that move elements as they are, such as those of SLICE and JOIN, for elements of another type."""

import struct
from collections.abc import Iterator
from functools import lru_cache

from app.contract.constants import DataType
from app.formula.coordinates import Element
from app.formula.values import Constant, Input, Number, Operation, Parameter, Value, compute_type, derived, parts
from app.formula.values import is_float as is_float_type
from app.programs.program import Map


@lru_cache(4096)
def moved_inputs(made: Map) -> frozenset[str]:
    """The inputs whose elements an output of raw bits is chosen from; none if it is not such an output.

    Between FLOAT16 and FLOAT32 a formula is its input, too, as these are computed with alike, but no copy.
    """
    if isinstance(made.expression, Input):
        return frozenset([made.expression.name] if made.expression.stored is made.stored else [])
    if not made.by_coordinates or made.expression.type != made.stored.value.lower() or made.expression.type[0] != "u":
        return frozenset()
    chosen = list(_chosen(made.expression))
    moved = {each.name for each in chosen if isinstance(each, Element) and each.type == made.expression.type}
    computed = [each for each in chosen if not isinstance(each, Element | Parameter) and not _is_zero(each)]
    others = {each.name for each in parts(made.expression) if isinstance(each, Element) and each not in chosen}
    return frozenset() if computed or moved & others or len(moved) < len(_names(chosen)) else frozenset(moved)


@lru_cache(4096)
def retyped(made: Map, stored: DataType) -> Value:
    """What an output that moves elements is of those that are `stored` so, which have as many bits."""
    if isinstance(made.expression, Input):
        return Input(compute_type(stored), made.expression.name, stored)
    return _retyped(made.expression, stored, {})


def _chosen(node: Value) -> Iterator[Value]:
    """What a formula chooses from."""
    match node:
        case Operation(name="where", arguments=(_, a, b)):
            yield from _chosen(a)
            yield from _chosen(b)
        case _:
            yield node


def _names(chosen: list[Value]) -> set[str]:
    return {each.name for each in chosen if isinstance(each, Element)}


def _is_zero(node: Value) -> bool:
    return isinstance(node, Constant) and node.value == 0


def _retyped(node: Value, stored: DataType, done: dict[Value, Value]) -> Value:
    if node not in done:
        type_ = compute_type(stored)
        match node:
            case Operation(name="where", arguments=(condition, a, b)):
                either = (_retyped(a, stored, done), _retyped(b, stored, done))
                done[node] = Operation(type_, "where", (condition, *either))
            case Element():
                done[node] = Element(type_, node.name, stored, node.at)
            case Parameter():
                done[node] = derived(node, type_, lambda bits: _of_bits(int(bits), stored))
            case _:
                done[node] = Constant(type_, 0)
    return done[node]


def _of_bits(bits: int, stored: DataType) -> Number:
    """The number of type `stored` that has these bits."""
    type_ = stored.value.lower()
    if is_float_type(type_):
        form, whole = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[stored.bits]
        number: float = struct.unpack(form, struct.pack(whole, bits))[0]
        return number
    return bits - (1 << stored.bits) if type_[0] == "i" and bits >> (stored.bits - 1) else bits
