"""Formulas that go by coordinates, computed by NumPy over blocks of output coordinates.

This says what such formulas mean, exactly, on any machine; other devices are judged by it. A coordinate is an array
that has the block's size along its own axis and 1 along all others, and what is made of coordinates is broadcast. A
`Total` adds an axis at the end, along which its combinations of indices lie, as many at a time as memory is to take.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.devices.cpu.numpy.lowering import FUNCTIONS, expand
from app.formula.coordinates import Coordinate, Element, Index, Total, accumulated_type
from app.formula.expansions import Ask
from app.formula.uniform import Numbers, evaluator, typed
from app.formula.values import Constant, Operation, Parameter, Value, parts
from app.memory.arrays import Array, ignoring_float_errors

MOST, OPERATIONS = 1 << 17, 20
"""Elements of an array at most, so that a formula of 20 operations takes some 20 MiB for each thread; of longer ones
there are fewer elements."""

LARGEST_BLOCK, LEAST_BLOCK = 1 << 16, 1 << 8
"""Output elements that are computed at a time. With fewer than the least, what Python does between them tells."""

BLOCKS = 1 << 12
"""No more than these, unless the blocks would be too large."""

UNKNOWN = 64
"""How large counts are taken to be that depend on coordinates."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An input tensor: its elements as they lie in memory, and how they are found there, in elements."""

    elements: Array
    sizes: Sequence[int]
    strides: Sequence[int]


