"""Formulas of one element evaluated on whole arrays, for operators that make their outputs by calls on NumPy or CuPy.

What is evaluated are the operations of `values.py`, as every device evaluates them, so that an activation that is part
of such an operator is the activation by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.formula.expansions import EXPANSIONS, Ask
from app.formula.structures import Questions
from app.formula.uniform import Numbers, Uniformity, evaluator, typed, uniform_parts
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
        uniform = uniform_parts(self._root)
        for node in parts(self._root):
            if node in uniform:
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
    return _Expanding(ask, done, short).of(node)


class _Expanding:
    """Finds what is uniform once for each node, where it would take time by the square of how many there are."""

    def __init__(self, ask: Ask, done: dict[Value, Value], short: Callable[[Ask, Operation], Value]) -> None:
        self._ask = ask
        self._done = done
        self._short = short
        self._is_uniform = Uniformity()

    def of(self, node: Value) -> Value:
        if node not in self._done:
            made = node
            if not self._is_uniform(node):
                operands = tuple(map(self.of, node.operands()))
                made = node.with_operands(operands)
                if isinstance(made, Operation) and made.name in EXPANSIONS:
                    made = self.of(EXPANSIONS[made.name](self._ask, *operands))
                elif isinstance(made, Operation):
                    made = self._short(self._ask, made)
            self._done[node] = self._done[made] = made
        return self._done[node]
