"""dmlSerializedGraph: a DML_GRAPH_DESC in a flatbuffer, its constants in it or in files beside it.

The layout is that of DmlGraphDesc_generated.h in DxDispatch. Edges are there by name only: a node reads what is called
like one of its inputs, an input of the graph or another node's output.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from flatbuffers import number_types as kinds

from app.codecs.structure import Unreadable
from app.contract.constants import Constant, DataType
from app.contract.scalars import ScalarUnion
from app.contract.tensors import element_name
from app.contract.validation import in_words, validate
from app.graphs.descriptor import GraphDesc
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.models.dxdispatch.descriptors import OPTIONAL
from app.models.dxdispatch.flatbuffer import File, Table
from app.operators.catalog import find_operator
from app.operators.operator import Operator, Role

_OPERATOR, _CONSTANT = 1, 2
_NAMED, _RAW = 1, 2

_STRUCTS = {
    3: (kinds.Uint32Flags,),
    4: (kinds.Uint64Flags,),
    5: (kinds.Int32Flags,),
    6: (kinds.Float32Flags,),
    10: (kinds.Float32Flags, kinds.Float32Flags),
    11: (kinds.Uint32Flags, kinds.Uint32Flags),
    13: (kinds.BoolFlags,),
}
"""Attributes that are structs, which a union points to without a table."""

_FIELDS = {10: ("Scale", "Bias"), 11: ("Width", "Height")}
_VECTORS = {7: "I", 8: "i", 9: "f"}
_ACTIVATION, _ACTIVATIONS, _SCALAR = 1, 2, 12
_BYTES = 1
_SCALARS = {
    2: ("Int8", kinds.Int8Flags),
    3: ("UInt8", kinds.Uint8Flags),
    4: ("Int16", kinds.Int16Flags),
    5: ("UInt16", kinds.Uint16Flags),
    6: ("Int32", kinds.Int32Flags),
    7: ("UInt32", kinds.Uint32Flags),
    8: ("Int64", kinds.Int64Flags),
    9: ("UInt64", kinds.Uint64Flags),
    10: ("Float32", kinds.Float32Flags),
    11: ("Float64", kinds.Float64Flags),
}
_CODES = {"FLOAT32": "f", "FLOAT64": "d", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"} | {
    "FLOAT16": "H",  # by its bits
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
}
_MEMBERS = {name: name.replace("FLOAT", "Float").replace("UINT", "UInt").replace("INT", "Int") for name in _CODES} | {
    "FLOAT16": "UInt16"
}


class Graph(NamedTuple):
    """A graph as it was read: its descriptor as a document, by names and indices, and the data of its constants."""

    document: dict[str, Any]
    constants: dict[int, Buffer]
    named: dict[int, str]
    """Constants that are in files, by node."""
    inputs: list[str]
    outputs: list[str]

    def desc(self) -> GraphDesc:
        """Raises ContractError, whose paths start at the graph."""
        return validate(GraphDesc, self.document)

    def most_bytes(self, desc: GraphDesc, node: int) -> int | None:
        """Bytes that the first reader of a constant takes at most; None if nobody reads it."""
        for edge in desc.IntermediateEdges or ():
            if edge.FromNodeIndex == node and edge.ToNodeIndex is not None and edge.ToNodeInput is not None:
                reader = desc.Nodes[edge.ToNodeIndex]
                tensor = getattr(reader, "Desc", None)
                return tensor.tensors()[edge.ToNodeInput].total_bytes if isinstance(tensor, Operator) else None
        return None


def read(data: Buffer, most: int, memory: MemoryShare) -> Graph:
    """The graph in `data`, with no more than `most` bytes of structure.

    Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver.
    """
    try:
        return _Graph(File(data, most, memory).root(), memory).graph()
    except (struct.error, TypeError, OverflowError, ValueError, IndexError, KeyError) as error:
        # What was not foreseen of a file that nobody made in good faith.
        raise Unreadable(f"The file is no serialized graph: {str(error)[:200]}") from None


class _Graph:
    def __init__(self, root: Table, memory: MemoryShare) -> None:
        self._memory = memory
        self._nodes = root.tables(4)
        self._inputs = dict.fromkeys(_distinct(root.texts(6), "input"))
        self._outputs = _distinct(root.texts(8), "output")
        self._constants: dict[int, Buffer] = {}
        self._named: dict[int, str] = {}
        self._writers: dict[str, tuple[int, str]] = {}
        """Node and output by the edge's name."""
        self._reads: list[tuple[str, int, str]] = []
        """Edge's name, node and input."""

    def graph(self) -> Graph:
        nodes = [self._node(index, node) for index, node in enumerate(self._nodes)]
        edges: dict[str, list[dict[str, Any]]] = {"InputEdges": [], "IntermediateEdges": [], "OutputEdges": []}
        for name, node, tensor in self._reads:
            end = {"ToNodeIndex": node, "ToNodeInput": tensor}
            if name in self._inputs:
                edges["InputEdges"].append({"GraphInput": name, **end})
                continue
            writer, output = self._writer(name)
            edges["IntermediateEdges"].append({"FromNodeIndex": writer, "FromNodeOutput": output, **end})
        for name in self._outputs:
            writer, output = self._writer(name)
            edges["OutputEdges"].append({"FromNodeIndex": writer, "FromNodeOutput": output, "GraphOutput": name})
        return Graph({"Nodes": nodes, **edges}, self._constants, self._named, list(self._inputs), self._outputs)

    def _writer(self, name: str) -> tuple[int, str]:
        found = self._writers.get(name)
        if found is None:
            raise Unreadable(f"The graph's edge {in_words(name)} comes from no node and no input of the graph.")
        return found

    def _node(self, index: int, node: Table) -> dict[str, Any]:
        called = f"Node {index} ({in_words(node.text(8) or '')}) of the graph"
        desc = node.table(6)
        inputs, outputs = node.texts(10), node.texts(12)
        if desc is None:
            raise Unreadable(f"{called} has no descriptor.")
        match node.byte(4):
            case n if n == _OPERATOR:
                return self._operator(index, called, desc, inputs, outputs)
            case n if n == _CONSTANT:
                return self._constant(index, called, desc, outputs)
        raise Unreadable(f"{called} is neither an operator nor a constant.")

    def _constant(self, index: int, called: str, desc: Table, outputs: list[str]) -> dict[str, Any]:
        data = desc.table(6)
        kind = desc.byte(4)
        if data is None or kind not in (_NAMED, _RAW) or len(outputs) != 1:
            raise Unreadable(f"{called} is a constant without data, or with several outputs.")
        self._write(outputs[0], index, "Data")
        if kind == _NAMED:
            self._named[index] = data.text(4) or ""
        else:
            raw = data.bytes(4) or memoryview(b"")
            buffer = self._memory.buffer(len(raw))
            buffer[:] = raw
            self._constants[index] = buffer
        return {"Type": "CONSTANT", "Data": ""}

    def _operator(self, index: int, called: str, desc: Table, inputs: list[str], outputs: list[str]) -> dict[str, Any]:
        type_ = desc.text(4) or ""
        kind = find_operator(type_)
        if kind is None:
            raise Unreadable(f"{called} is of the type {in_words(type_)}, which is no operator.")
        made = {"Type": kind.name()}
        for role, names, tables in ((Role.INPUT, inputs, desc.tables(6)), (Role.OUTPUT, outputs, desc.tables(8))):
            made |= self._tensors(index, called, kind, role, names, tables)
        made |= _attributes(called, kind, desc.tables(10))
        return {"Type": "OPERATOR", "Desc": made}

    def _tensors(
        self, index: int, called: str, kind: type[Operator], role: Role, names: list[str], tables: list[Table]
    ) -> dict[str, Any]:
        """The tensors of one role. An empty name is an optional one that is left out; an array takes all that are
        left."""
        made: dict[str, Any] = {}
        left, descs = iter(names), iter(tables)
        for field in kind.tensor_names(role):
            if field in kind.array_names():
                listed = made[field] = []
                for place, desc in enumerate(descs):
                    listed.append(_tensor(desc))
                    self._connect(index, role, next(left, ""), element_name(field, place))
            elif name := next(left, ""):
                found = next(descs, None)
                if found is None:
                    raise Unreadable(f"{called} describes fewer tensors than it names.")
                made[field] = _tensor(found)
                self._connect(index, role, name, field)
        if next(left, None) is not None or next(descs, None) is not None:
            raise Unreadable(f"{called} has more {role.value}s than {kind.name()} has.")
        return made

    def _connect(self, index: int, role: Role, name: str, tensor: str) -> None:
        if role is Role.INPUT:
            self._reads.append((name, index, tensor))
        else:
            self._write(name, index, tensor)

    def _write(self, name: str, index: int, tensor: str) -> None:
        if name in self._writers or name in self._inputs:
            raise Unreadable(f"Two edges of the graph are called {in_words(name)}.")
        self._writers[name] = index, tensor


