"""Rotary embeddings: pairs of numbers turned by angles that their position says."""

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.mapping import Node, maps
from app.models.onnx.movement import joined, window
from app.models.onnx.shapes import inserted, of_type
from app.models.onnx.tensors import Sizes, Unsupported, View


def binary(node: Node, operator: str, a: View, b: View) -> View:
    """ELEMENT_WISE_... of two tensors of the same sizes and type."""
    outputs = {"OutputTensor": (a.data_type, a.sizes)}
    return node.build.operator(f"ELEMENT_WISE_{operator}", {"ATensor": a, "BTensor": b}, {}, outputs)["OutputTensor"]


@maps("RotaryEmbedding", domain="com.microsoft")
def rotary_embedding(node: Node) -> View:
    x, positions, cosines, sines = (node.view(index) for index in range(4))
    if node.attribute("is_packed_batching", 0) or node.attribute("scale", 1.0) != 1:
        raise Unsupported("its batches are packed, or it is scaled")
    width = int(node.attribute("rotary_embedding_dim", 0)) or 2 * cosines.sizes[1]
    heads = int(node.attribute("num_heads", 0))
    if len(x.sizes) == 4:
        states = x.transposed((0, 2, 1, 3))
    else:
        size = x.sizes[-1] // heads if heads else width
        states = node.reshaped(x, (*x.sizes[:2], x.sizes[-1] // size, size))
    batch, length, _, _ = states.sizes
    if positions.elements == 1 and len(positions.sizes) == 1:
        first = positions.broadcast((1, length))
        steps = node.build.constant(np.arange(length, dtype=np.int64).reshape(1, length))
        positions = binary(node, "ADD", first, steps).broadcast((batch, length))
    turned = rotated(node, states, (cosines, sines), positions, interleaved=bool(node.attribute("interleaved", 0)))
    return turned.transposed((0, 2, 1, 3)) if len(x.sizes) == 4 else node.reshaped(turned, x.sizes)


def rotated(node: Node, states: View, angles: tuple[View, View], positions: View, *, interleaved: bool) -> View:
    """`states` { batch, length, heads, size }, each with the angles at its position, of { batch, length }. `angles` are
    cosines and sines, { positions, half of what is turned }."""
    batch, length, heads, size = states.sizes
    half = angles[0].sizes[1]
    width = 2 * half
    if width > size:
        raise Unsupported(f"it turns {width} of {size} numbers")
    turns = [_gathered(node, each, positions, (batch, length, heads, half)) for each in angles]
    pairs = (batch, length, heads, *((half, 2) if interleaved else (2, half)))
    apart = node.reshaped(_part(node, states, 3, range(width)), pairs)
    axis = 4 if interleaved else 3
    first, second = (
        node.reshaped(_part(node, apart, axis, range(place, place + 1)), (batch, length, heads, half))
        for place in (0, 1)
    )
    products = [[binary(node, "MULTIPLY", each, turn) for turn in turns] for each in (first, second)]
    one = binary(node, "SUBTRACT", products[0][0], products[1][1])
    other = binary(node, "ADD", products[0][1], products[1][0])
    both = joined(node.build, [inserted(one, axis), inserted(other, axis)], axis)
    turned = node.reshaped(both, (batch, length, heads, width))
    return turned if width == size else joined(node.build, [turned, _part(node, states, 3, range(width, size))], 3)


def _gathered(node: Node, angles: View, positions: View, sizes: Sizes) -> View:
    """Rows of `angles` at `positions`, for all heads."""
    made = node.build.operator(
        "GATHER",
        {"InputTensor": angles, "IndicesTensor": of_type(positions, DataType.INT64)},
        {"Axis": 1, "IndexDimensions": 2},
        {"OutputTensor": (angles.data_type, (*positions.sizes, angles.sizes[1]))},
        rank=3,
    )
    return inserted(made["OutputTensor"], 2).broadcast(sizes)


def _part(node: Node, x: View, axis: int, places: range) -> View:
    made = window(node, x, [places if k == axis else range(size) for k, size in enumerate(x.sizes)])
    assert isinstance(made, View), "it has elements"
    return made
