"""Normalizations, by statistics that are given or by those of the elements themselves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.element_wise import binary, linear, sum_of
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import along, broadcast, operate, wider
from app.models.onnx.reductions import reduced
from app.models.onnx.scaling import scaled_convolution
from app.models.onnx.shapes import axis_of, channels_first, channels_last, inserted
from app.models.onnx.tensors import Unsupported, View

SMALLEST = 1.1754943508222875e-38
"""The least normal float32: a norm of 0 divided by it stays 0, and no other is changed by it."""


@maps("BatchNormalization")
def _batch(node: Node) -> Value | list[Value | None]:
    if node.attribute("training_mode", 0):
        return _batch_training(node)
    if any(node.wanted[1:]):
        raise Unsupported("it is in training mode")
    if node.attribute("spatial", 1) != 1:
        raise Unsupported("its spatial is 0")
    convolution = scaled_convolution(node)
    if convolution is not None:
        return convolution
    x = node.view(0)
    whole, scale, bias, mean, variance = _of_channels(node)
    inputs = {
        "InputTensor": whole,
        "MeanTensor": mean,
        "VarianceTensor": variance,
        "ScaleTensor": scale,
        "BiasTensor": bias,
    }
    attributes = {"Spatial": True, "Epsilon": node.attribute("epsilon")}
    made = operate(node, "BATCH_NORMALIZATION", inputs, attributes)
    return node.reshaped(node.cast(made, x.data_type), x.sizes)


def _batch_training(node: Node) -> list[Value | None]:
    """By the mean and variance of its own elements; those that are given are moved towards them."""
    x = node.view(0)
    whole, scale, bias, *given = _of_channels(node)
    channels = tuple(size if axis == 1 else 1 for axis, size in enumerate(whole.sizes))
    made = node.build.operator(
        "BATCH_NORMALIZATION_TRAINING",
        {"InputTensor": whole, "ScaleTensor": scale, "BiasTensor": bias},
        {"Epsilon": node.attribute("epsilon")},
        {
            "OutputTensor": (whole.data_type, whole.sizes),
            "OutputMeanTensor": (whole.data_type, channels),
            "OutputVarianceTensor": (whole.data_type, channels),
        },
    )
    outputs: list[Value | None] = [node.reshaped(node.cast(made["OutputTensor"], x.data_type), x.sizes)]
    kept = float(node.attribute("momentum"))
    for index, (before, name) in enumerate(zip(given, ("OutputMeanTensor", "OutputVarianceTensor"), strict=True), 3):
        moved = sum_of(node, [linear(node, before, kept, 0.0), linear(node, made[name], 1 - kept, 0.0)])
        outputs.append(node.reshaped(node.cast(moved, node.data_type(index)), channels[1:2]))
    return outputs[: len(node.wanted)]


def _of_channels(node: Node) -> list[View]:
    """What BatchNormalization reads, of one type: the tensor, with a dimension of channels, and all others along it."""
    x = node.view(0)
    whole = x if len(x.sizes) > 1 else node.reshaped(x, (*x.sizes, 1))
    return wider(node, whole, *(along(node, node.view(index), 1, whole.sizes) for index in range(1, 5)))


def normalized(
    node: Node,
    x: View,
    axes: Sequence[int],
    epsilon: float,
    scale: View | None = None,
    bias: View | None = None,
    *,
    mean: bool = True,
) -> View:
    """`x` of mean 0 and variance 1 along `axes`, or without `mean` of mean square 1, of x's type. Scale and bias are
    broadcast by NumPy's rules."""
    sizes = len(x.sizes)
    given = wider(node, *(each for each in (x, scale, bias) if each is not None))
    fields = [name for name, each in (("ScaleTensor", scale), ("BiasTensor", bias)) if each is not None]
    inputs = dict(zip(["InputTensor", *fields], given, strict=True))
    attributes: dict[str, Any] = {"Axes": list(axes), "Epsilon": epsilon}
    if mean:
        attributes["NormalizeVariance"] = True
        made = operate(node, "MEAN_VARIANCE_NORMALIZATION1", inputs, attributes, rank=sizes)
    else:
        attributes |= {"UseMean": False, "UseVariance": True}
        made = operate(node, "MEAN_VARIANCE_NORMALIZATION2", inputs, attributes, rank=sizes)
    return node.cast(made, x.data_type)


