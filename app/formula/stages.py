"""Formulas with reductions, cut into stages: one value for each group of elements, then the elements by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from app.contract.constants import DataType
from app.formula.values import (
    FLOAT64,
    Constant,
    Input,
    Operation,
    Parameter,
    Position,
    Reduction,
    Value,
    cast,
    parts,
    stored_whole,
)

POSITION = "(position)"
"""The name under which programs find where elements are in their group."""

SUMS = frozenset(["sum", "sum_of_pairs"])
"""Reductions that add up. Of pairs, which only a device itself makes, nothing is negative, and two of them may be added
first in their own type: that is off by no more than one rounding of the sum would be."""

P = TypeVar("P")
"""What a device computes with: a program for blocks of elements, or the function of one."""


@dataclass(frozen=True, slots=True)
class FormulaStage(Generic[P]):
    """A step towards the values `result`: of each element, then reduced to one by `reduction`, or of each group.

    `elements` is the name under which later stages find the elements' values, if they are kept.
    """

    program: P
    source: int | None
    """The input that has the values already, by its place."""
    dtype: np.dtype[Any]
    result: str
    reduction: str | None
    elements: str | None


class FormulaStages(Generic[P]):
    """Cuts a formula into `stages`. With `keep`, what is computed of all elements for a reduction is kept for later."""

    def __init__(self, inputs: Sequence[str], keep: bool, lower: Callable[[Value, Sequence[str], DataType], P]) -> None:
        self.stages: list[FormulaStage[P]] = []
        self._inputs = [*inputs, POSITION]
        self._keep = keep
        self._lower = lower
        self._known: dict[Value, Value] = {}

    def cut(self, node: Value) -> Value:
        """`node` over inputs and the stages' results."""
        if node not in self._known:
            self._known[node] = self._cut(node)
        return self._known[node]

    def whole(self, expression: Value, stored: DataType) -> P:
        """The program of all of `expression`, stored as `stored`, after the stages."""
        for node in parts(expression):
            if isinstance(node, Reduction):  # first, so that what they keep is there for all that comes after
                self.cut(node)
        return self._lower(self.cut(expression), self._names, stored)

    @property
    def _names(self) -> list[str]:
        made = [name for stage in self.stages for name in (stage.result, stage.elements) if name]
        return [*self._inputs, *made]

    def _cut(self, node: Value) -> Value:
        match node:
            case Position():
                return Input(node.type, POSITION, stored_whole(node.type))
            case Reduction():
                return self._reduce(node)
            case Operation() if _is_of_groups(node):
                return self._stage(self._with_reductions(node), None)
            case Operation():
                return Operation(node.type, node.name, tuple(map(self.cut, node.arguments)))
        return node

    def _with_reductions(self, node: Value) -> Value:
        """`node`, which is the same for all of a group, over the results of reductions."""
        if isinstance(node, Operation):
            return Operation(node.type, node.name, tuple(map(self._with_reductions, node.arguments)))
        return self.cut(node)

    def _reduce(self, node: Reduction) -> Value:
        argument = self.cut(node.argument)
        elements = f"(elements {len(self.stages)})" if self._keep and isinstance(argument, Operation) else None
        if node.name in SUMS:  # partial sums are added in float64
            made = cast(self._stage(argument, node.name, elements, FLOAT64), node.type)
        else:
            made = self._stage(argument, node.name, elements, node.type)
        if elements:
            self._known[node.argument] = Input(argument.type, elements, stored_whole(argument.type))
        return made

    def _stage(
        self, node: Value, reduction: str | None, elements: str | None = None, type_: str | None = None
    ) -> Value:
        stored = stored_whole(node.type)
        program = self._lower(node, self._names, stored)
        result = f"(result {len(self.stages)})"
        source = self._names.index(node.name) if isinstance(node, Input) and node.stored == stored else None
        self.stages.append(FormulaStage(program, source, np.dtype(node.type), result, reduction, elements))
        made = type_ or node.type
        return Input(made, result, stored_whole(made))


def _is_of_groups(node: Value) -> bool:
    """Whether `node` is the same for all elements of a group."""
    match node:
        case Reduction() | Constant() | Parameter():
            return True
        case Operation():
            return all(map(_is_of_groups, node.arguments))
    return False
