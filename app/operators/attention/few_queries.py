"""Attention of few queries that go with the same keys, on a GPU: lanes have four columns of all of them, in registers,
and of four keys at a time, so that a GPU waits for nothing but memory. What is in here goes into kernel.py."""

BEFORE = r"""
#define LANES %(lanes)d
#define AT_ONCE 4
#define ALL (THREADS / LANES)
__device__ __forceinline__ float4 four(const float* at) { return *(const float4*)at; }
__device__ __forceinline__ float4 four(const half* at)
{
    const uint2 loaded = *(const uint2*)at;
    const half* const halves = (const half*)&loaded;
    return make_float4(number(halves[0]), number(halves[1]), number(halves[2]), number(halves[3]));
}
"""

BODY = r"""    const unsigned column = threadIdx.x %% LANES * 4, group = threadIdx.x / LANES;
    const float4 zeros = make_float4(0, 0, 0, 0);
    float4 q[QUERIES], sums[QUERIES];
    float most[QUERIES], total[QUERIES] = {};
    #pragma unroll
    for (int r = 0; r < QUERIES; ++r) {
        const unsigned row = min(r, count - 1);
        const stored* const at = query + row / is.queries * of_query.head + row %% is.queries * of_query.item;
        q[r] = column < SIZE ? four(at + column) : zeros;
        sums[r] = zeros;
        most[r] = NOTHING;
    }
    for (unsigned all = first_key; all < end; all += ALL * AT_ONCE) { /* warps stay together */
        const unsigned first = all + group * AT_ONCE;
        float4 k[AT_ONCE], v[AT_ONCE];
        #pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const bool is_there = first + n < end;
            k[n] = is_there && column < SIZE ? four(key + (first + n) * of_key.item + column) : zeros;
            v[n] = is_there && column < VALUES ? four(value + (first + n) * of_value.item + column) : zeros;
        }
        #pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            const unsigned row = min(r, count - 1), head = key_head * is.groups + row / is.queries;
            const added_type* const at = added + batch * of_added.batch + head * of_added.head
                + row %% is.queries * of_added.item;
            float scores[AT_ONCE], largest = most[r];
            #pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                float score = q[r].x * k[n].x;
                score = fmaf(q[r].y, k[n].y, score);
                score = fmaf(q[r].z, k[n].z, score);
                score = fmaf(q[r].w, k[n].w, score);
                #pragma unroll
                for (int apart = LANES / 2; apart > 0; apart /= 2) score += __shfl_xor_sync(~0u, score, apart);
                if (IS_ADDED && first + n < end) score = fmaf(score, scale, number(at[(first + n) * of_added_key]));
                scores[n] = first + n < end ? score : NOTHING;
                largest = fmaxf(largest, scores[n]);
            }
            const float beside = beside_of(largest);
            const float less = power_of_2((most[r] - beside) * factor);
            most[r] = largest;
            total[r] *= less;
            sums[r] = make_float4(sums[r].x * less, sums[r].y * less, sums[r].z * less, sums[r].w * less);
            #pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                const float weight = power_of_2((scores[n] - beside) * factor);
                total[r] += weight;
                sums[r].x = fmaf(weight, v[n].x, sums[r].x);
                sums[r].y = fmaf(weight, v[n].y, sums[r].y);
                sums[r].z = fmaf(weight, v[n].z, sums[r].z);
                sums[r].w = fmaf(weight, v[n].w, sums[r].w);
            }
        }
    }
    /* What groups found, put together as `together` does with what blocks found. */
    __shared__ float4 of_groups[ALL][QUERIES][VALUES / 4];
    __shared__ float2 told_groups[ALL][QUERIES];
    #pragma unroll
    for (int r = 0; r < QUERIES; ++r) {
        if (column == 0) told_groups[group][r] = make_float2(most[r], total[r]);
        if (column < VALUES) of_groups[group][r][column / 4] = sums[r];
    }
    __syncthreads();
    for (unsigned n = threadIdx.x; n < count * (VALUES / 4); n += THREADS) {
        const unsigned r = n / (VALUES / 4), quarter = n %% (VALUES / 4);
        finding of_all;
        #pragma unroll
        for (int g = 0; g < ALL; ++g) of_all.most = fmaxf(of_all.most, told_groups[g][r].x);
        #pragma unroll
        for (int g = 0; g < ALL; ++g) of_all.join(told_groups[g][r], of_groups[g][r][quarter], factor);
        of_all.give(out, found, told, is, r, 4 * quarter);
    }
}
"""
