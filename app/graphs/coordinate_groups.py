"""Kernels of graphs that go by coordinates: what moves elements, with the formulas before and after it put into it.

A SLICE, a TILE or a JOIN computes coordinates, at which it reads. What makes the tensor that it reads can as well be
computed there; and what reads its output computes with what it finds. So moving costs no pass over memory of its own.
"""

from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.structures import Structures
from app.formula.uniform import Numbers
from app.formula.values import (
    INT64,
    Constant,
    Input,
    Number,
    Operation,
    Parameter,
    Value,
    as_stored,
    compute_type,
    parts,
)
from app.graphs.graph import NodeOutput, Source
from app.graphs.members import (
    MOST_INPUTS,
    MOST_WRITTEN,
    Depth,
    Outputs,
    PlannedKernel,
    has_totals,
    input_name,
    is_cheap,
    plain_desc,
    size_of,
    whole,
)
from app.graphs.movers import retyped
from app.graphs.spaces import Space
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program

MOST_OPERATIONS, MOST_DEPTH = 64, 50
"""Of one kernel, coordinates and all: it takes some 0.1 s to compile, and twice as large a one four times as long."""

MOST_PROGRAMS, MOST_TRIED = 6, 24
"""Of one graph: beyond so many, or when so many kernels turned out to be yet others, what moves elements is a kernel of
its own, which is the same for all of its kind."""

MOST_REPEATED = 4
"""A cheap formula is computed up to so often for each of its elements, where it is put; a costly one once."""


class _Leaf(NamedTuple):
    """An input of a kernel."""

    source: Source
    stored: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class _At(NamedTuple):
    """Where an element of a tensor is read: int64 values, one for each dimension. Unless they are `inside`, they may
    be beyond the tensor's ends, and the nearest element is meant."""

    coordinates: tuple[Value, ...]
    inside: bool


