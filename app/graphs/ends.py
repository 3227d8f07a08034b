"""What the ends of edges lead to, by index or by name."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from app.contract.names import listed, meant, one_of
from app.contract.tensors import TensorDesc, element_name
from app.contract.validation import abbreviate, in_words
from app.contract.violations import Path, Violation
from app.graphs.descriptor import (
    ConstantNode,
    GraphDesc,
    InputEdge,
    IntermediateEdge,
    NodeDesc,
    OperatorNode,
    OutputEdge,
)
from app.operators.compiled import CompiledOperator
from app.operators.operator import Operator, Role

_DATA = ("Data",)
"""What the only output of a constant is called: the field that it comes from."""


def bind_points(operator: Operator, role: Role) -> Sequence[str]:
    """Tensors of `operator` in the structure's order, which is what indices count: those of arrays one by one. Those it
    leaves out are among them."""
    arrays = operator.array_names()
    if not arrays:
        return operator.tensor_names(role)
    return [
        each
        for name in operator.tensor_names(role)
        for each in (
            [element_name(name, place) for place in range(len(getattr(operator, name)))] if name in arrays else [name]
        )
    ]


def first_readers(graph: GraphDesc) -> dict[str, TensorDesc]:
    """What the first reader of each of the graph's inputs takes it for, before anything is judged: those are left out
    that lead nowhere, or to what is no tensor, which judgement tells."""
    nodes = {node.Name: node for node in graph.Nodes if node.Name is not None}
    found: dict[str, TensorDesc] = {}
    for edge in graph.InputEdges or ():
        name = str(edge.GraphInputIndex) if edge.GraphInput is None else edge.GraphInput
        index = len(graph.Nodes) if edge.ToNodeIndex is None else edge.ToNodeIndex
        node = nodes.get(edge.ToNode or "") if index >= len(graph.Nodes) else graph.Nodes[index]
        if isinstance(node, OperatorNode):
            tensors, points = node.Desc.tensors(Role.INPUT), bind_points(node.Desc, Role.INPUT)
            place = len(points) if edge.ToNodeInputIndex is None else edge.ToNodeInputIndex
            desc = tensors.get(points[place] if place < len(points) else edge.ToNodeInput or "")
            if desc is not None and (desc.states_little or not any(desc.violations())):
                found.setdefault(name, desc)
    return found


def is_index(name: str, count: int) -> bool:
    """Whether one of `count` inputs is called so by its index."""
    return name.isdecimal() and len(name) <= len(str(count)) and name == str(int(name)) and int(name) < count


class NodeTensor(NamedTuple):
    """A tensor of a node, by the node's index and the tensor's name."""

    node: int
    tensor: str


class _Fields(NamedTuple):
    """In which fields of an edge an end may be given: the name, or the index."""

    by_name: str
    by_index: str

    @classmethod
    def of(cls, name: str) -> "_Fields":
        return cls(name, f"{name}Index")


_READERS = _Fields.of("ToNode"), _Fields.of("ToNodeInput")
_WRITERS = _Fields.of("FromNode"), _Fields.of("FromNodeOutput")
"""Of a node, and of its tensor."""


class _Given(NamedTuple):
    """The field that an end is given in, and what it says."""

    field: str
    value: int | str


class _Tensors(NamedTuple):
    """Tensors of a node of one role: all, and those that are described. None: nobody knows which are."""

    names: Sequence[str]
    described: Mapping[str, TensorDesc] | None


class NodeEnds:
    """Ends of edges at nodes. What leads nowhere is put into `violations`."""

    def __init__(
        self, nodes: Sequence[NodeDesc], compiled: Mapping[int, CompiledOperator], violations: list[Violation]
    ) -> None:
        self._nodes = nodes
        self._compiled = compiled
        self._violations = violations
        self._by_name: dict[str, int] = {}
        self._second: dict[str, int] = {}
        """By names that several nodes have, another one of these: names are for people, and may repeat."""
        self._tensors: dict[tuple[CompiledOperator | int, Role], _Tensors] = {}
        """By what a node was compiled to, which several share; by the node if it was not."""
        self._unclear: dict[Role, bool] = dict.fromkeys(Role, False)
        """Whether some edge's end should be at a node's tensor of the role, and nobody knows which node is meant."""
        self._unclear_at: dict[Role, set[int]] = {role: set() for role in Role}
        """The nodes of which some edge means a tensor of the role, and nobody knows which one."""
        for index, node in enumerate(nodes):
            if node.Name is not None:
                first = self._by_name.setdefault(node.Name, index)
                if first != index:
                    self._second.setdefault(node.Name, index)

    def called(self, node: int) -> str:
        """`node` in messages."""
        name = self._nodes[node].Name
        return f"Nodes[{node}]" if name is None else f"Nodes[{node}] ({in_words(name)})"

    def reader(self, edge: InputEdge | IntermediateEdge, path: Path) -> NodeTensor | None:
        """The tensor that `edge`, which is at `path`, leads to, if that is clear."""
        return self._tensor(edge, path, _READERS, Role.INPUT)

    def writer(self, edge: IntermediateEdge | OutputEdge, path: Path) -> NodeTensor | None:
        """The tensor that `edge`, which is at `path`, comes from, if that is clear."""
        return self._tensor(edge, path, _WRITERS, Role.OUTPUT)

    def desc(self, end: NodeTensor, role: Role) -> TensorDesc | None:
        """The descriptor of a tensor that `reader` or `writer` found; None of constants and invalid operators."""
        compiled = self._compiled.get(end.node)
        if compiled is None:
            return None
        return (compiled.inputs if role is Role.INPUT else compiled.outputs)[end.tensor]

    def expected(self, node: int, role: Role) -> Collection[str]:
        """Tensors of `node` that must have an edge, unless one that leads nowhere may be meant for them."""
        if self._unclear[role] or node in self._unclear_at[role]:
            return ()
        described = self._all(node, role).described
        if described is not None:
            return described
        desc = self._nodes[node]
        if isinstance(desc, ConstantNode):
            return _DATA
        return desc.Desc.tensors(role)  # it is invalid, and nobody knows which outputs it implies

    def _tensor(
        self, edge: InputEdge | IntermediateEdge | OutputEdge, path: Path, fields: tuple[_Fields, _Fields], role: Role
    ) -> NodeTensor | None:
        at_node, at_tensor = [_given(edge, path, each, self._violations) for each in fields]
        node = at_node and self._node(at_node, path, role)
        if node is None:
            self._unclear[role] = True
            return None
        tensor = at_tensor and self._tensor_of(node, at_tensor, path, role)
        if tensor is None:
            self._unclear_at[role].add(node)
            return None
        return NodeTensor(node, tensor)

    def _node(self, end: _Given, path: Path, role: Role) -> int | None:
        field, value = end
        if isinstance(value, str):
            node = self._by_name.get(value)
            if node is None:
                self._say(
                    (*path, field),
                    f"{field} is {in_words(value)} but no node has that Name; there are "
                    f"{listed(self._by_name) or 'none with one'}.{meant(value, self._by_name)}",
                    abbreviate(value),
                    one_of(self._by_name),
                )
                return None
            if value in self._second:
                nodes = f"Nodes[{node}] and Nodes[{self._second[value]}]"
                message = f"{field} is {in_words(value)}, the Name of both {nodes}; give {field}Index in its place."
                self._say((*path, field), message, abbreviate(value), "a name that one node has")
                return None
        elif value >= len(self._nodes):
            if self._nodes:  # that there are none has been said
                self._say((*path, field), *_beyond(field, value, len(self._nodes), "nodes"))
            return None
        else:
            node = value
        if role is Role.INPUT and isinstance(self._nodes[node], ConstantNode):
            self._say(
                (*path, field),
                f"{field} is {self.called(node)}, a constant, which has no inputs; edges lead to operators.",
                abbreviate(value),
                "an operator node",
            )
            return None
        return node

    def _tensor_of(self, node: int, end: _Given, path: Path, role: Role) -> str | None:
        field, value = end
        names, described = self._all(node, role)
        if isinstance(value, str):
            if value not in names:
                self._say(
                    (*path, field),
                    f"{field} is {in_words(value)}; {role.value}s of {self.called(node)} are {listed(names)}.",
                    abbreviate(value),
                    one_of(names),
                )
                return None
            tensor = value
        elif value >= len(names):
            self._say((*path, field), *_beyond(field, value, len(names), f"{role.value}s of {self.called(node)}"))
            return None
        else:
            tensor = names[value]
        if described is not None and tensor not in described:
            self._say(
                (*path, field),
                f"{field} is {in_words(value)}{'' if value == tensor else f', which is {tensor}'}, but Desc of "
                f"{self.called(node)} leaves that out; an edge is at a tensor that is described.",
                abbreviate(value),
                one_of(described),
            )
            return None
        return tensor

    def _all(self, node: int, role: Role) -> _Tensors:
        key = self._compiled.get(node, node), role
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = self._found(node, role)
        return found

    def _found(self, node: int, role: Role) -> _Tensors:
        desc, compiled = self._nodes[node], self._compiled.get(node)
        if isinstance(desc, ConstantNode):
            of_role = _DATA if role is Role.OUTPUT else ()
            return _Tensors(of_role, None if of_role else {})
        names = bind_points(desc.Desc, role)
        if compiled is None:
            return _Tensors(names, desc.Desc.tensors(role) if role is Role.INPUT else None)
        return _Tensors(names, compiled.inputs if role is Role.INPUT else compiled.outputs)

    def _say(self, path: Path, message: str, given: object, allowed: object) -> None:
        self._violations.append(Violation(path, message, given, allowed))


class GraphEnds:
    """Ends of edges at the graph's inputs, or at its outputs. All of them are by index, or all by name."""

    def __init__(self, role: Role, count: int | None, violations: list[Violation]) -> None:
        what = role.value.capitalize()
        self._fields = _Fields.of(f"Graph{what}")
        self._edges = f"{what}Edges"
        self._what = f"{role.value}s of the graph"
        self._count_field = f"{what}Count"
        self._may_be_idle = role is Role.INPUT
        self._count = count
        self._violations = violations
        self.by_index: bool | None = None
        """None: no edge has told yet."""
        self.unclear = False
        """Whether nobody knows which one some edge means."""
        self._mixed = False

    def find(self, edge: InputEdge | OutputEdge, path: Path) -> int | str | None:
        """The one that `edge`, which is at `path`, leads from or to, if it says."""
        found = self._find(edge, path)
        self.unclear |= found is None
        return found

    def _find(self, edge: InputEdge | OutputEdge, path: Path) -> int | str | None:
        end = _given(edge, path, self._fields, self._violations)
        if end is None:
            return None
        field, value = end
        by_index = isinstance(value, int)
        if self.by_index is None:
            self.by_index = by_index
        if by_index != self.by_index:
            if not self._mixed:  # said once: either half may be what is meant
                self._mixed = True
                other = self._fields.by_index if self.by_index else self._fields.by_name
                self._violations.append(
                    Violation(
                        (*path, field),
                        f"{field} is given here but {other} by an edge before; all edges give the same one of the two.",
                        abbreviate(value),
                        other,
                    )
                )
            return None
        if isinstance(value, int) and self._count is not None and value >= self._count:
            self._violations.append(Violation((*path, field), *_beyond(field, value, self._count, self._what)))
            return None
        return value

    def judge(self, found: Collection[int | str]) -> None:
        """That those which edges lead from or to, `found`, are as many as is said, and leave out no index."""
        if self.by_index is None or self.unclear:
            return
        if self.by_index:
            self._judge_indices(sorted(int(index) for index in found))
        elif self._count not in (None, len(found)):
            # Also of inputs: what has no edge would have no name to be bound by.
            self._violations.append(
                Violation(
                    (self._count_field,),
                    f"{self._count_field} is {self._count} but {self._edges} name {len(found)}; they must agree.",
                    self._count,
                    len(found),
                )
            )

    def _judge_indices(self, indices: list[int]) -> None:
        if self._may_be_idle and self._count is not None:
            return  # inputs that nobody reads are among them
        gaps = _gaps(indices, self._count)
        if gaps:
            but = f", or {self._count_field} counts those that nobody reads" if self._may_be_idle else ""
            self._violations.append(
                Violation(
                    (self._edges,),
                    f"{self._edges} leave out {listed(gaps)} of the {self._what}; indices go from 0 without gaps{but}.",
                    abbreviate(gaps),
                    "every index from 0 on",
                )
            )


