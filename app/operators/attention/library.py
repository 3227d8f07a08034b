"""Attention of FLOAT16 by cuDNN, on a GPU with NVIDIA's frontend installed."""

import math
from typing import Any, NamedTuple

from app.operators import cudnn as frontend
from app.operators.cudnn import Plan

LEAST_SCORES = 1 << 16
"""Of all heads that are worth a plan."""

MOST_SIZE = 128
"""Of a head."""


class Shape(NamedTuple):
    """All that a plan depends on: sizes, { batch, heads, items, size }, and strides, in elements."""

    query: tuple[tuple[int, ...], tuple[int, ...]]
    key: tuple[tuple[int, ...], tuple[int, ...]]
    value: tuple[tuple[int, ...], tuple[int, ...]]
    scale: float


def attention(cupy: Any, query: Any, key: Any, value: Any, scale: float, into: Any = None) -> Any:
    """{ batch, queries, heads, size } of the attention of float16 { batch, heads, items, size }, made in `into` if that
    is packed; None if there is no cuDNN, or it does not do this.

    Products are added up in float32, and so are the exponentials; these are rounded to float16 before they weight the
    values.
    """
    sizes = query.shape[-1], value.shape[-1]
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    if not 0 < scale < math.inf or scores < LEAST_SCORES:
        return None  # its kernels take the largest product for the largest score
    if any(size % 8 or size > MOST_SIZE for size in sizes) or not frontend.is_there():
        return None
    query, key, value = (_packed(cupy, each) for each in (query, key, value))
    made = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    fits = into is not None and into.flags.c_contiguous
    result = into.reshape(made) if fits else cupy.empty(made, query.dtype)
    plan = _plan(cupy.cuda.runtime.getDevice(), Shape(_lies(query), _lies(key), _lies(value), scale))
    if plan is None or any(each.data.ptr % 16 for each in (query, key, value, result)):
        return None
    plan.run(cupy, [query, key, value, result])
    return result


def _packed(cupy: Any, x: Any) -> Any:
    """With rows that cuDNN loads 16 bytes of at a time, and nothing repeated."""
    *outer, inner = (step // x.itemsize for step in x.strides)
    fits = inner == 1 and all(step and step % 8 == 0 for step in outer)
    return x if fits else cupy.ascontiguousarray(x)


def _lies(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return x.shape, tuple(step // x.itemsize for step in x.strides)


@frontend.kept("attention")
def _plan(ordinal: int, shape: Shape) -> Plan:
    import cudnn  # noqa: PLC0415 - part of the GPU extras

    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=frontend.handle_on(ordinal),
    )
    tensors = [
        graph.tensor(name=name, dim=list(sizes), stride=list(strides), data_type=cudnn.data_type.HALF)
        for name, (sizes, strides) in zip(("q", "k", "v"), shape[:3], strict=True)
    ]
    made, _ = graph.sdpa(
        **dict(zip(("q", "k", "v"), tensors, strict=True)), attn_scale=shape.scale, generate_stats=False, name="sdpa"
    )
    (batch, heads, queries, _), size = shape.query[0], shape.value[0][-1]
    made.set_output(True).set_data_type(cudnn.data_type.HALF)
    made.set_dim([batch, heads, queries, size]).set_stride([queries * heads * size, size, heads * size, 1])
    return Plan.of(ordinal, graph, [*tensors, made])