class CoordinateGroup:
    """One kernel in the making: the formula of `root`, and of what it reads as much as can be put into it.

    What turns out not to fit is in `refused`: it comes before `root`, and is a root itself if this kernel is made.
    """

    def __init__(
        self, values: Outputs, roots: AbstractSet[NodeOutput], root: NodeOutput, *, alone: bool = False
    ) -> None:
        """Nothing is put into one that is to be `alone`."""
        self.refused: set[NodeOutput] = set()
        self._values = values
        self._roots = roots
        self._alone = alone
        self._root = root
        self._elements = values[root].desc.elements
        self._shared = _Shared()
        self._leaves: list[_Leaf] = []
        self._inputs = 1
        """At most, once all members that are known are there."""
        self._members: list[NodeOutput] = []
        self._numbers: list[Numbers] = []
        """Of each member."""
        self._steps: dict[str, Number] = {}
        """What is known of layouts."""
        self._placed: dict[tuple[NodeOutput, DataType, _At], Value] = {}
        self._found: dict[Hashable, _At | None] = {}
        """Where what is read lies in tensors that were written otherwise."""
        self._has_totals = False

    def part(self, structures: Structures) -> PlannedKernel | None:
        """All of it; None if it would be one without any member that goes by coordinates."""
        root = self._values[self._root]
        assert root.made is not None, "all that is in a group is a formula"
        stored = root.type or root.made.stored
        here = _At(tuple([self._shared.put(Coordinate(INT64, axis)) for axis in range(root.desc.rank)]), True)
        expression = self._member(self._root, stored, here, Depth())
        if not self.refused.isdisjoint(self._members):  # it would be computed here, and by itself as well
            again = CoordinateGroup(self._values, self._roots | self.refused, self._root, alone=self._alone)
            part = again.part(structures)
            self.refused |= again.refused
            return part
        if not any(self._values[each].goes_by_coordinates for each in self._members):
            return None
        if len(self._members) == 1 and len(root.node.compiled.outputs) == 1:
            return whole(root)
        program = structures.find(
            (tuple(_described(expression)), tuple([leaf.stored for leaf in self._leaves]), stored),
            {},
            lambda _: Program(
                {input_name(n): leaf.stored for n, leaf in enumerate(self._leaves)},
                {"out": Map(expression, stored, by_coordinates=True)},
            ),
        )
        inputs = {
            input_name(n): plain_desc(leaf.stored, list(leaf.sizes), leaf.strides)
            for n, leaf in enumerate(self._leaves)
        }
        out = plain_desc(stored, list(root.desc.Sizes), root.desc.strides)
        return PlannedKernel(
            tuple(sorted({each.node for each in self._members})),
            Dispatchable(inputs, {"out": out}, program, dict(self._given(expression))),
            {input_name(n): leaf.source for n, leaf in enumerate(self._leaves)},
            {"out": self._root},
        )

    def _given(self, expression: Value) -> Iterator[tuple[str, Number]]:
        """The numbers of all parameters."""
        for node in parts(expression):
            if isinstance(node, Parameter):
                number, _, name = node.name.partition(".")
                yield node.name, self._numbers[int(number)][name] if name else self._steps[number]

    # Members

    def _member(self, output: NodeOutput, stored: DataType, at: _At, depth: Depth) -> Value:
        """The element of `output` there, whose elements are `stored` so, below formulas so deep."""
        known = self._placed.get((output, stored, at))
        if known is not None:
            return known
        value = self._values[output]
        made = value.made
        assert made is not None, "all that is in a group is a formula"
        prefix, below = f"{len(self._members)}.", depth.below(size_of(made)[1])
        self._members.append(output)
        self._numbers.append(value.node.compiled.numbers)
        self._inputs += len(value.sources) - 1
        self._has_totals |= made.by_coordinates and has_totals(made)
        descs, moved = value.node.compiled.inputs, value.moved
        if made.by_coordinates:
            at = self._clamped(at, value.desc.Sizes)

        def read(name: str, type_: DataType, place: _At) -> Value:
            return self._read(value.sources[name], stored if name in moved else type_, descs[name], place, below)

        # In a loop: a function that calls itself refers to itself, so that the garbage collector would have to come.
        expression = retyped(made, stored) if moved else made.expression
        done: dict[Value, Value] = {}
        for node in parts(expression):
            match node:
                case Coordinate():
                    done[node] = at.coordinates[node.axis]
                case Input():
                    done[node] = read(node.name, node.stored, self._of_reader(descs[node.name], value.desc, at))
                case Element():
                    place = _At(tuple([done[each] for each in node.at]), False)
                    done[node] = read(node.name, value.node.compiled.program.inputs[node.name], place)
                case Parameter():
                    done[node] = self._shared.put(Parameter(node.type, prefix + node.name, node.derive))
                case Index():
                    done[node] = node
                case _:
                    done[node] = self._shared.put(node.with_operands(tuple([done[each] for each in node.operands()])))
        result = done[expression]
        if not moved and output != self._root:
            result = self._shared.all_of(as_stored(result, stored))
        self._placed[output, stored, at] = result
        return result

    def _read(self, source: Source, stored: DataType, desc: TensorDesc, at: _At, depth: Depth) -> Value:
        """The element of a member's input there, which reads it as `desc` and `stored` say."""
        if isinstance(source, NodeOutput) and source not in self._roots and source not in self.refused:
            place = None if self._alone else self._place(source, stored, desc, at, depth)
            if place is not None:
                return self._member(source, stored, place, depth)
            self.refused.add(source)
        leaf = _Leaf(source, stored, tuple(desc.Sizes), tuple(desc.steps))
        if leaf not in self._leaves:
            self._leaves.append(leaf)
        name = input_name(self._leaves.index(leaf))
        return self._shared.put(Element(compute_type(stored), name, stored, at.coordinates))

    def _place(self, source: NodeOutput, stored: DataType, desc: TensorDesc, at: _At, depth: Depth) -> _At | None:
        """Where `source` is computed for a reader of `desc` there; None if it had better be computed by itself."""
        value = self._values[source]
        made = value.made
        assert made is not None, "what has none is a root"
        place = self._of_writer(desc, value.desc, at)
        if place is None or (source, stored, place) in self._placed:
            return place
        count, own_depth = size_of(made)
        coordinates = max([self._shared.depths[each] for each in at.coordinates])
        whole = depth.below(own_depth).below(Depth(coordinates, coordinates))
        if whole.values > MOST_DEPTH or whole.written > MOST_WRITTEN:
            return None
        if len(self._shared.depths) + count > MOST_OPERATIONS:
            return None
        if made.axes or self._inputs + len(value.sources) - 1 > MOST_INPUTS:
            return None
        repeated = self._elements / value.desc.elements
        if repeated > (MOST_REPEATED if is_cheap(made) else 1):
            return None
        if made.by_coordinates and has_totals(made):
            # These are computed once for each of the kernel's elements, along with which they go through memory.
            here = all(isinstance(each, Coordinate) and each.axis == n for n, each in enumerate(place.coordinates))
            if self._has_totals or not here or value.desc.elements != self._elements:
                return None
        return place

    # Coordinates

    def _number(self, number: Number) -> Value:
        """A number that is another one for other sizes."""
        name = str(len(self._steps))
        self._steps[name] = number
        return self._shared.put(Parameter(INT64, name))

    def _operation(self, name: str, *arguments: Value) -> Value:
        return self._shared.put(Operation(INT64, name, arguments))

    def _clamped(self, at: _At, sizes: Sequence[int]) -> _At:
        """Those of the nearest element inside a tensor of `sizes`."""
        if at.inside:
            return at
        zero = self._shared.put(Constant(INT64, 0))
        return _At(
            tuple(
                [
                    self._operation("maximum", self._operation("minimum", each, self._number(size - 1)), zero)
                    if size > 1
                    else zero
                    for each, size in zip(at.coordinates, sizes, strict=True)
                ]
            ),
            True,
        )

    def _of_reader(self, desc: TensorDesc, made: TensorDesc, at: _At) -> _At:
        """Where the elements are in an input that `made`, each by itself, is made of."""
        zero = self._shared.put(Constant(INT64, 0))
        if desc.elements == 1 < made.elements:
            return _At((zero,) * desc.rank, True)
        places = zip(at.coordinates, desc.Sizes, made.Sizes, strict=True)
        return _At(tuple([each if size == length else zero for each, size, length in places]), at.inside)

    def _of_writer(self, reader: TensorDesc, writer: TensorDesc, at: _At) -> _At | None:
        """Where what a reader reads `at` is in the tensor that was written. None if that is no sum of steps."""
        if list(reader.Sizes) == list(writer.Sizes) and reader.steps == writer.steps:
            return at
        layouts = [tuple(each) for desc in (reader, writer) for each in (desc.Sizes, desc.steps)]
        key = (at, *layouts)
        if key not in self._found:
            self._found[key] = self._through(reader, writer, at)
        return self._found[key]

    def _through(self, reader: TensorDesc, writer: TensorDesc, at: _At) -> _At | None:
        """The same, of tensors that lie otherwise."""
        space = Space(reader.Sizes)
        whole = space.identity()
        made = space.coordinates(space.vector(reader.steps), writer.Sizes, writer.strides)
        if made is None:
            return None
        digits: list[Value | None] = [None] * len(space.sizes)
        for each, size, steps in zip(self._clamped(at, reader.Sizes).coordinates, reader.Sizes, whole, strict=True):
            for n, step in enumerate(steps):
                if step:  # a digit of this coordinate, whose dimension was split
                    digit = each if step == 1 else self._operation("quotient", each, self._number(step))
                    if step * space.sizes[n] < size:
                        digit = self._operation("remainder", digit, self._number(space.sizes[n]))
                    digits[n] = digit
        return _At(tuple([self._sum(vector, digits) for vector in made]), True)

    def _sum(self, steps: Sequence[int], digits: Sequence[Value | None]) -> Value:
        """That of some steps along each of `digits`."""
        total: Value | None = None
        for step, digit in zip(steps, digits, strict=True):
            if step and digit is not None:
                term = digit if step == 1 else self._operation("multiply", digit, self._number(step))
                total = term if total is None else self._operation("add", total, term)
        return self._shared.put(Constant(INT64, 0)) if total is None else total


