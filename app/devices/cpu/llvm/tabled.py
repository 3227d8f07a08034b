"""What depends on the coordinate along one dimension alone, and takes floats to compute, or a quotient to find, such as
the place of a resampled element: it is computed once for all others, into a table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from app.devices.cpu.llvm.divisions import DIVISIONS
from app.devices.cpu.llvm.scopes import Key
from app.formula.coordinates import Coordinate, Element, Total
from app.formula.values import BOOL, Operation, Value, is_float, parts

MOST = 16
"""Tables of a formula, which are on a thread's stack."""


class Place(NamedTuple):
    """The coordinate `at` along the dimension `axis` of an input, of which a table has the offset in bytes."""

    name: str
    axis: int
    at: Value


@dataclass(frozen=True, slots=True)
class Tabled:
    """The largest parts of a formula that are such, in the order in which they are found."""

    places: dict[Place, None] = field(default_factory=dict)
    divided: dict[Place, None] = field(default_factory=dict)
    """Places that are found sooner without a table where runs are long, or rows few."""
    values: dict[Value, None] = field(default_factory=dict)


def tabled(root: Value, axis: int, free: Callable[[Value], frozenset[Key]]) -> Tabled:
    """Those of `root`, of which `free` tells what a value depends on. A table of bools would cost more than it saves:
    there are those of what they compare."""
    found, seen, left = Tabled(), {root}, [root]

    def is_worth(node: Value, is_slow: Callable[[Value], bool] = _is_of_floats) -> bool:
        inside = list(parts(node)) if free(node) == {axis} else []
        return any(map(is_slow, inside)) and not any(isinstance(each, Element | Total) for each in inside)

    while left and len(found.places) + len(found.divided) + len(found.values) < MOST:
        node = left.pop()
        if isinstance(node, Element):
            for number, at in enumerate(node.at):
                if is_worth(at):
                    found.places[Place(node.name, number, at)] = None
                elif is_worth(at, _is_division):
                    found.divided[Place(node.name, number, at)] = None
                elif at not in seen:
                    left.append(at)
        elif node.type != BOOL and is_worth(node):
            found.values[node] = None
        else:
            left += [each for each in node.operands() if each not in seen]
        seen.update(left)
    return found


def _is_of_floats(node: Value) -> bool:
    return is_float(node.type)


def _is_division(node: Value) -> bool:
    """One that no processor has vectors of. Remainders of a coordinate as it is, which go up in between, are sooner
    found by inverses of divisors."""
    if not isinstance(node, Operation) or node.name not in DIVISIONS:
        return False
    return node.name == "quotient" or not isinstance(node.arguments[0], Coordinate)
