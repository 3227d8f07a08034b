"""Sums and products of all that comes before, of sequences on a GPU: each has a thread, if there are many that lie side
by side or are short, or else a block; or, if they are few and long, a block for each part, which first joins those
before it.
"""

import math
from functools import cache
from typing import Any

from app.operators.c_numbers import C_TYPES, NUMBERS
from app.operators.grids import blocks_of, packed_in
from app.operators.indexing.rows import back, rows_of
from app.operators.written import kernel

THREADS = 256
"""Of a block."""

MANY, SIDE_BY_SIDE, SHORT = 1 << 13, 16, 256
"""Sequences that are enough for a thread each, if so many lie side by side or none has more elements than that."""

LEAST_PART, PARTS = 1 << 12, 1 << 10
"""Elements that are worth a block of their own, and blocks that keep a large GPU busy."""

LONGEST = (1 << 31) - 1
"""Elements of a sequence. Threads count them with 32 bits, and a step beyond the last one, too: at 2^32 it would lead
back to the first, and the loop would never end."""

_EACH = 4
"""Elements of a thread at a time."""

_NUMBERS = r"""
typedef %(sum)s sum;
__device__ __forceinline__ sum nothing() { return %(nothing)d; }
__device__ __forceinline__ sum joined(sum a, sum b) { return a %(operator)s b; }
__device__ __forceinline__ sum from_below(sum x, int step) { return __shfl_up_sync(0xffffffffu, x, step); }
"""

_PRODUCTS = r"""
/* share * 2^power, the share from 1 to 2, 0, infinite or NaN: a product of some elements may be beyond float64 though
   that of all is not, and such a part of it times 0 would be NaN. */
struct sum { double share; int power; };
__device__ __forceinline__ sum nothing() { return {1.0, 0}; }
__device__ __forceinline__ double two_to(int power) { return __hiloint2double(power + 1023 << 20, 0); }
__device__ __forceinline__ sum joined(sum a, sum b)
{
    const double share = a.share * b.share;
    const int field = __double2hiint(share) >> 20 & 0x7ff;
    if (field == 0 || field == 0x7ff) return {share, 0};
    const int most = 1 << 29, power = a.power + b.power + field - 1023;
    return {share * two_to(1023 - field), max(min(power, most), -most)};
}
__device__ __forceinline__ sum from_below(sum x, int step)
{
    return {__shfl_up_sync(0xffffffffu, x.share, step), __shfl_up_sync(0xffffffffu, x.power, step)};
}
__device__ __forceinline__ sum of(double x) { return joined({x, 0}, nothing()); }
__device__ __forceinline__ double whole(sum x)
{
    if (x.power < -1022) return x.share * 0.0;
    if (x.power > 1023) return x.share / 0.0;
    return x.share * two_to(x.power);
}
"""

_BEFORE = r"""
/* What threads of the block before this one have, joined, behind `before`, which becomes that of them all. */
template <int THREADS> __device__ __forceinline__ sum all_before(sum own, sum& before)
{
    __shared__ sum of_warp[THREADS / 32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sum up_to = own;
    for (int step = 1; step < 32; step *= 2) {
        const sum other = from_below(up_to, step);
        if (lane >= step) up_to = joined(up_to, other);
    }
    sum made = from_below(up_to, 1);
    if (lane == 0) made = nothing();
    if (lane == 31) of_warp[warp] = up_to;
    __syncthreads();
    sum all = before;
    for (unsigned n = 0; n < THREADS / 32; ++n) {
        if (n == warp) made = joined(all, made);
        all = joined(all, of_warp[n]);
    }
    before = all;
    __syncthreads();
    return made;
}
"""

