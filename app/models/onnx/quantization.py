"""Numbers made quantized and restored, and operators of quantized elements."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.graphs.graph import Source
from app.models.onnx.activations import activation
from app.models.onnx.casts import type_of
from app.models.onnx.element_wise import binary, chosen
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.moved import made_before, restored_by_one
from app.models.onnx.movement import joined, window
from app.models.onnx.operands import (
    alike,
    along,
    broadcast,
    number,
    one_element,
    operate,
    require,
    takes,
    wider,
)
from app.models.onnx.shapes import axis_of
from app.models.onnx.tensors import Sizes, Unsupported, View

_LEAST_SCALE, _MOST_SCALE = (float(each) for each in (np.finfo(np.float32).tiny, np.finfo(np.float32).max / 512))
"""By which bytes are restored as numbers that are rounded once, none as infinity."""


class Parameters(NamedTuple):
    """Scale and zero point that go with `x`, dimension by dimension; sizes divide those of `x`."""

    x: View
    scale: View
    zero: View | None

    def spread(self) -> "Parameters":
        """With as many elements as `x` has, by strides."""
        zero = None if self.zero is None else broadcast(self.zero, self.x.sizes)
        return Parameters(self.x, broadcast(self.scale, self.x.sizes), zero)


def _parameters(node: Node, x: View, scale: View, zero: View | None, *, apart: bool) -> Parameters:
    """By the attributes axis and block_size. With `apart`, whole blocks have a dimension of their own, so that scale
    and zero point can be broadcast to `x`, which then has one more."""
    rank, given = len(x.sizes), [scale, *([] if zero is None else [zero])]
    block = node.attribute("block_size", 0)
    if block:
        axis = axis_of(node.attribute("axis", 1), rank)
        before, behind = x.sizes[:axis], x.sizes[axis + 1 :]
        blocks, size = scale.sizes[axis] if len(scale.sizes) == rank else 0, x.sizes[axis]
        expected = (*before, blocks, *behind)
        if any(each.sizes != expected for each in given) or -(-size // block) != blocks:
            raise Unsupported(
                f"its scale or zero point, of sizes {list(scale.sizes)}, is not for blocks of {block} along "
                f"dimension {axis} of {list(x.sizes)}"
            )
        if blocks * block != size:  # ONNX lets the last block be smaller
            given = [_repeated(node, each, axis, block, size) for each in given]
        elif apart:
            x = node.reshaped(x, (*before, blocks, block, *behind))
            given = [node.reshaped(each, (*before, blocks, 1, *behind)) for each in given]
    elif all(each.elements == 1 for each in given):
        given = [node.reshaped(each, (1,) * rank) for each in given]
    else:
        axis = axis_of(node.attribute("axis", 1), rank)
        given = [along(node, each, axis, x.sizes) for each in given]
    return Parameters(x, given[0], given[1] if zero is not None else None)


def _repeated(node: Node, view: View, axis: int, block: int, size: int) -> View:
    """Of each block along `axis`, what it has for each of its elements, which are `size` in all."""
    before, blocks, behind = view.sizes[:axis], view.sizes[axis], view.sizes[axis + 1 :]
    spread = node.reshaped(view, (*before, blocks, 1, *behind)).broadcast((*before, blocks, block, *behind))
    whole = node.reshaped(spread, (*before, blocks * block, *behind))
    made = window(node, whole, [range(each) for each in (*before, size, *behind)])
    assert isinstance(made, View), "each block has an element"
    return made


def _stated_type(node: Node) -> DataType | None:
    """The attribute output_dtype, if it says anything. Raises Unsupported."""
    stated = node.attribute("output_dtype", 0)
    return type_of(stated) if stated else None


def _quantize(node: Node) -> Value:
    x, scale, zero = node.view(0), node.view(1), node.optional(2)
    sizes = x.sizes
    output = zero.data_type if zero is not None else _stated_type(node) or DataType.UINT8
    if x.data_type is not DataType.INT32:
        x, scale = wider(node, x, scale)
    if output.bits == 4:
        return in_blocks(node, "QUANTIZE", _parameters(node, x, scale, zero, apart=False), output)
    given = _parameters(node, x, scale, zero, apart=True)
    if output in takes("ELEMENT_WISE_QUANTIZE_LINEAR", "OutputTensor"):
        return node.reshaped(quantized(node, given, output), sizes)
    return node.reshaped(_in_other_types(node, given.spread(), output), sizes)


def quantized(node: Node, given: Parameters, output: DataType) -> View:
    """x / scale, rounded, plus the zero point, saturated. What only moves elements is done with the results, where
    there is one scale."""

    def known(x: View) -> View | None:
        return _before_restored(node, given, x, output)

    def made(x: View) -> View:
        before = known(x)
        return _by_operator(node, Parameters(x, given.scale, given.zero), output) if before is None else before

    if all(each is None or each.elements == 1 for each in (given.scale, given.zero)) and output.bits == 8:
        moved = made_before(node.build, given.x, made, known)
        return made(given.x) if moved is None else moved
    return _by_operator(node, given, output)


def _by_operator(node: Node, given: Parameters, output: DataType) -> View:
    given = given.spread()
    inputs = {"InputTensor": given.x, "ScaleTensor": given.scale, "ZeroPointTensor": given.zero}
    outputs = {"OutputTensor": (output, given.x.sizes)}
    return operate(node, "ELEMENT_WISE_QUANTIZE_LINEAR", inputs, outputs=outputs)


def _before_restored(node: Node, given: Parameters, x: View, output: DataType) -> View | None:
    """What `x` was restored from by the same scale and zero point, which quantized is the same again: a product is
    less than a 2^16th of a scale from a multiple of it. None if it was not, or may have overflowed."""
    found = restored_by_one(node.build, x)
    scale = None if found is None else node.build.known(replace(given.scale, sizes=(), strides=()))
    if found is None or scale is None or not _LEAST_SCALE <= scale <= _MOST_SCALE:
        return None
    is_same = (found.scale.source, _source(found.zero)) == (given.scale.source, _source(given.zero))
    return found.x if is_same and found.x.data_type is output else None


def _source(view: View | None) -> Source | None:
    return None if view is None else view.source


def _in_other_types(node: Node, given: Parameters, output: DataType) -> View:
    """The same by operators of their own, in float32, of which CAST saturates."""
    if output not in (DataType.UINT16, DataType.INT16):
        raise Unsupported(f"DirectML does not quantize to {output}")
    x, scale = (node.cast(each, DataType.FLOAT32) for each in (given.x, given.scale))
    made = binary(node, "ELEMENT_WISE_DIVIDE", x, scale)
    made = operate(node, "ELEMENT_WISE_ROUND", {"InputTensor": made}, {"RoundingMode": "HALVES_TO_NEAREST_EVEN"})
    if given.zero is not None:
        made = binary(node, "ELEMENT_WISE_ADD", made, node.cast(given.zero, DataType.FLOAT32))
    return node.cast(made, output)


def in_blocks(node: Node, operator: str, given: Parameters, output: DataType) -> View:
    """By QUANTIZE or DEQUANTIZE, which alone have 4-bit types, and a scale for each block of elements."""
    require(operator, "InputTensor", given.x.data_type)
    require(operator, "OutputTensor", output)
    tensors = [given.scale, *([] if given.zero is None else [given.zero])]
    made = node.build.operator(
        operator,
        {"InputTensor": given.x, "QuantizationTensors": tensors},
        {"QuantizationType": "SCALE_ZERO_POINT" if given.zero is not None else "SCALE"},
        {"OutputTensor": (output, given.x.sizes)},
    )
    return made["OutputTensor"]


def _dequantize(node: Node) -> Value:
    x, scale, zero = node.view(0), node.view(1), node.optional(2)
    sizes = x.sizes
    output = _stated_type(node) or scale.data_type
    if output is DataType.FLOAT32:
        scale = node.cast(scale, output)
    if x.data_type.bits == 4:
        made = in_blocks(node, "DEQUANTIZE", _parameters(node, x, scale, zero, apart=False), scale.data_type)
    else:
        made = restored(node, _parameters(node, x, scale, zero, apart=True).spread())
    return node.cast(node.reshaped(made, sizes), output)


def restored(node: Node, given: Parameters) -> View:
    """(x - zero point) * scale"""
    inputs = {"InputTensor": given.x, "ScaleTensor": given.scale, "ZeroPointTensor": given.zero}
    outputs = {"OutputTensor": (given.scale.data_type, given.x.sizes)}
    return operate(node, "ELEMENT_WISE_DEQUANTIZE_LINEAR", inputs, outputs=outputs)


for domain in ("", "com.microsoft"):
    maps("QuantizeLinear", domain=domain)(_quantize)
    maps("DequantizeLinear", domain=domain)(_dequantize)


@maps("DynamicQuantizeLinear")
def _dynamic(node: Node) -> list[Value | None]:
    return [*dynamically_quantized(node, node.view(0), DataType.UINT8)]


def dynamically_quantized(node: Node, x: View, output: DataType) -> Parameters:
    """Elements of the type `output`, with a scale and zero point that have no dimensions."""
    require("DYNAMIC_QUANTIZE_LINEAR", "InputTensor", x.data_type)
    ones: Sizes = (1,) * len(x.sizes)
    outputs = {
        "OutputTensor": (output, x.sizes),
        "OutputScaleTensor": (DataType.FLOAT32, ones),
        "OutputZeroPointTensor": (output, ones),
    }
    made = list(node.build.operator("DYNAMIC_QUANTIZE_LINEAR", {"InputTensor": x}, outputs=outputs).values())
    return Parameters(made[0], *(node.reshaped(each, ()) for each in made[1:]))


# Operators of quantized tensors, each with one scale and zero point


def given_at(node: Node, index: int) -> Parameters:
    """A quantized input, whose scale and zero point come next."""
    x = node.view(index)
    return Parameters(x, *scale_and_zero(node, index + 1, x.data_type))


def scale_and_zero(node: Node, index: int, data_type: DataType) -> tuple[View, View]:
    """A scale and a zero point, which left out is 0, without dimensions."""
    scale = one_element(node, index, "scale")
    zero = one_element(node, index + 1, "zero point") if node.has(index + 1) else number(node, 0, data_type)
    return scale, zero


def finished(node: Node, made: View, index: int, data_type: DataType) -> View:
    """`made` quantized by the scale and zero point that begin at `index`."""
    scale, zero = scale_and_zero(node, index, data_type)
    return quantized(node, Parameters(made, scale, zero), zero.data_type)


@maps("QLinearAdd", domain="com.microsoft")
def _add(node: Node) -> Value:
    a, b = given_at(node, 0), given_at(node, 3)
    scale, zero = scale_and_zero(node, 6, a.x.data_type)
    left, right = alike(a.x, b.x)
    inputs = {
        "ATensor": left,
        "AScaleTensor": a.scale,
        "AZeroPointTensor": a.zero,
        "BTensor": right,
        "BScaleTensor": b.scale,
        "BZeroPointTensor": b.zero,
        "OutputScaleTensor": scale,
        "OutputZeroPointTensor": zero,
    }
    outputs = {"OutputTensor": (zero.data_type, left.sizes)}
    return operate(node, "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", inputs, outputs=outputs, rank=len(left.sizes))


@maps("QLinearMul", domain="com.microsoft")
def _multiply(node: Node) -> Value:
    a, b = given_at(node, 0), given_at(node, 3)
    made = binary(node, "ELEMENT_WISE_MULTIPLY", restored(node, a.spread()), restored(node, b.spread()))
    return finished(node, made, 6, a.x.data_type)


@maps("QLinearSigmoid", domain="com.microsoft")
def _sigmoid(node: Node) -> Value:
    x = given_at(node, 0)
    return finished(node, activation(node, "SIGMOID", restored(node, x.spread())), 3, x.x.data_type)


@maps("QLinearLeakyRelu", domain="com.microsoft")
def _leaky_relu(node: Node) -> Value:
    x = given_at(node, 0)
    attributes = {"Alpha": node.attribute("alpha", 0.01)}
    made = operate(node, "ACTIVATION_LEAKY_RELU", {"InputTensor": restored(node, x.spread())}, attributes)
    return finished(node, made, 3, x.x.data_type)


@maps("QLinearSoftmax", domain="com.microsoft")
def _softmax(node: Node) -> Value:
    x = given_at(node, 0)
    rank = len(x.x.sizes)
    axis = axis_of(node.attribute("axis", -1), rank)
    # Of which version of Softmax it is, is an attribute; until 13 groups went over all that is behind the axis, too.
    axes = [axis] if node.attribute("opset") >= 13 else list(range(axis, rank))
    made = operate(node, "ACTIVATION_SOFTMAX1", {"InputTensor": restored(node, x.spread())}, {"Axes": axes})
    return finished(node, made, 3, x.x.data_type)


@maps("QLinearWhere", domain="com.microsoft")
def _where(node: Node) -> Value:
    a, b = given_at(node, 1), given_at(node, 4)
    condition, left, right = alike(node.view(0), restored(node, a.spread()), restored(node, b.spread()))
    return finished(node, chosen(node, condition, left, right), 7, a.x.data_type)


@maps("QLinearConcat", domain="com.microsoft")
def _concat(node: Node) -> Value:
    parts = [given_at(node, index) for index in range(2, len(node.inputs), 3)]
    if not parts:
        raise Unsupported("it has nothing to put together")
    floats = [restored(node, each.spread()) for each in parts]
    axis = axis_of(node.attribute("axis", 1), len(floats[0].sizes))
    made = joined(node.build, floats, axis)
    return finished(node, made, 0, parts[0].x.data_type)
