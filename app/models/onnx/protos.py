"""What the importer asks of ONNX's nodes, graphs and functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.models.onnx.builder import Builder
from app.models.onnx.mapping import Value
from app.models.onnx.reading import domain_of, resolved
from app.models.onnx.schemas import schema_of
from app.models.onnx.tensors import Sizes, View

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto


def label_of(node: "NodeProto") -> str:
    """Names may be left out, outputs not."""
    return node.name or f"{node.op_type}({', '.join(filter(None, node.output))})"


def operator_of(node: "NodeProto") -> str:
    """With its domain if that is not ai.onnx."""
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def needed(graph: "GraphProto | FunctionProto", outputs: Iterable[str]) -> "list[NodeProto]":
    """Nodes that lead to `outputs`, in their order. What one reads that is made behind it comes before it: converters
    write such models, though they should not, and onnxruntime takes them."""
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    read: dict[int, list[int]] = {}
    waiting = [makers[name] for name in outputs if name in makers]
    while waiting:
        place = waiting.pop()
        if place not in read:
            read[place] = sorted({makers[name] for name in read_by(nodes[place]) if name in makers})
            waiting += read[place]
    ordered: dict[int, None] = {}
    entered: set[int] = set()
    waiting = sorted(read, reverse=True)
    while waiting:
        place = waiting.pop()
        if place in entered:  # all that it reads is there; or it reads this, or what its own graphs call so
            ordered[place] = None
        else:
            entered.add(place)
            waiting += [place, *reversed(read[place])]
    return [nodes[place] for place in ordered]


def read_by(node: "NodeProto") -> set[str]:
    """Names that it reads, its graphs' included. An input that is left out has none, as an output that is."""
    names = set(filter(None, node.input))
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names.update(*map(read_by, graph.node), [each.name for each in graph.output])
    return names


def without_references(proto: "NodeProto", outer: Mapping[str, "AttributeProto"]) -> "NodeProto":
    if not any(each.ref_attr_name for each in proto.attribute):
        return proto
    made = type(proto)()
    made.CopyFrom(proto)
    del made.attribute[:]
    made.attribute.extend(resolved(proto, outer))
    return made


def without_inputs(function: "FunctionProto", absent: Iterable[str]) -> "FunctionProto":
    """The same, whose nodes do not read what is `absent`."""
    made = type(function)()
    made.CopyFrom(function)
    gone = set(absent)
    for node in made.node:
        node.input[:] = ["" if name in gone else name for name in node.input]
    return made


def schema_with_body(domain: str, type_: str, opset: int) -> Any:
    schema = schema_of(domain, type_, opset)
    if schema is None:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def body_of(proto: "NodeProto", opset: int, inputs: Sequence[Value | None], build: Builder) -> "FunctionProto | None":
    """The body that ONNX gives to `proto`'s operator, if it is a function."""
    from onnx import FunctionProto, helper  # noqa: PLC0415 - an extra

    schema = schema_with_body(domain_of(proto.domain), proto.op_type, opset)
    if schema is None:
        return None
    if schema.has_function:
        versions = [each for each in schema.function_opset_versions if each <= opset]
        data = schema.get_function_with_opset_version(max(versions, default=opset))
    else:
        types = [_type(each, helper, build) for each in inputs]
        versions = [each for each in schema.context_dependent_function_opset_versions if each <= opset]
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=opset), proto.SerializeToString(), types
        )
    return FunctionProto.FromString(data) if data else None


def _type(value: Value | None, helper: Any, build: Builder) -> bytes:
    if value is None:
        return b""
    name = (
        "bool"
        if build.is_boolean(value)
        else value.data_type.value.lower()
        if isinstance(value, View)
        else value.dtype.name
    )
    made: bytes = helper.make_tensor_type_proto(
        helper.np_dtype_to_tensor_dtype(np.dtype(name)), sizes_of(value)
    ).SerializeToString()
    return made


def sizes_of(value: Value) -> Sizes:
    """Of a tensor, known or not."""
    return value.sizes if isinstance(value, View) else value.shape
