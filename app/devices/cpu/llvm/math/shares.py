"""Shares of sums of exponentials, which stay what they are if all exponentials of a group are multiplied by one number.

exp(x - largest) has to make up for what the difference loses. 2^k exp(x), with a whole number k for all of a group, has
nothing to make up for: x less a multiple of ln 2 is exact. So k is chosen near -largest / ln 2, and so much above that
no exponential is subnormal that counts. Their sum is of pairs, and its inverse has more digits than float32, so that a
share is a product that is rounded once.
"""

import math

from app.devices.cpu.llvm.math.primitives import EXP, FORMATS, LOG2_E, by_steps, fused, lifted
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Constant,
    Operation,
    Parameter,
    Reduction,
    Value,
    absolute,
    cast,
    exp,
    log1p,
    where,
    widen,
)

RAISED = 64
"""2^RAISED is about what the largest exponential is: so far above all that have a share of more than half of the least
float32 that none of these is subnormal; and sums of any group are finite."""

NO_SHARE = -130.0
"""An element is taken to be so far from the largest at most. It has no share; 2^(RAISED - 187.6) is a normal number."""

EXACT = 2.0**20
"""Below this, multiples of ln 2 are exact enough. From here on, differences from the largest are, where they count."""


def in_shares(root: Value) -> Value:
    """`root` with other exponentials where they are for shares only. It is of float32, and of groups in loops."""
    return _Rewriting().of(root)


class _Rewriting:
    def __init__(self) -> None:
        self._done: dict[Value, Value] = {}
        self._exponentials: dict[Value, _Exponentials] = {}

    def of(self, node: Value) -> Value:
        if node not in self._done:
            self._done[node] = self._shares(node) or self._with_operands(node)
        return self._done[node]

    def _with_operands(self, node: Value) -> Value:
        operands = node.operands()
        made = tuple(map(self.of, operands))
        is_same = all(a is b for a, b in zip(made, operands, strict=True))
        return node if is_same else node.with_operands(made)

    def _shares(self, node: Value) -> Value | None:
        match node:
            case Operation(name="divide", arguments=(x, Reduction(name="sum", argument=y))) if x is y:
                found = self._found(x)
                return found.share() if found else None
            case Reduction(name="sum", argument=Operation(name="where", arguments=(condition, Constant(value=0), x))):
                found = self._found(x)
                return found.sum_of(where(self.of(condition), 0, found.each)) if found else None
            case Operation(type="float32", name="log1p", arguments=(total,)) if _is_one(total):
                made = self.of(total)
                # Of an element that has most of its sum nothing else is left: one float64 for all of a group is little.
                return None if made is total else cast(log1p(widen(made)), FLOAT32)
        return None

    def _found(self, node: Value) -> "_Exponentials | None":
        match node:
            case Operation(type="float32", name="exp_of_difference", arguments=(x, Reduction(name="maximum") as top)):
                if x is top.argument:
                    made = self._exponentials.get(node)
                    return made or self._exponentials.setdefault(node, _Exponentials(self.of(x), self.of(top)))
        return None


def _is_one(node: Value) -> bool:
    """Whether a value is one for all of a group."""
    if isinstance(node, Operation):
        return all(map(_is_one, node.arguments))
    return isinstance(node, (Constant, Parameter, Reduction))


class _Exponentials:
    """Those of the elements `x` of a group, of which one is the `largest`."""

    def __init__(self, x: Value, largest: Value) -> None:
        form = FORMATS[FLOAT32]
        high, low = form.ln_2
        is_exact = absolute(largest) < EXACT
        # What is one for all of the group is computed once, before the loop.
        n = where(is_exact, fused(largest, LOG2_E, form.rounder) - form.rounder, 0)
        offset = where(is_exact, 0, largest)
        least = where(is_exact, largest + NO_SHARE, NO_SHARE)
        rounder = form.rounder + (RAISED - n)
        above = x - offset
        bounded = where(above < least, least, above)
        raised = fused(bounded, LOG2_E, rounder)
        whole = raised - rounder
        f = fused(whole, -low, fused(whole, -high, bounded))
        self.each = lifted(fused(f, fused(f, by_steps(EXP, f), 1), 1), raised)
        rest = widen(n) * math.log(2) - widen(largest - offset)
        self._nothing = widen(largest - largest)
        """0, or NaN if the largest is no number: `each` is anything then."""
        self._scale = exp(rest) * 2.0**-RAISED + self._nothing
        """What makes them exp(x - largest)."""

    def share(self) -> Value:
        """Of each in their sum."""
        inverse = 1 / Reduction(FLOAT64, "sum_of_pairs", self.each) + self._nothing
        high = cast(inverse, FLOAT32)
        low = cast(inverse - widen(high), FLOAT32)
        return fused(self.each, high, self.each * low)

    def sum_of(self, some: Value) -> Value:
        """That of `some` of them, as those of exp(x - largest)."""
        return cast(Reduction(FLOAT64, "sum_of_pairs", some) * self._scale, FLOAT32)
