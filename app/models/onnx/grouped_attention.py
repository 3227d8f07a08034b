"""GroupQueryAttention: several heads of queries for each one of keys, and a past whose length differs by item."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.attention import past_of
from app.models.onnx.element_wise import chosen
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import window
from app.models.onnx.operands import number, operate
from app.models.onnx.rotary import binary, rotated
from app.models.onnx.shapes import inserted, integers
from app.models.onnx.tensors import Unsupported, View

_ALLOWED = {"smooth_softmax": (0, -1), "qk_output": (0,), "kv_cache_bit_width": (0,), "sliding_window_cache": (0,)}
"""Attributes that have an effect with other numbers than these."""


@maps("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(node: Node) -> list[Value | None]:
    """Queries see the keys up to their own, or all. Of each item `seqlens_k` has the place of the last key."""
    for name, allowed in _ALLOWED.items():
        if node.attribute(name, 0) not in allowed:
            raise Unsupported(f"{name} is {node.attribute(name)}")
    if any(node.has(index) for index in range(10, len(node.inputs))) or any(node.wanted[3:]):
        raise Unsupported("it has more inputs or outputs than DirectML")
    heads, key_heads = int(node.attribute("num_heads")), int(node.attribute("kv_num_heads"))
    query, key, value = _parts(node, heads, key_heads)
    batch, length = query.sizes[:2]
    size = query.sizes[2] // heads
    data_type = query.data_type
    total = integers(node, 6, "total_sequence_length")[0]
    past_key, past_value = past_of(node, 3), past_of(node, 4)
    before = past_key.sizes[2] if past_key is not None else 0
    keys = before + length
    if total > keys:
        raise Unsupported(f"total_sequence_length is {total}, and there are {keys} keys")
    last = node.reshaped(node.view(5), (batch, 1))
    begins = _begins(node, last, length)
    if node.attribute("do_rotary", 0):
        angles = node.view(7), node.view(8)
        positions = _positions(node, begins, length, is_first=length == total)
        interleaved = bool(node.attribute("rotary_interleaved", 0))
        states = [node.reshaped(each, (batch, length, each.sizes[2] // size, size)) for each in (query, key)]
        turned = [rotated(node, each, angles, positions, interleaved=interleaved) for each in states]
        query, key = (node.reshaped(each, old.sizes) for each, old in zip(turned, (query, key), strict=True))
    lengths = node.cast(begins, data_type) if past_key is not None else None
    present = (batch, key_heads, keys, size)
    scale = float(node.attribute("scale", 0.0) or 0.0) or 1 / sqrt(size)
    own = _counted(node, begins, length) if node.attribute("causal", 1) else last.broadcast((batch, length))
    seen = _seen(node, own, keys, int(node.attribute("local_window_size", -1)))
    made = node.build.operator(
        "MULTIHEAD_ATTENTION1",
        {
            "QueryTensor": query,
            "KeyTensor": key,
            "ValueTensor": value,
            "MaskTensor": inserted(node.cast(seen, DataType.INT32), 1).broadcast((batch, heads, length, keys)),
            "PastKeyTensor": past_key,
            "PastValueTensor": past_value,
            "PastSequenceLengthsTensor": node.reshaped(lengths, (batch,)) if lengths is not None else None,
        },
        {
            "Scale": scale,
            "MaskFilterValue": float(np.finfo(numpy_type(data_type)).min),
            "QueryHeadCount": heads,
            "KeyValueHeadCount": key_heads,
            "MaskType": "BOOLEAN",
        },
        {
            "OutputTensor": (data_type, query.sizes),
            "OutputPresentKeyTensor": (data_type, present),
            "OutputPresentValueTensor": (data_type, present),
        },
    )
    kept = max(before, total)
    ranges = [*map(range, present[:2]), range(kept), range(size)]
    presents: list[Value | None] = [
        window(node, made[f"OutputPresent{name}Tensor"], ranges) for name in ("Key", "Value")
    ]
    cap = float(node.attribute("softcap", 0.0))
    output = made["OutputTensor"]
    if cap:  # what is attended to has another weight then, and is the same
        pair = (made["OutputPresentKeyTensor"], made["OutputPresentValueTensor"])
        output = _capped(node, query, pair, seen, scale, cap)
    return [output, *presents][: len(node.wanted)]


def _capped(node: Node, query: View, pair: tuple[View, View], seen: View, scale: float, cap: float) -> View:
    """Attention whose scores are bent to lie within `cap`, by tanh. The `pair` are keys and values, and `seen` is
    { batch, queries, keys }."""
    batch, key_heads, count, size = pair[0].sizes
    length = query.sizes[1]
    groups = query.sizes[2] // (key_heads * size)
    many, each = batch * key_heads, (batch, key_heads, groups, length, count)
    turned = node.reshaped(query, (batch, length, key_heads, groups, size)).transposed((0, 2, 3, 1, 4))
    queries = node.reshaped(turned, (many, groups, length, size))
    keys, values = (node.reshaped(x, (many, 1, count, size)).broadcast((many, groups, count, size)) for x in pair)
    tanh = {"Type": "ACTIVATION_TANH"}
    bent = _product(node, queries, keys, {"TransB": "TRANSPOSE", "Alpha": scale / cap, "FusedActivation": tanh}, count)
    wide = operate(node, "ELEMENT_WISE_IDENTITY", {"InputTensor": bent}, {"ScaleBias": {"Scale": cap, "Bias": 0.0}})
    unseen = number(node, -inf, query.data_type, each)
    scores = chosen(node, inserted(seen, 1, 2).broadcast(each), node.reshaped(wide, each), unseen)
    weights = operate(node, "ACTIVATION_SOFTMAX1", {"InputTensor": scores}, {"Axes": [4]})
    made = _product(node, node.reshaped(weights, (many, *each[2:])), values, {"TransB": "NONE", "Alpha": 1.0}, size)
    apart = node.reshaped(made, (batch, key_heads, groups, length, size)).transposed((0, 3, 1, 2, 4))
    return node.reshaped(apart, query.sizes)


def _product(node: Node, a: View, b: View, attributes: Mapping[str, Any], columns: int) -> View:
    outputs = {"OutputTensor": (a.data_type, (*a.sizes[:-1], columns))}
    inputs = {"ATensor": a, "BTensor": b, "CTensor": None}
    return operate(node, "GEMM", inputs, {"TransA": "NONE", "Beta": 0.0, **attributes}, outputs)


def _parts(node: Node, heads: int, key_heads: int) -> list[View]:
    """Query, key and value, { batch, length, heads * size }."""
    query = node.view(0)
    if node.has(1):
        return [query, node.view(1), node.view(2)]
    size = query.sizes[2] // (heads + 2 * key_heads)
    outputs = [(query.data_type, (*query.sizes[:2], count * size)) for count in (heads, key_heads, key_heads)]
    parts = node.build.operator("SPLIT", {"InputTensor": query}, {"Axis": 2}, {"OutputTensors": outputs})
    return list(parts.values())


def _begins(node: Node, last: View, length: int) -> View:
    """{ batch, 1 }: the place of the first query, which is that behind the past; 0 of a beginning, padded or not."""
    shift = node.build.constant(np.array(1 - length, np.int32)).broadcast(last.sizes)
    zero = node.build.constant(np.array(0, np.int32)).broadcast(last.sizes)
    return binary(node, "MAX", binary(node, "ADD", last, shift), zero)


def _positions(node: Node, begins: View, length: int, *, is_first: bool) -> View:
    """{ batch, length }, as ONNX has them where they are given; of a beginning the first one counts, for all items."""
    if node.has(9):
        if not is_first:
            return node.view(9)
        first = replace(node.view(9), sizes=(1, 1), strides=(0, 0))
        begins = node.cast(first, DataType.INT32).broadcast(begins.sizes)
    return node.cast(_counted(node, begins, length), DataType.INT64)


def _counted(node: Node, begins: View, length: int) -> View:
    """{ batch, length }: from each of `begins` on."""
    sizes = (begins.sizes[0], length)
    steps = node.build.constant(np.arange(length, dtype=np.int32)).broadcast(sizes)
    return binary(node, "ADD", begins.broadcast(sizes), steps)


def _seen(node: Node, last: View, keys: int, window_size: int) -> View:
    """{ batch, queries, keys }: whether a key is not behind the query's `last` one, { batch, queries }, nor so many
    before it or more, unless `window_size` is -1."""
    each = (*last.sizes, keys)
    last = inserted(last, 2).broadcast(each)

    def compared(operator: str, more: int) -> View:
        places = node.build.constant(np.arange(more, keys + more, dtype=np.int32)).broadcast(each)
        outputs = {"OutputTensor": (DataType.UINT8, each)}
        operands = {"ATensor": places, "BTensor": last}
        return node.build.operator(f"ELEMENT_WISE_LOGICAL_{operator}", operands, {}, outputs)["OutputTensor"]

    made = compared("LESS_THAN_OR_EQUAL", 0)
    return binary(node, "LOGICAL_AND", made, compared("GREATER_THAN", window_size)) if window_size >= 0 else made
