"""cuBLAS, asked for what CuPy's functions do not offer: products of halves that are added up, and may come, in float32,
products of bytes, and products while work is captured as a CUDA graph, which CuPy refuses."""

import ctypes
import itertools
import math
import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np

TYPES = {"float32": 0, "float64": 1, "float16": 2}
"""Which floats are multiplied here, and their numbers in cudaDataType."""

_NUMBERS = TYPES | {"int8": 3, "int32": 10}
"""The same of all that is multiplied and made."""

_PLAIN, _TRANSPOSED = 0, 1
"""Of cublasOperation_t."""

_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32I, _DEFAULT = 68, 70, 72, -1
"""CUBLAS_COMPUTE_32F, which is no TF32, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32I and CUBLAS_GEMM_DEFAULT."""

_WORKSPACE = 32 << 20
"""Bytes that cuBLAS may compute in: as many as NVIDIA advises for the largest GPUs."""

_FACTORS = {
    compute: (np.ones(1, dtype), np.zeros(1, dtype))
    for compute, dtype in ((_COMPUTE_32F, np.float32), (_COMPUTE_64F, np.float64), (_COMPUTE_32I, np.int32))
}
"""Of the product, and of what was there before, in the host's memory, where cuBLAS reads them from."""

BYTES_COLUMNS, BYTES_TERMS = 4, 16
"""What columns and terms of products of bytes are multiples of, for cuBLAS to take its quick ways."""

_handles: dict[int, ctypes.c_void_p] = {}
_queueing = threading.Lock()
"""Held while a product is queued. A GPU has one handle: each takes 64 MiB there, too much for every thread."""


def product_of_floats(cupy: Any, a: Any, b: Any, dtype: Any, into: Any = None) -> Any:
    """The matrix products of { ..., M, K } and { ..., K, N }, both float16 or both float32, added up in float32, in
    `dtype`, which is one of the two, or all of float64; made in `into` if that is packed and as the products are.

    Leading dimensions are equal or 1, none is 0, and matrices have one dimension of stride 1 and no rows that overlap.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    sizes = (*batch, rows, columns)
    fits = into is not None and into.shape == sizes and into.dtype == dtype and into.flags.c_contiguous
    made = into if fits else cupy.empty(sizes, dtype)
    a, b = (_stacked(cupy, x, batch) for x in (a, b))
    (a_form, a_width), (b_form, b_width) = _lies(a), _lies(b)
    a_step, b_step = (x.strides[0] // x.itemsize if len(x) > 1 else 0 for x in (a, b))
    count, height = max(len(a), len(b)), rows
    if len(b) == 1 < len(a) and a_form is _PLAIN and a_step == rows * a_width:
        count, height = 1, rows * len(a)  # one large product is quicker than many small ones
    operands = _Operand(b, b_form, b_width, b_step), _Operand(a, a_form, a_width, a_step)
    compute = _COMPUTE_64F if made.dtype == np.float64 else _COMPUTE_32F
    _queue(cupy, operands, made, (columns, height, depth), count, compute)
    return made


def product_of_bytes(cupy: Any, a: Any, b: Any, into: Any = None) -> Any:
    """The matrix products of { ..., M, K } and, transposed, { ..., N, K }, both int8 and packed, added up in int32;
    made in `into` if that is packed and as the products are.

    Leading dimensions are equal or 1, none is 0, N is a multiple of BYTES_COLUMNS, K of BYTES_TERMS.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (rows, depth), columns = a.shape[-2:], b.shape[-2]
    sizes = (*batch, rows, columns)
    fits = into is not None and into.shape == sizes and into.dtype == np.int32 and into.flags.c_contiguous
    made = into if fits else cupy.empty(sizes, np.int32)
    a, b = (_stacked(cupy, x, batch) for x in (a, b))
    a_step, b_step = (x.strides[0] if len(x) > 1 else 0 for x in (a, b))
    operands = _Operand(b, _TRANSPOSED, depth, b_step), _Operand(a, _PLAIN, depth, a_step)
    _queue(cupy, operands, made, (columns, rows, depth), max(len(a), len(b)), _COMPUTE_32I)
    return made


