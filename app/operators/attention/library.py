"""Attention of FLOAT16 by cuDNN, on a GPU with NVIDIA's frontend installed."""

import math
from typing import Any, NamedTuple

import numpy as np

from app.operators import cudnn as frontend
from app.operators.attention.steps import STEPS, steps_of
from app.operators.attention.tiles import FEW_ROWS
from app.operators.c_numbers import C_TYPES, NUMBERS
from app.operators.cudnn import FARTHEST, Plan
from app.operators.grids import blocks_of
from app.operators.written import kernel

LEAST_SCORES = 1 << 16
"""Of all heads that are worth a plan. One query at a time of ever more keys, as language models have it, is not."""

MOST_SIZE = 128
"""Of a head."""

LEAST_ADDED = -1e38
"""cuDNN counts in powers of 2, in which what is added must not become infinite."""

_THREADS = 256

_KERNEL = r"""
/* A warp has a row of the output, which is no number where all that is added to its scores is minus infinity. It looks
no further than to what is not, which is among the first in all but a few rows. */
extern "C" __global__ void __launch_bounds__(%(threads)d) spoil(
    const %(type)s* __restrict__ added, half* __restrict__ out, const steps of_added, unsigned long long of_added_key,
    unsigned heads, unsigned queries, unsigned keys, unsigned size, unsigned long long rows)
{
    const unsigned long long row = ((unsigned long long)blockIdx.x * %(threads)d + threadIdx.x) / 32;
    if (row >= rows) return;
    const unsigned lane = threadIdx.x %% 32, query = row / heads %% queries;
    added += row / heads / queries * of_added.batch + row %% heads * of_added.head + query * of_added.item;
    for (unsigned at = lane; at < keys + lane; at += 32) {
        const bool is_something = at < keys && number(added[at * of_added_key]) != __int_as_float(0xff800000);
        if (__any_sync(~0u, is_something)) return;
    }
    for (unsigned at = lane; at < size; at += 32) out[row * size + at].bits = 0x7e00;
}
"""


class Shape(NamedTuple):
    """All that a plan depends on: sizes, { batch, heads, items, size }, and strides, in elements."""

    query: tuple[tuple[int, ...], tuple[int, ...]]
    key: tuple[tuple[int, ...], tuple[int, ...]]
    value: tuple[tuple[int, ...], tuple[int, ...]]
    scale: float
    added: tuple[tuple[int, ...], str] | None = None
    """Sizes and type of what is added to the scores, packed."""


def attention(
    cupy: Any,
    query: Any,
    key: Any,
    value: Any,
    scale: float,
    added: Any = None,
    into: Any = None,
    *,
    is_bounded: bool = False,
) -> Any:
    """{ batch, queries, heads, size } of the attention of float16 { batch, heads, items, size }, made in `into` if that
    is packed; None if there is no cuDNN, or it does not do this. `added` to the scores is float16 or float32 { batch,
    heads, queries, keys }, of which dimensions of 1 repeat; unless it `is_bounded`, there may be infinities.

    Products are added up in float32, and so are the exponentials; these are rounded to float16 before they weight the
    values.
    """
    sizes = query.shape[-1], value.shape[-1]
    rows = query.shape[1] // key.shape[1] * query.shape[2]
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    if not 0 < scale < math.inf or scores < LEAST_SCORES or rows <= FEW_ROWS:
        return None  # its kernels take the largest product for the largest score
    if any(size % 8 or size > MOST_SIZE for size in sizes) or not frontend.is_there():
        return None
    made = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    if max(math.prod(made), *[each.size for each in (query, key, value, added) if each is not None]) > FARTHEST:
        return None
    query, key, value = (_packed(cupy, each) for each in (query, key, value))
    fits = into is not None and into.flags.c_contiguous
    result = into.reshape(made) if fits else cupy.empty(made, query.dtype)
    more = []
    if added is not None:
        added = cupy.broadcast_to(added, (*added.shape[:-1], key.shape[2]))
        more.append(cupy.ascontiguousarray(added if is_bounded else _bounded(cupy, added)))
    shape = Shape(_lies(query), _lies(key), _lies(value), scale, *((each.shape, each.dtype.name) for each in more))
    plan = _plan(cupy.cuda.runtime.getDevice(), shape)
    if plan is None or any(each.data.ptr % 16 for each in (query, key, value, *more, result)):
        return None
    plan.run(cupy, [query, key, value, *more, result])
    if not (added is None or is_bounded):  # what has no key is 0 by cuDNN
        _spoil(cupy, cupy.broadcast_to(added, (*query.shape[:3], key.shape[2])), result)
    return result


def _spoil(cupy: Any, added: Any, result: Any) -> None:
    """Rows of `result`, packed { batch, queries, heads, size }, become NaN where nothing but minus infinity is added to
    the scores."""
    _, heads, queries, keys = added.shape
    size, rows = result.shape[-1], result.size // result.shape[-1]
    arguments = (
        *(added, result, steps_of(added), np.uint64(added.strides[-1] // added.itemsize)),
        *(*map(np.uint32, (heads, queries, keys, size)), np.uint64(rows)),
    )
    kernel(cupy, source(added.dtype.name), "spoil")(blocks_of(rows * 32, _THREADS), (_THREADS,), arguments)


def source(added: str) -> str:
    """The kernel for what is added in this type, in CUDA C++."""
    return (NUMBERS + STEPS + _KERNEL) % {"threads": _THREADS, "type": C_TYPES[added]}


def _bounded(cupy: Any, added: Any) -> Any:
    """With the same effect; what is infinite and what is as good as that stay apart."""
    if added.dtype == "float16":
        return added
    return cupy.where(added == -math.inf, 2 * LEAST_ADDED, cupy.maximum(added, LEAST_ADDED)).astype("float32")


def _packed(cupy: Any, x: Any) -> Any:
    """With rows that cuDNN loads 16 bytes of at a time, and nothing repeated."""
    *outer, inner = (step // x.itemsize for step in x.strides)
    fits = inner == 1 and all(step and step % 8 == 0 for step in outer)
    return frontend.near(cupy, x) if fits else cupy.ascontiguousarray(x)


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
    given = dict(zip(("q", "k", "v"), tensors, strict=True))
    if shape.added:
        dim, name = shape.added
        given["bias"] = graph.tensor(
            name="bias",
            dim=list(dim),
            stride=[math.prod(dim[n + 1 :]) for n in range(len(dim))],
            data_type={"float16": cudnn.data_type.HALF, "float32": cudnn.data_type.FLOAT}[name],
        )
    made, _ = graph.sdpa(**given, attn_scale=shape.scale, generate_stats=False, name="sdpa")
    (batch, heads, queries, _), size = shape.query[0], shape.value[0][-1]
    made.set_output(True).set_data_type(cudnn.data_type.HALF)
    made.set_dim([batch, heads, queries, size]).set_stride([queries * heads * size, size, heads * size, 1])
    return Plan.of(ordinal, graph, [*given.values(), made])
