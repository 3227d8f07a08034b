"""Kernels of graphs that go by position: each element is made of those at its own place, however these are laid out.

A reader may lay a tensor out otherwise than its writer, by strides, as long as the coordinates of one are sums of steps
along the other's (`spaces.py`): so transposes, broadcasts and most reshapes cost nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from app.contract.constants import DataType
from app.formula.structures import Structures
from app.formula.uniform import Numbers
from app.formula.values import Input, Number, Parameter, Value, as_stored, compute_type
from app.graphs.graph import NodeOutput, Source
from app.graphs.members import (
    MOST_INPUTS,
    MOST_WRITTEN,
    Depth,
    Outputs,
    PlannedKernel,
    input_name,
    is_cheap,
    plain_desc,
    size_of,
)
from app.graphs.spaces import Space, Vector
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program
from app.programs.walks import Walk

MOST_OPERATIONS, MOST_DEPTH = 400, 100
"""Of one kernel: more would take compilers long, and the functions that walk formulas call themselves as deep."""

MOST_REPEATED = 8
"""A costly formula is not put where it would be computed more often than so for each of its elements."""


class _Wire(NamedTuple):
    """Where a member of a kernel has an input from: from the kernel's input or the member of this number."""

    of_member: bool
    number: int


class _Leaf(NamedTuple):
    """An input of a kernel."""

    source: Source
    stored: DataType
    address: Vector


class _Reading(NamedTuple):
    """How a member reads an input: as which type, and where along dimensions of these sizes, of its own coordinates."""

    stored: DataType
    sizes: list[int]
    strides: list[int]
    coordinates: list[Vector]


class _Member(NamedTuple):
    """A formula of a kernel, and what its inputs are, in the program's order."""

    output: NodeOutput
    made: Map
    stored: DataType
    """Its elements' type, of a copy that of its reader."""
    names: tuple[str, ...]
    wires: tuple[_Wire, ...]


