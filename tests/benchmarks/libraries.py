"""Operators that are not element-wise on the CPU, beside NumPy's expression and onnxruntime with as many threads:
`python tests/benchmarks/libraries.py`.

Each is a model of one node, of which the importer makes DirectML's operator. All three run in this process, by turns,
in batches of runs; of each the best time counts, since what else the machine does only adds to it. Before each batch
there is a pause, in which threads go to sleep: onnxruntime's and a BLAS's look for work for a while, and would have a
processor that the next one's then want. A row tells milliseconds, and the others' times over ours: above 1 ours
is quicker. All read the same memory, of which the cache has as much for each; ours writes to memory that it is given,
as a request's dispatch does, and the others' results are new arrays, of memory that they used the time before. NumPy's
BLAS has as many threads as ours.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[2]))

import described as described_rows
from described import Described
from graphs import PAUSE_S
from models import Array

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.engine.graphs import GraphRequest
from app.engine.service import Service
from app.graphs.descriptor import GraphDesc
from app.memory.arrays import numpy_type
from app.memory.buffers import ALIGNMENT
from app.models.onnx.importer import Imported, import_model
from app.models.onnx.reading import read_model
from app.operators.catalog import find_operator
from app.operators.compiled import compile_operator
from app.settings import Settings

RNG = np.random.default_rng(0)

OPSET = 21
"""The first whose quantization has blocks."""


def floats(*sizes: int) -> Array:
    return RNG.standard_normal(sizes, np.float32)


def below(most: int, *sizes: int) -> Array:
    return RNG.integers(0, most, sizes)


def small(dtype: type, *sizes: int) -> Array:
    return RNG.integers(0, 100, sizes).astype(dtype)


class Row(NamedTuple):
    """A node over `inputs`, of which those named in `kept` are the model's own, and what one writes with NumPy."""

    name: str
    node: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Array]
    expression: Callable[..., Any]
    kept: tuple[str, ...] = ()
    outputs: int = 1
    domain: str = ""


def pooled(x: Array, function: Callable[..., Array], size: int, stride: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]
    return function(windows, (-2, -1))


def normalized(x: Array, scale: Array, bias: Array, axes: tuple[int, ...]) -> Array:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    made: Array = (x - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + bias
    return made


def one_hot(indices: Array) -> Array:
    made = np.zeros((*indices.shape, 256), np.float32)
    np.put_along_axis(made, indices[..., None], 1, -1)
    return made


def scattered(x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    np.put_along_axis(made, indices, updates, 1)
    return made


def top(x: Array) -> tuple[Array, Array]:
    order = np.argsort(-x, 1, kind="stable")[:, :16]
    return np.take_along_axis(x, order, 1), order


def padded(x: Array, mode: Any = "constant") -> Array:
    made: Array = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], mode)
    return made


def spaced(x: Array) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


def doubled(x: Array) -> Array:
    for axis in (2, 3):
        at = np.clip((np.arange(2 * x.shape[axis]) + 0.5) / 2 - 0.5, 0, x.shape[axis] - 1)
        low = at.astype(int)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        share = (at - low).astype(np.float32).reshape([-1 if place == axis else 1 for place in range(4)])
        x = x.take(low, axis) * (1 - share) + x.take(high, axis) * share
    return x


