"""Attention of many queries that go with the same keys, on a GPU: a block has some of them, and 64 keys at a time, in
shared memory. What is in here goes into kernel.py."""

BEFORE = r"""
#define KEYS %(keys)d
#define ACROSS %(across)d
#define ROWS (THREADS / ACROSS)
#define BLOCK (ROWS * QUERIES)
#define SCORES (KEYS / ACROSS)
#define WIDE (4 * ACROSS)
#define PARTS ((VALUES + WIDE - 1) / WIDE)
#define COLUMNS (WIDE * PARTS)
#define ROW (SIZE + 4)
#define WEIGHTS (KEYS + 8)
#define EACH (16 / (int)sizeof(stored))
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void fetch(float* to, const float* from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%%0], [%%1], 16, %%2;"
                 : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/* All that was fetched before the last group is there. */
__device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }
#else /* there at once */
__device__ __forceinline__ void fetch(float* to, const float* from, bool there)
{
    *(float4*)to = there ? *(const float4*)from : make_float4(0, 0, 0, 0);
}
__device__ __forceinline__ void fetched() {}
__device__ __forceinline__ void wait() {}
#endif
__device__ __forceinline__ void fetch(float* to, const half* from, bool there)
{
    const uint4 loaded = there ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
    const half* const halves = (const half*)&loaded;
    #pragma unroll
    for (int n = 0; n < 8; n += 4)
        *(float4*)(to + n) = make_float4(
            number(halves[n]), number(halves[n + 1]), number(halves[n + 2]), number(halves[n + 3]));
}
/* Rows of a tile, each where `at` says, `LENGTH` apart in shared memory; of those that are not there zeros. */
template <int COUNT, int WIDTH, int LENGTH, class At>
__device__ __forceinline__ void rows(float* to, At at, unsigned there)
{
    #pragma unroll
    for (int n = threadIdx.x; n < COUNT * WIDTH / EACH; n += THREADS) {
        const int row = n / (WIDTH / EACH), column = n %% (WIDTH / EACH) * EACH;
        const bool is = row < there;
        fetch(to + row * LENGTH + column, at(is ? row : 0) + column, is);
    }
    fetched();
}
"""

BODY = r"""    extern __shared__ float4 memory[];
    float* const of_queries = (float*)memory;
    float* const of_keys = of_queries + BLOCK * ROW;
    float* const of_values = of_keys + KEYS * ROW;
    float* const weights = of_values + KEYS * COLUMNS;
    const unsigned begin = blockIdx.x * BLOCK;
    const int x = threadIdx.x %% ACROSS, y = threadIdx.x / ACROSS;
    if (VALUES %% WIDE) /* columns that are there for the others' sake */
        for (int n = threadIdx.x; n < KEYS * COLUMNS; n += THREADS) of_values[n] = 0;
    if (VALUES %% WIDE) __syncthreads();
    const auto at_query = [&](unsigned row) {
        return query + (begin + row) / is.queries * of_query.head + (begin + row) %% is.queries * of_query.item;
    };
    rows<BLOCK, SIZE, ROW>(of_queries, at_query, count - begin);
    const auto fetch_keys = [&](unsigned from) {
        const stored* const at = key + (from < end ? from * of_key.item : 0);
        rows<KEYS, SIZE, ROW>(
            of_keys, [&](unsigned row) { return at + row * of_key.item; }, from < end ? end - from : 0);
    };
    const auto fetch_values = [&](unsigned from) {
        const stored* const at = value + (from < end ? from * of_value.item : 0);
        rows<KEYS, VALUES, COLUMNS>(
            of_values, [&](unsigned row) { return at + row * of_value.item; }, from < end ? end - from : 0);
    };
    fetch_keys(first_key);
    fetch_values(first_key);

    float sums[QUERIES][PARTS][4] = {}, most[QUERIES], total[QUERIES] = {};
    #pragma unroll
    for (int r = 0; r < QUERIES; ++r) most[r] = NOTHING;
    for (unsigned first = first_key; first < end; first += KEYS) {
        const unsigned left = end - first;
        wait();
        __syncthreads();
        float scores[QUERIES][SCORES] = {};
        #pragma unroll 4
        for (int k = 0; k < SIZE; k += 4) {
            float4 q[QUERIES];
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r) q[r] = *(const float4*)(of_queries + (y + ROWS * r) * ROW + k);
            #pragma unroll
            for (int c = 0; c < SCORES; ++c) {
                const float4 one = *(const float4*)(of_keys + (x + ACROSS * c) * ROW + k);
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
        fetch_keys(first + KEYS);
        if (IS_ADDED) {
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r) {
                const unsigned row = min(begin + y + ROWS * r, count - 1);
                const unsigned head = key_head * is.groups + row / is.queries;
                const added_type* const at = added + batch * of_added.batch + head * of_added.head
                    + row %% is.queries * of_added.item + first * of_added_key;
                #pragma unroll
                for (int c = 0; c < SCORES; ++c)
                    if (x + ACROSS * c < left)
                        scores[r][c] = fmaf(scores[r][c], scale, number(at[(x + ACROSS * c) * of_added_key]));
            }
        }
        if (left < KEYS) {
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r)
                #pragma unroll
                for (int c = 0; c < SCORES; ++c)
                    if (x + ACROSS * c >= left) scores[r][c] = NOTHING;
        }
        #pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            float largest = most[r];
            #pragma unroll
            for (int c = 0; c < SCORES; ++c) largest = fmaxf(largest, scores[r][c]);
            #pragma unroll
            for (int apart = ACROSS / 2; apart > 0; apart /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
            const float beside = beside_of(largest);
            const float less = power_of_2((most[r] - beside) * factor);
            most[r] = largest;
            total[r] *= less;
            #pragma unroll
            for (int part = 0; part < PARTS; ++part)
                #pragma unroll
                for (int n = 0; n < 4; ++n) sums[r][part][n] *= less;
            #pragma unroll
            for (int c = 0; c < SCORES; ++c) {
                const float weight = power_of_2((scores[r][c] - beside) * factor);
                total[r] += weight;
                weights[(y + ROWS * r) * WEIGHTS + x + ACROSS * c] = weight;
            }
        }
        wait();
        __syncthreads();
        #pragma unroll 4
        for (int k = 0; k < KEYS; k += 4) {
            float4 w[QUERIES];
            #pragma unroll
            for (int r = 0; r < QUERIES; ++r) w[r] = *(const float4*)(weights + (y + ROWS * r) * WEIGHTS + k);
            #pragma unroll
            for (int n = 0; n < 4; ++n)
                #pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const float4 one = *(const float4*)(of_values + (k + n) * COLUMNS + part * WIDE + x * 4);
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
        fetch_values(first + KEYS);
    }
    #pragma unroll
    for (int r = 0; r < QUERIES; ++r) {
        const unsigned row = begin + y + ROWS * r;
        #pragma unroll
        for (int apart = ACROSS / 2; apart > 0; apart /= 2) total[r] += __shfl_xor_sync(~0u, total[r], apart);
        if (row >= count) continue;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const float4 sum = make_float4(sums[r][part][0], sums[r][part][1], sums[r][part][2], sums[r][part][3]);
            const unsigned column = part * WIDE + x * 4;
            if (column < VALUES) finding{most[r], total[r], sum}.give(out, found, told, is, row, column);
        }
    }
}
"""
