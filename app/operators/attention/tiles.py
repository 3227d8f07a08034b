"""Attention of FLOAT32 by one kernel on a GPU, in which scores never leave the multiprocessor that makes them.

A block has some queries of a head, and goes through its keys and values 64 at a time: scores, their exponentials less
the largest so far, and the sums of values that these weight. What was added up before is made smaller where a larger
score comes (Milakov and Gimelshein, 2018; Dao and others, 2022).
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

THREADS = 128
"""Of a block: 16 rows of 8, each of which have the same queries."""

MOST_SIZE = 128
"""Of a head."""

MOST_HEADS = 65535
"""Of all items: what a grid has in its second dimension."""

FEW_ROWS, MANY_KEYS = 1 << 8, 1 << 9
"""Queries of all heads, with so many keys, for which products and a softmax in between are quicker, as they have all of
a GPU, where blocks, each of which goes through all keys, would leave three quarters without one."""

MOST_SCORES = 1 << 33
"""That are made without a look whether to go on: a tenth of a second."""


class Form(NamedTuple):
    """What chooses code."""

    queries: int
    """Of a block, for each of its rows of threads."""
    size: int
    value_size: int

    @property
    def shared_bytes(self) -> int:
        """Of a block: queries and keys, values, and weights, as the kernel lays them out."""
        queries = 16 * self.queries
        columns = -(-self.value_size // 32) * 32
        return 4 * ((queries + 64) * (self.size + 4) + 64 * columns + queries * 72)


_KERNEL = r"""
#define QUERIES %(queries)d
#define SIZE %(size)d
#define VALUES %(value_size)d
#define BLOCK (16 * QUERIES)
#define PARTS ((VALUES + 31) / 32)
#define COLUMNS (32 * PARTS)
#define ROW (SIZE + 4)
#define WEIGHTS 72
#define NOTHING __int_as_float(0xff800000)
struct steps { unsigned long long item, head, batch; };
__device__ __forceinline__ void fetch(float* to, const float* from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%%0], [%%1], 16, %%2;"
                 : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/* All that was fetched before the last group is there. */
