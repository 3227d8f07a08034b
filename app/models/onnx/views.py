"""ONNX operators that only read the same bytes another way, or say what is known already: no DirectML operator."""

from math import prod

import numpy as np

from app.models.onnx.builder import Array
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.shapes import axes_of, axis_of, integers
from app.models.onnx.tensors import Sizes, Unsupported, View


@maps("Identity")
def identity(node: Node) -> Value:
    return node.value(0)


@maps("Dropout")
def dropout(node: Node) -> list[Value | None]:
    """As in inference, or with nothing to drop."""
    if node.has(2) and node.array(2, "training_mode").any() and (not node.has(1) or node.array(1, "ratio").any()):
        raise Unsupported("it is in training mode")
    mask: Array = np.broadcast_to(np.True_, node.sizes(0))
    return [node.value(0), mask]


@maps("Constant")
def constant(node: Node) -> Value:
    for name, value in node.attributes.items():
        if name in ("value", "sparse_value"):
            return np.asarray(value)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise Unsupported("its value is no tensor of numbers")


@maps("ConstantOfShape")
def constant_of_shape(node: Node) -> Value:
    value = node.attribute("value")
    one = np.zeros((), np.float32) if value is None else value.reshape(())
    return np.broadcast_to(one, integers(node, 0, "shape"))


@maps("Shape")
def shape(node: Node) -> Value:
    start, end = node.attribute("start", 0), node.attribute("end")
    return np.array(node.sizes(0)[slice(start, end)], np.int64)


@maps("Size")
def size(node: Node) -> Value:
    return np.array(prod(node.sizes(0)), np.int64)


@maps("Transpose")
def transpose(node: Node) -> Value:
    view = node.view(0)
    axes = node.attribute("perm") or range(len(view.sizes))[::-1]
    if sorted(axes) != list(range(len(view.sizes))):
        raise Unsupported(f"its perm {list(axes)} is not one of {len(view.sizes)} axes")
    return view.transposed(axes)


@maps("Reshape")
def reshape(node: Node) -> Value:
    old = node.sizes(0)
    new = list(integers(node, 1, "shape"))
    if not node.attribute("allowzero", 0):
        new = [old[axis] if each == 0 and axis < len(old) else each for axis, each in enumerate(new)]
    if -1 in new:
        rest = prod(each for each in new if each != -1)
        new[new.index(-1)] = prod(old) // rest if rest else 0
    return _reshaped(node, tuple(new))


@maps("Flatten")
def flatten(node: Node) -> Value:
    old, axis = node.sizes(0), node.attribute("axis")
    axis = axis if axis == len(old) else axis_of(axis, len(old))
    return _reshaped(node, (prod(old[:axis]), prod(old[axis:])))


@maps("Squeeze")
def squeeze(node: Node) -> Value:
    old, axes = node.sizes(0), axes_given(node)
    if axes is None:
        return _reshaped(node, tuple(each for each in old if each != 1))
    cut = axes_of(axes, len(old))
    return _reshaped(node, tuple(each for axis, each in enumerate(old) if axis not in cut))


@maps("Unsqueeze")
def unsqueeze(node: Node) -> Value:
    old, axes = node.sizes(0), axes_given(node)
    if axes is None:
        raise Unsupported("it has no axes")
    rank = len(old) + len(axes)
    new = axes_of(axes, rank)
    left = iter(old)
    return _reshaped(node, tuple(1 if axis in new else next(left) for axis in range(rank)))


@maps("Expand")
def expand(node: Node) -> Value:
    return node.view(0).broadcast(np.broadcast_shapes(node.sizes(0), integers(node, 1, "shape")))


def axes_given(node: Node) -> list[int] | None:
    """An attribute, and from opset 13 on an input."""
    axes: list[int] | None = integers(node, 1, "axes") if node.has(1) else node.attribute("axes")
    return axes


def _reshaped(node: Node, sizes: Sizes) -> Value:
    if prod(sizes) != prod(node.sizes(0)) or min(sizes, default=1) < 0:
        raise Unsupported(f"sizes {list(node.sizes(0))} cannot become {list(sizes)}")
    value = node.value(0)
    if not isinstance(value, View) and not value.size:
        return value.reshape(sizes)
    return node.reshaped(node.view(0), sizes)
