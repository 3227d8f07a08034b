"""What each ONNX operator is in DirectML: the registry that the modules of mappings fill."""

from collections.abc import Callable, Sequence
from typing import Any

from app.contract.constants import DataType
from app.models.onnx.builder import Array, Builder, data_type_of
from app.models.onnx.moved import restored_by_one
from app.models.onnx.tensors import Sizes, Unsupported, View

Value = View | Array
"""A tensor of the graph, or one whose elements are known already (an initializer, or what was computed of such)."""


class Node:
    """One ONNX node with what is known of its inputs.

    `type`, `domain` ("" for ai.onnx), `opset` (of its domain), `name`; `inputs` (None where left out); `wanted[i]` says
    whether output i is used; `build` makes DirectML nodes.
    """

    def __init__(
        self,
        type: str,  # noqa: A002 - ONNX's word
        domain: str,
        opset: int,
        name: str,
        inputs: Sequence[Value | None],
        wanted: Sequence[bool],
        attributes: dict[str, Any],
        build: Builder,
        alone: Sequence[bool] = (),
    ) -> None:
        """`attributes` are in Python's types, with the schema's defaults of those that are left out. `alone[i]` says
        whether nothing else reads input i."""
        self.type = type
        self.domain = domain
        self.opset = opset
        self.name = name
        self.inputs: list[Value | None] = list(inputs)
        self.wanted: list[bool] = list(wanted)
        self.attributes = attributes
        self.build = build
        self._alone = list(alone)

    def reads_alone(self, index: int) -> bool:
        """Whether input `index` is made in the same graph, and nothing else reads it."""
        return index < len(self._alone) and self._alone[index]

    def has(self, index: int) -> bool:
        """Whether there is such an input."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Input `index`. Raises Unsupported if it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise Unsupported(f"its input {index} is left out")
        return value

    def view(self, index: int) -> View:
        """Input `index` as a tensor of the graph: what is known becomes a constant node."""
        value = self.value(index)
        return value if isinstance(value, View) else self.build.constant(value)

    def optional(self, index: int) -> View | None:
        """The same, or None if it is left out."""
        return self.view(index) if self.has(index) else None

    def array(self, index: int, what: str) -> Array:
        """Input `index`, whose elements must be known. Raises Unsupported, naming `what`."""
        value = self.value(index)
        if isinstance(value, View):
            raise Unsupported(f"its {what} is not constant")
        if value.dtype.kind == "c":  # whose imaginary parts would be dropped
            raise Unsupported(f"its {what} is of complex numbers")
        return value

    def sizes(self, index: int) -> Sizes:
        """Of input `index`, known or not."""
        value = self.value(index)
        return value.sizes if isinstance(value, View) else value.shape

    def data_type(self, index: int) -> DataType:
        """Of input `index`, known or not."""
        value = self.value(index)
        return value.data_type if isinstance(value, View) else data_type_of(value)

    def is_boolean(self, index: int) -> bool:
        """Whether input `index` is ONNX's bool, whose data type here is UINT8."""
        return self.build.is_boolean(self.value(index))

    def attribute(self, name: str, default: Any = None) -> Any:
        """In Python's types: int, float, str, list of these, ndarray. The schema's default, if it has one, comes before
        `default`."""
        return self.attributes.get(name, default)

    def packed(self, view: View) -> View:
        """`view`, or a copy of it whose elements lie packed."""
        if view.is_packed:
            return view
        before = restored_by_one(self.build, view)
        if before:
            return before.again(self.build, self.packed(before.x))
        return self.build.operator("ELEMENT_WISE_IDENTITY", {"InputTensor": view})["OutputTensor"]

    def reshaped(self, view: View, sizes: Sizes) -> View:
        """The same elements in the same order, copied if their strides demand it."""
        made = view.reshaped(sizes)
        if made is None:
            made = self.packed(view).reshaped(sizes)
            assert made is not None, "what is packed can be read in any sizes"
        return made

    def cast(self, view: View, data_type: DataType) -> View:
        """By CAST, or `view` itself."""
        if view.data_type is data_type:
            return view
        made = self.build.operator("CAST", {"InputTensor": view}, outputs={"OutputTensor": (data_type, view.sizes)})
        return made["OutputTensor"]


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
