"""The first of an order in sequences, on a GPU: a block counts the bytes of a sequence's elements, the high ones first,
until it knows the last of those that are wanted, gathers them and sorts them. Of few long sequences blocks have parts,
and what they find is searched in its turn.
"""

from functools import cache
from typing import Any

import numpy as np

from app.operators.c_numbers import C_TYPES
from app.operators.written import kernel

MOST_FIRST = 2048
"""Elements of a sequence that are found at most: a block sorts them in shared memory."""

LEAST_PART, PARTS = 4096, 512
"""Elements that are worth a block of their own, and blocks that keep a large GPU busy."""

_EACH = 8
"""Elements for which a block has a thread."""

_LEAST_THREADS, _MOST_THREADS = 32, 1024

_KERNEL = r"""
typedef %(number)s number;
const number sign = (number)1 << %(sign)d;
/* Numbers in the order of the elements that have these bits. */
__device__ __forceinline__ number ordered(number bits) { return %(order)s; }
/* No two of a sequence are equal: of equal elements that with the lower place comes first. */
struct alignas(%(key_bytes)d) key { number value; unsigned at; };
__device__ __forceinline__ bool operator<(const key& a, const key& b)
{
    return a.value < b.value || (a.value == b.value && a.at < b.at);
}
const unsigned of_value = sizeof(number), of_key = of_value + 4;
const bool are_found = %(found)d;
/* A block has one of `parts` of the `length` elements of a row of `x`, of `size`, or of those that were `given`, found
   in one. What it finds is `left`, unless there is one part: then values and indices are. There is `room` to sort
   `count`. Elements are read again and again. If others write to them meanwhile, it finds anything, within bounds. */
extern "C" __global__ void __launch_bounds__(%(threads)d)
first(const number* x, unsigned size, const key* given, key* left, number* values, void* indices, unsigned length,
    unsigned parts, unsigned count, unsigned room, int decreasing, int wide)
{
    extern __shared__ key best[];
    __shared__ unsigned bins[256], chosen, earlier, found;
    const unsigned long long row = blockIdx.x / parts, part = blockIdx.x %% parts;
    const unsigned begin = part * length / parts, here = (part + 1) * length / parts - begin;
    x += row * size;
    if (threadIdx.x == 0) found = chosen = earlier = 0;
    for (unsigned n = threadIdx.x; n < room; n += blockDim.x) best[n] = key{(number)~(number)0, ~0u};
    if (are_found) given += row * length;
    const auto key_of = [&](unsigned n) {
        if (are_found) return given[begin + n];
        const number value = ordered(x[begin + n]);
        return key{decreasing ? (number)~value : value, begin + n};
    };

    /* Of `last`, the last one that is wanted, the bytes that are `known`. */
    key last = {0, 0}, known = {0, 0};
    for (unsigned turn = 0, among = here, missing = count; turn < of_key && missing < among; ++turn) {
        const bool in_value = turn < of_value;
        const unsigned shift = 8 * ((in_value ? of_value : of_key) - 1 - turn);
        for (unsigned n = threadIdx.x; n < 256; n += blockDim.x) bins[n] = 0;
        __syncthreads();
        #pragma unroll 4
        for (unsigned n = threadIdx.x; n < here; n += blockDim.x) {
            const key one = key_of(n);
            if ((one.value & known.value) == last.value && (in_value || (one.at & known.at) == last.at))
                atomicAdd(&bins[(in_value ? (unsigned)(one.value >> shift) : one.at >> shift) & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            unsigned own[8], sum = 0;
            #pragma unroll
            for (int n = 0; n < 8; ++n) sum += own[n] = bins[8 * threadIdx.x + n];
            unsigned before = sum;
            for (int step = 1; step < 32; step *= 2) {
                const unsigned other = __shfl_up_sync(~0u, before, step);
                if (threadIdx.x >= step) before += other;
            }
            before -= sum;
            #pragma unroll
            for (int n = 0; n < 8; before += own[n++])
                if (before < missing && missing - before <= own[n]) {
                    chosen = 8 * threadIdx.x + n;
                    earlier = before;
                }
        }
        __syncthreads();
        among = bins[chosen];
        missing -= earlier;
        if (in_value) {
            last.value |= (number)chosen << shift;
            known.value |= (number)255 << shift;
        } else {
            last.at |= chosen << shift;
            known.at |= 255u << shift;
        }
        __syncthreads();
    }

    __syncthreads();
    #pragma unroll 4
    for (unsigned n = threadIdx.x; n < here; n += blockDim.x) {
        const key one = key_of(n);
        if (last < key{(number)(one.value & known.value), one.at & known.at}) continue;
        const unsigned place = atomicAdd(&found, 1);
        if (place < count) best[place] = one;
    }
    __syncthreads();
    if (left) {
        left += (unsigned long long)blockIdx.x * count;
        for (unsigned n = threadIdx.x; n < count; n += blockDim.x) left[n] = best[n];
        return;
    }
    for (unsigned width = 2; width <= room; width *= 2) {
        for (unsigned step = width / 2; step > 0; step /= 2) {
            for (unsigned n = threadIdx.x; n < room / 2; n += blockDim.x) {
                const unsigned low = 2 * n - (n & (step - 1)), high = low + step;
                const key a = best[low], b = best[high];
                if ((b < a) == ((low & width) == 0)) { best[low] = b; best[high] = a; }
            }
            __syncthreads();
        }
    }
    for (unsigned n = threadIdx.x; n < count; n += blockDim.x) {
        const unsigned at = min(best[n].at, size - 1);
        values[row * count + n] = x[at];
        if (wide) ((unsigned long long*)indices)[row * count + n] = at;
        else ((unsigned*)indices)[row * count + n] = at;
    }
}
"""

