"""Mixtures of experts, com.microsoft's: each expert is computed of all rows, and a row takes those it has chosen."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from app.contract.constants import ReduceFunction
from app.models.onnx.activations import activation, in_tanh_form
from app.models.onnx.element_wise import binary, chosen, linear, predicate
from app.models.onnx.few_bits import in_rows, type_of_bits
from app.models.onnx.indexing import elements_at
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import window
from app.models.onnx.operands import number, operate, require
from app.models.onnx.reductions import reduced, top
from app.models.onnx.shapes import inserted, removed
from app.models.onnx.tensors import Unsupported, View

_INTERLEAVED = 1
"""Of swiglu_fusion: gates lie at even places, and what they are for at odd ones."""

_ON_GPUS = "which onnxruntime has on GPUs only"


class _Layer(NamedTuple):
    """Of all experts: matrices, each row of which is of one output, and biases if there are any."""

    weights: View
    bias: View | None

    def of(self, node: Node, rows: View) -> View:
        made = matmul(node, rows, self.weights.transposed([0, 2, 1]))
        return made if self.bias is None else binary(node, "ELEMENT_WISE_ADD", made, inserted(self.bias, 1))


@maps("MoE", domain="com.microsoft")
def _mixture(node: Node) -> Value:
    _require_none(node, {6: "fc3_experts_weights", 7: "fc3_experts_bias"})
    layers = [_Layer(node.view(index), node.optional(index + 1)) for index in (2, 4)]
    return _mixed(node, layers, None, is_normalized=bool(node.attribute("normalize_routing_weights", 0)))


@maps("QMoE", domain="com.microsoft")
def _of_few_bits(node: Node) -> Value:
    """The same of packed weights, and router_weights that need not be shares. Of what are, the sum is 1 in onnxruntime,
    whatever normalize_routing_weights says."""
    _require_none(node, {8: "fc3_experts_weights", 10: "fc3_experts_bias"})
    if (kind := node.attribute("quant_type", "int")) != "int":
        raise Unsupported(f"its quant_type is {kind}, {_ON_GPUS}")
    if node.attribute("weights_prepacked", 0) == 1:
        raise Unsupported("its weights lie as kernels of onnxruntime take them")
    own = node.optional(14)
    is_normalized = own is None or bool(node.attribute("normalize_routing_weights", 0))
    layers = [_unpacked(node, "fc1", 2, 11), _unpacked(node, "fc2", 5, 12)]
    return _mixed(node, layers, own, is_normalized=is_normalized)


def _unpacked(node: Node, name: str, index: int, zero_index: int) -> _Layer:
    of_all = node.attribute("expert_weight_bits", 4)
    bits = type_of_bits(node.attribute(f"{name}_expert_weight_bits", of_all)).bits
    if len(node.sizes(index)) != 3:
        raise Unsupported(
            f"its input {index} has sizes {list(node.sizes(index))}, not those of a matrix for each expert"
        )
    experts, rows, size = node.sizes(index)
    depth = size * 8 // bits
    block = node.attribute("block_size", 0)
    if not block and bits == 4 and node.has(zero_index):
        raise Unsupported("it has zero points of 4 bits and no blocks")
    sizes = (experts * rows, depth // block, block) if block else (experts * rows, 1, depth)
    weights = in_rows(node, f"its input {index}", (index, index + 1, zero_index), bits, sizes)
    return _Layer(node.reshaped(weights, (experts, rows, depth)), node.optional(index + 2))


def _require_none(node: Node, inputs: Mapping[int, str]) -> None:
    found = [name for index, name in inputs.items() if node.has(index)]
    if found:
        raise Unsupported(f"it has {found[0]}, {_ON_GPUS}")
    for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
        if node.attribute(name, 0):
            raise Unsupported(f"it has {name}, which onnxruntime heeds on GPUs only")


def _mixed(node: Node, layers: Sequence[_Layer], own: View | None, *, is_normalized: bool) -> View:
    """By weights of their `own`, of which onnxruntime leaves out those below 0, or by shares."""
    x, scores = node.view(0), node.view(1)
    rows = node.reshaped(x, (1, x.elements // x.sizes[-1], x.sizes[-1]))
    first, second = layers
    made = second.of(node, _activated(node, first.of(node, rows)))
    weights = _weights(node, scores, own, is_normalized=is_normalized)
    weights = inserted(weights.transposed([1, 0]), 2).broadcast(made.sizes)
    none = number(node, 0, made.data_type, made.sizes)
    is_chosen = predicate(node, "ELEMENT_WISE_LOGICAL_GREATER_THAN", weights, none)
    made = chosen(node, is_chosen, binary(node, "ELEMENT_WISE_MULTIPLY", made, weights), none)
    return node.reshaped(removed(reduced(node, made, ReduceFunction.SUM, [0]), 0), x.sizes)


def _activated(node: Node, x: View) -> View:
    name = node.attribute("activation_type", "relu")
    match name:
        case "relu":
            return activation(node, "RELU", x)
        case "gelu":
            return in_tanh_form(node, x)
        case "silu":
            return _swish(node, x, 1.0)
        case "identity":
            return x
        case "swiglu":
            return _gated(node, x)
    raise Unsupported(f"its activation_type is {name}")


def _swish(node: Node, x: View, scale: float) -> View:
    return operate(node, "ACTIVATION_SWISH", {"InputTensor": x}, {"SigmoidInputScale": scale})


def _gated(node: Node, x: View) -> View:
    fusion = node.attribute("swiglu_fusion", 0)
    if fusion != _INTERLEAVED or x.sizes[-1] % 2:
        raise Unsupported(f"its swiglu_fusion is {fusion}, of {x.sizes[-1]} columns; 1 is computed, of an even number")
    gate, up = (window(node, x, [*map(range, x.sizes[:-1]), range(start, x.sizes[-1], 2)]) for start in (0, 1))
    assert isinstance(gate, View), "there are columns"
    assert isinstance(up, View), "there are columns"
    limit = node.attribute("swiglu_limit", inf)
    gate, up = _clipped(node, gate, -inf, limit), _clipped(node, up, -limit, limit)
    gate = _swish(node, gate, node.attribute("activation_alpha", 1.0))
    return binary(node, "ELEMENT_WISE_MULTIPLY", gate, linear(node, up, 1.0, node.attribute("activation_beta", 0.0)))


def _clipped(node: Node, x: View, least: float, most: float) -> View:
    if most == inf:
        return x
    return operate(node, "ELEMENT_WISE_CLIP", {"InputTensor": x}, {"Min": least, "Max": most})


def _weights(node: Node, scores: View, own: View | None, *, is_normalized: bool) -> View:
    """Of each expert for each row, 0 of those that it has not chosen."""
    count = int(node.attribute("k", 1))
    if own is None:
        require("ACTIVATION_SOFTMAX1", "InputTensor", scores.data_type)
        shares = operate(node, "ACTIVATION_SOFTMAX1", {"InputTensor": scores}, {"Axes": [1]})
        values, places = top(node, shares, 1, count)
    else:
        _, places = top(node, scores, 1, count)
        values = elements_at(node, own, places, 1)
    if is_normalized:
        total = reduced(node, values, ReduceFunction.SUM, [1]).broadcast(values.sizes)
        values = binary(node, "ELEMENT_WISE_DIVIDE", values, total)
    inputs = {"InputTensor": number(node, 0, values.data_type, scores.sizes), "IndicesTensor": places}
    outputs = {"OutputTensor": (values.data_type, scores.sizes)}
    return node.build.operator("SCATTER", {**inputs, "UpdatesTensor": values}, {"Axis": 1}, outputs)["OutputTensor"]