class PositionGroup:
    """One kernel in the making: the formula of `root`, and of what it reads as much as can be put into it.

    What turns out not to fit is added to `roots`, which all come before `root`.
    """

    def __init__(self, values: Outputs, roots: set[NodeOutput], root: NodeOutput) -> None:
        self._values = values
        self._roots = roots
        self._root = root
        self._elements = values[root].desc.elements
        self._walks: dict[NodeOutput, Walk] = {}
        self._space = Space(self._walk(root)[0])
        self._members: list[_Member] = []
        self._leaves: list[_Leaf] = []
        self._placed: dict[NodeOutput, list[tuple[DataType, list[Vector], int]]] = {}
        """At which coordinates outputs are computed, as which type, and the numbers that they have as members."""
        self._operations = 0
        self._inputs = 1
        """At most, once all members that are known are there."""

    def part(self, structures: Structures) -> PlannedKernel:
        """All of it."""
        for axis in self._formula(self._root).axes:
            self._space.axes[axis] = True
        whole = self._space.identity()
        written = self._space.address(whole, self._walk(self._root)[1][-1])
        stored = self._values[self._root].type or self._formula(self._root).stored
        self._member(self._root, stored, whole, Depth())
        sizes = list(self._space.sizes)
        axes = tuple(axis for axis, flag in enumerate(self._space.axes) if flag)
        program = structures.find(
            (tuple((each.made, each.stored, each.names, each.wires) for each in self._members), axes, len(sizes)),
            {},
            lambda _: _program(self._members, [leaf.stored for leaf in self._leaves], axes),
        )
        inputs = {input_name(n): plain_desc(leaf.stored, sizes, leaf.address) for n, leaf in enumerate(self._leaves)}
        dispatchable = Dispatchable(
            inputs,
            {"out": plain_desc(stored, sizes, written)},
            program,
            dict(self._numbers()),
        )
        return PlannedKernel(
            tuple(sorted({each.output.node for each in self._members})),
            dispatchable,
            {input_name(n): leaf.source for n, leaf in enumerate(self._leaves)},
            {"out": self._root},
        )

    def _formula(self, output: NodeOutput) -> Map:
        made = self._values[output].made
        assert made is not None, "all that is in a group is a formula"
        return made

    def _numbers(self) -> Iterator[tuple[str, Number]]:
        for number, member in enumerate(self._members):
            numbers: Numbers = self._values[member.output].node.compiled.numbers
            for name, each in numbers.items():
                yield f"{number}.{name}", each

    def _member(self, output: NodeOutput, stored: DataType, coordinates: list[Vector], depth: Depth) -> int:
        """The number of `output`, of elements `stored` so, computed for its element at `coordinates`, below formulas
        so deep."""
        value, made = self._values[output], self._formula(output)
        count, own_depth = size_of(made)
        self._operations += count
        self._inputs += len(value.sources) - 1
        wires, is_copy = [], value.is_copy
        sizes, every = self._walk(output)
        for (_, source, read), strides in zip(value.inputs, every, strict=False):
            reading = _Reading(stored if is_copy else read, sizes, strides, coordinates)
            inner = self._inner(source, reading, depth.below(own_depth))
            wires.append(_Wire(False, self._leaf(source, reading)) if inner is None else _Wire(True, inner))
        names = tuple(value.node.compiled.program.inputs)
        self._members.append(_Member(output, made, stored, names, tuple(wires)))
        number = len(self._members) - 1
        self._placed.setdefault(output, []).append((stored, coordinates, number))
        return number

    def _inner(self, source: Source, reading: _Reading, depth: Depth) -> int | None:
        """The number of `source` as a member, if it is one."""
        if not isinstance(source, NodeOutput) or source in self._roots:
            return None
        if source in self._placed:  # where it is, which takes no more room
            at = self._read_at(source, reading)
            for stored, coordinates, number in self._placed[source]:
                if stored is reading.stored and coordinates == at:
                    return number
        place = self._place(source, self._formula(source), reading, depth)
        if place is None:
            self._roots.add(source)
            return None
        return self._member(source, reading.stored, place, depth)

    def _place(self, output: NodeOutput, made: Map, reading: _Reading, depth: Depth) -> list[Vector] | None:
        """The coordinates of `output` for a reader; None if it had better be computed by itself."""
        if made.by_coordinates:
            return None
        value = self._values[output]
        count, own_depth = size_of(made)
        whole = depth.below(own_depth)
        if whole.values > MOST_DEPTH or whole.written > MOST_WRITTEN or self._operations + count > MOST_OPERATIONS:
            return None
        if self._inputs + len(value.sources) - 1 > MOST_INPUTS:
            return None
        repeated = self._elements // value.desc.elements
        if repeated > 1 and (made.axes or (repeated > MOST_REPEATED and not is_cheap(made))):
            return None
        coordinates = self._read_at(output, reading)
        if coordinates is None or not made.axes:
            return coordinates
        axes = self._space.groups(coordinates, self._walk(output)[0], made.axes)
        if axes is None or not any(axes) or (any(self._space.axes) and axes != self._space.axes):
            return None
        self._space.axes = axes
        return coordinates

    def _read_at(self, output: NodeOutput, reading: _Reading) -> list[Vector] | None:
        """The coordinates at which a reader reads `output`; None if they are no sums of steps."""
        sizes, (*_, strides) = self._walk(output)
        if sizes == reading.sizes and strides == reading.strides:
            return reading.coordinates
        return self._space.coordinates(self._address(reading), sizes, strides)

    def _walk(self, output: NodeOutput) -> Walk:
        """How its tensors lie."""
        if output not in self._walks:
            self._walks[output] = self._values[output].walk(output.tensor)
        return self._walks[output]

    def _address(self, reading: _Reading) -> Vector:
        return self._space.address(reading.coordinates, reading.strides)

    def _leaf(self, source: Source, reading: _Reading) -> int:
        """The number of the kernel's input that is `source`, read like this."""
        made = _Leaf(source, reading.stored, self._address(reading))
        for number, leaf in enumerate(self._leaves):
            if leaf == made:
                return number
        self._leaves.append(made)
        return len(self._leaves) - 1


def _program(members: Sequence[_Member], stored: Sequence[DataType], axes: tuple[int, ...]) -> Program:
    """The formulas of `members`, the last of which is the kernel's, as one, over inputs that are `stored` so."""
    expressions: list[Value] = []
    for number, member in enumerate(members):
        inputs = {
            name: as_stored(expressions[wire.number], members[wire.number].stored)
            if wire.of_member
            else _input(wire.number, stored[wire.number])
            for name, wire in zip(member.names, member.wires, strict=True)
        }
        expressions.append(_put(member.made.expression, inputs, f"{number}.", {}))
    made = Map(expressions[-1], members[-1].stored, axes)
    return Program({input_name(n): each for n, each in enumerate(stored)}, {"out": made})


def _input(number: int, stored: DataType) -> Input:
    return Input(compute_type(stored), input_name(number), stored)


def _put(node: Value, inputs: Mapping[str, Value], prefix: str, done: dict[Value, Value]) -> Value:
    """`node` over `inputs`; its parameters' names begin with `prefix`."""
    if node not in done:
        match node:
            case Input():
                made = inputs[node.name]
            case Parameter():
                made = Parameter(node.type, prefix + node.name, node.derive)
            case _:
                operands = node.operands()
                put = tuple([_put(each, inputs, prefix, done) for each in operands])
                made = node.with_operands(put) if operands else node
        done[node] = made
    return done[node]
