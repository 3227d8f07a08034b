"""The rules for graphs: from a descriptor to a graph whose every tensor is from somewhere and goes somewhere.

Source of the rules: "DML_GRAPH_DESC" and IDMLDevice1::CompileGraph in DirectML's documentation. Where that is silent it
is the strict reading that is taken: no two edges into one tensor, no output that nobody reads, no input that is fed
although its descriptor is left out.
"""

from collections.abc import Mapping
from typing import TypeVar

from app.contract.constants import FeatureLevel
from app.contract.names import listed
from app.contract.tensors import TensorDesc
from app.contract.validation import abbreviate, in_words
from app.contract.violations import ContractError, Path, Violation, refused
from app.formula.structures import Structures
from app.graphs.descriptor import ConstantNode, GraphDesc, OperatorNode
from app.graphs.ends import GraphEnds, NodeEnds, NodeTensor
from app.graphs.graph import Constant, Graph, GraphInput, Input, Node, NodeOutput, Output, Source
from app.graphs.order import Link, put_in_order
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.looks import look
from app.operators.operator import Role

T = TypeVar("T")

MAX_NODES = 1 << 16
"""Nodes of a graph, unless `resolve` is told otherwise."""

GRAPHS = FeatureLevel.V2_1
"""The feature level that introduced graphs."""

CONSTANTS = FeatureLevel.V6_2
"""The feature level that introduced constant nodes."""


def resolve(
    desc: GraphDesc,
    level: FeatureLevel,
    constants: Mapping[int, Buffer],
    structures: Structures | None = None,
    max_nodes: int = MAX_NODES,
) -> Graph:
    """Judge a graph as a device of `level` does. Raises ContractError with all that is wrong, but for what only follows
    from something else that is; paths start at the graph.

    `constants` has the data of every constant node, by its index. Of more than `max_nodes` nodes nothing else is
    judged. Formulas are among `structures` if operators like them were compiled with these before.
    """
    if len(desc.Nodes) > max_nodes:
        count = len(desc.Nodes)
        raise refused(("Nodes",), f"Nodes has {count} entries; allowed are <= {max_nodes}.", count, f"<= {max_nodes}")
    return _Judgement(desc, level, constants, Structures() if structures is None else structures).graph()