_ORDERS = {
    "u": "bits",
    "i": "bits ^ sign",
    # NaN is above all numbers, and 0 is -0.
    "f": "(bits & ~sign) > {infinity:#x} ? ~0 : bits == sign ? sign : bits & sign ? ~bits : bits | sign",
}


def find(cupy: Any, rows: Any, count: int, values: Any, indices: Any, *, decreasing: bool) -> None:
    """Write the `count` largest or least elements of each packed row to `values` and where they are to `indices`, of 32
    or 64 bits; both are packed. `count` is at most MOST_FIRST."""
    number, size = rows.shape
    key_bytes, room = _key_bytes(rows.dtype), 1 << (count - 1).bit_length()
    given, length = None, size
    while True:
        parts = max(min(PARTS // number, length // max(LEAST_PART, 4 * count)), 1)
        left = cupy.empty((number * parts * count, key_bytes), cupy.uint8) if parts > 1 else None
        keys = (cupy.uint64(0) if each is None else each for each in (given, left))
        tensors = rows, cupy.uint32(size), *keys, values, indices
        numbers = (cupy.uint32(each) for each in (length, parts, count, room))
        ways = cupy.int32(decreasing), cupy.int32(indices.itemsize == 8)
        threads = _threads(max(length // parts // _EACH, room // 2))
        first = kernel(cupy, source(rows.dtype, found=given is not None), "first")
        first((number * parts,), (threads,), (*tensors, *numbers, *ways), shared_mem=room * key_bytes)
        if left is None:
            return
        given, length = left, parts * count


def _threads(wanted: int) -> int:
    return min(max(1 << max(wanted - 1, 0).bit_length(), _LEAST_THREADS), _MOST_THREADS)


def _key_bytes(dtype: "np.dtype[Any]") -> int:
    return 16 if dtype.itemsize == 8 else 8


@cache
def source(dtype: "np.dtype[Any]", *, found: bool) -> str:
    """For elements of this type, or those that were `found` among them."""
    bits = 8 * dtype.itemsize
    infinity = int(np.array(np.inf, dtype).view(f"u{dtype.itemsize}")) if dtype.kind == "f" else 0
    return _KERNEL % {
        "number": C_TYPES[f"uint{bits}"],
        "sign": bits - 1,
        "order": _ORDERS[dtype.kind].format(infinity=infinity),
        "key_bytes": _key_bytes(dtype),
        "found": found,
        "threads": _MOST_THREADS,
    }
