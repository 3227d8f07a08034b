"""DYNAMIC_QUANTIZE_LINEAR on a GPU, by two kernels: blocks find the ranges of parts, and join them to quantize."""

from functools import cache
from typing import Any

from app.contract.constants import DataType
from app.operators.c_numbers import C_TYPES, NUMBERS
from app.operators.written import kernel

THREADS = 256
"""Of a block."""

EACH, MOST_BLOCKS = 16, 1024
"""Elements for which there is a thread, and blocks that keep a large GPU busy."""

_KERNELS = r"""
typedef %(element)s element;
typedef %(quantized)s quantized;
const int threads = %(threads)d, lowest = %(lowest)d, highest = %(highest)d;
/* NaN is the least and the most of all numbers. */
struct range { float least, most; };
__device__ __forceinline__ range joined(range a, range b)
{
    return {b.least < a.least || b.least != b.least ? b.least : a.least,
        b.most > a.most || b.most != b.most ? b.most : a.most};
}
/* Of all threads of the block, for all of them. */
__device__ __forceinline__ range of_block(range own)
{
    __shared__ range of_warp[threads / 32];
    for (int apart = 16; apart > 0; apart /= 2)
        own = joined(own, {__shfl_xor_sync(~0u, own.least, apart), __shfl_xor_sync(~0u, own.most, apart)});
    if (threadIdx.x %% 32 == 0) of_warp[threadIdx.x / 32] = own;
    __syncthreads();
    own = of_warp[0];
    for (int warp = 1; warp < threads / 32; ++warp) own = joined(own, of_warp[warp]);
    return own;
}
extern "C" __global__ void __launch_bounds__(threads)
find(const element* __restrict__ x, range* __restrict__ found, unsigned long long elements)
{
    range own = {0, 0};
    #pragma unroll 8
    for (unsigned long long n = (unsigned long long)blockIdx.x * threads + threadIdx.x; n < elements;
         n += gridDim.x * threads) {
        const float one = number(x[n]);
        own = joined(own, {one, one});
    }
    own = of_block(own);
    if (threadIdx.x == 0) found[blockIdx.x] = own;
}
extern "C" __global__ void __launch_bounds__(threads)
quantize(const element* __restrict__ x, const range* __restrict__ found, unsigned ranges,
    quantized* __restrict__ y, float* __restrict__ scale_of_all, quantized* __restrict__ zero_of_all,
    unsigned long long elements)
{
    range all = {0, 0};
    for (unsigned n = threadIdx.x; n < ranges; n += threads) all = joined(all, found[n]);
    all = of_block(all);
    float scale = (all.most - all.least) / 255.0f;
    if (scale == 0.0f) scale = 1.0f;
    const float moved = rintf((float)lowest - all.least / scale);
    const float zero = moved != moved ? 0.0f : fminf(fmaxf(moved, (float)lowest), (float)highest);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *scale_of_all = scale;
        *zero_of_all = (quantized)(int)zero;
    }
    #pragma unroll 8
    for (unsigned long long n = (unsigned long long)blockIdx.x * threads + threadIdx.x; n < elements;
         n += gridDim.x * threads) {
        const float made = rintf(number(x[n]) / scale) + zero;
        y[n] = made != made ? 0 : (quantized)(int)fminf(fmaxf(made, (float)lowest), (float)highest);
    }
}
"""


def quantize(cupy: Any, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """Write the elements of `x`, quantized, to `y`, of 8-bit integers, and to the other two by what; all are packed."""
    written = source(DataType(x.dtype.name.upper()), DataType(y.dtype.name.upper()))
    find, quantize = (kernel(cupy, written, name) for name in ("find", "quantize"))
    blocks = min(-(-x.size // (THREADS * EACH)), MOST_BLOCKS)
    found, elements = cupy.empty((blocks, 2), cupy.float32), cupy.uint64(x.size)
    find((blocks,), (THREADS,), (x, found, elements))
    quantize((blocks,), (THREADS,), (x, found, cupy.uint32(blocks), y, scale, zero, elements))


@cache
def source(given: DataType, made: DataType) -> str:
    """The kernels, from elements of a float type to 8-bit integers."""
    is_signed = made is DataType.INT8
    return (NUMBERS + _KERNELS) % {
        "element": C_TYPES[given.value.lower()],
        "quantized": C_TYPES[made.value.lower()],
        "lowest": -128 if is_signed else 0,
        "highest": 127 if is_signed else 255,
        "threads": THREADS,
    }
