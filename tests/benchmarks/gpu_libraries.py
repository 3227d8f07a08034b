"""Operators that are more than element by element, on tensors on a GPU, beside PyTorch's functions for them.

    python tests/benchmarks/gpu_libraries.py [--only PART]

Both by CUDA's events, the best of five times; ours as the CUDA graph that a kept graph of operators would be. PyTorch
computes float32 without TF32, and float16 without reductions in float16; its convolutions are those that it finds
fastest. Shapes are of ResNet-50, BERT-base and a GPT block, and 64 Mi elements in rows of 1024.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import torch
from torch.nn import functional

from app.contract.constants import NEWEST
from app.devices.cuda.arenas import UNRECORDED
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.placement import find_gpus
from app.graphs.schedule import alone
from app.memory.arrays import numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from app.operators.operator import PREFIX
from app.settings import Settings

TYPES = {"FLOAT32": torch.float32, "FLOAT16": torch.float16}
ROWS, ROW = 1 << 16, 1 << 10
VOCABULARY = 50257
GEMMS = (
    *((128, 768, 768, True, 1), (128, 768, 3072, True, 1), (128, 3072, 768, True, 1), (512, 1024, 4096, False, 1)),
    *((2048, 2048, 2048, False, 1), (4096, 4096, 4096, False, 1), (1, 768, 50257, False, 1), (128, 64, 128, True, 96)),
    *((512, 768, 2304, True, 1), (512, 768, 3072, True, 1), (512, 3072, 768, True, 1), (512, 512, 64, False, 12)),
)
"""Rows, terms, columns, whether the second matrix is transposed, and how many products."""

CONVOLUTIONS = (
    *((1, 3, 224, 64, 7, 2, 3, 1), (1, 64, 56, 64, 3, 1, 1, 1), (8, 64, 56, 64, 3, 1, 1, 1)),
    *((8, 64, 56, 256, 1, 1, 0, 1), (8, 256, 56, 64, 1, 1, 0, 1), (8, 256, 56, 512, 1, 2, 0, 1)),
    *((8, 128, 56, 128, 3, 2, 1, 1), (8, 128, 28, 128, 3, 1, 1, 1), (8, 512, 28, 128, 1, 1, 0, 1)),
    *((8, 512, 28, 256, 1, 1, 0, 1), (8, 256, 14, 256, 3, 1, 1, 1), (8, 256, 14, 1024, 1, 1, 0, 1)),
    *((8, 1024, 14, 256, 1, 1, 0, 1), (8, 512, 14, 512, 3, 2, 1, 1), (8, 512, 7, 512, 3, 1, 1, 1)),
    *((8, 512, 7, 2048, 1, 1, 0, 1), (8, 2048, 7, 512, 1, 1, 0, 1), (8, 96, 56, 96, 3, 1, 1, 96)),
)
"""Images, channels, their height and width, filters, extent, stride, padding, groups."""


@dataclass(frozen=True)
class Case:
    """An operator on a descriptor, and what PyTorch does for it."""

    name: str
    operator: str
    document: dict[str, Any]
    torch: Callable[[], object]


def desc(data_type: str, *sizes: int, strides: tuple[int, ...] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"DataType": data_type, "Sizes": list(sizes)}
    return made | ({"Strides": list(strides)} if strides else {})


def cases(data_type: str) -> Iterator[Case]:
    def random(*sizes: int) -> Any:
        return torch.rand(*sizes, device="cuda", dtype=TYPES[data_type])

    for m, k, n, transposed, batch in GEMMS:
        second = (n, k) if transposed else (k, n)
        a, b = random(batch, m, k), random(batch, *second)
        document = {
            "ATensor": desc(data_type, 1, batch, m, k),
            "BTensor": desc(data_type, 1, batch, *second),
            "TransA": "NONE",
            "TransB": "TRANSPOSE" if transposed else "NONE",
            "Alpha": 1.0,
            "Beta": 0.0,
        }
        name = f"{batch} x {m} x {k} x {n}{' transposed' if transposed else ''}"
        b = b.mT if transposed else b
        yield Case(name, "GEMM", document, partial(torch.matmul, a, b))
        if batch == 1 and m > 1:
            row = random(n)
            document = document | {"CTensor": desc(data_type, 1, 1, m, n, strides=(0, 0, 0, 1)), "Beta": 1.0}
            document = document | {"FusedActivation": {"Type": "ACTIVATION_GELU"}}
            yield Case(f"{name}, with a row and GELU", "GEMM", document, partial(_with_gelu, row, a[0], b[0]))
    for images, channels, side, filters, extent, stride, padding, groups in CONVOLUTIONS:
        x, w = random(images, channels, side, side), random(filters, channels // groups, extent, extent)
        document = {
            "InputTensor": desc(data_type, *x.shape),
            "FilterTensor": desc(data_type, *w.shape),
            "Mode": "CROSS_CORRELATION",
            "Direction": "FORWARD",
            "Strides": [stride] * 2,
            "Dilations": [1, 1],
            "StartPadding": [padding] * 2,
            "EndPadding": [padding] * 2,
            "OutputPadding": [0, 0],
            "GroupCount": groups,
        }
        more = {"stride": stride, "padding": padding, "groups": groups}
        name = f"{images} x {channels} x {side} x {side}, {filters} of {extent} x {extent} by {stride}, {groups} groups"
        yield Case(name, "CONVOLUTION", document, partial(functional.conv2d, x, w, **more))
        bias = random(filters)
        document = document | {"BiasTensor": desc(data_type, 1, filters, 1, 1)}
        yield Case(f"{name}, with a bias", "CONVOLUTION", document, partial(functional.conv2d, x, w, bias, **more))
        document = document | {"FusedActivation": {"Type": "ACTIVATION_RELU"}}
        yield Case(f"{name}, with a bias and RELU", "CONVOLUTION", document, partial(_with_relu, x, w, bias, **more))
    x = random(ROWS, ROW)
    whole = desc(data_type, 1, 1, ROWS, ROW)
    reductions = {"SUM": torch.sum, "MAX": torch.amax, "ARGMAX": torch.argmax}
    for function, theirs in reductions.items():
        for axis in (1, 0):
            document = {"Function": function, "InputTensor": whole, "Axes": [2 + axis]}
            yield Case(f"{function} over axis {axis}", "REDUCE", document, partial(theirs, x, axis))
    image = x.view(64, 32, 32, 1024)
    several = desc(data_type, *image.shape)
    document = {"Function": "SUM", "InputTensor": several, "Axes": [0, 1, 2]}
    yield Case("SUM over all but the last of 1024", "REDUCE", document, lambda: image.sum((0, 1, 2)))
    document = {"Function": "SUM", "InputTensor": several, "Axes": [1, 2]}
    yield Case("SUM over axes 1 and 2 of 64 x 32 x 32 x 1024", "REDUCE", document, lambda: image.sum((1, 2)))
    document = {"Function": "SUM", "InputTensor": whole, "Axes": [2, 3]}
    yield Case("SUM over all", "REDUCE", document, x.sum)
    document = {"Function": "AVERAGE", "InputTensor": several, "Axes": [0, 2, 3]}
    yield Case("AVERAGE over all but axis 1 of 32", "REDUCE", document, lambda: image.mean((0, 2, 3)))
    for rows, row, count in ((ROWS, ROW, 8), (ROWS >> 2, ROW, 50), (1, VOCABULARY, 50), (32, VOCABULARY, 50)):
        part = x.view(-1)[: rows * row].view(rows, row)
        document = {"InputTensor": desc(data_type, 1, 1, rows, row), "Axis": 3, "K": count}
        yield Case(f"{count} of {row}, {rows} times", "TOP_K", document, partial(part.topk, count, 1))
    some = x.view(4, -1)[0].view(16, 1024, -1)
    yield Case("all of 16 Mi", "NONZERO_COORDINATES", {"InputTensor": desc(data_type, *some.shape)}, some.nonzero)
    document = {"InputTensor": whole, "Axis": 3, "AxisDirection": "INCREASING", "HasExclusiveSum": False}
    yield Case("of 1024", "CUMULATIVE_SUMMATION", document, lambda: x.cumsum(1))
    lines, many = x.view(64, 64, -1), desc(data_type, 1, 64, 64, ROWS * ROW >> 12)
    for kind, exclusive, theirs in (
        ("CUMULATIVE_SUMMATION", "HasExclusiveSum", torch.cumsum),
        ("CUMULATIVE_PRODUCT", "HasExclusiveProduct", torch.cumprod),
    ):
        document = {"InputTensor": many, "Axis": 2, "AxisDirection": "INCREASING", exclusive: False}
        yield Case("axis 1 of 64 x 64 x 16384", kind, document, partial(theirs, lines, 1))
    indices = torch.argsort(random(64, 64, 1 << 11), 1)
    updates = random(*indices.shape)
    document = {"InputTensor": desc(data_type, 1, 64, 64, 1 << 11), "UpdatesTensor": desc(data_type, 1, *updates.shape)}
    document |= {"IndicesTensor": desc("UINT32", 1, *indices.shape), "Axis": 2}
    some = lines[..., : 1 << 11].contiguous()
    yield Case("8 Mi along axis 1 of 64", "SCATTER", document, partial(torch.scatter, some, 1, indices, updates))
    images = x.view(16, -1, 256, 256)
    pools = {"InputTensor": desc(data_type, *images.shape), "Strides": [2, 2], "WindowSize": [2, 2]}
    pools |= {"StartPadding": [0, 0], "EndPadding": [0, 0]}
    yield Case("2 x 2", "MAX_POOLING", pools, lambda: functional.max_pool2d(images, 2))
    document = pools | {"IncludePadding": False}
    yield Case("2 x 2", "AVERAGE_POOLING", document, lambda: functional.avg_pool2d(images, 2))
    turned = desc(data_type, 1, 1, ROW, ROWS, strides=(ROWS * ROW, ROWS * ROW, 1, ROW))
    document = {"InputTensor": turned, "OutputTensor": desc(data_type, 1, 1, ROW, ROWS)}
    yield Case("transposed", "ELEMENT_WISE_IDENTITY", document, x.t().contiguous)
    document = {"InputTensor": whole, "Offsets": [0, 0, 0, 256], "Sizes": [1, 1, ROWS, 512], "Strides": [1] * 4}
    yield Case("512 of 1024", "SLICE", document, x[:, 256:768].contiguous)
    halves = x[: ROWS // 2].clone(), x[ROWS // 2 :].clone()
    document = {"InputTensors": [desc(data_type, 1, 1, ROWS // 2, ROW)] * 2, "Axis": 2}
    yield Case("of two", "JOIN", document, lambda: torch.cat(halves))
    document = {"InputTensors": [desc(data_type, 1, 1, ROWS // 2, ROW)] * 2, "Axis": 3}
    yield Case("of two, along rows", "JOIN", document, lambda: torch.cat(halves, 1))
    around: dict[str, Any] = {"StartPadding": [0, 0, 1, 8], "EndPadding": [0, 0, 1, 8]}
    document = around | {"InputTensor": whole, "PaddingMode": "CONSTANT", "PaddingValue": 0.0}
    yield Case("8 around 1024", "PADDING", document, lambda: functional.pad(x, (8, 8, 1, 1)))
    places = torch.randint(0, ROWS, (ROWS // 2,), device="cuda")
    indices = desc("UINT32", 1, 1, 1, ROWS // 2)
    document = {"InputTensor": whole, "IndicesTensor": indices, "Axis": 2, "IndexDimensions": 1}
    yield Case("rows", "GATHER", document, lambda: x[places])
    few = images[:1, :64]
    document = {"InputTensor": desc(data_type, *few.shape), "ScaleSize": {"Width": 2, "Height": 2}}
    document |= {"InterpolationMode": "NEAREST_NEIGHBOR"}
    yield Case("by 2", "UPSAMPLE_2D", document, lambda: functional.interpolate(few, scale_factor=2, mode="nearest"))
    row = desc(data_type, 1, 1, ROWS, ROW, strides=(0, 0, 0, 1))
    scale = random(ROW)
    document = {"InputTensor": whole, "ScaleTensor": row, "BiasTensor": row, "Axes": [3], "NormalizeVariance": True}
    document |= {"Epsilon": 1e-5}
    kind = "MEAN_VARIANCE_NORMALIZATION1"
    yield Case("rows", kind, document, lambda: functional.layer_norm(x, (ROW,), scale, scale))
    trained = x.view(4, -1)[0].view(16, 64, 128, 128)
    of_channels = desc(data_type, 1, trained.shape[1], 1, 1)
    document = {"InputTensor": desc(data_type, *trained.shape), "ScaleTensor": of_channels, "BiasTensor": of_channels}
    few_scales = scale[: trained.shape[1]]
    normalized = partial(functional.batch_norm, trained, None, None, few_scales, few_scales, training=True)
    yield Case("64 channels of 16 Mi", "BATCH_NORMALIZATION_TRAINING", document | {"Epsilon": 1e-5}, normalized)
    for title, group in _GROUPS.items():
        several = x.flatten()[: math.prod(group)].view(group)
        document = {"InputTensor": desc(data_type, *group), "Axes": [1]}
        yield Case(title, "ACTIVATION_SOFTMAX1", document, partial(torch.softmax, several, 1))
        if len(group) == 2:
            document = document | {"NormalizeVariance": True, "Epsilon": 1e-5}
            yield Case(title, kind, document, partial(functional.layer_norm, several, group[-1:]))
    if data_type == "FLOAT32":
        scale_and_zero = [desc(each, 1, 1) for each in (data_type, "UINT8")]
        document = {"QuantizationType": "SCALE_ZERO_POINT", "QuantizationTensors": scale_and_zero}
        bytes_, floats = desc("UINT8", *x.shape), desc(data_type, *x.shape)
        quantize = partial(torch.quantize_per_tensor, x, 0.05, 3, torch.quint8)
        yield Case("64 Mi", "QUANTIZE", document | {"InputTensor": floats, "OutputTensor": bytes_}, quantize)
        dequantize = quantize().dequantize
        yield Case("64 Mi", "DEQUANTIZE", document | {"InputTensor": bytes_, "OutputTensor": floats}, dequantize)
    yield from layers(data_type, random)


_FEW = ((1, 16385), (1, 50257), (1, 128256), (32, 50257), (32, 1 << 18), (64, 65536))

_GROUPS = {
    **{f"rows of {size}": (ROWS * ROW // size, size) for size in (8, 32, 4096, 16384)},
    **{f"{rows} rows of {size}": (rows, size) for rows, size in _FEW},
    **{f"axis 1 of {' x '.join(map(str, sizes))}": sizes for sizes in ((16, 21, 1 << 17), (64, 64, 1 << 14))},
    "axis 1 of 16 x 1000 x 4096": (16, 1000, 4096),
}
"""Groups of softmaxes and normalizations: short, long, few, and side by side."""


def products_of_bytes() -> Iterator[Case]:
    """Beside PyTorch's of signed bytes, which have no zero points and are INT32."""
    for m, k, n in ((128, 768, 3072), (128, 3072, 768), (512, 1024, 4096), (4096, 4096, 4096)):
        a, b = (torch.randint(-128, 128, sizes, dtype=torch.int8, device="cuda") for sizes in ((m, k), (n, k)))
        document = {"ATensor": desc("INT8", 1, 1, m, k), "BTensor": desc("INT8", 1, 1, k, n)}
        document |= {f"{each}ZeroPointTensor": desc("INT8", 1, 1, 1, 1) for each in "AB"}
        theirs = partial(torch._int_mm, a, b.t())
        yield Case(f"{m} x {k} x {n}", "MATRIX_MULTIPLY_INTEGER", document, theirs)
        scales = {f"{each}ScaleTensor": desc("FLOAT32", 1, 1, 1, 1) for each in ("A", "B", "Output")}
        document = document | scales | {"OutputZeroPointTensor": desc("INT8", 1, 1, 1, 1)}
        yield Case(f"{m} x {k} x {n}", "QUANTIZED_LINEAR_MATRIX_MULTIPLY", document, theirs)


