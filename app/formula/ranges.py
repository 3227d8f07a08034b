"""Between which numbers the values of a formula lie that goes by coordinates, and how much there is to compute."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import ceil, floor, inf, isfinite, nan, prod, trunc
from typing import TypeAlias

from app.formula.coordinates import Coordinate, Index, Total
from app.formula.outlines import Outline
from app.formula.uniform import Numbers, evaluator
from app.formula.values import BOOL, Operation, Value, integer_range, is_float

Range: TypeAlias = tuple[int, int]
"""The least and the largest."""

FloatRange: TypeAlias = tuple[float, float]
"""The same of floats, which may be NaN besides."""

ANY_FLOAT: FloatRange = (-inf, inf)
ROUNDING = 1e-6
"""What a float32 may differ from what it is computed of, relatively, and more."""


class Ranges:
    """What is known of values for the `numbers` of a request and an output of these `sizes`."""

    def __init__(self, outline: Outline, numbers: Numbers, sizes: Sequence[int]) -> None:
        self._outline = outline
        self._numbers = numbers
        self._sizes = sizes
        self._learned: set[Value] = set()
        """What is uniform, too."""
        self._known: dict[Value, Range] = {}
        self._floats: dict[Value, FloatRange] = {}

    def of(self, node: Value) -> Range:
        """Of an integer or a bool; no wider than its type."""
        if node.type == BOOL:
            return 0, 1
        found = self._known.get(node)
        if found is None:
            least, most = integer_range(node.type)
            low, high = self._computed(node) or (least, most)
            # What leaves its type's range wraps around.
            found = self._known[node] = (low, high) if least <= low <= high <= most else (least, most)
        return found

    def learn(self, node: Value) -> None:
        """Of a value that is made of some of the formula's, and takes the place of another."""
        if isinstance(node, Operation) and all(map(self._is_uniform, node.arguments)):
            self._learned.add(node)

    def _is_uniform(self, node: Value) -> bool:
        return node in self._outline.uniform or node in self._learned

    def most(self, count: Value) -> int:
        """How large a total's count is at most, and at least 0."""
        return max(self.of(count)[1], 0)

    def terms(self) -> int:
        """How many values of a total are computed for an element at most."""
        nested = self._outline.nested
        return max((prod(max(prod(map(self.most, each.counts)), 1) for each in around) for around in nested), default=1)

    def _computed(self, node: Value) -> Range | None:
        if self._is_uniform(node):
            number = int(evaluator(node)(self._numbers))
            return number, number
        match node:
            case Coordinate():
                return 0, self._sizes[node.axis] - 1
            case Index():
                return 0, max(self.most(self._outline.counts[node]) - 1, 0)
            case Total(name="sum"):
                count = prod(map(self.most, node.counts))
                low, high = self.of(node.argument)
                return min(count * low, 0), max(count * high, 0)
            case Total() if node.name.startswith(("first", "last")):
                return 0, max(prod(map(self.most, node.counts)) - 1, 0)
            case Operation(name="saturate"):
                below, above = self._of_float(*node.arguments)
                least, most = integer_range(node.type)
                return _truncated(min(below, 0), least, most), _truncated(max(above, 0), least, most)  # 0 of NaN
            case Operation(name="subtract", arguments=(end, begin)) if (window := _window_of(end, begin)) is not None:
                low, high = _RANGES["subtract"](self.of(end), self.of(begin))
                return low, max(min(high, self.of(window)[1]), low)
            case Operation() if node.name in _RANGES and not any(is_float(each.type) for each in node.arguments):
                return _RANGES[node.name](*map(self.of, node.arguments))
        return None

    def _of_float(self, node: Value) -> FloatRange:
        """Of a float, but for NaN, with room for its rounding."""
        found = self._floats.get(node)
        if found is None:
            low, high = self._computed_float(node)
            if low != low or high != high:
                low, high = ANY_FLOAT
            found = self._floats[node] = low - abs(low) * ROUNDING, high + abs(high) * ROUNDING
        return found

    def _computed_float(self, node: Value) -> FloatRange:
        if self._is_uniform(node):
            number = float(evaluator(node)(self._numbers))
            return number, number
        match node:
            case Operation(name="cast", arguments=(argument,)):
                return self._of_float(argument) if is_float(argument.type) else self._as_floats(argument)
            case Operation() if node.name in _FLOAT_RANGES:
                return _FLOAT_RANGES[node.name](*[self._of_float(each) for each in node.arguments])
        return ANY_FLOAT

    def _as_floats(self, node: Value) -> FloatRange:
        low, high = self.of(node)
        return float(low), float(high)


