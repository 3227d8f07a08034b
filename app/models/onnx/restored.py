"""MatMul, Gemm and Conv of what was restored from 8 bits, as tools write quantized models, with QuantizeLinear and
DequantizeLinear around: by products of integers, whose sums are exact where those of float32 are rounded, in a third of
the time or less. onnxruntime does so too, on the CPU and by DirectML.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.contract.constants import DataType
from app.models.onnx import convolution, linear_algebra
from app.models.onnx.element_wise import binary
from app.models.onnx.integer_products import Products, convolved
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.moved import restored_from
from app.models.onnx.operands import broadcast, require_equal
from app.models.onnx.quantization import Parameters, restored
from app.models.onnx.tensors import View

MOST_TERMS = (1 << 31) // 255**2
"""Whose sum INT32 holds, whatever the bytes."""


class _Bytes(NamedTuple):
    """An operand before it was restored, as it lies."""

    x: View
    scale: NDArray[np.float32]
    """One, or one for each place along a dimension."""
    zero: View | None


@maps("MatMul")
def _matmul(node: Node) -> Value:
    pair = _views(node)
    made = _product(node, *pair) if pair else None
    return linear_algebra.multiplied(node) if made is None else made


@maps("Gemm")
def _gemm(node: Node) -> Value:
    pair = _views(node)
    if pair and node.attribute("beta", 1.0) == 1:
        a, b = (
            each.transposed((1, 0)) if node.attribute(f"trans{name}", 0) and len(each.sizes) == 2 else each
            for name, each in zip("AB", pair, strict=True)
        )
        made = _product(node, a, b, node.attribute("alpha", 1.0)) if len(a.sizes) == len(b.sizes) == 2 else None
        if made is not None:
            return _added(node, made, node.optional(2))
    return linear_algebra.general(node)


@maps("Conv")
def _conv(node: Node) -> Value:
    pair = _views(node)
    made = _convolution(node, *pair) if pair else None
    return convolution.conv(node) if made is None else made


def _views(node: Node) -> tuple[View, View] | None:
    """The operands, if neither is known."""
    a, b = node.value(0), node.value(1)
    return (a, b) if isinstance(a, View) and isinstance(b, View) else None


def _product(node: Node, a: View, b: View, factor: float = 1.0) -> View | None:
    """numpy.matmul times a factor; None if it is to be one of floats."""
    left, right = _bytes(node, a, None), _bytes(node, b, len(b.sizes) - 1 if len(b.sizes) > 1 else None)
    if left is None or right is None or a.sizes[-1] > MOST_TERMS:
        return None
    scale = _scale(left, right, factor)
    if scale is None:
        return None
    found = Products(node, left.x, right.x, {"AZeroPointTensor": left.zero}, {"BZeroPointTensor": right.zero})
    return _restored(node, found.multiplied("MATRIX_MULTIPLY_INTEGER", DataType.INT32), scale)


def _convolution(node: Node, x: View, filters: View) -> View | None:
    """None if it is to be one of floats."""
    rank, left, right = len(x.sizes), _bytes(node, x, None), _bytes(node, filters, 0)
    if left is None or right is None or prod(filters.sizes[1:]) > MOST_TERMS:
        return None
    if not 3 <= rank <= 4 or len(filters.sizes) != rank:
        return None
    scale = _scale(left, right)
    if scale is None:
        return None
    others = {"InputZeroPointTensor": left.zero, "FilterZeroPointTensor": right.zero}
    made = convolved(node, "CONVOLUTION_INTEGER", left.x, right.x, others, DataType.INT32)
    floats = _restored(node, made, scale.reshape(-1, *[1] * (rank - 2)))
    return _added(node, floats, convolution.bias_of(node, 2, rank))


def _restored(node: Node, sums: View, scale: NDArray[np.float32]) -> View:
    return restored(node, Parameters(sums, broadcast(node.build.constant(scale), sums.sizes), None))


def _added(node: Node, made: View, bias: View | None) -> View:
    if bias is None:
        return made
    require_equal(made, bias)
    return binary(node, "ELEMENT_WISE_ADD", made, broadcast(bias, made.sizes))


def _scale(a: _Bytes, b: _Bytes, factor: float = 1.0) -> NDArray[np.float32] | None:
    """That of the sums; None if it is no ordinary number, of which it makes a difference what is multiplied first."""
    with np.errstate(all="ignore"):
        made: NDArray[np.float32] = np.float32(factor) * a.scale * b.scale
    is_ordinary = np.isfinite(made) & (np.abs(made) >= np.finfo(np.float32).tiny)
    return made if is_ordinary.all() else None


def _bytes(node: Node, view: View, axis: int | None) -> _Bytes | None:
    """What `view` was restored from, by a scale and zero point for all, or one for each place along `axis`. None if it
    was not, or by scales that are not known."""
    found = restored_from(node.build, view)
    if found is None or view.data_type is not DataType.FLOAT32:
        return None
    scales = _by(found.scale, view, axis, found.whole)
    zeros = found.zero and _by(found.zero, view, axis, found.whole)
    scale = None if scales is None else node.build.known(scales)
    if scale is None or (zeros is None) != (found.zero is None):
        return None
    return _Bytes(found.x, scale, zeros)


def _by(given: View, view: View, axis: int | None, whole: View) -> View | None:
    """A scale or zero point without dimensions, or with one, `axis` of `view`, which is of what is `whole`."""
    along = [place for place, size in enumerate(given.sizes) if size > 1 and given.strides[place]]
    if not along:
        return replace(given, sizes=(), strides=())
    if axis is None or len(along) > 1 or given.strides[along[0]] != 1 or _lies(view) != _lies(whole):
        return None
    size, step = whole.sizes[along[0]], whole.strides[along[0]]
    is_there = (view.sizes[axis], view.strides[axis]) == (size, step)
    return replace(given, sizes=(size,), strides=(1,)) if is_there else None


def _lies(view: View) -> Sequence[tuple[int, int]]:
    """Its dimensions, in whatever order they are."""
    return sorted((step, size) for size, step in zip(view.sizes, view.strides, strict=True) if size > 1)
