"""GridSample: elements at the places that a tensor tells, gathered and weighted by how near they are; AffineGrid."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.element_wise import binary, linear
from app.models.onnx.indexing import elements_at
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, maps
from app.models.onnx.movement import padded, window
from app.models.onnx.operands import FLOATS, number, operate
from app.models.onnx.shapes import integers, limited
from app.models.onnx.tensors import Unsupported, View

_MOST_PLACES = 1 << 22
"""Whose coordinates are made while the graph is built."""

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""As opset 16 calls what later ones have for all numbers of dimensions."""

_A = -0.75
_CUBIC = (
    (_A, -2 * _A, _A, 0.0),
    (_A + 2, -(_A + 3), 0.0, 1.0),
    (-(_A + 2), 2 * _A + 3, -_A, 0.0),
    (-_A, _A, 0.0, 0.0),
)
"""Weights of the four elements around a place, as polynomials of how far it is behind the second one."""


class Axis(NamedTuple):
    """A dimension that is sampled, and what is beyond its elements."""

    size: int
    aligned: bool
    """Whether -1 and 1 are the middles of the outermost elements, not their outer edges."""
    padding: str

    @property
    def ring(self) -> int:
        """Zeros that are put before it, and behind it."""
        return 1 if self.padding == "zeros" else 0


class Tap(NamedTuple):
    """An element along one dimension: which one it is for each place, and what it weighs; None is 1."""

    element: View
    weight: View | None


@maps("GridSample")
def grid_sample(node: Node) -> View:
    """Zeros around are there: one before and one behind along each dimension, which is where all places beyond are."""
    x, grid = node.view(0), node.view(1)
    count = limited(len(x.sizes), 5) - 2
    mode, padding = node.attribute("mode"), node.attribute("padding_mode")
    mode = _MODES.get(mode, mode)
    if count < 1 or len(grid.sizes) != count + 2 or grid.sizes[0] != x.sizes[0] or grid.sizes[-1] != count:
        raise Unsupported(f"its grid has sizes {list(grid.sizes)}, which do not fit {list(x.sizes)}")
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"its mode is {mode} and its padding_mode {padding}")
    if mode != "nearest" and x.data_type not in FLOATS:
        raise Unsupported(f"its mode is {mode} and its type {x.data_type}")
    outputs = (*x.sizes[:2], *grid.sizes[1:-1])
    batch, places = x.sizes[0], prod(grid.sizes[1:-1])
    axes = [Axis(size, bool(node.attribute("align_corners")), padding) for size in x.sizes[2:]]
    taps = []
    for last, axis in zip(reversed(range(count)), axes, strict=True):  # the grid has the last dimension first
        part = window(node, grid, [*map(range, grid.sizes[:-1]), range(last, last + 1)])
        assert isinstance(part, View), "there are places"
        laid = node.cast(node.reshaped(part, (batch, 1, places)), DataType.FLOAT32)
        taps.append(taps_of(node, _coordinate(node, laid, axis), axis, mode))
    rings = [0, 0, *(axis.ring for axis in axes)]
    x = padded(node, x, rings, rings)
    lines = node.reshaped(x, (*x.sizes[:2], prod(x.sizes[2:])))
    return node.reshaped(node.cast(sampled(node, lines, x.sizes[2:], taps), x.data_type), outputs)


def sampled(node: Node, lines: View, sizes: Sequence[int], taps: Sequence[Sequence[Tap]]) -> View:
    """What is at the places that `taps` along each of the dimensions `sizes` lead to, which are one of `lines`: in
    float32 if it is weighted."""
    first, *rest = (_term(node, lines, sizes, chosen) for chosen in product(*taps))
    for each in rest:
        first = binary(node, "ELEMENT_WISE_ADD", first, each)
    return first


def _coordinate(node: Node, grid: View, axis: Axis) -> View:
    """Where -1 to 1 lead to, in elements from the first one on."""
    behind = linear(node, grid, 1.0, 1.0)
    if axis.aligned:
        made = linear(node, behind, (axis.size - 1) / 2, 0.0)
    else:
        made = linear(node, linear(node, behind, float(axis.size), -1.0), 0.5, 0.0)
    return _inside(node, made, axis)


