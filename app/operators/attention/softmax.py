"""Softmax of scores; on a GPU by one kernel that reads and writes each of them once."""

from typing import Any, NamedTuple, Protocol

from app.formula.values import Value, equal, where
from app.operators.activation import softmax as shares
from app.operators.written import kernel

THREADS = 128
"""Of a block, which has one row."""

KEPT = 16
"""Scores that a thread keeps in registers; those of longer rows are read three times."""

_SOFTMAX = r"""
#define NOTHING __int_as_float(0xff800000)
template <class Join> __device__ __forceinline__ float all_of(float value, Join join)
{
    __shared__ float of_warps[%(threads)d / 32];
    for (int apart = 16; apart > 0; apart /= 2) value = join(value, __shfl_xor_sync(~0u, value, apart));
    __syncthreads();
    if (threadIdx.x %% 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warps[0];
    for (int n = 1; n < %(threads)d / 32; ++n) value = join(value, of_warps[n]);
    return value;
}
/* Each row x becomes exp(scale x - m) / sum(exp(scale x - m)), m being the largest scale x. */
extern "C" __global__ void __launch_bounds__(%(threads)d) softmax(float* scores, unsigned length, float scale)
{
    float* row = scores + (unsigned long long)blockIdx.x * length;
    auto larger = [](float a, float b) { return fmaxf(a, b); };
    auto sum = [](float a, float b) { return a + b; };
    float most = NOTHING, total = 0;
    if (length <= %(threads)d * %(kept)d) {
        float kept[%(kept)d];
        #pragma unroll
        for (int n = 0; n < %(kept)d; ++n) {
            const unsigned at = threadIdx.x + n * %(threads)d;
            kept[n] = at < length ? __fmul_rn(row[at], scale) : NOTHING;
            most = fmaxf(most, kept[n]);
        }
        most = all_of(most, larger);
        #pragma unroll
        for (int n = 0; n < %(kept)d; ++n) {
            kept[n] = expf(kept[n] - most);
            if (threadIdx.x + n * %(threads)d < length) total += kept[n];
        }
        total = all_of(total, sum);
        #pragma unroll
        for (int n = 0; n < %(kept)d; ++n) {
            const unsigned at = threadIdx.x + n * %(threads)d;
            if (at < length) row[at] = kept[n] / total;
        }
        return;
    }
    for (unsigned at = threadIdx.x; at < length; at += %(threads)d) most = fmaxf(most, __fmul_rn(row[at], scale));
    most = all_of(most, larger);
    for (unsigned at = threadIdx.x; at < length; at += %(threads)d) {
        row[at] = expf(__fmul_rn(row[at], scale) - most);
        total += row[at];
    }
    total = all_of(total, sum);
    for (unsigned at = threadIdx.x; at < length; at += %(threads)d) row[at] /= total;
}
"""

_SOURCE = _SOFTMAX % {"threads": THREADS, "kept": KEPT}


class Added(NamedTuple):
    """What is added to scores, one after the other, each of which repeats along dimensions of 1: numbers, `filtered`
    where a mask is 0, and numbers of keys."""

    relative: Any = None
    masked: Any = None
    of_keys: Any = None
    filtered: float = 0

    @property
    def is_nothing(self) -> bool:
        return self.relative is None and self.masked is None and self.of_keys is None


NOTHING = Added()


class Softmax(Protocol):
    """What `softmax` does, by whatever a device has for it."""

    def __call__(self, xp: Any, scores: Any, scale: float, added: Added = NOTHING) -> None: ...


def weights(scores: Value, scale: Value, added: Added, filtered: Value) -> Value:
    """The same as a formula of a row's element, of what is added all as values."""
    made = scores * scale
    if added.relative is not None:
        made = made + added.relative
    if added.masked is not None:
        made = made + where(equal(added.masked, 0), filtered, 0)
    if added.of_keys is not None:
        made = made + added.of_keys
    return shares.softmax(made)


def softmax(xp: Any, scores: Any, scale: float, added: Added = NOTHING) -> None:
    """Of the last dimension of packed float32 `scores` times `scale`, and something added, in their place; NaN of a row
    with NaN."""
    if not added.is_nothing:
        scores *= scale
        scale = 1
        if added.relative is not None:
            scores += added.relative
        if added.masked is not None:
            scores += xp.where(added.masked == 0, added.filtered, 0).astype("float32")
        if added.of_keys is not None:
            scores += added.of_keys
    if xp.__name__ != "cupy":
        if scale != 1:
            scores *= scale
        scores -= scores.max(axis=-1, keepdims=True)
        xp.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return
    length = scores.shape[-1]
    kernel(xp, _SOURCE, "softmax")((scores.size // length,), (THREADS,), (scores, xp.uint32(length), xp.float32(scale)))
