"""Activations, softmax and what is made of it, and com.microsoft's fused ones."""

from copy import copy
from math import pi, sqrt
from typing import Any

from app.contract.constants import DataType
from app.models.onnx.element_wise import binary, linear
from app.models.onnx.mapping import MAPPINGS, Node, Value, maps
from app.models.onnx.operands import FLOATS, broadcast, number, operate, require_equal
from app.models.onnx.shapes import axis_of
from app.models.onnx.tensors import Unsupported, View

ACTIVATIONS: dict[str, tuple[str, dict[str, tuple[str, float]]]] = {
    "Relu": ("RELU", {}),
    "LeakyRelu": ("LEAKY_RELU", {"Alpha": ("alpha", 0.01)}),
    "ThresholdedRelu": ("THRESHOLDED_RELU", {"Alpha": ("alpha", 1.0)}),
    "Elu": ("ELU", {"Alpha": ("alpha", 1.0)}),
    "Celu": ("CELU", {"Alpha": ("alpha", 1.0)}),
    "Selu": ("SCALED_ELU", {"Alpha": ("alpha", 1.67326319217681884765625), "Gamma": ("gamma", 1.05070102214813232)}),
    "Sigmoid": ("SIGMOID", {}),
    "HardSigmoid": ("HARD_SIGMOID", {"Alpha": ("alpha", 0.2), "Beta": ("beta", 0.5)}),
    "Tanh": ("TANH", {}),
    "ScaledTanh": ("SCALED_TANH", {"Alpha": ("alpha", 1.0), "Beta": ("beta", 1.0)}),
    "Softsign": ("SOFTSIGN", {}),
    "Softplus": ("SOFTPLUS", {}),
    "ParametricSoftplus": ("PARAMETRIC_SOFTPLUS", {"Alpha": ("alpha", 1.0), "Beta": ("beta", 1.0)}),
    "Shrink": ("SHRINK", {"Bias": ("bias", 0.0), "Threshold": ("lambd", 0.5)}),
    "Swish": ("SWISH", {"SigmoidInputScale": ("alpha", 1.0)}),
}
"""ONNX's operator: DirectML's, without ACTIVATION_, and its attributes by ONNX's with their defaults."""

OF_GROUPS = {
    "Softmax": "ACTIVATION_SOFTMAX1",
    "LogSoftmax": "ACTIVATION_LOG_SOFTMAX1",
    "Hardmax": "ACTIVATION_HARDMAX1",
}


def activation(node: Node, name: str, x: View) -> View:
    """`x` after DirectML's activation `name`, which has no attributes."""
    return operate(node, f"ACTIVATION_{name}", {"InputTensor": x})


@maps(*ACTIVATIONS)
def _activation(node: Node) -> Value:
    name, attributes = ACTIVATIONS[node.type]
    if node.type == "Relu" and node.data_type(0) is DataType.INT64:  # which DirectML's has not
        return binary(node, "ELEMENT_WISE_MAX", node.view(0), number(node, 0, DataType.INT64))
    given = {field: node.attribute(*onnx) for field, onnx in attributes.items()}
    if node.type == "Shrink" and given["Threshold"] < 0:
        raise Unsupported("its lambd is negative, so that elements are on both sides, of which DirectML has the other")
    if node.type == "Shrink" and not node.data_type(0).startswith("FLOAT") and given["Bias"] % 1:
        raise Unsupported("its bias is no whole number, as which DirectML would take it for integers")
    return operate(node, f"ACTIVATION_{name}", {"InputTensor": node.view(0)}, given)


def fused_activation(node: Node, name: str, prefix: str) -> dict[str, Any] | None:
    """The descriptor of what the attribute `name` says, if it is there; its own attributes begin with `prefix`. Raises
    Unsupported."""
    given = node.attribute(name, "")
    if not given:
        return None
    if given not in ACTIVATIONS:
        raise Unsupported(f"its activation is {given}")
    operator, attributes = ACTIVATIONS[given]
    described = {field: node.attribute(prefix + onnx, default) for field, (onnx, default) in attributes.items()}
    # Fused, DirectML has no defaults.
    return {"Type": f"ACTIVATION_{operator}", **described} | ({"Steepness": 1.0} if given == "Softplus" else {})


