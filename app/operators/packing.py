"""Rows of terms for products of matrices, packed by one kernel on a GPU: what filters meet of a tensor at each of their
positions, or the rows of a matrix, which are what filters of one element meet.

A block makes 32 rows, and each lane 16 bytes of four of them at a time. So columns are turned into rows in registers,
and what rows add up to is known on the way, which products of bytes are corrected by.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators.convolution.windows import Windows
from app.operators.written import kernel

ROWS = 32
"""Of a block."""

EACH = 4
"""Rows of a lane."""

MOST_WARPS = 8
"""Of a block, which share its rows' terms."""

ENOUGH_WARPS = 4096
"""That fill the largest GPUs. Where there are not as many, several blocks share rows' terms."""

FEW_TURNS = 2
"""Of a block's warps through rows' terms, up to which sums are one block's: those of several take another launch."""

LANE_BYTES = 16
"""That a lane makes of a row at a time: what a row's bytes are a multiple of."""

MOST_COUNTED, MOST_BYTES, MOST_EXTENTS = 1 << 30, 1 << 32, 31
"""Of what is counted with 32 bits, so that sums of two are, of an item that these reach, and of bits for a filter."""

_ONE_BY_ONE, _ALONG_TERMS, _ALONG_ROWS = range(3)
"""Which elements are loaded at once: 16 bytes of a row's terms, or a term of four rows."""


class Form(NamedTuple):
    """What chooses code."""

    bytes: int
    """Of an element."""
    rank: int
    """Spatial dimensions."""
    inside: bool
    """Whether filters are inside the tensor at all positions."""
    loads: int


class Packed(NamedTuple):
    """CuPy's arrays."""

    rows: Any
    """{ groups, batch, rows, terms }, with zeros behind terms and rows."""
    sums: Any
    """int32 { groups, batch, rows }: of each row; None unless asked for."""


