"""All steps of a layer of FLOAT16 by one kernel on a GPU, whose blocks keep the weights of some hidden elements in
registers and pass the states to each other.

Products are those of tensor cores, which multiply halves and add in float32. A state is two halves, of which the second
is what the first has lost, times 2^11: together they have 22 digits, so that next to nothing of float32 is lost.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators.arrays import SCRATCH, product, spans

WARPS = 8
"""Of a block. Each adds up the products of as many hidden elements as the others."""

MOST_WORDS = 144
"""Registers that a thread has for weights and sums; there are 255."""

MOST_TILES = 5
"""Columns of a block, 8 at a time, of which sums of all warps fit into its shared memory."""

MOST_BATCH = 512
"""Items beyond which a product for each step is as quick."""

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
    rows: int
    """Items at a time: 16 or 32."""
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
        """Registers for weights and sums."""
        return 4 * self.depth * self.tiles + self.rows // 2 * self.tiles


def form_of(kind: str, activations: Sequence[str], sizes: tuple[int, int], processors: int) -> Form | None:
    """For `sizes`, items and hidden elements, on a GPU with so many multiprocessors that can run it. None if it is not
    for the kernel."""
    batch, hidden = sizes
    functions = tuple(FUNCTIONS.get(each, "") for each in activations)
    if not processors or batch > MOST_BATCH or "" in functions or (kind != "RNN" and functions[0] != "sigmoid"):
        return None
    units = max(2 * math.ceil(hidden / processors / 2), 2)
    form = Form(kind, functions, units, -(-hidden // (32 * WARPS)), 16 if batch <= 16 else 32)
    return form if form.words <= MOST_WORDS and form.tiles <= MOST_TILES else None


_LAYER = r"""
#define GATES %(gates)d
#define UNITS %(units)d
#define PAIRS %(depth)d
#define TILES %(tiles)d
#define ROWS %(rows)d
#define WARPS %(warps)d
#define DEPTH (32 * PAIRS * WARPS)
#define STRIDE (8 * TILES + 4)
#define PER ((ROWS * UNITS + 32 * WARPS - 1) / (32 * WARPS))
#define REST 2048.0f
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
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }
__device__ __forceinline__ float tangent(float x) { return tanhf(x); }
__device__ __forceinline__ float clipped(float x, float clip)
{
    return %(clips)d ? x < -clip ? -clip : x > clip ? clip : x : x;
}
__device__ __forceinline__ unsigned seen(const unsigned* flag)
{
    unsigned y;
    asm volatile("ld.acquire.gpu.global.u32 %%0, [%%1];" : "=r"(y) : "l"(flag) : "memory");
    return y;
}
__device__ __forceinline__ void show(unsigned* flag, unsigned turn)
{
    asm volatile("st.release.gpu.global.u32 [%%0], %%1;" : : "l"(flag), "r"(turn) : "memory");
}
__device__ __forceinline__ void multiply_add(
    float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%%0, %%1, %%2, %%3}, {%%4, %%5, %%6, %%7}, {%%8, %%9}, "
        "{%%0, %%1, %%2, %%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint4 eight(const half_bits* from) { return __ldcg((const uint4*)from); }
