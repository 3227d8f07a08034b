"""Formulas that go by coordinates with what sizes decide: which of two integers is the larger, and that coordinates lie
inside of a tensor, so that a device need not look for each element.

What is decided is found for a request, and told apart from the formula: it is all of the sizes that chooses code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from app.formula.coordinates import Element
from app.formula.outlines import Outline
from app.formula.ranges import Ranges
from app.formula.uniform import Numbers
from app.formula.values import Operation, Value, is_float, parts

Decisions: TypeAlias = tuple[int, ...]
"""One for each element, the bits of the dimensions along which it is inside, and for each larger or smaller of two
integers, which of them it is or UNDECIDED; in the order of `parts`."""

UNDECIDED = -1


def decide(outline: Outline, numbers: Numbers, sizes: Sequence[int], inputs: Mapping[str, Sequence[int]]) -> Decisions:
    """What is decided of a formula for an output and inputs of these sizes."""
    ranges, found = Ranges(outline, numbers, sizes), list[int]()

    def decision(node: Value) -> int:
        made = UNDECIDED
        if isinstance(node, Element):
            within = zip(node.at, inputs[node.name], strict=True)
            made = sum(1 << axis for axis, (at, size) in enumerate(within) if _is_within(ranges.of(at), size))
        elif isinstance(node, Operation):
            (low, high), (other_low, other_high) = map(ranges.of, node.arguments)
            if node.name == "minimum":
                (low, high), (other_low, other_high) = (-high, -low), (-other_high, -other_low)
            made = 0 if low >= other_high else 1 if other_low >= high else UNDECIDED
        found.append(made)
        return made

    _rewritten(outline.parts, decision, ranges.learn)
    return tuple(found)


def decided(root: Value, decisions: Decisions) -> Value:
    """The formula with what `decide` found for a request."""
    if not decisions:
        return root
    left = iter(decisions)
    return _rewritten(parts(root), lambda node: next(left), lambda node: None)


def _is_within(reach: tuple[int, int], size: int) -> bool:
    return reach[0] >= 0 and reach[1] < size


def _rewritten(nodes: Iterable[Value], decision: Callable[[Value], int], learn: Callable[[Value], None]) -> Value:
    """The last one of the `parts` of a formula. `learn` is told of what is new before it is asked about."""
    made: dict[Value, Value] = {}
    for node in nodes:
        given = node.operands()
        operands = tuple([made[each] for each in given])
        now = node if operands == given else _simplified(node.with_operands(operands))
        if now is not node:
            learn(now)
        match now:
            case Element():
                now = replace(now, inside=decision(now))
            case Operation(name="maximum" | "minimum", type=kind, arguments=arguments) if not is_float(kind):
                which = decision(now)
                now = now if which == UNDECIDED else arguments[which]
        made[node] = now
    return now


def _simplified(node: Value) -> Value:
    """(x + n) - x is n: so long is a window that sizes do not cut off."""
    match node:
        case Operation(name="subtract", arguments=(Operation(name="add", arguments=(x, n)), y)) if (
            x is y and not is_float(node.type)
        ):
            return n
    return node
