"""Sequences on a GPU: sums and products of all that comes before, and the first of an order, by kernels with a block or
a thread for each.

CuPy has functions for both, which take 20 to 40 times as long where there are many short sequences.
"""

import math
from functools import cache
from typing import Any

from app.operators.indexing.rows import back, rows_of

THREADS = 256
"""Of a block that adds up."""

MANY, SIDE_BY_SIDE, SHORT = 1 << 13, 16, 256
"""Sequences that are enough for a thread each, if so many lie side by side or none has more elements than that."""

MOST_SORTED = 2048
"""Elements that a block sorts at once, in shared memory; half of them are the best so far where there are more."""

MOST_FIRST = MOST_SORTED // 2

FEW = 32
"""That are found one after the other, of a sequence that is not sorted; all of it is in a block's registers."""

_CHOOSERS = 128
"""Threads of such a block."""

TYPES = {
    "float32": "float",
    "float16": "__half",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
}
"""C++'s."""

_ALONG = r"""
#include <cuda_fp16.h>
typedef %(element)s element;
typedef %(sum)s sum;
__device__ __forceinline__ sum loaded(element x) { return %(load)s; }
__device__ __forceinline__ element stored(sum x) { return %(store)s; }
/* x may be y: what a thread stores it alone has loaded before. */
extern "C" __global__ void __launch_bounds__(%(threads)d)
along(const element* x, element* y, unsigned long long sequences, unsigned length, unsigned long long step,
    int reversed, int exclusive)
{
    const int each = 8;
    const unsigned long long n = (unsigned long long)blockIdx.x * %(threads)d + threadIdx.x;
    if (n >= sequences) return;
    const unsigned long long start = n / step * length * step + n %% step;
    sum all = %(nothing)d;
    for (unsigned base = 0; base < length; base += each) {
        element own[each];
        #pragma unroll
        for (int k = 0; k < each; ++k) {
            const unsigned at = base + k;
            if (at < length) own[k] = x[start + (reversed ? length - 1 - at : at) * step];
        }
        #pragma unroll
        for (int k = 0; k < each; ++k) {
            const unsigned at = base + k;
            if (at >= length) break;
            const sum before = all;
            all = all %(operator)s loaded(own[k]);
            y[start + (reversed ? length - 1 - at : at) * step] = stored(exclusive ? before : all);
        }
    }
}
"""

SUM_BEFORE = r"""
/* The sum of `before` and of what threads of the block before this one have; `before` becomes that of them all. */
template <int THREADS, class T> __device__ __forceinline__ T sum_before(T own, T& before)
{
    __shared__ T of_warp[THREADS / 32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T up_to = own;
    for (int step = 1; step < 32; step *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, up_to, step);
        if (lane >= step) up_to += other;
    }
    T made = __shfl_up_sync(0xffffffffu, up_to, 1);
    if (lane == 0) made = 0;
    if (lane == 31) of_warp[warp] = up_to;
    __syncthreads();
    T sum = before;
    for (unsigned n = 0; n < THREADS / 32; ++n) {
        if (n == warp) made += sum;
        sum += of_warp[n];
    }
    before = sum;
    __syncthreads();
    return made;
}
"""

_SUMS = r"""
#include <cuda_fp16.h>
typedef %(element)s element;
typedef %(sum)s sum;
__device__ __forceinline__ sum loaded(element x) { return %(load)s; }
__device__ __forceinline__ element stored(sum x) { return %(store)s; }
struct alignas(sizeof(element) < 4 ? 4 * sizeof(element) : 16) several { element at[4]; };
__device__ __forceinline__ void put(element* to, const several& x)
{
    const unsigned* words = (const unsigned*)&x;
    /* Intrinsics, since the compiler would store element by element. */
    if (sizeof(element) == 1) *(unsigned*)to = words[0];
    if (sizeof(element) == 2) __stcg((uint2*)to, make_uint2(words[0], words[1]));
    for (int n = 0; n < sizeof(element) / 4; ++n)
        __stcg((uint4*)to + n, make_uint4(words[4 * n], words[4 * n + 1], words[4 * n + 2], words[4 * n + 3]));
}
/* `together`: four elements may be loaded and stored at once. x may be y: a thread stores where it alone has loaded. */
extern "C" __global__ void __launch_bounds__(%(threads)d)
sums(const element* x, element* y, unsigned long long rows, unsigned length, int reversed, int exclusive, int together)
{
    const int each = 4;
    for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const element* from = x + row * length;
        element* to = y + row * length;
        sum before = 0;
        for (unsigned base = 0; base < length; base += %(threads)d * each) {
            const unsigned start = base + threadIdx.x * each;
            const bool at_once = together && start < length;
            const unsigned first = reversed ? length - each - start : start;
            sum own[each], all = 0;
            several found;
            if (at_once) found = *(const several*)(from + first);
            #pragma unroll
            for (int n = 0; n < each; ++n) {
                const unsigned at = start + n;
                if (at_once) own[n] = loaded(reversed ? found.at[each - 1 - n] : found.at[n]);
                else own[n] = at < length ? loaded(from[reversed ? length - 1 - at : at]) : 0;
                all += own[n];
            }
            sum running = sum_before<%(threads)d>(all, before);
            element made[each];
            #pragma unroll
            for (int n = 0; n < each; ++n) {
                const sum after = running + own[n];
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
                    if (start + n < length) to[reversed ? length - 1 - start - n : start + n] = made[n];
            }
        }
    }
}
"""