_SCANS = r"""
typedef %(element)s element;
const int threads = %(threads)d, each = %(each)d;
__device__ __forceinline__ sum loaded(element x) { return %(load)s; }
__device__ __forceinline__ element stored(sum x)
{
    element y;
    %(store)s;
    return y;
}
struct alignas(sizeof(element) < 4 ? each * sizeof(element) : 16) several { element at[each]; };
__device__ __forceinline__ void put(element* to, const several& x)
{
    const unsigned* words = (const unsigned*)&x;
    /* Intrinsics, since the compiler would store element by element. */
    if (sizeof(element) == 1) *(unsigned*)to = words[0];
    if (sizeof(element) == 2) __stcg((uint2*)to, make_uint2(words[0], words[1]));
    for (int n = 0; n < sizeof(element) / 4; ++n)
        __stcg((uint4*)to + n, make_uint4(words[4 * n], words[4 * n + 1], words[4 * n + 2], words[4 * n + 3]));
}
/* A thread has a sequence, whose elements are `step` apart. x may be y: what it stores it alone has loaded before. */
extern "C" __global__ void __launch_bounds__(threads)
along(const element* x, element* y, unsigned long long sequences, unsigned length, unsigned long long step,
    int reversed, int exclusive)
{
    const int at_once = 8;
    const unsigned long long n = (unsigned long long)blockIdx.x * threads + threadIdx.x;
    if (n >= sequences) return;
    const unsigned long long start = n / step * length * step + n %% step;
    sum all = nothing();
    for (unsigned base = 0; base < length; base += at_once) {
        element own[at_once];
        #pragma unroll
        for (int k = 0; k < at_once; ++k) {
            const unsigned at = base + k;
            if (at < length) own[k] = x[start + (reversed ? length - 1 - at : at) * step];
        }
        #pragma unroll
        for (int k = 0; k < at_once; ++k) {
            const unsigned at = base + k;
            if (at >= length) break;
            const sum before = all;
            all = joined(all, loaded(own[k]));
            y[start + (reversed ? length - 1 - at : at) * step] = stored(exclusive ? before : all);
        }
    }
}
/* A block joins a part, of `size`, of one of the rows, each of which has `parts`. */
extern "C" __global__ void __launch_bounds__(threads)
totals(const element* x, sum* made, unsigned length, unsigned size, unsigned parts, int reversed)
{
    const unsigned long long row = blockIdx.x / parts;
    const unsigned begin = blockIdx.x %% parts * size, end = min(length - begin, size) + begin;
    x += row * length;
    sum own = nothing(), all = nothing();
    #pragma unroll 8
    for (unsigned at = begin + threadIdx.x; at < end; at += threads)
        own = joined(own, loaded(x[reversed ? length - 1 - at : at]));
    all_before<threads>(own, all);
    if (threadIdx.x == 0) made[blockIdx.x] = all;
}
/* A block has such a part, with the `totals` of all. `together`: elements may be loaded and stored at once. x may be y:
   a thread stores where it alone has loaded. */
extern "C" __global__ void __launch_bounds__(threads)
scan(const element* x, element* y, const sum* totals, unsigned long long rows, unsigned length, unsigned size,
    unsigned parts, int reversed, int exclusive, int together)
{
    for (unsigned long long item = blockIdx.x; item < rows * parts; item += gridDim.x) {
        const unsigned long long row = item / parts;
        const unsigned part = item - row * parts, begin = part * size, end = min(length - begin, size) + begin;
        const element* from = x + row * length;
        element* to = y + row * length;
        sum before = nothing();
        if (part) {
            sum own = nothing();
            for (unsigned n = threadIdx.x; n < part; n += threads) own = joined(own, totals[row * parts + n]);
            all_before<threads>(own, before);
        }
        for (unsigned base = begin; base < end; base += threads * each) {
            const unsigned start = base + threadIdx.x * each;
            const bool at_once = together && start < end;
            const unsigned first = reversed ? length - each - start : start;
            sum own[each], all = nothing();
            several found;
            if (at_once) found = *(const several*)(from + first);
            #pragma unroll
            for (int n = 0; n < each; ++n) {
                const unsigned at = start + n;
                if (at_once) own[n] = loaded(reversed ? found.at[each - 1 - n] : found.at[n]);
                else own[n] = at < end ? loaded(from[reversed ? length - 1 - at : at]) : nothing();
                all = joined(all, own[n]);
            }
            sum running = all_before<threads>(all, before);
            element made[each];
            #pragma unroll
            for (int n = 0; n < each; ++n) {
                const sum after = joined(running, own[n]);
                made[n] = stored(exclusive ? running : after);
                running = after;
            }
            if (at_once) {
                #pragma unroll
                for (int n = 0; n < each; ++n) found.at[n] = reversed ? made[each - 1 - n] : made[n];
                put(to + first, found);
            } else {
                #pragma unroll
                for (int n = 0; n < each; ++n)
                    if (start + n < end) to[reversed ? length - 1 - start - n : start + n] = made[n];
            }
        }
    }
}
"""


