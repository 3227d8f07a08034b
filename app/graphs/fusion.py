"""Which nodes of a graph become one kernel: formulas are put into the formulas that read them.

A tensor between two nodes of one kernel is never in memory. Its reader may lay it out otherwise than its writer, by
strides, as long as the coordinates of one are sums of steps along the other's (`spaces.py`): so transposes, broadcasts
and most reshapes cost nothing. What goes by coordinates is put together in
`coordinate_groups.py`. What a kernel computes is what its nodes compute one by one, each result rounded to the type
that it would have been stored as.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Structures
from app.formula.uniform import Numbers
from app.formula.values import Input as InputValue
from app.formula.values import Number, Parameter, Value, as_stored, compute_type
from app.graphs.coordinate_groups import MOST_OPERATIONS as MOST_MOVING
from app.graphs.coordinate_groups import MOST_PROGRAMS, MOST_TRIED, CoordinateGroup
from app.graphs.graph import Constant, Graph, GraphInput, Node, NodeOutput, Source
from app.graphs.members import (
    MOST_INPUTS,
    Output,
    Outputs,
    Part,
    has_totals,
    input_name,
    is_cheap,
    plain_desc,
    size_of,
    whole,
)
from app.graphs.spaces import Space, Vector
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program
from app.programs.walks import Walk

MOST_OPERATIONS, MOST_DEPTH = 400, 100
"""Of one kernel: more would take compilers long, and the functions that walk formulas call themselves as deep."""

MOST_REPEATED = 8
"""A costly formula is not put where it would be computed more often than so for each of its elements."""


@dataclass(frozen=True, eq=False, slots=True)
class Fused:
    """A graph as `parts`, in an order in which they can run. `aliases` are outputs of nodes that are computed as those
    of others, which do the same."""

    parts: list[Part]
    aliases: dict[NodeOutput, NodeOutput]


def fuse(graph: Graph, structures: Structures) -> Fused:
    """`graph` in few kernels. Programs are kept in `structures`, since graphs alike have the same."""
    aliases, constants = _aliases(graph)
    values = _values(graph, aliases, constants)
    fixed = _fixed(graph, values)
    made = _roots(graph, values, aliases, fixed)
    found: dict[NodeOutput | int, Part] = {}
    moving = _Moving(values, made, structures)
    for output in reversed(values):  # from the end, since what does not fit into a later kernel becomes one of its own
        value = values[output]
        if value.made is None:
            found[output.node] = whole(value)
        elif output in made:
            found[output] = moving.part(output) or _Group(values, made, output).part(structures)
    return Fused([*found.values()][::-1], aliases)


def _aliases(graph: Graph) -> tuple[dict[NodeOutput, NodeOutput], dict[Constant, Constant]]:
    """Outputs that are the same as earlier ones, and constants of the same few bytes."""
    aliases: dict[NodeOutput, NodeOutput] = {}
    constants: dict[Constant, Constant] = {}
    by_bytes: dict[bytes, Constant] = {}
    for index, data in graph.constants.items():
        if data.nbytes <= 64:
            constants[Constant(index)] = by_bytes.setdefault(bytes(data), Constant(index))
    known: dict[Any, Node] = {}
    for node in graph.nodes.values():
        compiled = node.compiled
        key = (
            compiled.program,
            tuple(compiled.numbers.items()),
            tuple([(name, _resolved(each, aliases, constants)) for name, each in node.sources.items()]),
            tuple([_layout(desc) for desc in (*compiled.inputs.values(), *compiled.outputs.values())]),
            node.index if compiled.program.call else None,  # attributes of which are not among the numbers
        )
        same = known.setdefault(key, node)
        if same is not node:
            for name in compiled.outputs:
                aliases[NodeOutput(node.index, name)] = NodeOutput(same.index, name)
    return aliases, constants


def _layout(desc: TensorDesc) -> tuple[Any, ...]:
    return desc.DataType, tuple(desc.Sizes), tuple(desc.strides), desc.total_bytes


def _resolved(
    source: Source, aliases: Mapping[NodeOutput, NodeOutput], constants: Mapping[Constant, Constant]
) -> Source:
    match source:
        case NodeOutput():
            return aliases.get(source, source)
        case Constant():
            return constants.get(source, source)
    return source


def _values(graph: Graph, aliases: Mapping[NodeOutput, NodeOutput], constants: Mapping[Constant, Constant]) -> Outputs:
    """All that is to be computed, each after what it reads."""
    made: Outputs = {}
    for node in graph.nodes.values():
        sources = {name: _resolved(each, aliases, constants) for name, each in node.sources.items()}
        for name, desc in node.compiled.outputs.items():
            output = NodeOutput(node.index, name)
            if output not in aliases:
                program = node.compiled.program
                type_ = program.stored[name]
                made[output] = value = Output(node, program.maps.get(name), type_, desc, sources)
                if value.is_copy:
                    made[output] = replace(value, type=_copied_type(made, value))
    return made


def _copied_type(made: Outputs, copy: Output) -> DataType | None:
    """The type of what `copy` copies; None if that is not known, or not of all that it copies of several tensors."""
    assert copy.made is not None, "it is a copy"
    types: set[DataType | None] = set()
    for name in copy.moved:
        source = copy.sources[name]
        known = made[source].type if isinstance(source, NodeOutput) and made[source].made is not None else None
        types.add(known if known is not None and known.bits == copy.made.stored.bits else None)
    if DataType.FLOAT16 not in types:
        types -= {None}  # what is loaded as another type is stored as it was
    return types.pop() if len(types) == 1 else None


def _fixed(graph: Graph, values: Outputs) -> set[NodeOutput]:
    """What depends on constants and inputs that are OWNED_BY_DML alone: it is computed once."""
    fixed: set[NodeOutput] = set()

    def is_fixed(source: Source) -> bool:
        match source:
            case NodeOutput():
                return source in fixed
            case GraphInput():
                return graph.inputs[source.name].owned_by_dml
        return True

    for output, value in values.items():
        if all(is_fixed(source) for _, source, _ in value.inputs):
            fixed.add(output)
    return fixed


def _roots(
    graph: Graph, values: Outputs, aliases: Mapping[NodeOutput, NodeOutput], fixed: set[NodeOutput]
) -> set[NodeOutput]:
    """What is written to memory: outputs of the graph, what is read by several kernels, what is computed once and read
    by what is not, and what its readers read as another type."""
    readers: dict[NodeOutput, list[tuple[NodeOutput, str]]] = {}
    for output, value in values.items():
        for name, source, _ in value.inputs:
            if isinstance(source, NodeOutput):
                readers.setdefault(source, []).append((output, name))
    roots = {aliases.get(each.source, each.source) for each in graph.outputs.values()}
    kernels: dict[NodeOutput, NodeOutput] = {}
    for output in reversed(values):
        of = {kernels[reader] for reader, _ in readers.get(output, [])}
        once = output in fixed and any(reader not in fixed for reader, _ in readers.get(output, []))
        fits = all(_fits(values[output], values[reader], name) for reader, name in readers.get(output, []))
        if output in roots or len(of) != 1 or once or not fits:
            roots.add(output)
            kernels[output] = output
        else:
            (kernels[output],) = of
    return roots


def _fits(value: Output, reader: Output, name: str) -> bool:
    """Whether the formula of `value` can be put into that of `reader`, which reads it as its input `name`."""
    if value.made is None or reader.made is None:
        return False
    if value.made.by_coordinates or reader.made.by_coordinates:
        is_whole = value.desc.DataType.bits >= 8 and reader.desc.DataType.bits >= 8
        if value.made.axes or reader.made.axes or not is_whole:
            return False
        if reader.made.by_coordinates and has_totals(reader.made):
            return False  # which would compute it again and again
    stored = reader.node.compiled.program.inputs[name]
    if name in reader.moved:
        return value.made.stored.bits == stored.bits and (value.type is None or value.type is reader.type)
    return value.made.stored.bits == stored.bits if value.type is None else value.type is stored


class _Moving:
    """The kernels of a graph that go by coordinates, which have few programs."""

    def __init__(self, values: Outputs, roots: set[NodeOutput], structures: Structures) -> None:
        self._values = values
        self._roots = roots
        self._structures = structures
        self._programs: set[Program] = set()
        self._tried = 0
        self._are_any = any(value.goes_by_coordinates for value in values.values())

    def part(self, root: NodeOutput) -> Part | None:
        """That of `root`; None if nothing in it goes by coordinates."""
        if not (self._are_any and self._moves(root)):
            return None
        group = CoordinateGroup(self._values, self._roots, root, alone=self._tried == MOST_TRIED)
        part = group.part(self._structures)
        if part and len(part.nodes) > 1:
            if part.dispatchable.program in self._programs or len(self._programs) < MOST_PROGRAMS:
                self._programs.add(part.dispatchable.program)
            else:
                self._tried += 1
                group = CoordinateGroup(self._values, self._roots, root, alone=True)
                part = group.part(self._structures)
        if part:
            self._roots |= group.refused
        return part

    def _moves(self, root: NodeOutput) -> bool:
        """Whether a kernel goes by coordinates: if its `root` does, or, without reductions, what would be put into
        it."""
        values, roots = self._values, self._roots
        if values[root].goes_by_coordinates:
            return True
        found, seen, ahead = False, {root}, [root]
        while ahead and len(seen) < MOST_MOVING:  # of which each node has one at least
            value = values[ahead.pop()]
            if value.made is not None and value.made.axes:
                return False
            found |= value.goes_by_coordinates
            inner = {each for each in value.sources.values() if isinstance(each, NodeOutput) and each not in roots}
            ahead += inner - seen
            seen |= inner
        return found


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


class _Group:
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

    def part(self, structures: Structures) -> Part:
        """All of it."""
        for axis in self._formula(self._root).axes:
            self._space.axes[axis] = True
        whole = self._space.identity()
        written = self._space.address(whole, self._walk(self._root)[1][-1])
        stored = self._values[self._root].type or self._formula(self._root).stored
        self._member(self._root, stored, whole, 0)
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
        return Part(
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

    def _member(self, output: NodeOutput, stored: DataType, coordinates: list[Vector], depth: int) -> int:
        """The number of `output`, of elements `stored` so, computed for its element at `coordinates`, below formulas
        so deep."""
        placed = self._placed.setdefault(output, [])
        for type_, at, number in placed:
            if type_ is stored and at == coordinates:
                return number
        value, made = self._values[output], self._formula(output)
        count, own_depth = size_of(made)
        self._operations += count
        self._inputs += len(value.sources) - 1
        wires, is_copy = [], value.is_copy
        sizes, every = self._walk(output)
        for (_, source, read), strides in zip(value.inputs, every, strict=False):
            reading = _Reading(stored if is_copy else read, sizes, strides, coordinates)
            inner = self._inner(source, reading, depth + own_depth)
            wires.append(_Wire(False, self._leaf(source, reading)) if inner is None else _Wire(True, inner))
        names = tuple(value.node.compiled.program.inputs)
        self._members.append(_Member(output, made, stored, names, tuple(wires)))
        number = len(self._members) - 1
        placed.append((stored, coordinates, number))
        return number

    def _inner(self, source: Source, reading: _Reading, depth: int) -> int | None:
        """The number of `source` as a member, if it is one."""
        if not isinstance(source, NodeOutput) or source in self._roots:
            return None
        coordinates = self._coordinates(source, self._formula(source), reading, depth)
        if coordinates is None:
            self._roots.add(source)
            return None
        return self._member(source, reading.stored, coordinates, depth)

    def _coordinates(self, output: NodeOutput, made: Map, reading: _Reading, depth: int) -> list[Vector] | None:
        """Those of `output` for a reader; None if it had better be computed by itself."""
        if made.by_coordinates:
            return None
        value = self._values[output]
        count, own_depth = size_of(made)
        if depth + own_depth > MOST_DEPTH or self._operations + count > MOST_OPERATIONS:
            return None
        if self._inputs + len(value.sources) - 1 > MOST_INPUTS:
            return None
        repeated = self._elements // value.desc.elements
        if repeated > 1 and (made.axes or (repeated > MOST_REPEATED and not is_cheap(made))):
            return None
        sizes, (*_, strides) = self._walk(output)
        coordinates: list[Vector] | None = reading.coordinates
        if sizes != reading.sizes or strides != reading.strides:
            coordinates = self._space.coordinates(self._address(reading), sizes, strides)
        if coordinates is None or not made.axes:
            return coordinates
        axes = self._space.groups(coordinates, sizes, made.axes)
        if axes is None or not any(axes) or (any(self._space.axes) and axes != self._space.axes):
            return None
        self._space.axes = axes
        return coordinates

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


def _input(number: int, stored: DataType) -> InputValue:
    return InputValue(compute_type(stored), input_name(number), stored)


def _put(node: Value, inputs: Mapping[str, Value], prefix: str, done: dict[Value, Value]) -> Value:
    """`node` over `inputs`; its parameters' names begin with `prefix`."""
    if node not in done:
        match node:
            case InputValue():
                made = inputs[node.name]
            case Parameter():
                made = Parameter(node.type, prefix + node.name, node.derive)
            case _:
                operands = node.operands()
                put = tuple([_put(each, inputs, prefix, done) for each in operands])
                made = node.with_operands(put) if operands else node
        done[node] = made
    return done[node]
