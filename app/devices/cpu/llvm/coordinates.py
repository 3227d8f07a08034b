"""Loop nests for formulas that go by coordinates.

A nest is a module with a function `kernel`, whose argument is a list of 64-bit numbers, its frame: the address of a
function that says whether to stop, that of what it is given, and after how many iterations it is asked; the first
coordinate along each dimension of a block, and the one after the last; the address of the output's first element, and
the output's strides in bytes; for each input its address, its sizes and its strides in bytes; then the numbers that are
the same for all elements, each in the lowest bytes of its number. So one nest serves all sizes, strides and attributes.

A total whose elements lie along the output's innermost dimension is accumulated for STRIP elements of the output at
once, so that loops go through memory as it lies; others, one after the other, along their last index.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from app.contract.constants import DataType
from app.devices.cpu.llvm.row_loops import GROUP, METADATA, Body, Rows, RowScope
from app.devices.cpu.llvm.runs import Run, Tensor
from app.devices.cpu.llvm.scopes import Key, Scope, Start
from app.devices.cpu.llvm.types import bytes_of, literal, llvm_type
from app.formula.coordinates import Coordinate, Element, Index, Total, accumulated_type
from app.formula.expansions import Ask
from app.formula.uniform import is_uniform
from app.formula.values import INT64, Constant, Operation, Parameter, Value, integer_range, is_float, parts

STRIP = 1 << 9
"""Elements of the output whose totals are accumulated at once."""

MOST, DEEPEST = 400, 60
"""Operations of a formula, and of which one is made of the other, with which it still compiles in some seconds."""

_NOWHERE = (1 << 63) - 1
"""After all positions."""


@dataclass(frozen=True, slots=True)
class Nest:
    """A nest, and what its frame has: `inputs`, by their names with their ranks, and `parameters`."""

    source: str
    inputs: dict[str, int]
    parameters: list[Value]
    instructions: int
    """About how many there are for an element, or for each combination of a total's indices."""


def nest(ask: Ask, expression: Value, stored: DataType, rank: int) -> Nest:
    """The nest of an output of so many dimensions. Raises LookupError if NumPy is to compute it."""
    root = _merged(expression)
    depths: dict[Value, int] = {}
    for node in parts(root):
        depths[node] = 1 + max([depths[each] for each in node.operands()], default=0)
    if len(depths) > MOST or depths[root] > DEEPEST:
        raise LookupError("the formula is too large to be compiled while a request waits")
    return _Nest(ask, root, stored, rank).made()


@dataclass(frozen=True, slots=True)
class _Fold:
    """How something is accumulated: in `type` from `start`; `step` gives what is then, of that and of a value."""

    type: str
    start: str
    step: Callable[[str, str], str]