def quantized(x: Array) -> tuple[Array, Any, Any]:
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255
    zero = np.uint8(np.clip(np.round(-low / scale), 0, 255))
    return np.clip(np.round(x / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def requantized(sums: Array, scale: Any, zero: Any) -> Array:
    made: Array = np.clip(np.round(sums * scale) + zero, 0, 255).astype(np.uint8)
    return made


def convolved(x: Array, filters: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3))
    columns = windows.transpose(0, 1, 4, 5, 2, 3).reshape(filters[0].size, -1).astype(np.float32)
    sums: Array = filters.reshape(len(filters), -1).astype(np.float32) @ columns
    return sums.reshape(1, -1, *x.shape[2:])


def attended(query: Array, key: Array, value: Array) -> Array:
    """By 12 heads."""
    q, k, v = (x.reshape(1, -1, 12, 64).transpose(0, 2, 1, 3) for x in (query, key, value))
    scores = np.exp((s := q @ k.transpose(0, 1, 3, 2) / np.float32(8)) - s.max(-1, keepdims=True))
    made: Array = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(query.shape)
    return made


def sigmoid(x: Array) -> Array:
    made: Array = 1 / (1 + np.exp(-x))
    return made


def lstm(x: Array, w: Array, r: Array) -> tuple[Array, Array, Array]:
    made, h, c = [], np.zeros((x.shape[1], r.shape[2]), np.float32), np.zeros((x.shape[1], r.shape[2]), np.float32)
    for each in x @ w[0].T:
        i, o, f, g = np.split(each + h @ r[0].T, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        made.append(h)
    return np.stack(made)[:, None], h[None], c[None]


def gru(x: Array, w: Array, r: Array) -> tuple[Array, Array]:
    made, h = [], np.zeros((x.shape[1], r.shape[2]), np.float32)
    size = h.shape[1]
    for each in x @ w[0].T:
        z, again = (sigmoid(part) for part in np.split(each[:, : 2 * size] + h @ r[0, : 2 * size].T, 2, 1))
        new = np.tanh(each[:, 2 * size :] + (again * h) @ r[0, 2 * size :].T)
        h = (1 - z) * new + z * h
        made.append(h)
    return np.stack(made)[:, None], h[None]


def responses(x: Array) -> Array:
    squares = np.pad(x * x, [(0, 0), (2, 2), (0, 0), (0, 0)])
    sums = np.lib.stride_tricks.sliding_window_view(squares, 5, 1).sum(-1)
    made: Array = x / (1 + np.float32(1e-4 / 5) * sums) ** np.float32(0.75)
    return made


def aligned_regions(x: Array, regions: Array, batches: Array) -> Array:
    """Of 7 x 7, of 2 x 2 samples each."""
    made = np.empty((len(regions), x.shape[1], 7, 7), np.float32)
    for number, (left, top, right, bottom) in enumerate(regions - np.float32(0.5)):
        ys, xs = (a + (np.arange(14) + 0.5) * (b - a) / 14 for a, b in ((top, bottom), (left, right)))
        places = []
        for along, size in ((ys, x.shape[2]), (xs, x.shape[3])):
            at = np.clip(along, 0, size - 1).astype(np.float32)
            low = at.astype(int)
            places.append((low, np.minimum(low + 1, size - 1), at - low))
        (y0, y1, fy), (x0, x1, fx) = places
        image = x[batches[number]]
        rows = image[:, y0] * (1 - fy)[:, None] + image[:, y1] * fy[:, None]
        samples = rows[:, :, x0] * (1 - fx) + rows[:, :, x1] * fx
        made[number] = samples.reshape(-1, 7, 2, 7, 2).mean((2, 4))
    return made


def unpooled(x: Array, places: Array) -> Array:
    made = np.zeros((1, 64, 112, 112), np.float32)
    made.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    return made


def folded(x: Array) -> Array:
    made, columns = np.zeros((1, 16, 66, 66), np.float32), x.reshape(1, 16, 3, 3, 64, 64)
    for row in range(3):
        for column in range(3):
            made[:, :, row : row + 64, column : column + 64] += columns[:, :, row, column]
    return made[:, :, 1:-1, 1:-1]


def scattered_rows(x: Array, places: Array, updates: Array) -> Array:
    made = x.copy()
    made[places[:, 0]] = updates
    return made


def numbers(*values: int) -> Array:
    return np.array(values, np.int64)


MATRIX, IMAGE, PICTURE = floats(1024, 1024), floats(1, 64, 112, 112), floats(1, 16, 256, 256)
WIDE = {"x": MATRIX}
AXIS = {"axes": numbers(1)}
CHANNELS = {name: floats(64) for name in ("scale", "bias", "mean")} | {"variance": np.abs(floats(64)) + 1}


SCALES: dict[str, dict[str, Any]] = {
    name: {f"{name}_scale": np.array(scale, np.float32), f"{name}_zero": np.array(zero)}
    for name, scale, zero in (("a", 0.02, np.uint8(100)), ("b", 0.01, np.int8(0)), ("y", 0.3, np.uint8(128)))
}
SCALED = tuple(name for each in SCALES.values() for name in each)


def each_channel(array: Array) -> Array:
    return array.reshape(1, -1, 1, 1)


def reduction(node: str, function: Callable[..., Any], *, is_last: bool = True, **more: Any) -> Row:
    axis = 1 if is_last else 0
    where = {"axes": numbers(axis)}
    name = f"{node}, axis {axis}"
    return Row(name, node, more, WIDE | where, lambda x, axes: function(x, axis=axis), ("axes",))


def gemm(rows: int, depth: int, columns: int) -> Row:
    given = {"a": floats(rows, depth), "b": floats(depth, columns)}
    return Row(f"MatMul {rows} x {depth} x {columns}", "MatMul", {}, given, lambda a, b: a @ b)


def by_blocks(x: Array, scale: Array, zero: Array) -> Array:
    whole = np.round(x / scale.repeat(32, 1)) + zero.repeat(32, 1)
    return np.clip(whole, 0, 255).astype(np.uint8)


def corners() -> Array:
    """One place in each block of 2 x 2."""
    row, column = 2 * np.arange(56)[:, None] + RNG.integers(0, 2, (1, 64, 56, 56)), 2 * np.arange(56)
    made: Array = np.arange(64)[:, None, None] * 112 * 112 + row * 112 + column
    return made


BLOCKS, HALF = {"axis": 1, "block_size": 32}, {"kernel_shape": [2, 2], "strides": [2, 2]}
SCALES_OF_BLOCKS = {"scale": np.abs(floats(1024, 32)) + 0.1, "zero": small(np.uint8, 1024, 32)}
REGIONS = np.concatenate([RNG.uniform(0, 20, (64, 2)), RNG.uniform(30, 55, (64, 2))], 1).astype(np.float32)
HALVES = floats(1024, 512).astype(np.float16)

ROWS = [
    *(gemm(512, 512, 512), gemm(1024, 1024, 1024), gemm(128, 768, 3072), gemm(128, 3072, 768), gemm(1, 1024, 4096)),
    reduction("ReduceSum", np.sum),
    reduction("ReduceSum", np.sum, is_last=False),
    reduction("ReduceMean", np.mean),
    reduction("ReduceMax", np.max),
    reduction("ReduceMax", np.max, is_last=False),
    reduction("ReduceProd", np.prod),
    reduction("ReduceL2", lambda x, axis: np.sqrt((x * x).sum(axis))),
    reduction("ReduceLogSumExp", lambda x, axis: np.log(np.exp(x).sum(axis))),
    Row("ArgMax, axis 1", "ArgMax", {"axis": 1}, WIDE, lambda x: x.argmax(1)),
    Row("ArgMin, axis 0", "ArgMin", {"axis": 0}, WIDE, lambda x: x.argmin(0)),
    Row("Softmax", "Softmax", {}, WIDE, lambda x: (e := np.exp(x - x.max(1, keepdims=True))) / e.sum(1, keepdims=True)),
    Row("CumSum", "CumSum", {}, WIDE | {"axis": numbers(1)[0]}, lambda x, axis: np.cumsum(x, 1), ("axis",)),
    Row("TopK 16", "TopK", {}, WIDE | {"k": numbers(16)}, lambda x, k: top(x), ("k",), 2),
    Row(
        *("AveragePool 3x3 / 2", "AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2]}),
        *({"x": IMAGE}, lambda x: pooled(x, np.mean, 3, 2)),
    ),
    Row(
        *("MaxPool 3x3 / 2", "MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2]}),
        *({"x": IMAGE}, lambda x: pooled(x, np.max, 3, 2)),
    ),
    Row("GlobalAveragePool", "GlobalAveragePool", {}, {"x": IMAGE}, lambda x: x.mean((2, 3), keepdims=True)),
    Row(
        *("BatchNormalization", "BatchNormalization", {}, {"x": IMAGE} | CHANNELS),
        lambda x, scale, bias, mean, variance: (
            (x - each_channel(mean)) / np.sqrt(each_channel(variance) + np.float32(1e-5)) * each_channel(scale)
            + each_channel(bias)
        ),
    ),
    Row(
        *("InstanceNormalization", "InstanceNormalization", {}),
        {"x": IMAGE, "scale": CHANNELS["scale"], "bias": CHANNELS["bias"]},
        lambda x, scale, bias: normalized(x, each_channel(scale), each_channel(bias), (2, 3)),
    ),
    Row(
        *("LayerNormalization", "LayerNormalization", {}),
        {"x": MATRIX, "scale": floats(1024), "bias": floats(1024)},
        lambda x, scale, bias: normalized(x, scale, bias, (1,)),
    ),
    Row("Transpose", "Transpose", {"perm": [1, 0]}, WIDE, lambda x: np.ascontiguousarray(x.T)),
    Row(
        *("Transpose 0 2 3 1", "Transpose", {"perm": [0, 2, 3, 1]}, {"x": IMAGE}),
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
    ),
    Row(
        *("Concat, axis 1", "Concat", {"axis": 1}, {"x": MATRIX, "y": floats(1024, 512)}),
        lambda x, y: np.concatenate([x, y], 1),
    ),
    Row(
        *("Concat, axis 0", "Concat", {"axis": 0}, {"x": MATRIX, "y": floats(512, 1024)}),
        lambda x, y: np.concatenate([x, y]),
    ),
    Row(
        *("Slice", "Slice", {}),
        WIDE | {"starts": numbers(8, 8), "ends": numbers(1000, 1000), "axes": numbers(0, 1), "steps": numbers(1, 2)},
        lambda x, *_: x[8:1000, 8:1000:2].copy(),
        ("starts", "ends", "axes", "steps"),
    ),
    Row("Pad", "Pad", {}, {"x": IMAGE, "pads": numbers(0, 0, 1, 1, 0, 0, 1, 1)}, lambda x, pads: padded(x), ("pads",)),
    Row(
        *("Pad, reflect", "Pad", {"mode": "reflect"}, {"x": IMAGE, "pads": numbers(0, 0, 1, 1, 0, 0, 1, 1)}),
        *(lambda x, pads: padded(x, "reflect"), ("pads",)),
    ),
    Row("Tile", "Tile", {}, {"x": floats(256, 256), "n": numbers(4, 4)}, lambda x, n: np.tile(x, (4, 4)), ("n",)),
    Row("Split", "Split", {"axis": 1, "num_outputs": 4}, WIDE, lambda x: [e.copy() for e in np.split(x, 4, 1)], (), 4),
    Row("Cast to float16", "Cast", {"to": 10}, WIDE, lambda x: x.astype(np.float16)),
    Row("Gather, axis 0", "Gather", {"axis": 0}, WIDE | {"i": below(1024, 1024)}, lambda x, i: x[i]),
    Row("Gather, axis 1", "Gather", {"axis": 1}, WIDE | {"i": below(1024, 1024)}, lambda x, i: x[:, i]),
    Row(
        *("GatherElements", "GatherElements", {"axis": 1}, WIDE | {"i": below(1024, 1024, 1024)}),
        lambda x, i: np.take_along_axis(x, i, 1),
    ),
    Row("GatherND", "GatherND", {}, WIDE | {"i": below(1024, 65536, 2)}, lambda x, i: x[i[:, 0], i[:, 1]]),
    Row(
        *("ScatterElements", "ScatterElements", {"axis": 1}),
        WIDE | {"i": np.argsort(floats(1024, 1024), 1)[:, :256], "u": floats(1024, 256)},
        scattered,
    ),
    Row(
        "OneHot",
        "OneHot",
        {},
        {"i": below(256, 4096), "d": numbers(256), "v": np.array([0, 1], np.float32)},
        lambda i, d, v: one_hot(i),
        ("d", "v"),
    ),
    Row("DepthToSpace", "DepthToSpace", {"blocksize": 2}, {"x": IMAGE}, spaced),
    Row(
        *("Resize, linear, 2x", "Resize", {"mode": "linear"}),
        {"x": PICTURE, "": np.empty(0), "scales": np.array([1, 1, 2, 2], np.float32)},
        *(lambda x, *_: doubled(x), ("scales",)),
    ),
    Row(
        *("Resize, nearest, 2x", "Resize", {"mode": "nearest"}),
        {"x": PICTURE, "": np.empty(0), "scales": np.array([1, 1, 2, 2], np.float32)},
        *(lambda x, *_: x.repeat(2, 2).repeat(2, 3), ("scales",)),
    ),
    Row(
        *("MatMulInteger", "MatMulInteger", {}, {"a": small(np.uint8, 256, 512), "b": small(np.int8, 512, 512)}),
        lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
    ),
    Row(
        *("QLinearMatMul", "QLinearMatMul", {}),
        {"a": small(np.uint8, 256, 512), **SCALES["a"], "b": small(np.int8, 512, 512), **SCALES["b"], **SCALES["y"]},
        lambda a, s, z, b, t, w, u, o: requantized((a.astype(np.int32) - z) @ (b.astype(np.int32) - w), s * t / u, o),
        SCALED,
    ),
    Row(
        *("ConvInteger 3x3", "ConvInteger", {"pads": [1, 1, 1, 1]}),
        {"x": small(np.uint8, 1, 64, 56, 56), "w": small(np.int8, 64, 64, 3, 3)},
        *(convolved, ("w",)),
    ),
    Row(
        *("QLinearConv 3x3", "QLinearConv", {"pads": [1, 1, 1, 1]}),
        {
            "x": small(np.uint8, 1, 64, 56, 56),
            **SCALES["a"],
            "w": small(np.int8, 64, 64, 3, 3),
            **SCALES["b"],
            **SCALES["y"],
        },
        lambda x, s, z, w, t, v, u, o: requantized(convolved(x.astype(np.int16) - z, w), s * t / u, o),
        ("w", *SCALED),
    ),
    Row(
        *("DynamicQuantizeLinear", "DynamicQuantizeLinear", {}, WIDE, quantized, (), 3),
    ),
    Row("QuantizeLinear, blocks of 32", "QuantizeLinear", BLOCKS, {"x": MATRIX, **SCALES_OF_BLOCKS}, by_blocks),
    Row(
        *("DequantizeLinear, blocks of 32", "DequantizeLinear", BLOCKS),
        {"x": small(np.uint8, 1024, 1024), **SCALES_OF_BLOCKS},
        lambda x, scale, zero: (x.astype(np.float32) - zero.repeat(32, 1)) * scale.repeat(32, 1),
    ),
    Row(
        *("Gemm, transposed, with bias", "Gemm", {"transB": 1}),
        {"a": floats(128, 768), "b": floats(768, 768), "c": floats(768)},
        lambda a, b, c: a @ b.T + c,
    ),
    Row(
        "MultiHeadAttention",
        "MultiHeadAttention",
        {"num_heads": 12},
        {name: floats(1, 128, 768) for name in ("q", "k", "v")},
        attended,
        domain="com.microsoft",
    ),
    Row(
        *("LSTM", "LSTM", {"hidden_size": 128}),
        {"x": floats(32, 8, 128), "w": floats(1, 512, 128) / 16, "r": floats(1, 512, 128) / 16},
        *(lstm, ("w", "r"), 3),
    ),
    Row(
        *("GRU", "GRU", {"hidden_size": 128}),
        {"x": floats(32, 8, 128), "w": floats(1, 384, 128) / 16, "r": floats(1, 384, 128) / 16},
        *(gru, ("w", "r"), 2),
    ),
    Row("LRN", "LRN", {"size": 5}, {"x": IMAGE}, responses),
    Row(
        *("LpNormalization", "LpNormalization", {"axis": 1, "p": 2}, WIDE),
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
    ),
    Row(
        *("LpPool 3x3 / 2", "LpPool", {"kernel_shape": [3, 3], "strides": [2, 2], "p": 2}, {"x": IMAGE}),
        lambda x: pooled(x, lambda windows, axes: np.sqrt((windows * windows).sum(axes)), 3, 2),
    ),
    Row("MaxUnpool 2x2 / 2", "MaxUnpool", HALF, {"x": floats(1, 64, 56, 56), "i": corners()}, unpooled),
    Row(
        *("RoiAlign", "RoiAlign", {"output_height": 7, "output_width": 7, "sampling_ratio": 2}),
        {"x": floats(1, 64, 56, 56), "r": REGIONS, "b": np.zeros(64, np.int64)},
        aligned_regions,
    ),
    Row(
        *("ScatterND", "ScatterND", {}),
        WIDE | {"i": RNG.permutation(1024)[:256, None], "u": floats(256, 1024)},
        scattered_rows,
    ),
    Row(
        *("Col2Im 3x3", "Col2Im", {"pads": [1, 1, 1, 1]}),
        {"x": floats(1, 144, 4096), "size": numbers(64, 64), "block": numbers(3, 3)},
        *(lambda x, size, block: folded(x), ("size", "block")),
    ),
    Row(
        *("SpaceToDepth", "SpaceToDepth", {"blocksize": 2}, {"x": IMAGE}),
        lambda x: x.reshape(1, 64, 56, 2, 56, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 256, 56, 56),
    ),
    *(
        Row(name, node, attributes, {"x": MATRIX.astype(np.float16), **more}, expression, *kept)
        for name, node, attributes, more, expression, *kept in (
            ("Concat, float16", "Concat", {"axis": 1}, {"y": HALVES}, lambda x, y: np.concatenate([x, y], 1)),
            ("Gather, float16", "Gather", {}, {"i": below(1024, 1024)}, lambda x, i: x[i]),
            ("Transpose, float16", "Transpose", {"perm": [1, 0]}, {}, lambda x: np.ascontiguousarray(x.T)),
            ("Cast to float32", "Cast", {"to": 1}, {}, lambda x: x.astype(np.float32)),
        )
    ),
]
"""Of 1 Mi elements, about."""


def model_of(row: Row) -> Any:
    import onnx

    helper = onnx.helper
    outputs = [f"y{number}" for number in range(row.outputs)]
    node = helper.make_node(row.node, list(row.inputs), outputs, domain=row.domain, **row.attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for name, each in row.inputs.items()
            if name and name not in row.kept
        ],
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)  # what onnx cannot tell
            if row.domain
            else helper.make_empty_tensor_value_info(name)
            for name in outputs
        ],
        [onnx.numpy_helper.from_array(row.inputs[name], name) for name in row.kept],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=10))


