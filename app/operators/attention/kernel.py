"""The kernels of attention on GPUs, in which scores never leave the multiprocessor that makes them.

A block goes through keys and their values: scores, their exponentials less the largest so far, and the sums of values
that these weight. What was added up before is made smaller where a larger score comes (Milakov and Gimelshein, 2018;
Dao and others, 2022). What goes through parts of the keys is put together by a second kernel.

There is code for many queries that go with the same keys (many_queries.py), and for few (few_queries.py).
"""

from functools import cache
from typing import NamedTuple

from app.operators.attention import few_queries, many_queries
from app.operators.attention.steps import STEPS
from app.operators.c_numbers import C_TYPES, NUMBERS

THREADS = 128
"""Of a block."""

KEYS = 64
"""That a block of tiles goes through at a time."""

_ACROSS = 8
"""Threads of it that have the same queries."""


class Form(NamedTuple):
    """What chooses code."""

    queries: int
    """Of a block of tiles, for each of its rows of threads; of a lane, if there are few."""
    size: int
    value_size: int
    is_few: bool = False
    dtype: str = "float32"
    added: str = ""
    """The type of what is added to the scores; empty if that is nothing."""

    @property
    def block(self) -> int:
        """Queries of a block."""
        return self.queries if self.is_few else THREADS // _ACROSS * self.queries

    @property
    def lanes(self) -> int:
        """That have a key together, where queries are few."""
        return 1 << (-(-max(self.size, self.value_size) // 4) - 1).bit_length()

    @property
    def shared_bytes(self) -> int:
        """Of a block: queries and keys, values, and weights, as the kernel lays them out."""
        columns = -(-self.value_size // (4 * _ACROSS)) * 4 * _ACROSS
        floats = (self.block + KEYS) * (self.size + 4) + KEYS * columns + self.block * (KEYS + 8)
        return 0 if self.is_few else 4 * floats


_COMMON = r"""
#define QUERIES %(queries)d
#define SIZE %(size)d
#define VALUES %(value_size)d
#define THREADS %(threads)d
#define NOTHING __int_as_float(0xff800000)
#define IS_ADDED %(is_added)d
typedef %(type)s stored;
typedef %(added_type)s added_type;
/* Rows are the queries of all heads that go with the same keys, head by head. */
struct shape { unsigned heads, groups, queries, keys, part; };
__device__ __forceinline__ void put(float* to, float4 x) { *(float4*)to = x; }
__device__ __forceinline__ void put(half* to, float4 x)
{
    const half each[4] = {rounded(x.x), rounded(x.y), rounded(x.z), rounded(x.w)};
    *(uint2*)to = *(const uint2*)each;
}
__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %%0, %%1;" : "=f"(y) : "f"(x));
    return y;
}
/* What exponents are beside, if this is the largest score: something also where all so far is nothing. */
__device__ __forceinline__ float beside_of(float most) { return most == NOTHING ? 0.0f : most; }
/* The row of the output for a row of the key head number `key_head`, of those of all items. */
__device__ __forceinline__ unsigned long long place_of(const shape& is, unsigned long long key_head, unsigned row)
{
    const unsigned key_heads = is.heads / is.groups, head = key_head %% key_heads * is.groups + row / is.queries;
    return (key_head / key_heads * is.queries + row %% is.queries) * is.heads + head;
}
/* Of some keys: the largest score, and the sums of exponentials less it, and of four values that these weight. */
struct finding {
    float most = NOTHING, total = 0;
    float4 sum = {0, 0, 0, 0};
    /* Add what others found, none of them a larger score. */
    __device__ __forceinline__ void join(float2 told, float4 values, float factor)
    {
        const float weight = power_of_2((told.x - beside_of(most)) * factor);
        total = fmaf(weight, told.y, total);
        sum.x = fmaf(weight, values.x, sum.x);
        sum.y = fmaf(weight, values.y, sum.y);
        sum.z = fmaf(weight, values.z, sum.z);
        sum.w = fmaf(weight, values.w, sum.w);
    }
    __device__ __forceinline__ void put_out(stored* to) const
    {
        const float4 shares = make_float4(
            __fdiv_rn(sum.x, total), __fdiv_rn(sum.y, total), __fdiv_rn(sum.z, total), __fdiv_rn(sum.w, total));
        put(to, shares);
    }
    /* To the output, or, if a block has no more than a part of the keys, to where it is put together. */
    __device__ __forceinline__ void give(
        stored* out, float* found, float2* told, const shape& is, unsigned row, unsigned column) const
    {
        if (gridDim.z == 1) return put_out(out + place_of(is, blockIdx.y, row) * VALUES + column);
        const unsigned long long of_row = (unsigned long long)blockIdx.y * is.groups * is.queries + row;
        const unsigned long long one = of_row * gridDim.z + blockIdx.z;
        if (column == 0) told[one] = make_float2(most, total);
        put(found + one * VALUES + column, sum);
    }
};
/* Of what blocks found in parts of the keys, behind each other, four columns of a row for each thread. */
extern "C" __global__ void __launch_bounds__(THREADS) together(
    const float* __restrict__ found, const float2* __restrict__ told, stored* __restrict__ out, const shape is,
    unsigned parts, unsigned long long all, float factor)
{
    const unsigned long long at = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= all) return;
    const unsigned column = at %% (VALUES / 4) * 4;
    const unsigned long long one = at / (VALUES / 4), of_head = (unsigned long long)is.groups * is.queries;
    found += one * parts * VALUES + column;
    told += one * parts;
    finding of_all;
    #pragma unroll 8
    for (unsigned part = 0; part < parts; ++part) of_all.most = fmaxf(of_all.most, told[part].x);
    #pragma unroll 8
    for (unsigned part = 0; part < parts; ++part)
        of_all.join(told[part], *(const float4*)(found + (unsigned long long)part * VALUES), factor);
    of_all.put_out(out + place_of(is, one / of_head, one %% of_head) * VALUES + column);
}
"""

_ATTENTION = r"""
extern "C" __global__ void __launch_bounds__(THREADS) attention(
    const stored* __restrict__ query, const stored* __restrict__ key, const stored* __restrict__ value,
    const added_type* __restrict__ added, stored* __restrict__ out, float* __restrict__ found,
    float2* __restrict__ told, const steps of_query, const steps of_key, const steps of_value, const steps of_added,
    unsigned long long of_added_key, const shape is, float scale, float factor)
{
    const unsigned count = is.groups * is.queries, key_heads = is.heads / is.groups;
    const unsigned key_head = blockIdx.y %% key_heads, batch = blockIdx.y / key_heads;
    const unsigned first_key = blockIdx.z * is.part, end = min(is.keys, first_key + is.part);
    query += batch * of_query.batch + key_head * is.groups * of_query.head;
    key += batch * of_key.batch + key_head * of_key.head;
    value += batch * of_value.batch + key_head * of_value.head;
"""


@cache
def source(form: Form) -> str:
    """The kernels, in CUDA C++."""
    types = {"type": C_TYPES[form.dtype], "added_type": C_TYPES[form.added or form.dtype]}
    numbers = {"threads": THREADS, "keys": KEYS, "across": _ACROSS, "lanes": form.lanes, "is_added": bool(form.added)}
    code = few_queries if form.is_few else many_queries
    return "".join((NUMBERS, STEPS, _COMMON, code.BEFORE, _ATTENTION, code.BODY)) % (form._asdict() | types | numbers)
