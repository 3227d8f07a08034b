"""Along which axes an output is made place by place: each of its elements of what inputs have at the same place.

An axis like that may be that of a batch: its items are made apart from one another, and all in the same way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from app.formula.coordinates import Coordinate, Element, size_name
from app.formula.outlines import Outline
from app.formula.ranges import Ranges
from app.formula.uniform import Numbers, evaluator
from app.formula.values import BOOL, INT64, Input, Number, Operation, Parameter, Value, is_float, parts
from app.programs.program import Map

Reads: TypeAlias = Mapping[str, Mapping[int, bool]]
"""For an axis of an output, of each input that is read: the axes along which that is at the same place, and whether it
always is. An input with none of them is read as a whole."""


def batch_axes(
    made: Map, numbers: Numbers, name: str, sizes: Sequence[int], inputs: Mapping[str, Sequence[int]]
) -> Mapping[int, Reads]:
    """Those of the output `name`, which has these `sizes`, with what is read of `inputs`, of which it gives the sizes.

    How many places there are has no effect: nothing is computed of an axis' size.
    """
    if made.by_coordinates:
        found = _Reader(made.expression, numbers, sizes)
        found.read()
        used = found.numbers
        axes = {axis: found.along(axis, inputs) for axis in range(len(sizes)) if axis not in found.loose}
    else:
        read = {each.name for each in parts(made.expression) if isinstance(each, Input)}
        used = _parameters(made.expression)
        axes = {axis: {name: {axis: True} for name in read} for axis in range(len(sizes)) if axis not in made.axes}
    return {
        axis: reads
        for axis, reads in axes.items()
        if used.isdisjoint([size_name(name, axis), *(size_name(each, own) for each, of in reads.items() for own in of)])
    }


def _parameters(node: Value) -> set[str]:
    return {each.name for each in parts(node) if isinstance(each, Parameter)}


class _Line(NamedTuple):
    """A constant and so many times each of some coordinates."""

    constant: int
    steps: Mapping[int, int]

    def times(self, factor: int) -> "_Line":
        return _Line(self.constant * factor, {axis: step * factor for axis, step in self.steps.items() if factor})

    def plus(self, other: "_Line") -> "_Line":
        steps = {axis: self.steps.get(axis, 0) + other.steps.get(axis, 0) for axis in {*self.steps, *other.steps}}
        return _Line(self.constant + other.constant, {axis: step for axis, step in steps.items() if step})

    @property
    def coordinate(self) -> int | None:
        """The axis whose coordinate it is, as it is."""
        return next(iter(self.steps)) if self.constant == 0 and [*self.steps.values()] == [1] else None


class _Reader:
    """Looks where a formula by coordinates reads, for the numbers of a request: what sizes decide is decided."""

    def __init__(self, root: Value, numbers: Numbers, sizes: Sequence[int]) -> None:
        self.loose: set[int] = set()
        """Axes whose coordinates have an effect by more than where inputs are read at it."""
        self.numbers: set[str] = set()
        """The names of those that something is computed of."""
        self._root = root
        self._numbers = numbers
        self._sizes = sizes
        outline = Outline(root)
        self._ranges = Ranges(outline, numbers, sizes)
        self._uniform = outline.uniform
        self._lines: dict[Value, _Line | None] = {}
        self._truths: dict[Value, bool | None] = {}
        self._at: dict[str, set[tuple[int | None, ...]]] = {}
        """By input, for each read whose coordinate its index is along each axis."""

    def read(self) -> None:
        seen, left = {self._root}, [self._root]
        while left:
            for each in self._needed(left.pop()):
                if each not in seen:
                    seen.add(each)
                    left.append(each)

    def along(self, axis: int, inputs: Mapping[str, Sequence[int]]) -> Reads:
        found: dict[str, dict[int, bool]] = {}
        for name, reads in self._at.items():
            here = found[name] = {}
            for own, size in enumerate(inputs[name]):
                # What is read beyond the last place is the last one.
                are_same = [each[own] == axis and size >= self._sizes[axis] for each in reads]
                if any(each[own] == axis for each in reads):
                    here[own] = all(are_same)
        return found

    def _needed(self, node: Value) -> Iterator[Value]:
        """What `node` is made of, but for what has no effect here or has been looked at."""
        if node in self._uniform:
            self.numbers |= _parameters(node)
            return
        if node.type == BOOL and self._truth(node) is not None:
            return
        chosen = self._chosen(node)
        line = None if chosen else self._line(node)
        if chosen:
            yield chosen
            yield from (each for each in node.operands() if each in self._uniform and each.type == BOOL)
        elif line:
            self.loose.update(line.steps)
            self.numbers |= _parameters(node)
        elif isinstance(node, Element):
            lines = [self._line(each) for each in node.at]
            self._at.setdefault(node.name, set()).add(tuple([line and line.coordinate for line in lines]))
            yield from (each for each, line in zip(node.at, lines, strict=True) if not line or line.coordinate is None)
        else:
            yield from node.operands()

    def _chosen(self, node: Value) -> Value | None:
        """Which of its arguments `node` is, if sizes say that."""
        match node:
            case Operation(name="where", arguments=(condition, a, b)):
                truth = self._truth(condition)
                return None if truth is None else a if truth else b
            case Operation(name="maximum" | "minimum", arguments=(a, b)) if not is_float(node.type):
                low, high = self._difference(*((a, b) if node.name == "maximum" else (b, a)))
                return a if low >= 0 else b if high <= 0 else None
            case Operation(name="quotient", arguments=(a, b)) if self._number(b) == 1:
                return a
            case Operation(name="remainder" | "fmod", arguments=(a, b)) if not is_float(node.type):
                low, high = self._range(a)
                return a if low >= 0 and high < self._range(b)[0] else None
        return None

    def _truth(self, node: Value) -> bool | None:
        """Of a bool, if sizes say it."""
        if node not in self._truths:
            self._truths[node] = self._found_truth(node)
        return self._truths[node]

    def _found_truth(self, node: Value) -> bool | None:
        number = self._number(node)
        if number is not None:
            return bool(number)
        match node:
            case Operation(name="bitwise_and" | "bitwise_or", arguments=arguments) if node.type == BOOL:
                truths = [self._truth(each) for each in arguments]
                decisive = node.name == "bitwise_or"
                return decisive if decisive in truths else None if None in truths else not decisive
            case Operation(name="invert", arguments=(a,)):
                truth = self._truth(a)
                return None if truth is None else not truth
            case Operation(name=name, arguments=(a, b)) if name in _COMPARISONS and not is_float(a.type):
                low, high = self._difference(a, b)
                return _COMPARISONS[name](low, high)
        return None

    def _number(self, node: Value) -> Number | None:
        if node not in self._uniform:
            return None
        try:
            return evaluator(node)(self._numbers)
        except LookupError:  # it is made of what only devices compute
            return None

    def _line(self, node: Value) -> _Line | None:
        """What an index is, if it is one of these."""
        if node not in self._lines:
            self._lines[node] = self._found_line(node) if node.type == INT64 else None
        return self._lines[node]

    def _found_line(self, node: Value) -> _Line | None:
        if node in self._uniform:
            number = self._number(node)
            return None if number is None else _Line(int(number), {})
        chosen = self._chosen(node)
        if chosen:
            return self._line(chosen)
        match node:
            case Coordinate(axis=axis):
                return _Line(0, {axis: 1})
            case Operation(name="add" | "subtract", arguments=(a, b)):
                one, other = self._line(a), self._line(b)
                return one.plus(other.times(1 if node.name == "add" else -1)) if one and other else None
            case Operation(name="multiply", arguments=(a, b)):
                one, other = self._line(a), self._line(b)
                if one and other and not (one.steps and other.steps):
                    return one.times(other.constant) if one.steps else other.times(one.constant)
            case Operation(name="negative", arguments=(a,)):
                one = self._line(a)
                return one.times(-1) if one else None
        return None

    def _range(self, node: Value) -> tuple[int, int]:
        line = self._line(node)
        return self._ends(line) if line else self._ranges.of(node)

    def _difference(self, a: Value, b: Value) -> tuple[int, int]:
        one, other = self._line(a), self._line(b)
        if one and other:
            return self._ends(one.plus(other.times(-1)))
        (low, high), (other_low, other_high) = self._range(a), self._range(b)
        return low - other_high, high - other_low

    def _ends(self, line: _Line) -> tuple[int, int]:
        reaches = [step * (self._sizes[axis] - 1) for axis, step in line.steps.items()]
        low, high = (line.constant + sum(chosen(each, 0) for each in reaches) for chosen in (min, max))
        return low, high


def _decided(always: bool, never: bool) -> bool | None:
    return True if always else False if never else None


_COMPARISONS: Mapping[str, Callable[[int, int], bool | None]] = {
    "less": lambda low, high: _decided(high < 0, low >= 0),
    "less_equal": lambda low, high: _decided(high <= 0, low > 0),
    "greater": lambda low, high: _decided(low > 0, high <= 0),
    "greater_equal": lambda low, high: _decided(low >= 0, high < 0),
    "equal": lambda low, high: _decided(low == high == 0, low > 0 or high < 0),
    "not_equal": lambda low, high: _decided(low > 0 or high < 0, low == high == 0),
}
"""By name, of the least and the largest that the first is more than the second."""