class _Shared:
    """Values, of which those that are the same are one, with how deep each is."""

    def __init__(self) -> None:
        self.depths: dict[Value, int] = {}
        self._known: dict[Hashable, Value] = {}

    def put(self, node: Value) -> Value:
        """`node`, whose operands were put here, or what is the same."""
        known = self._known.setdefault(_key(node, node.operands()), node)
        if known is node:
            self.depths[node] = 1 + max([self.depths.get(each, 1) for each in node.operands()], default=0)
        return known

    def all_of(self, node: Value) -> Value:
        """The same, of a node some of whose operands may not be here."""
        if node in self.depths or not node.operands():
            return self.put(node)
        return self.put(node.with_operands(tuple(map(self.all_of, node.operands()))))


def _key(node: Value, operands: tuple[Hashable, ...]) -> Hashable:
    """What two nodes have in common that are the same if their `operands` are."""
    match node:
        case Coordinate():
            return "coordinate", node.axis
        case Constant():
            return "constant", node.type, repr(node.value)
        case Parameter():
            return "parameter", node.type, node.name, node.derive
        case Element():
            return "element", node.type, node.name, node.stored, operands
        case Total():
            return "total", node.type, node.name, node.indices, operands
        case Operation():
            return "operation", node.type, node.name, operands
    return node


def _described(expression: Value) -> Iterator[Hashable]:
    """All values that `expression` is made of: the same of two that are the same."""
    numbers: dict[Value, int] = {}
    for node in parts(expression):
        numbers[node] = len(numbers)
        yield _key(node, tuple([numbers[each] for each in node.operands()]))
