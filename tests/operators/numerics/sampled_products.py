"""Normalization, products of matrices, networks and quantization: samples with their exact results."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from app.memory.arrays import Array
from tests.operators.attention.test_multihead import Case as AttentionCase
from tests.operators.calls import Given
from tests.operators.normalization.test_local_response import regions as response_regions
from tests.operators.numerics.samples import Draw, Exact, Sample, magnitude, of, single, wide
from tests.operators.recurrent.test_networks import expected as recurrent

# Normalization


@of("BATCH_NORMALIZATION")
def _batch(draw: Draw, kind: str) -> Iterator[Sample]:
    x = draw(2, 3, 5, 6)
    mean, scale, bias = (draw(1, 3, 1, 1) for _ in range(3))
    variance = draw(1, 3, 1, 1, positive=True)
    w, m, v, s, b = wide(x, mean, variance, scale, bias)
    factor = s / np.sqrt(v + single(1e-3))
    exact = Exact(factor * (w - m) + b, magnitude(factor * w, factor * m, b))
    inputs = {"InputTensor": x, "MeanTensor": mean, "VarianceTensor": variance, "ScaleTensor": scale}
    yield Sample({"Spatial": True, "Epsilon": 1e-3}, inputs | {"BiasTensor": bias}, {"OutputTensor": exact})


@of("MEAN_VARIANCE_NORMALIZATION", "MEAN_VARIANCE_NORMALIZATION1", "MEAN_VARIANCE_NORMALIZATION2")
def _mean_variance(draw: Draw, kind: str) -> Iterator[Sample]:
    x = (draw(2, 3, 4, draw.size) + np.asarray(2, draw.dtype)).astype(draw.dtype)
    one = [1, 3, 1, 1] if kind == "MEAN_VARIANCE_NORMALIZATION" else [2, 3, 4, draw.size]
    scale, bias = draw(*one), draw(*one)
    members: dict[str, Any] = {"Epsilon": 1e-3}
    axes: tuple[int, ...] = (3,)
    if kind == "MEAN_VARIANCE_NORMALIZATION":
        members |= {"CrossChannel": False, "NormalizeVariance": True}
        axes = (2, 3)
    else:
        members["Axes"] = [3]
        members |= {"NormalizeVariance": True} if kind.endswith("1") else {"UseMean": True, "UseVariance": True}
    w, s, b = wide(x, scale, bias)
    mean = w.mean(axes, keepdims=True)
    apart = w - mean
    factor = s / np.sqrt((apart * apart).mean(axes, keepdims=True) + single(1e-3))
    exact = Exact(factor * apart + b, magnitude(factor * w, factor * mean, b), draw.size)
    yield Sample(members, {"InputTensor": x, "ScaleTensor": scale, "BiasTensor": bias}, {"OutputTensor": exact})


@of("BATCH_NORMALIZATION_TRAINING", "BATCH_NORMALIZATION_GRAD", "BATCH_NORMALIZATION_TRAINING_GRAD")
def _training(draw: Draw, kind: str) -> Iterator[Sample]:
    side = max(2, int((draw.size / 2) ** 0.5))
    x = (draw(2, 3, side, side) + np.asarray(1, draw.dtype)).astype(draw.dtype)
    scale, bias = draw(1, 3, 1, 1), draw(1, 3, 1, 1)
    axes, n = (0, 2, 3), 2 * side * side
    w, s, b = wide(x, scale, bias)

    def mean(values: Array) -> Array:
        made: Array = values.mean(axes, keepdims=True)
        return made

    if kind.endswith("TRAINING"):
        apart = w - mean(w)
        variance = mean(apart * apart)
        factor = s / np.sqrt(variance + single(1e-3))
        exact = {
            "OutputTensor": Exact(factor * apart + b, magnitude(factor * w, factor * mean(w), b), n),
            "OutputMeanTensor": Exact(mean(w), mean(abs(w)), n),
            "OutputVarianceTensor": Exact(variance, variance, n),
        }
        yield Sample({"Epsilon": 1e-3}, {"InputTensor": x, "ScaleTensor": scale, "BiasTensor": bias}, exact)
        return
    gradient, at, spread = draw(*x.shape), draw(1, 3, 1, 1), draw(1, 3, 1, 1, positive=True)
    g, m, v = wide(gradient, at, spread)
    root = np.sqrt(v + single(1e-3))
    normal = (w - m) / root
    sizes = magnitude(w, m) / root
    whole, parts = g * s / root, abs(g * s / root)
    if "TRAINING" in kind:
        apart, around = w - mean(w), abs(w) + mean(abs(w))
        whole = s / root * (g - mean(g) - apart * mean(g * apart) / root**2)
        parts = abs(s / root) * (abs(g) + mean(abs(g)) + around * mean(abs(g) * around) / root**2)
    exact = {
        "OutputGradientTensor": Exact(whole, parts, n),
        "OutputScaleGradientTensor": Exact(n * mean(g * normal), n * mean(abs(g) * sizes), n),
        "OutputBiasGradientTensor": Exact(n * mean(g), n * mean(abs(g)), n),
    }
    inputs = {"InputTensor": x, "InputGradientTensor": gradient, "MeanTensor": at, "VarianceTensor": spread}
    yield Sample({"Epsilon": 1e-3}, inputs | {"ScaleTensor": scale}, exact)


@of("LOCAL_RESPONSE_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION_GRAD")
def _response(draw: Draw, kind: str) -> Iterator[Sample]:
    a = {"CrossChannel": True, "LocalSize": 5, "Alpha": 0.75, "Beta": 0.625, "Bias": 1.5}
    x, gradient = draw(1, 9, 3, 4), draw(1, 9, 3, 4)
    region = response_regions(x.shape, 5, cross_channel=True)
    w, g = (each.astype(float).reshape(-1) for each in (x, gradient))
    s = 1.5 + 0.75 / 5 * (region @ w**2)
    if not kind.endswith("GRAD"):
        made = (w / s**0.625).reshape(x.shape)
        yield Sample(a, {"InputTensor": x}, {"OutputTensor": Exact(made, made, 5)})
        return
    factor = 2 * 0.75 * 0.625 / 5
    whole = g * s**-0.625 - factor * w * (region.T @ (g * w * s**-1.625))
    parts = magnitude(g * s**-0.625, factor * abs(w) * (region.T @ abs(g * w * s**-1.625)))
    exact = Exact(whole.reshape(x.shape), parts.reshape(x.shape), 5)
    yield Sample(a, {"InputTensor": x, "InputGradientTensor": gradient}, {"OutputGradientTensor": exact})


@of("LP_NORMALIZATION")
def _lp(draw: Draw, kind: str) -> Iterator[Sample]:
    for p in (1, 2):
        x = draw(1, 3, 5, draw.size)
        (w,) = wide(x)
        made = w / (abs(w) ** p).sum(-1, keepdims=True) ** (np.longdouble(1) / p)
        members = {"Axis": 3, "Epsilon": 1e-5, "P": p}
        yield Sample(members, {"InputTensor": x}, {"OutputTensor": Exact(made, made, draw.size)})


@of("ADAM_OPTIMIZER")
def _adam(draw: Draw, kind: str) -> Iterator[Sample]:
    x, m, g = (draw(1, 1, 20, 30) for _ in range(3))
    v = draw(1, 1, 20, 30, positive=True)
    names = ("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor")
    inputs = dict(zip(names, (x, m, v, g), strict=True)) | {"TrainingStepTensor": np.full((1, 1, 1, 1), 3, draw.dtype)}
    wx, wm, wv, wg = wide(x, m, v, g)
    rate, one, two, epsilon = (single(each) for each in (0.001, 0.9, 0.999, 1e-8))
    first, second = one * wm + (1 - one) * wg, two * wv + (1 - two) * wg * wg
    step = rate * np.sqrt(1 - two**3) / (1 - one**3) * first / (np.sqrt(second) + epsilon)
    exact = {
        "OutputParametersTensor": Exact(wx - step, magnitude(wx, step)),
        "OutputFirstMomentTensor": Exact(first, magnitude(one * wm, (1 - one) * wg)),
        "OutputSecondMomentTensor": Exact(second, second),
    }
    members = {"LearningRate": 0.001, "Beta1": 0.9, "Beta2": 0.999, "Epsilon": 1e-8}
    yield Sample(members, inputs, exact)


# Products


@of("GEMM")
def _gemm(draw: Draw, kind: str) -> Iterator[Sample]:
    for alpha, beta in ((1.0, 1.0), (0.7, -1.3)):
        a, b, c = draw(1, 2, 7, draw.size), draw(1, 2, draw.size, 9), draw(1, 2, 7, 9)
        members = {"TransA": "NONE", "TransB": "NONE", "Alpha": alpha, "Beta": beta}
        x, y, z = wide(a, b, c)
        added, factor = single(beta) * z, single(alpha)
        exact = Exact(factor * (x @ y) + added, abs(factor) * (abs(x) @ abs(y)) + abs(added), draw.size)
        yield Sample(members, {"ATensor": a, "BTensor": b, "CTensor": c}, {"OutputTensor": exact})


@of("CONVOLUTION")
def _convolution(draw: Draw, kind: str) -> Iterator[Sample]:
    """Of filters of 3 times 3, in groups or not, and of rows where they are one element."""
    for groups, side in ((1, 3), (2, 3), (1, 1)):
        depth = max(1, draw.size // side**2)
        x = draw(1, depth * groups, 8, 9)
        w, bias = draw(4 * groups, depth, side, side), draw(1, 4 * groups, 1, 1)
        members = {"Mode": "CROSS_CORRELATION", "Direction": "FORWARD", "GroupCount": groups}
        members |= {name: [1, 1] for name in ("Strides", "Dilations")}
        members |= {name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")}

        def convolved(x: Array, w: Array, groups: int = groups, side: int = side) -> Array:
            windows = np.lib.stride_tricks.sliding_window_view(x[0], (side, side), (1, 2))
            parts = zip(np.split(windows, groups), np.split(w, groups), strict=True)
            return np.concatenate([np.einsum("cyxij,ocij->oyx", *each) for each in parts])[np.newaxis]

        wx, ww, wb = wide(x, w, bias)
        exact = Exact(convolved(wx, ww) + wb, convolved(abs(wx), abs(ww)) + abs(wb), depth * side**2)
        yield Sample(members, {"InputTensor": x, "FilterTensor": w, "BiasTensor": bias}, {"OutputTensor": exact})


@of("RNN", "LSTM", "GRU")
def _recurrent(draw: Draw, kind: str) -> Iterator[Sample]:
    gates, hidden, width, steps = {"RNN": 1, "LSTM": 4, "GRU": 3}[kind], draw.size, draw.size, 5
    names = {"RNN": ["tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}[kind]
    scale = hidden**-0.5
    tensors = {
        "InputTensor": draw(1, steps, 2, width),
        "WeightTensor": draw(1, 1, gates * hidden, width, scale=scale),
        "RecurrenceTensor": draw(1, 1, gates * hidden, hidden, scale=scale),
        "BiasTensor": draw(1, 1, 1, 2 * gates * hidden),
    }
    document: dict[str, Any] = {
        "Direction": "FORWARD",
        "ActivationDescs": [{"Type": f"ACTIVATION_{name.upper()}"} for name in names],
    }
    if kind == "LSTM":
        document |= {"ClipThreshold": 0.5, "UseClipThreshold": False, "CoupleInputForget": False}
    if kind == "GRU":
        document["LinearBeforeReset"] = True
    right = recurrent(kind, dict(tensors), names, document)
    made = {"OutputSequenceTensor": right["OutputSequenceTensor"]}
    document |= {name: {"DataType": draw.dtype.upper(), "Sizes": list(each.shape)} for name, each in made.items()}
    x, w, r, bias = (abs(each.astype(float)) for each in tensors.values())
    largest = (x[0] @ w[0, 0].T).max() + r[0, 0].sum(-1).max() + 2 * bias.max()  # a state is at most 1
    sizes = np.full(made["OutputSequenceTensor"].shape, largest)
    exact = {name: Exact(each, sizes, steps * (hidden + width)) for name, each in made.items()}
    yield Sample(document, tensors, exact)


@of("MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1")
def _attention(draw: Draw, kind: str) -> Iterator[Sample]:
    for form in ("apart", "all"):
        case = AttentionCase(draw.rng, draw.dtype, form, "NONE", 2, 2)
        document = case.document(kind, "NONE")
        members = {name: each for name, each in document.items() if not name.startswith(("Type", "OutputPresent"))}
        right = case.expected()["OutputTensor"]
        scores = case.scale * abs(case.q) @ abs(case.k).swapaxes(-1, -2) + abs(case.added)
        largest = np.abs(case.v).max() * (1 + scores.max())
        sizes = np.full(right.shape, largest)
        given = {name: np.ascontiguousarray(each) for name, each in case.inputs.items() if each is not None}
        terms = case.size + case.total
        yield Sample(members, given, {"OutputTensor": Exact(right, sizes, terms)})


# Quantized


@of("MATRIX_MULTIPLY_INTEGER_TO_FLOAT")
def _to_float(draw: Draw, kind: str) -> Iterator[Sample]:
    a, b = (draw.rng.integers(-128, 128, sizes).astype(np.int8) for sizes in ((7, draw.size), (draw.size, 5)))
    scales = [draw(1, 1, positive=True, scale=2.0**-7) for _ in range(2)]
    bias = draw(7, 5)
    x, y = a.astype(np.int64), b.astype(np.int64)
    product = (x @ y) * wide(scales[0])[0] * wide(scales[1])[0]
    (added,) = wide(bias)
    inputs = {"ATensor": a, "AScaleTensor": scales[0], "BTensor": b, "BScaleTensor": scales[1], "BiasTensor": bias}
    yield Sample({}, inputs, {"OutputTensor": Exact(product + added, magnitude(product, added))})


@of("DEQUANTIZE")
def _dequantize(draw: Draw, kind: str) -> Iterator[Sample]:
    x = draw.rng.integers(-128, 128, (1, 1, 20, 30)).astype(np.int8)
    scale, zero = draw(1, 1, 1, 1, positive=True), np.full((1, 1, 1, 1), 3, np.int8)
    made = (x.astype(np.int64) - 3) * wide(scale)[0]
    members = {"QuantizationType": "SCALE_ZERO_POINT", "QuantizationTensorCount": 2}
    inputs: dict[str, Given] = {"InputTensor": x, "QuantizationTensors": [scale, zero]}
    yield Sample(members, inputs, {"OutputTensor": Exact(made, made)})
