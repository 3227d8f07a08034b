"""Graphs that are kept, as clients send them and as they are told of: the protocol-independent forms."""

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from app.codecs.codec import BASE64, Body, Decoder, Span
from app.contract import constants
from app.contract.constants import NEWEST, FeatureLevel
from app.contract.members import Document, Lenient
from app.contract.scalars import Uint
from app.contract.tensors import TensorDesc
from app.contract.violations import Path, refused
from app.engine.dispatch import DataForm, GraphCapability, InputData
from app.engine.graphs import GraphRequest
from app.engine.inputs import given_inputs
from app.graphs.descriptor import ConstantNode, GraphDesc
from app.graphs.ends import first_readers, is_index
from app.graphs.identity import graph_id
from app.graphs.schedule import Schedule, Step
from app.memory.accounts import MemoryShare
from app.operators.catalog import find_operator

GRAPH_ID = re.compile(r"[0-9a-f]{32}")
"""What all ids of graphs are like, and nothing else is that a graph could be asked for by."""

PART = 1 << 12
"""Bytes that a node or an edge may come to while it is judged, whatever is wrong with it."""

EDGES_OF_A_NODE = 16
"""So many of each kind there may be for each node that there may be, and so many inputs, which edges lead to."""

MOST_FIELDS = 256
"""Fields of an object of a graph's document. Operators have 21 at most."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
"""It stands in paths, where clients take . and .. for something else."""

_RESERVED = ("stats",)
"""What is something else in a path where a graph's name may stand."""


def _usable(name: str) -> str:
    """A graph is asked for by its name where operators are asked for by theirs."""
    if not _NAME.fullmatch(name):
        raise PydanticCustomError(
            "graph_name", "must be 1 to 128 of letters, digits, underscore, dot and hyphen, no dot first"
        )
    if GRAPH_ID.fullmatch(name) or find_operator(name.upper()) or name in _RESERVED:
        raise PydanticCustomError(
            "graph_name", f"must be neither an operator's name nor like a graph's id, nor {' or '.join(_RESERVED)}"
        )
    return name


GraphName: TypeAlias = Annotated[
    str, AfterValidator(_usable), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})
]


OnnxData: TypeAlias = Annotated[
    Any, WithJsonSchema(BASE64), Field(description="The file, without external data: text or bytes as tensor data are.")
]


class GraphKeepRequest(Lenient):
    """A graph to be compiled, initialized and kept."""

    graph: GraphDesc = Field(description="The graph's descriptor.")
    inputs: dict[str, InputData] = Field(
        default_factory=dict,
        description="Data of each input of the graph that is OWNED_BY_DML, by its name or index.",
    )
    name: GraphName | None = Field(None, description="What to call the graph. No two kept graphs have the same name.")
    feature_level: FeatureLevel = Field(NEWEST, description="The graph is judged as a device of this level does.")
    device: str = Field(
        "auto", description="Where it is dispatched unless the dispatch says: `auto`, or a device's name."
    )


class OnnxKeepRequest(Lenient):
    """An ONNX model to be compiled for inputs of these sizes, initialized and kept as a graph."""

    onnx: OnnxData
    sizes: dict[str, list[Annotated[Uint, Field(ge=1)]]] = Field(
        default_factory=dict, description="Of each input whose sizes are not all in the model, by its name."
    )
    name: GraphName | None = Field(None, description="What to call the graph. No two kept graphs have the same name.")
    device: str = Field(
        "auto", description="Where it is dispatched unless the dispatch says: `auto`, or a device's name."
    )


class OnnxQuery(Document):
    """What is said of an ONNX model that is sent as it is."""

    sizes: Annotated[str, Field(max_length=1 << 13)] | None = Field(
        None,
        description="Of an ONNX model's inputs, where these are free: 1x3x224x224, or input:1x128,other:1x128.",
    )
    name: GraphName | None = Field(None, description="What to call the graph of an ONNX model.")
    device: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="Where the graph of an ONNX model is dispatched unless the dispatch says."
    )


class GraphExecuteRequest(Lenient):
    """Data to dispatch a kept graph on."""

    inputs: dict[str, InputData] = Field(
        description="Data of each input of the graph that is bound at execution, by its name or index."
    )
    device: str | None = Field(None, description="`auto`, or a device's name; else as the graph was sent with.")
    data: DataForm = None


