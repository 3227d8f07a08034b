"""Convolutions of halves and 8-bit integers, of few terms for few outputs of each group, as those of one channel each,
by one kernel on a GPU: each thread adds up its elements, at which tensor cores would be mostly idle."""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators import packing
from app.operators.convolution.windows import Windows
from app.operators.written import kernel

EACH = 4
"""Neighbours along a row that a thread computes, so that it loads once what several of them meet, and stores them at
once."""

MOST_THREADS = 256

FEW_OUTPUTS, FEW_TERMS = 8, 64
"""Fewer than these, of each group, and to a sum."""

MOST_STEPS = 4
"""Strides and dilations of a row up to which kernels know these, and the extent: what neighbours meet is then known to
be the same before it is loaded."""

_TYPE_OF = {"int8": "signed char", "uint8": "unsigned char", "float16": "half_bits"}
_SUM_OF = {"int32": "int", "float32": "float"}


class Form(NamedTuple):
    """What chooses code: types by their NumPy names, and extent, stride and dilation along the last dimension, if the
    kernel is to know them."""

    x: str
    filters: str
    along_row: tuple[int, int, int] | None = None


_KERNEL = r"""
#define EACH %(each)d
#define EXTENT %(extent)s
#define STRIDE %(stride)s
#define DILATION %(dilation)s
typedef unsigned short half_bits;
typedef %(x)s element;
typedef %(filters)s weight;
typedef %(sum)s total;
struct lies {
    long long item;
    unsigned outputs, each, depth, terms, count, zeros, channel;
    unsigned along[3], positions[3], extents[3], strides[3], dilations[3], sizes[3], starts[3];
};
struct alignas(4 * EACH) neighbours { total at[EACH]; };
__device__ int value_of(signed char x) { return x; }
__device__ int value_of(unsigned char x) { return x; }
__device__ float value_of(half_bits x)
{
    float y;
    asm("cvt.f32.f16 %%0, %%1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ void add_product(int& sum, int a, int b) { sum += a * b; }
__device__ void add_product(float& sum, float a, float b) { sum = __fmaf_rn(a, b, sum); }
/* Steps are in bytes. Of one filter are `zeros` zero points, or none. */
extern "C" __global__ void __launch_bounds__(%(threads)d) direct(
    const char* __restrict__ x, const weight* __restrict__ filters, total* __restrict__ to,
    const element* __restrict__ x_zero, const weight* __restrict__ filter_zeros, const lies at)
{
    const unsigned of_row = (at.positions[2] + EACH - 1) / EACH, units = at.positions[0] * at.positions[1] * of_row;
    const unsigned tiles = (units + blockDim.x - 1) / blockDim.x;
    const unsigned row = blockIdx.x / tiles, output = row %% at.outputs;
    const unsigned unit = blockIdx.x %% tiles * blockDim.x + threadIdx.x;
    if (unit >= units) return;
    x += row / at.outputs * at.item + (unsigned long long)(output / at.each * at.depth) * at.channel;
    filters += (unsigned long long)output * at.terms;
    const total less = x_zero ? value_of(*x_zero) : 0;
    const total less_of_filter = filter_zeros ? value_of(filter_zeros[output * at.zeros]) : 0;
    const unsigned line = unit / of_row, from = (unit - line * of_row) * EACH;
    const unsigned first_line = line / at.positions[1], second_line = line - first_line * at.positions[1];
    /* Below 0 these are beyond all sizes. */
    const unsigned first_origin = first_line * at.strides[0] - at.starts[0];
    const unsigned second_origin = second_line * at.strides[1] - at.starts[1];
    const unsigned third_origin = from * at.strides[2] - at.starts[2];
    total sum[EACH] = {};
    for (unsigned channel = 0; channel < at.depth; ++channel, x += at.channel)
        for (unsigned i = 0; i < at.extents[0]; ++i)
            #pragma unroll 3
            for (unsigned j = 0; j < at.extents[1]; ++j, filters += EXTENT) {
                const unsigned first = first_origin + i * at.dilations[0];
                const unsigned second = second_origin + j * at.dilations[1];
                const bool is = first < at.sizes[0] && second < at.sizes[1];
                const char* const there = x + (is ? first * at.along[0] + second * at.along[1] : 0);
                #pragma unroll
                for (unsigned k = 0; k < EXTENT; ++k) {
                    const total factor = value_of(filters[k]) - less_of_filter;
                    #pragma unroll
                    for (unsigned r = 0; r < EACH; ++r) {
                        const unsigned third = third_origin + (r * STRIDE + k * DILATION);
                        const bool meets = is && third < at.sizes[2];
                        const element one = *(const element*)(there + (meets ? third * at.along[2] : 0));
                        add_product(sum[r], meets ? value_of(one) - less : 0, factor);
                    }
                }
            }
    to += row * (unsigned long long)at.count + line * at.positions[2] + from;
    if (from + EACH <= at.positions[2] && (unsigned long long)to %% sizeof(neighbours) == 0) {
        neighbours made;
        #pragma unroll
        for (int r = 0; r < EACH; ++r) made.at[r] = sum[r];
        *(neighbours*)to = made;
        return;
    }
    #pragma unroll
    for (int r = 0; r < EACH; ++r)
        if (from + r < at.positions[2]) to[r] = sum[r];
}
"""

