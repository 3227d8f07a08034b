"""Attention as ONNX Runtime's own operators have it, by MULTIHEAD_ATTENTION."""

from dataclasses import replace
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import joined
from app.models.onnx.rotary import binary
from app.models.onnx.shapes import along, inserted
from app.models.onnx.tensors import Sizes, Unsupported, View

_OURS = "com.microsoft"


class _Heads(NamedTuple):
    """Sizes of an attention."""

    batch: int
    heads: int
    queries: int
    past: int
    keys: int
    """Those of the past too."""

    @property
    def scores(self) -> Sizes:
        return self.batch, self.heads, self.queries, self.keys


def past_of(node: Node, index: int) -> View | None:
    """Input `index`, a past. None if it is left out or of no keys, as models are given it at the beginning."""
    return node.view(index) if node.has(index) and 0 not in node.sizes(index) else None


@maps("MultiHeadAttention", domain=_OURS)
def multi_head_attention(node: Node) -> list[Value | None]:
    if node.has(8) or node.has(9) or any(node.wanted[3:]):
        raise Unsupported("it has a past of stated lengths, or gives its scores away")
    query, heads = node.view(0), int(node.attribute("num_heads"))
    tensors: dict[str, View | None] = {}
    bias = node.optional(3)
    past = [past_of(node, index) for index in (6, 7)]
    batch, queries = query.sizes[:2]
    new = queries
    if len(query.sizes) == 5:
        tensors["StackedQueryKeyValueTensor"] = query
        size = query.sizes[-1]
    else:
        tensors["QueryTensor"] = query
        size = query.sizes[-1] // heads
        key = node.view(1)
        if len(key.sizes) == 5:
            tensors["StackedKeyValueTensor"], new = key, key.sizes[1]
        elif len(key.sizes) == 4:  # { batch, heads, keys, size }, as a past is, which has its bias already
            if bias is not None:
                tensors["QueryTensor"], bias = _biased(node, query, bias), None
            tensors["KeyTensor"], tensors["ValueTensor"] = (_flat(node, node.view(index)) for index in (1, 2))
            new = key.sizes[2]
        else:
            tensors["KeyTensor"], tensors["ValueTensor"], new = key, node.view(2), key.sizes[1]
    tensors["BiasTensor"] = bias
    tensors["PastKeyTensor"], tensors["PastValueTensor"] = past
    before = past[0].sizes[2] if past[0] is not None else 0
    sizes = _Heads(batch, heads, queries, before, before + new)
    mask = node.optional(4)
    relative = node.optional(5)
    value_size = _value_size(tensors, heads)
    made = _attended(node, tensors, sizes, (size, value_size), mask, relative, presents=any(node.wanted[1:3]))
    names = ("OutputTensor", "OutputPresentKeyTensor", "OutputPresentValueTensor")
    return [made.get(name) for name in names[: len(node.wanted)]]


@maps("Attention", domain=_OURS)
def attention(node: Node) -> list[Value | None]:
    """Of one input, weighted to be query, key and value."""
    _refuse(node, 6)
    x, weights = node.view(0), node.view(1)
    rows, width = prod(x.sizes[:2]), weights.sizes[1]
    bias = along(node.view(2), 1, 2).broadcast((rows, width)) if node.has(2) else None
    made = node.build.operator(
        "GEMM",
        {"ATensor": node.reshaped(x, (rows, x.sizes[2])), "BTensor": weights, "CTensor": bias},
        {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 1.0},
        {"OutputTensor": (x.data_type, (rows, width))},
    )
    return _of_one(node, made["OutputTensor"], x.sizes[:2], (3, 4, 5))


@maps("QAttention", domain=_OURS)
def quantized_attention(node: Node) -> list[Value | None]:
    """The same of integers: their product is exact, and then scaled."""
    x, weights, bias = node.view(0), node.view(1), node.view(2)
    rows, width = prod(x.sizes[:2]), weights.sizes[1]
    sizes = (rows, width)
    zeros = {
        field: inserted(node.view(index), 0, 2 - len(node.sizes(index)))
        for field, index in (("AZeroPointTensor", 6), ("BZeroPointTensor", 7))
        if node.has(index)
    }
    product = node.build.operator(
        "MATRIX_MULTIPLY_INTEGER",
        {"ATensor": node.reshaped(x, (rows, x.sizes[2])), "BTensor": weights, **zeros},
        {},
        {"OutputTensor": (DataType.INT32, sizes)},
        rank=2,
    )
    made = node.cast(product["OutputTensor"], DataType.FLOAT32)
    for index in (3, 4):
        scale = node.cast(node.view(index), DataType.FLOAT32)
        made = binary(node, "MULTIPLY", made, scale.broadcast(sizes))
    made = binary(node, "ADD", made, node.cast(bias, DataType.FLOAT32).broadcast(sizes))
    return _of_one(node, node.cast(made, bias.data_type), x.sizes[:2], (5, 8, 9))


def _refuse(node: Node, past_lengths: int) -> None:
    if node.has(past_lengths) or node.attribute("do_rotary", 0) or node.attribute("past_present_share_buffer", 0):
        raise Unsupported("its past lies in shared memory, or it turns its keys")