_FIRST = r"""
#include <cuda_fp16.h>
typedef %(element)s element;
/* Unsigned numbers in the order of the elements. */
__device__ __forceinline__ unsigned ordered(element given) { %(order)s }
extern "C" __global__ void __launch_bounds__(%(threads)d)
first(const element* x, long long* y, unsigned length, unsigned count, int decreasing)
{
    __shared__ unsigned long long keys[%(sorted)d];
    const element* from = x + (unsigned long long)blockIdx.x * length;
    unsigned begin = 0, kept = 0;
    do {
        for (unsigned n = kept + threadIdx.x; n < %(sorted)d; n += %(threads)d) {
            const unsigned at = begin + n - kept;
            unsigned long long key = ~0ull;
            if (at < length) {
                const unsigned value = ordered(from[at]);
                key = (unsigned long long)(decreasing ? ~value : value) << 32 | at;
            }
            keys[n] = key;
        }
        begin += %(sorted)d - kept;
        __syncthreads();
        for (unsigned size = 2; size <= %(sorted)d; size *= 2) {
            for (unsigned step = size / 2; step > 0; step /= 2) {
                for (unsigned n = threadIdx.x; n < %(sorted)d / 2; n += %(threads)d) {
                    const unsigned low = 2 * n - (n & (step - 1)), high = low + step;
                    const unsigned long long a = keys[low], b = keys[high];
                    if ((a > b) == ((low & size) == 0)) { keys[low] = b; keys[high] = a; }
                }
                __syncthreads();
            }
        }
        kept = count;
    } while (begin < length);
    for (unsigned n = threadIdx.x; n < count; n += %(threads)d)
        y[(unsigned long long)blockIdx.x * count + n] = (long long)(keys[n] & 0xffffffffull);
}
"""

_FEW = r"""
#include <cuda_fp16.h>
typedef %(element)s element;
/* Unsigned numbers in the order of the elements. */
__device__ __forceinline__ unsigned ordered(element given) { %(order)s }
__device__ __forceinline__ unsigned long long less(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
extern "C" __global__ void __launch_bounds__(%(threads)d)
few(const element* x, long long* y, unsigned length, unsigned count, int decreasing)
{
    __shared__ unsigned long long of_warp[2][%(threads)d / 32];
    const element* from = x + (unsigned long long)blockIdx.x * length;
    unsigned long long keys[%(each)d], own = ~0ull;
    #pragma unroll
    for (int n = 0; n < %(each)d; ++n) {
        const unsigned at = threadIdx.x + n * %(threads)d;
        keys[n] = ~0ull;
        if (at < length) {
            const unsigned value = ordered(from[at]);
            keys[n] = (unsigned long long)(decreasing ? ~value : value) << 32 | at;
        }
        own = less(own, keys[n]);
    }
    for (unsigned turn = 0; turn < count; ++turn) {
        unsigned long long best = own;
        for (int step = 16; step > 0; step /= 2) best = less(best, __shfl_xor_sync(0xffffffffu, best, step));
        if (threadIdx.x %% 32 == 0) of_warp[turn & 1][threadIdx.x / 32] = best;
        __syncthreads();
        for (int n = 0; n < %(threads)d / 32; ++n) best = less(best, of_warp[turn & 1][n]);
        if (own == best) { /* no two keys are equal */
            own = ~0ull;
            #pragma unroll
            for (int n = 0; n < %(each)d; ++n) {
                if (keys[n] == best) keys[n] = ~0ull;
                own = less(own, keys[n]);
            }
            y[(unsigned long long)blockIdx.x * count + turn] = (long long)(best & 0xffffffffull);
        }
    }
}
"""