def _distinct(names: list[str], what: str) -> list[str]:
    if len(set(names)) < len(names) or "" in names:
        raise Unreadable(f"The graph has {what}s that are called alike, or nothing.")
    return names


def _tensor(desc: Table) -> dict[str, Any]:
    made: dict[str, Any] = {"DataType": desc.text(4), "Sizes": desc.numbers(6, "I")}
    strides, total = desc.numbers(8, "I"), desc.number(10, kinds.Uint64Flags)
    if strides is not None:
        made["Strides"] = strides
    if total:
        made["TotalTensorSizeInBytes"] = int(total)
    return made


def _attributes(called: str, kind: type[Operator], attributes: list[Table], inner: bool = False) -> dict[str, Any]:
    """The attributes of an operator, which are in the structure's order; `inner`: of one that is part of another."""
    names = kind.attribute_names()
    if len(attributes) != len(names):
        raise Unreadable(f"{called} has {len(attributes)} attributes; {kind.name()} has {len(names)}.")
    made: dict[str, Any] = {}
    raw: dict[str, bytes] = {}
    for name, each in zip(names, attributes, strict=True):
        told = each.text(4)
        if told and told != name and (told, name) != ("Type", "GeneratorType"):
            raise Unreadable(f"{called} has the attribute {in_words(told)} where {name} must be.")
        value = _attribute(called, kind, name, each, inner)
        if isinstance(value, bytes):
            raw[name] = value
        elif value is not None:
            made[name] = value
        elif name not in OPTIONAL:
            raise Unreadable(f"{called} has no {name}; {kind.name()} must have one.")
    return made | {name: _scalar(called, kind, value, made) for name, value in raw.items()}


