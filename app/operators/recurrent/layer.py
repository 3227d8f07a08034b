"""CUDA C++ of the kernel that does all steps of a layer: `lasting.py` fills in the cell, and what else it is for."""

LAYER = r"""
#define GATES %(gates)d
#define UNITS %(units)d
#define PAIRS %(depth)d
#define TILES %(tiles)d
#define CHUNKS %(chunks)d
#define WARPS %(warps)d
#define THREADS (32 * WARPS)
#define DEPTH (32 * PAIRS * WARPS)
#define STRIDE (8 * TILES + 4)
#define PER ((16 * UNITS + THREADS - 1) / THREADS)
#define TURNS %(turns)d
#define ORDERED 4
#define REST 2048.0f
#define NOTHING 0xffffffffu
typedef unsigned short half_bits;
__device__ __forceinline__ float float_of(half_bits x)
{
    float y;
    asm("cvt.f32.f16 %%0, %%1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ half_bits half_of(float x)
{
    half_bits y;
    asm("cvt.rn.f16.f32 %%0, %%1;" : "=h"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %%0, %%1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %%0, %%1;" : "=f"(y) : "f"(x));
    return y;
}
/* Each to 2^-20 of it or less; the latter is a polynomial near 0. */
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + power_of_2(x * -0x1.715476p+0f)); }
__device__ __forceinline__ float tangent(float x)
{
    const float square = x * x;
    const float away = fmaf(-2.0f, reciprocal(1.0f + power_of_2(x * 0x1.715476p+1f)), 1.0f);
    const float q = fmaf(fmaf(0x1.1abd04p-6f, square, -0x1.b29c16p-5f), square, 0x1.10ea8ep-3f);
    const float p = fmaf(q, square, -0x1.5554dap-2f);
    return fabsf(x) < 0.5f ? fmaf(x * square, p, x) : away;
}
/* The last two are NaN if either argument is. */
__device__ __forceinline__ float negative(float x) { return -x; }
__device__ __forceinline__ float maximum(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float minimum(float a, float b) { return a < b || a != a ? a : b; }
/* Both halves of a state; NaN has no sign here, so that no state is NOTHING. */
__device__ __forceinline__ unsigned halves_of(float x)
{
    const half_bits high = half_of(x);
    const float rounded = float_of(high);
    return high | (rounded == x ? 0u : (unsigned)half_of((x - rounded) * REST) << 16);
}
__device__ __forceinline__ void pass_on(unsigned* to, unsigned x)
{
    asm volatile("st.relaxed.gpu.global.u32 [%%0], %%1;" : : "l"(to), "r"(x) : "memory");
}
__device__ __forceinline__ uint4 four(const unsigned* from)
{
    uint4 y;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%%0, %%1, %%2, %%3}, [%%4];"
                 : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "l"(from) : "memory");
    return y;
}
__device__ __forceinline__ unsigned largest(uint4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }
/* What comes later is seen by nobody who does not see what came before. */
__device__ __forceinline__ void order() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }
__device__ __forceinline__ void multiply_add(
    float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%%0, %%1, %%2, %%3}, {%%4, %%5, %%6, %%7}, {%%8, %%9}, "
        "{%%0, %%1, %%2, %%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned first_halves(unsigned a, unsigned b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ unsigned other_halves(unsigned a, unsigned b) { return __byte_perm(a, b, 0x7632); }
/* Steps `first` to `last`, or back, of one direction: `projected` are their inputs, weighted, { steps, batch, gates,
   hidden }, and `states` are { state or cell, batch, hidden }. A block has all gates of its units, of CHUNKS times 16
   items. `exchanged` is what blocks pass to each other, { turn, item, DEPTH }: a state, or NOTHING until it is there.
   After a step all blocks have read the states before it: what these were in becomes NOTHING, long before its turn
   comes again; `order`, every few steps, sees to it that nobody sees what was there before. What is beyond the items
   and hidden elements is 0. */
extern "C" __global__ void __launch_bounds__(THREADS, 1) layer(
    const float* __restrict__ projected, const float* __restrict__ bias, const half_bits* __restrict__ recurrence,
    const float* __restrict__ peephole, const unsigned* __restrict__ lengths, float* __restrict__ states,
    unsigned* exchanged, half_bits* __restrict__ sequence, unsigned long long apart, unsigned steps, unsigned batch,
    unsigned hidden, unsigned first, bool is_backward, float clip)
{
    __shared__ float sums[WARPS][16][STRIDE];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x %% 32, group = lane / 4, quarter = lane %% 4;
    const unsigned first_unit = blockIdx.x * UNITS, first_item = blockIdx.y * CHUNKS * 16;
    const unsigned from = (warp * PAIRS) * 32 + quarter * 8;
    const unsigned long long plane = (unsigned long long)gridDim.y * CHUNKS * 16 * DEPTH;
    /* The order of the terms is free: a lane has 8 hidden elements one after the other of each 32. */
    unsigned weights[PAIRS][TILES][4];
    #pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
        #pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const unsigned column = tile * 8 + group, gate = column / UNITS, unit = first_unit + column %% UNITS;
            const unsigned k = from + pair * 32;
            const half_bits* row = recurrence + ((unsigned long long)gate * hidden + unit) * hidden;
            const bool there = gate < GATES && unit < hidden;
            #pragma unroll
            for (int word = 0; word < 4; ++word) {
                const unsigned one = there && k + 2 * word < hidden ? row[k + 2 * word] : 0;
                const unsigned other = there && k + 2 * word + 1 < hidden ? row[k + 2 * word + 1] : 0;
                weights[pair][tile][word] = one | other << 16;
            }
        }
    /* A thread's elements, and what it knows of them. */
    float hiddens[CHUNKS][PER], cells[CHUNKS][PER], of_inputs[PER][GATES], of_states[PER][GATES], of_cells[PER][3];
    unsigned lasts[CHUNKS][PER];
    const unsigned long long count = (unsigned long long)batch * hidden;
    #define UNIT(n) (first_unit + (threadIdx.x + (n) * THREADS) %% UNITS)
    #define ITEM(chunk, n) (first_item + (chunk) * 16 + (threadIdx.x + (n) * THREADS) / UNITS)
    #define IS_THERE(chunk, n) \
        (threadIdx.x + (n) * THREADS < 16 * UNITS && ITEM(chunk, n) < batch && UNIT(n) < hidden)
    #pragma unroll
    for (int n = 0; n < PER; ++n) {
        #pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
            of_inputs[n][gate] = UNIT(n) < hidden ? bias[gate * hidden + UNIT(n)] : 0;
            of_states[n][gate] = UNIT(n) < hidden ? bias[(GATES + gate) * hidden + UNIT(n)] : 0;
        }
        #pragma unroll
        for (int gate = 0; gate < 3; ++gate)
            of_cells[n][gate] = %(is_lstm)d && UNIT(n) < hidden ? peephole[gate * hidden + UNIT(n)] : 0;
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            if (IS_THERE(chunk, n)) {
                const unsigned long long at = (unsigned long long)ITEM(chunk, n) * hidden + UNIT(n);
                hiddens[chunk][n] = states[at];
                cells[chunk][n] = %(is_lstm)d ? states[count + at] : 0;
                lasts[chunk][n] = lengths ? lengths[ITEM(chunk, n)] : ~0u;
                pass_on(exchanged + (unsigned long long)ITEM(chunk, n) * DEPTH + UNIT(n), halves_of(hiddens[chunk][n]));
            }
    }
    for (unsigned turn = 0; turn < steps; ++turn) {
        const unsigned here = is_backward ? steps - 1 - turn : turn;
        const unsigned* before = exchanged + turn %% TURNS * plane;
        unsigned* after = exchanged + (turn + 1) %% TURNS * plane;
        unsigned* past = exchanged + (turn + TURNS - 1) %% TURNS * plane;
        /* What does not wait for other blocks. */
        float given[CHUNKS][PER][GATES];
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            #pragma unroll
            for (int n = 0; n < PER; ++n)
                if (IS_THERE(chunk, n)) {
                    const unsigned long long item = (unsigned long long)here * batch + ITEM(chunk, n);
                    #pragma unroll
                    for (int gate = 0; gate < GATES; ++gate)
                        given[chunk][n][gate] = __ldcg(projected + (item * GATES + gate) * hidden + UNIT(n));
                }
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const unsigned* mine = before + (unsigned long long)(first_item + chunk * 16 + group) * DEPTH + from;
            uint4 words[PAIRS][4];
            unsigned most;
            do {
                most = 0;
                #pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair)
                    #pragma unroll
                    for (int n = 0; n < 4; ++n)
                        words[pair][n] = four(mine + pair * 32 + n / 2 * 4 + n %% 2 * 8 * DEPTH);
                #pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair)
                    #pragma unroll
                    for (int n = 0; n < 4; ++n) most = max(most, largest(words[pair][n]));
            } while (most == NOTHING);
            __syncwarp();
            float high[TILES][4] = {}, rest[TILES][4] = {};
            #pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint4 a = words[pair][half * 2], b = words[pair][half * 2 + 1];
                    #pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        const unsigned* w = weights[pair][tile] + half * 2;
                        multiply_add(high[tile], first_halves(a.x, a.y), first_halves(b.x, b.y), first_halves(a.z, a.w),
                                     first_halves(b.z, b.w), w[0], w[1]);
                        multiply_add(rest[tile], other_halves(a.x, a.y), other_halves(b.x, b.y), other_halves(a.z, a.w),
                                     other_halves(b.z, b.w), w[0], w[1]);
                    }
                }
            #pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                #pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const float most = high[tile][n], both = fmaf(rest[tile][n], 1.0f / REST, most);
                    /* What is 0 beside an infinite weight is no more than lost. */
                    sums[warp][group + n / 2 * 8][tile * 8 + quarter * 2 + n %% 2] = both == both ? both : most;
                }
            __syncthreads();
            half_bits made[PER];
            #pragma unroll
            for (int n = 0; n < PER; ++n)
                if (IS_THERE(chunk, n)) {
                    const unsigned row = (threadIdx.x + n * THREADS) / UNITS, unit = UNIT(n) - first_unit;
                    float of_input[GATES], of_state[GATES];
                    #pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) {
                        float sum = 0;
                        #pragma unroll
                        for (int part = 0; part < WARPS; ++part) sum += sums[part][row][gate * UNITS + unit];
                        of_input[gate] = given[chunk][n][gate] + of_inputs[n][gate];
                        of_state[gate] = sum + of_states[n][gate];
                    }
                    float &h = hiddens[chunk][n], &cell = cells[chunk][n];
                    const bool there = lasts[chunk][n] > first + here;
                    if (there) {
%(step)s
                    }
                    const unsigned long long at = (unsigned long long)ITEM(chunk, n) * DEPTH + UNIT(n);
                    pass_on(after + at, halves_of(h));
                    if (turn) pass_on(past + at, NOTHING);
                    made[n] = there ? half_of(h) : 0;
                }
            if (chunk + 1 < CHUNKS) __syncthreads();
            #pragma unroll
            for (int n = 0; n < PER; ++n)
                if (sequence && IS_THERE(chunk, n))
                    sequence[here * apart + (unsigned long long)ITEM(chunk, n) * hidden + UNIT(n)] = made[n];
        }
        if (turn %% ORDERED == 0) order();
        __syncthreads();
    }
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk)
        #pragma unroll
        for (int n = 0; n < PER; ++n)
            if (IS_THERE(chunk, n)) {
                const unsigned long long at = (unsigned long long)ITEM(chunk, n) * hidden + UNIT(n);
                states[at] = hiddens[chunk][n];
                if (%(is_lstm)d) states[count + at] = cells[chunk][n];
            }
}
"""