@maps(
    *(f"DmlFused{each}" for each in ("Add", "Sum", "BatchNormalization", "InstanceNormalization")),
    *(f"DmlFused{each}" for each in ("MeanVarianceNormalization", "Gemm", "MatMul")),
    domain="com.microsoft.dml",
)
def _followed(node: Node) -> Value:
    """What onnxruntime's provider has fused before the model was saved: two operators again, which are one kernel."""
    alone = copy(node)
    alone.type = node.type.removeprefix("DmlFused")
    made = MAPPINGS["", alone.type](alone)
    assert isinstance(made, View), "these have one output, of a tensor"
    fused = fused_activation(node, "fused_activation", "fused_")
    if fused is None:
        return made
    return operate(node, fused.pop("Type"), {"InputTensor": made}, fused)


@maps("HardSwish")
def _hard_swish(node: Node) -> Value:
    attributes = {"Alpha": 1 / 6, "Beta": 0.5}
    return operate(node, "ACTIVATION_HARD_SWISH", {"InputTensor": node.view(0)}, attributes)


@maps("PRelu")
def _prelu(node: Node) -> Value:
    x, slope = node.view(0), node.view(1)
    require_equal(x, slope)
    inputs = {"InputTensor": x, "SlopeTensor": broadcast(slope, x.sizes)}
    return operate(node, "ACTIVATION_PARAMETERIZED_RELU", inputs)


@maps("Mish")
def _mish(node: Node) -> Value:
    x = node.view(0)
    return binary(node, "ELEMENT_WISE_MULTIPLY", x, activation(node, "TANH", activation(node, "SOFTPLUS", x)))


@maps(*OF_GROUPS)
def _of_groups(node: Node) -> Value:
    x = node.view(0)
    rank = len(x.sizes)
    axis = axis_of(node.attribute("axis"), rank)
    # Until version 13 the groups went over all that is behind the axis, too.
    axes = [axis] if node.opset >= 13 else list(range(axis, rank))
    return operate(node, OF_GROUPS[node.type], {"InputTensor": x}, {"Axes": axes})


# Gaussian error linear units


def in_tanh_form(node: Node, x: View) -> View:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), in float32."""
    if x.data_type not in FLOATS:
        raise Unsupported(f"DirectML does not compute it in {x.data_type}")
    data_type, x = x.data_type, node.cast(x, DataType.FLOAT32)
    square = binary(node, "ELEMENT_WISE_MULTIPLY", x, x)
    slope = linear(node, square, 0.044715 * sqrt(2 / pi), sqrt(2 / pi))
    bent = activation(node, "TANH", binary(node, "ELEMENT_WISE_MULTIPLY", x, slope))
    return node.cast(binary(node, "ELEMENT_WISE_MULTIPLY", x, linear(node, bent, 0.5, 0.5)), data_type)


@maps("Gelu")
def _gelu(node: Node) -> Value:
    x = node.view(0)
    return in_tanh_form(node, x) if node.attribute("approximate") == "tanh" else activation(node, "GELU", x)


@maps("Gelu", "BiasGelu", domain="com.microsoft")
def _bias_gelu(node: Node) -> Value:
    return activation(node, "GELU", _biased(node))


@maps("FastGelu", domain="com.microsoft")
def _fast_gelu(node: Node) -> Value:
    # onnxruntime's provider takes the form with erf here; by its definition the operator is this one.
    return in_tanh_form(node, _biased(node))


@maps("QuickGelu", domain="com.microsoft")
def _quick_gelu(node: Node) -> Value:
    attributes = {"SigmoidInputScale": node.attribute("alpha", 1.702)}
    return operate(node, "ACTIVATION_SWISH", {"InputTensor": node.view(0)}, attributes)


def _biased(node: Node) -> View:
    """The first input, plus the second if there is one."""
    x = node.view(0)
    return binary(node, "ELEMENT_WISE_ADD", x, node.view(1)) if node.has(1) else x


@maps("BiasSplitGelu", domain="com.microsoft")
def _bias_split_gelu(node: Node) -> Value:
    x = _biased(node)
    *leading, width = x.sizes
    if width % 2:
        raise Unsupported(f"its last dimension is {width}, which has no halves")
    half = (x.data_type, (*leading, width // 2))
    halves = node.build.operator("SPLIT", {"InputTensor": x}, {"Axis": len(leading)}, {"OutputTensors": [half, half]})
    gate = activation(node, "GELU", halves["OutputTensors[1]"])
    return binary(node, "ELEMENT_WISE_MULTIPLY", halves["OutputTensors[0]"], gate)