class TensorLayout(TypedDict):
    """A tensor that is bound to a graph. Strides are null where it is packed."""

    DataType: constants.DataType
    Sizes: list[int]
    Strides: list[int] | None
    TotalTensorSizeInBytes: int


class GraphKernel(TypedDict):
    """A kernel of a graph: which nodes are fused into it, by their indices, whether it runs once, when the graph is
    initialized, or in each dispatch, and bytes that it reads and writes."""

    nodes: list[int]
    at_initialization: bool
    bytes_read: int
    bytes_written: int


class GraphSummary(TypedDict):
    """A kept graph in a list. `created` is Unix time in seconds; `dispatches` are those of all workers since; and
    `memory_bytes` are what it counts for within max_graph_bytes: the tensors that it keeps, its description, and
    matrices that are kept a second time, packed for the CPU's loops."""

    id: str
    name: str | None
    device: str
    created: float
    dispatches: int
    memory_bytes: int
    capability: GraphCapability


class KernelTime(TypedDict):
    """How long a kernel of a graph takes: which nodes are fused into it, by their indices, and seconds."""

    nodes: list[int]
    seconds: float


class GraphTimes(TypedDict):
    """What each kernel of a dispatch takes, in their order, where it would run: the shorter of two runs over inputs of
    zeros; on a GPU without what it takes to bring tensors there. `fallback_reason` is as in a dispatch."""

    device: str
    kind: Literal["cpu", "cuda"]
    fallback_reason: str | None
    kernels: list[KernelTime]


class GraphTimesQuery(Document):
    """Where to measure a graph."""

    device: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="`auto`, or a device's name; else as the graph was sent with."
    )


class KeptGraphDescription(GraphSummary):
    """A kept graph: tensors by name, those that are bound at execution, and its kernels in their order. A dispatch
    takes `scratch_bytes` beside its inputs and outputs."""

    inputs: dict[str, TensorLayout]
    outputs: dict[str, TensorLayout]
    scratch_bytes: int
    kernels: list[GraphKernel]


class GraphDescription(KeptGraphDescription):
    """All of a kept graph. `graph` is its descriptor as it was sent, but for the data of constant nodes, which have
    their DataSize instead."""

    graph: dict[str, Any]


def _example() -> dict[str, Any]:
    x = {"DataType": "FLOAT32", "Sizes": [2, 3]}
    row = x | {"Strides": [0, 1]}  # the same three elements for each row
    return {
        "graph": {
            "Nodes": [
                {"Type": "OPERATOR", "Name": "add", "Desc": {"Type": "ELEMENT_WISE_ADD", "ATensor": x, "BTensor": row}},
                {"Type": "CONSTANT", "Name": "bias", "Data": "AACAPwAAAEAAAEBA"},
                {"Type": "OPERATOR", "Name": "relu", "Desc": {"Type": "ACTIVATION_RELU", "InputTensor": x}},
            ],
            "InputEdges": [{"GraphInput": "x", "ToNode": "add", "ToNodeInput": "ATensor"}],
            "IntermediateEdges": [
                {"FromNode": "bias", "FromNodeOutput": "Data", "ToNode": "add", "ToNodeInput": "BTensor"},
                {"FromNode": "add", "FromNodeOutput": "OutputTensor", "ToNode": "relu", "ToNodeInput": "InputTensor"},
            ],
            "OutputEdges": [{"FromNode": "relu", "FromNodeOutput": "OutputTensor", "GraphOutput": "y"}],
        },
    }


EXAMPLE = _example()
"""A graph of which all that it needs is here, in JSON: a constant is added to each row, and what is negative is 0."""

EXAMPLE_DATA = {"inputs": {"x": "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA"}}
"""Data to dispatch it on."""


def example_id() -> str:
    """The id that EXAMPLE gets."""
    request = GraphKeepRequest.model_validate(EXAMPLE)
    constants = {1: memoryview(b64decode(EXAMPLE["graph"]["Nodes"][1]["Data"]))}
    return graph_id(request.graph, request.feature_level, constants, {})