def joining(kind: str, operator: str, nothing: int) -> str:
    """`all_before`, for numbers of C++'s type `kind` that an operator joins, `nothing` to no effect."""
    return _NUMBERS % {"sum": kind, "operator": operator, "nothing": nothing} + _BEFORE


def scan(cupy: Any, x: Any, axis: int, into: Any, *, products: bool, reversed_: bool, exclusive: bool) -> Any:
    """What comes along an axis before each element of `x`, and itself unless it is `exclusive`, added or multiplied up:
    floats in float64, integers as they wrap around. Made in `into` if that is packed. Raises NotImplementedError
    where there are more than LONGEST along the axis."""
    if x.shape[axis] > LONGEST:
        raise NotImplementedError(f"{x.shape[axis]} elements are more than it counts")
    x = cupy.ascontiguousarray(x)
    made = packed_in(cupy, into, x.shape, x.dtype)
    length, step = x.shape[axis], math.prod(x.shape[axis + 1 :])
    sequences = x.size // length
    ways = cupy.int32(reversed_), cupy.int32(exclusive)
    written = source(x.dtype.name, products=products)
    along, totals, scan = (kernel(cupy, written, name) for name in ("along", "totals", "scan"))
    if sequences >= MANY and (step >= SIDE_BY_SIDE or length <= SHORT):
        sizes = cupy.uint64(sequences), cupy.uint32(length), cupy.uint64(step)
        along(blocks_of(sequences, THREADS), (THREADS,), (x, made, *sizes, *ways))
        return made
    rows = rows_of(cupy, x, axis)
    scanned = made.reshape(rows.shape) if step == 1 else cupy.empty(rows.shape, x.dtype)
    size = _part(sequences, length)
    parts = -(-length // size)
    lengths, before = (cupy.uint32(length), cupy.uint32(size), cupy.uint32(parts)), cupy.uint64(0)
    if parts > 1:
        before = cupy.empty((sequences * parts, _TOTAL_BYTES), cupy.uint8)
        totals((sequences * parts,), (THREADS,), (rows, before, *lengths, ways[0]))
    aligned = all(each.data.ptr % min(_EACH * each.itemsize, 16) == 0 for each in (rows, scanned))
    together = cupy.int32(aligned and length % _EACH == 0)
    tensors = rows, scanned, before, cupy.uint64(sequences)
    scan((min(sequences * parts, 1 << 20),), (THREADS,), (*tensors, *lengths, *ways, together))
    return made if step == 1 else back(cupy, scanned, x, axis)


_TOTAL_BYTES = 16
"""Of what a block joins, at most."""


def _part(sequences: int, length: int) -> int:
    """Elements for which there is a block, a multiple of what it has at a time."""
    wanted = max(-(-length // max(PARTS // sequences, 1)), LEAST_PART)
    return -(-wanted // (THREADS * _EACH)) * THREADS * _EACH


@cache
def source(name: str, *, products: bool) -> str:
    """The kernels, for elements of NumPy's type `name`."""
    if not name.startswith("float"):
        operator, nothing = ("*", 1) if products else ("+", 0)
        sums, load, store = joining("unsigned long long", operator, nothing), "(sum)x", "y = (element)x"
    elif products:
        sums, load, store = _PRODUCTS + _BEFORE, "of(number(x))", "put(&y, whole(x))"
    else:
        sums, load, store = joining("double", "+", 0), "number(x)", "put(&y, x)"
    numbers = {"element": C_TYPES[name], "load": load, "store": store, "threads": THREADS, "each": _EACH}
    return sums + (NUMBERS + _SCANS) % numbers
