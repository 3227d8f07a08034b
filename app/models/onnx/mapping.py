"""What each ONNX operator is in DirectML: the registry that the modules of mappings fill."""

from collections.abc import Callable
from typing import Any

from app.contract.constants import DataType
from app.models.onnx.builder import Array, Builder
from app.models.onnx.tensors import Sizes, View

Value = View | Array
"""A tensor of the graph, or one whose elements are known already (an initializer, or what was computed of such)."""


class Unsupported(Exception):
    """This node has no DirectML operator, or not with these inputs. The text says why, as a clause: "its shape is not
    constant"."""


class Node:
    """One ONNX node with what is known of its inputs.

    `type`, `domain` ("" for ai.onnx), `opset` (of its domain), `name`; `inputs` (None where left out); `wanted[i]` says
    whether output i is used; `build` makes DirectML nodes.
    """

    type: str
    domain: str
    opset: int
    name: str
    inputs: list[Value | None]
    wanted: list[bool]
    build: Builder

    def has(self, index: int) -> bool:
        """Whether there is such an input."""
        ...

    def view(self, index: int) -> View:
        """Input `index` as a tensor of the graph: what is known becomes a constant node."""
        ...

    def array(self, index: int, what: str) -> Array:
        """Input `index`, whose elements must be known. Raises Unsupported, naming `what`."""
        ...

    def attribute(self, name: str, default: Any = None) -> Any:
        """In Python's types: int, float, str, list of these, ndarray."""
        ...

    def packed(self, view: View) -> View:
        """`view`, or a copy of it whose elements lie packed."""
        ...

    def reshaped(self, view: View, sizes: Sizes) -> View:
        """The same elements in the same order, copied if their strides demand it."""
        ...

    def cast(self, view: View, data_type: DataType) -> View:
        """By CAST, or `view` itself."""
        ...


Mapping = Callable[[Node], Value | list[Value | None]]
"""Gives the node's outputs, the only one or all in order. Raises Unsupported."""

MAPPINGS: dict[tuple[str, str], Mapping] = {}


def maps(*types: str, domain: str = "") -> Callable[[Mapping], Mapping]:
    """Register a mapping for ONNX operators, all versions; it looks at `node.opset` where they differ."""

    def register(mapping: Mapping) -> Mapping:
        for each in types:
            MAPPINGS[domain, each] = mapping
        return mapping

    return register
