"""The gradient of maxima of windows on a GPU: first where each maximum is, then, for each element, what comes to it."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators.c_numbers import C_TYPES, NUMBERS
from app.operators.grids import blocks_of, packed_in
from app.operators.written import kernel

_THREADS = 256

_KERNELS = r"""
typedef %(type)s stored;
struct axis { long long extent, stride, dilation, padding; int size, windows; };
__device__ __forceinline__ long long divided(long long a, long long b)
{
    return (a | b) >> 31 ? a / b : (unsigned)a / (unsigned)b;
}
/* Elements of a window that there are, from the first one to the one before the last. */
struct span {
    long long first, end;
    __device__ __forceinline__ span(const axis& is, int window)
    {
        const long long begin = window * is.stride - is.padding, left = is.size - begin;
        const long long there = begin < 0 ? divided(is.dilation - 1 - begin, is.dilation) : 0;
        const long long most = left <= 0 ? 0 : divided(left + is.dilation - 1, is.dilation);
        first = begin + there * is.dilation;
        end = begin + min(is.extent, most) * is.dilation;
    }
};
/* For each window the place of its first maximum within its plane; of none that there is, which no element has. */
extern "C" __global__ void __launch_bounds__(%(threads)d) find(
    const stored* __restrict__ x, unsigned* __restrict__ places, const axis d, const axis h, const axis w,
    unsigned long long all)
{
    const unsigned long long at = (unsigned long long)blockIdx.x * %(threads)d + threadIdx.x;
    if (at >= all) return;
    const int ow = at %% w.windows, oh = at / w.windows %% h.windows, od = at / w.windows / h.windows %% d.windows;
    x += at / w.windows / h.windows / d.windows * ((unsigned long long)d.size * h.size * w.size);
    unsigned place = ~0u;
    float most = 0;
    const span of_d(d, od), of_h(h, oh), of_w(w, ow);
    for (long long id = of_d.first; id < of_d.end; id += d.dilation)
        for (long long ih = of_h.first; ih < of_h.end; ih += h.dilation)
            for (long long iw = of_w.first; iw < of_w.end; iw += w.dilation) {
                const unsigned here = ((unsigned)id * h.size + (unsigned)ih) * w.size + (unsigned)iw;
                const float value = number(x[here]);
                if (place == ~0u || value > most || (value != value && most == most)) most = value, place = here;
            }
    places[at] = place;
}
/* The windows that may have an element, from the first one to the one before the last. */
__device__ __forceinline__ int first_of(const axis& is, int at)
{
    const long long begin = at + is.padding - (is.extent - 1) * is.dilation;
    return begin <= 0 ? 0 : min(divided(begin + is.stride - 1, is.stride), (long long)is.windows);
}
__device__ __forceinline__ int end_of(const axis& is, int at)
{
    return min(divided(at + is.padding, is.stride) + 1, (long long)is.windows);
}
/* Each element's gradients of windows whose first maximum it is. */
extern "C" __global__ void __launch_bounds__(%(threads)d) add(
    const stored* __restrict__ dy, const unsigned* __restrict__ places, stored* __restrict__ made, const axis d,
    const axis h, const axis w, unsigned long long all)
{
    const unsigned long long at = (unsigned long long)blockIdx.x * %(threads)d + threadIdx.x;
    if (at >= all) return;
    const int iw = at %% w.size, ih = at / w.size %% h.size, id = at / w.size / h.size %% d.size;
    const unsigned long long plane = at / w.size / h.size / d.size;
    const unsigned here = ((unsigned)id * h.size + ih) * w.size + iw;
    double sum = 0;
    const int end_d = end_of(d, id), end_h = end_of(h, ih), end_w = end_of(w, iw);
    for (int od = first_of(d, id); od < end_d; ++od)
        for (int oh = first_of(h, ih); oh < end_h; ++oh)
            for (int ow = first_of(w, iw); ow < end_w; ++ow) {
                const unsigned long long one = ((plane * d.windows + od) * h.windows + oh) * w.windows + ow;
                if (places[one] == here) sum += number(dy[one]);
            }
    put(made + at, sum);
}
"""


class Axis(NamedTuple):
    """Along one dimension."""

    extent: int
    stride: int
    dilation: int
    padding: int
    """Before the first element."""
    size: int
    windows: int

    @property
    def most(self) -> int:
        """Elements that a window has, or windows that an element has, at most."""
        return min(self.extent, max(self.size, self.windows))


_AXIS = np.dtype([(name, np.int64) for name in Axis._fields[:4]] + [(name, np.int32) for name in Axis._fields[4:]])

FARTHEST = np.iinfo(np.int32).max
"""Size along one dimension at most, which is counted with 32 bits."""

MOST_LOOKS = 1 << 35
"""At elements and windows, without a look whether to go on: some tenths of a second."""


def gradient(cupy: Any, x: Any, dy: Any, axes: Sequence[Axis], into: Any) -> Any:
    """Of { items, channels, ... } `x`, of which each window's first maximum gets the window's `dy`; sums are made in
    float64. It is made in `into` if that is packed. None if that would take too long at a time, or a dimension is too
    long."""
    if math.prod(each.most for each in axes) * (x.size + dy.size) > MOST_LOOKS:
        return None
    if max(max(each.size, each.windows) for each in axes) > FARTHEST:
        return None
    x, dy = cupy.ascontiguousarray(x), cupy.ascontiguousarray(dy)
    made = packed_in(cupy, into, x.shape, x.dtype)
    places = cupy.empty(dy.shape, "uint32")
    flat = [Axis(1, 1, 1, 0, 1, 1)] * (3 - len(axes))
    shape = [np.array([each], _AXIS)[0] for each in (*flat, *axes)]
    find, add = (kernel(cupy, source(x.dtype.name), name) for name in ("find", "add"))
    find(blocks_of(dy.size, _THREADS), (_THREADS,), (x, places, *shape, np.uint64(dy.size)))
    add(blocks_of(x.size, _THREADS), (_THREADS,), (dy, places, made, *shape, np.uint64(x.size)))
    return made


@cache
def source(dtype: str) -> str:
    """The kernels, in CUDA C++."""
    return (NUMBERS + _KERNELS) % {"type": C_TYPES[dtype], "threads": _THREADS}