class _Nest(Rows):
    def __init__(self, ask: Ask, root: Value, stored: DataType, rank: int) -> None:
        nodes = [each for each in parts(root) if not is_uniform(each)]
        self._instructions = len(nodes) + 2
        super().__init__(ask)
        self._root = root
        self._stored = stored.value.lower()
        self._ranks = {each.name: len(each.at) for each in nodes if isinstance(each, Element)}
        self._bounds = [(self.number(), self.number()) for _ in range(rank)]
        self._output = Tensor(self.address(), [], self.numbers(rank))
        for name, count in self._ranks.items():
            self.tensors[name] = Tensor(self.address(), self.numbers(count), self.numbers(count))
        self._places: dict[Total, Value] = {}
        self._strip = "0"
        """The coordinate at which the present strip begins."""

    def made(self) -> Nest:
        """All of it."""
        self._around(0)
        head = ["define void @kernel(ptr noalias readonly %frame) {", "entry:"]
        lines = [*sorted(self._declarations), *head, *self.entry.lines, "br label %end", "end:", "ret void", "}"]
        return Nest("\n".join([*lines, *METADATA]), self._ranks, self._parameters, self._instructions)

    # The output

    @property
    def _innermost(self) -> int:
        return len(self._bounds) - 1

    def _around(self, axis: int) -> Sequence[str]:
        """Loops over the dimensions from `axis` on."""
        begin, end = self._bounds[axis]
        if axis < self._innermost:
            self.loop(begin, end, lambda index: {axis: index}, lambda index, _: self._around(axis + 1))
            return ()
        totals = [each for each in parts(self._root) if isinstance(each, Total) and self._lies_along(each, axis)]
        if totals:
            self._strips(totals, begin, end)
        else:
            self._row_of_output(begin, end)
        return ()

    def _lies_along(self, total: Total, axis: int) -> bool:
        """Whether the elements of `total` are beside those for the next element of the output."""
        free = self.free(total)
        if axis not in free or any(isinstance(key, Index) for key in free):
            return False
        return any(isinstance(each, Element) and axis in self.free(each.at[-1]) for each in parts(total.argument))

    def _strips(self, totals: Sequence[Total], begin: str, end: str) -> None:
        """The output's row in strips, in each of which the counts of `totals` are the same for all elements."""
        axis, step = self._innermost, self.name("s")
        memory = {each: [self._scratch(fold.type) for fold in self._folds(each)] for each in totals}

        def strip(index: str, _: Sequence[str]) -> Sequence[str]:
            run = Run(self, self.scope, axis, self.tensors)
            even = [each for each in totals if all(run.stays(count) for count in each.counts)]
            left = self.emit(f"sub i64 {end}, {index}")
            length = run.length(self.intrinsic("umin.i64", "i64", left, str(STRIP)))
            self.emit_as(step, self.call("umax.i64", "i64", length, "1"))
            stop = self.emit(f"add i64 {index}, {step}")
            self._strip = index
            for total in even:
                self._total_of_strip(total, memory[total], index, stop, step)
                self.lanes[total] = memory[total]
            self._row_of_output(index, stop)
            return ()

        self.loop(begin, end, lambda index: {axis: index}, strip, step=step)

    def _scratch(self, type_: str) -> str:
        """Memory for a strip."""
        with self.within(self.entry):
            return self.emit(f"alloca {type_}, i64 {STRIP}, align 64")

    def _row_of_output(self, begin: str, end: str) -> None:
        axis, type_ = self._innermost, llvm_type(self._stored)
        *outer, stride = self._output.strides
        address = self._output.address
        for place, each in enumerate(outer):
            offset = self.emit(f"mul i64 {self._value_of(place)}, {each}")
            address = self.emit(f"getelementptr i8, ptr {address}, i64 {offset}")

        def body(_: Sequence[str]) -> Sequence[str]:
            value = self.convert(self.write(self._root), self._root.type, self._stored)
            scope = self.scope
            assert isinstance(scope, RowScope)
            step = str(bytes_of(type_)) if scope.is_packed else stride
            offset = self.emit(f"mul i64 {scope.bound[axis]}, {step}")
            self.store(type_, value, self.emit(f"getelementptr i8, ptr {address}, i64 {offset}"), GROUP)
            return ()

        packed = self.emit(f"icmp eq i64 {stride}, {bytes_of(type_)}")
        self.row(axis, begin, end, self._root, body, packed=packed)

    def _value_of(self, key: Key) -> str:
        """The value that a key has here."""
        scope: Scope | None = self.scope
        while scope and key not in scope.bound:
            scope = scope.outer
        assert scope, "it is bound by a loop around this"
        return scope.bound[key]

    # Totals

    def _write(self, node: Value) -> str:
        if not isinstance(node, Total):
            return super()._write(node)
        if node in self.lanes:
            type_ = self._folds(node)[-1].type
            result = self.emit(f"load {type_}, ptr {self._lane(self.lanes[node][-1], type_)}, align 1{GROUP}")
        else:
            result = self._total(node)
        return self._finished(node, result)

    def _total(self, node: Total) -> str:
        """All of it, where the scope is now."""
        results: list[str] = []
        for fold in self._folds(node):

            def body(before: Sequence[str], fold: _Fold = fold, known: Sequence[str] = tuple(results)) -> Sequence[str]:
                return [fold.step(before[0], self._folded(node, known))]

            results += self._over(node, 0, body, [(fold.type, fold.start)])
        return results[-1]

    def _over(self, node: Total, place: int, body: Body, starts: Sequence[Start]) -> Sequence[str]:
        """Loops over the indices of `node` from that place on."""
        index, count = node.indices[place], self.write(node.counts[place])
        types = [type_ for type_, _ in starts]

        def around(at: str, before: Sequence[str]) -> Sequence[str]:
            results = self._over(node, place + 1, body, list(zip(types, before, strict=True)))
            self.count()  # which may be all that happens, if there are none of the other indices
            return results

        if place < len(node.indices) - 1:
            return self.loop("0", count, lambda at: {index: at}, around, starts)
        first, inside, done = self.scope, self.name("g"), self.name("g")
        inner = Scope(first, inside[1:], {})
        with self.within(inner):
            results = self.row(index, "0", count, node.argument, body, starts)
        some = self.emit(f"icmp sgt i64 {count}, 0")
        before = first.block
        first.lines += [f"br i1 {some}, label {inside}, label {done}", f"{inside[1:]}:", *inner.lines]
        first.lines.append(f"br label {done}")
        self.begin(done[1:])
        return [
            self.emit(f"phi {type_} [{start}, %{before}], [{result}, %{inner.block}]")
            for (type_, start), result in zip(starts, results, strict=True)
        ]

    def _total_of_strip(self, node: Total, memory: Sequence[str], begin: str, end: str, size: str) -> None:
        """That of each element of a strip, in `memory`."""

        def over(place: int, body: Body) -> Sequence[str]:
            if place == len(node.indices):
                return self.row(self._innermost, begin, end, node.argument, body)
            index, count = node.indices[place], self.write(node.counts[place])

            def around(at: str, _: Sequence[str]) -> Sequence[str]:
                over(place + 1, body)
                self.count()
                return ()

            return self.loop("0", count, lambda at: {index: at}, around)

        for number, fold in enumerate(self._folds(node)):

            def start(index: str, _: Sequence[str], number: int = number, fold: _Fold = fold) -> Sequence[str]:
                address = self.emit(f"getelementptr {fold.type}, ptr {memory[number]}, i64 {index}")
                self.store(fold.type, fold.start, address)
                return ()

            def body(_: Sequence[str], number: int = number, fold: _Fold = fold) -> Sequence[str]:
                known = [
                    self.emit(f"load {each.type}, ptr {self._lane(place, each.type)}, align 1{GROUP}")
                    for each, place in zip(self._folds(node)[: number + 1], memory, strict=False)
                ]
                made = fold.step(known[-1], self._folded(node, known[:-1]))
                self.store(fold.type, made, self._lane(memory[number], fold.type), GROUP)
                return ()

            self.loop("0", size, lambda index: {}, start)
            over(0, body)

    def _lane(self, memory: str, type_: str) -> str:
        """Where something is for the present element of the strip."""
        index = self.emit(f"sub nsw i64 {self._value_of(self._innermost)}, {self._strip}")
        return self.emit(f"getelementptr {type_}, ptr {memory}, i64 {index}")

    def _folds(self, node: Total) -> list[_Fold]:
        """What is accumulated: of a position, first the value and then where it is."""
        argument, exact = node.argument.type, accumulated_type(node)
        type_ = llvm_type(exact)
        match node.name:
            case "sum" | "product" as name:
                operation = "add" if name == "sum" else "mul"
                if is_float(exact):
                    operation = f"f{operation} reassoc"
                start = literal(exact, 0 if name == "sum" else 1)
                return [_Fold(type_, start, lambda a, b: self.emit(f"{operation} {type_} {a}, {b}"))]
            case "maximum" | "minimum" as name:
                return [self._extreme(name.removesuffix("imum"), argument)]
            case "first_maximum" | "first_minimum" as name:
                where = _Fold("i64", str(_NOWHERE), lambda a, b: self.intrinsic("smin.i64", "i64", a, b))
            case "last_maximum" | "last_minimum" as name:
                where = _Fold("i64", "-1", lambda a, b: self.intrinsic("smax.i64", "i64", a, b))
        return [self._extreme(name[-7:-4], argument), where]

    def _extreme(self, name: str, type_: str) -> _Fold:
        """Of "max" or "min"."""
        kind = llvm_type(type_)
        if is_float(type_):
            full = f"{name}imum.{'f32' if kind == 'float' else 'f64'}"
            start = literal(type_, -math.inf if name == "max" else math.inf)
        else:
            full = f"{'s' if type_.startswith('int') else 'u'}{name}.{kind}"
            start = str(integer_range(type_)[name == "min"])
        return _Fold(kind, start, lambda a, b: self.intrinsic(full, kind, a, b))

    def _folded(self, node: Total, known: Sequence[str]) -> str:
        """What comes to what is accumulated: the argument, or once the extreme value is known, where that is found."""
        argument = self.write(node.argument)
        type_ = node.argument.type
        if not known:
            is_exact = node.name in ("sum", "product")
            return self.convert(argument, type_, accumulated_type(node)) if is_exact else argument
        kind = llvm_type(type_)
        if is_float(type_):
            found = self.emit(f"fcmp ueq {kind} {argument}, {known[0]}")
            nan = self.emit(f"fcmp uno {kind} {argument}, {argument}")
            number = self.emit(f"fcmp ord {kind} {known[0]}, {known[0]}")
            found = self.emit(f"select i1 {number}, i1 {found}, i1 {nan}")
        else:
            found = self.emit(f"icmp eq {kind} {argument}, {known[0]}")
        nowhere = _NOWHERE if node.name.startswith("first") else -1
        return self.emit(f"select i1 {found}, i64 {self.write(self._place(node))}, i64 {nowhere}")

    def _place(self, node: Total) -> Value:
        """Which combination of its indices it is."""
        if node not in self._places:
            first, *rest = zip(node.indices, node.counts, strict=True)
            place: Value = first[0]
            for index, count in rest:
                place = Operation(INT64, "add", (Operation(INT64, "multiply", (place, count)), index))
            self._places[node] = place
        return self._places[node]

    def _finished(self, node: Total, result: str) -> str:
        """The total, of what was accumulated."""
        if not node.name.startswith(("first", "last")):
            return self.convert(result, accumulated_type(node), node.type)
        if node.name.startswith("first"):
            nothing = self.emit(f"icmp eq i64 {result}, {_NOWHERE}")
            return self.emit(f"select i1 {nothing}, i64 0, i64 {result}")
        return self.intrinsic("smax.i64", "i64", result, "0")


def _merged(root: Value) -> Value:
    """`root` with what is the same in several places made one node."""
    made: dict[Hashable, Value] = {}
    known: dict[Value, Value] = {}
    for node in parts(root):
        operands = tuple(known[each] for each in node.operands())
        key: Hashable
        match node:
            case Coordinate(axis=axis):
                key = (Coordinate, axis)
            case Constant(value=value):
                key = (Constant, node.type, repr(value))
            case Parameter(name=name, derive=derive):
                key = (Parameter, node.type, name, derive)
            case Element(name=name, stored=stored):
                key = (Element, name, stored, node.type, operands)
            case Operation(name=name):
                key = (Operation, name, node.type, operands)
            case _:
                key = node
        known[node] = made.setdefault(key, node.with_operands(operands) if operands else node)
    return known[root]
