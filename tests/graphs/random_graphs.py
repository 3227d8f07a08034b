"""Random graphs, and what their operators give dispatched one by one."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from app.contract.constants import NEWEST
from app.contract.tensors import TensorDesc, packed_strides
from app.contract.validation import validate
from app.devices.device import Device
from app.devices.schedules import initialize
from app.formula.structures import Structures
from app.graphs.descriptor import GraphDesc
from app.graphs.graph import Constant, Graph, GraphInput, NodeOutput, Source
from app.graphs.judgement import resolve
from app.graphs.schedule import InitializedGraph, schedule
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer

EXACT = ("ABS", "NEGATE", "FLOOR", "SQRT", "RECIP", "SIGN", "IDENTITY")
"""Functions of one element that are the same to the last bit, however they are computed."""

EXACT_PAIRS = ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "MAX", "MIN")

OF_INTEGERS, PAIRS_OF_INTEGERS = ("ABS", "NEGATE"), ("ADD", "MULTIPLY", "MAX", "MIN", "MAX", "MIN")
"""Compilers make of signs and choices between integers what is one instruction for a processor, so there are many."""

NEAR = ("ACTIVATION_TANH", "ACTIVATION_CELU", "ACTIVATION_SIGMOID", "ELEMENT_WISE_EXP", "ACTIVATION_SOFTPLUS")

REDUCING = ("ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1", "ACTIVATION_HARDMAX1")


def never() -> bool:
    return False


@dataclass
class Drawn:
    """A graph as a document, and its data: of inputs by name, of constant nodes by index."""

    document: dict[str, Any]
    inputs: dict[str, bytes] = field(default_factory=dict)
    constants: dict[int, bytes] = field(default_factory=dict)

    def graph(self, structures: Structures | None = None) -> Graph:
        """It, judged."""
        constants = {index: memoryview(data) for index, data in self.constants.items()}
        return resolve(validate(GraphDesc, self.document), NEWEST, constants, structures)


@dataclass(frozen=True)
class _Tensor:
    """What a node may read: by which edges, and how many elements it has."""

    edge: dict[str, Any]
    elements: int
    owned: bool = False
    total_bytes: int | None = None
    """Where there are gaps, which readers may read or not."""


class Drawer:
    """Draws graphs of one data type, whose tensors are read by readers with dimensions of their own."""

    def __init__(
        self,
        rng: random.Random,
        *,
        exact: bool,
        moving: float = 0.0,
        gaps: float = 0.0,
        types: Sequence[str] = ("FLOAT32", "FLOAT16"),
    ) -> None:
        """`moving` is how many of the nodes move elements, or reduce by coordinates, `gaps` how many outputs have some.
        Of integers all is `exact`."""
        self._rng = rng
        self._exact = exact
        self._moving = moving
        self._gaps = gaps
        self._type = rng.choice(types)
        self._of_integers = self._type.startswith("INT")
        self._drawn = Drawn({"Nodes": [], "InputEdges": [], "IntermediateEdges": [], "OutputEdges": []})
        self._tensors: list[_Tensor] = []
        self._read: set[int] = set()

    def draw(self, nodes: int) -> Drawn:
        """One with so many operators."""
        rng = self._rng
        count = prod(rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(rng.choice([1, 2, 3]))) * 2
        for number in range(rng.choice([1, 2, 3])):
            self._add_input(f"x{number}", count)
        for _ in range(nodes):
            self._add_node()
        self._add_outputs()
        read = {edge["GraphInput"] for edge in self._document["InputEdges"]}
        self._drawn.inputs = {name: data for name, data in self._drawn.inputs.items() if name in read}
        return self._drawn

    @property
    def _document(self) -> dict[str, Any]:
        return self._drawn.document

    def _data(self, count: int) -> bytes:
        made = np.random.default_rng(self._rng.getrandbits(32)).standard_normal(count)
        return (made * 20 if self._of_integers else made).astype(self._type.lower()).tobytes()

    def _add_input(self, name: str, count: int) -> None:
        data = self._data(count)
        if self._rng.random() < 0.2:
            # Read by a node at once, since each constant must be.
            self._document["Nodes"].append({"Type": "CONSTANT", "Data": ""})
            index = len(self._document["Nodes"]) - 1
            self._drawn.constants[index] = data
            self._tensors.append(_Tensor({"FromNodeIndex": index, "FromNodeOutput": "Data"}, count))
            self._add_operator("ELEMENT_WISE_NEGATE", {"InputTensor": (self._tensors[-1], *self._view(count))}, {})
        else:
            self._drawn.inputs[name] = data
            self._tensors.append(_Tensor({"GraphInput": name}, count, self._rng.random() < 0.2))

    def _add_node(self) -> None:
        rng = self._rng
        first = rng.choice(self._tensors[-3:] if rng.random() < 0.8 else self._tensors)
        is_part = first.total_bytes is not None and rng.random() < 0.6
        sizes, strides = self._view(rng.randint(1, first.elements) if is_part else first.elements)
        kind = rng.random()
        if rng.random() < self._moving:
            moving, attributes, output = self._moved(sizes)
            tensors = {"InputTensor": (first, sizes, strides)}
            if moving == "JOIN":
                views = [(each, self._view_of(each.elements, sizes)) for each in self._tensors]
                second, view = rng.choice([(each, found) for each, found in views if found] or [(first, strides)])
                tensors = {"InputTensors[0]": tensors["InputTensor"], "InputTensors[1]": (second, sizes, view)}
            self._add_operator(moving, tensors, attributes, output)
        elif kind < 0.45:
            exact = OF_INTEGERS if self._of_integers else EXACT
            unary = [f"ELEMENT_WISE_{name}" for name in exact] + ([] if self._exact else list(NEAR))
            self._add_operator(rng.choice(unary), {"InputTensor": (first, sizes, strides)}, {})
        elif kind < 0.88 or self._exact:
            second = rng.choice(self._tensors)
            others = self._view_of(second.elements, sizes)
            if others is None:
                second, others = first, strides
            tensors = {"ATensor": (first, sizes, strides), "BTensor": (second, sizes, others)}
            pairs = PAIRS_OF_INTEGERS if self._of_integers else EXACT_PAIRS
            self._add_operator(f"ELEMENT_WISE_{rng.choice(pairs)}", tensors, {})
        else:
            axes = sorted(rng.sample(range(len(sizes)), min(len(sizes), rng.choice([1, 2]))))
            self._add_operator(rng.choice(REDUCING), {"InputTensor": (first, sizes, strides)}, {"Axes": axes})

    def _moved(self, sizes: list[int]) -> tuple[str, dict[str, Any], list[int]]:
        """An operator that goes by coordinates, for a tensor of `sizes`: its attributes, and its output's sizes."""
        rng, axis = self._rng, self._rng.randrange(len(sizes))
        large = prod(sizes) > 500
        known = ["SLICE", "SLICE1", "REDUCE"] + ([] if large else ["TILE", "JOIN", "PADDING"])
        match rng.choice([each for each in known if not self._of_integers or each not in ("REDUCE", "PADDING")]):
            case "SLICE":
                steps = [rng.choice([1, 1, 2]) for _ in sizes]
                offsets = [rng.randrange(size) for size in sizes]
                counts = [
                    rng.randint(1, 1 + (size - 1 - offset) // step)
                    for size, offset, step in zip(sizes, offsets, steps, strict=True)
                ]
                return "SLICE", {"Offsets": offsets, "Sizes": counts, "Strides": steps}, counts
            case "SLICE1":
                steps = [rng.choice([1, -1, -2, 2]) for _ in sizes]
                made = [1 + (size - 1) // abs(step) for size, step in zip(sizes, steps, strict=True)]
                nowhere = [0] * len(sizes)
                names = ("InputWindowOffsets", "InputWindowSizes", "InputWindowStrides")
                return "SLICE1", dict(zip(names, (nowhere, sizes, steps), strict=True)), made
            case "TILE":
                repeats = [rng.choice([1, 1, 2]) for _ in sizes]
                return "TILE", {"Repeats": repeats}, [a * b for a, b in zip(sizes, repeats, strict=True)]
            case "JOIN":
                return "JOIN", {"Axis": axis}, [size * 2 if n == axis else size for n, size in enumerate(sizes)]
            case "PADDING":
                ends = [[rng.choice([0, 1]) for _ in sizes] for _ in range(2)]
                mode = rng.choice(["CONSTANT", "EDGE", "SYMMETRIC"])
                pads = {"StartPadding": ends[0], "EndPadding": ends[1], "PaddingMode": mode, "PaddingValue": 1.5}
                return "PADDING", pads, [sum(each) for each in zip(sizes, *ends, strict=True)]
        made = [1 if n == axis else size for n, size in enumerate(sizes)]
        return "REDUCE", {"Function": rng.choice(["MAX", "MIN"]), "Axes": [axis]}, made

    def _add_operator(
        self,
        kind: str,
        tensors: Mapping[str, tuple[_Tensor, list[int], list[int]]],
        attributes: Mapping[str, Any],
        output: list[int] | None = None,
    ) -> None:
        """`output` has the sizes of the output, if these are not those of the first input."""
        index = len(self._document["Nodes"])
        desc: dict[str, Any] = {"Type": kind, **attributes}
        for name, (tensor, sizes, strides) in tensors.items():
            made: dict[str, Any] = {"DataType": self._type, "Sizes": sizes, "Strides": strides}
            made |= {"Flags": ["OWNED_BY_DML"]} if tensor.owned else {}
            made |= {"TotalTensorSizeInBytes": tensor.total_bytes} if tensor.total_bytes else {}
            array, bracket, _ = name.partition("[")
            if bracket:
                desc.setdefault(array, []).append(made)
            else:
                desc[name] = made
            edge = tensor.edge | {"ToNodeIndex": index, "ToNodeInput": name}
            self._document["InputEdges" if "GraphInput" in edge else "IntermediateEdges"].append(edge)
            self._read.add(tensor.edge.get("FromNodeIndex", -1))
        sizes = output or next(iter(tensors.values()))[1]
        if output or self._rng.random() < 0.15:
            permuted = self._permuted(sizes) if not output or self._rng.random() < 0.3 else None
            desc["OutputTensor"] = {"DataType": self._type, "Sizes": sizes, "Strides": permuted}
        edge = {"FromNodeIndex": index, "FromNodeOutput": "OutputTensor"}
        tensor = _Tensor(edge, prod(sizes))
        if self._gaps and self._rng.random() < self._gaps:
            desc["OutputTensor"] = {"DataType": self._type, "Sizes": sizes, "Strides": self._apart(sizes)}
            total = TensorDesc.model_validate(desc["OutputTensor"]).total_bytes
            tensor = _Tensor(edge, total // np.dtype(self._type.lower()).itemsize, total_bytes=total)
        self._document["Nodes"].append({"Type": "OPERATOR", "Desc": desc})
        self._tensors.append(tensor)

    def _add_outputs(self) -> None:
        for index, node in enumerate(self._document["Nodes"]):
            times = int(index not in self._read or self._rng.random() < 0.1) + int(self._rng.random() < 0.05)
            for time in range(times if node["Type"] == "OPERATOR" else 0):
                edge = {"FromNodeIndex": index, "FromNodeOutput": "OutputTensor", "GraphOutput": f"y{index}.{time}"}
                self._document["OutputEdges"].append(edge)

    def _permuted(self, sizes: list[int]) -> list[int]:
        """Strides of a tensor without gaps, its dimensions in any order."""
        order = self._rng.sample(range(len(sizes)), len(sizes))
        packed = packed_strides([sizes[axis] for axis in order])
        return [packed[order.index(axis)] for axis in range(len(sizes))]

    def _apart(self, sizes: list[int]) -> list[int]:
        """Those of a tensor with gaps, if there is more than one element."""
        larger = [size + self._rng.choice([0, 0, 1, 3]) for size in sizes[1:]]
        return packed_strides([1, *larger, self._rng.choice([1, 1, 2])])[:-1]

    def _view(self, count: int) -> tuple[list[int], list[int]]:
        """Sizes and strides that read all of so many elements, perhaps several times."""
        rng, left = self._rng, count
        sizes: list[int] = []
        while left > 1 and len(sizes) < 5:
            factor = rng.choice([each for each in range(2, left + 1) if left % each == 0])
            sizes.append(factor)
            left //= factor
        sizes.append(left)
        rng.shuffle(sizes)
        strides = self._permuted(sizes) if rng.random() < 0.4 else packed_strides(sizes)
        if rng.random() < 0.2 and count < 1000:
            at = rng.randrange(len(sizes) + 1)
            sizes.insert(at, rng.choice([2, 3]))
            strides = [*strides[:at], 0, *strides[at:]]
        return sizes, strides

    def _view_of(self, count: int, sizes: list[int]) -> list[int] | None:
        """Strides with which a tensor of `sizes` reads all of so many elements, if some are found."""
        if count == prod(sizes):
            return self._permuted(sizes)
        for _ in range(10):
            kept = [self._rng.random() < 0.5 for _ in sizes]
            if prod(size for size, keep in zip(sizes, kept, strict=True) if keep) == count:
                packed = packed_strides([size if keep else 1 for size, keep in zip(sizes, kept, strict=True)])
                return [step if keep else 0 for step, keep in zip(packed, kept, strict=True)]
        return None


def one_by_one(graph: Graph, drawn: Drawn, device: Device) -> dict[str, Array]:
    """The outputs, each operator dispatched by itself."""
    made: dict[NodeOutput, Buffer] = {}

    def data_of(source: Source) -> Buffer:
        match source:
            case NodeOutput():
                return made[source]
            case Constant():
                return memoryview(drawn.constants[source.node])
        return memoryview(drawn.inputs[source.name])

    for node in graph.nodes.values():
        outputs = {name: memoryview(bytearray(desc.total_bytes)) for name, desc in node.compiled.outputs.items()}
        inputs = [data_of(source) for source in node.sources.values()]
        device.prepare(node.compiled).dispatch(inputs, [*outputs.values()], never)
        made |= {NodeOutput(node.index, name): each for name, each in outputs.items()}
    return {
        name: np.frombuffer(made[each.source][: each.desc.data_bytes], numpy_type(each.desc.DataType))
        for name, each in graph.outputs.items()
    }


def initialized(
    graph: Graph,
    drawn: Drawn,
    device: Device,
    structures: Structures,
    computed: Mapping[Source, Buffer] | None = None,
) -> InitializedGraph:
    """`graph`, fused and scheduled, with what is computed once computed by `device`, unless it is `computed` before."""
    sources: dict[Source, Buffer] = {Constant(index): memoryview(data) for index, data in drawn.constants.items()}
    sources |= {GraphInput(name): memoryview(data) for name, data in drawn.inputs.items()}
    sources |= computed or {}
    planned = schedule(graph, structures)
    return initialize(planned, sources, lambda size: memoryview(bytearray(size)), device.prepare, never)


def dispatched(made: InitializedGraph, drawn: Drawn, device: Device) -> dict[str, Array]:
    """The outputs of a dispatch on `device`, whose scratch held something before."""
    plan = made.schedule
    kernel = device.prepare(made)

    def outputs(inputs: list[Buffer], taken: int | None) -> dict[str, Array]:
        """Those of one dispatch, the first of which takes the memory of an input."""
        buffers = {name: memoryview(bytearray(desc.data_bytes)) for name, desc in plan.outputs.items()}
        if taken is not None:
            buffers = {name: inputs[taken][: each.nbytes] for name, each in buffers.items()}
        scratch = [memoryview(bytearray(b"\xff" * plan.scratch_bytes))] if plan.scratch_bytes else []
        kernel.dispatch(inputs, [*buffers.values(), *scratch], never)
        return {name: np.frombuffer(each, numpy_type(plan.outputs[name].DataType)) for name, each in buffers.items()}

    results = outputs([memoryview(drawn.inputs[name]) for name in plan.inputs], None)
    for name in made.reusable:
        inputs = [memoryview(bytearray(drawn.inputs[each])) for each in plan.inputs]
        again = outputs(inputs, list(plan.inputs).index(name))
        for output, array in results.items():
            assert array.tobytes() == again[output].tobytes(), f"where {output} takes the memory of {name}"
    return results
