"""All steps of a layer of FLOAT16 by one kernel on a GPU, whose blocks keep the weights of some hidden elements in
registers and pass the states to each other.

Products are those of tensor cores, which multiply halves and add in float32. A state is two halves, of which the second
is what the first has lost, times 2^11: together they have 22 digits, so that next to nothing of float32 is lost.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators.arrays import SCRATCH, product, spans

MOST_WORDS = 190
"""Registers that a thread has for weights, states and sums; there are 255."""

MOST_TILES = 10
"""Columns of a block, 8 at a time, of which sums of all warps fit into its shared memory."""

WARPS = 8
"""Of a block, each of which adds up the products of as many hidden elements."""

MOST_CHUNKS = 4
"""Items of a block, 16 at a time."""

TURNS = 16
"""States that there is memory for, of as many steps one after the other."""

LEAST_CAPABILITY = 80
"""From which on GPUs have these instructions."""

STEPS = 2048
"""That a kernel goes through at most, since nothing stops it: some milliseconds."""

FUNCTIONS = {"DML_OPERATOR_ACTIVATION_SIGMOID": "sigmoid", "DML_OPERATOR_ACTIVATION_TANH": "tangent"}
"""Activations that keep states where halves have their digits, by what the kernel calls them."""


class Form(NamedTuple):
    """What chooses code."""

    kind: str
    """RNN, LSTM, or GRU that weights the state before the reset gate."""
    functions: tuple[str, ...]
    units: int
    """Hidden elements of a block."""
    depth: int
    """Hidden elements that a warp adds up products of, 32 at a time."""
    chunks: int
    """Items of a block, 16 at a time."""
    clips: bool = False
    couples: bool = False

    @property
    def gates(self) -> int:
        return {"RNN": 1, "LSTM": 4, "GRU": 3}[self.kind]

    @property
    def tiles(self) -> int:
        """Columns of a block, 8 at a time."""
        return -(-self.gates * self.units // 8)

    @property
    def words(self) -> int:
        """Registers for weights, states, as they are read, and sums."""
        each = -(-16 * self.units // (32 * WARPS)) * (3 + self.gates)
        return 4 * self.depth * self.tiles + 16 * self.depth + 8 * self.tiles + self.chunks * each


def form_of(kind: str, activations: Sequence[str], sizes: tuple[int, int], processors: int) -> Form | None:
    """For `sizes`, items and hidden elements, on a GPU with so many multiprocessors that can run it: the one of the
    fewest items in a block, each of which is a multiprocessor's only one. None if it is not for the kernel."""
    batch, hidden = sizes
    functions = tuple(FUNCTIONS.get(each, "") for each in activations)
    if "" in functions or (kind != "RNN" and functions[0] != "sigmoid"):
        return None
    for chunks in range(1, MOST_CHUNKS + 1):
        beside = processors // -(-batch // (16 * chunks))
        if beside:
            form = Form(kind, functions, max(2 * -(-hidden // (2 * beside)), 2), -(-hidden // (32 * WARPS)), chunks)
            if form.words <= MOST_WORDS and form.tiles <= MOST_TILES:
                return form
    return None


_LAYER = r"""
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
__device__ __forceinline__ float clipped(float x, float clip)
{
    return %(clips)d ? x < -clip ? -clip : x > clip ? clip : x : x;
}
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
                    float& h = hiddens[chunk][n];
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

_STEPS = {
    "RNN": "h = {0}(of_input[0] + of_state[0]);",
    "LSTM": """#define SUM(gate) (of_input[gate] + of_state[gate])
float& cell = cells[chunk][n];
const float i = {0}(clipped(SUM(0) + of_cells[n][0] * cell, clip));
const float f = COUPLES ? 1.0f - i : {0}(clipped(SUM(2) + of_cells[n][2] * cell, clip));
cell = f * cell + i * {1}(clipped(SUM(3), clip));
const float o = {0}(clipped(SUM(1) + of_cells[n][1] * cell, clip));
h = o * {2}(clipped(cell, clip));""",
    "GRU": """const float z = {0}(of_input[0] + of_state[0]), r = {0}(of_input[1] + of_state[1]);
h = (1.0f - z) * {1}(of_input[2] + r * of_state[2]) + z * h;""",
}


def source(form: Form) -> str:
    """The kernel, in CUDA C++."""
    step = _STEPS[form.kind].format(*form.functions)
    values = {
        **form._asdict(),
        "gates": form.gates,
        "tiles": form.tiles,
        "turns": TURNS,
        "warps": WARPS,
        "clips": int(form.clips),
        "is_lstm": int(form.kind == "LSTM"),
        "step": "\n".join(" " * 24 + line for line in step.split("\n")),
    }
    return f"#define COUPLES {int(form.couples)}\n" + _LAYER % values


class Layer(NamedTuple):
    """One direction: CuPy's arrays, of float16 where tensors are, and otherwise as `layer` takes them."""

    x: Any
    """{ steps, batch, input }"""
    weights: Any
    """{ gates * hidden, input }"""
    bias: Any
    """float32 { 2 * gates * hidden }"""
    recurrence: Any
    """{ gates * hidden, hidden }"""
    peephole: Any
    """float32 { 3 * hidden }"""
    lengths: Any
    """uint32 { batch }, or None."""
    states: Any
    """float32 { 1 or 2, batch, hidden }: from these on, and in the end the last."""
    sequence: Any
    """float16 { steps, batch, hidden }, which it is made in, or None; only steps may lie apart."""


def processors(cupy: Any) -> int:
    """Multiprocessors of the current GPU; 0 if it does not do what the kernel needs."""
    return _processors(cupy, cupy.cuda.runtime.getDevice())


@cache
def _processors(cupy: Any, ordinal: int) -> int:
    device = cupy.cuda.Device(ordinal)
    known = device.attributes
    able = known["CooperativeLaunch"] and int(device.compute_capability) >= LEAST_CAPABILITY
    return int(known["MultiProcessorCount"]) if able else 0


def run(cupy: Any, form: Form, layer: Layer, *, is_backward: bool, clip: float) -> None:
    """Queue all of it on the current stream."""
    steps, batch, _ = layer.x.shape
    hidden = layer.recurrence.shape[-1]
    width = form.gates * hidden
    blocks = -(-hidden // form.units), -(-batch // (16 * form.chunks))
    nothing = np.uint64(0)
    order = [*spans(steps, min(max(SCRATCH["cupy"] // (4 * batch * width), 1), STEPS))]
    for some in reversed(order) if is_backward else order:
        projected = product(cupy, layer.x[some], layer.weights.T)
        exchanged = cupy.full((TURNS, blocks[1] * 16 * form.chunks, 32 * WARPS * form.depth), ~np.uint32(0))
        exchanged[:, batch:] = 0
        exchanged[:, :, hidden:] = 0
        sequence = layer.sequence
        apart = 0 if sequence is None else sequence.strides[0] // sequence.itemsize
        _kernel(cupy, form)(
            blocks,
            (32 * WARPS,),
            (
                *(projected, layer.bias, layer.recurrence, layer.peephole),
                nothing if layer.lengths is None else layer.lengths,
                *(layer.states, exchanged, nothing if sequence is None else sequence[some]),
                *(np.uint64(apart), np.uint32(some.stop - some.start), np.uint32(batch), np.uint32(hidden)),
                *(np.uint32(some.start), np.bool_(is_backward), np.float32(clip)),
            ),
        )


@cache
def _kernel(cupy: Any, form: Form) -> Any:
    return cupy.RawKernel(source(form), "layer", enable_cooperative_groups=True)
