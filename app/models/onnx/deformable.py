"""DeformConv: a convolution whose elements are sampled, each at a place that the offsets move."""

from math import prod

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.element_wise import binary
from app.models.onnx.grids import Axis, sampled, taps_of
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, maps
from app.models.onnx.movement import padded, window
from app.models.onnx.operands import FLOATS
from app.models.onnx.shapes import along, removed
from app.models.onnx.tensors import Unsupported, View

_MOST_CONSTANT = 1 << 22
"""Coordinates of places that are not moved, which are made while the graph is built."""


@maps("DeformConv")
def deform_conv(node: Node) -> View:
    """Of images: what the kernel meets is sampled for each of its elements, and multiplied by the weights."""
    x, weights, offsets = node.view(0), node.view(1), node.view(2)
    groups, parts = int(node.attribute("group", 1)), int(node.attribute("offset_group", 1))
    if len(x.sizes) != 4 or len(weights.sizes) != 4 or x.data_type not in FLOATS:
        raise Unsupported(f"its input is {x.data_type} {list(x.sizes)}, where images of floats are mapped")
    kernel, (batch, channels, *images) = weights.sizes[2:], x.sizes
    stated = node.attribute("kernel_shape")
    if stated and tuple(stated) != kernel:
        raise Unsupported(f"its kernel_shape is {list(stated)}, where its weights have {list(kernel)}")
    steps, spread = (node.attribute(name) or [1, 1] for name in ("strides", "dilations"))
    pads = node.attribute("pads") or [0, 0, 0, 0]
    outer = tuple(
        (size + pads[axis] + pads[axis + 2] - spread[axis] * (kernel[axis] - 1) - 1) // steps[axis] + 1
        for axis, size in enumerate(images)
    )
    elements, places = prod(kernel), prod(outer)
    expected = (batch, parts * elements * 2, *outer)
    fits = not channels % groups and not weights.sizes[0] % groups and weights.sizes[1] * groups == channels
    if min(outer) < 1 or offsets.sizes != expected or not fits or channels % parts:
        raise Unsupported(
            f"its offsets have sizes {list(offsets.sizes)} and its weights {list(weights.sizes)}, which do not fit"
            f" {list(x.sizes)} with group {groups} and offset_group {parts}"
        )
    if elements * max(outer) > _MOST_CONSTANT:
        raise Unsupported(f"its kernel has {elements} elements, and {max(outer)} places along an axis")
    moved = node.reshaped(offsets, (batch * parts, elements, 2, *outer))
    axes = [Axis(size, False, "zeros") for size in images]
    taps = []
    for axis, each in enumerate(axes):
        part = window(node, moved, [*map(range, moved.sizes[:2]), range(axis, axis + 1), *map(range, outer)])
        assert isinstance(part, View), "there are places"
        given = node.cast(removed(part, 2), DataType.FLOAT32)
        own, at = (np.indices(sizes, np.float32, sparse=True)[axis] for sizes in (kernel, outer))
        own = np.broadcast_to(own, kernel).reshape(-1, 1, 1)
        unmoved = node.build.constant(own * spread[axis] + at * steps[axis] - pads[axis])
        place = binary(node, "ELEMENT_WISE_ADD", given, unmoved)
        taps.append(taps_of(node, node.reshaped(place, (batch * parts, 1, elements * places)), each, "linear"))
    ring = [0, 0, 1, 1]
    x = padded(node, x, ring, ring)
    lines = node.reshaped(x, (batch * parts, channels // parts, prod(x.sizes[2:])))
    met = node.cast(sampled(node, lines, x.sizes[2:], taps), x.data_type)
    if node.has(4):
        met = binary(node, "ELEMENT_WISE_MULTIPLY", met, node.reshaped(node.view(4), (batch * parts, 1, met.sizes[-1])))
    rows = node.reshaped(met, (batch, groups, channels // groups * elements, places))
    matrices = node.reshaped(weights, (1, groups, weights.sizes[0] // groups, rows.sizes[2]))
    made = node.reshaped(matmul(node, matrices, rows), (batch, weights.sizes[0], *outer))
    return binary(node, "ELEMENT_WISE_ADD", made, along(node.view(3), 1, 4)) if node.has(3) else made
