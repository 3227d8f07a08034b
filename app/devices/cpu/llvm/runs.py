"""Runs: stretches along a coordinate or an index in which nothing is cut off and every choice stays the same.

Where elements are read, coordinates are kept inside the tensor, and formulas choose by comparing coordinates. Most of
these go up evenly, so that at the beginning of a run it is known how long all comparisons will stay as they are. For
so long elements lie evenly in memory, and a loop needs neither comparisons nor divisions.
"""

from collections.abc import Hashable
from typing import NamedTuple

from app.contract.constants import DataType
from app.devices.cpu.llvm.scopes import Key, Scope, Writer
from app.devices.cpu.llvm.types import bytes_of, llvm_type
from app.formula.coordinates import Coordinate, Element, Index
from app.formula.values import INT64, Operation, Value

LARGE, STEEP = 1 << 61, 1 << 31
"""Coordinates and slopes below which nothing wraps around in a run."""

SMALL, FRACTION = 1 << 19, 40
"""To divide a number n by d, multiply it by 2^FRACTION / d, rounded up, and shift: exact where n * d < 2^FRACTION, and
so for divisors below SMALL and numbers of about that size."""

LONGEST = 1 << 24
"""Iterations of a run at most, after which it is asked whether to go on."""


class Line(NamedTuple):
    """An int64 that goes up evenly."""

    start: str
    slope: str


class Place(NamedTuple):
    """Where elements are in a run: the first one, and by how many bytes each is from the one before."""

    address: str
    step: str
    element: Element
    """One of them, for its types."""
    may_pack: bool
    """The elements may lie one after the other."""
    may_skip: bool
    """It is a number of the request by how many places each is from the one before."""


class Division(NamedTuple):
    """Of what goes up by 1 each time: how it comes out first, and what to multiply by instead of dividing."""

    quotient: str
    rest: str
    divisor: str
    inverse: str
    holds: str
    """Whether it does."""


class TensorNames(NamedTuple):
    """Where an input is, by the names of its numbers: its size and its stride in bytes along each dimension."""

    address: str
    sizes: list[str]
    strides: list[str]


