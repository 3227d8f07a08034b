"""What operators that are calls on whole arrays have in common. `xp` is numpy or cupy throughout."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.formula.arrays import ArrayFormula
from app.formula.values import FLOAT32, Input
from app.memory.arrays import numpy_type
from app.operators import blas
from app.operators.fusion import Fused
from app.operators.looks import at_hand, copied, look, shared
from app.operators.parameters import numbers_in, parameters_for

SCRATCH = {"numpy": 4 << 20, "cupy": 256 << 20}
"""Bytes that are packed at a time at most, unless the least piece takes more: what a processor's cache holds in part,
or a GPU is busy with for long enough."""

_PRODUCTS = 1 << 34
"""What is multiplied at a time, with NumPy: some tenths of a second, of so many rows that a BLAS packs the other matrix
seldom enough."""

_WORTH_A_THREAD = 1 << 24
"""Products that take some 300 us: to wake a thread takes 50 to 100."""

_ALIGNED = 16
"""What rows or columns are cut at multiples of, so that a BLAS has whole vectors."""

READ = 8
"""What an element comes to beside its products, which is more where it has few of them."""

_MATRIX = 1 << 17
"""What a matrix of a batch comes to beside its products: the microsecond or two, or ten if it is copied, that a call of
a BLAS takes."""

_PIECE = {"numpy": 1 << 16, "cupy": 1 << 24}
"""Elements that an activation is computed of at a time: few enough to stay in a processor's cache, or enough for a GPU
to be busy."""


def stored(made: Any, data_type: DataType) -> Any:
    """`made`, rounded once to the type of the tensor that it becomes."""
    return _converted(made, numpy_type(data_type))


def unrepeated(x: Any) -> Any:
    """`x` with one coordinate along dimensions of stride 0, of which one is like the other."""
    return x[tuple([slice(0, 1) if stride == 0 else slice(None) for stride in x.strides])]


def computed(x: Any) -> Any:
    """`x` in the type it is computed in, FLOAT16 in float32; what is repeated is not converted again and again, and has
    size 1."""
    x = unrepeated(x)
    return _converted(x, FLOAT32) if x.dtype == "float16" else x


def _converted(x: Any, dtype: Any) -> Any:
    """`x` itself if it is of that type."""
    if not isinstance(x, np.ndarray) or x.dtype == dtype:
        return x.astype(dtype, copy=False)
    made = np.empty_like(x, dtype)
    if not copied(x, made):
        made[...] = x
    return made


class Activation:
    """A fused activation, its formula made once; null leaves things as they are."""

    def __init__(self, fused: Fused | None, axes: Sequence[int] = ()) -> None:
        """`axes` are those that its reductions go over, if it has any."""
        self._formula = _formula(fused, axes) if fused else None
        self._by_group = bool(axes)

    def __call__(self, xp: Any, x: Any) -> Any:
        """Of float32, in a new array, or of none `x` itself."""
        return self._formula(xp, {"x": x}) if self._formula else x

    def apply(self, xp: Any, x: Any) -> None:
        """To `x`, which is packed float32, in place and piece by piece; groups that are reduced are not cut."""
        if not self._formula:
            return
        if self._by_group:
            x[...] = self(xp, x)
            return
        flat = x.reshape(-1)
        for piece in spans(flat.size, _PIECE[xp.__name__]):
            flat[piece] = self(xp, flat[piece])


def _formula(fused: Fused, axes: Sequence[int]) -> ArrayFormula:
    return _known(type(fused), fused.model_dump_json(), tuple(axes))


@lru_cache(1024)
def _known(kind: type[Fused], text: str, axes: tuple[int, ...]) -> ArrayFormula:
    """That of the activation that `text` states: to make one takes longer than to compute some hundred elements."""
    fused = kind.model_validate_json(text)
    numbers = numbers_in(fused)
    x = Input(FLOAT32, "x", DataType.FLOAT32)
    return ArrayFormula(lambda ask: fused.formula(parameters_for(numbers, ask), x), numbers, axes)


def spans(size: int, most: int) -> Iterator[slice]:
    """`size` elements, `most` at a time, with a look before each."""
    for begin in range(0, size, most):
        look()
        yield slice(begin, min(begin + most, size))


def boxes(sizes: Sequence[int], most: int) -> Iterator[tuple[range, ...]]:
    """All coordinates in boxes of at most `most` elements, row-major, with a look before each; at least one."""
    if not sizes:
        yield ()
        return
    rest = math.prod(sizes[1:])
    step = max(most // rest, 1)
    for begin in range(0, sizes[0], step):
        along = range(begin, min(begin + step, sizes[0]))
        if rest <= most:
            look()
            yield (along, *map(range, sizes[1:]))
        else:
            yield from ((along, *inner) for inner in boxes(sizes[1:], most))


def product(xp: Any, a: Any, b: Any, *, rounded: bool = False, into: Any = None) -> Any:
    """The matrix products of the last two dimensions, by the library's BLAS, in float32 or the arrays' wider type.

    Leading dimensions are equal or, where they repeat, 1. So are rows of `a` and columns of `b`, which then have
    dimension 1 in what is made. Of float16, if they are to be `rounded`, they may come in that type. They may be made
    in the array `into`.
    """
    a, b = rows_once(a), rows_once(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    is_repeated = 0 in (a.strides[-1], b.strides[-2]) and a.shape[-1] > 1
    if xp.__name__ == "cupy" and a.dtype.name in blas.TYPES and not is_repeated and 0 not in (*a.shape, *b.shape):
        dtype = FLOAT32 if a.dtype.name == "float16" and not rounded else a.dtype
        return blas.product_of_floats(xp, for_blas(xp, a), for_blas(xp, b), dtype, into)
    a, b = (xp.broadcast_to(computed(x), x.shape) for x in (a, b))
    if is_repeated:
        return _product_of_repeated(xp, a, b)
    a, b = for_blas(xp, a), for_blas(xp, b)
    *batch, rows, depth = a.shape
    if math.prod(batch) > 1 and math.prod(b.shape[:-2]) == 1:  # one large product is quicker than many small ones
        made = matmul(xp, a.reshape(-1, depth), b.reshape(b.shape[-2:]))
        return made.reshape(*batch, rows, made.shape[-1])
    return xp.ascontiguousarray(matmul(xp, a, b))  # whose leading dimensions may lie as those of `a` do


def matmul(xp: Any, a: Any, b: Any, out: Any = None) -> Any:
    """xp.matmul, with NumPy of floats so much at a time that there is a look now and then, by the threads at hand."""
    count = 1 if xp.__name__ == "cupy" else pieces_of(a.shape, b.shape, at_hand())
    if count == 1:
        return xp.matmul(a, b, out=out)
    sizes = (*xp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    made = xp.empty(sizes, xp.result_type(a, b)) if out is None else out
    a, b = (xp.broadcast_to(x, (*sizes[:-2], *x.shape[-2:])) for x in (a, b))
    parts = list(_cut(sizes, count))

    def multiply(turn: int) -> None:
        *matrices, rows, columns = parts[turn]
        xp.matmul(a[(*matrices, rows)], b[(*matrices, slice(None), columns)], out=made[parts[turn]])

    shared(len(parts), multiply)
    return made


def pieces_of(a: Sequence[int], b: Sequence[int], threads: int) -> int:
    """In how many pieces products of matrices of these sizes are done: one for each of so many threads that have enough
    to do, and more of what takes long."""
    matrices = max(math.prod(a[:-2]), math.prod(b[:-2]))
    rows, depth, columns = a[-2], a[-1], b[-1]
    work = matrices * (rows * depth * columns + READ * depth * (rows + columns) + _MATRIX)
    return max(min(threads, work // _WORTH_A_THREAD), -(-work // _PRODUCTS), 1)


def _cut(sizes: Sequence[int], count: int) -> Iterator[tuple[slice, ...]]:
    """Products of these sizes in about so many parts: matrices stay whole where there are as many, else each is cut
    along its longer side, by which a BLAS packs less of the operands twice."""
    *batch, rows, columns = sizes
    matrices, long = math.prod(batch), max(rows, columns)
    of_each = -(-count // matrices)
    step = -(-long // (of_each * _ALIGNED)) * _ALIGNED
    for box in boxes(batch, max(matrices // count, 1)):
        outer = [slice(along.start, along.stop) for along in box]
        for begin in range(0, long, step):
            along = slice(begin, min(begin + step, long))
            yield (*outer, along, slice(columns)) if rows == long else (*outer, slice(rows), along)


def multiplied(xp: Any, a: Any, b: Any) -> Any:
    """The matrix products of float32, packed, whatever they are made of; on a GPU so that they can be captured."""
    if xp.__name__ != "cupy" or 0 in (*a.shape, *b.shape):
        return xp.ascontiguousarray(matmul(xp, a, b))  # as in `product`
    return blas.product_of_floats(xp, for_blas(xp, a), for_blas(xp, b), FLOAT32)


def rows_once(x: Any) -> Any:
    """`x` without what is repeated, but along the last dimension, whose elements are added up."""
    return x[tuple([slice(0, 1) if stride == 0 else slice(None) for stride in x.strides[:-1]])]


def for_blas(xp: Any, x: Any) -> Any:
    """`x` with matrices as BLAS takes them."""
    row, column = (step // x.itemsize for step in x.strides[-2:])
    return on_words(x) if is_for_blas(x.shape[-2:], (row, column)) else xp.ascontiguousarray(x)


def on_words(x: Any) -> Any:
    """`x` with its elements where they are aligned, which they need not be in a request's body. NumPy would copy them
    itself, but row-major, by which a BLAS adds up in another order, and last bits would tell where a body has them."""
    return x if not isinstance(x, np.ndarray) or x.flags.aligned else x.copy("K")


def is_for_blas(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a BLAS takes matrices of these sizes, and strides in elements: with one dimension of stride 1, and rows
    that do not overlap."""
    (rows, columns), (row, column) = sizes, strides
    taken = (column == 1 or columns == 1, row >= columns or rows == 1), (row == 1 or rows == 1, column >= rows)
    return any(map(all, taken))


def _product_of_repeated(xp: Any, a: Any, b: Any) -> Any:
    """The same where sums are of repeated elements, which are written out for some terms at a time."""
    rows = math.prod(a.shape[:-1]) + math.prod(b.shape[:-2]) * b.shape[-1]
    made: Any = None
    for terms in spans(a.shape[-1], max(SCRATCH[xp.__name__] // (rows * a.itemsize), 1)):
        part = matmul(xp, xp.ascontiguousarray(a[..., terms]), xp.ascontiguousarray(b[..., terms, :]))
        made = part if made is None else made + part
    return made
