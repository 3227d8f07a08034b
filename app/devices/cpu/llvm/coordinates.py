"""Loop nests for formulas that go by coordinates.

A nest is a module with a function `kernel`, whose argument is a list of 64-bit numbers, its frame: the address of a
function that says whether to stop, that of what it is given, and after how many iterations it is asked; the first
coordinate along each dimension of a block, and the one after the last; the address of the output's first element, and
the output's strides in bytes; for each input its address, its sizes and its strides in bytes; then the numbers that are
the same for all elements, each in the lowest bytes of its number. So one nest serves all sizes, strides and attributes.

A total whose elements lie along the output's innermost dimension is accumulated for STRIP elements of the output at
once, so that loops go through memory as it lies; others, one after the other, along their last index.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.contract.constants import DataType
from app.devices.cpu.llvm.row_loops import GROUP, METADATA, RowScope
from app.devices.cpu.llvm.runs import RunAlong, TensorNames, clamped
from app.devices.cpu.llvm.tabled import Place, tabled
from app.devices.cpu.llvm.totals import STRIP, Totals
from app.devices.cpu.llvm.types import bytes_of, llvm_type
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.expansions import Ask
from app.formula.uniform import is_uniform
from app.formula.values import Constant, Operation, Parameter, Value, is_float, parts

TABLE = 1 << 9
"""Elements of the output's innermost dimension for which there are tables at once."""

ROWS = 1 << 4
"""Of the output, for which tables of places are made that are known in runs as well: each division takes as long as ten
elements."""

MOST, DEEPEST = 400, 60
"""Operations of a formula, and of which one is made of the other, with which it still compiles in some seconds."""


@dataclass(frozen=True, slots=True)
class Nest:
    """A nest, and what its frame has: `inputs`, by their names with their ranks, and `parameters`."""

    source: str
    inputs: dict[str, int]
    parameters: list[Value]
    instructions: int
    """About how many there are for an element, or for each combination of a total's indices."""
    work: int
    """The same with the bytes that are read and written, and without what is done once for a `row` of the output."""
    row: int


def nest(ask: Ask, expression: Value, stored: DataType, rank: int) -> Nest:
    """The nest of an output of so many dimensions. Raises LookupError if NumPy is to compute it."""
    root = _merged(expression)
    depths: dict[Value, int] = {}
    for node in parts(root):
        depths[node] = 1 + max([depths[each] for each in node.operands()], default=0)
    if len(depths) > MOST or depths[root] > DEEPEST:
        raise LookupError("the formula is too large to be compiled while a request waits")
    return _Nest(ask, root, stored, rank).made()


class _One(NamedTuple):
    """A row with `on` at the coordinate `at`, if that is in it, and `off` everywhere else."""

    at: Value
    on: Value
    off: Value