def _attribute(called: str, kind: type[Operator], name: str, attribute: Table, inner: bool) -> Any:
    """The value; bytes for a scalar whose type another attribute tells; None if it is left out."""
    tag = attribute.byte(6)
    if not tag:
        return None
    if flags := _STRUCTS.get(tag):
        numbers = attribute.struct(8, *flags)
        if numbers is None:
            return None
        if fields := _FIELDS.get(tag):
            return dict(zip(fields, numbers, strict=True))
        return _named(called, kind, name, numbers[0])
    value = attribute.table(8)
    if value is None:
        return None
    if code := _VECTORS.get(tag):
        return value.numbers(4, code) or []
    if tag == _SCALAR:
        return _union(called, value)
    if inner or tag not in (_ACTIVATION, _ACTIVATIONS):
        raise Unreadable(f"{called} has an attribute {name} of an unknown kind, {tag}.")
    if tag == _ACTIVATIONS:
        return [_activation(called, each) for each in value.tables(4)]
    return _activation(called, value)


def _activation(called: str, value: Table) -> dict[str, Any]:
    type_ = value.text(4) or ""
    kind = find_operator(type_)
    if kind is None:
        raise Unreadable(f"{called} has an activation {in_words(type_)}, which is no operator.")
    return {"Type": kind.name(), **_attributes(called, kind, value.tables(6), inner=True)}


def _named(called: str, kind: type[Operator], name: str, number: Any) -> Any:
    """The constant that `number` is, where the attribute is one: in DirectML's order, and of data types from 1 on."""
    constants = kind.model_fields[name].annotation
    if not (isinstance(constants, type) and issubclass(constants, Constant)):
        return number
    members = list(constants)
    place = int(number) - (constants is DataType)
    if not 0 <= place < len(members):
        raise Unreadable(f"{called} has {name} {number}, which is no {constants.prefix().rstrip('_')}.")
    return members[place].value


def _union(called: str, value: Table) -> Any:
    tag = value.byte(4)
    if tag == _BYTES and (data := value.table(6)):
        return bytes((data.bytes(4) or b"")[:8]).ljust(8, b"\0")
    if tag in _SCALARS:
        member, flags = _SCALARS[tag]
        if numbers := value.struct(6, flags):
            return {member: numbers[0]}
    raise Unreadable(f"{called} has a scalar without a value, or of an unknown kind, {tag}.")


def _scalar(called: str, kind: type[Operator], raw: bytes, made: Mapping[str, Any]) -> dict[str, Any]:
    """The number in `raw`, DML_SCALAR_UNION's bytes, by the attribute that tells its type."""
    told = [made.get(name) for name in kind.attribute_names() if kind.model_fields[name].annotation is DataType]
    code = _CODES.get(str(told[0])) if told else None
    if code is None:
        raise Unreadable(f"{called} has a scalar whose type nothing tells.")
    member = _MEMBERS[str(told[0])]
    assert member in ScalarUnion.model_fields
    (number,) = struct.unpack_from(f"<{code}", raw)
    return {member: number}
