"""A graph that has passed judgement: its operators in an order in which they can run, and where each tensor is from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from app.contract.constants import FeatureLevel
from app.contract.tensors import TensorDesc
from app.graphs.ends import NodeTensor
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator


class GraphInput(NamedTuple):
    """An input of the graph, by name; by index, its decimal digits are the name."""

    name: str


class NodeOutput(NamedTuple):
    """An output tensor of a node, by the node's index in the descriptor and the tensor's field name."""

    node: int
    tensor: str


class Constant(NamedTuple):
    """What a constant node holds, by the node's index in the descriptor."""

    node: int


Source: TypeAlias = GraphInput | NodeOutput | Constant
"""Where an input tensor of a node has its bytes from. No two kinds are equal: of those that have one field, only a
graph's input has a name."""


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """An operator of the graph. `sources` has one for each of `compiled.inputs`, in their order."""

    index: int
    name: str | None
    compiled: CompiledOperator
    sources: dict[str, Source]


@dataclass(frozen=True, eq=False, slots=True)
class Input:
    """An input of the graph, that at least one node reads. All readers' descriptors are of `total_bytes` bytes, and
    OWNED_BY_DML or none is."""

    name: str
    readers: dict[NodeTensor, TensorDesc]
    owned_by_dml: bool
    total_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """An output of the graph: which tensor it is."""

    name: str
    source: NodeOutput
    desc: TensorDesc


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """A judged graph.

    `nodes` are by their index in the descriptor, and in an order in which each comes after those it reads: the
    descriptor's own if that is one. `constants` are by node; each has at least the `data_bytes` of every reader, and
    at most its `total_bytes`. `inputs` and `outputs` are in the order of their indices, or in that in which the edges
    first name them; inputs that nobody reads are not there.
    """

    level: FeatureLevel
    nodes: dict[int, Node]
    constants: Mapping[int, Buffer]
    inputs: dict[str, Input]
    outputs: dict[str, Output]
