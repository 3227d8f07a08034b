"""What kernels of graphs are made of: the outputs of nodes, each by a formula, and how costly these are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.coordinates import Total
from app.formula.costs import CHEAP
from app.formula.values import Operation, Value, parts
from app.graphs.graph import Node, NodeOutput, Source
from app.graphs.movers import moved_inputs
from app.operators.parameters import bare
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map
from app.programs.walks import Walk, collapse

MOST_INPUTS = 32
"""Of one kernel: the arguments of a CUDA kernel, with all strides, have 4 KiB."""

MOST_WRITTEN = 200
"""Of one kernel, how deep a formula is once devices have written it: they walk it by functions that call themselves."""

_WRITTEN, _WRITTEN_DEEP = 16, {"power": 24, "normal_cdf": 24, "fmod": 33, "remainder": 33}
"""How deep what is not cheap is written, at most (tests/graphs/test_depth.py)."""


@dataclass(frozen=True, eq=False, slots=True)
class PlannedKernel:
    """A kernel of a graph: `nodes`, by index, fused; where its inputs are from, and what its outputs are."""

    nodes: tuple[int, ...]
    dispatchable: Dispatchable
    reads: dict[str, Source]
    writes: dict[str, NodeOutput]


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """An output of a node, and what it reads, aliases resolved.

    `made` is its formula; None if the node goes by a call: it is a kernel of its own. `type` is that of its elements;
    None of bits that copies move out of memory: they are what a reader says.
    """

    node: Node
    made: Map | None
    type: DataType | None
    desc: TensorDesc
    sources: dict[str, Source]

    @property
    def moved(self) -> frozenset[str]:
        """The inputs whose elements it moves as they are, of whatever type its reader or its source has."""
        return moved_inputs(self.made) if self.made else frozenset()

    @property
    def is_copy(self) -> bool:
        """Whether its elements are such."""
        return bool(self.moved)

    @property
    def goes_by_coordinates(self) -> bool:
        return self.made is not None and self.made.by_coordinates

    @property
    def inputs(self) -> Iterator[tuple[str, Source, DataType]]:
        """Of each input the name, the source, and how its elements are read."""
        for name, stored in self.node.compiled.program.inputs.items():
            yield name, self.sources[name], stored

    def walk(self, name: str) -> Walk:
        """Sizes of dimensions, and the strides along these of each input, then of itself, which is called `name`: as
        few as will do, but for one that reduces: its own."""
        compiled, desc = self.node.compiled, self.desc
        if self.made is not None and self.made.axes:
            return desc.Sizes, [list(each) for each in compiled.layouts(name)]
        descs = [*compiled.inputs.values(), desc]
        if desc.elements > 1 and all(each.Strides is None and each.Sizes == desc.Sizes for each in descs):
            return [desc.elements], [[1] for _ in descs]  # as `collapse` would find, in a tenth of the time
        return collapse(desc.Sizes, compiled.layouts(name))


Outputs: TypeAlias = dict[NodeOutput, Output]


def whole(value: Output) -> PlannedKernel:
    """A node as a kernel of its own."""
    node = value.node
    writes = {name: NodeOutput(node.index, name) for name in node.compiled.outputs}
    return PlannedKernel(
        (node.index,), node.compiled, {name: value.sources[name] for name in node.compiled.inputs}, writes
    )


def input_name(number: int) -> str:
    """What a kernel calls its input of this number."""
    return f"in{number}"


def plain_desc(stored: DataType, sizes: list[int], strides: Sequence[int] | None = None) -> TensorDesc:
    """Of a tensor that is a kernel's own matter, and need not keep to DirectML's limits."""
    values = {"DataType": stored, "Sizes": sizes, "Strides": strides and list(strides)}
    return bare(TensorDesc, _DEFAULTS | values)  # `model_construct` takes a hundred times as long


_DEFAULTS = dict(TensorDesc(DataType=DataType.FLOAT32, Sizes=[1]))


class Depth(NamedTuple):
    """How deep a formula is, in its values, and once devices have written it."""

    values: int = 0
    written: int = 0

    def below(self, other: "Depth") -> "Depth":
        """That of a formula inside one of this depth."""
        return Depth(self.values + other.values, self.written + other.written)


@lru_cache(4096)
def size_of(made: Map) -> tuple[int, Depth]:
    """How many values a formula is made of, and how deep it is."""
    depths: dict[Value, int] = {}
    written: dict[Value, int] = {}
    for node in parts(made.expression):
        operands = node.operands()
        depths[node] = 1 + max([depths[each] for each in operands], default=0)
        written[node] = _written(node) + max([written[each] for each in operands], default=0)
    return len(depths), Depth(depths[made.expression], written[made.expression])


def _written(node: Value) -> int:
    if not isinstance(node, Operation) or node.name in CHEAP:
        return 1
    return _WRITTEN_DEEP.get(node.name, _WRITTEN)


@lru_cache(4096)
def is_cheap(made: Map) -> bool:
    return all(not isinstance(node, Operation) or node.name in CHEAP for node in parts(made.expression))


@lru_cache(4096)
def has_totals(made: Map) -> bool:
    """Whether a formula that goes by coordinates has totals."""
    return any(isinstance(node, Total) for node in parts(made.expression))