class _Judgement:
    """What is found out about a graph, step by step: its nodes, what edges connect, what is left unconnected."""

    def __init__(
        self, desc: GraphDesc, level: FeatureLevel, constants: Mapping[int, Buffer], structures: Structures
    ) -> None:
        self._desc = desc
        self._level = level
        self._constants = constants
        self._violations: list[Violation] = []
        self._compiled: dict[int, CompiledOperator] = {}
        self._judge_whole()
        self._compile(structures)
        self._ends = NodeEnds(desc.Nodes, self._compiled, self._violations)
        self._inputs = GraphEnds(Role.INPUT, desc.InputCount, self._violations)
        self._outputs = GraphEnds(Role.OUTPUT, desc.OutputCount, self._violations)
        self._fed: dict[NodeTensor, Path] = {}
        """By which edge; inputs of nodes."""
        self._sources: dict[NodeTensor, Source] = {}
        self._read: set[NodeTensor] = set()
        """Outputs of nodes."""
        self._readers: dict[int | str, dict[NodeTensor, TensorDesc]] = {}
        """Of the graph's inputs."""
        self._made: dict[int | str, tuple[Path, NodeTensor | None]] = {}
        """The graph's outputs, by which edge and from where."""
        self._links: list[Link] = []
        self._link_edges: list[int] = []
        """Which of IntermediateEdges each link is."""

    def graph(self) -> Graph:
        """The graph. Raises ContractError."""
        self._connect_inputs()
        self._connect_nodes()
        self._connect_outputs()
        order = self._order()
        self._find_unconnected()
        self._inputs.judge(self._readers)
        self._outputs.judge(self._made)
        if self._violations:
            raise ContractError(self._violations)
        return Graph(
            self._level,
            {index: self._node(index) for index in order if index in self._compiled},
            self._constants,
            {str(name): _input(str(name), readers) for name, readers in _in_order(self._readers)},
            {str(name): self._output(str(name), end) for name, (_, end) in _in_order(self._made)},
        )

    def _say(self, path: Path, message: str, given: object = None, allowed: object = None) -> None:
        self._violations.append(Violation(path, message, given, allowed))

    # Nodes

    def _judge_whole(self) -> None:
        desc, level = self._desc, self._level
        if level < GRAPHS:
            self._say(
                (),
                f"Graphs do not exist at feature level {level}; they were introduced at {GRAPHS}.",
                level.full_name,
                f">= {GRAPHS.full_name}",
            )
        if not desc.Nodes:
            self._say(("Nodes",), "Nodes is empty; a graph has at least one operator.", 0, ">= 1")
        if not desc.OutputEdges:
            self._say(("OutputEdges",), "OutputEdges is empty; a graph has at least one output.", 0, ">= 1")
        for field, stated, listed_ones in (
            ("Node", desc.NodeCount, desc.Nodes),
            ("InputEdge", desc.InputEdgeCount, desc.InputEdges),
            ("OutputEdge", desc.OutputEdgeCount, desc.OutputEdges),
            ("IntermediateEdge", desc.IntermediateEdgeCount, desc.IntermediateEdges),
        ):
            count = len(listed_ones or ())
            if stated not in (None, count):
                self._say(
                    (f"{field}Count",),
                    f"{field}Count is {stated} but {field}s has {count} entries; they must agree.",
                    stated,
                    count,
                )

    def _compile(self, structures: Structures) -> None:
        known: dict[str, CompiledOperator] = {}  # of nodes that do the same, which most graphs have, one is judged
        for index, (node, sent) in enumerate(zip(self._desc.Nodes, self._desc.as_sent["Nodes"], strict=True)):
            look()
            if isinstance(node, OperatorNode):
                key = repr(sent["Desc"])
                try:
                    if key not in known:
                        known[key] = compile_operator(node.Desc, self._level, structures)
                    self._compiled[index] = known[key]
                except ContractError as error:
                    self._violations += [each.below("Nodes", index, "Desc") for each in error.violations]
                continue
            length = self._constants[index].nbytes
            if node.DataSize not in (None, length):
                self._say(
                    ("Nodes", index, "DataSize"),
                    f"DataSize of Nodes[{index}] is {node.DataSize} but its Data have {length} bytes; they must agree.",
                    node.DataSize,
                    length,
                )
            if self._level < CONSTANTS:
                self._say(
                    ("Nodes", index, "Type"),
                    f"Type of Nodes[{index}] is CONSTANT, which does not exist at feature level {self._level}; it was "
                    f"introduced at {CONSTANTS}.",
                    self._level.full_name,
                    f">= {CONSTANTS.full_name}",
                )

    # Edges

    def _connect_inputs(self) -> None:
        for index, edge in enumerate(self._desc.InputEdges or ()):
            path: Path = ("InputEdges", index)
            name, reader = self._inputs.find(edge, path), self._ends.reader(edge, path)
            if name is not None:
                readers = self._readers.setdefault(name, {})  # it is read, whoever does
            if reader is None or not self._feed(reader, path) or name is None:
                continue
            self._sources[reader] = GraphInput(str(name))
            desc = self._ends.desc(reader, Role.INPUT)
            if desc is not None:
                self._judge_reader(path, readers, reader, desc)
                readers[reader] = desc

    def _judge_reader(
        self, path: Path, readers: Mapping[NodeTensor, TensorDesc], reader: NodeTensor, desc: TensorDesc
    ) -> None:
        """One more reader of a graph's input."""
        if not readers:
            return
        other, model = next(iter(readers.items()))
        if desc.total_bytes != model.total_bytes:
            self._say(
                path,
                f"{_at(path)} leads to {self._called(reader)}, of {desc.total_bytes} bytes, but "
                f"{_at(self._fed[other])} from the same input of the graph to {self._called(other)}, of "
                f"{model.total_bytes}; their TotalTensorSizeInBytes must be equal.",
                desc.total_bytes,
                model.total_bytes,
            )
        if desc.owned_by_dml != model.owned_by_dml:
            this, that = _flag(desc), _flag(model)
            self._say(
                path,
                f"{_at(path)} leads to {self._called(reader)}, whose Flags are {this}, but {_at(self._fed[other])} "
                f"from the same input of the graph to {self._called(other)}, whose Flags are {that}; all of them are "
                "OWNED_BY_DML, or none.",
                this,
                that,
            )

    def _connect_nodes(self) -> None:
        for index, edge in enumerate(self._desc.IntermediateEdges or ()):
            path: Path = ("IntermediateEdges", index)
            writer, reader = self._ends.writer(edge, path), self._ends.reader(edge, path)
            if writer is not None:
                self._read.add(writer)
            if reader is None or not self._feed(reader, path) or writer is None:
                continue
            if isinstance(self._desc.Nodes[writer.node], ConstantNode):
                self._sources[reader] = Constant(writer.node)
                self._judge_constant(path, writer, reader)
            elif writer.node == reader.node:
                called = self._ends.called(writer.node)
                self._say(
                    path,
                    f"{_at(path)} leads from {called} to itself; a graph has no cycles.",
                    [writer.node],
                    "a node that does not depend on the reader",
                )
            else:
                self._sources[reader] = NodeOutput(*writer)
                self._links.append(Link(writer.node, reader.node))
                self._link_edges.append(index)
                self._judge_bytes(path, writer, reader)

    def _feed(self, reader: NodeTensor, path: Path) -> bool:
        """Note that the edge at `path` leads to `reader`. False if another one does already."""
        first = self._fed.setdefault(reader, path)
        if first is not path:
            self._say(
                path,
                f"{_at(path)} leads to {self._called(reader)}, to which {_at(first)} does already; a tensor has one "
                "source.",
                _at(path),
                _at(first),
            )
            return False
        return True

    def _judge_constant(self, path: Path, writer: NodeTensor, reader: NodeTensor) -> None:
        desc = self._ends.desc(reader, Role.INPUT)
        if desc is None:
            return
        self._judge_ownership(path, reader, desc, "a constant")
        # DirectML's own caller hands over the bytes that the elements take, without those that round them up. Fewer
        # than the layout reaches are not taken, though a size of its own may be up to 3 more.
        length, least = self._constants[writer.node].nbytes, max(desc.total_bytes - 3, desc.data_bytes)
        if not least <= length <= desc.total_bytes:
            allowed = str(least) if least == desc.total_bytes else f"{least} to {desc.total_bytes}"
            self._say(
                ("Nodes", writer.node, "Data"),
                f"Data of {self._ends.called(writer.node)} are {length} bytes but {self._called(reader)}, to which "
                f"{_at(path)} leads, takes {allowed}.",
                length,
                allowed,
            )

    def _judge_bytes(self, path: Path, writer: NodeTensor, reader: NodeTensor) -> None:
        made, read = self._ends.desc(writer, Role.OUTPUT), self._ends.desc(reader, Role.INPUT)
        if read is None:
            return
        self._judge_ownership(path, reader, read, "a node")
        if made is not None and made.total_bytes != read.total_bytes:
            self._say(
                path,
                f"{_at(path)} leads from {self._called(writer)}, of {made.total_bytes} bytes, to "
                f"{self._called(reader)}, of {read.total_bytes}; their TotalTensorSizeInBytes must be equal.",
                read.total_bytes,
                made.total_bytes,
            )

    def _judge_ownership(self, path: Path, reader: NodeTensor, desc: TensorDesc, source: str) -> None:
        if desc.owned_by_dml:
            self._say(
                path,
                f"{_at(path)} leads from {source} to {self._called(reader)}, which is OWNED_BY_DML; such a tensor is "
                "an input of the graph.",
                "OWNED_BY_DML",
                ["NONE"],
            )

    def _connect_outputs(self) -> None:
        for index, edge in enumerate(self._desc.OutputEdges):
            path: Path = ("OutputEdges", index)
            writer, name = self._ends.writer(edge, path), self._outputs.find(edge, path)
            if writer is not None:
                self._read.add(writer)
                if isinstance(self._desc.Nodes[writer.node], ConstantNode):
                    self._say(
                        path,
                        f"{_at(path)} leads out of the graph from {self._ends.called(writer.node)}, a constant, which "
                        "has no descriptor; put ELEMENT_WISE_IDENTITY between.",
                        writer.node,
                        "an operator node",
                    )
            if name is None:
                continue
            first = self._made.get(name)
            if first is not None:
                field = "GraphOutputIndex" if self._outputs.by_index else "GraphOutput"
                self._say(
                    (*path, field),
                    f"{field} is {in_words(name)}, to which {_at(first[0])} leads already; an output of the graph "
                    "has one edge.",
                    abbreviate(name),
                    "an output without an edge",
                )
            else:
                self._made[name] = (path, writer)

    # The graph

    def _order(self) -> list[int]:
        order, cycles = put_in_order(len(self._desc.Nodes), self._links)
        for cycle in cycles:
            last = max(self._link_edges[position] for position in cycle)
            nodes = [self._links[position].writer for position in cycle]
            way = listed([self._ends.called(node) for node in nodes])
            self._say(
                ("IntermediateEdges", last),
                f"IntermediateEdges[{last}] closes a cycle of {len(nodes)} nodes, {way}; a graph has no cycles.",
                abbreviate(nodes),
                "a node that does not depend on the reader",
            )
        return order

    def _find_unconnected(self) -> None:
        """Inputs that are described and have no edge, and nodes of which nothing is read, unless an edge that leads
        nowhere may be meant for them."""
        for index in range(len(self._desc.Nodes)):
            for name in self._ends.expected(index, Role.INPUT):
                if NodeTensor(index, name) not in self._fed:
                    self._say(
                        ("Nodes", index),
                        f"{name} of {self._ends.called(index)} has no edge; every tensor that is described has one.",
                        name,
                        "an edge of InputEdges or IntermediateEdges",
                    )
            # Without any output of the graph nothing can lead to one, which has been said.
            outputs = self._ends.expected(index, Role.OUTPUT) if self._desc.OutputEdges else ()
            unread = [name for name in outputs if NodeTensor(index, name) not in self._read]
            # Of several outputs those that are read will do, as programs have it: DirectMLX and onnxruntime make edges
            # for nothing else. tfdml/kernels/dml_in_topk_op.cc of TensorFlow's plugin reads just the values of TOP_K.
            for name in unread if len(unread) == len(outputs) else ():
                self._say(
                    ("Nodes", index),
                    f"{name} of {self._ends.called(index)} has no edge; a node leads to another or out of the graph.",
                    name,
                    "an edge of IntermediateEdges or OutputEdges",
                )

    def _node(self, index: int) -> Node:
        compiled = self._compiled[index]
        sources = {name: self._sources[NodeTensor(index, name)] for name in compiled.inputs}
        return Node(index, self._desc.Nodes[index].Name, compiled, sources)

    def _output(self, name: str, end: NodeTensor | None) -> Output:
        assert end is not None, "the graph has passed judgement"
        return Output(name, NodeOutput(*end), self._compiled[end.node].outputs[end.tensor])

    def _called(self, end: NodeTensor) -> str:
        return f"{end.tensor} of {self._ends.called(end.node)}"


def _input(name: str, readers: dict[NodeTensor, TensorDesc]) -> Input:
    first = next(iter(readers.values()))
    return Input(name, readers, first.owned_by_dml, first.total_bytes)


def _in_order(found: Mapping[int | str, T]) -> list[tuple[int | str, T]]:
    """By index; by name as the edges have them."""
    return sorted(found.items(), key=lambda item: item[0] if isinstance(item[0], int) else 0)


def _at(path: Path) -> str:
    return f"{path[0]}[{path[1]}]"


def _flag(desc: TensorDesc) -> str:
    return "OWNED_BY_DML" if desc.owned_by_dml else "NONE"
