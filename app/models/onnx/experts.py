"""Mixtures of experts, com.microsoft's: each expert is computed of all rows, and a row takes those it has chosen."""

from math import inf

from app.contract.constants import ReduceFunction
from app.models.onnx.activations import activation, in_tanh_form
from app.models.onnx.element_wise import binary, chosen, linear, predicate
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import window
from app.models.onnx.operands import number, operate, require
from app.models.onnx.reductions import reduced, top
from app.models.onnx.shapes import inserted, removed
from app.models.onnx.tensors import Unsupported, View

_INTERLEAVED = 1
"""Of swiglu_fusion: gates lie at even places, and what they are for at odd ones."""


@maps("MoE", domain="com.microsoft")
def _mixture(node: Node) -> Value:
    for name, index in (("use_sparse_mixer", None), ("fc3_experts_weights", 6), ("fc3_experts_bias", 7)):
        if node.attribute(name, 0) if index is None else node.has(index):
            raise Unsupported(f"it has {name}, which onnxruntime has on GPUs only")
    x, scores = node.view(0), node.view(1)
    rows = node.reshaped(x, (x.elements // x.sizes[-1], x.sizes[-1]))
    first = _layer(node, inserted(rows, 0), 2)
    made = _layer(node, _activated(node, first), 4)
    weights = inserted(_weights(node, scores).transposed([1, 0]), 2).broadcast(made.sizes)
    none = number(node, 0, made.data_type, made.sizes)
    is_chosen = predicate(node, "ELEMENT_WISE_LOGICAL_GREATER_THAN", weights, none)
    made = chosen(node, is_chosen, binary(node, "ELEMENT_WISE_MULTIPLY", made, weights), none)
    return node.reshaped(removed(reduced(node, made, ReduceFunction.SUM, [0]), 0), x.sizes)


def _layer(node: Node, rows: View, index: int) -> View:
    """Rows of each expert, times its matrix, whose rows are of one output each, plus its bias if there is one."""
    made = matmul(node, rows, node.view(index).transposed([0, 2, 1]))
    return binary(node, "ELEMENT_WISE_ADD", made, inserted(node.view(index + 1), 1)) if node.has(index + 1) else made


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


def _weights(node: Node, scores: View) -> View:
    """Of each expert for each row, 0 of those that it has not chosen."""
    require("ACTIVATION_SOFTMAX1", "InputTensor", scores.data_type)
    shares = operate(node, "ACTIVATION_SOFTMAX1", {"InputTensor": scores}, {"Axes": [1]})
    values, places = top(node, shares, 1, int(node.attribute("k", 1)))
    if node.attribute("normalize_routing_weights", 0):
        total = reduced(node, values, ReduceFunction.SUM, [1]).broadcast(values.sizes)
        values = binary(node, "ELEMENT_WISE_DIVIDE", values, total)
    inputs = {"InputTensor": number(node, 0, shares.data_type, shares.sizes), "IndicesTensor": places}
    outputs = {"OutputTensor": (shares.data_type, shares.sizes)}
    return node.build.operator("SCATTER", {**inputs, "UpdatesTensor": values}, {"Axis": 1}, outputs)["OutputTensor"]