_ORDER_OF_FLOATS = """const float x = {value} + 0.0f;
    const int bits = x != x ? 0x7fc00000 : __float_as_int(x == 0.0f ? 0.0f : x);
    return (unsigned)(bits ^ ((bits >> 31) & 0x7fffffff)) ^ 0x80000000u;"""


def scan(cupy: Any, x: Any, axis: int, into: Any, *, products: bool, reversed_: bool, exclusive: bool) -> Any:
    """What comes along an axis before each element of `x`, and itself unless it is `exclusive`, added or multiplied up:
    floats in float64, integers as they wrap around. Made in `into` if that is packed. None for `products` unless there
    are enough sequences for a thread each."""
    x = cupy.ascontiguousarray(x)
    made = into if into is not None and into.flags.c_contiguous else cupy.empty(x.shape, x.dtype)
    length, step = x.shape[axis], math.prod(x.shape[axis + 1 :])
    sequences = x.size // length
    ways = cupy.int32(reversed_), cupy.int32(exclusive)
    if sequences >= MANY and (step >= SIDE_BY_SIDE or length <= SHORT):
        arguments = (x, made, cupy.uint64(sequences), cupy.uint32(length), cupy.uint64(step), *ways)
        _along(cupy, x.dtype.name, products=products)((-(-sequences // THREADS),), (THREADS,), arguments)
        return made
    if products:
        return None
    rows = rows_of(cupy, x, axis)
    sums = made.reshape(rows.shape) if step == 1 else cupy.empty(rows.shape, x.dtype)
    together = length % 4 == 0 and all(each.data.ptr % min(4 * each.itemsize, 16) == 0 for each in (rows, sums))
    arguments = (rows, sums, cupy.uint64(sequences), cupy.uint32(length), *ways, cupy.int32(together))
    _sums(cupy, x.dtype.name)((min(sequences, 1 << 20),), (THREADS,), arguments)
    return made if step == 1 else back(cupy, sums, x, axis)


def first_of_rows(cupy: Any, rows: Any, count: int, *, decreasing: bool) -> Any:
    """Indices of the `count` largest or least elements of each packed row, in order, int64; None where a block does
    not find them: of 64 bits, or more than MOST_FIRST."""
    length = rows.shape[1]
    if rows.dtype.itemsize == 8 or count > MOST_FIRST:
        return None
    made = cupy.empty((len(rows), count), cupy.int64)
    if count <= FEW and length <= MOST_SORTED:
        threads = _CHOOSERS
        kernel = _few(cupy, rows.dtype.name, 1 << (-(-length // threads) - 1).bit_length())
    else:
        size = min(max(1 << (length - 1).bit_length(), 64), MOST_SORTED)
        threads, kernel = _threads(size), _first(cupy, rows.dtype.name, size)
    kernel((len(rows),), (threads,), (rows, made, cupy.uint32(length), cupy.uint32(count), cupy.int32(decreasing)))
    return made


def _threads(size: int) -> int:
    return min(size // 2, 512)


@cache
def _sums(cupy: Any, name: str) -> Any:
    return cupy.RawKernel(SUM_BEFORE + _SUMS % _scanned(name), "sums")


@cache
def _along(cupy: Any, name: str, *, products: bool) -> Any:
    more = {"operator": "*", "nothing": 1} if products else {"operator": "+", "nothing": 0}
    return cupy.RawKernel(_ALONG % (_scanned(name) | more), "along")


def _scanned(name: str) -> dict[str, Any]:
    is_float = name.startswith("float")
    return {
        "element": TYPES[name],
        "sum": "double" if is_float else "unsigned long long",
        "load": "(double)__half2float(x)" if name == "float16" else "(sum)x",
        "store": "__double2half(x)" if name == "float16" else "(element)x",
        "threads": THREADS,
    }


@cache
def _first(cupy: Any, name: str, size: int) -> Any:
    return cupy.RawKernel(_FIRST % (_ordered(name) | {"threads": _threads(size), "sorted": size}), "first")


@cache
def _few(cupy: Any, name: str, each: int) -> Any:
    return cupy.RawKernel(_FEW % (_ordered(name) | {"threads": _CHOOSERS, "each": each}), "few")


def _ordered(name: str) -> dict[str, Any]:
    if name.startswith("float"):
        order = _ORDER_OF_FLOATS.format(value="__half2float(given)" if name == "float16" else "given")
    else:
        order = "return (unsigned)(int)given ^ 0x80000000u;" if name.startswith("int") else "return (unsigned)given;"
    return {"element": TYPES[name], "order": order}