class CoordinateCalls:
    """A formula, ready for the numbers of any request. Safe to use from several threads."""

    def __init__(self, ask: Ask, expression: Value) -> None:
        self.root = expand(ask, expression, {})
        self._parts = tuple(parts(self.root))
        self.inputs = {node.name for node in self._parts if isinstance(node, Element)}
        self.operations = len(self._parts)
        self._scalars = {node: (node.type, evaluator(node)) for node in _largest_uniform(self._parts)}
        self.free: dict[Value, frozenset[Index]] = {}
        for node in self._parts:
            self.free[node] = frozenset().union(*[self.free[each] for each in node.operands()])
            match node:
                case Index():
                    self.free[node] = frozenset([node])
                case Total():
                    self.free[node] -= set(node.indices)

    def arguments(self, numbers: Numbers) -> dict[Value, Array]:
        """What is the same for all elements of a request, as arrays without dimensions."""
        return {node: np.asarray(typed(type_, evaluate(numbers))) for node, (type_, evaluate) in self._scalars.items()}

    def terms(self, arguments: Mapping[Value, Array]) -> int:
        """How many values are computed for an element: those of all totals, one inside the other."""

        terms: dict[Value, int] = {}
        for node in self._parts:
            most = max([terms[each] for each in node.operands() if each not in arguments], default=1)
            if isinstance(node, Total):
                counts = [int(arguments[each]) if each in arguments else UNKNOWN for each in node.counts]
                most *= max(math.prod(counts), 1)
            terms[node] = most
        return terms[self.root]

    def block(self, elements: int, terms: int, threads: int) -> int:
        """How many of `elements`, each of so many values, to compute at a time, on at most so many threads."""
        even = max(elements // (2 * threads), LEAST_BLOCK)
        most = max(MOST * OPERATIONS // max(self.operations, OPERATIONS), LEAST_BLOCK)
        return min(max(most // terms, elements // BLOCKS, LEAST_BLOCK), LARGEST_BLOCK, most, even)

    @ignoring_float_errors
    def run(
        self,
        arguments: Mapping[Value, Array],
        inputs: Mapping[str, Stored],
        block: Sequence[range],
        output: Array,
        check: Callable[[], None],
    ) -> None:
        """Compute a block: the elements at these coordinates, into `output`, which has its shape and no input's memory.

        `check` is called between the pieces of totals, and may raise.
        """
        made = _Block(self.free, arguments, inputs, block, check).result(self.root)
        np.copyto(output, made, casting="unsafe")


def _largest_uniform(nodes: Sequence[Value]) -> Iterator[Value]:
    """The values in a formula of these parts that are the same for all elements, but for those that only others of them
    are made of."""
    uniform: set[Value] = set()
    for node in nodes:
        if isinstance(node, Constant | Parameter | Operation) and uniform.issuperset(node.operands()):
            uniform.add(node)
    if nodes[-1] in uniform:
        yield nodes[-1]
        return
    largest: dict[Value, None] = {}
    for node in nodes:
        if node not in uniform:
            largest |= dict.fromkeys(each for each in node.operands() if each in uniform)
    yield from largest


@dataclass(slots=True)
class _Scope:
    """Where indices have values: the block itself, or inside a total; `shape` is that of all combinations."""

    shape: tuple[int, ...]
    indices: Mapping[Index, Array]
    outer: "_Scope | None"
    values: dict[Value, Array] = field(default_factory=dict)
    """What was computed here. All have as many dimensions as `shape`."""


class _Block:
    """The values of one block."""

    def __init__(
        self,
        free: Mapping[Value, frozenset[Index]],
        arguments: Mapping[Value, Array],
        inputs: Mapping[str, Stored],
        block: Sequence[range],
        check: Callable[[], None],
    ) -> None:
        self._free = free
        self._arguments = arguments
        self._inputs = inputs
        self._block = block
        self._check = check

    def result(self, root: Value) -> Array:
        return self._value(root, _Scope(tuple(map(len, self._block)), {}, None))

    def _value(self, node: Value, scope: _Scope) -> Array:
        """`node` in `scope`, computed in the outermost one that has all of its indices, and only once there."""
        if node in self._arguments:
            return self._arguments[node]
        home, free = scope, self._free[node]
        while home.outer and free.isdisjoint(home.indices):
            home = home.outer
        made = home.values.get(node)
        if made is None:
            made = home.values[node] = self._compute(node, home)
        return made.reshape(made.shape + (1,) * (len(scope.shape) - made.ndim))

    def _compute(self, node: Value, scope: _Scope) -> Array:
        match node:
            case Coordinate():
                along = self._block[node.axis]
                shape = [1] * len(scope.shape)
                shape[node.axis] = len(along)
                return np.arange(along.start, along.stop, dtype=np.int64).reshape(shape)
            case Index():
                return scope.indices[node]
            case Element():
                return self._element(node, scope)
            case Total():
                return self._total(node, scope)
            case Operation():
                return self._operation(node, [self._value(each, scope) for each in node.arguments])
        raise TypeError(f"{node} has no meaning where formulas go by coordinates")

    @staticmethod
    def _operation(node: Operation, arguments: list[Array]) -> Array:
        out = np.empty(np.broadcast_shapes(*[each.shape for each in arguments]), node.type)
        if node.name == "where" and arguments[0].shape != out.shape:
            arguments[0] = np.broadcast_to(arguments[0], out.shape)
        FUNCTIONS[node.name](*arguments, out=out)
        return out

    def _element(self, node: Element, scope: _Scope) -> Array:
        stored = self._inputs[node.name]
        place: Any = np.zeros((1,) * len(scope.shape), np.int64)
        for at, size, stride in zip(node.at, stored.sizes, stored.strides, strict=True):
            if size > 1 and stride:
                inside = np.minimum(np.maximum(self._value(at, scope), 0), size - 1)
                place = place + inside * np.int64(stride)
        loaded: Array = stored.elements.take(place).astype(node.type, copy=False)
        return loaded

    def _total(self, node: Total, scope: _Scope) -> Array:
        ones = (1,) * len(scope.shape)
        counts = [np.maximum(self._value(each, scope), 0) for each in node.counts]
        most = [int(each.max()) for each in counts]
        uneven = any(int(each.min()) != largest for each, largest in zip(counts, most, strict=True))
        length = math.prod(most)
        total = _TOTALS[node.name](node, ones)
        step = max(MOST // math.prod(scope.shape), 1)
        for start in range(0, length, step):
            self._check()
            rest = np.arange(start, min(start + step, length))
            inner = _Scope((*scope.shape, len(rest)), {}, scope)
            places = []
            for largest in reversed(most):
                places.append((rest % largest).reshape(*ones, -1))
                rest //= largest
            places.reverse()
            inner.indices = dict(zip(node.indices, places, strict=True))
            there = _there(places, counts, inner.shape) if uneven else None
            argument = np.broadcast_to(self._value(node.argument, inner), inner.shape)
            total.add(argument, there, places, counts)
        return total.result()


def _there(places: Sequence[Array], counts: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Which combinations of indices are below all counts."""
    made = np.ones(shape, np.bool_)
    for place, count in zip(places, counts, strict=True):
        made &= place < count[..., None]
    return made


class _Fold:
    """A total whose combinations may come in any order: NumPy's reduction of the name."""

    def __init__(self, function: np.ufunc, nothing: Callable[[np.dtype[Any]], Any], node: Total, ones: tuple[int, ...]):
        self._function = function
        self._dtype = np.dtype(accumulated_type(node))
        self._nothing = nothing(self._dtype)
        self._type = node.type
        self._made: Array = np.full(ones, self._nothing, self._dtype)

    def add(self, argument: Array, there: Array | None, places: Sequence[Array], counts: Sequence[Array]) -> None:
        if there is not None:
            argument = np.where(there, argument, argument.dtype.type(self._nothing))
        self._made = self._function(self._made, self._function.reduce(argument, axis=-1, dtype=self._dtype))

    def result(self) -> Array:
        made: Array = self._made.astype(self._type, copy=False)
        return made


class _Position:
    """The first or the last combination of the largest or the least argument."""

    def __init__(self, least: bool, last: bool, node: Total, ones: tuple[int, ...]) -> None:
        dtype = np.dtype(node.argument.type)
        self._best = np.minimum if least else np.maximum
        self._nothing = _most(dtype) if least else _least(dtype)
        self._last = last
        self._value: Array = np.full(ones, self._nothing, dtype)
        self._place: Array = np.full(ones, -1, np.int64)

    def add(self, argument: Array, there: Array | None, places: Sequence[Array], counts: Sequence[Array]) -> None:
        place: Any = np.int64(0)
        for each, count in zip(places, counts, strict=True):
            place = place * count[..., None] + each
        beyond = np.iinfo(np.int64).max
        valued = argument if there is None else np.where(there, argument, argument.dtype.type(self._nothing))
        best = self._best.reduce(valued, axis=-1)
        is_best = (argument == best[..., None]) | ((argument != argument) & (best != best)[..., None])
        if there is not None:
            is_best &= there
        if self._last:
            found = np.where(is_best, place, -1).max(axis=-1)
        else:
            found = np.where(is_best, place, beyond).min(axis=-1)
            found[found == beyond] = -1
        # What is found later takes the place of what was there if it is better, or as good and the last is looked for.
        value = self._best(self._value, best)
        as_before = (value == self._value) | ((value != value) & (self._value != self._value))
        as_now = (value == best) | ((value != value) & (best != best))
        takes = (found >= 0) & ((self._place < 0) | ~as_before | (as_now & self._last))
        self._value, self._place = value, np.where(takes, found, self._place)

    def result(self) -> Array:
        return np.maximum(self._place, 0)


def _least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _most(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


_TOTALS: dict[str, Callable[[Total, tuple[int, ...]], _Fold | _Position]] = {
    "sum": lambda node, ones: _Fold(np.add, lambda _: 0, node, ones),
    "product": lambda node, ones: _Fold(np.multiply, lambda _: 1, node, ones),
    "maximum": lambda node, ones: _Fold(np.maximum, _least, node, ones),
    "minimum": lambda node, ones: _Fold(np.minimum, _most, node, ones),
    "first_maximum": lambda node, ones: _Position(False, False, node, ones),
    "last_maximum": lambda node, ones: _Position(False, True, node, ones),
    "first_minimum": lambda node, ones: _Position(True, False, node, ones),
    "last_minimum": lambda node, ones: _Position(True, True, node, ones),
}
