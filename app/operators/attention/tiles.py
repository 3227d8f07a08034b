"""Attention by our kernels on a GPU (kernel.py): what they do, in which form, and how many blocks of it."""

import math
from functools import cache
from typing import Any

import numpy as np

from app.operators.attention.kernel import KEYS, THREADS, Form, source
from app.operators.attention.steps import steps_of
from app.operators.grids import blocks_of
from app.operators.written import kernel

MOST_SIZE = 128
"""Of a head."""

MOST_HEADS = 65535
"""Of keys, of all items: what a grid has in its second dimension."""

MOST_SCORES = 1 << 33
"""That are made without a look whether to go on: a tenth of a second."""

LEAST_TILES = 2
"""That a block goes through, if there are so many."""

FEW_ROWS = 8
"""Queries of all heads that go with the same keys, which are few: lanes have all of them."""


def attention(cupy: Any, query: Any, key: Any, value: Any, scale: float, added: Any = None, into: Any = None) -> Any:
    """{ batch, queries, heads, size } of the attention of { batch, heads, items, size }, float32 or float16, made in
    `into` if that is packed; None if the kernels do not do this. Keys and values may have fewer heads, each for a
    group of queries'. `added` to the scores is float32 or float16 { batch, heads, queries, keys }, of which dimensions
    of 1 repeat.

    All is added up in float32, and so are the exponentials.
    """
    batch, heads, queries, size = query.shape
    key_heads, keys, value_size = key.shape[1], key.shape[2], value.shape[-1]
    if not 0 < scale < math.inf or not all(0 < each <= MOST_SIZE for each in (size, value_size)):
        return None  # the largest product is taken for the largest score
    if batch * key_heads > MOST_HEADS or batch * heads * queries * keys > MOST_SCORES:
        return None
    if not all(map(is_of_vectors, (query, key, value))):
        return None
    ordinal = cupy.cuda.runtime.getDevice()
    processors, most_bytes = _gpu(cupy, ordinal)
    rows = heads // key_heads * queries
    types = query.dtype.name, "" if added is None else added.dtype.name
    form = form_of(processors, most_bytes, (batch * key_heads, rows), (size, value_size), *types)
    if form is None:
        return None
    blocks = -(-rows // form.block)
    part = part_of(processors, blocks * batch * key_heads, keys, few=form.is_few)
    parts = -(-keys // part)
    made = (batch, queries, heads, value_size)
    fits = into is not None and into.dtype == query.dtype and into.flags.c_contiguous and into.data.ptr % 16 == 0
    result = into.reshape(made) if fits else cupy.empty(made, query.dtype)
    all_rows = batch * key_heads * rows
    found = cupy.empty((all_rows * parts, value_size), "float32") if parts > 1 else result
    told = cupy.empty((all_rows * parts, 2), "float32") if parts > 1 else result
    given = query if added is None else cupy.broadcast_to(added, (batch, heads, queries, keys))
    shape = np.array([(heads, heads // key_heads, queries, keys, part)], _SHAPE)[0]
    base = np.float32(math.log2(math.e))
    factor = np.float32(scale) * base if added is None else base
    attention = kernel(cupy, source(form), "attention", shared_bytes=form.shared_bytes)
    attention(
        (blocks, batch * key_heads, parts),
        (THREADS,),
        (
            *(query, key, value, given, result, found, told, *map(steps_of, (query, key, value, given))),
            *(np.uint64(given.strides[-1] // given.itemsize), shape, np.float32(scale), factor),
        ),
        shared_mem=form.shared_bytes,
    )
    if parts > 1:
        work = all_rows * value_size // 4
        arguments = (found, told, result, shape, np.uint32(parts), np.uint64(work), factor)
        kernel(cupy, source(form), "together")(blocks_of(work, THREADS), (THREADS,), arguments)
    return result


def form_of(
    processors: int,
    shared_bytes: int,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    dtype: str = "float32",
    added: str = "",
) -> Form | None:
    """For a GPU of so many multiprocessors, of whose shared memory a block can have so much; None if that is too
    little. `heads` are those of keys of all items, and the queries that go with each, `sizes` those of a head."""
    count, rows = heads
    if rows <= FEW_ROWS:
        forms = [Form(1 << (rows - 1).bit_length(), *sizes, True, dtype, added)]
    else:
        few, some = (-(-rows // (16 * each)) * count for each in (8, 4))
        # Two blocks of the largest fit on a multiprocessor, three of the others: together they take 1.2 times as long
        # as these three, whether all are there or not.
        whole = -(-few // (2 * processors)) * 1.2 <= some / (3 * processors)
        wanted = 8 if whole and sizes[1] <= 64 else 4 if some >= processors else 2
        forms = [Form(each, *sizes, False, dtype, added) for each in (8, 4, 2) if each <= wanted]
    return next((form for form in forms if form.shared_bytes + 1024 <= shared_bytes), None)


def part_of(processors: int, blocks: int, keys: int, *, few: bool) -> int:
    """How many of the keys a block goes through, if there are so many of them for all keys."""
    tiles = -(-keys // KEYS)
    wanted = (4 if few else 2) * processors
    parts = max(min(wanted // blocks, tiles // LEAST_TILES), 1)
    return -(-tiles // parts) * KEYS


@cache
def _gpu(cupy: Any, ordinal: int) -> tuple[int, int]:
    """Its multiprocessors, and the bytes that a block can have."""
    known = cupy.cuda.Device(ordinal).attributes
    return known["MultiProcessorCount"], known["MaxSharedMemoryPerBlockOptin"]


def is_of_vectors(x: Any) -> bool:
    """Whether it can be read and written 16 bytes at a time."""
    *outer, inner = x.strides
    is_whole = x.shape[-1] * x.itemsize % 16 == 0
    return is_whole and inner == x.itemsize and all(step % 16 == 0 for step in outer) and x.data.ptr % 16 == 0


_SHAPE = np.dtype([(name, np.uint32) for name in ("heads", "groups", "queries", "keys", "part")])
