"""A graph's descriptor, node by node."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.contract.constants import DataType
from app.contract.tensors import MAX_ELEMENTS, MAX_RANK, element_name
from app.graphs.graph import Constant, GraphInput, NodeOutput, Source
from app.memory.arrays import together
from app.memory.buffers import Buffer
from app.models.onnx.tensors import Sizes, Unsupported, View

Array = NDArray[Any]

MOST_NODES = 1 << 16
"""What a graph may be set to have at most. An ONNX node may ask for any number, by a size."""

SMALL_BYTES = 1 << 10
"""Of constants that are looked for among those there are already."""


class BuiltGraph(NamedTuple):
    """A graph's document without the data of its constant nodes, and these by node.

    `labels` has, for each node, what it was made for.
    """

    document: dict[str, Any]
    constants: dict[int, Buffer]
    labels: list[str]


class Made(NamedTuple):
    """An operator of the graph: its descriptor, and what it reads by field."""

    desc: dict[str, Any]
    reads: dict[str, View]


class Builder:
    """Makes nodes and edges. `inputs`, constants and what operators write are views, which any operator may read."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` are those of all constants, and of what is computed of such."""
        self._most = self._left = most_bytes
        self._nodes: list[dict[str, Any]] = []
        self._labels: list[str] = []
        self._reads: list[dict[str, View]] = []
        self._writes: list[dict[str, View]] = []
        self._outputs: dict[str, NodeOutput] = {}
        self._constants: dict[int, Buffer] = {}
        self._known: dict[tuple[DataType, bool, Sizes, bytes], View] = {}
        self._seen: dict[tuple[int, DataType], tuple[Array, View]] = {}
        self._bytes: dict[Source, int] = {}
        self._described_as: dict[Source, dict[str, Any]] = {}
        self._inputs: dict[GraphInput, View] = {}
        self._read_as_it_is: set[tuple[int, str]] = set()
        """Which fields of which nodes describe an input of the graph with its own sizes, packed."""
        self._label = ""
        self.booleans: set[Source] = set()
        """What is ONNX's bool. Mappings need not look after it."""

    def is_boolean(self, value: "View | Array") -> bool:
        """Whether it is ONNX's bool, which is UINT8 in DirectML."""
        return value.source in self.booleans if isinstance(value, View) else value.dtype == np.bool_

    def label(self, name: str) -> None:
        """What the next operators come from, for their names."""
        self._label = name

    def input(self, name: str, data_type: DataType, sizes: Sequence[int]) -> View:
        """An input of the graph, packed."""
        source = GraphInput(name)
        self._inputs[source] = self._made(View.packed(source, data_type, sizes))
        return self._inputs[source]

    def constant(self, array: Array, data_type: DataType | None = None) -> View:
        """A constant node with `array`'s elements, packed but for axes along which it repeats itself with a stride of
        0. Booleans are UINT8. Equal small arrays are one node, and so is the same array if it is given again.

        `data_type` is for what NumPy has no type for: 4-bit types, whose elements `array` has, a byte each. Raises
        Unsupported.
        """
        chosen = data_type_of(array) if data_type is None else data_type
        seen = self._seen.get((id(array), chosen))
        if seen:
            return seen[1]
        if not array.size:
            raise Unsupported("one of its tensors has no elements")
        once = array[tuple([slice(1 if stride == 0 else None) for stride in array.strides])]
        lying = np.ascontiguousarray(once).reshape(once.shape)
        if chosen.bits == 4:
            lying = together(lying)
        elif lying.dtype.byteorder == ">":
            lying = lying.astype(lying.dtype.newbyteorder("<"))
        data = lying.reshape(-1).view(np.uint8).data.toreadonly()
        is_boolean = self.is_boolean(array)
        small = bytes(data) if len(data) <= SMALL_BYTES else b""
        key = (chosen, is_boolean, once.shape, small)
        view = self._known.get(key) if small else None
        if view is None:
            self.spend(len(data))
            node = self._node({"Type": "CONSTANT", "Data": None}, {})
            self._constants[node] = data
            view = self._made(View.packed(Constant(node), chosen, once.shape))
            self._writes[node] = {"Data": view}
            if is_boolean:
                self.booleans.add(view.source)
            if small:
                self._known[key] = view
        view = view if once.shape == array.shape else view.broadcast(array.shape)
        self._seen[id(array), chosen] = array, view  # while it is kept, nothing else has its id
        return view

    def spend(self, count: int) -> None:
        """Count bytes of what is constant. Raises Unsupported."""
        self._left -= count
        if self._left < 0:
            raise Unsupported(f"the graph's constants take too many bytes; they may take {self._most}")

    def operator(
        self,
        operator: str,
        inputs: Mapping[str, View | Sequence[View] | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: Mapping[str, tuple[DataType, Sizes] | Sequence[tuple[DataType, Sizes]] | None] | None = None,
        rank: int = 1,
    ) -> dict[str, View]:
        """A node of type `operator` (without DML_OPERATOR_). Fields that are None are left out.

        `outputs` are packed tensors of the given sizes, `{"OutputTensor": ...}` mostly; what is not wanted is left out.
        Without any it is OutputTensor, of the first input's type and sizes. The views that come back are by field,
        `OutputTensors[0]` for arrays. Every tensor's descriptor gets at least `rank` dimensions; views that come back
        keep the sizes that were given. Raises Unsupported.
        """
        desc: dict[str, Any] = {"Type": operator}
        reads = dict(_each(inputs, View))
        read = {field: self._described(view, rank) for field, view in reads.items()}
        for field, given in inputs.items():
            if isinstance(given, View):
                desc[field] = read[field]
            elif given is not None:
                desc[field] = [read[element_name(field, i)] for i in range(len(given))]
        desc |= {field: value for field, value in (attributes or {}).items() if value is not None}
        if outputs is None:
            first = next(iter(reads.values()))
            outputs = {"OutputTensor": (first.data_type, first.sizes)}
        node = self._node({"Type": "OPERATOR", "Desc": desc}, reads)
        for field, view in reads.items():
            whole = self._inputs.get(view.source) if isinstance(view.source, GraphInput) else None
            if whole is not None and read[field] == whole.described():
                self._read_as_it_is.add((node, field))
        made: dict[str, View] = {}
        for field, (data_type, sizes) in _each(outputs, tuple):
            made[field] = self._made(View.packed(NodeOutput(node, field), data_type, sizes))
        described = {field: self._described(view, rank) for field, view in made.items()}
        for field, stated in outputs.items():
            if field in made:
                desc[field] = described[field]
            elif stated is not None:
                desc[field] = [described[element_name(field, i)] for i in range(len(stated))]
        self._described_as |= {view.source: described[field] for field, view in made.items()}
        self._writes[node] = made
        return made

    def origin(self, view: View) -> "tuple[Made, View] | None":
        """The operator of whose output `view` has elements, and the whole of it; None if it is none's."""
        source = view.source
        if not isinstance(source, NodeOutput):
            return None
        made = Made(self._nodes[source.node]["Desc"], self._reads[source.node])
        return made, self._writes[source.node][source.tensor]

    def maker(self, view: View) -> "Made | None":
        """The operator whose whole output `view` is, as it lies; None if it is none's."""
        found = self.origin(view)
        if found is None or not view.is_packed:
            return None
        made, whole = found
        return made if whole.sizes == view.sizes and whole.data_type is view.data_type else None

    def known(self, view: View) -> Array | None:
        """The elements of `view` if it is a whole constant of floats, as it lies."""
        source = view.source
        if not isinstance(source, Constant) or not view.is_packed or not self._is_whole(view):
            return None
        if view.data_type is not DataType.FLOAT32:
            return None
        made: Array = np.frombuffer(self._constants[source.node], np.float32, view.elements).reshape(view.sizes)
        return made

    def output(self, name: str, view: View, is_described: bool) -> None:
        """An output of the graph, packed: what is not, or is no operator's own output, is copied by IDENTITY. So is, if
        it `is_described` for clients, what its operator describes with other sizes or another type; but for 4-bit
        types, which IDENTITY does not take. Raises Unsupported."""
        source = view.source
        if (
            not view.is_packed
            or not isinstance(source, NodeOutput)
            or not self._is_whole(view)
            or (is_described and view.data_type.bits >= 8 and self._described_as[source] != self._described(view, 1))
        ):
            source = self.operator("ELEMENT_WISE_IDENTITY", {"InputTensor": view})["OutputTensor"].source
        assert isinstance(source, NodeOutput)
        self._outputs[name] = source

    def describe_inputs(self) -> None:
        """Have clients, who are told what an input's first reader describes, be told of it as it is: packed, and with
        its own sizes. Where no reader does so, IDENTITY copies it for them; but for 4-bit types, which that does not
        take, and what has no descriptor of its own. It is for when all outputs are there."""
        readers: dict[GraphInput, list[tuple[int, str]]] = {}
        for node in self._needed():
            for field, view in self._reads[node].items():
                if isinstance(view.source, GraphInput):
                    readers.setdefault(view.source, []).append((node, field))
        for source, ends in readers.items():
            view = self._inputs[source]
            if view.data_type.bits < 8 or not self._read_as_it_is.isdisjoint(ends):
                continue
            self.label(source.name)
            try:
                copy = self.operator("ELEMENT_WISE_IDENTITY", {"InputTensor": view})["OutputTensor"].source
            except Unsupported:
                continue
            for node, field in ends:
                self._reads[node][field] = replace(self._reads[node][field], source=copy)

    def built(self) -> BuiltGraph:
        """What leads to outputs. Raises Unsupported if nothing does."""
        if not self._outputs:
            raise Unsupported("it has no outputs")
        needed = self._needed()
        places = {node: place for place, node in enumerate(needed)}
        order = {source: place for place, source in enumerate(self._inputs)}
        inputs: list[tuple[tuple[int, bool], dict[str, Any]]] = []
        edges = []
        for node, place in places.items():
            for field, view in self._reads[node].items():
                end = {"ToNodeIndex": place, "ToNodeInput": field}
                source = view.source
                if isinstance(source, GraphInput):
                    comes = (order[source], (node, field) not in self._read_as_it_is)
                    inputs.append((comes, {"GraphInput": source.name} | end))
                else:
                    tensor = "Data" if isinstance(source, Constant) else source.tensor
                    edges.append({"FromNodeIndex": places[source.node], "FromNodeOutput": tensor} | end)
        document = {
            "Nodes": [self._nodes[node] for node in needed],
            "InputEdges": [edge for _, edge in sorted(inputs, key=itemgetter(0))],
            "IntermediateEdges": edges,
            "OutputEdges": [
                {"FromNodeIndex": places[source.node], "FromNodeOutput": source.tensor, "GraphOutput": name}
                for name, source in self._outputs.items()
            ],
        }
        constants = {places[node]: data for node, data in self._constants.items() if node in places}
        return BuiltGraph(document, constants, [self._labels[node] for node in needed])

    def _node(self, node: dict[str, Any], reads: dict[str, View]) -> int:
        if len(self._nodes) >= MOST_NODES:
            raise Unsupported(f"the graph has too many operators; it may have {MOST_NODES}")
        self._nodes.append(node)
        self._labels.append(self._label)
        self._reads.append(reads)
        self._writes.append({})
        return len(self._nodes) - 1

    def _made(self, view: View) -> View:
        self._bytes[view.source] = _bytes(view)
        return view

    def _described(self, view: View, rank: int) -> dict[str, Any]:
        """With the bytes of its source, which both ends of an edge must have."""
        if len(view.sizes) > MAX_RANK:
            raise Unsupported(f"one of its tensors has {len(view.sizes)} dimensions, where DirectML's have {MAX_RANK}")
        if not view.elements:
            raise Unsupported("one of its tensors has no elements")
        if view.elements > MAX_ELEMENTS:
            raise Unsupported(f"one of its tensors has {view.elements} elements, where DirectML's have {MAX_ELEMENTS}")
        described = view.described(rank)
        if _bytes(view) != self._bytes[view.source]:
            described["TotalTensorSizeInBytes"] = self._bytes[view.source]
        return described

    def _is_whole(self, view: View) -> bool:
        return _bytes(view) == self._bytes[view.source]

    def _needed(self) -> list[int]:
        """Nodes that lead to outputs, in their order."""
        found: set[int] = set()
        left = [source.node for source in self._outputs.values()]
        while left:
            node = left.pop()
            if node not in found:
                found.add(node)
                sources = (view.source for view in self._reads[node].values())
                left += [source.node for source in sources if not isinstance(source, GraphInput)]
        return sorted(found)


def data_type_of(array: Array) -> DataType:
    """Of a constant with `array`'s elements. Raises Unsupported."""
    if array.dtype == np.bool_:
        return DataType.UINT8
    try:
        return DataType(array.dtype.name.upper())
    except ValueError:
        name = "string" if array.dtype.kind in "OUS" else array.dtype.name
        raise Unsupported(f"DirectML has no type for {name}") from None


def _bytes(view: View) -> int:
    """What DMLCalcBufferTensorSize answers."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(view.sizes, view.strides, strict=True))
    return ((reach * view.data_type.bits + 7) // 8 + 3) & ~3


def _each(fields: Mapping[str, Any], one: type[Any]) -> Iterator[tuple[str, Any]]:
    """By field, of arrays with their place. `one` is what there is one of: a view, or a pair, which is a tuple as sizes
    and arrays of pairs may be, but begins with a data type."""
    for field, given in fields.items():
        if isinstance(given, one) and (one is View or isinstance(given[0], DataType)):
            yield field, given
        elif given is not None:
            for place, each in enumerate(given):
                yield element_name(field, place), each
