"""Operators that no node of onnxruntime's is, as descriptors, with what one writes with NumPy, for `libraries.py`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from app.memory.arrays import Array

RNG = np.random.default_rng(1)


class Described(NamedTuple):
    """An operator over `inputs`. The `expression` makes its outputs, or nothing where numbers are random."""

    name: str
    document: Mapping[str, Any]
    inputs: Mapping[str, Array]
    expression: Callable[..., Any]
    is_checked: bool = True


def floats(*sizes: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(sizes, np.float32).astype(dtype)


def desc(dtype: str, *sizes: int) -> dict[str, Any]:
    return {"DataType": dtype, "Sizes": list(sizes)}


MATRIX, IMAGE = floats(1024, 1024), floats(1, 64, 112, 112)
HALVES = {"InputTensor": MATRIX.astype(np.float16)}
CHANNELS = {"ScaleTensor": floats(1, 64, 1, 1), "MeanTensor": floats(1, 64, 1, 1)}
CHANNELS["VarianceTensor"] = np.abs(floats(1, 64, 1, 1)) + 1
SPACE = (0, 2, 3)
EPSILON = np.float32(1e-5)
WINDOWS = {"WindowSize": [3, 3], "Strides": [2, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]}


def trained(x: Array, scale: Array, bias: Array) -> tuple[Array, Array, Array]:
    mean, variance = x.mean(SPACE, keepdims=True), x.var(SPACE, keepdims=True)
    return scale * (x - mean) / np.sqrt(variance + EPSILON) + bias, mean, variance


def batch_gradients(x: Array, dy: Array, mean: Array, variance: Array, scale: Array) -> tuple[Array, Array, Array]:
    inverse = 1 / np.sqrt(variance + EPSILON)
    return dy * scale * inverse, (dy * (x - mean) * inverse).sum(SPACE, keepdims=True), dy.sum(SPACE, keepdims=True)


def training_gradients(x: Array, dy: Array, mean: Array, variance: Array, scale: Array) -> tuple[Array, Array, Array]:
    inverse, apart = 1 / np.sqrt(variance + EPSILON), x - x.mean(SPACE, keepdims=True)
    along = (dy * apart).mean(SPACE, keepdims=True) * inverse * inverse
    dx = scale * inverse * (dy - dy.mean(SPACE, keepdims=True) - apart * along)
    return dx, (dy * (x - mean) * inverse).sum(SPACE, keepdims=True), dy.sum(SPACE, keepdims=True)


def response_gradients(x: Array, dy: Array) -> Array:
    def around(each: Array) -> Array:
        padded = np.pad(each, [(0, 0), (2, 2), (0, 0), (0, 0)])
        made: Array = np.lib.stride_tricks.sliding_window_view(padded, 5, 1).sum(-1)
        return made

    s = 1 + np.float32(1e-4 / 5) * around(x * x)
    power = s ** np.float32(-0.75)
    made: Array = dy * power - np.float32(2 * 1e-4 * 0.75 / 5) * x * around(dy * x * power / s)
    return made


def average_gradients(dy: Array) -> Array:
    made = np.zeros(IMAGE.shape, np.float32)
    share = dy / 9
    rows, columns = dy.shape[2:]
    for y in range(3):
        for x in range(3):
            made[:, :, y : y + 2 * rows : 2, x : x + 2 * columns : 2] += share
    return made


def maximum_gradients(x: Array, dy: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    rows, columns = dy.shape[2:]
    place = windows.reshape(*windows.shape[:4], 9).argmax(-1)
    y, z = 2 * np.arange(rows)[:, None] + place // 3, 2 * np.arange(columns) + place % 3
    made = np.zeros(x.shape, np.float32)
    channels = np.arange(x.shape[1])[None, :, None, None]
    np.add.at(made, (np.zeros(1, int), channels, y, z), dy)
    return made


def adam(x: Array, m: Array, v: Array, g: Array, step: Array) -> tuple[Array, Array, Array]:
    one, two = np.float32(0.9), np.float32(0.999)
    m, v = one * m + (1 - one) * g, two * v + (1 - two) * g * g
    rate = np.float32(0.001) * np.sqrt(1 - two**step) / (1 - one**step)
    return x - rate * m / (np.sqrt(v) + np.float32(1e-8)), m, v


def reversed_parts(x: Array, lengths: Array) -> Array:
    made = x.copy()
    for row, length in enumerate(lengths[:, 0]):
        made[row, :length] = x[row, :length][::-1]
    return made


def diagonal(x: Array) -> Array:
    made = x.copy()
    np.fill_diagonal(made, 1)
    return made


def unfolded(x: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3))
    return windows.transpose(0, 1, 4, 5, 2, 3).reshape(1, x.shape[1] * 9, -1)


def doubled_gradient(dy: Array) -> Array:
    n, c, h, w = dy.shape
    made: Array = dy.reshape(n, c, h // 2, 2, w // 2, 2).sum((3, 5))
    return made


def sliced_gradient(dy: Array) -> Array:
    made = np.zeros(MATRIX.shape, np.float32)
    made[8:1000, 8:1000:2] = dy
    return made


SLICED = {"InputWindowOffsets": [8, 8], "InputWindowSizes": [992, 992], "InputWindowStrides": [1, 2]}
TRANSFORMS = {"Alpha": 1.0, "Beta": 0.0}
SPARSE = MATRIX[:, :256] * (MATRIX[:, 256:512] > 1)
GRADIENT = {"InputTensor": IMAGE, "InputGradientTensor": floats(*IMAGE.shape)}

ROWS = [
    Described(
        "GEMM, both transposed",
        {"Type": "GEMM", "TransA": "TRANSPOSE", "TransB": "TRANSPOSE", **TRANSFORMS},
        {"ATensor": floats(768, 128), "BTensor": floats(768, 768)},
        lambda a, b: a.T @ b.T,
    ),
    Described(
        "CUMULATIVE_PRODUCT",
        {"Type": "CUMULATIVE_PRODUCT", "Axis": 1, "AxisDirection": "INCREASING", "HasExclusiveProduct": False},
        {"InputTensor": 1 + MATRIX / 1024},
        lambda x: np.cumprod(x, 1),
    ),
    Described(
        "BATCH_NORMALIZATION_TRAINING",
        {"Type": "BATCH_NORMALIZATION_TRAINING", "Epsilon": 1e-5},
        {"InputTensor": IMAGE, "ScaleTensor": CHANNELS["ScaleTensor"], "BiasTensor": floats(1, 64, 1, 1)},
        trained,
    ),
    *(
        Described(
            kind,
            {"Type": kind, "Epsilon": 1e-5},
            {**GRADIENT, **{name: CHANNELS[name] for name in ("MeanTensor", "VarianceTensor", "ScaleTensor")}},
            expression,
        )
        for kind, expression in (
            ("BATCH_NORMALIZATION_GRAD", batch_gradients),
            ("BATCH_NORMALIZATION_TRAINING_GRAD", training_gradients),
        )
    ),
    Described(
        "LOCAL_RESPONSE_NORMALIZATION_GRAD",
        {
            "Type": "LOCAL_RESPONSE_NORMALIZATION_GRAD",
            "CrossChannel": True,
            "LocalSize": 5,
            "Alpha": 1e-4,
            "Beta": 0.75,
            "Bias": 1.0,
        },
        GRADIENT,
        response_gradients,
    ),
    Described(
        "AVERAGE_POOLING_GRAD 3x3 / 2",
        {
            "Type": "AVERAGE_POOLING_GRAD",
            **WINDOWS,
            "IncludePadding": False,
            "OutputGradientTensor": desc("FLOAT32", *IMAGE.shape),
        },
        {"InputGradientTensor": floats(1, 64, 55, 55)},
        average_gradients,
    ),
    Described(
        "MAX_POOLING_GRAD 3x3 / 2",
        {"Type": "MAX_POOLING_GRAD", **WINDOWS, "Dilations": [1, 1]},
        {"InputTensor": IMAGE, "InputGradientTensor": floats(1, 64, 55, 55)},
        maximum_gradients,
    ),
    Described(
        "RESAMPLE_GRAD1, nearest, 2x",
        {
            "Type": "RESAMPLE_GRAD1",
            "InterpolationMode": "NEAREST_NEIGHBOR",
            "RoundingDirection": "DECREASING",
            "Scales": [1, 1, 2, 2],
            "InputPixelOffsets": [0] * 4,
            "OutputPixelOffsets": [0] * 4,
            "OutputGradientTensor": desc("FLOAT32", 1, 16, 128, 128),
        },
        {"InputGradientTensor": floats(1, 16, 256, 256)},
        doubled_gradient,
    ),
    Described(
        "SLICE_GRAD",
        {"Type": "SLICE_GRAD", **SLICED, "OutputGradientTensor": desc("FLOAT32", 1024, 1024)},
        {"InputGradientTensor": floats(992, 496)},
        sliced_gradient,
    ),
    Described(
        "ADAM_OPTIMIZER",
        {"Type": "ADAM_OPTIMIZER", "LearningRate": 0.001, "Beta1": 0.9, "Beta2": 0.999, "Epsilon": 1e-8},
        {
            "InputParametersTensor": floats(1, 1, 1024, 1024),
            "InputFirstMomentTensor": floats(1, 1, 1024, 1024),
            "InputSecondMomentTensor": np.abs(floats(1, 1, 1024, 1024)),
            "GradientTensor": floats(1, 1, 1024, 1024),
            "TrainingStepTensor": np.full((1, 1, 1, 1), 3, np.float32),
        },
        adam,
    ),
    Described(
        "REVERSE_SUBSEQUENCES",
        {"Type": "REVERSE_SUBSEQUENCES", "Axis": 1},
        {"InputTensor": MATRIX, "SequenceLengthsTensor": RNG.integers(1, 1025, (1024, 1)).astype(np.uint32)},
        reversed_parts,
    ),
    Described(
        "DIAGONAL_MATRIX1",
        {
            "Type": "DIAGONAL_MATRIX1",
            "ValueDataType": "FLOAT32",
            "Value": {"Float32": 1.0},
            "DiagonalFillBegin": 0,
            "DiagonalFillEnd": 1,
        },
        {"InputTensor": MATRIX},
        diagonal,
    ),
    Described(
        "NONZERO_COORDINATES",
        {"Type": "NONZERO_COORDINATES"},
        {"InputTensor": SPARSE},
        lambda x: (np.array([np.count_nonzero(x)]), np.argwhere(x)),
        is_checked=False,  # what there is behind the coordinates is anything
    ),
    Described(
        "RANDOM_GENERATOR",
        {
            "Type": "RANDOM_GENERATOR",
            "GeneratorType": "PHILOX_4X32_10",
            "OutputTensor": desc("UINT32", 1024, 1024),
            "OutputStateTensor": desc("UINT32", 6),
        },
        {"InputStateTensor": np.arange(6, dtype=np.uint32)},
        lambda state: np.random.Generator(np.random.Philox(1)).integers(0, 1 << 32, (1024, 1024), np.uint32),
        is_checked=False,
    ),
    Described(
        "FILL_VALUE_CONSTANT",
        {
            "Type": "FILL_VALUE_CONSTANT",
            "ValueDataType": "FLOAT32",
            "Value": {"Float32": 2.5},
            "OutputTensor": desc("FLOAT32", 1024, 1024),
        },
        {},
        lambda: np.full((1024, 1024), 2.5, np.float32),
    ),
    Described(
        "FILL_VALUE_SEQUENCE",
        {
            "Type": "FILL_VALUE_SEQUENCE",
            "ValueDataType": "FLOAT32",
            "ValueStart": {"Float32": 0.0},
            "ValueDelta": {"Float32": 0.5},
            "OutputTensor": desc("FLOAT32", 1024, 1024),
        },
        {},
        lambda: (np.arange(1 << 20, dtype=np.float32) * np.float32(0.5)).reshape(1024, 1024),
    ),
    Described(
        "VALUE_SCALE_2D",
        {"Type": "VALUE_SCALE_2D", "Scale": 0.5, "ChannelCount": 3, "Bias": [1.0, 2.0, 3.0]},
        {"InputTensor": floats(1, 3, 512, 512)},
        lambda x: x * np.float32(0.5) + np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1),
    ),
    Described(
        "UNFOLD 3x3",
        {
            "Type": "UNFOLD",
            "WindowSizes": [3, 3],
            "Strides": [1, 1],
            "Dilations": [1, 1],
            "StartPadding": [1, 1],
            "EndPadding": [1, 1],
        },
        {"InputTensor": floats(1, 16, 64, 64)},
        unfolded,
    ),
    Described(
        "QUANTIZE, blocks of 32",
        {
            "Type": "QUANTIZE",
            "QuantizationType": "SCALE_ZERO_POINT",
            "OutputTensor": desc("UINT8", 1024, 1024),
        },
        {
            "InputTensor": MATRIX,
            "QuantizationTensors[0]": np.abs(floats(1024, 32)) + 0.1,
            "QuantizationTensors[1]": np.full((1024, 32), 128, np.uint8),
        },
        lambda x, scale, zero: np.clip(np.round(x / scale.repeat(32, 1)) + zero.repeat(32, 1), 0, 255).astype(np.uint8),
    ),
    Described(
        "DEQUANTIZE, blocks of 32",
        {
            "Type": "DEQUANTIZE",
            "QuantizationType": "SCALE_ZERO_POINT",
            "OutputTensor": desc("FLOAT32", 1024, 1024),
        },
        {
            "InputTensor": RNG.integers(0, 256, (1024, 1024)).astype(np.uint8),
            "QuantizationTensors[0]": np.abs(floats(1024, 32)) + 0.1,
            "QuantizationTensors[1]": np.full((1024, 32), 128, np.uint8),
        },
        lambda x, scale, zero: (x.astype(np.float32) - zero.repeat(32, 1)) * scale.repeat(32, 1),
    ),
    *(
        Described(
            f"REDUCE {function}, axis {axis}, float16",
            {"Type": "REDUCE", "Function": function, "Axes": [axis]},
            HALVES,
            lambda x, expression=expression, axis=axis: expression(x, axis=axis, keepdims=True),
        )
        for function, expression in (("SUM", partial(np.sum, dtype=np.float32)), ("MAX", np.max))
        for axis in (1, 0)
    ),
    Described(
        "ARGMAX, axis 1, float16",
        {
            "Type": "ARGMAX",
            "Axes": [1],
            "AxisDirection": "INCREASING",
            "OutputTensor": desc("INT64", 1024, 1),
        },
        HALVES,
        lambda x: x.argmax(1)[:, None],
    ),
    Described("SLICE1, float16", {"Type": "SLICE1", **SLICED}, HALVES, lambda x: x[8:1000, 8:1000:2].copy()),
    Described(
        "JOIN, axis 1, float16",
        {"Type": "JOIN", "Axis": 1},
        {"InputTensors[0]": HALVES["InputTensor"], "InputTensors[1]": floats(1024, 512, dtype=np.float16)},
        lambda x, y: np.concatenate([x, y], 1),
    ),
    Described(
        "PADDING1, float16",
        {
            "Type": "PADDING1",
            "PaddingMode": "CONSTANT",
            "PaddingValueDataType": "FLOAT16",
            "PaddingValue": 0,
            "StartPadding": [0, 0, 1, 1],
            "EndPadding": [0, 0, 1, 1],
        },
        {"InputTensor": IMAGE.astype(np.float16)},
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]),
    ),
    Described(
        "GATHER, axis 0, float16",
        {"Type": "GATHER", "Axis": 0, "IndexDimensions": 1},
        HALVES | {"IndicesTensor": RNG.integers(0, 1024, (1, 1024)).astype(np.int32)},
        lambda x, i: x[i[0]],
    ),
    Described(
        "ELEMENT_WISE_IDENTITY, transposed, float16",
        {"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": desc("FLOAT16", 1024, 1024) | {"Strides": [1, 1024]}},
        HALVES,
        lambda x: np.ascontiguousarray(x.T),
    ),
    Described("TILE, float16", {"Type": "TILE", "Repeats": [2, 2]}, HALVES, lambda x: np.tile(x, (2, 2))),
]
"""Of 1 Mi elements, about."""
