"""Formulas of one element evaluated on whole arrays, for operators that make their outputs by calls on NumPy or CuPy.

What is evaluated are the operations of `values.py`, as every device evaluates them, so that an activation that is part
of such an operator is the activation by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.formula.expansions import EXPANSIONS, Ask
from app.formula.structures import Questions
from app.formula.uniform import Numbers, evaluator, is_uniform, typed
from app.formula.values import FLOAT64, Input, Operation, Reduction, Value, parts


class ArrayFormula:
    """A formula with the numbers of a request, ready for any arrays. Safe to use from several threads."""

    def __init__(self, make: Callable[[Ask], Value], numbers: Numbers, axes: Sequence[int] = ()) -> None:
        """`make` gives the formula; what it and its operations ask is answered from `numbers`. Its reductions go over
        `axes`, of which there is at least one if it has any."""
        ask = Questions(numbers).ask
        self._root = expanded(ask, make(ask), {})
        self._axes = tuple(axes)
        self._scalars: dict[Value, Any] = {}
        self._steps: list[Value] = []
        for node in parts(self._root):
            if is_uniform(node):
                self._scalars[node] = typed(node.type, evaluator(node)(numbers))
            else:
                self._steps.append(node)

    def __call__(self, xp: Any, inputs: Mapping[str, Any]) -> Any:
        """A new array of the elements, of arrays of `xp` by the names of the formula's inputs. It takes memory for each
        of the formula's operations, so callers give it as much at a time as they can afford."""
        values = dict(self._scalars)
        for node in self._steps:
            values[node] = self._step(xp, node, [values[each] for each in node.operands()], inputs)
        return values[self._root]

    def _step(self, xp: Any, node: Value, arguments: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
        match node:
            case Input(name=name):
                return inputs[name].astype(node.type, copy=False)
            case Reduction(name="maximum"):
                return xp.max(arguments[0], axis=self._axes, keepdims=True)
            case Reduction(name="sum"):
                total = xp.sum(arguments[0], axis=self._axes, keepdims=True, dtype=FLOAT64)
                return total.astype(node.type, copy=False)
            case Operation(name="cast"):
                return arguments[0].astype(node.type, copy=False)
            case Operation(name=name):
                return getattr(xp, name)(*arguments)
        raise TypeError(f"{node} has no meaning where formulas are evaluated on arrays")


def expanded(
    ask: Ask, node: Value, done: dict[Value, Value], short: Callable[[Ask, Operation], Value] = lambda _, made: made
) -> Value:
    """`node` made of what array libraries have: EXPANSIONS applied, but to scalars. A node used twice stays one. What
    has no expansion is what `short` makes of it."""
    if node not in done:
        made = node
        if not is_uniform(node):
            operands = tuple(expanded(ask, each, done, short) for each in node.operands())
            made = node.with_operands(operands)
            if isinstance(made, Operation) and made.name in EXPANSIONS:
                made = expanded(ask, EXPANSIONS[made.name](ask, *operands), done, short)
            elif isinstance(made, Operation):
                made = short(ask, made)
        done[node] = done[made] = made
    return done[node]
