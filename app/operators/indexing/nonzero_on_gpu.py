"""Where a tensor is not 0, on a GPU: each block counts what it finds, the counts are added up, and each element that is
not 0 writes its coordinates to the row of its number."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from app.operators.c_numbers import C_TYPES
from app.operators.grids import blocks_of
from app.operators.indexing.scans_on_gpu import joining
from app.operators.written import kernel

_THREADS = 256

_EACH = 16
"""Elements of a thread."""

_ADDING = 1024
"""Threads of the one block that adds up the counts."""

_KERNELS = r"""
typedef %(bits)s element;
const unsigned warps = %(threads)d / 32, each = %(each)d, columns = %(columns)d;
struct extents { unsigned of[columns]; };
/* Which elements of a warp's part are not 0: a lane has a neighbour of the next lane's each time, and a bit. */
struct found {
    unsigned long long first;
    unsigned masks[each], count;
    __device__ __forceinline__ found(const element* __restrict__ x, unsigned elements)
    {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x %% 32;
        first = ((unsigned long long)blockIdx.x * warps + warp) * (32 * each) + lane;
        element own[each];
        #pragma unroll
        for (int k = 0; k < each; ++k) own[k] = first + 32 * k < elements ? x[first + 32 * k] : 0;
        count = 0;
        #pragma unroll
        for (int k = 0; k < each; ++k) {
            masks[k] = __ballot_sync(~0u, (element)(own[k] & %(mask)s) != 0);
            count += __popc(masks[k]);
        }
    }
};
extern "C" __global__ void __launch_bounds__(%(threads)d)
count(const element* __restrict__ x, unsigned elements, unsigned* __restrict__ counts)
{
    __shared__ unsigned all;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    const found here(x, elements);
    if (threadIdx.x %% 32 == 0) atomicAdd(&all, here.count);
    __syncthreads();
    if (threadIdx.x == 0) counts[blockIdx.x] = all;
}
/* Each count becomes the sum of those before it. */
extern "C" __global__ void __launch_bounds__(%(adding)d)
add_up(unsigned* counts, unsigned blocks, unsigned* __restrict__ total)
{
    unsigned before = 0;
    for (unsigned base = 0; base < blocks; base += %(adding)d) {
        const unsigned at = base + threadIdx.x, made = all_before<%(adding)d>(at < blocks ? counts[at] : 0, before);
        if (at < blocks) counts[at] = made;
    }
    if (threadIdx.x == 0) *total = before;
}
extern "C" __global__ void __launch_bounds__(%(threads)d)
write(const element* __restrict__ x, unsigned elements, const unsigned* __restrict__ before,
    const unsigned* __restrict__ total, unsigned* __restrict__ rows, const extents sizes)
{
    __shared__ unsigned of_warp[warps];
    const found here(x, elements);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x %% 32;
    if (lane == 0) of_warp[warp] = here.count;
    __syncthreads();
    unsigned row = before[blockIdx.x];
    for (unsigned n = 0; n < warp; ++n) row += of_warp[n];
    const unsigned used = *total;
    #pragma unroll
    for (int k = 0; k < each; ++k) {
        const unsigned long long at = here.first + 32 * k;
        const unsigned mask = here.masks[k];
        if (mask >> lane & 1) {
            unsigned* to = rows + (unsigned long long)(row + __popc(mask & ((1u << lane) - 1))) * columns;
            unsigned rest = at;
            #pragma unroll
            for (int c = columns - 1; c >= 0; --c) {
                const unsigned whole = rest / sizes.of[c];
                to[c] = rest - whole * sizes.of[c];
                rest = whole;
            }
        }
        row += __popc(mask);
        if (at >= used && at < elements)
            #pragma unroll
            for (int c = 0; c < columns; ++c) rows[at * columns + c] = 0;
    }
}
"""


def find(cupy: Any, x: Any, rows: Any) -> Any:
    """How many elements of `x` are not 0, a uint32 on the GPU. `rows` becomes the last coordinates of each, in as many
    columns as there are, and 0 behind these: uint32, packed, as many rows as `x` has elements."""
    x, columns = cupy.ascontiguousarray(x), rows.shape[1]
    blocks = blocks_of(x.size, _THREADS * _EACH)
    counts, total = cupy.empty(blocks, "uint32"), cupy.empty((), "uint32")
    count, add_up, write = (kernel(cupy, source(x.dtype, columns), name) for name in ("count", "add_up", "write"))
    elements, sizes = np.uint32(x.size), _extents(x.shape[-columns:])
    count(blocks, (_THREADS,), (x, elements, counts))
    add_up((1,), (_ADDING,), (counts, np.uint32(blocks[0]), total))
    write(blocks, (_THREADS,), (x, elements, counts, total, rows, sizes))
    return total


def _extents(sizes: Sequence[int]) -> np.void:
    """As the kernel takes them."""
    structure: np.void = np.array([(tuple(sizes),)], np.dtype([("of", np.uint32, (len(sizes),))]))[0]
    return structure


@cache
def source(dtype: np.dtype[Any], columns: int) -> str:
    """The kernels, in CUDA C++. What is not 0 is told by bits, since a comparison takes what is subnormal for it."""
    bits = 8 * dtype.itemsize
    mask = (1 << bits - 1) - 1 if dtype.kind == "f" else (1 << bits) - 1
    return joining("unsigned", "+", 0) + _KERNELS % {
        "bits": C_TYPES[f"uint{bits}"],
        "mask": f"{mask:#x}",
        "columns": columns,
        "threads": _THREADS,
        "each": _EACH,
        "adding": _ADDING,
    }