def hold_parts(document: object, max_nodes: int, memory: MemoryShare) -> None:
    """Take what judging the nodes and edges of a document's graph takes, before it is: many fit into few bytes.

    Raises ContractError for more of them than may be, LimitExceeded, MemoryExhausted.
    """
    if not isinstance(document, dict):
        return
    _check_fields(document, ())
    most_edges = EDGES_OF_A_NODE * max_nodes
    inputs = document.get("inputs")
    if isinstance(inputs, dict) and len(inputs) > most_edges:
        count = len(inputs)
        raise refused(
            ("inputs",), f"inputs has {count} entries; allowed are <= {most_edges}.", count, f"<= {most_edges}"
        )
    graph = document.get("graph")
    if not isinstance(graph, dict):
        return
    count = 0
    edges = dict.fromkeys(("InputEdges", "IntermediateEdges", "OutputEdges"), most_edges)
    for field, most in ({"Nodes": max_nodes} | edges).items():
        size = len(listed) if isinstance(listed := graph.get(field), list) else 0
        if size > most:
            raise refused(("graph", field), f"{field} has {size} entries; allowed are <= {most}.", size, f"<= {most}")
        count += size
    memory.take(PART * count)
    waiting: list[Any] = [graph]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            _check_fields(each, ("graph",))
            each = each.values()
        waiting += [one for one in each if isinstance(one, dict | list)]


def _check_fields(given: Mapping[str, object], path: Path) -> None:
    """Raise ContractError for more of them than any object has. Pydantic would find fault with each in one call, during
    which no other thread runs."""
    if len(given) > MOST_FIELDS:
        message = f"An object has {len(given)} fields; none has more than {MOST_FIELDS}."
        raise refused(path, message, len(given), f"<= {MOST_FIELDS}")


class GivenGraph:
    """A graph as it is in a document. `inputs` are the data of its inputs: those at initialization, of one to keep."""

    def __init__(self, desc: GraphDesc, level: FeatureLevel, inputs: Mapping[str, object], *, to_keep: bool) -> None:
        """Raises ContractError where an input says that it is otherwise than its reader takes it."""
        self._desc = desc
        self._level = level
        self._readers = {} if all(isinstance(each, Span | str) for each in inputs.values()) else first_readers(desc)
        self._to_keep = to_keep
        self.inputs = list(given_inputs(inputs, self._readers, self._is_idle))

    def read(self, codec: Decoder, body: Body, memory: MemoryShare) -> GraphRequest:
        """With all data out of `body`. Raises ContractError."""
        constants = {
            index: codec.binary(body, node.Data, ("graph", "Nodes", index, "Data"), memory)
            for index, node in enumerate(self._desc.Nodes)
            if isinstance(node, ConstantNode)
        }
        inputs = {
            name: memoryview(b"")  # there is no such input, or no such reader: the graph's compilation says which
            if name not in self._readers and not isinstance(value, Span | str)
            else codec.binary(body, value, path, memory, self._readers.get(name))
            for name, path, value in self.inputs
        }
        return GraphRequest(self._desc, self._level, constants, inputs)

    def _is_idle(self, name: str) -> bool:
        """Whether it is an input to which nothing is bound."""
        if name in self._readers:
            return self._to_keep and not self._readers[name].owned_by_dml
        return is_index(name, self._desc.input_indices)


def with_nodes(desc: GraphDesc, of_constants: Mapping[int, Mapping[str, object]]) -> dict[str, Any]:
    """The document that `desc` was, where constant nodes have these fields for their data."""
    nodes = list(desc.as_sent["Nodes"])
    for index, fields in of_constants.items():
        nodes[index] = nodes[index] | fields
    return desc.as_sent | {"Nodes": nodes}


def layouts(tensors: Mapping[str, TensorDesc]) -> dict[str, TensorLayout]:
    return {
        name: TensorLayout(
            DataType=desc.DataType,
            Sizes=desc.Sizes,
            Strides=desc.Strides,
            TotalTensorSizeInBytes=desc.total_bytes,
        )
        for name, desc in tensors.items()
    }


def kernels(schedule: Schedule) -> list[GraphKernel]:
    """Those of the initialization first."""
    return [_kernel(step, True) for step in schedule.first] + [_kernel(step, False) for step in schedule.steps]


def _kernel(step: Step, at_initialization: bool) -> GraphKernel:
    return GraphKernel(
        nodes=list(step.nodes),
        at_initialization=at_initialization,
        bytes_read=sum(place.size for place in step.reads),
        bytes_written=sum(place.size for place in step.writes),
    )