def _of_one(node: Node, weighted: View, leading: Sizes, indices: tuple[int, int, int]) -> list[Value | None]:
    """Attention of query, key and value next to each other. `indices` are those of the inputs for mask, past and
    what is added to scores."""
    mask, past, relative = node.optional(indices[0]), past_of(node, indices[1]), node.optional(indices[2])
    heads, width = int(node.attribute("num_heads")), weighted.sizes[1]
    hidden = node.attribute("qkv_hidden_sizes") or [width // 3] * 3
    batch, length = leading
    outputs = {"OutputTensors": [(weighted.data_type, (batch, length, each)) for each in hidden]}
    taken = {"InputTensor": node.reshaped(weighted, (batch, length, width))}
    parts = node.build.operator("SPLIT", taken, {"Axis": 2}, outputs)
    names = ("QueryTensor", "KeyTensor", "ValueTensor")
    tensors: dict[str, View | None] = {name: parts[f"OutputTensors[{place}]"] for place, name in enumerate(names)}
    before = 0
    if past is not None:
        before = past.sizes[3]
        one = (past.data_type, (1, *past.sizes[1:]))
        both = node.build.operator("SPLIT", {"InputTensor": past}, {"Axis": 0}, {"OutputTensors": [one, one]})
        for place, name in enumerate(("PastKeyTensor", "PastValueTensor")):
            tensors[name] = node.reshaped(both[f"OutputTensors[{place}]"], past.sizes[1:])
    sizes = _Heads(batch, heads, length, before, before + length)
    each = (hidden[0] // heads, hidden[2] // heads)
    wants_present = len(node.wanted) > 1 and node.wanted[1]
    if wants_present and each[0] != each[1]:
        raise Unsupported(
            f"its heads have keys of {each[0]} elements and values of {each[1]}, where its second output is one tensor"
        )
    made = _attended(node, tensors, sizes, each, mask, relative, presents=wants_present)
    found: list[Value | None] = [made["OutputTensor"]]
    if wants_present:
        presents = [made[f"OutputPresent{name}Tensor"] for name in ("Key", "Value")]
        found.append(joined(node.build, [inserted(present, 0) for present in presents], 0))
    return found + [None] * (len(node.wanted) - len(found))


def _attended(
    node: Node,
    tensors: dict[str, View | None],
    sizes: _Heads,
    each: tuple[int, int],
    mask: View | None,
    relative: View | None,
    *,
    presents: bool,
) -> dict[str, View]:
    """`each` has the sizes of a head of queries and of values."""
    first = next(view for view in tensors.values() if view is not None)
    kind, mask = _mask(mask, sizes)
    if relative is not None:
        relative = relative.broadcast(sizes.scores)
    if node.attribute("unidirectional", 0) and sizes.queries > 1:  # one is the last, which sees all keys
        relative = _causal(node, relative, sizes, first.data_type)
    outputs: dict[str, Any] = {
        "OutputTensor": (first.data_type, (sizes.batch, sizes.queries, sizes.heads * each[1])),
    }
    if presents:
        for name, size in zip(("Key", "Value"), each, strict=True):
            outputs[f"OutputPresent{name}Tensor"] = (
                first.data_type,
                (sizes.batch, sizes.heads, sizes.keys, size),
            )
    scale = float(node.attribute("scale", 0.0))
    return node.build.operator(
        "MULTIHEAD_ATTENTION",
        {**tensors, "MaskTensor": mask, "RelativePositionBiasTensor": relative},
        {
            "Scale": scale or 1 / sqrt(each[0]),
            "MaskFilterValue": float(node.attribute("mask_filter_value", -10000.0)),
            "HeadCount": sizes.heads,
            "MaskType": kind,
        },
        outputs,
    )


def _mask(mask: View | None, sizes: _Heads) -> tuple[str, View | None]:
    """DirectML's kind of mask, and the tensor."""
    if mask is None:
        return "NONE", None
    if mask.data_type is not DataType.INT32:
        raise Unsupported(f"its mask is {mask.data_type}")
    batch, _, queries, _, keys = sizes
    if mask.sizes == (batch,):
        return "KEY_SEQUENCE_LENGTH", mask
    if mask.sizes == (2 * batch,):
        view = mask.reshaped((2, batch))
        assert view is not None, "it lies evenly"
        return "KEY_SEQUENCE_END_START", view
    if mask.sizes == (3 * batch + 2,):
        return "KEY_QUERY_SEQUENCE_LENGTH_START_END", mask
    if mask.sizes == (batch, keys):
        return "BOOLEAN", inserted(mask, 1, 2).broadcast(sizes.scores)
    if mask.sizes == (batch, queries, keys):
        return "BOOLEAN", inserted(mask, 1).broadcast(sizes.scores)
    raise Unsupported(f"its mask has sizes {mask.sizes}")


def _causal(node: Node, relative: View | None, sizes: _Heads, data_type: DataType) -> View:
    """What is added to scores, and the lowest number to those of keys behind the query."""
    made = node.build.operator(
        "DIAGONAL_MATRIX1",
        {},
        {
            "ValueDataType": data_type.value,
            "Value": float(np.finfo(numpy_type(data_type)).min),
            "DiagonalFillBegin": sizes.past + 1,
            "DiagonalFillEnd": sizes.keys + 1,
        },
        {"OutputTensor": (data_type, (sizes.queries, sizes.keys))},
        rank=2,
    )
    lowest = made["OutputTensor"].broadcast(sizes.scores)
    if relative is None:
        return lowest
    return binary(node, "ADD", relative, lowest)


def _flat(node: Node, view: View) -> View:
    """{ batch, heads, keys, size } as { batch, keys, heads * size }."""
    batch, heads, keys, size = view.sizes
    return node.reshaped(view.transposed((0, 2, 1, 3)), (batch, keys, heads * size))


def _biased(node: Node, query: View, bias: View) -> View:
    """The query with its part of what is for query, key and value: the first one."""
    return binary(node, "ADD", query, replace(bias, sizes=query.sizes[-1:]).broadcast(query.sizes))


def _value_size(tensors: dict[str, View | None], heads: int) -> int:
    value = tensors.get("ValueTensor")
    if value is not None:
        return value.sizes[-1] // heads
    return next(view.sizes[-1] for name, view in tensors.items() if view is not None and name.startswith("Stacked"))
