"""Convolutions of 8-bit integers, of few terms for few outputs of each group, as those of one channel each, by one
kernel on a GPU: each thread adds up its elements, at which tensor cores would be mostly idle."""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators import packing
from app.operators.convolution.windows import Windows

EACH = 4
"""Elements of a thread, so that a term of the filter is loaded for as many."""

MOST_THREADS = 128

FEW_OUTPUTS, FEW_TERMS = 8, 64
"""Fewer than these, of each group, and to a sum."""

_TYPE_OF = {"int8": "signed char", "uint8": "unsigned char"}


class Form(NamedTuple):
    """What chooses code: types by their NumPy names."""

    x: str
    filters: str


_KERNEL = r"""
#define EACH %(each)d
typedef %(x)s element;
typedef %(filters)s weight;
struct lies {
    long long item;
    unsigned outputs, each, depth, terms, count, zeros, channel;
    unsigned along[3], positions[3], extents[3], strides[3], dilations[3], sizes[3], starts[3];
};
/* Steps are in bytes. Of one filter are `zeros` zero points, or none. */
extern "C" __global__ void __launch_bounds__(%(threads)d) direct(
    const char* __restrict__ x, const weight* __restrict__ filters, int* __restrict__ to,
    const element* __restrict__ x_zero, const weight* __restrict__ filter_zeros, const lies at)
{
    const unsigned tiles = (at.count + blockDim.x * EACH - 1) / (blockDim.x * EACH);
    const unsigned row = blockIdx.x / tiles, output = row %% at.outputs;
    const unsigned begin = blockIdx.x %% tiles * blockDim.x * EACH + threadIdx.x;
    x += row / at.outputs * at.item + (unsigned long long)(output / at.each * at.depth) * at.channel;
    filters += (unsigned long long)output * at.terms;
    const int less = x_zero ? *x_zero : 0, less_of_filter = filter_zeros ? filter_zeros[output * at.zeros] : 0;
    unsigned origin[EACH][3]; /* below 0 it is beyond all sizes */
    int sum[EACH] = {};
    #pragma unroll
    for (int r = 0; r < EACH; ++r) {
        unsigned rest = begin + r * blockDim.x;
        #pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const unsigned next = axis ? rest / at.positions[axis] : 0;
            origin[r][axis] = (rest - next * at.positions[axis]) * at.strides[axis] - at.starts[axis];
            rest = next;
        }
    }
    for (unsigned channel = 0; channel < at.depth; ++channel, x += at.channel)
        for (unsigned i = 0; i < at.extents[0]; ++i)
            for (unsigned j = 0; j < at.extents[1]; ++j) {
                bool is[EACH];
                unsigned from[EACH];
                #pragma unroll
                for (int r = 0; r < EACH; ++r) {
                    const unsigned first = origin[r][0] + i * at.dilations[0];
                    const unsigned second = origin[r][1] + j * at.dilations[1];
                    is[r] = first < at.sizes[0] && second < at.sizes[1] && begin + r * blockDim.x < at.count;
                    from[r] = first * at.along[0] + second * at.along[1];
                }
                #pragma unroll 3
                for (unsigned k = 0; k < at.extents[2]; ++k) {
                    const int factor = *filters++ - less_of_filter;
                    #pragma unroll
                    for (int r = 0; r < EACH; ++r) {
                        const unsigned third = origin[r][2] + k * at.dilations[2];
                        const bool meets = is[r] && third < at.sizes[2];
                        const element one = *(const element*)(x + (meets ? from[r] + third * at.along[2] : 0));
                        sum[r] += meets ? (one - less) * factor : 0;
                    }
                }
            }
    #pragma unroll
    for (int r = 0; r < EACH; ++r)
        if (begin + r * blockDim.x < at.count)
            to[row * (unsigned long long)at.count + begin + r * blockDim.x] = sum[r];
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
    { batch, outputs, positions... }, of 8-bit integers, less their `zeros`, in int32. Of `x` there is one zero point or
    None, of the filters one, one for each, or None."""
    outputs, depth = filters.shape[:2]
    groups, missing = x.shape[1] // depth, 3 - len(windows.sizes)
    filters = cupy.ascontiguousarray(filters)
    form = Form(x.dtype.name, filters.dtype.name)
    made = cupy.empty((len(x), outputs, *windows.positions), "int32")
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
    threads = min(packing.up(-(-count // EACH), 32), MOST_THREADS)
    tiles = -(-count // (threads * EACH))
    given = (np.uint64(0) if each is None else cupy.ascontiguousarray(each.reshape(-1)) for each in zeros)
    _kernel(cupy, form)((tiles * outputs * len(x),), (threads,), (x, filters, made, *given, lies[0]))
    return made


def source(form: Form) -> str:
    """The kernel, in CUDA C++."""
    types = {"x": _TYPE_OF[form.x], "filters": _TYPE_OF[form.filters]}
    return _KERNEL % {**types, "each": EACH, "threads": MOST_THREADS}


@cache
def _kernel(cupy: Any, form: Form) -> Any:
    return cupy.RawKernel(source(form), "direct")
