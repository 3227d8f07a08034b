"""Keys and values that follow those of a past, of which there may be fewer than it has room for."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from app.operators.attention.steps import STEPS, steps_of
from app.operators.attention.tiles import is_of_vectors
from app.operators.grids import blocks_of
from app.operators.written import kernel

_PRESENTS = ("OutputPresentKeyTensor", "OutputPresentValueTensor")

_THREADS = 256

_WORDS = {2: "unsigned short", 4: "unsigned", 16: "uint4"}
"""By their bytes."""

_KERNEL = r"""
/* A thread has a word of the whole: one of the past, of what is new behind it, or 0. */
extern "C" __global__ void __launch_bounds__(%(threads)d) follow(
    const %(word)s* __restrict__ past, const %(word)s* __restrict__ added, %(word)s* __restrict__ whole,
    const long long* __restrict__ lengths, const steps of_past, const steps of_added, unsigned heads, unsigned capacity,
    unsigned count, unsigned words, unsigned long long all)
{
    const unsigned long long at = (unsigned long long)blockIdx.x * %(threads)d + threadIdx.x;
    if (at >= all) return;
    const unsigned word = at %% words, items = capacity + count;
    const unsigned long long row = at / words, of_heads = row / items;
    const unsigned item = row %% items, head = of_heads %% heads;
    const unsigned long long batch = of_heads / heads;
    const unsigned length = lengths ? lengths[batch] : capacity;
    %(word)s made = {};
    if (item < length) made = past[batch * of_past.batch + head * of_past.head + item * of_past.item + word];
    else if (item - length < count)
        made = added[batch * of_added.batch + head * of_added.head + (item - length) * of_added.item + word];
    whole[at] = made;
}
"""


def made_in_place(into: Mapping[str, Any], key: Any) -> dict[str, Any]:
    """Those present outputs of `into` that `with_past` can fill, for heads like `key`."""
    presents = {name: into[name] for name in _PRESENTS if name in into}
    return {name: x for name, x in presents.items() if x.flags.c_contiguous and x.dtype == key.dtype}


def with_past(
    xp: Any, inputs: Mapping[str, Any], key: Any, value: Any, into: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """Keys and values behind those of the past, and, { batch, keys }, which positions hold none; None if all do.
    Present outputs that are in `into` are filled, and what is given for them lies there."""
    lengths = beyond = None
    if "PastSequenceLengthsTensor" in inputs:
        capacity, new = inputs["PastKeyTensor"].shape[-2], key.shape[2]
        lengths = inputs["PastSequenceLengthsTensor"].reshape(-1).astype("float32")
        lengths = xp.where(lengths > 0, xp.minimum(lengths, capacity), 0).astype("int64")
        beyond = xp.arange(capacity + new) >= lengths[:, None] + new
    made = []
    for part, present, x in (("Key", _PRESENTS[0], key), ("Value", _PRESENTS[1], value)):
        past, whole = inputs.get(f"Past{part}Tensor"), into.get(present)
        if past is None:
            if whole is not None:
                whole.reshape(x.shape)[...] = x
            made.append(x if whole is None else whole.reshape(x.shape))
            continue
        past = past.reshape(past.shape[-4:]).astype(x.dtype, copy=False)
        sizes = (*x.shape[:2], past.shape[2] + x.shape[2], x.shape[3])
        made.append(xp.empty(sizes, x.dtype) if whole is None else whole.reshape(sizes))
        (_follow_on_gpu if xp.__name__ == "cupy" else _follow)(xp, past, x, lengths, made[-1])
    return made[0], made[1], beyond


def _follow(_: Any, past: Any, new: Any, lengths: Any, whole: Any) -> None:
    """`new` behind as much of `past` as there is, { batch, heads, items, size }, and zeros behind both."""
    count = new.shape[2]
    if lengths is None:
        whole[:, :, : past.shape[2]] = past
        whole[:, :, past.shape[2] :] = new
        return
    for batch, length in enumerate(lengths.tolist()):
        whole[batch, :, :length] = past[batch, :, :length]
        whole[batch, :, length : length + count] = new[batch]
        whole[batch, :, length + count :] = 0


def _follow_on_gpu(cupy: Any, past: Any, new: Any, lengths: Any, whole: Any) -> None:
    """The same, 16 bytes at a time where they lie so: CuPy would copy element by element."""
    past, new = (x if x.strides[-1] == x.itemsize else cupy.ascontiguousarray(x) for x in (past, new))
    word = 16 if all(map(is_of_vectors, (past, new, whole))) else whole.itemsize
    words, all_words = whole.shape[-1] * whole.itemsize // word, whole.nbytes // word
    arguments = (
        *(past, new, whole, np.uint64(0) if lengths is None else lengths, steps_of(past, word), steps_of(new, word)),
        *map(np.uint32, (whole.shape[1], past.shape[2], new.shape[2], words)),
        np.uint64(all_words),
    )
    kernel(cupy, source(word), "follow")(blocks_of(all_words, _THREADS), (_THREADS,), arguments)


@cache
def source(word: int) -> str:
    """The kernel for words of so many bytes, in CUDA C++."""
    return STEPS + _KERNEL % {"threads": _THREADS, "word": _WORDS[word]}