def _inside(node: Node, place: View, axis: Axis) -> View:
    """Turned back at the borders if that is the padding. What is beyond them otherwise is for `_index`."""
    if axis.padding != "reflection":
        return place
    first, length = (0.0, axis.size - 1.0) if axis.aligned else (-0.5, float(axis.size))
    if not length:
        return linear(node, place, 0.0, 0.0)
    away = operate(node, "ELEMENT_WISE_ABS", {"InputTensor": linear(node, place, 1.0, -first)})
    there = binary(node, "ELEMENT_WISE_MODULUS_FLOOR", away, number(node, 2 * length, DataType.FLOAT32))
    back = linear(node, there, -1.0, 2 * length)
    return linear(node, binary(node, "ELEMENT_WISE_MIN", there, back), 1.0, first)


def taps_of(node: Node, place: View, axis: Axis, mode: str) -> list[Tap]:
    """Around a coordinate along a dimension."""
    if mode == "nearest":
        attributes = {"RoundingMode": "HALVES_TO_NEAREST_EVEN"}
        nearest = operate(node, "ELEMENT_WISE_ROUND", {"InputTensor": place}, attributes)
        return [Tap(_index(node, nearest, 0, axis), None)]
    below = operate(node, "ELEMENT_WISE_FLOOR", {"InputTensor": place})
    part = binary(node, "ELEMENT_WISE_SUBTRACT", place, below)
    if mode == "linear":
        before = linear(node, part, -1.0, 1.0)
        return [Tap(_index(node, below, 0, axis), before), Tap(_index(node, below, 1, axis), part)]
    return [Tap(_index(node, below, k - 1, axis), _polynomial(node, part, each)) for k, each in enumerate(_CUBIC)]


def _index(node: Node, place: View, more: int, axis: Axis) -> View:
    """In the tensor with its ring, of a whole number and some `more`."""
    moved = _inside(node, linear(node, place, 1.0, float(more)), axis)
    attributes = {"MinMaxDataType": "FLOAT32", "Min": float(-axis.ring), "Max": float(axis.size - 1 + axis.ring)}
    inside = operate(node, "ELEMENT_WISE_CLIP1", {"InputTensor": moved}, attributes)
    return node.cast(linear(node, inside, 1.0, float(axis.ring)), DataType.INT32)


def _polynomial(node: Node, x: View, factors: Sequence[float]) -> View:
    highest, *rest = factors
    made = linear(node, x, highest, rest[0])
    for each in rest[1:]:
        made = linear(node, binary(node, "ELEMENT_WISE_MULTIPLY", made, x), 1.0, each)
    return made


def _term(node: Node, lines: View, sizes: Sequence[int], taps: Sequence[Tap]) -> View:
    """One element of each place, in float32 if it is weighted."""
    index, weight = taps[0].element, taps[0].weight
    for size, tap in zip(sizes[1:], taps[1:], strict=True):
        along = binary(node, "ELEMENT_WISE_MULTIPLY", index, number(node, size, DataType.INT32))
        index = binary(node, "ELEMENT_WISE_ADD", along, tap.element)
        if weight is not None and tap.weight is not None:
            weight = binary(node, "ELEMENT_WISE_MULTIPLY", weight, tap.weight)
    found = elements_at(node, lines, index.broadcast((*lines.sizes[:2], index.sizes[-1])), 2)
    if weight is None:
        return found
    return binary(node, "ELEMENT_WISE_MULTIPLY", node.cast(found, DataType.FLOAT32), weight)


@maps("AffineGrid")
def affine_grid(node: Node) -> View:
    """Places for GridSample, each moved by its batch's matrix. Not by the function that ONNX has for it: that one takes
    a batch of one for none."""
    theta, sizes = node.view(0), integers(node, 1, "size")
    if len(sizes) not in (4, 5) or min(sizes) < 1 or theta.sizes != (sizes[0], len(sizes) - 2, len(sizes) - 1):
        raise Unsupported(f"its theta has sizes {list(theta.sizes)}, which do not fit its size {sizes}")
    places = sizes[2:]
    if prod(places) > _MOST_PLACES:
        raise Unsupported(f"its size has {prod(places)} places, more than {_MOST_PLACES}")
    ends = [1.0 if node.attribute("align_corners") else 1 - 1 / each for each in places]
    # Backwards, since the only one of an aligned dimension is at its end, as onnxruntime has it.
    steps = [
        np.linspace(end, -end, each, dtype=numpy_type(theta.data_type))[::-1]
        for end, each in zip(ends, places, strict=True)
    ]
    laid = np.meshgrid(*steps, indexing="ij", copy=False)
    rows = np.stack([*reversed(laid), np.ones_like(laid[0])], -1).reshape(-1, len(places) + 1)
    moved = matmul(node, node.build.constant(rows), theta.transposed((0, 2, 1)))
    return node.reshaped(moved, (sizes[0], *places, len(places)))