def convolutions_of_bytes() -> Iterator[Case]:
    """Beside PyTorch's of float16, since it has none of bytes."""
    for images, channels, side, filters, extent, stride, padding, groups in CONVOLUTIONS:
        x, w = (
            torch.rand(*sizes, device="cuda", dtype=torch.float16)
            for sizes in ((images, channels, side, side), (filters, channels // groups, extent, extent))
        )
        theirs = partial(functional.conv2d, x, w, stride=stride, padding=padding, groups=groups)
        document: dict[str, Any] = {"InputTensor": desc("UINT8", *x.shape), "FilterTensor": desc("INT8", *w.shape)}
        document |= {"InputZeroPointTensor": desc("UINT8", 1), "FilterZeroPointTensor": desc("INT8", 1)}
        document |= {"Strides": [stride] * 2, "Dilations": [1, 1], "GroupCount": groups}
        document |= {name: [padding] * 2 for name in ("StartPadding", "EndPadding")}
        name = f"{images} x {channels} x {side} x {side}, {filters} of {extent} x {extent} by {stride}, {groups} groups"
        yield Case(name, "CONVOLUTION_INTEGER", document, theirs)
        document = document | {f"{each}ScaleTensor": desc("FLOAT32", 1) for each in ("Input", "Filter", "Output")}
        document |= {"BiasTensor": desc("INT32", 1, filters, 1, 1), "OutputZeroPointTensor": desc("UINT8", 1)}
        yield Case(name, "QUANTIZED_LINEAR_CONVOLUTION", document, theirs)


def _with_gelu(row: Any, a: Any, b: Any) -> object:
    return functional.gelu(torch.addmm(row, a, b))


def _with_relu(x: Any, w: Any, bias: Any, **more: int) -> object:
    return functional.relu_(functional.conv2d(x, w, bias, **more))


def layers(data_type: str, random: Callable[..., Any]) -> Iterator[Case]:
    """Attention and recurrent networks."""
    for batch, heads, items, size in ((1, 12, 128, 64), (8, 12, 512, 64), (1, 16, 2048, 64)):
        q, k, v = (random(batch, items, heads * size) for _ in range(3))
        document = dict.fromkeys(_LEFT_OUT) | {
            name: desc(data_type, batch, items, heads * size) for name in ("QueryTensor", "KeyTensor", "ValueTensor")
        }
        document |= {"Scale": size**-0.5, "HeadCount": heads, "MaskType": "NONE"}
        parts = [each.view(batch, items, heads, size).transpose(1, 2) for each in (q, k, v)]
        name = f"{batch} x {heads} x {items} x {size}"
        attention = partial(functional.scaled_dot_product_attention, *parts)
        yield Case(name, "MULTIHEAD_ATTENTION", document, attention)
        if items == 512:
            full = (batch, heads, items, items)
            mask = {"MaskTensor": desc("INT32", *full, strides=(items, 0, 0, 1)), "MaskType": "BOOLEAN"}
            attention = partial(attention, attn_mask=random(batch, 1, 1, items))
            yield Case(f"{name}, a mask of keys", "MULTIHEAD_ATTENTION", document | mask, attention)
            bias = {"RelativePositionBiasTensor": desc(data_type, *full)}
            attention = partial(attention, attn_mask=random(*full))
            yield Case(f"{name}, a bias of scores", "MULTIHEAD_ATTENTION", document | bias, attention)
    for batch, heads, key_heads, queries, past in ((1, 32, 32, 1, 2047), (8, 32, 8, 1, 1023), (1, 32, 32, 512, 512)):
        yield _behind_a_past(data_type, random, (batch, heads, key_heads), (queries, past))
    for kind, gates, activations in (("LSTM", 4, ("SIGMOID", "TANH", "TANH")), ("GRU", 3, ("SIGMOID", "TANH"))):
        steps, batch, width, hidden = 64, 32, 512, 512
        document = {
            "InputTensor": desc(data_type, 1, steps, batch, width),
            "WeightTensor": desc(data_type, 1, 1, gates * hidden, width),
            "RecurrenceTensor": desc(data_type, 1, 1, gates * hidden, hidden),
            "BiasTensor": desc(data_type, 1, 1, 1, 2 * gates * hidden),
            "OutputSequenceTensor": desc(data_type, steps, 1, batch, hidden),
            "ActivationDescs": [{"Type": f"DML_OPERATOR_ACTIVATION_{each}"} for each in activations],
            "Direction": "FORWARD",
        }
        more = {"ClipThreshold": 0.0, "UseClipThreshold": False, "CoupleInputForget": False}
        document |= more if kind == "LSTM" else {"LinearBeforeReset": True}
        layer = getattr(torch.nn, kind)(width, hidden, device="cuda", dtype=TYPES[data_type]).requires_grad_(False)
        x = random(steps, batch, width)
        yield Case(f"{steps} steps of {batch} x {width}, {hidden} hidden", kind, document, partial(layer, x))


def _behind_a_past(
    data_type: str, random: Callable[..., Any], heads: tuple[int, int, int], items: tuple[int, int]
) -> Case:
    """Attention of new queries to the keys of a past and their own, as language models have it, which are kept."""
    (batch, count, key_count), (queries, past), size = heads, items, 128
    whole = (batch, key_count, past + queries, size)
    document = dict.fromkeys((*_LEFT_OUT, "PastSequenceLengthsTensor")) | {
        "QueryTensor": desc(data_type, batch, queries, count * size),
        **{f"{part}Tensor": desc(data_type, batch, queries, key_count * size) for part in ("Key", "Value")},
        **{f"Past{part}Tensor": desc(data_type, batch, key_count, past, size) for part in ("Key", "Value")},
        **{f"OutputPresent{part}Tensor": desc(data_type, *whole) for part in ("Key", "Value")},
        "Scale": size**-0.5,
        "QueryHeadCount": count,
        "KeyValueHeadCount": key_count,
        "MaskType": "NONE",
    }
    query = random(batch, count, queries, size)
    pasts, news = ([random(batch, key_count, n, size) for _ in range(2)] for n in (past, queries))

    def theirs() -> object:
        key, value = (torch.cat(both, 2) for both in zip(pasts, news, strict=True))
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    name = f"{batch} x {count} ({key_count}) x {queries} x {size} behind {past}"
    return Case(name, "MULTIHEAD_ATTENTION1", document, theirs)


_LEFT_OUT = (
    *("StackedQueryKeyTensor", "StackedKeyValueTensor", "StackedQueryKeyValueTensor", "BiasTensor", "MaskTensor"),
    *("RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor"),
    *("OutputPresentKeyTensor", "OutputPresentValueTensor"),
)


def ours(gpu: CudaDevice, case: Case) -> float:
    """Microseconds."""
    operator = OPERATORS[PREFIX + case.operator]
    compiled = compile_operator(operator.model_validate({"Type": PREFIX + case.operator} | case.document), NEWEST)
    memory = []
    for tensor in (*compiled.inputs.values(), *compiled.outputs.values()):
        array = cupy.zeros(-(-tensor.data_bytes // tensor.DataType.bytes), numpy_type(tensor.DataType))
        if tensor.DataType.value in TYPES:
            array[...] = cupy.random.rand(array.size, dtype=cupy.float32)
        elif tensor.DataType.bytes == 1:
            array[...] = cupy.random.randint(-128, 128, array.size).astype(array.dtype)
        memory.append(array)
    addresses = [each.data.ptr for each in memory]
    reads, writes = addresses[: len(compiled.inputs)], addresses[len(compiled.inputs) :]
    kernel = gpu.whole(alone(compiled))
    kernel.upload()
    recording = kernel.record(reads, writes, 0)
    with gpu.slots.take() as slot:
        for _ in range(UNRECORDED + 1):
            recording(slot)
        return timed(lambda: recording(slot), slot.stream)


def timed(work: Callable[[], object], stream: Any) -> float:
    """Microseconds, of `work` queued 10 times on `stream`."""
    times: list[float] = []
    for _ in range(6):
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record(stream)
        for _ in range(10):
            work()
        last.record(stream)
        last.synchronize()
        times.append(cupy.cuda.get_elapsed_time(first, last) * 100)
    return min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    only = parser.parse_args().only.upper()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True
    gpus, problems = find_gpus(Settings(gpus="0"), PinnedMemory(0))
    if not gpus:
        raise SystemExit("; ".join(problems))
    print("| operator | | type | us | PyTorch, us | PyTorch / ours |\n|---|---|---|--:|--:|--:|")
    for data_type in (*TYPES, "INT8"):
        for case in cases(data_type) if data_type in TYPES else (*products_of_bytes(), *convolutions_of_bytes()):
            if only in case.operator:
                mine = ours(gpus[0], case)
                theirs = timed(case.torch, cupy.cuda.Stream.null)
                parts = (case.operator, case.name, data_type, f"{mine:.1f}", f"{theirs:.1f}", f"{theirs / mine:.2f}")
                print(f"| {' | '.join(parts)} |", flush=True)


if __name__ == "__main__":
    main()
