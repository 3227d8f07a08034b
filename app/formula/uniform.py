"""Values that are the same for all elements, computed once for each request: attributes and what is made of them."""

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from app.formula.expansions import EXPANSIONS
from app.formula.values import (
    BOOL,
    FLOAT32,
    FLOAT64,
    Constant,
    Number,
    Operation,
    Parameter,
    Value,
    integer_range,
    is_float,
    parts,
)

Numbers: TypeAlias = Mapping[str, Number]
"""The numbers that a request gives, by the names of the parameters."""

Evaluate: TypeAlias = Callable[[Numbers], Number]
"""Gives a value's number, exact in its type, from the numbers of a request."""


_MAY_BE = Constant | Parameter | Operation
"""What is not an element, nor made of several by itself."""


def is_uniform(node: Value) -> bool:
    """Whether `node` is the same for all elements."""
    return all(isinstance(each, _MAY_BE) for each in parts(node))


class Uniformity:
    """The same of many values, parts of which are parts of others: each is looked at once."""

    def __init__(self) -> None:
        self._known: dict[Value, bool] = {}

    def __call__(self, node: Value) -> bool:
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = isinstance(node, _MAY_BE) and all(map(self, node.operands()))
        return known


def uniform_parts(root: Value) -> set[Value]:
    """All parts of `root` that are the same for all elements, found in one pass."""
    return uniform_among(parts(root))


def uniform_among(nodes: Iterable[Value]) -> set[Value]:
    """Those of `nodes` that are the same for all elements, each of which comes after what it is made of."""
    found: set[Value] = set()
    for node in nodes:
        if isinstance(node, _MAY_BE) and found.issuperset(node.operands()):
            found.add(node)
    return found


@lru_cache(maxsize=1 << 12)
def evaluator(node: Value) -> Evaluate:
    """How to compute `node`, which is uniform. Raises LookupError if it is made of what only devices compute."""
    match node:
        case Constant():
            constant = _rounding(node.type)(node.value)
            return lambda numbers: constant
        case Parameter():
            return _parameter(node)
        case Operation(name=name) if name in EXPANSIONS:
            return evaluator(EXPANSIONS[name](_refuse, *node.arguments))
        case Operation():
            return _operation(node)
    raise TypeError(f"{node} is not the same for all elements")


def typed(type_: str, number: Number) -> np.generic:
    """`number` as NumPy's scalar of the type called `type_`."""
    made: np.generic = np.dtype(type_).type(number)
    return made


def _parameter(node: Parameter) -> Evaluate:
    name, derive = node.name, node.derive
    if derive is None:
        return itemgetter(name)
    return lambda numbers: derive(numbers[name])


def _rounding(type_: str) -> Callable[[Number], Number]:
    """A number to the nearest one of the type, as a number of Python's."""
    match type_:
        case "bool":
            return bool
        case "float32":
            return lambda number: float(np.float32(number))
        case "float64":
            return float
    return int


def _refuse(*asked: Any) -> Any:
    raise LookupError("what is asked of numbers while they are computed would be in no key")


def _operation(node: Operation) -> Evaluate:
    if node.name == "cast" and node.type == FLOAT64 and node.arguments[0].type == FLOAT32:
        return evaluator(*node.arguments)  # which is exact
    if node.name in _OF_INTEGERS and not any(is_float(each.type) for each in (node, *node.arguments)):
        return _of_integers(node)
    function, type_ = _FUNCTIONS[node.name], np.dtype(node.type)
    arguments = [(evaluator(each), np.dtype(each.type).type) for each in node.arguments]
    if node.name == "saturate":
        least, most = integer_range(node.type)
        return lambda numbers: _saturated(arguments[0][0](numbers), least, most)

    def evaluate(numbers: Numbers) -> Number:
        with np.errstate(all="ignore"):
            made = function(*[each(evaluate(numbers)) for evaluate, each in arguments])
            number: Number = np.asarray(made).astype(type_).item()
        return number

    return evaluate


def _of_integers(node: Operation) -> Evaluate:
    """The same by Python's integers, which takes a tenth of the time: what a formula by coordinates makes of sizes is
    found for each request."""
    function, arguments = _OF_INTEGERS[node.name], [evaluator(each) for each in node.arguments]
    if node.type == BOOL:
        return lambda numbers: bool(function(*[each(numbers) for each in arguments]))
    least, most = integer_range(node.type)

    def evaluate(numbers: Numbers) -> Number:
        made = int(function(*[each(numbers) for each in arguments]))
        return made if least <= made <= most else (made - least) % (most - least + 1) + least  # it wraps around

    return evaluate


def _saturated(number: Number, least: int, most: int) -> int:
    return 0 if number != number else least if number <= least else most if number >= most else int(number)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        *("add", "subtract", "multiply", "divide", "negative", "absolute", "copysign", "maximum", "minimum", "where"),
        *("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift", "bitwise_count"),
        *("exp", "expm1", "log", "log1p", "sqrt", "power", "tanh", "sinh", "cosh", "arcsinh", "arccosh", "arctanh"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "floor", "ceil", "trunc", "rint"),
        *("floor_divide", "fmod"),
    )
}
_FUNCTIONS["bit_count"] = _FUNCTIONS.pop("bitwise_count")
_FUNCTIONS["cast"] = _FUNCTIONS["saturate"] = lambda x: x
_FUNCTIONS["through_float16"] = np.float16

_OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.neg,
    "maximum": max,
    "minimum": min,
    "cast": int,
    "where": lambda condition, a, b: a if condition else b,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
    "equal": operator.eq,
    "not_equal": operator.ne,
}