/* `turn` becomes the flag of a block once all that it has written can be read. */
__device__ __forceinline__ void publish(unsigned* flags, unsigned turn)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        show(flags + blockIdx.x, turn);
    }
}
__device__ __forceinline__ void pass_on(half_bits* exchanged, unsigned long long plane, unsigned long long at, float x)
{
    const half_bits high = half_of(x);
    const float rounded = float_of(high);
    exchanged[at] = high;
    exchanged[plane + at] = rounded == x ? 0 : half_of((x - rounded) * REST);
}
/* Steps `first` to `last`, or back, of one direction: `projected` are their inputs, weighted, { steps, batch, gates,
   hidden }, and `states` are { state or cell, batch, hidden }. Blocks have all gates of their units; `exchanged` are
   states before and after a step, { 2, high or rest, items, DEPTH }, in which the first WARPS * PAIRS * 32 hidden
   elements are there, those beyond them 0, and so are all flags in the beginning. */
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) layer(
    const float* __restrict__ projected, const float* __restrict__ bias, const half_bits* __restrict__ recurrence,
    const float* __restrict__ peephole, const unsigned* __restrict__ lengths, float* states,
    half_bits* exchanged, unsigned* flags, half_bits* sequence, unsigned long long apart, unsigned steps,
    unsigned batch, unsigned hidden, unsigned first, bool is_backward, float clip)
{
    __shared__ float sums[WARPS][ROWS][STRIDE];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x %% 32, group = lane / 4, quarter = lane %% 4;
    const unsigned items = (batch + ROWS - 1) / ROWS * ROWS;
    const unsigned long long plane = (unsigned long long)items * DEPTH;
    const unsigned first_unit = blockIdx.x * UNITS;
    /* The order of the terms is free: a lane has 8 hidden elements one after the other of each 32. */
    unsigned weights[PAIRS][TILES][4];
    #pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
        #pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const unsigned column = tile * 8 + group, gate = column / UNITS, unit = first_unit + column %% UNITS;
            const unsigned k = (warp * PAIRS + pair) * 32 + quarter * 8;
            const half_bits* row = recurrence + ((unsigned long long)gate * hidden + unit) * hidden;
            const bool there = gate < GATES && unit < hidden;
            #pragma unroll
            for (int word = 0; word < 4; ++word) {
                const unsigned one = there && k + 2 * word < hidden ? row[k + 2 * word] : 0;
                const unsigned other = there && k + 2 * word + 1 < hidden ? row[k + 2 * word + 1] : 0;
                weights[pair][tile][word] = one | other << 16;
            }
        }
    const unsigned from = warp * PAIRS * 32, beyond = from + PAIRS * 32 < hidden ? from + PAIRS * 32 : hidden;
    const unsigned first_block = from / UNITS, blocks = from < beyond ? (beyond - 1) / UNITS + 1 : first_block;
    const unsigned long long count = (unsigned long long)batch * hidden;

    for (unsigned n = threadIdx.x; n < batch * UNITS; n += 32 * WARPS) {
        const unsigned item = n / UNITS, unit = first_unit + n %% UNITS;
        if (unit < hidden)
            pass_on(exchanged, plane, (unsigned long long)item * DEPTH + unit,
                    states[(unsigned long long)item * hidden + unit]);
    }
    publish(flags, 1);

    for (unsigned turn = 0; turn < steps; ++turn) {
        const unsigned here = is_backward ? steps - 1 - turn : turn;
        const half_bits* before = exchanged + (turn & 1) * 2 * plane;
        half_bits* after = exchanged + (~turn & 1) * 2 * plane;
        for (unsigned begin = 0; begin < batch; begin += ROWS) {
            /* What does not wait for other blocks. */
            float given[PER][GATES], hidden_before[PER], cell_before[PER];
            #pragma unroll
            for (int n = 0; n < PER; ++n) {
                const unsigned element = threadIdx.x + n * 32 * WARPS, item = begin + element / UNITS;
                const unsigned unit = first_unit + element %% UNITS;
                if (element < ROWS * UNITS && item < batch && unit < hidden) {
                    const float* input = projected + ((unsigned long long)here * batch + item) * GATES * hidden + unit;
                    #pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) given[n][gate] = __ldcg(input + gate * hidden);
                    hidden_before[n] = states[(unsigned long long)item * hidden + unit];
                    if (%(is_lstm)d) cell_before[n] = states[count + (unsigned long long)item * hidden + unit];
                }
            }
            if (begin == 0) {
                for (unsigned block = first_block + lane; block < blocks; block += 32)
                    while (seen(flags + block) < turn + 1) {}
                __syncwarp();
            }
            float high[ROWS / 16][TILES][4] = {}, rest[ROWS / 16][TILES][4] = {};
            const half_bits* mine = before + (unsigned long long)(begin + group) * DEPTH + from + quarter * 8;
            #pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
                #pragma unroll
                for (int sixteen = 0; sixteen < ROWS / 16; ++sixteen) {
                    const half_bits* at = mine + sixteen * 16 * DEPTH + pair * 32;
                    const uint4 a = eight(at), b = eight(at + 8 * DEPTH);
                    const uint4 c = eight(at + plane), d = eight(at + plane + 8 * DEPTH);
                    #pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        const unsigned* w = weights[pair][tile];
                        multiply_add(high[sixteen][tile], a.x, b.x, a.y, b.y, w[0], w[1]);
                        multiply_add(rest[sixteen][tile], c.x, d.x, c.y, d.y, w[0], w[1]);
                        multiply_add(high[sixteen][tile], a.z, b.z, a.w, b.w, w[2], w[3]);
                        multiply_add(rest[sixteen][tile], c.z, d.z, c.w, d.w, w[2], w[3]);
                    }
                }
            #pragma unroll
            for (int sixteen = 0; sixteen < ROWS / 16; ++sixteen)
                #pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
                    #pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        const float most = high[sixteen][tile][n];
                        const float both = fmaf(rest[sixteen][tile][n], 1.0f / REST, most);
                        /* What is 0 beside an infinite weight is no more than lost. */
                        sums[warp][sixteen * 16 + group + n / 2 * 8][tile * 8 + quarter * 2 + n %% 2] =
                            both == both ? both : most;
                    }
            __syncthreads();
            half_bits made[PER];
            #pragma unroll
            for (int n = 0; n < PER; ++n) {
                const unsigned element = threadIdx.x + n * 32 * WARPS, row = element / UNITS, item = begin + row;
                const unsigned unit = first_unit + element %% UNITS;
                if (element < ROWS * UNITS && item < batch && unit < hidden) {
                    float of_input[GATES], of_state[GATES];
                    #pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) {
                        const unsigned place = gate * hidden + unit, column = gate * UNITS + element %% UNITS;
                        float sum = 0;
                        #pragma unroll
                        for (int part = 0; part < WARPS; ++part) sum += sums[part][row][column];
                        of_input[gate] = given[n][gate] + bias[place];
                        of_state[gate] = sum + bias[GATES * hidden + place];
                    }
                    float h = hidden_before[n];
                    const bool there = lengths == 0 || lengths[item] > first + here;
                    if (there) {
%(step)s
                    }
                    const unsigned long long at = (unsigned long long)item * hidden + unit;
                    states[at] = h;
                    pass_on(after, plane, (unsigned long long)item * DEPTH + unit, h);
                    made[n] = there ? half_of(h) : 0;
                }
            }
            if (begin + ROWS >= batch) publish(flags, turn + 2);
            else __syncthreads();
            #pragma unroll
            for (int n = 0; n < PER; ++n) {
                const unsigned element = threadIdx.x + n * 32 * WARPS, item = begin + element / UNITS;
                const unsigned unit = first_unit + element %% UNITS;
                if (sequence && element < ROWS * UNITS && item < batch && unit < hidden)
                    sequence[here * apart + (unsigned long long)item * hidden + unit] = made[n];
            }
        }
    }
}
"""

_STEPS = {
    "RNN": "h = {0}(of_input[0] + of_state[0]);",
    "LSTM": """const float cell = cell_before[n];
