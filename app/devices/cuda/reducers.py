"""CUDA C++ that joins what threads have: those of a cluster of blocks, of a block, of a warp or a part of it, or one of
each warp."""

_LANES = r"""
template <class T> union words { T value; int at[(sizeof(T) + 3) / 4]; };
/* Where all blocks of a cluster wait for each other. */
DEVICE void met() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
/* What is at the same place of another block's shared memory. */
DEVICE int of_block(const int* at, unsigned block)
{
    int value;
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.u32 %0, [there]; }"
        : "=r"(value) : "r"((unsigned)__cvta_generic_to_shared(at)), "r"(block) : "memory");
    return value;
}
/* What each of a cluster's blocks has, joined in their order for all of them. */
template <int BLOCKS, class T, class Join> DEVICE T of_blocks(T value, Join join)
{
    __shared__ words<T> mine;
    if (threadIdx.x == 0) mine.value = value;
    met();
    T all;
    #pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        words<T> other;
        #pragma unroll
        for (int n = 0; n < sizeof(other.at) / 4; ++n) other.at[n] = of_block(mine.at + n, block);
        all = block ? join(all, other.value) : other.value;
    }
    met();
    return all;
}
/* What the first of a group of threads has. */
template <int GROUP = THREADS, class T> DEVICE T shared_by_all(T value)
{
    if (GROUP <= 32) {
        words<T> first;
        first.value = value;
        #pragma unroll
        for (int n = 0; n < sizeof(first.at) / 4; ++n) first.at[n] = __shfl_sync(~0u, first.at[n], 0, GROUP);
        return first.value;
    }
    __shared__ T kept;
    __syncthreads();
    if (threadIdx.x == 0) kept = value;
    __syncthreads();
    if constexpr (GROUP > THREADS) return of_blocks<GROUP / THREADS>(kept, [](T a, T b) { return a; });
    return kept;
}
/* All the values of a group of threads, a warp's or fewer, a block's or a cluster's, joined for all of them: by lanes,
   by warps, by blocks. The order of joining must not matter. */
template <int GROUP = THREADS, class T, class Join> DEVICE T reduced(T value, Join join)
{
    #pragma unroll
    for (int apart = GROUP < 32 ? GROUP / 2 : 16; apart > 0; apart /= 2) {
        words<T> mine, other;
        mine.value = value;
        #pragma unroll
        for (int n = 0; n < sizeof(mine.at) / 4; ++n) other.at[n] = __shfl_xor_sync(~0u, mine.at[n], apart);
        value = join(value, other.value);
    }
    if (GROUP <= 32) return value;
    __shared__ T values[THREADS / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value;
    __syncthreads();
    value = values[0];
    #pragma unroll
    for (int warp = 1; warp < THREADS / 32; ++warp) value = join(value, values[warp]);
    if constexpr (GROUP > THREADS) value = of_blocks<GROUP / THREADS>(value, join);
    return value;
}
"""

_CHOICES = r"""
template <class T> DEVICE T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> struct place { T value; long long at; };
/* NaN before numbers, the larger before the smaller, and of equals the first; at < 0 is none. */
template <class T> DEVICE place<T> first(place<T> a, place<T> b)
{
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_a ? a : b;
    if (!nan_a && a.value != b.value) return a.value > b.value ? a : b;
    return a.at < b.at ? a : b;
}
"""

REDUCERS = _LANES + _CHOICES
"""Of groups whose threads are next to each other."""

REDUCERS_ACROSS = (
    r"""
/* Memory of the block for what its threads have, one after the other. */
DEVICE void* room()
{
    __shared__ alignas(16) char bytes[THREADS * 16];
    return bytes;
}
/* The same, where a group has the threads of a lane, one of each warp. */
template <int GROUP, class T> DEVICE T shared_by_all(T value)
{
    if (GROUP == 1) return value;
    T* const kept = (T*)room();
    __syncthreads();
    if (threadIdx.x < 32) kept[threadIdx.x] = value;
    __syncthreads();
    return kept[threadIdx.x % 32];
}
template <int GROUP, class T, class Join> DEVICE T reduced(T value, Join join)
{
    static_assert(sizeof(T) <= 16, "as much as a thread has room for");
    if (GROUP == 1) return value;
    T* const values = (T*)room();
    __syncthreads();
    values[threadIdx.x] = value;
    __syncthreads();
    value = values[threadIdx.x % 32];
    #pragma unroll
    for (int warp = 1; warp < GROUP; ++warp) value = join(value, values[threadIdx.x % 32 + warp * 32]);
    return value;
}
"""
    + _CHOICES
)
"""Of groups that lie side by side, so that what neighbours load is next to each other."""

GROUPS = r"""
template <class T, int N> struct alignas(sizeof(T) * N) several { T at[N]; };
template <int N, class T> DEVICE void read(T* to, const T* from)
{
    const several<T, N> made = *(const several<T, N>*)from;
    #pragma unroll
    for (int v = 0; v < N; ++v) to[v] = made.at[v];
}
template <int N, class T> DEVICE void spread(T* to, const T* from)
{
    const T all = *from;
    #pragma unroll
    for (int v = 0; v < N; ++v) to[v] = all;
}
template <class T> DEVICE T largest_of(T a, T b) { return larger(a, b); }
#if __CUDA_ARCH__ >= 800
DEVICE float largest_of(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#endif
/* `x`, which is computed even if it is not taken: a branch would cost more. */
DEVICE float whatever_is_taken(float x) { asm volatile("" : "+f"(x)); return x; }
/* A sum of terms from 0 to 1. It begins with 2, not less than any of them, so that what an addition loses is exact. */
struct exact_sum { float all, lost; };
DEVICE void add_to(exact_sum& sum, float term)
{
    const float before = sum.all;
    sum.all += term;
    sum.lost += term - (sum.all - before);
}
/* Knuth's sum of two floats, each with what it has lost. */
DEVICE float2 sum_of_both(float2 a, float2 b)
{
    const float all = a.x + b.x, of_b = all - a.x;
    return make_float2(all, ((a.x - (all - of_b)) + (b.x - of_b)) + (a.y + b.y));
}
"""