_KERNEL = r"""
#define BYTES %(bytes)d
#define RANK %(rank)d
#define INSIDE %(inside)d
#define LOADS %(loads)d
#define EACH %(each)d /* rows of a lane, and lanes of a row */
#define ACROSS (32 / EACH)
#define TERMS (16 / BYTES)
#if LOADS == %(one_by_one)d /* lanes side by side have rows side by side */
#define ROW_OF(r) (lane %% ACROSS + (r) * ACROSS)
#else
#define ROW_OF(r) (lane %% ACROSS * EACH + (r))
#endif
#if BYTES == 1
typedef unsigned char element;
#elif BYTES == 2
typedef unsigned short element;
#else
typedef unsigned element;
#endif
/* Steps are in bytes. `pitch` terms and `height` rows are made, of which so many are there, for each of `items`. */
struct lies {
    long long item, group;
    unsigned items, terms, pitch, rows, height, channel;
    unsigned along[3], positions[3], extents[3], strides[3], dilations[3], sizes[3], starts[3];
};
extern "C" __global__ void __launch_bounds__(32 * %(warps)d) packed(
    const char* __restrict__ x, uint4* __restrict__ to, int* __restrict__ sums,
    const element* __restrict__ around, unsigned flip, const lies at)
{
    const unsigned tiles = (at.height + %(rows)d - 1) / %(rows)d;
    const unsigned matrix = blockIdx.x / tiles, begin = blockIdx.x %% tiles * %(rows)d, lane = threadIdx.x;
    x += matrix / at.items * at.group + matrix %% at.items * at.item;
    const element outside = around ? *around : 0; /* which adds nothing: the zero point, of bytes */
    const element behind = flip; /* which is 0 in the end */

    /* Where rows begin, modulo 2^32, and a bit for each coordinate of the filter at which they are inside. */
    unsigned from[EACH] = {}, inside[EACH] = {}, rest[EACH];
    #pragma unroll
    for (int r = 0; r < EACH; ++r) rest[r] = begin + ROW_OF(r) < at.rows ? begin + ROW_OF(r) : 0;
    #pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        unsigned origin[EACH]; /* below 0 it is beyond all sizes */
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const unsigned next = axis ? rest[r] / at.positions[axis] : 0;
            origin[r] = (rest[r] - next * at.positions[axis]) * at.strides[axis] - at.starts[axis];
            from[r] += origin[r] * at.along[axis];
            rest[r] = next;
        }
        #pragma unroll 1
        for (unsigned k = 0; k < at.extents[axis] && !INSIDE; ++k)
            #pragma unroll
            for (int r = 0; r < EACH; ++r)
                inside[r] = inside[r] << 1 | (origin[r] + k * at.dilations[axis] < at.sizes[axis]);
    }
    /* Of each dimension of the filter: the bits of its first coordinate and its last, the bytes of one, and of all. */
    unsigned tops[RANK], lows[RANK], ahead[RANK], back[RANK], apart[RANK], low = 1, extent = 1;
    #pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        apart[axis] = extent;
        extent *= at.extents[axis];
        ahead[axis] = at.dilations[axis] * at.along[axis];
        back[axis] = at.extents[axis] * ahead[axis];
    }
    #pragma unroll
    for (int axis = 0; axis < RANK; ++axis) {
        lows[axis] = low;
        low <<= at.extents[axis];
        tops[axis] = low >> 1;
    }
    int of_row[EACH] = {};
    for (unsigned first = ((blockIdx.y * blockDim.y + threadIdx.y) * EACH + lane / ACROSS) * TERMS; first < at.pitch;
         first += gridDim.y * blockDim.y * EACH * TERMS) {
        unsigned made[EACH][4] = {};
#if LOADS == %(along_terms)d
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const uint4 loaded = *(const uint4*)(x + (from[r] + first * BYTES));
            made[r][0] = loaded.x, made[r][1] = loaded.y, made[r][2] = loaded.z, made[r][3] = loaded.w;
        }
#elif LOADS == %(along_rows)d
        unsigned loaded[TERMS][BYTES];
        #pragma unroll
        for (int n = 0; n < TERMS; ++n) {
            const unsigned* four = (const unsigned*)(x + (from[0] + (first + n) * at.channel));
            #pragma unroll
            for (int w = 0; w < BYTES; ++w) loaded[n][w] = first + n < at.terms ? four[w] : flip;
        }
        #pragma unroll
        for (int r = 0; r < EACH; ++r)
            #pragma unroll
            for (int n = 0; n < TERMS; ++n) {
                const unsigned one = (element)(loaded[n][r * BYTES / 4] >> 8 * (r * BYTES %% 4));
                made[r][n * BYTES / 4] |= one << 8 * (n * BYTES %% 4);
            }
#else
        element met[TERMS][EACH]; /* all loads first, none of which waits for a branch */
        /* Where the term is, and its bit along each dimension: from the first one there down to the last. */
        unsigned step = first / extent * at.channel, left = first %% extent, bit[RANK];
        #pragma unroll
        for (int axis = 0; axis < RANK; ++axis) {
            const unsigned k = axis < RANK - 1 ? left / apart[axis] : left;
            left -= k * apart[axis];
            step += k * ahead[axis];
            bit[axis] = tops[axis] >> k;
        }
        #pragma unroll
        for (int n = 0; n < TERMS; ++n) {
            const bool there = first + n < at.terms;
            unsigned bits = 0; /* as `inside` has them, or all, which none has */
            #pragma unroll
            for (int axis = 0; axis < RANK && !INSIDE; ++axis) bits |= bit[axis];
            bits = there ? bits : ~0u;
            #pragma unroll
            for (int r = 0; r < EACH; ++r) {
                const bool meets = (~inside[r] & bits) == 0;
                const element one = *(const element*)(x + (meets ? from[r] + step : 0));
                met[n][r] = meets ? one : there ? outside : behind;
            }
            bool next = true;
            #pragma unroll
            for (int axis = RANK - 1; axis >= 0; --axis) {
                bit[axis] = next ? bit[axis] >> 1 : bit[axis];
                step += next ? ahead[axis] : 0;
                next = bit[axis] < lows[axis];
                bit[axis] = next ? tops[axis] : bit[axis];
                step -= next ? back[axis] : 0;
            }
            step += next ? at.channel : 0;
        }
        #pragma unroll
        for (int n = 0; n < TERMS; ++n)
            #pragma unroll
            for (int r = 0; r < EACH; ++r) made[r][n * BYTES / 4] |= (unsigned)met[n][r] << 8 * (n * BYTES %% 4);
#endif
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const bool is = begin + ROW_OF(r) < at.rows;
            #pragma unroll
            for (int w = 0; w < 4; ++w) {
                made[r][w] = is ? made[r][w] ^ flip : 0;
#if BYTES == 1
                of_row[r] = __dp4a((int)made[r][w], 0x01010101, of_row[r]);
#endif
            }
            if (to && begin + ROW_OF(r) < at.height)
                to[((matrix * (unsigned long long)at.height + begin + ROW_OF(r)) * at.pitch + first) / TERMS] =
                    make_uint4(made[r][0], made[r][1], made[r][2], made[r][3]);
        }
    }
#if BYTES == 1
    __shared__ int together[%(rows)d];
    if (!sums) return;
    if (threadIdx.y == 0) together[lane] = 0;
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < EACH; ++r) atomicAdd(&together[ROW_OF(r)], of_row[r]);
    __syncthreads();
    if (threadIdx.y == 0 && begin + lane < at.height) {
        int* const sum = sums + (matrix * (unsigned long long)at.height + begin + lane);
        if (gridDim.y > 1) atomicAdd(sum, together[lane]);
        else *sum = together[lane];
    }
#endif
}
"""

