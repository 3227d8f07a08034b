"""A graph's descriptor, node by node."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.contract.constants import DataType
from app.graphs.graph import Constant, GraphInput, NodeOutput
from app.memory.arrays import numpy_type
from app.memory.buffers import Buffer
from app.models.onnx.tensors import Sizes, View

Array = NDArray[Any]


class BuiltGraph(NamedTuple):
    """A graph's document without the data of its constant nodes, and these by node."""

    document: dict[str, Any]
    constants: dict[int, Buffer]


class Builder:
    """Makes nodes and edges. `inputs`, constants and what operators write are views, which any operator may read."""

    def __init__(self) -> None:
        self._nodes: list[dict[str, Any]] = []
        self._input_edges: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._output_edges: list[dict[str, Any]] = []
        self._constants: dict[int, Buffer] = {}
        self._known: dict[tuple[str, Sizes, bytes], View] = {}
        self._label = ""

    def label(self, name: str) -> None:
        """What the next operators come from, for their names."""
        self._label = name

    def input(self, name: str, data_type: DataType, sizes: Sequence[int]) -> View:
        """An input of the graph, packed."""
        return View.packed(GraphInput(name), data_type, sizes)

    def constant(self, array: Array, data_type: DataType | None = None) -> View:
        """A constant node with `array`'s elements, packed. Booleans are UINT8. Equal small arrays are one node.

        `data_type` is for what NumPy has no type for: 4-bit types, given as their bytes with `array.shape` as sizes.
        """
        ...

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
        The views that come back are by field, `OutputTensors[0]` for arrays. Every tensor's descriptor gets at least
        `rank` dimensions; views that come back keep the sizes that were given.
        """
        ...

    def output(self, name: str, view: View) -> None:
        """An output of the graph, packed: what is not, or is no operator's own output, is copied by IDENTITY."""
        ...

    def built(self) -> BuiltGraph:
        ...