class RunAlong:
    """What is known where a run along `key` begins. It is written in `scope`, in which `key` has its value there."""

    def __init__(self, writer: Writer, scope: Scope, key: Key, tensors: dict[str, TensorNames]) -> None:
        self.scope = scope
        self.reads_halves = False
        """Elements are of FLOAT16."""
        self.may_skip = False
        """Elements may lie at every other place."""
        self.divisions: dict[Value, Division] = {}
        """Those that are known also where a run is short."""
        self._expected: dict[str, int] = {}
        self._writer = writer
        self._key = key
        self._tensors = tensors
        self._steps: list[str] = []
        self._sound: dict[Hashable, str] = {}
        self._lines: dict[Value, Line | None] = {}
        self._conditions: dict[Value, str | None] = {}
        self._places: dict[Value, Place | None] = {}
        self._below: dict[tuple[Line, Line], str] = {}

    @property
    def is_bounded(self) -> bool:
        """Whether anything ends it."""
        return bool(self._steps or self._sound)

    def expect(self, place: Place) -> None:
        """That its elements lie one after the other, or at every other place, if they may."""
        self.reads_halves |= place.element.stored is DataType.FLOAT16
        if place.may_pack:
            self._expected[place.step] = bytes_of(llvm_type(place.element.stored.value.lower()))
            self.may_skip |= place.may_skip

    def flags(self, spacing: int) -> list[str]:
        """Whether all that is expected is so many places apart."""
        return [self._emit(f"icmp eq i64 {step}, {spacing * size}") for step, size in self._expected.items()]

    def length(self, most: str) -> str:
        """How many iterations it has, at most `most`; 0 if that is not known."""
        with self._writer.within(self.scope):
            made = self._writer.intrinsic("umin.i64", "i64", most, str(LONGEST))
            for steps in self._steps:
                made = self._writer.intrinsic("umin.i64", "i64", made, steps)
            for sound in self._sound.values():
                made = self._emit(f"select i1 {sound}, i64 {made}, i64 0")
        return made

    def stays(self, node: Value) -> bool:
        """End the run where `node` changes. False if it is not known when that is."""
        line = self.line(node)
        if line is None:
            return False
        if line.slope != "0":
            self._sound[line.slope, 0] = self._emit(f"icmp eq i64 {line.slope}, 0")
        return True

    def line(self, node: Value) -> Line | None:
        """`node`, an int64, if it goes up evenly in a run."""
        if self._key not in self._writer.free(node):
            with self._writer.within(self.scope):
                return Line(self._writer.write(node), "0")
        if node not in self._lines:
            self._lines[node] = self._line(node)
        return self._lines[node]

    def condition(self, node: Value) -> str | None:
        """`node`, a bool, if it is the same for all of a run."""
        if self._key not in self._writer.free(node):
            with self._writer.within(self.scope):
                return self._writer.write(node)
        if node not in self._conditions:
            self._conditions[node] = self._condition(node)
        return self._conditions[node]

    def place(self, node: Value) -> Place | None:
        """Where `node` is, if it is elements that lie evenly in memory, perhaps chosen by where the run is."""
        if node not in self._places:
            self._places[node] = self._place(node)
        return self._places[node]

    def _emit(self, expression: str) -> str:
        with self._writer.within(self.scope):
            return self._writer.emit(expression)

    def _line(self, node: Value) -> Line | None:
        match node:
            case Coordinate() | Index():
                return Line(self.scope.bound[self._key], "1")
            case Operation(type="int64", name="where", arguments=(condition, a, b)):
                chosen, left, right = self.condition(condition), self.line(a), self.line(b)
                return self._chosen(chosen, left, right) if chosen and left and right else None
            case Operation(type="int64", name="absolute", arguments=(a,)):
                return self._extreme("maximum", a, Operation(INT64, "negative", (a,)))
            case Operation(type="int64", name="maximum" | "minimum" as name, arguments=(a, b)):
                return self._extreme(name, a, b)
            case Operation(type="int64", name="negative", arguments=(a,)):
                line = self.line(a)
                return line and self._difference(Line("0", "0"), line)
            case Operation(type="int64", name="add" | "subtract" as name, arguments=(a, b)):
                left, right = self.line(a), self.line(b)
                if left and right:
                    return self._sum(left, right) if name == "add" else self._difference(left, right)
            case Operation(type="int64", name="multiply", arguments=(a, b)):
                left, right = self.line(a), self.line(b)
                if left and right and "0" in (left.slope, right.slope):
                    line, factor = (left, right.start) if right.slope == "0" else (right, left.start)
                    return Line(*[self._product(each, factor) for each in line])
            case Operation(type="int64", name="quotient" | "remainder" | "fmod", arguments=(a, b)):
                if self._key not in self._writer.free(b):
                    return self._division(node, a, b)
        return None

    def _extreme(self, name: str, a: Value, b: Value) -> Line | None:
        left, right = self.line(a), self.line(b)
        if left is None or right is None:
            return None
        below = self._is_below(left, right)
        return self._chosen(below, right, left) if name == "maximum" else self._chosen(below, left, right)

    def _chosen(self, condition: str, a: Line, b: Line) -> Line:
        made = [
            x if x == y else self._emit(f"select i1 {condition}, i64 {x}, i64 {y}") for x, y in zip(a, b, strict=True)
        ]
        return Line(*made)

    def _division(self, node: Operation, a: Value, b: Value) -> Line | None:
        """Of numbers from 0 by others above: between two multiples the quotient stays as it is."""
        line = self.line(a)
        if line is None:
            return None
        divisor = self.line(b)
        assert divisor, "it is the same for all of a run"
        positive, some = self._emit(f"icmp sge i64 {line.start}, 0"), self._emit(f"icmp sge i64 {divisor.start}, 1")
        sound = self._sound[line.start, divisor.start] = self._emit(f"and i1 {positive}, {some}")
        safe = self._emit(f"select i1 {some}, i64 {divisor.start}, i64 1")
        quotient = self._emit(f"sdiv i64 {line.start}, {safe}")
        before = Line(self._product(quotient, safe), "0")
        rest = self._difference(line, before)
        self._is_below(line, before)
        self._is_below(line, self._sum(before, Line(safe, "0")))
        if line.slope == "1" and self._is_plain(a):
            inverse = self._emit(f"udiv i64 {self._emit(f'add i64 {safe}, {(1 << FRACTION) - 1}')}, {safe}")
            small = self._emit(f"icmp slt i64 {safe}, {SMALL}")
            near = self._emit(f"icmp slt i64 {line.start}, {LARGE}")
            holds = self._emit(f"and i1 {sound}, {self._emit(f'and i1 {small}, {near}')}")
            self.divisions[node] = Division(quotient, rest.start, safe, inverse, holds)
        return Line(quotient, "0") if node.name == "quotient" else rest

    def _is_plain(self, node: Value) -> bool:
        """Whether it goes up evenly beyond the run."""
        if self._key not in self._writer.free(node) or isinstance(node, Coordinate | Index):
            return True
        is_sum = isinstance(node, Operation) and node.name in ("add", "subtract")
        return is_sum and all(map(self._is_plain, node.operands()))

    def _condition(self, node: Value) -> str | None:
        match node:
            case Operation(name="invert", arguments=(a,)):
                known = self.condition(a)
                return known and self._emit(f"xor i1 {known}, true")
            case Operation(name="bitwise_and" | "bitwise_or" | "bitwise_xor" as name, arguments=(a, b)):
                left, right = self.condition(a), self.condition(b)
                return self._emit(f"{name.removeprefix('bitwise_')} i1 {left}, {right}") if left and right else None
            case Operation(type="bool", arguments=(Value(type="int64") as a, Value(type="int64") as b)):
                x, y = self.line(a), self.line(b)
                return self._comparison(node.name, x, y) if x and y else None
        return None

    def _comparison(self, name: str, a: Line, b: Line) -> str | None:
        match name:
            case "less":
                return self._is_below(a, b)
            case "greater":
                return self._is_below(b, a)
            case "greater_equal":
                return self._emit(f"xor i1 {self._is_below(a, b)}, true")
            case "less_equal":
                return self._emit(f"xor i1 {self._is_below(b, a)}, true")
            case "equal":
                return self._emit(f"icmp eq i1 {self._is_below(a, b)}, {self._is_below(b, a)}")
            case "not_equal":
                return self._emit(f"or i1 {self._is_below(a, b)}, {self._is_below(b, a)}")
        return None

    def _place(self, node: Value) -> Place | None:
        match node:
            case Element():
                lines = [line for line in map(self.line, node.at) if line]
                return self._place_of(node, lines) if len(lines) == len(node.at) else None
            case Operation(name="where", arguments=(condition, a, b)) if a.type == node.type:
                chosen = self.condition(condition)
                if chosen is None:
                    return None
                places = [self.place(a), self.place(b)]
                match places:
                    case [Place() as x, Place() as y] if x.element.stored == y.element.stored:
                        address = self._emit(f"select i1 {chosen}, ptr {x.address}, ptr {y.address}")
                        step = self._emit(f"select i1 {chosen}, i64 {x.step}, i64 {y.step}")
                        may_pack, may_skip = x.may_pack or y.may_pack, x.may_skip or y.may_skip
                        return Place(address, step, x.element, may_pack, may_skip)
        return None

    def _place_of(self, node: Element, lines: list[Line]) -> Place:
        tensor = self._tensors[node.name]
        offset, step = "0", "0"
        for line, size, stride in zip(lines, tensor.sizes, tensor.strides, strict=True):
            start, slope = self._inside(line, size)
            offset = self._plus(offset, self._product(start, stride))
            step = self._plus(step, self._product(slope, stride))
        address = self._emit(f"getelementptr i8, ptr {tensor.address}, i64 {offset}")
        innermost = lines[-1].slope
        return Place(address, step, node, innermost != "0", not innermost.lstrip("-").isdecimal())

    def _inside(self, line: Line, size: str) -> Line:
        """The nearest coordinate inside a tensor."""
        with self._writer.within(self.scope):
            start = clamped(self._writer, line.start, size)
        if line.slope == "0":
            return Line(start, "0")
        negative, below = self._is_below(line, Line("0", "0")), self._is_below(line, Line(size, "0"))
        inside = self._emit(f"icmp ugt i1 {below}, {negative}")
        return Line(start, self._emit(f"select i1 {inside}, i64 {line.slope}, i64 0"))

    def _is_below(self, a: Line, b: Line) -> str:
        """Whether `a` is less than `b`; the run ends where that changes."""
        if (a, b) not in self._below:
            self._below[a, b] = self._emit(f"icmp slt i64 {a.start}, {b.start}")
            if a.slope != "0" or b.slope != "0":
                self._ends_at(self._difference(a, b))
                for number, bound in ((a.start, LARGE), (b.start, LARGE), (a.slope, STEEP), (b.slope, STEEP)):
                    self._is_small(number, bound)
        return self._below[a, b]

    def _ends_at(self, line: Line) -> None:
        """The run ends before the sign of `line` changes."""
        if line.slope == "0":
            return
        sign = self._emit(f"ashr i64 {line.start}, 63")
        distance = self._emit(f"xor i64 {line.start}, {sign}")
        towards = self._emit(f"xor i64 {sign}, {line.slope}")  # negative if it is so
        ends = self._emit(f"icmp slt i64 {towards}, 0")
        size = line.slope.lstrip("-")
        if not size.isdecimal():
            moves = self._emit(f"icmp ne i64 {line.slope}, 0")  # as what is kept inside does not while it is beside
            ends = self._emit(f"and i1 {ends}, {moves}")
            with self._writer.within(self.scope):
                other = self._writer.intrinsic("smax.i64", "i64", self._minus("0", line.slope), "1")
                size = self._writer.intrinsic("smax.i64", "i64", line.slope, other)
        steps = self._emit(f"add i64 {self._emit(f'udiv i64 {distance}, {size}')}, 1")
        self._steps.append(self._emit(f"select i1 {ends}, i64 {steps}, i64 {LONGEST}"))

    def _is_small(self, number: str, bound: int) -> None:
        if not number.lstrip("-").isdecimal():
            moved = self._emit(f"add i64 {number}, {bound}")
            self._sound[number, bound] = self._emit(f"icmp ult i64 {moved}, {2 * bound}")
        elif abs(int(number)) >= bound:
            self._sound[number, bound] = "false"

    def _sum(self, a: Line, b: Line) -> Line:
        return Line(*[self._plus(x, y) for x, y in zip(a, b, strict=True)])

    def _difference(self, a: Line, b: Line) -> Line:
        return Line(*[self._minus(x, y) for x, y in zip(a, b, strict=True)])

    def _plus(self, a: str, b: str) -> str:
        if a == "0" or b == "0":
            return b if a == "0" else a
        return self._emit(f"add i64 {a}, {b}")

    def _minus(self, a: str, b: str) -> str:
        if b == "0" or a == b:
            return a if a != b else "0"
        if a.lstrip("-").isdecimal() and b.lstrip("-").isdecimal():
            return str(int(a) - int(b))
        return self._emit(f"sub i64 {a}, {b}")

    def _product(self, a: str, b: str) -> str:
        if "0" in (a, b):
            return "0"
        if "1" in (a, b):
            return b if a == "1" else a
        return self._emit(f"mul i64 {a}, {b}")


def clamped(writer: Writer, at: str, size: str) -> str:
    """The nearest coordinate inside a tensor of a `size`."""
    last = writer.emit(f"sub i64 {size}, 1")
    return writer.intrinsic("smax.i64", "i64", writer.intrinsic("smin.i64", "i64", at, last), "0")