_LIES = np.dtype(
    [
        *((name, np.int64) for name in ("item", "group")),
        *((name, np.uint32) for name in ("items", "terms", "pitch", "rows", "height", "channel")),
        *((name, np.uint32, 3) for name in ("along", "positions", "extents", "strides", "dilations", "sizes")),
        ("starts", np.uint32, 3),
    ],
    align=True,
)

_BY_AXIS = ("positions", "extents", "strides", "dilations", "sizes", "starts")


def packed(
    cupy: Any,
    x: Any,
    windows: Windows,
    groups: int = 1,
    *,
    signed: bool = False,
    around: Any = None,
    multiple: int = 1,
    with_sums: bool = False,
    only_sums: bool = False,
) -> Packed:
    """What filters over `groups` of channels of `x`, { batch, channels, spatial... }, meet at the positions of
    `windows`: a row for each of these, whose terms are channels, and elements of the filter for each. Beside `x` there
    is the one element of `around`, or 0. Elements have 1, 2 or 4 bytes.

    Rows are made a `multiple` of, and their bytes one of LANE_BYTES, with zeros behind. Of UINT8, `signed` ones are 128
    less, and INT8. Sums are of bytes; where `only_sums` are asked for, the rows are not made.
    """
    if min(x.strides) < 0:
        x = cupy.ascontiguousarray(x)
    if windows.is_pointwise:
        x, windows = x.reshape(*x.shape[:2], -1), _matrix(math.prod(windows.positions))
    (batch, channels), lane = x.shape[:2], LANE_BYTES // x.itemsize
    depth, extent, rows = channels // groups, math.prod(windows.extents), math.prod(windows.positions)
    height, pitch = up(rows, multiple), up(depth * extent, lane)
    loads = _loads(x, windows, depth)
    item, channel, *along = x.strides
    lies = np.zeros(1, _LIES)
    values = {"item": item, "group": depth * channel, "items": batch, "terms": depth * extent, "pitch": pitch}
    values |= {"rows": rows, "height": height, "channel": channel % MOST_BYTES}  # which one channel may step over
    for name, value in values.items():
        lies[name] = value
    by_axis = {"along": along, **{name: getattr(windows, name) for name in _BY_AXIS}}
    for name, each in by_axis.items():
        lies[name][0, : len(along)] = np.array(each, np.int64).astype(np.uint32)
    tiles = -(-height // ROWS) * batch * groups
    pieces = -(-pitch // (EACH * lane))
    warps = min(-(-ENOUGH_WARPS // tiles), pieces)
    is_one = (with_sums or only_sums) and pieces <= MOST_WARPS * FEW_TURNS
    parts = 1 if is_one else -(-warps // MOST_WARPS)
    made = None if only_sums else cupy.empty((groups, batch, height, pitch), "int8" if signed else x.dtype)
    empty = cupy.zeros if parts > 1 else cupy.empty  # where parts are added up
    sums = empty((groups, batch, height), "int32") if with_sums or only_sums else None
    nothing, flip = np.uint64(0), np.uint32(0x80808080 if signed and x.dtype == "uint8" else 0)
    form = Form(x.itemsize, len(along), windows.is_inside, loads)
    kernel(cupy, source(form), "packed")(
        (tiles, parts),
        (32, min(warps, MOST_WARPS)),
        (x, *(nothing if each is None else each for each in (made, sums, around)), flip, lies[0]),
    )
    return Packed(made, sums)


def packed_matrix(cupy: Any, x: Any, **more: Any) -> Packed:
    """The same of the rows of matrices, { ..., rows, terms }, in the place of groups one. `more` is as there."""
    rows, terms = x.shape[-2:]
    each = x.reshape(-1, rows, terms).swapaxes(1, 2)
    return packed(cupy, each, _matrix(rows), **more)


def rows_of(cupy: Any, x: Any, *, signed: bool = False, multiple: int = 1, with_sums: bool = False) -> Packed:
    """The same, as { ..., rows, terms } and { ..., rows }; the matrices themselves where they are so already."""
    *batch, rows, terms = x.shape
    is_so = not (signed and x.dtype == "uint8") and rows % multiple == 0 and terms * x.itemsize % LANE_BYTES == 0
    is_so = is_so and x.flags.c_contiguous and begins_at(x, LANE_BYTES)
    if is_so and not with_sums:
        return Packed(x, None)
    made = packed_matrix(cupy, x, signed=signed, multiple=multiple, with_sums=with_sums, only_sums=is_so)
    height = up(rows, multiple)
    packed_rows = x if is_so else made.rows.reshape(*batch, height, -1)
    return Packed(packed_rows, made.sums.reshape(*batch, height) if with_sums else None)


def _matrix(rows: int) -> Windows:
    """Of filters of one element."""
    return Windows([rows], [rows], [1], [1], [1], [0])


def is_packed(windows: Windows) -> bool:
    """Whether 32 bits are enough for these: to count them, and for a bit for each coordinate of a filter."""
    along = zip(windows.sizes, windows.positions, windows.extents, windows.strides, windows.dilations, strict=True)
    reaches = [max(size, count * stride + extent * dilation) for size, count, extent, stride, dilation in along]
    few = sum(windows.extents) <= MOST_EXTENTS
    return few and max(math.prod(windows.positions), *reaches, *windows.starts) < MOST_COUNTED


def is_near(sizes: Sequence[int], strides: Sequence[int], item_bytes: int, *, leading: int) -> bool:
    """Whether 32 bits count the bytes of each item, for which there are so many `leading` dimensions."""
    reach = 1 + sum((size - 1) * step for size, step in zip(sizes[leading:], strides[leading:], strict=True))
    return max(reach, math.prod(sizes[leading:])) * item_bytes < MOST_BYTES


def begins_at(x: Any, multiple: int) -> bool:
    """Whether its address is a multiple of so many bytes."""
    return bool(x.data.ptr % multiple == 0)


def up(size: int, multiple: int) -> int:
    """The least multiple that is as large."""
    return -(-size // multiple) * multiple


def _loads(x: Any, windows: Windows, depth: int) -> int:
    if not windows.is_pointwise:
        return _ONE_BY_ONE
    batch, channel, row = x.strides

    def are_even(count: int, apart: int) -> bool:
        """Whether so many bytes are together wherever they begin."""
        return all(step % count == 0 for step in (batch, depth * channel, apart)) and begins_at(x, count)

    if channel == x.itemsize and depth * x.itemsize % LANE_BYTES == 0 and are_even(LANE_BYTES, row):
        return _ALONG_TERMS
    if row == x.itemsize and x.shape[2] % EACH == 0 and are_even(EACH * x.itemsize, channel):
        return _ALONG_ROWS
    return _ONE_BY_ONE


@cache
def source(form: Form) -> str:
    """The kernel, in CUDA C++."""
    values = {**form._asdict(), "inside": int(form.inside), "warps": MOST_WARPS, "rows": ROWS, "each": EACH}
    loads = {"one_by_one": _ONE_BY_ONE, "along_terms": _ALONG_TERMS, "along_rows": _ALONG_ROWS}
    return _KERNEL % (values | loads)