@maps("InstanceNormalization")
def _instance(node: Node) -> Value:
    x = node.view(0)
    if len(x.sizes) < 3:
        raise Unsupported(f"its input has {len(x.sizes)} dimensions, not 3 or more")
    scale, bias = (along(node, node.view(index), 1, x.sizes) for index in (1, 2))
    axes = range(2, len(x.sizes))
    return normalized(node, x, axes, node.attribute("epsilon"), scale, bias)


@maps("MeanVarianceNormalization")
def _mean_variance(node: Node) -> Value:
    x = node.view(0)
    axes = sorted({axis_of(axis, len(x.sizes)) for axis in node.attribute("axes")})
    return normalized(node, x, axes, 1e-9)


@maps("LpNormalization")
def _lp(node: Node) -> Value:
    x, order = node.view(0), node.attribute("p")
    if order not in (1, 2):
        raise Unsupported(f"its p is {order}")
    attributes = {"Axis": axis_of(node.attribute("axis"), len(x.sizes)), "Epsilon": SMALLEST, "P": order}
    return operate(node, "LP_NORMALIZATION", {"InputTensor": x}, attributes)


# Of the last dimensions


def _last_axes(x: View, axis: int) -> list[int]:
    return list(range(axis_of(axis, len(x.sizes)), len(x.sizes)))


@maps("LayerNormalization")
def _layer(node: Node) -> list[Value | None]:
    x, epsilon = node.view(0), node.attribute("epsilon")
    axes = _last_axes(x, node.attribute("axis"))
    made = normalized(node, x, axes, epsilon, node.view(1), node.optional(2))
    return [made, *_statistics(node, x, axes, epsilon)]


def _statistics(node: Node, x: View, axes: Sequence[int], epsilon: float) -> list[View | None]:
    """Mean and reciprocal of the standard deviation, in float32, as far as they are wanted."""
    wanted = [*node.wanted, False, False][1:3]
    if not any(wanted):
        return [None, None]
    x = node.cast(x, DataType.FLOAT32)
    mean = reduced(node, x, ReduceFunction.AVERAGE, axes)
    if not wanted[1]:
        return [mean, None]
    return [mean, _reciprocal_root(node, binary(node, "ELEMENT_WISE_SUBTRACT", x, mean), axes, epsilon)]


def _reciprocal_root(node: Node, x: View, axes: Sequence[int], epsilon: float) -> View:
    """1 / sqrt(mean of squares + epsilon), in float32."""
    wide = node.cast(x, DataType.FLOAT32)
    square = binary(node, "ELEMENT_WISE_MULTIPLY", wide, wide)
    attributes = {"ScaleBias": {"Scale": 1.0, "Bias": epsilon}}
    mean = reduced(node, square, ReduceFunction.AVERAGE, axes)
    root = operate(node, "ELEMENT_WISE_SQRT", {"InputTensor": mean}, attributes)
    return operate(node, "ELEMENT_WISE_RECIP", {"InputTensor": root})


@maps("RMSNormalization")
def _root_mean_square(node: Node) -> Value:
    x = node.view(0)
    axes = _last_axes(x, node.attribute("axis"))
    return normalized(node, x, axes, node.attribute("epsilon"), node.view(1), mean=False)


def _simplified(node: Node) -> list[Value | None]:
    x, epsilon = node.view(0), node.attribute("epsilon", 1e-5)
    axes = _last_axes(x, node.attribute("axis", -1))
    made = normalized(node, x, axes, epsilon, node.view(1), mean=False)
    return [made, _reciprocal_root(node, x, axes, epsilon) if any(node.wanted[1:]) else None]


# onnxruntime has it in the domain of ONNX, where ONNX has none of that name.
maps("SimplifiedLayerNormalization")(_simplified)
maps("SimplifiedLayerNormalization", domain="com.microsoft")(_simplified)


@maps("SkipLayerNormalization", domain="com.microsoft")
def _skip_layer(node: Node) -> list[Value | None]:
    epsilon = node.attribute("epsilon", 1e-12)
    x = _with_skip(node, 4)
    axes = _last_axes(x, -1)
    made = normalized(node, x, axes, epsilon, node.view(2), node.optional(3))
    return [made, *_statistics(node, x, axes, epsilon), x]