_BY_AXIS = ("along", "positions", "extents", "strides", "dilations", "sizes", "starts")

_LIES = np.dtype(
    [
        ("item", np.int64),
        *((name, np.uint32) for name in ("outputs", "each", "depth", "terms", "count", "zeros", "channel")),
        *((name, np.uint32, 3) for name in _BY_AXIS),
    ],
    align=True,
)


def is_direct(windows: Windows, outputs: int, groups: int, depth: int) -> bool:
    """Whether the kernel is for such filters, of `depth` channels of a group."""
    few = outputs // groups < FEW_OUTPUTS and depth * math.prod(windows.extents) < FEW_TERMS
    return few and packing.is_packed(windows)


def direct(cupy: Any, x: Any, filters: Any, windows: Windows, zeros: tuple[Any, Any] = (None, None)) -> Any:
    """Forward: what `filters`, { outputs, channels of a group, spatial... }, meet of `x` times their elements, packed,
    { batch, outputs, positions... }: of halves in float32, of 8-bit integers, less their `zeros`, in int32. Of `x`
    there is one zero point or None, of the filters one, one for each, or None."""
    outputs, depth = filters.shape[:2]
    groups, missing = x.shape[1] // depth, 3 - len(windows.sizes)
    filters = cupy.ascontiguousarray(filters)
    steps = windows.extents[-1], windows.strides[-1], windows.dilations[-1]
    form = Form(x.dtype.name, filters.dtype.name, steps if max(steps[1:]) <= MOST_STEPS else None)
    made = cupy.empty((len(x), outputs, *windows.positions), sum_type(form))
    count = math.prod(windows.positions)
    item, channel, *along = x.strides
    lies = np.zeros(1, _LIES)
    values = {"item": item, "outputs": outputs, "each": outputs // groups, "depth": depth}
    values |= {"channel": channel % packing.MOST_BYTES}  # which one channel may step over
    values |= {"terms": depth * math.prod(windows.extents), "count": count}
    values |= {"zeros": int(zeros[1] is not None and zeros[1].size > 1)}
    for name, value in values.items():
        lies[name] = value
    by_axis = {"along": along} | {name: getattr(windows, name) for name in _BY_AXIS[1:]}
    for name, each in by_axis.items():
        beside = 0 if name in ("along", "starts") else 1
        lies[name] = np.array([*[beside] * missing, *each], np.int64).astype(np.uint32)
    units = math.prod(windows.positions[:-1]) * -(-windows.positions[-1] // EACH)
    tiles = -(-units // MOST_THREADS)
    threads = packing.up(-(-units // tiles), 32)
    given = (np.uint64(0) if each is None else cupy.ascontiguousarray(each.reshape(-1)) for each in zeros)
    kernel(cupy, source(form), "direct")((tiles * outputs * len(x),), (threads,), (x, filters, made, *given, lies[0]))
    return made


def sum_type(form: Form) -> str:
    """NumPy's name of what is added up."""
    return "float32" if form.x == "float16" else "int32"


@cache
def source(form: Form) -> str:
    """The kernel, in CUDA C++."""
    types = {"x": _TYPE_OF[form.x], "filters": _TYPE_OF[form.filters], "sum": _SUM_OF[sum_type(form)]}
    names = ("extent", "stride", "dilation")
    steps = [f"at.{name}s[2]" for name in names] if form.along_row is None else [f"{each}u" for each in form.along_row]
    return _KERNEL % {**types, **dict(zip(names, steps, strict=True)), "each": EACH, "threads": MOST_THREADS}