__device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }
__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %%0, %%1;" : "=f"(y) : "f"(x));
    return y;
}
/* Rows of a tile, `length` apart in shared memory; of those that are not there zeros. */
template <int COUNT, int WIDTH, int LENGTH>
__device__ __forceinline__ void rows(float* to, const float* from, unsigned long long step, unsigned there)
{
    #pragma unroll
    for (int n = threadIdx.x; n < COUNT * WIDTH / 4; n += %(threads)d) {
        const int row = n / (WIDTH / 4), column = n %% (WIDTH / 4) * 4;
        const bool is = row < there;
        fetch(to + row * LENGTH + column, from + (is ? row * step + column : 0), is);
    }
    fetched();
}
extern "C" __global__ void __launch_bounds__(%(threads)d) attention(
    const float* __restrict__ query, const float* __restrict__ key, const float* __restrict__ value,
    float* __restrict__ out, const steps of_query, const steps of_key, const steps of_value, unsigned heads,
    unsigned groups, unsigned queries, unsigned keys, float factor)
{
    extern __shared__ float4 memory[];
    float* const of_queries = (float*)memory;
    float* const of_keys = of_queries + BLOCK * ROW;
    float* const of_values = of_keys + 64 * ROW;
    float* const weights = of_values + 64 * COLUMNS;
    const unsigned begin = blockIdx.x * BLOCK, head = blockIdx.y %% heads, batch = blockIdx.y / heads;
    const int x = threadIdx.x %% 8, y = threadIdx.x / 8;
    query += batch * of_query.batch + head * of_query.head + begin * of_query.item;
    key += batch * of_key.batch + head / groups * of_key.head;
    value += batch * of_value.batch + head / groups * of_value.head;
    if (VALUES %% 32) /* columns that are there for the others' sake */
        for (int n = threadIdx.x; n < 64 * COLUMNS; n += %(threads)d) of_values[n] = 0;
    if (VALUES %% 32) __syncthreads();
    #pragma unroll
    for (int n = threadIdx.x; n < BLOCK * SIZE / 4; n += %(threads)d) {
        const int row = n / (SIZE / 4), column = n %% (SIZE / 4) * 4;
        const bool is = begin + row < queries;
        fetch(of_queries + row * ROW + column, query + (is ? row * of_query.item + column : 0), is);
    }
    rows<64, SIZE, ROW>(of_keys, key, of_key.item, keys);
    rows<64, VALUES, COLUMNS>(of_values, value, of_value.item, keys);

    float sums[QUERIES][PARTS][4] = {}, most[QUERIES], total[QUERIES] = {};
    #pragma unroll
    for (int r = 0; r < QUERIES; ++r) most[r] = NOTHING;
    for (unsigned first = 0; first < keys; first += 64) {
        const unsigned next = first + 64, left = keys - first, more = next < keys ? keys - next : 0;
        wait();
        __syncthreads();
        float scores[QUERIES][8] = {};
        #pragma unroll 4
        for (int k = 0; k < SIZE; k += 4) {
            float4 q[QUERIES];
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r) q[r] = *(const float4*)(of_queries + (y + 16 * r) * ROW + k);
            #pragma unroll
            for (int c = 0; c < 8; ++c) {
                const float4 one = *(const float4*)(of_keys + (x + 8 * c) * ROW + k);
                #pragma unroll
                for (int r = 0; r < QUERIES; ++r) {
                    scores[r][c] = fmaf(q[r].x, one.x, scores[r][c]);
                    scores[r][c] = fmaf(q[r].y, one.y, scores[r][c]);
                    scores[r][c] = fmaf(q[r].z, one.z, scores[r][c]);
                    scores[r][c] = fmaf(q[r].w, one.w, scores[r][c]);
                }
            }
        }
        __syncthreads();
        rows<64, SIZE, ROW>(of_keys, key + (more ? next * of_key.item : 0), of_key.item, more);
        if (left < 64) {
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r)
                #pragma unroll
                for (int c = 0; c < 8; ++c)
                    if (x + 8 * c >= left) scores[r][c] = NOTHING;
        }
        #pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            float largest = most[r];
            #pragma unroll
            for (int c = 0; c < 8; ++c) largest = fmaxf(largest, scores[r][c]);
            #pragma unroll
            for (int apart = 4; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
            const float beside = largest == NOTHING ? 0.0f : largest; /* where all so far is nothing */
            const float less = power_of_2((most[r] - beside) * factor);
            most[r] = largest;
            total[r] *= less;
            #pragma unroll
            for (int part = 0; part < PARTS; ++part)
                #pragma unroll
                for (int n = 0; n < 4; ++n) sums[r][part][n] *= less;
            #pragma unroll
            for (int c = 0; c < 8; ++c) {
                const float weight = power_of_2((scores[r][c] - beside) * factor);
                total[r] += weight;
                weights[(y + 16 * r) * WEIGHTS + x + 8 * c] = weight;
            }
        }
        wait();
        __syncthreads();
        #pragma unroll 4
        for (int k = 0; k < 64; k += 4) {
            float4 w[QUERIES];
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r) w[r] = *(const float4*)(weights + (y + 16 * r) * WEIGHTS + k);
            #pragma unroll
            for (int n = 0; n < 4; ++n)
                #pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const float4 one = *(const float4*)(of_values + (k + n) * COLUMNS + part * 32 + x * 4);
                    #pragma unroll
                    for (int r = 0; r < QUERIES; ++r) {
                        const float weight = n == 0 ? w[r].x : n == 1 ? w[r].y : n == 2 ? w[r].z : w[r].w;
                        sums[r][part][0] = fmaf(weight, one.x, sums[r][part][0]);
                        sums[r][part][1] = fmaf(weight, one.y, sums[r][part][1]);
                        sums[r][part][2] = fmaf(weight, one.z, sums[r][part][2]);
                        sums[r][part][3] = fmaf(weight, one.w, sums[r][part][3]);
                    }
                }
        }
        __syncthreads();
        rows<64, VALUES, COLUMNS>(of_values, value + (more ? next * of_value.item : 0), of_value.item, more);
    }
    #pragma unroll
    for (int r = 0; r < QUERIES; ++r) {
        const unsigned at = begin + y + 16 * r;
        #pragma unroll
        for (int apart = 4; apart > 0; apart /= 2) total[r] += __shfl_xor_sync(~0u, total[r], apart);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part)
            if (at < queries && part * 32 + x * 4 < VALUES) {
                float* const to = out + (((unsigned long long)batch * queries + at) * heads + head) * VALUES;
                const float* s = sums[r][part];
                *(float4*)(to + part * 32 + x * 4) = make_float4(
                    __fdiv_rn(s[0], total[r]), __fdiv_rn(s[1], total[r]), __fdiv_rn(s[2], total[r]),
                    __fdiv_rn(s[3], total[r]));
            }
    }
}
"""


def attention(cupy: Any, query: Any, key: Any, value: Any, scale: float, into: Any = None) -> Any:
    """{ batch, queries, heads, size } of the attention of float32 { batch, heads, items, size }, made in `into` if that
    is packed; None if the kernel does not do this. Keys and values may have fewer heads, each for a group of queries'.

    All is added up in float32, and so are the exponentials.
    """
    batch, heads, queries, size = query.shape
    value_size = value.shape[-1]
    if not 0 < scale < math.inf or not all(0 < each <= MOST_SIZE and each % 4 == 0 for each in (size, value_size)):
        return None  # the largest product is taken for the largest score
    if batch * heads > MOST_HEADS or batch * heads * queries * key.shape[2] > MOST_SCORES:
        return None
    if not all(map(_is_taken, (query, key, value))):
        return None
    ordinal = cupy.cuda.runtime.getDevice()
    form = form_of(*_gpu(cupy, ordinal), (batch * heads, queries, key.shape[2]), (size, value_size))
    if form is None:
        return None
    blocks = (-(-queries // (16 * form.queries)), batch * heads)
    made = (batch, queries, heads, value_size)
    fits = into is not None and into.flags.c_contiguous and into.data.ptr % 16 == 0
    result = into.reshape(made) if fits else cupy.empty(made, query.dtype)
    arguments = (
        *(query, key, value, result, _steps(query), _steps(key), _steps(value), np.uint32(heads)),
        *(np.uint32(heads // key.shape[1]), np.uint32(queries), np.uint32(key.shape[2])),
        np.float32(scale * math.log2(math.e)),
    )
    _kernel(cupy, ordinal, form)(blocks, (THREADS,), arguments, shared_mem=form.shared_bytes)
    return result


def form_of(processors: int, shared_bytes: int, heads: tuple[int, int, int], sizes: tuple[int, int]) -> Form | None:
    """For a GPU of so many multiprocessors, of whose shared memory a block can have so much; None if that is too
    little, or most of the GPU would have nothing to do for long. `heads` are those of all items, and the queries and
    keys of each, `sizes` those of a head."""
    count, queries, keys = heads
    if keys >= MANY_KEYS and count * queries <= FEW_ROWS and -(-queries // 32) * count * 4 <= processors:
        return None
    few, some = (-(-queries // (16 * each)) * count for each in (8, 4))
    # Two blocks of the largest fit on a multiprocessor, three of the others: together they take 1.2 times as long as
    # these three, whether all are there or not.
    whole = -(-few // (2 * processors)) * 1.2 <= some / (3 * processors)
    wanted = 8 if whole and sizes[1] <= 64 else 4 if some >= processors else 2
    forms = [Form(each, *sizes) for each in (8, 4, 2) if each <= wanted]
    return next((form for form in forms if form.shared_bytes + 1024 <= shared_bytes), None)


@cache
def _gpu(cupy: Any, ordinal: int) -> tuple[int, int]:
    """Its multiprocessors, and the bytes that a block can have."""
    known = cupy.cuda.Device(ordinal).attributes
    return known["MultiProcessorCount"], known["MaxSharedMemoryPerBlockOptin"]


def _is_taken(x: Any) -> bool:
    """Whether it can be fetched 16 bytes at a time."""
    *outer, inner = x.strides
    return inner == x.itemsize and all(step % 16 == 0 for step in outer) and x.data.ptr % 16 == 0


def _steps(x: Any) -> Any:
    batch, head, item, _ = (step // x.itemsize for step in x.strides)
    return np.array([(item, head, batch)], _STEPS)[0]


_STEPS = np.dtype([("item", np.uint64), ("head", np.uint64), ("batch", np.uint64)])


def source(form: Form) -> str:
    """The kernel, in CUDA C++."""
    return _KERNEL % {**form._asdict(), "threads": THREADS}


@cache
def _kernel(cupy: Any, ordinal: int, form: Form) -> Any:
    made = cupy.RawKernel(source(form), "attention")
    made.max_dynamic_shared_size_bytes = form.shared_bytes
    return made
