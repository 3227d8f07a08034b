"""Where values stand in a kernel of a formula that goes by coordinates, and how elements are read there.

What is computed stands in the outermost loop that has all indices it is made of, so that no loop does again what an
inner one might. Elements of neighbours that lie together are loaded at once.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES, convert
from app.devices.cuda.lowering import Lowering
from app.devices.cuda.turns import BLOCKS, braced
from app.devices.cuda.vectors import Along, goes_up
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.decided import Decisions, decided
from app.formula.expansions import Ask
from app.formula.uniform import uniform_parts
from app.formula.values import FLOAT64, INT64, Number, Operation, Value, parts


@dataclass(eq=False, slots=True)
class Scope:
    """The body of the kernel, or of a loop: what is known there, and its lines."""

    indices: frozenset[Index]
    """Those that change with each turn of the loop."""
    outer: "Scope | None"
    lines: list[str] = field(default_factory=list)
    loads: list[tuple[str, str, str]] | None = None
    """Of threads that take turns: what they load in each, as `Turns` has it."""
    written: dict[Value, str] = field(default_factory=dict)


class ScopedLowering(Lowering):
    """Writes a formula into scopes, but for its totals."""

    of_terms = True

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored, exact=True)
        self._uniform = uniform_parts(root)
        self._free: dict[Value, frozenset[Index]] = {}
        self._indices: dict[Index, str] = {}
        self._names = 0
        self._counter = "long long"
        """What loops count with."""
        self._window: tuple[int, ...] = ()
        self._along: Index | None = None
        self._inner = -1
        self._width = 1
        self._is_beyond = self._has_neighbours = self._is_batched = False
        self._blocks = BLOCKS
        self._packed: tuple[bool, ...] = ()
        self._of_all: set[Value] = set()
        self._step = 0
        self._uses: Counter[Value] = Counter()
        self._guards: dict[Value, list[tuple[str, Scope]]] = {}
        self._scope = Scope(frozenset(), None)
        self._lines = self._scope.lines

    def decide(self, decisions: Decisions, packed: tuple[bool, ...]) -> None:
        """Take what sizes decide of the formula, and which inputs have rows that vectors can be loaded of."""
        self._root, self._packed = decided(self._root, decisions), packed
        self._uniform = uniform_parts(self._root)
        self._find_reals()

    @property
    def along_rows(self) -> frozenset[Index]:
        """What changes from one element of a row to the next."""
        assert self._along, "threads go along rows"
        return frozenset([self._along])

    def go_along(self, axis: int | Index, width: int, *, beyond: bool = False) -> None:
        """From here on the coordinate along `axis` is an index, or threads go along an index. `width` is how many
        neighbours a thread computes, some of them `beyond` the end of a row."""
        self._is_beyond, self._has_neighbours = beyond, width > 1
        self._inner, self._width = (axis, width) if isinstance(axis, int) else (-1, width)
        self._along = Index(INT64) if isinstance(axis, int) else axis
        self._free.clear()

    def enter(self, scope: Scope) -> None:
        """Write in `scope` what belongs nowhere else."""
        self._scope, self._lines = scope, scope.lines

    def is_uniform(self, node: Value) -> bool:
        return node in self._uniform or (node not in self._free and super().is_uniform(node))

    # Where values stand

    def write(self, node: Value) -> str:
        """The C++ expression of `node`: a name or a literal, known from where it stands on."""
        home = self._home(node)
        found = home.written.get(node)
        if found is None:
            before, self._scope, self._lines = self._scope, home, home.lines
            found = home.written[node] = self._write(node)
            self._scope, self._lines = before, before.lines
        return found

    def _home(self, node: Value) -> Scope:
        """The outermost scope that knows all that `node` is made of."""
        home, free = self._scope, self._free_of(node)
        while home.outer and free.isdisjoint(home.indices):
            home = home.outer
        return home

    def declare(self, kind: str, expression: str) -> str:
        is_real = kind == FLOAT64 and self._in_reals
        if is_real:
            self.function("reals")
        return self.declare_as("auto" if is_real else C_TYPES[kind], expression)

    def declare_as(self, c_type: str, expression: str) -> str:
        name = self._new("v")
        self._lines.append(f"const {c_type} {name} = {expression};")
        return name

    def _new(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _free_of(self, node: Value) -> frozenset[Index]:
        """The indices that `node` changes with."""
        for each in () if node in self._free else parts(node):
            if each not in self._free:
                free = frozenset[Index]().union(*[self._free[operand] for operand in each.operands()])
                match each:
                    case Index():
                        free = frozenset([each])
                    case Coordinate() if each.axis == self._inner and self._along:
                        free = frozenset([self._along])
                    case Total():
                        free -= set(each.indices)
                    case Operation(name="less" | "greater_equal", arguments=arguments) if self._is_of_all(*arguments):
                        free -= self.along_rows
                        self._of_all.add(each)
                self._free[each] = free
        return self._free[node]

    def _is_of_all(self, place: Value, end: Value) -> bool:
        """Whether `place`, which goes along the row, is before `end` for all of a thread's neighbours or for none."""
        match place:
            case Coordinate():
                across = place.axis == self._inner and self._has_neighbours
            case Operation(name="cast", arguments=(whole,)):
                return self._is_of_all(whole, end)
            case Operation(name="add" | "subtract", arguments=(whole, offset)):
                across = self._is_multiple(offset) and self._is_of_all(whole, offset)
            case _:
                across = False
        return across and self._is_multiple(end)

    def _of_first(self, place: Value) -> str:
        """Of the first of a thread's neighbours, what goes up from each to the next."""
        match place:
            case Operation(name="cast", arguments=(whole,)):
                return self._of_first(whole)
            case Operation(name="add" | "subtract", arguments=(whole, offset)):
                wide = "unsigned" if self._counter == "int" else "unsigned long long"
                sign = "+" if place.name == "add" else "-"
                return f"({self._counter})(({wide}){self._of_first(whole)} {sign} ({wide}){self.write(offset)})"
        return "from"

    def _is_multiple(self, node: Value) -> bool:
        return self.is_uniform(node) and bool(self.ask(partial(_is_multiple, self._width), node))

    def _write(self, node: Value) -> str:
        match node:
            case Operation(name="less" | "greater_equal", arguments=(place, end)) if node in self._of_all:
                sign = "<" if node.name == "less" else ">="
                return self.declare(node.type, f"{self._of_first(place)} {sign} {self.write(end)}")
            case Coordinate():
                return f"c{node.axis}"
            case Index():
                return self._indices[node]
            case Element():
                return self._element(node)
            case Total():
                return self._total(node)
            case Operation(name="where"):
                self._guard(node)
        return super()._write(node)

    # Elements

    def _element(self, node: Element) -> str:
        number, scope = [name for name, _ in self.inputs].index(node.name), self._scope
        stored, last = C_TYPES[node.stored.value.lower()], len(node.at) - 1
        first = self._first(node) if self._has_neighbours and scope.indices == self.along_rows else None
        steps = [
            f"{self._inside(node, axis, number)} * shape.strides{number}[{axis}]"
            for axis in range(last if first else last + 1)
        ]
        if self._step and self._lies(node, number):
            value = self._of_windows(node, number)
        elif first is None:
            value, test = f"in{number}[{' + '.join(steps) or '0'}]", self._test(node, scope)
            value = f"({test} ? {value} : ({stored})0)" if test else value
        else:
            assert scope.outer, "neighbours are in the kernel"
            name, test = self._new("near"), self._test(node, scope.outer)
            vector, start = f"neighbours<{stored}, {self._width}>", " + ".join([f"in{number}", *steps])
            load = f"gathered({name}, {start}, {first}, shape.sizes{number}[{last}], shape.strides{number}[{last}]);"
            if first == "from" and self._lies(node, number):
                load = f"{name} = *(const {vector}*)({start} + from);"
            if test:
                load = f"if ({test}) {load}"
            if scope.outer.loads is None:
                scope.outer.lines += [f"{vector} {name} = {{}};", load]
                value = f"{name}.at[k]"
            else:
                scope.outer.loads.append((name, vector, load.replace(name, f"{name}[u]")))
                value = f"{name}[u].at[k]"
        return self.declare(node.type, convert(value, node.stored.value.lower(), node.type))

    def _of_windows(self, node: Element, number: int) -> str:
        """An element of windows, those of all neighbours, of which each row is loaded at once."""
        (total,) = [each for each in parts(self._root) if isinstance(each, Total)]
        kernel, scope, last = self._scope, self._scope, len(node.at) - 1
        while kernel.outer:
            kernel = kernel.outer
        rows = [*zip(total.indices, self._window, strict=True)][:-1]
        body = Scope(frozenset(index for index, _ in rows), kernel)
        self.enter(body)
        steps = [f"{self._inside(node, axis, number)} * shape.strides{number}[{axis}]" for axis in range(last)]
        self.enter(scope)
        stored = C_TYPES[node.stored.value.lower()]
        name, vector, at = self._new("near"), f"neighbours<{stored}, {self._step * self._width}>", "0"
        for index, count in rows:
            at = f"({at} * {count} + {self._indices[index]})"
        start = " + ".join([f"in{number}", *steps, f"(unsigned)from * {self._step}u"])
        lines = [*body.lines, f"{name}[{at}] = *(const {vector}*)({start});"]
        for index, count in reversed(rows):
            row = self._indices[index]
            lines = ["#pragma unroll", f"for (int {row} = 0; {row} < {count}; ++{row})", braced(lines)]
        kernel.lines += [f"{vector} {name}[{prod(count for _, count in rows)}];", *lines]
        return f"{name}[{at}].at[k * {self._step} + {self._indices[total.indices[-1]]}]"

    def _inside(self, node: Element, axis: int, number: int) -> str:
        """The coordinate along `axis` that is nearest to what the element's is."""
        at = self.write(node.at[axis])
        beyond = self._is_beyond and not self._free_of(node.at[axis]).isdisjoint(self.along_rows)
        if beyond or not node.inside >> axis & 1:
            return f"inside({at}, shape.sizes{number}[{axis}])"
        return f"(unsigned){at}" if self._counter == "int" else f"(unsigned long long)(unsigned){at}"

    def _lies(self, node: Element, number: int) -> bool:
        """Whether neighbours from a multiple of their number on are inside, and one load."""
        inside = node.inside + 1 == 1 << len(node.at) and not self._is_beyond
        return inside and bool(self._packed) and self._packed[number]

    def _first(self, node: Element) -> str | None:
        """The last coordinate of the first of a thread's elements, if these are neighbours."""
        along = Along(
            lambda each: each is self._along or goes_up(each, self._inner),
            lambda each: not self._free_of(each).isdisjoint(self.along_rows),
            self.is_one,
        )
        return along.first(node, self.write)

    def _guard(self, node: Operation) -> None:
        """Elements that only one side of a choice needs are read where it is chosen. In a total's loop, all are, so
        that no read waits for another."""
        if self._free_of(node) - (self.along_rows if self._along else frozenset()):
            return
        test, home = self.write(node.arguments[0]), self._home(node.arguments[0])
        for sign, side in zip(("", "!"), node.arguments[1:], strict=True):
            for element in self._only_of(side):
                self._guards.setdefault(element, []).append((sign + test, home))

    def _only_of(self, node: Value) -> Iterator[Element]:
        """The elements that nothing else is made of."""
        self._uses = self._uses or uses_in(self._root)
        if self._uses[node] == 1:
            if isinstance(node, Element):
                yield node
            elif isinstance(node, Operation):
                for each in node.arguments:
                    yield from self._only_of(each)

    def _test(self, node: Element, scope: Scope) -> str:
        """What of an element's guards is known in `scope`."""
        known = [scope]
        while known[-1].outer:
            known.append(known[-1].outer)
        return " && ".join(test for test, home in self._guards.get(node, []) if any(home is each for each in known))

    @abstractmethod
    def _total(self, node: Total) -> str:
        """The name of a total."""


def uses_in(root: Value) -> Counter[Value]:
    """How often each part of a formula is an operand."""
    return Counter(each for parent in parts(root) for each in parent.operands())


def _is_multiple(width: int, number: Number) -> bool:
    return number % width == 0