def _gaps(indices: list[int], count: int | None) -> list[str]:
    """What ascending `indices` leave out, from 0 to `count` or to the last of them."""
    ends = [-1, *indices, *([] if count is None else [count])]
    return [
        str(before + 1) if before + 2 == after else f"{before + 1} to {after - 1}"
        for before, after in pairwise(ends)
        if before + 1 < after
    ]


def _given(
    edge: InputEdge | IntermediateEdge | OutputEdge, path: Path, fields: _Fields, violations: list[Violation]
) -> _Given | None:
    """The one of `fields` that `edge` has."""
    by_name, by_index = fields
    called: str | None = getattr(edge, by_name)
    index: int | None = getattr(edge, by_index)
    if called is None and index is not None:
        return _Given(by_index, index)
    if called is not None and index is None:
        return _Given(by_name, called)
    either = [by_index, by_name]
    if called is None:
        message = f"{by_index} is missing; an edge has it, or {by_name} in its place."
        violation = Violation((*path, by_index), message, None, either)
    else:
        violation = Violation(
            (*path, by_name),
            f"{by_name} is {in_words(called)} and {by_index} is {index}; an edge has one of the two.",
            abbreviate(called),
            either,
        )
    violations.append(violation)
    return None


def _beyond(field: str, index: int, count: int, what: str) -> tuple[str, int, str]:
    return f"{field} is {index}; there are {count} {what}, counted from 0.", index, f"< {count}"