@maps("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def _skip_simplified(node: Node) -> list[Value | None]:
    """The mean that it gives is 0, as it takes none off."""
    epsilon = node.attribute("epsilon", 1e-12)
    x = _with_skip(node, 3)
    axes = _last_axes(x, -1)
    made = normalized(node, x, axes, epsilon, node.view(2), mean=False)
    inverse = _reciprocal_root(node, x, axes, epsilon) if any(node.wanted[2:3]) else None
    return [made, np.zeros((*x.sizes[:-1], 1), np.float32), inverse, x]


@maps("EmbedLayerNormalization", domain="com.microsoft")
def _embedded(node: Node) -> list[Value | None]:
    """Rows of three tables, for words, places and segments, added up and normalized; and how long each text is."""
    words = node.view(0)
    if len(words.sizes) != 2:
        raise Unsupported(f"its input_ids have {len(words.sizes)} dimensions, not 2")
    places = node.view(8) if node.has(8) else node.build.constant(np.arange(words.sizes[1], dtype=np.int32)[None])
    by_word, by_place = _rows(node, node.view(2), words), _rows(node, node.view(3), places)
    rows = [by_word, broadcast(by_place, by_word.sizes)]
    if node.has(1):
        rows.append(_rows(node, node.view(4), node.view(1)))
    total = sum_of(node, rows)
    made = normalized(node, total, [2], node.attribute("epsilon", 1e-12), node.view(5), node.view(6))
    lengths: Value = np.zeros(words.sizes[:1], np.int32)
    if node.has(7):
        lengths = node.reshaped(reduced(node, node.view(7), ReduceFunction.SUM, [1]), words.sizes[:1])
    return [made, lengths, total]


def _rows(node: Node, table: View, indices: View) -> View:
    """Those of the matrix `table`, at the matrix `indices`."""
    attributes = {"Axis": 1, "IndexDimensions": 2}
    inputs = {"InputTensor": table, "IndicesTensor": indices}
    outputs = {"OutputTensor": (table.data_type, (*indices.sizes, table.sizes[-1]))}
    return operate(node, "GATHER", inputs, attributes, outputs, rank=3)


def _with_skip(node: Node, bias: int) -> View:
    """The sum of the first two inputs and the bias, if there is one."""
    x = node.view(0)
    given = [broadcast(node.view(index), x.sizes) for index in (1, bias) if node.has(index)]
    return sum_of(node, [x, *given])


# Of groups of channels


@maps("GroupNormalization")
def _groups(node: Node) -> Value:
    x, groups = node.view(0), node.attribute("num_groups")
    # Until version 21 scale and bias were those of groups, since then of channels.
    return _in_groups(node, x, groups, by_channel=node.opset >= 21)


def _in_groups(node: Node, x: View, groups: int, *, by_channel: bool) -> View:
    """`x` is [N, C, ...]."""
    if len(x.sizes) < 2 or groups < 1 or x.sizes[1] % groups:
        raise Unsupported(f"its input of sizes {list(x.sizes)} has no {groups} groups of channels")
    batch, channels = x.sizes[:2]
    inner = channels // groups
    rest = x.elements // (batch * channels)
    parts = node.reshaped(x, (batch, groups, inner, rest))
    count = channels if by_channel else groups
    given = [node.view(index) for index in (1, 2)]
    if any(each.elements != count for each in given):
        raise Unsupported(f"its scale or bias has not {count} elements")
    scale, bias = (node.reshaped(each, (1, groups, inner if by_channel else 1, 1)) for each in given)
    made = normalized(node, parts, (2, 3), node.attribute("epsilon", 1e-5), scale, bias)
    return node.reshaped(made, x.sizes)


@maps("GroupNorm", domain="com.microsoft")
def _group_norm(node: Node) -> Value:
    return _of_either_layout(node, node.view(0))


@maps("SkipGroupNorm", domain="com.microsoft")
def _skip_group_norm(node: Node) -> list[Value | None]:
    """Of a sum, which it gives as well. What skips may be the same for all that lies between batch and channels."""
    x, skip, last = node.view(0), node.view(3), node.attribute("channels_last", 1)
    if len(skip.sizes) == 2:
        skip = inserted(skip, 1 if last else 2, len(x.sizes) - 2)
    given = [skip]
    if node.has(4):
        given.append(node.view(4) if last else inserted(node.view(4), 1, len(x.sizes) - 2))
    total = sum_of(node, [x, *(broadcast(each, x.sizes) for each in given)])
    return [_of_either_layout(node, total), total]


def _of_either_layout(node: Node, x: View) -> View:
    last = node.attribute("channels_last", 1)
    if last:
        x = channels_first(x)
    made = _in_groups(node, x, node.attribute("groups"), by_channel=True)
    if node.attribute("activation", 0):
        made = operate(node, "ACTIVATION_SWISH", {"InputTensor": made}, {"SigmoidInputScale": 1.0})
    return channels_last(made) if last else made