def aligned(size: int) -> Array:
    """Bytes that begin where a request's do."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def as_requested(array: Array) -> Array:
    """The same array where a request's data would be."""
    made = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def prepared(
    service: Service, imported: Imported, feeds: Mapping[str, Array]
) -> tuple[Callable[[], object], Mapping[str, Array]]:
    """What runs the operator by itself, as a dispatch of its own does, or else the graph that the node is; and the
    outputs, which are made where they are, as a request has memory for them before."""
    desc = GraphDesc.model_validate(imported.graph.document)
    request = GraphRequest(desc, NEWEST, imported.graph.constants, {})
    graph = service.compiler.compile(request, lambda size: memoryview(bytearray(size)), lambda: False).runnable
    kernel = service.devices["numpy"].prepare(graph.only or graph)
    given = [feeds[name].reshape(-1).view(np.uint8).data for name in graph.schedule.inputs]
    made = {name: aligned(each.total_bytes) for name, each in graph.schedule.outputs.items()}
    outputs = [each.data for each in made.values()]
    if not graph.only and graph.schedule.scratch_bytes:
        outputs.append(np.empty(graph.schedule.scratch_bytes, np.uint8).data)
    arrays = {
        name: made[name].view(numpy_type(each.data_type))[: int(np.prod(each.sizes))].reshape(each.sizes)
        for name, each in imported.outputs.items()
    }
    return lambda: kernel.dispatch(given, outputs, lambda: False), arrays


