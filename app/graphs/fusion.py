"""Which nodes of a graph become one kernel: formulas are put into the formulas that read them.

A tensor between two nodes of one kernel is never in memory. What goes by position is put together in
`position_groups.py`, what goes by coordinates in `coordinate_groups.py`. What a kernel computes is what its nodes
compute one by one, each result rounded to the type that it would have been stored as.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Structures
from app.graphs.coordinate_groups import MOST_OPERATIONS as MOST_MOVING
from app.graphs.coordinate_groups import MOST_PROGRAMS, MOST_TRIED, CoordinateGroup
from app.graphs.graph import Constant, Graph, GraphInput, Node, NodeOutput, Source
from app.graphs.members import Output, Outputs, PlannedKernel, has_totals, whole
from app.graphs.position_groups import PositionGroup
from app.operators.looks import look
from app.programs.program import Program


@dataclass(frozen=True, eq=False, slots=True)
class Fused:
    """A graph as `parts`, in an order in which they can run. `aliases` are outputs of nodes that are computed as those
    of others, which do the same."""

    parts: list[PlannedKernel]
    aliases: dict[NodeOutput, NodeOutput]


def fuse(graph: Graph, structures: Structures) -> Fused:
    """`graph` in few kernels. Programs are kept in `structures`, since graphs alike have the same."""
    aliases, constants = _aliases(graph)
    values = _values(graph, aliases, constants)
    fixed = _fixed(graph, values)
    made = _roots(graph, values, aliases, fixed)
    found: dict[NodeOutput | int, PlannedKernel] = {}
    moving = _Moving(values, made, structures)
    for output in reversed(values):  # from the end, since what does not fit into a later kernel becomes one of its own
        look()
        value = values[output]
        if value.made is None:
            found[output.node] = whole(value)
        elif output in made:
            found[output] = moving.part(output) or PositionGroup(values, made, output).part(structures)
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
        look()
        compiled = node.compiled
        key = (
            compiled.program,
            tuple([(name, repr(number)) for name, number in compiled.numbers.items()]),  # 0 is equal to -0
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
        if value.made.axes or reader.made.axes:
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

    def part(self, root: NodeOutput) -> PlannedKernel | None:
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