def _window_of(end: Value, begin: Value) -> Value | None:
    """How far a part reaches at most, from the larger of x and something to the smaller of x + this and something."""
    match end:
        case Operation(name="minimum", arguments=(first, _)):
            end = first
    match begin:
        case Operation(name="maximum", arguments=(first, _)):
            begin = first
    match end:
        case Operation(name="add", arguments=(x, window)) if x is begin:
            return window
    return None


def _truncated(number: float, least: int, most: int) -> int:
    return least if number <= least else most if number >= most else int(number)


def _divided(a: FloatRange, b: FloatRange) -> FloatRange:
    if b[0] <= 0 <= b[1]:
        return ANY_FLOAT
    ends = [x / y for x, y in product(a, b)]
    return (nan, nan) if any(each != each for each in ends) else (min(ends), max(ends))


def _multiplied(a: FloatRange, b: FloatRange) -> FloatRange:
    ends = [x * y for x, y in product(a, b)]
    return (nan, nan) if any(each != each for each in ends) else (min(ends), max(ends))


def _whole(function: Callable[[float], int]) -> Callable[[FloatRange], FloatRange]:
    """Of a rounding to whole numbers."""

    def made(a: FloatRange) -> FloatRange:
        low, high = (float(function(each)) if isfinite(each) else each for each in a)
        return low, high

    return made


_FLOAT_RANGES: Mapping[str, Callable[..., FloatRange]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "subtract": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "multiply": _multiplied,
    "divide": _divided,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "negative": lambda a: (-a[1], -a[0]),
    "floor": _whole(floor),
    "ceil": _whole(ceil),
    "trunc": _whole(trunc),
    "rint": _whole(round),
    "where": lambda condition, a, b: (min(a[0], b[0]), max(a[1], b[1])),
}


def _extremes(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Of a function that has its least and its largest value at ends of its arguments."""

    def made(a: Range, b: Range) -> Range:
        ends = [function(x, y) for x, y in product(a, b)]
        return min(ends), max(ends)

    return made


def _quotient(a: Range, b: Range) -> Range:
    divisors = [each for each in (*b, 1, -1) if each and b[0] <= each <= b[1]]
    ends = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in product(a, divisors)]
    if b[0] <= 0 <= b[1]:  # by 0 it is 0
        ends.append(0)
    return min(ends), max(ends)


def _remainder(a: Range, b: Range) -> Range:
    """Of floored division: it is between 0 and the divisor."""
    return min(b[0] + 1, 0), max(b[1] - 1, 0)


def _of_truncation(a: Range, b: Range) -> Range:
    most = max(abs(b[0]), abs(b[1]), 1) - 1
    return max(-most, min(a[0], 0)), min(most, max(a[1], 0))


_RANGES: Mapping[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "subtract": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "multiply": _extremes(lambda x, y: x * y),
    "maximum": _extremes(max),
    "minimum": _extremes(min),
    "negative": lambda a: (-a[1], -a[0]),
    "absolute": lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a))),
    "quotient": _quotient,
    "remainder": _remainder,
    "fmod": _of_truncation,
    "where": lambda condition, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "cast": lambda a: a,
}
