"""Softmax, reductions, windows, regions, resampling and scans: samples with their exact results."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from app.memory.arrays import Array
from tests.operators.numerics.samples import Draw, Exact, Sample, magnitude, of, single, wide
from tests.operators.pooling.test_region_gradients import gradients as region_gradients
from tests.operators.pooling.test_regions import aligned
from tests.operators.resampling.test_resampling import applied, weights

# Softmax


@of("ACTIVATION_SOFTMAX", "ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX", "ACTIVATION_LOG_SOFTMAX1")
def _softmax(draw: Draw, kind: str) -> Iterator[Sample]:
    for scale in (1.0, 10.0):
        x = draw(1, 1, 9, draw.size, scale=scale)
        (w,) = wide(x)
        apart = w - w.max(-1, keepdims=True)
        total = np.exp(apart).sum(-1, keepdims=True)
        is_log = "LOG" in kind
        whole = apart - np.log(total) if is_log else np.exp(apart) / total
        exact = Exact(whole, whole, draw.size)
        yield Sample({"Axes": [3]} if kind.endswith("1") else {}, {"InputTensor": x}, {"OutputTensor": exact})


# Sums of groups and windows


@of("REDUCE")
def _reduce(draw: Draw, kind: str) -> Iterator[Sample]:
    n = draw.size
    for function in ("SUM", "AVERAGE", "L1", "L2", "SUM_SQUARE", "LOG_SUM", "LOG_SUM_EXP", "MULTIPLY"):
        positive = function in ("LOG_SUM", "MULTIPLY")
        x = draw(1, 3, 5, n, positive=positive)
        if function == "MULTIPLY":
            x = (1 + x / 64).astype(draw.dtype)
        if function == "SUM_SQUARE" and draw.dtype == "float16":
            x = (x / 16).astype(draw.dtype)
        (w,) = wide(x)
        total, parts = w.sum(-1, keepdims=True), abs(w).sum(-1, keepdims=True)
        squares = (w * w).sum(-1, keepdims=True)
        made = {
            "SUM": total,
            "AVERAGE": total / n,
            "L1": parts,
            "L2": np.sqrt(squares),
            "SUM_SQUARE": squares,
            "LOG_SUM": np.log(parts),
            "LOG_SUM_EXP": np.log(np.exp(w).sum(-1, keepdims=True)),
            "MULTIPLY": w.prod(-1, keepdims=True),
        }[function]
        size = {"SUM": parts, "AVERAGE": parts / n}.get(function, made)
        yield Sample({"Function": function, "Axes": [3]}, {"InputTensor": x}, {"OutputTensor": Exact(made, size, n)})


def _windows(x: Array, window: int, stride: int) -> Array:
    """Square ones of planes, their elements last."""
    found = np.lib.stride_tricks.sliding_window_view(x, (window, window), (2, 3))[:, :, ::stride, ::stride]
    made: Array = found.reshape(*found.shape[:4], -1)
    return made


@of("AVERAGE_POOLING", "AVERAGE_POOLING1", "LP_POOLING", "LP_POOLING1")
def _pooling(draw: Draw, kind: str) -> Iterator[Sample]:
    window, stride = max(2, int(draw.size**0.5)), 2
    x = draw(1, 2, window + 5, window + 7)
    members: dict[str, Any] = {"Strides": [stride] * 2, "WindowSize": [window] * 2}
    members |= {"StartPadding": [0, 0], "EndPadding": [0, 0]}
    members |= {"Dilations": [1, 1]} if kind.endswith("1") else {}
    each = _windows(x.astype(np.longdouble), window, stride)
    if kind.startswith("AVERAGE"):
        exact = Exact(each.mean(-1), abs(each).mean(-1), window * window)
        yield Sample(members | {"IncludePadding": False}, {"InputTensor": x}, {"OutputTensor": exact})
        return
    for p in (1, 2, 3):
        norm = (abs(each) ** p).sum(-1) ** (np.longdouble(1) / p)
        yield Sample(members | {"P": p}, {"InputTensor": x}, {"OutputTensor": Exact(norm, norm, window * window)})


@of("AVERAGE_POOLING_GRAD", "MAX_POOLING_GRAD")
def _pooling_gradients(draw: Draw, kind: str) -> Iterator[Sample]:
    window, size = max(2, int(draw.size**0.5)), 2 * max(2, int(draw.size**0.5))
    x, gradient = draw(1, 2, size, size), draw(1, 2, size - window + 1, size - window + 1)
    members: dict[str, Any] = {"Strides": [1, 1], "WindowSize": [window] * 2}
    members |= {"StartPadding": [0, 0], "EndPadding": [0, 0]}
    (g,) = wide(gradient)
    whole, parts = np.zeros((2, *x.shape), np.longdouble)
    for i, j in np.ndindex(g.shape[2:]):
        share = g[:, :, i : i + 1, j : j + 1]
        part = slice(None), slice(None), slice(i, i + window), slice(j, j + window)
        if kind == "AVERAGE_POOLING_GRAD":
            held = np.full((window, window), np.longdouble(1) / window**2)
        else:
            flat = x[part].reshape(1, 2, -1)
            held = (np.arange(window**2) == flat.argmax(-1)[..., np.newaxis]).reshape(1, 2, window, window)
        whole[part] += share * held
        parts[part] += abs(share) * held
    exact = {"OutputGradientTensor": Exact(whole, parts, window * window)}
    if kind == "AVERAGE_POOLING_GRAD":
        stated = {"OutputGradientTensor": {"DataType": draw.dtype.upper(), "Sizes": list(x.shape)}}
        yield Sample(members | stated | {"IncludePadding": False}, {"InputGradientTensor": gradient}, exact)
    else:
        members["Dilations"] = [1, 1]
        yield Sample(members, {"InputTensor": x, "InputGradientTensor": gradient}, exact)


@of("ROI_ALIGN", "ROI_ALIGN1", "ROI_ALIGN_GRAD")
def _regions(draw: Draw, kind: str) -> Iterator[Sample]:
    samples = max(2, int(draw.size**0.5) // 2)
    a: dict[str, Any] = {
        "ReductionFunction": "AVERAGE",
        "InterpolationMode": "LINEAR",
        "SpatialScaleX": 1.0,
        "SpatialScaleY": 0.5,
        "MinimumSamplesPerOutput": samples,
        "MaximumSamplesPerOutput": samples,
    }
    x = draw(2, 2, 9, 8)
    rois = (draw.rng.integers(0, 12, (3, 4)) / 2 + [0, 0, 3, 5]).astype(draw.dtype)
    batches = np.array([0, 1, 1], np.uint32)
    if kind != "ROI_ALIGN":
        a |= {"InputPixelOffset": 0.5, "OutputPixelOffset": -0.5, "AlignRegionsToCorners": False}
    if kind == "ROI_ALIGN_GRAD":
        gradient = draw(3, 2, 3, 2)
        whole, _ = region_gradients(x, gradient, rois, batches, a)
        parts, _ = region_gradients(x, abs(gradient), rois, batches, a)
        inputs = {"InputTensor": x, "InputGradientTensor": gradient, "ROITensor": rois, "BatchIndicesTensor": batches}
        stated = {"OutputGradientTensor": {"DataType": draw.dtype.upper(), "Sizes": list(x.shape)}}
        terms = 4 * 3 * 2 * len(rois) * samples**2
        yield Sample(a | stated, inputs, {"OutputGradientTensor": Exact(whole, parts, terms)})
        return
    a["OutOfBoundsInputValue"] = 0.0
    whole, parts = (aligned(each, rois, batches, a, 3, 2) for each in (x, abs(x)))
    inputs = {"InputTensor": x, "ROITensor": rois, "BatchIndicesTensor": batches}
    stated = {"OutputTensor": {"DataType": draw.dtype.upper(), "Sizes": list(whole.shape)}}
    yield Sample(a | stated, inputs, {"OutputTensor": Exact(whole, parts, 4 * samples**2)})


# Data movement that computes


@of("FOLD")
def _fold(draw: Draw, kind: str) -> Iterator[Sample]:
    window = max(2, int(draw.size**0.5))
    size = 2 * window
    count = size - window + 1
    x = draw(1, 2 * window**2, count**2)
    whole, parts = np.zeros((2, 1, 2, size, size), np.longdouble)
    blocks = x.astype(np.longdouble).reshape(1, 2, window, window, count, count)
    for i, j in np.ndindex(window, window):
        part = slice(None), slice(None), slice(i, i + count), slice(j, j + count)
        whole[part] += blocks[:, :, i, j]
        parts[part] += abs(blocks[:, :, i, j])
    members = {"WindowSizes": [window] * 2, "Strides": [1, 1], "Dilations": [1, 1]}
    members |= {"StartPadding": [0, 0], "EndPadding": [0, 0]}
    stated = {"OutputTensor": {"DataType": draw.dtype.upper(), "Sizes": list(whole.shape)}}
    yield Sample({**members, **stated}, {"InputTensor": x}, {"OutputTensor": Exact(whole, parts, window**2)})


@of("VALUE_SCALE_2D")
def _value_scale(draw: Draw, kind: str) -> Iterator[Sample]:
    x = draw(1, 3, 20, 30)
    bias = [0.1, -2.5, 0.75]
    product = x.astype(np.longdouble) * single(1.7)
    added = np.array([single(each) for each in bias]).reshape(1, 3, 1, 1)
    exact = Exact(product + added, magnitude(product, added))
    yield Sample({"Scale": 1.7, "ChannelCount": 3, "Bias": bias}, {"InputTensor": x}, {"OutputTensor": exact})


@of("FILL_VALUE_SEQUENCE")
def _fill(draw: Draw, kind: str) -> Iterator[Sample]:
    start, delta = 0.1, 1 / 3
    members = {
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1000]},
        "ValueDataType": "FLOAT32",
        "ValueStart": start,
        "ValueDelta": delta,
    }
    values = (single(start) + np.arange(1000) * single(delta)).reshape(1, 1, 1, -1)
    yield Sample(members, {}, {"OutputTensor": Exact(values, values)})


@of("CAST")
def _cast(draw: Draw, kind: str) -> Iterator[Sample]:
    (to,) = {"float32", "float16"} - {draw.dtype}
    x = draw(1, 1, 20, 30)
    if draw.dtype == "float16":
        x, to = draw.rng.integers(-(2**62), 2**62, (1, 1, 20, 30)), "float32"
    stated = {"OutputTensor": {"DataType": to.upper(), "Sizes": [1, 1, 20, 30]}}
    (w,) = wide(x)
    yield Sample(stated, {"InputTensor": x}, {"OutputTensor": Exact(w, w)})


@of("UPSAMPLE_2D", "RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3", "RESAMPLE_GRAD", "RESAMPLE_GRAD1")
def _resampling(draw: Draw, kind: str) -> Iterator[Sample]:
    sizes, scales = [1, 2, 7, 9], [1.0, 1.0, 2.0, 3.0]
    if kind != "UPSAMPLE_2D":
        scales = [1.0, 1.0, 1.5, 0.3]
    counts = [int(size * scale) for size, scale in zip(sizes, scales, strict=True)]
    how = "ANTIALIASED" if kind == "RESAMPLE3" else "LINEAR"
    each = zip(sizes, counts, scales, strict=True)
    matrices = [weights(*given, (0.5, -0.5), how) for given in each]
    members: dict[str, Any] = {"InterpolationMode": "LINEAR", "Scales": scales}
    if kind == "UPSAMPLE_2D":
        members = {"ScaleSize": {"Width": 3, "Height": 2}, "InterpolationMode": "LINEAR"}
    elif kind != "RESAMPLE":
        members |= {"InputPixelOffsets": [0.5] * 4, "OutputPixelOffsets": [-0.5] * 4, "DimensionCount": 4}
    if kind in ("RESAMPLE2", "RESAMPLE3", "RESAMPLE_GRAD1"):
        members["RoundingDirection"] = "INCREASING"
    if kind == "RESAMPLE3":
        members["Antialiased"] = True
    name = "OutputTensor"
    if "GRAD" in kind:
        sizes, counts, matrices, name = counts, sizes, [each.T for each in matrices], "OutputGradientTensor"
    x = draw(*sizes)
    exact = Exact(applied(x.astype(float), matrices), applied(abs(x.astype(float)), matrices), 4 * 49)
    members[name] = {"DataType": draw.dtype.upper(), "Sizes": counts}
    yield Sample(members, {name.replace("Output", "Input"): x}, {name: exact})


@of("CUMULATIVE_SUMMATION", "CUMULATIVE_PRODUCT")
def _scans(draw: Draw, kind: str) -> Iterator[Sample]:
    members = {"Axis": 3, "AxisDirection": "INCREASING", "HasExclusiveSum": False}
    x = draw(1, 2, 3, draw.size)
    if kind == "CUMULATIVE_PRODUCT":
        x = (1 + x / 64).astype(draw.dtype)
        members["HasExclusiveProduct"] = members.pop("HasExclusiveSum")
        made = x.astype(np.longdouble).cumprod(-1)
        exact = Exact(made, made, draw.size)
    else:
        (w,) = wide(x)
        exact = Exact(w.cumsum(-1), abs(w).cumsum(-1), draw.size)
    yield Sample(members, {"InputTensor": x}, {"OutputTensor": exact})