class _Operand(NamedTuple):
    """How cuBLAS is told of one: its array, form, leading dimension, and the step from one matrix to the next."""

    array: Any
    form: int
    width: int
    step: int

    def lies(self) -> tuple[object, ...]:
        array = self.array
        width, step = ctypes.c_int64(self.width), ctypes.c_longlong(self.step)
        return ctypes.c_void_p(array.data.ptr), _NUMBERS[array.dtype.name], width, step


def _queue(
    cupy: Any,
    operands: tuple[_Operand, _Operand],
    made: Any,
    sizes: tuple[int, int, int],
    count: int,
    compute: int,
) -> None:
    """Queue `count` products, { columns, rows, terms } of which are `sizes`, to `made`, which is packed.

    cuBLAS takes columns one after the other: so what it makes is the transposed product, of the operands exchanged.
    It counts with 64 bits, as rows may be more than 2^31 elements apart.
    """
    library, workspace, stream = _library(cupy), cupy.cuda.alloc(_WORKSPACE), cupy.cuda.get_current_stream()
    one, zero = (ctypes.c_void_p(factor.ctypes.data) for factor in _FACTORS[compute])
    first, second = operands
    rows, columns = made.shape[-2:]
    target = _Operand(made, _PLAIN, columns, rows * columns)
    with _queueing:
        handle = _handle(cupy, library)
        _check(cupy, library.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr)))
        _check(cupy, library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(workspace.ptr), _WORKSPACE))
        status = library.cublasGemmStridedBatchedEx_64(
            handle, first.form, second.form, *map(ctypes.c_int64, sizes),
            one, *first.lies(), *second.lies(), zero, *target.lies(),
            ctypes.c_int64(count), compute, _DEFAULT,
        )  # fmt: skip
    _check(cupy, status)


@cache
def _library(cupy: Any) -> ctypes.CDLL:
    """The one that CuPy loads, too; its version is told without a handle."""
    return ctypes.CDLL(f"libcublas.so.{cupy.cuda.cublas.getVersion(0) // 10000}")


def _handle(cupy: Any, library: ctypes.CDLL) -> ctypes.c_void_p:
    """That of the current GPU; CuPy's may be in the midst of something else."""
    ordinal = cupy.cuda.runtime.getDevice()
    if ordinal not in _handles:
        handle = ctypes.c_void_p()
        _check(cupy, library.cublasCreate_v2(ctypes.byref(handle)))
        _handles[ordinal] = handle
    return _handles[ordinal]


def _check(cupy: Any, status: int) -> None:
    if status:
        raise cupy.cuda.cublas.CUBLASError(status)


def _stacked(cupy: Any, x: Any, batch: tuple[int, ...]) -> Any:
    """All matrices of `x`, evenly spaced, along one dimension; one where all are the same."""
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(1, *x.shape[-2:])
    lead = cupy.broadcast_to(x, (*batch, *x.shape[-2:]))
    steps = [(size, step) for size, step in zip(lead.shape[:-2], lead.strides[:-2], strict=True) if size > 1]
    even = all(outer == size * inner for (_, outer), (size, inner) in itertools.pairwise(steps))
    if not even:
        lead = cupy.ascontiguousarray(lead)
        return lead.reshape(-1, *x.shape[-2:])
    count, step = math.prod(batch), steps[-1][1]
    return cupy.ndarray((count, *x.shape[-2:]), x.dtype, x.data, (step, *x.strides[-2:]))


def _lies(x: Any) -> tuple[int, int]:
    """Whether matrices lie row by row or column by column, and how far the next row or column is."""
    row, column = (step // x.itemsize for step in x.strides[-2:])
    rows, columns = x.shape[-2:]
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return _PLAIN, max(row if rows > 1 else columns, columns)
    return _TRANSPOSED, max(column if columns > 1 else rows, rows)
