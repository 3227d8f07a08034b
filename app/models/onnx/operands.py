"""What mappings share: operands of one size, types that operators take, axes, and numbers as tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.contract.constants import NEWEST, DataType
from app.models.onnx.mapping import Node
from app.models.onnx.tensors import Sizes, Unsupported, View
from app.operators.catalog import find_operator

FLOATS = (DataType.FLOAT32, DataType.FLOAT16)


def operate(
    node: Node,
    operator: str,
    inputs: Mapping[str, View | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: Mapping[str, tuple[DataType, Sizes] | None] | None = None,
    rank: int = 1,
) -> View:
    """The first output of a new DirectML node, by default OutputTensor of the first input's type and sizes. Raises
    Unsupported if the operator does not take the inputs' types."""
    for field, view in inputs.items():
        if view is not None:
            require(operator, field, view.data_type)
    return next(iter(node.build.operator(operator, inputs, attributes, outputs, rank).values()))


def takes(operator: str, field: str) -> tuple[DataType, ...]:
    """Data types of the tensor `field` of `operator`, at the newest feature level."""
    found = find_operator(operator)
    row = found.support.at(NEWEST) if found else None
    assert row is not None, f"there is no {operator}"
    return row.of(field).data_types


def require(operator: str, field: str, data_type: DataType) -> None:
    """Raises Unsupported if `operator` does not take it there."""
    if data_type not in takes(operator, field):
        raise Unsupported(f"DirectML's {operator} takes no {data_type} as {field}")


def require_equal(*views: View) -> None:
    """Raises Unsupported unless all are of one type, which ONNX demands as well."""
    types = {view.data_type for view in views}
    if len(types) > 1:
        raise Unsupported(f"its inputs are of different types, {' and '.join(sorted(types))}")


def common_sizes(*sizes: Sequence[int]) -> Sizes:
    """By NumPy's rules. Raises Unsupported."""
    try:
        return np.broadcast_shapes(*map(tuple, sizes))
    except ValueError:
        told = " and ".join(str(list(each)) for each in sizes)
        raise Unsupported(f"{told} cannot be broadcast to each other") from None


def broadcast(view: View, sizes: Sequence[int]) -> View:
    """`view` repeated to `sizes`. Raises Unsupported."""
    try:
        return view.broadcast(sizes)
    except ValueError:
        raise Unsupported(f"{list(view.sizes)} cannot be broadcast to {list(sizes)}") from None


def alike(*views: View) -> list[View]:
    """All broadcast to their common sizes."""
    sizes = common_sizes(*(view.sizes for view in views))
    return [broadcast(view, sizes) for view in views]


def views(node: Node, least: int = 1) -> list[View]:
    """All inputs, of which there are at least so many."""
    return [node.view(index) for index in range(max(least, len(node.inputs)))]


def number(node: Node, value: float, data_type: DataType, sizes: Sequence[int] = ()) -> View:
    """`value` as a tensor, repeated to `sizes`."""
    return node.build.constant(np.array(value, data_type.lower())).broadcast(sizes)


def one_element(node: Node, index: int, what: str) -> View:
    """Input `index`, without dimensions. Raises Unsupported if it has several elements."""
    view = node.view(index)
    if view.elements != 1:
        raise Unsupported(f"its {what} has {view.elements} elements, not one")
    return node.reshaped(view, ())


def known_number(node: Node, index: int) -> int | float | None:
    """The one element of input `index`; None if it is not known, left out, or not one."""
    value = node.inputs[index] if node.has(index) else None
    if value is None or isinstance(value, View) or value.size != 1:
        return None
    found: int | float = value.item()
    return found


def along(node: Node, view: View, axis: int, sizes: Sequence[int]) -> View:
    """A vector laid along dimension `axis` of a tensor of `sizes`, or one element, with as many dimensions and 1 in all
    others."""
    length = sizes[axis] if view.elements != 1 else 1
    if view.elements != length:
        raise Unsupported(f"one of its inputs has {view.elements} elements, where dimension {axis} has {sizes[axis]}")
    return node.reshaped(view, tuple(length if each == axis else 1 for each in range(len(sizes))))


def wider(node: Node, *views: View) -> list[View]:
    """Of FLOAT32 if they are of different float types. Raises Unsupported of other types."""
    for view in views:
        if view.data_type not in FLOATS:
            raise Unsupported(f"DirectML does not compute it in {view.data_type}")
    if len({view.data_type for view in views}) > 1:
        return [node.cast(view, DataType.FLOAT32) for view in views]
    return list(views)
