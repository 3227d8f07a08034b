"""Factors and summands of a convolution's channels, put into its filters and biases."""

from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.mapping import Node, Value
from app.models.onnx.tensors import View

_BINARY = ("Add", "Sub", "Mul", "Div")


def scaled_convolution(node: Node) -> View | None:
    """What a BatchNormalization, Add, Sub, Mul or Div makes of a convolution that nothing else reads, as a convolution:
    exact up to one rounding of each filter's element. None if it is not so."""
    place = 1 if node.type in _BINARY and not isinstance(node.inputs[0], View) else 0
    x = node.inputs[place]
    if not isinstance(x, View) or not node.reads_alone(place):
        return None
    made = node.build.maker(x)
    if made is None or made.desc["Type"] != "CONVOLUTION" or x.data_type is not DataType.FLOAT32:
        return None
    desc = made.desc
    if desc["Direction"] != "FORWARD" or "FusedActivation" in desc or any(desc["OutputPadding"]):
        return None
    filters = node.build.known(made.reads["FilterTensor"])
    old = made.reads.get("BiasTensor")
    bias = None if old is None else node.build.known(old)
    if filters is None or (old is not None and bias is None) or len(x.sizes) < 3:
        return None
    line = _normalizing(node) if node.type == "BatchNormalization" else _line(node, place, x)
    if line is None:
        return None
    with np.errstate(all="ignore"):
        factor, summand = (np.broadcast_to(each, x.sizes[1]) for each in line)
        weights = (filters * factor.reshape(-1, *[1] * (filters.ndim - 1))).astype(np.float32)
        summed = (summand + factor * (0 if bias is None else bias.reshape(-1).astype(np.float64))).astype(np.float32)
    if not np.isfinite(weights).all() or not np.isfinite(summed).all() or not np.isfinite(filters).all():
        return None
    inputs = {
        **made.reads,
        "FilterTensor": node.build.constant(weights),
        "BiasTensor": node.build.constant(summed.reshape(1, -1, *[1] * (len(x.sizes) - 2))),
    }
    tensors = ("Type", "InputTensor", "FilterTensor", "BiasTensor", "OutputTensor")
    attributes = {name: each for name, each in desc.items() if name not in tensors}
    return node.build.operator("CONVOLUTION", inputs, attributes, {"OutputTensor": (x.data_type, x.sizes)})[
        "OutputTensor"
    ]


def _normalizing(node: Node) -> tuple[Any, Any] | None:
    """Factor and summand of each channel, in float64."""
    given = [_vector(each) for each in node.inputs[1:5]]
    scale, bias, mean, variance = given if len(given) == 4 else [None] * 4
    if scale is None or bias is None or mean is None or variance is None:
        return None
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + np.float64(np.float32(node.attribute("epsilon", 1e-5))))
        return factor, bias - mean * factor


def _line(node: Node, place: int, x: View) -> tuple[Any, Any] | None:
    """The same of what is broadcast along all dimensions but the channels."""
    other = node.inputs[1 - place]
    if other is None or isinstance(other, View) or other.dtype != np.float32 or other.ndim > len(x.sizes):
        return None
    sizes = (1,) * (len(x.sizes) - other.ndim) + other.shape
    if any(size not in (1, x.sizes[1] if axis == 1 else 1) for axis, size in enumerate(sizes)):
        return None
    numbers = other.reshape(-1).astype(np.float64)
    zero, one = np.zeros(1), np.ones(1)
    with np.errstate(all="ignore"):
        match node.type, place:
            case "Add", _:
                return one, numbers
            case "Sub", 0:
                return one, -numbers
            case "Sub", 1:
                return -one, numbers
            case "Mul", _:
                return numbers, zero
            case "Div", 0:
                return one / numbers, zero
    return None


def _vector(value: Value | None) -> Any:
    if value is None or isinstance(value, View) or value.dtype != np.float32:
        return None
    return value.reshape(-1).astype(np.float64)