class _Nest(Totals):
    def __init__(self, ask: Ask, root: Value, stored: DataType, rank: int) -> None:
        nodes = [each for each in parts(root) if not is_uniform(each)]
        super().__init__(ask, rank - 1)
        self._instructions = len(nodes) + 2
        along = [each for each in nodes if self._is_along(each) and not isinstance(each, Coordinate)]
        """What differs from element to element: little in rows that are copied, nearly all where each element is looked
        up by an index of its own."""
        read = [each.stored for each in along if isinstance(each, Element)]
        self._work = 2 + len(along) + sum(bytes_of(llvm_type(each.value.lower())) for each in (*read, stored))
        self._row = len(nodes) - len(along)
        self._root = root
        self._stored = stored.value.lower()
        self._ranks = {each.name: len(each.at) for each in nodes if isinstance(each, Element)}
        self._bounds = [(self.number(), self.number()) for _ in range(rank)]
        self._output = TensorNames(self.address(), [], self.numbers(rank))
        for name, count in self._ranks.items():
            self.tensors[name] = TensorNames(self.address(), self.numbers(count), self.numbers(count))
        self._tables: dict[Value | Place, str] = {}
        """Where those are that there are, for elements from the first bound of the innermost dimension on."""
        self._by_division: dict[Value | Place, str] = {}
        """The same of those that are there only for rows that look them up."""

    def made(self) -> Nest:
        """All of it."""
        self._by_tables()
        head = ["define void @kernel(ptr noalias readonly %frame) {", "entry:"]
        lines = [*sorted(self._declarations), *head, *self.entry.lines, "br label %end", "end:", "ret void", "}"]
        return Nest(
            "\n".join([*lines, *METADATA]), self._ranks, self._parameters, self._instructions, self._work, self._row
        )

    def _is_along(self, node: Value) -> bool:
        """Whether it is computed for each element, or each term of a total."""
        return any(key == self.innermost or isinstance(key, Index) for key in self.free(node))

    # The output

    def _by_tables(self) -> None:
        """Loops over all dimensions; where there are tables to make, a part of the innermost one at a time."""
        axis = self.innermost
        found = tabled(self._root, axis, self.free)
        if not axis or not (found.places or found.divided or found.values):
            self._around(0)
            return
        begin, end = self._bounds[axis]

        def part(index: str, _: Sequence[str]) -> Sequence[str]:
            stop = self.intrinsic("smin.i64", "i64", end, self.emit(f"add i64 {index}, {TABLE}"))
            made = self._made([*found.places, *found.values], index, stop)
            if found.divided:
                rows = "1"
                for first, last in self._bounds[:axis]:
                    rows = self.emit(f"mul i64 {rows}, {self.emit(f'sub i64 {last}, {first}')}")
                self.looks_up = self.emit(f"icmp uge i64 {rows}, {ROWS}")
                until = self.emit(f"select i1 {self.looks_up}, i64 {stop}, i64 {index}")
                self._by_division = self._made(list(found.divided), index, until)
            self._tables, self._bounds[axis] = made, (index, stop)
            return self._around(0)

        self.loop(begin, end, lambda index: {}, part, step=str(TABLE))

    def _made(self, wanted: Sequence[Value | Place], begin: str, end: str) -> dict[Value | Place, str]:
        """Tables of what is `wanted`, for elements from `begin` to below `end`."""
        made: dict[Value | Place, str] = {}

        def element(at: str, _: Sequence[str]) -> Sequence[str]:
            number = self.emit(f"sub nuw nsw i64 {at}, {begin}")
            for each in wanted:
                type_ = "i64" if isinstance(each, Place) else llvm_type(each.type)
                value = self._offset(each) if isinstance(each, Place) else self.write(each)
                made[each] = self.scratch(type_, TABLE)
                self.store(type_, value, self.emit(f"getelementptr {type_}, ptr {made[each]}, i64 {number}"))
            return ()

        if wanted:
            self.loop(begin, end, lambda at: {self.innermost: at}, element)
        return made

    def _offset(self, place: Place) -> str:
        tensor = self.tensors[place.name]
        inside = clamped(self, self.write(place.at), tensor.sizes[place.axis])
        return self.emit(f"mul i64 {inside}, {tensor.strides[place.axis]}")

    def _looked_up(self, table: str, type_: str) -> str:
        """What a table has for the present element."""
        axis = self.innermost
        number = self.emit(f"sub nuw nsw i64 {self.value_of(axis)}, {self._bounds[axis][0]}")
        place = self.emit(f"getelementptr {type_}, ptr {table}, i64 {number}")
        return self.emit(f"load {type_}, ptr {place}, align {bytes_of(type_)}{GROUP}")

    def _write(self, node: Value) -> str:
        return (
            self._looked_up(self._tables[node], llvm_type(node.type)) if node in self._tables else super()._write(node)
        )

    def offset(self, node: Element, axis: int) -> str:
        place, scope = Place(node.name, axis, node.at[axis]), self.scope
        table = self._tables.get(place)
        if isinstance(scope, RowScope) and scope.looks_up:
            table = self._by_division.get(place, table)
        return self._looked_up(table, "i64") if table else super().offset(node, axis)

    def _around(self, axis: int) -> Sequence[str]:
        """Loops over the dimensions from `axis` on."""
        begin, end = self._bounds[axis]
        if axis < self.innermost:
            self.loop(begin, end, lambda index: {axis: index}, lambda index, _: self._around(axis + 1))
            return ()
        totals = [each for each in parts(self._root) if isinstance(each, Total) and self._lies_along(each, axis)]
        if totals:
            self._strips(totals, begin, end)
        else:
            self._row_of_output(begin, end)
        return ()

    def _lies_along(self, total: Total, axis: int) -> bool:
        """Whether the elements of `total` are beside those for the next element of the output: those that are not the
        same for all of its terms."""
        free = self.free(total)
        if axis not in free or any(isinstance(key, Index) for key in free):
            return False
        own = set(total.indices)
        elements = [each for each in parts(total.argument) if isinstance(each, Element) and own & set(self.free(each))]
        along = [each for each in elements if axis in self.free(each)]
        return any(axis in self.free(each.at[-1]) for each in along) or (
            bool(along) and all(_is_computed(each.at[-1]) for each in elements)
        )

    def _strips(self, totals: Sequence[Total], begin: str, end: str) -> None:
        """The output's row in strips, in each of which the counts of `totals` are the same for all elements."""
        axis, step = self.innermost, self.name("s")
        memory = {each: [self.scratch(fold.type) for fold in self.folds(each)] for each in totals}

        def strip(index: str, _: Sequence[str]) -> Sequence[str]:
            run = RunAlong(self, self.scope, axis, self.tensors)
            even = [each for each in totals if all(run.stays(count) for count in each.counts)]
            left = self.emit(f"sub i64 {end}, {index}")
            length = run.length(self.intrinsic("umin.i64", "i64", left, str(STRIP)))
            self.emit_as(step, self.call("umax.i64", "i64", length, "1"))
            stop = self.emit(f"add i64 {index}, {step}")
            self.strip = index
            for total in even:
                self.total_of_strip(total, memory[total], index, stop, step)
                self.lanes[total] = memory[total]
            self._row_of_output(index, stop)
            return ()

        self.loop(begin, end, lambda index: {axis: index}, strip, step=step)

    def _row_of_output(self, begin: str, end: str) -> None:
        axis, type_ = self.innermost, llvm_type(self._stored)
        *outer, stride = self._output.strides
        address = self._output.address
        for place, each in enumerate(outer):
            offset = self.emit(f"mul i64 {self.value_of(place)}, {each}")
            address = self.emit(f"getelementptr i8, ptr {address}, i64 {offset}")

        one = self._one_of_row()
        rest = one.off if one else self._root

        def body(_: Sequence[str]) -> Sequence[str]:
            value = self.convert(self.write(rest), rest.type, self._stored)
            scope = self.scope
            assert isinstance(scope, RowScope)
            step = str(bytes_of(type_)) if scope.is_packed else stride
            offset = self.emit(f"mul i64 {scope.bound[axis]}, {step}")
            self.store(type_, value, self.emit(f"getelementptr i8, ptr {address}, i64 {offset}"), GROUP)
            return ()

        packed = self.emit(f"icmp eq i64 {stride}, {bytes_of(type_)}")
        self.row(axis, begin, end, rest, body, packed=packed)
        if one:
            at, last = self.write(one.at), self.emit(f"sub i64 {end}, 1")
            inside = self.intrinsic("smax.i64", "i64", self.intrinsic("smin.i64", "i64", at, last), begin)
            on, off = (self.convert(self.write(each), each.type, self._stored) for each in (one.on, one.off))
            value = self.emit(f"select i1 {self.emit(f'icmp eq i64 {at}, {inside}')}, {type_} {on}, {type_} {off}")
            offset = self.emit(f"mul i64 {inside}, {stride}")
            self.store(type_, value, self.emit(f"getelementptr i8, ptr {address}, i64 {offset}"))

    def _one_of_row(self) -> "_One | None":
        """What the output's rows are, if each is the same all along but for one element at most."""
        axis = self.innermost
        match self._root:
            case Operation(name="where", arguments=(Operation(name="equal", arguments=(a, b)), on, off)):
                own, at = (a, b) if isinstance(a, Coordinate) else (b, a)
                is_own = isinstance(own, Coordinate) and own.axis == axis
                if is_own and not any(axis in self.free(each) for each in (at, on, off)):
                    return _One(at, on, off)
        return None


def _is_computed(place: Value) -> bool:
    """Whether a coordinate comes of numbers that are no coordinates, so that terms lie wherever these are."""
    return any(is_float(each.type) or isinstance(each, Element) for each in parts(place))


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
