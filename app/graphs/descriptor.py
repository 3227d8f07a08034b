"""Descriptors of graphs: DML_GRAPH_DESC, its nodes and its edges.

Where DirectML has an index, a client may give a name instead. What they lead to is for `resolve` in `judgement.py`.
"""

from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.codecs.codec import BASE64
from app.contract.members import Document
from app.contract.scalars import Uint, Uint64
from app.operators.catalog import OperatorDesc

PREFIX = "DML_GRAPH_NODE_TYPE_"

ConstantData: TypeAlias = Annotated[
    Any,
    WithJsonSchema(BASE64),
    Field(
        description="Bytes as the readers' descriptors lay them out, little-endian: TotalTensorSizeInBytes of theirs, "
        "or without the up to 3 that round it up."
    ),
]
"""Binary in the wire's own form (text or bytes), as tensor data are."""


class _Node(Document):
    Type: str

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        kind = handler.resolve_ref_schema(made)["properties"]["Type"]
        kind["description"] = f"Which node this is, with or without {PREFIX}."
        kind["default"] = kind["enum"][0]  # it is required all the same, as with operators
        return made


class OperatorNode(_Node):
    """DML_OPERATOR_GRAPH_NODE_DESC."""

    Type: Literal["DML_GRAPH_NODE_TYPE_OPERATOR", "OPERATOR"]
    Name: str | None = Field(None, description="What edges may call this node, if no other has it.")
    Desc: OperatorDesc = Field(
        description="The operator's descriptor. OutputTensor may be left out where it is implied."
    )


class ConstantNode(_Node):
    """DML_CONSTANT_DATA_GRAPH_NODE_DESC: bytes without a type and sizes, which its readers tell. Feature level 6_2."""

    Type: Literal["DML_GRAPH_NODE_TYPE_CONSTANT", "CONSTANT"]
    Name: str | None = Field(None, description="What edges may call this node, if no other has it.")
    Data: ConstantData
    DataSize: Uint64 | None = Field(None, description="If given, the length of Data in bytes.")


NodeDesc: TypeAlias = Annotated[OperatorNode | ConstantNode, Field(discriminator="Type")]


_FromNodeIndex = Annotated[Uint | None, Field(description="The writer, by its index in Nodes. Else FromNode.")]
_FromNode = Annotated[str | None, Field(description="The writer, by its Name.")]
_FromNodeOutputIndex = Annotated[
    Uint | None,
    Field(description="The writer's tensor, by its index among all outputs of the operator. Else FromNodeOutput."),
]
_FromNodeOutput = Annotated[
    str | None, Field(description="The writer's tensor, by its field: OutputTensor; of a constant Data.")
]
_ToNodeIndex = Annotated[Uint | None, Field(description="The reader, by its index in Nodes. Else ToNode.")]
_ToNode = Annotated[str | None, Field(description="The reader, by its Name.")]
_ToNodeInputIndex = Annotated[
    Uint | None,
    Field(
        description="The reader's tensor, by its index among all inputs of the operator, those left out as well. Else "
        "ToNodeInput."
    ),
]
_ToNodeInput = Annotated[str | None, Field(description="The reader's tensor, by its field: ATensor, InputTensors[1].")]
_Name = Annotated[str | None, Field(description="What it is for, to people.")]
_TYPE = "Which edge this is, with or without DML_GRAPH_EDGE_TYPE_; may be left out, as the list that it is in says it."


class InputEdge(Document):
    """DML_INPUT_GRAPH_EDGE_DESC: from an input of the graph to an input of a node. Ends are by index or by name."""

    Type: Literal["DML_GRAPH_EDGE_TYPE_INPUT", "INPUT"] | None = Field(None, description=_TYPE)
    GraphInputIndex: Uint | None = Field(None, description="The graph's input, by index. Else GraphInput.")
    GraphInput: str | None = Field(None, description="The graph's input, by a name that its edges give it.")
    ToNodeIndex: _ToNodeIndex = None
    ToNode: _ToNode = None
    ToNodeInputIndex: _ToNodeInputIndex = None
    ToNodeInput: _ToNodeInput = None
    Name: _Name = None


class OutputEdge(Document):
    """DML_OUTPUT_GRAPH_EDGE_DESC: from an output of a node to an output of the graph. Ends are by index or by name."""

    Type: Literal["DML_GRAPH_EDGE_TYPE_OUTPUT", "OUTPUT"] | None = Field(None, description=_TYPE)
    FromNodeIndex: _FromNodeIndex = None
    FromNode: _FromNode = None
    FromNodeOutputIndex: _FromNodeOutputIndex = None
    FromNodeOutput: _FromNodeOutput = None
    GraphOutputIndex: Uint | None = Field(None, description="The graph's output, by index. Else GraphOutput.")
    GraphOutput: str | None = Field(None, description="The graph's output, by a name that this edge gives it.")
    Name: _Name = None


class IntermediateEdge(Document):
    """DML_INTERMEDIATE_GRAPH_EDGE_DESC: from an output of a node to an input of another one. Ends are by index or by
    name."""

    Type: Literal["DML_GRAPH_EDGE_TYPE_INTERMEDIATE", "INTERMEDIATE"] | None = Field(None, description=_TYPE)
    FromNodeIndex: _FromNodeIndex = None
    FromNode: _FromNode = None
    FromNodeOutputIndex: _FromNodeOutputIndex = None
    FromNodeOutput: _FromNodeOutput = None
    ToNodeIndex: _ToNodeIndex = None
    ToNode: _ToNode = None
    ToNodeInputIndex: _ToNodeInputIndex = None
    ToNodeInput: _ToNodeInput = None
    Name: _Name = None


EdgeDesc: TypeAlias = InputEdge | OutputEdge | IntermediateEdge


class GraphDesc(Document):
    """DML_GRAPH_DESC. Counts may be left out; those that are given agree with what they count."""

    InputCount: Uint | None = Field(
        None, description="Inputs of the graph. By index there may be more than are read; nothing is bound to those."
    )
    OutputCount: Uint | None = Field(None, description="Outputs of the graph.")
    NodeCount: Uint | None = Field(None, description="Length of Nodes.")
    Nodes: list[NodeDesc] = Field(description="In any order.")
    InputEdgeCount: Uint | None = Field(None, description="Length of InputEdges.")
    InputEdges: list[InputEdge] | None = Field(None, description="From inputs of the graph to nodes.")
    OutputEdgeCount: Uint | None = Field(None, description="Length of OutputEdges.")
    OutputEdges: list[OutputEdge] = Field(description="From nodes to outputs of the graph, one edge each.")
    IntermediateEdgeCount: Uint | None = Field(None, description="Length of IntermediateEdges.")
    IntermediateEdges: list[IntermediateEdge] | None = Field(None, description="From node to node.")

    @property
    def input_indices(self) -> int:
        """How many inputs have one, be they read or not."""
        by_name = self.InputEdges and self.InputEdges[0].GraphInput is not None
        return 0 if by_name else self.InputCount or 0

    @cached_property
    def as_sent(self) -> dict[str, Any]:
        """The document that this was, but for the data of constant nodes. It is not to be changed."""
        return self.model_dump(exclude_unset=True, exclude={"Nodes": {"__all__": {"Data"}}})