def described(service: Service, row: Described, given: Mapping[str, Array]) -> tuple[Callable[[], object], list[Array]]:
    """The same of an operator by its descriptor."""
    document = dict(row.document)
    for name, each in given.items():
        found = {"DataType": each.dtype.name.upper(), "Sizes": list(each.shape)}
        if name.endswith("]"):
            document.setdefault(name.partition("[")[0], []).append(found)
        else:
            document.setdefault(name, found)
    kind = find_operator(str(document["Type"]))
    assert kind, row.name
    operator = compile_operator(validate(kind, document), NEWEST)
    kernel = service.devices["numpy"].prepare(operator)
    buffers = [given[name].reshape(-1).view(np.uint8).data for name in operator.inputs]
    made = [aligned(each.total_bytes) for each in operator.outputs.values()]
    outputs = [each.data for each in made]
    arrays = [
        array.view(numpy_type(each.DataType)).reshape(each.Sizes)
        for array, each in zip(made, operator.outputs.values(), strict=True)
    ]
    return lambda: kernel.dispatch(buffers, outputs, lambda: False), arrays


RUNS = 6
"""Of a batch."""


def best(runs: list[Callable[[], Any]], rounds: int, threads: int) -> list[float]:
    """Milliseconds of each, by turns: ours, NumPy's, whose BLAS has so many threads of its own meanwhile, and
    onnxruntime's. These threads look for work for a while, so there is a pause before each."""
    times = [float("inf")] * len(runs)
    for _ in range(rounds):
        for place, run in enumerate(runs):
            sleep(PAUSE_S)
            with threadpool_limits(threads if place == 1 else 1, "blas"):
                for _ in range(RUNS):
                    start = perf_counter()
                    run()
                    times[place] = min(times[place], (perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help=f"of {RUNS} runs each")
    parser.add_argument("--only", default="", help="those whose name contains it")
    options = parser.parse_args()
    import onnxruntime

    service = Service(Settings(threads=options.threads, gpus="none", max_tensor_bytes=1 << 30))
    service.open()
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = options.threads
    chosen.log_severity_level = 4
    print(f"onnxruntime {onnxruntime.__version__}, NumPy {np.__version__}, {options.threads} threads\n")
    print("| node or operator | ms | NumPy's | onnxruntime's |\n|---|--:|--:|--:|")
    rows: list[Row | Described] = [*ROWS, *described_rows.ROWS]
    for row in rows:
        if options.only not in row.name:
            continue
        given = {name: as_requested(each) for name, each in row.inputs.items()}
        theirs = None
        if isinstance(row, Described):
            run, arrays = described(service, row, given)
            expected: Sequence[Any] = everything(row.expression(*given.values())) if row.is_checked else ()
        else:
            data = model_of(row).SerializeToString()
            feeds = {name: each for name, each in given.items() if name and name not in row.kept}
            imported = import_model(read_model(data), {name: each.shape for name, each in feeds.items()})
            run, made = prepared(service, imported, feeds)
            session = onnxruntime.InferenceSession(data, chosen, providers=["CPUExecutionProvider"])
            theirs = partial(session.run, None, feeds)
            arrays, expected = [made[each.name] for each in session.get_outputs()], theirs()
        run()
        for ours, right in zip(arrays, expected, strict=bool(expected)):
            off = 1 if right.dtype == np.uint8 else 1e-3  # what lies between two integers goes to either
            np.testing.assert_allclose(ours.astype(float), right.astype(float), 1e-3, off, err_msg=row.name)
        naive = partial(row.expression, *given.values())
        least, *others = best([run, naive, *([theirs] if theirs else [])], options.rounds, options.threads)
        ratios = [f"{other / least:.2f}" for other in others]
        print(f"| {row.name} | {least:.3f} | {' | '.join([*ratios, '-'][:2])} |", flush=True)


def everything(made: Any) -> list[Array]:
    return list(made) if isinstance(made, tuple) else [made]


if __name__ == "__main__":
    main()