#define SUM(gate) (of_input[gate] + of_state[gate])
const float i = {0}(clipped(SUM(0) + peephole[unit] * cell, clip));
const float f = COUPLES ? 1.0f - i : {0}(clipped(SUM(2) + peephole[2 * hidden + unit] * cell, clip));
const float c = f * cell + i * {1}(clipped(SUM(3), clip));
const float o = {0}(clipped(SUM(1) + peephole[hidden + unit] * c, clip));
h = o * {2}(clipped(c, clip));
states[count + (unsigned long long)item * hidden + unit] = c;""",
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
    items, depth = -(-batch // form.rows) * form.rows, 32 * WARPS * form.depth
    blocks = -(-hidden // form.units)
    nothing = np.uint64(0)
    most = min(max(SCRATCH["cupy"] // (4 * batch * width), 1), STEPS)
    order = [*spans(steps, most)]
    for some in reversed(order) if is_backward else order:
        projected = product(cupy, layer.x[some], layer.weights.T)
        exchanged = cupy.zeros(4 * items * depth + 2 * blocks, np.uint16)
        flags = exchanged[4 * items * depth :]
        sequence = layer.sequence
        apart = 0 if sequence is None else sequence.strides[0] // sequence.itemsize
        _kernel(cupy, form)(
            (blocks,),
            (32 * WARPS,),
            (
                *(projected, layer.bias, layer.recurrence, layer.peephole),
                nothing if layer.lengths is None else layer.lengths,
                *(layer.states, exchanged, flags, nothing if sequence is None else sequence[some]),
                *(np.uint64(apart), np.uint32(some.stop - some.start), np.uint32(batch), np.uint32(hidden)),
                *(np.uint32(some.start), np.bool_(is_backward), np.float32(clip)),
            ),
        )


@cache
def _kernel(cupy: Any, form: Form) -> Any:
    return cupy.RawKernel(source(form), "layer", enable_cooperative_groups=True)
